/* What a plan runs, to the ranks: each forwarded batch becomes a step in the inboxes of all its group's members, or, in
 * virtual time, in the timetable. */
#include "engine/engine_state.h"

/* What is recorded of pooled FFN weights in detail is a step of each group every few seconds, those of all groups at
 * about the same time: so it shows who read from whom, and stays small. */
static const int64_t WATCH_NS = 2000000000;

static void watch(struct engine *engine, struct group *grp, struct step *s)
{
    if (!witness_is_exact(engine->setup.witness) || !engine->world.ffn || !engine->setup.ops->computes ||
        engine->setup.play)
        return;
    if (engine->watch_round == 0 || engine->now_ns >= engine->watch_until_ns) {
        engine->watch_round++;
        engine->watch_until_ns = engine->now_ns + WATCH_NS;
    }
    if (grp->watched != engine->watch_round)
        step_watch(s, engine->world.ffn->n_layers);
    grp->watched = engine->watch_round;
}

static struct step *post(struct engine *engine, struct plan_batch *b)
{
    struct group *grp = b->group;
    struct step_context context = {.world = &engine->world,
                                   .group = grp,
                                   .comms = comm_find(engine->node.comms, grp->mask),
                                   .no_blocks = !engine->setup.ops->computes};
    for (int i = 0; i < b->n_items; i++) /* from now on nobody takes what the step is lent */
        b->items[i].request->busy = true;
    struct step *s = step_build(b, &context);
    grp->idle = false;
    grp->layout = b->layout;
    grp->busy_since_ns = engine->now_ns;
    s->ahead = b->ahead >= 0 && b->ahead < engine->setup.ahead ? b->ahead : engine->setup.ahead;
    watch(engine, grp, s);
    engine_post(engine, s);
    return s;
}

void engine_post(struct engine *engine, struct step *s)
{
    s->posted_ns = engine->now_ns;
    for (int i = 0; i < s->n_ranks && !engine->setup.play;
         i++) /* in all members' inboxes before anything else: every rank sees the same order */
        rank_post_step(engine->node.ranks[s->ranks[i]], s, i);
}

/* Every step takes as long as the slowest would, were each as large as the largest: rows of padding are multiplied and
 * look at nothing. */
static void pad_steps(struct engine *engine, struct step **steps, int n)
{
    int64_t slowest = 0;
    int rows = 0;
    for (int i = 0; i < n; i++)
        rows = steps[i]->size.rows > rows ? steps[i]->size.rows : rows;
    for (int i = 0; i < n; i++) {
        struct step_size padded = steps[i]->size;
        padded.rows = rows;
        int64_t ns = engine->setup.ops->step_ns(rank_device(engine->node.ranks[0]), steps[i]->layout, &padded);
        slowest = ns > slowest ? ns : slowest;
    }
    for (int i = 0; i < n; i++)
        if (steps[i]->parts[0].time.ns < slowest)
            steps[i]->parts[0].time.ns = slowest;
}

/* In virtual time: when it will have ended. */
static void add_step(struct engine *engine, struct step *s, int beside)
{
    const struct engine_play *play = engine->setup.play;
    struct played_step takes = {0};
    if (play && !play->step) {
        timetable_hold(&engine->under_way, (struct timetable_entry){.step = s});
        return;
    }
    if (play) {
        takes = play->step(play->ctx, s, beside);
        s->parts[0].time.ns = takes.ns;
    }
    if (play && !s->size.cas_layers)
        step_part_take_ffn(&s->parts[0], &play->ffn);
    timetable_add_step(&engine->under_way, s, takes.lag_ns);
}

void engine_post_plan(struct engine *engine, const struct plan *p)
{
    struct step *steps[MAX_RANKS];
    int n = 0, running = timetable_steps(&engine->under_way);
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            steps[n++] = post(engine, p->batches[i]);
    if (engine->setup.lockstep)
        pad_steps(engine, steps, n);
    for (int i = 0; i < n && !engine->setup.threaded; i++)
        add_step(engine, steps[i], running + n - 1);
    for (int i = 0; i < n; i++)
        engine_follow(engine, steps[i]);
}
