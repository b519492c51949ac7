/* Steps of many clients' networks (dense layers, ReLU between them, small convolutions below), each a few instructions
   on vectors of parameters, in one call.

   A client's parameters are copied to rows padded with zeros to whole registers, stay in the cache for all
   of its minibatches, and are written out at the end. Clients share nothing that is written, so neither
   their order nor their number changes a bit. A bias is a matrix of one row. Names: x inputs of a layer,
   z its outputs, d derivatives of the loss in z, g gradient of the loss in a parameter. */
#include "features.h"

typedef struct {
    long C, lowest, stays, most; /* clients; lowest layer of a gradient; layers below that no step changes; rows at a time */
    int task;
    const instr *first, *last; /* gradients of a step */
    const float **x;        /* [C] samples */
    const void **y;
    const float *each;      /* null, or a factor for each row of a client's samples, the next `hop_each` further on */
    long hop_each;
    batches of[2];          /* the step's samples, and the others, of the same weights */
    const void *held[2];    /* rows and weights whose inputs, and outputs of layers that stay, are there */
    kept features;
} work;

/* Coefficients of client c. */
static void reckon(instr *code, long count, float lr, const float *const *numbers, const long *hop, long c) {
    for (instr *o = code; o < code + count; o++)
        for (int k = 0; k < TERMS; k++) {
            long own = o->number[k];
            o->c[k] = (o->plus[k] + o->times[k] * lr) * (own < 0 ? 1 : numbers[own][c * hop[own]]);
        }
}

/* Outputs of rows that are read, at the parameters `at`; those of vector `beside` are added, if it is not -1. */
static void predict(net *n, space *m, float **at, long beside, long count, long first) {
    long L = n->L, size = count * WIDE(n->width[L]);
    if (beside >= 0) {
        n->at = n->own + beside * n->P;
        outputs(n, m, count, first, L);
        memcpy(m->sum, m->z[L], sizeof(float) * size);
    }
    n->at = at;
    outputs(n, m, count, first, L);
    for (long i = 0; beside >= 0 && i < size; i++) m->z[L][i] += m->sum[i];
}

/* The gradient o of client c in step s, and what follows from it; 2 if a label is no class. */
static int gradient(net *n, space *m, const instr *o, rule *h, work *k, long c, long s, float total) {
    const batches *b = k->of + o->other;
    const int64_t *rows = rows_of(b, c, s);
    const float *share = shares_of(b, c, s), *each = k->each ? k->each + c * k->hop_each : 0;
    long count = total > 0 ? filled(share, b->B) : b->B, L = n->L, outs = n->width[L];
    long parts = count > k->most ? (count + k->most - 1) / k->most : 1, piece = (count + parts - 1) / parts;
    int last = s + 1 == b->S, cached = k->features.rows && !o->other, failed = 0;
    int there = !cached && parts == 1 && k->held[0] == rows && k->held[1] == share && k->stays >= n->N;
    long first = cached ? k->features.low : there ? k->stays - n->N : 0;
    const int64_t *after = rows_of(k->of + k->first->other, c + last, last ? 0 : s + 1); /* the next step's */
    float scale = (o->adds ? o->c[0] : 1) / total, *at[n->P];
    for (long p = 0; p < n->P; p++) at[p] = n->own[o->src[0] * n->P + p] ? n->own[o->src[0] * n->P + p] : n->own[p];
    n->at = at;
    if (h->extra) h->extra->rows = rows, h->extra->share = share, h->extra->scale = scale;
    for (long q = 0; q < parts && !failed; q++) {
        long from = q * piece, now = count - from < piece ? count - from : piece;
        int end = q + 1 == parts, fetch = o == k->last && !(end && last && c + 1 == k->C);
        if (cached) recall(&k->features, n, m, rows, share, count);
        else if (!there)
            inputs(n, m, k->x[c], rows + from, share + from, now), k->held[0] = rows, k->held[1] = share;
        for (long i = 0; i < now; i++) /* what comes next */
            m->next[i] = fetch ? k->x[c + (end && last)] + (end ? after : rows + from + now)[i] * size_of(n) : m->x[0][i];
        predict(n, m, at, o->beside, now, first);
        h->to = o->dst;
        h->adds = o->adds || from;
        h->ends = end;
        if (h->extra && h->extra->kind == TWO_HEADS && (failed = second_head(n, m, h, k->task, k->y[c], now))) break;
        failed = derivatives(k->task, m->z[L], k->y[c], rows + from, share + from, each, scale, now, outs, WIDE(outs));
        if (!failed) backward(n, m, h, k->lowest, now, c);
    }
    n->at = n->own;
    return failed;
}

/* Scale vector o->dst down to norm c[0], if it is longer. */
static void clip_norm(const net *n, const instr *o) {
    double total = 0;
    float **v = n->own + o->dst * n->P;
    for (long p = 0; p < n->P; p++)
        for (long r = 0; n->trained[p] && r < outs_of(n, p); r++) {
            const float *row = v[p] + r * WIDE(ins_of(n, p));
            total += inner(row, row, ins_of(n, p));
        }
    float factor = o->c[0] / (float)(sqrt(total) + 1e-6);
    for (long p = 0; p < n->P && factor < 1; p++)
        for (long i = 0; n->trained[p] && i < outs_of(n, p) * WIDE(ins_of(n, p)); i++) v[p][i] *= factor;
}

/* Step s of client c. What comes behind a gradient is done block by block, up to the next one or to a norm. */
static int take_step(net *n, space *m, const instr *code, long count, rule *h, work *k, long c, long s, float total) {
    int failed = 0;
    for (long i = 0, next; i < count && !failed; i = next) {
        for (next = i + 1; next < count && code[next].op != GRAD && code[next].op != CLIPNORM; next++) {}
        int first = code[i].op == GRAD || code[i].op == CLIPNORM;
        h->code = code + i + first;
        h->count = next - i - first;
        if (code[i].op == GRAD) {
            failed = gradient(n, m, code + i, h, k, c, s, total);
            continue;
        }
        if (first) clip_norm(n, code + i);
        h->to = -1;
        for (long p = 0; p < n->P; p++)
            if (n->trained[p]) follow(n, h, p, 0, outs_of(n, p) * WIDE(ins_of(n, p)), 0, 1);
    }
    return failed;
}

/* Let C clients with samples x, y take S steps on minibatches index, weight [C, S, B] of strides ih, wh; a step
   whose weights are all 0 changes nothing, unless `always`. N convolutions of `shapes` come first, then L dense layers.
   There are K vectors of parameters, of `kind` [K], and gradients of the parameters `trained` [2 (N + L)], two more with
   a second head. `code` [count] says what a step is, whose last `ahead` lines are also made before the first one, `lr`
   its rate; `then` lines behind them are the last step instead, in which all that its gradient has room for is trained;
   `numbers` what a client has of its own, the next client's `number_hop` further on. `others` is null or has
   the rows of other samples, of strides oh. `done` [C] the steps so far, null if nobody counts them; `gradient_scale` [N + L] of
   [C] or null: factors of the loss's gradients; `each` null or a factor for each row of a client's samples, those of the
   next client `hop_each` further on; `more` (a kind, or NOTHING) with its weight, tau, a and b, the next client's
   `hop_a` and `hop_b` further on: see extra.h. Returns 0, 1 without memory, 2 for a label that is no class. */
int fedpers_steps(long N, const shape *shapes, long L, const long *width, long K, const int *kind, const int *trained,
                  const float **from, const long *hop, float **to, int task, long C, long S, long B, const float **x,
                  const void **y, const int64_t *index, const long *ih, const float *weight, const long *wh,
                  instr *code, long count, long ahead, long then, float lr, const float *const *numbers, const long *number_hop,
                  const int64_t *others, const long *oh, float *done, const float *const *gradient_scale, const float *each,
                  long hop_each, int more, float weigh, float tau, const float *a, long hop_a, const float *b,
                  long hop_b, int always) {
    net n = {L, 2 * (N + L + (more == TWO_HEADS)), width, N, 0, K, from, hop, to, trained, kind};
    extra e = {more, weigh, tau, a, b};
    rule h = {.gradient_scale = gradient_scale, .extra = more ? &e : 0};
    batches all = {S, B, index, weight, ih, wh};
    work k = {C, 0, 0, B, task, 0, 0, x, y, each, hop_each, {all, {S, B, others, weight, oh, wh}}};
    space m = {0};
    const instr *adam = 0;
    int whole[n.P];
    for (long p = 0; p < n.P; p++) whole[p] = then && to[code[count].dst * n.P + p];
    while (k.stays < N + L && !trained[2 * k.stays] && !trained[2 * k.stays + 1]) k.stays++;
    for (const instr *o = code; o < code + count; o++) {
        if (o->op == GRAD && !k.first) k.first = o;
        if (o->op == GRAD) k.last = o;
        if (o->op == ADAM) adam = o;
    }
    if (k.first == k.last && k.first && !N && !more && !k.stays && !k.first->adds && kind[k.first->dst] != GIVEN)
        k.most = PIECE(WIDE(width[0]));
    int failed = reserve(&n, &m, shapes, k.most < B ? k.most : B) || reserve_features(&k.features, &n, &all, C, k.stays);
    for (long c = 0; c < C && !failed; c++) {
        begin(&n, &m, c);
        reckon(code, count + then, lr, numbers, number_hop, c);
        e.a = a + c * hop_a;
        e.b = b + c * hop_b;
        take_step(&n, &m, code + count - ahead, ahead, &h, &k, c, 0, 0);
        k.held[0] = 0;
        if (k.features.rows) keep(&k.features, &n, &m, &all, x[c], c);
        for (long s = 0; s < S && !failed; s++) {
            const float *share = shares_of(&all, c, s);
            int end = then && s + 1 == S;
            float total = 0;
            for (long i = 0; i < B; i++) total += share[i];
            if (!(total > 0) && !always && !end) continue; /* the gradient of nothing is no number */
            n.trained = end ? whole : trained;
            for (k.lowest = 0; k.lowest < N + L && !n.trained[2 * k.lowest] && !n.trained[2 * k.lowest + 1];) k.lowest++;
            if (done) done[c] += 1;
            if (done && adam) h.rate = 1 / (1 - pow(adam->c[1], done[c])), h.root = 1 / (1 - pow(adam->c[2], done[c]));
            failed = take_step(&n, &m, code + (end ? count : 0), end ? then : count, &h, &k, c, s, total);
        }
        n.trained = trained;
        copy(&n, c, 1);
    }
    release(&n, &m);
    release_features(&k.features);
    return failed;
}
