/* Plain steps with gradients that are taken at other points than at the model which they change, for many
   clients in one call. One step ahead of it, or at mixtures of two models w and v, which both change, or at the sum of
   these two models' outputs. */
#include "batch.h"

enum { AHEAD, MIXTURE, SUM };
typedef struct {
    float a, b, to_w, to_v; /* at a w + b v; how much of the gradient is subtracted from w, from v */
} term;

/* to = a w + b v, of parameters from `low` on */
static void mixture(const net *n, float a, float b, float **to, long low) {
    for (long p = low; p < n->P; p++) {
        const float *restrict w = n->own[p], *restrict v = n->own[CBAR * n->P + p];
        float *restrict y = to[p];
        long count = outs_of(n, p) * WIDE(ins_of(n, p)); /* outside of the loop, which is not vectorised else */
        for (long i = 0; i < count; i++) y[i] = a * w[i] + b * v[i];
    }
}

/* w -= lr ∇f(w - alpha ∇f(w; D); D'): samples of D' are rows of the batch, those of D are rows `other`. */
static int ahead(net *n, space *m, const rule *h, const batch *b, const float *sizes, const int64_t *other) {
    batch first = *b;
    first.rows = other;
    for (long p = 0; p < n->P; p++)
        memcpy(n->own[FIRST * n->P + p], n->own[p], sizeof(float) * outs_of(n, p) * WIDE(ins_of(n, p)));
    n->at = n->goal[0] = n->own + FIRST * n->P;
    n->share[0] = sizes[0];
    samples(n, m, &first);
    int failed = pass(n, m, h, &first, 0);
    n->goal[0] = n->own;
    n->share[0] = sizes[1];
    samples(n, m, b);
    return failed || pass(n, m, h, b, 0) ? 2 : 0;
}

/* The samples of one space in another one, too. */
static void same_samples(const space *m, space *other, long B) {
    memcpy(other->x[0], m->x[0], sizeof(float *) * ((B + ROWS - 1) / ROWS * ROWS));
    memcpy(other->next, m->next, sizeof(float *) * B);
}

/* The first dense layer at each point, in a space of its own: it is linear, so its outputs with w and with v are mixed
   instead of w and v, which are larger. */
static void first_layer(net *n, space *const *m, const batch *b, const term *terms, long T) {
    long outs = n->width[1], wide = WIDE(outs);
    samples(n, m[0], b);
    same_samples(m[0], m[1], b->B);
    for (int i = 0; i < 2; i++) {
        float **at = n->own + (i ? CBAR : WEIGHT) * n->P;
        forward(at[0], at[1], m[i]->x[0], m[i]->z[1], b->B, outs, WIDE(n->width[0]), wide);
    }
    for (long k = 0; k < b->B * wide; k++) {
        float w = m[0]->z[1][k], v = m[1]->z[1][k];
        for (long t = 0; t < T; t++) {
            float z = terms[t].a * w + terms[t].b * v;
            m[t]->z[1][k] = n->L > 1 && z < 0 ? 0 : z;
        }
    }
}

/* Both models' steps, all from where they are: only the first term, if it is w itself, is taken in place. */
static int mixed(net *n, space *m, space *other, const rule *h, const batch *b, const term *terms, long T) {
    space *spaces[] = {m, n->N ? m : other};
    int in_place = terms[0].a == 1 && terms[0].b == 0, failed = 0;
    for (long t = in_place; t < T; t++)
        mixture(n, terms[t].a, terms[t].b, n->own + (FIRST + t) * n->P, n->N ? 0 : 2);
    if (!n->N) first_layer(n, spaces, b, terms, T);
    n->goal[0] = n->own;
    n->goal[1] = n->own + CBAR * n->P;
    for (long t = 0; t < T && !failed; t++) {
        n->at = t || !in_place ? n->own + (FIRST + t) * n->P : n->own;
        n->share[0] = terms[t].to_w;
        n->share[1] = terms[t].to_v;
        if (n->N) samples(n, m, b);
        failed = pass(n, spaces[t], h, b, !n->N);
    }
    return failed;
}

/* Both models' steps, from the derivatives of the loss in the sum of their outputs; v goes through `other`. */
static int summed(net *n, space *m, space *other, const rule *h, const batch *b, const float *sizes) {
    long L = n->L, K = n->width[L], wide = WIDE(K);
    float **v = n->own + CBAR * n->P;
    space *both[] = {other, m};
    samples(n, m, b);
    same_samples(m, other, b->B);
    for (int i = 0; i < 2; i++) {
        n->at = i ? n->own : v;
        outputs(n, both[i], b->B, 0, L);
    }
    for (long k = 0; k < b->B * wide; k++) m->z[L][k] += other->z[L][k];
    if (derivatives(b->task, m->z[L], b->y, b->rows, b->share, 0, -1 / b->total, b->B, K, wide)) return 2;
    memcpy(other->z[L], m->z[L], sizeof(float) * b->B * wide);
    for (int i = 0; i < 2; i++) {
        n->at = n->goal[0] = i ? n->own : v;
        n->share[0] = sizes[!i];
        backward(n, both[i], h, 0, b->B, 0);
    }
    return 0;
}

/* Take S such steps for each of C clients; arguments as in fedpers_train. AHEAD: `numbers` are alpha and lr,
   and `pairs` [C, S, B] the rows of D. MIXTURE: they are `count` terms, two at most; v comes and goes as CBAR.
   FIRST and SECOND are for points, and lack the first layer if it is dense. SUM: `numbers` are how much of the
   gradients is subtracted from w and from v, and there are dense layers only. Returns 0, 1 without memory, 2 for a
   label that is no class. */
int fedpers_couple(long N, const shape *shapes, long L, const long *width, const float **from, const long *hop,
                   float **to, int task, long C, long S, long B, const float **x, const void **y,
                   const int64_t *index, const long *ih, const float *weight, const long *wh, int how,
                   const float *numbers, long count, const int64_t *pairs, const long *oh) {
    net n = {L, 2 * (N + L), width, N, 0, from, hop, to};
    const float **pace = calloc(N + L, sizeof(float *));
    rule h = {PLAIN, 0, 0, 0, 0, 0, 0, 0, pace};
    net second = n; /* has the memory for other outputs */
    space m = {0}, other = {0};
    int two = how == SUM || (how == MIXTURE && !N);
    int failed = reserve(&n, &m, shapes, B) || !pace || (two && reserve(&second, &other, shapes, B));
    for (long c = 0; c < C && !failed; c++) {
        begin(&n, &m, c);
        if (two) clean(&second, &other);
        for (long s = 0; s < S && !failed; s++) {
            batch b = batch_of(task, x[c], y[c], index + c * ih[0] + s * ih[1], weight + c * wh[0] + s * wh[1], B);
            if (!(b.total > 0)) continue;
            if (how == AHEAD) failed = ahead(&n, &m, &h, &b, numbers, pairs + c * oh[0] + s * oh[1]);
            if (how == MIXTURE) failed = mixed(&n, &m, &other, &h, &b, (const term *)numbers, count);
            if (how == SUM) failed = summed(&n, &m, &other, &h, &b, numbers);
        }
        copy(&n, c, 1);
    }
    free(pace);
    release(&n, &m);
    release(&second, &other);
    return failed;
}
