/* A move: the cached tokens of one sequence, copied from the blocks of one KV placement to those of another, as data.
 * Built by the engine, posted to the inboxes of the destination's ranks (each copies its own heads from the ranks that
 * hold them) or, when it goes to host memory, of the source's (each copies its own heads there), handed back when the
 * last has done. The engine holds both block lists until then, and nobody writes the
 * source's blocks meanwhile. Ordered before every step that is posted to those ranks afterwards, so a sequence may run
 * right away, unless it is made beside the steps. Invariant: running a move allocates nothing. */
#ifndef EXEC_MOVE_H
#define EXEC_MOVE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/world/headmap.h"
#include "kernels/backend.h"

struct move_end {
    int n, stages;        /* ranks; in so many stages, each of n / stages */
    bool host;            /* the host's memory, which has all heads of all layers: one share, no rank */
    int ranks[MAX_RANKS]; /* by share */
    int tokens_per_block; /* of a piece (stage_pieces), as are the blocks here */
    int n_blocks;
    const int32_t *blocks;                    /* [n][n_blocks] blocks by share, in the move's arena */
    const struct kv_space *spaces[MAX_RANKS]; /* by share, of a rank of so many stages; filled by move_post */
};

struct move {
    struct arena arena;
    uint64_t owner;  /* req_id */
    uint64_t serial; /* 1, 2, ... in the order they were posted */
    struct heads heads;
    struct move_end from, to;
    int n_tokens, first_token;  /* tokens [first_token, n_tokens) */
    int n_layers, element_bits; /* of what is cached; set by move_post */
    bool beside; /* nobody waits for it in a step: it is done beside them, and not ordered before those posted later */
    atomic_int left;       /* ranks yet to do their part; set by move_post */
    _Atomic int64_t bytes; /* copied */
    _Atomic int64_t ns;    /* of its slowest part; 0 on machines that do not know beforehand */
    int64_t posted_ns;
    void *ctx; /* the engine's */
};

struct rank;
/* An empty one; its arena is ready. */
struct move *move_new(void);
/* The end whose ranks copy. */
const struct move_end *move_mover(const struct move *m);
/* Posts to those ranks; ranks[] is the node's table, by index; host: its memory, or NULL. Ranks that are not threaded
 * have done their part on return. */
void move_post(struct move *m, struct rank *const *ranks, const struct kv_space *host);
/* One share's part, on its rank's thread. */
void move_run(struct move *m, int share, const struct backend_ops *ops, struct device *d);
void move_free(struct move *m); /* NULL is fine */

#endif
