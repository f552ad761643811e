#include "kernels/cpu/probe.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include <immintrin.h>

enum { TILE_LOOPS = 20000, TILE_CHAINS = 4, TILE_OPS = 2 * 16 * 16 * 16 };

/* All tiles of 16 rows of 64 bytes. */
static void configure(void)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* gcc 12 thinks that loadconfig reads 8 bytes */
    _tile_loadconfig(&c);
}

/* Four chains of sums, over zeros; each: operations for each of a row's 64 bytes. */
#define TILE_LOOP(name, step, each)                                                                                    \
    static double name(void)                                                                                           \
    {                                                                                                                  \
        configure();                                                                                                   \
        for (int i = 0; i < TILE_LOOPS; i++) {                                                                         \
            step(0, 4, 5);                                                                                             \
            step(1, 4, 5);                                                                                             \
            step(2, 4, 5);                                                                                             \
            step(3, 4, 5);                                                                                             \
        }                                                                                                              \
        _tile_release();                                                                                               \
        return (double)(each)*TILE_OPS * TILE_LOOPS * TILE_CHAINS;                                                     \
    }
TILE_LOOP(int8_loop, _tile_dpbssd, 4)
TILE_LOOP(pairs_loop, _tile_dpbf16ps, 2)

probe_loop *probe_amx(enum probe_kind what)
{
    return what == PROBE_INT8 ? int8_loop : what == PROBE_PAIRS ? pairs_loop : NULL;
}
#else
probe_loop *probe_amx(enum probe_kind what)
{
    (void)what;
    return NULL;
}
#endif
