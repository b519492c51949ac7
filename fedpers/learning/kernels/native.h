/* Registers of floats, for all kernels. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/mixtures.h"

#define WIDE(n) (((n) + V - 1) / V * V)
typedef float half __attribute__((vector_size(2 * V), aligned(4)));
typedef int32_t ihalf __attribute__((vector_size(2 * V)));
typedef float four __attribute__((vector_size(16)));
typedef int32_t ifour __attribute__((vector_size(16)));
enum { CLASSES, BINARY, REGRESSION }; /* tasks */

#ifdef __clang__
#define SHUFFLE(lanes, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(lanes, a, b, ...) __builtin_shuffle(a, b, (lanes){__VA_ARGS__})
#endif
#define FOUR(a, b, ...) SHUFFLE(ifour, a, b, __VA_ARGS__)

INLINE four quarter(vec v) {
    union { vec v; four q[V / 4]; } u = {v};
    four s = u.q[0] + u.q[1];
    if (V == 16) s += u.q[2 % (V / 4)] + u.q[3 % (V / 4)];
    return s;
}

/* The sum of a register's floats. */
INLINE float add_up(vec v) {
    four s = quarter(v);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

#if V == 16
/* Halves of a and of b, whose quarters are added: a third of the shuffles that `quarter` of each takes. */
INLINE vec fold(vec a, vec b) {
    return SHUFFLE(ivec, a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           SHUFFLE(ivec, a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/* `add_up` of four registers, in the same order. */
INLINE four add_up_four(const vec *v) {
    vec t = fold(fold(v[0], v[1]), fold(v[2], v[3]));
    t += SHUFFLE(ivec, t, t, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    t += SHUFFLE(ivec, t, t, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    union { vec v; four q[4]; } u = {SHUFFLE(ivec, t, t, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12)};
    return u.q[0];
}
#else
/* `add_up` of four registers. */
INLINE four add_up_four(const vec *v) {
    four a = quarter(v[0]), b = quarter(v[1]), c = quarter(v[2]), d = quarter(v[3]);
    four ab = FOUR(a, b, 0, 2, 4, 6) + FOUR(a, b, 1, 3, 5, 7), cd = FOUR(c, d, 0, 2, 4, 6) + FOUR(c, d, 1, 3, 5, 7);
    return FOUR(ab, cd, 0, 2, 4, 6) + FOUR(ab, cd, 1, 3, 5, 7);
}
#endif

INLINE vec pick(ivec yes, vec a, vec b) { return (vec)(((ivec)a & yes) | ((ivec)b & ~yes)); }
