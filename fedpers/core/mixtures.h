/* Registers of floats, what is written past the caches, and mixtures of rows: for all kernels. */
#pragma once
#include <stdint.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define V 16 /* floats of one register */
#else
#define V 8
#endif
#define LARGE (1 << 20) /* floats: what is as large goes past the caches, which would not hold it */
#define INLINE static inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(4 * V), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * V), aligned(4), may_alias)); /* of a comparison all ones, or 0 */
#if defined(__AVX2__) || defined(__AVX512F__)
#define HELD(x) __asm__("" : "+v"(x)) /* keep x in a register: a load for each product would be the bottleneck */
#else
#define HELD(x)
#endif

/* Write x past the caches, which would read first what is overwritten; `to` is aligned to it. */
INLINE void write_past(float *to, vec x) {
#if V == 16
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX__)
    _mm256_stream_ps(to, (__m256)x);
#else
    *(vec *)to = x;
#endif
}

/* Whoever reads after this sees what was written past the caches. */
INLINE void written(void) {
#ifdef __AVX__
    _mm_sfence();
#endif
}

/* Whether a register can be written past the caches at each of these places; null is none. */
INLINE int aligned(float *const *to, long count) {
    int all = 1;
    for (long i = 0; i < count; i++) all &= !((uintptr_t)to[i] % sizeof(vec));
    return all;
}

#define SPAN (V / 4) /* registers of each mixture at a time: four, of which T mixtures have room for all, or two */

/* y_i = sum_k share[i][k] x_k for T rows of `vecs` registers at j; written past the caches if `past` */
INLINE void mixtures_at(const int T, const int vecs, const int past, const float *share, const float **x, long sources,
                        float **y, long j) {
    vec a[4][SPAN] = {0};
    for (long k = 0; k < sources; k++)
        for (int v = 0; v < vecs; v++) {
            vec u = *(const vec *)(x[k] + j + v * V);
            HELD(u);
            for (int i = 0; i < T; i++) a[i][v] += share[i * sources + k] * u;
        }
    for (int i = 0; i < T; i++)
        for (int v = 0; v < vecs; v++)
            if (past) write_past(y[i] + j + v * V, a[i][v]);
            else *(vec *)(y[i] + j + v * V) = a[i][v];
}

/* The same for n floats, whole registers */
INLINE void mixtures(const int T, const int past, const float *share, const float **x, long sources, float **y, long n) {
    long j = 0;
    for (; j + SPAN * V <= n; j += SPAN * V) mixtures_at(T, SPAN, past, share, x, sources, y, j);
    for (; j < n; j += V) mixtures_at(T, 1, past, share, x, sources, y, j);
}

/* The same for T that is known in a call only, one to four */
INLINE void some_mixtures(long T, int past, const float *share, const float **x, long sources, float **y, long n) {
#define MIXTURES(T) past ? mixtures(T, 1, share, x, sources, y, n) : mixtures(T, 0, share, x, sources, y, n)
    if (T == 1) MIXTURES(1);
    if (T == 2) MIXTURES(2);
    if (T == 3) MIXTURES(3);
    if (T == 4) MIXTURES(4);
#undef MIXTURES
}
