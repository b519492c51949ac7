/* Softmax of a row of logits, a register at a time. */
#pragma once
#include "native.h"

INLINE vec every(float value) { return value - (vec){0}; }

/* exp of numbers up to 0, to the last bit but one; 0 below -87, where floats lose digits: a class that cannot be has
   no weight at all. NaN stays. By 2^n times a polynomial (Cephes' coefficients): the C library's takes one at a time. */
INLINE vec exps(vec x) {
    const vec shift = every(12582912.0f); /* 1.5 * 2^23: adding it rounds to whole numbers */
    ivec none = x < every(-87);
    x = pick(none, every(-87), x);
    vec n = x * 1.44269504f + shift, p = every(1.9875691500e-4f);
    ivec power = ((ivec)n - (ivec)shift + 127) << 23;
    n -= shift;
    x = x - n * 0.693359375f + n * 2.12194440e-4f;
    p = p * x + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    return pick(none, (vec){0}, (p * x * x + x + 1) * (vec)power);
}

/* Which floats of the register at k are among the K of a row; the rest of it is padding. */
INLINE ivec among(long k, long K) {
    ivec lane;
    for (int i = 0; i < V; i++) lane[i] = i;
    return lane < (int32_t)(K - k);
}

/* The larger of four pairs. */
INLINE four larger(four a, four b) {
    ifour yes = a > b;
    return (four)(((ifour)a & yes) | ((ifour)b & ~yes));
}

/* The largest of K numbers in a row; NaN among them make it any number, or NaN. */
INLINE float largest(const float *z, long K) {
    vec top = every(-INFINITY);
    for (long k = 0; k < K; k += V) {
        vec t = *(const vec *)(z + k);
        top = pick(among(k, K) & (t > top), t, top);
    }
    union { vec v; four q[V / 4]; } u = {top};
    four s = larger(u.q[0], u.q[1]);
    if (V == 16) s = larger(s, larger(u.q[2 % (V / 4)], u.q[3 % (V / 4)]));
    float a = s[0] > s[1] ? s[0] : s[1], b = s[2] > s[3] ? s[2] : s[3];
    return a > b ? a : b;
}

/* exp(z_k - top) of the register at k of K logits in a row; 0 in the padding. */
INLINE vec weights(const float *z, long k, long K, float top) {
    return pick(among(k, K), exps(*(const vec *)(z + k) - top), (vec){0});
}

/* The sum over K logits in a row of exp(z_k - top). */
INLINE float exp_sum(const float *z, long K, float top) {
    vec total = {0};
    for (long k = 0; k < K; k += V) total += weights(z, k, K, top);
    return add_up(total);
}

/* Replace K logits in each of `rows` rows, one or four, by factor * softmax. While one row waits another computes. */
INLINE void softmax(const int rows, float *z, long K, long wide, four factor) {
    float top[4];
    vec total[4] = {0};
    for (int r = 0; r < rows; r++) top[r] = largest(z + r * wide, K);
    for (long k = 0; k < K; k += V)
        for (int r = 0; r < rows; r++) total[r] += *(vec *)(z + r * wide + k) = weights(z + r * wide, k, K, top[r]);
    factor /= rows > 1 ? add_up_four(total) : (four){add_up(*total), 1, 1, 1};
    for (long k = 0; k < K; k += V)
        for (int r = 0; r < rows; r++) *(vec *)(z + r * wide + k) *= factor[r];
}
