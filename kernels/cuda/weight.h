/* Matrices as the CUDA backend stores them on the device. Plain addresses, made at load by the rank's thread,
 * immutable afterwards, read by kernels. Invariant: a weight keeps the precision of its file; none is widened in
 * memory.
 *
 * F32, F16, BF16: rows as stored, `stride` columns apart.
 *
 * Scaled fp8: the codes of block b (32 columns) of row r are at q + 32 i, where i = r * blocks + b. Two blocks share
 * an f32 scale, at s + 4 (i / 2).
 *
 * Quantised types, for block b (32 columns) of row r, where i = r * blocks + b:
 *
 *   q  16 bytes (32 for 8 bits) at i. Byte j has element j in its low nibble and element j + 16 in its high nibble;
 *      8 bits: element j.
 *   h  5 bits: a u32 at i, whose bit j is the fifth bit of element j.
 *      6 bits: two u32 at i, where bits 2j.. of word k are the upper bits of element 16k + j.
 *   s  f16 d, or f16 d and f16 m, at i.
 *      K types: two bytes at i (scale and minimum; 6 bits: the int8 scales of the two halves).
 *   d  K types: f16 d and f16 dmin (6 bits: f16 d) at r * (blocks / 8) + b / 8. */
#ifndef CUDA_WEIGHT_H
#define CUDA_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

enum { BLOCK_COLS = 32, LEAF_COLS = 64, WEIGHT_PAD = 64 };

/* What the kernels tell apart. The first three lie as stored, and the first four are multiplied as floats in invariant
 * mode. U: unsigned bits and a zero point; M: with a min; S: signed; K: scales of 256-column blocks. */
enum family { FAM_F32, FAM_F16, FAM_BF16, FAM_F8, FAM_U4, FAM_U4M, FAM_U5, FAM_U5M, FAM_S8, FAM_K4, FAM_K5, FAM_K6 };

struct weight_planes {
    const void *q, *h, *s, *d; /* float types: q alone */
    int cols, blocks;          /* of a row */
    int stride;                /* float types: elements from row to row */
    enum family family;
    enum f8_scales scales; /* of fp8 */
};

/* 32 quantised inputs, as the CPU backend has them: x ~ d * q; s = d * sum of q. */
struct quant_meta {
    float d, s;
    int32_t sum, half[2];
};

#endif
