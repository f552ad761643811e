/* `moonshift simulate`: which machine, which traffic, which policies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/base/rng.h"
#include "engine/cli/machine.h"
#include "engine/cli/model_files.h"
#include "engine/command/app.h"
#include "engine/lab/recording/recording.h"
#include "engine/lab/search/sample.h"
#include "engine/lab/simulate.h"
#include "engine/serve/whatif/child.h"

static int simulated_policy(void *ctx, const char *asked, const struct strings *params, bool again, struct policy *out,
                            struct err *e)
{
    struct app *a = ctx;
    a->lua.again = again;
    return app_load_policy(a, asked, params, out, e);
}

/* ---- samples: what one of them draws, and all of them */

/* The other description of this machine: beside it where it was given as a file, else where descriptions are. */
static int open_twin(const struct app *a, const char *model, struct sim_machine **out, struct err *e)
{
    const char *name = sim_machine_twin(a->machine), *slash = strrchr(a->opts.hardware, '/');
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%s.json", slash ? (int)(slash - a->opts.hardware) : 0, a->opts.hardware, name);
    if (!slash || access(path, R_OK) != 0)
        TRY(places_description(name, "models/hardware", path, e));
    TRY(sim_machine_open(out, path, model, e));
    return sim_machine_check_twin(a->machine, *out, e);
}

/* Every second sample is on the twin. Errors of kernels are drawn by what the seed is then. */
static int draw_machine(struct app *a, const char *model, struct err *e)
{
    if (!a->opts.sample)
        return 0;
    if (sim_machine_twin(a->machine) && a->opts.sample % 2 == 0) {
        struct sim_machine *twin = NULL;
        int rc = open_twin(a, model, &twin, e);
        if (rc) {
            sim_machine_close(twin);
            return rc;
        }
        sim_machine_close(a->machine);
        a->machine = twin;
    }
    sim_machine_draw(a->machine, a->opts.seed);
    return 0;
}

/* Says what is drawn, and finds out what is wrong with the twin before anything runs. */
static int describe_samples(const struct app *a, struct buf *out, struct err *e)
{
    struct sim_machine *twin = NULL;
    int rc = 0;
    buf_printf(out, "%lld of each policy: ", (long long)a->opts.samples);
    if (a->machine)
        sim_machine_doubts(a->machine, out);
    else
        buf_puts(out, "no band of kernels, as a step costs what was given");
    if (a->machine && sim_machine_twin(a->machine)) {
        rc = open_twin(a, sim_machine_config(a->machine), &twin, e);
        buf_puts(out, "; every second one on its twin, ");
        if (!rc)
            sim_machine_doubts(twin, out);
        sim_machine_close(twin);
    }
    buf_puts(out, generator_named(a->opts.trace) ? "; other traffic of the generator" : "; the same trace");
    return rc;
}

static int run_samples(void *ctx, struct bands *out, struct err *e)
{
    static const char *const mine[] = {"samples", "jobs", "json", "plots", "request-log", "config", NULL};
    const struct app *a = ctx;
    struct sample_ask ask = {
        .n_samples = (int)a->opts.samples, .n_policies = a->opts.policies.n, .jobs = (int)a->opts.jobs};
    opts_args(&a->opts, CMD_SIMULATE, mine, &ask.args);
    int rc = sample_run(out, &ask, e);
    for (int i = 0; i < ask.args.n; i++)
        mem_free(ask.args.items[i]);
    mem_free(ask.args.items);
    if (!rc)
        rc = describe_samples(a, &out->words, e);
    out->twin = a->machine ? sim_machine_twin(a->machine) : NULL;
    out->goodput = a->opts.slo_ttft_ms > 0 || a->opts.slo_tpot_ms > 0;
    return rc;
}

/* ---- the machine */

/* The machine and the model that are simulated. words: what they are. */
static int open_machine(struct app *a, char words[160], struct err *e)
{
    const struct opts *o = &a->opts;
    enum dtype type;
    TRY(opts_matrix_type(o->dummy_dtype, &type, e));
    if (!o->hardware) {
        snprintf(words, 160, "a step costs %.9g us and %.9g us a token", o->sim_step_us, o->sim_row_us);
        return model_open_dummy(&a->model, o->hf_config, type, o->seed, e);
    }
    char hardware[PATH_MAX], model[PATH_MAX];
    TRY(places_description(o->hardware, "models/hardware", hardware, e));
    TRY(places_description(o->model, "models/catalog", model, e));
    TRY(sim_machine_open(&a->machine, hardware, model, e));
    TRY(draw_machine(a, model, e));
    sim_machine_scale_links(a->machine, o->link_scale);
    TRY(model_open_dummy(&a->model, sim_machine_config(a->machine), DT_BF16, o->seed, e));
    snprintf(words, 160, "%.50s, %.50s%s%s", o->hardware, o->model, o->lockstep ? ", groups in lockstep" : "",
             strcmp(o->weights, "pooled") ? "" : ", FFN weights pooled");
    return 0;
}

/* Nothing said of ranks: all that the machine has. */
static int choose_simulated_ranks(const struct app *a, struct engine_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    int n = a->machine ? sim_machine_ranks(a->machine) : s->n_ranks;
    if (!o->ranks && !o->sp && !o->tp && !o->pp && !o->dp) {
        s->n_ranks = n;
        s->block_size = o->block_size ? (int)o->block_size : n > 1 ? 32 : 16;
    }
    return s->n_ranks > n ? err_set(e, E_INPUT, "%d ranks are asked for; %s has %d devices", s->n_ranks, o->hardware, n)
                          : 0;
}

int command_check_machine(const struct opts *o, struct err *e)
{
    if (o->command != CMD_SIMULATE || o->hardware || o->hf_config || recording_is_file(o->trace))
        return 0;
    return err_set(e, E_INPUT,
                   "which machine and model? --hardware NAME --model NAME; or --hf-config FILE with fixed costs, "
                   "--sim-step-us and --sim-row-us");
}

/* ---- a recording */

static void set_limits(void *ctx, struct limits *l)
{
    const struct opts *o = ctx;
    if (opts_given(o, "max-num-seqs"))
        l->max_num_seqs = (int)o->max_num_seqs;
    if (opts_given(o, "max-num-batched-tokens"))
        l->max_num_batched_tokens = (int)o->max_num_batched_tokens;
    if (opts_given(o, "max-num-queued-reqs"))
        l->max_num_queued_reqs = (int)o->max_num_queued_reqs;
    if (opts_given(o, "max-num-queued-tokens"))
        l->max_num_queued_tokens = o->max_num_queued_tokens;
    if (opts_given(o, "max-park-seconds"))
        l->park_ns = (int64_t)(o->park_s * 1e9);
    if (opts_given(o, "starvation-seconds"))
        l->starvation_ns = (int64_t)(o->starvation_s * 1e9);
    if (opts_given(o, "enable-prefix-caching"))
        l->prefix_caching = o->prefix_caching;
}

/* The machine is the recorded one; to try another, all of it is described. */
static int refuse_machine(const struct opts *o, struct err *e)
{
    static const char *const flags[] = {"max-model-len",
                                        "kv-cache-memory-bytes",
                                        "gpu-memory-utilization",
                                        "block-size",
                                        "ranks",
                                        "tensor-parallel-size",
                                        "ulysses-sequence-parallel-size",
                                        "pipeline-parallel-size",
                                        "data-parallel-size",
                                        "comm-sets",
                                        "weights",
                                        "rank-memory",
                                        "host-kv-memory",
                                        "kv-cache-dtype",
                                        "sim-step-us",
                                        "sim-row-us",
                                        "nodes",
                                        "router",
                                        "rate"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (opts_given(o, flags[i]))
            return err_set(e, E_INPUT,
                           "--%s: a recording is replayed on the machine that it was made on; for another one describe "
                           "it whole, with --hardware and --model",
                           flags[i]);
    return 0;
}

static int open_recording(struct app *a, struct engine_setup *s, struct err *e)
{
    struct opts *o = &a->opts;
    struct recorded_ask ask = {.path = o->trace,
                               .what_if = o->what_if || o->draft_acceptance > 0,
                               .compare = o->compare,
                               .part = o->requests || o->seconds > 0 || o->from_s > 0,
                               .strict = o->strict,
                               .set_limits = set_limits,
                               .ctx = o};
    TRY(refuse_machine(o, e));
    TRY(recorded_machine_open(&a->recorded, &ask, s, e));
    if (!opts_given(o, "policy"))
        o->policies.items[0] = (char *)(uintptr_t)recorded_policy(&a->recorded); /* who was live is who is meant */
    return 0;
}

/* By the chance that was asked for, or by what a recording says, whatever machine it is replayed on. */
static int model_drafts(struct app *a, bool as_recorded, struct engine_setup *s, struct err *e)
{
    struct modelled_drafts_setup m = {.chance = a->opts.draft_acceptance, .seed = a->opts.seed, .vocab = 1};
    struct recording_digest seen = {0};
    if (as_recorded) {
        m.head = a->recorded.head;
        m.seen = &a->recorded.digest;
    } else {
        m.vocab = model_config(a->model)->vocab;
    }
    if (!as_recorded && a->opts.trace && recording_is_file(a->opts.trace)) {
        TRY(recording_open(&a->traced, a->opts.trace, e));
        TRY(recording_digest(&seen, a->opts.trace, e));
        m.head = recording_head(a->traced);
        m.seen = &seen;
    }
    modelled_drafts_open(&a->modelled, &m);
    recording_digest_free(&seen);
    s->drafts = modelled_drafts_sources(&a->modelled);
    if (as_recorded)
        a->recorded.modelled_setup.drafts = s->drafts;
    return 0;
}

/* ---- all of it */

int command_simulate(struct app *a, struct err *e)
{
    struct engine_setup s;
    char machine[160];
    struct buf words = {0};
    TRY(child_tie(getenv(CHILD_PARENT), e));
    if (a->opts.sample)
        a->opts.seed = rng_at(a->opts.seed, (uint64_t)a->opts.sample) >> 11; /* a whole number in any JSON */
    bool as_recorded = !a->opts.hardware && !a->opts.hf_config && recording_is_file(a->opts.trace);
    if (as_recorded) {
        if (a->opts.samples || a->opts.sample)
            return err_set(e, E_INPUT,
                           "a recording on its own machine is replayed as it was: nothing can be drawn. For --samples "
                           "describe a machine, with --hardware and --model");
        TRY(open_recording(a, &s, e));
    } else {
        if (a->opts.what_if || a->opts.compare || a->opts.strict)
            return err_set(
                e, E_INPUT,
                "--what-if, --compare and --strict are for a recording on its own machine: otherwise step times are "
                "modelled in any case");
        TRY(open_machine(a, machine, e));
        int twin = a->opts.samples ? describe_samples(a, &words, e) : 0; /* what is wrong with it is known now */
        buf_free(&words);
        if (twin)
            return twin;
        app_name_model(a);
        TRY(app_plan_engine(a, &s, e));
        TRY(choose_simulated_ranks(a, &s, e));
        TRY(app_plan_pool(a, &s, e));
    }
    TRY(model_drafts(a, as_recorded, &s, e));
    TRY(app_start_lua_untimed(a, s.n_ranks, e));
    const struct opts *o = &a->opts;
    struct simulate_ask ask = {.trace = o->trace,
                               .hashes = o->trace_hashes,
                               .seed = o->seed,
                               .requests = o->requests,
                               .from_s = o->from_s,
                               .seconds = o->seconds,
                               .rate = o->rate,
                               .nodes = o->nodes,
                               .policies = o->policies,
                               .params = o->policy_params,
                               .slo_ttft_ms = o->slo_ttft_ms,
                               .slo_tpot_ms = o->slo_tpot_ms,
                               .jobs = o->jobs,
                               .json = o->json,
                               .plots = o->plots,
                               .request_log = o->request_log,
                               .weight_tp = (int)o->weight_tp,
                               .weight_pp = (int)o->weight_pp};
    TRY(router_parse(o->router, &ask.router, e));
    struct simulate_setup sim = {.ask = &ask,
                                 .engine = &s,
                                 .recorded = as_recorded ? &a->recorded : NULL,
                                 .machine = as_recorded ? a->recorded.words : machine,
                                 .drafts = a->modelled.words.len ? a->modelled.words.data : NULL,
                                 .described = a->machine,
                                 .front_ns = a->machine ? sim_machine_front_ns(a->machine) : 0,
                                 .open_policy = simulated_policy,
                                 .sample = o->samples ? run_samples : NULL,
                                 .ctx = a};
    return simulate(&sim, e);
}
