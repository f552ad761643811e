/* The server: everything between the sockets and the engine's two queues. main.c makes one after the engine stands,
 * runs it on the main thread, and takes it down. SIGTERM or SIGINT drains: /health and new work answer 503, streams go
 * on to their end; a second signal, or --shutdown-timeout, stops at once (guard.h). The port opens when the engine
 * stands: before that a connection is refused, from then on /health says 200, while draining 503. Order at the end:
 * server_run returns -> main posts IN_STOP to the engine and joins its thread -> server_destroy -> engine_destroy.
 * Invariant: nothing is handed to the engine after server_run has returned. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/queue.h"
#include "engine/serve/batch/files.h"
#include "engine/serve/embed/embed_api.h"
#include "engine/serve/guard.h"
#include "engine/serve/http/http.h"
#include "engine/serve/whatif/whatif.h"
#include "models/template/chat.h"
#include "models/tokenizer/tokenizer.h"

struct ledger;
struct lua_opts;
struct server;

struct server_setup {
    const char *host;            /* NULL: every address */
    int port;                    /* 0: any free one (server_port) */
    const char *const *api_keys; /* KEY or KEY=TENANT; none here and in the files: open */
    int n_api_keys;
    const char *const *api_key_files; /* lines of KEY or KEY TENANT */
    int n_api_key_files;
    const char *const *origins; /* CORS: allowed origins, or "*"; none: CORS is off */
    int n_origins;
    const char *admin_host; /* NULL: no admin listener */
    int admin_port;
    const char *admin_key; /* NULL or "": none; without any, it listens on a loopback address or not at all */
    const char *const *admin_key_files;
    int n_admin_key_files;
    const char *const *admin_hosts; /* names that it answers to besides loopback and admin_host; "*": any */
    int n_admin_hosts;
    struct http_limits http;
    int max_text_jobs; /* requests being read at once, per lane; 0: 512 */
    double text_s;     /* CPU seconds that reading one request may take; 0: 10, < 0: no bound */
    int max_live;      /* sequences in the engine and on the way; 0: no bound but the engine's. max_num_seqs +
                          max_num_queued_reqs */
    int max_num_seqs,
        max_num_batched_tokens; /* of the engine: what one request may take of it follows from them; 0: no bound */
    int ping_s;                 /* SSE comment after so many silent seconds; 0: 5; < 0: never */
    bool force_usage;           /* --enable-force-include-usage */
    bool log_requests;          /* a line for each answer */
    struct guard *guard;   /* what SIGTERM and SIGINT mean, and when a drain has taken too long; borrowed; NULL: nobody
                              says so (tests) */
    const char *batch_dir; /* where files of clients are kept; NULL: /v1/files is not offered */
    const char *batch_model, *batch_encoder; /* with it: what tells each from another one (identity.h); NULL: none */
    struct files_limits batch_files;
    /* the model that writes; without one (no names, no tokenizer) the encoder is served alone: no queues, no policies
     */
    const char *const *names; /* served names; none: there is no such model */
    int n_names;
    const char *root;                  /* model path, for /v1/models */
    const struct tokenizer *tokenizer; /* borrowed, like all here, until server_destroy */
    const struct chat_template *chat;  /* NULL: chat is refused */
    const char *chat_source;           /* NULL when chat is */
    int n_vocab, max_model_len;
    const char *think_end;   /* the marker behind the model's thinking; NULL: it has none that is known */
    bool can_probe;          /* early stops are offered */
    bool splits_thoughts;    /* what it thinks is told from the answer */
    enum tool_format tools;  /* how it calls functions */
    struct embed_plan embed; /* an encoder, beside the model or alone */
    /* the engine */
    struct clock *clock;
    struct queue *inbox, *outbox; /* engine_inbox(g), engine_outbox(g); NULL without a model */
    /* policies */
    struct suffix *suffix;      /* what was said, for draft tokens; NULL: it is not kept */
    const struct lua_opts *lua; /* for policies loaded live */
    const char *policy_dir;     /* NULL: PUT needs a body, the listing is empty */
    const char *policy_name;    /* of the live one at the start; NULL: the native policy */
    const char *policy_path;    /* its file, watched; NULL: none */
    const char *policy_libs;    /* what it is made of besides, as in struct policy; NULL: nothing */
    bool no_watch;
    struct ledger *ledger;           /* versions of policies and their record; borrowed; NULL: in memory */
    const struct buf *policy_source; /* of the live one at the start; NULL: not known */
    const char *policy_params;       /* that it was given, a JSON object; NULL: none */
    const char *policy_why;          /* it is the one, for the record; NULL: not recorded */
    struct whatif_window_ops whatif; /* the last of its own traffic; write NULL: nothing is kept */
    double probation_s;              /* so long a policy is live before it is the last good one */
};

/* Whether its keys and addresses (host, port, admin_host, admin_port) can be had: asked before a model is loaded for
 * minutes. A key file that is a pipe is not opened: it can be read only once. E_INPUT, E_SYS. */
int server_can_start(const struct server_setup *s, struct err *e);
/* Binds and listens, starts the text workers. E_INPUT: bad host, key or name; E_SYS: address in use. */
int server_create(struct server **out, const struct server_setup *s, struct err *e);
/* Serves until drained (returns 0) or stopped at once (E_GONE). Ignores SIGPIPE. */
int server_run(struct server *s);
void server_drain(struct server *s); /* as a first signal; on the thread of server_run, or before it */
int server_port(const struct server *s, bool admin);
void server_destroy(struct server *s); /* NULL is fine; frees what the engine left in its outbox */

#endif
