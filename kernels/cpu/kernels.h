/* The inner kernels of the CPU backend, one table for each instruction set: portable, AVX2 and AVX-512, and NEON by
 * itself, with dot products (SDOT) and with I8MM (SMMLA). All of them are the same source (the *_body.h files) over
 * definitions of sixteen lanes (vec_*.h), so they do the same operations in the same order. Any thread; a kernel
 * touches only what its job names. Invariant: the result is the same bits however the work is cut into jobs.
 *
 * The order of the sums:
 *
 * - Linear layers. An output is the sum over leaves of 64 columns of the matrix, by absolute column whatever the
 *   window. A leaf starts from 0. Quantised weights add, for each 32 columns in ascending order (16 for Q2_K, Q3_K,
 * Q6_K), fma(d_w * d_x, (float)dot, acc) and then, where the type has a minimum, fma(m_w, d_x * sum_x, acc) (of Q2_K
 * for both halves of the 32); the dot products are exact integers. Float weights add fma(w, x, acc) for each column in
 * ascending order. Scaled fp8 does the same over its codes and then multiplies the leaf by its scale. Fast inputs of
 * F16 and BF16 weights are rounded to bfloat16, as the weights are, and what is less than 2^-50 is zero; of each pair
 * of columns the odd one is added first. (By tiles of AMX, whatever the rows: for each 32 columns the products of the
 * even ones are added from 0, so are those of the odd ones, then both sums to each other, and that to the leaf.)
 * - Leaves are added in the binary tree over their absolute index: node [a, m) + node [m, b), where b - a is a power
 *   of two and a is a multiple of it. Absent leaves are skipped. So a rank that holds the leaves [a, b) computes whole
 *   nodes, and the nodes of several ranks add up to the same bits. The bias is added next, then the old y when
 *   accumulating.
 * - Attention, for each kv head and query: leaves of 128 absolute positions. In a leaf, m is the maximum of the scores
 *   and p = 2^(s - m); l is the sum of p over 16 lanes (position mod 16), which are added in the fixed tree of vf_sum;
 *   o is an fma over positions in ascending order. Leaves are folded in ascending order. The positions of a row of a
 *   tree are those on its path (row_tree), wherever they are cached. Fast attention rounds queries, keys, p and values
 *   to bfloat16, and what is less than 2^-50 is zero; of each pair of elements of a key, and of each pair of positions,
 *   the odd one is added first. Of a cache of DT_I8 the integers are multiplied, then the score by the key's scale and
 *   p, once it is summed, by the value's. */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include "kernels/cpu/pack.h"

enum {
    MAX_TILE = 8, /* rows of a tile */
    MAX_WIDE = 3, /* groups of a tile */
    MAX_SUMS = MAX_TILE * MAX_WIDE,
    MAX_INNER = 4, /* of MAX_TILE rows of a group: two groups of 16 rows where tiles are multiplied */
    SPAN_LEAVES = 8,
    ROW_BLOCK = 256,
    INNER_LEVELS = 3,
    MAX_LEVELS = 17,
    ATTN_LEAF = 128,
    PARTIAL_EXTRA = 16
};

/* 32 quantised inputs: x ~ d * q, |q| <= QUANT_MAX. Sixteen bits, since eight cost the model a tenth of a nat where two
 * tokens are close. The dots with them are exact, so each instruction set keeps q as its dots read it, in QUANT_BLOCK
 * bytes: as 16-bit integers, or as two planes of int8, q = 255 * high + low, both in -127 .. 127. Fast inputs
 * (device_opts.fast) are eight bits nevertheless, |q| <= FAST_MAX, in half as many bytes and for half the work. */
#define QUANT_MAX 32512.0f /* 255 * 127 + 127 */
#define FAST_MAX 127.0f
#define SMALLEST_HALF 0x1p-50f
enum { QUANT_BLOCK = 64, FAST_BLOCK = 32 };

static inline size_t quant_block(bool fast)
{
    return fast ? FAST_BLOCK : QUANT_BLOCK;
}

/* Quantised inputs lie in the order in which they are multiplied: of every so many rows (or all, when there are fewer),
 * block by block, each row's. */
static inline size_t row_tile(bool fast)
{
    return fast ? 8 : 4;
}

/* A scale or a sum, which lie side by side. */
union qword {
    float f;
    int32_t i;
};

/* The quantised inputs of a row from a block on; those of the next block lie `tile` rows further on. Each of the fields
 * lies together for the rows of a tile, so that it fetches few cache lines of them for a block. */
struct qinput {
    int8_t *q;
    union qword *meta; /* [3][tile]: sums of all 32 q; scales; scale * sum */
    int32_t *half;     /* [2][tile]: sums of the two 16 q */
    size_t tile;       /* row_tile, or the rows when they are fewer */
};

/* How the leaf just summed joins the tree: add the stored nodes of these levels, ascending, then store as `level` or,
 * when negative, it is the whole sum. */
struct sum_step {
    uint32_t add;
    int level;
};

/* One output of a linear call. Inputs and outputs point at row 0 of the call. */
struct linear_job {
    const struct weight *w;
    int leaf0, leaf1, col0, col1; /* the window's leaves and columns of the matrix */
    const struct sum_step *steps; /* [leaf1 - leaf0] */
    struct qinput in;             /* of row 0, [rows / tile][blocks][tile] of each */
    size_t blocks;                /* of 32 columns */
    bool fast;                    /* the inputs are */
    const uint16_t *half;         /* [rows / tile][blocks][tile][32] bfloat16, for pairs */
    bool half_dots;               /* the CPU adds pairs of their products (AVX512-BF16) */
    const float *x;               /* [rows][ldx] plain inputs, for float weights */
    size_t ldx;
    float *y; /* [rows][ldy] outputs of group 0 of the window at y[0] */
    size_t ldy;
    const float *bias;    /* or NULL */
    int group0, rows_out; /* the window's first group and its rows */
    bool accumulate;
};

/* Index of the first block of a row. */
static inline size_t quant_at(size_t blocks, size_t tile, size_t row)
{
    return row / tile * tile * blocks + row % tile;
}

/* Block b of a row, by the inputs of row 0. */
static inline struct qinput qinput_at(const struct qinput *first, size_t blocks, size_t row, size_t b, bool fast)
{
    size_t tile = first->tile, at = quant_at(blocks, tile, row) + b * tile, lane = row % tile;
    return (struct qinput){first->q + at * quant_block(fast), first->meta + 3 * at - 2 * lane,
                           first->half + 2 * at - lane, tile};
}

static inline void qinput_next(struct qinput *in, bool fast)
{
    in->q += in->tile * quant_block(fast);
    in->meta += 3 * in->tile;
    in->half += 2 * in->tile;
}

/* Working memory of one thread in a linear call. */
struct linear_scratch {
    uint64_t prepared; /* the last call for which it has prepared inputs of its own */
    _Alignas(64) float inner[INNER_LEVELS][MAX_INNER][MAX_TILE][GROUP_ROWS];
    /* One level more: pairs by tiles keep only two in `inner`. */
    float outer[MAX_LEVELS - INNER_LEVELS + 1][MAX_WIDE][ROW_BLOCK][GROUP_ROWS]; /* a level's lie close together */
    uint8_t panel[SPAN_LEAVES * 2 * 512 * MAX_WIDE];                             /* [block][group], unpacked */
    float scale[SPAN_LEAVES * 2 * 2 * MAX_WIDE * GROUP_ROWS];                    /* [block][2][group][16] */
    float min[SPAN_LEAVES * 2 * 2 * MAX_WIDE * GROUP_ROWS];                      /* [block][2][group][16] */
};

/* n_q queries of one kv head of one sequence over leaves [leaf0, leaf1) of its positions. */
struct attend_job {
    int n_q, head_dim, padded_dim; /* padded to 16 */
    const float *q;                /* [n_q][padded_dim], times scale * log2(e) */
    bool half, half_dots;          /* q, keys, weights and values are halves; the CPU adds pairs of their products */
    const uint16_t *q_half;        /* [n_q][half_dim] q once more, for those; half_dim: padded to 32 */
    int half_dim;
    const int32_t *lo, *hi; /* [n_q] positions seen: lo <= p < hi */
    enum dtype dtype;
    const uint8_t *head; /* keys of the head in block 0 of the layer; values follow v_bytes later */
    size_t block_bytes, v_bytes;
    const int32_t *blocks;
    int tokens_per_block;
    int leaf0, leaf1;
    /* Positions path0 .. path0 + n_path - 1 are cached in these slots instead, none of which is below its position; a
     * job with a path has tiles. */
    const int32_t *path;
    int path0, n_path;
    /* Room for copies of a leaf as it is multiplied, [padded_dim][ATTN_LEAF] each; or NULL: read the cache directly,
     * which halves can with an even head_dim. */
    float *k_tile, *v_tile;
    float *scales;    /* with a path: room for those of a leaf, [2][ATTN_LEAF] */
    float *leaf_o;    /* [MAX_TILE][padded_dim + PARTIAL_EXTRA], working memory */
    float *m, *l, *o; /* state, [n_q], [n_q], [n_q][padded_dim]; fresh: m = -inf */
    float *partial;   /* or NULL: fold into the state. [leaf1 - leaf0][n_q][padded_dim + PARTIAL_EXTRA]: o, m, l */
};

struct cpu_kernels {
    const char *isa;
    void (*norm_row)(const float *x, const float *gain, int n, float eps, float *y); /* y may be x */
    void (*swiglu_row)(const float *x, const float *x2, int n, float *y);
    /* n a multiple of 32 */
    void (*quantise_row)(const float *x, int n, struct qinput out, bool fast);
    /* To bfloat16, every 32 columns `tile` rows after the last; the last ones are filled up with zeros. */
    void (*round_row)(const float *x, int n, uint16_t *h, size_t tile);
    /* Pairs of columns of 16 weights (from: FAM_F16 or FAM_BF16) as FAM_PAIR has them. */
    void (*lace)(enum family from, const uint8_t *w, int pairs, uint8_t *out);
    /* The outputs of weight groups from g (of the matrix) on for rows row0 .. row0+n-1, n <= ROW_BLOCK. */
    void (*linear)(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s);
    void (*attend)(const struct attend_job *j);
    /* Folds one leaf's partial of one query into its state. */
    void (*fold)(const float *partial, int padded_dim, float *m, float *l, float *o);
    void (*attend_finish)(const float *o, float l, int n, float *y); /* y[n] = o / l */
    void (*to_cache)(const float *x, int n, enum dtype t, void *dst);
};

const struct cpu_kernels *cpu_kernels_portable(void);
const struct cpu_kernels *cpu_kernels_avx2(void); /* NULL when not built for this machine's family */
const struct cpu_kernels *cpu_kernels_avx512(void);
const struct cpu_kernels *cpu_kernels_neon(void);
const struct cpu_kernels *cpu_kernels_dotprod(void);
const struct cpu_kernels *cpu_kernels_i8mm(void);

#endif
