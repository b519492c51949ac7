/* What outputs lose, and whether they are right. */
#pragma once
#include "softmax.h"

/* Whether `label` is the first place of the largest of a row's numbers, which is `top`. */
INLINE int is_first(const float *z, long label, float top) {
    if (z[label] != top) return 0; /* most of untrained models' rows end here */
    long k = 0;
    while (z[k] != top) k++;
    return k == label;
}

/* Add up losses and correct predictions of n rows of outputs, as `Model` defines both; their targets are those in y
   from `first` on, picked by `rows` if that is not null, and what each row loses goes to `each` if that is not null.
   Returns 2 if a label is no class. */
static int score(int task, const float *z, long hop, const void *y, const int64_t *rows, long first, long n, long K,
                 double *sums, float *each) {
    for (long i = first; i < first + n; i++, z += hop) {
        long at = rows ? rows[i] : i;
        const float *t = (const float *)y + at * K;
        double loss = 0;
        for (long k = 0; task == REGRESSION && k < K; k++) loss += (z[k] - t[k]) * (z[k] - t[k]) / K;
        if (task == BINARY) {
            loss = (z[0] > 0 ? z[0] : 0) - t[0] * z[0] + log1pf(expf(-fabsf(z[0])));
            sums[1] += z[0] == z[0] && (z[0] > 0) == t[0];
        }
        if (task == CLASSES) {
            int64_t label = ((const int64_t *)y)[at];
            if (label < 0 || label >= K) return 2;
            float top = largest(z, K);
            loss = logf(exp_sum(z, K, top)) - (z[label] - top);
            sums[1] += loss == loss && is_first(z, label, top); /* NaN: no probabilities, so no answer */
        }
        sums[0] += loss;
        if (each) each[i] = (float)loss;
    }
    return 0;
}
