/* Derivatives of the losses of samples in a network's outputs, for passes.h. */
#pragma once
#include "softmax.h"

/* Replace the outputs of `rows` samples, one or four, by f times the derivatives of their losses; 2 if a label is no
   class. */
INLINE int of_classes(const int rows, float *d, const int64_t *label, four f, long K, long wide) {
    for (int r = 0; r < rows; r++)
        if (label[r] < 0 || label[r] >= K) return 2;
    softmax(rows, d, K, wide, f);
    for (int r = 0; r < rows; r++) d[r * wide + label[r]] -= f[r];
    return 0;
}

/* Replace the outputs in d by scale * weight * (derivative of a sample's loss), and times what `each` has for
   the sample's row, if it is not null; 2 if a label is no class. */
static int derivatives(int task, float *d, const void *y, const int64_t *index, const float *weight,
                       const float *each, float scale, long B, long K, long wide) {
    for (long i = 0, rows; i < B; i += rows, d += rows * wide) {
        const float *t = 0;
        int64_t label[4] = {0};
        four f = {0};
        rows = task == CLASSES && B - i >= 4 ? 4 : 1;
        for (long r = 0; r < rows; r++) {
            long j = weight[i + r] != 0 ? index[i + r] : 0;
            f[r] = scale * weight[i + r];
            if (each) f[r] *= each[j];
            if (task == CLASSES) label[r] = ((const int64_t *)y)[j];
            else t = (const float *)y + j * K;
        }
        if (task == REGRESSION)
            for (long k = 0; k < K; k++) d[k] = f[0] * (d[k] - t[k]) * 2 / K;
        if (task == BINARY) d[0] = f[0] * (1 / (1 + expf(-d[0])) - t[0]);
        if (task == CLASSES && (rows > 1 ? of_classes(4, d, label, f, K, wide) : of_classes(1, d, label, f, K, wide)))
            return 2;
    }
    return 0;
}
