#include "lua/apart.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "lua/hook_times.h"
#include "lua/script.h"
#include "lua/talk.h"
#include "lua/value.h"

static const int64_t JOB_NS = INT64_C(60000000000); /* checks, tests and dry runs, all bounded in the process, too */
static const int64_t IDLE_NS = 50000000;

struct apart {
    struct nursery *nursery;
    struct lua_opts opts;
    char name[NAME_BYTES];
    struct buf text;   /* all that it is made of: of this the next process is made, too */
    struct buf params; /* as policy_ops.params_get shows them */
    struct born live;  /* pidfd -1: it is lost, until renew */
    struct born spare; /* has been asked to load the same, or is -1 */
    bool resting;      /* it has been told to be idle, and has not yet said that it is done */
    bool wants_rest;
    const struct comm_pool *comms; /* of the node where it was started */
    struct talker talker;
    struct hook_times times;
};

/* ---- jobs */

/* Behind the first `at` bytes of the page's text; returns where it ends. */
static size_t put(struct exchange_page *x, size_t at, int64_t *size, const char *text, size_t n)
{
    *size = text ? (int64_t)n : -1;
    memcpy(x->text + at, text ? text : "", text ? n : 0);
    return at + (text ? n : 0);
}

static size_t length(const char *text)
{
    return text ? strlen(text) : 0;
}

/* Into the page: what a process is to do with a text. */
static int order(struct exchange_page *x, int job, const struct apart_source *s, const struct lua_opts *o,
                 struct err *e)
{
    struct exchange_order *to = &x->order;
    if (s->n > 2 * LUA_SOURCE_BYTES)
        return err_set(e, E_INPUT, "%.60s: the source has %zu bytes; at most %d are taken", s->name, s->n,
                       LUA_SOURCE_BYTES);
    if (strlen(s->name) + s->n + length(s->params_json) + length(o->folder) > EXCHANGE_TEXT)
        return err_set(e, E_INPUT, "%.60s: its params are too long", s->name);
    *to = (struct exchange_order){.job = job, .opts = *o};
    to->opts.watchdog = NULL;
    to->opts.folder = NULL;
    to->opts.reader = NULL;
    to->opts.nursery = NULL;
    to->opts.libs = NULL;
    size_t at = put(x, 0, &to->sizes[0], s->name, strlen(s->name));
    at = put(x, at, &to->sizes[1], s->source, s->n);
    at = put(x, at, &to->sizes[2], s->params_json, length(s->params_json));
    put(x, at, &to->sizes[3], o->folder, length(o->folder));
    return 0;
}

/* What becomes of a text in a process that is lost over it. */
static int lost(const struct apart_source *s, enum heard h, const char *why, struct err *e)
{
    if (h == HEARD_LATE || h == HEARD_SILENT)
        return err_set(e, E_POLICY, "%.60s: its process was still at work after %.0f s: killed", s->name,
                       (double)JOB_NS * 1e-9);
    if (h == HEARD_WRONG)
        return err_set(e, E_POLICY, "%.60s: its process said what no policy says: killed", s->name);
    return err_set(e, E_POLICY, "%.60s: %s", s->name, why);
}

/* A process takes a text. The one of JOB_LOAD stays when it has. */
struct job {
    int kind;
    const struct apart_source *source;
    const struct lua_opts *opts;
    struct libs *libs;  /* what was read for it */
    struct buf *report; /* NULL: none is wanted */
    struct born born;
    struct exchange_end end;
};

/* What the process says of an error is a text of its own making. */
static int take_error(const struct exchange_end *end, struct err *e)
{
    char text[sizeof end->error];
    bool known = end->rc == E_INPUT || end->rc == E_NOTFOUND || end->rc == E_FULL || end->rc == E_SYS;
    vm_escape(text, sizeof text, end->error, strlen(end->error));
    return err_set(e, known ? end->rc : E_POLICY, "%s", text);
}

/* A report is lines for a terminal, whatever the process wrote. */
static void put_report(const struct exchange_page *x, struct buf *out)
{
    char line[4096];
    struct buf text = {0};
    if (!exchange_take_text(x, &text))
        text.len = 0;
    for (size_t at = 0; at < text.len;) {
        const char *from = text.data + at, *end = memchr(from, '\n', text.len - at);
        size_t n = end ? (size_t)(end - from) : text.len - at;
        vm_escape(line, sizeof line, from, n);
        buf_printf(out, "%s%s", line, end ? "\n" : "");
        at += n + 1;
    }
    buf_free(&text);
}

static int converse(struct job *j, struct talker *r, struct err *e)
{
    char why[120] = "";
    TRY(order(j->born.page, j->kind, j->source, j->opts, e));
    struct talk t = {.born = &j->born,
                     .name = j->source->name,
                     .quiet = true,
                     .folder = j->opts->folder,
                     .libs = j->libs,
                     .most_ns = JOB_NS};
    enum heard h = talk(r, &t, SAY_JOB);
    if (h == HEARD_END) {
        j->end = r->end;
        if (j->report)
            put_report(j->born.page, j->report);
        return j->end.rc ? take_error(&j->end, e) : 0;
    }
    nursery_end(j->opts->nursery, &j->born, why, sizeof why);
    nursery_count_end(j->opts->nursery, h != HEARD_GONE);
    return lost(j->source, h, why, e);
}

static int run_job(struct job *j, struct err *e)
{
    struct talker r;
    TRY(nursery_bear(j->opts->nursery, &j->born, e));
    talker_init(&r);
    int rc = converse(j, &r, e);
    if (rc || j->kind != JOB_LOAD)
        nursery_end(j->opts->nursery, &j->born, NULL, 0);
    talker_free(&r);
    return rc;
}

static int report_job(int kind, const struct apart_source *s, const struct lua_opts *o, struct buf *report,
                      struct err *e)
{
    struct libs libs = {.folder = o->folder};
    struct job j = {.kind = kind, .source = s, .opts = o, .libs = &libs, .report = report};
    int rc = run_job(&j, e);
    libs_free(&libs);
    return rc;
}

int apart_check(const struct apart_source *s, const struct lua_opts *o, struct buf *report, struct err *e)
{
    return report_job(JOB_CHECK, s, o, report, e);
}

int apart_test(const struct apart_source *s, const struct lua_opts *o, struct buf *report, struct err *e)
{
    return report_job(JOB_TEST, s, o, report, e);
}

/* The text with its libraries, put together here of what was read here. */
static int whole(const struct apart_source *s, struct libs *libs, struct buf *out, char sha256[65], char *names)
{
    char file[NAME_BYTES + 8];
    const char *source = s->source;
    size_t n = s->n;
    snprintf(file, sizeof file, "%.50s", s->name);
    if (!libs->n && libs_split(libs, file, &source, &n, NULL))
        return E_INPUT;
    libs->n_policy = n;
    libs_text(libs, source, n, out);
    if (sha256) {
        struct sha256 sum = libs_sha256(libs, source, n);
        hash_hex(&sum, sha256);
        libs_list(libs, names);
    }
    return 0;
}

int apart_text(const struct apart_source *s, const struct lua_opts *o, struct buf *out, struct err *e)
{
    struct libs libs = {.folder = o->folder};
    struct job j = {.kind = JOB_TEXT, .source = s, .opts = o, .libs = &libs};
    int rc = run_job(&j, e);
    if (!rc)
        rc = whole(s, &libs, out, NULL, NULL);
    libs_free(&libs);
    return rc;
}

/* ---- the processes of a policy */

/* {"name":{"value":..},...} with fields that pass as JSON; false: it is none. Replaces what is there. */
static bool keep_params(struct apart *a, const struct exchange_page *x)
{
    struct json_limits limits = {.bytes = EXCHANGE_TEXT, .depth = 8, .nodes = 65536};
    struct buf text = {0};
    struct json *j =
        exchange_take_text(x, &text) ? json_parse(text.data ? text.data : "", text.len, &limits, NULL) : NULL;
    bool good = j && json_type(j) == JSON_OBJECT;
    if (good) {
        buf_clear(&a->params);
        json_write(&a->params, j, NULL);
    }
    json_free(j);
    buf_free(&text);
    return good;
}

/* The params that it has now, as they are set. */
static void put_values(const struct apart *a, struct buf *out)
{
    struct json *j = json_parse(a->params.data, a->params.len, NULL, NULL);
    const char *between = "";
    buf_putc(out, '{');
    for (const struct json *p = json_first(j); p; p = json_next(p), between = ",") {
        buf_puts(out, between);
        buf_put_json(out, json_key(p), strlen(json_key(p)));
        buf_putc(out, ':');
        json_write(out, json_find(p, "value"), NULL);
    }
    buf_putc(out, '}');
    json_free(j);
}

/* Another process begins to load it, in case that it is needed. */
static void bear_spare(struct apart *a)
{
    struct lua_opts o = a->opts;
    struct err e = {0};
    struct apart_source s = {a->name, a->text.data ? a->text.data : "", a->text.len, NULL};
    o.again = true;
    o.folder = NULL;
    if (nursery_bear(a->nursery, &a->spare, &e))
        return;
    if (order(a->spare.page, JOB_LOAD, &s, &o, &e))
        nursery_end(a->nursery, &a->spare, NULL, 0);
    else
        exchange_say(a->spare.page, TURN_PROCESS, SAY_JOB);
}

static struct talk about(struct apart *a, int64_t most_ns)
{
    return (struct talk){.born = &a->live, .name = a->name, .quiet = a->opts.quiet, .most_ns = most_ns};
}

static int64_t generous(const struct apart *a)
{
    int64_t hard = a->opts.hard_ns;
    return (hard < 10000000 ? 10000000 : hard) * (a->opts.relaxed ? 20 : 1);
}

static enum verdict lose(struct apart *a, enum heard h, int64_t most_ns, struct err *e)
{
    char why[120] = "its process was killed";
    nursery_end(a->nursery, &a->live, why, sizeof why);
    nursery_count_end(a->nursery, h != HEARD_GONE);
    a->resting = false;
    if (h == HEARD_LATE) {
        err_set(e, E_POLICY, "%s.lua: still running after %.6g ms: its process was killed", a->name,
                (double)most_ns * 1e-6);
        return VERDICT_TIMEOUT;
    }
    err_set(e, E_POLICY, "%s.lua: %s", a->name,
            h == HEARD_WRONG    ? "its process said what no policy says, and was killed"
            : h == HEARD_SILENT ? "its process did not answer for a second, nor run, and was killed"
                                : why);
    return VERDICT_CRASHED;
}

/* Has it done what it was told to do aside? */
static enum heard settle(struct apart *a)
{
    struct talk t = about(a, IDLE_NS);
    enum heard h = a->resting ? talk_wait(&a->talker, &t) : HEARD_END;
    a->resting = false;
    return h;
}

/* One thing is asked of it. What it writes of itself is taken, within reason. */
static enum verdict ask(struct apart *a, struct talk *t, enum exchange_word w, struct err *e)
{
    const struct exchange_end *end = &a->talker.end;
    enum heard h = talk(&a->talker, t, w);
    if (h == HEARD_END && (end->verdict < VERDICT_OK || end->verdict > VERDICT_MALFORMED))
        h = HEARD_WRONG;
    if (h != HEARD_END)
        return lose(a, h, t->most_ns, e);
    a->wants_rest = end->wants_rest != 0;
    a->times.heap_bytes = end->heap_bytes > 0 ? (size_t)end->heap_bytes : 0;
    a->times.heap_limit = end->heap_limit > 0 ? (size_t)end->heap_limit : 0;
    if (end->verdict != VERDICT_OK && e) {
        take_error(end, e);
        e->code = end->code == E_INPUT ? E_INPUT : E_POLICY;
    }
    return (enum verdict)end->verdict;
}

static enum verdict is_lost(const struct apart *a, struct err *e)
{
    err_set(e, E_POLICY, "%s.lua: its process is gone", a->name);
    return VERDICT_CRASHED;
}

static bool has(const struct apart *a, enum policy_hook h)
{
    return a->times.has >> h & 1;
}

/* ---- the hooks */

struct hook_call {
    enum policy_hook hook;
    const struct node_facts *node;
    const struct request *request;
    enum ending ending;
    const struct view *view;
    struct plan *plan;
    double key;
    int64_t most_ns;
};

static enum verdict call(struct apart *a, const struct hook_call *c, const struct comm_pool *comms, struct err *e)
{
    struct talk t = about(a, c->most_ns);
    if (a->live.pidfd < 0)
        return is_lost(a, e);
    int64_t from = clock_now(&a->talker.clock);
    enum heard h = settle(a);
    if (h != HEARD_END)
        return lose(a, h, IDLE_NS, e);
    struct exchange_call *x = &a->live.page->call;
    x->hook = (int)c->hook;
    x->ending = (int)c->ending;
    x->node = c->node;
    x->plan = c->plan;
    x->request = c->request;
    x->view = *c->view;
    x->key = c->key;
    t.scope = (struct verb_scope){c->hook, c->view, c->plan, comms};
    enum verdict v = ask(a, &t, SAY_CALL, e);
    duration_add(&a->times.hooks[c->hook], clock_now(&a->talker.clock) - from);
    return v;
}

static enum verdict start(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p, struct err *e)
{
    struct apart *a = ctx;
    a->comms = node->comms;
    struct hook_call c = {.hook = HOOK_START, .node = node, .view = v, .plan = p, .most_ns = 2 * generous(a)};
    return call(a, &c, a->comms, e);
}

/* What admit decided, as far as it can be. */
static enum verdict take_admission(const struct exchange_end *end, struct admission *a, struct err *e)
{
    if (end->refused &&
        (end->http_status < 400 || end->http_status > 599 || end->retry_after_s < -1 || end->retry_after_s > 86400)) {
        err_set(e, E_POLICY, "admit refused with an answer that there is not");
        return VERDICT_MALFORMED;
    }
    a->key = end->key;
    a->refused = end->refused != 0;
    a->code = end->http_status;
    a->retry_after_s = end->retry_after_s;
    a->hold_until_ns = end->hold_until_ns > 0 ? end->hold_until_ns : 0;
    vm_escape(a->why, sizeof a->why, end->why, strlen(end->why));
    return VERDICT_OK;
}

static enum verdict admit(void *ctx, const struct request *r, const struct view *v, struct admission *out,
                          struct err *e)
{
    struct apart *a = ctx;
    if (!has(a, HOOK_ADMIT))
        return VERDICT_OK;
    struct hook_call c = {.hook = HOOK_ADMIT, .request = r, .view = v, .key = out->key, .most_ns = a->opts.hard_ns};
    enum verdict verdict = call(a, &c, a->comms, e);
    if (!verdict_stands(verdict))
        return verdict;
    enum verdict taken = take_admission(&a->talker.end, out, e);
    return taken == VERDICT_OK ? verdict : taken;
}

static enum verdict step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct apart *a = ctx;
    struct hook_call c = {.hook = HOOK_STEP, .view = v, .plan = p, .most_ns = a->opts.hard_ns};
    return call(a, &c, a->comms, e);
}

static enum verdict finish(void *ctx, const struct request *r, enum ending how, const struct view *v, struct err *e)
{
    struct apart *a = ctx;
    struct hook_call c = {.hook = HOOK_FINISH, .request = r, .ending = how, .view = v, .most_ns = a->opts.hard_ns};
    return has(a, HOOK_FINISH) ? call(a, &c, a->comms, e) : VERDICT_OK;
}

/* Nobody waits for it. */
static void idle(void *ctx)
{
    struct apart *a = ctx;
    if (a->live.pidfd < 0 || a->resting || !a->wants_rest)
        return;
    a->live.page->order.job = JOB_IDLE;
    a->resting = true;
    exchange_say(a->live.page, TURN_PROCESS, SAY_JOB);
}

/* A job of the policy that is loaded, with a text or none. */
static enum verdict own_job(struct apart *a, int job, const char *text, size_t n, struct err *e)
{
    struct talk t = about(a, 2 * generous(a));
    if (a->live.pidfd < 0)
        return is_lost(a, e);
    if (n > EXCHANGE_TEXT) {
        err_set(e, E_INPUT, "the text is too long");
        return VERDICT_MALFORMED;
    }
    enum heard h = settle(a);
    if (h != HEARD_END)
        return lose(a, h, IDLE_NS, e);
    struct exchange_page *x = a->live.page;
    x->order.job = job;
    x->n_text = (int64_t)n;
    memcpy(x->text, text ? text : "", text ? n : 0);
    return ask(a, &t, SAY_JOB, e);
}

static enum verdict export_state(void *ctx, struct buf *out, struct err *e)
{
    struct apart *a = ctx;
    struct json_limits limits = {.bytes = 2 * VALUE_BYTES, .depth = VALUE_DEPTH + 2, .nodes = 65536};
    struct buf text = {0};
    if (!has(a, HOOK_EXPORT))
        return VERDICT_OK;
    enum verdict v = own_job(a, JOB_EXPORT, NULL, 0, e);
    if (verdict_stands(v) && exchange_take_text(a->live.page, &text) && text.len) {
        struct json *j = json_parse(text.data, text.len, &limits, e);
        if (j)
            buf_put(out, text.data, text.len);
        else
            v = VERDICT_MALFORMED;
        json_free(j);
    }
    buf_free(&text);
    return v;
}

static enum verdict import_state(void *ctx, const char *json, size_t n, struct err *e)
{
    struct apart *a = ctx;
    return has(a, HOOK_IMPORT) ? own_job(a, JOB_IMPORT, json, n, e) : VERDICT_OK;
}

/* ---- the rest */

static void params_get(void *ctx, struct buf *json)
{
    const struct apart *a = ctx;
    buf_put(json, a->params.data, a->params.len);
}

static int set_params(void *ctx, const char *json, size_t n, struct err *e)
{
    struct apart *a = ctx;
    enum verdict v = own_job(a, JOB_PARAMS, json, n, e);
    if (!verdict_stands(v))
        return E_POLICY;
    if (a->talker.end.rc)
        return take_error(&a->talker.end, e);
    if (keep_params(a, a->live.page))
        return 0;
    lose(a, HEARD_WRONG, 0, e);
    return E_POLICY;
}

static void metrics(void *ctx, const char *labels, struct buf *out)
{
    const struct apart *a = ctx;
    struct nursery_counts n = nursery_counts(a->nursery);
    hook_times_put(&a->times, labels, out);
    const struct {
        const char *name, *help;
        uint64_t n;
    } counts[] = {{"policy_processes_started_total",
                   "Processes of policies that were started, for checks, calls and as spares.", n.born},
                  {"policy_processes_died_total", "Of those, the ones that ended by themselves.", n.died},
                  {"policy_processes_killed_total",
                   "Of those, the ones that were killed: late, or not keeping to what a policy says.", n.killed}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s %llu\n", counts[i].name, counts[i].help, counts[i].name,
                   counts[i].name, (unsigned long long)counts[i].n);
}

/* The spare's turn, where it lives; else one more is born. False: none can be. */
static bool take_spare(struct apart *a)
{
    nursery_end(a->nursery, &a->live, NULL, 0);
    if (!born_lives(&a->spare)) {
        nursery_end(a->nursery, &a->spare, NULL, 0);
        bear_spare(a);
    }
    a->live = a->spare;
    a->spare = (struct born){.pidfd = -1};
    a->resting = false;
    return a->live.pidfd >= 0;
}

static int put_params_back(struct apart *a, struct err *e)
{
    struct buf values = {0};
    put_values(a, &values);
    int rc = set_params(a, values.data, values.len, e);
    buf_free(&values);
    return rc;
}

/* It has loaded the policy by now, or is about to have. */
static int settle_in(struct apart *a, struct err *e)
{
    struct talk t = about(a, 2000000000);
    enum heard h = talk_wait(&a->talker, &t);
    if (h != HEARD_END) {
        lose(a, h, t.most_ns, e);
        return h == HEARD_GONE ? E_GONE : E_POLICY;
    }
    if (a->talker.end.rc)
        return take_error(&a->talker.end, e);
    int rc = put_params_back(a, e);
    return rc && a->live.pidfd < 0 ? E_GONE : rc;
}

/* Where whoever wants memory back kills all of them at once, one that still lives may be about to end: it is not the
 * last one. */
static int renew(void *ctx, struct err *e)
{
    enum { TRIES = 3 };
    struct apart *a = ctx;
    int rc = E_GONE;
    for (int i = 0; i < TRIES && rc == E_GONE; i++) {
        if (!take_spare(a))
            return err_set(e, E_SYS, "%s.lua: there is no process to take the place of the one that ended", a->name);
        rc = settle_in(a, e);
    }
    if (!rc)
        bear_spare(a);
    return rc == E_GONE ? E_POLICY : rc;
}

static void destroy(void *ctx)
{
    struct apart *a = ctx;
    nursery_end(a->nursery, &a->live, NULL, 0);
    nursery_end(a->nursery, &a->spare, NULL, 0);
    talker_free(&a->talker);
    buf_free(&a->text);
    buf_free(&a->params);
    mem_free(a);
}

static const struct policy_ops ops = {
    .start = start,
    .admit = admit,
    .step = step,
    .finish = finish,
    .idle = idle,
    .export_state = export_state,
    .import_state = import_state,
    .params_get = params_get,
    .params_set = set_params,
    .metrics = metrics,
    .renew = renew,
    .destroy = destroy,
};

/* ---- loading */

/* The process has loaded it. */
static int take_in(struct apart *a, const struct apart_source *s, struct libs *libs, struct policy *out, struct err *e)
{
    const struct exchange_end *end = &a->talker.end;
    *out = (struct policy){.ops = &ops, .ctx = a};
    TRY(script_name(out->name, s->name, e));
    memcpy(a->name, out->name, sizeof a->name);
    if (whole(s, libs, &a->text, out->sha256, out->libs) || !keep_params(a, a->live.page))
        return err_set(e, E_POLICY, "%s.lua: its process said what no policy says", a->name);
    vm_escape(out->doc, sizeof out->doc, end->doc, strlen(end->doc));
    a->times.has = end->hooks & ((1 << HOOK_COUNT) - 1);
    return 0;
}

int apart_load(struct policy *out, const struct apart_source *s, const struct lua_opts *o, struct err *e)
{
    struct libs libs = {.folder = o->folder};
    struct job j = {.kind = JOB_LOAD, .source = s, .opts = o, .libs = &libs};
    struct lua_opts full;
    TRY(script_opts(&full, o, e));
    int rc = run_job(&j, e);
    if (rc) {
        libs_free(&libs);
        return rc;
    }
    struct apart *a = mem_new(sizeof *a);
    a->nursery = o->nursery;
    a->opts = full;
    a->opts.folder = NULL;
    a->live = j.born;
    a->spare = (struct born){.pidfd = -1};
    talker_init(&a->talker);
    a->talker.end = j.end;
    rc = take_in(a, s, &libs, out, e);
    libs_free(&libs);
    if (rc)
        destroy(a);
    else
        bear_spare(a);
    return rc;
}

int apart_pid(const struct policy *p)
{
    const struct apart *a = p->ops == &ops ? p->ctx : NULL;
    return a && a->live.pidfd >= 0 ? a->live.pid : 0;
}
