/* What the live policy shows: its metrics, its state, and what the engine has decided about it by itself. */
#include <inttypes.h>
#include <string.h>

#include "engine/live.h"
#include "engine/world/metrics.h"

static void put_info(struct buf *out, const struct policy *p, const char *state)
{
    buf_puts(out, "policy_info{policy=");
    metrics_put_label(out, p->name);
    buf_printf(out, ",version=\"%.12s\",sha256=\"%s\",state=\"%s\"} 1\n", p->sha256, p->sha256, state);
}

static void put_hooks(const struct live *l, struct buf *out)
{
    buf_puts(out,
             "# HELP policy_hook_calls_total Calls of the policy by hook.\n# TYPE policy_hook_calls_total counter\n");
    for (int h = 0; h < HOOK_COUNT; h++)
        buf_printf(out, "policy_hook_calls_total{hook=\"%s\"} %" PRIu64 "\n", policy_hook_name((enum policy_hook)h),
                   l->calls[h]);
    buf_puts(out, "# HELP policy_hook_errors_total Calls that did not stand, or stood and cost too much (slow, heavy), "
                  "by hook and kind.\n"
                  "# TYPE policy_hook_errors_total counter\n");
    for (int h = 0; h < HOOK_COUNT; h++)
        for (int k = VERDICT_SLOW; k < VERDICT_COUNT; k++)
            buf_printf(out, "policy_hook_errors_total{hook=\"%s\",kind=\"%s\"} %" PRIu64 "\n",
                       policy_hook_name((enum policy_hook)h), verdict_name((enum verdict)k), l->verdicts[h][k]);
    buf_puts(out, "# HELP policy_fallback_total Steps that the native policy decided, by cause.\n# TYPE "
                  "policy_fallback_total counter\n");
    for (int k = VERDICT_ERROR; k < VERDICT_COUNT; k++)
        buf_printf(out, "policy_fallback_total{reason=\"%s\"} %" PRIu64 "\n", verdict_name((enum verdict)k),
                   l->fallbacks[k]);
    static const char *const actions[] = {"admit", "preempt", "reject", "forward", "hold"};
    buf_puts(out, "# HELP policy_decisions_total Decisions by action.\n# TYPE policy_decisions_total counter\n");
    for (int i = 0; i < DECISION_COUNT; i++)
        buf_printf(out, "policy_decisions_total{action=\"%s\"} %" PRIu64 "\n", actions[i], l->n_decisions[i]);
}

void live_metrics(const struct live *l, struct buf *out)
{
    buf_puts(out, "# HELP policy_info The live policy, the one before, and one that rests before it is tried again.\n# "
                  "TYPE policy_info gauge\n");
    put_info(out, &l->active, strcmp(l->active.sha256, "native") ? "active" : "native");
    if (l->has_previous)
        put_info(out, &l->previous, "previous");
    if (l->rest.policy.ops)
        put_info(out, &l->rest.policy, "resting");
    buf_printf(out,
               "# HELP policy_generation Rises with each change of the live policy.\n# TYPE policy_generation gauge\n"
               "policy_generation %" PRIu64 "\n",
               l->active.generation);
    buf_printf(out,
               "# HELP policy_swaps_total Changes of the live policy by kind.\n# TYPE policy_swaps_total counter\n"
               "policy_swaps_total{kind=\"swap\"} %" PRIu64 "\npolicy_swaps_total{kind=\"refused\"} %" PRIu64
               "\npolicy_swaps_total{kind=\"rollback\"} %" PRIu64 "\npolicy_swaps_total{kind=\"withdrawn\"} %" PRIu64
               "\npolicy_swaps_total{kind=\"retried\"} %" PRIu64 "\n",
               l->n_swaps, l->n_refused_swaps, l->n_rollbacks, l->n_reverts, l->n_retries);
    buf_printf(
        out,
        "# HELP policy_swap_seconds What the last swap took of the engine thread before it decided again.\n# TYPE "
        "policy_swap_seconds gauge\n"
        "policy_swap_seconds %.9f\n",
        l->last_swap_seconds);
    probation_metrics(&l->probation, out);
    put_hooks(l, out);
    struct buf labels = {0};
    buf_puts(&labels, "policy=");
    metrics_put_label(&labels, l->active.name);
    buf_printf(&labels, ",version=\"%.12s\"", l->active.sha256);
    if (l->active.ops->metrics)
        l->active.ops->metrics(l->active.ctx, labels.data, out);
    buf_free(&labels);
}

static void put_policy(struct buf *json, const struct policy *p)
{
    buf_puts(json, "{\"name\":");
    buf_put_json(json, p->name, strlen(p->name));
    buf_printf(json, ",\"sha256\":\"%s\",\"generation\":%" PRIu64 ",\"doc\":", p->sha256, p->generation);
    buf_put_json(json, p->doc, strlen(p->doc));
    buf_puts(json, ",\"libs\":");
    buf_put_json(json, p->libs, strlen(p->libs));
    buf_puts(json, ",\"params\":");
    if (p->ops->params_get)
        p->ops->params_get(p->ctx, json);
    else
        buf_puts(json, "{}");
    buf_putc(json, '}');
}

bool live_take_change(struct live *l, struct buf *json)
{
    struct live_change *c = &l->change;
    if (c->kind == CHANGE_NONE)
        return false;
    static const char *const events[] = {[CHANGE_WITHDRAWN] = "withdraw",
                                         [CHANGE_SENT_BACK] = "rollback",
                                         [CHANGE_KEPT] = "commit",
                                         [CHANGE_RETRIED] = "retry"};
    buf_printf(json, "{\"event\":\"%s\",\"rests\":%s,\"probation\":%s,\"from\":{\"name\":", events[c->kind],
               c->rests ? "true" : "false", l->probation.on ? "true" : "false");
    buf_put_json(json, c->name, strlen(c->name));
    buf_printf(json, ",\"sha256\":\"%s\"},\"reason\":", c->sha256);
    buf_put_json(json, c->why, strlen(c->why));
    buf_puts(json, ",\"to\":");
    put_policy(json, &l->active);
    buf_putc(json, '}');
    c->kind = CHANGE_NONE;
    return true;
}

/* Which policy is to be tried again, when, and after how many attempts. */
static void put_rest(const struct live *l, int64_t now_ns, struct buf *json)
{
    const struct live_rest *r = &l->rest;
    if (!r->policy.ops) {
        buf_puts(json, ",\"retry\":null");
        return;
    }
    buf_puts(json, ",\"retry\":{\"name\":");
    buf_put_json(json, r->policy.name, strlen(r->policy.name));
    buf_printf(json, ",\"sha256\":\"%s\",\"in_s\":%.3f,\"number\":%d,\"of\":%d}", r->policy.sha256,
               (double)(r->until_ns - now_ns) * 1e-9, r->n_tries + 1, LIVE_TRIES);
}

void live_state(const struct live *l, int64_t now_ns, struct buf *json)
{
    buf_puts(json, "{\"active\":");
    put_policy(json, &l->active);
    buf_puts(json, ",\"previous\":");
    if (l->has_previous)
        put_policy(json, &l->previous);
    else
        buf_puts(json, "null");
    buf_printf(json,
               ",\"strikes\":%d,\"swaps\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"rollbacks\":%" PRIu64
               ",\"withdrawn\":%" PRIu64,
               l->n_strikes, l->n_swaps, l->n_refused_swaps, l->n_rollbacks, l->n_reverts);
    buf_puts(json, ",\"fallback_steps\":{");
    for (int k = VERDICT_ERROR; k < VERDICT_COUNT; k++)
        buf_printf(json, "%s\"%s\":%" PRIu64, k > VERDICT_ERROR ? "," : "", verdict_name((enum verdict)k),
                   l->fallbacks[k]);
    buf_printf(json, "},\"retries\":%" PRIu64, l->n_retries);
    put_rest(l, now_ns, json);
    probation_state(&l->probation, now_ns, json);
    buf_puts(json, ",\"last_error\":");
    buf_put_json(json, l->last_error, strlen(l->last_error));
    buf_putc(json, '}');
}
