/* Sums, combinations and distances of many models, a layer at a time: each entry is read from memory once for all of them. */
#include <stdlib.h>
#include <string.h>
#include "mixtures.h"

#define ROWS (V / 4) /* what is summed at a time, or compared with SIDE others: one register each */
#define D (V / 2) /* doubles of one register */
#define SIDE 4
#define BLOCK 1024 /* entries of all models that are in the cache together */
#define AHEAD 512 /* floats: how early rows are fetched that are only copied */
#define EXPONENT 0x7f800000
#define LONG_EXPONENT 0x7ff0000000000000
typedef float part __attribute__((vector_size(4 * D), aligned(4)));
typedef double wide __attribute__((vector_size(8 * D)));

/* to[i] = Σ_s weight[s] item[s][i] of S items of n entries, in double precision; what is further on is fetched */
static void sum(long S, long n, const float **item, const double *weight, float *to) {
    long at = 0;
    for (; at + SIDE * D <= n; at += SIDE * D) {
        wide a[SIDE] = {0};
        for (long s = 0; s < S; s++) {
            const float *from = item[s] + at;
            __builtin_prefetch(from + 4 * SIDE * D, 0, 2);
            if (V == 16) __builtin_prefetch(from + 4 * SIDE * D + 16, 0, 2);
            for (int v = 0; v < SIDE; v++) a[v] += weight[s] * __builtin_convertvector(*(const part *)(from + v * D), wide);
        }
        for (int v = 0; v < SIDE; v++) *(part *)(to + at + v * D) = __builtin_convertvector(a[v], part);
    }
    for (; at < n; at++) {
        double total = 0;
        for (long s = 0; s < S; s++) total += weight[s] * item[s][at];
        to[at] = (float)total;
    }
}

/* A sum of each of G groups of items, `counts` [G] of each and all in a row, of L layers of `sizes`: to[l][g]. All items
   of the first layer come first, then those of the next. */
void fedpers_sums_each(long L, const long *sizes, long G, const long *counts, const float **item,
                       const double *weight, float **to) {
    for (long l = 0; l < L; l++) {
        const double *own = weight;
        for (long g = 0; g < G; own += counts[g], item += counts[g], g++)
            sum(counts[g], sizes[l], item, own, to[l * G + g]);
    }
}

/* Whether all of n floats are finite: the exponent of one that is not is all ones. They are read at SIDE places at once:
   a processor fetches so many runs ahead, and one alone at two thirds of the pace. */
int fedpers_finite(long n, const float *x) {
    ivec over[SIDE] = {0};
    long run = n / (SIDE * V) * V;
    for (long at = 0; at < run; at += V)
        for (int v = 0; v < SIDE; v++) over[v] |= (*(const ivec *)(x + v * run + at) & EXPONENT) == EXPONENT;
    int found = 0;
    for (int v = 0; v < SIDE; v++)
        for (int i = 0; i < V; i++) found |= over[v][i];
    for (long at = SIDE * run; at < n; at++) found |= (((const int32_t *)x)[at] & EXPONENT) == EXPONENT;
    return !found;
}

/* The same of doubles, which are few. */
int fedpers_finite_doubles(long n, const int64_t *x) {
    int found = 0;
    for (long at = 0; at < n; at++) found |= (x[at] & LONG_EXPONENT) == LONG_EXPONENT;
    return !found;
}

/* to[j] = Σ_s share[j][s] item[s] of J combinations of S items of n entries, which is whole registers */
static void combine_some(long J, long S, long n, const float **item, const float *share, float **to, int past) {
    for (long j = 0; j < J; j += 4) some_mixtures(J - j < 4 ? J - j : 4, past, share + j * S, item, S, to + j, n);
}

/* The same where J is many: a few entries of all items are taken at a time, side by side in `room` [S][SPAN]. Where they
   lie they could push each other out of the L1 cache. Those further on are fetched meanwhile. */
static void combine_many(long J, long S, long n, const float **item, const float *share, float **to, int past,
                         vec *room) {
    const float *x[S];
    float *y[J];
    for (long s = 0; s < S; s++) x[s] = (float *)(room + s * SPAN);
    for (long at = 0, some; at < n; at += some) {
        some = n - at < SPAN * V ? n - at : SPAN * V;
        for (long s = 0; s < S; s++)
            for (long v = 0; v < some / V; v++) {
                __builtin_prefetch(item[s] + at + (2 * SPAN + v) * V, 0, 2);
                room[s * SPAN + v] = *(const vec *)(item[s] + at + v * V);
            }
        for (long j = 0; j < J; j++) y[j] = to[j] + at;
        combine_some(J, S, some, x, share, y, past);
    }
}

/* The same of any n */
static void combine(long J, long S, long n, const float **item, const float *share, float **to, int past) {
    vec *room = J > 4 ? aligned_alloc(sizeof(vec), S * SPAN * sizeof(vec)) : 0;
    if (room) combine_many(J, S, n / V * V, item, share, to, past, room);
    else combine_some(J, S, n / V * V, item, share, to, past);
    free(room);
    for (long at = n / V * V; at < n; at++)
        for (long j = 0; j < J; j++) {
            float total = 0;
            for (long s = 0; s < S; s++) total += share[j * S + s] * item[s][at];
            to[j][at] = total;
        }
}

/* The same of L layers of `sizes` and C clients with shares [C][J][S] of their own: of item s, layer l the next client's
   is hop[l][s] further on, 0 if all share one; to[l][j] [C][n] are the combinations, of one client to[l] [J][n]. */
void fedpers_combine(long L, const long *sizes, long C, long J, long S, const float **item, const long *hop,
                     const float *share, float **to) {
    for (long l = 0; l < L; l++)
        for (long c = 0, n = sizes[l], stack = n * (C > 1 ? C : J); c < C; c++) {
            const float *own[S];
            float *found[J];
            for (long s = 0; s < S; s++) own[s] = item[l * S + s] + c * hop[l * S + s];
            for (long j = 0; j < J; j++) found[j] = to[l * J + j] + c * n;
            combine(J, S, n, own, share + c * J * S, found, stack >= LARGE && aligned(found, J));
        }
    written();
}

/* The stack [C][n] of C items of n entries */
void fedpers_stack(long C, long n, const float **item, float *to) {
    int past = C * n >= LARGE && n % V == 0 && aligned(&to, 1);
    for (long c = 0; c < C; c++, to += n) {
        if (!past) memcpy(to, item[c], sizeof(float) * n);
        for (long i = 0; past && i < n; i += V) {
            __builtin_prefetch(item[c] + i + AHEAD);
            write_past(to + i, *(const vec *)(item[c] + i));
        }
    }
    written();
}

/* Add ‖x_r - y_c‖² of `rows` and `side` items, over n entries, to `found`. */
INLINE void square(const int rows, const int side, const float *const *x, const float *const *y, long n, int fetch,
                   double found[ROWS][SIDE]) {
    vec sum[ROWS][SIDE] = {0};
    long i = 0;
    for (; i + V <= n; i += V) {
        vec u[ROWS];
        for (int r = 0; r < rows; r++) u[r] = *(const vec *)(x[r] + i);
        for (int c = 0; c < side; c++) {
            vec v = *(const vec *)(y[c] + i);
            if (fetch) __builtin_prefetch(y[c] + i + BLOCK, 0, 2);
            for (int r = 0; r < rows; r++) sum[r][c] += (u[r] - v) * (u[r] - v);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < side; c++) {
            for (int v = 0; v < V; v++) found[r][c] += sum[r][c][v];
            for (long j = i; j < n; j++) found[r][c] += (double)(x[r][j] - y[c][j]) * (x[r][j] - y[c][j]);
        }
}

/* found[r][s] += ‖a_r - b_s‖² of R and S items of n entries: differences in floats, their sum in doubles */
static void distances(long R, long S, long n, const float **a, const float **b, double *found) {
    for (long at = 0; at < n; at += BLOCK)
        for (long r = 0; r < R; r += ROWS)
            for (long s = 0; s < S; s += SIDE) {
                const float *x[ROWS], *y[SIDE];
                double sum[ROWS][SIDE] = {0};
                for (long i = 0; i < ROWS; i++) x[i] = a[r + i < R ? r + i : R - 1] + at;
                for (long i = 0; i < SIDE; i++) y[i] = b[s + i < S ? s + i : S - 1] + at;
                square(ROWS, SIDE, x, y, n - at < BLOCK ? n - at : BLOCK, !r, sum);
                for (long i = 0; i < ROWS && r + i < R; i++)
                    for (long j = 0; j < SIDE && s + j < S; j++) found[(r + i) * S + s + j] += sum[i][j];
            }
}

/* The same, added over L layers of `sizes`. */
void fedpers_distances(long L, const long *sizes, long R, long S, const float **a, const float **b, double *found) {
    for (long l = 0; l < L; l++) distances(R, S, sizes[l], a + l * R, b + l * S, found);
}

/* found[p] += ‖a_p - b_p‖² of P pairs, over L layers of `sizes` */
void fedpers_distances_each(long L, const long *sizes, long P, const float **a, const float **b, double *found) {
    for (long l = 0; l < L; l++)
        for (long p = 0; p < P; p++)
            for (long at = 0, n = sizes[l]; at < n; at += BLOCK) {
                const float *x = a[l * P + p] + at, *y = b[l * P + p] + at;
                double sum[ROWS][SIDE] = {0};
                square(1, 1, &x, &y, n - at < BLOCK ? n - at : BLOCK, 0, sum);
                found[p] += sum[0][0];
            }
}

/* For each of C clients, `count` [C] rows x [n, M] with labels y [n]: the sums to [C, K, M] of the rows of each of K
   classes, and how many these are, n [C, K]; all zeros before. A label that is no class counts nowhere. */
void fedpers_class_sums(long C, const long *count, const float **x, const int64_t **y, long K, long M, float *to,
                        float *n) {
    for (long c = 0; c < C; c++, to += K * M, n += K)
        for (long i = 0; i < count[c]; i++) {
            const int64_t k = y[c][i];
            if (k < 0 || k >= K) continue;
            const float *from = x[c] + i * M;
            float *sum = to + k * M;
            long j = 0;
            for (; j + V <= M; j += V) *(vec *)(sum + j) += *(const vec *)(from + j);
            for (; j < M; j++) sum[j] += from[j];
            n[k] += 1;
        }
}
