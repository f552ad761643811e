/* The inner kernels of an encoder's ops, one table for each instruction set: portable, AVX2, AVX-512, NEON; the same
 * source (encode_body.h) over definitions of sixteen lanes. kernels/encode.h states the order of every sum. Any thread;
 * a kernel touches only what its arguments name. Invariant: the same bits from every table. */
#ifndef CPU_ENCODE_KERNELS_H
#define CPU_ENCODE_KERNELS_H

#include "kernels/encode.h"

enum {
    /* Levels of inputs: as many as let the sizes of a leaf add up to ENCODE_INPUT_SUM, so that its product with any
     * row of a matrix fits 32 bits whatever the rounding adds; and so many that the sum of an input and a weight fits
     * the 16 bits of a folded product. */
    ENCODE_INPUT_SUM = 524032,
    ENCODE_INPUT_LEVELS = 28672,
    ENCODE_GROUP = 16, /* rows of a matrix side by side: a lane is an output */
    ENCODE_ROWS = 128, /* rows of a work item: what a thread keeps in its cache through a layer */
    ENCODE_KEYS = 512, /* keys at once in attention */
    ENCODE_KEY_LD =
        ENCODE_KEYS + 16, /* of scores: rows a power of two apart would lie in the same lines of the cache */
    ENCODE_QUERIES = 512, /* queries of a work item */
    ENCODE_TILE = 8,      /* most rows at once in a kernel */
};

/* Group g holds rows 16g .. 16g+15 (the last one padded with zero rows): for each pair of columns, 16 pairs of
 * weights. Columns are padded to ENCODE_PAD with zeros. */
struct encode_matrix {
    int rows, cols, padded_cols, groups;
    int16_t *data;
    float *scale, *bias; /* [groups * 16] */
    int32_t *fold;       /* [groups][leaves][16]: encode_fold() of each row's leaf */
};

/* Rounded rows, as the kernels of one instruction set read them: for AVX2 four rows are laced, four columns of each in
 * turn. Rows are a multiple of four. */
struct encode_inputs {
    int16_t *q;    /* [rows][ldq] */
    float *d;      /* [rows][ldd] the scale of each leaf */
    int32_t *fold; /* [rows][ldd] encode_fold() of each leaf, where it is used */
    size_t ldq, ldd;
};

/* One head's queries over the keys of its sequence, ENCODE_KEYS at a time. */
struct encode_head {
    const float *q, *k, *v; /* row 0 of the queries; of the sequence */
    size_t ld;
    float *o; /* of the queries */
    size_t ldo;
    int n_q, n_keys, dim;
    struct encode_head_room *room;
};

/* A head's working memory, of one thread. Keys are the matrix of scores, [keys][dim], and values turned that of
 * answers, [dim][keys]: both products are those of linear layers. */
struct encode_head_room {
    struct encode_matrix keys, values;
    struct encode_inputs queries, weights; /* of all queries; of a tile of them */
    float *row;                            /* [ENCODE_LD(dim)] */
    int16_t *group;                        /* [ENCODE_GROUP][ENCODE_LD(dim)] rounded keys */
    float *scores;                         /* [ENCODE_TILE][ENCODE_KEY_LD] */
    float *part;                           /* [ENCODE_TILE][ENCODE_LD(dim)] answers over the keys at hand */
    float *o, *m, *l;                      /* of each query: [ENCODE_LD(dim)] sums, their exponent, their weight */
};

struct encode_kernels {
    const char *isa;
    /* y = norm(a + b), n columns; b NULL: of a alone; y may be either */
    void (*norm)(const float *a, const float *b, const struct encode_norm *norm, int n, float eps, float *y);
    /* gelu of n columns, a multiple of ENCODE_PAD and at most a leaf, to that leaf of row `row` of y; x is overwritten
     */
    void (*gelu)(float *x, int n, const struct encode_inputs *y, int row, int leaf);
    /* n columns, a multiple of ENCODE_PAD, to row `row` of y */
    void (*round)(const float *x, int n, const struct encode_inputs *y, int row);
    void (*linear)(const struct encode_matrix *w, const struct encode_inputs *x, int n, float *y, size_t ldy);
    void (*head)(const struct encode_head *h);
};

const struct encode_kernels *encode_kernels_portable(void);
const struct encode_kernels *encode_kernels_avx2(void); /* NULL when not built for this machine's family */
const struct encode_kernels *encode_kernels_avx512(void);
const struct encode_kernels *encode_kernels_neon(void);

/* Four columns a, b of an input and a weight take two products for four:
 *     a0 b0 + a1 b1 + a2 b2 + a3 b3 = (a0 + b2) (a2 + b0) + (a1 + b3) (a3 + b1) - (a0 a2 + a1 a3) - (b0 b2 + b1 b3)
 * (Winograd 1968). The last two terms, negated and summed over a leaf, are what this gives of each side. All of it
 * modulo 2^32, where the sum itself fits; so the result is exact. n: a multiple of 4; of step integers from one to the
 * next pair. */
static inline int32_t encode_fold(const int16_t *q, int n, int step)
{
    uint32_t sum = 0;
    for (int i = 0; i < n; i += 4, q += 2 * step)
        sum -= (uint32_t)(q[0] * q[step] + q[1] * q[step + 1]);
    return (int32_t)sum;
}

static inline size_t encode_leaves(int padded_cols)
{
    return ((size_t)padded_cols + ENCODE_LEAF - 1) / ENCODE_LEAF;
}

/* Groups [first, end) of a matrix as a matrix. */
struct encode_matrix encode_matrix_part(const struct encode_matrix *m, int first, int end);

/* ENCODE_GROUP rounded rows of cols columns, a multiple of 8, to a group of a matrix. */
void encode_put_group(int16_t *to, const int16_t *rows, int cols);

/* Lays the room out from base on and returns its bytes; base NULL: only those. */
size_t encode_head_room(struct encode_head_room *r, uint8_t *base, int dim);

#endif
