/* Models that move linearly but for gradients, for recur.c and sweep.c: what they turn into after 0, 1, .. steps,
   where they are, and the memory of a call.

   Models s_1..s_m of one dense network move by s_i' = sum_k moves[i][k] s_k + gains[i] g, where g is a sum of
   gradients at Q points, sum_q signs[q] f'(sum_k points[q][k] s_k). After the last step J mixtures of them are
   wanted, sum_k ends[j][k] s_k. Models that no gradient reaches are never written: their shares say what they are. */
#pragma once
#include "passes.h"

typedef struct {
    long m, Q, J, H;                                         /* models, points, mixtures, steps that are made at once */
    const double *moves, *points, *signs, *gains, *ends;
    double *ahead;                                           /* [H][Q][m] share of a model in a point, steps later */
    double *after;                                           /* [m + J][m] in models H steps later, in what is wanted */
    double *past;                                            /* [m][m] in a model, of what is kept of them */
    float *at, *end;                                         /* both in what is kept; m + 1 a row, as `own` */
    float *lag;                                              /* [Q][H] share of a gradient in a point, steps later */
    float *left;                                             /* [m + J][H] and in models and in what is wanted */
    int *learns, *hears;                                     /* [m + J], [Q] of any gradient */
} motion;

typedef struct {
    long L, P, m;
    const long *width;
    const float **own;   /* [m + 1][P] weight and bias of each layer in turn, rows padded; null if absent; a gradient */
    float **room;        /* [m][P] for those that are padded or written */
    float **point;       /* [P] the models' part of a point */
    float *z, *gram;     /* [m][H] rows: outputs of the models' first layers; [H][H] */
    float **x, **d;      /* [L] histories [H][Q] of inputs and derivatives; of the first layer [H], of both points */
    const float **in;    /* [H] the samples, the last one repeated */
    const float **list;
    float *fresh, *part; /* [m + J] rows of a matrix; derivatives times shares */
    float *rows;         /* [H] the samples, padded */
} place;

/* Take a row of shares through some steps: those of models go to `all`, `hop` apart, if that is not null, those of
   a gradient to `of`. Returns whether there are any of these. */
static int unroll(const motion *h, double *row, long steps, double *all, long hop, float *of) {
    int any = 0;
    double next[h->m];
    for (long t = 0; t < steps; t++) {
        double gain = 0;
        memset(next, 0, sizeof next);
        for (long k = 0; k < h->m; k++) {
            if (all) all[t * hop + k] = row[k];
            gain += row[k] * h->gains[k];
            for (long j = 0; j < h->m; j++) next[j] += row[k] * h->moves[k * h->m + j];
        }
        of[t] = gain;
        any |= gain != 0;
        memcpy(row, next, sizeof next);
    }
    return any;
}

/* Shares of models and gradients after 0, 1, .. steps; `last` steps are made before the end. */
static void foresee(motion *h, long last) {
    long m = h->m;
    for (long q = 0; q < h->Q; q++) {
        double row[m];
        memcpy(row, h->points + q * m, sizeof row);
        h->hears[q] = unroll(h, row, h->H, h->ahead + q * m, h->Q * m, h->lag + q * h->H);
    }
    for (long i = 0; i < m + h->J; i++) {
        double *row = h->after + i * m;
        for (long k = 0; k < m; k++) row[k] = i < m ? i == k : h->ends[(i - m) * m + k];
        h->learns[i] = unroll(h, row, i < m ? h->H : last, 0, 0, h->left + i * h->H);
    }
}

/* `n` rows of shares in the models as they are now, to shares in what is kept of them. */
static void in_kept(const motion *h, const double *rows, long n, float *to) {
    long m = h->m;
    for (long i = 0; i < n; i++)
        for (long k = 0; k < m; k++) {
            double share = 0;
            for (long j = 0; j < m; j++) share += rows[i * m + j] * h->past[j * m + k];
            to[i * (m + 1) + k] = share;
        }
}

/* A client's first step, and the H that come next. */
static void start(motion *h) {
    for (long i = 0; i < h->m; i++)
        for (long k = 0; k < h->m; k++) h->past[i * h->m + k] = i == k;
}
static void look_on(motion *h) {
    in_kept(h, h->ahead, h->H * h->Q, h->at);
    in_kept(h, h->after, h->m + h->J, h->end);
}

/* H steps are made: the models that learn are written, the others have moved. */
static void move_on(motion *h) {
    long m = h->m;
    double now[m * m];
    for (long i = 0; i < m; i++)
        for (long k = 0; k < m; k++) {
            now[i * m + k] = h->learns[i] && i == k;
            for (long j = 0; !h->learns[i] && j < m; j++)
                now[i * m + k] += h->after[i * m + j] * h->past[j * m + k];
        }
    memcpy(h->past, now, sizeof now);
}

static long outs_at(const place *n, long p) { return p % 2 ? 1 : n->width[p / 2 + 1]; }
static long ins_at(const place *n, long p) { return n->width[p / 2 + p % 2]; }
static long wide_at(const place *n, long p) { return WIDE(ins_at(n, p)); }

/* Where client c's models are, copied if they have to be padded and were not for the client before. */
static void fetch(place *n, const motion *h, const float **from, const long *hop, long c) {
    for (long at = 0; at < n->m * n->P; at++) {
        long p = at % n->P, ins = ins_at(n, p), wide = wide_at(n, p);
        const float *mine = from[at] ? from[at] + c * hop[at] : 0;
        n->own[at] = mine && wide != ins ? n->room[at] : mine;
        if (n->own[at] == mine || (c && !hop[at] && !h->learns[at / n->P])) continue;
        for (long r = 0; r < outs_at(n, p); r++) memcpy(n->room[at] + r * wide, mine + r * ins, sizeof(float) * ins);
    }
}

/* y_i = sum_k share[i][k] x_k for T rows of n floats, whole registers */
INLINE void mixtures(const int T, const float *share, const float **x, long sources, float **y, long n) {
    for (long j = 0; j < n; j += V) {
        vec a[4] = {0};
        for (long k = 0; k < sources; k++) {
            vec u = *(const vec *)(x[k] + j);
            for (int i = 0; i < T; i++) a[i] += share[i * sources + k] * u;
        }
        for (int i = 0; i < T; i++) *(vec *)(y[i] + j) = a[i];
    }
}

/* T mixtures, whose shares are rows `which` of `shares`, of n floats of the models' parameter p. */
static void mix_models(const place *n, const float *shares, const long *which, long T, long p, long from, float **y,
                       long count) {
    const float *x[n->m + 1];
    float share[4 * (n->m + 1)];
    for (long i = 0; i < T; i += 4) {
        long some = T - i < 4 ? T - i : 4, sources = 0, used[n->m + 1];
        for (long k = 0; k <= n->m; k++) {
            int any = 0;
            for (long t = i; t < i + some; t++) any |= shares[which[t] * (n->m + 1) + k] != 0;
            if (!any || !n->own[k * n->P + p]) continue;
            used[sources] = k;
            x[sources++] = n->own[k * n->P + p] + from;
        }
        for (long t = 0; t < some; t++)
            for (long k = 0; k < sources; k++) share[t * sources + k] = shares[which[i + t] * (n->m + 1) + used[k]];
        if (some == 1) mixtures(1, share, x, sources, y + i, count);
        if (some == 2) mixtures(2, share, x, sources, y + i, count);
        if (some == 3) mixtures(3, share, x, sources, y + i, count);
        if (some == 4) mixtures(4, share, x, sources, y + i, count);
    }
}

/* Derivatives of layer l times what is left of them in model i after `count` steps. */
static void weigh(place *n, const motion *h, long count, long l, long i, float *to) {
    long K = WIDE(n->width[l + 1]), each = l ? h->Q : 1;
    for (long e = 0; e < count * each; e++) {
        float share = h->left[i * h->H + count - 1 - e / each];
        for (long k = 0; k < K; k++) to[e * K + k] = share * n->d[l][e * K + k];
    }
}

/* Write the models that learn as they are after `count` steps; after the last ones what client c is wanted of. The
   gradients are in the histories, or beside the models. */
static void settle_models(place *n, const motion *h, long count, float **to, long c) {
    long m = n->m, P = n->P, T = 0, which[m + h->J];
    for (long i = to ? m : 0; i < (to ? m + h->J : m); i++)
        if (to || h->learns[i]) which[T++] = i;
    for (long p = 0; p < P; p++) {
        long l = p / 2, ins = ins_at(n, p), wide = wide_at(n, p), outs = outs_at(n, p), K = WIDE(n->width[l + 1]);
        long size = n->own[m * P + p] ? 0 : count * (l ? h->Q : 1), room = h->H * h->Q * K;
        if (!n->own[p]) continue;
        for (long t = 0; size && t < T; t++) weigh(n, h, count, l, which[t], n->part + t * room);
        for (long e = 0; e < size; e++) n->list[e] = l ? n->x[l] + e * wide : n->in[e];
        for (long r = 0; r < outs; r += OUTS) {
            long some = outs - r < OUTS ? outs - r : OUTS;
            float *y[T + 1], *goal[T + 1];
            for (long t = 0; t < T; t++) {
                goal[t] = to ? to[(which[t] - m) * P + p] + (c * outs + r) * ins : n->room[which[t] * P + p] + r * wide;
                y[t] = to && wide == ins ? goal[t] : n->fresh + t * OUTS * wide;
            }
            mix_models(n, h->end, which, T, p, r * wide, y, some * wide);
            for (long t = 0; t < T; t++) {
                float *a = n->part + t * room;
                for (long e = 0; p % 2 && e < size; e++)
                    for (long k = 0; k < wide; k++) y[t][k] += a[e * K + k];
                if (size && !(p % 2)) mix_in(a + r, K, n->list, 0, y[t], size, some, wide);
                for (long s = 0; y[t] != goal[t] && s < some; s++)
                    memcpy(goal[t] + s * (to ? ins : wide), y[t] + s * wide, sizeof(float) * (to ? ins : wide));
            }
        }
        for (long t = 0; !to && t < T; t++) n->own[which[t] * P + p] = n->room[which[t] * P + p];
    }
}

static void *room_for(void **all, long *used, long bytes) {
    char *p = *all ? (char *)*all + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Share out `all`; with a null pointer only count. Bytes that it takes. */
static long share_room(void *all, place *n, motion *h, const float **from) {
    long used = 0, m = n->m, L = n->L, T = m + h->J, e = h->H * h->Q, widest = 0, f = sizeof(float);
#define ROOM(bytes) room_for(&all, &used, bytes)
    for (long l = 0; l <= L; l++) widest = WIDE(n->width[l]) > widest ? WIDE(n->width[l]) : widest;
    for (long at = 0; at < (m + 1) * n->P; at++) {
        long p = at % n->P;
        float *mine = ROOM(from[p] ? outs_at(n, p) * wide_at(n, p) * f : 0);
        if (all) *(at < m * n->P ? n->room + at : n->point + p) = mine;
    }
    for (long l = 0; l < L; l++) {
        float *x = ROOM(l ? e * WIDE(n->width[l]) * f : 0), *d = ROOM(e * WIDE(n->width[l + 1]) * f);
        if (all) {
            n->x[l] = x;
            n->d[l] = d;
        }
    }
    n->z = ROOM(m * (h->H + ROWS) * WIDE(n->width[1]) * f);
    n->gram = ROOM((h->H + ROWS) * WIDE(h->H) * f);
    n->fresh = ROOM(T * OUTS * widest * f);
    n->part = ROOM((T * e + 1) * widest * f);
    n->rows = ROOM(h->H * WIDE(n->width[0]) * f);
    h->ahead = ROOM(e * m * sizeof(double));
    h->after = ROOM(T * m * sizeof(double));
    h->past = ROOM(m * m * sizeof(double));
    h->at = ROOM(e * (m + 1) * f);
    h->end = ROOM(T * (m + 1) * f);
    h->lag = ROOM(e * f);
    h->left = ROOM(T * h->H * f);
    h->learns = ROOM((T + h->Q) * sizeof(int));
    h->hears = h->learns + T;
    n->in = ROOM((h->H + ROWS) * sizeof(float *));
    n->list = ROOM(e * sizeof(float *));
    n->own = ROOM((m + 1) * n->P * sizeof(float *));
    return used;
}

/* What the numbers of a call are. */
static motion told(long m, long Q, long J, long H, const double *numbers) {
    motion h = {m, Q, J, H, numbers};
    h.points = numbers + m * m;
    h.signs = h.points + Q * m;
    h.gains = h.signs + Q;
    h.ends = h.gains + m;
    return h;
}

/* The memory of a call, zeros at first; null if there is none. */
static void *reserve_models(place *n, motion *h, const float **from) {
    long lists = ((n->m + 1) * n->P + 2 * n->L) * sizeof(float *);
    char *all = calloc(lists + share_room(0, n, h, from) + 64, 1);
    if (!all) return 0;
    n->room = (float **)all;
    n->point = n->room + n->m * n->P;
    n->x = n->point + n->P;
    n->d = n->x + n->L;
    share_room((void *)(((uintptr_t)all + lists + 63) / 64 * 64), n, h, from);
    return all;
}
