/* The ops of an encoder: the seam between models/encode and a machine, as backend.h is that of the forward pass of a
 * generating model. Whole sequences lie row after row, without padding; everything is computed in one call and nothing
 * is kept between calls. kernels/cpu has the one table there is. A device is one thread's, with helpers of its own;
 * a matrix is immutable and any number of devices use it at once.
 *
 * Rows are f32 and ENCODE_LD(columns) apart; the columns past the last are 0, before and after every op.
 *
 * Arithmetic contract: a row of a result depends on its own row, and in attention on its own sequence; not on the other
 * rows, the number of threads or the instruction set, bit for bit. Linear layers are products of integers: each row of
 * a matrix is rounded to -4095 .. 4095 at a scale of its own, and each ENCODE_LEAF columns of an input row as finely as
 * the sum of their sizes lets them, so that the products of a leaf, added up exactly, fit 32 bits; leaves are added in
 * ascending order as floats. 13 bits, since 8 bits turn vectors by more than cosine 0.9999. Attention is the same: of
 * the keys of a head each is a row of a matrix, and of the values each column; queries and the weights of keys are
 * inputs. An infinity or a NaN makes all NaN that is computed from its row or leaf. */
#ifndef KERNELS_ENCODE_H
#define KERNELS_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/dtype.h"

enum { ENCODE_LEAF = 512, ENCODE_LEVELS = 4095, ENCODE_PAD = 32 };
#define ENCODE_LD(columns) (((size_t)(columns) + ENCODE_PAD - 1) / ENCODE_PAD * ENCODE_PAD)

struct encode_device;
struct encode_matrix; /* of a linear layer, with its bias */

/* Rows of a matrix as a file has them; several lie one below the other. */
struct encode_part {
    enum dtype type;
    const void *data; /* [rows][cols], of any alignment */
    int rows;
    const float *bias; /* [rows], or NULL */
};

struct encode_opts {
    int n_threads;   /* the caller's own included */
    const char *isa; /* as in struct device_opts of kernels/backend.h */
    int hidden, ffn, n_heads;
    float eps;
};

struct encode_norm {
    const float *gain, *bias; /* [ENCODE_LD(hidden)], 0 past the columns */
};

/* x = norm(word + position + type) */
struct encode_embed {
    enum dtype word_type;
    const uint8_t *words;           /* [vocab][hidden] */
    const float *positions, *types; /* [][ENCODE_LD(hidden)] */
    struct encode_norm norm;
    const int32_t *ids, *row_position, *row_type; /* [rows] */
    int rows;
    float *x;
};

/* Attention within each sequence, both ways. */
struct encode_attend {
    const float *qkv;    /* [rows][ENCODE_LD(3 * hidden)]: queries, keys, values */
    const int32_t *row0; /* [n_seqs + 1] first row of each, and the end */
    int n_seqs;
    float *o; /* [rows][ENCODE_LD(hidden)] */
};

/* What follows attention in a layer (post-norm): u = norm1(x + out o); x = norm2(u + down gelu(up u)); and where there
 * is a next layer, its qkv = W x. gelu(x) = x (1 + erf(x / sqrt 2)) / 2. */
struct encode_block {
    const struct encode_matrix *out, *up, *down, *next; /* next: NULL for none */
    struct encode_norm norm1, norm2;
    const float *o;
    float *x, *qkv;
    int rows;
};

struct encode_ops {
    /* E_INPUT: a weight is no finite number; E_FULL: no memory. */
    int (*matrix_new)(struct encode_matrix **out, const struct encode_part *parts, int n_parts, int cols,
                      struct err *e);
    void (*matrix_free)(struct encode_matrix *m); /* NULL is fine */
    /* E_INPUT, E_UNSUPPORTED: the instruction set; E_FULL: memory or threads. */
    int (*open)(struct encode_device **out, const struct encode_opts *o, struct err *e);
    void (*close)(struct encode_device *d); /* NULL is fine */
    const char *(*isa)(const struct encode_device *d);
    void (*embed)(struct encode_device *d, const struct encode_embed *a);
    /* y = W x + bias, of the matrix's rows and columns */
    void (*linear)(struct encode_device *d, const struct encode_matrix *w, const float *x, float *y, int rows);
    void (*attend)(struct encode_device *d, const struct encode_attend *a);
    void (*block)(struct encode_device *d, const struct encode_block *a);
};

const struct encode_ops *encode_cpu(void);

#endif
