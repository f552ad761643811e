/* `moonshift simulate`: which machine, which traffic, which policies. */
#include <stdio.h>
#include <string.h>

#include "engine/base/places.h"
#include "engine/cli/machine.h"
#include "engine/cli/model_files.h"
#include "engine/command/app.h"
#include "engine/lab/recording/recording.h"
#include "engine/lab/simulate.h"

static int simulated_policy(void *ctx, const char *asked, const struct strings *params, struct policy *out,
                            struct err *e)
{
    return app_load_policy(ctx, asked, params, out, e);
}

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
                                        "sim-row-us"};
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
                               .part = o->requests || o->seconds > 0,
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
    bool as_recorded = !a->opts.hardware && !a->opts.hf_config && recording_is_file(a->opts.trace);
    if (as_recorded) {
        TRY(open_recording(a, &s, e));
    } else {
        if (a->opts.what_if || a->opts.compare)
            return err_set(e, E_INPUT,
                           "--what-if and --compare are for a recording on its own machine: otherwise step times are "
                           "modelled in any case");
        TRY(open_machine(a, machine, e));
        app_name_model(a);
        TRY(app_plan_engine(a, &s, e));
        TRY(choose_simulated_ranks(a, &s, e));
        TRY(app_plan_pool(a, &s, e));
    }
    TRY(model_drafts(a, as_recorded, &s, e));
    TRY(app_start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    a->lua.n_ranks = s.n_ranks;
    a->lua.soft_ns = a->lua.bytecodes =
        INT64_MAX / 4; /* how fast this machine is must not show: no call is slow, and only an endless one is stopped */
    a->lua.hard_ns = INT64_C(500000000);
    a->lua.quiet = true;
    const struct opts *o = &a->opts;
    struct simulate_ask ask = {.trace = o->trace,
                               .hashes = o->trace_hashes,
                               .seed = o->seed,
                               .requests = o->requests,
                               .seconds = o->seconds,
                               .policies = o->policies,
                               .params = o->policy_params,
                               .slo_ttft_ms = o->slo_ttft_ms,
                               .slo_tpot_ms = o->slo_tpot_ms,
                               .json = o->json,
                               .plots = o->plots,
                               .request_log = o->request_log,
                               .weight_tp = (int)o->weight_tp,
                               .weight_pp = (int)o->weight_pp};
    struct simulate_setup sim = {.ask = &ask,
                                 .engine = &s,
                                 .recorded = as_recorded ? &a->recorded : NULL,
                                 .machine = as_recorded ? a->recorded.words : machine,
                                 .drafts = a->modelled.words.len ? a->modelled.words.data : NULL,
                                 .described = a->machine,
                                 .front_ns = a->machine ? sim_machine_front_ns(a->machine) : 0,
                                 .open_policy = simulated_policy,
                                 .ctx = a};
    return simulate(&sim, e);
}
