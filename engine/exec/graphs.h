/* Graphs of decode steps, recorded before anything is served: for every rank set that may be a group, every layout it can run, every size asked for. They stay through
 * all switches of layout and partition. Where one cannot be recorded its steps are made of single ops, which a warning says. Engine thread, once, at start. Never true: a graph
 * recorded while serving. Source: Shift Parallelism keeps the graphs of both its layouts (seeds.md). */
#ifndef EXEC_GRAPHS_H
#define EXEC_GRAPHS_H

#include <stdatomic.h>

#include "engine/base/queue.h"
#include "engine/exec/comm.h"
#include "engine/world/partition.h"

struct rank;

/* One recording: of one group in one layout. All members do it together, like a step. */
struct graph_task {
    struct layout layout;
    int n_ranks, ranks[MAX_RANKS];  /* by share */
    int tokens_per_block, rows;
    const struct comm_set *comms;   /* NULL: a group of one */
    struct queue *ended;            /* of int: gets the rows from the member that ends last; NULL where ranks have no threads */
    atomic_int left;
    struct graph_part {
        int rc;
        struct err err;
    } parts[MAX_RANKS];             /* by share */
};

enum { GRAPH_SIZES = 32, GRAPH_MOST_ROWS = 512 };

struct graphs_setup {
    struct rank *const *ranks;      /* started, idle */
    struct comm_pool *comms;
    const struct node_shape *shape;
    const int *sizes;               /* [n_sizes] rows */
    int n_sizes;
    bool threaded, quiet;
};

/* How many were recorded. */
int graphs_record(const struct graphs_setup *s);

#endif
