/* A simulated step on a node whose FFN weights are pooled: how long it waits for layers on their way, and what lies on
 * each device. Pure functions, any thread. Every rank with work runs an equal step, one such step follows the other,
 * and a group is judged as the rank with the fewest layers of its own. Where the weights are cut into shares, the ranks
 * of one whole copy are one owner. Invariant: nothing is waited for that had no reason to come late, so that a link
 * without bound costs nothing. Source: SiDP; the readers of an owner were counted in a simulation of the ranks beside
 * one another. */
#ifndef KERNELS_SIM_POOL_H
#define KERNELS_SIM_POOL_H

#include "engine/world/ffn.h"
#include "kernels/sim/machine.h"

/* The owners of a pool, as a step of one group sees them. */
struct pool_sight {
    const struct ffn_setup *setup; /* NULL: nothing is pooled */
    int shares;                    /* of the weights */
    int n_owners, busy;            /* owners; of them, those with work, this one included */
    int me;                        /* the owner with the fewest layers */
};
/* `ranks` have work at that time (0: weights as if each rank had all of them, setup is NULL). */
struct pool_sight pool_look(const struct sim_weights *w, int ranks);
static inline bool pool_is_own(const struct pool_sight *p, int layer)
{
    return p->setup->owner[layer] / p->shares == p->me;
}
/* How many fetch from the same owner at the same time, this rank included. */
double pool_readers(const struct pool_sight *p);
/* How many send rows to the same owner at the same time, this rank included. */
double pool_senders(const struct pool_sight *p);

/* Times of one layer and of what surrounds a step, in ns. */
struct pool_pace {
    double before, ffn;         /* in a layer: up to the FFN, and the FFN itself */
    double fetch;               /* of one layer's matrices */
    double served, served_here; /* the FFN of a layer whose rows go to the owner; the same where that is this rank */
    double between;             /* from the last layer of a step to the first of the next one */
    int cas_layers;             /* the last ones of the model */
    int replica_layers;         /* the first ones: on every rank */
};
/* What a step waits for layers on their way, once several such steps have run. layers: of that step, or NULL. */
double pool_wait(const struct pool_sight *p, const struct pool_pace *t, struct sim_pool_layer *layers);
int pool_own_layers(const struct pool_sight *p);                            /* of all, on this rank */
int pool_cas_layers(const struct pool_sight *p, int cas_layers, bool here); /* of them, on this rank or elsewhere */

/* Bytes that pooling takes from each device, less its slots: of the owner that holds most, since all caches are
 * equal. ffn_bytes: of one layer on one device. May be negative. */
double pool_saved_bytes(const struct sim_weights *w, double ffn_bytes);

#endif
