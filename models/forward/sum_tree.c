#include "models/forward/sum_tree.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

/* A node of the tree: leaves [index << level, (index + 1) << level), less what lies past the last. */
struct node {
    int level, index;
};

struct leaf_range tree_share(int n_leaves, int n, int i)
{
    int each = n_leaves / n, more = n_leaves % n, first = i * each + (i < more ? i : more);
    return (struct leaf_range){first, first + each + (i < more)};
}

static int node_end(struct node x, int n_leaves)
{
    int64_t end = ((int64_t)x.index + 1) << x.level;
    return end < n_leaves ? (int)end : n_leaves;
}

/* The largest node that begins at leaf a and ends at or before leaf b. */
static struct node largest(int n_leaves, int a, int b)
{
    struct node x = {0, a};
    while (x.index % 2 == 0 && 1 << x.level < n_leaves) {
        struct node up = {x.level + 1, x.index / 2};
        if (node_end(up, n_leaves) > b)
            break;
        x = up;
    }
    return x;
}

int tree_nodes(int n_leaves, struct leaf_range window, struct leaf_range *nodes)
{
    int n = 0;
    for (int a = window.leaf0; a < window.leaf1; a = nodes[n++].leaf1) {
        ASSERT(n < TREE_MAX_NODES);
        nodes[n] = (struct leaf_range){a, node_end(largest(n_leaves, a, window.leaf1), n_leaves)};
    }
    return n;
}

/* Adds the top of the stack to what it is the right sibling of, as often as it is one; returns how often. */
static int fold(struct node *stack, int *depth, int n_leaves)
{
    int adds = 0;
    while (*depth > 1) {
        struct node *left = &stack[*depth - 2], right = stack[*depth - 1];
        if (left->level != right.level || left->index % 2 || right.index != left->index + 1)
            break;
        int end = node_end(right, n_leaves), first = left->index << left->level;
        *left = largest(n_leaves, first, end); /* the parent, and more where nothing lies right of it */
        (*depth)--;
        adds++;
    }
    return adds;
}

void tree_order(struct reduce_order *out, int n_leaves, const struct leaf_range *windows, int n)
{
    struct node stack[TREE_MAX_NODES];
    int depth = 0, most = n * TREE_MAX_NODES < n_leaves ? n * TREE_MAX_NODES : n_leaves, at = 0;
    uint8_t *lists = mem_new_array((size_t)most * 3, 1), *member = lists, *index = lists + most,
            *adds = lists + 2 * most;
    for (int m = 0; m < n; m++) {
        struct leaf_range nodes[TREE_MAX_NODES];
        int n_nodes = tree_nodes(n_leaves, windows[m], nodes);
        ASSERT(windows[m].leaf0 == (m ? windows[m - 1].leaf1 : 0) && at + n_nodes <= most);
        for (int i = 0; i < n_nodes; i++, at++) {
            ASSERT(depth < TREE_MAX_NODES);
            stack[depth++] = largest(n_leaves, nodes[i].leaf0, nodes[i].leaf1);
            member[at] = (uint8_t)m;
            index[at] = (uint8_t)i;
            adds[at] = (uint8_t)fold(stack, &depth, n_leaves);
        }
    }
    ASSERT(depth == 1 && windows[n - 1].leaf1 == n_leaves);
    *out = (struct reduce_order){at, member, index, adds};
}

void tree_order_free(struct reduce_order *o)
{
    mem_free((void *)o->member);
    *o = (struct reduce_order){0};
}
