/* The most that a core can do: multiply-adds on registers, enough of them side by side to hide their latency. */
#ifdef __AVX512F__
#define V 16
#else
#define V 8
#endif
typedef float vec __attribute__((vector_size(4 * V)));
volatile float kept;

/* The asm keeps each chain in a register and apart from the others. */
#define CHAINS(DO) DO(a) DO(b) DO(c) DO(d) DO(e) DO(f) DO(g) DO(h)
#define START(x) vec x = {0};
#define STEP(x) x = x * by + add; __asm__("" : "+v"(x));
#define KEEP(x) kept = x[0];

/* Multiply and add `rounds` times in each chain; returns the floating-point operations that took. */
double multiply_adds(long rounds) {
    vec by = {0}, add = {0};
    by += 0.999f;
    add += 0.001f;
    CHAINS(START)
    for (long i = 0; i < rounds; i++) { CHAINS(STEP) }
    CHAINS(KEEP)
    return 2.0 * V * 8 * rounds;
}
