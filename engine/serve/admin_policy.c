/* The admin routes about versions of policies and their record. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/admin_inner.h"

enum { AUDIT_LINES = 100, AUDIT_MOST_LINES = 1000, SHA_GIVEN = 80, BESIDE_MOST_S = 86400 };

void admin_actor(const struct admin *a, const struct http_exchange *x, char out[AUDIT_ACTOR])
{
    const struct auth_key *key = a->auth.n ? auth_find(&a->auth, http_head_find(&x->head, "authorization")) : NULL;
    if (key && key->tenant[0])
        snprintf(out, AUDIT_ACTOR, "key:%s", key->tenant);
    else
        snprintf(out, AUDIT_ACTOR, "%s", key ? "key" : "open");
}

/* ---- orders */

struct asker {
    struct policies *policies;
    struct http_exchange *x;
};

static void asker_gone(struct http_exchange *x)
{
    struct asker *w = x->user;
    policies_forget(w->policies, w);
    mem_free(w);
}

static const struct {
    int status;
    const char *code;
} answers[] = {
    [ORDER_OK] = {200, ""},
    [ORDER_REFUSED] = {400, "policy_refused"},
    [ORDER_INIT_ERROR] = {400, "policy_start_failed"},
    [ORDER_UNREADABLE] = {400, "policy_unreadable"},
    [ORDER_QUARANTINED] = {409, "policy_quarantined"},
    [ORDER_UNRECORDED] = {507, "policy_unrecorded"},
    [ORDER_UNKNOWN] = {404, "unknown_version"},
    [ORDER_UNCLEAR] = {400, "invalid_sha"},
    [ORDER_UNPREDICTED] = {409, "no_prediction"},
    [ORDER_IN_USE] = {409, "version_in_use"},
    [ORDER_BUSY] = {503, "busy"},
};

static void ordered(void *ctx, const struct policy_outcome *o)
{
    struct asker *w = ctx;
    if (o->result == ORDER_OK)
        http_answer(w->x, 200, "application/json", o->text, strlen(o->text));
    else if (o->result == ORDER_BUSY)
        front_refuse_busy(w->x, o->text);
    else if (answers[o->result].status == 400 && o->result != ORDER_UNCLEAR)
        admin_refuse_policy(w->x, answers[o->result].code, o->text);
    else
        admin_refuse(w->x, answers[o->result].status, answers[o->result].code, o->text);
    mem_free(w);
}

/* There was nothing to go back to: 409, as long as no version was named. */
static void rolled_back(void *ctx, const struct policy_outcome *o)
{
    struct asker *w = ctx;
    if (o->result != ORDER_UNKNOWN) {
        ordered(ctx, o);
        return;
    }
    admin_refuse(w->x, 409, "not_found", o->text);
    mem_free(w);
}

static bool is_set(const struct http_exchange *x, const char *name)
{
    char value[8];
    return http_query_find(x->head.query, name, value, sizeof value) && strcmp(value, "0") != 0;
}

static void order(struct admin *a, struct http_exchange *x, struct policy_order *o, policy_fn fn)
{
    char actor[AUDIT_ACTOR];
    if (!a->policies->lua) {
        admin_refuse(x, 501, "not_implemented", "this server was started without the policy host");
        return;
    }
    struct asker *w = mem_new(sizeof *w);
    *w = (struct asker){a->policies, x};
    x->user = w;
    x->gone = asker_gone;
    admin_actor(a, x, actor);
    o->actor = actor;
    o->force = is_set(x, "force");
    o->strict = is_set(x, "strict-prediction");
    if (policies_order(a->policies, o, fn, w) == 0)
        return;
    x->gone = NULL;
    mem_free(w);
    front_refuse_busy(x, "too many policies are being loaded");
}

/* The name in /admin/policies/NAME or, with a verb, /admin/policies/NAME/VERB; false: answered. */
static bool name_in_path(struct http_exchange *x, const char *verb, char out[POLICY_NAME_MAX + 1])
{
    char given[POLICY_NAME_MAX + 8];
    const char *from = x->head.path + strlen("/admin/policies/");
    size_t n = strlen(from), end = verb ? strlen(verb) + 1 : 0;
    if (n >= end && n - end < sizeof given) {
        snprintf(given, sizeof given, "%.*s", (int)(n - end), from);
        if (admin_read_name(given, out))
            return true;
    }
    admin_refuse(x, 400, "invalid_name",
                 "a policy's name has at most 40 letters, digits, dots, dashes and underscores");
    return false;
}

/* ---- the routes */

void admin_get_versions(struct admin *a, struct http_exchange *x)
{
    struct buf out = {0};
    policies_list(a->policies, &out);
    front_json(x, &out);
    buf_free(&out);
}

/* A file of the server's folder, which the lane reads. */
struct file_job {
    struct text_job job; /* first */
    struct http_exchange *x;
    const char *dir;
    char path[POLICY_PATH];
    struct buf text;
    struct err err;
};

static void file_run(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    j->err = (struct err){0};
    file_read_within(&j->text, j->dir, j->path, LUA_SOURCE_BYTES, &j->err);
}

static void file_done(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    if (j->x && j->err.code)
        admin_refuse(j->x, j->err.code == E_GONE ? 503 : 404, "policy_unreadable", j->err.text);
    else if (j->x)
        http_answer(j->x, 200, "text/plain; charset=utf-8", j->text.data ? j->text.data : "", j->text.len);
    buf_free(&j->text);
    mem_free(j);
}

static void file_gone(struct http_exchange *x)
{
    ((struct file_job *)x->user)->x = NULL;
}

static void get_file(struct admin *a, struct http_exchange *x, const char *name)
{
    char path[POLICY_PATH];
    if (!policies_path(a->policies, name, path)) {
        admin_refuse(x, 404, "no_source", "the server has no policy folder to read from (--policy-dir)");
        return;
    }
    struct file_job *j = mem_new(sizeof *j);
    *j = (struct file_job){.job = {.run = file_run, .done = file_done}, .x = x, .dir = a->policies->dir};
    memcpy(j->path, path, sizeof path);
    err_set(&j->err, E_GONE, "the server is stopping");
    x->user = j;
    x->gone = file_gone;
    if (text_post(a->front->text, TEXT_POLICY, &j->job) == 0)
        return;
    j->x = NULL;
    x->gone = NULL;
    file_done(&j->job);
    front_refuse_busy(x, "too many jobs are waiting");
}

void admin_get_source(struct admin *a, struct http_exchange *x)
{
    char name[POLICY_NAME_MAX + 1], sha[SHA_GIVEN] = "", from[16] = "";
    struct book *b = a->policies->ledger->book;
    struct err e = {0};
    if (!name_in_path(x, NULL, name))
        return;
    http_query_find(x->head.query, "from", from, sizeof from);
    if (strcmp(from, "folder") == 0) {
        get_file(a, x, name);
        return;
    }
    struct version *v = NULL;
    int rc = 0;
    if (http_query_find(x->head.query, "sha", sha, sizeof sha))
        rc = book_resolve(b, name, sha, &v, &e);
    else if ((v = book_newest(b, name)) == NULL)
        rc = err_set(&e, E_NOTFOUND, "no version of the policy %s is kept", name);
    if (rc) {
        admin_refuse(x, rc == E_NOTFOUND ? 404 : 400, rc == E_NOTFOUND ? "unknown_version" : "invalid_sha", e.text);
        return;
    }
    http_add_header(x, "X-Policy-Sha256", v->sha256);
    http_answer(x, 200, "text/plain; charset=utf-8", v->source, v->n_source);
}

void admin_put_source(struct admin *a, struct http_exchange *x)
{
    char name[POLICY_NAME_MAX + 1], from[16] = "", activate[8] = "1";
    if (!name_in_path(x, NULL, name) || !admin_source_ok(a, x))
        return;
    http_query_find(x->head.query, "from", from, sizeof from);
    http_query_find(x->head.query, "activate", activate, sizeof activate);
    bool folder = !strcmp(from, "folder"), keep = !strcmp(activate, "0");
    if (keep && is_set(x, "strict-prediction")) {
        admin_refuse(x, 400, "invalid_value",
                     "strict-prediction is for what goes live, and activate=0 keeps it only: which of them?");
        return;
    }
    if (*from && !folder) {
        admin_refuse(x, 400, "invalid_from",
                     "from may only be folder: the file of that name in the server's policy folder");
        return;
    }
    if (!x->body.len != folder) {
        admin_refuse(x, 400, "no_source",
                     folder ? "a body and ?from=folder: which of them?"
                            : "the body is empty: send the policy's text (curl --data-binary @FILE.lua), or ask with "
                              "?from=folder for the file of that name in the server's policy folder");
        return;
    }
    if (folder && !a->policies->dir) {
        admin_refuse(x, 400, "no_source", "the server has no policy folder to read from (--policy-dir)");
        return;
    }
    log_info("admin", "policy %s: %zu bytes%s%s to %s", name, x->body.len, folder ? " and what is in " : "",
             folder ? a->policies->dir : "", keep ? "keep" : "load");
    struct policy_order o = {.kind = keep ? ORDER_KEEP : ORDER_LOAD, .name = name, .source = &x->body};
    order(a, x, &o, ordered);
}

/* ?NAME=SHA; "" where it is not given. */
static void read_sha(const struct http_exchange *x, const char *name, char out[SHA_GIVEN])
{
    out[0] = 0;
    http_query_find(x->head.query, name, out, SHA_GIVEN);
}

/* "1,66", ids of groups. False: it is none. */
static bool read_groups(const struct http_exchange *x, struct policy_order *o)
{
    char given[12 * MAX_RANKS], *at = given, *end;
    if (!http_query_find(x->head.query, "groups", given, sizeof given))
        return false;
    for (; o->n_groups < MAX_RANKS; at = end + 1) {
        long id = strtol(at, &end, 10);
        if (*at < '0' || *at > '9' || id < 1 || id > INT32_MAX || (*end && *end != ','))
            return false;
        o->groups[o->n_groups++] = (int)id;
        if (!*end)
            return true;
    }
    return false;
}

/* A source that is sent, or a version that is kept, beside the live policy: as a shadow, or as a canary. */
static void post_beside(struct admin *a, struct http_exchange *x, const char *name, enum order_kind kind)
{
    char sha[SHA_GIVEN], given[24] = "600", *end;
    read_sha(x, "sha", sha);
    http_query_find(x->head.query, "seconds", given, sizeof given);
    double seconds = strtod(given, &end);
    struct policy_order o = {.kind = kind, .name = name, .sha = sha, .source = &x->body, .seconds = seconds};
    if (*end || !(seconds >= 1 && seconds <= BESIDE_MOST_S)) {
        admin_refuse(x, 400, "invalid_value", "seconds is a number from 1 to 86400");
        return;
    }
    if (kind == ORDER_CANARY && !read_groups(x, &o)) {
        admin_refuse(x, 400, "invalid_value",
                     "groups has the ids of the groups that it is to decide for, as in ?groups=1,66: GET /admin/state "
                     "shows them under groups");
        return;
    }
    if (x->body.len && *sha) {
        admin_refuse(x, 400, "invalid_sha", "a body and ?sha: which of them?");
        return;
    }
    if (!admin_source_ok(a, x))
        return;
    log_info("admin", "policy %s: %g s beside the live one, as %s %s", name, seconds,
             kind == ORDER_CANARY ? "a canary" : "a shadow", sha);
    order(a, x, &o, ordered);
}

void admin_post_version(struct admin *a, struct http_exchange *x)
{
    static const char *const verbs[] = {"check", "activate", "rollback", "shadow", "canary"};
    char name[POLICY_NAME_MAX + 1], sha[SHA_GIVEN];
    const char *slash = strrchr(x->head.path, '/');
    int verb = 0;
    while (verb < 5 && strcmp(slash + 1, verbs[verb]) != 0)
        verb++;
    if (verb == 5) {
        admin_refuse(x, 404, "not_found",
                     "POST /admin/policies/NAME/check, /activate, /rollback, /shadow and /canary are what there is");
        return;
    }
    if (!name_in_path(x, verbs[verb], name))
        return;
    if (verb == 0) {
        admin_check(a, x, name);
        return;
    }
    if (verb >= 3) {
        post_beside(a, x, name, verb == 3 ? ORDER_SHADOW : ORDER_CANARY);
        return;
    }
    read_sha(x, verb == 1 ? "sha" : "to", sha);
    log_info("admin", "policy %s: %s %s", name, verbs[verb], sha);
    struct policy_order o = {.kind = verb == 1 ? ORDER_ACTIVATE : ORDER_ROLLBACK, .name = name, .sha = sha};
    order(a, x, &o, verb == 2 && !sha[0] ? rolled_back : ordered);
}

void admin_delete_version(struct admin *a, struct http_exchange *x)
{
    char name[POLICY_NAME_MAX + 1], sha[SHA_GIVEN];
    if (!name_in_path(x, NULL, name))
        return;
    read_sha(x, "sha", sha);
    log_info("admin", "policy %s: delete %s", name, sha);
    struct policy_order o = {.kind = ORDER_DELETE, .name = name, .sha = sha};
    order(a, x, &o, ordered);
}

void admin_post_rollback(struct admin *a, struct http_exchange *x)
{
    char sha[SHA_GIVEN];
    read_sha(x, "to", sha);
    log_info("admin", "policy rollback%s%s", *sha ? " to " : "", sha);
    struct policy_order o = {.kind = ORDER_ROLLBACK, .sha = sha};
    order(a, x, &o, *sha ? ordered : rolled_back);
}

/* ---- the record */

struct audit_job {
    struct text_job job; /* first */
    struct http_exchange *x;
    struct store *store;
    uint64_t from;
    int n, rc;
    struct buf lines;
    struct err err;
};

static void audit_run(struct text_job *job)
{
    struct audit_job *j = (struct audit_job *)job;
    j->rc = store_lines(j->store, j->from, j->n, &j->lines, &j->err);
}

static void audit_done(struct text_job *job)
{
    struct audit_job *j = (struct audit_job *)job;
    if (j->x && j->rc)
        admin_refuse(j->x, 500, "audit_unreadable", j->err.text);
    else if (j->x)
        http_answer(j->x, 200, "application/jsonl", j->lines.data ? j->lines.data : "", j->lines.len);
    buf_free(&j->lines);
    mem_free(j);
}

static void audit_gone(struct http_exchange *x)
{
    ((struct audit_job *)x->user)->x = NULL;
}

/* A count in the query; false: it is none. */
static bool read_count(const struct http_exchange *x, const char *name, uint64_t *out)
{
    char given[24], *end;
    if (!http_query_find(x->head.query, name, given, sizeof given))
        return true;
    *out = strtoull(given, &end, 10);
    return *given >= '0' && *given <= '9' && !*end && *out > 0;
}

void admin_get_audit(struct admin *a, struct http_exchange *x)
{
    uint64_t from = 0, n = AUDIT_LINES;
    if (!read_count(x, "from", &from) || !read_count(x, "n", &n)) {
        admin_refuse(x, 400, "invalid_count", "from and n are counts from 1 on");
        return;
    }
    struct audit_job *j = mem_new(sizeof *j);
    *j = (struct audit_job){.job = {.run = audit_run, .done = audit_done},
                            .x = x,
                            .store = a->policies->ledger->store,
                            .from = from,
                            .n = n < AUDIT_MOST_LINES ? (int)n : AUDIT_MOST_LINES,
                            .rc = E_GONE};
    err_set(&j->err, E_GONE, "the server is stopping");
    x->user = j;
    x->gone = audit_gone;
    if (text_post(a->front->text, TEXT_POLICY, &j->job) == 0)
        return;
    j->x = NULL;
    x->gone = NULL;
    audit_done(&j->job);
    front_refuse_busy(x, "too many jobs are waiting");
}
