/* The recorder of `serve`: for the file of --record, and for the window in memory that a policy is tried on. */
#include "engine/command/app.h"

int app_open_recorder(struct app *a, struct engine_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    const char *path = o->dry_run ? NULL : o->record;
    if (o->command == CMD_SERVE && !o->dry_run && o->what_if_bytes && !a->nursery)
        a->window = record_window_new((size_t)o->what_if_bytes);
    if (!path && !a->window)
        return 0;
    TRY(recorder_open(&a->recorder, path, a->window, e));
    s->witness = recorder_witness(a->recorder);
    return 0;
}

/* ---- the window, as the server wants it */

static struct whatif_window shown(const struct record_window_facts *f)
{
    return (struct whatif_window){.seconds = (double)(f->to_ns - f->from_ns) * 1e-9,
                                  .n_requests = f->n_arrived,
                                  .n_ended = f->n_ended,
                                  .n_before = f->n_before,
                                  .n_steps = f->n_steps,
                                  .bytes = f->bytes,
                                  .most = f->most};
}

static void look(void *ctx, struct whatif_window *out)
{
    struct record_window_facts f;
    record_window_look(ctx, &f);
    *out = shown(&f);
}

static int write_window(void *ctx, const struct whatif_part *part, FILE *to, struct whatif_window *out, struct err *e)
{
    struct record_window_ask ask = {.last_ns = (int64_t)(part->seconds * 1e9),
                                    .policy = part->policy,
                                    .sha256 = part->sha256,
                                    .params = part->params};
    struct record_window_facts f;
    TRY(record_window_write(ctx, &ask, to, &f, e));
    *out = shown(&f);
    return 0;
}

struct whatif_window_ops app_plan_what_if(struct app *a)
{
    return a->window ? (struct whatif_window_ops){look, write_window, a->window} : (struct whatif_window_ops){0};
}
