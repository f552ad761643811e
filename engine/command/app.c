/* The parts that several commands share: how each is opened, in which order, and how all are taken down. */
#include "engine/command/app.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cores.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/numa.h"
#include "engine/base/places.h"
#include "engine/base/thread.h"
#include "engine/cli/machine.h"
#include "engine/cli/model_files.h"
#include "engine/cli/policy_params.h"
#include "engine/cli/policy_ref.h"
#include "engine/serve/batch/identity.h"
#include "engine/base/version.h"
#include "models/load/read_ahead.h"

enum { TEMPLATE_BYTES = 1 << 20 };

/* ---- the model and its text */

static int open_model(struct app *a, struct err *e)
{
    struct model_files f = {0};
    if (a->opts.model && encoder_is(a->opts.model))
        return encoder_check(a->opts.model, e)
                   ? err_prefix(e, E_UNSUPPORTED, "%s is a model for embeddings", a->opts.model)
                   : err_set(
                         e, E_UNSUPPORTED,
                         "%s is an encoder: it writes no text. Serve it: moonshift serve %s, or, beside a model that "
                         "does, moonshift serve MODEL --embedding-model %s",
                         a->opts.model, a->opts.model, a->opts.model);
    int rc = model_files_open(&f, &a->opts, e);
    a->model = f.model;
    a->tokenizer_gguf = f.tokenizer_gguf;
    a->tokenizer = f.tokenizer;
    return rc;
}

/* The template's text: what --chat-template names, else the model's own; empty when there is none. */
static int find_template(struct app *a, struct err *e)
{
    const char *asked = a->opts.chat_template;
    const struct gguf *source = a->tokenizer_gguf ? a->tokenizer_gguf : model_gguf(a->model);
    struct gguf_string own;
    if (asked && chat_builtin(asked))
        buf_puts(&a->chat_source, chat_builtin(asked));
    else if (asked)
        TRY(file_read(&a->chat_source, asked, TEMPLATE_BYTES, e));
    else if (source && gguf_string(source, "tokenizer.chat_template", &own))
        buf_put(&a->chat_source, own.data, own.len);
    return 0;
}

static int open_template(struct app *a, struct err *e)
{
    TRY(find_template(a, e));
    if (!a->chat_source.len)
        return 0;
    int rc = chat_compile(&a->chat, a->chat_source.data, a->chat_source.len, e);
    if (rc && a->opts.chat_template)
        return err_prefix(e, rc, "the chat template %s", a->opts.chat_template);
    return rc ? err_prefix(e, rc, "the model's chat template (--chat-template chatml replaces it)") : 0;
}

static void name_word(const char *base, char out[128])
{
    size_t n = strlen(base);
    if (n > 5 && !strcmp(base + n - 5, ".gguf"))
        n -= 5;
    snprintf(out, 128, "%.*s", (int)n, n ? base : "model");
}

void app_name_file(const char *path, char out[128])
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    name_word(basename(copy), out);
}

void app_name_model(struct app *a)
{
    if (a->opts.model)
        app_name_file(a->opts.model, a->served);
    else
        name_word(model_config(a->model)->name, a->served);
    a->names[0] = a->served;
}

/* ---- the policy */

void app_name_policy(struct app *a, const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    const char *base = basename(copy);
    size_t n = strlen(base);
    if (n > 4 && !strcmp(base + n - 4, ".lua"))
        n -= 4;
    snprintf(a->policy_name, sizeof a->policy_name, "%.*s", (int)n, base);
}

int app_start_lua(struct app *a, struct err *e)
{
    TRY(lua_watchdog_start(&a->watchdog, e));
    struct engine_setup sizes = {0};
    TRY(machine_ranks(&a->opts, &sizes, e));
    a->lua = (struct lua_opts){.watchdog = a->watchdog, .n_ranks = sizes.n_ranks, .nursery = a->nursery};
    return 0;
}

int app_start_lua_untimed(struct app *a, int n_ranks, struct err *e)
{
    TRY(app_start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    a->lua.n_ranks = n_ranks;
    a->lua.soft_ns = a->lua.bytecodes = INT64_MAX / 4; /* no call is slow, and only an endless one is stopped */
    a->lua.hard_ns = INT64_C(500000000);
    a->lua.quiet = true;
    return 0;
}

static int read_policy(struct app *a, const struct policy_ref *ref, struct policy *out, struct err *e)
{
    TRY(policy_ref_path(ref, a->policy_dir, a->policy_path, e));
    app_name_policy(a, a->policy_path);
    struct buf source = {0}, params = {0};
    struct lua_opts boot = a->lua;
    char folder[PATH_MAX];
    file_folder(a->policy_path, folder, sizeof folder);
    boot.folder = folder;
    boot.relaxed = !a->lua.hard_ns; /* the laboratory waits long enough for an endless loop as it is */
    int rc = policy_params_json(a->opts.policy_params_file, &ref->params, &params, e);
    if (!rc)
        rc = file_read(&source, a->policy_path, LUA_SOURCE_BYTES, e);
    if (!rc)
        rc = lua_policy_load(out, a->policy_name, source.data ? source.data : "", source.len, &boot, params.data, e);
    struct buf whole = {0};
    if (!rc && out->libs[0]) /* what is kept of it, and what its hash is of, has its libraries in it */
        rc = lua_policy_text(a->policy_name, source.data, source.len, &boot, &whole, e);
    buf_free(&a->policy_source);
    mem_free(a->policy_params);
    if (whole.len) {
        buf_free(&source);
        source = whole;
    }
    a->policy_source = source;
    a->policy_params = params.len ? buf_take(&params) : NULL;
    buf_free(&params);
    return rc;
}

int app_load_policy(struct app *a, const char *asked, const struct strings *given, struct policy *out, struct err *e)
{
    struct policy_ref ref;
    int rc = policy_ref_read(&ref, asked, given, e);
    if (!rc && !strcmp(ref.name, "native"))
        policy_fcfs(out);
    else if (!rc && (rc = read_policy(a, &ref, out, e)) != 0)
        err_prefix(e, rc, "--policy %s", asked);
    policy_ref_free(&ref);
    return rc;
}

static int open_policy(struct app *a, struct err *e)
{
    TRY(app_start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    bool asked = opts_given(&a->opts, "policy");
    if (!asked && app_boot_last_good(a))
        return 0;
    app_say_boot(a, asked ? "--policy says so" : "no last good version is known, so it is the default");
    return app_load_policy(a, a->opts.policy, &a->opts.policy_params, &a->policy, e);
}

/* ---- the engine */

/* Why fewer threads compute than there are CPUs. */
static void say_cores(void)
{
    struct cores c;
    char why[200];
    cores_now(&c);
    cores_say(&c, why, sizeof why);
    if (*why)
        log_info("main", "Computing on %s; --threads says otherwise", why);
}

/* Ranks of the CPU stay on the nodes of its memory. numa: borrowed by out. */
static void plan_numa(const struct app *a, struct numa *numa, struct engine_setup *out)
{
    char words[1024];
    if (strcmp(out->ops->name, "cpu") != 0 || (a->opts.numa && strcmp(a->opts.numa, "off") == 0))
        return;
    numa_now(numa);
    numa_say(numa, out->n_ranks, words, sizeof words);
    if (*words)
        log_info("main", "%s%s", words, numa_of_rank(numa, 0, out->n_ranks) < 0 ? "" : "; --numa off: anywhere");
    out->numa = numa;
}

/* Where GPUs keep what they tried, and whether they try anything. */
static void plan_tuning(struct app *a, struct engine_setup *s)
{
    const char *asked = a->opts.gpu_tuning;
    s->tunes = s->ops->tuning && !a->opts.invariant && !(asked && !strcmp(asked, "off"));
    if (!s->tunes || a->opts.dry_run)
        return;
    places_cache(asked, getenv("XDG_CACHE_HOME"), getenv("HOME"), a->cache_dir);
    s->tuning_folder = a->cache_dir[0] ? a->cache_dir : NULL;
}

int app_plan_engine(struct app *a, struct engine_setup *out, struct err *e)
{
    const struct opts *o = &a->opts;
    struct engine_setup s = {.model = a->model, .clock = &a->clock, .threaded = true};
    TRY(machine_backend(o, backend_find, &s.ops, e));
    app_watch_ops(a, &s);
    if (!o->threads && strcmp(s.ops->name, "cpu") == 0)
        say_cores();
    s.device = (struct device_opts){.n_threads = (int)o->threads, .isa = o->isa, .invariant = o->invariant};
    s.device.plain_kernels = o->plain_kernels;
    s.device.no_early_launch = !o->early_launch;
    s.device.check = o->self_check;
    s.device.fast = !o->cpu_precision || strcmp(o->cpu_precision, "fast") == 0;
    TRY(opts_cache_type(o->kv_dtype, s.device.fast && strcmp(s.ops->name, "cpu") == 0, &s.kv_dtype, e));
    s.device.sim_step_ns = (int64_t)(o->sim_step_us * 1e3);
    s.device.sim_row_ns = (int64_t)(o->sim_row_us * 1e3);
    s.device.sim_machine = a->machine;
    s.lockstep = o->lockstep;
    s.device.sim_weight_tp = a->machine ? (int)o->weight_tp : 0;
    s.device.sim_weight_pp = a->machine ? (int)o->weight_pp : 0;
    s.limits = (struct limits){.max_num_seqs = (int)o->max_num_seqs,
                               .max_num_batched_tokens = (int)o->max_num_batched_tokens,
                               .max_model_len = (int)o->max_model_len,
                               .max_num_queued_reqs = (int)o->max_num_queued_reqs,
                               .max_num_queued_tokens = o->max_num_queued_tokens,
                               .prefix_caching = o->prefix_caching,
                               .starvation_ns = (int64_t)(o->starvation_s * 1e9),
                               .probation_ns = (int64_t)(o->policy_probation_s * 1e9)};
    if (o->comm_sets.n > MAX_RANKS)
        return err_set(e, E_INPUT, "--comm-sets: at most %d", MAX_RANKS);
    for (int i = 0; i < o->comm_sets.n; i++)
        TRY(machine_read_ranks(o->comm_sets.items[i], &a->comm_sets[i], e));
    s.comm_sets = a->comm_sets;
    s.n_comm_sets = o->comm_sets.n;
    TRY(machine_ranks(o, &s, e));
    TRY(machine_graphs(o, &s, e));
    s.ahead = o->async_scheduling && s.ops->graph_post && !o->record ? (int)o->run_ahead : 0;
    s.limits.park_ns = (int64_t)(o->park_s * 1e9);
    s.kv_bytes = (size_t)o->kv_bytes;
    s.memory_share = o->memory_share;
    machine_spread(o, &s);
    plan_tuning(a, &s);
    /* Of 32 tokens, shares of three kv heads over two ranks still fill a block. */
    s.block_size = o->block_size ? (int)o->block_size : s.n_ranks > 1 ? 32 : 16;
    s.quiet = o->command != CMD_SERVE;
    s.quiet_stats = o->disable_log_stats;
    s.shadow_share = o->policy_shadow_share;
    s.decision_bytes = o->command == CMD_SERVE ? (size_t)o->decision_bytes : 0;
    s.story_keep = o->command == CMD_SERVE ? (int)o->request_history : 0;
    snprintf(s.model_name, sizeof s.model_name, "%s", o->names.n ? o->names.items[0] : a->served);
    *out = s;
    return 0;
}

int app_plan_pool(struct app *a, struct engine_setup *s, struct err *e)
{
    return machine_pool(&a->opts, model_config(a->model)->n_layers, s, &a->pool, e);
}

static int plan_disk(struct app *a, struct engine_setup *s, struct err *e)
{
    const char *text = a->opts.disk_kv;
    size_t n;
    if (!text || a->opts.dry_run)
        return 0;
    s->disk.bytes = (size_t)opts_disk_bytes(text, &n);
    if (n >= sizeof a->disk_path)
        return err_set(e, E_INPUT, "--disk-kv: the path is too long");
    memcpy(a->disk_path, text, n);
    s->disk.path = a->disk_path;
    return model_files_identity(&a->opts, a->model, &s->disk.model, e);
}

static int open_engine(struct app *a, struct err *e)
{
    struct engine_setup s;
    struct numa numa;
    TRY(app_plan_engine(a, &s, e));
    TRY(app_plan_pool(a, &s, e));
    plan_numa(a, &numa, &s);
    TRY(app_open_drafts(a, &s, e));
    TRY(app_plan_thinking(a, e));
    s.thinking = app_can_probe(a) ? &a->thinking : NULL;
    s.embed = a->encoder ? &a->embed_link : NULL;
    if (a->opts.command != CMD_RUN)
        s.guide_tokens = a->guide_tokens = guide_tokens_new(a->tokenizer);
    TRY(app_open_recorder(a, &s, e));
    TRY(plan_disk(a, &s, e));
    s.policy = a->policy;
    a->policy = (struct policy){0};
    memcpy(a->policy.libs, s.policy.libs, sizeof a->policy.libs); /* for the server, which follows their files */
    struct read_ahead *ahead = s.ops->computes ? read_ahead_start(a->model) : NULL;
    int rc = engine_create(&a->engine, &s, e);
    read_ahead_end(ahead);
    if (rc)
        return rc;
    speculator_close(a->speculator);
    a->speculator = NULL;
    if (a->draft_model)
        model_loaded(a->draft_model);
    recorder_begin(
        a->recorder,
        &(struct recorder_start){engine_node(a->engine), model_config(a->model), s.start, s.block_size, version_full},
        a->engine);
    return 0;
}

void app_plan_server(struct app *a, struct server_setup *out)
{
    const struct opts *o = &a->opts;
    const struct limits *l = &engine_node(a->engine)->limits;
    *out = (struct server_setup){
        .max_num_seqs = l->max_num_seqs,
        .max_num_batched_tokens = l->max_num_batched_tokens,
        .names = o->names.n ? (const char *const *)o->names.items : a->names,
        .n_names = o->names.n ? o->names.n : 1,
        .root = o->model ? o->model : a->served,
        .tokenizer = a->tokenizer,
        .chat = a->chat,
        .chat_source = a->chat ? a->chat_source.data : NULL,
        .n_vocab = tokenizer_n_vocab(a->tokenizer),
        .max_model_len = l->max_model_len,
        .tools = tool_format_of(o->tool_calls, a->chat ? a->chat_source.data : NULL),
        .think_end = a->thinking.n_suffix ? a->thinking.end : NULL,
        .can_probe = app_can_probe(a),
        .splits_thoughts = strcmp(o->reasoning, "none") != 0,
        .clock = &a->clock,
        .inbox = engine_inbox(a->engine),
        .outbox = engine_outbox(a->engine),
        .guard = a->guard,
        .suffix = a->suffix,
        .lua = &a->lua,
        .policy_dir = a->policy_dir[0] ? a->policy_dir : NULL,
        .policy_name = a->policy_name[0] ? a->policy_name : NULL,
        .policy_path = a->policy_path[0] ? a->policy_path : NULL,
        .policy_libs = a->policy.libs,
        .policy_source = &a->policy_source,
        .policy_params = a->policy_params,
    };
}

void app_model_identity(const struct opts *o, struct buf *out)
{
    identity_put(o->model ? o->model : o->hf_config, out);
    buf_printf(out, ", --cpu-precision %s, --kv-cache-dtype %s", o->cpu_precision ? o->cpu_precision : "fast",
               o->kv_dtype);
}

static void say_capacity(const struct app *a, double load_s)
{
    const struct node_facts *n = engine_node(a->engine);
    const struct partition *parts = &engine_world(a->engine)->partition;
    int64_t tokens = 0; /* of the partition as it is now */
    for (int i = 0; i < parts->n_groups; i++)
        tokens += (int64_t)n->kv_blocks * n->shape->tokens_per_block[parts->groups[parts->order[i]].n_ranks];
    if (n->n_ranks > 1)
        log_info("main", "%d ranks, %d rank sets with communicators", n->n_ranks, n->shape->n_sets);
    log_info("main", "Model loading took %.2f GiB and %.2f s", (double)n->weight_bytes / 0x1p30, load_s);
    log_info("main", "Available KV cache memory: %.2f GiB (%s)", (double)n->kv_bytes * n->n_ranks / 0x1p30,
             a->opts.kv_dtype);
    char count[32], len[32], digits[32];
    for (int k = 0; k < 2; k++) { /* thousands in groups, as scripts that read these lines expect */
        snprintf(digits, sizeof digits, "%lld", k ? (long long)n->limits.max_model_len : (long long)tokens);
        char *to = k ? len : count;
        for (size_t i = 0, all = strlen(digits); i < all; i++) {
            if (i && (all - i) % 3 == 0)
                *to++ = ',';
            *to++ = digits[i];
        }
        *to = 0;
    }
    log_info("main", "GPU KV cache size: %s tokens", count);
    log_info("main", "Maximum concurrency for %s tokens per request: %.2fx", len,
             (double)tokens / n->limits.max_model_len);
}

int app_open(struct app *a, struct err *e)
{
    clock_init_real(&a->clock);
    TRY(open_model(a, e));
    app_name_model(a);
    TRY(open_template(a, e));
    TRY(open_policy(a, e));
    int64_t begin = clock_now(&a->clock);
    TRY(open_engine(a, e));
    model_loaded(a->model);
    say_capacity(a, (double)(clock_now(&a->clock) - begin) * 1e-9);
    return 0;
}

/* The engine's thread ends by itself on IN_STOP; whoever still asks it something has gone by then. */
void app_stop_engine(struct app *a)
{
    if (a->engine_thread)
        queue_post(engine_inbox(a->engine), &(struct engine_message){.kind = IN_STOP});
    thread_join(a->engine_thread);
    if (a->engine_thread) {
        app_keep_drafts(a);
        app_say_profile(a);
    }
    a->engine_thread = NULL;
}

void app_close(struct app *a)
{
    app_stop_engine(a);
    server_destroy(a->server);
    encoder_close(a->encoder);
    engine_destroy(a->engine);
    app_close_drafts(a);
    recorder_close(a->recorder);
    record_window_free(a->window);
    modelled_drafts_close(&a->modelled);
    recording_close(a->traced);
    recorded_machine_close(&a->recorded);
    if (a->policy.ops && a->policy.ops->destroy)
        a->policy.ops->destroy(a->policy.ctx);
    buf_free(&a->policy_source);
    mem_free(a->policy_params);
    ledger_close(a->ledger);
    nursery_stop(a->nursery);
    lua_watchdog_stop(a->watchdog);
    chat_free(a->chat);
    buf_free(&a->chat_source);
    buf_free(&a->batch_model);
    buf_free(&a->batch_encoder);
    guide_tokens_free(a->guide_tokens);
    tokenizer_free(a->tokenizer);
    gguf_close(a->tokenizer_gguf);
    model_close(a->model);
    sim_machine_close(a->machine);
    guard_end(a->guard); /* last: it bounds all of this */
}
