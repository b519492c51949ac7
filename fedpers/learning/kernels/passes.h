/* A pass of a minibatch through a network, forward and backward, for steps.c.

   Names: x inputs of a layer, z its outputs, d derivatives of the loss in z, g gradient of the loss in a
   parameter. A bias is a matrix of one row. */
#pragma once
#include "derivatives.h"
#include "extra.h"

enum { TERMS = 12, CHUNK = 1024 };
enum { GRAD, MIX, MUL, CLIP, CLIPNORM, ADAM };

/* An instruction of a step on vectors of parameters, as in step.py; its coefficients are plus + times * lr, times a
   client's own number if it names one. */
typedef struct {
    int op, dst, n, src[TERMS], number[TERMS];
    float plus[TERMS], times[TERMS];
    int other, beside, adds; /* of GRAD: on the other samples; the outputs of this vector are added, -1 without; c[0]
                                times it to what is there */
    float c[TERMS];                 /* coefficients of the current client */
} instr;

/* A gradient, and what is done with it as soon as a block of it is there. */
typedef struct {
    int to, adds, ends;    /* the vector that it is, if this has room; to which it is added; whether it is complete then */
    long count;
    const instr *code;     /* [count] */
    const float *const *gradient_scale; /* [N + L] a factor for each client's gradients, or null */
    extra *extra;          /* what the loss has beside the model's own, or null */
    float rate, root;      /* bias corrections of Adam's current step */
} rule;

/* y = sum_k c_k x_k of T terms, of n floats: whole registers */
INLINE void sum_of(const int T, const float *c, float *const *x, float *y, long n) {
    const float *from[T];
    vec f[T];
    for (int k = 0; k < T; k++) f[k] = every(c[k]), from[k] = x[k];
    for (long i = 0; i < n; i += V) {
        vec t = f[0] * *(const vec *)(from[0] + i);
        for (int k = 1; k < T; k++) t += f[k] * *(const vec *)(from[k] + i);
        *(vec *)(y + i) = t;
    }
}

/* A step of Adam: w by moments m, v, which it moves by g first; c holds lr, both betas and epsilon. */
INLINE void adam(const rule *h, const float *c, float *restrict w, float *restrict m, float *restrict v,
                 const float *restrict g, long n) {
    const float a = c[1], b = c[2], rate = c[0] * h->rate, root = h->root, least = c[3];
    for (long i = 0; i < n; i++) {
        m[i] = a * m[i] + (1 - a) * g[i];
        v[i] = b * v[i] + (1 - b) * g[i] * g[i];
        w[i] -= rate * m[i] / (sqrtf(v[i] * root) + least);
    }
}

/* One instruction on n floats, whole registers: y = dst, x the sources. */
static void obey(const rule *h, const instr *o, const float *c, float *y, float *const *x, long n) {
    if (o->op == MIX && o->n == 1 && c[0] == 1) memmove(y, x[0], sizeof(float) * n);
    else if (o->op == MIX) switch (o->n) {
#define SUM_OF(T) case T: sum_of(T, c, x, y, n); break;
        SUM_OF(1) SUM_OF(2) SUM_OF(3) SUM_OF(4) SUM_OF(5) SUM_OF(6) SUM_OF(7) SUM_OF(8) SUM_OF(9) SUM_OF(10) SUM_OF(11) SUM_OF(12)
    }
    for (long i = 0; i < n && (o->op == MUL || o->op == CLIP); i += V) { /* comparisons keep NaN */
        vec t = *(vec *)(y + i);
        if (o->op == MUL) {
            vec way = c[0] * *(const vec *)(x[1] + i) * *(const vec *)(x[2] + i);
            HELD(way); /* rounded before it is added */
            t = *(const vec *)(x[0] + i) + way;
        } else {
            t = pick(t < c[0], every(c[0]), t);
            t = pick(t > c[1], every(c[1]), t);
        }
        *(vec *)(y + i) = t;
    }
    if (o->op == ADAM) adam(h, c, y, x[0], x[1], x[2], n);
}

/* What is done with parameter p from `at` on, n floats, where the gradient is `by` times g; all of it with as many floats
   as stay in the L1 cache, before the next. */
static void follow(const net *n, const rule *h, long p, long at, long size, float *g, float by) {
    for (long from = 0; from < size; from += CHUNK)
        for (const instr *o = h->code; o < h->code + h->count; o++) {
            float *x[TERMS], *y = o->dst == h->to ? g : n->own[o->dst * n->P + p] + at, c[TERMS];
            for (int k = 0; k < TERMS; k++) c[k] = by != 1 && k < o->n && o->src[k] == h->to ? by * o->c[k] : o->c[k];
            for (int k = 0; k < o->n; k++) x[k] = (o->src[k] == h->to ? g : n->own[o->src[k] * n->P + p] + at) + from;
            obey(h, o, c, y + from, x, size - from < CHUNK ? size - from : CHUNK);
        }
}

/* Whether the gradient is only ever added to something: a multiple of its row can stand for it. */
static int linear(const rule *h) {
    for (const instr *o = h->code; o < h->code + h->count; o++)
        if (o->op != MIX || o->dst == h->to) return 0;
    return 1;
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

/* The gradient of one parameter matrix, sum_i d_i x_i^T, and what follows from it, block by block. */
static void step(const net *n, space *m, const rule *h, long p, const float *d, long lead, const float **x,
                 const float **next, long B) {
    long outs = outs_of(n, p), wide = WIDE(ins_of(n, p)), block = B > 2 ? OUTS : 1; /* few samples take longer to read */
    float *to = n->own[h->to * n->P + p];
    if (B == 1 && !to && linear(h)) {
        for (long j = 0; next && j < wide; j += LINE) __builtin_prefetch(next[0] + j, 0, 2);
        for (long r = 0; r < outs; r++) follow(n, h, p, r * wide, wide, (float *)x[0], d[r]);
        return;
    }
    if (h->adds || (to && !h->count)) {
        if (h->adds) mix_in(d, lead, x, next, to, B, outs, wide, m->turned);
        else mix(d, lead, x, next, to, B, outs, wide, m->turned);
        if (h->ends) follow(n, h, p, 0, outs * wide, to, 1);
        return;
    }
    for (long r = 0; r < outs; r += block) {
        long count = outs - r < block ? outs - r : block;
        float *g = to ? to + r * wide : m->g;
        mix(d + r, lead, x, r ? 0 : next, g, B, count, wide, 0);
        if (h->ends) follow(n, h, p, r * wide, count * wide, g, 1);
    }
}

/* The same of a convolution whose gradients for the batch are there. */
static void step_conv(const net *n, space *m, const rule *h, long l, long client) {
    conv *c = &n->conv[l];
    float gradient_scale = h->gradient_scale && h->gradient_scale[l] ? h->gradient_scale[l][client] : 1;
    for (long p = 2 * l; p < 2 * l + 2; p++) {
        long wide = WIDE(ins_of(n, p)), outs = outs_of(n, p);
        float *to = n->own[h->to * n->P + p], *g = to ? to : m->g;
        if (!n->trained[p]) continue;
        for (long r = 0; r < outs; r++)
            for (long k = 0; k < wide; k++) {
                float one = k >= ins_of(n, p) ? 0 : p % 2 ? c->bias[k] : add_up(c->sums[r * c->taps + k]);
                g[r * wide + k] = (h->adds ? g[r * wide + k] : 0) + (gradient_scale == 1 ? one : one * gradient_scale);
            }
        if (h->ends) follow(n, h, p, 0, outs * wide, g, 1);
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
    for (long l = lowest; l < n->N; l++) step_conv(n, m, h, l, client);
}

/* The same of the bias p. */
static void step_bias(const net *n, space *m, const rule *h, long p, float *d, long B) {
    for (long i = 0; i < B; i++) m->list[i] = d + i * WIDE(outs_of(n, p - 1));
    step(n, m, h, p, m->ones, 1, m->list, 0, B);
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
    step(n, m, h, p, m->sum, zw, m->x[L - 1], 0, B);
    if (b) step_bias(n, m, h, p + 1, m->sum, B);
    return 0;
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
        const float *gradient_scale = h->gradient_scale ? h->gradient_scale[n->N + l] : 0;
        if (gradient_scale)
            for (long i = 0; i < B * zw; i++) d[i] *= gradient_scale[c];
        if (n->trained[p]) step(n, m, h, p, d, zw, m->x[l], l || n->N ? 0 : m->next, B);
        if (n->trained[p + 1]) step_bias(n, m, h, p + 1, d, B);
    }
    if (lowest < n->N) down(n, m, h, lowest, B, c);
}
