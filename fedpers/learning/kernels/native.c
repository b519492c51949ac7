/* Local training of dense networks (linear layers, ReLU between them) for many clients in one call.

   A client's parameters are copied to rows padded with zeros to whole registers, stay in the cache for all
   of its minibatches, and are written out at the end. Clients share nothing that is written, so neither
   their order nor their number changes a bit. A bias is a matrix of one row. Names: x inputs of a layer,
   z its outputs, d derivatives of the loss in z, g gradient of the loss in a parameter. */
#include "products.h"
#include "softmax.h"

enum { PLAIN, PROXIMAL, MOMENTUM, ADAM, GRADIENT }; /* GRADIENT writes it where FIRST is */
enum { WEIGHT, CBAR, FIRST, SECOND, KINDS }; /* weights, c̄ of the proximal term, moments */

typedef struct {
    int kind;                             /* PLAIN, ... */
    float lr, decay, momentum, lam, ubar; /* the proximal term's gradient is lam (ubar w - cbar) */
    float rate, root;                     /* bias corrections of Adam's current step */
    const float **pace;                   /* [L] a factor for each client's gradients, or null */
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

/* One step of the optimiser in n parameters. */
static void update(const rule *h, float *restrict w, float *restrict m, float *restrict v,
                   float *restrict g, long n) {
    if (h->kind == ADAM) {
        for (long i = 0; i < n; i++) {
            m[i] = 0.9f * m[i] + 0.1f * g[i];
            v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            w[i] -= h->rate * m[i] / (sqrtf(v[i] * h->root) + 1e-8f);
        }
        return;
    }
    if (h->kind == MOMENTUM)
        for (long i = 0; i < n; i++) g[i] = m[i] = h->momentum * m[i] + g[i];
    for (long i = 0; i < n; i++) w[i] -= h->lr * g[i];
}

/* Replace the outputs in d by scale * weight * (derivative of a sample's loss), and times what `each` has for
   the sample's row, if it is not null; 2 if a label is no class. */
static int derivatives(int task, float *d, const void *y, const int64_t *index, const float *weight,
                       const float *each, float scale, long B, long K, long wide) {
    for (long i = 0; i < B; i++, d += wide) {
        float f = scale * weight[i];
        long j = weight[i] != 0 ? index[i] : 0;
        const float *t = (const float *)y + j * K;
        if (each) f *= each[j];
        if (task == REGRESSION)
            for (long k = 0; k < K; k++) d[k] = f * (d[k] - t[k]) * 2 / K;
        if (task == BINARY) d[0] = f * (1 / (1 + expf(-d[0])) - t[0]);
        if (task != CLASSES) continue;
        int64_t label = ((const int64_t *)y)[j];
        if (label < 0 || label >= K) return 2;
        softmax(d, K, f);
        d[label] -= f;
    }
    return 0;
}

typedef struct {
    long L, P;            /* layers, parameters: weight and bias of each layer in turn */
    const long *width;    /* [L + 1] of inputs and of each layer's outputs */
    const float **from;   /* [KINDS][P] where a client's parameters come from, null if absent */
    const long *hop;      /* [KINDS][P] floats from one client's to the next; 0: all share them */
    float **to;           /* [KINDS][P] where they go, null if absent or not trained */
    float **own;          /* [KINDS][P] the padded copies */
} net;

static long outs_of(const net *n, long p) { return p % 2 ? 1 : n->width[p / 2 + 1]; }
static long ins_of(const net *n, long p) { return n->width[p / 2 + p % 2]; }
static int trained(const net *n, long p) { return n->to[p] || n->to[FIRST * n->P + p]; }

/* Copy client c's parameters to the padded rows, what all share and nothing changes only for the first client;
   or back to where they go. */
static void copy(const net *n, long c, int back) {
    for (long at = 0; at < KINDS * n->P; at++) {
        long p = at % n->P, ins = ins_of(n, p), outs = outs_of(n, p), wide = WIDE(ins);
        if (back ? !n->to[at] : !n->from[at] || (c && !n->hop[at] && !n->to[at])) continue;
        for (long r = 0; r < outs; r++) {
            float *own = n->own[at] + r * wide;
            if (back) memcpy(n->to[at] + (c * outs + r) * ins, own, sizeof(float) * ins);
            else memcpy(own, n->from[at] + c * n->hop[at] + r * ins, sizeof(float) * ins);
        }
    }
}

/* The memory of a call, zeros at first: padded parameters, outputs and derivatives of layers. */
typedef struct {
    float *all, *ones, *turned, *g;
    float **z, **d;       /* [L + 1] outputs and derivatives; z[0] holds inputs that had to be padded */
    const float ***x;     /* [L + 1] rows of z */
    const float **next, **list; /* rows to fetch; a list of rows for whoever needs one */
} space;

static float *take(float **from, long n) {
    float *p = *from;
    *from += WIDE(n);
    return p;
}

static int reserve(net *n, space *m, long B) {
    long L = n->L, P = n->P, Bp = (B + ROWS - 1) / ROWS * ROWS, most = 0, total = 0;
    for (long l = 0; l <= L; l++) {
        long wide = WIDE(n->width[l]);
        if (wide > most) most = wide;
        total += 2 * Bp * wide;
    }
    for (long p = 0; p < P; p++)
        for (int k = 0; k < KINDS; k++)
            if (n->from[k * P + p] || n->to[k * P + p]) total += outs_of(n, p) * WIDE(ins_of(n, p));
    total += 2 * WIDE(B) + most * WIDE(Bp) + OUTS * most + V;
    m->all = calloc(total, sizeof(float));
    n->own = calloc(KINDS * P, sizeof(float *));
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
        for (int k = 0; k < KINDS; k++)
            if (n->from[k * P + p] || n->to[k * P + p])
                n->own[k * P + p] = take(&at, outs_of(n, p) * WIDE(ins_of(n, p)));
    m->ones = take(&at, B);
    for (long i = 0; i < B; i++) m->ones[i] = 1;
    m->turned = take(&at, most * WIDE(Bp));
    m->g = take(&at, OUTS * most);
    return 0;
}

static void release(net *n, space *m) {
    if (m->x) free(m->x[0]);
    free(m->all);
    free(n->own);
    free(m->z);
    free(m->x);
}

/* The rows `index` of a client's inputs, in place or padded to whole registers. A row whose weight is 0 may
   not exist; the first row stands for it. */
static void inputs(const net *n, space *m, const float *x, const int64_t *index, const float *weight,
                   long B) {
    long ins = n->width[0], wide = WIDE(ins), Bp = (B + ROWS - 1) / ROWS * ROWS;
    for (long i = 0; i < Bp; i++) {
        long j = i < B ? i : B - 1;
        const float *row = x + (weight[j] != 0 ? index[j] : 0) * ins;
        m->x[0][i] = row;
        if (ins == wide) continue;
        memcpy(m->z[0] + i * wide, row, sizeof(float) * ins);
        m->x[0][i] = m->z[0] + i * wide;
    }
}

static void outputs(const net *n, space *m, long B) {
    for (long l = 0; l < n->L; l++) {
        float *w = n->own[2 * l], *b = n->own[2 * l + 1];
        forward(w, b, m->x[l], m->z[l + 1], B, n->width[l + 1], WIDE(n->width[l]), WIDE(n->width[l + 1]),
                l + 1 < n->L);
    }
}

/* Take the step of one parameter matrix, whose gradient is sum_i d_i x_i^T. */
static void step(const net *n, space *m, const rule *h, long p, const float *d, long lead,
                 const float **x, const float **next, long B) {
    long outs = outs_of(n, p), wide = WIDE(ins_of(n, p)), P = n->P;
    float *w = n->own[p], *c = n->own[CBAR * P + p];
    float *u = n->own[FIRST * P + p], *v = n->own[SECOND * P + p];
    if (h->kind == PLAIN) {
        mix_in(d, lead, x, next, w, B, outs, wide);
        return;
    }
    for (long r = 0; r < outs; r += OUTS) {
        long count = outs - r < OUTS ? outs - r : OUTS, at = r * wide;
        float *g = h->kind == GRADIENT ? u + at : m->g;
        mix(d + r, lead, x, g, B, count, wide);
        add_penalties(h, w + at, c ? c + at : c, g, count * wide);
        if (h->kind != GRADIENT) update(h, w + at, u ? u + at : u, v ? v + at : v, g, count * wide);
    }
}

/* Go from the head down to the lowest trained layer, for client c. */
static void backward(const net *n, space *m, const rule *h, long lowest, long B, long c) {
    for (long l = n->L - 1; l >= lowest; l--) {
        long K = n->width[l + 1], zw = WIDE(K), ins = WIDE(n->width[l]);
        float *d = m->d[l + 1];
        if (l > lowest) {
            const float **w = m->list;
            for (long k = 0; k < K; k++)
                for (long i = 0; i < B; i++) m->turned[k * WIDE(B) + i] = d[i * zw + k];
            for (long k = 0; k < K; k++) w[k] = n->own[2 * l] + k * ins;
            mix(m->turned, WIDE(B), w, m->d[l], K, B, ins);
            for (long i = 0; i < B * ins; i++)
                if (!(m->z[l][i] > 0)) m->d[l][i] = 0;
        }
        if (h->pace[l])
            for (long i = 0; i < B * zw; i++) d[i] *= h->pace[l][c];
        if (trained(n, 2 * l)) step(n, m, h, 2 * l, d, zw, m->x[l], l ? 0 : m->next, B);
        if (!trained(n, 2 * l + 1)) continue;
        for (long i = 0; i < B; i++) m->list[i] = d + i * zw;
        step(n, m, h, 2 * l + 1, m->ones, 1, m->list, 0, B);
    }
}

/* Train C clients with samples x, y: S steps on minibatches index, weight [C, S, B] of strides ih, wh; a step
   whose weights are all 0 changes nothing. `count` [C] Adam's steps so far, `ubar` [C], `pace` [L] of [C] or
   null: factors of the loss's gradients; `each` null or a factor for each row of a client's samples, those of
   the next client `hop_each` further on. Returns 0, 1 without memory, 2 for a label that is no class. */
int fedpers_train(long L, const long *width, const float **from, const long *hop, float **to, int task,
                  int kind, float lr, float decay, float momentum, float lam, const float *ubar,
                  float *count, const float **pace, long C, long S, long B, const float **x, const void **y,
                  const int64_t *index, const long *ih, const float *weight, const long *wh, const float *each,
                  long hop_each) {
    net n = {L, 2 * L, width, from, hop, to, 0};
    rule h = {kind, lr, decay, momentum, lam, 0, 0, 0, pace};
    space m = {0};
    int failed = reserve(&n, &m, B);
    long lowest = 0;
    while (lowest < L && !trained(&n, 2 * lowest) && !trained(&n, 2 * lowest + 1)) lowest++;
    for (long c = 0; c < C && !failed; c++) {
        copy(&n, c, 0);
        h.ubar = ubar[c];
        for (long s = 0; s < S && !failed; s++) {
            int last = s + 1 == S;
            const int64_t *rows = index + c * ih[0] + s * ih[1];
            const int64_t *after = last ? index + (c + 1) * ih[0] : rows + ih[1];
            const float *share = weight + c * wh[0] + s * wh[1];
            float total = 0;
            for (long i = 0; i < B; i++) total += share[i];
            if (!(total > 0) && kind != GRADIENT) continue; /* the gradient of nothing is no number */
            if (!s || ih[1] || wh[1]) inputs(&n, &m, x[c], rows, share, B); /* else those of the step before */
            for (long i = 0; i < B; i++)
                m.next[i] = last && c + 1 == C ? m.x[0][i] : x[c + last] + after[i] * width[0];
            outputs(&n, &m, B);
            failed = derivatives(task, m.z[L], y[c], rows, share, each ? each + c * hop_each : 0,
                                 (kind == PLAIN ? -lr : 1) / total, B, width[L], WIDE(width[L]));
            count[c] += 1;
            h.rate = lr / (1 - pow(0.9, count[c]));
            h.root = 1 / (1 - pow(0.999, count[c]));
            if (!failed) backward(&n, &m, &h, lowest, B, c);
        }
        copy(&n, c, 1);
    }
    release(&n, &m);
    return failed;
}
