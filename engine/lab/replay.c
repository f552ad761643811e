#include "engine/lab/replay_inner.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { POLL_EVERY = 4096 };

static int64_t now_of(const struct drive *d)
{
    return clock_now(d->clock) - d->start_ns;
}

void *replay_grown(void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 256;
    return mem_resize(old, *cap, size);
}

/* ---- bins of time */

static void merge_bins(struct replay *r)
{
    for (size_t i = 0; i < r->n_bins; i += 2) {
        struct replay_bin sum = r->bins[i];
        if (i + 1 < r->n_bins) {
            const struct replay_bin *b = &r->bins[i + 1];
            bool other = b->layout_tokens > sum.layout_tokens;
            int32_t layout = other ? b->layout : sum.layout;
            uint64_t tokens = other ? b->layout_tokens : sum.layout_tokens;
            sum = (struct replay_bin){sum.n_arrived + b->n_arrived,
                                      sum.n_ended + b->n_ended,
                                      sum.n_prefill_tokens + b->n_prefill_tokens,
                                      sum.n_output_tokens + b->n_output_tokens,
                                      b->n_running,
                                      b->n_waiting,
                                      b->n_groups,
                                      b->kv_used,
                                      layout,
                                      tokens,
                                      other ? b->layout_groups : sum.layout_groups};
        }
        r->bins[i / 2] = sum;
    }
    r->n_bins = (r->n_bins + 1) / 2;
    r->bin_ns *= 2;
}

/* The bin of a time; bins on the way to it go on with the gauges of the last one. */
static struct replay_bin *bin_at(struct replay *r, int64_t ns)
{
    while (ns / r->bin_ns >= REPLAY_MAX_BINS)
        merge_bins(r);
    size_t i = (size_t)(ns / r->bin_ns);
    while (r->n_bins <= i) {
        r->bins = replay_grown(r->bins, r->n_bins, &r->cap_bins, sizeof *r->bins);
        struct replay_bin b = {.layout = -1};
        if (r->n_bins) {
            const struct replay_bin *last = &r->bins[r->n_bins - 1];
            b.n_running = last->n_running;
            b.n_waiting = last->n_waiting;
            b.n_groups = last->n_groups;
            b.kv_used = last->kv_used;
        }
        r->bins[r->n_bins++] = b;
    }
    return &r->bins[i];
}

static double kv_used(const struct world *w)
{
    double most = 0;
    for (int i = 0; i < w->kv.n_ranks; i++) {
        const struct kv_rank *r = &w->kv.ranks[i];
        int there = w->kv.n_blocks - r->n_lent, held = there - r->n_free - r->n_cached;
        double used = there ? (double)held / there : 0;
        most = used > most ? used : most;
    }
    return most;
}

/* What is now, of all nodes together. */
static void put_gauges(const struct drive *d, struct replay_bin *b)
{
    b->n_running = b->n_waiting = b->n_groups = 0;
    b->kv_used = 0;
    for (int i = 0; i < d->n_nodes; i++) {
        const struct gauges *g = &d->nodes[i].gauges;
        b->n_running += g->running;
        b->n_waiting += g->waiting;
        b->n_groups += g->groups;
        b->kv_used = g->kv_used > b->kv_used ? g->kv_used : b->kv_used;
    }
}

static void note_gauges(struct drive *d)
{
    const struct world *w = engine_world(d->engine);
    struct replay_bin *b = bin_at(d->out, now_of(d));
    d->gauges = (struct gauges){w->running.n, w->waiting.n, w->partition.n_groups, kv_used(w)};
    put_gauges(d, b);
    b->n_output_tokens += w->metrics->counters[C_GENERATION_TOKENS] - d->generated_seen;
    d->generated_seen = w->metrics->counters[C_GENERATION_TOKENS];
    if (b->kv_used > d->out->kv_high)
        d->out->kv_high = b->kv_used;
}

/* ---- steps */

static int layout_index(struct replay *r, uint64_t ranks, struct layout l)
{
    int i = 0;
    while (i < r->n_layouts && (r->layouts[i].ranks != ranks || !layout_equal(r->layouts[i].layout, l)))
        i++;
    if (i == REPLAY_MAX_LAYOUTS)
        return i - 1;
    if (i == r->n_layouts)
        r->layouts[r->n_layouts++] = (struct replay_layout){.ranks = ranks, .layout = l};
    return i;
}

static void note_batch(struct drive *d, const struct plan_batch *b)
{
    struct replay *r = d->out;
    int64_t now = now_of(d);
    int k = layout_index(r, b->group->mask, b->layout);
    struct step_size size = plan_size(b);
    r->n_cas_steps += size.cas_layers > 0;
    if (d->setup->forwarded)
        d->setup->forwarded(d->setup->ctx, b->layout, &size);
    struct replay_bin *bin = bin_at(r, now);
    uint64_t n = (uint64_t)b->n_tokens;
    r->layouts[k].n_steps++;
    r->layouts[k].n_tokens += n;
    bin->n_prefill_tokens += n - (uint64_t)b->n_decodes;
    if (n > bin->layout_tokens || bin->layout == k) {
        bin->layout_tokens = bin->layout == k ? bin->layout_tokens + n : n;
        bin->layout = k;
        bin->layout_groups = engine_world(d->engine)->partition.n_groups;
    }
    ASSERT(d->n_steps < MAX_RANKS);
    d->steps[d->n_steps++] = (struct running_step){b->group_id, k, b->group->n_steps, now};
    for (int i = 0; i < b->n_items; i++) {
        const struct request *q = b->items[i].request;
        struct replay_request *x = &r->requests[q->spec->tag - 1];
        x->n_preempted = q->n_preempted;
        if (x->start_ns < 0)
            x->start_ns = now;
    }
}

/* Steps that have ended since. A group that has gone was in none when it went. */
static void note_ended_steps(struct drive *d)
{
    const struct partition *p = &engine_world(d->engine)->partition;
    int kept = 0;
    for (int i = 0; i < d->n_steps; i++) {
        const struct running_step *s = &d->steps[i];
        const struct group *grp = partition_find(p, s->group);
        if (grp && grp->n_steps == s->n_steps)
            d->steps[kept++] = *s;
        else
            d->out->layouts[s->layout].busy_ns += now_of(d) - s->posted_ns;
    }
    d->n_steps = kept;
}

/* Switches that were carried out since, each once: the partition remembers the last SWITCH_EVENTS. */
static void note_switches(struct drive *d, bool keep)
{
    struct replay *r = d->out;
    const struct partition *p = &engine_world(d->engine)->partition;
    while (d->switches_seen < p->n_events) {
        const struct switch_event *v = partition_event(p, ++d->switches_seen);
        if (!v || v->superseded || !keep || r->n_kept_switches == REPLAY_MAX_SWITCHES)
            continue;
        r->switches = replay_grown(r->switches, r->n_kept_switches, &r->cap_switches, sizeof *r->switches);
        struct replay_switch *x = &r->switches[r->n_kept_switches++];
        *x = (struct replay_switch){.at_ns = v->done_ns - REPLAY_START_NS,
                                    .wait_ns = v->done_ns - v->asked_ns,
                                    .ranks = v->order.mask,
                                    .release = v->order.release,
                                    .failure = v->failure,
                                    .n_kept = v->n_kept,
                                    .n_moved = v->n_moved,
                                    .n_parked = v->n_parked,
                                    .n_recomputed = v->n_recomputed};
        memcpy(x->reason, v->order.reason, sizeof x->reason);
    }
}

/* What the last turn decided. Its requests live at least until the step is done. */
void replay_note_turn(struct drive *d)
{
    const struct plan *p = engine_plan(d->engine);
    uint64_t step = engine_world(d->engine)->step;
    note_ended_steps(d);
    note_switches(d, true);
    if (step == d->step_seen)
        return;
    d->step_seen = step;
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            note_batch(d, p->batches[i]);
}

/* ---- requests */

static void take_event(struct drive *d, const struct engine_event *ev)
{
    struct replay *r = d->out;
    int64_t now = now_of(d);
    if (ev->kind == EV_REPLY) {
        char **state = &r->states[d - d->nodes];
        mem_free(*state); /* the last answer is what is kept */
        *state = ev->payload;
        return;
    }
    mem_free(ev->payload);
    if (ev->kind != EV_TOKEN && ev->kind != EV_END)
        return;
    ASSERT(ev->tag >= 1 && ev->tag <= r->n_requests);
    struct replay_request *x = &r->requests[ev->tag - 1];
    ASSERT(x->ending == END_NONE);
    if (ev->kind == EV_TOKEN) {
        x->n_output++;
        x->last_ns = now;
        if (x->first_ns < 0)
            x->first_ns = now;
        return;
    }
    x->ending = (enum ending)ev->code;
    x->n_cached = ev->n_cached;
    x->end_ns = now;
    r->n_live--;
    bin_at(r, now)->n_ended++;
    if (d->router)
        router_ended(d->router, (int)(d - d->nodes));
}

/* Its place among the tenants; made where it is new. */
static uint32_t tenant_place(struct replay *r, const char *name)
{
    int i = 0;
    while (i < r->n_tenants && strcmp(r->tenants[i], name) != 0)
        i++;
    if (i >= REPLAY_TENANTS - 1) {
        i = REPLAY_TENANTS - 1;
        name = "(others)";
    }
    if (i >= r->n_tenants) {
        r->n_tenants = i + 1;
        snprintf(r->tenants[i], sizeof r->tenants[i], "%s", name);
    }
    return (uint32_t)i;
}

uint64_t replay_note_arrival(struct drive *d, const struct replay_request *q, const char *tenant)
{
    struct replay *r = d->out;
    r->requests = replay_grown(r->requests, r->n_requests, &r->cap_requests, sizeof *r->requests);
    struct replay_request *x = &r->requests[r->n_requests++];
    *x = *q;
    x->tenant = tenant_place(r, tenant) & (REPLAY_TENANTS - 1);
    x->start_ns = x->first_ns = x->last_ns = x->end_ns = -1;
    r->n_live++;
    bin_at(r, now_of(d))->n_arrived++;
    return r->n_requests;
}

/* ---- for those who drive */

void replay_listen(struct drive *d)
{
    struct engine_event batch[64];
    size_t n;
    note_ended_steps(d);
    while ((n = queue_take_many(engine_outbox(d->engine), batch, 64)) > 0)
        for (size_t i = 0; i < n; i++)
            take_event(d, &batch[i]);
    note_gauges(d);
}

void replay_note_first(struct drive *d)
{
    note_switches(d, false); /* the partition to begin with */
}

bool replay_shall_stop(struct drive *d)
{
    const struct replay_setup *s = d->setup;
    if (!s->poll || d->n_events++ % POLL_EVERY)
        return false;
    d->out->stopped = s->poll(s->ctx, d->out, now_of(d), (int64_t)d->out->n_live);
    return d->out->stopped;
}

/* By reason; those that find no place are counted with the others. */
static void add_holds(struct holds *to, const struct holds *from)
{
    to->items[HOLD_REASONS].times += from->items[HOLD_REASONS].times;
    for (int i = 0; i < from->n; i++) {
        int at = 0;
        while (at < to->n && strcmp(to->items[at].why, from->items[i].why) != 0)
            at++;
        if (at == to->n && to->n < HOLD_REASONS)
            to->items[to->n++] = (struct hold_reason){0};
        if (at < to->n)
            memcpy(to->items[at].why, from->items[i].why, sizeof to->items[at].why);
        to->items[at < to->n ? at : HOLD_REASONS].times += from->items[i].times;
    }
}

/* The last words of the engine, before it goes. */
void replay_close_books(struct drive *d)
{
    struct replay *r = d->out;
    const struct world *w = engine_world(d->engine);
    struct engine_event ev;
    const struct node_facts *n = engine_node(d->engine);
    r->limits = n->limits;
    r->n_ranks = n->n_ranks;
    r->kv_blocks = n->kv_blocks;
    r->tokens_per_block = n->tokens_per_block;
    r->kv_bytes = n->kv_bytes;
    r->end_ns = now_of(d);
    r->conserved &= world_check(w) && w->n_submitted == w->n_ended + (uint64_t)w->requests.n_live;
    r->n_decisions += w->step;
    for (int i = 0; i < COUNTER_COUNT; i++)
        r->counters[i] += w->metrics->counters[i];
    add_holds(&r->holds, &w->holds);
    engine_take(d->engine, &(struct engine_message){.kind = IN_STATE});
    while (queue_take(engine_outbox(d->engine), &ev))
        take_event(d, &ev);
}

void replay_begin(struct replay *out)
{
    memset(out, 0, sizeof *out);
    out->bin_ns = 1000000000;
    out->n_nodes = 1;
    out->conserved = true;
}

int replay_open(struct drive *d, struct replay *out, const struct replay_setup *s, const struct policy *p,
                struct clock *clock, struct err *e)
{
    struct engine_setup setup = *s->engine;
    memset(d, 0, sizeof *d);
    d->out = out;
    d->setup = s;
    d->clock = clock;
    d->start_ns = clock_now(clock);
    d->nodes = d;
    d->n_nodes = 1;
    setup.clock = clock;
    setup.threaded = false;
    setup.policy = *p;
    return engine_create(&d->engine, &setup, e);
}

void replay_free(struct replay *r)
{
    mem_free(r->requests);
    mem_free(r->bins);
    mem_free(r->switches);
    for (int i = 0; i < r->n_nodes; i++)
        mem_free(r->states[i]);
    memset(r, 0, sizeof *r);
}
