/* A pass of a minibatch through a network, forward and backward, for native.c and couple.c.

   Names: x inputs of a layer, z its outputs, d derivatives of the loss in z, g gradient of the loss in a
   parameter. A bias is a matrix of one row. */
#pragma once
#include "derivatives.h"
#include "extra.h"

typedef struct {
    int kind;                             /* PLAIN, ... */
    float lr, decay, momentum, lam, ubar; /* the proximal term's gradient is lam (ubar w - cbar) */
    float rate, root;                     /* bias corrections of Adam's current step */
    const float **pace;                   /* [L] a factor for each client's gradients, or null */
    const extra *extra;                   /* what the loss has beside the model's own, or null */
    int adds;                             /* of GRADIENT: it is added to what is there */
} rule;

/* Add the gradients of weight decay and of the proximal term, in n parameters. */
static void add_penalties(const rule *h, const float *restrict w, const float *restrict cbar,
                          float *restrict g, long n) {
    float shrink = h->decay + h->lam * h->ubar;
    if (shrink != 0)
        for (long i = 0; i < n; i++) g[i] += shrink * w[i];
    if (cbar)
        for (long i = 0; i < n; i++) g[i] -= h->lam * cbar[i];
}

/* What weight decay and the proximal term leave of a parameter in a plain step. */
static float left_of_one(const rule *h) { return 1 - h->lr * (h->decay + h->lam * h->ubar); }

/* Take a plain step by the gradients of weight decay and of the proximal term, in n parameters: one pass over them
   less than by way of g. */
static void shrink(const rule *h, float *restrict w, const float *restrict cbar, long n) {
    float keep = left_of_one(h), pull = h->lr * h->lam;
    if (cbar)
        for (long i = 0; i < n; i++) w[i] = keep * w[i] + pull * cbar[i];
    else if (keep != 1)
        for (long i = 0; i < n; i++) w[i] *= keep;
}

/* A step of Adam in n parameters by g and the gradients of penalties; `near`: there is a proximal term. */
INLINE void adam(const rule *h, const int near, float *restrict w, const float *restrict cbar, float *restrict m,
                 float *restrict v, const float *restrict g, long n) {
    const float shrink = h->decay + h->lam * h->ubar;
    for (long i = 0; i < n; i++) {
        float d = g[i] + shrink * w[i];
        if (near) d -= h->lam * cbar[i];
        m[i] = 0.9f * m[i] + 0.1f * d;
        v[i] = 0.999f * v[i] + 0.001f * d * d;
        w[i] -= h->rate * m[i] / (sqrtf(v[i] * h->root) + 1e-8f);
    }
}

/* A step of the optimiser in n parameters, by the gradient g and those of penalties. */
static void update(const rule *h, float *restrict w, const float *restrict cbar, float *restrict m, float *restrict v,
                   float *restrict g, long n) {
    if (h->kind == ADAM) {
        if (cbar) adam(h, 1, w, cbar, m, v, g, n);
        else adam(h, 0, w, 0, m, v, g, n);
        return;
    }
    add_penalties(h, w, cbar, g, n);
    if (h->kind == MOMENTUM)
        for (long i = 0; i < n; i++) g[i] = m[i] = h->momentum * m[i] + g[i];
    for (long i = 0; i < n; i++) w[i] -= h->lr * g[i];
}

/* One step of the weights m in [0, 1] of n parameters w = c + m v, entry by entry; g is the gradient in w. n is whole
   registers: compilers branch at each entry here, unless they are told how not to. */
static void blend(const rule *h, float *w, const float *c, float *m, const float *v, const float *g, long n) {
    for (long i = 0; i < n; i += V) {
        vec way = *(const vec *)(v + i), to = *(vec *)(m + i) - h->lr * *(const vec *)(g + i) * way;
        to = pick(to < 0, every(0), to); /* keeps NaN, as the next does */
        *(vec *)(m + i) = to = pick(to > 1, every(1), to);
        way *= to;
        HELD(way); /* rounded before it is added: results stay what they were */
        *(vec *)(w + i) = *(const vec *)(c + i) + way;
    }
}

/* Samples of a minibatch up to the last of a weight; 0 if there is none. What pads it need not be computed. */
static long filled(const float *weight, long B) {
    while (B && weight[B - 1] == 0) B--;
    return B;
}

/* Features of one image for row i of a minibatch, through all convolutions. */
static void convolve(const net *n, space *m, const float *image, long i) {
    for (long l = 0; l < n->N; l++) {
        conv *c = &n->conv[l], *next = c + 1;
        float *x = c->x + i * c->room;
        for (long k = 0; !l && k < c->s.in; k++)
            for (long y = 0; y < c->s.high; y++)
                memcpy(x + k * c->plane + (y + c->s.pad) * c->pitch + c->s.pad,
                       image + (k * c->s.high + y) * c->s.wide, sizeof(float) * c->s.wide);
        correlate(n->at[2 * l], WIDE(c->taps), x, c->off, c->taps, n->at[2 * l + 1], c->z, c->span, c->s.out,
                  c->span);
        int32_t *at = c->at + i * c->s.out * c->spots;
        if (l + 1 == n->N) pool(c, at, m->z[0] + i * WIDE(n->width[0]), c->spots, c->across);
        else pool(c, at, next->x + i * next->room + next->s.pad * (next->pitch + 1), next->plane, next->pitch);
    }
}

/* The rows `index` of a client's inputs, in place or padded to whole registers. A row whose weight is 0 may
   not exist; the first row stands for it. */
static void inputs(const net *n, space *m, const float *x, const int64_t *index, const float *weight,
                   long B) {
    long ins = n->width[0], wide = WIDE(ins), Bp = (B + ROWS - 1) / ROWS * ROWS;
    for (long i = 0; n->N && i < B; i++) convolve(n, m, x + (weight[i] != 0 ? index[i] : 0) * size_of(n), i);
    if (n->N) return;
    for (long i = 0; i < Bp; i++) {
        long j = i < B ? i : B - 1;
        const float *row = x + (weight[j] != 0 ? index[j] : 0) * ins;
        m->x[0][i] = row;
        if (ins == wide) continue;
        memcpy(m->z[0] + i * wide, row, sizeof(float) * ins);
        m->x[0][i] = m->z[0] + i * wide;
    }
}

/* Go through the dense layers from `first` up to `last`, which is left out. */
static void outputs(const net *n, space *m, long B, long first, long last) {
    for (long l = first; l < last; l++) {
        float *w = n->at[2 * (n->N + l)], *b = n->at[2 * (n->N + l) + 1];
        long zw = WIDE(n->width[l + 1]), count = l + 1 < n->L ? B * zw : 0;
        float *z = m->z[l + 1];
        forward(w, b, m->x[l], z, B, n->width[l + 1], WIDE(n->width[l]), zw);
        for (long i = 0; i < count; i++) z[i] = z[i] < 0 ? 0 : z[i]; /* no branches; keeps NaN */
    }
}

/* Take the step of one parameter matrix, whose gradient is sum_i d_i x_i^T. */
static void step(const net *n, space *m, const rule *h, long p, float *w, const float *d, long lead,
                 const float **x, const float **next, long B) {
    long outs = outs_of(n, p), wide = WIDE(ins_of(n, p)), P = n->P;
    float *c = n->own[CBAR * P + p];
    float *u = n->own[FIRST * P + p], *v = n->own[SECOND * P + p];
    if (h->kind == PROXIMAL && c) {
        moves how = {.c = c, .keep = left_of_one(h), .pull = h->lr * h->lam};
        mix_in_pulled(d, lead, x, next, w, B, outs, wide, m->turned, &how);
        return;
    }
    if (h->kind <= PROXIMAL) {
        if (h->kind == PROXIMAL) shrink(h, w, 0, outs * wide); /* by weight decay alone */
        mix_in(d, lead, x, next, w, B, outs, wide, m->turned);
        return;
    }
    if (h->kind == GRADIENT) {
        if (h->adds) mix_in(d, lead, x, next, u, B, outs, wide, m->turned);
        else mix(d, lead, x, next, u, B, outs, wide, m->turned);
        if (!h->adds) add_penalties(h, w, c, u, outs * wide);
        return;
    }
    if (h->kind == MOMENTUM && !c) {
        moves how = {u, h->momentum, h->decay + h->lam * h->ubar, h->lr};
        mix_and_move(d, lead, x, next, w, B, outs, wide, m->turned, &how);
        return;
    }
    for (long r = 0; r < outs; r += OUTS) {
        long count = outs - r < OUTS ? outs - r : OUTS, at = r * wide;
        mix(d + r, lead, x, r ? 0 : next, m->g, B, count, wide, 0);
        if (h->kind == BLEND) {
            blend(h, w + at, c + at, u + at, v + at, m->g, count * wide);
            continue;
        }
        update(h, w + at, c ? c + at : c, u ? u + at : u, v ? v + at : v, m->g, count * wide);
    }
}

/* Take the steps of a convolution whose gradients for the batch are there. */
static void settle(const net *n, space *m, const rule *h, long l, long client) {
    conv *c = &n->conv[l];
    float pace = h->pace[l] ? h->pace[l][client] : 1;
    for (long p = 2 * l; p < 2 * l + 2; p++) {
        long wide = WIDE(ins_of(n, p)), count = outs_of(n, p) * wide, P = n->P;
        float *w = n->own[p], *b = n->own[CBAR * P + p], *u = n->own[FIRST * P + p], *v = n->own[SECOND * P + p];
        float *g = h->kind == GRADIENT ? u : m->g;
        if (!trained(n, p)) continue;
        for (long r = 0; r < outs_of(n, p); r++)
            for (long k = 0; k < wide; k++)
                g[r * wide + k] = k >= ins_of(n, p) ? 0 : p % 2 ? c->bias[k] : add_up(c->sums[r * c->taps + k]);
        for (long k = 0; pace != 1 && k < count; k++) g[k] *= pace;
        for (int t = 0; t < GOALS && h->kind == PLAIN; t++)
            for (long k = 0; n->goal[t] && k < count; k++) n->goal[t][p][k] += n->share[t] * g[k];
        if (h->kind == PLAIN) continue;
        if (h->kind == PROXIMAL) {
            shrink(h, w, b, count);
            for (long k = 0; k < count; k++) w[k] += g[k];
            continue;
        }
        if (h->kind == BLEND) {
            blend(h, w, b, u, v, g, count);
            continue;
        }
        if (h->kind == GRADIENT) add_penalties(h, w, b, g, count);
        else update(h, w, b, u, v, g, count);
    }
    memset(c->sums, 0, c->s.out * c->taps * sizeof(vec));
    memset(c->bias, 0, sizeof(float) * c->s.out);
}

/* Go from the features down to the lowest trained convolution, image by image. */
static void down(const net *n, space *m, const rule *h, long lowest, long B, long client) {
    for (long l = lowest; l < n->N; l++) turn(&n->conv[l], n->at[2 * l], WIDE(n->conv[l].taps));
    for (long i = 0; i < B; i++) {
        const float *from = m->d[0] + i * WIDE(n->width[0]);
        long hop = n->conv[n->N - 1].spots, pitch = n->conv[n->N - 1].across;
        for (long l = n->N - 1; l >= lowest; l--) {
            conv *c = &n->conv[l];
            const int32_t *at = c->at + i * c->s.out * c->spots;
            unpool(c, at, c->x + i * c->room, from, hop, pitch, l > lowest);
            from = c->dx + c->s.pad * (c->pitch + 1);
            hop = c->gap;
            pitch = c->pitch;
        }
    }
    for (long l = lowest; l < n->N; l++) settle(n, m, h, l, client);
}

/* Take plain steps in both goals by one gradient, sum_i d_i x_i^T. */
static void share_out(const net *n, space *m, long p, const float *d, long lead, const float **x, const float **next,
                      long B) {
    long outs = outs_of(n, p), wide = WIDE(ins_of(n, p));
    for (long r = 0; r < outs; r += OUTS) {
        long count = outs - r < OUTS ? outs - r : OUTS;
        mix(d + r, lead, x, r ? 0 : next, m->g, B, count, wide, 0);
        for (int t = 0; t < GOALS; t++) {
            float *restrict w = n->goal[t][p] + r * wide;
            for (long i = 0; i < count * wide; i++) w[i] += n->share[t] * m->g[i];
        }
    }
}

/* Take the step of the bias p. */
static void step_bias(const net *n, space *m, const rule *h, long p, float *w, float *d, long B) {
    for (long i = 0; i < B; i++) m->list[i] = d + i * WIDE(outs_of(n, p - 1));
    step(n, m, h, p, w, m->ones, 1, m->list, 0, B);
}

/* Take the second head's step, and add what is to be added to the first head's outputs; 2 if a label is no class. */
static int second_head(const net *n, space *m, const rule *h, int task, const void *y, long B) {
    const extra *e = h->extra;
    long L = n->L, K = n->width[L], zw = WIDE(K), p = n->P - 2;
    float *z = m->z[L], *w = n->own[p], *b = n->own[p + 1];
    forward(w, b, m->x[L - 1], m->sum, B, K, WIDE(n->width[L - 1]), zw);
    for (long i = 0; i < B * zw; i++) m->sum[i] += z[i];
    for (long i = 0; i < B * K; i++) z[i / K * zw + i % K] += e->a[i % K];
    if (derivatives(task, m->sum, y, e->rows, e->share, 0, e->scale, B, K, zw)) return 2;
    step(n, m, h, p, w, m->sum, zw, m->x[L - 1], 0, B);
    if (b) step_bias(n, m, h, p + 1, b, m->sum, B);
    return 0;
}

/* Take the steps of dense layer l, in each goal its share; d is overwritten. */
static void steps(const net *n, space *m, const rule *h, long l, float *d, long B) {
    long zw = WIDE(n->width[l + 1]), p = 2 * (n->N + l);
    int both = n->goal[1] && n->share[0] != 0 && n->share[1] != 0;
    const float **next = l || n->N ? 0 : m->next;
    if (both && trained(n, p)) share_out(n, m, p, d, zw, m->x[l], next, B);
    float now = 1;
    for (int t = 0; t < GOALS; t++) {
        if (!n->goal[t] || n->share[t] == 0) continue;
        float factor = n->share[t] / now;
        for (long i = 0; i < B * zw; i++) d[i] *= factor;
        now = n->share[t];
        if (!both && trained(n, p)) step(n, m, h, p, n->goal[t][p], d, zw, m->x[l], next, B);
        if (trained(n, p + 1)) step_bias(n, m, h, p + 1, n->goal[t][p + 1], d, B);
    }
}

/* Go from the head down to the lowest trained layer, for client c. */
static void backward(const net *n, space *m, const rule *h, long lowest, long B, long c) {
    for (long l = n->L - 1; l >= 0 && n->N + l >= lowest; l--) {
        long K = n->width[l + 1], zw = WIDE(K), ins = WIDE(n->width[l]), p = 2 * (n->N + l);
        float *d = m->d[l + 1];
        if (n->N + l > lowest) {
            const float **w = m->list;
            for (long k = 0; k < K; k++)
                for (long i = 0; i < B; i++) m->turned[k * WIDE(B) + i] = d[i * zw + k];
            for (long k = 0; k < K; k++) w[k] = n->at[p] + k * ins;
            mix(m->turned, WIDE(B), w, 0, m->d[l], K, B, ins, 0);
            if (h->extra && h->extra->kind != TWO_HEADS && l + 1 == n->L) on_features(n, m, h->extra, B);
            for (long i = 0; i < B * ins; i++)
                if (!(m->z[l][i] > 0)) m->d[l][i] = 0;
        }
        const float *pace = h->pace[n->N + l];
        if (pace)
            for (long i = 0; i < B * zw; i++) d[i] *= pace[c];
        steps(n, m, h, l, d, B);
    }
    if (lowest < n->N) down(n, m, h, lowest, B, c);
}
