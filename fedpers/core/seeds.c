/* The first whole number of many streams, with NumPy's bits: SeedSequence (O'Neill's seed_seq_fe), PCG64
   (O'Neill, HMC-CS-2014-0905, XSL-RR 128/64) and Lemire's bounded numbers (ACM TOMACS 29, 2019). */
#include <stdint.h>

typedef unsigned __int128 wide;
enum { POOL = 4 };

static uint32_t hash(uint32_t value, uint32_t *by, uint32_t step) {
    value ^= *by;
    *by *= step;
    value *= *by;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;
    return z ^ z >> 16;
}

/* The pool of a key of `words` words. */
static void gather(const uint32_t *key, long words, uint32_t *pool) {
    uint32_t by = 0x43b0d7e5u, step = 0x931e8875u;
    for (long i = 0; i < POOL; i++) pool[i] = hash(i < words ? key[i] : 0, &by, step);
    for (long from = 0; from < POOL; from++)
        for (long to = 0; to < POOL; to++)
            if (from != to) pool[to] = mix(pool[to], hash(pool[from], &by, step));
    for (long from = POOL; from < words; from++)
        for (long to = 0; to < POOL; to++) pool[to] = mix(pool[to], hash(key[from], &by, step));
}

struct pcg {
    wide state, add;
};

static uint64_t next(struct pcg *g) {
    g->state = g->state * ((wide)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u) + g->add;
    uint64_t word = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    int turn = (int)(g->state >> 122);
    return word >> turn | word << (-turn & 63);
}

static struct pcg seeded(const uint32_t *pool) {
    uint32_t by = 0x8b51f9ddu;
    uint64_t word[POOL];
    for (long i = 0; i < POOL; i++) {
        uint64_t low = hash(pool[2 * i % POOL], &by, 0x58f38dedu);
        word[i] = low | (uint64_t)hash(pool[(2 * i + 1) % POOL], &by, 0x58f38dedu) << 32;
    }
    struct pcg g = {0, ((wide)word[2] << 64 | word[3]) << 1 | 1};
    next(&g);
    g.state += (wide)word[0] << 64 | word[1];
    next(&g);
    return g;
}

/* to [N]: of each of the keys [N, words] the first number below `high`, 1 < high < 2^32. */
void fedpers_first_integers(const uint32_t *key, long N, long words, uint32_t high, int64_t *to) {
    const uint32_t least = -high % high; /* parts below are drawn again */
    for (long n = 0; n < N; n++) {
        uint32_t pool[POOL];
        gather(key + n * words, words, pool);
        struct pcg g = seeded(pool);
        uint64_t word = 0, wide_part;
        for (long half = 0;; half ^= 1) {
            word = half ? word >> 32 : next(&g);
            wide_part = (word & 0xffffffffu) * high;
            if ((uint32_t)wide_part >= least) break;
        }
        to[n] = (int64_t)(wide_part >> 32);
    }
}
