/* What the engine does to carry out changes of the partition: counts their time, posts the copies, takes back what
 * landed, and goes on without a rank that failed. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_state.h"

/* Blocks by share, in pieces, in the move's arena. */
static void fill_end(struct move_end *to, struct arena *a, const struct kv_pool *p, int place, const int32_t *blocks,
                     int n)
{
    const struct kv_place *l = kv_place(p, place);
    to->n = l->n;
    to->host = place == p->host_place;
    to->stages = l->stages;
    to->tokens_per_block = l->tokens_per_block / l->pieces;
    to->n_blocks = n * l->pieces;
    int32_t *phys = arena_new(a, (size_t)(l->n * to->n_blocks + 1) * sizeof *phys);
    for (int s = 0; s < l->n; s++) {
        to->ranks[s] = l->ranks[s];
        kv_fill_pieces(p, place, s, blocks, n, phys + s * to->n_blocks);
    }
    to->blocks = phys;
}

/* Nothing is copied; all heads of the tokens count as they would. */
static void play_move(struct engine *engine, struct move *m)
{
    const struct engine_play *play = engine->setup.play;
    atomic_store(&m->bytes, (int64_t)(engine->node.kv_block_bytes / (size_t)engine->setup.block_size) *
                                (m->n_tokens - m->first_token));
    if (!play->move_ns) {
        timetable_hold(&engine->under_way, (struct timetable_entry){.move = m});
        return;
    }
    atomic_store(&m->ns, play->move_ns(play->ctx, m));
    timetable_add_move(&engine->under_way, m);
}

/* Every copy that the world has made goes to the ranks that receive it, ahead of any step that they are given
 * afterwards. */
void engine_post_moves(struct engine *engine)
{
    struct world *w = &engine->world;
    for (int i = 0; i < w->n_copies; i++) {
        struct kv_copy *v = w->copies[i];
        if (engine_post_disk(engine, v))
            continue;
        struct move *m = move_new();
        m->owner = v->id;
        m->heads = engine->node.heads;
        m->first_token = v->first_token;
        m->n_tokens = v->n_tokens;
        m->posted_ns = engine->now_ns;
        m->serial = ++engine->n_posted_moves;
        m->ctx = v;
        fill_end(&m->from, &m->arena, &w->kv, v->from_place, v->from, v->n_from);
        fill_end(&m->to, &m->arena, &w->kv, v->to_place, v->to, v->n_to);
        m->beside = v->beside;
        engine->n_moving++;
        metrics_add(&engine->metrics, C_MOVES, 1);
        if (engine->setup.play) {
            play_move(engine, m);
            continue;
        }
        move_post(m, engine->node.ranks, node_host_kv(&engine->node));
        if (!engine->setup.threaded && atomic_load(&m->ns))
            timetable_add_move(&engine->under_way, m);
        else if (!engine->setup.threaded)
            engine_move_done(engine, m);
    }
    w->n_copies = 0;
}

void engine_move_done(struct engine *engine, struct move *m)
{
    struct kv_copy *v = m->ctx;
    struct world *w = &engine->world;
    int64_t bytes = atomic_load(&m->bytes), *last = &w->cost.last_copy_ns,
            took = engine->now_ns - (m->posted_ns > *last ? m->posted_ns : *last);
    struct switch_event *e = partition_event_slot(&w->partition, v->event);
    int n = m->n_tokens - m->first_token;
    if (e)
        e->bytes += (uint64_t)bytes;
    metrics_add(&engine->metrics, C_MOVED_BYTES, (uint64_t)bytes);
    if (m->to.host || m->from.host)
        metrics_add(&engine->metrics, m->to.host ? C_SWAPPED_OUT_BYTES : C_SWAPPED_IN_BYTES, (uint64_t)bytes);
    double *cost = m->to.host || m->from.host ? &w->cost.swap_ns_per_token : &w->cost.move_ns_per_token;
    if (n > 0 && !v->keys) { /* what nobody waits for waits itself */
        *cost += 0.1 * ((double)took / n - *cost);
        *last = engine->now_ns;
    }
    engine->n_moving--;
    engine_note_change(engine);
    if (engine->setup.witness && engine->setup.witness->moved)
        engine->setup.witness->moved(engine->setup.witness->ctx, engine->now_ns, m);
    world_copy_done(w, v, engine->now_ns);
    engine->stories.stale = true;
    move_free(m);
}

static void say_switch(const struct switch_event *e)
{
    log_debug("switch",
              "%s ranks 0x%llx (%s, %s): %s; waited %.3f ms; %d sequences stay, %d move, %d are parked, %d begin again",
              e->order.release ? "release" : "bind", (unsigned long long)e->order.mask, switch_when_name(e->order.when),
              kv_fate_name(e->order.fate), e->order.reason, (double)(e->done_ns - e->asked_ns) * 1e-6, e->n_kept,
              e->n_moved, e->n_parked, e->n_recomputed);
}

static bool is_new(const struct switch_event *e, int64_t t0)
{
    return e->serial && e->done_ns == t0 && !e->superseded && !e->cutover_ns;
}

/* On a described machine the ranks of an order carried out at t0 take the time that it states, ahead of everything
 * posted to them afterwards. */
static int64_t occupy_switched(struct engine *engine, int64_t t0)
{
    const struct partition *p = &engine->world.partition;
    int64_t stated = engine->setup.threaded ? 0 : rank_facts(engine->node.ranks[0])->budget.switch_ns;
    for (int i = 0; i < SWITCH_EVENTS && stated; i++)
        if (is_new(&p->events[i], t0))
            timetable_occupy(&engine->under_way, p->events[i].order.mask, t0, stated);
    return stated;
}

/* Orders that are ready are carried out. True when there were any. */
bool engine_switch(struct engine *engine)
{
    struct partition *p = &engine->world.partition;
    if (!p->n_pending)
        return false;
    int64_t t0 = engine->now_ns;
    uint64_t done = p->n_switches;
    if (!partition_advance(&engine->world, t0))
        return false;
    int64_t stated = occupy_switched(engine, t0);
    engine_post_moves(engine);
    int64_t took = clock_now(engine->setup.clock) - t0 + stated;
    done = p->n_switches - done;
    metrics_add(&engine->metrics, C_SWITCHES, done);
    for (int i = 0; i < SWITCH_EVENTS; i++)
        if (is_new(&p->events[i], t0)) {
            p->events[i].cutover_ns = took ? took : 1; /* a virtual clock stands still meanwhile */
            if (!engine->setup.quiet)
                say_switch(&p->events[i]);
        }
    engine_note_change(engine);
    return true;
}

static void end_all(struct engine *engine, const char *why)
{
    for (int i = 0; i < engine->world.requests.n_slots; i++) {
        struct request *r = engine->world.requests.slots[i];
        if (r && !r->busy)
            engine_end_request(
                engine, r,
                &(struct request_end){.how = END_ERROR, .http_status = 500, .retry_after_s = -1, .why = why});
    }
}

void engine_end_misfits(struct engine *engine)
{
    struct world *w = &engine->world;
    const struct req_queue *queues[] = {&w->waiting, &w->running};
    char why[200];
    snprintf(why, sizeof why,
             "ranks of this server have failed, and those that are left hold no more than %lld tokens of a request",
             (long long)world_capacity(w));
    for (int q = 0; q < 2; q++)
        for (int i = queues[q]->n - 1; i >= 0; i--) {
            struct request *r = queues[q]->items[i];
            if (!r->busy && !world_suffices(w, r))
                engine_end_request(
                    engine, r,
                    &(struct request_end){.how = END_ERROR, .http_status = 503, .retry_after_s = -1, .why = why});
        }
}

void engine_reset_comms(struct engine *engine, const struct step *s)
{
    uint64_t ranks = 0;
    for (int i = 0; i < s->n_ranks; i++)
        ranks |= 1ull << s->ranks[i];
    comm_reset_within(engine->node.comms, ranks);
}

void engine_lose_rank(struct engine *engine, int rank, const char *why)
{
    int64_t now = engine->now_ns;
    struct world *w = &engine->world;
    if (w->partition.dead_ranks >> rank & 1)
        return;
    char gone[CANARY_WHY];
    snprintf(gone, sizeof gone, "rank %d failed", rank);
    engine_end_canary(engine, gone);
    metrics_add(&engine->metrics, C_RANK_FAILURES, 1);
    partition_lose(w, rank, now);
    int living = w->shape.n_ranks - __builtin_popcountll(w->partition.dead_ranks);
    if (!engine->setup.quiet)
        log_error("engine", "rank %d failed: %s; %d of %d ranks go on", rank, why, living, w->shape.n_ranks);
    if (!living) {
        engine_tell_down(engine, "every rank of the node has failed");
        end_all(engine, why);
    }
}
