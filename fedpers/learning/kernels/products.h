/* Products of small matrices whose rows are padded to whole registers, for steps.c. */
#include "native.h"

#ifdef __AVX512F__
#define ROWS 4
#define OUTS 14
#define HEIGHTS(EACH) EACH(14) EACH(10) EACH(8) EACH(6) EACH(4) EACH(2) EACH(1)
#else
#define ROWS 2
#define OUTS 5
#define HEIGHTS(EACH) EACH(5) EACH(2) EACH(1)
#endif
#define DOTS 5
#define LINE 16 /* floats that come from memory at once */
#define PIECE(wide) ((131072 / (wide) + ROWS) / ROWS * ROWS) /* rows of half a megabyte: they stay in the L2 cache */

/* z[r][k] = w_k . x_r + b_k for `outs` rows of w and `rows` rows of x, ROWS at most; the rows of `next`, so many, are
   fetched meanwhile */
INLINE void dots_of(const int rows, const int outs, const float **w, const float **x, const float *b, float *z,
                    long wide, long zw, const float **next, long count) {
    vec a[(ROWS * DOTS + 3) / 4 * 4] = {0}; /* row by row */
    for (long j = 0; j < wide; j += V) {
        vec u[ROWS];
        for (int r = 0; r < rows; r++) {
            u[r] = *(const vec *)(x[r] + j);
            HELD(u[r]);
        }
        for (long r = 0; r < count; r++) __builtin_prefetch(next[r] + j, 0, 2);
        for (int k = 0; k < outs; k++) {
            vec v = *(const vec *)(w[k] + j);
            HELD(v);
            for (int r = 0; r < rows; r++) a[r * outs + k] += u[r] * v;
        }
    }
    float sums[(ROWS * DOTS + 3) / 4 * 4];
    for (int i = 0; i < rows * outs; i += 4) *(four *)(sums + i) = add_up_four(a + i);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < outs; k++) z[r * zw + k] = sums[r * outs + k] + (b ? b[k] : 0);
}

/* The same of rows of w that follow each other */
INLINE void dots(const int rows, const int outs, const float *w, const float **x, const float *b, float *z, long wide,
                 long zw, const float **next, long count) {
    const float *of[DOTS];
    for (int k = 0; k < outs; k++) of[k] = w + k * wide;
    dots_of(rows, outs, of, x, b, z, wide, zw, next, count);
}

/* Outputs of a layer for n rows; there is room for a multiple of ROWS rows, and x repeats the last. The last DOTS
   outputs may be taken twice. Inlined, as mix_in: a step of a plain layer takes a tenth less. */
INLINE void forward(const float *w, const float *b, const float **x, float *z, long n, long outs,
                    long wide, long zw) {
    const long most = PIECE(wide);
    for (long from = 0; from < n; from += most) {
        long to = n - from < most ? n : from + most;
        for (long at = 0; at < outs && outs >= DOTS; at += DOTS) {
            long k = at + DOTS < outs ? at : outs - DOTS;
            for (long i = from; i < to; i += ROWS) {
                const float *bias = b ? b + k : b;
                if (to - i > ROWS / 2) dots(ROWS, DOTS, w + k * wide, x + i, bias, z + i * zw + k, wide, zw, 0, 0);
                else if (to - i == 1) dots(1, DOTS, w + k * wide, x + i, bias, z + i * zw + k, wide, zw, 0, 0);
                else dots(ROWS / 2, DOTS, w + k * wide, x + i, bias, z + i * zw + k, wide, zw, 0, 0);
            }
        }
        for (long k = 0; k < outs && outs < DOTS; k++)
            for (long i = from; i < to; i += ROWS)
                dots(ROWS, 1, w + k * wide, x + i, b ? b + k : b, z + i * zw + k, wide, zw, 0, 0);
    }
}

enum { SET, ADD }; /* what a product does with y: it is y, or it is added */

/* Sums sum_s a[s][r] x_s for `outs` rows r and `vecs` registers at j of rows of y; `soon` rows of `next`, n at most, are
   fetched there meanwhile, and with wide registers what follows in y: with AVX2 the loop takes 8 % more by that. */
INLINE void strip(const int outs, const int vecs, const int end, const float *a, long lead, const float **x,
                  const float **next, long soon, float *y, long n, long wide, long j) {
    vec t[OUTS][2] = {0};
    for (int r = 0; r < outs && end == ADD; r++)
        for (int v = 0; v < vecs; v++) t[r][v] = *(const vec *)(y + r * wide + j + v * V);
    for (long s = 0; s < n; s++) {
        vec u[2];
        for (int v = 0; v < vecs; v++) {
            u[v] = *(const vec *)(x[s] + j + v * V);
            HELD(u[v]);
            if (s < soon && v * V % LINE == 0) __builtin_prefetch(next[s] + j + v * V, 0, 2);
            if (V == LINE && end == ADD && s < outs) __builtin_prefetch(y + s * wide + j + (vecs + v) * V, 1, 3);
        }
        for (int r = 0; r < outs; r++)
            for (int v = 0; v < vecs; v++) t[r][v] += a[s * lead + r] * u[v];
    }
    for (int r = 0; r < outs; r++)
        for (int v = 0; v < vecs; v++) *(vec *)(y + r * wide + j + v * V) = t[r][v];
}

/* How many rows of `left` are taken at a time. */
INLINE long height(long left) {
#define FITS(T) if (left >= T) return T;
    HEIGHTS(FITS)
    return 0;
}

/* The same from j to `to`, for as many rows as `height` gives */
INLINE void strips(long outs, const int end, const float *a, long lead, const float **x, const float **next, long soon,
                   float *y, long n, long wide, long j, long to) {
#define OF_HEIGHT(T) case T: \
    for (; j + V < to; j += 2 * V) strip(T, 2, end, a, lead, x, next, soon, y, n, wide, j); \
    if (j < to) strip(T, 1, end, a, lead, x, next, soon, y, n, wide, j); \
    return;
    switch (outs) { HEIGHTS(OF_HEIGHT) }
}

/* Products for `outs` rows of y. With AVX-512 strip by strip, so that what is read of x stays in the L1 cache for all of
   them; else, and where rows are few, some rows of y whole after the others: the processor fetches what comes next in
   five rows, but not in all. With `room` [outs * n] for it, a is packed, as its rows may lie where they push each other
   out. `next` (null, or n rows) are fetched meanwhile, a few at a time. */
INLINE void product(const int end, const float *a, long lead, const float **x, const float **next, float *y, long n,
                    long outs, long wide, float *room) {
    int packs = room && outs > OUTS && wide > 2 * V;
    long step = V < LINE || height(outs) == outs ? wide : 2 * V;
    for (long r = 0, T; packs && r < outs; r += T) {
        T = height(outs - r);
        for (long s = 0; s < n; s++)
            for (long k = 0; k < T; k++) room[r * n + s * T + k] = a[s * lead + r + k];
    }
    for (long j = 0, to; j < wide; j = to) {
        to = wide - j < step ? wide : j + step;
        for (long r = 0, T; r < outs; r += T) {
            T = height(outs - r);
            const float *from = packs ? room + r * n : a + r;
            long hop = packs ? T : lead;
            long first = n * r / outs, soon = next ? n * (r + T) / outs - first : 0;
            strips(T, end, from, hop, x, soon ? next + first : 0, soon, y + r * wide, n, wide, j, to);
        }
    }
}

/* y_r += sum_s a[s][r] x_s, and y_r = sum_s a[s][r] x_s; arguments as above */
static inline void mix_in(const float *a, long lead, const float **x, const float **next, float *y, long n, long outs, long wide,
                   float *room) {
    const long most = PIECE(wide);
    for (long s = 0; s < n; s += most)
        product(ADD, a + s * lead, lead, x + s, next ? next + s : 0, y, n - s < most ? n - s : most, outs, wide, room);
}
static inline void mix(const float *a, long lead, const float **x, const float **next, float *y, long n, long outs, long wide,
                float *room) {
    const long now = n < PIECE(wide) ? n : PIECE(wide);
    product(SET, a, lead, x, next, y, now, outs, wide, room);
    if (n > now) mix_in(a + now * lead, lead, x + now, next ? next + now : 0, y, n - now, outs, wide, room);
}
