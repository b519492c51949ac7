/* What a loss has beside the model's own: a term of each sample's features z, or a second head on them.

   PULL: weight b_i mean_k (z_k - a_ik)^2, a and b of the sample's row. CONTRAST: weight softplus((cos(z, b_i) -
   cos(z, a_i)) / tau). TWO_HEADS: a is added to the outputs in the loss, and a second head learns what the sum of both
   heads' outputs lacks, while nothing else moves by that; its parameters come last. */
#include "network.h"

enum { NOTHING, PULL, CONTRAST, TWO_HEADS };

typedef struct {
    int kind;
    float weight, tau;
    const float *a, *b;   /* the current client's; PULL and CONTRAST: a row for each row of its samples */
    const int64_t *rows;  /* of the current minibatch */
    const float *share;   /* of its rows */
    float scale;          /* of the derivatives of samples' losses */
} extra;

INLINE float inner(const float *a, const float *b, long n) {
    vec total = {0};
    long k = 0;
    for (; k + V <= n; k += V) total += *(const vec *)(a + k) * *(const vec *)(b + k);
    float sum = add_up(total);
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

/* d += f times the gradient of tau softplus((cos(z, far) - cos(z, near)) / tau); a row of 0 has cosine 0. */
static void contrast(const float *restrict z, const float *restrict near, const float *restrict far, float f, float tau,
                     float *restrict d, long M) {
    const float least = 1e-16f;
    float size = inner(z, z, M), long_z = fmaxf(size, least);
    float to_near = 1 / sqrtf(long_z * fmaxf(inner(near, near, M), least));
    float to_far = 1 / sqrtf(long_z * fmaxf(inner(far, far, M), least));
    float lead = inner(z, near, M) * to_near - inner(z, far, M) * to_far;
    float push = f / (1 + expf(lead / tau)), turn = size < least ? 0 : lead / size;
    for (long k = 0; k < M; k++) d[k] += push * (far[k] * to_far - near[k] * to_near + turn * z[k]);
}

/* Add the derivatives of a term of the features to those in the features. */
static void on_features(const net *n, space *m, const extra *e, long B) {
    long M = n->width[n->L - 1], wide = WIDE(M);
    for (long i = 0; i < B; i++) {
        long j = e->share[i] != 0 ? e->rows[i] : 0;
        float f = e->scale * e->share[i] * e->weight;
        const float *restrict z = m->z[n->L - 1] + i * wide, *restrict a = e->a + j * M;
        float *restrict d = m->d[n->L - 1] + i * wide, pull = e->kind == PULL ? f * e->b[j] * 2 / M : 0;
        if (e->kind == CONTRAST) contrast(z, a, e->b + j * M, f / e->tau, e->tau, d, M);
        else
            for (long k = 0; k < M; k++) d[k] += pull * (z[k] - a[k]);
    }
}
