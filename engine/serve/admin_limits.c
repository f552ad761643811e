/* The admin route of the limits. An order is read here and obeyed by the engine; once it has been, the front's own
 * bounds follow and the record has a line, whether or not the client is still there to hear of it. */
#include <stdio.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/admin_inner.h"

/* An order or a question, until the engine has answered. */
struct limits_wait {
    struct admin *admin;
    struct http_exchange *x; /* NULL: the client is gone */
    bool is_order;
    char actor[AUDIT_ACTOR];
    struct list in;
};

static void free_wait(struct limits_wait *w)
{
    list_remove(&w->in);
    mem_free(w);
}

static void client_gone(struct http_exchange *x)
{
    ((struct limits_wait *)x->user)->x = NULL;
}

static void follow(struct front *f, const struct json *limits)
{
    int64_t places, step_tokens, queued;
    if (json_i64(json_find(limits, "max_num_seqs"), &places) &&
        json_i64(json_find(limits, "max_num_batched_tokens"), &step_tokens) &&
        json_i64(json_find(limits, "max_num_queued_reqs"), &queued))
        front_set_limits(f, (int)places, (int)step_tokens, (int)queued);
}

/* Refused, with why, or obeyed, with what has changed. */
static void note(const struct limits_wait *w, bool refused, const char *words)
{
    struct audit_entry a = ledger_entry(w->actor, "limits", NULL, NULL);
    if (refused)
        snprintf(a.result, sizeof a.result, "refused");
    snprintf(a.reason, sizeof a.reason, "%s", *words ? words : "as they were");
    ledger_note(w->admin->policies->ledger, &a, NULL);
    if (refused)
        log_warn("admin", "limits refused: %s", a.reason);
    else
        log_info("admin", "limits: %s", a.reason);
}

static void answered(void *ctx, const struct call_reply *r)
{
    struct limits_wait *w = ctx;
    struct json *j = r->code ? NULL : json_parse(r->text, r->n, NULL, NULL);
    const char *changed = json_text(json_find(j, "changed"));
    if (w->is_order && !r->code)
        follow(w->admin->front, json_find(j, "limits"));
    if (w->is_order)
        note(w, r->code != 0, r->code ? r->text : changed ? changed : "");
    if (w->x && r->code)
        admin_refuse(w->x, 400, "invalid_limit", r->text);
    else if (w->x)
        http_answer(w->x, 200, "application/json", r->text, r->n);
    json_free(j);
    free_wait(w);
}

/* order: moves; NULL: a question. */
static void ask(struct admin *a, struct http_exchange *x, struct limits_order *order)
{
    struct limits_wait *w = mem_new(sizeof *w);
    *w = (struct limits_wait){.admin = a, .x = x, .is_order = order != NULL};
    admin_actor(a, x, w->actor);
    list_push_back(&a->limits, &w->in);
    x->user = w;
    x->gone = client_gone;
    calls_send(&a->front->calls, IN_LIMITS, order, order ? sizeof *order : 0, answered, w);
}

void admin_get_limits(struct admin *a, struct http_exchange *x)
{
    ask(a, x, NULL);
}

void admin_patch_limits(struct admin *a, struct http_exchange *x)
{
    struct limits_order given, *order;
    struct err e = {0};
    if (limits_read(&given, x->body.data ? x->body.data : "", x->body.len, &e)) {
        admin_refuse(x, 400, "invalid_limit", e.text);
        return;
    }
    order = mem_new(sizeof *order);
    *order = given;
    ask(a, x, order);
}

void admin_init_limits(struct admin *a)
{
    list_init(&a->limits);
}

/* Handed to an engine that ended without an answer. */
void admin_free_limits(struct admin *a)
{
    while (!list_empty(&a->limits))
        free_wait(LIST_ENTRY(a->limits.next, struct limits_wait, in));
}
