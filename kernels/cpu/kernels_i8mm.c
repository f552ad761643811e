#ifdef __ARM_FEATURE_MATMUL_INT8
#include "kernels/cpu/vec_neon_i8mm.h"

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_i8mm(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("i8mm");
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_i8mm(void)
{
    return NULL;
}
#endif
