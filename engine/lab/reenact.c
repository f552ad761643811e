#include "engine/lab/reenact.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/canary_order.h"
#include "engine/lab/recording/record_plan.h"
#include "engine/lab/reenact_inner.h"

static void *grown(void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 256;
    return mem_resize(old, *cap, size);
}

/* ---- differences */

/* Notes the first one. */
static struct buf *differ(struct reenactor *r, struct buf *words)
{
    if (!r->out->equal)
        return NULL;
    r->out->equal = false;
    buf_printf(words, "decision %" PRIu64 ", %.6f s after the start (line %" PRIu64 "): ", r->out->n_decisions + 1,
               (double)r->now.is.t_ns * 1e-9, r->now.is.line);
    return words;
}

void reenact_differ(struct reenactor *r, const char *why, int64_t number)
{
    struct buf words = {0};
    if (differ(r, &words)) {
        buf_printf(&words, why, number);
        r->out->difference = buf_take(&words);
    }
    buf_free(&words);
}

static void compare_plans(struct reenactor *r, const char *recorded, const char *came_out)
{
    struct buf words = {0};
    if (!strcmp(recorded, came_out) || !differ(r, &words))
        return;
    buf_puts(&words, "recorded: ");
    record_plan_words(&words, recorded);
    buf_puts(&words, "\n  came out: ");
    size_t at = words.len;
    record_plan_words(&words, came_out);
    const char *of_recorded = strchr(words.data, ':');
    size_t n = words.len - at;
    bool same_words = of_recorded && at > n + 12 && !memcmp(words.data + at - 12 - n, words.data + at, n);
    if (same_words)
        buf_puts(&words,
                 "\n  (the same in words; which requests decode, or how much of their prompts was cached, is another)");
    r->out->difference = buf_take(&words);
}

/* ---- reading ahead */

static void keep(struct buf *b, const void *from, size_t bytes)
{
    buf_clear(b);
    if (bytes)
        buf_put(b, from, bytes);
}

static void hold(struct held *h, const struct recorded *x)
{
    h->is = *x;
    keep(&h->stops, x->stops, (size_t)x->n_stops * sizeof *x->stops);
    keep(&h->keys, x->keys, (size_t)x->n_keys * sizeof *x->keys);
    keep(&h->key_orders, x->key_orders, x->kind == 's' ? (size_t)x->n_keys * sizeof *x->key_orders : 0);
    keep(&h->drafts, x->drafts, (size_t)x->n_drafts * sizeof *x->drafts);
    keep(&h->text, x->text, x->text ? strlen(x->text) : 0);
    h->is.stops = (const int64_t *)(const void *)h->stops.data;
    h->is.keys = (const uint64_t *)(const void *)h->keys.data;
    h->is.key_orders = (const int64_t *)(const void *)h->key_orders.data;
    h->is.drafts = (const struct recorded_drafts *)(const void *)h->drafts.data;
    h->is.text = h->text.data ? h->text.data : "";
}

static void free_held(struct held *h)
{
    buf_free(&h->stops);
    buf_free(&h->key_orders);
    buf_free(&h->keys);
    buf_free(&h->drafts);
    buf_free(&h->text);
}

/* The next line that is no verdict and no guess: those that come before it may belong to what is played now. */
static int read_ahead(struct reenactor *r, struct err *e)
{
    struct recorded x;
    bool end;
    for (;;) {
        TRY(recording_next(r->setup->recording, &x, &end, e));
        r->has_next = !end;
        if (end)
            return 0;
        if (x.kind == 'f') /* for people; what it tells was done within the step */
            continue;
        if (x.kind == 'p') {
            reenact_drafts_add(&r->drafts, &x);
            continue;
        }
        if (x.kind != 'v') {
            hold(&r->next, &x);
            return 0;
        }
        r->verdicts = grown(r->verdicts, r->n_verdicts, &r->cap_verdicts, sizeof *r->verdicts);
        r->verdicts[r->n_verdicts++] = x;
    }
}

static int advance(struct reenactor *r, struct err *e)
{
    struct held old = r->now;
    r->now = r->next;
    r->next = old;
    return read_ahead(r, e);
}

/* ---- verdicts that depend on the machine */

static bool take_verdict(struct reenactor *r, enum policy_hook h, uint64_t call, enum verdict *v)
{
    const struct recorded *x = r->verdicts;
    if (!r->n_verdicts || x->call != call)
        return false;
    if (x->hook != h)
        reenact_differ(r, "the policy's call number %" PRId64 " is one of another of its functions", (int64_t)call);
    *v = x->verdict;
    memmove(r->verdicts, r->verdicts + 1, --r->n_verdicts * sizeof *r->verdicts);
    return true;
}

static void follow(struct reenactor *r)
{
    const struct policy *p = engine_policy(r->d.engine);
    if (r->follows && p->ops->follow)
        p->ops->follow(p->ctx, &r->call);
}

static bool cut(void *ctx, enum policy_hook h, enum verdict *v)
{
    struct reenactor *r = ctx;
    if (!r->n_verdicts || !verdict_cuts(r->verdicts[0].verdict) || !take_verdict(r, h, r->n_calls + 1, v)) {
        if (h == HOOK_STEP)
            follow(r);
        return false;
    }
    r->n_calls++;
    reenact_drafts_end_call(&r->drafts, false);
    return true;
}

static void judged(void *ctx, enum policy_hook h, enum verdict *v)
{
    struct reenactor *r = ctx;
    r->n_calls++;
    enum verdict was;
    if (take_verdict(r, h, r->n_calls, &was) && *v == VERDICT_OK)
        *v = was;
    reenact_drafts_end_call(&r->drafts, true);
}

/* The estimator is told the same, so it must have said the same. */
static void stepped(void *ctx, int64_t now_ns, const struct step *s, double predicted_ns, int failed_rank)
{
    struct reenactor *r = ctx;
    (void)now_ns;
    if (failed_rank < 0 && (int64_t)predicted_ns != r->now.is.predicted_ns)
        reenact_differ(r, "the estimate of the step of group %" PRId64 " was another", s->group);
    reenact_drafts_end_step(&r->drafts, &r->now.is);
}

static void verified(void *ctx, const struct request *q, const struct step_item *it, int right, bool has_ended)
{
    struct reenactor *r = ctx;
    reenact_drafts_verified(&r->drafts, &r->now.is,
                            &(struct recorded_drafts){(int64_t)q->order, it->source, it->drafts.n, right, has_ended});
}

static void turned(void *ctx, int64_t now_ns, const struct plan *p)
{
    struct reenactor *r = ctx;
    (void)now_ns;
    r->turned = true;
    buf_clear(&r->came_out);
    if (p)
        record_plan(&r->came_out, p);
}

/* ---- requests */

bool reenact_known(struct reenactor *r, int64_t order)
{
    if (order >= 0 && (uint64_t)order < r->n_tags)
        return true;
    reenact_differ(r, "request %" PRId64 " of the recording was never admitted", order);
    return false;
}

static void play_arrival(struct reenactor *r, const struct recorded *x)
{
    struct request_spec *s = request_spec_new();
    int64_t base = r->d.start_ns;
    uint64_t order = engine_world(r->d.engine)->next_order;
    struct replay_request q = {.arrival_ns = x->arrival_ns > 0 ? x->arrival_ns : 0, .priority = x->priority};
    q.n_prompt = x->n_prompt;
    q.n_asked = x->max_tokens;
    s->tag = replay_note_arrival(&r->d, &q, x->tenant);
    snprintf(s->name, sizeof s->name, "%s", x->name);
    snprintf(s->tenant, sizeof s->tenant, "%s", x->tenant);
    s->leader = x->leader >= 0 && (uint64_t)x->leader < r->n_tags ? r->tags[x->leader] : 0;
    s->choice = x->choice;
    s->priority = x->priority;
    s->arrival_ns = base + x->arrival_ns;
    s->slo_ttft_ms = x->slo_ttft_ms;
    s->slo_tpot_ms = x->slo_tpot_ms;
    s->n_prompt = x->n_prompt;
    s->max_tokens = x->max_tokens;
    s->open_ended = x->open_ended;
    s->offline = x->offline;
    s->prompt = mem_new_array((size_t)x->n_prompt, sizeof *s->prompt);
    s->stop_ids = mem_new(sizeof *s->stop_ids);
    s->stop_ids[0] = STOP_ID;
    s->n_stop_ids = 1;
    s->sampling = (struct sampling){
        .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = x->logprobs ? 0 : -1};
    s->given_keys = mem_new_array((size_t)x->n_keys + 1, sizeof *s->given_keys);
    for (; s->n_given_keys < x->n_keys; s->n_given_keys++)
        s->given_keys[s->n_given_keys] = recorded_key(x->keys[s->n_given_keys]);
    uint64_t tag = s->tag;
    engine_take(r->d.engine, &(struct engine_message){.kind = IN_SUBMIT, .payload = s});
    bool admitted = engine_world(r->d.engine)->next_order != order;
    if (admitted != (x->order >= 0)) {
        reenact_differ(r,
                       x->order >= 0 ? "request %" PRId64 " was admitted, and is turned away now"
                                     : "a request was turned away (%" PRId64 "), and is admitted now",
                       x->order);
        return;
    }
    if (admitted) {
        r->tags = grown(r->tags, r->n_tags, &r->cap_tags, sizeof *r->tags);
        r->endings = grown(r->endings, r->n_tags, &r->cap_endings, sizeof *r->endings);
        r->tags[r->n_tags] = tag;
        r->endings[r->n_tags++] = (struct ending_seen){0};
    }
}

static void play_cancel(struct reenactor *r, const struct recorded *x)
{
    if (reenact_known(r, x->order))
        engine_take(r->d.engine,
                    &(struct engine_message){.kind = IN_CANCEL, .tag = r->tags[x->order], .code = (int)x->ending});
}

/* ---- what the operator did */

/* *found false: it is not here, which is a difference. */
static int find_policy(struct reenactor *r, const struct recorded *x, struct policy *p, bool *found, struct err *e)
{
    int rc = r->setup->find_policy(r->setup->ctx, x->name, x->sha256, x->text, p, e);
    *found = rc == 0;
    if (rc != E_NOTFOUND)
        return rc;
    struct buf words = {0};
    if (differ(r, &words))
        buf_puts(&words, e->text);
    r->out->difference = buf_take(&words);
    return 0;
}

static int play_policy(struct reenactor *r, const struct recorded *x, struct err *e)
{
    struct policy p;
    bool found;
    TRY(find_policy(r, x, &p, &found, e));
    if (found) {
        p.predicted = r->predicted;
        r->predicted = (struct prediction){0};
        engine_take(r->d.engine,
                    &(struct engine_message){.kind = IN_POLICY, .payload = memcpy(mem_new(sizeof p), &p, sizeof p)});
    }
    return 0;
}

static int play_canary(struct reenactor *r, const struct recorded *x, struct err *e)
{
    struct canary_order o = {.n_groups = x->n_groups, .for_ns = x->ns};
    bool found;
    memcpy(o.groups, x->groups, sizeof o.groups);
    TRY(find_policy(r, x, &o.policy, &found, e));
    if (found)
        engine_take(r->d.engine,
                    &(struct engine_message){.kind = IN_CANARY, .payload = memcpy(mem_new(sizeof o), &o, sizeof o)});
    return 0;
}

static void play_order(struct reenactor *r, const struct recorded *x)
{
    struct engine_message m = {0};
    switch (x->kind) {
    case 'b':
        m.kind = IN_ROLLBACK;
        break;
    case 'u':
        m.kind = IN_CANARY_END;
        break;
    case 'r':
        m.kind = IN_RESET_PREFIX_CACHE;
        break;
    case 'd':
        m.kind = IN_DRAIN;
        break;
    case 'x':
        m.kind = IN_STOP;
        break;
    case 'l':
        m.kind = IN_LIMITS;
        m.payload = memcpy(mem_new(sizeof x->limits), &x->limits, sizeof x->limits);
        break;
    default:
        m.kind = IN_PARAMS;
        m.payload = mem_strdup(x->text);
        m.n = strlen(x->text);
        break;
    }
    engine_take(r->d.engine, &m);
}

static void play_turn(struct reenactor *r, const struct recorded *x)
{
    const struct reenact_look *look = r->setup->look;
    r->turned = false;
    r->follows = x->kind == 'q' && look && look->wants && look->wants(look->ctx, r->out->n_decisions + 1, x->t_ns);
    buf_clear(&r->came_out);
    engine_turn(r->d.engine);
    replay_note_turn(&r->d);
    const char *came_out = r->turned && r->came_out.len ? r->came_out.data : NULL;
    if (x->kind == 'q' && !came_out)
        reenact_differ(r, "a decision was taken here; in the replay none is asked for%.0" PRId64, 0);
    else if (x->kind == 't' && came_out)
        reenact_differ(r, "no decision was taken here; in the replay one is%.0" PRId64, 0);
    else if (came_out)
        compare_plans(r, x->text, came_out);
    r->out->n_decisions += x->kind == 'q' && r->out->equal;
}

static void show(struct reenactor *r)
{
    const struct reenact_look *look = r->setup->look;
    if (!r->follows || !r->turned || !r->came_out.len || !look->show)
        return;
    struct reenact_decision d = {.number = r->out->n_decisions + !r->out->equal,
                                 .line = r->now.is.line,
                                 .t_ns = r->now.is.t_ns,
                                 .recorded = r->now.is.text,
                                 .came_out = r->came_out.data,
                                 .call = r->call.len ? r->call.data : NULL};
    look->show(look->ctx, r->d.engine, &d);
}

/* ---- endings */

static void compare_ending(struct reenactor *r, int64_t order)
{
    const struct ending_seen *s = &r->endings[order];
    if (s->recorded == END_NONE || s->replayed == END_NONE ||
        (s->recorded == s->replayed && s->n_recorded == s->n_replayed))
        return;
    reenact_differ(r, "request %" PRId64 " ended otherwise, or with another number of tokens", order);
}

static void ended(void *ctx, int64_t now_ns, const struct request *q, enum ending how)
{
    struct reenactor *r = ctx;
    (void)now_ns;
    if (q->order >= r->n_tags)
        return; /* refused by the policy at once: its line is not over yet */
    r->endings[q->order].replayed = how;
    r->endings[q->order].n_replayed = request_output(q);
    compare_ending(r, (int64_t)q->order);
}

static void play_ending(struct reenactor *r, const struct recorded *x)
{
    if (!reenact_known(r, x->order))
        return;
    r->endings[x->order].recorded = x->ending;
    r->endings[x->order].n_recorded = x->n_output;
    compare_ending(r, x->order);
}

/* ---- the loop */

static int play(struct reenactor *r, struct err *e)
{
    const struct recorded *x = &r->now.is;
    int64_t at = r->d.start_ns + x->t_ns;
    if (at > clock_now(&r->clock))
        clock_advance_to(&r->clock, at);
    r->out->end_ns = x->t_ns;
    switch (x->kind) {
    case 'a':
        play_arrival(r, x);
        break;
    case 'c':
        play_cancel(r, x);
        break;
    case 's':
        reenact_step(r, x);
        break;
    case 'm':
        reenact_move(r, x);
        break;
    case 'h':
        reenact_reshard(r, x);
        break;
    case 'w':
        reenact_replica(r, x);
        break;
    case 'o':
        r->predicted = x->predicted;
        break;
    case 'g':
        TRY(play_policy(r, x, e));
        break;
    case 'y':
        TRY(play_canary(r, x, e));
        break;
    case 't':
    case 'q':
        play_turn(r, x);
        break;
    case 'e':
        play_ending(r, x);
        return 0;
    case 'z':
        return 0;
    default:
        play_order(r, x);
        break;
    }
    replay_listen(&r->d);
    show(r);
    return 0;
}

/* Steps and moves under way are let go: the engine closes only when it is empty. */
static void let_go(struct reenactor *r)
{
    struct engine *engine = r->d.engine;
    struct engine_event ev;
    r->out->equal = false; /* what ends now was not recorded: nothing is compared any more */
    engine_take(engine, &(struct engine_message){.kind = IN_STOP});
    const struct partition *p = &engine_world(engine)->partition;
    for (int i = 0; i < p->n_groups; i++) {
        struct step *s = engine_take_step(engine, partition_group(p, i)->id);
        if (s)
            engine_take(engine, &(struct engine_message){.kind = IN_STEP_DONE, .payload = s});
    }
    while (queue_take(engine_outbox(engine), &ev))
        mem_free(ev.payload);
}

static int play_all(struct reenactor *r, struct err *e)
{
    replay_note_first(&r->d);
    while (r->has_next && r->out->equal && !r->follows && !replay_shall_stop(&r->d)) {
        TRY(advance(r, e));
        TRY(play(r, e));
    }
    return 0;
}

void reenact_engine(struct engine_setup *out, struct engine_play *play, const struct recording_head *h,
                    struct model *model)
{
    *play = (struct engine_play){.facts = &h->facts, .comms = h->comms};
    *out = (struct engine_setup){.ops = backend_sim(),
                                 .device = {.n_threads = 1},
                                 .model = model,
                                 .limits = h->facts.limits,
                                 .kv_dtype = DT_F16,
                                 .kv_bytes = 1,
                                 .block_size = h->block_size,
                                 .n_ranks = h->facts.n_ranks,
                                 .start = h->start,
                                 .comm_sets = h->shape.sets + h->facts.n_ranks,
                                 .n_comm_sets = h->shape.n_sets - h->facts.n_ranks,
                                 .ffn = h->facts.ffn,
                                 .sharded = h->facts.residency != NULL,
                                 .play = play,
                                 .quiet = true};
    snprintf(out->model_name, sizeof out->model_name, "%s", h->facts.model);
}

static void differ_of_drafts(void *ctx, const char *why, int64_t number)
{
    reenact_differ(ctx, why, number);
}

int reenact_run(struct reenactment *out, struct replay *what, const struct reenact_setup *s, struct err *e)
{
    struct reenactor *r = mem_new(sizeof *r);
    struct engine_setup engine = *s->replay->engine;
    struct replay_setup setup = *s->replay;
    *out = (struct reenactment){.equal = true};
    r->setup = s;
    r->out = out;
    r->witness = (struct witness){.ctx = r,
                                  .ended = ended,
                                  .verified = verified,
                                  .stepped = stepped,
                                  .turned = turned,
                                  .cut = cut,
                                  .judged = judged};
    r->drafts.n_calls = &r->n_calls;
    r->drafts.differ = differ_of_drafts;
    r->drafts.ctx = r;
    reenact_drafts_init(&r->drafts, recording_head(s->recording));
    engine.drafts = r->drafts.sources.n ? &r->drafts.sources : NULL;
    engine.witness = &r->witness;
    setup.engine = &engine;
    replay_begin(what);
    clock_init_virtual(&r->clock, recording_head(s->recording)->clock_ns);
    int rc = recording_check_whole(s->recording, e);
    if (!rc)
        rc = read_ahead(r, e); /* first: the policy's start may have been slow */
    if (rc && engine.policy.ops->destroy)
        engine.policy.ops->destroy(engine.policy.ctx);
    if (!rc)
        rc = replay_open(&r->d, what, &setup, &engine.policy, &r->clock, e);
    if (!rc) {
        rc = play_all(r, e);
        out->complete = recording_complete(s->recording);
        if (s->look && s->look->over)
            s->look->over(s->look->ctx, r->d.engine);
        replay_close_books(&r->d);
        bool equal = out->equal;
        let_go(r);
        out->equal = equal;
        engine_destroy(r->d.engine);
    }
    free_held(&r->now);
    free_held(&r->next);
    reenact_drafts_free(&r->drafts);
    mem_free(r->verdicts);
    mem_free(r->tags);
    mem_free(r->endings);
    buf_free(&r->came_out);
    buf_free(&r->call);
    mem_free(r);
    return rc;
}

void reenact_free(struct reenactment *r)
{
    mem_free(r->difference);
    memset(r, 0, sizeof *r);
}
