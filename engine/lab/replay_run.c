#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/replay_inner.h"

/* A client that leaves. */
struct leaving {
    int64_t at_ns;
    uint64_t tag;
    int node;
};

/* A trace, and the nodes that it is submitted to. */
struct run {
    struct replay *out;
    const struct replay_setup *setup;
    struct clock clock;
    struct router *router; /* NULL: one node */
    struct drive *nodes;
    bool *due; /* [n_nodes] something was submitted to it now */
    int n_nodes;
    struct trace_row next; /* the arrival after now */
    bool has_next;
    struct leaving *leaving; /* the next one last */
    size_t n_leaving, cap_leaving;
};

/* ---- what comes to a node from outside */

/* The last to leave comes first, so that the next one is at the end. */
static void plan_leaving(struct run *r, const struct leaving *x)
{
    r->leaving = replay_grown(r->leaving, r->n_leaving, &r->cap_leaving, sizeof *r->leaving);
    size_t i = r->n_leaving++;
    for (; i && r->leaving[i - 1].at_ns < x->at_ns; i--)
        r->leaving[i] = r->leaving[i - 1];
    r->leaving[i] = *x;
}

/* Clients that leave now. */
static void leave_due(struct run *r)
{
    for (; r->n_leaving && r->leaving[r->n_leaving - 1].at_ns <= clock_now(&r->clock); r->n_leaving--) {
        const struct leaving *x = &r->leaving[r->n_leaving - 1];
        queue_post(engine_inbox(r->nodes[x->node].engine),
                   &(struct engine_message){.kind = IN_CANCEL, .tag = x->tag, .code = END_ABORT});
        r->due[x->node] = true;
    }
}

static void submit(struct run *r)
{
    const struct trace_row *row = &r->next;
    int node = r->router ? router_choose(r->router, row) : 0;
    struct drive *d = &r->nodes[node];
    struct request_spec *s = request_spec_new();
    s->tag = replay_note_arrival(d,
                                 &(struct replay_request){.arrival_ns = row->arrival_ns,
                                                          .n_prompt = row->n_prompt,
                                                          .n_asked = row->n_output,
                                                          .priority = row->priority,
                                                          .node = (uint32_t)node & (ROUTER_MAX_NODES - 1)},
                                 row->tenant);
    snprintf(s->name, sizeof s->name, "row-%llu", (unsigned long long)row->index);
    snprintf(s->tenant, sizeof s->tenant, "%s", row->tenant);
    snprintf(s->salt, sizeof s->salt, "%s", row->tenant);
    s->priority = row->priority;
    s->slo_ttft_ms = row->slo_ttft_ms;
    s->slo_tpot_ms = row->slo_tpot_ms;
    s->arrival_ns = REPLAY_START_NS + row->arrival_ns;
    s->n_prompt = row->n_prompt;
    s->open_ended = row->open_ended;
    s->max_tokens = row->n_output; /* and no stop ids: the answer has the length that the trace says */
    s->prompt = mem_new_array((size_t)row->n_prompt, sizeof *s->prompt);
    trace_prompt(row, r->setup->seed, r->setup->vocab, s->prompt);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    if (row->cancel_ns)
        plan_leaving(r, &(struct leaving){REPLAY_START_NS + row->cancel_ns, s->tag, node});
    queue_post(engine_inbox(d->engine), &(struct engine_message){.kind = IN_SUBMIT, .payload = s});
    r->due[node] = true;
}

static int next_row(struct run *r, struct err *e)
{
    bool end = true;
    int rc = arrivals_next(r->setup->arrivals, &r->next, &end, e);
    r->has_next = !rc && !end;
    return rc;
}

static int64_t next_submission(const struct run *r) /* clock time */
{
    return REPLAY_START_NS + r->next.arrival_ns + (r->setup->recorded_front ? r->next.front_ns : r->setup->front_ns);
}

static int submit_due(struct run *r, struct err *e)
{
    while (r->has_next && next_submission(r) <= clock_now(&r->clock)) {
        submit(r);
        TRY(next_row(r, e));
    }
    return 0;
}

/* ---- the loop */

static void settle(struct drive *d)
{
    while (engine_turn(d->engine))
        replay_note_turn(d);
    replay_listen(d);
}

/* Of several nodes those turn that have something to do now: where nothing happens no policy is asked. */
static void settle_due(struct run *r, bool all)
{
    for (int i = 0; i < r->n_nodes; i++) {
        struct drive *d = &r->nodes[i];
        if (all || r->n_nodes == 1 || r->due[i] || engine_next_ns(d->engine) <= clock_now(&r->clock))
            settle(d);
        r->due[i] = false;
    }
}

static int64_t next_event(const struct run *r)
{
    int64_t next = r->has_next ? next_submission(r) : INT64_MAX;
    if (r->n_leaving && r->leaving[r->n_leaving - 1].at_ns < next)
        next = r->leaving[r->n_leaving - 1].at_ns;
    for (int i = 0; i < r->n_nodes; i++) {
        int64_t at = engine_next_ns(r->nodes[i].engine);
        next = at < next ? at : next;
    }
    return next;
}

static int drive_all(struct run *r, struct err *e)
{
    bool first = true;
    for (int i = 0; i < r->n_nodes; i++)
        replay_note_first(&r->nodes[i]);
    TRY(next_row(r, e));
    while (!replay_shall_stop(&r->nodes[0])) {
        TRY(submit_due(r, e));
        leave_due(r);
        settle_due(r, first);
        first = false;
        if (!r->has_next && !r->out->n_live)
            break; /* an idle policy may still wake now and then */
        int64_t next = next_event(r);
        if (next == INT64_MAX)
            break;
        if (next > clock_now(&r->clock))
            clock_advance_to(&r->clock, next);
    }
    return 0;
}

/* ---- the ends */

/* The engine closes only when it is empty; nothing of this is written down. */
static void end_all(struct engine *engine, struct clock *clock)
{
    struct engine_event ev;
    queue_post(engine_inbox(engine), &(struct engine_message){.kind = IN_STOP});
    for (;;) {
        while (engine_turn(engine))
            ;
        while (queue_take(engine_outbox(engine), &ev))
            mem_free(ev.payload);
        int64_t next = engine_next_ns(engine);
        if (next == INT64_MAX || !engine_world(engine)->requests.n_live)
            break;
        if (next > clock_now(clock))
            clock_advance_to(clock, next);
    }
}

/* Policies move in every case: those that no engine takes any more end here. */
static int open_nodes(struct run *r, struct err *e)
{
    const struct replay_setup *s = r->setup;
    int n = s->n_nodes > 1 ? s->n_nodes : 1, rc = 0;
    r->nodes = mem_new_array((size_t)n, sizeof *r->nodes);
    r->due = mem_new_array((size_t)n, sizeof *r->due);
    r->router = n > 1 ? router_new(s->router, n) : NULL;
    for (int i = 0; i < n; i++) {
        const struct policy *p = i ? &s->others[i - 1] : &s->engine->policy;
        if (!rc)
            rc = replay_open(&r->nodes[i], r->out, s, p, &r->clock, e);
        else if (p->ops && p->ops->destroy)
            p->ops->destroy(p->ctx);
        r->n_nodes += !rc;
        r->nodes[i].router = r->router;
    }
    for (int i = 0; i < r->n_nodes; i++) {
        r->nodes[i].nodes = r->nodes;
        r->nodes[i].n_nodes = r->n_nodes;
    }
    r->out->n_nodes = r->n_nodes ? r->n_nodes : 1;
    return rc;
}

int replay_run(struct replay *out, const struct replay_setup *s, struct err *e)
{
    struct run *r = mem_new(sizeof *r);
    r->out = out;
    r->setup = s;
    clock_init_virtual(&r->clock, REPLAY_START_NS);
    replay_begin(out);
    int rc = open_nodes(r, e);
    bool opened = !rc;
    if (opened)
        rc = drive_all(r, e);
    for (int i = 0; i < r->n_nodes && opened; i++)
        replay_close_books(&r->nodes[i]);
    for (int i = 0; i < r->n_nodes; i++) {
        end_all(r->nodes[i].engine, &r->clock);
        engine_destroy(r->nodes[i].engine);
    }
    router_free(r->router);
    mem_free(r->leaving);
    mem_free(r->nodes);
    mem_free(r->due);
    mem_free(r);
    return rc;
}
