/* The device of one CPU rank: its kernels, its threads, the step in progress, and working memory that grows to what
 * the largest op needs. Owned by the rank and used by its thread; the threads of its pool read it during an op. The
 * ops of backend.h are in the files of this folder. Invariant: an op runs completely or not at all. What cannot run is
 * noted as an error before anything is written, and finish reports it. */
#ifndef CPU_DEVICE_H
#define CPU_DEVICE_H

#include "engine/base/clock.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/slab.h"
#include "kernels/draft.h"

struct attn_item;
struct coming;
struct watch;

/* Grows, never shrinks; contents are not kept. */
struct scratch {
    void *data;
    size_t bytes;
};

struct device {
    const struct cpu_kernels *kernels;
    linear_fn *tiles; /* or NULL: for linear layers of pairs, and of quantised weights and AMX_ROWS fast inputs */
    enum half_dots half_dots;
    struct pool *pool;
    struct slab *weights; /* where they lie */
    struct device_opts opts;
    struct device_facts facts;
    struct clock clock;
    struct err error; /* sticky; code 0: none */
    int64_t begun_ns;
    const struct batch *batch; /* of the step between begin and finish */
    struct batch part;         /* what batch is once a part has begun: the step's with other rows */
    int32_t *row_seq;          /* [max_rows] the sequence of a row */
    struct rope rope;
    struct scratch angles;           /* [n_rows][dim/2] cos, then sin */
    struct linear_scratch *linear;   /* [n_threads] */
    uint64_t n_linear;               /* calls of cpu_linear */
    struct scratch inputs;           /* a linear call's inputs, quantised or widened */
    struct scratch attention;        /* items, partial results */
    struct scratch attention_thread; /* [n_threads] tiles */
    struct scratch sampling;         /* cpu_sample's own */
    struct coming *coming;
    struct watch *watch; /* profile.c's; NULL: nothing is counted */
};

/* Makes s hold at least `bytes`, aligned to 64. False, with a sticky error, when there is not so much memory. */
bool device_grow(struct device *d, struct scratch *s, size_t bytes);
/* Records the first error of a step. */
void device_fail(struct device *d, int code, const char *text);
/* True when an error is stuck: ops then do nothing. */
static inline bool device_failed(const struct device *d)
{
    return d->error.code != 0;
}
/* Runs fn over items; on the caller alone when the work is less than a hand-over to the helpers costs. */
void device_run(struct device *d, int n_items, int64_t work_ns, pool_fn *fn, void *ctx);

int cpu_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e);
void cpu_begin_part(struct device *d, const struct batch_part *p);
void cpu_embed(struct device *d, struct wview table, struct act y, int first, int n);
void cpu_linear(struct device *d, const struct linear_args *a);
void cpu_rope(struct device *d, const struct rope_args *a);
size_t cpu_kv_block_bytes(enum dtype t, int tokens, int n_kv_heads, int head_dim);
void cpu_kv_write(struct device *d, struct act k, struct act v, const struct kv_view *kv);
void cpu_kv_move(struct device *d, const struct kv_move *m);
void cpu_kv_pack(struct device *d, const struct kv_pack *p);
void cpu_attention(struct device *d, const struct attention_args *a);
int cpu_row_position(const struct batch_seq *s, int row);         /* of a row of s */
int cpu_first_seen(const struct attention_args *a, int position); /* the first position that a row there attends to */
void cpu_gather(struct device *d, struct act x, int row0, struct act y, int first, int n);
/* sample.c: results[first .. first+n) of the batch from logits [n, vocab]. */
void cpu_sample(struct device *d, struct act logits, int vocab, int first, int n);

const struct draft_ops *cpu_draft(void); /* draft.c */

static inline size_t kv_element_bytes(enum dtype t)
{
    return t == DT_F32 ? 4 : t == DT_F8 || t == DT_I8 ? 1 : 2;
}
/* Of the scales of one head's keys, or values, in a block: an f32 for each position, behind them. */
static inline size_t kv_scale_bytes(enum dtype t, int tokens)
{
    return t == DT_I8 ? (size_t)tokens * sizeof(float) : 0;
}
/* Bytes of one cached head of a block: keys [head_dim][tokens], then values [tokens][head_dim rounded up to 16]. */
static inline size_t kv_key_bytes(enum dtype t, int tokens, int head_dim)
{
    return (size_t)tokens * (size_t)head_dim * kv_element_bytes(t) + kv_scale_bytes(t, tokens);
}
static inline int kv_padded_dim(int head_dim)
{
    return (head_dim + 15) / 16 * 16;
}
static inline size_t kv_value_bytes(enum dtype t, int tokens, int head_dim)
{
    return (size_t)tokens * (size_t)kv_padded_dim(head_dim) * kv_element_bytes(t) + kv_scale_bytes(t, tokens);
}

static inline float *act_row(struct act a, int row)
{
    return (float *)a.data + (size_t)row * (size_t)a.ld;
}

#endif
