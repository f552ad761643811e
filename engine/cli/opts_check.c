#include <stdio.h>
#include <string.h>

#include "engine/cli/opts_table.h"

static int check_disk(const struct opts *o, struct err *e)
{
    size_t path;
    if (!o->disk_kv)
        return 0;
    if (opts_disk_bytes(o->disk_kv, &path) < 0)
        return err_set(e, E_INPUT, "--disk-kv: '%.60s' is no size: use one like 2GiB or 500MB", o->disk_kv + path + 1);
    if (!o->host_kv)
        return err_set(e, E_INPUT,
                       "--disk-kv is the tier below host memory: give that some, like --host-kv-memory 2GiB");
    if (!o->prefix_caching)
        return err_set(e, E_INPUT, "--disk-kv keeps cached prefixes: leave --no-enable-prefix-caching out");
    return o->record ? err_set(e, E_INPUT,
                               "--disk-kv and --record exclude each other: what the disk has from before "
                               "is in no recording")
                     : 0;
}

/* What is replayed in memory runs a policy unconfined. */
static int check_isolation(const struct opts *o, struct err *e)
{
    bool process = o->policy_isolation && !strcmp(o->policy_isolation, "process");
    return process && o->what_if_bytes && opts_given(o, "what-if-memory")
               ? err_set(
                     e, E_INPUT,
                     "--what-if-memory and --policy-isolation process exclude each other: a what-if runs the policy "
                     "in a process that is not confined. Record with --record, and replay with moonshift simulate "
                     "where that may be")
               : 0;
}

static int check_drafts(const struct opts *o, struct err *e)
{
    if (!o->draft_file)
        return 0;
    if (!o->draft_file[0])
        return err_set(e, E_INPUT, "--draft-file wants a file's name");
    return o->draft_bytes ? 0 : err_set(e, E_INPUT, "--draft-file keeps what --draft-memory holds: give that some");
}

static int check_encoder(const struct opts *o, struct err *e)
{
    static const char *const needed_by[] = {"embedding-name", "embedding-replicas", "embedding-threads",
                                            "embedding-batch-tokens", "embedding-queued-tokens"};
    for (size_t i = 0; i < sizeof needed_by / sizeof *needed_by && !o->embedding_model; i++)
        if (opts_given(o, needed_by[i]))
            return err_set(e, E_INPUT, "--%s: of which encoder? --embedding-model FILE|FOLDER", needed_by[i]);
    if (o->embedding_name && (!o->embedding_name[0] || strlen(o->embedding_name) > 127))
        return err_set(e, E_INPUT, "--embedding-name wants 1 to 127 bytes");
    return o->embedding_model && !o->embedding_model[0]
               ? err_set(e, E_INPUT, "--embedding-model wants a file or a folder")
               : 0;
}

static bool serves_alone(const struct opt_row *r)
{
    static const char *const others[] = {"model", "served-model-name", "device"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(r->name, others[i]) == 0)
            return true;
    return strncmp(r->name, "embedding-", strlen("embedding-")) == 0 || r->group == GROUP_SERVER ||
           r->group == GROUP_RESULTS || (r->group == GROUP_LOGS && strcmp(r->name, "record") != 0);
}

int opts_check_alone(const struct opts *o, struct err *e)
{
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int i = 0; i < n; i++)
        if (rows[i].where & opts_where(o->command) && opts_given(o, rows[i].name) && !serves_alone(&rows[i]))
            return err_set(e, E_INPUT, "--%s is for a model that writes, and there is an encoder alone", rows[i].name);
    if (o->names.n > (o->embedding_name ? 0 : 1))
        return err_set(e, E_INPUT, "an encoder has one name: give --served-model-name or --embedding-name, once");
    return strcmp(o->device, "cuda") == 0
               ? err_set(e, E_UNSUPPORTED, "encoders run on the CPU: leave --device cuda away")
               : 0;
}

static int check_params(const struct opts *o, struct err *e)
{
    if (o->block_size % 16)
        return err_set(e, E_INPUT, "--block-size must be a multiple of 16, not %lld", (long long)o->block_size);
    for (int i = 0; i < o->policy_params.n; i++)
        if (!strchr(o->policy_params.items[i], '=') || o->policy_params.items[i][0] == '=')
            return err_set(e, E_INPUT, "--policy-param wants NAME=VALUE, not '%.60s'", o->policy_params.items[i]);
    return 0;
}

/* What a plan chooses itself, or has no use for. */
static int check_plan(const struct opts *o, struct err *e)
{
    static const char *const chosen[] = {"policy",
                                         "policy-param",
                                         "policy-params-file",
                                         "ranks",
                                         "tensor-parallel-size",
                                         "pipeline-parallel-size",
                                         "ulysses-sequence-parallel-size",
                                         "data-parallel-size",
                                         "weights",
                                         "weight-shares",
                                         "weight-stages",
                                         "pool-owner",
                                         "pool-slots",
                                         "pool-order",
                                         "shift-weights",
                                         "comm-sets",
                                         "kv-cache-memory-bytes",
                                         "plots",
                                         "request-log",
                                         "what-if",
                                         "compare",
                                         "strict",
                                         "nodes"};
    if (!o->hardware || !o->model)
        return err_set(e, E_INPUT, "which machine and model? moonshift plan --hardware NAME --model NAME");
    if (!o->trace == !o->shape)
        return err_set(
            e, E_INPUT,
            "which traffic? one of --trace FILE|GENERATOR and --shape in=4096,out=250,rate=4 (or batch=200)");
    if (o->shape && o->trace_hashes)
        return err_set(e, E_INPUT, "--trace-hashes belongs to a --trace that is a file");
    if (o->slo_ttft_ms <= 0 && o->slo_tpot_ms <= 0 && opts_given(o, "max-devices"))
        return err_set(e, E_INPUT,
                       "how many devices are enough? --max-devices needs an objective: --slo-ttft-ms, --slo-tpot-ms");
    for (int i = 0; i < o->given.n; i++)
        for (size_t k = 0; k < sizeof chosen / sizeof *chosen; k++)
            if (!strcmp(o->given.items[i], chosen[k]))
                return err_set(e, E_INPUT, "--%s: a plan chooses that, or has no use for it; leave it away", chosen[k]);
    return 0;
}

static int check_simulation(const struct opts *o, struct err *e)
{
    if (o->command == CMD_PLAN)
        TRY(check_plan(o, e));
    if (!o->shape && (!o->trace || !o->trace[0]))
        return err_set(e, E_INPUT,
                       "which traffic? --trace FILE, or a generator like --trace poisson:rate=4,requests=1000");
    if (o->hardware && !o->model)
        return err_set(e, E_INPUT, "which model? --hardware %.40s needs --model NAME, a description in models",
                       o->hardware);
    if (o->model && !o->hardware)
        return err_set(e, E_INPUT,
                       "which machine? --model %.40s needs --hardware NAME, a description in models/hardware",
                       o->model);
    static const char *const fixed[] = {"hf-config",  "dummy-dtype",    "sim-step-us",
                                        "sim-row-us", "kv-cache-dtype", "rank-memory"};
    for (int i = 0; i < o->given.n && o->hardware; i++)
        for (int k = 0; k < 6; k++)
            if (!strcmp(o->given.items[i], fixed[k]))
                return err_set(e, E_INPUT, "--%s says what --hardware and --model say already: leave one of them away",
                               fixed[k]);
    if (!o->hardware && o->lockstep)
        return err_set(e, E_INPUT, "--lockstep needs a described machine: --hardware and --model");
    if (!o->hardware && (o->weight_tp > 1 || o->weight_pp > 1))
        return err_set(e, E_INPUT, "--weight-%s needs a machine with a memory: --hardware and --model",
                       o->weight_tp > 1 ? "shares" : "stages");
    if (o->samples == 1)
        return err_set(e, E_INPUT, "--samples 1 has no band: ask for 2 or more, better 20");
    if (o->samples && o->sample)
        return err_set(e, E_INPUT, "--sample is one of --samples: leave one of them away");
    if (!o->hardware && o->link_scale != 1)
        return err_set(e, E_INPUT, "--all-reduce-scale needs a described machine: --hardware and --model");
    return check_params(o, e);
}

static int check_search(const struct opts *o, struct err *e)
{
    static const char *const other[] = {"request-log", "plots"};
    if (o->objectives.n < 1 || o->objectives.n > 2)
        return err_set(e, E_INPUT,
                       "what should be optimised? --objective \"p99 TTFT\"; a second --objective asks for the Pareto "
                       "front of two");
    if (o->policies.n != 1)
        return err_set(e, E_INPUT, "one --policy is searched at a time");
    for (int i = 0; i < o->given.n; i++)
        for (int k = 0; k < 2; k++)
            if (!strcmp(o->given.items[i], other[k]))
                return err_set(e, E_INPUT,
                               "--%s belongs to one run: moonshift simulate with the params that were found", other[k]);
    return 0;
}

/* Each policy has its own params, so those for all would be refused by some. */
static int check_regret(const struct opts *o, struct err *e)
{
    static const struct {
        const char *flag, *why;
    } other[] = {{"policy-param", "give each policy its own behind its name: shift:threshold=256"},
                 {"policy-params-file", "give each policy its own behind its name: shift:threshold=256"},
                 {"request-log", "it belongs to one run: moonshift simulate --policy"},
                 {"plots", "they belong to a few runs: moonshift simulate --policy"},
                 {"compare", "decisions are compared by moonshift simulate"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (opts_given(o, other[i].flag))
            return err_set(e, E_INPUT, "--%s: %s", other[i].flag, other[i].why);
    return 0;
}

/* What speaks to a server: what they cannot do without. */
static int check_remote(const struct opts *o, struct err *e)
{
    if (o->file || o->command == CMD_POLICY_LIST || o->command == CMD_POLICY_ROLLBACK || o->command == CMD_POLICY_LOG ||
        o->command == CMD_POLICY_WHY || o->command == CMD_POLICY_SHADOW || o->command == CMD_POLICY_CANARY ||
        o->command >= CMD_LIMITS)
        return 0;
    return err_set(e, E_INPUT, "which %s? moonshift %s --help tells more",
                   o->command == CMD_POLICY_PUSH ? "file" : "policy", opts_command_name(o->command));
}

/* Which of the ways to look back. */
static int check_revisit(const struct opts *o, struct err *e)
{
    bool step = o->command == CMD_POLICY_STEP, at = opts_given(o, "at");
    int64_t number = 0;
    if (step && !o->recording)
        return err_set(e, E_INPUT, "which recording? moonshift policy step N --recording FILE");
    if (step && !o->file == !at)
        return err_set(e, E_INPUT, "which decision? one of its number, as moonshift simulate counts, and --at SECONDS");
    if (o->recording && !o->recording[0])
        return err_set(e, E_INPUT, "--recording wants a file's name");
    if (step && o->file && (opts_human(o->file, &number) || number < 1))
        return err_set(e, E_INPUT, "a decision's number is 1 or more, not '%.40s'", o->file);
    if (o->recording && o->why_file) /* --server and --policy may well stand in the environment */
        return err_set(e, E_INPUT, "one of --recording and --file is read, not both");
    return o->why_id && opts_given(o, "slowest")
               ? err_set(e, E_INPUT, "--slowest is for no request in particular: leave it or the id away")
               : 0;
}

int opts_cross_check(struct opts *o, struct err *e)
{
    if (opts_where(o->command) & IN_REVISIT)
        TRY(check_revisit(o, e));
    if (o->command == CMD_POLICY_STEP)
        return 0;
    if (opts_where(o->command) & IN_REMOTE)
        return check_remote(o, e);
    if (o->command == CMD_POLICY_CHECK)
        return o->file ? 0 : err_set(e, E_INPUT, "which file? moonshift policy check FILE");
    if (o->command == CMD_POLICY_TEST)
        return o->file
                   ? 0
                   : err_set(e, E_INPUT,
                             "which file? moonshift policy test FILE|FOLDER (policies/TESTING.md says what it runs)");
    if (o->command == CMD_POLICY_NEW)
        return o->file ? 0 : err_set(e, E_INPUT, "what shall it be called? moonshift policy new NAME");
    if (o->command == CMD_LUA_PATH)
        return 0;
    if (o->command == CMD_REPRODUCE)
        return 0;
    if (o->command == CMD_TUNE)
        TRY(check_search(o, e));
    if (o->command == CMD_REGRET)
        TRY(check_regret(o, e));
    if (opts_where(o->command) & IN_SIMULATE)
        return check_simulation(o, e);
    bool dummy = !strcmp(o->load_format, "dummy");
    if (dummy && o->command == CMD_RUN && !o->prompt) { /* there is no model file to name: the one word is the prompt */
        o->prompt = o->model;
        o->model = NULL;
    }
    if (dummy && !o->hf_config)
        return err_set(e, E_INPUT,
                       "--load-format dummy needs --hf-config FILE, the config.json of the model to make up");
    if (!dummy && o->hf_config)
        return err_set(e, E_INPUT, "--hf-config is only read with --load-format dummy");
    if (dummy && o->tokenizer)
        return err_set(e, E_INPUT, "--tokenizer is not read with --load-format dummy, whose tokens are bytes");
    bool encoder_alone = (o->command == CMD_SERVE || o->command == CMD_BATCH) && o->embedding_model;
    if (!dummy && !encoder_alone && (!o->model || !o->model[0]))
        return err_set(e, E_INPUT, "which model? moonshift %s MODEL.gguf", opts_command_name(o->command));
    if (o->command == CMD_BATCH && (!o->input || !o->output))
        return err_set(e, E_INPUT, "%s: moonshift batch MODEL -i LINES.jsonl -o ANSWERS.jsonl",
                       o->input ? "where do the answers go?" : "which lines?");
    TRY(check_disk(o, e));
    TRY(check_isolation(o, e));
    TRY(check_encoder(o, e));
    TRY(check_drafts(o, e));
    TRY(opts_take_speculative(o, e));
    return check_params(o, e);
}

int opts_admin_address(const struct opts *o, char host[256], int *port, struct err *e)
{
    if (!o->admin_listen) {
        snprintf(host, 256, "127.0.0.1");
        *port = o->port == 0 ? 0 : o->port == 65535 ? 65534 : (int)o->port + 1;
        return 0;
    }
    host[0] = 0;
    if (!strcmp(o->admin_listen, "off"))
        return 0;
    const char *colon = strrchr(o->admin_listen, ':');
    int64_t n = -1;
    size_t len = colon ? (size_t)(colon - o->admin_listen) : 0;
    if (!colon || opts_human(colon + 1, &n) || n < 0 || n > 65535 || !len || len > 250)
        return err_set(e, E_INPUT, "--admin-listen wants ADDRESS:PORT or off, not '%.60s'", o->admin_listen);
    bool brackets = o->admin_listen[0] == '[' && colon[-1] == ']';
    snprintf(host, 256, "%.*s", (int)(brackets ? len - 2 : len), o->admin_listen + brackets);
    *port = (int)n;
    return 0;
}
