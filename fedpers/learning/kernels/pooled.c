/* Maxima of a convolution's outputs, and the way back through both, for a network that torch differentiates.

   Only the largest output of a window has a derivative, and with ReLU only if it is above 0: of windows of 2 x 2 less
   than a quarter of all outputs. The way back goes through those alone; dense products would multiply zeros.

   Channels lie last. An image is padded with zeros, its rows `row` floats apart; a place is an output of the
   convolution, a spot one of the maxima. What a kernel meets in one row of an image are k * ins floats side by side,
   read as whole registers with what follows them. Where that is less than a register, as in the first layer, what it
   meets in all rows is `copied` side by side for each place: a kernel has one line then, and k else. */
#include "native.h"
#define MOST 10 /* registers that are summed up at a time */
#define EACH(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10)

typedef struct {
    long B, ins, high, wide, outs, k, pad; /* images, their channels and sides; the convolution */
    long size, stride, margin, relu;       /* of the maxima; whether ReLU follows */
} layers;

typedef struct {
    int32_t at; /* where its floats begin */
    float d;
} term;

typedef struct {
    long row, image, met, lines, length, wide, plane, spots; /* floats: a row, an image, a kernel's line, which is
                                                                `length` apart; places of a row and in all */
    float *image_x, *x, *dx, *w, *g; /* an image, what is read of it; weights and their gradient, [outs][lines][length] */
    int copied;
    term *of_out, *of_place;         /* [outs][spots], where inputs begin; place by place, where weights begin */
    int32_t *begins, *count, *first; /* of each place; of each output; of each place, and of what has no derivative */
} space;

static long after(long side, long size, long stride, long pad) { return (side + 2 * pad - size) / stride + 1; }

/* y [B, spots, outs] the maxima of z, 0 if that is more with ReLU, and where in a channel they were: -1 for that 0.
   Of equal ones the first counts, and NaN before all, as in torch. */
void fedpers_pool(const layers *s, const float *z, float *y, int32_t *at) {
    long high = after(s->high, s->k, 1, s->pad), wide = after(s->wide, s->k, 1, s->pad), outs = s->outs;
    long down = after(high, s->size, s->stride, s->margin), across = after(wide, s->size, s->stride, s->margin);
    for (long b = 0; b < s->B; b++, z += high * wide * outs)
        for (long p = 0; p < down * across; p++, y += outs, at += outs) {
            long top = p / across * s->stride - s->margin, left = p % across * s->stride - s->margin;
            for (long o = 0; o < outs; o++) y[o] = s->relu ? 0 : -INFINITY, at[o] = -1;
            for (long i = top < 0 ? 0 : top; i < top + s->size && i < high; i++)
                for (long j = left < 0 ? 0 : left; j < left + s->size && j < wide; j++) {
                    const float *from = z + (i * wide + j) * outs;
                    int32_t here = i * wide + j;
                    for (long o = 0; o < outs; o++) {
                        int more = (from[o] > y[o]) | (from[o] != from[o]);
                        y[o] = more ? from[o] : y[o];
                        at[o] = more ? here : at[o];
                    }
                }
        }
}

/* y += sum of d x[at ...] over the terms, of so many registers */
INLINE void sum(const int vecs, const term *t, long n, const float *x, float *y) {
    vec a[MOST];
    for (int v = 0; v < vecs; v++) a[v] = *(vec *)(y + v * V);
    for (long s = 0; s < n; s++)
        for (int v = 0; v < vecs; v++) a[v] += t[s].d * *(const vec *)(x + t[s].at + v * V);
    for (int v = 0; v < vecs; v++) *(vec *)(y + v * V) = a[v];
}

INLINE void sum_of(long vecs, const term *t, long n, const float *x, float *y) {
#define SUM(K) case K: sum(K, t, n, x, y); return;
    switch (vecs) { EACH(SUM) }
}

/* Adds one image's part of the gradients where windows are copied: of few registers, in no order. */
INLINE void add(const int vecs, const layers *s, const space *m, const int32_t *at, const float *d, float *bias) {
    for (long p = 0; p < m->spots * s->outs; p += s->outs)
        for (long o = 0; o < s->outs; o++) {
            float here = at[p + o] >= 0 ? d[p + o] : 0;
            const float *x = m->x + (at[p + o] >= 0 ? at[p + o] : 0) * (vecs * V);
            for (int v = 0; v < vecs; v++) *(vec *)(m->g + (o * vecs + v) * V) += here * *(const vec *)(x + v * V);
            bias[o] += here;
        }
}

INLINE void add_of(const layers *s, const space *m, const int32_t *at, const float *d, float *bias) {
#define ADD(K) case K: add(K, s, m, at, d, bias); return;
    switch (m->length / V) { EACH(ADD) }
}

/* How many of `left` registers are summed up at a time: two halves rather than MOST and a few. */
INLINE long together(long left) { return left <= MOST ? left : left < 2 * MOST ? left / 2 : MOST; }

/* The terms of one image by output and, if `further`, by place; adds the biases' gradients. */
static void sort(const layers *s, space *m, const int32_t *at, const float *d, float *bias, int further) {
    long outs = s->outs, lead = m->lines * m->length;
    memset(m->count, 0, sizeof(int32_t) * outs);
    if (further) memset(m->first, 0, sizeof(int32_t) * (m->plane + 3));
    for (long p = 0; p < m->spots * outs; p += outs)
        for (long o = 0; o < outs; o++) {
            int has = (at[p + o] >= 0) & (d[p + o] != 0);
            long place = has ? at[p + o] : 0;
            m->of_out[o * m->spots + m->count[o]] = (term){m->begins[place], d[p + o]};
            m->count[o] += has;
            bias[o] += has ? d[p + o] : 0;
            if (further) m->first[(has ? place : m->plane) + 2]++;
        }
    if (!further) return;
    for (long p = 0; p <= m->plane; p++) m->first[p + 2] += m->first[p + 1];
    for (long p = 0; p < m->spots * outs; p += outs)
        for (long o = 0; o < outs; o++) {
            long place = (at[p + o] >= 0) & (d[p + o] != 0) ? at[p + o] : m->plane;
            m->of_place[m->first[place + 1]++] = (term){o * lead, d[p + o]};
        }
}

/* Adds one image's part of the weights' gradient. */
static void to_weights(const layers *s, space *m) {
    for (long o = 0; o < s->outs; o++)
        for (long i = 0; i < m->lines; i++)
            for (long v = 0, now; v < m->length / V; v += now) {
                float *g = m->g + (o * m->lines + i) * m->length + v * V;
                now = together(m->length / V - v);
                sum_of(now, m->of_out + o * m->spots, m->count[o], m->x + i * m->row + v * V, g);
            }
}

/* The derivatives in one image. */
static void to_inputs(space *m) {
    memset(m->dx, 0, sizeof(float) * m->image);
    for (long i = 0; i < m->lines; i++)
        for (long v = 0, now; v < m->length / V; v += now) {
            now = together(m->length / V - v);
            for (long p = 0; p < m->plane; p++) {
                long from = m->first[p], n = m->first[p + 1] - from;
                const float *w = m->w + i * m->length + v * V;
                if (n) sum_of(now, m->of_place + from, n, w, m->dx + m->begins[p] + i * m->row + v * V);
            }
        }
}

/* 1 without memory. */
static int reserve(const layers *s, space *m, int further) {
    long sides = after(s->high, s->k, 1, s->pad), down = after(sides, s->size, s->stride, s->margin);
    m->row = (s->wide + 2 * s->pad) * s->ins;
    m->image = WIDE((s->high + 2 * s->pad) * m->row + V);
    m->wide = after(s->wide, s->k, 1, s->pad);
    m->plane = sides * m->wide;
    m->spots = down * after(m->wide, s->size, s->stride, s->margin);
    m->copied = s->k * s->ins <= V && s->k <= MOST && !further;
    m->lines = m->copied ? 1 : s->k;
    m->met = s->k * s->k / m->lines * s->ins;
    m->length = WIDE(m->met);
    long read = m->copied ? m->plane * m->length + V : 0, weights = s->outs * m->lines * m->length;
    long bytes = sizeof(float) * (2 * m->image + read + 2 * weights);
    m->image_x = aligned_alloc(sizeof(vec), bytes);
    m->of_out = malloc(sizeof(term) * 2 * s->outs * m->spots);
    m->begins = malloc(sizeof(int32_t) * (s->outs + 2 * m->plane + 3));
    if (!m->image_x || !m->of_out || !m->begins) return 1;
    memset(m->image_x, 0, bytes);
    m->dx = m->image_x + m->image;
    m->x = m->copied ? m->dx + m->image : m->image_x;
    m->w = m->dx + m->image + read;
    m->g = m->w + weights;
    m->of_place = m->of_out + s->outs * m->spots;
    m->count = m->begins + m->plane;
    m->first = m->count + s->outs;
    for (long p = 0; p < m->plane; p++)
        m->begins[p] = p / m->wide * m->row + p % m->wide * s->ins;
    return 0;
}

/* An image, padded; and what a kernel meets at each place, if that is not read from the image. */
static void take(const layers *s, space *m, const float *x) {
    float *to = m->image_x + s->pad * (m->row + s->ins);
    for (long y = 0; y < s->high; y++) memcpy(to + y * m->row, x + y * s->wide * s->ins, 4 * s->wide * s->ins);
    if (!m->copied) return;
    const float *from = m->image_x;
    for (long p = 0, left = m->wide; p < m->plane; p++, from += s->ins) {
        for (long i = 0; i < s->k; i++) /* a register each; the next line overwrites what is too much */
            *(vec *)(m->x + p * m->length + i * s->k * s->ins) = *(const vec *)(from + i * m->row);
        if (--left) continue;
        left = m->wide;
        from += (s->k - 1) * s->ins;
    }
}

/* From derivatives d [B, spots, outs] of the maxima to gradients g of weights [outs, k, k, ins] and `bias`, and, if dx
   is not null, derivatives in the images x [B, high, wide, ins]. 1 without memory. */
int fedpers_unpool(const layers *s, const float *x, const float *w, const int32_t *at, const float *d, float *g,
                   float *bias, float *dx) {
    space m = {0};
    int failed = reserve(s, &m, dx != 0);
    long rows = failed ? 0 : s->outs * m.lines, line = s->wide * s->ins, one = s->high * line;
    for (long r = 0; dx && r < rows; r++) memcpy(m.w + r * m.length, w + r * m.met, sizeof(float) * m.met);
    memset(bias, 0, sizeof(float) * s->outs);
    for (long b = 0; b < s->B && !failed; b++) {
        const int32_t *places = at + b * m.spots * s->outs;
        const float *slopes = d + b * m.spots * s->outs;
        take(s, &m, x + b * one);
        if (m.copied) {
            add_of(s, &m, places, slopes, bias);
            continue;
        }
        sort(s, &m, places, slopes, bias, dx != 0);
        to_weights(s, &m);
        if (dx) to_inputs(&m);
        for (long y = 0; dx && y < s->high; y++)
            memcpy(dx + b * one + y * line, m.dx + s->pad * (m.row + s->ins) + y * m.row, sizeof(float) * line);
    }
    for (long r = 0; r < rows; r++) memcpy(g + r * m.met, m.g + r * m.length, sizeof(float) * m.met);
    free(m.image_x);
    free(m.of_out);
    free(m.begins);
    return failed;
}
