/* What the commands put together: the parts of a program that serves, runs or simulates, from the settings. One of
 * these lies in main.c; parts are opened in order and closed in the opposite order by app_close, whatever was opened.
 * Main thread. Nothing here outlives main. */
#ifndef COMMAND_APP_H
#define COMMAND_APP_H

#include <limits.h>

#include "engine/cli/opts.h"
#include "engine/draft/heads.h"
#include "engine/draft/model.h"
#include "engine/draft/suffix.h"
#include "engine/engine.h"
#include "engine/lab/drafts.h"
#include "engine/lab/simulate_recorded.h"
#include "engine/lab/recording/record.h"
#include "engine/serve/guard.h"
#include "engine/serve/server.h"
#include "engine/serve/versions/ledger.h"
#include "kernels/sim/machine.h"
#include "lua/host.h"
#include "lua/nursery.h"
#include "models/encode/encoder.h"
#include "models/guide/guide.h"
#include "models/template/chat.h"
#include "models/tokenizer/tokenizer.h"

struct app {
    struct opts opts;
    struct clock clock;
    struct sim_machine *machine; /* simulate; NULL: fixed costs */
    struct backend_ops watched;  /* of --profile */
    struct model *model;
    struct gguf *tokenizer_gguf; /* --tokenizer */
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct buf chat_source;
    struct buf batch_model, batch_encoder; /* serve --batch-dir: what tells them from others */
    struct lua_watchdog *watchdog;
    struct lua_opts lua;
    struct nursery *nursery; /* serve: of --policy-isolation process; else NULL */
    char policy_dir[PATH_MAX], policy_path[PATH_MAX], disk_path[PATH_MAX], cache_dir[PATH_MAX], policy_name[NAME_BYTES],
        served[128], admin_host[256];
    const char *names[2];
    uint64_t comm_sets[MAX_RANKS];
    struct ffn_setup pool;         /* --weights pooled */
    struct policy policy;          /* until the engine takes it */
    struct buf policy_source;      /* its text; empty: the native one */
    char *policy_params;           /* that it was given, JSON; NULL: none */
    char policy_why[200];          /* it is the one, for the record */
    struct ledger *ledger;         /* serve: versions of policies; NULL: none */
    struct suffix *suffix;         /* NULL: no suffix decoding */
    struct speculator *speculator; /* until the ranks have loaded it; NULL: none */
    struct model *draft_model;     /* NULL: none */
    struct drafter_plan drafter;   /* with it; the engine borrows it */
    struct model_drafts *model_drafts;
    struct draft_sources drafts;       /* the engine borrows them */
    struct thinking thinking;          /* it, too; n_suffix 0: the model has none that is known to end */
    struct modelled_drafts modelled;   /* simulate */
    struct recording *traced;          /* simulate, for its head: the trace, on another machine than its own */
    struct recorder *recorder;         /* serve: of --record, and of the window of --what-if-memory */
    struct record_window *window;      /* NULL: none is kept */
    struct recorded_machine recorded;  /* simulate */
    struct guide_tokens *guide_tokens; /* serve, batch */
    struct engine *engine;
    struct thread *engine_thread;
    struct encoder *encoder; /* serve, batch: --embedding-model, or the model itself; NULL: none */
    char encoder_name[128];
    struct embed_link embed_link; /* what the engine's policy knows of the encoder */
    struct server *server;
    struct guard *guard; /* serve: from when the model stands */
    int status;          /* of the process, when nothing is wrong with what was asked */
};

/* ---- app.c */

/* The model, its tokenizer and template, the policy and the engine, ready to run. */
int app_open(struct app *a, struct err *e);
void app_stop_engine(struct app *a);
void app_close(struct app *a);
/* What a server needs of the model, the engine and the policies; where it listens, and for whom, is left open. */
void app_plan_server(struct app *a, struct server_setup *out);
/* What tells the model from another one whose answers may differ, for batches (engine/serve/batch/identity.h). */
void app_model_identity(const struct opts *o, struct buf *out);
/* What clients call a model of this path: its last word, without .gguf. */
void app_name_file(const char *path, char out[128]);
/* What clients call the model: as asked for, else the file's name without its ending. */
void app_name_model(struct app *a);
/* What the settings say of the node and its limits; no policy. */
int app_plan_engine(struct app *a, struct engine_setup *out, struct err *e);
/* Whether and how FFN weights are pooled, once it is settled how many ranks there are. */
int app_plan_pool(struct app *a, struct engine_setup *s, struct err *e);
void app_name_policy(struct app *a, const char *path);
int app_start_lua(struct app *a, struct err *e);
/* The same for virtual time, on a node of so many ranks: how fast this machine is must not show. */
int app_start_lua_untimed(struct app *a, int n_ranks, struct err *e);
/* A policy as --policy names it (engine/cli/policy_ref.h), with these params where it has none of its own. The caller
 * destroys it. */
int app_load_policy(struct app *a, const char *asked, const struct strings *given, struct policy *out, struct err *e);

/* ---- profiling.c */

/* Where there is to be a profile, the ops become watched ones, which lie in a. */
void app_watch_ops(struct app *a, struct engine_setup *s);
/* What the ranks have counted, on standard error, or where a server runs in its log; nothing without --profile. Once
 * the engine's thread has ended. */
void app_say_profile(const struct app *a);

/* ---- drafting.c */

/* The sources of draft tokens, and what the engine needs for them. */
int app_open_drafts(struct app *a, struct engine_setup *s, struct err *e);
void app_keep_drafts(struct app *a);  /* what was said goes on in the next process; once the engine has stopped */
void app_close_drafts(struct app *a); /* after the engine */

/* ---- probing.c */

/* How the model's thinking ends, for early stops, from the settings and the chat template. E_INPUT: words that cannot
 * be. */
int app_plan_thinking(struct app *a, struct err *e);
/* Can requests be probed: does it end, and are there a prefix cache and no recording? */
bool app_can_probe(const struct app *a);

/* ---- state.c */

/* The folder of --state-dir, before the model, which may take minutes. */
int app_open_state(struct app *a, struct err *e);
/* The policy that was good last becomes a's; false: there is none that loads, and the log says why. */
bool app_boot_last_good(struct app *a);
void app_say_boot(struct app *a, const char *why); /* another policy than that begins */

/* ---- encoder.c */

/* `serve ENCODER` is `serve --embedding-model ENCODER`, and so is `batch`. Before anything is opened. */
int app_settle_encoder(struct app *a, struct err *e);
bool app_is_alone(const struct app *a); /* there is an encoder and no model that writes */
/* Before the model, which may take minutes; nothing where there is no encoder. */
int app_open_encoder(struct app *a, struct err *e);
struct embed_plan app_plan_encoder(struct app *a);

/* ---- whatif.c */

/* The recorder, for a file, for the window of what-if, or for both; none where neither is wanted. */
int app_open_recorder(struct app *a, struct engine_setup *s, struct err *e);
struct whatif_window_ops app_plan_what_if(struct app *a);

/* ---- isolate.c */

/* Where policies are to have processes of their own: what these are forked from. First of all, as nothing may lie in
 * this process that they must not have, and no thread run. E_INPUT, E_UNSUPPORTED, E_SYS. */
int app_isolate(struct app *a, struct err *e);

/* ---- one file each: serve.c, run.c, batch.c, simulate.c, search.c, policy.c, revisit.c */

int command_serve(struct app *a, struct err *e);
int command_run(struct app *a, struct err *e);
int command_batch(struct app *a, struct err *e);
/* A recording has a machine of its own; any other trace needs one to be named. Before anything is opened. */
int command_check_machine(const struct opts *o, struct err *e);
int command_simulate(struct app *a, struct err *e);
int command_tune(struct app *a, struct err *e);
int command_plan(struct app *a, struct err *e);
int command_regret(struct app *a, struct err *e);
int command_reproduce(struct app *a, struct err *e);
int command_policy_check(struct app *a, struct err *e);
int command_revisit(struct app *a, struct err *e); /* policy step, policy why: of a recording */
int command_remote(struct app *a, struct err *e);  /* what speaks to a running server */

#endif
