/* What the command line asks for. Every setting is one row of one table (opts_table.c), from which parsing, the
 * environment's mirror (MOONSHIFT_MAX_MODEL_LEN for --max-model-len), the config file and --help all follow. The
 * command line wins over the environment, that over --config FILE, that over the default. Names are vLLM's where vLLM
 * has one. Main thread, before any other starts; immutable afterwards. Invariant: every accepted flag has an effect,
 * unless its value is what happens anyway. */
#ifndef CLI_OPTS_H
#define CLI_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/strings.h"

enum opts_command {
    CMD_SERVE,
    CMD_RUN,
    CMD_BATCH,
    CMD_POLICY_CHECK,
    CMD_POLICY_TEST,
    CMD_POLICY_WHY,
    CMD_POLICY_STEP,
    CMD_POLICY_NEW,
    CMD_LUA_PATH,
    CMD_SIMULATE,
    CMD_REPRODUCE,
    CMD_TUNE,
    CMD_PLAN,
    CMD_REGRET,
    CMD_POLICY_PUSH, /* from here on they speak to a running server */
    CMD_POLICY_LIST,
    CMD_POLICY_SHOW,
    CMD_POLICY_DIFF,
    CMD_POLICY_ACTIVATE,
    CMD_POLICY_ROLLBACK,
    CMD_POLICY_LOG,
    CMD_POLICY_SHADOW,
    CMD_POLICY_CANARY,
    CMD_POLICY_WHAT_IF,
    CMD_LIMITS, /* these take no words */
    CMD_STATE,
    CMD_TOP,
    CMD_HELP,
    CMD_VERSION
};

/* What CMD_HELP prints: help for people, or what an installation carries, made from the same table (opts_page.h). */
enum opts_form { FORM_HELP, FORM_MAN, FORM_BASH, FORM_ZSH };

struct opts {
    enum opts_command command;
    enum opts_command help_for; /* CMD_HELP: of this command; CMD_HELP itself: the overview */
    enum opts_form form;        /* CMD_HELP */
    /* the model */
    char *model, *load_format, *hf_config, *dummy_dtype, *chat_template, *tokenizer, *tool_calls, *reasoning;
    char *think_end, *probe_text; /* NULL: as the chat template says; the usual words */
    struct strings names;         /* as served; empty: the model's file name */
    int64_t max_model_len;        /* 0: the model's context */
    uint64_t seed;
    /* an encoder beside it */
    char *embedding_model, *embedding_name; /* NULL: none; the file's name */
    int64_t embedding_replicas, embedding_threads, embedding_batch_tokens, embedding_queued_tokens;
    /* memory */
    char *kv_dtype;
    int64_t kv_bytes; /* 0: memory_share decides */
    double memory_share;
    int64_t block_size;
    double park_s;
    bool prefix_caching;
    /* scheduling */
    int64_t max_num_seqs, max_num_batched_tokens, max_num_queued_reqs, max_num_queued_tokens;
    char *policy, *policy_dir;
    char *state_dir;              /* NULL: versions of policies end with the process */
    char *speculative;            /* NULL: nothing is drafted unless the policy does */
    double draft_acceptance;      /* simulate: the chance that a draft token is right; 0: as recorded, or none */
    int64_t draft_bytes;          /* of the tenants' suffix trees; 0: none */
    char *draft_file;             /* NULL: what was said ends with the process */
    char *draft_model;            /* a folder with the heads of a speculator, or a model; NULL: none */
    char *draft_kind;             /* "heads" or "model": which of them is meant; NULL: what it is. No flag of its own */
    int draft_tokens;             /* heads that are used, tokens of a guess; 0: all there can be. No flag of its own */
    int64_t draft_kv_bytes;       /* for the KV of a draft model */
    char *draft_from;             /* "outputs", "prompts" or "both" */
    struct strings policy_params; /* NAME=VALUE */
    char *policy_params_file;     /* an object of them; NULL: none */
    /* the machine */
    char *device, *isa, *devices; /* devices: NULL: in turn */
    char *numa;                   /* auto, off; NULL: auto */
    char *cpu_precision;          /* high, fast; NULL: fast, where there is a choice */
    char *graph_sizes;            /* NULL: the usual ones */
    bool invariant, enforce_eager, warmup, profile;
    bool plain_kernels, early_launch, self_check; /* of GPUs */
    char *gpu_tuning;                             /* a folder or "off"; NULL: the usual folder */
    bool async_scheduling;
    int64_t run_ahead;
    int64_t threads;
    int64_t ranks, sp, tp, pp, dp; /* 0: not given */
    char *shift_weights;
    char *weights, *pool_owner, *pool_order;    /* pool_order: NULL: as the slots allow */
    int64_t host_kv;                            /* bytes */
    char *disk_kv;                              /* PATH[:BYTES] */
    int64_t shard_memory;                       /* 0: not given */
    int64_t rank_memory, pool_slots, pool_tile; /* rank_memory 0: not given */
    double link_gbps;                           /* 0: no bound; a described machine: its own */
    struct strings comm_sets;
    double sim_step_us, sim_row_us;
    /* the server */
    char *host;
    int64_t port, shutdown_s;
    struct strings api_keys, api_key_files, admin_keys, admin_key_files, origins, admin_hosts;
    double text_s;                                    /* 0: no bound */
    char *admin_listen;                               /* ADDRESS:PORT, or "off" */
    int64_t max_connections, connections_per_address; /* per address 0: half of all */
    char *batch_dir;
    int64_t batch_file_bytes, batch_bytes, batch_files;
    int64_t body_bytes, bodies_bytes, answers_bytes, client_rate, body_s;
    /* logs */
    char *log_level, *log_format;
    bool disable_log_stats, log_requests;
    int64_t request_history, decision_bytes; /* requests that ended whose timelines are kept; of the decision log */
    bool dry_run;
    char *record;          /* serve: NULL: not asked for */
    int64_t what_if_bytes; /* serve: of the last traffic, in memory; 0: nothing is kept */
    char *config;
    /* run */
    char *prompt, *system; /* NULL: not given */
    double temperature, top_p, min_p;
    int64_t top_k, max_tokens;
    bool raw;
    char *history; /* a file, or "off"; NULL: the usual place */
    /* batch */
    char *input, *output, *errors; /* errors NULL: the output with .errors behind it */
    /* policy check, policy test, policy new */
    char *file;     /* of the other verbs of policy: their first word */
    char *template; /* NULL: the one to begin with */
    bool watch;
    /* policy why, policy step */
    char *why_id, *why_file; /* NULL: not given */
    int64_t slowest;
    char *recording;    /* NULL: a running server is asked */
    double at_s;        /* of step, whose number is `file` */
    struct strings set; /* limits: NAME=VALUE */
    /* policy push, list, show, diff, activate, rollback, log, shadow, canary, what-if; limits, state, top */
    char *file2;                  /* of diff: the second word; NULL: none */
    char *server, *client_config; /* NULL: as in engine/remote/client.h */
    char *as_name, *sha, *to;     /* NULL: not given */
    bool activate, force, verify, as_json, try_first, hold_to_prediction;
    /* lua-path */
    bool cpath;
    /* simulate */
    char *hardware; /* NULL: fixed costs */
    int64_t weight_tp, weight_pp;
    double link_scale;
    bool lockstep;
    char *trace, *trace_hashes; /* a file or a generator; NULL: no hashes beside it */
    struct strings policies;    /* NAME|FILE[:param=value,...] */
    double from_s, seconds;     /* of the trace; 0: from its beginning; all */
    int64_t requests;           /* of the trace; 0: all */
    double rate;                /* requests a second instead of the trace's; 0: its own */
    int64_t nodes;              /* behind a router */
    char *router;
    double slo_ttft_ms, slo_tpot_ms;   /* 0: none */
    double starvation_s;               /* 0: off */
    double policy_probation_s;         /* 0: off */
    char *policy_isolation;            /* thread, process */
    double policy_shadow_share, for_s; /* for_s: of a shadow, a canary */
    bool end_beside;
    char *groups; /* of a canary; NULL: not given */
    bool what_if,
        compare; /* of a recording: modelled step times, or recorded decisions to compare with, whatever the policy */
    bool strict; /* what the recording never shows is refused */
    char *json, *plots, *request_log; /* NULL: not asked for */
    int64_t samples, sample;          /* how many; one of them, from 1 on; 0: none */
    /* reproduce */
    struct strings only;
    bool bars;
    char *list, *markdown;
    int64_t jobs; /* of tune, plan and samples too; 0: as many as there are cores */
    /* tune */
    struct strings objectives, constraints, params;
    int64_t budget; /* of plan and regret too */
    char *params_out;
    /* regret */
    struct strings metrics;
    int64_t bins;
    char *schedule_out;
    /* plan */
    char *shape; /* NULL: a trace */
    int64_t max_devices;
    double price; /* of a device for an hour; 0: none */
    /* names of settings that are not at their defaults, for the start-up line; the strings above live here too */
    struct strings given, owned;
};

struct opts_input {
    int argc;
    char **argv;
    char *const *env; /* as main's envp; NULL: none */
};

/* Keys among the words of the command line are overwritten there once read: what is left shows in the list of
 * processes. E_INPUT: what is wrong, with the nearest right word; E_UNSUPPORTED: a flag of vLLM's that is not offered
 * here; E_NOTFOUND, E_SYS: the config file. o must be freed in every case. */
int opts_parse(struct opts *o, const struct opts_input *in, struct err *e);
void opts_free(struct opts *o);
/* For an encoder that is served alone: refuses, by name, what only a model that writes has a use for. */
int opts_check_alone(const struct opts *o, struct err *e);
bool opts_given(const struct opts *o, const char *name); /* not at its default; the name without its dashes */
/* What --admin-listen says, ADDRESS:PORT, the address in brackets when it is IPv6; nothing given: the port after the
 * server's, on this machine only; off: host "". */
int opts_admin_address(const struct opts *o, char host[256], int *port, struct err *e);
void opts_help(enum opts_command command, struct buf *out);
/* What is not at its default, as words of that command that mean the same ("moonshift" left out), but for settings
 * named in `but` (ends with NULL). Each word is the caller's. */
void opts_args(const struct opts *o, enum opts_command command, const char *const *but, struct strings *out);
/* "--policy fair --port 9000": what is not at its default; keys are not shown. */
void opts_show(const struct opts *o, struct buf *out);

/* A count with an optional suffix, as vLLM reads it: 32k = 32,000, 32K = 32,768 (also m M g G t T, and KiB MiB GiB TiB,
 * kB MB GB TB); a fraction is allowed before a decimal suffix. E_INPUT for anything else, E_INPUT when past int64. */
int opts_human(const char *text, int64_t *out);
/* The BYTES of PATH[:BYTES], and how long the path is; DISK_GIB where there are none; -1: what begins with a digit
 * behind the last colon is no size. */
enum { DISK_GIB = 16 };
int64_t opts_disk_bytes(const char *text, size_t *path_len);

#endif
