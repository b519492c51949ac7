/* One plain gradient of a minibatch, for couple.c, joint.c and sweep.c. */
#pragma once
#include "passes.h"

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

/* Go from dense layer `first` forward, and all the way backward, with the copies `at`; what comes out goes to the
   goals. */
static int pass(net *n, space *m, const rule *h, const batch *b, long first) {
    long K = n->width[n->L];
    outputs(n, m, b->B, first, n->L);
    if (derivatives(b->task, m->z[n->L], b->y, b->rows, b->share, 0, -1 / b->total, b->B, K, WIDE(K))) return 2;
    backward(n, m, h, 0, b->B, 0);
    return 0;
}
