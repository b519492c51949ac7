/* Convolutions of stride 1, ReLU and max pooling below a dense network, for steps.c.

   No windows are copied. An image lies in planes padded with zeros, rows `pitch` apart; then all outputs of a
   channel are one long row, z[c][at] = b[c] + sum_s w[c][s] x[off[s] + at], where s = (input channel, i, j) and
   off[s] is where that tap starts. Outputs of the columns that are too many are left aside, and have no
   derivative. Names as in steps.c; a tap is a number of a kernel, a spot the output of one window. */
#include "native.h"

typedef struct {
    long in, high, wide, out, size, pad, pool; /* channels, sides of an image, kernel's side, pooling's */
} shape;

typedef struct {
    shape s;
    long pitch, plane, span, taps, room; /* floats of a row, a channel, all outputs; of a kernel, an image */
    long across, spots;                  /* pooled outputs of a row, of a channel */
    long margin, gap;                    /* zeros below a channel's derivatives; from one to the next */
    long *off, *back;                    /* where taps start in an image, and in the derivatives */
    float *x, *z, *d, *dx, *turned, *bias, *best;
    int32_t *where;
    vec *sums;   /* [out][taps] gradients, not yet added up within registers */
    int32_t *at; /* [B][out][spots] where the maximum was; -1: below 0 */
} conv;

static void measure(conv *c, const shape *s) {
    c->s = *s;
    c->pitch = s->wide + 2 * s->pad;
    c->plane = (s->high + 2 * s->pad) * c->pitch;
    c->span = WIDE((s->high + 2 * s->pad - s->size + 1) * c->pitch);
    c->taps = s->in * s->size * s->size;
    c->room = WIDE(s->in * c->plane + s->size + V);
    c->across = (c->pitch - s->size + 1) / s->pool;
    c->spots = (s->high + 2 * s->pad - s->size + 1) / s->pool * c->across;
    c->margin = (s->size - 1) * (c->pitch + 1);
    c->gap = WIDE(c->plane + c->margin + V);
}

/* Memory for batches of B images; 1 without it. */
static int prepare(conv *c, long B) {
    shape s = c->s;
    long square = s.size * s.size, all = B * c->room + s.out * (c->span + c->gap) + s.in * c->gap;
    all += s.in * s.out * square + c->margin + V + WIDE(s.out) + 2 * WIDE(c->pitch + V);
    c->x = calloc(all, sizeof(float));
    c->off = calloc(c->taps + s.out * square, sizeof(long));
    c->sums = aligned_alloc(sizeof(vec), s.out * c->taps * sizeof(vec));
    c->at = calloc(B * s.out * c->spots, sizeof(int32_t));
    if (!c->x || !c->off || !c->sums || !c->at) return 1;
    memset(c->sums, 0, s.out * c->taps * sizeof(vec));
    c->z = c->x + B * c->room;
    c->dx = c->z + s.out * c->span;
    c->d = c->dx + s.in * c->gap + c->margin;
    c->turned = c->d + s.out * c->gap + V;
    c->bias = c->turned + s.in * s.out * square;
    c->best = c->bias + WIDE(s.out);
    c->where = (int32_t *)(c->best + WIDE(c->pitch + V));
    c->back = c->off + c->taps;
    for (long k = 0; k < square; k++) {
        long first = k / s.size * c->pitch + k % s.size;
        for (long i = 0; i < s.in; i++) c->off[i * square + k] = i * c->plane + first;
        for (long o = 0; o < s.out; o++) c->back[o * square + k] = o * c->gap - first;
    }
    return 0;
}

static void discard(conv *c) {
    free(c->x);
    free(c->off);
    free(c->sums);
    free(c->at);
}

/* z[r][at..] = b[r] + sum_s w[r][s] x[off[s] + at..] for `outs` rows of w and `vecs` registers */
INLINE void taps(const int outs, const int vecs, const float *w, long lead, const float *x, const long *off,
                 long n, const float *b, float *z, long hop) {
    vec t[8][2];
    for (int r = 0; r < outs; r++)
        for (int v = 0; v < vecs; v++) t[r][v] = (b ? b[r] : 0) - (vec){0};
    for (long s = 0; s < n; s++) {
        vec u[2];
        for (int v = 0; v < vecs; v++) {
            u[v] = *(const vec *)(x + off[s] + v * V);
            HELD(u[v]);
        }
        for (int r = 0; r < outs; r++)
            for (int v = 0; v < vecs; v++) t[r][v] += w[r * lead + s] * u[v];
    }
    for (int r = 0; r < outs; r++)
        for (int v = 0; v < vecs; v++) *(vec *)(z + r * hop + v * V) = t[r][v];
}

INLINE void row(const int outs, const float *w, long lead, const float *x, const long *off, long n,
                const float *b, float *z, long hop, long length) {
    long at = 0;
    for (; at + V < length; at += 2 * V) taps(outs, 2, w, lead, x + at, off, n, b, z + at, hop);
    if (at < length) taps(outs, 1, w, lead, x + at, off, n, b, z + at, hop);
}

/* All channels; z has room for `length` rounded up to registers. */
static void correlate(const float *w, long lead, const float *x, const long *off, long n, const float *b,
                      float *z, long hop, long outs, long length) {
    for (long r = 0, now; r < outs; r += now) {
        long left = outs - r;
        const float *v = w + r * lead, *c = b ? b + r : b;
        float *to = z + r * hop;
        now = left >= 8 ? 8 : left >= 6 ? 6 : left >= 4 ? 4 : 1;
        if (now == 8) row(8, v, lead, x, off, n, c, to, hop, length);
        if (now == 6) row(6, v, lead, x, off, n, c, to, hop, length);
        if (now == 4) row(4, v, lead, x, off, n, c, to, hop, length);
        if (now == 1) row(1, v, lead, x, off, n, c, to, hop, length);
    }
}

/* The largest of `size` rows, or 0, for each of `count` columns, and where it was; the rows start at `first`. */
INLINE void columns(const float *z, long first, long pitch, long size, long count, float *best, int32_t *at) {
    ivec lane;
    for (int i = 0; i < V; i++) lane[i] = i;
    for (long x = 0; x < count; x += V) {
        vec most = {0}; /* ReLU */
        ivec found = {0};
        found -= 1;
        for (long k = first + x; k < first + x + size * pitch; k += pitch) {
            vec t = *(const vec *)(z + k);
            ivec more = (t > most) | (t != t); /* keeps NaN */
            most = pick(more, t, most);
            found = (ivec)pick(more, (vec)(lane + (int32_t)k), (vec)found);
        }
        *(vec *)(best + x) = most;
        memcpy(at + x, &found, sizeof found);
    }
}

/* Maxima of windows, 0 if that is more, to `to`: channels `hop` apart, rows `pitch`. Of equal ones the first row's
   first counts, as in torch; without branches, which would be guessed wrong. */
static void pool(conv *c, int32_t *at, float *to, long hop, long pitch) {
    long size = c->s.pool;
    for (long o = 0; o < c->s.out; o++, to += hop)
        for (long y = 0; y < c->spots / c->across; y++) {
            columns(c->z + o * c->span, y * size * c->pitch, c->pitch, size, c->across * size, c->best, c->where);
            for (long x = 0; x < c->across; x++, at++) {
                float best = c->best[x * size];
                int32_t found = c->where[x * size];
                for (long k = x * size + 1; k < (x + 1) * size; k++) {
                    float z = c->best[k];
                    int32_t w = c->where[k], more = -((z > best) | (z != z) | ((z == best) & (w < found)));
                    found = (found & ~more) | (w & more);
                    best = more ? z : best;
                }
                *at = found;
                to[y * pitch + x] = best;
            }
        }
}

/* sums[o][s] += the products of output channel o's derivatives with tap s's inputs, a register at a time */
INLINE void products(const int outs, const int count, const conv *c, const float *d, const float *x, const long *off,
                     vec *sums) {
    vec a[4][4];
    for (int o = 0; o < outs; o++)
        for (int s = 0; s < count; s++) a[o][s] = sums[o * c->taps + s];
    for (long at = 0; at < c->span; at += V) {
        vec u[4];
        for (int s = 0; s < count; s++) {
            u[s] = *(const vec *)(x + off[s] + at);
            HELD(u[s]);
        }
        for (int o = 0; o < outs; o++) {
            vec v = *(const vec *)(d + o * c->gap + at);
            HELD(v);
            for (int s = 0; s < count; s++) a[o][s] += v * u[s];
        }
    }
    for (int o = 0; o < outs; o++)
        for (int s = 0; s < count; s++) sums[o * c->taps + s] = a[o][s];
}

static void gradients(conv *c, const float *x) {
    for (long o = 0, wide; o < c->s.out; o += wide) {
        wide = c->s.out - o >= 4 ? 4 : 1;
        for (long s = 0, count; s < c->taps; s += count) {
            count = c->taps - s >= 4 ? 4 : 1;
            const float *d = c->d + o * c->gap;
            vec *sums = c->sums + o * c->taps + s;
            if (wide == 4 && count == 4) products(4, 4, c, d, x, c->off + s, sums);
            if (wide == 4 && count == 1) products(4, 1, c, d, x, c->off + s, sums);
            if (wide == 1 && count == 4) products(1, 4, c, d, x, c->off + s, sums);
            if (wide == 1 && count == 1) products(1, 1, c, d, x, c->off + s, sums);
        }
    }
}

/* From the derivatives of the pooled outputs, `from`, to those of weights, biases and, if `further`, inputs. */
static void unpool(conv *c, const int32_t *at, const float *x, const float *from, long hop, long pitch,
                   int further) {
    memset(c->d - c->margin, 0, sizeof(float) * (c->margin + c->s.out * c->gap));
    for (long o = 0; o < c->s.out; o++, from += hop)
        for (long y = 0; y < c->spots / c->across; y++)
            for (long k = 0; k < c->across; k++, at++) {
                if (*at < 0) continue;
                c->d[o * c->gap + *at] = from[y * pitch + k];
                c->bias[o] += from[y * pitch + k];
            }
    gradients(c, x);
    long n = c->s.out * c->s.size * c->s.size;
    if (further) correlate(c->turned, n, c->d, c->back, n, 0, c->dx, c->gap, c->s.in, c->plane);
}

/* The weights [out][taps], rows `lead` apart, as the way back needs them: [in][out, i, j]. */
static void turn(conv *c, const float *w, long lead) {
    long square = c->s.size * c->s.size, n = c->s.out * square;
    for (long o = 0; o < c->s.out; o++)
        for (long s = 0; s < c->taps; s++)
            c->turned[s / square * n + o * square + s % square] = w[o * lead + s];
}
