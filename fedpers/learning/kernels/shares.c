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

/* to[p][c] = sum_k share[c][k] v_k for C clients' K models of P layers: of a layer p sizes[p] entries, the next client's
   hop[p] further on. */
void fedpers_mixtures(long C, long K, long P, const long *sizes, const float **v, const long *hop, const float *share,
                      float **to) {
    for (long c = 0; c < C; c++)
        for (long p = 0, n; p < P; p++)
            for (long at = 0; at < (n = sizes[p]); at += BLOCK)
                blend_rows(share + c * K, v[p] + c * hop[p] + at, K, n, n - at < BLOCK ? n - at : BLOCK,
                           to[p] + c * n + at);
}

/* to[c][k] = <v_k, g> of C clients, for models as above and g[p] [C][n] */
void fedpers_slopes(long C, long K, long P, const long *sizes, const float **v, const long *hop, const float **g,
                    float *to) {
    for (long c = 0; c < C; c++)
        for (long k = 0; k < K; k++) {
            to[c * K + k] = 0;
            for (long p = 0, n; p < P; p++)
                n = sizes[p], to[c * K + k] += inner(v[p] + c * hop[p] + k * n, g[p] + c * n, n);
        }
}

/* to_k = a w_k + b m_k + c_k z, m being absent if it is null; `past` the caches, if `to` is whole lines of them */
INLINE void drift(float a, float b, const float *c, const float *w, const float *m, const float *z, long K, long n,
                  long now, float *to, int past) {
    for (long k = 0; k < K; k++, w += n, m = m ? m + n : m, to += n) {
        long i = 0;
        for (; i + V <= now; i += V) {
            vec x = a * *(const vec *)(w + i) + c[k] * *(const vec *)(z + i);
            if (m) x += b * *(const vec *)(m + i);
            if (past) write_past(to + i, x);
            else *(vec *)(to + i) = x;
        }
        for (; i < now; i++) to[i] = a * w[i] + c[k] * z[i] + (m ? b * m[i] : 0);
    }
}

/* One layer of one client, of n entries: w, m (null: none) and their mixtures' ends, where they go. */
static void share_layer(long K, long n, const float *w, const float *m, const float *own, const float *steps,
                        const float *const *ends, float *const *to, int past) {
    float mean[BLOCK], mean_m[BLOCK] = {0}, add[BLOCK], rate = inner(own, own, K);
    for (long at = 0; at < n; at += BLOCK) {
        long now = n - at < BLOCK ? n - at : BLOCK;
        blend_rows(own, w + at, K, n, now, mean);
        if (m) blend_rows(own, m + at, K, n, now, mean_m);
        for (int row = 0; row < (m ? 2 : 1); row++) {
            const float *end = ends[row] + at, a = steps[2 * row], b = steps[2 * row + 1];
            for (long i = 0; i < now; i++) add[i] = (end[i] - (a * mean[i] + b * mean_m[i])) / rate;
            if (past) drift(a, b, own, w + at, m ? m + at : m, add, K, n, now, to[row] + at, 1);
            else drift(a, b, own, w + at, m ? m + at : m, add, K, n, now, to[row] + at, 0);
        }
    }
}

/* Models w and momenta m (null: none, nor its m_end, to_m) of C clients after a training that made w_end[p] and
   m_end[p] [C][n] of their mixtures. `steps` [C][2][2] has (a, b) and (p, q). */
void fedpers_shares(long C, long K, long P, const long *sizes, const float **w, const long *hop, const float **m,
                    const long *hop_m, const float *share, const float *steps, const float **w_end,
                    const float **m_end, float **to_w, float **to_m) {
    for (long c = 0; c < C; c++)
        for (long p = 0; p < P; p++) {
            long n = sizes[p], one = c * n, all = c * K * n;
            const float *ends[] = {w_end[p] + one, m ? m_end[p] + one : 0};
            float *to[] = {to_w[p] + all, m ? to_m[p] + all : 0};
            int past = C * K * n >= LARGE && n % V == 0 && aligned(to, 2);
            share_layer(K, n, w[p] + c * hop[p], m ? m[p] + c * hop_m[p] : 0, share + c * K, steps + 4 * c, ends, to, past);
        }
    written();
}
