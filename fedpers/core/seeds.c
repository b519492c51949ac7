/* What many streams draw, whole numbers, minibatches or fractions, with NumPy's bits: SeedSequence (O'Neill's
   seed_seq_fe), PCG64 (O'Neill, HMC-CS-2014-0905, XSL-RR 128/64), Lemire's bounded numbers (ACM TOMACS 29, 2019)
   and the shuffle of Fisher and Yates. Streams have keys [N, words] and places [N, 6], where they are: the fields of
   struct pcg, zeros for one that nothing was drawn from. A call writes where it stopped. */
#include <stdint.h>
#include <string.h>

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
    wide state, add;     /* `add` is odd */
    uint64_t word, half; /* the upper half of `word` comes next, if `half` */
};
enum { PLACE = 6 }; /* words of a place */

static uint64_t next(struct pcg *g) {
    g->state = g->state * ((wide)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u) + g->add;
    uint64_t word = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    int turn = (int)(g->state >> 122);
    return word >> turn | word << (-turn & 63);
}

/* The generator of a key of `words` words. */
static struct pcg seeded(const uint32_t *key, long words) {
    uint32_t pool[POOL];
    gather(key, words, pool);
    uint32_t by = 0x8b51f9ddu;
    uint64_t word[POOL];
    for (long i = 0; i < POOL; i++) {
        uint64_t low = hash(pool[2 * i % POOL], &by, 0x58f38dedu);
        word[i] = low | (uint64_t)hash(pool[(2 * i + 1) % POOL], &by, 0x58f38dedu) << 32;
    }
    struct pcg g = {0, ((wide)word[2] << 64 | word[3]) << 1 | 1, 0, 0};
    next(&g);
    g.state += (wide)word[0] << 64 | word[1];
    next(&g);
    return g;
}

/* Where stream n is. */
static struct pcg taken_up(const uint32_t *key, long words, const uint64_t *place, long n) {
    struct pcg g;
    memcpy(&g, place + PLACE * n, sizeof g);
    return g.add ? g : seeded(key + n * words, words);
}

static void put_down(const struct pcg *g, uint64_t *place, long n) { memcpy(place + PLACE * n, g, sizeof *g); }

/* Each word is two numbers, its lower half first. */
static uint32_t draw(struct pcg *g) {
    if (!g->half) g->word = next(g);
    g->half = !g->half;
    return (uint32_t)(g->half ? g->word : g->word >> 32);
}

/* to [N]: of each stream a number below `high`, 1 < high < 2^32. */
void fedpers_draw_integers(const uint32_t *key, long N, long words, uint64_t *place, uint32_t high, int64_t *to) {
    const uint32_t least = -high % high; /* parts below are drawn again */
    for (long n = 0; n < N; n++) {
        struct pcg g = taken_up(key, words, place, n);
        uint64_t part;
        do part = (uint64_t)draw(&g) * high;
        while ((uint32_t)part < least);
        to[n] = (int64_t)(part >> 32);
        put_down(&g, place, n);
    }
}

/* to [N, size]: of each stream fractions in [0, 1), of 24 bits. */
void fedpers_draw_fractions(const uint32_t *key, long N, long words, uint64_t *place, long size, float *to) {
    for (long n = 0; n < N; n++) {
        struct pcg g = taken_up(key, words, place, n);
        for (long i = 0; i < size; i++) *to++ = (float)(draw(&g) >> 8) * 0x1p-24f;
        put_down(&g, place, n);
    }
}

/* An order of n < 2^32 numbers that is as likely as any. */
static void shuffle(struct pcg *g, int64_t *order, long n) {
    for (long i = n - 1; i > 0; i--) {
        uint32_t mask = 0xffffffffu >> __builtin_clz((uint32_t)i), j;
        do j = draw(g) & mask;
        while (j > i);
        int64_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* to [N, S, B]: of each stream the minibatches of passes over `size` [N] samples, at least one, each in
   an order of its own: `steps` of them, or if that is 0 `passes` passes; 0 beyond a stream's own.
   `order` has room for the most samples. */
void fedpers_draw_batches(const uint32_t *key, long N, long words, uint64_t *place, const int64_t *size, long most,
                          long passes, long steps, long S, long B, int64_t *order, int64_t *to) {
    for (long n = 0; n < N; n++, to += S * B) {
        struct pcg g = taken_up(key, words, place, n);
        memset(to, 0, S * B * sizeof *to);
        long wide = size[n] < most ? size[n] : most, pass = (size[n] + wide - 1) / wide;
        for (long first = 0, last = steps ? steps : passes * pass; first < last; first += pass) {
            for (long i = 0; i < size[n]; i++) order[i] = i;
            shuffle(&g, order, size[n]);
            for (long b = 0, left = size[n]; b < pass && first + b < last; b++, left -= wide)
                memcpy(to + (first + b) * B, order + b * wide, sizeof *to * (left < wide ? left : wide));
        }
        put_down(&g, place, n);
    }
}
