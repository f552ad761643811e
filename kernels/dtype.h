/* Element types of stored tensors. A quantised type is a run of blocks, `block` elements in `bytes` bytes, laid out as
 * in GGUF files. DT_F8_SCALED is made at load: an f32 scale, then 64 codes of E4M3. DT_F8 is the codes alone, for
 * caches, and DT_I8 integers of -127 .. 127, whose scales the cache has elsewhere. Pure tables, any thread. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DT_F32,
    DT_F16,
    DT_BF16,
    DT_Q4_0,
    DT_Q4_1,
    DT_Q5_0,
    DT_Q5_1,
    DT_Q8_0,
    DT_IQ4_NL,
    DT_IQ4_XS,
    DT_Q2_K,
    DT_Q3_K,
    DT_Q4_K,
    DT_Q5_K,
    DT_Q6_K,
    DT_F8_SCALED,
    DT_F8,
    DT_I8,
    DT_COUNT,
    DT_MATRICES = DT_F8, /* those before it are types of matrices */
};

/* What the scales of a matrix of DT_F8_SCALED are known to share: nothing; each row has one; each 128 x 128 elements
 * have one. */
enum f8_scales { F8_BY_64, F8_BY_ROW, F8_BY_BLOCK };
enum { F8_SCALE_BLOCK = 128 };

struct dtype_info {
    const char *name;
    int block; /* elements per block; 1 for plain types */
    int bytes; /* bytes per block */
};

/* What the four bits of IQ4_NL and IQ4_XS stand for. */
enum { DTYPE_CODES = 16 };
extern const int8_t dtype_codes[DTYPE_CODES];

const struct dtype_info *dtype_get(enum dtype t);
/* Bytes of one row of `cols` elements; cols must be a multiple of the block. */
size_t dtype_row_bytes(enum dtype t, int64_t cols);
/* Widens one row to f32, straight from the format's definition: the reference for every packed kernel. */
void dtype_to_f32(enum dtype t, const void *src, float *dst, int64_t n);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even */
static inline float bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t f32_to_bf16(float f); /* round to nearest even, NaN kept */

/* E4M3 as in "FP8 Formats for Deep Learning": bias 7, subnormals, no infinity, NaN where all seven lower bits are set;
 * at most 448. */
float f8_to_f32(uint8_t code);
uint8_t f32_to_f8(float f); /* round to nearest even; what is larger than 448 becomes 448, NaN stays */

#endif
