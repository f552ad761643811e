/* `moonshift serve`: the doors are tried before the model is loaded, and the guard bounds the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/thread.h"
#include "engine/command/app.h"
#include "engine/serve/batch/files_api.h"
#include "engine/serve/batch/identity.h"
#include "engine/base/version.h"

/* Where it listens, and for whom. */
static int name_doors(struct app *a, struct server_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    *s = (struct server_setup){
        .host = o->host,
        .port = (int)o->port,
        .api_keys = (const char *const *)o->api_keys.items,
        .n_api_keys = o->api_keys.n,
        .api_key_files = (const char *const *)o->api_key_files.items,
        .n_api_key_files = o->api_key_files.n,
        .admin_key = o->admin_keys.n ? o->admin_keys.items[o->admin_keys.n - 1] : NULL,
        .admin_key_files = (const char *const *)o->admin_key_files.items,
        .n_admin_key_files = o->admin_key_files.n,
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
        log_warn("main",
                 "VLLM_API_KEY is not read: without --api-key-file or MOONSHIFT_API_KEY every client is let in");
    return server_can_start(&s, e);
}

static struct files_limits limits_of_files(const struct opts *o)
{
    return (struct files_limits){
        .file_bytes = (uint64_t)o->batch_file_bytes, .bytes = (uint64_t)o->batch_bytes, .n = (int)o->batch_files};
}

/* A file comes as one body and goes as one answer, so it has to be allowed as both. The folder is looked at now: the
 * model may take minutes. */
static int check_files(const struct opts *o, struct err *e)
{
    struct files_limits limits = limits_of_files(o);
    struct files *files = NULL;
    if (!o->batch_dir)
        return 0;
    if (o->batch_file_bytes + FILES_API_FORM > o->body_bytes)
        return err_set(e, E_INPUT,
                       "a file of --batch-file-bytes, and 64 KiB, do not fit into --max-body-bytes: raise that one, or "
                       "lower the other");
    if (o->batch_file_bytes > o->answers_bytes / 4)
        return err_set(e, E_INPUT,
                       "a file of --batch-file-bytes is more than one answer may have, a quarter of "
                       "--max-answer-memory: raise that one, or lower the other");
    TRY(files_open(&files, o->batch_dir, &limits, e));
    files_close(files);
    return 0;
}

static int open_server(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    struct server_setup s = {.clock = &a->clock, .guard = a->guard}, doors;
    TRY(name_doors(a, &doors, e));
    if (a->engine) {
        const struct limits *l = &engine_node(a->engine)->limits;
        app_plan_server(a, &s);
        s.ledger = o->dry_run ? NULL : a->ledger;
        s.policy_why = o->dry_run ? NULL : a->policy_why;
        s.probation_s = o->policy_probation_s;
        s.whatif = app_plan_what_if(a);
        s.max_live = o->max_num_queued_reqs ? l->max_num_seqs + l->max_num_queued_reqs : 0;
    }
    s.host = doors.host;
    s.port = doors.port;
    s.admin_host = doors.admin_host;
    s.admin_port = doors.admin_port;
    s.api_keys = doors.api_keys;
    s.n_api_keys = doors.n_api_keys;
    s.api_key_files = doors.api_key_files;
    s.n_api_key_files = doors.n_api_key_files;
    s.admin_key = doors.admin_key;
    s.admin_key_files = doors.admin_key_files;
    s.n_admin_key_files = doors.n_admin_key_files;
    s.origins = (const char *const *)o->origins.items;
    s.n_origins = o->origins.n;
    s.admin_hosts = (const char *const *)o->admin_hosts.items;
    s.n_admin_hosts = o->admin_hosts.n;
    s.http = (struct http_limits){.body = (size_t)o->body_bytes,
                                  .bodies = (size_t)o->bodies_bytes,
                                  .answers = (size_t)o->answers_bytes,
                                  .rate = (size_t)o->client_rate,
                                  .body_s = (int)o->body_s,
                                  .connections = (int)o->max_connections,
                                  .per_address = (int)o->connections_per_address};
    s.embed = app_plan_encoder(a);
    s.batch_dir = o->batch_dir;
    if (o->batch_dir && !app_is_alone(a))
        app_model_identity(o, &a->batch_model);
    if (o->batch_dir && o->embedding_model)
        identity_put(o->embedding_model, &a->batch_encoder);
    s.batch_model = a->batch_model.data;
    s.batch_encoder = a->batch_encoder.data;
    s.batch_files = limits_of_files(o);
    s.text_s = o->text_s > 0 ? o->text_s : -1;
    s.log_requests = o->log_requests;
    return server_create(&a->server, &s, e);
}

static void say_ready(const struct app *a)
{
    const struct opts *o = &a->opts;
    bool six = strchr(o->host, ':') != NULL;
    if (a->engine)
        log_info("main", "Model '%s', up to %d tokens a request; chat template: %s",
                 o->names.n ? o->names.items[0] : a->served, engine_node(a->engine)->limits.max_model_len,
                 a->chat ? "yes" : "none, /v1/completions only");
    if (a->encoder) {
        const struct encoder_facts *f = encoder_facts(a->encoder);
        log_info("main", "Encoder '%s', up to %d tokens a text; %s, %lld replica(s)", a->encoder_name, f->max_tokens,
                 f->n_labels ? "a cross-encoder: /v1/rerank and /v1/score" : "/v1/embeddings, /v1/rerank, /v1/score",
                 (long long)o->embedding_replicas);
    }
    log_info("main", "Application startup complete.");
    log_info("main", "Moonshift %s on http://%s%s%s:%d", version_number, six ? "[" : "", o->host, six ? "]" : "",
             server_port(a->server, false));
    if (server_port(a->server, true))
        log_info("main", "Admin routes on port %d", server_port(a->server, true));
}

int command_serve(struct app *a, struct err *e)
{
    struct buf given = {0};
    TRY(app_isolate(a, e));
    opts_show(&a->opts, &given);
    log_info("main", "Moonshift %s: %s", version_full, given.data ? given.data : "defaults");
    buf_free(&given);
    TRY(check_doors(a, e));
    TRY(check_files(&a->opts, e));
    TRY(app_open_state(a, e));
    TRY(app_settle_encoder(a, e));
    TRY(app_open_encoder(a, e));
    if (app_is_alone(a))
        clock_init_real(&a->clock);
    else
        TRY(app_open(a, e));
    TRY(guard_start(&a->guard, (int)a->opts.shutdown_s, e));
    TRY(open_server(a, e));
    if (a->opts.dry_run) {
        log_info("main", "Dry run: everything fits; nothing was served.");
        return 0;
    }
    if (a->engine)
        TRY(thread_start(&a->engine_thread, "engine", engine_run, a->engine, e));
    say_ready(a);
    int rc = server_run(a->server);
    app_stop_engine(a);
    log_info("main", rc ? "Stopped." : "Drained, all answers ended.");
    return rc ? err_set(e, E_GONE, "stopped before every answer had ended") : 0;
}
