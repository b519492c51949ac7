/* What models that move linearly but for gradients turn into after 0, 1, .. steps: numbers alone.

   Models s_1..s_m of one dense network move by s_i' = sum_k moves[i][k] s_k + gains[i] g, where g is a sum of
   gradients at Q points, sum_q signs[q] f'(sum_k points[q][k] s_k). After the last step J mixtures of them are wanted,
   sum_k ends[j][k] s_k. The first models learn (gradients reach them). Each of these is written, but for its
   shares in what never changes: these are numbers, as all shares of the other models, until what is wanted is made.
   Shares fall off: a share that is TINY beside what the model once had counts as none, and its product is left out. */
#pragma once
#include "derivatives.h"
#include "products.h"

#define TINY 0x1p-30
enum { EIGHT = 8 };
typedef double eight __attribute__((vector_size(8 * EIGHT)));

typedef struct {
    long m, learners, Q, J, H;                               /* models, points, mixtures, steps that are made at once */
    long slopes, row;                                        /* sums of gradients that are added; floats of a row */
    const double *moves, *points, *signs, *gains, *ends;
    double *ahead;                                           /* [H][Q][m] share of a model in a point, steps later */
    double *after;                                           /* [m + J][m] in models H steps later, in what is wanted */
    double *past;                                            /* [m][m] in a model, of what is kept of them */
    float *at, *end;                                         /* [row] each, of what is kept, then of slopes: in both */
    float *lag;                                              /* [Q][H] share of a gradient in a point, steps later */
    float *left;                                             /* [m + J][H] and in models and in what is wanted */
    long *steps_used, *last_gradient;  /* [m] steps that it counts in, last gradient that does */
    float *most;                                             /* [m] largest share in a point so far */
    int *uses_gradients;                                              /* [Q] whether any gradient reaches a point */
} motion;

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
        h->uses_gradients[q] = unroll(h, row, h->H, h->ahead + q * m, h->Q * m, h->lag + q * h->H);
    }
    for (long i = 0; i < m + h->J; i++) {
        double *row = h->after + i * m, left[h->H];
        for (long k = 0; k < m; k++) row[k] = i < m ? i == k : h->ends[(i - m) * m + k];
        unroll(h, row, i < m ? h->H : last, 0, 0, h->left + i * h->H);
        for (long t = 0; t < h->H; t++) left[t] = h->left[i * h->H + t];
        if (i < m) h->last_gradient[i] = lasting(left, h->H, 1);
    }
}

/* `n` rows of shares in the models as they are now, to shares in what is kept of them; of EIGHT of these at a time. */
static void in_kept(const motion *h, const double *rows, long n, float *to) {
    for (long k = 0, m = h->m; k < m; k += EIGHT) {
        long some = m - k < EIGHT ? m - k : EIGHT;
        eight past[m];
        for (long j = 0; j < m; j++)
            for (long e = 0; e < EIGHT; e++) past[j][e] = e < some ? h->past[j * m + k + e] : 0;
        for (long i = 0; i < n; i++) {
            eight share = {0};
            for (long j = 0; j < m; j++) share += rows[i * m + j] * past[j];
            for (long e = 0; e < some; e++) to[i * h->row + k + e] = share[e];
        }
    }
}

/* A client's first step, when all are as they are given; the H steps that come next. */
static void start(motion *h) {
    for (long i = 0; i < h->m; i++)
        for (long k = 0; k < h->m; k++) h->past[i * h->m + k] = i == k;
    memset(h->most, 0, sizeof(float) * h->m);
}
static void look_on(motion *h) {
    in_kept(h, h->ahead, h->H * h->Q, h->at);
    in_kept(h, h->after, h->m + h->J, h->end);
    for (long i = 0; i < h->learners; i++)
        for (long k = h->learners; k < h->m; k++) h->end[i * h->row + k] = 0; /* see move_on */
}

/* In how many of the next `count` steps what is kept of model k counts. */
static long counted(motion *h, long k, long count) {
    long e = count * h->Q;
    for (long i = 0; i < e; i++) {
        float now = fabsf(h->at[i * h->row + k]);
        if (now > h->most[k]) h->most[k] = now;
    }
    while (e && fabsf(h->at[(e - 1) * h->row + k]) <= (float)TINY * h->most[k]) e--;
    return (e + h->Q - 1) / h->Q;
}

/* H steps are made. What is kept of the models that learn was written, with their shares in each other and with
   gradients; their shares in what never changes are numbers, as those of the other models. */
static void move_on(motion *h) {
    long m = h->m;
    double now[m * m];
    for (long i = 0; i < m; i++)
        for (long k = 0; k < m; k++) {
            int written = i < h->learners && k < h->learners;
            now[i * m + k] = written && i == k;
            for (long j = 0; !written && j < m; j++) now[i * m + k] += h->after[i * m + j] * h->past[j * m + k];
        }
    memcpy(h->past, now, sizeof now);
}

/* What the numbers of a call are: `sizes` are those of models, of those that learn, of points and of mixtures; `slopes` is 0 where each model that learns has its own. */
static motion told(const long *sizes, long H, long slopes, const double *numbers) {
    motion h = {.m = sizes[0], .learners = sizes[1], .Q = sizes[2], .J = sizes[3], .H = H};
    h.slopes = slopes ? slopes : h.learners;
    h.row = h.m + h.slopes;
    h.moves = numbers;
    h.points = h.moves + h.m * h.m;
    h.signs = h.points + h.Q * h.m;
    h.gains = h.signs + h.Q;
    h.ends = h.gains + h.m;
    return h;
}
