/* The inner kernels of an encoder's ops, one table for each instruction set: portable, AVX2, AVX-512; the same source
 * (encode_body.h) over three definitions of sixteen lanes. kernels/encode.h states the order of every sum. Any thread;
 * a kernel touches only what its arguments name. Invariant: the same bits from every table. */
#ifndef CPU_ENCODE_KERNELS_H
#define CPU_ENCODE_KERNELS_H

#include "kernels/encode.h"

enum {
    ENCODE_GROUP = 16,                /* rows of a matrix side by side: a lane is an output */
    ENCODE_ROWS = 64,                 /* rows of a work item: what a thread keeps in its cache through a layer */
    ENCODE_KEYS = 512,                /* keys at once in attention */
    ENCODE_KEY_LD = ENCODE_KEYS + 16, /* from one column of the turned keys to the next: a power of two would put all
                                         of them into the same lines of the cache */
    ENCODE_QUERIES = 512,             /* queries of a work item */
    ENCODE_TILE = 8,                  /* most rows at once in a kernel */
};

/* Group g holds rows 16g .. 16g+15 (the last one padded with zero rows): for each pair of columns, 16 pairs of
 * weights. Columns are padded to ENCODE_PAD with zeros. */
struct encode_matrix {
    int rows, cols, padded_cols, groups;
    int16_t *data;
    float *scale, *bias; /* [groups * 16] */
};

struct encode_inputs { /* rounded rows */
    int16_t *q;        /* [n][ldq] */
    float *d;          /* [n][ldd] the scale of each leaf */
    size_t ldq, ldd;
};

/* One head's queries over the keys of its sequence, ENCODE_KEYS at a time. */
struct encode_head {
    const float *q, *k, *v; /* row 0 of the queries; of the sequence */
    size_t ld;
    float *o; /* of the queries */
    size_t ldo;
    int n_q, n_keys, dim;
    float *room; /* encode_head_floats() */
};

struct encode_kernels {
    const char *isa;
    /* y = norm(a + b), n columns; b NULL: of a alone; y may be either */
    void (*norm)(const float *a, const float *b, const struct encode_norm *norm, int n, float eps, float *y);
    void (*gelu)(float *x, int n); /* n a multiple of 16 */
    /* n a multiple of ENCODE_PAD; d: one for each leaf */
    void (*round)(const float *x, int n, int16_t *q, float *d);
    void (*linear)(const struct encode_matrix *w, const struct encode_inputs *x, int n, float *y, size_t ldy);
    void (*head)(const struct encode_head *h);
};

const struct encode_kernels *encode_kernels_portable(void);
const struct encode_kernels *encode_kernels_avx2(void); /* NULL when not built for this machine's family */
const struct encode_kernels *encode_kernels_avx512(void);

static inline size_t encode_padded_dim(int dim)
{
    return ((size_t)dim + 15) / 16 * 16;
}

/* Floats of a head's working memory: keys turned, values, a tile of scores, queries, and the state of each query. */
static inline size_t encode_head_floats(int dim)
{
    size_t padded = encode_padded_dim(dim);
    return (size_t)ENCODE_KEY_LD * (2 * padded + ENCODE_TILE) + (size_t)ENCODE_QUERIES * (2 * padded + 2);
}

#endif
