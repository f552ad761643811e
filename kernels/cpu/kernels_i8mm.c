#ifdef __ARM_FEATURE_MATMUL_INT8
#include "kernels/cpu/vec_neon_i8mm.h"

#include "kernels/cpu/linear_body.h"
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/attention_body.h"

const struct cpu_kernels *cpu_kernels_i8mm(void)
{
    static const struct cpu_kernels kernels = {
        .isa = "i8mm",
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

const struct cpu_kernels *cpu_kernels_i8mm(void)
{
    return NULL;
}
#endif
