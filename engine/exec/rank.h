/* A rank: one worker that owns one device, its weights and its KV memory, and does what is posted to its inbox in
 * order: its part of a step, its part of a move. Threaded, it has a thread and an inbox; otherwise rank_post runs the
 * part at once (virtual time; groups of one, or machines that compute nothing). A device error poisons a rank: every
 * later step fails with it, and its group is told. Created and closed by the engine. A threaded rank opens its device,
 * loads its weights and takes all its memory on its own thread, which so is the first to touch it: on a machine of
 * several NUMA nodes memory lies where it was touched first. A step of decodes that follows another may be put behind
 * it on the device before that one has ended. Invariant: a rank runs its steps one at a time, in the order they were
 * posted. */
#ifndef EXEC_RANK_H
#define EXEC_RANK_H

#include "engine/exec/comm.h"
#include "engine/exec/drafter.h"
#include "engine/exec/ffn_pool.h"
#include "engine/exec/kv_memory.h"
#include "engine/exec/prepare.h"
#include "engine/exec/move.h"
#include "engine/exec/replicate.h"
#include "engine/exec/reshard.h"
#include "engine/exec/step.h"
#include "engine/exec/weights.h"

struct rank;

struct rank_setup {
    const struct backend_ops *ops;
    struct device_opts device;
    const struct model *model;           /* borrowed while opening; its config, and with a cut all of it, until close */
    const struct speculator *speculator; /* borrowed while opening; NULL: no draft heads */
    int index, n_ranks;
    const struct numa_node *numa; /* where its thread and all that it starts stay; NULL: anywhere. While opening */
    struct rank *shares_with; /* uses that rank's weights (same memory), and is closed before it; NULL: loads its own */
    bool copy_shards;         /* --shift-weights copy: a second, sharded copy serves the layouts with tp > 1 */
    const struct ffn_setup
        *ffn;              /* pooled: it loads the FFN matrices of its own layers only; NULL: all. While opening */
    const struct cut *cut; /* it holds this of the layers, and may change to another; NULL: all. Borrowed until close */
    bool has_host;         /* KV may lie in the machine's memory */
    enum dtype kv_dtype;
    int block_size;                 /* tokens of a block that holds all kv heads */
    struct load_progress *progress; /* while opening; NULL: nothing is said */
    bool threaded, quiet;
    uint64_t fail_at_step; /* tests: the device fails in the step of this number; 0: never */
    /* Threaded only, on the thread of the member that ends last; they take the step, the move. Otherwise the poster has
     * it back when its `left` is 0. */
    void (*step_done)(void *ctx, struct step *s);
    void (*move_done)(void *ctx, struct move *m);
    void *ctx;
};

/* Opens the device, loads the weights or shares them, allocates the forward's scratch for every layout of up to n_ranks
 * ranks. rank_begin only begins that, so that several ranks do it at the same time, and rank_opened waits for it;
 * whatever it says the rank is there to be closed. */
int rank_open(struct rank **out, const struct rank_setup *s, struct err *e);
int rank_begin(struct rank **out, const struct rank_setup *s, struct err *e);
int rank_opened(struct rank *r, struct err *e);
/* Something that the rank's own thread does, behind what was posted; rank_await waits for it and has its result. Any
 * number of ranks at the same time, one job each. The engine's thread, while opening or while nothing is under way. */
struct rank_job {
    int (*run)(void *ctx, struct err *e);
    void *ctx;
    int rc;
    struct err err;
};
void rank_do(struct rank *r, struct rank_job *j);
int rank_await(struct rank *r, struct rank_job *j, struct err *e);
const struct device_facts *rank_facts(const struct rank *r);
struct device *rank_device(const struct rank *r); /* for the communicator pool, before rank_start */
void rank_release(struct rank *r, void *p);       /* memory of its device that was taken beside it; once stopped */
void rank_probe(struct rank *r); /* its peaks, for profiles; on its own thread. Nothing where nothing is watched */
bool rank_add_profile(const struct rank *r, struct profile *sum); /* false: nothing is watched. Any thread */
size_t rank_weight_bytes(const struct rank *r);     /* its own, copies included: 0 when it shares another's */
struct weights *rank_weights(const struct rank *r); /* borrowed: for the FFN pool */
/* Its steps guess with a draft model, in this seat. Before rank_start. */
void rank_draft_with(struct rank *r, struct drafter_seat *seat);
/* Its steps get the FFN layers that it does not hold through this seat. Before rank_start. */
void rank_join(struct rank *r, struct ffn_seat *seat);
size_t rank_scratch_bytes(const struct rank *r);
size_t rank_kv_block_bytes(const struct rank *r); /* over all layers */
int rank_kv_bits(const struct rank *r);           /* of a cached element */
/* Tokens that a block of this rank's constant bytes holds when it stores n_kv heads: a multiple of 16. */
int rank_tokens_per_block(const struct rank *r, int n_kv_heads);
/* Its KV memory as that of a rank of so many stages, whose layers it has: layer 0 is its first. Valid once started. */
const struct kv_space *rank_kv(const struct rank *r, int stages);
/* Why this layout cannot run on this backend with these weights, or NULL. */
const char *rank_layout_refusal(const struct rank *r, struct layout l);
/* Does what it holds now serve this share of the layout? */
bool rank_runs(const struct rank *r, struct layout l, int share);
/* Allocates n_blocks of KV. Call it for all ranks before the first step or move is posted. */
int rank_start(struct rank *r, int n_blocks, struct err *e);
/* To all ranks of s->ranks, each with its share, before any other step or move is posted to one of them: so all see one
 * order. */
void rank_post_step(struct rank *r, struct step *s, int share);
void rank_post_move(struct rank *r, struct move *m, int share);
/* To all ranks of t->ranks; the steps that were posted before may still use the copy. */
void rank_post_replica(struct rank *r, struct replica_task *t);
/* To all ranks of t->ranks. */
void rank_post_reshard(struct rank *r, struct reshard_task *t);
/* To all ranks of t->ranks, before anything else is posted to one of them; t stays until its `left` is 0. */
void rank_prepare(struct rank *r, struct prepare_task *t, int share);
bool rank_has_graphs(const struct rank *r);
void rank_stop(struct rank *r);  /* does what was posted, then its thread ends; NULL is fine */
void rank_close(struct rank *r); /* stops it, too; NULL is fine */

#endif
