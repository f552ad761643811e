#include "engine/serve/policies.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { WATCH_MS = 40 };

bool policies_name_ok(const char *name)
{
    return version_name_ok(name);
}

bool policies_path(const struct policies *p, const char *name, char out[POLICY_PATH])
{
    int n = p->dir ? snprintf(out, POLICY_PATH, "%s/%s.lua", p->dir, name) : -1;
    return n > 0 && n < POLICY_PATH;
}

/* ---- the live policy's file */

static void watch(struct policies *p, const char *name, const char *path, const char *dir)
{
    if (strcmp(p->watched.path, path) == 0)
        return;
    if (!file_is_within(dir, path) || !followed_begin(&p->watched, path)) {
        p->watched = (struct followed){0};
        return;
    }
    p->watched_dir = dir;
    snprintf(p->watched_name, sizeof p->watched_name, "%s", name);
    log_info("policy", "edits of %s go live", path);
}

static void watch_file_of(struct policies *p, const char *name, const char *libs)
{
    char path[POLICY_PATH];
    /* the file given at the start stays the one to watch for its policy, wherever it lies */
    if (p->watches && policies_name_ok(name) && !(p->watched.n && strcmp(name, p->watched_name) == 0)) {
        if (policies_path(p, name, path))
            watch(p, name, path, p->dir);
        else
            p->watched = (struct followed){0};
    }
    followed_set_libs(&p->watched, libs ? libs : "");
}

static void look_at_files(struct policies *p)
{
    if (!p->loading && followed_changed(&p->watched))
        p->loading = policies_order_file(p, "file") == 0;
}

bool policies_reload(struct policies *p, const char *actor)
{
    if (!p->watched.n || p->loading)
        return false;
    followed_seen(&p->watched);
    p->loading = policies_order_file(p, actor) == 0;
    return p->loading;
}

/* ---- what is live */

/* The params whose value is not their default, as an object; NULL: none. */
static char *set_params(const struct json *declared)
{
    struct buf out = {0};
    for (const struct json *d = json_first(declared); d; d = json_next(d)) {
        struct buf value = {0}, fallback = {0};
        json_write(&value, json_find(d, "value"), NULL);
        json_write(&fallback, json_find(d, "default"), NULL);
        if (json_find(d, "value") && (value.len != fallback.len || memcmp(value.data, fallback.data, value.len) != 0)) {
            buf_putc(&out, out.len ? ',' : '{');
            buf_put_json(&out, json_key(d), strlen(json_key(d)));
            buf_putc(&out, ':');
            buf_put(&out, value.data, value.len);
        }
        buf_free(&value);
        buf_free(&fallback);
    }
    if (!out.len)
        return NULL;
    buf_putc(&out, '}');
    return buf_take(&out);
}

static void keep_params(struct policies *p, char *params)
{
    struct book *b = p->ledger->book;
    struct version *v = book_find(b, b->live_name, b->live);
    mem_free(p->params);
    p->params = params;
    if (!v)
        return;
    mem_free(v->params);
    v->params = params ? mem_strdup(params) : NULL;
}

/* judged: the engine watches how requests fare under it, and says so when it keeps it. */
static void begin_probation(struct policies *p, bool judged)
{
    p->live_ns = clock_now(p->front->clock);
    p->judged = judged;
    p->proof[0] = 0;
    p->settled = false;
}

void policies_now_live(struct policies *p, const char *state, size_t n)
{
    struct json *j = json_parse(state, n, NULL, NULL);
    const struct json *active = json_find(j, "active"), *previous = json_find(j, "previous");
    if (json_text(json_find(active, "name"))) {
        book_live(p->ledger->book, json_member_text(active, "name"), json_member_text(active, "sha256"),
                  json_member_text(previous, "sha256"));
        keep_params(p, set_params(json_find(active, "params")));
        watch_file_of(p, json_member_text(active, "name"), json_member_text(active, "libs"));
        begin_probation(p, strcmp(json_member_text(json_find(j, "probation"), "state"), "on") == 0);
    }
    json_free(j);
}

/* Whether the live version has shown by now that a next start may begin with it. */
static bool has_proven(const struct policies *p)
{
    return !p->judged && clock_now(p->front->clock) - p->live_ns >= p->probation_ns;
}

/* What could not be written is tried again after another probation. */
static void good_noted(void *ctx, int rc)
{
    if (rc)
        begin_probation(ctx, false);
}

static void note_good(struct policies *p, const struct audit_entry *a)
{
    struct good g = {.params = p->params};
    snprintf(g.name, sizeof g.name, "%s", p->ledger->book->live_name);
    snprintf(g.sha256, sizeof g.sha256, "%s", p->ledger->book->live);
    ledger_note(p->ledger, a, &(struct ledger_extra){.good = &g, .later = true, .fn = good_noted, .ctx = p});
}

/* The live version, if it may be the last good one; NULL: it may not. */
static const struct version *candidate(struct policies *p)
{
    struct book *b = p->ledger->book;
    const struct version *v = book_find(b, b->live_name, b->live);
    return v && v->source && !book_quarantined(b, v->sha256) ? v : NULL;
}

static void settle(struct policies *p)
{
    struct book *b = p->ledger->book;
    const struct version *v = candidate(p);
    p->settled = true;
    if (!v)
        return;
    struct audit_entry a = ledger_entry("engine", "commit", v->name, v->sha256);
    snprintf(a.from, sizeof a.from, "%s", b->good);
    if (p->proof[0])
        snprintf(a.reason, sizeof a.reason, "%s", p->proof);
    else
        snprintf(a.reason, sizeof a.reason, "live for %.0f s", (double)p->probation_ns * 1e-9);
    log_info("policy", "%s (%.12s) is the last good one", v->name, v->sha256);
    note_good(p, &a);
}

void policies_params(struct policies *p, const char *actor, const char *given, const char *why, const char *state)
{
    struct book *b = p->ledger->book;
    struct audit_entry a = ledger_entry(actor, "params", b->live_name, b->live);
    snprintf(a.result, sizeof a.result, "%s", why ? "refused" : "ok");
    snprintf(a.reason, sizeof a.reason, "%.200s%s%.180s", given, why ? ": " : "", why ? why : "");
    struct json *j = why ? NULL : json_parse(state, strlen(state), NULL, NULL);
    if (json_find(j, "active"))
        keep_params(p, set_params(json_find(json_find(j, "active"), "params")));
    json_free(j);
    if (!why && p->settled && candidate(p)) /* what is good now is so with these */
        note_good(p, &a);
    else
        ledger_note(p->ledger, &a, NULL);
}

/* The engine has put another policy in the place of the live one: it withdrew it or sent it back, or tries one again.
 * On record both of the first are a withdrawal, so that a rollback there is always an operator's. */
static void note_change(struct policies *p, const struct json *j)
{
    const struct json *from = json_find(j, "from"), *to = json_find(j, "to");
    bool again = strcmp(json_member_text(j, "event"), "retry") == 0, rests = json_true(json_find(j, "rests"));
    struct audit_entry a = ledger_entry("engine", again ? "retry" : "withdraw",
                                        json_member_text(again ? to : from, "name"), json_member_text(to, "sha256"));
    snprintf(a.from, sizeof a.from, "%s", json_member_text(from, "sha256"));
    snprintf(a.reason, sizeof a.reason, "%s", json_member_text(j, "reason"));
    if (!again)
        snprintf(a.result, sizeof a.result, "%s", rests ? "rests" : "quarantined");
    ledger_note(p->ledger, &a, NULL);
    book_live(p->ledger->book, json_member_text(to, "name"), json_member_text(to, "sha256"),
              again ? json_member_text(from, "sha256") : "");
    keep_params(p, set_params(json_find(to, "params")));
    watch_file_of(p, json_member_text(to, "name"), json_member_text(to, "libs"));
    begin_probation(p, json_true(json_find(j, "probation")));
}

/* Of a shadow or a canary. */
static void note_end_beside(struct policies *p, const struct json *j)
{
    struct audit_entry a = ledger_entry("engine", json_member_text(j, "event"), json_member_text(j, "name"),
                                        json_member_text(j, "sha256"));
    snprintf(a.reason, sizeof a.reason, "%s", json_member_text(j, "reason"));
    log_info("policy", "%s (%.12s) decides no more beside the live policy: %s", a.policy, a.to, a.reason);
    ledger_note(p->ledger, &a, NULL);
}

void policies_event(struct policies *p, const char *text, size_t n)
{
    struct json *j = json_parse(text, n, NULL, NULL);
    if (strcmp(json_member_text(j, "event"), "shadow-end") == 0 ||
        strcmp(json_member_text(j, "event"), "canary-end") == 0) {
        note_end_beside(p, j);
    } else if (strcmp(json_member_text(j, "event"), "commit") ==
               0) { /* it stays, and settle() makes it the last good one */
        snprintf(p->proof, sizeof p->proof, "%s", json_member_text(j, "reason"));
        p->judged = false;
    } else {
        note_change(p, j);
    }
    json_free(j);
}

/* ---- the beginning and the end */

static void on_tick(void *ctx)
{
    struct policies *p = ctx;
    look_at_files(p);
    ledger_tick(p->ledger);
    if (!p->settled && has_proven(p))
        settle(p);
}

/* What the server begins with. A start goes on where it cannot be recorded. */
static void note_boot(struct policies *p, const struct policies_setup *s)
{
    char hex[65] = "native";
    const char *name = s->name ? s->name : "native";
    bool known = s->source && s->source->len;
    if (known) {
        struct sha256 sum = hash_sha256(s->source->data, s->source->len);
        hash_hex(&sum, hex);
    }
    if (known && !book_find(p->ledger->book, name, hex)) {
        struct audit_entry a = ledger_entry("boot", "load", name, hex);
        ledger_note(p->ledger, &a, &(struct ledger_extra){.source = s->source});
    }
    const char *in = book_quarantined(p->ledger->book, hex);
    if (in)
        log_warn("policy", "%s (%.12s) begins although it is in quarantine, since --policy names it: %s", name, hex,
                 in);
    struct audit_entry a = ledger_entry("boot", "boot", name, hex);
    snprintf(a.reason, sizeof a.reason, "%s", s->why);
    ledger_note(p->ledger, &a, NULL);
    keep_params(p, s->params ? mem_strdup(s->params) : NULL);
}

int policies_init(struct policies *p, const struct policies_setup *s, struct err *e)
{
    *p = (struct policies){.front = s->front, .lua = s->lua, .dir = s->dir, .ledger = s->ledger};
    list_init(&p->orders);
    if (s->name && !policies_name_ok(s->name))
        return err_set(e, E_INPUT,
                       "policy names have at most %d letters, digits, dots, dashes and underscores, not '%.60s'",
                       POLICY_NAME_MAX, s->name);
    if (!p->ledger)
        TRY(ledger_open(&p->own_ledger, NULL, e));
    p->ledger = p->ledger ? p->ledger : p->own_ledger;
    p->ledger->text = s->front->text;
    p->ledger->n_failed = &s->front->counts.record_failures;
    p->probation_ns = (int64_t)(s->probation_s * 1e9);
    begin_probation(p, false);
    if (!s->lua)
        return 0;
    p->tick = loop_every(s->loop, WATCH_MS, on_tick, p);
    if (!p->tick)
        return err_set(e, E_SYS, "no timer for the policy's file");
    p->watches = !s->no_watch;
    if (p->watches && s->name && s->path)
        watch(p, s->name, s->path, NULL);
    else if (p->watches && s->name)
        watch_file_of(p, s->name, s->libs);
    followed_set_libs(&p->watched, s->libs ? s->libs : "");
    if (s->why)
        note_boot(p, s);
    return 0;
}

void policies_lane_ends(struct policies *p)
{
    if (p->ledger)
        ledger_lane_ends(p->ledger);
}

void policies_free(struct policies *p)
{
    loop_event_free(p->tick);
    p->tick = NULL;
    if (!p->ledger)
        return;
    p->ledger->text = NULL;
    ledger_tick(p->ledger);
    policies_end_orders(p);
    p->ledger->n_failed = NULL;
    p->ledger->heard = NULL;
    ledger_close(p->own_ledger);
    mem_free(p->params);
    p->params = NULL;
    p->ledger = p->own_ledger = NULL;
}

/* ---- the list */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_files(const struct policies *p, struct buf *json)
{
    char *names[256];
    int n = 0;
    DIR *d = p->dir ? opendir(p->dir) : NULL;
    for (struct dirent *f; d && n < 256 && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len > 4 && strcmp(f->d_name + len - 4, ".lua") == 0) {
            char path[POLICY_PATH];
            names[n] = mem_strndup(f->d_name, len - 4);
            if (policies_name_ok(names[n]) && policies_path(p, names[n], path) && file_is_within(p->dir, path))
                n++;
            else
                mem_free(names[n]);
        }
    }
    if (d)
        closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        if (i)
            buf_putc(json, ',');
        buf_put_json(json, names[i], strlen(names[i]));
        mem_free(names[i]);
    }
}

static void put_path(struct buf *json, const char *name, const char *path)
{
    buf_printf(json, "\"%s\":", name);
    if (path && *path)
        buf_put_json(json, path, strlen(path));
    else
        buf_puts(json, "null");
    buf_putc(json, ',');
}

void policies_list(const struct policies *p, struct buf *json)
{
    buf_putc(json, '{');
    put_path(json, "directory", p->dir);
    put_path(json, "state_dir", store_dir(p->ledger->store));
    put_path(json, "watched", p->watched.path);
    buf_puts(json, "\"files\":[");
    put_files(p, json);
    buf_puts(json, "],\"versions\":");
    book_put(p->ledger->book, json);
    buf_putc(json, '}');
}
