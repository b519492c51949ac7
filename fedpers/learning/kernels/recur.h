/* Models that move linearly but for gradients, for recur.c and sweep.c: what they turn into after 0, 1, .. steps,
   where they are, and the memory of a call.

   Models s_1..s_m of one dense network move by s_i' = sum_k moves[i][k] s_k + gains[i] g, where g is a sum of
   gradients at Q points, sum_q signs[q] f'(sum_k points[q][k] s_k). They start as mixtures of the models that are
   given, sum_k starts[i][k] given_k. After the last step J mixtures of them are wanted, sum_k ends[j][k] s_k. The
   first models learn (gradients reach them) and are written, each in the place of the given one of its number; the
   others are never written: their shares in what was given say what they are. Shares fall off: a share that is
   TINY beside what the model once had counts as none, and its product is left out. */
#pragma once
#include "passes.h"

#define TINY 0x1p-30

typedef struct {
    long m, given, learners, Q, J, H;                        /* models, points, mixtures, steps that are made at once */
    long slopes, row;                                        /* sums of gradients that are added; floats of a row */
    const double *starts, *moves, *points, *signs, *gains, *ends;
    double *ahead;                                           /* [H][Q][m] share of a model in a point, steps later */
    double *after;                                           /* [m + J][m] in models H steps later, in what is wanted */
    double *past;                                            /* [m][given] in a model, of what is kept of them */
    float *at, *end;                                         /* [row] each, of what is kept, then of slopes: in both */
    float *lag;                                              /* [Q][H] share of a gradient in a point, steps later */
    float *left;                                             /* [m + J][H] and in models and in what is wanted */
    long *seen, *felt;                                       /* [m] steps up to the last point, gradient that counts */
    int *hears;                                              /* [Q] whether any gradient reaches a point */
} motion;

typedef struct {
    long L, P, m;        /* layers, parameters, models that are given */
    const long *width;
    const float **own;   /* [m][P] weight and bias of each layer in turn, rows padded; null if absent */
    float **room;        /* [m][P] for those that are padded or written */
    float **point;       /* [P] the models' part of a point */
    float **slope;       /* [P] the gradient; null: it is made of the histories */
    float *z, *gram;     /* [motion.m][H] rows: outputs of the models' first layers; [H][H] */
    float **x, **d;      /* [L] histories [H][Q] of inputs and derivatives; of the first layer [H], of both points */
    const float **in;    /* [H] the samples, the last one repeated */
    const float **list;
    float *fresh, *sums; /* rows of a matrix: mixtures, slopes */
    float *part;         /* derivatives times shares */
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

/* How many numbers of n, `hop` apart, there are up to the last that is not TINY beside the largest. */
static long lasting(const double *numbers, long n, long hop) {
    double most = 0;
    for (long i = 0; i < n; i++) most = fmax(most, fabs(numbers[i * hop]));
    while (n && fabs(numbers[(n - 1) * hop]) <= TINY * most) n--;
    return n;
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
        double *row = h->after + i * m, left[h->H];
        for (long k = 0; k < m; k++) row[k] = i < m ? i == k : h->ends[(i - m) * m + k];
        unroll(h, row, i < m ? h->H : last, 0, 0, h->left + i * h->H);
        for (long t = 0; t < h->H; t++) left[t] = h->left[i * h->H + t];
        if (i < m) h->felt[i] = lasting(left, h->H, 1);
        for (long q = 0; i < m && q < h->Q; q++) {
            long steps = lasting(h->ahead + q * m + i, h->H, h->Q * m);
            if (steps > h->seen[i]) h->seen[i] = steps;
        }
    }
}

/* `n` rows of shares in the models as they are now, to shares in what is kept of them. */
static void in_kept(const motion *h, const double *rows, long n, float *to) {
    for (long i = 0; i < n; i++)
        for (long k = 0; k < h->given; k++) {
            double share = 0;
            for (long j = 0; j < h->m; j++) share += rows[i * h->m + j] * h->past[j * h->given + k];
            to[i * h->row + k] = share;
        }
}

/* A client's first step, and the H that come next. */
static void start(motion *h) { memcpy(h->past, h->starts, sizeof(double) * h->m * h->given); }
static void look_on(motion *h) {
    in_kept(h, h->ahead, h->H * h->Q, h->at);
    in_kept(h, h->after, h->m + h->J, h->end);
}

/* H steps are made: the models that learn are written, the others have moved. */
static void move_on(motion *h) {
    long m = h->m, given = h->given;
    double now[m * given];
    for (long i = 0; i < m; i++)
        for (long k = 0; k < given; k++) {
            now[i * given + k] = i < h->learners && i == k;
            for (long j = 0; i >= h->learners && j < m; j++)
                now[i * given + k] += h->after[i * m + j] * h->past[j * given + k];
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
        if (n->own[at] == mine || (c && !hop[at] && at / n->P >= h->learners)) continue;
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

/* T mixtures, whose shares are rows `which` of `shares`, of n floats of the models' parameter p, and of slopes if there
   are any. */
static void mix_models(const place *n, const motion *h, const float *shares, const long *which, long T, long p,
                       long from, const float **slopes, float **y, long count) {
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
        if (some == 1) mixtures(1, share, x, sources, y + i, count);
        if (some == 2) mixtures(2, share, x, sources, y + i, count);
        if (some == 3) mixtures(3, share, x, sources, y + i, count);
        if (some == 4) mixtures(4, share, x, sources, y + i, count);
    }
}

/* Which of `count` steps is the first whose gradient counts in model i. */
static long first_felt(const motion *h, long count, long i) { return h->felt[i] < count ? count - h->felt[i] : 0; }

/* Of `count` steps: the inputs of layer l, and the derivatives in its outputs times what is left of them in each model
   that learns. */
static void weigh(place *n, const motion *h, long count, long l) {
    long K = WIDE(n->width[l + 1]), wide = WIDE(n->width[l]), each = l ? h->Q : 1;
    for (long e = 0; e < count * each; e++) n->list[e] = l ? n->x[l] + e * wide : n->in[e];
    for (long i = 0; i < h->learners; i++)
        for (long e = first_felt(h, count, i) * each; e < count * each; e++) {
            float share = h->left[i * h->H + count - 1 - e / each], *to = n->part + (i * h->H * h->Q + e) * K;
            for (long k = 0; k < K; k++) to[k] = share * n->d[l][e * K + k];
        }
}

/* `some` rows from r of what the gradients add to parameter p of each model that learns. */
static void sum_up(place *n, const motion *h, long count, long p, long r, long some, const float **slopes) {
    long l = p / 2, wide = wide_at(n, p), K = WIDE(n->width[l + 1]), each = l ? h->Q : 1;
    for (long i = 0; i < h->learners; i++) {
        long first = first_felt(h, count, i) * each;
        const float *a = n->part + i * h->H * h->Q * K;
        float *y = n->sums + i * OUTS * wide;
        slopes[i] = y;
        if (p % 2) memset(y, 0, sizeof(float) * wide);
        else mix(a + first * K + r, K, n->list + first, y, count * each - first, some, wide);
        for (long e = first; p % 2 && e < count * each; e++)
            for (long k = 0; k < wide; k++) y[k] += a[e * K + k];
    }
}

/* Write the models that learn as they are after `count` steps; after the last ones what client c is wanted of. */
static void settle_models(place *n, const motion *h, long count, float **to, long c) {
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
                goal[t] = to ? to[t * P + p] + (c * outs + r) * ins : n->room[t * P + p] + r * wide;
                y[t] = direct ? goal[t] : n->fresh + t * OUTS * wide;
            }
            mix_models(n, h, h->end, which, T, p, r * wide, slopes, y, some * wide);
            for (long t = 0; !direct && t < T; t++)
                for (long s = 0; s < some; s++) memcpy(goal[t] + s * keep, y[t] + s * wide, sizeof(float) * keep);
        }
        for (long t = 0; !to && t < T; t++) n->own[t * P + p] = n->room[t * P + p];
    }
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
    for (long at = 0; at < (n->m + 1) * n->P; at++) {
        long p = at % n->P;
        int needed = at / n->P < h->learners || at / n->P == n->m || wide_at(n, p) != ins_at(n, p);
        float *mine = ROOM(from[p] && needed ? outs_at(n, p) * wide_at(n, p) * f : 0);
        if (all) *(at < n->m * n->P ? n->room + at : n->point + p) = mine;
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
    n->fresh = ROOM((T + 1) * OUTS * widest * f);
    n->sums = ROOM(h->slopes * OUTS * widest * f);
    n->part = ROOM((h->learners * e + 1) * widest * f);
    n->rows = ROOM(h->H * WIDE(n->width[0]) * f);
    h->ahead = ROOM(e * m * sizeof(double));
    h->after = ROOM(T * m * sizeof(double));
    h->past = ROOM(m * h->given * sizeof(double));
    h->at = ROOM(e * h->row * f);
    h->end = ROOM(T * h->row * f);
    h->lag = ROOM(e * f);
    h->left = ROOM(T * h->H * f);
    h->seen = ROOM(m * sizeof(long));
    h->felt = ROOM(m * sizeof(long));
    h->hears = ROOM(h->Q * sizeof(int));
    n->in = ROOM((h->H + ROWS) * sizeof(float *));
    n->list = ROOM(e * sizeof(float *));
    n->own = ROOM(n->m * n->P * sizeof(float *));
    return used;
}

/* What the numbers of a call are: `sizes` are those of the models given, of models, of those that learn, of points
   and of mixtures; `slopes` is 0 where each model that learns has its own. */
static motion told(const long *sizes, long H, long slopes, const double *numbers) {
    motion h = {.given = sizes[0], .m = sizes[1], .learners = sizes[2], .Q = sizes[3], .J = sizes[4], .H = H};
    h.slopes = slopes ? slopes : h.learners;
    h.row = h.given + h.slopes;
    h.starts = numbers;
    h.moves = h.starts + h.m * h.given;
    h.points = h.moves + h.m * h.m;
    h.signs = h.points + h.Q * h.m;
    h.gains = h.signs + h.Q;
    h.ends = h.gains + h.m;
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
