/* cuBLASLt for products of many rows: its library is loaded when the first device opens (none: the caller's own kernels run), and what it chose for
 * a shape is kept. One per device, used by the device's thread. Never true: a choice looked up twice for one shape, unless another took its place. */
#ifndef CUDA_LT_H
#define CUDA_LT_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lt;

/* y[rows][outs] (+)= x[rows][cols] w[outs][cols]^T + bias; w and x in 16 bits, y and bias f32. */
struct lt_product {
    const void *w, *x;
    const float *bias;          /* or NULL */
    float *y;
    int outs, cols, rows;
    int ldw, ldx, ldy;          /* elements from row to row */
    bool f16, accumulate;
};

/* What a choice depends on; no padding, compared as bytes. */
struct lt_key {
    int32_t outs, cols, rows, ldw, ldx, ldy;
    int32_t flags;              /* f16, accumulate, bias */
    int32_t align_w, align_x, align_y; /* of the addresses: a power of two, 16 .. 256 */
};
struct lt_key lt_key_of(const struct lt_product *p);
uint32_t lt_hash(const struct lt_key *k);

/* NULL: the library is not here. */
struct lt *lt_open(void);
void lt_close(struct lt *l);    /* NULL is fine */
/* Bytes of device memory that lt_multiply needs to be given. */
size_t lt_workspace(void);
/* Enqueues the product. False: it cannot be had from the library, nothing was enqueued. */
bool lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);

#endif
