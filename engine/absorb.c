#include "engine/engine_state.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/exec/guided.h"
#include "models/guide/guide.h"

static void observe_end(struct engine *engine, const struct request *r, int64_t now)
{
    struct metrics *m = &engine->metrics;
    const struct request_spec *s = r->spec;
    int output = request_output(r);
    struct tenant_counts *t = metrics_tenant(m, s->tenant);
    t->requests++;
    t->prompt_tokens += (uint64_t)s->n_prompt;
    t->generation_tokens += (uint64_t)output;
    metrics_observe(m, H_E2E, (double)(now - s->arrival_ns) * 1e-9);
    metrics_observe(m, H_PROMPT_TOKENS, s->n_prompt);
    metrics_observe(m, H_GENERATION_TOKENS, output);
    metrics_observe(m, H_MAX_TOKENS, s->max_tokens);
    if (!s->leader)
        metrics_observe(m, H_N, s->n_siblings ? s->n_siblings : 1);
    metrics_observe(m, H_PREEMPTIONS, r->n_preempted);
    if (r->first_scheduled_ns) {
        double waited = (double)(r->first_scheduled_ns - s->arrival_ns) * 1e-9;
        metrics_observe(m, H_QUEUE, waited);
        metrics_observe_tenant(t, TENANT_QUEUE, waited);
    }
    if (!r->first_token_ns)
        return;
    metrics_observe(m, H_PREFILL, (double)(r->first_token_ns - r->first_scheduled_ns) * 1e-9);
    metrics_observe(m, H_DECODE, (double)(r->last_token_ns - r->first_token_ns) * 1e-9);
    metrics_observe(m, H_INFERENCE, (double)(r->last_token_ns - r->first_scheduled_ns) * 1e-9);
    if (output > 1)
        metrics_observe(m, H_TPOT, (double)(r->last_token_ns - r->first_token_ns) * 1e-9 / (output - 1));
}

void engine_end_request(struct engine *engine, struct request *r, const struct request_end *f)
{
    int64_t now = engine->now_ns;
    struct view v;
    if (r->parent) {
        engine->changed = true;
        world_end(&engine->world, r, f->how); /* nobody has heard of it */
        return;
    }
    if (engine->setup.witness && engine->setup.witness->ended)
        engine->setup.witness->ended(engine->setup.witness->ctx, now, r, f->how);
    view_init_of(&v, &engine->world, r->canary ? SIDE_CANARY : world_live_side(&engine->world), now);
    live_finish(canary_of(&engine->canary, &engine->live, r), r, f->how, &v);
    if (!r->canary)
        shadow_finish(&engine->shadow, r, f->how, &v);
    canary_note_end(&engine->canary, r, f->how);
    observe_end(engine, r, now);
    guards_ended(engine->guards, r);
    struct engine_event ev = {.kind = EV_END,
                              .code = f->told ? f->told : f->how,
                              .tag = r->spec->tag,
                              .http_status = f->http_status,
                              .retry_after_s = f->retry_after_s,
                              .n_prompt = r->spec->n_prompt,
                              .n_output = request_output(r),
                              .n_cached = r->n_prefix_first};
    if (f->why) {
        ev.payload = mem_strdup(f->why);
        ev.n = strlen(f->why);
    }
    engine_tell_rest(engine, r);
    story_end(&engine->stories, r, f->how, now);
    world_end(&engine->world, r, f->how);
    engine_emit(engine, &ev);
}

void engine_refuse(struct engine *engine, struct request *r, int http_status, int retry_after_s, const char *why)
{
    engine_end_request(engine, r,
                       &(struct request_end){.how = END_REFUSED,
                                             .http_status = http_status,
                                             .retry_after_s = retry_after_s,
                                             .why = *why ? why : "refused by the policy"});
}

static void fill_logprobs(struct token_logprobs *out, const struct sample_result *res)
{
    out->logprob = res->logprob;
    out->rank = res->rank;
    out->n_top = res->n_top;
    memcpy(out->top_ids, res->top_ids, sizeof out->top_ids);
    memcpy(out->top_logprobs, res->top_logprobs, sizeof out->top_logprobs);
}

static void take_prompt_logprobs(struct request *r, const struct step *s, const struct step_item *it)
{
    if (!r->prompt_lp) {
        size_t n = (size_t)r->spec->n_prompt;
        r->prompt_lp = mem_new(sizeof *r->prompt_lp + n * sizeof r->prompt_lp->items[0]);
        r->prompt_lp->n = r->spec->n_prompt;
    }
    for (int i = 0; i < it->n_given; i++)
        fill_logprobs(&r->prompt_lp->items[it->given_at + i], &s->results[it->first_result + i]);
}

/* The prompt is computed: its logprobs go out, once. */
static void send_prompt_logprobs(struct engine *engine, struct request *r)
{
    if (r->spec->sampling.n_prompt_logprobs < 0 || r->prompt_lp_sent || r->n_computed < r->spec->n_prompt)
        return;
    if (!r->prompt_lp) { /* a prompt of one token has nothing to score */
        r->prompt_lp = mem_new(sizeof *r->prompt_lp + sizeof r->prompt_lp->items[0]);
        r->prompt_lp->n = r->spec->n_prompt;
    }
    struct engine_event ev = {.kind = EV_PROMPT_LOGPROBS, .tag = r->spec->tag, .payload = r->prompt_lp};
    r->prompt_lp = NULL;
    r->prompt_lp_sent = true;
    engine_emit(engine, &ev);
}

bool engine_is_stop_id(const struct request *r, int32_t token)
{
    for (int i = 0; i < r->spec->n_stop_ids; i++)
        if (r->spec->stop_ids[i] == token)
            return true;
    return false;
}

static void observe_first_token(struct metrics *m, const struct request_spec *s, int64_t now)
{
    double seconds = (double)(now - s->arrival_ns) * 1e-9;
    metrics_observe(m, H_TTFT, seconds);
    metrics_observe_tenant(metrics_tenant(m, s->tenant), TENANT_TTFT, seconds);
}

/* One new token. Returns the ending it brings, or END_NONE. */
static enum ending take_token(struct engine *engine, struct request *r, const struct sample_result *res, int64_t now)
{
    if (r->parent)
        return engine_take_probe_token(engine, r, res->token);
    request_append(r, res->token);
    if (r->probes && engine->world.thinking)
        probe_hear(engine->world.thinking, r, res->token);
    metrics_add(&engine->metrics, C_GENERATION_TOKENS, 1);
    if (!r->first_token_ns) {
        r->first_token_ns = now;
        guards_first_token(engine->guards, r, now);
        probation_note_first_token(&engine->live.probation, r);
        observe_first_token(&engine->metrics, r->spec, now);
        story_first_token(&engine->stories, r, now);
    } else {
        if (r->switched_by)
            partition_note_token(&engine->world.partition, r, now - r->last_token_ns);
        metrics_observe(&engine->metrics, H_ITL, (double)(now - r->last_token_ns) * 1e-9);
    }
    r->last_token_ns = now;
    bool scored = r->spec->sampling.n_logprobs >= 0;
    r->ends_with_stop = engine_is_stop_id(r, res->token);
    if (engine->setup.witness && engine->setup.witness->sampled)
        engine->setup.witness->sampled(engine->setup.witness->ctx, r, r->ends_with_stop);
    struct token_logprobs lp;
    if (scored)
        fill_logprobs(&lp, res);
    engine_tell_token(engine, r, r->ends_with_stop, scored ? &lp : NULL);
    if (r->ends_with_stop)
        return END_STOP;
    if (request_output(r) >= r->spec->max_tokens || r->n_tokens >= engine->world.limits.max_model_len)
        return END_LENGTH;
    r->at_a_loss = r->spec->grammar && !guided_goes_on(engine->world.guides, r);
    return END_NONE;
}

/* The token that the step sampled, and those behind its draft tokens as far as these were right. A draft token that was
 * right has its KV computed, in its place. */
static enum ending take_tokens(struct engine *engine, struct request *r, const struct step *s,
                               const struct step_item *it, int64_t now)
{
    const struct sample_result *res = &s->results[it->first_result + it->n_given];
    int8_t path[MOST_DRAFTS];
    int right = 0, most = step_path(s, it, path), at = -1, before = r->n_tokens;
    enum ending how = take_token(engine, r, res, now);
    while (how == END_NONE && right < most) {
        at = path[right++];
        world_commit(&engine->world, r, r->n_computed + 1);
        how = take_token(engine, r, &res[at + 1], now);
    }
    if (it->drafts.n) {
        const struct witness *w = engine->setup.witness;
        draft_count(r, it->source, it->drafts.n, right, how == END_NONE && drafts_go_on(&it->drafts, at));
        if (w && w->verified)
            w->verified(w->ctx, r, it, right, how != END_NONE);
        for (int i = 0; i < right; i++)
            engine->metrics.draft_accepted_at[i]++;
        metrics_add(&engine->metrics, C_DRAFTS, 1);
        metrics_add(&engine->metrics, C_DRAFT_TOKENS, (uint64_t)it->drafts.n);
        metrics_add(&engine->metrics, C_DRAFT_ACCEPTED, (uint64_t)right);
    }
    if (it->ask >= 0 && how == END_NONE) {
        const struct draft_made *m = step_made(s, it);
        ASSERT(r->n_tokens == before + 1 + m->right);
        draft_take_made(engine->world.drafts, r, m);
    }
    if (how == END_NONE)
        draft_said(engine->world.drafts, r);
    return how;
}

static void absorb_item(struct engine *engine, const struct step *s, const struct step_item *it, int64_t now)
{
    struct request *r = request_find(&engine->world.requests, it->id);
    ASSERT(r && r->busy);
    r->busy = s->next != NULL;
    story_step_over(&engine->stories, r, it->n_tokens, r->busy, now);
    if (!r->lost && !(r->finishing && s->prev)) /* of a step behind the one in which it ended nothing counts */
        world_commit(&engine->world, r, r->n_computed + it->n_tokens);
    int furthest = r->n_furthest;
    world_note_progress(&engine->world, r, now);
    guards_progress(engine->guards, r, furthest);
    if (r->busy && (r->finishing || r->lost))
        return;
    if (r->finishing) {
        engine_end_request(engine, r, &(struct request_end){.how = r->finish_as, .retry_after_s = -1});
        return;
    }
    if (r->lost) { /* its KV was copied from a rank that failed meanwhile: once more from the beginning */
        r->lost = false;
        world_preempt(&engine->world, r, false, now);
        return;
    }
    if (it->n_given)
        take_prompt_logprobs(r, s, it);
    send_prompt_logprobs(engine, r);
    enum ending how = END_NONE;
    if (it->samples)
        how = take_tokens(engine, r, s, it, now);
    else if (r->spec->max_tokens == 0 && r->n_computed >= r->spec->n_prompt)
        how = END_LENGTH;
    if (how == END_NONE)
        return;
    engine->changed = true;
    r->finishing = r->busy; /* it takes part in the step behind this one: it ends with that */
    r->finish_as = how;
    if (!r->busy)
        engine_end_request(engine, r, &(struct request_end){.how = how, .retry_after_s = -1});
}

/* Of the step's requests those end of which nobody knows what may follow. The client has asked for too much: to the
 * policy, its judges and the witness that is as if it had left, behind the step. */
static void end_the_lost(struct engine *engine, const struct step *s)
{
    const struct witness *w = engine->setup.witness;
    for (int i = 0; i < s->n_items; i++) {
        struct request *r = request_find(&engine->world.requests, s->items[i].id);
        if (!r || !r->at_a_loss)
            continue;
        if (w && w->cancelled)
            w->cancelled(w->ctx, engine->now_ns, r, END_ABORT);
        engine_end_request(
            engine, r,
            &(struct request_end){
                .how = END_ABORT, .told = END_REFUSED, .http_status = 400, .retry_after_s = -1, .why = GUIDE_TOO_MUCH});
    }
}

static bool is_member(const struct step *s, int rank)
{
    for (int i = 0; i < s->n_ranks; i++)
        if (s->ranks[i] == rank)
            return true;
    return false;
}

/* Nothing of a failed step counts: its requests begin again on the ranks that are left; or, when only a rank failed
 * whose FFN layers they needed, go on from where they were, once those layers lie elsewhere. */
static void absorb_failed(struct engine *engine, const struct step *s, const struct step_part *failed, int rank)
{
    for (int i = 0; i < s->n_items; i++) {
        struct request *r = request_find(&engine->world.requests, s->items[i].id);
        ASSERT(r && r->busy);
        bool lost = r->lost;
        r->busy = r->lost = false;
        story_step_over(&engine->stories, r, s->items[i].n_tokens, false, engine->now_ns);
        if (r->finishing)
            engine_end_request(engine, r, &(struct request_end){.how = r->finish_as, .retry_after_s = -1});
        else if (lost)
            world_preempt(&engine->world, r, false, engine->now_ns);
    }
    engine_reset_comms(engine, s);
    if (is_member(s, rank))
        engine_lose_rank(engine, rank, failed->err.text);
    else
        engine->failing_ranks |= 1ull << rank; /* engine_mend drops it when it is in no step any more */
}

/* A draft model runs on ranks by themselves. */
static void learn_drafting(struct world *w, const struct step *s)
{
    const struct drafter_time *t = step_drafting(s);
    const struct drafter_pass *passes[] = {&t->first, &t->last};
    metrics_add(w->metrics, C_DRAFT_MODEL_NS, (uint64_t)t->ns);
    for (int i = 0; i < 2; i++)
        if (passes[i]->size.rows)
            estimator_learn(&w->draft_estimate, (struct layout){1, 1, 1}, passes[i]->size, (double)passes[i]->ns);
}

/* What the step teaches about time: the estimator, and what a prompt token costs. Returns what had been predicted. */
static double learn(struct engine *engine, const struct step *s)
{
    struct world *w = &engine->world;
    double ns = (double)step_ns(s);
    double predicted = estimator_learn(&w->estimate, s->layout, s->size, ns);
    learn_drafting(w, s);
    if (s->size.rows >= 32)
        w->cost.prefill_ns_per_token += 0.1 * (ns / s->size.rows - w->cost.prefill_ns_per_token);
    return predicted;
}

/* Where FFN weights are pooled: what crossed between ranks. A step that fetches all it lacks says what fetching costs.
 */
static void count_ffn(struct engine *engine, const struct step *s)
{
    struct ffn_cost c = step_ffn(s);
    if (!engine->world.ffn)
        return;
    metrics_add(&engine->metrics, C_WAS_BYTES, c.was_bytes);
    metrics_add(&engine->metrics, C_WAS_WAIT_NS, (uint64_t)c.wait_ns);
    metrics_add(&engine->metrics, C_CAS_BYTES, c.cas_bytes);
    metrics_add(&engine->metrics, C_CAS_ROWS, c.cas_rows);
    if (c.fetch_ns && !s->size.cas_layers)
        ffn_measure(&engine->world.ffn_measured, (double)c.fetch_ns, (double)c.wait_ns);
}

/* Books of a step that has ended. */
static void count_step(struct engine *engine, struct group *grp, const struct step *s)
{
    grp->idle = s->next == NULL;
    group_note_step(grp, s->n_rows, engine->now_ns - s->posted_ns);
    metrics_add(&engine->metrics, C_STEPS, 1);
    metrics_observe(&engine->metrics, H_ITERATION_TOKENS, s->n_rows);
    metrics_observe(&engine->metrics, H_STEP_SECONDS, (double)grp->last_step_ns * 1e-9);
    pulse_note(&engine->pulse, grp->id, grp->layout, s->n_rows, grp->last_step_ns);
    if (s->next)
        s->next->posted_ns = engine->now_ns; /* for it the time begins now */
}

/* A step that others are behind stays until they have been absorbed. */
static void drop(struct step *s)
{
    step_free(s->prev);
    s->prev = NULL;
    if (!s->next)
        step_free(s);
}

void engine_absorb(struct engine *engine, struct step *s)
{
    struct group *grp = partition_find_slot(&engine->world.partition, s->group);
    int rank;
    double predicted = 0;
    const struct step_part *failed = step_failure(s, &rank);
    ASSERT(grp && !grp->idle);
    engine->n_fruitless = 0;
    engine_look_at_outbox(engine);
    count_step(engine, grp, s);
    if (failed && !s->next) { /* the one behind a failed step fails, too: then */
        absorb_failed(engine, s, failed, rank);
    } else if (!failed) {
        predicted = learn(engine, s);
        count_ffn(engine, s);
        for (int i = 0; i < s->n_items; i++)
            absorb_item(engine, s, &s->items[i], engine->now_ns);
    }
    engine->metrics.counters[C_KV_EVICTED] = engine->world.kv.n_evicted;
    if (!failed)
        decisions_measured(&engine->decisions, s->group, (int64_t)predicted, step_ns(s));
    if (s->next && !failed)
        engine_follow(engine, s->next);
    else
        engine->changed = true;
    if (engine->setup.witness && engine->setup.witness->stepped)
        engine->setup.witness->stepped(engine->setup.witness->ctx, engine->now_ns, s, predicted, failed ? rank : -1);
    end_the_lost(engine, s);
    drop(s);
}
