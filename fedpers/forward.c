/* Outputs of dense networks (linear layers, ReLU between them) for many clients in one call.

   Weights are packed into panels of a few registers' width, [ins][outs of the panel], those of layers
   that all clients share once. TILE rows of inputs then meet a panel, an input times a row of the panel
   at a time. No client sees another. Names: x inputs, z outputs of a layer. */
#include "native.h"

#ifdef __AVX512F__
#define TILE 5
#define PANEL 4 /* registers */
#else
#define TILE 4
#define PANEL 2
#endif
#define ROOM 60 /* rows that go through all layers together, a multiple of TILE: their inputs stay near */

/* The registers of the next panel, with so many left: no narrow one at the end. */
static int panel(long left) {
    if (left > PANEL && left < 2 * PANEL) return (int)(left + 1) / 2;
    return left < PANEL ? (int)left : PANEL;
}

static void pack(const float *w, const float *b, float *to, float *bias, long ins, long outs) {
    for (long k = 0; k < WIDE(outs); k++) bias[k] = b && k < outs ? b[k] : 0;
    for (long k = 0, now; k < WIDE(outs); k += now, to += ins * now) {
        now = panel((WIDE(outs) - k) / V) * V;
        for (long v = k; v < k + now; v += V)
            for (long j = 0; j < ins; j++)
                for (long o = v; o < v + V; o++) to[j * now + o - k] = o < outs ? w[o * ins + j] : 0;
    }
}

/* TILE rows of inputs times one panel of so many registers; inputs `ahead` are fetched meanwhile */
INLINE void tile(const int vecs, const float *w, const float *b, const float **x, long ahead, float *z,
                 long ins, long zw, int relu) {
    vec a[TILE][PANEL];
    for (int r = 0; r < TILE; r++)
        for (int v = 0; v < vecs; v++) a[r][v] = *(const vec *)(b + v * V);
    for (long j = 0; j < ins; j++) {
        vec u[PANEL];
        for (int v = 0; v < vecs; v++) {
            u[v] = *(const vec *)(w + (j * vecs + v) * V);
            HELD(u[v]);
        }
        for (int r = 0; r < TILE; r++) {
            if (ahead && j % 16 == 0) __builtin_prefetch(x[r] + j + ahead, 0, 2);
            vec one = x[r][j] - (vec){0};
            HELD(one);
            for (int v = 0; v < vecs; v++) a[r][v] += one * u[v];
        }
    }
    for (int r = 0; r < TILE; r++)
        for (int v = 0; v < vecs; v++) {
            ivec off = a[r][v] < 0; /* what is not a number stays so */
            *(vec *)(z + r * zw + v * V) = relu ? (vec)((ivec)a[r][v] & ~off) : a[r][v];
        }
}

/* One layer for n rows that lie `hop` apart; the last one is repeated to fill a tile. */
static void layer(const float *w, const float *b, const float *x, long hop, float *z, long n, long ins,
                  long outs, int relu) {
    for (long k = 0, zw = WIDE(outs); k < zw;) {
        int vecs = panel((zw - k) / V);
        for (long i = 0; i < n; i += TILE) {
            const float *rows[TILE];
            for (long r = 0; r < TILE; r++) rows[r] = x + (i + r < n ? i + r : n - 1) * hop;
            float *to = z + i * zw + k;
            long ahead = k ? 0 : TILE * hop;
            if (vecs == 1) tile(1, w, b + k, rows, ahead, to, ins, zw, relu);
            if (vecs == 2) tile(2, w, b + k, rows, ahead, to, ins, zw, relu);
#if PANEL > 2
            if (vecs == 3) tile(3, w, b + k, rows, ahead, to, ins, zw, relu);
            if (vecs == 4) tile(4, w, b + k, rows, ahead, to, ins, zw, relu);
#endif
        }
        w += ins * vecs * V;
        k += vecs * V;
    }
}

/* out[c][i] = the outputs for row i of client c, which has size[c] of them; there is room for `most`.
   `from` [2L] holds weights and biases (or null) layer by layer, `hop` [2L] the floats from one client's
   to the next; 0: all share them. Returns 1 without memory. */
int fedpers_outputs(long L, const long *width, const float **from, const long *hop, long C, const long *size,
                    long most, const float **x, float *out) {
    long all = V, widest = 0, K = width[L];
    for (long l = 0; l < L; l++) {
        all += (width[l] + 1) * WIDE(width[l + 1]);
        if (WIDE(width[l + 1]) > widest) widest = WIDE(width[l + 1]);
    }
    float *space = calloc(all + 2 * ROOM * widest, sizeof(float));
    if (!space) return 1;
    float *first = (float *)(((uintptr_t)space + 4 * V - 1) / (4 * V) * (4 * V));
    float *z[2] = {first + all - V, first + all - V + ROOM * widest};
    for (long c = 0; c < C; c++) {
        float *w = first;
        for (long l = 0; l < L; l++) {
            long ins = width[l], outs = width[l + 1], wide = WIDE(outs), p = 2 * l;
            const float *b = from[p + 1] ? from[p + 1] + c * hop[p + 1] : 0;
            if (!c || hop[p] || hop[p + 1]) pack(from[p] + c * hop[p], b, w + wide, w, ins, outs);
            w += (ins + 1) * wide;
        }
        for (long at = 0; at < size[c]; at += ROOM) {
            long n = size[c] - at < ROOM ? size[c] - at : ROOM, row = width[0];
            const float *in = x[c] + at * row;
            w = first;
            for (long l = 0; l < L; l++) {
                long ins = width[l], outs = width[l + 1], wide = WIDE(outs);
                layer(w + wide, w, in, row, z[l % 2], n, ins, outs, l + 1 < L);
                in = z[l % 2];
                row = wide;
                w += (ins + 1) * wide;
            }
            for (long i = 0; i < n; i++)
                memcpy(out + (c * most + at + i) * K, in + i * row, sizeof(float) * K);
        }
    }
    free(space);
    return 0;
}
