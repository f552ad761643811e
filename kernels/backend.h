/* The seam between the forward pass and a machine: one table of ops. kernels/cpu computes, kernels/cuda enqueues work
 * on a GPU, kernels/sim adds up virtual time and computes nothing. A `struct device` belongs to one rank and is used
 * by that rank's thread only. Ops return nothing: an error stays with the device, and `finish` reports it. Invariant:
 * an op works on its own device alone; only the collectives and kv_move read another.
 *
 * Arithmetic contract. An output element depends on its own input row, its weights and, in attention, its own sequence.
 * It does not depend on the other rows of the batch, on how the prompt was cut into chunks, on the number of threads or
 * on the CPU's instruction set: portable, AVX2, AVX-512 and NEON code give the same bits, and AMX but for pairs of
 * bfloat16. Sums over a dimension that a layout may split (columns of a linear layer, cached positions) are taken over
 * fixed leaves in a fixed order. Leaves of SUM_LEAF columns are added in the binary tree over their absolute index, so
 * a rank that holds some of the leaves computes whole nodes of the tree, and `reduce` adds the nodes of all ranks to
 * the same bits. The CPU backend always keeps this contract, the CUDA backend in its invariant mode
 * (device_opts.invariant). */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/world/estimate.h"
#include "engine/world/ffn.h"
#include "engine/world/layout.h"
#include "engine/world/sampling.h"
#include "kernels/dtype.h"

enum {
    SUM_LEAF = 64,
    WEIGHT_GROUP = 16
}; /* windows of weights start and end at such columns and rows, or at the matrix's end */

struct device;
struct sim_machine;
struct sim_outside;
struct draft_ops;
struct profile;
struct tuning;
struct tuning_ops;
struct comm; /* the ranks of one collective, its members, numbered 0 .. n-1; each member's ops run on the thread of its
                own rank */
struct weight; /* a matrix as the backend stores it (packed, tiled, on the device); immutable once loaded */

struct device_opts {
    int index;            /* which device of its kind; cpu: ignored */
    uint64_t peers;       /* cuda: bits of the devices whose memory it must read, for groups */
    bool invariant;       /* cuda: every sum in the CPU's order; the cpu does nothing else */
    bool plain_kernels;   /* cuda: own kernels that every device has, none for one compute capability alone; tests and
                             benchmarks compare them */
    bool no_early_launch; /* cuda: no kernel begins before the one before it has ended */
    bool check;           /* cuda: kernels are tried when the device opens, and those that come out wrong left out */
    int n_threads;        /* cpu: threads of this rank, the rank's own included; 0 = the cores this process may use */
    const char *isa; /* cpu: "auto", "portable", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm": tests compare them;
                        NULL = auto */
    bool fast;       /* cpu: products round their inputs to eight bits where they else round them to sixteen; with
                        F16 and BF16 weights they round both to bfloat16, as attention does all that it
                        multiplies */
    bool keeps_memory;     /* cpu: memory of freed weights stays with the device, for the next ones */
    int max_rows;          /* most rows (tokens) of a step */
    int max_logits;        /* most logit rows of one sample call */
    int graph_rows;        /* most rows of a captured step; 0: none is captured */
    struct tuning *tuning; /* cuda, default mode: which way products take, borrowed until close; NULL: as by the rule */
    int64_t sim_step_ns, sim_row_ns;       /* sim without a machine: cost of a step = sim_step_ns + rows * sim_row_ns */
    const struct sim_machine *sim_machine; /* sim: what is simulated (kernels/sim/machine.h), borrowed until close;
                                              NULL: the two fixed costs */
    struct sim_outside *sim_outside; /* of such a machine: where steps are noted that it prices outside of what was
                                        measured; one thread's, and in virtual time only; NULL: nowhere */
    const struct ffn_setup *pool;    /* how the FFN weights of its node are pooled, borrowed until close; NULL: not */
    int sim_weight_tp; /* sim with a machine: each device holds one of so many shares of the weights, so only layouts
                          whose tp is a multiple can run; 0 or 1: all of them */
    int sim_weight_pp; /* the same of stages: it holds those layers only; 0 or 1: all of them */
};

struct device_facts {
    char name[96]; /* "AMD EPYC ... (avx2, 2 threads)" */
    char isa[24];  /* what was picked */
    int n_threads;
    size_t memory_bytes; /* of the device (cpu: of the machine) */
    char library[48];    /* that multiplies for it; empty: its own kernels do */
    char link[160];      /* how it reaches the other devices of its group; empty: there are none */
    char lacks[600];     /* what it does without, in a sentence for the log; empty: nothing */
    int parts_off;       /* of its own that came out wrong when it was tried */
    size_t act_bytes;    /* bytes of one activation element: 4 on cpu */
    /* A described machine, where nothing is stored that could be measured; else all 0. Each device has such a memory of
     * its own. */
    struct device_budget {
        size_t weights, copy;        /* the weights it holds; what --shift-weights copy adds */
        size_t layers;               /* the matrices of all layers, uncut */
        size_t ffn_layer, ffn_freed; /* pooled: the FFN matrices of a layer; what the pool frees, less its slots */
        size_t reserve;              /* activations and all else */
        int kv_bits;                 /* of a cached element, whatever kv_dtype says */
        int weight_tp;               /* layouts need a tp that is a multiple of it; 0: there is no description */
        int64_t switch_ns;           /* what a change of the partition takes from its ranks */
    } budget;
};

/* A dense stored matrix to load: rows x cols, row-major, in file format. rows = outputs, cols = inputs. */
struct weight_src {
    enum dtype type;
    int rows, cols;
    const void *data;
    enum f8_scales scales; /* of DT_F8_SCALED: a promise about data */
    size_t pitch;          /* bytes from a row to the next; 0: rows follow each other */
};

static inline size_t weight_src_pitch(const struct weight_src *s)
{
    return s->pitch ? s->pitch : dtype_row_bytes(s->type, s->cols);
}

/* A window of a weight: what a rank of a layout multiplies with. No bytes are copied to make one. */
struct wview {
    const struct weight *w;
    int row0, rows, col0, cols;
};

/* A matrix of the type of another. */
struct weight_shape {
    const struct weight *like;
    int rows, cols;
};

/* Where a window of a weight lies in its piece: `runs` runs of `bytes` bytes, the first `at` bytes from the start, each
 * `pitch` behind the one before. */
struct weight_runs {
    size_t at, bytes, pitch;
    int runs;
};
enum { WEIGHT_PLANES = 4 }; /* most lists of runs that one window is */

/* Runs of `bytes` bytes from another device's memory, each so far behind the one before. */
struct pull {
    void *dst;
    const void *src;
    size_t bytes, dst_pitch, src_pitch;
    int runs;
};

/* Activations: rows x cols elements on the device, ld elements between rows. Element size: device_facts.act_bytes, and
 * 2 of those that are half (bf16), which only ops that `narrows` speaks of know. */
struct act {
    void *data;
    int cols, ld;
    bool half;
};

/* KV memory of one rank. Block b of layer l starts at base + ((size_t)l * n_blocks + b) * block_bytes. What lies in a
 * block is the backend's: for n_kv_heads heads, keys and values of tokens_per_block positions, heads first. */
struct kv_space {
    void *base;
    size_t block_bytes;
    int n_blocks, n_layers;
    enum dtype dtype; /* DT_F16, DT_BF16, DT_F32, DT_F8 (no scale: what is larger than 448 becomes 448) or, on
                         CPUs, DT_I8 (with a scale for each position of a head) */
};

struct kv_view {
    const struct kv_space *space;
    int layer;
    int tokens_per_block;     /* a multiple of 16 */
    int n_kv_heads, head_dim; /* held by this rank */
};

/* Rows at the end of a sequence of which each follows an earlier one, not always the one before it: the cached tokens
 * from slot `first` on. A row is cached in its slot, in the order of the rows, and its position is that of what it
 * follows plus 1. It sees what stands before `first`, itself and those that it follows, one behind the other: the same
 * bits as if they alone stood there. Host memory, alive as long as the batch. */
struct row_tree {
    int first, n;
    const int8_t *parents; /* [n]: which of them it follows, an earlier one; -1: what stands before `first` */
};

/* One sequence of a step: rows row0 .. row0+n_rows-1 hold its positions pos0 .. ; its cached positions 0 ..
 * pos0+n_rows-1 lie in blocks[]. */
struct batch_seq {
    int row0, n_rows, pos0;
    const int32_t *blocks;
    const struct row_tree *tree; /* NULL: each row follows the one before it */
};

/* What to do with one row of logits. */
struct sample_row {
    const struct sampling *how;
    const int32_t *prompt, *output; /* for penalties; counts may be 0 when all are off */
    int n_prompt, n_output;
    const int32_t *banned; /* ids that may not be chosen (stop ids before min_tokens, what a guide rules out) */
    int n_banned;
    const int32_t *allowed; /* sorted: no other one may be chosen; n_allowed 0: all may be */
    int n_allowed;
    uint64_t position; /* index of the draw in its sequence */
    int32_t given;     /* >= 0: choose nothing, report this token's logprob (prompt logprobs, echo) */
    int n_top;         /* top logprobs wanted; -1: none at all, 0: the token's own */
};

/* logprob and top are of the raw logits (before penalties and temperature), as vLLM reports them. */
struct sample_result {
    int32_t token;
    float logprob;
    int rank; /* 1 = the most likely */
    int n_top;
    int32_t top_ids[SAMPLING_MAX_LOGPROBS];
    float top_logprobs[SAMPLING_MAX_LOGPROBS];
};

/* One step as a rank sees it; host arrays, alive until finish. */
struct batch {
    int n_rows;
    const int32_t *ids;       /* [n_rows] */
    const int32_t *positions; /* [n_rows] */
    int n_seqs;
    const struct batch_seq *seqs; /* in row order, together they cover all rows */
    int n_logits;
    const int32_t *logit_rows;        /* [n_logits] rows whose logits are wanted, ascending (a row may repeat) */
    const struct sample_row *samples; /* [n_logits] */
    struct sample_result *results;    /* [n_logits] out */
    bool fed; /* graph_post only: ids are not known here; row i's is what row i of the step posted before it samples */
    int pool_ranks, cas_layers, replica_layers, n_micro; /* sim: as in struct step_size */
};

/* Rows of a step that go on where its others have ended: some of the logit rows, whose keys and values are cached
 * already. Host arrays, alive until the next part or finish. */
struct batch_part {
    int n_rows;
    const int32_t *positions; /* [n_rows] */
    int n_seqs;
    const struct batch_seq *seqs; /* as in struct batch, over these rows: runs of neighbours in a sequence */
};

struct rope {
    bool halves;           /* true: pairs (i, i + dim/2) (NeoX, Hugging Face); false: pairs (2i, 2i+1) (GGUF llama) */
    int dim;               /* rotated elements of a head, even */
    const float *inv_freq; /* [dim/2], scaling already applied */
    float scale;           /* multiplies cos and sin (yarn); 1 otherwise */
};

enum linear_in {
    LINEAR_PLAIN,  /* x */
    LINEAR_NORM,   /* x / rms(x) * gain */
    LINEAR_SWIGLU, /* silu(x) * x2 */
};

/* Whose product it is, for profiles: no result depends on it. */
enum linear_place {
    LINEAR_ELSEWHERE,
    LINEAR_QKV,
    LINEAR_ATTENTION_OUT,
    LINEAR_GATE_UP,
    LINEAR_DOWN,
    LINEAR_HEAD,
    LINEAR_DRAFT, /* of draft heads */
};

enum { LINEAR_MAX_OUT = 3 };
/* y_i = in(x) W_i^T + bias_i, for up to three weights that share the input. No output lies where an input does: of
 * either some may be done when others begin. */
struct linear_args {
    enum linear_in in;
    enum linear_place place;
    struct act x, x2;
    const float *gain; /* [cols], device memory */
    float eps;
    int rows;
    bool accumulate; /* y += (the residual), else y = */
    bool gated; /* of two outputs as large as each other y_0 = silu(y_0) * y_1, y_1 is undefined; not accumulated; where
                   the backend gates */
    int n_out;
    struct linear_out {
        struct wview w;
        const float *bias; /* [w.rows] device memory, or NULL */
        struct act y;
    } out[LINEAR_MAX_OUT];
};

/* Per-head RMSNorm (when the gains are given), then RoPE, in place, on q [rows, n_heads*head_dim] and k [rows,
 * n_kv_heads*head_dim]. */
struct rope_args {
    struct act q, k;
    int n_heads, n_kv_heads, head_dim, rows;
    const float *q_gain, *k_gain; /* [head_dim] device memory, or NULL */
    float eps;
};

struct attention_args {
    struct act q, out; /* [rows, n_heads * head_dim] */
    int n_heads;
    const int *kv_head; /* [n_heads] the local kv head of each local q head */
    struct kv_view kv;
    float scale; /* usually 1/sqrt(head_dim) */
    int window;  /* sliding window in tokens, 0 = all */
};

/* A rectangle that a member takes from what member `peer` shows in buffer `buffer`, into its own buffer of that number.
 */
struct comm_rect {
    int peer, buffer;
    int src_row, src_col, dst_row, dst_col, rows, cols;
};

enum { EXCHANGE_BUFFERS = 3 };
/* All-to-all and all-gather: every member publishes up to three source buffers, and copies rectangles of all members'
 * source buffers into its own destination buffers. One exchange moves q, k and v; several members may copy the same kv
 * heads. When it returns, this member's destinations are complete, but others may still read its sources. They must not
 * change until the next collective of the same comm has returned. Without rectangles it is a barrier. */
struct exchange_args {
    struct comm *comm;
    int me; /* this member */
    struct act src[EXCHANGE_BUFFERS], dst[EXCHANGE_BUFFERS];
    const struct comm_rect *rects;
    int n_rects;
};

/* The order in which the partial sums of all members are added. Planes are pushed on a stack in the order of the
 * leaves, and after each push the top two are added `adds` times. */
struct reduce_order {
    int n_planes;
    const uint8_t *member, *index, *adds; /* [n_planes] whose, which of its planes */
};

enum comm_algorithm {
    COMM_AUTO,    /* by size */
    COMM_ONESHOT, /* every member adds everything */
    COMM_TWOSHOT, /* each adds its part of the elements, then takes the others' parts: less to read, one more barrier */
    COMM_LIBRARY, /* by a library of the machine's, in its own order; where there is none, or it must not be used: by
                     size */
};

/* All-reduce: y += (or =) the sum of all members' planes, the same bits at every member, and by every algorithm but the
 * library's. The first member's choice of algorithm counts. Planes and part stay as they are until the next collective
 * of the same comm has returned. */
struct reduce_args {
    struct comm *comm;
    int me;
    enum comm_algorithm algorithm;
    struct act planes; /* this member's: plane p starts at row p * rows */
    const struct reduce_order *order;
    int rows;
    bool accumulate;
    struct act y;    /* [rows, cols] */
    struct act part; /* [rows, cols] working memory that others read */
};

/* One side of a move of cached tokens. */
struct kv_end {
    const struct kv_space *space;
    const int32_t *blocks; /* of the sequence */
    int tokens_per_block;
    int layer, head; /* first of the layers and of the heads, as this side numbers them */
    bool host;       /* memory of the machine, not of a device */
};

/* Cached tokens [first_token, end_token) of n_heads heads of n_layers layers. */
struct kv_move {
    struct kv_end from, to;
    int n_layers, n_heads, head_dim, first_token, end_token;
};

/* Cached tokens to earlier places of their own sequence: what is cached in from[i] goes to to[i] <= from[i], one after
 * the other; both ascend. */
struct kv_pack {
    struct kv_end at;
    int n_layers, n_heads, head_dim, n;
    const int32_t *from, *to; /* [n] */
};

/* Identifies the captured steps of one member of one group in one layout. The addresses live as long as the ranks. */
struct graph_key {
    const void *weights; /* the views of the layout and share */
    struct comm *all;    /* the group's; NULL: of one rank */
    int me;              /* member of `all` */
    uint64_t group;      /* which ranks in what order: the same at all members, another for every other group */
    int tokens_per_block;
    size_t twoshot_bytes; /* as in forward_member */
};

struct graph_call {
    const struct graph_key *key;
    const struct batch *batch;
};

struct step_time {
    int64_t ns;          /* device time of the step (virtual for sim) */
    struct ffn_cost ffn; /* sim: what pooled weights cost it */
};

struct backend_ops {
    const char *name;
    bool computes;      /* false: forward is skipped for `whole_step` (sim) */
    bool loads_beside;  /* weight_load and weight_free may run beside the device's ops, on another thread */
    bool shares_memory; /* ranks of one process whose devices have the same index may use one rank's weights */

    /* Devices of this kind here, for those that may be absent; NULL: there is always one. */
    int (*n_devices)(void);

    int (*open)(struct device **out, const struct device_opts *o, struct err *e);
    void (*close)(struct device *d);
    void (*facts)(const struct device *d, struct device_facts *out);

    /* Memory of the device, zeroed, 64-byte aligned. NULL: there is not enough. */
    void *(*alloc)(struct device *d, size_t bytes);
    void (*release)(struct device *d, void *p);
    int (*upload)(struct device *d, void *dst, const void *src, size_t bytes);
    int (*download)(struct device *d, void *dst, const void *src, size_t bytes);

    /* Loads (and packs) a matrix; src is not needed afterwards. E_UNSUPPORTED for a type or shape it cannot run, E_FULL
     * without memory. The bytes may still be on their way: this device's ops wait for them, and once a later upload by
     * this device has returned, all of them have arrived. */
    int (*weight_load)(struct device *d, struct weight **out, const struct weight_src *src, struct err *e);
    void (*weight_free)(struct device *d, struct weight *w);
    size_t (*weight_bytes)(const struct weight *w);

    /* Optional (NULL: FFN weights cannot be pooled on such machines). A loaded weight is one piece of bytes as another
     * device of this kind can read them. weight_room: memory that one of this shape takes, at least that piece;
     * weight_at: such a one, whose piece will be copied into room (what alloc gave, or whole rooms into it, and stays
     * until weight_free), as a whole or window by window. E_FULL. weight_window: the bytes that an op which is given
     * this view reads, one list for each plane of the type (scales may lie apart); returns how many lists. Windows of
     * the same columns in weights of one type have runs of equal bytes and number, whatever else those weights hold, if
     * the columns start and end at the type's blocks. Padding is no part of a run. pull copies from another device's
     * memory to this one's, and returns when the bytes are there, or with E_DEVICE; the owner does nothing. */
    const void *(*weight_data)(const struct weight *w);
    size_t (*weight_room)(const struct weight_shape *s);
    int (*weight_at)(struct device *d, struct weight **out, const struct weight_shape *s, void *room, struct err *e);
    int (*weight_window)(struct wview v, struct weight_runs out[WEIGHT_PLANES]);
    int (*pull)(struct device *d, const struct pull *p);
    /* With the five above: what lies in a part of such memory is of no use any more, and the memory is given back to
     * the machine until the part is written again; it reads as anything until then. */
    void (*forget)(struct device *d, void *p, size_t bytes);

    /* Optional (NULL: what alloc gave is there). This part of it will soon be written for the first time: the machine
     * finds pages for it now, which may take as long as a step. Contents stay. */
    void (*touch)(struct device *d, void *p, size_t bytes);

    /* With those above, where ops only enqueue work (NULL: what an op does is done when it returns). mark: a place in
     * the order of what d was given; 0: it has failed. reach waits until d has done all that came before the place; any
     * thread; false: it failed. between: ns from one place to another, both reached; 0: nobody knows any more. */
    uint64_t (*mark)(struct device *d);
    bool (*reach)(struct device *d, uint64_t mark);
    int64_t (*between)(struct device *d, uint64_t from, uint64_t to);

    /* Bytes of a KV block that holds `tokens` positions of n_kv_heads heads (keys and values), in this backend's
     * layout. */
    size_t (*kv_block_bytes)(enum dtype t, int tokens, int n_kv_heads, int head_dim);

    /* A step: begin, ops, finish. begin takes the batch for the ops below; finish waits for all of it. */
    int (*begin)(struct device *d, const struct batch *b, const struct rope *rope, struct err *e);
    int (*finish)(struct device *d, struct step_time *t, struct err *e);

    /* From here to finish, or to another part, the rows that rope and attention work on are these. gather and sample go
     * on by the logit rows of the whole step. Not in captured steps. */
    void (*begin_part)(struct device *d, const struct batch_part *p);
    /* y[i] = table[ids[first + i]] */
    void (*embed)(struct device *d, struct wview table, struct act y, int first, int n);
    void (*linear)(struct device *d, const struct linear_args *a);
    /* Optional (NULL: none): the largest number of rows of a step whose outputs are best gated. */
    int (*gates)(const struct device *d);
    /* Optional (NULL: never). In a step of so many rows, may outputs of products with this weight be half, without a
     * bias, where they are the inputs of a LINEAR_SWIGLU or of rope_attention (all of q, k and v are half, or none),
     * and may the output of attention be half where it is the input of a product with it? An exchange may lie between.
     */
    bool (*narrows)(const struct device *d, struct wview w, int rows);
    void (*rope)(struct device *d, const struct rope_args *a);
    void (*kv_write)(struct device *d, struct act k, struct act v,
                     const struct kv_view *kv); /* the batch's rows into their blocks */
    /* Optional (NULL: rope, then kv_write): both at once. The contents of k are undefined afterwards. */
    void (*rope_write)(struct device *d, const struct rope_args *a, struct act v, const struct kv_view *kv);
    void (*attention)(struct device *d, const struct attention_args *a);
    /* Optional (NULL: one after the other): rope_write, then attention of the same q. The contents of q are undefined
     * afterwards, too. */
    void (*rope_attention)(struct device *d, const struct rope_args *r, struct act v, const struct attention_args *a);
    /* y[i] = x[logit_rows[first + i] - row0]: x holds the batch's rows from row0 on */
    void (*gather)(struct device *d, struct act x, int row0, struct act y, int first, int n);
    /* Fills results[first .. first+n) from logits [n, vocab]; may overwrite the logits. vocab: entries past it are
     * padding. */
    void (*sample)(struct device *d, struct act logits, int vocab, int first, int n);
    /* Optional (NULL: no draft heads run on such machines): the ops of draft.h. */
    const struct draft_ops *(*draft)(void);

    /* Graphs, optional (NULL: this machine has none). Steps in which each sequence decodes one token differ only in
     * their arrays, so a machine may capture the ops of one and launch them for any such step of up to as many rows.
     * All members of a group capture together and launch together: whether there is a graph depends only on what they
     * all share. Between graph_begin and graph_end ops are captured and do not run; the batch is a dummy one of that
     * kind. After an error of either, or of an op in between (which graph_end reports), there is no such graph, and the
     * comm is aborted. E_UNSUPPORTED: the machine cannot. graph_post is begin and all ops at once, graph_wait is
     * finish. *posted false: there is no graph for the step, and nothing was done. One more step may be posted before
     * graph_wait for the one in flight, and be fed by it; graph_wait waits for the older of two. graph_ended tells
     * whether graph_wait would return at once. */
    int (*graph_begin)(struct device *d, const struct graph_call *c, const struct rope *rope, struct err *e);
    int (*graph_end)(struct device *d, struct err *e);
    int (*graph_post)(struct device *d, const struct graph_call *c, bool *posted, struct err *e);
    bool (*graph_ended)(struct device *d);
    int (*graph_wait)(struct device *d, struct step_time *t, struct err *e);

    /* Copies cached tokens between the KV spaces of ranks, for this rank's part of a move; outside of steps. NULL:
     * nothing is stored. */
    void (*kv_move)(struct device *d, const struct kv_move *m);
    /* Optional (NULL on a machine that computes: batches have no row_tree there). Outside of steps, too. */
    void (*kv_pack)(struct device *d, const struct kv_pack *p);

    /* Optional (NULL on machines that compute): the whole step at once, results made up by share 0. */
    void (*whole_step)(struct device *d, int vocab, struct layout l, int share);
    /* Optional (NULL on machines that compute): the time that a step or a copy will take, in ns; -1: unknown. */
    int64_t (*step_ns)(const struct device *d, struct layout l, const struct step_size *s);
    int64_t (*kv_move_ns)(const struct device *d, const struct kv_move *m);
    /* Of a pooled FFN layer, onto every rank. */
    int64_t (*layer_copy_ns)(const struct device *d);
    /* Of weights, from the machine's memory. */
    int64_t (*host_copy_ns)(const struct device *d, size_t bytes);

    /* Collectives. A member whose device failed aborts the comm instead of taking part, and a member that finds its
     * comm aborted fails with E_PEER for the rest of the step, so no member waits for ever. A comm stays aborted until
     * comm_reset. */
    int (*comm_open)(struct comm **out, int n, struct err *e);
    void (*comm_close)(struct comm *c); /* NULL is fine */
    void (*comm_abort)(struct comm *c); /* any thread */
    void (*comm_reset)(struct comm *c); /* as new; only while no member is inside */
    void (*exchange)(struct device *d, const struct exchange_args *a);
    void (*reduce)(struct device *d, const struct reduce_args *a);
    /* Optional: can members on these devices use COMM_LIBRARY? NULL: never. */
    bool (*reduces_by_library)(struct device *const *devices, int n);

    /* Optional (NULL: such machines keep no profile). Makes these ops, a copy of the machine's own that is the
     * caller's, into ones whose devices keep a profile of their steps, op by op (profile.h). Nothing else changes, not
     * a bit of a result. It fills in the two below, which are NULL otherwise. */
    void (*watch)(struct backend_ops *ops);
    /* Measures what the machine can do at most, for the profile; outside of steps, while nothing else runs. May be done
     * again: the best counts. */
    void (*probe)(struct device *d);
    /* Adds what the device has counted so far to *sum; any thread, while d is open. */
    void (*add_profile)(struct device *d, struct profile *sum);
    /* Optional (NULL: nothing to choose between): tuning.h. */
    const struct tuning_ops *(*tuning)(void);
};

const struct backend_ops *backend_cpu(void);
const struct backend_ops *backend_sim(void);
const struct backend_ops *backend_cuda(void); /* where it was built in (MOONSHIFT_CUDA) */
/* find.c, in the program alone: by name; NULL: this build does not have it. */
const struct backend_ops *backend_find(const char *name);

#endif
