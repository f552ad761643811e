/* What ranks do together before serving begins, in every rank set that may be a group and every layout it can run.
 * First a rehearsal: made-up steps, the largest first, so that working memory is taken and code is loaded now; if one
 * fails, the program does not start. Then, where a machine has several ways for a product, more of them, in which it
 * tries each. Then graphs of decode steps, for every size asked for, of groups that share no rank side by side; they
 * stay through all switches of layout and partition. Where a graph cannot be recorded, a warning says so and its steps
 * run op by op. Engine thread, once. Invariant: all graphs are recorded before serving begins. Source: Shift
 * Parallelism keeps the graphs of both its layouts. */
#ifndef EXEC_PREPARE_H
#define EXEC_PREPARE_H

#include <stdatomic.h>

#include "engine/base/queue.h"
#include "engine/exec/comm.h"
#include "engine/world/partition.h"
#include "kernels/tuning.h"

struct rank;

enum preparation {
    PREPARE_STEP,  /* a made-up prompt of `rows` tokens, in the first blocks */
    PREPARE_GRAPH, /* recorded, of `rows` sequences */
};

/* Of one group in one layout. All members do it together, like a step. */
struct prepare_task {
    enum preparation what;
    struct layout layout;
    int n_ranks, ranks[MAX_RANKS]; /* by share */
    int tokens_per_block, rows;
    const struct comm_set *comms; /* NULL: a group of one */
    struct queue *ended; /* of int: gets the rows from the member that ends last; NULL where ranks have no threads */
    atomic_int left;
    struct prepare_part {
        int rc;
        struct err err;
    } parts[MAX_RANKS]; /* by share */
};

enum { GRAPH_SIZES = 32, GRAPH_MOST_ROWS = 512 };

struct prepare_setup {
    struct rank *const *ranks; /* started, idle */
    struct comm_pool *comms;
    const struct node_shape *shape;
    int n_blocks;     /* of each rank, none in use */
    int step_rows;    /* of the largest step; 0: no rehearsal */
    const int *sizes; /* [n_sizes] rows of graphs, descending */
    int n_sizes;
    bool threaded, quiet;
    const struct tuning_ops *tuning_ops;
    struct tuning *tuning; /* NULL: nothing is tried */
};

/* What the rehearsal says when it fails. */
int prepare_ranks(const struct prepare_setup *s, struct err *e);

#endif
