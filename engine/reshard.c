/* Reshards, carried out: has ranks bring the weights of another layout beside their steps, change over to them, and
 * drop what nobody wants any more (engine/world/residency.h). Two of these never run on one rank at a time. Engine
 * thread. */
#include <stdio.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_state.h"

static uint64_t busy_ranks(const struct engine *engine)
{
    uint64_t ranks = 0;
    for (int i = 0; i < engine->n_reshards; i++)
        ranks |= engine->reshards[i]->ranks;
    return ranks;
}

/* A machine that only says what things cost: how long the rank with most takes. */
static void play(struct engine *engine, struct reshard_task *t)
{
    const struct engine_play *play = engine->setup.play;
    const struct backend_ops *ops = engine->setup.ops;
    if (play && !play->reshard_ns) {
        timetable_hold(&engine->under_way, (struct timetable_entry){.reshard = t});
        return;
    }
    int64_t ns = play                ? play->reshard_ns(play->ctx, t)
                 : ops->host_copy_ns ? ops->host_copy_ns(rank_device(engine->node.ranks[0]), t->most)
                                     : 0;
    atomic_store(&t->ns, ns);
    if (!ops->computes)
        atomic_store(&t->bytes, (int64_t)t->expected);
    timetable_add_reshard(&engine->under_way, t);
}

static void post(struct engine *engine, struct reshard_task *t)
{
    ASSERT(engine->n_reshards < MAX_RANKS && !(t->ranks & busy_ranks(engine)));
    t->room = engine->world.residency.facts->room;
    t->posted_ns = engine->now_ns;
    t->done = engine->setup.threaded ? engine->reshard_done : NULL;
    t->ctx = engine;
    atomic_store(&t->left, __builtin_popcountll(t->ranks));
    engine->reshards[engine->n_reshards++] = t;
    uint64_t ranks = t->ranks; /* the last one that is told may hand it back at once */
    for (int r = 0; r < engine->node.n_ranks && !engine->setup.play; r++)
        if (ranks >> r & 1)
            rank_post_reshard(engine->node.ranks[r], t);
    if (!engine->setup.threaded)
        play(engine, t);
}

/* ---- what is due */

/* Beside the steps of the groups that the order will end. */
static bool post_stage(struct engine *engine, struct switch_pending *s)
{
    struct world *w = &engine->world;
    int ranks[MAX_RANKS], n = partition_ranks(s->order.mask, s->order.base, ranks);
    struct reshard_cost cost;
    residency_cost(w, ranks, n, s->order.weights, &cost);
    if (cost.before == 0) { /* there is no room, or nothing moves */
        partition_weights_there(w, s->serial);
        return true;
    }
    if (s->order.mask & busy_ranks(engine))
        return false;
    struct reshard_task *t = mem_new(sizeof *t);
    *t = (struct reshard_task){.kind = RESHARD_STAGE,
                               .order = s->serial,
                               .ranks = s->order.mask,
                               .most = cost.before,
                               .expected = cost.before_all};
    for (int i = 0; i < n; i++)
        t->to[ranks[i]] = cut_of(s->order.weights, i);
    s->weights = WEIGHTS_COMING;
    engine->staged_ranks |= t->ranks;
    post(engine, t);
    return true;
}

/* What the new group waits for. */
static bool post_take(struct engine *engine, struct group *g)
{
    const struct residency *x = &engine->world.residency;
    if (g->loading & busy_ranks(engine))
        return false;
    struct reshard_task *t = mem_new(sizeof *t);
    *t = (struct reshard_task){.kind = RESHARD_TAKE, .group = g->id, .ranks = g->loading};
    for (int r = 0; r < engine->node.n_ranks; r++)
        if (g->loading >> r & 1) {
            t->to[r] = x->held[r];
            size_t bytes = residency_missing(x->facts, &engine->cuts[r], &t->to[r]), staged = engine->staged_bytes[r];
            bytes = bytes > staged ? bytes - staged : 0;
            t->expected += bytes;
            t->most = bytes > t->most ? bytes : t->most;
            engine->staged_bytes[r] = 0;
            engine->cuts[r] = t->to[r];
        }
    engine->staged_ranks &= ~t->ranks;
    g->told = true;
    post(engine, t);
    return true;
}

/* Ranks whose staged weights an order that waits, or a group that loads, will take. */
static uint64_t wanted_ranks(const struct engine *engine)
{
    const struct partition *p = &engine->world.partition;
    uint64_t ranks = 0;
    for (int i = 0; i < p->n_pending; i++)
        ranks |= p->pending[i].order.weights.tp ? p->pending[i].order.mask : 0;
    for (int i = 0; i < p->n_groups; i++)
        ranks |= partition_group(p, i)->loading;
    return ranks;
}

static bool post_drop(struct engine *engine)
{
    uint64_t ranks = engine->staged_ranks & ~wanted_ranks(engine) & ~busy_ranks(engine);
    if (!ranks)
        return false;
    struct reshard_task *t = mem_new(sizeof *t);
    *t = (struct reshard_task){.kind = RESHARD_DROP, .ranks = ranks};
    engine->staged_ranks &= ~ranks;
    for (int r = 0; r < MAX_RANKS; r++)
        if (ranks >> r & 1)
            engine->staged_bytes[r] = 0;
    post(engine, t);
    return true;
}

/* In virtual time: what has come by now is in proportion, and it ends now. */
static void cut_short(struct engine *engine, struct reshard_task *t)
{
    struct timetable_entry held;
    int64_t ns = atomic_load(&t->ns), took = engine->now_ns - t->posted_ns;
    if (engine->setup.threaded || engine->setup.play || took >= ns ||
        !timetable_release_reshard(&engine->under_way, t->ranks, &held))
        return;
    atomic_store(&t->bytes, (int64_t)((double)t->expected * (double)took / (double)ns));
    atomic_store(&t->ns, took);
    timetable_add_reshard(&engine->under_way, t);
}

/* A stage whose order has gone, or may wait no longer, ends with what has come. */
static void stop_stages(struct engine *engine)
{
    const struct partition *p = &engine->world.partition;
    for (int i = 0; i < engine->n_reshards; i++) {
        struct reshard_task *t = engine->reshards[i];
        bool wanted = false;
        for (int k = 0; k < p->n_pending; k++)
            wanted |= p->pending[k].serial == t->order && !p->pending[k].forced;
        if (t->kind == RESHARD_STAGE && !wanted && !atomic_exchange(&t->stop, true))
            cut_short(engine, t);
    }
}

bool engine_post_reshards(struct engine *engine)
{
    struct partition *p = &engine->world.partition;
    bool did = false;
    if (!engine->world.residency.facts)
        return false;
    stop_stages(engine);
    for (int i = 0; i < p->n_groups; i++)
        if (partition_group(p, i)->loading && !partition_group(p, i)->told)
            did |= post_take(engine, partition_slot(p, i));
    for (int i = 0; i < p->n_pending; i++)
        if (p->pending[i].weights == WEIGHTS_WANTED)
            did |= post_stage(engine, &p->pending[i]);
    return post_drop(engine) || did;
}

/* ---- what has come */

/* How fast it was; in virtual time as the description says. */
static void measure(struct engine *engine, const struct reshard_task *t)
{
    int64_t took = engine->now_ns - t->posted_ns;
    bool whole = !atomic_load(&t->stop) && !atomic_load(&t->failed);
    double *rate = &engine->world.cost.load_ns_per_byte;
    if (t->most && took > 0 && whole && t->kind != RESHARD_DROP)
        *rate += 0.3 * ((double)took / (double)t->most - *rate);
}

/* What the ranks have beside what they hold, as far as the books know: this share of what was to come. */
static void note_staged(struct engine *engine, const struct reshard_task *t)
{
    double share = t->expected ? (double)atomic_load(&t->bytes) / (double)t->expected : 1;
    const struct residency *x = &engine->world.residency;
    for (int r = 0; r < engine->node.n_ranks; r++) {
        if (!(t->ranks >> r & 1))
            continue;
        size_t held = residency_bytes(x->facts, &engine->cuts[r]),
               missing = residency_missing(x->facts, &engine->cuts[r], &t->to[r]),
               room = x->facts->room > held ? x->facts->room - held : 0, came = missing < room ? missing : room;
        engine->staged_bytes[r] = (size_t)((share < 1 ? share : 1) * (double)came);
    }
}

static void fail(struct engine *engine, struct reshard_task *t, int rank)
{
    char why[sizeof t->err.text + 64];
    snprintf(why, sizeof why, "it could not load its weights: %s", t->err.text);
    engine_lose_rank(engine, rank, why);
}

void engine_reshard_done(struct engine *engine, struct reshard_task *t)
{
    int rank = atomic_load(&t->failed) - 1, i = 0;
    while (engine->reshards[i] != t)
        i++;
    engine->reshards[i] = engine->reshards[--engine->n_reshards];
    if (engine->setup.witness && engine->setup.witness->resharded)
        engine->setup.witness->resharded(engine->setup.witness->ctx, engine->now_ns, t);
    metrics_add(&engine->metrics, C_RESHARDED_BYTES, (uint64_t)atomic_load(&t->bytes));
    measure(engine, t);
    if (t->kind == RESHARD_STAGE) {
        note_staged(engine, t);
        partition_weights_there(&engine->world, t->order);
    } else if (t->kind == RESHARD_TAKE) {
        if (!engine->setup.quiet)
            log_debug("engine", "group %d has its weights after %.1f ms", t->group,
                      (double)(engine->now_ns - t->posted_ns) * 1e-6);
        partition_loaded(&engine->world, t->group);
        if (rank >= 0)
            fail(engine, t, rank);
    }
    mem_free(t);
    engine_note_change(engine);
}

void engine_drop_reshards(struct engine *engine)
{
    for (int i = 0; i < engine->n_reshards; i++)
        mem_free(engine->reshards[i]);
    engine->n_reshards = 0;
}
