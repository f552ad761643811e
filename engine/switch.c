/* What the engine does to carry out changes of the partition: counts their time, posts the copies, takes back what
 * landed, and goes on without a rank that failed. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_state.h"

/* Physical blocks by share, in the move's arena. */
static void fill_end(struct move_end *to, struct arena *a, const struct kv_pool *p, int place, const int32_t *blocks,
                     int n)
{
    const struct kv_place *l = kv_place(p, place);
    to->n = l->n;
    to->tokens_per_block = l->tokens_per_block;
    to->n_blocks = n;
    int32_t *phys = arena_new(a, (size_t)(l->n * n + 1) * sizeof *phys);
    for (int s = 0; s < l->n; s++) {
        to->ranks[s] = l->ranks[s];
        for (int i = 0; i < n; i++)
            phys[s * n + i] = kv_phys(p, place, blocks[i], s);
    }
    to->blocks = phys;
}

/* Nothing is copied; all heads of the tokens count as they would. */
static void play_move(struct engine *g, struct move *m)
{
    const struct engine_play *play = g->setup.play;
    atomic_store(&m->bytes,
                 (int64_t)(g->devices.kv_block_bytes / (size_t)g->setup.block_size) * (m->n_tokens - m->first_token));
    if (!play->move_ns) {
        timetable_hold(&g->under_way, (struct timetable_entry){.move = m});
        return;
    }
    atomic_store(&m->ns, play->move_ns(play->ctx, m));
    timetable_add_move(&g->under_way, m);
}

/* Every copy that the world has made goes to the ranks that receive it, ahead of any step that they are given
 * afterwards. */
void engine_post_moves(struct engine *g)
{
    struct world *w = &g->world;
    for (int i = 0; i < w->n_moves; i++) {
        struct kv_copy *v = w->moves[i];
        struct move *m = move_new();
        m->owner = v->id;
        m->heads = g->devices.heads;
        m->first_token = v->first_token;
        m->n_tokens = v->n_tokens;
        m->posted_ns = g->now_ns;
        m->serial = ++g->n_posted_moves;
        m->ctx = v;
        fill_end(&m->from, &m->arena, &w->kv, v->from_place, v->from, v->n_from);
        fill_end(&m->to, &m->arena, &w->kv, v->to_place, v->to, v->n_to);
        g->n_moving++;
        metrics_add(&g->metrics, C_MOVES, 1);
        if (g->setup.play) {
            play_move(g, m);
            continue;
        }
        move_post(m, g->devices.ranks);
        if (!g->setup.threaded && atomic_load(&m->ns))
            timetable_add_move(&g->under_way, m);
        else if (!g->setup.threaded)
            engine_move_done(g, m);
    }
    w->n_moves = 0;
}

void engine_move_done(struct engine *g, struct move *m)
{
    struct kv_copy *v = m->ctx;
    struct world *w = &g->world;
    int64_t bytes = atomic_load(&m->bytes), took = g->now_ns - m->posted_ns;
    struct switch_event *e = partition_event(&w->partition, v->event);
    int n = m->n_tokens - m->first_token;
    if (e)
        e->bytes += (uint64_t)bytes;
    metrics_add(&g->metrics, C_MOVED_BYTES, (uint64_t)bytes);
    if (n > 0)
        w->cost.move_ns_per_token += 0.1 * ((double)took / n - w->cost.move_ns_per_token);
    g->n_moving--;
    engine_note_change(g);
    if (g->setup.witness && g->setup.witness->moved)
        g->setup.witness->moved(g->setup.witness->ctx, g->now_ns, m);
    world_move_done(w, v);
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
static int64_t occupy_switched(struct engine *g, int64_t t0)
{
    const struct partition *p = &g->world.partition;
    int64_t stated = g->setup.threaded ? 0 : rank_facts(g->devices.ranks[0])->budget.switch_ns;
    for (int i = 0; i < SWITCH_EVENTS && stated; i++)
        if (is_new(&p->events[i], t0))
            timetable_occupy(&g->under_way, p->events[i].order.mask, t0, stated);
    return stated;
}

/* Orders that are ready are carried out. True when there were any. */
bool engine_switch(struct engine *g)
{
    struct partition *p = &g->world.partition;
    if (!p->n_pending)
        return false;
    int64_t t0 = g->now_ns;
    uint64_t done = p->n_switches;
    if (!partition_advance(&g->world, t0))
        return false;
    int64_t stated = occupy_switched(g, t0);
    engine_post_moves(g);
    int64_t took = clock_now(g->setup.clock) - t0 + stated;
    done = p->n_switches - done;
    metrics_add(&g->metrics, C_SWITCHES, done);
    for (int i = 0; i < SWITCH_EVENTS; i++)
        if (is_new(&p->events[i], t0)) {
            p->events[i].cutover_ns = took ? took : 1; /* a virtual clock stands still meanwhile */
            if (!g->setup.quiet)
                say_switch(&p->events[i]);
        }
    engine_note_change(g);
    return true;
}

static void end_all(struct engine *g, const char *why)
{
    for (int i = 0; i < g->world.requests.n_slots; i++) {
        struct request *r = g->world.requests.slots[i];
        if (r && !r->busy)
            engine_end_request(
                g, r, &(struct farewell){.how = END_ERROR, .http_status = 500, .retry_after_s = -1, .why = why});
    }
}

void engine_end_misfits(struct engine *g)
{
    struct world *w = &g->world;
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
                    g, r, &(struct farewell){.how = END_ERROR, .http_status = 503, .retry_after_s = -1, .why = why});
        }
}

void engine_lose_rank(struct engine *g, int rank, const struct step *s, const char *why)
{
    int64_t now = g->now_ns;
    struct world *w = &g->world;
    uint64_t ranks = 0;
    for (int i = 0; i < s->n_ranks; i++)
        ranks |= 1ull << s->ranks[i];
    comm_reset_within(g->devices.comms, ranks);
    if (w->partition.dead_ranks >> rank & 1)
        return;
    metrics_add(&g->metrics, C_RANK_FAILURES, 1);
    partition_lose(w, rank, now);
    int living = w->shape.n_ranks - __builtin_popcountll(w->partition.dead_ranks);
    if (!g->setup.quiet)
        log_error("engine", "rank %d failed: %s; %d of %d ranks go on", rank, why, living, w->shape.n_ranks);
    if (!living)
        end_all(g, why);
}
