/* What the host part of the CUDA backend (C) asks of its kernels (CUDA C++): one plain struct and one launcher for
 * each op. Every pointer is device memory. On the rank's thread. Invariant: a launcher only enqueues on the stream and
 * returns what the runtime says of the launch.
 *
 * Design of the backend:
 *
 * - A rank is one stream. Ranks may share a device (--devices 0,0). Their streams are ordered by events, recorded
 *   before the host barrier of kernels/rendezvous.h and waited for after it. So no kernel spins on another rank, and
 *   nothing depends on which kernels run at the same time.
 * - Invariant mode: activations are f32, and every op does the CPU's operations in the CPU's order, with the same
 *   rounding (kernels/cpu/kernels.h states the sums). These files are compiled without contraction; there is an fma
 *   where the CPU has one. So logits are those of the CPU backend, bit for bit, in every layout, batch and chunking.
 *   Two things differ: rotation angles, and the sums behind logprobs, use the device's own sin, cos and log.
 * - Weights: F32, F16 and BF16 as stored, rows padded to WEIGHT_PAD columns. Quantised types in planes (weight.h): one
 *   plane has the nibbles or bytes of each 32 columns of a row, a second the fifth and sixth bits, a third the scales.
 *   So loads are aligned, and a window of 64 columns is a window of each plane.
 * - KV: for each block and head the keys [position][element], then the values in the same order. Rows of elements are
 *   padded to a multiple of 16. */
#ifndef CUDA_JOB_H
#define CUDA_JOB_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns [col0, col0 + cols) of rows [row0, row0 + rows) of a matrix on the device. */
struct weight_window {
    struct weight_planes p;
    int row0, rows, col0, cols;
};

/* The rows of a step, as the ops find them on the device. */
struct seq_at {
    int32_t row0, n_rows, pos0, block0; /* block0: where its block list begins in blocks[] */
};
struct step_view {
    const int32_t *ids, *positions, *logit_rows;
    const int32_t *row_seq; /* -1: padding, in no sequence */
    const struct seq_at *seqs;
    const int32_t *blocks;
    int n_rows, n_seqs;
};

/* rows.cu. One CTA per row, or one thread per element; all are bound by memory bandwidth. */
struct angles_job {
    const int32_t *positions;
    const float *inv_freq; /* [dim / 2] */
    float scale;
    int n_rows, dim;
    float *out; /* [n_rows][dim]: cos [dim / 2], then sin */
};
struct embed_job {
    struct weight_window table;
    const int32_t *ids; /* of the first row */
    float *y;
    int ldy, n;
};
struct norm_job { /* y = x / rms(x) * gain; cols <= ldx */
    const float *x, *gain;
    float *y;
    int ldx, ldy, rows, cols;
    float eps;
};
struct swiglu_job { /* y = silu(x) * x2 */
    const void *x, *x2;
    float *y;
    int ldx, ldx2, ldy, rows, cols;
    bool half; /* x and x2 are bf16 */
};
struct quantise_job { /* 32 columns share a scale; q in two planes of int8, 255 * high + low */
    const float *x;
    int ldx, rows, cols;
    int8_t *q;               /* [rows][2][cols] */
    struct quant_meta *meta; /* [rows][cols / 32] */
};
struct rope_job {
    void *x;   /* [rows][n_heads * head_dim] */
    bool half; /* x is bf16 */
    int ld, rows, n_heads, head_dim;
    const float *gain; /* per-head norm first; NULL: none */
    float eps;
    const float *angles;
    int dim; /* rotated elements; 0: none */
    bool halves;
};
struct gather_job { /* y[i] = x[rows[i] - row0] */
    const float *x;
    float *y;
    const int32_t *rows;
    int row0, ldx, ldy, n, cols;
};
cudaError_t launch_angles(cudaStream_t s, const struct angles_job *j);
cudaError_t launch_embed(cudaStream_t s, const struct embed_job *j);
cudaError_t launch_norm(cudaStream_t s, const struct norm_job *j);
cudaError_t launch_swiglu(cudaStream_t s, const struct swiglu_job *j);
cudaError_t launch_quantise(cudaStream_t s, const struct quantise_job *j);
cudaError_t launch_rope(cudaStream_t s, const struct rope_job *j);
cudaError_t launch_gather(cudaStream_t s, const struct gather_job *j);

struct sample_out;
/* feed.cu: how a captured step begins and ends. The host writes a step's arrays into one of its frames, alternately;
 * pinned memory, which the device reads where it lies. Turns number the steps of a device: the first kernel takes the
 * frame of the next turn, the last one says that it has ended. */
enum { FLIGHTS = 2, FRAME_PIECES = 12 };
struct frame_head { /* at the beginning of a host's frame */
    uint32_t turn;  /* 0: never filled in */
    uint32_t item_bytes, word_bytes, unused;
};
struct frame_turn {     /* on the device */
    uint32_t done, now; /* turns: of the last step that has ended, of the one under way */
    int32_t from;       /* whose frame is hosts[from], and results go there */
    int32_t unused;
};
struct frame_piece {
    uint32_t at, bytes; /* multiples of 16 */
};
struct frame_job {
    const char *hosts[FLIGHTS];
    char *dev; /* its mirror on the device */
    struct frame_turn *turn;
    struct frame_piece pieces[FRAME_PIECES]; /* what is copied, beside items and words, whose bytes the head has */
    int n_pieces;
    uint32_t items, words, ids, feeds; /* where they begin */
    const int32_t *fed;                /* ids[i] = fed[i] where feeds[i] */
    struct sample_out *results;        /* no row has sampled yet: token -1 */
    int n;                             /* rows */
};
enum { FEED_MEMBERS = 64 };
struct gather_tokens_job { /* fed[i] = the token of row i, from the member that samples it; one CTA */
    const struct sample_out *results[FEED_MEMBERS];
    int32_t *fed;
    struct frame_turn *turn;
    int n_members, n;
};
cudaError_t launch_fetch_frame(cudaStream_t s, const struct frame_job *j);
cudaError_t launch_gather_tokens(cudaStream_t s, const struct gather_tokens_job *j);

/* pack.cu: rows of a quantised type in file format into the planes. A thread a block of 32 columns; limited by memory.
 */
struct pack_job {
    const uint8_t *raw; /* of the first row */
    size_t row_bytes;
    int first, n; /* rows of the matrix */
    struct weight_planes to;
};
cudaError_t launch_pack(cudaStream_t s, const struct pack_job *j);

/* linear.cu: y = x W^T (+ bias) (+ y) in the sums of kernels/cpu/kernels.h. */
struct linear_job {
    struct weight_window w;
    const float *x; /* [rows][ldx], float weights */
    int ldx;
    const int8_t *q; /* [rows][2][cols], quantised weights */
    const struct quant_meta *meta;
    const float *bias; /* or NULL */
    float *y;
    int ldy, rows;
    bool accumulate;
};
cudaError_t launch_linear(cudaStream_t s, const struct linear_job *j);

/* narrow.cu and tile.cu: the default mode's products of many rows. Inputs in 16 bits (f16 where the weights are, else
 * bf16), sums in f32 by tensor cores. */
enum { FAST_PAD = 128 }; /* inputs are padded with zeros to a multiple of so many columns */
struct narrow_job {      /* y = in(x) in 16 bits */
    const void *x, *x2;  /* x2: silu(x) * x2; gain: x / rms(x) * gain; neither: x */
    const float *gain;
    uint16_t *y;
    int ldx, ldx2, ldy, rows, cols; /* ldy: a multiple of FAST_PAD, of which cols .. ldy - 1 become zero */
    float eps;
    bool half; /* x and x2 are bf16, rows of an even number of elements */
    bool f16;
};
struct fast_job {
    struct weight_window w; /* any type but F32 */
    const uint16_t *x;      /* [rows][ldx] */
    int ldx;
    const float *bias; /* or NULL */
    void *y;
    int ldy, rows;
    bool accumulate;
    bool half; /* y is bf16, rows of an even number of elements; never accumulated */
};
cudaError_t launch_narrow(cudaStream_t s, const struct narrow_job *j);
cudaError_t launch_tile(cudaStream_t s, const struct fast_job *j); /* any number of rows; bound by the tensor cores */
struct widen_job { /* widen.cu: a window of a quantised matrix, [rows][cols] in bf16 */
    struct weight_window w;
    uint16_t *to;
};
cudaError_t launch_widen(cudaStream_t s, const struct widen_job *j);

/* f8.cu: products whose both factors are fp8 (product_f8.c). An input is x ~ scale * code, a scale for each row, or
 * (weights of 128 x 128 blocks) for each 128 columns of a row. */
enum { F8_GROUP = 128, F8_OUTS = 3 };
struct f8_scales_job { /* the scales of a window of weights, as the library wants them */
    struct weight_window w;
    float *to; /* one for each row; or [blocks of rows][blocks of columns, a multiple of 4], for which row0 and col0 are
                  multiples of 128 */
    int n;
};
struct f8_input_job {
    const void *x, *x2; /* as in narrow_job; both, and their rows, begin at multiples of 16 bytes */
    const float *gain;
    uint8_t *codes; /* [padded][ld], zeros where there is no row or column */
    float *scales;  /* [padded]; or [groups of columns][whole], then [groups][padded - whole] for the other rows */
    int ldx, ldx2, ld, rows, cols; /* ld: a multiple of F8_GROUP; cols: of 4 */
    int whole, padded;
    float eps;
    bool half; /* x and x2 are bf16 */
    bool groups;
    struct f8_scales_job out[F8_OUTS]; /* made on the way */
    int n_out;
};
struct f8_epilogue_job {   /* y = (accumulate: y) + t + bias */
    const float *t, *bias; /* either or both; [rows][ldt], [cols] */
    void *y;
    int ldt, ldy, rows, cols;
    bool accumulate;
    bool half; /* y is bf16 */
};
/* How many scales a window has in the library's form. */
int f8_scales_count(const struct weight_window *w);
cudaError_t f8_prepare(void); /* once for each device, before the first launch there */
cudaError_t launch_f8_input(cudaStream_t s, const struct f8_input_job *j);
cudaError_t launch_f8_epilogue(cudaStream_t s, const struct f8_epilogue_job *j);

/* kv.cu and attention.cu. */
struct kv_at { /* the cache of one layer */
    uint8_t *base;
    size_t block_bytes, head_bytes, value_at; /* within a block: from head to head, from a head's keys to its values */
    int tokens, n_heads, head_dim, padded_dim;
    enum dtype type;
};
/* Bytes of a cached element. */
static inline int kv_element_bytes(enum dtype t)
{
    return t == DT_F32 ? 4 : t == DT_F8 ? 1 : 2;
}
struct kv_write_job {
    struct step_view step;
    const void *k, *v;
    int ldk, ldv;
    bool half; /* k and v are bf16 */
    struct kv_at kv;
};
struct rope_write_job {  /* rope.cu: rope of q and k, and kv_write */
    struct rope_job q;   /* its angles are k's, too */
    const float *k_gain; /* or NULL */
    struct kv_write_job write;
};
enum { ATTEND_MAX_KV = 256 };
struct attend_item {
    int32_t seq, row0, n_rows; /* rows of the batch */
};
struct attend_job {
    struct step_view step;
    const void *q;
    void *out;
    int ldq, ldo, window;
    bool half_q, half_out; /* bf16 */
    float scale;           /* log2(e) included */
    struct kv_at kv;
    const struct attend_item *items;
    int n_items;
    uint16_t first_head[ATTEND_MAX_KV + 1]; /* q heads of kv head k: first_head[k] .. first_head[k + 1] - 1 */
};
struct kv_move_side {
    uint8_t *base;
    size_t layer_bytes, block_bytes, head_bytes, value_at;
    const int32_t *blocks;
    int tokens, head;
};
struct kv_move_job {
    struct kv_move_side from, to;
    int n_layers, n_heads, first_token, n_tokens;
    size_t row_bytes; /* of one position's keys, or values */
};
cudaError_t launch_kv_write(cudaStream_t s, const struct kv_write_job *j);
cudaError_t launch_rope_write(cudaStream_t s, const struct rope_write_job *j);
cudaError_t launch_attend(cudaStream_t s, const struct attend_job *j);
cudaError_t launch_kv_move(cudaStream_t s, const struct kv_move_job *j);

/* collective.cu. */
struct copy_rect {
    const float *from;
    float *to;
    int ld_from, ld_to, rows, cols;
};
enum { COPY_RECTS = 64 }; /* of one launch */
struct copy_job {
    struct copy_rect rects[COPY_RECTS];
    int n;
};
enum { SUM_PLANES = 192 };
struct sum_job {                     /* columns [0, cols) of rows; unit: a row */
    const float *planes[SUM_PLANES]; /* row 0 of each, in the order of adding */
    uint8_t adds[SUM_PLANES];
    int lds[SUM_PLANES];
    int n_planes;
    float *y;
    int ldy, cols, accumulate;
    int64_t first, end; /* elements of the rows x cols, row by row */
};
enum { TAKE_MEMBERS = 64 };
struct take_job {                     /* elements [first[m], first[m + 1]) of the rows x cols from member m */
    const float *parts[TAKE_MEMBERS]; /* row 0 of each */
    int lds[TAKE_MEMBERS];
    int64_t first[TAKE_MEMBERS + 1];
    int n;
    float *y;
    int ldy, cols, accumulate;
};
cudaError_t launch_copy(cudaStream_t s, const struct copy_job *j);
cudaError_t launch_sum(cudaStream_t s, const struct sum_job *j);
cudaError_t launch_take(cudaStream_t s, const struct take_job *j);

/* sample.cu: one CTA per row. */
struct sample_params {
    double draw; /* [0, 1) */
    float temperature, top_p, min_p;
    float repetition, frequency, presence;
    int32_t top_k, given, n_top;
    int32_t changed, logprobs;                   /* changed: some list below is not empty */
    int32_t n_allowed, n_banned, n_bias, n_seen; /* -1 allowed: all */
    int64_t lists; /* offset into sample_job.lists: allowed ids; banned ids; bias (id, float bits); seen (id, count) */
};
struct sample_out { /* the same as struct sample_result of kernels/backend.h */
    int32_t token;
    float logprob;
    int32_t rank, n_top;
    int32_t top_ids[20];
    float top_logprobs[20];
};
struct sample_job {
    const struct sample_params *params; /* [n] */
    const int32_t *lists;
    float *logits;                     /* [n][ld], NaN and infinity are replaced in place */
    float *changed;                    /* [n][vocab] working memory; NULL when no row is changed */
    struct sample_out *out;            /* [n] */
    struct sample_out *hosts[FLIGHTS]; /* [n] each, pinned: results go to the first, too, or (turn) the one in turn */
    const struct frame_turn *turn;
    int ld, vocab, n;
};
cudaError_t launch_sample(cudaStream_t s, const struct sample_job *j);

#ifdef __cplusplus
}
#endif

#endif
