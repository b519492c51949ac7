/* Local training of dense networks (linear layers, ReLU between them), and of small convolutions below them, for
   many clients in one call.

   A client's parameters are copied to rows padded with zeros to whole registers, stay in the cache for all
   of its minibatches, and are written out at the end. Clients share nothing that is written, so neither
   their order nor their number changes a bit. A bias is a matrix of one row. Names: x inputs of a layer,
   z its outputs, d derivatives of the loss in z, g gradient of the loss in a parameter. */
#include "passes.h"

/* Train C clients with samples x, y: S steps on minibatches index, weight [C, S, B] of strides ih, wh; a step
   whose weights are all 0 changes nothing. N convolutions of `shapes` come first, then L dense layers. `count` [C]
   Adam's steps so far, `ubar` [C], `pace` [N + L] of [C] or null: factors of the loss's gradients; `each` null or a
   factor for each row of a client's samples, those of the next client `hop_each` further on; `more` (a kind, or
   NOTHING) with its weight, tau, a and b, the next client's `hop_a` and `hop_b` further on: see extra.h. Returns 0, 1
   without memory, 2 for a label that is no class. */
int fedpers_train(long N, const shape *shapes, long L, const long *width, const float **from, const long *hop,
                  float **to, int task, long C, long S, long B, const float **x, const void **y,
                  const int64_t *index, const long *ih, const float *weight, const long *wh, int kind, float lr,
                  float decay, float momentum, float lam, const float *ubar, float *count, const float **pace,
                  const float *each, long hop_each, int more, float weigh, float tau, const float *a,
                  long hop_a, const float *b, long hop_b) {
    net n = {L, 2 * (N + L + (more == TWO_HEADS)), width, N, 0, from, hop, to};
    extra e = {more, weigh, tau, a, b};
    rule h = {kind, lr, decay, momentum, lam, 0, 0, 0, pace, more ? &e : 0};
    space m = {0};
    int failed = reserve(&n, &m, shapes, B);
    long lowest = 0;
    while (lowest < N + L && !trained(&n, 2 * lowest) && !trained(&n, 2 * lowest + 1)) lowest++;
    for (long c = 0; c < C && !failed; c++) {
        copy(&n, c, 0);
        h.ubar = ubar[c];
        e.a = a + c * hop_a;
        e.b = b + c * hop_b;
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
            e.rows = rows;
            e.share = share;
            e.scale = (kind <= PROXIMAL ? -lr : 1) / total;
            count[c] += 1;
            h.rate = lr / (1 - pow(0.9, count[c]));
            h.root = 1 / (1 - pow(0.999, count[c]));
            if (more == TWO_HEADS && (failed = second_head(&n, &m, &h, task, y[c], B))) break;
            failed = derivatives(task, m.z[L], y[c], rows, share, each ? each + c * hop_each : 0, e.scale, B,
                                 width[L], WIDE(width[L]));
            if (!failed) backward(&n, &m, &h, lowest, B, c);
        }
        copy(&n, c, 1);
    }
    release(&n, &m);
    return failed;
}
