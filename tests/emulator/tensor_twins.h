/* Twins of the tensor core instructions of kernels/cuda/tensor.h: the same operands in the same lanes, sums in f32 over k ascending, where a real core adds in an order of its own.
 * Never true: a twin that is right for another distribution over the lanes. */
#ifndef EMULATOR_TENSOR_TWINS_H
#define EMULATOR_TENSOR_TWINS_H

#define TENSOR_TWINS
#include <cstring>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum class half_type;

/* Every lane's word. */
static inline void emulator_all(uint32_t mine, uint32_t all[32])
{
    emulator_gather(mine, all);
}

template <typename H> static inline float emulator_half(H is_f16, uint32_t pair, int k)
{
    uint16_t h = (uint16_t)(pair >> (k % 2 ? 16 : 0));
    return is_f16 ? f16_to_f32(h) : __uint_as_float((uint32_t)h << 16);
}

template <half_type H> static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    uint32_t as[4][32], bs[2][32];
    bool is_f16 = (int)H == 0;
    int g = emulator_lane() / 4, q = emulator_lane() % 4;
    for (int i = 0; i < 4; i++)
        emulator_all(a[i], as[i]);
    for (int i = 0; i < 2; i++)
        emulator_all(b[i], bs[i]);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            int row = i / 2, col = 2 * q + i % 2;
            float x = emulator_half(is_f16, as[row + (k >= 8 ? 2 : 0)][g * 4 + k % 8 / 2], k);
            float y = emulator_half(is_f16, bs[k >= 8][col * 4 + k % 8 / 2], k);
            d[i] = d[i] + x * y;
        }
}

static inline void load_transposed(uint32_t d[2], const void *row)
{
    uint32_t low[32], high[32];
    uint64_t at = (uint64_t)(uintptr_t)row;
    int g = emulator_lane() / 4, q = emulator_lane() % 4;
    emulator_all((uint32_t)at, low);
    emulator_all((uint32_t)(at >> 32), high);
    for (int i = 0; i < 2; i++) {
        uint16_t h[2];
        for (int k = 0; k < 2; k++) {
            int lane = 8 * i + 2 * q + k;
            memcpy(&h[k], (const char *)(uintptr_t)((uint64_t)high[lane] << 32 | low[lane]) + 2 * g, 2);
        }
        d[i] = (uint32_t)h[0] | (uint32_t)h[1] << 16;
    }
}

#endif
