/* The parts of a layer's matrices that a share of a layout multiplies with, as rectangles, and one of them as a
 * matrix by itself: for the sharded copy (--shift-weights copy), and for pooled FFN weights whose owner is a group of
 * ranks. Pure functions, any thread. Invariant: a part of o or down is a whole node of the summation tree, so that a
 * product with it alone has the bits that it has in the whole matrix. */
#ifndef EXEC_SLICE_H
#define EXEC_SLICE_H

#include "models/forward/shard.h"

/* The matrices of a layer. */
enum { M_Q, M_K, M_V, M_O, M_GATE, M_UP, M_DOWN, SLICE_MATRICES };

/* A part of a matrix of a layer. */
struct slice {
    int matrix, row0, rows, col0, cols;
};

/* The parts of the matrices that a tp share needs; o and down: by nodes of their trees. */
struct parts {
    struct slice plain[SLICE_MATRICES];
    struct leaf_range o[TREE_MAX_NODES], down[TREE_MAX_NODES];
    int n_o, n_down;
};

void slice_parts(const struct model_config *c, const struct shard *sh, struct parts *p);
/* The columns of o or down that are these leaves. */
struct slice slice_node(const struct model_config *c, int matrix, struct leaf_range r);
/* Why the FFN of a layer cannot be cut into n shares, each of them some of it and not all; NULL: it can. */
const char *slice_refusal(const struct model_config *c, int n);
/* Part k of a matrix of gate, up and down as share `share` of n has it. False: there are no more. */
struct share_part {
    int n, share, matrix, k;
};
bool slice_of_share(const struct model_config *c, const struct share_part *x, struct slice *out);
/* Slice x of a stored matrix as a matrix by itself, in its place. E_UNSUPPORTED: it would cut the type's blocks. */
int slice_source(const struct weight_src *whole, const struct slice *x, struct weight_src *out, struct err *e);

#endif
