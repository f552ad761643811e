#include "engine/serve/versions/ledger.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { SOURCE_BYTES = (256 << 10) + 1024 }; /* of a policy with its libraries, and the lines that part them */

struct write {
    struct text_job job; /* first */
    struct ledger *ledger;
    struct audit_entry entry;
    struct good good;
    struct buf source;
    char drop[65]; /* "": none */
    bool has_good, later, ran;
    int rc;
    struct err err;
    ledger_fn fn;
    void *ctx;
    struct list waiting;
};

/* ---- opening */

static void replay(void *ctx, uint64_t seq, const struct audit_entry *a)
{
    (void)seq;
    book_take(ctx, a);
}

static void fetch(void *ctx, const char *sha256)
{
    struct ledger *l = ctx;
    struct buf source = {0};
    struct err e = {0};
    if (!book_find(l->book, NULL, sha256))
        store_drop(l->store, sha256); /* a server died between two of its files */
    else if (store_get(l->store, sha256, SOURCE_BYTES, &source, &e))
        log_warn("policy", "a version is left out: %s", e.text);
    else
        book_keep(l->book, sha256, source.data ? source.data : "", source.len);
    buf_free(&source);
}

int ledger_open(struct ledger **out, const char *dir, struct err *e)
{
    struct ledger *l = mem_new(sizeof *l);
    l->book = mem_new(sizeof *l->book);
    list_init(&l->waiting);
    int rc = store_open(&l->store, dir, replay, l->book, e);
    if (!rc) {
        store_each(l->store, fetch, l);
        book_begin(l->book);
    }
    *out = rc ? NULL : l;
    if (rc)
        ledger_close(l);
    return rc;
}

/* It has happened. */
static void hear(struct ledger *l, const struct audit_entry *a)
{
    book_take(l->book, a);
    if (l->heard)
        l->heard(l->heard_ctx, a);
}

/* ---- writing */

static void write_run(struct text_job *job)
{
    struct write *w = (struct write *)job;
    struct store *s = w->ledger->store;
    w->ran = true;
    if (w->source.len)
        w->rc = store_put(s, w->entry.to, w->source.data, w->source.len, &w->err);
    if (!w->rc && w->has_good)
        w->rc = store_set_good(s, &w->good, &w->err);
    if (!w->rc)
        w->rc = store_log(s, &w->entry, &w->err);
    if (w->drop[0])
        store_drop(s, w->drop);
}

static void write_done(struct text_job *job)
{
    struct write *w = (struct write *)job;
    if (!w->ran)
        write_run(job); /* the lane has ended */
    if (w->rc) {
        log_error("policy", "%s of %s could not be recorded: %s", w->entry.event, w->entry.policy, w->err.text);
        if (w->ledger->n_failed)
            ++*w->ledger->n_failed;
    } else if (w->later) {
        hear(w->ledger, &w->entry);
    }
    if (w->fn)
        w->fn(w->ctx, w->rc);
    good_free(&w->good);
    buf_free(&w->source);
    mem_free(w);
}

static void post(struct ledger *l, struct write *w)
{
    if (!list_empty(&l->waiting) || (l->text && text_post(l->text, TEXT_POLICY, &w->job)))
        list_push_back(&l->waiting, &w->waiting);
    else if (!l->text)
        write_done(&w->job);
}

void ledger_tick(struct ledger *l)
{
    while (!list_empty(&l->waiting)) {
        struct write *w = LIST_ENTRY(l->waiting.next, struct write, waiting);
        if (l->text && text_post(l->text, TEXT_POLICY, &w->job))
            return;
        list_remove(&w->waiting);
        if (!l->text)
            write_done(&w->job);
    }
}

void ledger_lane_ends(struct ledger *l)
{
    l->text = NULL;
}

void ledger_close(struct ledger *l)
{
    if (!l)
        return;
    l->text = NULL;
    l->n_failed = NULL;
    ledger_tick(l);
    store_close(l->store);
    book_free(l->book);
    mem_free(l->book);
    mem_free(l);
}

/* ---- notes */

struct audit_entry ledger_entry(const char *actor, const char *event, const char *policy, const char *to)
{
    struct audit_entry a = {.at_s = clock_wall_seconds()};
    snprintf(a.actor, sizeof a.actor, "%s", actor);
    snprintf(a.event, sizeof a.event, "%s", event);
    snprintf(a.policy, sizeof a.policy, "%s", policy ? policy : "");
    snprintf(a.to, sizeof a.to, "%s", to ? to : "");
    snprintf(a.result, sizeof a.result, "ok");
    return a;
}

static void copy_good(struct write *w, const struct good *g)
{
    w->has_good = true;
    w->good = *g;
    w->good.params = g->params ? mem_strdup(g->params) : NULL;
}

/* The oldest goes where there are too many; each by a line of its own. */
static void make_room(struct ledger *l)
{
    struct version *v;
    while ((v = book_surplus(l->book)) != NULL) {
        struct audit_entry a = ledger_entry("engine", "prune", v->name, v->sha256);
        snprintf(a.reason, sizeof a.reason, "more than %d versions, or %d MiB of sources", BOOK_VERSIONS,
                 BOOK_BYTES >> 20);
        ledger_note(l, &a, &(struct ledger_extra){.drop = true});
    }
}

static void take(struct ledger *l, const struct audit_entry *a, const struct buf *source)
{
    hear(l, a);
    if (source && source->len)
        book_keep(l->book, a->to, source->data, source->len);
}

void ledger_note(struct ledger *l, const struct audit_entry *a, const struct ledger_extra *more)
{
    static const struct ledger_extra none;
    struct write *w = mem_new(sizeof *w);
    more = more ? more : &none;
    *w = (struct write){.job = {.run = write_run, .done = write_done}, .ledger = l, .entry = *a};
    w->fn = more->fn;
    w->ctx = more->ctx;
    list_init(&w->waiting);
    if (more->good)
        copy_good(w, more->good);
    if (more->source)
        buf_put(&w->source, more->source->data, more->source->len);
    w->later = more->later;
    if (!more->later)
        take(l, a, more->source);
    if (more->drop && !book_has_source(l->book, a->to))
        memcpy(w->drop, a->to, sizeof w->drop);
    post(l, w);
    if (!more->drop)
        make_room(l);
}

int ledger_record(struct ledger *l, const struct audit_entry *a, const struct buf *source, struct err *e)
{
    TRY(store_put(l->store, a->to, source->data ? source->data : "", source->len, e));
    return store_log(l->store, a, e);
}

void ledger_recorded(struct ledger *l, const struct audit_entry *a, const struct buf *source)
{
    take(l, a, source);
    make_room(l);
}
