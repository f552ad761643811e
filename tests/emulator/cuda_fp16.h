/* Half floats of CUDA C++ as far as kernels/cuda uses them: their bits and the two conversions, rounding to nearest
 * even. No arithmetic on halves is here. */
#ifndef EMULATOR_CUDA_FP16_H
#define EMULATOR_CUDA_FP16_H

#include <cstdint>

extern "C" float f16_to_f32(uint16_t h);
extern "C" uint16_t f32_to_f16(float f);
struct __half {
    uint16_t bits;
};
static inline __half __ushort_as_half(uint16_t h)
{
    return {h};
}
static inline uint16_t __half_as_ushort(__half h)
{
    return h.bits;
}
static inline float __half2float(__half h)
{
    return f16_to_f32(h.bits);
}
static inline __half __float2half_rn(float f)
{
    return {f32_to_f16(f)};
}

#endif
