/* The layers of a network, a client's parameters and the memory of a call, for steps.c. */
#pragma once
#include "convolve.h"
#include "products.h"

typedef struct {
    long L, P;          /* dense layers, parameters of all: weight and bias of each layer in turn; of two heads, too */
    const long *width;  /* [L + 1] of inputs and of each dense layer's outputs */
    long N;             /* convolutions, whose parameters are first */
    conv *conv;         /* [N] */
    long K;             /* vectors: the first are the weights */
    const float **from; /* [K][P] where a client's parameters come from, null if absent */
    const long *hop;    /* [K][P] floats from one client's to the next; 0: all share them */
    float **to;         /* [K][P] where they go, null if absent */
    const int *trained; /* [P] whether there is a gradient */
    const int *kind;    /* [K] GIVEN, ROOM or WRITTEN: what becomes of a vector */
    float **own;        /* [K][P] the padded copies, null if there is no room */
    float **at;         /* [P] those that outputs are taken with */
} net;

enum { GIVEN, ROOM, WRITTEN }; /* read alone; has room of its own; it also changes after it was copied */

static long channels(const net *n, long l) { return l < n->N ? n->conv[l].s.out : n->width[l - n->N + 1]; }
static long layer_of(const net *n, long p) { return p / 2 < n->N + n->L ? p / 2 : n->N + n->L - 1; } /* both heads' */
static long outs_of(const net *n, long p) { return p % 2 ? 1 : channels(n, layer_of(n, p)); }
static long ins_of(const net *n, long p) {
    long l = layer_of(n, p);
    return p % 2 ? channels(n, l) : l < n->N ? n->conv[l].taps : n->width[l - n->N];
}
static int has_room(const net *n, long k, long p) {
    return n->from[k * n->P + p] || n->to[k * n->P + p] || (n->kind[k] != GIVEN && n->trained[p]);
}

/* Copy client c's parameters to the padded rows, what all share and nothing changes only for the first client;
   or back to where they go. What needs no padding is worked on where it goes, or read where it comes from. */
static void copy(const net *n, long c, int back) {
    for (long at = 0; at < n->K * n->P; at++) {
        long p = at % n->P, ins = ins_of(n, p), outs = outs_of(n, p), wide = WIDE(ins);
        int changed = n->kind[at / n->P] == WRITTEN && n->trained[p], whole = ins == wide;
        const float *from = n->from[at] ? n->from[at] + c * n->hop[at] : 0;
        float *to = n->to[at] ? n->to[at] + c * outs * ins : 0;
        if (whole && !back && to) n->own[at] = to;
        if (whole && !back && from && !changed) n->own[at] = (float *)from;
        if (back ? !to : !from || (c && !n->hop[at] && !changed)) continue;
        if (n->own[at] == (back ? to : from)) continue;
        for (long r = 0; r < (whole ? 1 : outs); r++) {
            long count = whole ? outs * ins : ins;
            float *own = n->own[at] + r * wide;
            memcpy(back ? to + r * ins : own, back ? own : from + r * ins, sizeof(float) * count);
            if (!back && !whole) memset(own + ins, 0, sizeof(float) * (wide - ins)); /* 0 NaN of the client before */
        }
    }
}

/* Floats of a sample. */
static long size_of(const net *n) {
    const shape *s = n->N ? &n->conv[0].s : 0;
    return s ? s->in * s->high * s->wide : n->width[0];
}

/* The memory of a call, zeros at first: padded parameters, outputs and derivatives of layers. */
typedef struct {
    float *all, *ones, *sum, *g; /* sum: outputs of two heads together */
    float *turned;        /* derivatives, turned or packed for a product */
    float **z, **d;       /* [L + 1] outputs and derivatives; z[0] holds inputs that had to be padded */
    const float ***x;     /* [L + 1] rows of z */
    const float **next, **list; /* rows to fetch; a list of rows for whoever needs one */
    long out;             /* floats of the last layer's outputs */
} space;

static float *take(float **from, long n) {
    float *p = *from;
    *from += WIDE(n);
    return p;
}

/* For minibatches of B rows; `shapes` [N] of the convolutions. 1 without memory. */
static int reserve(net *n, space *m, const shape *shapes, long B) {
    long L = n->L, P = n->P, Bp = (B + ROWS - 1) / ROWS * ROWS, most = 0, total = 0;
    if (!(n->conv = calloc(n->N + 1, sizeof(conv)))) return 1;
    for (long l = 0; l < n->N; l++) {
        measure(&n->conv[l], shapes + l);
        if (prepare(&n->conv[l], B)) return 1;
    }
    for (long l = 0; l <= L; l++) {
        long wide = WIDE(n->width[l]);
        if (wide > most) most = wide;
        total += 2 * Bp * wide;
    }
    for (long l = 0; l < n->N; l++) total += n->conv[l].s.out * WIDE(n->conv[l].taps); /* room in g */
    for (long p = 0; p < P; p++)
        for (long k = 0; k < n->K; k++)
            if (has_room(n, k, p)) total += outs_of(n, p) * WIDE(ins_of(n, p));
    total += Bp * WIDE(n->width[L]) + 2 * WIDE(B) + most * WIDE(Bp) + OUTS * most + V;
    m->all = calloc(total, sizeof(float));
    n->own = calloc(n->K * P, sizeof(float *));
    m->z = calloc(2 * (L + 1), sizeof(float *));
    m->x = calloc(L + 1, sizeof(float **));
    const float **lists = calloc((L + 3) * Bp + most, sizeof(float *));
    if (!m->all || !n->own || !m->z || !m->x || !lists) {
        free(lists);
        return 1;
    }
    float *at = (float *)(((uintptr_t)m->all + 4 * V - 1) / (4 * V) * (4 * V));
    m->d = m->z + L + 1;
    m->next = lists + (L + 1) * Bp;
    m->list = m->next + Bp; /* room for as many as there are rows or outputs */
    for (long l = 0; l <= L; l++) {
        long wide = WIDE(n->width[l]);
        m->z[l] = take(&at, Bp * wide);
        m->d[l] = l == L ? m->z[l] : take(&at, Bp * wide);
        m->x[l] = lists + l * Bp;
        for (long i = 0; i < Bp; i++) m->x[l][i] = m->z[l] + i * wide;
    }
    for (long p = 0; p < P; p++)
        for (long k = 0; k < n->K; k++)
            if (has_room(n, k, p)) n->own[k * P + p] = take(&at, outs_of(n, p) * WIDE(ins_of(n, p)));
    m->sum = take(&at, Bp * WIDE(n->width[L]));
    m->ones = take(&at, B);
    for (long i = 0; i < B; i++) m->ones[i] = 1;
    m->turned = take(&at, most * WIDE(Bp));
    n->at = n->own;
    m->out = Bp * WIDE(n->width[L]);
    m->g = at; /* of what is left: OUTS * most, or a convolution's gradient */
    return 0;
}

/* Begin with client c. Padding is no number after a step that diverged, and belongs to the client of that step. */
static void clean(const net *n, const space *m) {
    memset(m->z[n->L], 0, sizeof(float) * m->out);
    memset(m->sum, 0, sizeof(float) * m->out);
}
static void begin(const net *n, const space *m, long c) {
    copy(n, c, 0);
    clean(n, m);
}

static void release(net *n, space *m) {
    for (long l = 0; n->conv && l < n->N; l++) discard(&n->conv[l]);
    free(n->conv);
    if (m->x) free(m->x[0]);
    free(m->all);
    free(n->own);
    free(m->z);
    free(m->x);
}

