#if defined(__AVX512VNNI__) || defined(CPU_INTRINSICS)
#include "kernels/cpu/vec_avx512.h"
#ifndef CPU_INTRINSICS
#include "kernels/cpu/vec_pairs.h"
#endif

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_avx512(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("avx512");
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_avx512(void)
{
    return NULL;
}
#endif
