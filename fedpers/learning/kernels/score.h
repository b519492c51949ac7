/* What outputs lose, and whether they are right. */
#pragma once
#include "softmax.h"

/* Add up losses and correct predictions of n rows of outputs, as `Model` defines both; their targets start
   at y[at], and what each row loses goes to `each` if that is not null. Returns 2 if a label is no class. */
static int score(int task, const float *z, long hop, const void *y, long at, long n, long K, double *sums,
                 float *each) {
    for (long i = 0; i < n; i++, z += hop) {
        const float *t = (const float *)y + (at + i) * K;
        float top = -INFINITY;
        double loss = 0;
        long guess = 0;
        for (long k = 0; task == REGRESSION && k < K; k++) loss += (z[k] - t[k]) * (z[k] - t[k]) / K;
        if (task == BINARY) {
            loss = (z[0] > 0 ? z[0] : 0) - t[0] * z[0] + log1pf(expf(-fabsf(z[0])));
            sums[1] += (z[0] > 0) == t[0];
        }
        if (task == CLASSES) {
            int64_t label = ((const int64_t *)y)[at + i];
            if (label < 0 || label >= K) return 2;
            for (long k = 0; k < K && top == top; k++)
                if (z[k] > top || z[k] != z[k]) top = z[guess = k];
            loss = logf(exp_sum(z, K, top)) - (z[label] - top);
            sums[1] += guess == label;
        }
        sums[0] += loss;
        if (each) each[at + i] = (float)loss;
    }
    return 0;
}
