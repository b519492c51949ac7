/* Products of small matrices whose rows are padded to whole registers, for native.c. */
#include "native.h"

#ifdef __AVX512F__
#define ROWS 4
#define OUTS 10
#else
#define ROWS 2
#define OUTS 5
#endif
#define DOTS 5
#define PIECE(wide) ((131072 / (wide) + ROWS) / ROWS * ROWS) /* rows of half a megabyte: they stay in the L2 cache */

/* z[r][k] = w_k . x_r + b_k for `outs` rows of w and ROWS rows of x */
INLINE void dots(const int outs, const float *w, const float **x, const float *b, float *z, long wide,
                 long zw) {
    vec a[(ROWS * DOTS + 3) / 4 * 4] = {0}; /* row by row */
    for (long j = 0; j < wide; j += V) {
        vec u[ROWS];
        for (int r = 0; r < ROWS; r++) {
            u[r] = *(const vec *)(x[r] + j);
            HELD(u[r]);
        }
        for (int k = 0; k < outs; k++) {
            vec v = *(const vec *)(w + k * wide + j);
            HELD(v);
            for (int r = 0; r < ROWS; r++) a[r * outs + k] += u[r] * v;
        }
    }
    float sums[(ROWS * DOTS + 3) / 4 * 4];
    for (int i = 0; i < ROWS * outs; i += 4) *(four *)(sums + i) = add_up_four(a + i);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < outs; k++) z[r * zw + k] = sums[r * outs + k] + (b ? b[k] : 0);
}

/* Outputs of a layer for n rows; there is room for a multiple of ROWS rows, and x repeats the last. The last DOTS
   outputs may be taken twice. Inlined, as mix_in: a step of a plain layer takes a tenth less. */
INLINE void forward(const float *w, const float *b, const float **x, float *z, long n, long outs,
                    long wide, long zw) {
    const long most = PIECE(wide);
    for (long from = 0; from < n; from += most) {
        long to = n - from < most ? n : from + most;
        for (long at = 0; at < outs && outs >= DOTS; at += DOTS) {
            long k = at + DOTS < outs ? at : outs - DOTS;
            for (long i = from; i < to; i += ROWS)
                dots(DOTS, w + k * wide, x + i, b ? b + k : b, z + i * zw + k, wide, zw);
        }
        for (long k = 0; k < outs && outs < DOTS; k++)
            for (long i = from; i < to; i += ROWS)
                dots(1, w + k * wide, x + i, b ? b + k : b, z + i * zw + k, wide, zw);
    }
}

/* y_r (+)= sum_s a[s][r] x_s for `outs` rows and `vecs` registers; `next` is fetched meanwhile */
INLINE void strip(const int outs, const int vecs, const int add, const int fetch, const float *a,
                  long lead, const float **x, const float **next, float *y, long n, long wide, long j) {
    vec t[OUTS][2] = {0};
    if (add)
        for (int r = 0; r < outs; r++)
            for (int v = 0; v < vecs; v++) t[r][v] = *(const vec *)(y + r * wide + j + v * V);
    for (long s = 0; s < n; s++) {
        vec u[2];
        for (int v = 0; v < vecs; v++) {
            u[v] = *(const vec *)(x[s] + j + v * V);
            HELD(u[v]);
            if (fetch) __builtin_prefetch(next[s] + j + v * V, 0, 2);
        }
        for (int r = 0; r < outs; r++)
            for (int v = 0; v < vecs; v++) t[r][v] += a[s * lead + r] * u[v];
    }
    for (int r = 0; r < outs; r++)
        for (int v = 0; v < vecs; v++) *(vec *)(y + r * wide + j + v * V) = t[r][v];
}

INLINE void strips(const int outs, const int add, const int fetch, const float *a, long lead,
                   const float **x, const float **next, float *y, long n, long wide) {
    long j = 0;
    for (; j + 2 * V <= wide; j += 2 * V) strip(outs, 2, add, fetch, a, lead, x, next, y, n, wide, j);
    if (j < wide) strip(outs, 1, add, fetch, a, lead, x, next, y, n, wide, j);
}

INLINE void rows(const int add, const float *a, long lead, const float **x, const float **next, float *y,
                 long n, long outs, long wide) {
    long r = 0;
    if (next && outs >= OUTS) {
        strips(OUTS, add, 1, a, lead, x, next, y, n, wide);
        r = OUTS;
    }
    for (; r + OUTS <= outs; r += OUTS) strips(OUTS, add, 0, a + r, lead, x, x, y + r * wide, n, wide);
    for (; r + 2 <= outs; r += 2) strips(2, add, 0, a + r, lead, x, x, y + r * wide, n, wide);
    for (; r < outs; r++) strips(1, add, 0, a + r, lead, x, x, y + r * wide, n, wide);
}

/* y_r = sum_s a[s][r] x_s, and y_r += sum_s a[s][r] x_s */
static inline void mix(const float *a, long lead, const float **x, float *y, long n, long outs, long wide) {
    const long most = PIECE(wide);
    rows(0, a, lead, x, 0, y, n < most ? n : most, outs, wide);
    for (long s = most; s < n; s += most)
        rows(1, a + s * lead, lead, x + s, 0, y, n - s < most ? n - s : most, outs, wide);
}
INLINE void mix_in(const float *a, long lead, const float **x, const float **next, float *y, long n,
                   long outs, long wide) {
    rows(1, a, lead, x, next, y, n, outs, wide);
}
