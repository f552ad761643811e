/* Pooled FFN weights: the FFN matrices of each layer lie on one rank, its owner, or cut into shares on several, and
 * what the others need not hold is KV cache. A rank that runs a step fetches the matrices of the layers that are not
 * its own into slots ahead of their products (weights as a service), or sends its rows to the owner, which multiplies
 * those of several ranks in one product (compute as a service). Attention, norms, embeddings and the head lie on
 * every rank. Which way a layer takes is a group's, by layer, and counts from its next step on: no two ranks have to
 * agree, because the owner serves both ways at any time. The unit of pooling is the FFN of a layer: what has an
 * owner, a mode and a place in a slot. Of a model with experts it would be one expert of a layer, numbered (layer,
 * expert), with routing as what says which units a step needs. Plain values and pure functions, any thread. Source:
 * SiDP; peak shifting is its schedule. */
#ifndef WORLD_FFN_H
#define WORLD_FFN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/world/ids.h"

enum { FFN_MAX_LAYERS = 512, FFN_MAX_SHARES = 8 };

enum ffn_mode {
    FFN_LOCAL, /* the matrices lie here */
    FFN_WAS,   /* weights as a service: fetched from their owner */
    FFN_CAS,   /* compute as a service: rows go to the owner and come back */
};
const char *ffn_mode_name(enum ffn_mode m); /* "local", "was", "cas" */

/* In which order a rank fetches. */
enum ffn_order {
    FFN_SHIFTED, /* peak shifting: in each cycle of as many layers as ranks, rank r begins with layer r + 1. With as
                    many slots as ranks, those that advance equally never read one owner at the same time (the paper
                    says one slot less, with which one of them has to wait). Where the last cycle of a model is shorter,
                    some meet for a moment around its end, and none waits if the link is faster by that. Ranks that do
                    not advance equally take the next layer whose owner nobody reads instead, if there is one */
    FFN_SLICED, /* a tile of each layer that has a slot in turn, beginning with layer r + 1: several readers of an owner
                   take turns */
    FFN_PLAIN,  /* as the step needs them */
};

/* How the FFN matrices of a node are pooled. */
struct ffn_setup {
    int n_ranks, n_layers;
    uint8_t owner[FFN_MAX_LAYERS];  /* [n_layers] the rank that holds the layer, or the first of its shares */
    uint8_t n_more[FFN_MAX_LAYERS]; /* [n_layers] further shares: it is cut as for a tp of 1 + n_more */
    uint8_t more[FFN_MAX_LAYERS][FFN_MAX_SHARES - 1]; /* the ranks that hold those */
    int n_slots;                                      /* of each rank, a layer each */
    enum ffn_order order;
    size_t tile_bytes; /* of one copy */
    double link_gbps;  /* bytes * 1e-9 a second that leave an owner, and that reach a reader; 0: no bound */
};

/* What pooled weights cost a step. */
struct ffn_cost {
    int64_t wait_ns, fetch_ns; /* its products waited so long for layers on their way; all its fetches took so long */
    uint64_t was_bytes;        /* fetched */
    uint64_t cas_bytes;        /* of rows sent to owners, and back */
    uint64_t cas_rows;         /* summed over layers */
};

/* The layers whose rows go to their owners, and those that lie on every rank by now (world/replica.h); the others are
 * fetched. A layer that the rank owns is none of these. */
struct ffn_modes {
    uint64_t cas[FFN_MAX_LAYERS / 64];
    uint64_t here[FFN_MAX_LAYERS / 64]; /* of a step; a group's are those of the node when its step begins */
};

static inline bool ffn_is_cas(const struct ffn_modes *m, int layer)
{
    return m->cas[layer / 64] >> (layer % 64) & 1;
}

static inline bool ffn_is_here(const struct ffn_modes *m, int layer)
{
    return m->here[layer / 64] >> (layer % 64) & 1;
}

void ffn_set(struct ffn_modes *m, int from, int to, enum ffn_mode mode); /* layers [from, to): FFN_WAS or FFN_CAS */
int ffn_count_cas(const struct ffn_modes *m, int n_layers);
int ffn_count_here(const struct ffn_modes *m, int n_layers);

/* "layer-mod", "contiguous", or the owner of each layer as a list ("0,0,1,1"). An owner may be a group of ranks, each
 * with a share: "0+1,2+3", or aligned groups of so many ("layer-mod:2"). E_INPUT says what is wrong with it. */
int ffn_parse_owners(struct ffn_setup *s, const char *text, struct err *e);
/* As JSON: the rank, or the list of those that have its shares, of each layer. */
void ffn_put_owners(const struct ffn_setup *s, struct buf *out);
bool ffn_any_shares(const struct ffn_setup *s);     /* is a layer cut? */
int ffn_owned(const struct ffn_setup *s, int rank); /* how many layers it holds, or a share of */
void ffn_give(struct ffn_setup *s, int layer, int share, int rank);

static inline int ffn_shares(const struct ffn_setup *s, int layer)
{
    return 1 + s->n_more[layer];
}

static inline int ffn_owner(const struct ffn_setup *s, int layer, int share)
{
    return share ? s->more[layer][share - 1] : s->owner[layer];
}

/* All of it. */
static inline bool ffn_owns(const struct ffn_setup *s, int layer, int rank)
{
    return s->n_more[layer] == 0 && s->owner[layer] == rank;
}

/* Has the rank what share t of a layout with that tp multiplies with? A whole layer serves any. */
static inline bool ffn_is_local(const struct ffn_setup *s, int layer, int rank, int tp, int t)
{
    return s->n_more[layer] == 0 ? s->owner[layer] == rank
                                 : ffn_shares(s, layer) == tp && ffn_owner(s, layer, t) == rank;
}

/* The state of a rank's slots, as the choice of what is fetched next needs it. */
struct ffn_need {
    int rank, at;     /* the FFN of layer `at` was computed last; -1: none of this step */
    int tp, t;        /* it multiplies with share t of so many; 0: with all */
    const int *slots; /* [n_slots] the layer that lies in each, or is on its way there; -1: none */
    const bool *kept; /* [n_slots] on its way, or in use: nothing else may come there */
    const struct ffn_modes *modes;
    uint64_t read; /* owners that another rank reads at this moment */
    bool goes_on;  /* another step follows: its first layers may be fetched, too */
};
/* Which layer is fetched next, and into which slot. False: all that is of use before a slot is free is there. */
bool ffn_next_fetch(const struct ffn_setup *s, const struct ffn_need *need, int *layer, int *slot);
/* How many products away the layer is, seen from layer `at`: 1 is the next one. */
static inline int ffn_distance(int n_layers, int at, int layer)
{
    return (layer - at - 1 + n_layers) % n_layers + 1;
}

#endif
