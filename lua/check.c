#include "lua/check.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "lua/libs.h"
#include "lua/rehearse.h"
#include "lua/scan.h"
#include "lua/trial.h"

static int open_with_params(const struct check *c, const struct lua_opts *o, struct script **out, struct err *e)
{
    TRY(script_open(out, c->name, c->source, c->n, o, e));
    int rc = c->params_json ? script_params_set(*out, c->params_json, strlen(c->params_json), e) : 0;
    if (rc)
        script_close(*out);
    return rc;
}

/* Each test has a fresh machine, with the default params, for which it is written. */
static int run_test(const struct check *c, int i, struct err *e)
{
    struct script *s;
    TRY(script_open(&s, c->name, c->source, c->n, &c->opts, e));
    int rc = trial_run(s, i, c->report, e);
    if (rc)
        err_prefix(e, rc, "%s.lua", s->name);
    script_close(s);
    return rc;
}

static int run_tests(const struct check *c, int n, struct err *e)
{
    if (c->report)
        buf_printf(c->report, "tests: %d\n", n);
    for (int i = 1; i <= n; i++)
        TRY(run_test(c, i, e));
    return 0;
}

/* Logs of dry runs are dropped, and their time is not the engine's. */
static struct lua_opts off_stage(const struct check *c)
{
    struct lua_opts o = c->opts;
    o.quiet = true;
    o.hard_ns *= c->opts.relaxed ? 50 : 5;
    return o;
}

static int rehearse_watched(struct script *s, bool several, struct buf *out, int *n_unfit, struct err *e)
{
    s->bind.watched = true;
    int rc = rehearse(s, several, out, n_unfit, e);
    script_forget(s); /* looks at the view once more */
    return !rc && s->written_by ? err_set(e, E_POLICY, "%s.lua: %s (dry run)", s->name, script_writes) : rc;
}

/* The place, "file:line", in which this call writes into the view: the same once more (two runs decide the same),
 * followed line by line. "": it was not found. */
static void find_write(const struct check *c, bool several, uint64_t call, char where[WHERE_BYTES])
{
    struct script *s;
    struct lua_opts o = off_stage(c);
    struct buf out = {0};
    int n_unfit = 0;
    o.watchdog = NULL;
    where[0] = 0;
    if (open_with_params(c, &o, &s, NULL))
        return;
    s->spied_call = call;
    rehearse_watched(s, several, &out, &n_unfit, NULL);
    snprintf(where, WHERE_BYTES, "%s", s->spied_at);
    script_close(s);
    buf_free(&out);
}

static int rehearse_once(const struct check *c, bool several, struct buf *out, int *n_unfit, struct err *e)
{
    struct script *s;
    struct lua_opts o = off_stage(c);
    struct err mine = {0};
    TRY(open_with_params(c, &o, &s, e));
    int rc = rehearse_watched(s, several, out, n_unfit, &mine);
    char file[NAME_BYTES + 8], where[WHERE_BYTES] = "";
    if (rc && s->written_by)
        find_write(c, several, s->written_by, where);
    int n = snprintf(file, sizeof file, "%s.lua", s->name);
    bool named = !strncmp(mine.text, file, (size_t)n);
    if (where[0])
        err_set(e, rc, "%s: %s", where, named ? mine.text + n + 2 : mine.text);
    else if (rc)
        err_set(e, rc, "%s%s%s", named ? "" : file, named ? "" : ": ", mine.text);
    script_close(s);
    return rc;
}

/* Two fresh machines have to decide the same. n: bytes of decisions; differ: they do not. n_unfit: worlds that the
 * params do not fit, counted twice. */
struct tried {
    size_t n;
    bool differ;
    int n_unfit;
};

static int rehearse_with(const struct check *c, bool several, struct tried *t, struct err *e)
{
    struct buf a = {0}, b = {0};
    *t = (struct tried){0};
    int rc = rehearse_once(c, several, &a, &t->n_unfit, e);
    if (!rc)
        rc = rehearse_once(c, several, &b, &t->n_unfit, e);
    t->n = a.len;
    t->differ = !rc && (a.len != b.len || memcmp(a.data, b.data, a.len) != 0);
    if (t->differ)
        rc = err_set(e, E_POLICY, "%.60s: two fresh runs on the same views decide differently", c->name);
    buf_free(&a);
    buf_free(&b);
    return rc;
}

/* Worlds that its params do not fit have seen nothing of its code: so the default params are tried, too. */
static int rehearse_twice(const struct check *c, bool several, struct tried *t, struct err *e)
{
    struct check plain = *c;
    struct tried more;
    plain.params_json = NULL;
    TRY(rehearse_with(c, several, t, e));
    if (!c->params_json || !t->n_unfit)
        return 0;
    int rc = rehearse_with(&plain, several, &more, e);
    t->differ = more.differ;
    return rc;
}

/* On one rank a policy has to pass; on several, too, when it is for such a node. */
static int rehearse_all(const struct check *c, struct err *e)
{
    struct tried t;
    struct err several = {0};
    TRY(rehearse_twice(c, false, &t, e));
    if (c->report)
        buf_printf(c->report,
                   "dry runs: every hook stands, and two fresh machines decide the same (%zu bytes of decisions)\n",
                   t.n);
    int rc = rehearse_twice(c, true, &t, &several);
    if (rc && (c->opts.n_ranks > 1 || t.differ))
        return err_set(e, E_POLICY, "%s", several.text);
    if (c->report && rc)
        buf_printf(c->report, "dry runs on 2, 4 and 8 ranks: for one rank only: %s\n", several.text);
    else if (c->report)
        buf_printf(c->report, "dry runs on 2, 4 and 8 ranks: the same (%zu bytes of decisions)%s\n", t.n,
                   t.n_unfit ? "; with the default params where the policy says that these do not fit" : "");
    return 0;
}

/* ---- the report */

/* With the params given, or the default ones where those do not fit the made-up node. */
static int open_that_fits(const struct check *c, const struct node_facts *node, struct script **out, struct err *e)
{
    struct check plain = *c;
    struct lua_opts o = off_stage(c);
    plain.params_json = NULL;
    o.watchdog = NULL;
    TRY(open_with_params(c, &o, out, e));
    if (!c->params_json || script_fits(*out, node, NULL) != E_INPUT)
        return 0;
    script_close(*out);
    return open_with_params(&plain, &o, out, e);
}

/* Bytecodes of one admit and one step at n requests; a machine without a watchdog counts them. */
static int measure(const struct check *c, int n, uint64_t cost[HOOK_COUNT], struct err *e)
{
    struct script *s;
    struct rehearsal r;
    rehearsal_init(
        &r,
        (struct rehearsal_size){
            .kv_blocks = 16384, .tokens_per_block = 16, .max_num_seqs = 1024, .max_num_batched_tokens = 2048},
        100);
    rehearsal_crowd(&r, n, 7);
    struct node_facts node = rehearsal_node(&r);
    struct view v = rehearsal_view(&r);
    int rc = open_that_fits(c, &node, &s, e);
    if (rc) {
        rehearsal_free(&r);
        return rc;
    }
    struct request *last = r.world.waiting.n ? r.world.waiting.items[r.world.waiting.n - 1] : NULL;
    struct admission a = {.key = 0};
    plan_begin(&r.plan, r.now_ns);
    enum verdict verdict = script_start(s, &node, &v, &r.plan, e);
    memset(cost, 0, HOOK_COUNT * sizeof *cost);
    if (verdict_stands(verdict) && last && s->hooks[HOOK_ADMIT] != LUA_NOREF) {
        verdict = script_admit(s, last, &v, &a, e);
        cost[HOOK_ADMIT] = s->vm.instructions;
    }
    if (verdict_stands(verdict) && last && s->hooks[HOOK_FINISH] != LUA_NOREF) {
        verdict = script_finish(s, last, END_LENGTH, &v, e);
        cost[HOOK_FINISH] = s->vm.instructions;
    }
    plan_begin(&r.plan, r.now_ns);
    if (verdict_stands(verdict)) {
        verdict = script_step(s, &v, &r.plan, e);
        cost[HOOK_STEP] = s->vm.instructions;
    }
    script_close(s);
    rehearsal_free(&r);
    return verdict_stands(verdict) ? 0 : E_POLICY;
}

static int put_costs(const struct check *c, struct err *e)
{
    static const int sizes[] = {8, 64, 512};
    buf_puts(c->report, "cost in bytecodes:   requests      step     admit    finish\n");
    for (int i = 0; i < 3; i++) {
        uint64_t cost[HOOK_COUNT];
        TRY(measure(c, sizes[i], cost, e));
        buf_printf(c->report, "                     %8d %9llu %9llu %9llu\n", sizes[i],
                   (unsigned long long)cost[HOOK_STEP], (unsigned long long)cost[HOOK_ADMIT],
                   (unsigned long long)cost[HOOK_FINISH]);
    }
    return 0;
}

static void put_columns(const char *queue, unsigned mask, struct buf *out)
{
    for (int k = 0; k < NEED_COUNT; k++)
        if (mask & 1u << k)
            buf_printf(out, " %s.%s", queue, column_names[k]);
}

static void put_summary(const struct check *c, const struct script *s)
{
    struct sha256 sum = libs_sha256(c->opts.libs, c->source, c->n);
    char hex[65];
    hash_hex(&sum, hex);
    buf_printf(c->report, "%s: %s\nversion: %.12s (%zu bytes)\nhooks:", s->name, s->doc, hex, c->n);
    for (int h = 0; h < HOOK_COUNT; h++)
        if (s->hooks[h] != LUA_NOREF)
            buf_printf(c->report, " %s", policy_hook_name((enum policy_hook)h));
    buf_puts(c->report, s->fits_ref != LUA_NOREF ? " fits" : "");
    char libs[POLICY_LIBS_TEXT];
    libs_list(c->opts.libs, libs);
    buf_printf(c->report, "%s%s", libs[0] ? "\nlibs: " : "", libs);
    buf_puts(c->report, "\nneeds:");
    put_columns("waiting", s->bind.waiting.mask, c->report);
    put_columns("running", s->bind.running.mask, c->report);
    buf_puts(c->report, "\nparams: ");
    params_write(&s->params, c->report);
    buf_putc(c->report, '\n');
}

/* Size, text, globals and its table. */
static int open_checked(const struct check *c, struct script **out, struct err *e)
{
    char name[NAME_BYTES];
    if (c->n > LUA_SOURCE_BYTES)
        return err_set(e, E_INPUT, "%.60s: the source has %zu bytes; at most %d are taken", c->name, c->n,
                       LUA_SOURCE_BYTES);
    TRY(script_name(name, c->name, e));
    TRY(scan_source(name, c->source, c->n, c->opts.watchdog, e));
    return open_with_params(c, &c->opts, out, e);
}

int check_tests(const struct check *c, struct err *e)
{
    struct script *s;
    struct check quiet = *c;
    int rc = open_checked(c, &s, e), n = rc ? 0 : s->n_tests, first = rc;
    if (rc)
        buf_printf(c->report, "  FAIL it does not load: %s\n", e ? e->text : "");
    else
        script_close(s);
    for (int i = 1; i <= n; i++) {
        struct err mine = {0};
        rc = run_test(c, i, &mine);
        if (rc)
            buf_printf(c->report, "       %s\n", mine.text);
        if (rc && !first)
            first = err_set(e, rc, "%s", mine.text);
    }
    if (first)
        return first;
    quiet.report = NULL;
    rc = rehearse_all(&quiet, e);
    if (rc)
        buf_printf(c->report, "  FAIL dry runs\n       %s\n", e ? e->text : "");
    else
        buf_printf(c->report, "  ok   dry runs\n");
    return rc;
}

int check_policy(const struct check *c, struct script **out, struct err *e)
{
    struct script *s;
    TRY(open_checked(c, &s, e));
    if (c->report)
        put_summary(c, s);
    int rc = c->opts.again ? 0 : run_tests(c, s->n_tests, e);
    if (!rc && !c->opts.again)
        rc = rehearse_all(c, e);
    if (!rc && c->report)
        rc = put_costs(c, e);
    if (rc) {
        script_close(s);
        return rc;
    }
    *out = s;
    return 0;
}
