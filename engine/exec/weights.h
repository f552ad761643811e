/* The weights of the ranks of one memory: loaded once from a model into a device, shown as views for every share of
 * every layout that a group may run. The views are made at start, and a switch of layouts is another view: no byte is
 * copied. Owned by the rank that loaded them, borrowed by those that share its memory; read-only once loaded, any
 * thread. With copy_shards a second copy, cut for the layouts with tp > 1, serves those, as in Shift Parallelism's
 * paper. Where a rank holds a cut of the layers only
 * (engine/world/residency.h), its layouts alone have views, and it can change to another cut. Where FFN weights are
 * pooled, each rank loads its own, without the FFN matrices of layers, or shares of layers, that others own: their
 * views name no weight, so no op can read what is not there. Invariant: views change only while no step runs on the
 * rank. */
#ifndef EXEC_WEIGHTS_H
#define EXEC_WEIGHTS_H

#include <stdatomic.h>

#include "engine/exec/load_progress.h"
#include "engine/world/residency.h"
#include "models/forward/forward.h"

struct weights;

struct weights_setup {
    const struct model *model; /* while loading */
    const struct backend_ops *ops;
    struct device *device;
    int n_ranks; /* the largest group */
    bool copy_shards;
    struct load_progress *progress; /* says how far it is; NULL: nothing is said */
    const struct ffn_setup
        *ffn; /* pooled: only the FFN matrices that `rank` owns are loaded; NULL: all. While loading */
    int rank;
    const struct cut *cut; /* it loads this of the layers; NULL: all. While loading */
};

/* Can each layer be cut into as many shares as it has owners? ffn NULL: it is not. E_UNSUPPORTED says why not. */
int weights_check_owners(const struct model_config *c, const struct ffn_setup *ffn, struct err *e);
/* What loading will read, about: bytes as stored. ffn, rank, cut: as in weights_setup; owners that can be. */
double weights_stored_bytes(const struct model *m, const struct ffn_setup *ffn, int rank, const struct cut *cut);
/* Loads every tensor. E_FULL names what did not fit; E_UNSUPPORTED: copy_shards of a type whose blocks cannot be cut
 * so. */
int weights_load(struct weights **out, const struct weights_setup *s, struct err *e);
/* Another rank of the same memory uses them too, until weights_free. */
struct weights *weights_share(struct weights *w);
/* NULL is fine. The one that loaded them frees last. */
void weights_free(struct weights *w);
/* NULL: no such layout here; it was refused or has more than n_ranks ranks. */
const struct model_weights *weights_view(const struct weights *w, struct layout l, int share);
/* Do all weights lie here that this share of the layout needs? */
bool weights_hold(const struct weights *w, struct layout l, int share);
/* One of the n shares into which an FFN layer is cut; 0 of 1: the layer. */
struct ffn_hold {
    int layer, share, n;
};
/* A part of a matrix, as a matrix by itself. */
struct ffn_piece {
    const struct weight *w; /* NULL: it lies elsewhere */
    struct span part;       /* of the intermediate features: rows of gate and up, columns of down */
};
/* Piece k of what the share has of this matrix. False: it has no more. */
bool weights_piece(const struct weights *w, const struct ffn_hold *h, enum ffn_matrix matrix, int k,
                   struct ffn_piece *out);
size_t weights_hold_bytes(const struct weights *w, const struct ffn_hold *h); /* of a share that lies here */
/* Takes over a share of an FFN layer that lay elsewhere. Only while no view is in use. E_FULL without memory. */
int weights_adopt(struct weights *w, const struct model *m, const struct ffn_hold *h, struct err *e);
/* Of a layer in a cut, as stored. Weights that are a cut. */
double weights_cut_bytes(const struct weights *w, const struct model *m, const struct cut *c, int layer);
/* Why a rank cannot hold it by itself; NULL: it can. */
const char *weights_cut_refusal(const struct weights *w, const struct model *m, const struct cut *c);
struct weights_change {
    const struct model *model;
    const struct cut *to;
    size_t room; /* for the cuts, old and new */
    const atomic_bool *stop;
    atomic_llong *bytes; /* that have come are added to it */
};
/* Loads what layer i of the other cut has and this one has not, beside it. *more false: that was the last, there is no
 * room for more, or it was told to stop. One thread at a time; steps may run meanwhile. */
int weights_stage(struct weights *w, const struct weights_change *c, int i, bool *more, struct err *e);
void weights_unstage(struct weights *w); /* drops that */
/* Only while no view is in use. Drops what the other cut does not have, takes what was staged, loads the rest. After an
 * error nothing can run here. */
int weights_change_cut(struct weights *w, const struct weights_change *c, struct err *e);
size_t weights_bytes(const struct weights *w);        /* all of them */
size_t weights_layers_bytes(const struct weights *w); /* of them, matrices of a cut */
size_t weights_ffn_bytes(const struct weights *w);    /* of them, FFN matrices */
size_t weights_copy_bytes(const struct weights *w);   /* of them, the sharded copy; for tests */

#endif
