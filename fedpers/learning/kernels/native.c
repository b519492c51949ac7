/* Local training of dense networks (linear layers, ReLU between them), and of small convolutions below them, for
   many clients in one call.

   A client's parameters are copied to rows padded with zeros to whole registers, stay in the cache for all
   of its minibatches, and are written out at the end. Clients share nothing that is written, so neither
   their order nor their number changes a bit. A bias is a matrix of one row. Names: x inputs of a layer,
   z its outputs, d derivatives of the loss in z, g gradient of the loss in a parameter. */
#include "features.h"

/* Train C clients with samples x, y: S steps on minibatches index, weight [C, S, B] of strides ih, wh; a step
   whose weights are all 0 changes nothing. N convolutions of `shapes` come first, then L dense layers. `done` [C] the
   steps so far, null if nobody counts them; `ubar` null or one of each client, the next `hop_u` further on; `pace`
   [N + L] of [C] or null: factors of the loss's gradients; `each` null or a factor for each row of a client's samples,
   those of the next client `hop_each` further on; `more` (a kind, or NOTHING) with its weight, tau, a and b, the next
   client's `hop_a` and `hop_b` further on: see extra.h. Returns 0, 1 without memory, 2 for a label that is no class. */
int fedpers_train(long N, const shape *shapes, long L, const long *width, const float **from, const long *hop,
                  float **to, int task, long C, long S, long B, const float **x, const void **y,
                  const int64_t *index, const long *ih, const float *weight, const long *wh, int kind, float lr,
                  float decay, float momentum, float lam, const float *ubar, long hop_u, float *done,
                  const float **pace, const float *each, long hop_each, int more, float weigh, float tau, const float *a,
                  long hop_a, const float *b, long hop_b) {
    net n = {L, 2 * (N + L + (more == TWO_HEADS)), width, N, 0, from, hop, to};
    extra e = {more, weigh, tau, a, b};
    rule h = {kind, lr, decay, momentum, lam, 0, 0, 0, pace, more ? &e : 0};
    batches all = {S, B, index, weight, ih, wh};
    space m = {0};
    kept k = {0};
    long lowest = 0, most = kind == GRADIENT && !N && !more ? PIECE(WIDE(width[0])) : B; /* rows at a time */
    while (lowest < N + L && !trained(&n, 2 * lowest) && !trained(&n, 2 * lowest + 1)) lowest++;
    int failed = reserve(&n, &m, shapes, most < B ? most : B) || reserve_features(&k, &n, &all, C, lowest);
    for (long c = 0; c < C && !failed; c++) {
        begin(&n, &m, c);
        h.ubar = ubar ? ubar[c * hop_u] : 0;
        e.a = a + c * hop_a;
        e.b = b + c * hop_b;
        if (k.rows) keep(&k, &n, &m, &all, x[c], c);
        for (long s = 0; s < S && !failed; s++) {
            int last = s + 1 == S;
            const int64_t *rows = rows_of(&all, c, s);
            const int64_t *after = last ? rows_of(&all, c + 1, 0) : rows + ih[1];
            const float *share = shares_of(&all, c, s);
            float total = 0;
            for (long i = 0; i < B; i++) total += share[i];
            if (!(total > 0) && kind != GRADIENT) continue; /* the gradient of nothing is no number */
            long count = total > 0 ? filled(share, B) : B;
            e.rows = rows;
            e.share = share;
            e.scale = (kind <= PROXIMAL ? -lr : 1) / total;
            if (done) {
                done[c] += 1;
                h.rate = lr / (1 - pow(0.9, done[c]));
                h.root = 1 / (1 - pow(0.999, done[c]));
            }
            long parts = count > most ? (count + most - 1) / most : 1, piece = (count + parts - 1) / parts;
            for (long q = 0; q < parts && !failed; q++) {
                long from = q * piece, now = count - from < piece ? count - from : piece;
                int end = q + 1 == parts;
                if (k.rows) recall(&k, &n, &m, rows, share, count);
                else if (n.N || !s || parts > 1 || !repeats(&all)) inputs(&n, &m, x[c], rows + from, share + from, now);
                for (long i = 0; i < now; i++) /* what comes next */
                    m.next[i] = end && last && c + 1 == C ? m.x[0][i]
                                : x[c + (end && last)] + (end ? after : rows + from + now)[i] * size_of(&n);
                outputs(&n, &m, now, k.rows ? k.low : 0, L);
                if (more == TWO_HEADS && (failed = second_head(&n, &m, &h, task, y[c], now))) break;
                h.adds = from > 0;
                failed = derivatives(task, m.z[L], y[c], rows + from, share + from, each ? each + c * hop_each : 0,
                                     e.scale, now, width[L], WIDE(width[L]));
                if (!failed) backward(&n, &m, &h, lowest, now, c);
            }
        }
        copy(&n, c, 1);
    }
    release(&n, &m);
    release_features(&k);
    return failed;
}
