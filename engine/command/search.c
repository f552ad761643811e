/* `moonshift tune` and `moonshift reproduce`: many simulations beside one another, each of which is a command line of
 * this program. */
#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/command/app.h"
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
    static const char *const mine[] = {"json", "config", NULL};
    const struct opts *o = &a->opts;
    struct buf declared = {0};
    TRY(read_declared(a, &declared, e));
    struct tune_ask ask = {.policy = o->policies.items[0],
                           .trace = o->trace,
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

int command_reproduce(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    char path[PATH_MAX];
    TRY(places_description(o->list ? o->list : "reproduce", "models/papers", path, e));
    return reproduce(&(struct reproduce_ask){path, o->only, o->bars, o->hardware, o->markdown, o->jobs}, e);
}
