/* bfloat16 of CUDA C++ as far as kernels/cuda uses it: bits and rounding to nearest even. Never true: arithmetic on them. */
#ifndef EMULATOR_CUDA_BF16_H
#define EMULATOR_CUDA_BF16_H

#include <cstdint>

extern "C" uint16_t f32_to_bf16(float f);
struct __nv_bfloat16 {
    uint16_t bits;
};
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.bits;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return {f32_to_bf16(f)};
}

#include "tests/emulator/tensor_twins.h"

#endif
