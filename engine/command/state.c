/* `serve --state-dir`: which policy a server begins with. An explicit --policy wins; else the version that was good
 * last, with the params that had been set; where that one no longer loads, the one that was good before it; else the
 * default. The log and the record say which, and why. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/cli/policy_params.h"
#include "engine/command/app.h"

int app_open_state(struct app *a, struct err *e)
{
    const char *dir = a->opts.state_dir;
    if (dir && !dir[0])
        return err_set(e, E_INPUT, "--state-dir wants a folder's name");
    return ledger_open(&a->ledger, dir, e);
}

static void put_members(struct buf *out, const struct json *object, const struct json *but)
{
    for (const struct json *m = json_first(object); m; m = json_next(m)) {
        if (json_find(but, json_key(m)))
            continue;
        buf_putc(out, out->len ? ',' : '{');
        buf_put_json(out, json_key(m), strlen(json_key(m)));
        buf_putc(out, ':');
        json_write(out, m, NULL);
    }
}

/* The params of before, but for those that the command line gives; NULL: none. */
static int merge_params(const struct app *a, const char *kept, char **out, struct err *e)
{
    struct buf given = {0}, all = {0};
    *out = NULL;
    TRY(policy_params_json(a->opts.policy_params_file, &a->opts.policy_params, &given, e));
    struct json *old = kept ? json_parse(kept, strlen(kept), NULL, NULL) : NULL;
    struct json *new = given.len ? json_parse(given.data, given.len, NULL, NULL) : NULL;
    put_members(&all, old, new);
    put_members(&all, new, NULL);
    if (all.len) {
        buf_putc(&all, '}');
        *out = buf_take(&all);
    }
    json_free(old);
    json_free(new);
    buf_free(&given);
    buf_free(&all);
    return 0;
}

static int load(struct app *a, const struct version *v, const char *params, struct err *e)
{
    struct lua_opts boot = a->lua;
    char *merged;
    boot.relaxed = true;
    TRY(merge_params(a, params, &merged, e));
    int rc = lua_policy_load(&a->policy, v->name, v->source, v->n_source, &boot, merged, e);
    if (rc) {
        mem_free(merged);
        return rc;
    }
    a->policy_params = merged;
    buf_put(&a->policy_source, v->source, v->n_source);
    snprintf(a->policy_name, sizeof a->policy_name, "%s", v->name);
    return 0;
}

/* False: it cannot be; the log says why. */
static bool try_version(struct app *a, const struct version *v, const struct good *g, const char *what)
{
    struct err e = {0};
    int rc = load(a, v, g->params && !strcmp(g->sha256, v->sha256) ? g->params : NULL, &e);
    if (rc) {
        log_warn("policy", "%s, %s (%.12s), does not load: %s", what, v->name, v->sha256, e.text);
        return false;
    }
    snprintf(a->policy_why, sizeof a->policy_why, "%s", what);
    log_info("policy", "begins with %s (%.12s): %s", v->name, v->sha256, what);
    return true;
}

bool app_boot_last_good(struct app *a)
{
    struct book *b = a->ledger ? a->ledger->book : NULL;
    struct good g = {0};
    struct err e = {0};
    if (!a->opts.state_dir || !b)
        return false;
    int rc = store_good(a->ledger->store, &g, &e);
    if (rc && rc != E_NOTFOUND)
        log_warn("policy", "the last good version is not known: %s", e.text);
    struct version *first = rc ? NULL : book_find(b, g.name, g.sha256), *v;
    bool may = first && first->source && !book_quarantined(b, first->sha256);
    if (!rc && !may)
        log_warn("policy", "the last good version, %s (%.12s), %s", g.name, g.sha256,
                 first && first->source ? "is in quarantine" : "is not kept any more");
    bool done = may && try_version(a, first, &g, "the last good version");
    for (int i = 0; !done && (v = book_good(b, i)) != NULL; i++)
        if (v != first)
            done = try_version(a, v, &g, "a version that was good before the last good one");
    good_free(&g);
    return done;
}

void app_say_boot(struct app *a, const char *why)
{
    snprintf(a->policy_why, sizeof a->policy_why, "%s", why);
    if (a->opts.state_dir)
        log_info("policy", "begins with %s: %s", a->policy_name[0] ? a->policy_name : "native", why);
}
