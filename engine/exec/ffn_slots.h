/* The slots of one rank, and the thread that fills them: weights as a service. While a step runs, the fetcher copies
 * the FFN matrices of layers that others own into slots ahead of their products, in tiles, in the order of the setup
 * (engine/world/ffn.h); a product that comes too early waits for its own matrices, and the wait is counted. The owner
 * does nothing. A rank whose layout has tp above 1 fetches its share of each layer. Between steps nothing moves; what
 * lies in a slot stays valid for steps that need no more than that part of the layer, weights never change. Owned by
 * the pool; the rank's thread calls what is below. Where ops are only enqueued, a slot is in use until the rank's
 * device has done them. Invariant: a slot is in use only while its layer is complete in it as far as was asked, and
 * nothing else comes into a slot that is in use. A layer that is to lie on every rank for a while gets a slot of its
 * own, which keeps all of it until it is given up. Source: SiDP's WaS and its peak shifting.
 */
#ifndef EXEC_FFN_SLOTS_H
#define EXEC_FFN_SLOTS_H

#include "engine/exec/ffn_copy.h"
#include "engine/world/ffn_timeline.h"
#include "engine/exec/replicate.h"

struct ffn_slots;

/* What a rank's steps have moved and waited for, ever since. */
struct ffn_account {
    int64_t wait_ns, fetch_ns; /* products waited; copies took */
    uint64_t bytes, cas_bytes; /* fetched; sent to owners and back */
    uint64_t cas_rows;
};

/* Takes the memory of the slots from d, which is the fetcher's from now on. E_FULL without it. */
int ffn_slots_open(struct ffn_slots **out, struct ffn_shared *f, int rank, struct device *d, struct err *e);
void ffn_slots_close(struct ffn_slots *s);          /* NULL is fine; not within a step */
size_t ffn_slots_bytes(const struct ffn_shared *f); /* of one rank */

/* share: what the step multiplies with. */
void ffn_slots_begin(struct ffn_slots *s, const struct ffn_modes *modes, const struct shard *share);
/* Waits until the first n matrices of the layer are here; until leave they stay. E_PEER: the owner has failed. */
int ffn_slots_take(struct ffn_slots *s, int layer, int n, const struct weight **matrices, struct err *e);
void ffn_slots_leave(struct ffn_slots *s, int layer);
void ffn_slots_times(struct ffn_slots *s, struct ffn_layer_times *t); /* when the layer in use was fetched */
void ffn_slots_end(struct ffn_slots *s);
/* A slot for this layer alone, filled behind what steps need. See ffn_seat_keep. */
void ffn_slots_keep(struct ffn_slots *s, struct replica_task *t);
void ffn_slots_give_up(struct ffn_slots *s, int layer);
void ffn_slots_account(struct ffn_slots *s, struct ffn_account *a); /* adds; any thread */
void ffn_slots_look(
    struct ffn_slots *s); /* a rank has failed, or an owner changed: who waits looks again; any thread */

#endif
