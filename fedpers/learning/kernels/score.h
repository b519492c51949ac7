/* What outputs lose, and whether they are right. */
#pragma once
#include "softmax.h"

/* Add up losses and correct predictions of n rows of outputs, as `Model` defines both; their targets are those in y
   from `first` on, picked by `rows` if that is not null, and what each row loses goes to `each` if that is not null.
   Returns 2 if a label is no class. */
static int score(int task, const float *z, long hop, const void *y, const int64_t *rows, long first, long n, long K,
                 double *sums, float *each) {
    for (long i = first; i < first + n; i++, z += hop) {
        long at = rows ? rows[i] : i;
        const float *t = (const float *)y + at * K;
        float top = -INFINITY;
        double loss = 0;
        long guess = 0;
        for (long k = 0; task == REGRESSION && k < K; k++) loss += (z[k] - t[k]) * (z[k] - t[k]) / K;
        if (task == BINARY) {
            loss = (z[0] > 0 ? z[0] : 0) - t[0] * z[0] + log1pf(expf(-fabsf(z[0])));
            sums[1] += (z[0] > 0) == t[0];
        }
        if (task == CLASSES) {
            int64_t label = ((const int64_t *)y)[at];
            if (label < 0 || label >= K) return 2;
            for (long k = 0; k < K && top == top; k++)
                if (z[k] > top || z[k] != z[k]) top = z[guess = k];
            loss = logf(exp_sum(z, K, top)) - (z[label] - top);
            sums[1] += guess == label;
        }
        sums[0] += loss;
        if (each) each[i] = (float)loss;
    }
    return 0;
}
