#include "kernels/cpu/probe_body.h"

#include <stddef.h>

#ifdef __AVX512VNNI__
PROBE_LOOP(int8_loop, "vpdpbusd %%zmm15, %%zmm14, %%zmm\\r\n", 128)
PROBE_LOOP(f32_loop, "vfmadd231ps %%zmm15, %%zmm14, %%zmm\\r\n", 32)
PROBE_LOOP(pairs_loop, "vdpbf16ps %%zmm15, %%zmm14, %%zmm\\r\n", 64)

probe_loop *probe_avx512(enum probe_kind what)
{
    static probe_loop *const loops[] = {[PROBE_INT8] = int8_loop, [PROBE_F32] = f32_loop, [PROBE_PAIRS] = pairs_loop};
    return loops[what];
}
#else
probe_loop *probe_avx512(enum probe_kind what)
{
    (void)what;
    return NULL;
}
#endif
