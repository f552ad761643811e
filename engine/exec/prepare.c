#include "engine/exec/prepare.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/exec/rank.h"

struct preparer {
    const struct prepare_setup *setup;
    struct queue *ended;
    int n_layouts, n_done, n_all, n_recorded;
};

static const struct layout none = {0, 0, 0};

static int count_ranks(uint64_t set)
{
    return __builtin_popcountll(set);
}

/* Do all members hold what they multiply with? */
static bool runs(const struct prepare_setup *s, uint64_t set, struct layout l)
{
    for (int i = 0, share = 0; i < s->shape->n_ranks; i++)
        if (set >> i & 1 && !rank_runs(s->ranks[i], l, share++))
            return false;
    return true;
}

/* The next layout that this set can run; none: it was the last. */
static struct layout next_layout(const struct prepare_setup *s, uint64_t set, int after_tp)
{
    int n = count_ranks(set);
    for (int tp = after_tp + 1; tp <= n; tp++) {
        struct layout l = {n / tp, tp, 1};
        if (n % tp == 0 && !s->shape->refusals[n][tp] && runs(s, set, l))
            return l;
    }
    return none;
}

static int count_layouts(const struct prepare_setup *s)
{
    int n = 0;
    for (int i = 0; i < s->shape->n_sets; i++)
        for (struct layout l = next_layout(s, s->shape->sets[i], 0); l.tp; l = next_layout(s, s->shape->sets[i], l.tp))
            n++;
    return n;
}

/* The first member that failed by itself, else any that failed. */
static const struct prepare_part *failure(const struct prepare_task *t)
{
    const struct prepare_part *found = NULL;
    ASSERT(atomic_load(&t->left) == 0);
    for (int i = 0; i < t->n_ranks; i++)
        if (t->parts[i].rc && (!found || (found->rc == E_PEER && t->parts[i].rc != E_PEER)))
            found = &t->parts[i];
    return found;
}

static struct prepare_task task_of(const struct preparer *r, enum preparation what, uint64_t set, struct layout l)
{
    const struct prepare_setup *s = r->setup;
    int n = count_ranks(set);
    struct prepare_task t = {.what = what,
                             .layout = l,
                             .tokens_per_block = s->shape->tokens_per_block[n],
                             .ended = r->ended,
                             .comms = n > 1 ? comm_find(s->comms, set) : NULL};
    for (int i = 0; i < s->shape->n_ranks; i++)
        if (set >> i & 1)
            t.ranks[t.n_ranks++] = i;
    return t;
}

static void post(const struct preparer *r, struct prepare_task *t, int rows)
{
    t->rows = rows;
    atomic_store(&t->left, t->n_ranks);
    for (int i = 0; i < t->n_ranks; i++)
        rank_prepare(r->setup->ranks[t->ranks[i]], t, i);
}

/* Until n tasks have ended. */
static void await(const struct preparer *r, int n)
{
    for (int ended; r->ended && n > 0; n--)
        while (!queue_take(r->ended, &ended))
            queue_wait(r->ended, -1);
}

/* ---- rehearsal */

/* Steps of these rows in all layouts of all sets, in one order for all ranks: those that share none go side by side. */
static struct prepare_task *post_steps(const struct preparer *r, const int *rows, int n_rows)
{
    const struct prepare_setup *s = r->setup;
    struct prepare_task *all = mem_new_array((size_t)r->n_layouts * (size_t)n_rows, sizeof *all), *t = all;
    for (int i = 0; i < s->shape->n_sets; i++) {
        int64_t room = (int64_t)s->n_blocks * s->shape->tokens_per_block[count_ranks(s->shape->sets[i])];
        for (struct layout l = next_layout(s, s->shape->sets[i], 0); l.tp; l = next_layout(s, s->shape->sets[i], l.tp))
            for (int k = 0; k < n_rows; k++, t++) {
                int most = s->step_rows < room ? s->step_rows : (int)room;
                *t = task_of(r, PREPARE_STEP, s->shape->sets[i], l);
                post(r, t, rows[k] < most ? rows[k] : most);
            }
    }
    return all;
}

static int do_steps(const struct preparer *r, const int *rows, int n_rows, struct err *e)
{
    int rc = 0, n = r->n_layouts * n_rows;
    struct prepare_task *all = post_steps(r, rows, n_rows);
    await(r, n);
    for (int i = 0; i < n && !rc; i++) {
        const struct prepare_part *p = failure(&all[i]);
        if (p)
            rc =
                err_set(e, p->rc, "a first step of %d rows in {sp %d, tp %d} on %d rank%s: %s", all[i].rows,
                        all[i].layout.sp, all[i].layout.tp, all[i].n_ranks, all[i].n_ranks > 1 ? "s" : "", p->err.text);
    }
    mem_free(all);
    return rc;
}

static double seconds_since(const struct clock *clock, int64_t began)
{
    return (double)(clock_now(clock) - began) / 1e9;
}

/* As a prompt, by kernels for some rows, as a decode. */
static int rehearse(const struct preparer *r, const struct clock *clock, struct err *e)
{
    int64_t began = clock_now(clock);
    const int rows[] = {r->setup->step_rows, 64, 1};
    TRY(do_steps(r, rows, (int)(sizeof rows / sizeof *rows), e));
    if (!r->setup->quiet)
        log_info("rank", "Rehearsed steps of up to %d rows in %d layouts in %.2f s", r->setup->step_rows, r->n_layouts,
                 seconds_since(clock, began));
    return 0;
}

/* ---- ways of products */

enum { MOST_TURNS = 9 };
static const double MOST_SECONDS = 5;

/* Until each way of what such a step multiplies has been tried often enough. */
static int try_rows(const struct preparer *r, int rows, const struct clock *clock, int64_t began, struct err *e)
{
    const struct prepare_setup *s = r->setup;
    for (int turn = 0; turn < MOST_TURNS && seconds_since(clock, began) < MOST_SECONDS; turn++) {
        TRY(do_steps(r, &rows, 1, e));
        if (!s->tuning_ops->wants(s->tuning))
            break;
    }
    return 0;
}

static void say_ways(const struct tuning_report *t, double seconds)
{
    log_info("rank",
             "Products: of %d shapes (%d known by a file) %d take another way than they would untried; %.2f s%s%s",
             t->n_products, t->n_known, t->n_other, seconds, t->written ? ", kept in " : "", t->written ? t->file : "");
}

/* Few rows first, as decodes need them most and take least. Of graphs of more rows each has a size of its own. */
static int try_ways(const struct preparer *r, const struct clock *clock, struct err *e)
{
    const struct prepare_setup *s = r->setup;
    struct tuning_report report;
    int64_t began = clock_now(clock);
    int rc = 0;
    s->tuning_ops->begin(s->tuning);
    for (int i = 0; i < TUNING_ROWS && tuning_rows[i] < s->step_rows && !rc; i++)
        rc = try_rows(r, tuning_rows[i], clock, began, e);
    for (int i = s->n_sizes - 1; i >= 0 && !rc; i--)
        if (s->sizes[i] > 64 && s->sizes[i] <= s->step_rows)
            rc = try_rows(r, s->sizes[i], clock, began, e);
    if (!rc)
        rc = try_rows(r, s->step_rows, clock, began, e);
    s->tuning_ops->settle(s->tuning, &report);
    if (!rc && !s->quiet && report.n_products)
        say_ways(&report, seconds_since(clock, began));
    return rc;
}

/* ---- graphs */

static void show_progress(struct preparer *r, int n)
{
    r->n_done += n;
    if (!r->setup->quiet)
        log_progress("Recording graphs", r->n_done, r->n_all, "graphs");
}

/* One group in one layout: its graphs, unless one could not be made. */
struct recording {
    uint64_t set;
    struct prepare_task task;
    bool dropped;
};

static void drop(struct preparer *r, struct recording *g, const struct prepare_part *why, int left)
{
    const struct prepare_task *t = &g->task;
    log_warn("rank", "No graphs for {sp %d, tp %d} on %d rank%s, its steps take longer: %s", t->layout.sp, t->layout.tp,
             t->n_ranks, t->n_ranks > 1 ? "s" : "", why->err.text);
    if (t->comms)
        comm_reset(comm_find(r->setup->comms, g->set));
    g->dropped = true;
    show_progress(r, left);
}

/* All sizes of groups that share no comm, the largest first: what it needs of memory is enough for the others. Groups
 * that share no rank go side by side. */
static void record_groups(struct preparer *r, struct recording *groups, int n)
{
    const struct prepare_setup *s = r->setup;
    for (int i = 0; i < s->n_sizes; i++) {
        int posted = 0;
        for (int k = 0; k < n; k++)
            if (!groups[k].dropped) {
                post(r, &groups[k].task, s->sizes[i]);
                posted++;
            }
        await(r, posted);
        for (int k = 0; k < n; k++) {
            const struct prepare_part *p = groups[k].dropped ? NULL : failure(&groups[k].task);
            if (p) {
                drop(r, &groups[k], p, s->n_sizes - i);
            } else if (!groups[k].dropped) {
                r->n_recorded++;
                show_progress(r, 1);
            }
        }
    }
}

/* The first layout of each set, then the second of each, and so on. */
static void record_all(struct preparer *r, const struct clock *clock)
{
    const struct prepare_setup *s = r->setup;
    const struct node_shape *shape = s->shape;
    int64_t began = clock_now(clock);
    int *tp = mem_new_array((size_t)shape->n_sets, sizeof *tp), n = 1;
    struct recording *groups = mem_new_array((size_t)shape->n_sets, sizeof *groups);
    r->n_all = r->n_layouts * s->n_sizes;
    while (n > 0) {
        n = 0;
        for (int i = 0; i < shape->n_sets; i++) {
            struct layout l = tp[i] < 0 ? none : next_layout(s, shape->sets[i], tp[i]);
            tp[i] = l.tp ? l.tp : -1;
            if (l.tp)
                groups[n++] = (struct recording){shape->sets[i], task_of(r, PREPARE_GRAPH, shape->sets[i], l), false};
        }
        record_groups(r, groups, n);
    }
    mem_free(tp), mem_free(groups);
    if (!s->quiet)
        log_info("rank", "Recorded %d graphs of %d sizes up to %d sequences in %.2f s", r->n_recorded, s->n_sizes,
                 s->sizes[0], seconds_since(clock, began));
}

int prepare_ranks(const struct prepare_setup *s, struct err *e)
{
    struct preparer r = {
        .setup = s, .n_layouts = count_layouts(s), .ended = s->threaded ? queue_create(sizeof(int), 0, false) : NULL};
    struct clock clock;
    clock_init_real(&clock);
    int rc = s->step_rows > 0 ? rehearse(&r, &clock, e) : 0;
    if (!rc && s->step_rows > 0 && s->tuning)
        rc = try_ways(&r, &clock, e);
    if (!rc && rank_has_graphs(s->ranks[0]) && s->n_sizes > 0)
        record_all(&r, &clock);
    if (r.ended)
        queue_destroy(r.ended);
    return rc;
}
