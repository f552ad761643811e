/* Ways to run data-parallel ranks with or without pooled FFN weights, for benchmarks: each a node of its own
 * (layout_rig.h), every rank alone in its group and with a thread that drives it. Owned by whoever opened it. Nothing
 * here is asserted: a failure says why and ends the program. */
#ifndef RIG_POOL_RIG_H
#define RIG_POOL_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/clock.h"
#include "tests/rig/layout_rig.h"

/* What all ways have in common. */
struct pool_rig {
    struct model *model;
    int ranks, max_rows, n_blocks; /* of 16 tokens, of each rank */
    double link_gbps;              /* 0: no bound */
};

struct pool_way {
    const char *name;
    int slots; /* 0: all weights on every rank, each in memory of its own */
    enum ffn_order order;
    enum ffn_mode mode;
    struct ffn_setup ffn;
    struct node node;
};

static const struct sampling pool_greedy = {.top_p = 1, .repetition_penalty = 1};

static inline void pool_die(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static inline void pool_way_open(const struct pool_rig *rig, struct pool_way *w)
{
    struct err e = {0};
    struct node_opts o = {.n_ranks = rig->ranks,
                          .threads = 1,
                          .max_rows = rig->max_rows,
                          .max_logits = rig->max_rows,
                          .block_tokens = 16,
                          .kv = DT_F16,
                          .n_blocks = rig->n_blocks,
                          .own_weights = !w->slots};
    w->ffn = (struct ffn_setup){.n_ranks = rig->ranks,
                                .n_layers = model_config(rig->model)->n_layers,
                                .n_slots = w->slots,
                                .order = w->order,
                                .tile_bytes = 1 << 20,
                                .link_gbps = rig->link_gbps};
    if (w->slots && ffn_parse_owners(&w->ffn, "layer-mod", &e) == 0)
        o.ffn = &w->ffn;
    if (node_open(&w->node, rig->model, &o, &e))
        pool_die(&e);
    ffn_set(&w->node.modes, 0, w->ffn.n_layers, w->mode);
}

/* Bytes that a rank fetches in a step that fetches all it lacks; the mean over ranks. */
static inline double pool_fetch_bytes(const struct pool_rig *rig, const struct pool_way *w)
{
    double layers = w->ffn.n_layers * (1 - 1.0 / rig->ranks);
    return layers * (double)ffn_pool_layer_bytes(w->node.ffn_pool);
}

/* One step of a rank that is alone in its group. */
static inline void pool_step(struct pool_way *w, int rank, const struct batch *batch, const struct ffn_modes *modes)
{
    struct place alone = {.n = 1, .ranks = {rank}, .tokens_per_block = 16};
    struct node_step s = {.place = &alone, .layout = {1, 1, 1}};
    struct forward_member site = node_site(&w->node, &s, 0);
    struct ffn_seat *seat = w->slots ? ffn_pool_seat(w->node.ffn_pool, rank) : NULL;
    struct step_time time;
    struct err e = {0};
    if (seat)
        ffn_seat_begin(seat, modes, &site.weights->shard);
    if (forward_run(&w->node.forwards[rank], &site, batch, &time, &e))
        pool_die(&e);
    if (seat)
        ffn_seat_end(seat);
}

static inline int64_t pool_now(void)
{
    struct clock clock;
    clock_init_real(&clock);
    return clock_now(&clock);
}

/* Time that all cores spent on this program. */
static inline int64_t pool_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* run(lanes + r * size) on a thread for each rank, side by side; returns when all have ended. */
static inline void pool_side_by_side(int ranks, void (*run)(void *), void *lanes, size_t size)
{
    struct thread *threads[NODE_RANKS];
    struct err e = {0};
    for (int r = 0; r < ranks; r++)
        if (thread_start(&threads[r], "lane", run, (char *)lanes + (size_t)r * size, &e))
            pool_die(&e);
    for (int r = 0; r < ranks; r++)
        thread_join(threads[r]);
}

static inline int pool_by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double pool_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, pool_by_size);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

#endif
