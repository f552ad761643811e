#ifdef __AVX2__
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_avx2(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("avx2");
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_avx2(void)
{
    return NULL;
}
#endif
