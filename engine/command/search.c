/* `moonshift tune`, `moonshift regret` and `moonshift reproduce`: many simulations beside one another, each of which is
 * a command line of this program. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/command/app.h"
#include "engine/lab/search/regret.h"
#include "engine/lab/search/reproduce.h"
#include "engine/lab/search/tune.h"

/* The policy is opened here only for what it declares. */
static int read_declared(struct app *a, struct buf *out, struct err *e)
{
    TRY(app_start_lua(a, e));
    places_policies(a->opts.policy_dir, a->policy_dir);
    a->lua.quiet = true;
    TRY(app_load_policy(a, a->opts.policies.items[0], &(struct strings){0}, &a->policy, e));
    if (a->policy.ops->params_get)
        a->policy.ops->params_get(a->policy.ctx, out);
    return 0;
}

int command_tune(struct app *a, struct err *e)
{
    static const char *const mine[] = {"json", "config", "jobs", NULL};
    const struct opts *o = &a->opts;
    struct buf declared = {0};
    TRY(read_declared(a, &declared, e));
    struct tune_ask ask = {.policy = o->policies.items[0],
                           .trace = o->trace,
                           .arrivals = {.spec = o->trace,
                                        .hashes = o->trace_hashes,
                                        .seed = (uint64_t)o->seed,
                                        .from_s = o->from_s,
                                        .max_requests = (uint64_t)o->requests,
                                        .max_seconds = o->seconds},
                           .declared = declared.len ? declared.data : "{}",
                           .objectives = o->objectives,
                           .constraints = o->constraints,
                           .params = o->params,
                           .fixed = o->policy_params,
                           .budget = o->budget,
                           .jobs = o->jobs,
                           .seed = o->seed,
                           .starvation_s = o->starvation_s,
                           .json = o->json,
                           .params_out = o->params_out};
    opts_args(o, CMD_SIMULATE, mine, &ask.args);
    int rc = tune(&ask, e);
    for (int i = 0; i < ask.args.n; i++)
        mem_free(ask.args.items[i]);
    mem_free(ask.args.items);
    buf_free(&declared);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All policies of the folder, by name. */
static int list_policies(struct app *a, struct strings *out, struct err *e)
{
    places_policies(a->opts.policy_dir, a->policy_dir);
    DIR *d = opendir(a->policy_dir);
    if (!d)
        return err_set(e, E_NOTFOUND, "there is no policy folder here: give --policy-dir FOLDER or --policy");
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n > 4 && !strcmp(f->d_name + n - 4, ".lua")) {
            out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
            out->items[out->n++] = mem_strndup(f->d_name, n - 4);
        }
    }
    closedir(d);
    if (out->n)
        qsort(out->items, (size_t)out->n, sizeof *out->items, by_name);
    return out->n ? 0 : err_set(e, E_NOTFOUND, "there is no policy in %.200s", a->policy_dir);
}

static void free_strings(struct strings *l)
{
    for (int i = 0; i < l->n; i++)
        mem_free(l->items[i]);
    mem_free(l->items);
}

int command_regret(struct app *a, struct err *e)
{
    static const char *const mine[] = {"json", "config", "jobs", "policy", NULL};
    const struct opts *o = &a->opts;
    struct strings all = {0};
    bool named = opts_given(o, "policy");
    int rc = named ? 0 : list_policies(a, &all, e);
    struct regret_ask ask = {.trace = o->trace,
                             .policies = named ? o->policies : all,
                             .named = named,
                             .metrics = o->metrics,
                             .budget = o->budget,
                             .jobs = o->jobs,
                             .bins = o->bins,
                             .json = o->json,
                             .schedule_out = o->schedule_out};
    opts_args(o, CMD_SIMULATE, mine, &ask.args);
    if (!rc)
        rc = regret(&ask, e);
    free_strings(&ask.args);
    free_strings(&all);
    return rc;
}

int command_reproduce(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    char path[PATH_MAX];
    TRY(places_description(o->list ? o->list : "reproduce", "models/papers", path, e));
    return reproduce(&(struct reproduce_ask){path, o->only, o->bars, o->hardware, o->markdown, o->jobs}, e);
}
