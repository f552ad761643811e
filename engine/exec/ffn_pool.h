/* The FFN pool of a node: the slots and the server of each rank, behind the one thing that a step asks
 * (models/forward/ffn.h): a seat. For machines that compute; a simulated machine prices the pool instead
 * (kernels/sim/cost.c). All ranks are in one process and read each other's memory, GPUs by peer access; several
 * processes would need handles to mapped memory (cuMem*, VMM), and nothing above ops->pull would change. Fetchers and
 * servers have devices of their own, and so streams: where ops only enqueue work, what another stream is to read or to
 * write over is waited for on the host. Opened and closed by the node; seats are used by their rank's thread.
 * Invariant: nobody waits for a rank that has failed. Source: SiDP. */
#ifndef EXEC_FFN_POOL_H
#define EXEC_FFN_POOL_H

#include "engine/exec/ffn_slots.h"

struct ffn_pool;
struct ffn_seat; /* of one rank */

struct ffn_pool_setup {
    const struct backend_ops *ops;
    const struct ffn_setup *ffn;       /* copied */
    const struct model_config *config; /* borrowed */
    struct weights *const *weights;    /* [n_ranks], borrowed; every layer on its owner */
    struct device *const *ranks;       /* [n_ranks] their own devices, borrowed */
    const struct device_opts *devices; /* [n_ranks] what the ranks' own were opened with: the same memory; copied */
};

/* E_UNSUPPORTED: these machines cannot pool weights. */
int ffn_pool_open(struct ffn_pool **out, const struct ffn_pool_setup *s, struct err *e);
/* Opens the seat of a rank, on the thread that is to touch its memory first; any number of ranks at the same time, all
 * of them before the first step. E_FULL. */
int ffn_pool_sit(struct ffn_pool *p, int rank, struct err *e);
void ffn_pool_close(struct ffn_pool *p);              /* NULL is fine; no step is under way */
size_t ffn_pool_slot_bytes(const struct ffn_pool *p); /* of each rank */
size_t ffn_pool_row_bytes(const struct ffn_pool *p);  /* of each rank: for rows that others send */
struct ffn_seat *ffn_pool_seat(struct ffn_pool *p, int rank);

/* Around each part of a step. Where tp is above 1, the rank's share of all layers is fetched, whatever the modes. */
void ffn_seat_begin(struct ffn_seat *s, const struct ffn_modes *modes, const struct shard *share);
void ffn_seat_end(struct ffn_seat *s);
/* Of steps from now on: where to note when each layer was fetched and multiplied; NULL: nowhere. */
void ffn_seat_watch(struct ffn_seat *s, struct ffn_timeline *t);
const struct ffn_source *ffn_seat_source(struct ffn_seat *s);
void ffn_seat_account(struct ffn_seat *s, struct ffn_account *a); /* ever since; the rank's thread */
int ffn_seat_lost(const struct ffn_seat *s);     /* the rank whose failure ended its last step; -1: none */
bool ffn_seat_is_dead(const struct ffn_seat *s); /* its own device has failed, also while it served others */
/* The rank makes a copy of the layer that stays (t->layer), and counts t down when it is whole, or could not be made;
 * at once where there is no memory for it. The rank's thread, between steps. */
void ffn_seat_keep(struct ffn_seat *s, struct replica_task *t);
void ffn_seat_give_up(struct ffn_seat *s, int layer); /* that copy, as far as there is one */
/* The rank's device has failed: whoever waits for it gets E_PEER. Any thread. */
void ffn_seat_fail(struct ffn_seat *s);

size_t ffn_pool_layer_bytes(const struct ffn_pool *p);                       /* the FFN matrices of the largest layer */
size_t ffn_pool_share_bytes(const struct ffn_pool *p, int layer, int share); /* 0 of 1: the layer */
/* The share lies on that rank from now on, which has adopted it (weights_adopt). No step is under way. */
void ffn_pool_give(struct ffn_pool *p, int layer, int share, int rank);

struct ffn_pool_facts {
    int most_readers;         /* of one owner at the same time */
    uint64_t products, calls; /* of the servers: fused products, and what they served */
};
void ffn_pool_look(struct ffn_pool *p, struct ffn_pool_facts *out); /* any thread */

#endif
