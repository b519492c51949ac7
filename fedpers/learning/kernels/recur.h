/* The models of recur.c: what they turn into after 0, 1, .. steps, where they are, and the memory of a call. */
#pragma once
#include "passes.h"

enum { FEW = 16, MANY = 64 }; /* steps that are made at once, by the first layer's outputs */

typedef struct {
    long m, Q, H;                                     /* models, points, steps that are made at once */
    const double *moves, *points, *signs, *gains;
    double *power;                                    /* [m][m] */
    float *at;                                        /* [H][Q][m] share of a model in a point, steps later */
    float *lag;                                       /* [Q][H] share of a gradient in it, steps later */
    float *end[2];                                    /* [m][m] the moves of H steps, and of the last ones */
    float *left;                                      /* [m][H] share of a gradient in a model, steps later */
    int *moving, *learns, *hears;                     /* [m], [m] by gradients, [Q] of any gradient */
} motion;

typedef struct {
    long L, P, m;
    const long *width;
    float **own;         /* [m][P] weight and bias of each layer in turn, rows padded; null if absent */
    float **point;       /* [P] the models' part of a point, without the first layer */
    float *z, *gram;     /* [m][H] rows: outputs of the models' first layers; [H][H] */
    float **x, **d;      /* [L] histories [H][Q] of inputs and derivatives; of the first layer [H], of both points */
    const float **in;    /* [H] the samples, the last one repeated */
    const float **list;
    float *fresh, *part; /* [m] rows of a matrix; derivatives times shares */
    float *rows;         /* [H] the samples, padded */
} place;

/* Shares of models and gradients after 0, 1, .. steps. */
static void foresee(motion *h, long last) {
    long m = h->m;
    double row[m], next[m];
    for (long q = 0; q < h->Q; q++) {
        h->hears[q] = 0;
        memcpy(row, h->points + q * m, sizeof row);
        for (long t = 0; t < h->H; t++) {
            double lag = 0;
            memset(next, 0, sizeof next);
            for (long k = 0; k < m; k++) {
                h->at[(t * h->Q + q) * m + k] = row[k];
                lag += row[k] * h->gains[k];
                for (long j = 0; j < m; j++) next[j] += row[k] * h->moves[k * m + j];
            }
            h->lag[q * h->H + t] = lag;
            h->hears[q] |= lag != 0;
            memcpy(row, next, sizeof row);
        }
    }
    double *power = h->power;
    for (long i = 0; i < m; i++)
        for (long k = 0; k < m; k++) power[i * m + k] = i == k;
    for (long t = 0; t <= h->H; t++) {
        for (long i = 0; i < m; i++) {
            double now = 0;
            for (long k = 0; k < m; k++) {
                now += power[i * m + k] * h->gains[k];
                if (t == last) h->end[1][i * m + k] = power[i * m + k];
                if (t == h->H) h->end[0][i * m + k] = power[i * m + k];
                if (t == 1 && power[i * m + k] != (i == k)) h->moving[i] = 1;
            }
            if (t < h->H) h->left[i * h->H + t] = now;
            if (now != 0) h->moving[i] = h->learns[i] = 1;
        }
        for (long i = 0; i < m; i++) { /* row i of power times moves */
            memset(next, 0, sizeof next);
            for (long k = 0; k < m; k++)
                for (long j = 0; j < m; j++) next[j] += power[i * m + k] * h->moves[k * m + j];
            memcpy(power + i * m, next, sizeof next);
        }
    }
}

static long outs_at(const place *n, long p) { return p % 2 ? 1 : n->width[p / 2 + 1]; }
static long wide_at(const place *n, long p) { return WIDE(n->width[p / 2 + p % 2]); }

/* Where client c's models are, copied if they move or have to be padded; or back to where they go. */
static void carry(place *n, const motion *h, const float **from, const long *hop, float **to, float **room, long c,
                  int back) {
    for (long at = 0; at < n->m * n->P; at++) {
        long p = at % n->P, ins = n->width[p / 2 + p % 2], outs = outs_at(n, p), wide = wide_at(n, p);
        const float *mine = from[at] + c * hop[at];
        if (!from[at] || (back && !to[at])) continue;
        float *its = to[at] ? to[at] + c * outs * ins : 0;
        if (!back) n->own[at] = wide != ins || (h->moving[at / n->P] && !its) ? room[at] : its ? its : (float *)mine;
        float *own = n->own[at];
        if (back ? own == its : own == mine) continue;
        for (long r = 0; r < outs; r++)
            memcpy(back ? its + r * ins : own + r * wide, back ? own + r * wide : mine + r * ins, sizeof(float) * ins);
    }
}

static void *room_for(void **all, long *used, long bytes) {
    char *p = *all ? (char *)*all + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Share out `all`; with a null pointer only count. Bytes that it takes. */
static long share_room(void *all, place *n, motion *h, float **room, const float **from, float **to) {
    long used = 0, m = n->m, L = n->L, e = h->H * h->Q, widest = 0, f = sizeof(float);
#define ROOM(bytes) room_for(&all, &used, bytes)
    for (long l = 0; l <= L; l++) widest = WIDE(n->width[l]) > widest ? WIDE(n->width[l]) : widest;
    for (long at = 0; at < m * n->P; at++) {
        long p = at % n->P, ins = n->width[p / 2 + p % 2];
        int copied = from[at] && (wide_at(n, p) != ins || !to[at]);
        float *mine = ROOM(copied ? outs_at(n, p) * wide_at(n, p) * f : 0);
        if (room) room[at] = mine;
    }
    for (long p = 0; p < n->P; p++) {
        float *mine = ROOM(p > 1 ? outs_at(n, p) * wide_at(n, p) * f : 0);
        if (all) n->point[p] = mine;
    }
    for (long l = 0; l < L; l++) {
        float *x = ROOM(l ? e * WIDE(n->width[l]) * f : 0), *d = ROOM(e * WIDE(n->width[l + 1]) * f);
        if (all) {
            n->x[l] = x;
            n->d[l] = d;
        }
    }
    n->z = ROOM(m * (h->H + ROWS) * WIDE(n->width[1]) * f);
    n->gram = ROOM((h->H + ROWS) * WIDE(h->H) * f);
    n->fresh = ROOM((m * OUTS + 1) * widest * f);
    n->part = ROOM((m * e + 1) * widest * f);
    n->rows = ROOM(h->H * WIDE(n->width[0]) * f);
    h->power = ROOM(m * m * sizeof(double));
    h->at = ROOM(e * m * f);
    h->lag = ROOM(e * f);
    h->end[0] = ROOM(m * m * f);
    h->end[1] = ROOM(m * m * f);
    h->left = ROOM(m * h->H * f);
    h->moving = ROOM((2 * m + h->Q) * sizeof(int));
    h->learns = h->moving + m;
    h->hears = h->learns + m;
    n->in = ROOM((h->H + ROWS) * sizeof(float *));
    n->list = ROOM(e * sizeof(float *));
    return used;
}
