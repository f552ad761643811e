#include "engine/lab/simulate_recorded.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/recording/recording_steps.h"

static bool same_limits(const struct limits *a, const struct limits *b)
{
    return a->max_num_seqs == b->max_num_seqs && a->max_num_batched_tokens == b->max_num_batched_tokens &&
           a->max_num_queued_reqs == b->max_num_queued_reqs && a->max_num_queued_tokens == b->max_num_queued_tokens &&
           a->park_ns == b->park_ns && a->starvation_ns == b->starvation_ns && a->prefix_caching == b->prefix_caching;
}

int recorded_machine_open(struct recorded_machine *m, const struct recorded_ask *ask, struct engine_setup *out,
                          struct err *e)
{
    memset(m, 0, sizeof *m);
    m->path = ask->path;
    TRY(recording_open(&m->recording, ask->path, e));
    m->head = recording_head(m->recording);
    if (!ask->what_if)
        TRY(recording_check_whole(m->recording, e));
    int rc = model_open_described(&m->model, m->head->config, DT_BF16, e);
    if (rc)
        return err_prefix(e, rc, "%.100s:1: model", ask->path);
    TRY(recording_digest(&m->digest, ask->path, e));
    TRY(recording_fit_steps(&m->fit, ask->path, model_config(m->model), e));
    reenact_engine(&m->exact_setup, &m->exact, m->head, m->model);
    reenact_engine(&m->modelled_setup, &m->modelled, m->head, m->model);
    *out = m->exact_setup;
    m->modelled.ffn = (struct ffn_cost){.wait_ns = (int64_t)m->digest.fetches.wait_ns,
                                        .fetch_ns = (int64_t)m->digest.fetches.fetch_ns};
    ask->set_limits(ask->ctx, &m->modelled_setup.limits);
    m->may_compare = !ask->what_if && !ask->part && same_limits(&m->modelled_setup.limits, &m->exact_setup.limits);
    m->compare_any = ask->compare;
    m->strict = ask->strict;
    if (ask->compare && !m->may_compare)
        return err_set(e, E_INPUT,
                       "--compare: nothing can be compared with --what-if, with other limits than the recorded ones, "
                       "with --draft-acceptance, or with a part of the recording");
    snprintf(m->words, sizeof m->words, "as recorded: %.60s on %.60s", m->head->facts.model, m->head->facts.device);
    return 0;
}

const char *recorded_policy(const struct recorded_machine *m)
{
    return strcmp(m->head->sha256, "native") ? m->head->policy : "native";
}

void recorded_machine_close(struct recorded_machine *m)
{
    recording_close(m->recording);
    recording_digest_free(&m->digest);
    step_fit_free(m->fit);
    model_close(m->model);
    memset(m, 0, sizeof *m);
}

/* The same values under the same names, in whatever words. */
static bool same_params(const char *recorded, const struct policy *p)
{
    static const struct json_style style = {.sort_keys = true};
    struct buf mine = {0}, a = {0}, b = {0};
    record_params(&mine, p);
    struct json *theirs = json_parse(recorded, strlen(recorded), NULL, NULL),
                *ours = json_parse(mine.data, mine.len, NULL, NULL);
    json_write(&a, theirs, &style);
    json_write(&b, ours, &style);
    bool same = theirs && ours && buf_equals(&a, b.data);
    json_free(theirs);
    json_free(ours);
    buf_free(&mine);
    buf_free(&a);
    buf_free(&b);
    return same;
}

int recorded_choose(const struct recorded_machine *m, struct policy *p, bool has_params, struct recorded_result *out,
                    struct err *e)
{
    bool same = !strcmp(p->sha256, m->head->sha256);
    if (same && !has_params && p->ops->params_set)
        TRY(p->ops->params_set(p->ctx, m->head->params, strlen(m->head->params), e));
    bool params = same && same_params(m->head->params, p);
    out->compared = (params || m->compare_any) && m->may_compare;
    out->why = params ? "asked for"
               : same ? "other params than the live one had"
               : strcmp(p->name, m->head->policy) == 0
                   ? "its bytes are not those of the live one, which has the same name"
                   : "another policy than the live one";
    return 0;
}

void recorded_what_if(const struct recorded_machine *m, struct recorded_result *out, struct engine_play *play,
                      uint64_t seed, double from_s)
{
    *play = m->modelled;
    what_if_open(
        &out->what_if,
        &(struct what_if_setup){
            .fit = m->fit, .digest = &m->digest, .head = m->head, .seed = seed, .from_ns = (int64_t)(from_s * 1e9)});
    what_if_play(&out->what_if, play);
}

int recorded_check_guesses(const struct recorded_machine *m, const struct recorded_result *r, struct err *e)
{
    const struct what_if_guess *g = m->strict && !r->compared ? what_if_unseen(&r->what_if) : NULL;
    struct buf words = {0};
    if (!g)
        return 0;
    what_if_guess_words(&r->what_if, g, &words);
    err_set(e, E_INPUT, "--strict: it would run %.200s", words.data);
    buf_free(&words);
    return E_INPUT;
}

/* ---- results */

static void model_words(const struct recorded_machine *m, struct buf *out)
{
    const struct fit_quality *q = step_fit_quality(m->fit);
    buf_printf(out,
               "the model fitted to the %" PRIu64
               " recorded steps, whose error on one of them is %.1f%% (the server's own, as it learnt: %.1f%%)",
               q->n_steps, 100 * q->error, 100 * m->digest.live_error);
    if (q->n_left_out)
        buf_printf(out, ", %" PRIu64 " left out", q->n_left_out);
}

static double mean_of(double sum, uint64_t n)
{
    return n ? sum / (double)n : 0;
}

void recorded_words(const struct recorded_machine *m, const struct recorded_result *r, const char *label,
                    struct buf *out)
{
    const struct recording_digest *d = &m->digest;
    const struct fit_quality *q = step_fit_quality(m->fit);
    if (!r->compared) {
        const struct what_if *w = &r->what_if;
        buf_printf(out, "%s: %s: step times from ", label, r->why);
        model_words(m, out);
        buf_printf(out,
                   "; a step took %.3f ms on the average when recorded and %.3f ms went by around it, %.3f ms and %.3f "
                   "ms here\n",
                   d->mean_ns * 1e-6, q->lag_ns * 1e-6, mean_of(w->ns, w->n_steps) * 1e-6,
                   mean_of(w->lag_ns, w->n_steps) * 1e-6);
        what_if_words(w, label, out);
        if (d->n_limits_set)
            buf_printf(out,
                       "%s: an operator set limits %" PRIu64
                       " times while this was recorded; here they stay as they were at its start\n",
                       label, d->n_limits_set);
        return;
    }
    if (r->exact.equal)
        buf_printf(out, "%s: decisions: %" PRIu64 ", all equal to the recording%s\n", label, r->exact.n_decisions,
                   r->exact.complete ? "" : " (which was cut off; up to its last whole line)");
    else
        buf_printf(out, "%s: decisions: %" PRIu64 " equal to the recording, then they differ\n%s\n", label,
                   r->exact.n_decisions, r->exact.difference ? r->exact.difference : "");
    buf_printf(out, "%s: a step took %.3f ms on the average, and %.3f ms by ", label, d->mean_ns * 1e-6,
               q->modelled_ns * 1e-6);
    model_words(m, out);
    buf_putc(out, '\n');
}

static void json_ms(struct buf *out, const char *name, double ns)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_double(out, ns * 1e-6);
}

void recorded_json(const struct recorded_machine *m, const struct recorded_result *r, struct buf *out)
{
    const struct recording_digest *d = &m->digest;
    const struct fit_quality *q = step_fit_quality(m->fit);
    buf_printf(out, "{\"compared\":%s", r->compared ? "true" : "false");
    if (r->compared) {
        buf_printf(out, ",\"decisions\":%" PRIu64 ",\"equal\":%s,\"complete\":%s,\"difference\":", r->exact.n_decisions,
                   r->exact.equal ? "true" : "false", r->exact.complete ? "true" : "false");
        const char *why = r->exact.difference;
        if (why)
            buf_put_json(out, why, strlen(why));
        else
            buf_puts(out, "null");
    } else {
        const struct what_if *w = &r->what_if;
        json_ms(out, "mean_step_ms", mean_of(w->ns, w->n_steps));
        json_ms(out, "mean_lag_ms", mean_of(w->lag_ns, w->n_steps));
        buf_puts(out, ",\"guesses\":");
        what_if_json(w, out);
    }
    buf_printf(out, ",\"recorded\":{\"decisions\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"complete\":%s", d->n_decisions,
               d->n_steps, d->complete ? "true" : "false");
    json_ms(out, "mean_step_ms", d->mean_ns);
    json_ms(out, "modelled_step_ms", q->modelled_ns);
    json_ms(out, "mean_lag_ms", q->lag_ns);
    buf_puts(out, ",\"model_error\":");
    json_put_double(out, q->error);
    buf_puts(out, ",\"live_error\":");
    json_put_double(out, d->live_error);
    buf_puts(out, "}}");
}
