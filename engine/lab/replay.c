#include "engine/lab/replay_inner.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { POLL_EVERY = 4096 };

static int64_t now_of(const struct drive *d)
{
    return clock_now(&d->clock) - d->start_ns;
}

static void *grown(void *old, size_t n, size_t *cap, size_t size)
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
        r->bins = grown(r->bins, r->n_bins, &r->cap_bins, sizeof *r->bins);
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

static void note_gauges(struct drive *d)
{
    const struct world *w = engine_world(d->engine);
    struct replay_bin *b = bin_at(d->out, now_of(d));
    b->n_running = w->running.n;
    b->n_waiting = w->waiting.n;
    b->n_groups = w->partition.n_groups;
    b->kv_used = kv_used(w);
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
    if (d->orders_seen == p->n_switches + p->next_serial)
        return;
    d->orders_seen = p->n_switches + p->next_serial;
    for (int i = 0; i < SWITCH_EVENTS; i++) {
        const struct switch_event *v = &p->events[i];
        if (!v->serial || d->noted[i] == v->serial)
            continue;
        d->noted[i] = v->serial;
        if (v->superseded || !keep || r->n_kept_switches == REPLAY_MAX_SWITCHES)
            continue;
        r->switches = grown(r->switches, r->n_kept_switches, &r->cap_switches, sizeof *r->switches);
        struct replay_switch *x = &r->switches[r->n_kept_switches++];
        *x = (struct replay_switch){.at_ns = v->done_ns - START_NS,
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
        mem_free(r->state); /* the last answer is what is kept */
        r->state = ev->payload;
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
}

/* The last to leave comes first, so that the next one is at the end. */
static void plan_cancel(struct drive *d, uint64_t tag, int64_t at_ns)
{
    d->cancels = grown(d->cancels, d->n_cancels, &d->cap_cancels, sizeof *d->cancels);
    size_t i = d->n_cancels++;
    for (; i && d->cancels[i - 1].at_ns < d->start_ns + at_ns; i--)
        d->cancels[i] = d->cancels[i - 1];
    d->cancels[i] = (struct planned_cancel){d->start_ns + at_ns, tag};
}

/* Clients that leave now. */
static void cancel_due(struct drive *d)
{
    for (; d->n_cancels && d->cancels[d->n_cancels - 1].at_ns <= clock_now(&d->clock); d->n_cancels--)
        queue_post(
            engine_inbox(d->engine),
            &(struct engine_message){.kind = IN_CANCEL, .tag = d->cancels[d->n_cancels - 1].tag, .code = END_ABORT});
}

uint64_t replay_note_arrival(struct drive *d, const struct replay_request *q)
{
    struct replay *r = d->out;
    r->requests = grown(r->requests, r->n_requests, &r->cap_requests, sizeof *r->requests);
    struct replay_request *x = &r->requests[r->n_requests++];
    *x = *q;
    x->start_ns = x->first_ns = x->last_ns = x->end_ns = -1;
    r->n_live++;
    bin_at(r, now_of(d))->n_arrived++;
    return r->n_requests;
}

static void submit(struct drive *d)
{
    const struct trace_row *row = &d->next;
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = replay_note_arrival(d, &(struct replay_request){.arrival_ns = row->arrival_ns,
                                                             .n_prompt = row->n_prompt,
                                                             .n_asked = row->n_output,
                                                             .priority = row->priority});
    snprintf(s->name, sizeof s->name, "row-%llu", (unsigned long long)row->index);
    snprintf(s->tenant, sizeof s->tenant, "%s", row->tenant);
    snprintf(s->salt, sizeof s->salt, "%s", row->tenant);
    s->priority = row->priority;
    s->slo_ttft_ms = row->slo_ttft_ms;
    s->slo_tpot_ms = row->slo_tpot_ms;
    s->arrival_ns = d->start_ns + row->arrival_ns;
    s->n_prompt = row->n_prompt;
    s->open_ended = row->open_ended;
    s->max_tokens = row->n_output; /* and no stop ids: the answer has the length that the trace says */
    s->prompt = mem_new_array((size_t)row->n_prompt, sizeof *s->prompt);
    trace_prompt(row, d->setup->seed, d->setup->vocab, s->prompt);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    if (row->cancel_ns)
        plan_cancel(d, s->tag, row->cancel_ns);
    queue_post(engine_inbox(d->engine), &(struct engine_message){.kind = IN_SUBMIT, .payload = s});
}

static int next_row(struct drive *d, struct err *e)
{
    bool end = true;
    int rc = arrivals_next(d->setup->arrivals, &d->next, &end, e);
    d->has_next = !rc && !end;
    return rc;
}

static int64_t next_submission(const struct drive *d) /* clock time */
{
    return d->start_ns + d->next.arrival_ns + d->setup->front_ns;
}

static int submit_due(struct drive *d, struct err *e)
{
    while (d->has_next && next_submission(d) <= clock_now(&d->clock)) {
        submit(d);
        TRY(next_row(d, e));
    }
    return 0;
}

/* ---- the loop */

void replay_listen(struct drive *d)
{
    struct engine_event ev;
    note_ended_steps(d);
    while (queue_take(engine_outbox(d->engine), &ev))
        take_event(d, &ev);
    note_gauges(d);
}

static void settle(struct drive *d)
{
    while (engine_turn(d->engine))
        replay_note_turn(d);
    replay_listen(d);
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

static int drive(struct drive *d, struct err *e)
{
    replay_note_first(d);
    TRY(next_row(d, e));
    while (!replay_shall_stop(d)) {
        TRY(submit_due(d, e));
        cancel_due(d);
        settle(d);
        if (!d->has_next && !d->out->n_live)
            break; /* an idle policy may still wake now and then */
        int64_t next = engine_next_ns(d->engine), now = clock_now(&d->clock);
        if (d->has_next && next_submission(d) < next)
            next = next_submission(d);
        if (d->n_cancels && d->cancels[d->n_cancels - 1].at_ns < next)
            next = d->cancels[d->n_cancels - 1].at_ns;
        if (next == INT64_MAX)
            break;
        if (next > now)
            clock_advance_to(&d->clock, next);
    }
    return 0;
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
    r->conserved = world_check(w) && w->n_submitted == w->n_ended + (uint64_t)w->requests.n_live;
    r->n_decisions = w->step;
    memcpy(r->counters, w->metrics->counters, sizeof r->counters);
    engine_take(d->engine, &(struct engine_message){.kind = IN_STATE});
    while (queue_take(engine_outbox(d->engine), &ev))
        take_event(d, &ev);
}

/* The engine closes only when it is empty; nothing of this is written down. */
static void end_all(struct drive *d)
{
    struct engine_event ev;
    queue_post(engine_inbox(d->engine), &(struct engine_message){.kind = IN_STOP});
    for (;;) {
        while (engine_turn(d->engine))
            ;
        while (queue_take(engine_outbox(d->engine), &ev))
            mem_free(ev.payload);
        int64_t next = engine_next_ns(d->engine);
        if (next == INT64_MAX || !engine_world(d->engine)->requests.n_live)
            break;
        if (next > clock_now(&d->clock))
            clock_advance_to(&d->clock, next);
    }
}

int replay_open(struct drive *d, struct replay *out, const struct replay_setup *s, int64_t start_ns, struct err *e)
{
    struct engine_setup setup = *s->engine;
    memset(out, 0, sizeof *out);
    memset(d, 0, sizeof *d);
    out->bin_ns = 1000000000;
    d->out = out;
    d->setup = s;
    d->start_ns = start_ns;
    clock_init_virtual(&d->clock, start_ns);
    setup.clock = &d->clock;
    setup.threaded = false;
    return engine_create(&d->engine, &setup, e);
}

int replay_run(struct replay *out, const struct replay_setup *s, struct err *e)
{
    struct drive *d = mem_new(sizeof *d);
    int rc = replay_open(d, out, s, START_NS, e);
    if (!rc) {
        rc = drive(d, e);
        replay_close_books(d);
        end_all(d);
        engine_destroy(d->engine);
    }
    mem_free(d->cancels);
    mem_free(d);
    return rc;
}

void replay_free(struct replay *r)
{
    mem_free(r->requests);
    mem_free(r->bins);
    mem_free(r->switches);
    mem_free(r->state);
    memset(r, 0, sizeof *r);
}
