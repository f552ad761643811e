/* The admin routes of "what if": a policy on the last of this server's own traffic (whatif/whatif.h). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/admin_inner.h"

static const double MOST_SECONDS = 1e7;

struct asker {
    struct whatif *whatif;
    struct policies *policies;
    struct http_exchange *x;
};

/* It is taken along when the other one goes live. */
static void keep_prediction(struct policies *p, const struct whatif_outcome *o)
{
    struct predicted_policy live = {o->live->sha256, o->live->params}, other = {o->other->sha256, o->other->params};
    predictions_add(&p->predictions, live, other, o->predicted, clock_now(p->front->clock));
}

static void asker_gone(struct http_exchange *x)
{
    struct asker *w = x->user;
    whatif_forget(w->whatif, w);
    mem_free(w);
}

static void answered(void *ctx, const struct whatif_outcome *o)
{
    static const struct {
        int status;
        const char *code;
    } answers[] = {
        [WHATIF_OK] = {200, ""},
        [WHATIF_REFUSED] = {400, "policy_refused"},
        [WHATIF_EMPTY] = {409, "no_traffic"},
        [WHATIF_LATE] = {504, "what_if_late"},
        [WHATIF_FAILED] = {500, "what_if_failed"},
        [WHATIF_STOPPED] = {503, "stopping"},
    };
    struct asker *w = ctx;
    if (o->result == WHATIF_OK)
        keep_prediction(w->policies, o);
    if (o->result == WHATIF_OK)
        http_answer(w->x, 200, "application/json", o->text, strlen(o->text));
    else if (o->result == WHATIF_REFUSED)
        admin_refuse_policy(w->x, answers[o->result].code, o->text);
    else
        admin_refuse(w->x, answers[o->result].status, answers[o->result].code, o->text);
    mem_free(w);
}

/* ---- what is asked */

static void take_version(struct whatif_policy *to, const struct version *v)
{
    snprintf(to->name, sizeof to->name, "%s", v->name);
    snprintf(to->sha256, sizeof to->sha256, "%s", v->sha256);
    buf_put(&to->source, v->source, v->source ? v->n_source : 0);
}

/* Who is live, with what was set of its params since. */
static void take_live(const struct policies *p, struct whatif_policy *to)
{
    struct book *b = p->ledger->book;
    const struct version *v = book_find(b, b->live_name, b->live);
    snprintf(to->name, sizeof to->name, "%s", b->live_name[0] ? b->live_name : "native");
    snprintf(to->sha256, sizeof to->sha256, "%s", b->live[0] ? b->live : "native");
    to->params = p->params ? mem_strdup(p->params) : NULL;
    if (v)
        take_version(to, v);
}

static bool take_kept(struct admin *a, struct http_exchange *x, const char *given, struct whatif_ask *ask)
{
    char name[POLICY_NAME_MAX + 1], sha[80] = "";
    struct book *b = a->policies->ledger->book;
    struct version *v = NULL;
    struct err e = {0};
    if (!admin_read_name(given, name)) {
        admin_refuse(x, 400, "invalid_name",
                     "a policy's name has at most 40 letters, digits, dots, dashes and underscores");
        return false;
    }
    int rc = http_query_find(x->head.query, "sha", sha, sizeof sha) ? book_resolve(b, name, sha, &v, &e) : 0;
    if (!rc && !v)
        v = book_newest(b, name);
    if (!rc && (!v || !v->source))
        rc = err_set(&e, E_NOTFOUND, "no version of the policy %s is kept", name);
    if (rc) {
        admin_refuse(x, rc == E_NOTFOUND ? 404 : 400, rc == E_NOTFOUND ? "unknown_version" : "invalid_sha", e.text);
        return false;
    }
    take_version(&ask->other, v);
    ask->other.params = v->params ? mem_strdup(v->params) : NULL;
    ask->is_known = true;
    return true;
}

static bool take_sent(struct admin *a, struct http_exchange *x, struct whatif_ask *ask)
{
    char given[80] = "trial", name[POLICY_NAME_MAX + 1];
    http_query_find(x->head.query, "name", given, sizeof given);
    if (!x->body.len) {
        admin_refuse(x, 400, "no_source",
                     "the body is empty: send the policy's text (curl --data-binary @FILE.lua), or name a version that "
                     "is kept with ?policy=NAME");
        return false;
    }
    if (!admin_read_name(given, name)) {
        admin_refuse(x, 400, "invalid_name",
                     "a policy's name has at most 40 letters, digits, dots, dashes and underscores");
        return false;
    }
    snprintf(ask->other.name, sizeof ask->other.name, "%s", name);
    ask->other.source = x->body;
    x->body = (struct buf){0};
    ask->lua.folder = a->policies->dir;
    return true;
}

/* Which policy; false: answered. */
static bool take_policy(struct admin *a, struct http_exchange *x, struct whatif_ask *ask)
{
    char given[80];
    if (!http_query_find(x->head.query, "policy", given, sizeof given))
        return take_sent(a, x, ask);
    if (!x->body.len)
        return take_kept(a, x, given, ask);
    admin_refuse(x, 400, "invalid_request", "a body and ?policy=NAME: which of them?");
    return false;
}

static bool take_seconds(struct http_exchange *x, double *out)
{
    char given[32], *end = NULL;
    *out = 0;
    if (!http_query_find(x->head.query, "seconds", given, sizeof given))
        return true;
    *out = (*given >= '0' && *given <= '9') ? strtod(given, &end) : -1;
    if (end && !*end && isfinite(*out) && *out > 0 && *out <= MOST_SECONDS)
        return true;
    admin_refuse(x, 400, "invalid_value", "seconds is a number above 0: the last so many of the window");
    return false;
}

/* ---- the routes */

static bool has_window(struct admin *a, struct http_exchange *x)
{
    if (a->whatif->window.write)
        return true;
    admin_refuse(x, 501, "not_implemented",
                 "this server keeps nothing of its traffic: it was started with --what-if-memory 0, or with "
                 "--policy-isolation process");
    return false;
}

void admin_post_whatif(struct admin *a, struct http_exchange *x)
{
    struct whatif_ask ask = {0};
    struct asker *w;
    if (!has_window(a, x) || !admin_source_ok(a, x))
        return;
    if (a->front->draining) {
        admin_refuse(x, 503, "stopping", "the server is stopping");
        return;
    }
    ask.lua = *a->policies->lua;
    ask.lua.quiet = true;
    if (!take_seconds(x, &ask.seconds) || !take_policy(a, x, &ask)) {
        whatif_ask_free(&ask);
        return;
    }
    take_live(a->policies, &ask.live);
    log_info("admin", "what if %s", ask.other.name);
    w = mem_new(sizeof *w);
    *w = (struct asker){a->whatif, a->policies, x};
    x->user = w;
    x->gone = asker_gone;
    x->drop_on_eof = true;
    if (whatif_begin(a->whatif, &ask, answered, w) == 0)
        return;
    whatif_ask_free(&ask);
    x->gone = NULL;
    mem_free(w);
    http_add_header(x, "Retry-After", "10");
    admin_refuse(x, 409, "what_if_busy",
                 "another policy is being tried on this server's traffic, one at a time; that ends within a minute");
}

void admin_get_whatif(struct admin *a, struct http_exchange *x)
{
    struct whatif_window window;
    struct buf out = {0};
    if (!has_window(a, x))
        return;
    a->whatif->window.look(a->whatif->window.ctx, &window);
    buf_puts(&out, "{\"seconds\":");
    json_put_double(&out, window.seconds);
    buf_printf(&out, ",\"requests\":%" PRIu64 ",\"bytes\":%zu,\"max_bytes\":%zu,\"busy\":%s}", window.n_requests,
               window.bytes, window.most, a->whatif->now ? "true" : "false");
    front_json(x, &out);
    buf_free(&out);
}
