/* One rank's CUDA device: its stream, its memory, the step in progress, and working memory that grows to what the
 * largest op needs. Owned by the rank, used by the rank's thread. Several ranks may share one GPU, each with a struct
 * device of its own. An error of the CUDA runtime stays with the device for good and every later step reports it; the
 * process goes on. Invariant: ops only enqueue work, and finish waits for it; a function that waits itself says so. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cuda/copier.h"
#include "kernels/cuda/flash_plan.h"
#include "kernels/cuda/frame.h"
#include "kernels/cuda/heap.h"
#include "kernels/cuda/job.h"
#include "kernels/cuda/lt.h"

/* Device memory that grows and never shrinks. Growing drops its contents. */
struct scratch {
    void *data;
    size_t bytes;
};

/* Pinned host memory and device memory of the same size: the inputs of a step are copied through it. */
struct mirror {
    char *host, *dev;
    size_t bytes, used;
};

/* Pinned buffers, used in turn, so that reading a file overlaps copying it to the device. */
enum { LOAD_SLOTS = 3 };
struct loader {
    void *host[LOAD_SLOTS], *dev[LOAD_SLOTS]; /* dev: for quantised types */
    cudaEvent_t free[LOAD_SLOTS];
    int next;
    struct copier *copier; /* NULL: the rank's thread alone */
};

struct sampled {
    int first, n; /* rows of results to hand over in finish */
};

/* Working memory of the ops. */
struct work {
    struct scratch angles, inputs, changed;
    struct scratch wide, workspace, partial, arrived; /* default mode */
};

/* A captured step of `rows` rows: the part of one member. */
struct graph {
    struct graph_key key;
    int rows, vocab, n_kernels; /* n_kernels: at the first member, of all */
    bool capturing;             /* first member: the capture is in progress */
    bool flashes;               /* it has attention of this shape */
    struct flash_shape flash;
    size_t cleared; /* it clears so many bytes of counters */
    struct sampled *sampled;
    int n_sampled;
    const struct sample_out *member_results[FEED_MEMBERS];
    int n_members;
    cudaGraphExec_t exec; /* at the first member, for all; NULL at others */
};

struct step_results {
    const struct batch *batch;
    const struct sampled *rows;
    int n;
    const struct sample_out *from; /* of row 0, on the host */
};

/* A captured step in flight. */
struct flight {
    const struct graph *graph;
    struct step_results results;
    cudaEvent_t begun, ended;
};

/* How attention is cut in this step, for layers of this shape. */
struct flash_step {
    bool planned;
    struct flash_shape shape;
    struct flash_plan plan;
    const struct flash_item *items; /* on the device: the wide ones, then the narrow ones */
    const int32_t *n_items;         /* of each */
};

enum { MARKS = 1024 };

struct device {
    struct device_opts opts;
    struct device_facts facts;
    int index, capability; /* capability: 90 is 9.0 */
    cudaStream_t stream;
    cudaEvent_t begun, ended;
    cudaEvent_t marks[MARKS]; /* used in turn; NULL: not yet */
    uint64_t last_mark;
    struct heap heap;
    struct loader loader;
    struct err error, broken;  /* of this step; of the device, for good */
    const struct batch *batch; /* of the step between begin and finish */
    struct batch part;         /* what batch is once a part has begun: the step's with other rows */
    struct rope rope;
    struct step_view view;
    int block_tokens;       /* for which view.blocks is valid; 0: not yet */
    int item_rows, n_items; /* invariant attention's pieces of so many rows are in `items`; 0: not yet */
    int n_sms, cta_shared;  /* cta_shared: bytes that a CTA may have */
    struct mirror rows, blocks, items, lists, results;
    struct work step_work, graph_work, *work; /* work: that of the step, or of the graph that is being captured */
    /* default mode */
    bool pdl;    /* programmatic dependent launch: a kernel may begin before the one before it has ended */
    bool hopper; /* prompts by flash_hopper.cu */
    bool no_skinny, no_lean, no_slim, no_narrow, no_graphs; /* came out wrong: check.c */
    struct trials *trials;                                  /* NULL: no product was timed yet */
    struct mirror plans;
    struct flash_step flash;
    struct nccl_functions *nccl; /* default mode on several GPUs; NULL: not here */
    struct lt *lt;               /* default mode; NULL: own kernels only */
    struct sampled *sampled;
    int n_sampled;
    /* graphs */
    struct frame frame;
    struct graph *graph; /* being captured: ops go into it and do not run */
    struct comm *turns;  /* while several threads capture into one graph, in turns: here; NULL: they do not */
    bool after_kernel;   /* the latest of the stream's work is a kernel of ours, and nothing else came after it */
    struct graph **graphs;
    int n_graphs;
    struct flight flights[FLIGHTS];
    int oldest_flight, n_flights;
};

/* Makes this device the thread's. Every entry from outside begins with it. */
void gpu_use(struct device *d);
/* True when rc is no error; else the device is broken: "CUDA: what: reason". */
bool gpu_ok(struct device *d, cudaError_t rc, const char *what);
/* The same for a launch. */
bool gpu_launched(struct device *d, cudaError_t rc, const char *what);
/* May the next kernel begin before the one before it has ended? In a graph only a kernel may follow a kernel so: what
 * follows a memset or another stream's work gets plain edges, and need not be asked of the runtime. */
bool gpu_begins_early(const struct device *d);
/* E_UNSUPPORTED: there is none at all; E_INPUT: not this one. */
int gpu_exists(int index, struct err *e);
/* Adds to what the device does without: facts.lacks. */
void gpu_lacks(struct device *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Records the first error of a step. */
void gpu_fail(struct device *d, int code, const char *text);
static inline bool gpu_failed(const struct device *d)
{
    return d->error.code != 0;
}
/* False, with an error, when there is not so much memory. Growing waits for the stream; into a graph nothing is waited
 * for, and what was there stays for its earlier ops. */
bool gpu_grow(struct device *d, struct scratch *s, size_t bytes);
bool gpu_try_grow(struct device *d, struct scratch *s, size_t bytes); /* the same; too little memory is no error */
/* work->arrived has so many counters, all zero when the next kernel begins, if every one so far has left them so. */
bool gpu_counters(struct device *d, size_t n);
/* Room for `bytes` more; false without memory. Growing waits for the stream and begins anew at the mirror's start: what
 * was there has been used. */
bool mirror_room(struct device *d, struct mirror *m, size_t bytes);
/* Takes bytes (there is room) and says where they are on either side. */
size_t mirror_take(struct mirror *m, size_t bytes);
/* Sends bytes [first, used) on their way to the device. */
void mirror_push(struct device *d, const struct mirror *m, size_t first);
void mirror_free(struct device *d, struct mirror *m);

/* peers.c */
int peers_open(struct device *d, struct err *e); /* those of opts.peers; E_UNSUPPORTED: one is out of reach */
/* step.c */
int cuda_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e);
void cuda_begin_part(struct device *d, const struct batch_part *p);
int cuda_finish(struct device *d, struct step_time *t, struct err *e);
/* After the wait for what came after `begun`: the time, the results or the error. */
int step_end(struct device *d, const cudaEvent_t between[2], const struct step_results *r, struct step_time *t,
             struct err *e);
/* The rotation of the view's positions; frequencies in device memory. */
void step_angles(struct device *d, const float *inv_freq);
struct rope_job step_rope(const struct device *d, const struct rope_args *a, struct act x, int n_heads,
                          const float *gain);
/* Block lists for blocks of so many tokens, on their way to the device; view.blocks is valid then. */
bool step_blocks(struct device *d, int tokens);
void cuda_embed(struct device *d, struct wview table, struct act y, int first, int n);
void cuda_rope(struct device *d, const struct rope_args *a);
void cuda_gather(struct device *d, struct act x, int row0, struct act y, int first, int n);
/* load.c */
int cuda_weight_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e);
void cuda_weight_free(struct device *d, struct weight *w);
size_t cuda_weight_bytes(const struct weight *w);
const void *cuda_weight_data(const struct weight *w);
size_t cuda_weight_room(const struct weight_shape *s);
int cuda_weight_at(struct device *d, struct weight **out, const struct weight_shape *s, void *room, struct err *e);
int cuda_weight_window(struct wview v, struct weight_runs out[WEIGHT_PLANES]);
struct weight_window cuda_window(const struct wview *v);
void loader_close(struct device *d);
/* order.c */
uint64_t cuda_mark(struct device *d);
bool cuda_reach(struct device *d, uint64_t mark); /* any thread */
int64_t cuda_between(struct device *d, uint64_t from, uint64_t to);
int cuda_pull(struct device *d, const struct pull *p);
void marks_close(struct device *d);
/* linear.c */
void cuda_linear(struct device *d, const struct linear_args *a);
void cuda_exact_linear(struct device *d, const struct linear_args *a);
void cuda_gate(struct device *d, const struct linear_args *a); /* after the products of gated outputs */
/* product.c */
void cuda_product(struct device *d, const struct linear_args *a);
int cuda_gates(const struct device *d);
bool cuda_narrows(const struct device *d, struct wview w, int rows);
/* product_f8.c */
/* Which scales the input gets for a product with output i in fp8. F8_BY_64: that product is not done in fp8. */
enum f8_scales f8_input_scales(const struct device *d, const struct linear_args *a, int i);
/* All outputs have the same input scales, not F8_BY_64. done[i]: output i is written; the others are untouched. */
void cuda_f8_product(struct device *d, const struct linear_args *a, bool done[LINEAR_MAX_OUT]);
/* flash.c. j: all but the items, their counts and the working memory. most_heads: q heads of one kv head. */
void cuda_flash(struct device *d, struct flash_job *j, int most_heads);
/* kv.c */
size_t cuda_kv_block_bytes(enum dtype t, int tokens, int n_kv_heads, int head_dim);
void cuda_kv_write(struct device *d, struct act k, struct act v, const struct kv_view *kv);
void cuda_rope_write(struct device *d, const struct rope_args *a, struct act v, const struct kv_view *kv);
void cuda_rope_attention(struct device *d, const struct rope_args *r, struct act v, const struct attention_args *a);
void cuda_attention(struct device *d, const struct attention_args *a);
void cuda_kv_move(struct device *d, const struct kv_move *m);
/* graph.c */
int cuda_graph_begin(struct device *d, const struct graph_call *c, const struct rope *rope, struct err *e);
int cuda_graph_end(struct device *d, struct err *e);
int cuda_graph_post(struct device *d, const struct graph_call *c, bool *posted, struct err *e);
bool cuda_graph_ended(struct device *d);
int cuda_graph_wait(struct device *d, struct step_time *t, struct err *e);
bool graphs_open(struct device *d, int most_rows); /* false, with the device's error: no memory */
void graphs_close(struct device *d);
void graph_forget_last(struct device *d); /* the one recorded last, which nobody plays any more */
/* sample.c */
/* Where the parameters and lists of rows are written. */
struct params_writer {
    struct sample_params *params; /* of the first row */
    int32_t *words;
    int64_t used; /* of the words */
    int vocab;
};
/* Upper bound of the 32-bit words that the lists of rows [first, first + n) take. */
size_t sample_list_words(const struct batch *b, int first, int n, int vocab);
/* Writes the parameters of the step's rows [first, first + n). False, with an error: no memory. */
bool write_sample_params(struct device *d, int first, int n, struct params_writer *to);
void cuda_sample(struct device *d, struct act logits, int vocab, int first, int n);
/* collective.c */
void cuda_exchange(struct device *d, const struct exchange_args *a);
void cuda_reduce(struct device *d, const struct reduce_args *a);
void cuda_comm_close(struct comm *c);
void cuda_comm_abort(struct comm *c); /* any thread */
/* The GPU of a member that has published in this slot. */
int member_device(const struct comm *c, int member, int slot);
/* Makes the streams of all others wait for what the first member has enqueued, or its stream for what they have. During
 * a capture this makes their streams part of the graph. False, with an error: a member failed. */
enum signal_way { FROM_FIRST, TO_FIRST };
bool members_signal(struct device *d, struct comm *c, int me, enum signal_way way);
/* The member's own turn at a graph that several threads capture into, and the end of it. Collectives pass it on. */
void turn_take(struct device *d);
void turn_pass(struct device *d);
/* After a signal: where the members leave the results of captured steps. */
int members_results(const struct comm *c, int me, const struct sample_out *results[FEED_MEMBERS]);

/* Of one whose elements are f32. */
static inline float *act_row(struct act a, int row)
{
    return (float *)a.data + (size_t)row * (size_t)a.ld;
}

#endif
