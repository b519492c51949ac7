/* Products of one wide layer, for a network that torch differentiates. Rows of x and w are whole registers. */
#include "products.h"

/* y = x w^T + b of n rows; y [n, outs] has room for a multiple of ROWS rows. 1 without memory. */
int fedpers_linear(long n, long ins, long outs, const float *x, const float *w, const float *b, float *y) {
    long padded = (n + ROWS - 1) / ROWS * ROWS;
    const float **each = malloc(padded * sizeof(float *));
    if (!each) return 1;
    for (long i = 0; i < padded; i++) each[i] = x + (i < n ? i : n - 1) * ins;
    forward(w, b, each, y, n, outs, ins, outs);
    free(each);
    return 0;
}

/* y [outs, wide] = a^T x of n rows of a [n, outs] and x [n, wide]. 1 without memory. */
int fedpers_mixed(long n, long outs, long wide, const float *a, const float *x, float *y) {
    const float **each = malloc(n * sizeof(float *));
    if (!each) return 1;
    for (long i = 0; i < n; i++) each[i] = x + i * wide;
    mix(a, outs, each, 0, y, n, outs, wide, 0);
    free(each);
    return 0;
}
