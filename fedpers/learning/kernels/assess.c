/* Losses and accuracies of dense networks (linear layers, ReLU between them) for many clients in one call.

   Weights are read where they lie, in rows of whole registers; others are padded, those that all clients share once.
   A client's numbers do not depend on the others. Names: x inputs of a layer, z its outputs. */
#include "products.h"
#include "score.h"

#define ROOM 60 /* rows that go through all layers together, to stay in the cache; a multiple of ROWS */

/* `n` rows of `ins` floats, padded with zeros to whole registers. */
static void pad(float *to, const float *from, long n, long ins) {
    for (long r = 0, wide = WIDE(ins); r < n; r++) {
        memcpy(to + r * wide, from + r * ins, sizeof(float) * ins);
        memset(to + r * wide + ins, 0, sizeof(float) * (wide - ins));
    }
}

/* Fetch share s of so many of n floats. */
INLINE void fetch(const float *from, long n, long s, long shares) {
    for (long j = n * s / shares / V * V; from && j < n * (s + 1) / shares; j += V) __builtin_prefetch(from + j, 0, 2);
}

/* Samples that come next, and are in no cache yet. */
typedef struct {
    const float *rows[ROOM + ROWS];
    long n;
} samples;

/* One layer for n rows; behind them x repeats the last one. A client's own weights are in no cache: the rows that come
   next, at last those at `next`, are fetched meanwhile, and samples that come next. */
static void layer(const float *w, const float *b, const float **x, float *z, long n, long ins, long outs,
                  int relu, const float *next, samples *soon) {
    long zw = WIDE(outs), tiles = (n + ROWS - 1) / ROWS, blocks = (outs + DOTS - 1) / DOTS;
    long share = (ROWS + blocks - 1) / blocks; /* of the next rows, for a block of outputs */
    if (outs < DOTS) forward(w, b, x, z, n, outs, ins, zw);
    for (long k = 0; k < outs && outs >= DOTS; k += DOTS) {
        long at = k + DOTS < outs ? k : outs - DOTS, left = outs - k - DOTS;
        const float *coming = left > 0 ? w + (k + DOTS) * ins : next;
        long rows = left > 0 && left < DOTS ? left : DOTS;
        for (long t = 0; t < tiles; t++) {
            fetch(coming, rows * ins, t, tiles);
            dots(ROWS, DOTS, w + at * ins, x + t * ROWS, b ? b + at : b, z + t * ROWS * zw + at, ins, zw,
                 soon->rows + t * ROWS + k / DOTS * share, soon->n && k / DOTS * share < ROWS ? share : 0);
        }
    }
    for (long i = 0; relu && i < n * zw; i++)
        if (z[i] < 0) z[i] = 0; /* keeps NaN */
}

/* Where n rows are, from `first` on, `hop` floats apart and picked by `rows` if that is not null; the last one again
   behind them. */
static void list(const float **to, const float *x, long hop, const int64_t *rows, long first, long n) {
    for (long i = 0; i < n; i++) to[i] = x + (rows ? rows[first + i] : first + i) * hop;
    for (long i = n; i < ROOM + ROWS; i++) to[i] = to[n - 1];
}

/* out[c] = mean loss and accuracy (NaN for regression) of model c on samples p = on[c], which are at data[p], inputs and
   targets: all that are there, or those that rows[p] picks if it is not null. size[p] says how many are used, and how
   many are there. `from` [C][2L] says where weights and biases (or null) are, layer by layer; a layer that is where
   the last model's was is padded once for both. `each` [C] is null, or says where the losses of the samples go.
   Returns 0, 1 without memory, 2 for a label that is no class, 3 for a row that is no sample. */
int fedpers_assess(long L, const long *width, const float **from, int task, long C, const long *on,
                   const long (*size)[2], const void *(*data)[2], const int64_t **rows, double (*out)[2], float **each) {
    long padded = 0, all = ROOM * WIDE(width[L]), ins = WIDE(*width);
    int failed = 0;
    for (long l = 0; l < L; l++) {
        all += ROOM * WIDE(width[l]);
        if (width[l] % V) padded += width[l + 1] * WIDE(width[l]);
    }
    float *space = calloc(padded + all, sizeof(float)), *x = space + padded; /* inputs, outputs: zeros pad them for good */
    if (!space) return 1;
    const float *in[ROOM + ROWS], *w[L];
    samples soon;
    const long room = PIECE(*width) < ROOM ? PIECE(*width) : ROOM;
    for (long c = 0; c < C && !failed; c++) {
        const float **own = from + c * 2 * L;
        const long used = size[on[c]][0], there = size[on[c]][1];
        const void **mine = data[on[c]];
        const int64_t *picked = rows[on[c]];
        float *made = space;
        double sums[2] = {0, task == REGRESSION ? NAN : 0};
        for (long i = 0; picked && i < used; i++)
            if (picked[i] < 0 || picked[i] >= there) failed = 3;
        for (long l = 0; l < L; l++) {
            w[l] = width[l] % V ? made : own[2 * l];
            if (w[l] != made) continue;
            if (!c || own[2 * l] != own[2 * (l - L)]) pad(made, own[2 * l], width[l + 1], width[l]);
            made += width[l + 1] * WIDE(width[l]);
        }
        for (long at = 0; at < used && !failed; at += room) {
            long n = used - at < room ? used - at : room;
            list(in, *mine, *width, picked, at, n);
            for (long i = 0; ins != *width && i < n; i++) pad(x + i * ins, in[i], 1, *width);
            if (ins != *width) list(in, x, ins, 0, 0, n);
            int end = at + n == used;
            long of = c + end; /* whose samples come next */
            soon.n = 0;
            if (of < C && *size[on[of]] && (!of || *data[on[of]] != *data[on[of - 1]])) {
                long p = on[of], start = end ? 0 : at + n, left = *size[p] - start;
                soon.n = left < room ? left : room;
                list(soon.rows, *data[p], *width, rows[p], start, soon.n);
            }
            float *z = x;
            for (long l = 0; l < L; l++) {
                z += ROOM * WIDE(width[l]);
                const float *next = l || c + 1 == C ? 0 : own[2 * L];
                layer(w[l], own[2 * l + 1], in, z, n, WIDE(width[l]), width[l + 1], l + 1 < L, next, &soon);
                list(in, z, WIDE(width[l + 1]), 0, 0, n);
                soon.n = 0;
            }
            failed = score(task, *in, WIDE(width[L]), mine[1], picked, at, n, width[L], sums, each ? each[c] : 0);
        }
        for (int i = 0; i < 2; i++) out[c][i] = sums[i] / used;
    }
    free(space);
    return failed;
}
