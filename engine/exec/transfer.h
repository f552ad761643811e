/* What a rank does beside its steps: takes KV to the machine's memory, and brings the weights of another cut from
 * there, layer by layer. One thread with a device handle of its own; KV goes before the next layer. Opened by the
 * rank's thread, used by the engine's, closed by whoever closes the rank. Invariant: nothing here touches what a step
 * may read or write. Source: Seesaw's prefetcher threads. */
#ifndef EXEC_TRANSFER_H
#define EXEC_TRANSFER_H

#include "engine/exec/move.h"
#include "engine/exec/reshard.h"
#include "engine/exec/weights.h"

struct transfer;

struct transfer_setup {
    const struct backend_ops *ops;
    struct device_opts device; /* of the rank */
    const struct model *model;
    struct weights *weights; /* borrowed */
    int rank;
    void (*move_done)(void *ctx, struct move *m);
    void *ctx;
};

int transfer_open(struct transfer **out, const struct transfer_setup *s, struct err *e);
void transfer_post_move(struct transfer *t, struct move *m, int share);
void transfer_post_stage(struct transfer *t, struct reshard_task *r);
void transfer_close(struct transfer *t); /* does what was posted; a stage ends early. NULL is fine */

#endif
