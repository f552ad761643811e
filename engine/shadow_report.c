/* What is known of a policy that decides beside the live one, as JSON and as metrics. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/shadow.h"

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

static double share_of(const struct shadow_book *b, int64_t now_ns)
{
    int64_t end = b->ended_ns ? b->ended_ns : now_ns, time = end - b->began_ns;
    return time > 0 ? (double)b->spent_ns / (double)time : 0;
}

static void put_count(struct buf *json, const char *name, const struct shadow_count *c)
{
    buf_printf(json, "\"%s\":{\"both\":%" PRIu64 ",\"live\":%" PRIu64 ",\"shadow\":%" PRIu64 "}", name, c->both,
               c->live, c->shadow);
}

static void put_verbs(struct buf *json, const struct shadow_book *b)
{
    buf_puts(json, ",\"verbs\":{");
    put_count(json, "start", &b->starts);
    for (int k = 0; k < PLAN_VERB_KINDS; k++) {
        const struct shadow_count *c = &b->verbs[k];
        if (!c->both && !c->live && !c->shadow)
            continue;
        buf_putc(json, ',');
        put_count(json, plan_verb_name((enum plan_verb_kind)k), c);
    }
    buf_putc(json, '}');
}

static void put_differences(struct buf *json, const struct shadow_book *b)
{
    uint64_t from = b->n_differences > SHADOW_DIFFERENCES ? b->n_differences - SHADOW_DIFFERENCES : 0;
    buf_puts(json, ",\"differences\":[");
    for (uint64_t i = b->n_differences; i > from; i--) {
        const struct shadow_difference *d = &b->differences[(i - 1) % SHADOW_DIFFERENCES];
        buf_printf(json, "%s{\"step\":%" PRIu64 ",\"at_s\":%.6f", i < b->n_differences ? "," : "", d->step,
                   (double)(d->at_ns - b->began_ns) * 1e-9);
        json_put_member(json, "live", d->live);
        json_put_member(json, "shadow", d->shadow);
        buf_putc(json, '}');
    }
    buf_putc(json, ']');
}

static void put_calls(struct buf *json, const struct shadow_book *b, int64_t now_ns)
{
    uint64_t n = b->n_asked;
    buf_puts(json, ",\"calls\":{");
    for (int v = 0, some = 0; v < VERDICT_COUNT; v++)
        if (b->verdicts[v])
            buf_printf(json, "%s\"%s\":%" PRIu64, some++ ? "," : "", verdict_name((enum verdict)v), b->verdicts[v]);
    buf_printf(json, "},\"call_us\":%.3f,\"spent_ms\":%.3f,\"share\":%.6f",
               n ? (double)b->calls_ns * 1e-3 / (double)n : 0, ms(b->spent_ns), share_of(b, now_ns));
}

static void put_decisions(struct buf *json, const struct shadow_book *b)
{
    const struct shadow_batches *n = &b->batches;
    buf_printf(json,
               ",\"decisions\":{\"compared\":%" PRIu64 ",\"equal\":%" PRIu64 ",\"passed_over\":%" PRIu64
               ",\"other_first\":%" PRIu64 "}",
               b->n_asked, b->n_equal, b->n_passed_over, b->n_other_first);
    buf_printf(json,
               ",\"batches\":{\"equal\":%" PRIu64 ",\"other_requests\":%" PRIu64 ",\"other_layout\":%" PRIu64
               ",\"live\":%" PRIu64 ",\"shadow\":%" PRIu64 "},\"tokens\":{\"live\":%" PRIu64 ",\"shadow\":%" PRIu64 "}",
               n->equal, n->requests, n->layout, n->live, n->shadow, b->tokens.live, b->tokens.shadow);
    put_verbs(json, b);
    buf_printf(json, ",\"arrivals\":{\"n\":%" PRIu64 ",\"alike\":%" PRIu64 ",", b->n_admitted, b->n_admitted_alike);
    put_count(json, "refused", &b->refused);
    buf_putc(json, ',');
    put_count(json, "held", &b->held);
    buf_putc(json, '}');
}

void shadow_put(const struct shadow *s, int64_t now_ns, struct buf *json)
{
    const struct shadow_book *b = &s->book;
    int64_t end = b->ended_ns ? b->ended_ns : now_ns;
    if (!b->name[0]) {
        buf_puts(json, "{\"state\":\"none\"}");
        return;
    }
    buf_printf(json, "{\"state\":\"%s\"", shadow_runs(s) ? "on" : "ended");
    json_put_member(json, "name", b->name);
    buf_printf(json, ",\"sha256\":\"%s\"", b->sha256);
    json_put_member(json, "beside", b->beside);
    buf_printf(json, ",\"ran_s\":%.3f,\"left_s\":%.3f", (double)(end - b->began_ns) * 1e-9,
               shadow_runs(s) ? (double)(b->until_ns - now_ns) * 1e-9 : 0);
    put_decisions(json, b);
    put_calls(json, b, now_ns);
    json_put_member(json, "last_error", b->last_error);
    json_put_member(json, "why_ended", b->why_ended);
    put_differences(json, b);
    buf_putc(json, '}');
}

void shadow_put_pulse(const struct shadow *s, int64_t now_ns, struct buf *json)
{
    const struct shadow_book *b = &s->book;
    if (!b->name[0]) {
        buf_puts(json, "null");
        return;
    }
    buf_printf(json, "{\"state\":\"%s\"", shadow_runs(s) ? "on" : "ended");
    json_put_member(json, "name", b->name);
    buf_printf(json,
               ",\"sha256\":\"%s\",\"left_s\":%.3f,\"compared\":%" PRIu64 ",\"equal\":%" PRIu64
               ",\"passed_over\":%" PRIu64,
               b->sha256, shadow_runs(s) ? (double)(b->until_ns - now_ns) * 1e-9 : 0, b->n_asked, b->n_equal,
               b->n_passed_over);
    put_verbs(json, b);
    const struct shadow_difference *d = &b->differences[(b->n_differences - 1) % SHADOW_DIFFERENCES];
    json_put_member(json, "live_did", b->n_differences ? d->live : "");
    json_put_member(json, "shadow_would", b->n_differences ? d->shadow : "");
    json_put_member(json, "why_ended", b->why_ended);
    buf_putc(json, '}');
}

bool shadow_take_end(struct shadow *s, struct buf *json)
{
    const struct shadow_book *b = &s->book;
    if (s->told)
        return false;
    s->told = true;
    buf_puts(json, "{\"event\":\"shadow-end\",\"name\":");
    buf_put_json(json, b->name, strlen(b->name));
    buf_printf(json, ",\"sha256\":\"%s\",\"reason\":", b->sha256);
    struct buf why = {0};
    buf_printf(&why, "%.120s; of %" PRIu64 " decisions %" PRIu64 " as the live policy's, %" PRIu64 " passed over",
               b->why_ended, b->n_asked, b->n_equal, b->n_passed_over);
    buf_put_json(json, why.data, why.len);
    buf_free(&why);
    buf_putc(json, '}');
    return true;
}

void shadow_metrics(const struct shadow *s, struct buf *out)
{
    const struct shadow_book *b = &s->book;
    buf_printf(out,
               "# HELP policy_shadow Whether a policy decides beside the live one.\n# TYPE policy_shadow gauge\n"
               "policy_shadow %d\n",
               shadow_runs(s));
    buf_printf(out,
               "# HELP policy_shadow_decisions Decisions since it began, by what its own would have been beside the "
               "live policy's; passed_over: there was no time to ask it.\n# TYPE policy_shadow_decisions gauge\n"
               "policy_shadow_decisions{outcome=\"equal\"} %" PRIu64
               "\npolicy_shadow_decisions{outcome=\"different\"} %" PRIu64
               "\npolicy_shadow_decisions{outcome=\"passed_over\"} %" PRIu64 "\n",
               b->n_equal, b->n_asked - b->n_equal, b->n_passed_over);
    buf_printf(out,
               "# HELP policy_shadow_seconds Time of the engine's thread that it has taken since it began.\n"
               "# TYPE policy_shadow_seconds gauge\npolicy_shadow_seconds %.9f\n",
               (double)b->spent_ns * 1e-9);
}
