#include "engine/exec/graphs.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/exec/rank.h"

struct recorder {
    const struct graphs_setup *setup;
    struct queue *ended;
    int n_done, n_all, n_recorded;
};

static const struct layout none = {0, 0, 0};

static int count_ranks(uint64_t set)
{
    return __builtin_popcountll(set);
}

/* The next layout that so many ranks can run; none: it was the last. */
static struct layout next_layout(const struct node_shape *s, int n, int after_tp)
{
    for (int tp = after_tp + 1; tp <= n; tp++)
        if (n % tp == 0 && !s->refusals[n][tp])
            return (struct layout){n / tp, tp, 1};
    return none;
}

static int count_layouts(const struct node_shape *s)
{
    int n = 0;
    for (int i = 0; i < s->n_sets; i++)
        for (struct layout l = next_layout(s, count_ranks(s->sets[i]), 0); l.tp; l = next_layout(s, count_ranks(s->sets[i]), l.tp))
            n++;
    return n;
}

/* The first member that failed by itself, else any that failed. */
static const struct err *failure(const struct graph_task *g)
{
    const struct graph_part *found = NULL;
    for (int i = 0; i < g->n_ranks; i++)
        if (g->parts[i].rc && (!found || (found->rc == E_PEER && g->parts[i].rc != E_PEER)))
            found = &g->parts[i];
    return found ? &found->err : NULL;
}

static const struct err *record(struct recorder *r, struct graph_task *g, int rows)
{
    int ended;
    g->rows = rows;
    atomic_store(&g->left, g->n_ranks);
    for (int i = 0; i < g->n_ranks; i++)
        rank_post_graph(r->setup->ranks[g->ranks[i]], g, i);
    while (g->ended && !queue_take(g->ended, &ended))
        queue_wait(g->ended, -1);
    ASSERT(atomic_load(&g->left) == 0);
    return failure(g);
}

static void show_progress(struct recorder *r, int n)
{
    r->n_done += n;
    if (!r->setup->quiet)
        log_progress("Recording graphs", r->n_done, r->n_all, "graphs");
}

/* All sizes of one group in one layout, the largest first: what it needs of memory is enough for the others. */
static void record_layout(struct recorder *r, uint64_t set, struct layout l)
{
    const struct graphs_setup *s = r->setup;
    int n = count_ranks(set);
    struct comm_set *comms = n > 1 ? comm_find(s->comms, set) : NULL;
    struct graph_task g = {.layout = l, .tokens_per_block = s->shape->tokens_per_block[n], .comms = comms, .ended = r->ended};
    for (int i = 0; i < s->shape->n_ranks; i++)
        if (set >> i & 1)
            g.ranks[g.n_ranks++] = i;
    for (int i = 0; i < s->n_sizes; i++) {
        const struct err *e = record(r, &g, s->sizes[i]);
        if (e) {
            log_warn("rank", "No graphs for {sp %d, tp %d} on %d rank%s, its steps take longer: %s", l.sp, l.tp, n, n > 1 ? "s" : "", e->text);
            if (comms)
                comm_reset(comms);
            show_progress(r, s->n_sizes - i);
            return;
        }
        r->n_recorded++;
        show_progress(r, 1);
    }
}

int graphs_record(const struct graphs_setup *s)
{
    const struct node_shape *shape = s->shape;
    struct recorder r = {.setup = s, .n_all = count_layouts(shape) * s->n_sizes};
    struct clock clock;
    if (!rank_has_graphs(s->ranks[0]) || s->n_sizes == 0)
        return 0;
    clock_init_real(&clock);
    int64_t began = clock_now(&clock);
    r.ended = s->threaded ? queue_create(sizeof(int), 0, false) : NULL;
    for (int i = 0; i < shape->n_sets; i++)
        for (struct layout l = next_layout(shape, count_ranks(shape->sets[i]), 0); l.tp; l = next_layout(shape, count_ranks(shape->sets[i]), l.tp))
            record_layout(&r, shape->sets[i], l);
    if (r.ended)
        queue_destroy(r.ended);
    if (!s->quiet)
        log_info("rank", "Recorded %d graphs of %d sizes up to %d sequences in %.2f s", r.n_recorded, s->n_sizes, s->sizes[0],
                 (double)(clock_now(&clock) - began) / 1e9);
    return r.n_recorded;
}
