/* Plain steps of a network's uppermost layers on all samples of a client, then one gradient of the whole network where
   they end, for many clients in one call. What lies below these layers stays, so it is gone through once. */
#include "passes.h"
#include "score.h"

typedef struct {
    int task;
    const float *x;
    const void *y;
    const int64_t *rows;
    const float *share;
    long B;
    float total; /* of the shares */
} batch;

/* Of B samples; what pads them at the end is left out, if any has a weight. */
static batch batch_of(int task, const float *x, const void *y, const int64_t *rows, const float *share, long B) {
    batch b = {task, x, y, rows, share, B, 0};
    for (long i = 0; i < B; i++) b.total += share[i];
    if (b.total > 0) b.B = filled(share, B);
    return b;
}

/* Read the samples; no others come next. */
static void samples(const net *n, space *m, const batch *b) {
    inputs(n, m, b->x, b->rows, b->share, b->B);
    for (long i = 0; i < b->B; i++) m->next[i] = m->x[0][i];
}

/* Their mean loss in *loss; 2 if a label is no class. */
static int mean_loss(const net *n, const space *m, const batch *b, float *loss) {
    long K = n->width[n->L], zw = WIDE(K);
    double all = 0;
    for (long i = 0; i < b->B; i++) {
        double one[2] = {0};
        if (b->share[i] == 0) continue;
        if (score(b->task, m->z[n->L] + i * zw, zw, b->y, 0, b->rows[i], 1, K, one, 0)) return 2;
        all += b->share[i] * one[0];
    }
    *loss = (float)(all / b->total);
    return 0;
}

/* The largest eigenvalue of F'F / n, from below, for the features F of n samples, with a 1 for the bias: so many steps
   of the power method from their sum. */
static float curvature(const net *n, space *m, const batch *b, int steps) {
    long wide = WIDE(n->width[n->L - 1]);
    float *u = m->g, *t = m->turned, *at_one = u + wide, length = 1, squares = 0;
    const float **F = m->x[n->L - 1], one = n->from[n->P - 1] ? 1 : 0;
    for (long i = 0; i < b->B; i++) t[i] = b->share[i];
    for (int s = 0; s <= steps; s++) { /* t are the inner products with u, the 1 of the bias at its end */
        squares = 0;
        mix(t, 1, F, 0, u, b->B, 1, wide, 0);
        at_one[0] = 0;
        for (long i = 0; i < b->B; i++) at_one[0] += one * t[i];
        length = s ? sqrtf(inner(u, u, wide) + at_one[0] * at_one[0]) : 1;
        for (long j = 0; j < wide + 1; j++) u[j] /= fmaxf(length, 1e-12f);
        at_one[0] *= one;
        forward(u, at_one, F, t, b->B, 1, wide, 1);
        for (long i = 0; i < b->B; i++) {
            t[i] *= b->share[i];
            squares += t[i] * t[i];
        }
    }
    return squares / b->total;
}

/* The steps of size lr and the gradient of client c; `told` null or where its losses before and after the steps and the
   largest eigenvalue go, by `powers` steps. */
static int descend(const net *n, space *m, const batch *b, float lr, long low, long steps, float *told, int powers) {
    long L = n->L, first = b->total > 0 ? 0 : steps; /* the gradient of nothing is no number, and no step */
    rule step = {.to = 0, .adds = 1, .ends = 1}, last = {.to = 1, .ends = 1};
    for (long s = first; s <= steps; s++) {
        outputs(n, m, b->B, s > first ? low : 0, L);
        if (told && s == first && mean_loss(n, m, b, told)) return 2;
        if (told && s == steps && mean_loss(n, m, b, told + 1)) return 2;
        float scale = (s < steps ? -lr : 1) / b->total;
        if (derivatives(b->task, m->z[L], b->y, b->rows, b->share, 0, scale, b->B, n->width[L], WIDE(n->width[L])))
            return 2;
        backward(n, m, s < steps ? &step : &last, s < steps ? n->N + low : 0, b->B, 0);
    }
    if (told) told[2] = curvature(n, m, b, powers);
    return 0;
}

/* Take `steps` plain steps of size lr with the `trained` part of the first vector, dense layers, and give the gradient
   of all as the second; other arguments as in fedpers_steps, of one minibatch a client, all its samples. `told` is null
   or [C][3], see above. Returns 0, 1 without memory, 2 for a label that is no class. */
int fedpers_joint(long N, const shape *shapes, long L, const long *width, long K, const int *kind, const int *trained,
                  const float **from, const long *hop, float **to, int task, long C, long S, long B, const float **x,
                  const void **y, const int64_t *index, const long *ih, const float *weight, const long *wh, float lr,
                  long steps, float (*told)[3], int powers) {
    net n = {L, 2 * (N + L), width, N, 0, K, from, hop, to, trained, kind};
    space m = {0};
    long low = 0;
    int all[n.P], failed = reserve(&n, &m, shapes, B);
    net whole = n;
    whole.trained = all;
    for (long p = 0; p < n.P; p++) all[p] = to[n.P + p] != 0;
    while (!to[2 * (N + low)] && low < L - 1) low++;
    for (long c = 0; c < C && !failed; c++) {
        batch b = batch_of(task, x[c], y[c], index + c * ih[0], weight + c * wh[0], B);
        begin(&n, &m, c);
        samples(&whole, &m, &b);
        failed = descend(&whole, &m, &b, lr, low, steps, told ? told[c] : 0, powers);
        if (!failed) copy(&n, c, 1);
    }
    release(&n, &m);
    return failed;
}
