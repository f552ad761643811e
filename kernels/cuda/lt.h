/* cuBLASLt, for products of many rows. The library is loaded when the first device opens; without it the backend's own
 * kernels run. What it proposes for a shape is kept. One per device, used by the device's thread. Invariant: a shape
 * is looked up once, unless another one has taken its place in the cache. */
#ifndef CUDA_LT_H
#define CUDA_LT_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lt;

/* fp8: E4M3 codes with scales for each row of w and x, or for 128 x 128 elements of w and 128 columns of a row of x. */
enum lt_factors { LT_BF16, LT_F16, LT_F8_ROWS, LT_F8_BLOCKS };

/* y[rows][outs] (+)= x[rows][cols] w[outs][cols]^T + bias; w and x of one kind, y and bias f32, or (half) y bf16,
 * without a bias. fp8 has no bias here; its matrices, rows and scales begin at multiples of 16 bytes, outs and cols are
 * multiples of 16, and of LT_F8_BLOCKS rows of 4. */
struct lt_product {
    const void *w, *x;
    const float *w_scales, *x_scales; /* fp8: [outs], [rows]; or [outs / 128][cols / 128, a multiple of 4], [cols /
                                         128][rows]; quotients are rounded up */
    const float *bias;                /* or NULL */
    void *y;
    int outs, cols, rows;
    int ldw, ldx, ldy; /* elements from row to row */
    enum lt_factors factors;
    bool accumulate, half;
    int proposal; /* of the library's, the best first; where it has fewer, its last */
};
enum { LT_PROPOSALS = 3 };

/* What a choice depends on; no padding, compared as bytes. */
struct lt_key {
    int32_t outs, cols, rows, ldw, ldx, ldy;
    int32_t flags;                     /* factors, accumulate, bias, half */
    int32_t align_w, align_x, align_y; /* of the addresses: a power of two, 16 .. 256 */
};
struct lt_key lt_key_of(const struct lt_product *p);
uint32_t lt_hash(const struct lt_key *k);

/* capability: of the device, 90 is 9.0. NULL: the library is not here. */
struct lt *lt_open(int capability);
void lt_close(struct lt *l); /* NULL is fine */
/* As the library counts it: 130100 is 13.1.0. */
int lt_version(const struct lt *l);
/* Bytes of device memory that lt_multiply needs to be given. */
size_t lt_workspace(void);
/* Products of LT_F8_ROWS and LT_F8_BLOCKS can be asked for: on devices of capability 9.0, from version 12.9 on. lt: or
 * NULL. */
bool lt_multiplies_f8(const struct lt *l);
/* From now on no product of these is done: lt_can says no. */
void lt_forbid(struct lt *l, enum lt_factors factors);
/* Does the library have an algorithm for it? */
bool lt_can(struct lt *l, const struct lt_product *p);
/* Enqueues the product. False: the library has no algorithm for it, and nothing was enqueued. */
bool lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);

#endif
