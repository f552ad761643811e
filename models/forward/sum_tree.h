/* The fixed tree in which every sum over the input columns of a matrix is taken, and how ranks divide it. Leaves are
 * SUM_LEAF columns; the tree is binary over their absolute index (kernels/backend.h). The leaves of a rank are a few
 * whole nodes of the tree, and the nodes of all ranks add up, in one order, to the bits that a single rank would get.
 * Pure arithmetic, any thread; whoever makes an order owns its arrays. Invariant: any window of leaves of any number of
 * leaves can be divided this way. */
#ifndef MODELS_FORWARD_SUM_TREE_H
#define MODELS_FORWARD_SUM_TREE_H

#include "kernels/backend.h"

struct leaf_range {
    int leaf0, leaf1;
};

enum { TREE_MAX_NODES = 40 }; /* of one window: two for each level at most */

static inline int tree_leaves(int cols)
{
    return (cols + SUM_LEAF - 1) / SUM_LEAF;
}
/* Leaves of member i of n: contiguous, as even as can be; none where there are fewer leaves than members. */
struct leaf_range tree_share(int n_leaves, int n, int i);
/* The largest whole nodes that make up the window, left to right. A node that reaches past the last leaf ends there.
 * Returns how many, at most TREE_MAX_NODES. */
int tree_nodes(int n_leaves, struct leaf_range window, struct leaf_range *nodes);
/* How the nodes of n windows, which together are all leaves in order, add up. Heap arrays. */
void tree_order(struct reduce_order *out, int n_leaves, const struct leaf_range *windows, int n);
void tree_order_free(struct reduce_order *o);

#endif
