#ifdef __aarch64__
#include "kernels/cpu/vec_neon_wide.h"

#include "kernels/cpu/linear_body.h"
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/attention_body.h"

const struct cpu_kernels *cpu_kernels_neon(void)
{
    static const struct cpu_kernels kernels = {
        .isa = "neon",
        .norm_row = norm_row,
        .swiglu_row = swiglu_row,
        .quantise_row = quantise_row,
        .round_row = round_row,
        .lace = lace,
        .linear = linear_kernel,
        .attend = attend,
        .fold = fold,
        .attend_finish = attend_finish,
        .to_cache = to_cache,
    };
    return &kernels;
}
#else
#include "kernels/cpu/kernels.h"

const struct cpu_kernels *cpu_kernels_neon(void)
{
    return NULL;
}
#endif
