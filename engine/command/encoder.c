/* An encoder, beside the model or alone: what `serve` and `batch` share. */
#include <stdio.h>
#include <string.h>

#include "engine/base/cores.h"
#include "engine/base/log.h"
#include "engine/command/app.h"

bool app_is_alone(const struct app *a)
{
    return !a->opts.model && !a->opts.hf_config;
}

int app_settle_encoder(struct app *a, struct err *e)
{
    struct opts *o = &a->opts;
    if (o->model && encoder_is(o->model)) {
        if (o->embedding_model)
            return err_set(e, E_UNSUPPORTED, "%s is an encoder, and so is --embedding-model: there is one", o->model);
        o->embedding_model = o->model;
        o->model = NULL;
    }
    return app_is_alone(a) ? opts_check_alone(o, e) : 0;
}

/* Weights are not what the file has: whoever compares vectors should know. docs/models.md has the measurement. */
static void say_rounding(const struct encoder_facts *f)
{
    if (f->decoder && f->matrix_bytes)
        log_info("main", "Encoder: a decoder; weights (%s) as in the file, %.1f MiB", f->matrix_type,
                 (double)f->matrix_bytes / (1 << 20));
    else if (f->matrix_bytes)
        log_info("main",
                 "Encoder: linear layers (%s in the file) as 13-bit integers, %.1f MiB; cosine with exact vectors >= "
                 "0.9999, as measured with all-MiniLM-L6-v2",
                 f->matrix_type, (double)f->matrix_bytes / (1 << 20));
}

int app_open_encoder(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    if (!o->embedding_model)
        return 0;
    int rc = encoder_open(&a->encoder, o->embedding_model, strcmp(o->device, "sim") == 0 ? "sim" : "cpu", e);
    if (rc)
        return err_prefix(e, rc, "--embedding-model");
    embed_link_init(&a->embed_link, (int)o->embedding_replicas);
    app_name_file(o->embedding_model, a->encoder_name);
    say_rounding(encoder_facts(a->encoder));
    if (o->embedding_name)
        snprintf(a->encoder_name, sizeof a->encoder_name, "%s", o->embedding_name);
    else if (app_is_alone(a) && o->names.n)
        snprintf(a->encoder_name, sizeof a->encoder_name, "%s", o->names.items[0]);
    for (int i = 0; i < o->names.n && !app_is_alone(a); i++)
        if (strcmp(o->names.items[i], a->encoder_name) == 0)
            return err_set(e, E_INPUT, "the model and the encoder are both called '%s': --embedding-name NAME",
                           a->encoder_name);
    return 0;
}

struct embed_plan app_plan_encoder(struct app *a)
{
    const struct opts *o = &a->opts;
    int replicas = (int)o->embedding_replicas, cores = cores_usable() / replicas;
    return (struct embed_plan){.encoder = a->encoder,
                               .name = a->encoder_name,
                               .root = o->embedding_model,
                               .replicas = replicas,
                               .threads = o->embedding_threads ? (int)o->embedding_threads
                                          : cores > 0          ? cores
                                                               : 1,
                               .batch_tokens = (int)o->embedding_batch_tokens,
                               .link = app_is_alone(a) ? NULL : &a->embed_link,
                               .queued_tokens = o->embedding_queued_tokens};
}
