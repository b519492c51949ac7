/* K models of many clients under memberships c [K]: their mixture, and where each of them is after a training of it.

   A step of such a training is linear in a model w_k and its momentum m_k, but for what gradients add, of which model
   k has the share c_k. So S steps are w_k' = a w_k + b m_k + c_k z and m_k' = p w_k + q m_k + c_k y, and z and y are found
   from what the steps made of the mixture, whose own share is |c|^2. */
#include "extra.h"

#define BLOCK 256 /* entries of all models that are in the cache together */

/* to = sum_k c_k v_k of rows that are n further on, for `now` entries */
INLINE void blend_rows(const float *c, const float *v, long K, long n, long now, float *restrict to) {
    for (long i = 0; i < now; i++) to[i] = c[0] * v[i];
    for (long k = 1; k < K; k++) {
        const float *restrict from = v + k * n, f = c[k];
        for (long i = 0; i < now; i++) to[i] += f * from[i];
    }
}

/* to[c] = sum_k share[c][k] v_k for C clients' K models of n entries, the next client's `hop` further on. */
void fedpers_mixtures(long C, long K, long n, const float *v, long hop, const float *share, float *to) {
    for (long c = 0; c < C; c++)
        for (long at = 0; at < n; at += BLOCK)
            blend_rows(share + c * K, v + c * hop + at, K, n, n - at < BLOCK ? n - at : BLOCK, to + c * n + at);
}

/* to[c][k] = <v_k, g> of C clients, for models as above and g [C][n] */
void fedpers_slopes(long C, long K, long n, const float *v, long hop, const float *g, float *to) {
    for (long c = 0; c < C; c++)
        for (long k = 0; k < K; k++) to[c * K + k] = inner(v + c * hop + k * n, g + c * n, n);
}

/* to_k = a w_k + b m_k + c_k z, m and b being absent if m is null */
INLINE void drift(float a, float b, const float *c, const float *w, const float *m, const float *restrict z, long K,
                  long n, long now, float *to) {
    for (long k = 0; k < K; k++) {
        const float *restrict x = w + k * n, *restrict u = m + k * n, f = c[k];
        float *restrict out = to + k * n;
        if (m)
            for (long i = 0; i < now; i++) out[i] = a * x[i] + b * u[i] + f * z[i];
        else
            for (long i = 0; i < now; i++) out[i] = a * x[i] + f * z[i];
    }
}

/* Models w and momenta m (null: none, nor its m_end, to_m) of C clients after a training that made w_end and m_end
   [C][n] of their mixtures. `steps` [C][2][2] has (a, b) and (p, q). */
void fedpers_shares(long C, long K, long n, const float *w, long hop, const float *m, long hop_m, const float *share,
                    const float *steps, const float *w_end, const float *m_end, float *to_w, float *to_m) {
    float mean[BLOCK], mean_m[BLOCK] = {0}, add[BLOCK];
    for (long c = 0; c < C; c++) {
        const float *own = share + c * K, *w_c = w + c * hop, *m_c = m ? m + c * hop_m : 0;
        float rate = 0;
        for (long k = 0; k < K; k++) rate += own[k] * own[k];
        for (long at = 0; at < n; at += BLOCK) {
            long now = n - at < BLOCK ? n - at : BLOCK;
            blend_rows(own, w_c + at, K, n, now, mean);
            if (m) blend_rows(own, m_c + at, K, n, now, mean_m);
            for (int row = 0; row < (m ? 2 : 1); row++) {
                const float *end = (row ? m_end : w_end) + c * n + at;
                const float a = steps[c * 4 + 2 * row], b = steps[c * 4 + 2 * row + 1];
                float *to = (row ? to_m : to_w) + c * K * n + at;
                for (long i = 0; i < now; i++) add[i] = (end[i] - (a * mean[i] + b * mean_m[i])) / rate;
                drift(a, b, own, w_c + at, m ? m_c + at : 0, add, K, n, now, to);
            }
        }
    }
}
