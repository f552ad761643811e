/* The weights of the ranks of one memory: loaded once from a model into a device, shown as views for every share of
 * every layout that a group may run. The views are made at start, and a switch of layouts is another view: no byte is
 * copied. Owned by the rank that loaded them, borrowed by those that share its memory; read-only once loaded, any
 * thread. With copy_shards a second copy, cut for the layouts with tp > 1, serves those, as in Shift Parallelism's
 * paper. Where FFN weights are pooled, each rank loads its own, without the FFN matrices of layers, or shares of
 * layers, that others own: their views name no weight, so no op can read what is not there. Invariant: all views
 * exist before serving begins. */
#ifndef EXEC_WEIGHTS_H
#define EXEC_WEIGHTS_H

#include "engine/exec/load_progress.h"
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
};

/* What loading will read: bytes as stored. ffn, rank: as in weights_setup. */
double weights_stored_bytes(const struct model *m, const struct ffn_setup *ffn, int rank);
/* Loads every tensor. E_FULL names what did not fit; E_UNSUPPORTED: copy_shards of a type whose blocks cannot be cut
 * so. */
int weights_load(struct weights **out, const struct weights_setup *s, struct err *e);
/* Another rank of the same memory uses them too, until weights_free. */
struct weights *weights_share(struct weights *w);
/* NULL is fine. The one that loaded them frees last. */
void weights_free(struct weights *w);
/* NULL: no such layout here; it was refused or has more than n_ranks ranks. */
const struct model_weights *weights_view(const struct weights *w, struct layout l, int share);
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
size_t weights_bytes(const struct weights *w);      /* all of them */
size_t weights_ffn_bytes(const struct weights *w);  /* of them, FFN matrices */
size_t weights_copy_bytes(const struct weights *w); /* of them, the sharded copy; for tests */

#endif
