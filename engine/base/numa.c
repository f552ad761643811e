#include "engine/base/numa.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/sysfs.h"

enum { MOST_NUMBERS = 1024 };

/* A node of much fewer cores has less than this part of the largest one's. */
static const double MUCH_FEWER = 0.5;

static bool look_at(const char *root, const bool may[CORES_MOST_CPUS], int number, struct numa_node *out)
{
    char list[SYSFS_TEXT];
    struct cores c;
    bool any = false;
    if (!sysfs_read(list, "%s/sys/devices/system/node/node%d/cpulist", root, number))
        return false;
    out->number = number;
    for (int i = 0; i < CORES_MOST_CPUS; i++) {
        out->cpus[i] = may[i] && sysfs_lists(list, i);
        any = any || out->cpus[i];
    }
    cores_look(root, out->cpus, &c);
    out->cores = c.cpus - c.siblings - c.slow;
    return any && out->cores > 0;
}

void numa_look(const char *root, const bool may[CORES_MOST_CPUS], struct numa *out)
{
    char online[SYSFS_TEXT];
    int most = 0, kept = 0;
    memset(out, 0, sizeof *out);
    if (!sysfs_read(online, "%s/sys/devices/system/node/online", root))
        online[0] = 0;
    for (int i = 0; i < MOST_NUMBERS && out->n_nodes < NUMA_MOST; i++)
        if (sysfs_lists(online, i) && look_at(root, may, i, &out->nodes[out->n_nodes])) {
            int cores = out->nodes[out->n_nodes++].cores;
            most = cores > most ? cores : most;
        }
    for (int i = 0; i < out->n_nodes; i++)
        if (out->nodes[i].cores >= MUCH_FEWER * most)
            out->nodes[kept++] = out->nodes[i];
    out->n_nodes = kept;
}

void numa_now(struct numa *out)
{
    bool may[CORES_MOST_CPUS];
    cores_allowed(may);
    numa_look("", may, out);
}

int numa_of_rank(const struct numa *n, int rank, int n_ranks)
{
    return n->n_nodes < 2 || n_ranks < n->n_nodes ? -1 : rank * n->n_nodes / n_ranks;
}

int numa_threads(const struct numa *n, int rank, int n_ranks, int usable)
{
    int node = numa_of_rank(n, rank, n_ranks), beside = 0, threads = usable / n_ranks;
    for (int i = 0; i < n_ranks; i++)
        beside += numa_of_rank(n, i, n_ranks) == node;
    if (node >= 0 && n->nodes[node].cores / beside < threads)
        threads = n->nodes[node].cores / beside;
    return threads > 1 ? threads : 1;
}

int numa_stay(const struct numa_node *node, struct err *e)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < CORES_MOST_CPUS && i < CPU_SETSIZE; i++)
        if (node->cpus[i])
            CPU_SET(i, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0)
        return 0;
    return err_set(e, E_SYS, "cannot stay on the CPUs of NUMA node %d: %s; --numa off does not try", node->number,
                   strerror(errno));
}

void numa_say(const struct numa *n, int n_ranks, char *out, size_t cap)
{
    size_t at = 0;
    if (cap)
        *out = 0;
    if (n->n_nodes < 2)
        return;
    if (n_ranks < n->n_nodes) {
        snprintf(out, cap,
                 "This machine has %d NUMA nodes: --ranks %d would keep the work and the memory of each rank on one",
                 n->n_nodes, n->n_nodes);
        return;
    }
    for (int first = 0, end; first < n_ranks && at < cap; first = end) {
        const struct numa_node *node = &n->nodes[numa_of_rank(n, first, n_ranks)];
        for (end = first + 1; end < n_ranks && numa_of_rank(n, end, n_ranks) == numa_of_rank(n, first, n_ranks);)
            end++;
        char range[32];
        snprintf(range, sizeof range, end - first == 1 ? "rank %d" : "ranks %d to %d", first, end - 1);
        at += (size_t)snprintf(out + at, cap - at, "%s%s on NUMA node %d (%d core%s)", first ? ", " : "", range,
                               node->number, node->cores, node->cores == 1 ? "" : "s");
    }
}
