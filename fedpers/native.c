/* Local SGD of multinomial logistic regression for many clients in one call.

   W [C, K, D] and b [C, K] are overwritten; x and y point to each client's rows; index and weight are
   minibatches [C, S, B]. A step whose weights are all 0 changes nothing. No client sees another.
   Returns 0, 1 without memory, 2 where a label is no class. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define V 16 /* floats of one register; more would not stay in registers */
#else
#define V 8
#endif
#define KB 5
typedef float vec __attribute__((vector_size(4 * V)));
typedef float uvec __attribute__((vector_size(4 * V), aligned(4)));

static float sum(vec v) {
    float s = 0;
    for (int i = 0; i < V; i++) s += v[i];
    return s;
}

/* z[i][k] = W_k . x_i for the rows of a batch, two rows at a time */
static void forward(const float *W, const float **x, float *z, long B, long K, long D) {
    for (long k0 = 0; k0 < K; k0 += KB) {
        long kn = K - k0 < KB ? K - k0 : KB;
        for (long i = 0; i < B; i += 2) {
            const float *p = x[i], *q = x[i + 1 < B ? i + 1 : i];
            vec a[KB] = {0}, c[KB] = {0};
            long j = 0;
            if (kn == KB)
                for (; j + V <= D; j += V) {
                    vec u = *(const uvec *)(p + j), v = *(const uvec *)(q + j);
                    for (int k = 0; k < KB; k++) {
                        vec w = *(const uvec *)(W + (k0 + k) * D + j);
                        a[k] += u * w;
                        c[k] += v * w;
                    }
                }
            else
                for (; j + V <= D; j += V) {
                    vec u = *(const uvec *)(p + j), v = *(const uvec *)(q + j);
                    for (long k = 0; k < kn; k++) {
                        vec w = *(const uvec *)(W + (k0 + k) * D + j);
                        a[k] += u * w;
                        c[k] += v * w;
                    }
                }
            for (long k = 0; k < kn; k++) {
                float s = sum(a[k]), t = sum(c[k]);
                for (long r = j; r < D; r++) {
                    s += p[r] * W[(k0 + k) * D + r];
                    t += q[r] * W[(k0 + k) * D + r];
                }
                z[i * K + k0 + k] = s;
                if (i + 1 < B) z[(i + 1) * K + k0 + k] = t;
            }
        }
    }
}

/* z := -rate * weight * (softmax(z + b) - onehot(y)) */
static void slopes(float *z, const float *b, const int64_t *y, const int64_t *index,
                   const float *weight, float rate, long B, long K) {
    for (long i = 0; i < B; i++) {
        float *r = z + i * K, top = -INFINITY, total = 0;
        for (long k = 0; k < K; k++) {
            if (b) r[k] += b[k];
            if (r[k] > top || r[k] != r[k]) top = r[k];
        }
        for (long k = 0; k < K; k++) total += r[k] = expf(r[k] - top);
        for (long k = 0; k < K; k++)
            r[k] = -rate * weight[i] * (r[k] / total - (k == y[index[i]] ? 1.0f : 0.0f));
    }
}

/* W_k := keep W_k + sum_i z[i][k] x_i, a strip of columns at a time; the rows of the next batch are
   fetched meanwhile */
static void update(float *W, const float **x, const float **next, const float *z, float keep, long B,
                   long K, long D) {
    for (long k0 = 0; k0 < K; k0 += 2 * KB) {
        long kn = K - k0 < 2 * KB ? K - k0 : 2 * KB, j = 0;
        for (; j + V <= D; j += V) {
            vec w[2 * KB];
            for (long k = 0; k < kn; k++) w[k] = keep * *(const uvec *)(W + (k0 + k) * D + j);
            if (kn == 2 * KB)
                for (long i = 0; i < B; i++) {
                    vec u = *(const uvec *)(x[i] + j);
                    __builtin_prefetch(next[i] + j, 0, 2);
                    for (int k = 0; k < 2 * KB; k++) w[k] += z[i * K + k0 + k] * u;
                }
            else
                for (long i = 0; i < B; i++) {
                    vec u = *(const uvec *)(x[i] + j);
                    for (long k = 0; k < kn; k++) w[k] += z[i * K + k0 + k] * u;
                }
            for (long k = 0; k < kn; k++) *(uvec *)(W + (k0 + k) * D + j) = w[k];
        }
        for (; j < D; j++)
            for (long k = 0; k < kn; k++) {
                float s = keep * W[(k0 + k) * D + j];
                for (long i = 0; i < B; i++) s += z[i * K + k0 + k] * x[i][j];
                W[(k0 + k) * D + j] = s;
            }
    }
}

int fedpers_logistic(float *W, float *b, const float **x, const int64_t **y, const int64_t *index,
                     const float *weight, long C, long S, long B, long K, long D, float lr,
                     float decay) {
    float *z = malloc(sizeof(float) * B * K);
    const float **rows = malloc(sizeof(float *) * B), **next = malloc(sizeof(float *) * B);
    int failed = !z || !rows || !next;
    for (long c = 0; c < C && !failed; c++, W += K * D, b = b ? b + K : b)
        for (long s = 0; s < S && !failed; s++, index += B, weight += B) {
            float total = 0;
            for (long i = 0; i < B; i++) total += weight[i];
            if (!(total > 0)) continue;
            for (long i = 0; i < B; i++) {
                long last = s + 1 == S, to = last && c + 1 < C ? c + 1 : c;
                rows[i] = x[c] + index[i] * D;
                next[i] = last && c + 1 == C ? rows[i] : x[to] + index[B + i] * D;
                if (y[c][index[i]] < 0 || y[c][index[i]] >= K) failed = 2;
            }
            if (failed) break;
            float keep = 1 - lr * decay;
            forward(W, rows, z, B, K, D);
            slopes(z, b, y[c], index, weight, lr / total, B, K);
            update(W, rows, next, z, keep, B, K, D);
            for (long k = 0; b && k < K; k++) {
                float t = 0;
                for (long i = 0; i < B; i++) t += z[i * K + k];
                b[k] = keep * b[k] + t;
            }
        }
    free(z);
    free(rows);
    free(next);
    return failed;
}
