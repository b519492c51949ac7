/* Uniform numbers with the bits that torch draws on a CPU: MT19937 (Matsumoto, Nishimura, ACM TOMACS 8, 1998) from
   a seed of 32 bits, and of each of its words the lower 24 bits. */
#include "native.h"

enum { N = 624, M = 397 };

static uint32_t twist(uint32_t u, uint32_t v) {
    return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ (-(v & 1) & 0x9908b0dfu);
}

static void renew(uint32_t *s) {
    for (int i = 0; i < N - M; i++) s[i] = s[i + M] ^ twist(s[i], s[i + 1]);
    for (int i = N - M; i < N - 1; i++) s[i] = s[i + M - N] ^ twist(s[i], s[i + 1]);
    s[N - 1] = s[M - 1] ^ twist(s[N - 1], s[0]);
}

/* Number i is from + range * a word's part in [0, 1), with one rounding. */
static void numbers(const uint32_t *restrict s, float from, float range, float *restrict to, long n) {
    for (long i = 0; i < n; i++) {
        uint32_t y = s[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        to[i] = fmaf((float)(int32_t)(y & 0xffffff) * 0x1p-24f, range, from);
    }
}

/* Fill P arrays of `count` [P] numbers, each between -bound and bound, one after the other from one seed. */
void fedpers_uniform(uint32_t seed, long P, const long *count, const float *bound, float **to) {
    uint32_t s[N];
    s[0] = seed;
    for (uint32_t i = 1; i < N; i++) s[i] = 1812433253u * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
    for (long p = 0, used = N; p < P; p++)
        for (long at = 0, now; at < count[p]; at += now, used += now) {
            if (used == N) {
                renew(s);
                used = 0;
            }
            now = count[p] - at < N - used ? count[p] - at : N - used;
            numbers(s + used, -bound[p], bound[p] - -bound[p], to[p] + at, now);
        }
}
