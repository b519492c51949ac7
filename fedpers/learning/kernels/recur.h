/* Models that move linearly but for gradients, for recur.c: where they are, and the memory of a call.
   What they turn into is said in motion.h. */
#pragma once
#include "motion.h"

enum { EDGE = 4 }; /* samples whose inner products are taken at once; ROWS at least */

typedef struct {
    long L, P, m;        /* layers, parameters, models */
    const long *width;
    const float **own;   /* [m][P] weight and bias of each layer in turn, rows padded; null if absent: what was given, or
                            what was made of it */
    float **padded;      /* [m][P] room for what is given */
    float **made;        /* [m][P] and for what is made */
    float **point;       /* [P] the models' part of a point */
    float **slope;       /* [P] the gradient; null: it is made of the histories */
    float *z, *gram;     /* [learners + 1][H] rows: outputs of first layers; [H][H] samples' inner products */
    float **x, **d;      /* [L] histories [H][Q] of inputs and derivatives; of the first layer [H], of both points */
    const float **in;    /* [H] the samples, the last one repeated */
    const float **soon;  /* [H] those of the steps that come next, fetched meanwhile; null: so many are not to come */
    const float **list, **next;
    float *fresh, *sums; /* rows of a matrix: mixtures, slopes */
    float *part;         /* derivatives times shares */
    float *rows;         /* [H] the samples, padded */
    float **table;       /* [P] what is kept of samples' last gradients, see `recall`; null: nothing is */
} place;

static long outs_at(const place *n, long p) { return p % 2 ? 1 : n->width[p / 2 + 1]; }
static long ins_at(const place *n, long p) { return n->width[p / 2 + p % 2]; }
static long wide_at(const place *n, long p) { return WIDE(ins_at(n, p)); }

/* Where client c's models are, copied if they have to be padded and were not for the client before. */
static void fetch(place *n, const motion *h, const float **from, const long *hop, long c) {
    for (long at = 0; at < h->m * n->P; at++) {
        long p = at % n->P, ins = ins_at(n, p), wide = wide_at(n, p);
        const float *mine = from[at] ? from[at] + c * hop[at] : 0;
        n->own[at] = mine && wide != ins ? n->padded[at] : mine;
        if (n->own[at] == mine || (c && !hop[at])) continue;
        for (long r = 0; r < outs_at(n, p); r++) memcpy(n->padded[at] + r * wide, mine + r * ins, sizeof(float) * ins);
    }
}

/* T mixtures, whose shares are rows `which` of `shares`, of n floats of the models' parameter p, and of slopes if there
   are any; `past` as in `mixtures`. */
static void mix_models(const place *n, const motion *h, const float *shares, const long *which, long T, long p,
                       long from, const float **slopes, float **y, long count, int past) {
    const float *x[h->row];
    float share[4 * h->row];
    for (long i = 0; i < T; i += 4) {
        long some = T - i < 4 ? T - i : 4, sources = 0, used[h->row];
        for (long k = 0; k < (slopes ? h->row : n->m); k++) {
            const float *own = k < n->m ? n->own[k * n->P + p] : slopes[k - n->m];
            int any = 0;
            for (long t = i; t < i + some; t++) any |= shares[which[t] * h->row + k] != 0;
            if (!any || !own) continue;
            used[sources] = k;
            x[sources++] = own + (k < n->m ? from : 0);
        }
        for (long t = 0; t < some; t++)
            for (long k = 0; k < sources; k++) share[t * sources + k] = shares[which[i + t] * h->row + used[k]];
        some_mixtures(some, past, share, x, sources, y + i, count);
    }
}

/* Which of `count` steps is the first whose gradient counts in model i. */
static long first_used(const motion *h, long count, long i) { return h->last_gradient[i] < count ? count - h->last_gradient[i] : 0; }

/* Of `count` steps: the inputs of layer l, and the derivatives in its outputs times what is left of them in each model
   that learns. */
static void weigh(place *n, const motion *h, long count, long l) {
    long K = WIDE(n->width[l + 1]), wide = WIDE(n->width[l]), each = l ? h->Q : 1;
    for (long e = 0; e < count * each; e++) n->list[e] = l ? n->x[l] + e * wide : n->in[e];
    for (long i = 0; i < h->learners; i++)
        for (long e = first_used(h, count, i) * each; e < count * each; e++) {
            float share = h->left[i * h->H + count - 1 - e / each], *to = n->part + (i * h->H * h->Q + e) * K;
            for (long k = 0; k < K; k++) to[k] = share * n->d[l][e * K + k];
        }
}

/* `some` rows from r of what the gradients add to parameter p of each model that learns. */
static void sum_up(place *n, const motion *h, long count, long p, long r, long some, const float **slopes) {
    long l = p / 2, wide = wide_at(n, p), K = WIDE(n->width[l + 1]), each = l ? h->Q : 1;
    for (long i = 0; i < h->learners; i++) {
        long first = first_used(h, count, i) * each;
        const float *a = n->part + i * h->H * h->Q * K;
        float *y = n->sums + i * OUTS * wide;
        slopes[i] = y;
        if (p % 2) memset(y, 0, sizeof(float) * wide);
        else mix(a + first * K + r, K, n->list + first, i || p || r || !n->soon ? 0 : n->soon + first, y,
                 count * each - first, some, wide, 0);
        for (long e = first; p % 2 && e < count * each; e++)
            for (long k = 0; k < wide; k++) y[k] += a[e * K + k];
    }
}

/* Write the models that learn as they are after `count` steps; after the last ones what client c is wanted of. */
static void write_models(place *n, const motion *h, long count, float **to, long c) {
    long P = n->P, T = to ? h->J : h->learners, which[T + 1];
    for (long t = 0; t < T; t++) which[t] = to ? h->m + t : t;
    for (long p = 0; p < P; p++) {
        long ins = ins_at(n, p), wide = wide_at(n, p), outs = outs_at(n, p);
        int direct = to ? wide == ins : T <= 4; /* what is written has not to be read again */
        if (!n->own[p]) continue;
        if (!n->slope && !(p % 2)) weigh(n, h, count, p / 2);
        for (long r = 0; r < outs; r += OUTS) {
            long some = outs - r < OUTS ? outs - r : OUTS, keep = to ? ins : wide;
            float *y[T + 1], *goal[T + 1];
            const float *slopes[h->slopes + 1];
            if (n->slope) slopes[0] = n->slope[p] + r * wide;
            else sum_up(n, h, count, p, r, some, slopes);
            for (long t = 0; t < T; t++) {
                goal[t] = to ? to[t * P + p] + (c * outs + r) * ins : n->made[t * P + p] + r * wide;
                y[t] = direct ? goal[t] : n->fresh + t * OUTS * wide;
            }
            int past = to && direct && aligned(y, T); /* nobody reads it before all other clients are done */
            mix_models(n, h, h->end, which, T, p, r * wide, slopes, y, some * wide, past);
            for (long t = 0; !direct && t < T; t++)
                for (long s = 0; s < some; s++) memcpy(goal[t] + s * keep, y[t] + s * wide, sizeof(float) * keep);
        }
        for (long t = 0; !to && t < T; t++) n->own[t * P + p] = n->made[t * P + p];
    }
    written();
}

static void *room_for(void **all, long *used, long bytes) {
    char *p = *all ? (char *)*all + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Share out `all`; with a null pointer only count. Bytes that it takes. */
static long share_room(void *all, place *n, motion *h, const float **from) {
    long used = 0, m = h->m, L = n->L, T = m + h->J, e = h->H * h->Q, widest = 0, f = sizeof(float);
#define ROOM(bytes) room_for(&all, &used, bytes)
    for (long l = 0; l <= L; l++) widest = WIDE(n->width[l]) > widest ? WIDE(n->width[l]) : widest;
    for (long at = 0; at < (2 * m + 1) * n->P; at++) {
        long p = at % n->P;
        int needed = at / n->P >= m || wide_at(n, p) != ins_at(n, p);
        float *mine = ROOM(from[p] && needed ? outs_at(n, p) * wide_at(n, p) * f : 0);
        if (all) n->padded[at] = mine;
    }
    for (long l = 0; l < L; l++) {
        float *x = ROOM(l ? e * WIDE(n->width[l]) * f : 0), *d = ROOM(e * WIDE(n->width[l + 1]) * f);
        if (all) {
            n->x[l] = x;
            n->d[l] = d;
        }
    }
    n->z = ROOM((h->learners + 1) * (h->H + ROWS) * WIDE(n->width[1]) * f);
    n->gram = ROOM((h->H + EDGE) * WIDE(h->H) * f);
    n->fresh = ROOM((T + 1) * OUTS * widest * f);
    n->sums = ROOM(h->slopes * OUTS * widest * f);
    n->part = ROOM((h->learners * e + 1) * widest * f);
    n->rows = ROOM(h->H * WIDE(n->width[0]) * f);
    h->ahead = ROOM(e * m * sizeof(double));
    h->after = ROOM(T * m * sizeof(double));
    h->past = ROOM(m * m * sizeof(double));
    h->at = ROOM(e * h->row * f);
    h->end = ROOM(T * h->row * f);
    h->lag = ROOM(e * f);
    h->left = ROOM(T * h->H * f);
    h->steps_used = ROOM(m * sizeof(long));
    h->most = ROOM(m * f);
    h->last_gradient = ROOM(m * sizeof(long));
    h->uses_gradients = ROOM(h->Q * sizeof(int));
    n->in = ROOM((h->H + EDGE) * sizeof(float *));
    n->next = ROOM(h->H * sizeof(float *));
    n->list = ROOM((e + ROWS) * sizeof(float *));
    n->own = ROOM(m * n->P * sizeof(float *));
    return used;
}

/* The memory of a call, zeros at first; null if there is none. */
static void *reserve_models(place *n, motion *h, const float **from) {
    long lists = ((2 * h->m + 1) * n->P + 2 * n->L) * sizeof(float *);
    char *all = calloc(lists + share_room(0, n, h, from) + 64, 1);
    if (!all) return 0;
    n->padded = (float **)all;
    n->made = n->padded + h->m * n->P;
    n->point = n->made + h->m * n->P;
    n->x = n->point + n->P;
    n->d = n->x + n->L;
    share_room((void *)(((uintptr_t)all + lists + 63) / 64 * 64), n, h, from);
    return all;
}
