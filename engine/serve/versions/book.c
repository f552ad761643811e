#include "engine/serve/versions/book.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

static void drop(struct book *b, struct version *v)
{
    mem_free(v->source);
    mem_free(v->params);
    struct version *last = &b->all[--b->n];
    if (v != last)
        *v = *last;
    *last = (struct version){0};
}

void book_free(struct book *b)
{
    while (b->n)
        drop(b, &b->all[b->n - 1]);
}

/* ---- finding */

struct version *book_find(struct book *b, const char *name, const char *sha256)
{
    struct version *found = NULL;
    for (int i = 0; i < b->n; i++) {
        struct version *v = &b->all[i];
        if (strcmp(v->sha256, sha256) == 0 && (!name || strcmp(v->name, name) == 0) &&
            (!found || v->seen > found->seen))
            found = v;
    }
    return found;
}

int book_resolve(struct book *b, const char *name, const char *prefix, struct version **out, struct err *e)
{
    struct version *found = NULL;
    if (!version_sha_ok(prefix, SHA_PREFIX_MIN))
        return err_set(e, E_INPUT,
                       "a version is named by its SHA-256, or the first %d or more of its digits, not '%.64s'",
                       SHA_PREFIX_MIN, prefix);
    for (int i = 0; i < b->n; i++) {
        struct version *v = &b->all[i];
        if (strncmp(v->sha256, prefix, strlen(prefix)) != 0 || (name && strcmp(v->name, name) != 0) || !v->source)
            continue;
        if (found && strcmp(found->sha256, v->sha256) != 0)
            return err_set(e, E_INPUT, "%s is the beginning of several versions: give more digits", prefix);
        if (!found || v->seen > found->seen)
            found = v;
    }
    *out = found;
    return found ? 0
                 : err_set(e, E_NOTFOUND, "no version of %s%s is kept whose SHA-256 begins with %s",
                           name ? "the policy " : "any policy", name ? name : "", prefix);
}

struct version *book_newest(struct book *b, const char *name)
{
    struct version *found = NULL;
    for (int i = 0; i < b->n; i++)
        if (b->all[i].source && strcmp(b->all[i].name, name) == 0 && (!found || b->all[i].seen > found->seen))
            found = &b->all[i];
    return found;
}

struct version *book_before(struct book *b, const char *name)
{
    struct version *found = NULL;
    for (int i = 0; i < b->n; i++) {
        struct version *v = &b->all[i];
        bool fits = v->source && v->lived && (!name || strcmp(v->name, name) == 0) && strcmp(v->sha256, b->live) != 0 &&
                    !book_quarantined(b, v->sha256);
        if (fits && (!found || v->lived > found->lived))
            found = v;
    }
    return found;
}

struct version *book_good(struct book *b, int nth)
{
    uint64_t below = UINT64_MAX;
    for (;; nth--) {
        struct version *found = NULL;
        for (int i = 0; i < b->n; i++) {
            struct version *v = &b->all[i];
            if (v->source && v->good && v->good < below && !book_quarantined(b, v->sha256) &&
                (!found || v->good > found->good))
                found = v;
        }
        if (!found || nth <= 0)
            return found;
        below = found->good;
    }
}

bool book_has_source(const struct book *b, const char *sha256)
{
    for (int i = 0; i < b->n; i++)
        if (b->all[i].source && strcmp(b->all[i].sha256, sha256) == 0)
            return true;
    return false;
}

/* ---- quarantine */

static int n_in_quarantine(const struct book *b)
{
    return b->n_quarantined < BOOK_QUARANTINED ? (int)b->n_quarantined : BOOK_QUARANTINED;
}

const char *book_quarantined(const struct book *b, const char *sha256)
{
    for (int i = 0; i < n_in_quarantine(b); i++)
        if (strcmp(b->quarantine[i].sha256, sha256) == 0)
            return b->quarantine[i].why;
    return NULL;
}

static void release(struct book *b, const char *sha256)
{
    for (int i = 0; i < n_in_quarantine(b); i++)
        if (strcmp(b->quarantine[i].sha256, sha256) == 0)
            b->quarantine[i].sha256[0] = 0;
}

static void confine(struct book *b, const char *sha256, const char *why)
{
    release(b, sha256);
    struct quarantined *q = &b->quarantine[b->n_quarantined++ % BOOK_QUARANTINED];
    snprintf(q->sha256, sizeof q->sha256, "%s", sha256);
    snprintf(q->why, sizeof q->why, "%s", why);
}

/* ---- taking in */

static struct version *make(struct book *b, const struct audit_entry *a)
{
    struct version *v = book_find(b, a->policy, a->to);
    if (!v) {
        while (b->n == BOOK_CAPACITY) /* a log may say anything */
            drop(b, &b->all[0]);
        v = &b->all[b->n++];
        *v = (struct version){0};
        snprintf(v->name, sizeof v->name, "%s", a->policy);
        snprintf(v->sha256, sizeof v->sha256, "%s", a->to);
        for (int i = 0; i < b->n - 1; i++) /* under another name it is here already */
            if (b->all[i].source && !v->source && strcmp(b->all[i].sha256, a->to) == 0) {
                v->source = mem_strndup(b->all[i].source, b->all[i].n_source);
                v->n_source = b->all[i].n_source;
            }
    }
    v->seen = ++b->moment;
    return v;
}

static void came(struct book *b, const struct audit_entry *a)
{
    bool refused = strcmp(a->result, "refused") == 0;
    if (strcmp(a->result, "quarantined") == 0 || !version_name_ok(a->policy) || !version_sha_ok(a->to, 64))
        return;
    struct version *v = make(b, a);
    snprintf(v->actor, sizeof v->actor, "%s", a->actor);
    v->accepted |= !refused;
    v->refused = refused && !v->accepted; /* what was good for it once is so still */
    snprintf(v->why, sizeof v->why, "%s", v->refused ? a->reason : "");
    v->at_s = a->at_s;
}

static void went_live(struct book *b, const struct audit_entry *a)
{
    struct version *v = book_find(b, a->policy, a->to);
    if (v)
        v->lived = v->seen = ++b->moment;
    book_live(b, a->policy, a->to, a->from);
}

void book_take(struct book *b, const struct audit_entry *a)
{
    static const char *const lively[] = {"activate", "rollback", "boot", "retry"};
    bool ok = strcmp(a->result, "ok") == 0;
    struct version *v = a->to[0] ? book_find(b, a->policy, a->to) : NULL;
    if (strcmp(a->event, "load") == 0)
        came(b, a);
    for (size_t i = 0; i < sizeof lively / sizeof *lively; i++)
        if (ok && a->to[0] && strcmp(a->event, lively[i]) == 0)
            went_live(b, a);
    if (strcmp(a->event, "withdraw") == 0) {
        if (strcmp(a->result, "quarantined") == 0 && a->from[0])
            confine(b, a->from, a->reason);
        const struct version *next = book_find(b, NULL, a->to);
        book_live(b, next ? next->name : "", a->to, "");
    }
    if (strcmp(a->event, "release") == 0)
        release(b, a->to);
    if (strcmp(a->event, "commit") == 0 && ok && v) {
        v->good = ++b->moment;
        snprintf(b->good, sizeof b->good, "%s", a->to);
    }
    if ((strcmp(a->event, "delete") == 0 || strcmp(a->event, "prune") == 0) && ok && v)
        drop(b, v);
}

void book_live(struct book *b, const char *name, const char *live, const char *previous)
{
    snprintf(b->live_name, sizeof b->live_name, "%s", name);
    snprintf(b->live, sizeof b->live, "%s", live);
    snprintf(b->previous, sizeof b->previous, "%s", previous);
}

void book_begin(struct book *b)
{
    book_live(b, "", "", "");
    for (int i = b->n - 1; i >= 0; i--)
        if (!b->all[i].source && !b->all[i].refused)
            drop(b, &b->all[i]);
}

void book_keep(struct book *b, const char *sha256, const char *source, size_t n)
{
    for (int i = 0; i < b->n; i++) {
        struct version *v = &b->all[i];
        if (v->source || v->refused || strcmp(v->sha256, sha256) != 0)
            continue;
        v->source = mem_strndup(source, n);
        v->n_source = n;
    }
}

/* ---- bounds */

bool book_is_needed(const struct book *b, const struct version *v)
{
    return !strcmp(v->sha256, b->live) || !strcmp(v->sha256, b->previous) || !strcmp(v->sha256, b->good);
}

struct version *book_surplus(struct book *b)
{
    struct version *oldest = NULL;
    size_t bytes = 0;
    for (int i = 0; i < b->n; i++) {
        struct version *v = &b->all[i];
        bytes += v->n_source;
        if (!book_is_needed(b, v) && (!oldest || v->seen < oldest->seen))
            oldest = v;
    }
    return b->n > BOOK_VERSIONS || bytes > BOOK_BYTES ? oldest : NULL;
}

/* ---- the list */

static int by_age(const void *a, const void *b)
{
    const struct version *x = *(struct version *const *)a, *y = *(struct version *const *)b;
    return x->seen < y->seen ? -1 : x->seen > y->seen;
}

static void put_states(const struct book *b, const struct version *v, struct buf *json)
{
    const char *why = book_quarantined(b, v->sha256);
    struct {
        bool is;
        const char *name;
    } states[] = {{!strcmp(v->sha256, b->live) && !strcmp(v->name, b->live_name), "live"},
                  {!strcmp(v->sha256, b->previous), "previous"},
                  {!strcmp(v->sha256, b->good) && v->good, "last-good"},
                  {why != NULL, "quarantined"},
                  {v->refused, "refused"}};
    const char *comma = "";
    buf_puts(json, ",\"state\":[");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (states[i].is) {
            buf_printf(json, "%s\"%s\"", comma, states[i].name);
            comma = ",";
        }
    buf_puts(json, "],\"reason\":");
    const char *reason = v->refused ? v->why : why ? why : "";
    buf_put_json(json, reason, strlen(reason));
}

void book_put(struct book *b, struct buf *json)
{
    struct version *sorted[BOOK_CAPACITY];
    for (int i = 0; i < b->n; i++)
        sorted[i] = &b->all[i];
    if (b->n)
        qsort(sorted, (size_t)b->n, sizeof *sorted, by_age);
    buf_putc(json, '[');
    for (int i = 0; i < b->n; i++) {
        const struct version *v = sorted[i];
        buf_printf(json, "%s{\"name\":\"%s\",\"sha256\":\"%s\",\"bytes\":%zu,\"at\":%lld,\"actor\":", i ? "," : "",
                   v->name, v->sha256, v->n_source, (long long)v->at_s);
        buf_put_json(json, v->actor, strlen(v->actor));
        put_states(b, v, json);
        buf_putc(json, '}');
    }
    buf_putc(json, ']');
}
