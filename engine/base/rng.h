/* Random numbers that are the same everywhere: splitmix64 streams and a counter-based draw. No global state. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline void rng_init(struct rng *r, uint64_t seed)
{
    r->state = seed;
}

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* [0, n) without bias worth naming (64-bit multiply-shift). */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return (uint64_t)((unsigned __int128)rng_next(r) * n >> 64);
}

/* [0, 1) with 53 bits. */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

/* The i-th draw of a stream, without state: what a sequence samples at position i depends on nothing else. */
static inline uint64_t rng_at(uint64_t seed, uint64_t i)
{
    struct rng r = {seed ^ (i + 1) * 0xd1342543de82ef95u};
    rng_next(&r);
    return rng_next(&r);
}

#endif
