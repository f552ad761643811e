/* What the parts of the FFN pool (fetchers, servers, seats) know in common: who owns which layer and where its matrices
 * lie, which ranks have failed, and how many ranks are in a step with layers that go to their owners. Made by
 * ffn_pool.c, freed by it; the engine's thread changes owners, while no step is under way. Any thread reads. */
#ifndef EXEC_FFN_SHARED_H
#define EXEC_FFN_SHARED_H

#include <stdatomic.h>

#include "engine/exec/ffn_link.h"
#include "engine/exec/weights.h"

struct ffn_shared {
    const struct backend_ops *ops;
    const struct model_config *config;
    struct ffn_setup setup;
    struct weights *weights[MAX_RANKS]; /* borrowed */
    struct device *ranks[MAX_RANKS];    /* the ranks' own devices, borrowed: to wait for what they were given */
    struct ffn_link *link;
    atomic_ullong dead; /* ranks whose device has failed */
    atomic_int n_cas;   /* ranks in a step that sends rows */
};

static inline bool ffn_is_dead(const struct ffn_shared *f, int rank)
{
    return atomic_load(&f->dead) >> rank & 1;
}

/* A place in the order of what the rank's device was given; 0: it has failed. The rank's thread. */
static inline uint64_t ffn_mark(const struct ffn_shared *f, int rank)
{
    return f->ops->mark ? f->ops->mark(f->ranks[rank]) : 1;
}

/* Waits until the device has got there; false: it failed. Any thread. */
static inline bool ffn_reach(const struct ffn_shared *f, int rank, uint64_t mark)
{
    return !f->ops->reach || f->ops->reach(f->ranks[rank], mark);
}

/* An owner of the layer, or of a share of it, that has failed; -1: none. */
static inline int ffn_lost(const struct ffn_shared *f, int layer)
{
    for (int i = 0; i < ffn_shares(&f->setup, layer); i++)
        if (ffn_is_dead(f, ffn_owner(&f->setup, layer, i)))
            return ffn_owner(&f->setup, layer, i);
    return -1;
}

/* Such an owner is there: for whoever needs the layer. */
static inline int ffn_say_dead(const struct ffn_shared *f, int layer, struct err *e)
{
    return err_set(e, E_PEER, "rank %d, which holds the FFN weights of layer %d, has failed", ffn_lost(f, layer),
                   layer);
}

#endif
