/* Steps of one sample each by which several models of one client move, for many clients in one call.

   What the models are to each other is in motion.h. All but the gradients is linear, and a gradient in a weight is
   d x^T. So for some steps the models rest: outputs of the first layer come from those of what is kept of the models,
   by one product for all steps, and from inner products of the samples; then all steps are made at once. What never
   changes gives for a sample what it gave before. A bias is a matrix of one row. Names: x inputs of a layer, z its
   outputs, d derivatives of the loss in z. */
#include "recur.h"

enum { FEW = 16, MANY = 64 }; /* steps that are made at once, by the first layer's outputs */

/* What the first layers of models that never change give for a client's samples, which come again and again. */
typedef struct {
    long rows, taken;        /* room for samples, and how many have a place there */
    int32_t *place, *now;    /* a sample's, -1 without one; [H] those of the steps that are made */
    char *there;             /* [m][rows] whether outputs are */
    float *z;                /* [m][rows] outputs */
} known;

/* For clients who make S steps each; 1 without memory. */
static int reserve_known(known *o, const place *n, const motion *h, const long *samples, long C, long S) {
    long most = 1;
    for (long c = 0; c < C; c++) most = samples[c] > most ? samples[c] : most;
    o->rows = S < 1 ? 1 : S < most ? S : most;
    o->place = malloc(sizeof(int32_t) * (most + h->H));
    o->now = o->place + most;
    o->there = malloc(n->m * o->rows);
    o->z = malloc(sizeof(float) * n->m * o->rows * WIDE(n->width[1]));
    return !o->place || !o->there || !o->z;
}

/* Another client's samples. */
static void forget(known *o, const place *n, long samples) {
    o->taken = 0;
    memset(o->place, -1, sizeof(int32_t) * samples);
    memset(o->there, 0, n->m * o->rows);
}

/* y += sum_e f[e] x_e of `count` rows, for `vecs` registers at k */
INLINE void add_rows_at(const int vecs, float *y, const float *f, const float *x, long count, long wide, long k) {
    vec a[SPAN];
    for (int v = 0; v < vecs; v++) a[v] = *(const vec *)(y + k + v * V);
    for (long e = 0; e < count; e++)
        for (int v = 0; v < vecs; v++) a[v] += f[e] * *(const vec *)(x + e * wide + k + v * V);
    for (int v = 0; v < vecs; v++) *(vec *)(y + k + v * V) = a[v];
}

/* The same for whole rows, which are whole registers */
INLINE void add_rows(float *y, const float *f, const float *x, long count, long wide) {
    long k = 0;
    for (; k + SPAN * V <= wide; k += SPAN * V) add_rows_at(SPAN, y, f, x, count, wide, k);
    for (; k < wide; k += V) add_rows_at(1, y, f, x, count, wide, k);
}

/* to[e] = x_e . y for `count` rows, which are whole registers */
INLINE void inners(const float *x, const float *y, long count, long wide, float *to) {
    for (long e = 0; e < count; e += ROWS) {
        const float *rows[ROWS];
        float sums[ROWS];
        for (long i = 0; i < ROWS; i++) rows[i] = x + (e + i < count ? e + i : e) * wide;
        dots(ROWS, 1, y, rows, 0, sums, wide, 1, 0, 0);
        for (long i = 0; i < ROWS && e + i < count; i++) to[e + i] = sums[i];
    }
}

/* What the first layer gives for `count` samples x, by model k as it is now. */
INLINE void first_outputs(const place *n, long k, const float **x, float *z, long count) {
    long wide = WIDE(n->width[0]), K = n->width[1];
    forward(n->own[k * n->P], n->own[k * n->P + 1], x, z, count, K, wide, WIDE(K));
}

/* Outputs by model k, which never changes, for the samples of `count` steps: for those that come the first time. */
static void look_up(place *n, const motion *h, known *o, long k, long count) {
    long zw = WIDE(n->width[1]), fresh = 0, at[count + 1];
    float *z = n->z + h->learners * (h->H + ROWS) * zw;
    for (long t = 0; t < count; t++) {
        long e = k * o->rows + o->now[t];
        if (o->there[e]) continue;
        o->there[e] = 1;
        n->list[fresh] = n->in[t];
        at[fresh++] = e;
    }
    if (!fresh) return;
    for (long i = 0; i < ROWS; i++) n->list[fresh + i] = n->list[fresh - 1];
    first_outputs(n, k, n->list, z, fresh);
    for (long i = 0; i < fresh; i++) memcpy(o->z + at[i] * zw, z + i * zw, sizeof(float) * zw);
}

/* Inner products of four samples, each with those before it. Written out: of loops GCC keeps the sums in memory. */
INLINE void corner(const float **x, float *to, long wide, long hop) {
    vec a[8] = {0};
    for (long j = 0; j < wide; j += V) {
        vec u[EDGE];
        for (int r = 0; r < EDGE; r++) {
            u[r] = *(const vec *)(x[r] + j);
            HELD(u[r]);
        }
        a[0] += u[1] * u[0];
        a[1] += u[2] * u[0];
        a[2] += u[2] * u[1];
        a[3] += u[3] * u[0];
        a[4] += u[3] * u[1];
        a[5] += u[3] * u[2];
    }
    four first = add_up_four(a), last = add_up_four(a + 4);
    to[hop] = first[0];
    to[2 * hop] = first[1];
    to[2 * hop + 1] = first[2];
    to[3 * hop] = first[3];
    to[3 * hop + 1] = last[0];
    to[3 * hop + 2] = last[1];
}

/* What the models' first layers give for the samples of `count` steps, and the samples' inner products. */
__attribute__((noinline)) static void look_ahead(place *n, motion *h, known *o, long count) {
    long wide = WIDE(n->width[0]), zw = WIDE(n->width[1]), gw = WIDE(h->H);
    for (long k = 0; k < n->m; k++) {
        h->steps_used[k] = counted(h, k, count);
        if (k >= h->learners) look_up(n, h, o, k, h->steps_used[k]);
        else if (h->steps_used[k]) first_outputs(n, k, n->in, n->z + k * (h->H + ROWS) * zw, h->steps_used[k]);
    }
    for (long i = 0; i < count; i += EDGE) {
        for (long s = 0; s < i; s += EDGE)
            for (long r = i; r < i + EDGE; r += ROWS)
                dots_of(ROWS, EDGE, n->in + s, n->in + r, 0, n->gram + r * gw + s, wide, gw, 0, 0);
        corner(n->in + i, n->gram + i * gw + i, wide, gw); /* last, when the samples are in the L1 cache */
    }
}

/* Outputs of layer l at point q of step t: z is there for them. */
static void outputs_at(place *n, const motion *h, const known *o, long l, long t, long q, float *z) {
    long K = n->width[l + 1], zw = WIDE(K), ins = WIDE(n->width[l]);
    const float *lag = h->lag + q * h->H;
    int bias = n->own[2 * l + 1] != 0;
    long past = h->uses_gradients[q] ? l ? t * h->Q : t : 0;
    float shares[past + 1];
    memset(z, 0, sizeof(float) * zw);
    if (!l) {
        const float *share = h->at + (t * h->Q + q) * h->row;
        for (long k = 0; k < n->m; k++) {
            const float *own = k < h->learners ? n->z + (k * (h->H + ROWS) + t) * zw
                                               : o->z + (k * o->rows + o->now[t]) * zw;
            if (share[k] != 0 && t < h->steps_used[k]) add_rows(z, share + k, own, 1, zw);
        }
        for (long s = 0; s < past; s++) shares[s] = lag[t - 1 - s] * (n->gram[t * WIDE(h->H) + s] + bias);
        add_rows(z, shares, n->d[0], past, zw);
        for (long k = K; k < zw; k++) z[k] = 0;
        return;
    }
    const float *x = n->x[l] + (t * h->Q + q) * ins;
    for (long p = 2 * l, at = t * h->Q + q; p < 2 * l + 2; p++)
        if (n->own[p]) mix_models(n, h, h->at, &at, 1, p, 0, 0, n->point + p, outs_at(n, p) * wide_at(n, p), 0);
    inners(n->point[2 * l], x, K, ins, z);
    for (long o = 0; bias && o < K; o++) z[o] += n->point[2 * l + 1][o];
    inners(n->x[l], x, past, ins, shares);
    for (long e = 0; e < past; e++) shares[e] = lag[t - 1 - e / h->Q] * (shares[e] + bias);
    add_rows(z, shares, n->d[l], past, zw);
}

/* Derivatives in the inputs of layer l, from those in its outputs; 0 where ReLU cuts. */
static void derivatives_below(place *n, const motion *h, long l, long t, long q, const float *d, float *to) {
    long K = n->width[l + 1], zw = WIDE(K), ins = WIDE(n->width[l]);
    const float *x = n->x[l] + (t * h->Q + q) * ins, *lag = h->lag + q * h->H;
    long past = h->uses_gradients[q] ? t * h->Q : 0;
    float shares[past + 1];
    memset(to, 0, sizeof(float) * ins);
    add_rows(to, d, n->point[2 * l], K, ins);
    inners(n->d[l], d, past, zw, shares);
    for (long e = 0; e < past; e++) shares[e] *= lag[t - 1 - e / h->Q];
    add_rows(to, shares, n->x[l], past, ins);
    for (long i = 0; i < ins; i++)
        if (!(x[i] > 0)) to[i] = 0;
}

/* The gradient of step t at point q, into the histories; 2 if the label is no class. */
static int look(place *n, const motion *h, const known *o, int task, const void *y, int64_t row, long t, long q) {
    long L = n->L, e = t * h->Q + q, most = WIDE(n->width[L]);
    float one = 1, sign = h->signs[q], *z = n->part;
    for (long l = 0; l < L; l++) {
        if (l + 1 < L) z = n->x[l + 1] + e * WIDE(n->width[l + 1]);
        else z = n->part;
        outputs_at(n, h, o, l, t, q, z);
        for (long i = 0; l + 1 < L && i < WIDE(n->width[l + 1]); i++) z[i] = z[i] < 0 ? 0 : z[i]; /* keeps NaN */
    }
    if (derivatives(task, z, y, &row, &one, 0, 1, 1, n->width[L], most)) return 2;
    for (long l = L - 1; l > 0; l--) {
        long zw = WIDE(n->width[l + 1]);
        float *d = n->d[l] + e * zw, *below = l > 1 ? n->d[l - 1] + e * WIDE(n->width[l]) : n->fresh;
        if (l == L - 1) memcpy(d, z, sizeof(float) * zw);
        derivatives_below(n, h, l, t, q, d, below);
        for (long k = 0; k < zw; k++) d[k] *= sign;
        z = below;
    }
    float *to = n->d[0] + t * WIDE(n->width[1]);
    if (!q) memset(to, 0, sizeof(float) * WIDE(n->width[1]));
    add_rows(to, &sign, z, 1, WIDE(n->width[1]));
    return 0;
}

/* Instead of a gradient at point q: what is kept of the sample's last one goes into the histories, and what point 0 gave
   takes its place. Of a layer d [n][outs] and, but for the first, x [n][ins] are kept. */
static void recall(place *n, const motion *h, int64_t row, long t, long q) {
    float sign = h->signs[q];
    for (long l = 0; l < n->L; l++) {
        long K = n->width[l + 1], ins = n->width[l], e = l ? t * h->Q + q : t;
        float *d = n->d[l] + e * WIDE(K), *given = l ? d - q * WIDE(K) : d, *kept = n->table[2 * l] + row * K;
        for (long k = 0; k < K; k++) {
            float old = sign * kept[k];
            kept[k] = given[k];
            d[k] = l ? old : d[k] + old;
        }
        if (!l) continue;
        float *x = n->x[l] + e * WIDE(ins), *now = x - q * WIDE(ins), *then = n->table[2 * l + 1] + row * ins;
        for (long i = 0; i < ins; i++) {
            x[i] = then[i];
            then[i] = now[i];
        }
    }
}

/* Of `left` steps on samples `rows` as many as are made at once; `to` is as in write_models. 2 if a label is no class. */
static int make(place *n, motion *h, known *o, int task, const float *x, const void *y, const int64_t *rows, long hop,
                long left, float **to, long c) {
    long ins = n->width[0], wide = WIDE(ins), count = left < h->H ? left : h->H;
    int failed = 0;
    for (long t = 0; count && t < count + EDGE; t++) {
        long j = t < count ? t : count - 1;
        const float *row = x + rows[j * hop] * ins;
        n->in[t] = ins == wide ? row : n->rows + j * wide;
        if (ins != wide && t == j) memcpy(n->rows + j * wide, row, sizeof(float) * ins);
    }
    for (long t = 0; t < count; t++) {
        int32_t *place = o->place + rows[t * hop];
        if (*place < 0) *place = o->taken++;
        o->now[t] = *place;
    }
    for (long t = count; t < left && t < 2 * count; t++) n->next[t - count] = x + rows[t * hop] * ins;
    n->soon = left < 2 * count ? 0 : n->next;
    look_on(h);
    look_ahead(n, h, o, count);
    for (long t = 0; t < count && !failed; t++)
        for (long q = 0; q < h->Q && !failed; q++)
            if (q && n->table) recall(n, h, rows[t * hop], t, q);
            else failed = look(n, h, o, task, y, rows[t * hop], t, q);
    write_models(n, h, count, to, c);
    move_on(h);
    return failed;
}

/* Make S steps for each of C clients; the first arguments as in fedpers_steps, with models for the kinds, mixtures
   where results go, dense layers only, and samples index [C, S, 1]. `sizes` and `numbers` are as `told` reads them:
   moves [m][m], points [Q][m], signs [Q], gains [m] and ends [J][m]. `table` [C][P] is null, or where
   each client keeps its samples' last gradients: they stand for the second of two points, the first one's sign is 1.
   `samples` [C] says how many each has.
   Returns 0, 1 without memory, 2 for a label that is no class. */
int fedpers_recur(long N, const void *shapes, long L, const long *width, long K, const int *kind, const int *trained,
                  const float **from, const long *hop, float **to, int task, long C, long S, long B, const float **x, const void **y,
                  const int64_t *index, const long *ih, const float *weight, const long *wh, const long *sizes,
                  const double *numbers, float **table, const long *samples) {
    place n = {L, 2 * L, sizes[0], width};
    long H = width[1] < MANY ? FEW : MANY;
    motion h = told(sizes, S < 1 ? 1 : S < H ? S : H, 0, numbers);
    known o = {0};
    void *all = reserve_models(&n, &h, from);
    int failed = !all || reserve_known(&o, &n, &h, samples, C, S);
    if (all) foresee(&h, S ? (S - 1) % h.H + 1 : 0);
    for (long i = 0; all && i < h.m + h.J; i++)
        for (long k = 0; k < h.learners; k++)
            h.end[i * h.row + h.m + k] = i < h.m ? i == k : h.ends[(i - h.m) * h.m + k];
    for (long c = 0; c < C && !failed; c++) {
        fetch(&n, &h, from, hop, c);
        n.table = table ? table + c * n.P : 0;
        start(&h);
        forget(&o, &n, samples[c]);
        for (long s = 0; !failed && (!s || s < S); s += h.H) {
            const int64_t *rows = index + c * ih[0] + s * ih[1];
            long left = S - s;
            failed = make(&n, &h, &o, task, x[c], y[c], rows, ih[1], left, left > h.H ? 0 : to, c);
        }
    }
    free(o.place);
    free(o.there);
    free(o.z);
    free(all);
    return failed;
}
