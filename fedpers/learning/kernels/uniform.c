/* Uniform numbers with the bits that torch draws on a CPU: MT19937 (Matsumoto, Nishimura, ACM TOMACS 8, 1998) from
   a seed of 32 bits, and of each of its words the lower 24 bits. */
#include "native.h"

enum { WORDS = 624, APART = 397, SEEDS = 8 };

static uint32_t twist(uint32_t u, uint32_t v) {
    return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ (-(v & 1) & 0x9908b0dfu);
}

static void renew(uint32_t *s) {
    for (int i = 0; i < WORDS - APART; i++) s[i] = s[i + APART] ^ twist(s[i], s[i + 1]);
    for (int i = WORDS - APART; i < WORDS - 1; i++) s[i] = s[i + APART - WORDS] ^ twist(s[i], s[i + 1]);
    s[WORDS - 1] = s[APART - 1] ^ twist(s[WORDS - 1], s[0]);
}

/* States after seeds: each word needs the one before it, so several are made side by side. */
static void begin(uint32_t s[SEEDS][WORDS], const uint32_t *seed, long n) {
    for (int k = 0; k < SEEDS; k++) s[k][0] = seed[k < n ? k : 0];
    for (uint32_t i = 1; i < WORDS; i++)
        for (int k = 0; k < SEEDS; k++) s[k][i] = 1812433253u * (s[k][i - 1] ^ (s[k][i - 1] >> 30)) + i;
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

/* Of each of N seeds fill P rows of `count` [P] numbers, each between -bound and bound, one after the other; to [P]
   are the arrays [N, count] that the rows lie in. */
void fedpers_uniform(const uint32_t *seed, long N, long P, const long *count, const float *bound, float **to) {
    uint32_t begun[SEEDS][WORDS];
    for (long n = 0; n < N; n++) {
        uint32_t *s = begun[n % SEEDS];
        if (n % SEEDS == 0) begin(begun, seed + n, N - n);
        for (long p = 0, used = WORDS; p < P; p++)
            for (long at = 0, now; at < count[p]; at += now, used += now) {
                if (used == WORDS) {
                    renew(s);
                    used = 0;
                }
                now = count[p] - at < WORDS - used ? count[p] - at : WORDS - used;
                numbers(s + used, -bound[p], bound[p] - -bound[p], to[p] + n * count[p] + at, now);
            }
    }
}
