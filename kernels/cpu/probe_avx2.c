#include "kernels/cpu/probe_body.h"

#include <stddef.h>

#ifdef __AVX2__
/* 32 products and 32 sums, the way 4-bit weights are multiplied: each vpmaddubsw with the vpaddw that it needs. */
PROBE_LOOP(int8_loop, "vpmaddubsw %%ymm15, %%ymm14, %%ymm13\nvpaddw %%ymm13, %%ymm\\r, %%ymm\\r\n", 64)
PROBE_LOOP(f32_loop, "vfmadd231ps %%ymm15, %%ymm14, %%ymm\\r\n", 16)

probe_loop *probe_avx2(enum probe_kind what)
{
    return what == PROBE_INT8 ? int8_loop : what == PROBE_F32 ? f32_loop : NULL;
}
#else
probe_loop *probe_avx2(enum probe_kind what)
{
    (void)what;
    return NULL;
}
#endif
