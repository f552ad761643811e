/* The orders about policies, one after the other (engine/serve/policies.h). The first of the list is being carried out:
 * begin() says what is meant, the policy lane loads, tries and records it, the engine makes it live, a note says how it
 * went, and end() answers and begins the next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/canary_order.h"
#include "engine/serve/policies.h"
#include "engine/shadow.h"

struct order {
    struct text_job job; /* first */
    struct policies *policies;
    enum order_kind kind;
    char name[POLICY_NAME_MAX + 1], asked[80], actor[AUDIT_ACTOR]; /* name "": any */
    bool force, strict, from_file, known; /* known: it passed before, its load may take longer */
    double seconds;
    int groups[MAX_RANKS], n_groups; /* of a canary */
    char path[POLICY_PATH];          /* "": the source came with the request, or is kept */
    const char *dir;                 /* which the file may not lead out of; NULL: the operator named it */
    struct buf source;
    char sha256[65], looked[65]; /* looked: what was known not to be in quarantine before it was loaded */
    char *params;
    struct policy *made; /* heap; NULL: err says why */
    struct err err;
    bool ran;
    enum order_result result;
    char *text; /* of the answer; heap */
    struct audit_entry record;
    policy_fn fn;
    void *ctx;
    struct list in;
};

static void begin(struct order *o);

/* ---- the end of an order */

static void free_order(struct order *o)
{
    list_remove(&o->in);
    o->policies->n_orders--;
    buf_free(&o->source);
    mem_free(o->params);
    mem_free(o->text);
    mem_free(o);
}

static void count(struct policies *p, const struct order *o)
{
    struct counts *c = &p->front->counts;
    bool loads = o->kind == ORDER_LOAD || o->kind == ORDER_ACTIVATE || (o->kind == ORDER_ROLLBACK && o->known);
    if (o->result <= ORDER_UNREADABLE && (loads || o->result != ORDER_OK))
        c->reloads[o->result]++;
    if (o->result == ORDER_OK && loads)
        c->last_reload_s = clock_wall_seconds();
    if (o->result == ORDER_OK)
        return;
    log_warn("policy", "refused: %s", o->text);
    bool told = o->result == ORDER_REFUSED || o->result == ORDER_UNREADABLE || o->result == ORDER_QUARANTINED;
    if (loads && told && !p->front->stopped) { /* an init error the engine knows of */
        struct engine_message m = {.kind = IN_POLICY_REFUSED, .payload = mem_strdup(o->text)};
        queue_post(p->front->inbox, &m);
    }
}

static void end(struct order *o)
{
    struct policies *p = o->policies;
    count(p, o);
    if (o->from_file)
        p->loading = false;
    if (o->fn)
        o->fn(o->ctx, &(struct policy_outcome){o->result, o->text});
    free_order(o);
    if (!list_empty(&p->orders))
        begin(LIST_ENTRY(p->orders.next, struct order, in));
}

static void end_with(struct order *o, enum order_result result, const char *text)
{
    char *copy = mem_strdup(text);
    mem_free(o->text);
    o->text = copy;
    o->result = result;
    end(o);
}

static void noted(void *ctx, int rc)
{
    (void)rc; /* it has happened, and was told */
    end(ctx);
}

/* The last note about it; who asked is answered when it is written. */
static void note_and_end(struct order *o, struct audit_entry *a, enum order_result result, const char *text)
{
    mem_free(o->text);
    o->text = mem_strdup(text);
    o->result = result;
    ledger_note(o->policies->ledger, a,
                &(struct ledger_extra){.fn = noted, .ctx = o, .drop = o->kind == ORDER_DELETE && result == ORDER_OK});
}

static void refuse(struct order *o, const char *event, const char *word, enum order_result result, const char *why)
{
    struct audit_entry a = ledger_entry(o->actor, event, o->name, o->sha256);
    snprintf(a.from, sizeof a.from, "%s", o->policies->ledger->book->live);
    snprintf(a.result, sizeof a.result, "%s", word);
    snprintf(a.reason, sizeof a.reason, "%s", why);
    note_and_end(o, &a, result, why);
}

static const char *event_of(const struct order *o)
{
    return o->kind == ORDER_SHADOW     ? "shadow"
           : o->kind == ORDER_CANARY   ? "canary"
           : o->kind == ORDER_ROLLBACK ? "rollback"
           : o->kind == ORDER_DELETE   ? "delete"
                                       : "activate";
}

static void end_kept(struct order *o)
{
    char text[200];
    snprintf(text, sizeof text, "{\"name\":\"%s\",\"sha256\":\"%s\"}", o->name, o->sha256);
    end_with(o, ORDER_OK, text);
}

/* It is not to be live: it runs beside the one that is. */
static bool is_beside(enum order_kind k)
{
    return k == ORDER_SHADOW || k == ORDER_CANARY;
}

/* ---- the engine */

static void say_groups(const struct order *o, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "groups ");
    for (int i = 0; i < o->n_groups && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%d", i ? "," : "", o->groups[i]);
}

static void engine_answered(void *ctx, const struct call_reply *r)
{
    struct order *o = ctx;
    struct policies *p = o->policies;
    char text[400], before[65];
    if (r->code) {
        /* Reasons of the script itself begin with its file and line; those of the engine get the file, unless they are
         * about what goes with it: groups of a canary. */
        bool placed = strstr(r->text, ".lua:") != NULL || (o->kind == ORDER_CANARY && r->code == E_INPUT);
        snprintf(text, sizeof text, "%s%s%.300s", placed ? "" : o->name, placed ? "" : ".lua:1: ", r->text);
        refuse(o, event_of(o), "refused", ORDER_INIT_ERROR, text);
        return;
    }
    memcpy(before, p->ledger->book->live, sizeof before);
    if (!is_beside(o->kind))
        policies_now_live(p, r->text, r->n);
    struct audit_entry a = ledger_entry(o->actor, event_of(o), o->name, o->sha256);
    memcpy(a.from, before, sizeof a.from);
    snprintf(a.reason, sizeof a.reason, "%s%s%s", o->force ? "forced" : "", o->force && o->strict ? ", " : "",
             o->strict ? "held to its prediction" : "");
    if (o->kind == ORDER_CANARY)
        say_groups(o, a.reason, sizeof a.reason);
    note_and_end(o, &a, ORDER_OK, r->text);
}

/* ---- the lane: reading, loading, recording */

static int post(struct order *o, void (*run)(struct text_job *), void (*done)(struct text_job *))
{
    o->job = (struct text_job){.run = run, .done = done, .bytes = o->source.len};
    o->ran = false;
    o->err = (struct err){0};
    err_set(&o->err, E_GONE, "%s.lua:1: the server is stopping", o->name);
    struct text *lane = o->policies->ledger->text; /* NULL: it has ended */
    return lane ? text_post(lane, TEXT_POLICY, &o->job) : E_GONE;
}

static void name_by_text(struct order *o)
{
    struct sha256 sum = hash_sha256(o->source.data ? o->source.data : "", o->source.len);
    hash_hex(&sum, o->sha256);
}

/* The source becomes all that the policy is made of: what is kept, and what its hash is of. */
static int take_libraries(struct order *o, struct lua_opts *lua)
{
    char folder[POLICY_PATH];
    struct buf whole = {0};
    if (o->path[0])
        file_folder(o->path, folder, sizeof folder);
    lua->folder = o->path[0] ? folder : o->policies->dir;
    int rc = lua_policy_text(o->name, o->source.data ? o->source.data : "", o->source.len, lua, &whole, &o->err);
    lua->folder = NULL; /* it points here, and the text has all */
    if (rc) {
        buf_free(&whole);
        return rc;
    }
    buf_free(&o->source);
    o->source = whole;
    name_by_text(o);
    memcpy(o->record.to, o->sha256, sizeof o->record.to);
    return 0;
}

static void load_run(struct text_job *job)
{
    struct order *o = (struct order *)job;
    struct lua_opts lua = *o->policies->lua;
    o->ran = true;
    o->err = (struct err){0};
    lua.relaxed |= o->known;
    lua.quiet |= o->kind == ORDER_SHADOW; /* what it says of its decisions is not so */
    o->result = ORDER_REFUSED;
    o->made = mem_new(sizeof *o->made);
    int rc = take_libraries(o, &lua);
    const char *text = o->source.data ? o->source.data : "";
    if (!rc)
        rc = lua_policy_load(o->made, o->name, text, o->source.len, &lua, o->params, &o->err);
    bool loaded = rc == 0;
    if (loaded && o->kind != ORDER_ROLLBACK) { /* the way back is open where nothing can be written */
        rc = ledger_record(o->policies->ledger, &o->record, &o->source, &o->err);
        o->result = rc ? ORDER_UNRECORDED : o->result;
    }
    if (rc || o->kind == ORDER_KEEP) {
        if (loaded)
            o->made->ops->destroy(o->made->ctx);
        mem_free(o->made);
        o->made = NULL;
    }
}

/* Is what it is of in quarantine, and not forced? Then it is refused, and over. */
static bool is_barred(struct order *o)
{
    struct ledger *l = o->policies->ledger;
    char why[AUDIT_REASON];
    const char *in = book_quarantined(l->book, o->sha256);
    if (in && !o->force) {
        snprintf(why, sizeof why, "%s (%.12s) is in quarantine: %.250s; ?force=1 loads it all the same", o->name,
                 o->sha256, in);
        refuse(o, o->kind == ORDER_ROLLBACK ? "rollback" : "load", "quarantined", ORDER_QUARANTINED, why);
        return true;
    }
    if (in) {
        struct audit_entry a = ledger_entry(o->actor, "release", o->name, o->sha256);
        snprintf(a.reason, sizeof a.reason, "forced; it was in quarantine: %.300s", in);
        log_warn("policy", "%s (%.12s) is forced out of quarantine: %s", o->name, o->sha256, in);
        ledger_note(l, &a, NULL);
    }
    return false;
}

static void drop(struct policy *made)
{
    if (made)
        made->ops->destroy(made->ctx);
    mem_free(made);
}

static void send_shadow(struct order *o, struct policy *made)
{
    struct shadow_order *s = mem_new(sizeof *s);
    *s = (struct shadow_order){.policy = *made, .for_ns = (int64_t)(o->seconds * 1e9)};
    mem_free(made);
    calls_send(&o->policies->front->calls, IN_SHADOW, s, 0, engine_answered, o);
}

static void send_canary(struct order *o, struct policy *made)
{
    struct canary_order *c = mem_new(sizeof *c);
    *c = (struct canary_order){.policy = *made, .n_groups = o->n_groups, .for_ns = (int64_t)(o->seconds * 1e9)};
    memcpy(c->groups, o->groups, sizeof c->groups);
    mem_free(made);
    calls_send(&o->policies->front->calls, IN_CANARY, c, 0, engine_answered, o);
}

/* What was predicted of the swap goes along. False: it was to be held to that, and cannot be; it is over. */
static bool foretell(struct order *o, struct policy *made)
{
    const struct policies *p = o->policies;
    const struct book *b = p->ledger->book;
    struct predicted_policy live = {b->live[0] ? b->live : "native", p->params}, other = {o->sha256, o->params};
    struct err e = {0};
    int rc = predictions_find(&p->predictions, live, other, clock_now(p->front->clock), &made->predicted, &e);
    made->predicted.is_strict = o->strict;
    if (o->strict && !rc && !p->probation_ns)
        rc = err_set(&e, E_UNSUPPORTED,
                     "this server watches no policy (--policy-probation-seconds 0), so none can be "
                     "held to its prediction");
    if (!rc || !o->strict)
        return true;
    drop(made);
    refuse(o, event_of(o), "refused", ORDER_UNPREDICTED, e.text);
    return false;
}

static void load_done(struct text_job *job)
{
    struct order *o = (struct order *)job;
    struct policies *p = o->policies;
    struct policy *made = o->made;
    bool good = o->ran && o->err.code == 0;
    o->made = NULL;
    if (good && o->kind != ORDER_ROLLBACK)
        ledger_recorded(p->ledger, &o->record, &o->source);
    if (made && p->front->stopped) {
        drop(made);
        err_set(&o->err, E_GONE, "%s.lua:1: the server is stopping", o->name);
        good = false;
    }
    /* with libraries, what it is was known only once they had been read */
    if (good && strcmp(o->looked, o->sha256) != 0 && is_barred(o))
        drop(made);
    else if (!o->ran || o->err.code == E_GONE || (!good && o->result == ORDER_UNRECORDED))
        end_with(o, o->ran ? o->result : ORDER_REFUSED, o->err.text);
    else if (!good)
        refuse(o, "load", "refused", o->result, o->err.text);
    else if (o->kind == ORDER_KEEP)
        end_kept(o);
    else if (o->kind == ORDER_SHADOW)
        send_shadow(o, made);
    else if (o->kind == ORDER_CANARY)
        send_canary(o, made);
    else if (foretell(o, made))
        calls_send(&p->front->calls, IN_POLICY, made, 0, engine_answered, o);
}

/* Its source is known: may it be loaded? */
static void load(struct order *o)
{
    name_by_text(o);
    if (is_barred(o))
        return;
    memcpy(o->looked, o->sha256, sizeof o->looked);
    o->record = ledger_entry(o->actor, "load", o->name, o->sha256);
    if (post(o, load_run, load_done))
        end_with(o, ORDER_BUSY, "too many policies are being loaded");
}

static void read_run(struct text_job *job)
{
    struct order *o = (struct order *)job;
    struct err e = {0};
    o->ran = true;
    o->err = (struct err){0};
    if (file_read_within(&o->source, o->dir, o->path, LUA_SOURCE_BYTES, &e))
        err_set(&o->err, e.code, "%s.lua:1: cannot be read: %s", o->name, e.text);
}

static void read_done(struct text_job *job)
{
    struct order *o = (struct order *)job;
    if (o->err.code)
        end_with(o, o->ran ? ORDER_UNREADABLE : ORDER_REFUSED, o->err.text);
    else
        load(o);
}

/* ---- the beginning of an order */

static void load_version(struct order *o, const struct version *v)
{
    snprintf(o->name, sizeof o->name, "%.40s", v->name);
    buf_clear(&o->source);
    buf_put(&o->source, v->source, v->n_source);
    o->params = v->params ? mem_strdup(v->params) : NULL;
    o->known = true;
    load(o);
}

/* The engine still has the policy of before: it goes back to that one by itself. */
static void engine_went_back(void *ctx, const struct call_reply *r)
{
    struct order *o = ctx;
    struct policies *p = o->policies;
    struct version *v = r->code == E_NOTFOUND ? book_before(p->ledger->book, NULL) : NULL;
    if (v) {
        load_version(o, v);
        return;
    }
    if (r->code == E_NOTFOUND) {
        end_with(o, ORDER_UNKNOWN, r->text);
        return;
    }
    if (r->code) { /* its start failed, and the native one serves */
        book_live(p->ledger->book, "native", "native", p->ledger->book->live);
        engine_answered(ctx, r);
        return;
    }
    struct json *j = json_parse(r->text, r->n, NULL, NULL);
    const char *name = json_text(json_find(json_find(j, "active"), "name"));
    const char *sha = json_text(json_find(json_find(j, "active"), "sha256"));
    snprintf(o->name, sizeof o->name, "%.40s", name ? name : "");
    snprintf(o->sha256, sizeof o->sha256, "%s", sha ? sha : "");
    json_free(j);
    engine_answered(ctx, r);
}

static void begin_rollback(struct order *o)
{
    struct policies *p = o->policies;
    struct book *b = p->ledger->book;
    struct version *v = NULL;
    struct err e = {0};
    int rc = o->asked[0] ? book_resolve(b, o->name[0] ? o->name : NULL, o->asked, &v, &e) : 0;
    if (rc) {
        end_with(o, rc == E_NOTFOUND ? ORDER_UNKNOWN : ORDER_UNCLEAR, e.text);
        return;
    }
    if (!v && o->name[0] && (v = book_before(b, o->name)) == NULL) {
        err_set(&e, E_NOTFOUND, "there is no earlier version of %s to go back to", o->name);
        end_with(o, ORDER_UNKNOWN, e.text);
        return;
    }
    if (v)
        load_version(o, v);
    else if (p->front->stopped)
        end_with(o, ORDER_REFUSED, "the server is stopping");
    else
        calls_send(&p->front->calls, IN_ROLLBACK, NULL, 0, engine_went_back, o);
}

static void begin_activate(struct order *o)
{
    struct book *b = o->policies->ledger->book;
    struct version *v = NULL;
    struct err e = {0};
    int rc = 0;
    if (o->asked[0])
        rc = book_resolve(b, o->name, o->asked, &v, &e);
    else if ((v = book_newest(b, o->name)) == NULL)
        rc = err_set(&e, E_NOTFOUND, "no version of the policy %s is kept; send its file, or push it first", o->name);
    if (rc)
        end_with(o, rc == E_NOTFOUND ? ORDER_UNKNOWN : ORDER_UNCLEAR, e.text);
    else
        load_version(o, v);
}

static void begin_delete(struct order *o)
{
    struct book *b = o->policies->ledger->book;
    struct version *v = NULL;
    struct err e = {0};
    char text[200];
    int rc = book_resolve(b, o->name, o->asked, &v, &e);
    if (rc) {
        end_with(o, rc == E_NOTFOUND ? ORDER_UNKNOWN : ORDER_UNCLEAR, e.text);
        return;
    }
    if (book_is_needed(b, v)) {
        err_set(&e, E_INPUT, "%s (%.12s) is live, was live before, or is the last good one: it stays", v->name,
                v->sha256);
        end_with(o, ORDER_IN_USE, e.text);
        return;
    }
    snprintf(o->sha256, sizeof o->sha256, "%s", v->sha256);
    snprintf(text, sizeof text, "{\"name\":\"%s\",\"sha256\":\"%s\"}", v->name, v->sha256);
    struct audit_entry a = ledger_entry(o->actor, "delete", v->name, v->sha256);
    note_and_end(o, &a, ORDER_OK, text);
}

static void begin(struct order *o)
{
    if (o->kind == ORDER_ROLLBACK)
        begin_rollback(o);
    else if (o->kind == ORDER_ACTIVATE || (is_beside(o->kind) && !o->source.len))
        begin_activate(o);
    else if (o->kind == ORDER_DELETE)
        begin_delete(o);
    else if (!o->path[0])
        load(o);
    else if (post(o, read_run, read_done))
        end_with(o, ORDER_BUSY, "too many policies are being loaded");
}

static void line_up(struct policies *p, struct order *o)
{
    o->policies = p;
    o->result = ORDER_REFUSED;
    list_push_back(&p->orders, &o->in);
    if (p->n_orders++ == 0)
        begin(o);
}

int policies_order(struct policies *p, const struct policy_order *asked, policy_fn fn, void *ctx)
{
    if (p->n_orders >= POLICY_ORDERS)
        return E_FULL;
    struct order *o = mem_new(sizeof *o);
    *o = (struct order){.kind = asked->kind,
                        .force = asked->force,
                        .strict = asked->strict,
                        .seconds = asked->seconds,
                        .fn = fn,
                        .ctx = ctx};
    snprintf(o->name, sizeof o->name, "%s", asked->name ? asked->name : "");
    snprintf(o->asked, sizeof o->asked, "%s", asked->sha ? asked->sha : "");
    snprintf(o->actor, sizeof o->actor, "%s", asked->actor);
    memcpy(o->groups, asked->groups, sizeof o->groups);
    o->n_groups = asked->n_groups;
    bool loads = asked->kind == ORDER_LOAD || asked->kind == ORDER_KEEP || is_beside(asked->kind);
    if (loads && !is_beside(asked->kind) && asked->source->len == 0 && policies_path(p, asked->name, o->path))
        o->dir = p->dir;
    if (loads) {
        o->source = *asked->source;
        *asked->source = (struct buf){0};
    }
    line_up(p, o);
    return 0;
}

int policies_order_file(struct policies *p, const char *actor)
{
    if (p->n_orders >= POLICY_ORDERS)
        return E_FULL;
    struct order *o = mem_new(sizeof *o);
    *o = (struct order){.kind = ORDER_LOAD, .from_file = true, .dir = p->watched_dir};
    snprintf(o->name, sizeof o->name, "%s", p->watched_name);
    snprintf(o->path, sizeof o->path, "%s", p->watched.path);
    snprintf(o->actor, sizeof o->actor, "%s", actor);
    p->loading = true;
    line_up(p, o);
    return 0;
}

void policies_forget(struct policies *p, void *ctx)
{
    LIST_EACH(at, &p->orders)
    {
        struct order *o = LIST_ENTRY(at, struct order, in);
        if (o->ctx == ctx)
            o->fn = NULL;
    }
}

/* Handed to an engine that ended without an answer (the policy was its own), or never begun. */
void policies_end_orders(struct policies *p)
{
    while (!list_empty(&p->orders))
        free_order(LIST_ENTRY(p->orders.next, struct order, in));
}
