#ifdef __aarch64__
#include "kernels/cpu/vec_neon_wide.h"

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_neon(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("neon");
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_neon(void)
{
    return NULL;
}
#endif
