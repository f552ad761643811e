#include "kernels/cpu/probe_body.h"

#include <stddef.h>

#ifdef __AVX512VNNI__
PROBE_LOOP(int8_loop, "vpdpbusd %%zmm15, %%zmm14, %%zmm\\r\n", 128)
PROBE_LOOP(f32_loop, "vfmadd231ps %%zmm15, %%zmm14, %%zmm\\r\n", 32)

probe_loop *probe_avx512(enum probe_kind what)
{
    return what == PROBE_INT8 ? int8_loop : what == PROBE_F32 ? f32_loop : NULL;
}
#else
probe_loop *probe_avx512(enum probe_kind what)
{
    (void)what;
    return NULL;
}
#endif
