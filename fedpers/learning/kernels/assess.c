/* Losses and accuracies of dense networks (linear layers, ReLU between them) for many clients in one call.

   Weights are packed into panels a few registers wide, [ins][outs of the panel]; layers that all clients
   share are packed once. TILE rows of inputs are multiplied by a panel at a time. The weights of few outputs,
   which would fill no panel, are read where they lie. A client's numbers do not depend on the others. Names:
   x inputs of a layer, z its outputs. */
#include "products.h"
#include "score.h"

#ifdef __AVX512F__
#define TILE 5
#define PANEL 4 /* registers, and a half at the end */
#else
#define TILE 4
#define PANEL 2
#endif
#define H (V / 2)
#if V == 16
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif
#ifdef __clang__
#define ZIP(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZIP(a, b, ...) __builtin_shuffle(a, b, (ihalf){__VA_ARGS__})
#endif
#define ROOM 60 /* rows that go through all layers together, to stay in the cache; a multiple of TILE */

/* Half registers of the next panel if `left` are left: whole registers, and no narrow panel at the end. */
static int panel(long left) {
    if (left > 2 * PANEL + 1 && left < 4 * PANEL) return (int)(left + 3) / 4 * 2;
    return left <= 2 * PANEL + 1 ? (int)left : 2 * PANEL;
}

/* Turn H rows of H numbers into columns: log2 H times rows i and i + H/2 are zipped. */
INLINE void turn(half r[H]) {
    for (int s = 1; s < H; s *= 2) {
        half t[H];
        for (int i = 0; i < H / 2; i++) {
            t[2 * i] = ZIP(r[i], r[i + H / 2], LOW);
            t[2 * i + 1] = ZIP(r[i], r[i + H / 2], HIGH);
        }
        for (int i = 0; i < H; i++) r[i] = t[i];
    }
}

/* `n` rows of w (H at most, the others count as zeros) to columns of a panel `now` floats wide */
static void columns(const float *w, long n, float *to, long ins, long now) {
    long j = 0;
    for (; j + H <= ins; j += H) {
        half r[H];
        for (int o = 0; o < H; o++) r[o] = o < n ? *(const half *)(w + o * ins + j) : (half){0};
        turn(r);
        for (int i = 0; i < H; i++) *(half *)(to + (j + i) * now) = r[i];
    }
    for (; j < ins; j++)
        for (int o = 0; o < H; o++) to[j * now + o] = o < n ? w[o * ins + j] : 0;
}

static void pack(const float *w, const float *b, float *to, float *bias, long ins, long outs) {
    for (long k = 0; k < WIDE(outs); k++) bias[k] = b && k < outs ? b[k] : 0;
    for (long k = 0, now; k < outs; k += now, to += ins * now) {
        now = panel((outs - k + H - 1) / H) * H;
        for (long v = k; v < k + now; v += H) columns(w + v * ins, outs - v, to + v - k, ins, now);
    }
}

/* TILE rows of inputs times one panel; if `fetch`, the TILE rows that come next are fetched meanwhile */
INLINE void tile(const int vecs, const int halves, const float *w, const float *b, const float **x, int fetch,
                 float *z, long ins, long zw, int relu) {
    const long wide = vecs * V + halves * H;
    vec a[TILE][PANEL];
    half e[TILE];
    for (int r = 0; r < TILE; r++) {
        for (int v = 0; v < vecs; v++) a[r][v] = *(const vec *)(b + v * V);
        if (halves) e[r] = *(const half *)(b + vecs * V);
    }
    for (long j = 0; j < ins; j++, w += wide) {
        vec u[PANEL];
        half last = {0};
        for (int v = 0; v < vecs; v++) {
            u[v] = *(const vec *)(w + v * V);
            HELD(u[v]);
        }
        if (halves) last = *(const half *)(w + vecs * V);
        for (int r = 0; r < TILE; r++) {
            if (fetch && j % 16 == 0) __builtin_prefetch(x[TILE + r] + j, 0, 2);
            vec one = x[r][j] - (vec){0};
            HELD(one);
            for (int v = 0; v < vecs; v++) a[r][v] += one * u[v];
            if (halves) e[r] += x[r][j] * last;
        }
    }
    for (int r = 0; r < TILE; r++) {
        for (int v = 0; v < vecs; v++) {
            ivec off = a[r][v] < 0; /* keeps NaN */
            *(vec *)(z + r * zw + v * V) = relu ? (vec)((ivec)a[r][v] & ~off) : a[r][v];
        }
        ihalf off = halves ? e[r] < 0 : (ihalf){0};
        if (halves) *(half *)(z + r * zw + vecs * V) = relu ? (half)((ihalf)e[r] & ~off) : e[r];
    }
}

/* One packed layer for n rows; behind them x repeats the last one, TILE times and to fill a tile. */
static void layer(const float *w, const float *b, const float **x, float *z, long n, long ins, long outs, int relu) {
    for (long k = 0, zw = WIDE(outs); k < outs;) {
        int halves = panel((outs - k + H - 1) / H);
        for (long i = 0; i < n; i += TILE) {
            float *to = z + i * zw + k;
#define CASE(n) case n: tile(n / 2, n % 2, w, b + k, x + i, !k, to, ins, zw, relu); break;
            switch (halves) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#if PANEL > 2
                CASE(6) CASE(7) CASE(8) CASE(9)
#endif
            }
        }
        w += ins * halves * H;
        k += halves * H;
    }
}

#define LONG 512 /* inputs */

/* Whether a layer is not packed: half the time for 10 outputs. Of many outputs the sums over a register cost as much as
   packing saves, unless they are of LONG inputs. */
INLINE int lies(long ins, long outs) { return ins % V == 0 && (outs <= V || ins >= LONG); }

/* Fetch share s of so many of n floats. */
INLINE void fetch(const float *from, long n, long s, long shares) {
    for (long j = n * s / shares / V * V; from && j < n * (s + 1) / shares; j += V) __builtin_prefetch(from + j, 0, 2);
}

/* Samples that come next, and are in no cache yet. */
typedef struct {
    const float *rows[ROOM + TILE];
    long n;
} samples;

/* `layer` where the weights lie. A client's own are in no cache: the rows that come next, at last those at `next`, are
   fetched meanwhile, and samples that come next. */
static void lying_layer(const float *w, const float *b, const float **x, float *z, long n, long ins, long outs,
                        int relu, const float *next, const samples *soon) {
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
    for (long i = n; i < ROOM + TILE; i++) to[i] = to[n - 1];
}

/* out[c] = mean loss and accuracy (NaN for regression) of model c on samples p = on[c], which are at data[p], inputs and
   targets: all that are there, or those that rows[p] picks if it is not null. size[p] says how many are used, and how
   many are there. `from` [C][2L] says where weights and biases (or null) are, layer by layer; a layer that is where
   the last model's was is packed once for both. `each` [C] is null, or says where the losses of the samples go.
   Returns 0, 1 without memory, 2 for a label that is no class, 3 for a row that is no sample. */
int fedpers_assess(long L, const long *width, const float **from, int task, long C, const long *on,
                   const long (*size)[2], const void *(*data)[2], const int64_t **rows, double (*out)[2], float **each) {
    long all = V, widest = 0;
    int failed = 0;
    for (long l = 0; l < L; l++) {
        all += (width[l] + 1) * WIDE(width[l + 1]);
        if (WIDE(width[l + 1]) > widest) widest = WIDE(width[l + 1]);
    }
    float *space = calloc(all + 2 * ROOM * widest, sizeof(float));
    if (!space) return 1;
    float *first = (float *)(((uintptr_t)space + 4 * V - 1) / (4 * V) * (4 * V));
    float *z[2] = {first + all - V, first + all - V + ROOM * widest};
    const float *in[ROOM + TILE];
    samples soon;
    const long room = PIECE(*width) < ROOM ? PIECE(*width) : ROOM;
    for (long c = 0; c < C && !failed; c++) {
        const float **own = from + c * 2 * L, **last = own - 2 * L;
        const long used = size[on[c]][0], there = size[on[c]][1];
        const void **mine = data[on[c]];
        const int64_t *picked = rows[on[c]];
        float *w = first;
        double sums[2] = {0, task == REGRESSION ? NAN : 0};
        for (long i = 0; picked && i < used; i++)
            if (picked[i] < 0 || picked[i] >= there) failed = 3;
        for (long l = 0; l < L; l++) {
            long ins = width[l], outs = width[l + 1], wide = WIDE(outs), p = 2 * l;
            if (!lies(ins, outs) && (!c || own[p] != last[p] || own[p + 1] != last[p + 1]))
                pack(own[p], own[p + 1], w + wide, w, ins, outs);
            w += (ins + 1) * wide;
        }
        for (long at = 0; at < used && !failed; at += room) {
            long n = used - at < room ? used - at : room, wide = 0;
            list(in, *mine, width[0], picked, at, n);
            int end = at + n == used;
            long of = c + end; /* whose samples come next */
            soon.n = 0;
            if (of < C && *size[on[of]] && (!of || *data[on[of]] != *data[on[of - 1]])) {
                long p = on[of], start = end ? 0 : at + n, left = *size[p] - start;
                soon.n = left < room ? left : room;
                list(soon.rows, *data[p], width[0], rows[p], start, soon.n);
            }
            w = first;
            for (long l = 0; l < L; l++) {
                long ins = width[l], outs = width[l + 1];
                wide = WIDE(outs);
                const float *next = l || c + 1 == C ? 0 : own[2 * L], **p = own + 2 * l;
                if (lies(ins, outs)) lying_layer(p[0], p[1], in, z[l % 2], n, ins, outs, l + 1 < L, next, &soon);
                else layer(w + wide, w, in, z[l % 2], n, ins, outs, l + 1 < L);
                w += (ins + 1) * wide;
                list(in, z[l % 2], wide, 0, 0, n);
                soon.n = 0;
            }
            failed = score(task, z[(L - 1) % 2], wide, mine[1], picked, at, n, width[L], sums, each ? each[c] : 0);
        }
        for (int i = 0; i < 2; i++) out[c][i] = sums[i] / used;
    }
    free(space);
    return failed;
}
