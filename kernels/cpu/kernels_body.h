/* All kernels of an instruction set, and the table of them: included by each kernels_*.c after its lanes (vec_*.h). */
#ifndef CPU_KERNELS_BODY_H
#define CPU_KERNELS_BODY_H

#include "kernels/cpu/linear_body.h"
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/attention_body.h"

#define KERNELS_TABLE(name)                                                                                            \
    {                                                                                                                  \
        .isa = name, .norm_row = norm_row, .swiglu_row = swiglu_row, .quantise_row = quantise_row,                     \
        .round_row = round_row, .lace = lace, .linear = linear_kernel, .attend = attend, .fold = fold,                 \
        .attend_finish = attend_finish, .to_cache = to_cache,                                                          \
    }

#endif
