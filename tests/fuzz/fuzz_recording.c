/* Any bytes as a recording: what is accepted must be in range and in order of time; steps can be fitted, with their
 * total; and what describes a small node is played, under the native policy, or one that drafts: it may differ, or be
 * refused, and never breaks the engine. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/lab/recording/record_plan.h"
#include "engine/lab/recording/recording_steps.h"
#include "engine/lab/reenact.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_NODE_TOKENS = 1 << 16, MAX_PLAYED_LINES = 400 };

static FILE *stream(const uint8_t *data, size_t size)
{
    FILE *f = size ? fmemopen((void *)(uintptr_t)data, size, "r") : fopen("/dev/null", "re");
    ASSERT(f);
    return f;
}

static void check_line(const struct recorded *x, int64_t *last_ns)
{
    struct buf words = {0};
    if (x->kind != 'v' && x->kind != 'p') {
        ASSERT(x->t_ns >= *last_ns);
        *last_ns = x->t_ns;
    }
    if (x->kind == 'a')
        ASSERT(x->n_prompt >= 1 && x->max_tokens >= 0 && x->n_keys <= x->n_prompt / KV_UNIT &&
               memchr(x->name, 0, sizeof x->name));
    if (x->kind == 's')
        ASSERT(x->layout.sp >= 1 && x->layout.tp >= 1 && x->rows >= 1 && x->ns >= 0);
    if (x->kind == 'p')
        ASSERT(x->n_guessed >= 0 && x->n_guessed <= x->asked && x->asked <= MOST_DRAFTS && x->source < MOST_SOURCES);
    for (int i = 0; i < x->n_drafts; i++)
        ASSERT(x->drafts[i].right >= 0 && x->drafts[i].right <= x->drafts[i].n && x->drafts[i].n <= MOST_DRAFTS &&
               x->drafts[i].source < MOST_SOURCES);
    if (x->kind == 'f')
        ASSERT(x->rank >= 0 && x->rank < MAX_RANKS && x->rows >= 1 && x->ns >= 0 && x->layers &&
               x->layers[0].end <= x->ns + 1 && x->layers[0].fetch_begin <= x->layers[0].fetch_end);
    if (x->kind == 'q')
        record_plan_words(&words, x->text);
    buf_free(&words);
}

/* Returns the number of lines; less than 0: it is malformed. */
static int read_all(struct recording *r)
{
    struct recorded x;
    struct err e = {0};
    int64_t last_ns = 0;
    bool end = false;
    int rc, n = 0;
    while (!(rc = recording_next(r, &x, &end, &e)) && !end) {
        check_line(&x, &last_ns);
        n++;
    }
    ASSERT(!rc || (rc == E_INPUT && e.text[0]));
    return rc ? -1 : n;
}

static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    (void)ctx, (void)sha256, (void)params;
    if (strcmp(name, "fcfs") != 0)
        return err_set(e, E_NOTFOUND, "no such policy");
    policy_fcfs(out);
    return 0;
}

/* Where there are sources of draft tokens: four for everybody. */
static enum verdict draft(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct draft_guess g;
    (void)ctx, (void)e;
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        for (int k = 0; k < b->n_items; k++)
            plan_draft(p, b->items[k].request->id, &(struct draft_wish){4, -1, false, 0}, &g);
        plan_prefill(b, NULL, 0, 512);
        if (b->n_tokens)
            plan_forward(b, (struct layout){b->group->n_ranks, 1, 1});
    }
    return VERDICT_OK;
}

static void play(struct recording *r)
{
    static const struct policy_ops drafting = {.step = draft};
    const struct recording_head *h = recording_head(r);
    struct err e = {0};
    struct model *model = NULL;
    struct engine_setup engine;
    struct engine_play how;
    struct reenactment exact;
    struct replay what;
    if (model_open_described(&model, h->config, DT_BF16, &e))
        return;
    reenact_engine(&engine, &how, h, model);
    if (h->n_sources)
        engine.policy = (struct policy){.name = "draft", .ops = &drafting};
    else
        policy_fcfs(&engine.policy);
    struct replay_setup setup = {.engine = &engine, .vocab = 100};
    struct reenact_setup again = {.replay = &setup, .recording = r, .find_policy = find_policy};
    int rc = reenact_run(&exact, &what, &again, &e);
    ASSERT(rc ? e.text[0] != 0 : exact.equal == !exact.difference);
    reenact_free(&exact);
    replay_free(&what);
    model_close(model);
}

static bool is_small(const struct recording_head *h)
{
    int64_t most = 0;
    for (int n = 1; n <= h->facts.n_ranks; n++)
        most = h->shape.tokens_per_block[n] > most ? h->shape.tokens_per_block[n] : most;
    return h->facts.n_ranks <= 8 && most * h->facts.kv_blocks <= MAX_NODE_TOKENS;
}

static void add(void *ctx, const struct fit_step *s)
{
    ASSERT(s->rows >= 1 && s->logits >= 0 && s->beside >= 0 && s->beside < MAX_RANKS && s->ns >= 1 && s->lag_ns >= -1);
    step_fit_add(ctx, s);
}

static void fit(struct recording *r)
{
    struct err e = {0};
    struct step_fit *f = step_fit_new(0.2);
    recording_each_step(r, add, f, &e);
    step_fit_end(f);
    const struct fit_quality *q = step_fit_quality(f);
    ASSERT(q->modelled_ns >= q->measured_ns * (1 - 1e-6) && q->modelled_ns <= q->measured_ns * (1 + 1e-6));
    step_fit_free(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct recording *r = NULL;
    struct err e = {0};
    int rc = recording_open_stream(&r, stream(data, size), "fuzz", &e);
    if (rc) {
        ASSERT(rc == E_INPUT && e.text[0]);
        return 0;
    }
    bool small = is_small(recording_head(r));
    int n = read_all(r);
    recording_close(r);
    if (recording_open_stream(&r, stream(data, size), "fuzz", &e))
        return 0;
    fit(r);
    recording_close(r);
    if (!small || n > MAX_PLAYED_LINES || recording_open_stream(&r, stream(data, size), "fuzz", &e))
        return 0;
    play(r);
    recording_close(r);
    return 0;
}
