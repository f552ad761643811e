/* The nodes of a machine whose memory is not equally near to all CPUs (NUMA), as far as this process may use them. A
 * rank that stays on the CPUs of one node takes all its memory there, as memory lies where it is touched first. Nodes
 * of much fewer cores than the largest, and those of memory alone, are left out: ranks are equals. Facts of the system
 * at the time of the call; owned by whoever asked; any thread. */
#ifndef BASE_NUMA_H
#define BASE_NUMA_H

#include "engine/base/cores.h"
#include "engine/base/err.h"

enum { NUMA_MOST = 32 };

struct numa_node {
    int number;                 /* the system's */
    int cores;                  /* to compute on, as in struct cores, whatever the control group has the time of */
    bool cpus[CORES_MOST_CPUS]; /* that a thread may run on */
};

struct numa {
    int n_nodes; /* 1: there is nothing to choose */
    struct numa_node nodes[NUMA_MOST];
};

/* As cores_look. */
void numa_look(const char *root, const bool may[CORES_MOST_CPUS], struct numa *out);
void numa_now(struct numa *out); /* of this process */
/* On which node a rank stays: ranks that are neighbours share one. -1: on none, as there are fewer ranks than nodes. */
int numa_of_rank(const struct numa *n, int rank, int n_ranks);
/* How many threads a rank computes with, at least 1: its share of its node's cores, and no more than its share of
 * `usable`, which the whole process has (cores_usable). */
int numa_threads(const struct numa *n, int rank, int n_ranks, int usable);
/* From now on this thread, and all that it starts, run on the node's CPUs only. E_SYS. */
int numa_stay(const struct numa_node *node, struct err *e);
/* Who stays where, in words, or that nobody does and what would change that; "" where there is one node. */
void numa_say(const struct numa *n, int n_ranks, char *out, size_t cap);

#endif
