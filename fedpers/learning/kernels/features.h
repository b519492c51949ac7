/* Features that stay: while the lowest layers are not trained, what they make of a sample is the same in every
   step. Of all rows that the steps of a client see they are computed once. */
#pragma once
#include "passes.h"

typedef struct {
    long S, B;             /* steps, samples of each */
    const int64_t *index;  /* [C, S, B] rows of a client's samples */
    const float *weight;   /* [C, S, B] 0: no sample, its row may not exist */
    const long *ih, *wh;   /* strides of both */
} batches;

static const int64_t *rows_of(const batches *b, long c, long s) { return b->index + c * b->ih[0] + s * b->ih[1]; }
static const float *shares_of(const batches *b, long c, long s) { return b->weight + c * b->wh[0] + s * b->wh[1]; }

/* Whether all steps of a client have the same minibatch, whose outputs are there from the first one on. */
static int repeats(const batches *b) { return b->S < 2 || (!b->ih[1] && !b->wh[1]); }

/* How many of a client's rows, from the first, the steps refer to. */
static long seen(const batches *b, long c) {
    long most = 0;
    for (long s = 0; s < b->S; s++)
        for (long i = 0; i < b->B; i++)
            if (shares_of(b, c, s)[i] != 0 && rows_of(b, c, s)[i] >= most) most = rows_of(b, c, s)[i] + 1;
    return most;
}

typedef struct {
    long low;        /* dense layers whose outputs stay; those of the last of them are the features */
    float *rows;     /* [rows that steps see][WIDE(features)]; null: nothing is kept */
    int64_t *number; /* [rows] 0, 1, 2, ... */
    float *ones;     /* [rows] */
} kept;

/* Memory for features of C clients whose lowest trained layer is `lowest`, if there are any and the steps see more
   samples than the clients have. 1 without memory. */
static int reserve_features(kept *k, const net *n, const batches *b, long C, long lowest) {
    long most = 0;
    k->low = lowest - n->N;
    if (k->low < !n->N || k->low >= n->L) return 0;
    for (long c = 0; c < C; c++)
        if (seen(b, c) > most) most = seen(b, c);
    if (repeats(b) || b->S * b->B <= most || !most) return 0;
    k->rows = calloc(most, sizeof(float) * WIDE(n->width[k->low]));
    k->number = calloc(most, sizeof(int64_t));
    k->ones = calloc(most, sizeof(float));
    if (!k->rows || !k->number || !k->ones) return 1;
    for (long i = 0; i < most; i++) k->ones[k->number[i] = i] = 1;
    return 0;
}

static void release_features(kept *k) {
    free(k->rows);
    free(k->number);
    free(k->ones);
}

/* Compute the features of client c, whose samples are x. */
static void keep(kept *k, const net *n, space *m, const batches *b, const float *x, long c) {
    long rows = seen(b, c), wide = WIDE(n->width[k->low]);
    for (long i = 0, now; i < rows; i += now) {
        now = rows - i < b->B ? rows - i : b->B;
        inputs(n, m, x, k->number + i, k->ones, now);
        outputs(n, m, now, 0, k->low);
        memcpy(k->rows + i * wide, m->z[k->low], sizeof(float) * now * wide);
    }
}

/* Let a minibatch's features be those that were kept; a row whose weight is 0 may not exist, the first stands for it. */
static void recall(const kept *k, const net *n, space *m, const int64_t *index, const float *weight, long B) {
    for (long i = 0, j = 0; i < (B + ROWS - 1) / ROWS * ROWS; i++) {
        if (i < B) j = weight[i] != 0 ? index[i] : 0;
        m->x[k->low][i] = k->rows + j * WIDE(n->width[k->low]);
    }
}
