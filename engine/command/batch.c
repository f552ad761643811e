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
#include "engine/serve/batch/identity.h"

enum { MOST_AT_ONCE = 512, END_S = 30 };

struct job {
    struct batch *batch;
    struct batch_server server;
    struct buf model; /* described */
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
    if (!app_is_alone(a))
        app_model_identity(o, &j->model);
    if (o->embedding_model) {
        buf_puts(&j->model, j->model.len ? ", encoder " : "encoder ");
        identity_put(o->embedding_model, &j->model);
    }
    struct batch_setup s = {.input = o->input,
                            .output = o->output,
                            .errors = o->errors ? o->errors : j->errors,
                            .model = j->model.data,
                            .seed = o->seed,
                            .clock = &a->clock,
                            .terminal = isatty(2)};
    return batch_open(&j->batch, &s, e);
}

/* All lines that are on their way may wait for the encoder: the job bounds their bytes. */
static struct embed_plan plan_encoder(struct app *a)
{
    struct embed_plan p = app_plan_encoder(a);
    p.queued_tokens = 0;
    p.queued_inputs = INT_MAX;
    p.held_bytes = SIZE_MAX / 2;
    return p;
}

/* For this process alone: no port that is known, no key that anybody else has, no policy that changes. */
static int open_server(struct app *a, const struct job *j, const char *const *key, struct err *e)
{
    struct server_setup s = {.clock = &a->clock, .guard = a->guard};
    if (a->engine)
        app_plan_server(a, &s);
    s.embed = plan_encoder(a);
    s.host = "127.0.0.1";
    s.api_keys = key;
    s.n_api_keys = 1;
    s.http = (struct http_limits){
        .body = 64 << 20, .connections = j->server.at_once + 8, .per_address = j->server.at_once + 8};
    s.text_s = -1;
    s.no_watch = true;
    return server_create(&a->server, &s, e);
}

/* So many lines as keep the engine busy, or fill batches of the encoder. */
static int at_once(const struct app *a)
{
    int seqs = a->engine && !a->encoder ? engine_node(a->engine)->limits.max_num_seqs : MOST_AT_ONCE;
    return 2 * seqs < MOST_AT_ONCE ? 2 * seqs : MOST_AT_ONCE;
}

static int serve_job(struct app *a, struct job *j, struct err *e)
{
    const char *const key[] = {j->key};
    struct thread *thread = NULL;
    TRY(make_key(j->key, e));
    TRY(app_open_encoder(a, e));
    if (!app_is_alone(a))
        TRY(app_open(a, e));
    j->server = (struct batch_server){.key = j->key, .at_once = at_once(a)};
    TRY(guard_start(&a->guard, END_S, e));
    TRY(open_server(a, j, key, e));
    j->server.port = server_port(a->server, false);
    if (a->engine)
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
    int rc = app_settle_encoder(a, e);
    if (!rc)
        rc = open_job(a, &j, e);
    if (!rc && batch_left(j.batch) > 0)
        rc = serve_job(a, &j, e);
    if (!rc)
        rc = batch_end(j.batch, e);
    batch_close(j.batch);
    buf_free(&j.model);
    return rc;
}
