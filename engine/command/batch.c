/* `moonshift batch`: a server for nobody but this process, on a port of its own with a key of its own, and a job that
 * asks it. The server runs on the main thread, where signals are taken; the job on another, and drains the server when
 * it has ended. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/command/app.h"
#include "engine/serve/batch/batch.h"

enum { MOST_AT_ONCE = 512, END_S = 30 };

struct job {
    struct batch *batch;
    struct batch_server server;
    char key[33], errors[PATH_MAX];
    int rc;
    struct err err;
};

static void run_job(void *arg)
{
    struct job *j = arg;
    j->rc = batch_run(j->batch, &j->server, &j->err);
    kill(getpid(), SIGTERM); /* the guard drains the server */
}

static int make_key(char key[33], struct err *e)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(e, E_SYS, "no random bytes");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(key + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int open_job(struct app *a, struct job *j, struct err *e)
{
    const struct opts *o = &a->opts;
    snprintf(j->errors, sizeof j->errors, "%s.errors", o->output);
    struct batch_setup s = {.input = o->input,
                            .output = o->output,
                            .errors = o->errors ? o->errors : j->errors,
                            .model = o->model       ? o->model
                                     : o->hf_config ? o->hf_config
                                                    : "",
                            .seed = o->seed,
                            .clock = &a->clock,
                            .terminal = isatty(2)};
    return batch_open(&j->batch, &s, e);
}

/* For this process alone: no port that is known, no key that anybody else has, no policy that changes. */
static int open_server(struct app *a, const struct job *j, const char *const *key, struct err *e)
{
    struct server_setup s;
    app_plan_server(a, &s);
    s.host = "127.0.0.1";
    s.api_keys = key;
    s.n_api_keys = 1;
    s.http = (struct http_limits){
        .body = 64 << 20, .connections = j->server.at_once + 8, .per_address = j->server.at_once + 8};
    s.text_s = -1;
    s.no_watch = true;
    return server_create(&a->server, &s, e);
}

static int serve_job(struct app *a, struct job *j, struct err *e)
{
    const char *const key[] = {j->key};
    struct thread *thread = NULL;
    TRY(make_key(j->key, e));
    TRY(app_open(a, e));
    int seqs = engine_node(a->engine)->limits.max_num_seqs;
    j->server = (struct batch_server){.key = j->key, .at_once = 2 * seqs < MOST_AT_ONCE ? 2 * seqs : MOST_AT_ONCE};
    TRY(guard_start(&a->guard, END_S, e));
    TRY(open_server(a, j, key, e));
    j->server.port = server_port(a->server, false);
    TRY(thread_start(&a->engine_thread, "engine", engine_run, a->engine, e));
    TRY(thread_start(&thread, "batch", run_job, j, e));
    server_run(a->server);
    thread_join(thread);
    app_stop_engine(a);
    return j->rc ? err_set(e, j->rc, "%s", j->err.text) : 0;
}

int command_batch(struct app *a, struct err *e)
{
    struct job j = {0};
    clock_init_real(&a->clock);
    int rc = open_job(a, &j, e);
    if (!rc && batch_left(j.batch) > 0)
        rc = serve_job(a, &j, e);
    if (!rc)
        rc = batch_end(j.batch, e);
    batch_close(j.batch);
    return rc;
}
