#include "lua/child.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "lua/confine.h"
#include "lua/exchange.h"
#include "lua/libs.h"

struct child {
    struct exchange_page *page;
    struct lua_watchdog *watchdog;
    struct policy policy; /* loaded; ops NULL: none is */
    struct exchange_eye eye;
    struct exchange_order order;
    char *name, *source, *params, *folder; /* of the job; NULL: none */
    char reason[VERB_REASON];
};

static void put_text(struct child *c, const char *text, size_t n)
{
    n = n < EXCHANGE_TEXT ? n : EXCHANGE_TEXT;
    memcpy(c->page->text, text ? text : "", text ? n : 0);
    c->page->n_text = (int64_t)(text ? n : 0);
}

static void wait_for_turn(struct child *c)
{
    exchange_wait(c->page, TURN_PROCESS, 0, &c->eye);
}

/* ---- what it asks of the engine */

static int64_t go(void *ctx, const struct verb_call *v, struct verb_result *r)
{
    struct child *c = ctx;
    struct exchange_page *x = c->page;
    x->verb = *v;
    if (v->order)
        memcpy(x->switch_order, v->order, sizeof *v->order);
    if (v->text)
        snprintf(x->verb_text, sizeof x->verb_text, "%s", v->text);
    if (v->list && v->n_list)
        memcpy(x->list, v->list, (size_t)v->n_list * sizeof *v->list);
    int64_t waking_ns = exchange_say(x, TURN_ENGINE, SAY_VERB);
    wait_for_turn(c);
    *r = x->result;
    memcpy(c->reason, x->reason, sizeof c->reason);
    r->reason = c->reason;
    return waking_ns + c->eye.cpu_ns;
}

static int read_file(void *ctx, const char *name, struct buf *out, struct err *e)
{
    struct child *c = ctx;
    put_text(c, name, strlen(name));
    exchange_say(c->page, TURN_ENGINE, SAY_FILE);
    wait_for_turn(c);
    if (c->page->result.n)
        return err_set(e, c->page->result.n, "%s", c->page->reason);
    buf_put(out, c->page->text, (size_t)c->page->n_text);
    return 0;
}

/* ---- how it ended */

static struct exchange_end *fresh_end(struct child *c)
{
    struct exchange_end *end = &c->page->end;
    memset(end, 0, sizeof *end);
    c->page->n_text = 0;
    return end;
}

static void put_error(struct exchange_end *end, const struct err *e)
{
    end->code = e->code;
    snprintf(end->error, sizeof end->error, "%s", e->text);
}

static void say_end(struct child *c)
{
    struct exchange_end *end = &c->page->end;
    if (c->policy.ops) {
        struct lua_inside in;
        lua_policy_look(&c->policy, &in);
        end->hooks = in.hooks;
        end->heap_bytes = (int64_t)in.heap_bytes;
        end->heap_limit = (int64_t)in.heap_limit;
        end->wants_rest = in.wants_rest;
    }
    exchange_say(c->page, TURN_ENGINE, SAY_ENDED);
}

/* ---- jobs */

static char *take(const char **at, int64_t n)
{
    char *text = n < 0 ? NULL : mem_strndup(*at, (size_t)n);
    *at += n < 0 ? 0 : n;
    return text;
}

static void take_order(struct child *c)
{
    const char *at = c->page->text;
    c->order = c->page->order;
    c->name = take(&at, c->order.sizes[0]);
    c->source = take(&at, c->order.sizes[1]);
    c->params = take(&at, c->order.sizes[2]);
    c->folder = take(&at, c->order.sizes[3]);
}

static void put_params(struct child *c)
{
    struct buf params = {0};
    c->policy.ops->params_get(c->policy.ctx, &params);
    put_text(c, params.data, params.len);
    buf_free(&params);
}

static int load(struct child *c, const struct lua_opts *o, struct err *e)
{
    const struct verb_way way = {go, c};
    TRY(lua_policy_load(&c->policy, c->name, c->source, (size_t)c->order.sizes[1], o, c->params, e));
    lua_policy_send(&c->policy, &way);
    return 0;
}

/* Those that take a text. */
static void run_text(struct child *c)
{
    const struct lib_reader reader = {read_file, c};
    struct lua_opts o = c->order.opts;
    struct buf out = {0};
    struct err e = {0};
    int rc;
    size_t n = (size_t)c->order.sizes[1];
    o.watchdog = c->watchdog;
    o.folder = c->folder;
    o.reader = &reader;
    o.quiet = true; /* it has nothing to write to */
    if (c->order.job == JOB_LOAD)
        rc = load(c, &o, &e);
    else if (c->order.job == JOB_CHECK)
        rc = lua_policy_check(c->name, c->source, n, &o, c->params, &out, &e);
    else if (c->order.job == JOB_TEST)
        rc = lua_policy_test(c->name, c->source, n, &o, &out, &e);
    else
        rc = lua_policy_text(c->name, c->source, n, &o, &out, &e);
    struct exchange_end *end = fresh_end(c);
    put_error(end, &e);
    end->rc = rc;
    if (c->policy.ops) {
        snprintf(end->doc, sizeof end->doc, "%s", c->policy.doc);
        put_params(c);
    } else {
        put_text(c, out.data, out.len);
    }
    buf_free(&out);
    mem_free(c->source); /* the rest is small, and lives as long as this */
    c->source = NULL;
}

/* Those of the policy that is loaded. */
static void run_own(struct child *c, int job)
{
    const struct policy_ops *ops = c->policy.ops;
    struct buf text = {0};
    struct err e = {0};
    int rc = 0, verdict = VERDICT_OK;
    buf_put(&text, c->page->text, job == JOB_IMPORT || job == JOB_PARAMS ? (size_t)c->page->n_text : 0);
    buf_putc(&text, 0);
    size_t n = text.len - 1;
    struct buf state = {0};
    if (job == JOB_IDLE)
        ops->idle(c->policy.ctx);
    else if (job == JOB_IMPORT)
        verdict = (int)ops->import_state(c->policy.ctx, text.data, n, &e);
    else if (job == JOB_EXPORT)
        verdict = (int)ops->export_state(c->policy.ctx, &state, &e);
    else
        rc = ops->params_set(c->policy.ctx, text.data, n, &e);
    struct exchange_end *end = fresh_end(c);
    put_error(end, &e);
    end->rc = rc;
    end->verdict = verdict;
    if (job == JOB_EXPORT)
        put_text(c, state.data, state.len);
    if (job == JOB_PARAMS)
        put_params(c);
    buf_free(&state);
    buf_free(&text);
}

static void run_job(struct child *c)
{
    int job = c->page->order.job;
    if (job >= JOB_IDLE) {
        run_own(c, job);
        return;
    }
    take_order(c);
    run_text(c);
}

/* ---- hooks */

static void run_call(struct child *c)
{
    const struct policy_ops *ops = c->policy.ops;
    struct exchange_call call = c->page->call;
    struct admission a = {.key = call.key, .retry_after_s = -1};
    struct err e = {0};
    enum verdict v = VERDICT_OK;
    void *ctx = c->policy.ctx;
    switch (call.hook) {
    case HOOK_START:
        v = ops->start(ctx, call.node, &call.view, call.plan, &e);
        break;
    case HOOK_ADMIT:
        v = ops->admit(ctx, call.request, &call.view, &a, &e);
        break;
    case HOOK_STEP:
        v = ops->step(ctx, &call.view, call.plan, &e);
        break;
    case HOOK_FINISH:
        v = ops->finish(ctx, call.request, (enum ending)call.ending, &call.view, &e);
        break;
    default:
        break;
    }
    struct exchange_end *end = fresh_end(c);
    put_error(end, &e);
    end->verdict = (int)v;
    end->key = a.key;
    end->refused = a.refused;
    end->http_status = a.code;
    end->retry_after_s = a.retry_after_s;
    end->hold_until_ns = a.hold_until_ns;
    memcpy(end->why, a.why, sizeof end->why);
}

_Noreturn void child_run(int file)
{
    struct child c = {.page = exchange_map(file), .eye.looks = thread_cores() > 1};
    const struct log_opts silent = {.level = LOG_ERROR};
    struct err e = {0};
    close(file);
    log_setup(&silent);
    mallopt(M_ARENA_MAX, 1);
    if (!c.page || lua_watchdog_start(&c.watchdog, &e) || confine(&e))
        _exit(2);
    for (;;) {
        wait_for_turn(&c);
        if (c.page->word == SAY_JOB)
            run_job(&c);
        else
            run_call(&c);
        say_end(&c);
    }
}
