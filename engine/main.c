/* The composition root: the only file that knows every room. Reads the command line, puts the parts together in order, runs them, and takes
 * them down in the opposite order. */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "engine/front/guard.h"
#include "engine/front/machine.h"
#include "engine/front/model_files.h"
#include "engine/front/opts.h"
#include "engine/front/places.h"
#include "engine/front/policy_params.h"
#include "engine/front/policy_ref.h"
#include "engine/front/policy_test.h"
#include "engine/front/reproduce.h"
#include "engine/front/record.h"
#include "engine/front/server.h"
#include "engine/front/simulate.h"
#include "engine/front/terminal.h"
#include "engine/front/tune.h"
#include "kernels/sim/machine.h"
#include "lua/host.h"
#include "models/chat.h"
#include "models/tokenizer.h"

#define VERSION "0.1.0"

enum { TEMPLATE_BYTES = 1 << 20 };

struct app {
    struct opts opts;
    struct clock clock;
    struct sim_machine *machine;    /* simulate: NULL: fixed costs */
    struct model *model;
    struct gguf *words;             /* --tokenizer */
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct buf chat_source;
    struct lua_watchdog *watchdog;
    struct lua_opts lua;
    char policy_dir[PATH_MAX], policy_path[PATH_MAX], policy_name[NAME_BYTES], served[128], admin_host[256];
    const char *names[2];
    uint64_t comm_sets[MAX_RANKS];
    struct policy policy;           /* until the engine takes it */
    struct recorder *recorder;      /* serve --record */
    struct recorded_machine recorded; /* simulate */
    struct engine *engine;
    struct thread *engine_thread;
    struct server *server;
    struct guard *guard;            /* serve: from when the model stands */
    int status;                     /* of the process, when nothing is wrong with what was asked */
};

/* ---- the model and its text */

static int open_model(struct app *a, struct err *e)
{
    struct model_files f = {0};
    int rc = model_files_open(&f, &a->opts, e);
    a->model = f.model;
    a->words = f.words;
    a->tokenizer = f.tokenizer;
    return rc;
}

/* The template's text: what --chat-template names, else the model's own; empty when there is none. */
static int find_template(struct app *a, struct err *e)
{
    const char *asked = a->opts.chat_template;
    const struct gguf *words = a->words ? a->words : model_gguf(a->model);
    struct gguf_string own;
    if (asked && chat_builtin(asked))
        buf_puts(&a->chat_source, chat_builtin(asked));
    else if (asked)
        TRY(file_read(&a->chat_source, asked, TEMPLATE_BYTES, e));
    else if (words && gguf_string(words, "tokenizer.chat_template", &own))
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

/* What clients call the model: as asked for, else the file's name without its ending. */
static void name_model(struct app *a)
{
    const struct opts *o = &a->opts;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", o->model ? o->model : model_config(a->model)->name);
    const char *base = o->model ? basename(path) : path;
    size_t n = strlen(base);
    if (n > 5 && !strcmp(base + n - 5, ".gguf"))
        n -= 5;
    snprintf(a->served, sizeof a->served, "%.*s", (int)n, n ? base : "model");
    a->names[0] = a->served;
}

/* ---- the policy */

static void name_policy(struct app *a, const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    const char *base = basename(copy);
    size_t n = strlen(base);
    if (n > 4 && !strcmp(base + n - 4, ".lua"))
        n -= 4;
    snprintf(a->policy_name, sizeof a->policy_name, "%.*s", (int)n, base);
}

static int start_lua(struct app *a, struct err *e)
{
    TRY(lua_watchdog_start(&a->watchdog, e));
    struct engine_setup sizes = {0};
    TRY(machine_ranks(&a->opts, &sizes, e));
    a->lua = (struct lua_opts){.watchdog = a->watchdog, .n_ranks = sizes.n_ranks};
    return 0;
}

static int read_policy(struct app *a, const struct policy_ref *ref, struct policy *out, struct err *e)
{
    TRY(policy_ref_path(ref, a->policy_dir, a->policy_path, e));
    name_policy(a, a->policy_path);
    struct buf source = {0}, params = {0};
    struct lua_opts boot = a->lua;
    boot.relaxed = true;
    int rc = policy_params_json(a->opts.policy_params_file, &ref->params, &params, e);
    if (!rc)
        rc = file_read(&source, a->policy_path, LUA_SOURCE_BYTES, e);
    if (!rc)
        rc = lua_policy_load(out, a->policy_name, source.data ? source.data : "", source.len, &boot, params.data, e);
    buf_free(&source);
    buf_free(&params);
    return rc;
}

/* A policy as --policy names it (engine/front/policy_ref.h), with these params where it has none of its own. */
static int load_policy(struct app *a, const char *asked, const struct opts_list *given, struct policy *out, struct err *e)
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
    TRY(start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    return load_policy(a, a->opts.policy, &a->opts.policy_params, &a->policy, e);
}

/* ---- the engine */

/* What the settings say of the node and its limits; no policy. */
static int plan_engine(struct app *a, struct engine_setup *out, struct err *e)
{
    const struct opts *o = &a->opts;
    struct engine_setup s = {.model = a->model, .clock = &a->clock, .threaded = true};
    TRY(machine_backend(o, backend_find, &s.ops, e));
    TRY(opts_cache_type(o->kv_dtype, &s.kv_dtype, e));
    s.device = (struct device_opts){.n_threads = (int)o->threads, .isa = o->isa, .invariant = o->invariant};
    s.device.sim_step_ns = (int64_t)(o->sim_step_us * 1e3);
    s.device.sim_row_ns = (int64_t)(o->sim_row_us * 1e3);
    s.device.sim_machine = a->machine;
    s.lockstep = o->lockstep;
    s.device.sim_weight_tp = a->machine ? (int)o->weight_tp : 0;
    s.limits = (struct limits){.max_num_seqs = (int)o->max_num_seqs, .max_num_batched_tokens = (int)o->max_num_batched_tokens,
                               .max_model_len = (int)o->max_model_len, .max_num_queued_reqs = (int)o->max_num_queued_reqs,
                               .max_num_queued_tokens = o->max_num_queued_tokens, .prefix_caching = o->prefix_caching,
                               .starvation_ns = (int64_t)(o->starvation_s * 1e9)};
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
    /* Of 32 tokens, shares of three kv heads over two ranks still fill a block. */
    s.block_size = o->block_size ? (int)o->block_size : s.n_ranks > 1 ? 32 : 16;
    s.quiet = o->command != CMD_SERVE;
    s.quiet_stats = o->disable_log_stats;
    snprintf(s.model_name, sizeof s.model_name, "%s", o->names.n ? o->names.items[0] : a->served);
    *out = s;
    return 0;
}

static int open_engine(struct app *a, struct err *e)
{
    struct engine_setup s;
    TRY(plan_engine(a, &s, e));
    if (a->opts.record && !a->opts.dry_run) {
        TRY(recorder_open(&a->recorder, a->opts.record, e));
        s.witness = recorder_witness(a->recorder);
    }
    s.policy = a->policy;
    a->policy = (struct policy){0};
    TRY(engine_create(&a->engine, &s, e));
    recorder_begin(a->recorder, &(struct recorder_start){engine_node(a->engine), model_config(a->model), s.start, s.block_size, VERSION}, a->engine);
    return 0;
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
    log_info("main", "Available KV cache memory: %.2f GiB (%s)", (double)n->kv_bytes * n->n_ranks / 0x1p30, a->opts.kv_dtype);
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
    log_info("main", "Maximum concurrency for %s tokens per request: %.2fx", len, (double)tokens / n->limits.max_model_len);
}

static int open_parts(struct app *a, struct err *e)
{
    clock_init_real(&a->clock);
    TRY(open_model(a, e));
    name_model(a);
    TRY(open_template(a, e));
    TRY(open_policy(a, e));
    int64_t begin = clock_now(&a->clock);
    TRY(open_engine(a, e));
    model_loaded(a->model);
    say_capacity(a, (double)(clock_now(&a->clock) - begin) * 1e-9);
    return 0;
}

/* The engine's thread ends by itself on IN_STOP; whoever still asks it something has gone by then. */
static void stop_engine(struct app *a)
{
    if (a->engine_thread)
        queue_post(engine_inbox(a->engine), &(struct engine_message){.kind = IN_STOP});
    thread_join(a->engine_thread);
    a->engine_thread = NULL;
}

static void close_parts(struct app *a)
{
    stop_engine(a);
    server_destroy(a->server);
    engine_destroy(a->engine);
    recorder_close(a->recorder);
    recorded_machine_close(&a->recorded);
    if (a->policy.ops && a->policy.ops->destroy)
        a->policy.ops->destroy(a->policy.ctx);
    lua_watchdog_stop(a->watchdog);
    chat_free(a->chat);
    buf_free(&a->chat_source);
    tokenizer_free(a->tokenizer);
    gguf_close(a->words);
    model_close(a->model);
    sim_machine_close(a->machine);
    guard_end(a->guard); /* last: it bounds all of this */
}

/* ---- serve */

/* Where it listens, and for whom. */
static int name_doors(struct app *a, struct server_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    *s = (struct server_setup){
        .host = o->host, .port = (int)o->port,
        .api_keys = (const char *const *)o->api_keys.items, .n_api_keys = o->api_keys.n,
        .api_key_files = (const char *const *)o->api_key_files.items, .n_api_key_files = o->api_key_files.n,
        .admin_key = o->admin_keys.n ? o->admin_keys.items[o->admin_keys.n - 1] : NULL,
        .admin_key_files = (const char *const *)o->admin_key_files.items, .n_admin_key_files = o->admin_key_files.n,
    };
    TRY(opts_admin_address(o, a->admin_host, &s->admin_port, e));
    s->admin_host = a->admin_host[0] ? a->admin_host : NULL;
    return 0;
}

/* Before the model is loaded, which may take minutes: are the keys good and the ports free? */
static int check_doors(struct app *a, struct err *e)
{
    struct server_setup s;
    TRY(name_doors(a, &s, e));
    if (!s.n_api_keys && !s.n_api_key_files && getenv("VLLM_API_KEY"))
        log_warn("main", "VLLM_API_KEY is not read: without --api-key-file or MOONSHIFT_API_KEY every client is let in");
    return server_can_start(&s, e);
}

static int open_server(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    const struct limits *l = &engine_node(a->engine)->limits;
    struct server_setup doors;
    TRY(name_doors(a, &doors, e));
    struct server_setup s = {
        .host = doors.host, .port = doors.port, .admin_host = doors.admin_host, .admin_port = doors.admin_port,
        .api_keys = doors.api_keys, .n_api_keys = doors.n_api_keys, .api_key_files = doors.api_key_files, .n_api_key_files = doors.n_api_key_files,
        .admin_key = doors.admin_key, .admin_key_files = doors.admin_key_files, .n_admin_key_files = doors.n_admin_key_files,
        .origins = (const char *const *)o->origins.items, .n_origins = o->origins.n,
        .admin_hosts = (const char *const *)o->admin_hosts.items, .n_admin_hosts = o->admin_hosts.n,
        .http = {.body = (size_t)o->body_bytes, .bodies = (size_t)o->bodies_bytes, .answers = (size_t)o->answers_bytes, .rate = (size_t)o->client_rate, .body_s = (int)o->body_s,
                 .connections = (int)o->max_connections, .per_address = (int)o->connections_per_address},
        .max_live = o->max_num_queued_reqs ? l->max_num_seqs + l->max_num_queued_reqs : 0,
        .max_num_seqs = l->max_num_seqs, .max_num_batched_tokens = l->max_num_batched_tokens,
        .text_s = o->text_s > 0 ? o->text_s : -1, .log_requests = o->log_requests,
        .names = o->names.n ? (const char *const *)o->names.items : a->names, .n_names = o->names.n ? o->names.n : 1,
        .root = o->model ? o->model : a->served,
        .tokenizer = a->tokenizer, .chat = a->chat, .chat_source = a->chat ? a->chat_source.data : NULL,
        .n_vocab = tokenizer_n_vocab(a->tokenizer), .max_model_len = l->max_model_len,
        .clock = &a->clock, .inbox = engine_inbox(a->engine), .outbox = engine_outbox(a->engine),
        .guard = a->guard, .lua = &a->lua, .policy_dir = a->policy_dir[0] ? a->policy_dir : NULL,
        .policy_name = a->policy_name[0] ? a->policy_name : NULL, .policy_path = a->policy_path[0] ? a->policy_path : NULL,
    };
    return server_create(&a->server, &s, e);
}

static void say_ready(const struct app *a)
{
    const struct opts *o = &a->opts;
    bool six = strchr(o->host, ':') != NULL;
    log_info("main", "Model '%s', up to %d tokens a request; chat template: %s", o->names.n ? o->names.items[0] : a->served,
             engine_node(a->engine)->limits.max_model_len, a->chat ? "yes" : "none, /v1/completions only");
    log_info("main", "Application startup complete.");
    log_info("main", "Moonshift " VERSION " on http://%s%s%s:%d", six ? "[" : "", o->host, six ? "]" : "", server_port(a->server, false));
    if (server_port(a->server, true))
        log_info("main", "Admin routes on port %d", server_port(a->server, true));
}

static int serve(struct app *a, struct err *e)
{
    struct buf given = {0};
    opts_show(&a->opts, &given);
    log_info("main", "Moonshift " VERSION ": %s", given.data ? given.data : "defaults");
    buf_free(&given);
    TRY(check_doors(a, e));
    TRY(open_parts(a, e));
    TRY(guard_start(&a->guard, (int)a->opts.shutdown_s, e));
    TRY(open_server(a, e));
    if (a->opts.dry_run) {
        log_info("main", "Dry run: everything fits; nothing was served.");
        return 0;
    }
    TRY(thread_start(&a->engine_thread, "engine", engine_run, a->engine, e));
    say_ready(a);
    int rc = server_run(a->server);
    stop_engine(a);
    log_info("main", rc ? "Stopped." : "Drained, all answers ended.");
    return rc ? err_set(e, E_GONE, "stopped before every answer had ended") : 0;
}

/* ---- run */

static char *piece(const struct tokenizer *t, int32_t id)
{
    struct buf out = {0};
    if (id >= 0)
        tokenizer_piece(t, id, &out);
    return buf_take(&out);
}

static int run(struct app *a, struct err *e)
{
    TRY(open_parts(a, e));
    if (!a->chat && !a->opts.raw)
        return err_set(e, E_INPUT, "this model has no chat template: give --chat-template chatml (or another), or --raw to continue the text");
    TRY(thread_start(&a->engine_thread, "engine", engine_run, a->engine, e));
    struct openai_text words = {a->tokenizer, a->chat, piece(a->tokenizer, tokenizer_bos(a->tokenizer)),
                                piece(a->tokenizer, tokenizer_eos(a->tokenizer)), tokenizer_n_vocab(a->tokenizer),
                                engine_node(a->engine)->limits.max_model_len};
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    char history[PATH_MAX];
    places_history(a->opts.history, getenv("XDG_STATE_HOME"), getenv("HOME"), history);
    struct terminal_setup s = {&a->opts, &words, &a->clock, engine_inbox(a->engine), engine_outbox(a->engine), history,
                               .smart = term && *term && strcmp(term, "dumb") != 0, .colour = !no_color || !*no_color};
    int rc = terminal_run(&s, e);
    stop_engine(a);
    mem_free(words.bos);
    mem_free(words.eos);
    return rc;
}

/* ---- simulate */

static int simulated_policy(void *ctx, const char *asked, const struct opts_list *params, struct policy *out, struct err *e)
{
    return load_policy(ctx, asked, params, out, e);
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
    TRY(places_description(o->model, "models", model, e));
    TRY(sim_machine_open(&a->machine, hardware, model, e));
    TRY(model_open_dummy(&a->model, sim_machine_config(a->machine), DT_BF16, o->seed, e));
    snprintf(words, 160, "%.60s, %.60s%s", o->hardware, o->model, o->lockstep ? ", groups in lockstep" : "");
    return 0;
}

/* Nothing said of ranks: all that the machine has. */
static int choose_simulated_ranks(const struct app *a, struct engine_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    int n = a->machine ? sim_machine_ranks(a->machine) : s->n_ranks;
    if (!o->ranks && !o->sp && !o->tp && !o->dp) {
        s->n_ranks = n;
        s->block_size = o->block_size ? (int)o->block_size : n > 1 ? 32 : 16;
    }
    return s->n_ranks > n ? err_set(e, E_INPUT, "%d ranks are asked for; %s has %d devices", s->n_ranks, o->hardware, n) : 0;
}

static int run_simulation(struct app *a, struct err *e)
{
    struct engine_setup s;
    char machine[160];
    bool as_recorded = !a->opts.hardware && !a->opts.hf_config && recording_is_file(a->opts.trace);
    if (as_recorded) {
        TRY(recorded_machine_open(&a->recorded, &a->opts, &s, e));
    } else {
        TRY(recorded_only(&a->opts, e));
        TRY(open_machine(a, machine, e));
        name_model(a);
        TRY(plan_engine(a, &s, e));
        TRY(choose_simulated_ranks(a, &s, e));
    }
    TRY(start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    a->lua.n_ranks = s.n_ranks;
    a->lua.soft_ns = a->lua.bytecodes = INT64_MAX / 4; /* how fast this machine is must not show: no call is slow, and only an endless one is stopped */
    a->lua.hard_ns = INT64_C(500000000);
    a->lua.quiet = true;
    struct simulate_setup sim = {.opts = &a->opts, .engine = &s, .recorded = as_recorded ? &a->recorded : NULL,
                                 .machine = as_recorded ? a->recorded.words : machine, .described = a->machine, .front_ns = a->machine ? sim_machine_front_ns(a->machine) : 0,
                                 .open_policy = simulated_policy, .ctx = a};
    return simulate(&sim, e);
}

/* ---- tune */

/* The policy is opened here only for what it declares. */
static int run_search(struct app *a, struct err *e)
{
    struct buf declared = {0};
    TRY(start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    a->lua.quiet = true;
    TRY(load_policy(a, a->opts.policies.items[0], &(struct opts_list){0}, &a->policy, e));
    if (a->policy.ops->params_get)
        a->policy.ops->params_get(a->policy.ctx, &declared);
    int rc = tune(&a->opts, declared.len ? declared.data : "{}", e);
    buf_free(&declared);
    return rc;
}

/* ---- policy check */

static int check_policy_file(struct app *a, struct err *e)
{
    struct buf source = {0}, params = {0}, report = {0};
    TRY(start_lua(a, e));
    name_policy(a, a->opts.file);
    int rc = policy_params_json(a->opts.policy_params_file, &a->opts.policy_params, &params, e);
    if (!rc)
        rc = file_read(&source, a->opts.file, LUA_SOURCE_BYTES, e);
    if (!rc)
        rc = lua_policy_check(a->policy_name, source.data ? source.data : "", source.len, &a->lua, params.data, &report, e);
    if (report.len)
        fputs(report.data, stdout);
    buf_free(&source);
    buf_free(&params);
    buf_free(&report);
    return rc;
}

/* ---- all of it */

static void setup_log(const struct opts *o)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct log_opts l = {.level = LOG_INFO, .json = o->log_format && !strcmp(o->log_format, "json")};
    for (int i = 0; o->log_level && i < 4; i++)
        if (!strncmp(o->log_level, names[i], 4))
            l.level = (enum log_level)i;
    if (o->command != CMD_SERVE && l.level == LOG_INFO)
        l.level = LOG_WARN; /* an answer is what was asked for, not how it came about */
    log_setup(&l);
}

static int obey(struct app *a, struct err *e)
{
    struct buf text = {0};
    switch (a->opts.command) {
    case CMD_SERVE: return serve(a, e);
    case CMD_RUN: return run(a, e);
    case CMD_POLICY_CHECK: return check_policy_file(a, e);
    case CMD_POLICY_TEST: return policy_test(a->opts.file, a->opts.watch, &a->status, e);
    case CMD_LUA_PATH: return policy_test_path(a->opts.cpath, e);
    case CMD_SIMULATE: return run_simulation(a, e);
    case CMD_REPRODUCE: return reproduce(&a->opts, e);
    case CMD_TUNE: return run_search(a, e);
    case CMD_HELP:
        opts_help(a->opts.help_for, &text);
        fputs(text.data, stdout);
        buf_free(&text);
        return 0;
    case CMD_VERSION: puts("moonshift " VERSION); return 0;
    }
    return 0;
}

int main(int argc, char **argv, char **env)
{
    struct app *a = mem_new(sizeof *a);
    struct err e = {0};
    struct opts_input in = {.argc = argc, .argv = argv, .env = env};
    int rc = opts_parse(&a->opts, &in, &e), usage = rc != 0;
    if (!rc) {
        setup_log(&a->opts);
        rc = obey(a, &e);
    }
    if (rc)
        fprintf(stderr, "moonshift: %s\n", e.text);
    close_parts(a);
    int status = rc == 0 ? a->status : usage ? 2 : 1;
    opts_free(&a->opts);
    mem_free(a);
    return status;
}
