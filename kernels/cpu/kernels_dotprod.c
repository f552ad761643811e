#ifdef __ARM_FEATURE_DOTPROD
#include "kernels/cpu/vec_neon_dotprod.h"

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_dotprod(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("dotprod");
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_dotprod(void)
{
    return NULL;
}
#endif
