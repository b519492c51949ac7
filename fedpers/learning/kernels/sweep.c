/* Steps of minibatches by which several models of one client move, for many clients in one call.

   What the models are to each other is in motion.h. A gradient of many samples is no product of a few rows, so each
   step is made when its gradient is there. */
#include "recur.h"
#include "batch.h"

/* The gradient of a step, beside the models; 2 if a label is no class. */
static int gradient(const place *n, const motion *h, net *g, space *m, const rule *plain, const batch *b, int fetch) {
    int failed = 0;
    for (long p = 0; p < n->P; p++)
        if (n->own[p]) memset(g->goal[0][p], 0, sizeof(float) * outs_at(n, p) * wide_at(n, p));
    for (long q = 0; q < h->Q && b->total > 0 && !failed; q++) {
        for (long p = 0; p < n->P; p++)
            if (n->own[p]) mix_models(n, h, h->at, &q, 1, p, 0, 0, n->point + p, outs_at(n, p) * wide_at(n, p), 0);
        g->share[0] = -h->signs[q]; /* a plain step goes down */
        if (fetch && !q) samples(g, m, b);
        failed = pass(g, m, plain, b, 0);
    }
    return failed;
}

/* Make S steps of B samples for each of C clients; arguments and what is returned as in fedpers_recur. A step whose
   weights are all 0 has no gradient. */
int fedpers_sweep(long N, const shape *shapes, long L, const long *width, const float **from, const long *hop,
                  float **to, int task, long C, long S, long B, const float **x, const void **y,
                  const int64_t *index, const long *ih, const float *weight, const long *wh, const long *sizes,
                  const double *numbers) {
    place n = {L, 2 * L, sizes[1], width};
    motion h = told(sizes, 1, 1, numbers);
    float *goal[2 * L * KINDS];
    for (long at = 0; at < KINDS * n.P; at++) goal[at] = at / n.P == FIRST ? (float *)from[at % n.P] : 0;
    net g = {L, 2 * L, width, 0, 0, (const float **)goal, 0, goal};
    rule plain = {.pace = calloc(L, sizeof(float *))};
    space space = {0};
    void *all = reserve_models(&n, &h, from);
    int failed = reserve(&g, &space, shapes, B) || !all || !plain.pace;
    if (!failed) {
        foresee(&h, S > 0);
        for (long i = 0; i < h.m + h.J; i++) h.end[i * h.row + h.m] = h.left[i];
        g.at = n.point;
        n.slope = g.goal[0] = g.own + FIRST * n.P;
    }
    for (long c = 0; c < C && !failed; c++) {
        fetch(&n, &h, from, hop, c);
        start(&h);
        for (long s = 0; !failed && (!s || s < S); s++) {
            batch b = batch_of(task, x[c], y[c], index + c * ih[0] + s * ih[1], weight + c * wh[0] + s * wh[1],
                               s < S ? B : 0);
            look_on(&h);
            failed = gradient(&n, &h, &g, &space, &plain, &b, !s || ih[1]);
            settle_models(&n, &h, 1, s + 1 < S ? 0 : to, c);
            move_on(&h);
        }
    }
    free((void *)plain.pace);
    free(all);
    release(&g, &space);
    return failed;
}
