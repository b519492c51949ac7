/* Local training of dense networks (linear layers, ReLU between them), and of small convolutions below them, for
   many clients in one call.

   A client's parameters are copied to rows padded with zeros to whole registers, stay in the cache for all
   of its minibatches, and are written out at the end. Clients share nothing that is written, so neither
   their order nor their number changes a bit. A bias is a matrix of one row. Names: x inputs of a layer,
   z its outputs, d derivatives of the loss in z, g gradient of the loss in a parameter. */
#include "network.h"
#include "softmax.h"

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

/* Features of one image for row i of a minibatch, through all convolutions. */
static void convolve(const net *n, space *m, const float *image, long i) {
    for (long l = 0; l < n->N; l++) {
        conv *c = &n->conv[l], *next = c + 1;
        float *x = c->x + i * c->room;
        for (long k = 0; !l && k < c->s.in; k++)
            for (long y = 0; y < c->s.high; y++)
                memcpy(x + k * c->plane + (y + c->s.pad) * c->pitch + c->s.pad,
                       image + (k * c->s.high + y) * c->s.wide, sizeof(float) * c->s.wide);
        correlate(n->own[2 * l], WIDE(c->taps), x, c->off, c->taps, n->own[2 * l + 1], c->z, c->span, c->s.out,
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

static void outputs(const net *n, space *m, long B) {
    for (long l = 0; l < n->L; l++) {
        float *w = n->own[2 * (n->N + l)], *b = n->own[2 * (n->N + l) + 1];
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
        if (h->kind == PLAIN)
            for (long k = 0; k < count; k++) w[k] += g[k];
        if (h->kind == PLAIN) continue;
        add_penalties(h, w, b, g, count);
        if (h->kind != GRADIENT) update(h, w, u, v, g, count);
    }
    memset(c->sums, 0, c->s.out * c->taps * sizeof(vec));
    memset(c->bias, 0, sizeof(float) * c->s.out);
}

/* Go from the features down to the lowest trained convolution, image by image. */
static void down(const net *n, space *m, const rule *h, long lowest, long B, long client) {
    for (long l = lowest; l < n->N; l++) turn(&n->conv[l], n->own[2 * l], WIDE(n->conv[l].taps));
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

/* Go from the head down to the lowest trained layer, for client c. */
static void backward(const net *n, space *m, const rule *h, long lowest, long B, long c) {
    for (long l = n->L - 1; l >= 0 && n->N + l >= lowest; l--) {
        long K = n->width[l + 1], zw = WIDE(K), ins = WIDE(n->width[l]), p = 2 * (n->N + l);
        float *d = m->d[l + 1];
        if (n->N + l > lowest) {
            const float **w = m->list;
            for (long k = 0; k < K; k++)
                for (long i = 0; i < B; i++) m->turned[k * WIDE(B) + i] = d[i * zw + k];
            for (long k = 0; k < K; k++) w[k] = n->own[p] + k * ins;
            mix(m->turned, WIDE(B), w, m->d[l], K, B, ins);
            for (long i = 0; i < B * ins; i++)
                if (!(m->z[l][i] > 0)) m->d[l][i] = 0;
        }
        const float *pace = h->pace[n->N + l];
        if (pace)
            for (long i = 0; i < B * zw; i++) d[i] *= pace[c];
        if (trained(n, p)) step(n, m, h, p, d, zw, m->x[l], l || n->N ? 0 : m->next, B);
        if (!trained(n, p + 1)) continue;
        for (long i = 0; i < B; i++) m->list[i] = d + i * zw;
        step(n, m, h, p + 1, m->ones, 1, m->list, 0, B);
    }
    if (lowest < n->N) down(n, m, h, lowest, B, c);
}

/* Train C clients with samples x, y: S steps on minibatches index, weight [C, S, B] of strides ih, wh; a step
   whose weights are all 0 changes nothing. N convolutions of `shapes` come first, then L dense layers. `count` [C]
   Adam's steps so far, `ubar` [C], `pace` [N + L] of [C] or null: factors of the loss's gradients; `each` null or a
   factor for each row of a client's samples, those of the next client `hop_each` further on. Returns 0, 1 without
   memory, 2 for a label that is no class. */
int fedpers_train(long N, const shape *shapes, long L, const long *width, const float **from, const long *hop,
                  float **to, int task, int kind, float lr, float decay, float momentum, float lam,
                  const float *ubar, float *count, const float **pace, long C, long S, long B, const float **x,
                  const void **y, const int64_t *index, const long *ih, const float *weight, const long *wh,
                  const float *each, long hop_each) {
    net n = {L, 2 * (N + L), width, N, calloc(N + 1, sizeof(conv)), from, hop, to, 0};
    rule h = {kind, lr, decay, momentum, lam, 0, 0, 0, pace};
    space m = {0};
    for (long l = 0; n.conv && l < N; l++) measure(&n.conv[l], shapes + l);
    int failed = !n.conv || reserve(&n, &m, B);
    long lowest = 0;
    while (lowest < N + L && !trained(&n, 2 * lowest) && !trained(&n, 2 * lowest + 1)) lowest++;
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
            if (n.N || !s || ih[1] || wh[1]) inputs(&n, &m, x[c], rows, share, B); /* else those of the step before */
            for (long i = 0; i < B; i++)
                m.next[i] = last && c + 1 == C ? m.x[0][i] : x[c + last] + after[i] * size_of(&n);
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
