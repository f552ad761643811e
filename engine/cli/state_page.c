#include "engine/cli/state_page.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_GROUPS = 32, MOST_PENDING = 8 };

/* ---- pieces */

/* As it is, but for what a terminal obeys. */
static void put_plain(struct buf *out, const char *text)
{
    for (; text && *text; text++)
        buf_putc(out, (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
}

static int64_t whole(const struct json *o, const char *name)
{
    int64_t n = 0;
    return json_i64(json_find(o, name), &n) ? n : 0;
}

static void put_time(struct buf *out, double s)
{
    int64_t t = s > 0 && s < 1e12 ? (int64_t)s : 0;
    if (t >= 86400)
        buf_printf(out, "%" PRId64 " d ", t / 86400);
    buf_printf(out, "%02d:%02d:%02d", (int)(t / 3600 % 24), (int)(t / 60 % 60), (int)(t % 60));
}

/* "0-3", "0,2". */
static void put_ranks(struct buf *out, const struct json *list)
{
    const char *comma = "";
    for (const struct json *j = json_first(list); j;) {
        int64_t first = 0, last, next;
        json_i64(j, &first);
        for (last = first; (j = json_next(j)) != NULL && json_i64(j, &next) && last < INT32_MAX && next == last + 1;)
            last = next;
        buf_printf(out, first == last ? "%s%" PRId64 : "%s%" PRId64 "-%" PRId64, comma, first, last);
        comma = ",";
    }
}

static void put_layout(struct buf *out, const struct json *l)
{
    buf_printf(out, "sp %" PRId64 " tp %" PRId64 " pp %" PRId64, whole(l, "sp"), whole(l, "tp"), whole(l, "pp"));
}

/* ---- lines */

static void put_policy(struct buf *out, const struct json *policy)
{
    const struct json *a = json_find(policy, "active");
    const char *sha = json_text(json_find(a, "sha256")), *error = json_text(json_find(policy, "last_error"));
    const char *probation = json_text(json_find(json_find(policy, "probation"), "state"));
    buf_puts(out, "policy     ");
    put_plain(out, json_text(json_find(a, "name")));
    if (sha) {
        char digits[13];
        snprintf(digits, sizeof digits, "%s", sha);
        buf_puts(out, " (");
        put_plain(out, digits);
        buf_putc(out, ')');
    }
    buf_printf(out, ", generation %" PRId64 ", strikes %" PRId64, whole(a, "generation"), whole(policy, "strikes"));
    if (probation && !strcmp(probation, "on"))
        buf_puts(out, ", on probation");
    buf_putc(out, '\n');
    if (error && *error) {
        buf_puts(out, "           last error: ");
        put_plain(out, error);
        buf_putc(out, '\n');
    }
}

static void put_requests(struct buf *out, const struct json *e)
{
    const struct json *t = json_find(e, "totals");
    buf_printf(out,
               "requests   %" PRId64 " running, %" PRId64 " waiting (%" PRId64 " held, %" PRId64 " parked), %" PRId64
               " ended, %" PRId64 " preemptions\n",
               whole(e, "n_running"), whole(e, "n_waiting"), whole(e, "held"), whole(e, "parked"), whole(t, "ended"),
               whole(t, "preemptions"));
}

static void put_rates(struct buf *out, const struct json *e, const struct json *was)
{
    const struct json *t = json_find(e, "totals"), *b = json_find(was, "totals");
    double s = json_member_number(e, "uptime_s") - json_member_number(was, "uptime_s");
    if (!b || s <= 0)
        return;
    buf_printf(out, "rates      %.1f prompt tokens/s, %.1f output tokens/s, %.2f requests ended/s\n",
               (json_member_number(t, "prompt_tokens") - json_member_number(b, "prompt_tokens")) / s,
               (json_member_number(t, "generation_tokens") - json_member_number(b, "generation_tokens")) / s,
               (json_member_number(t, "ended") - json_member_number(b, "ended")) / s);
}

static void put_limits(struct buf *out, const struct json *e)
{
    int n = 0;
    for (const struct json *j = json_first(json_find(e, "limits")); j; j = json_next(j), n++) {
        double start = json_member_number(json_find(e, "limits_at_start"), json_key(j));
        buf_puts(out, n == 0 ? "limits     " : n == 3 ? ",\n           " : ", ");
        put_plain(out, json_key(j));
        buf_printf(out, " %.10g", json_number(j));
        if (start != json_number(j))
            buf_printf(out, " (%.10g at the start)", start);
    }
    buf_puts(out, n ? "\n" : "");
}

static void put_queue(struct buf *out, const struct json *e)
{
    const struct json *q = json_find(e, "queue"), *h = json_find(e, "holds");
    if (json_count(q))
        buf_puts(out, "\npriority  waiting  oldest\n");
    for (const struct json *j = json_first(q); j; j = json_next(j))
        buf_printf(out, "%8" PRId64 "  %7" PRId64 "  %.1f s\n", whole(j, "priority"), whole(j, "n"),
                   json_member_number(j, "oldest_s"));
    if (json_count(h))
        buf_puts(out, "\nheld now  in all  the policy's reason\n");
    for (const struct json *j = json_first(h); j; j = json_next(j)) {
        const char *why = json_text(json_find(j, "reason"));
        buf_printf(out, "%8" PRId64 "  %6" PRId64 "  ", whole(j, "now"), whole(j, "times"));
        put_plain(out, why && *why ? why : "(it gives none)");
        buf_putc(out, '\n');
    }
}

static const char *doing(const struct json *g)
{
    return json_true(json_find(g, "loading"))  ? "loads weights"
           : json_true(json_find(g, "held"))   ? "held for an order"
           : json_true(json_find(g, "closed")) ? "closed"
           : json_true(json_find(g, "idle"))   ? "idle"
                                               : "in a step";
}

static void put_groups(struct buf *out, const struct json *e)
{
    const struct json *list = json_find(e, "groups");
    int n = 0;
    buf_puts(out, "\ngroup  ranks     layout               running  last step\n");
    for (const struct json *g = json_first(list); g && n < MOST_GROUPS; g = json_next(g), n++) {
        struct buf ranks = {0}, layout = {0};
        put_ranks(&ranks, json_find(g, "ranks"));
        put_layout(&layout, json_find(g, "layout"));
        buf_printf(out, "%5" PRId64 "  %-8s  %-19s  %7" PRId64 "  %.3f ms, %" PRId64 " tokens; %s%s\n", whole(g, "id"),
                   ranks.len ? ranks.data : "", layout.data, whole(g, "running"), json_member_number(g, "last_step_ms"),
                   whole(g, "last_step_tokens"), doing(g), json_true(json_find(g, "canary")) ? ", of the canary" : "");
        buf_free(&ranks);
        buf_free(&layout);
    }
    if (json_count(list) > MOST_GROUPS)
        buf_printf(out, "       and %d more\n", (int)json_count(list) - MOST_GROUPS);
}

static void put_pending(struct buf *out, const struct json *e)
{
    int n = 0;
    for (const struct json *p = json_first(json_find(e, "pending")); p && n < MOST_PENDING; p = json_next(p), n++) {
        buf_puts(out, n ? "" : "\n");
        buf_puts(out, "order      ");
        put_plain(out, json_text(json_find(p, "verb")));
        buf_puts(out, " of ranks ");
        put_ranks(out, json_find(p, "ranks"));
        buf_puts(out, ", ");
        put_plain(out, json_text(json_find(p, "when")));
        buf_printf(out, ", waits for %.1f s: ", json_member_number(p, "waits_s"));
        put_plain(out, json_text(json_find(p, "reason")));
        buf_putc(out, '\n');
    }
}

static void put_blocks(struct buf *out, const char *name, const struct json *kv, const char *more)
{
    double total = json_member_number(kv, "total");
    if (!kv)
        return;
    buf_printf(out, "%-7s  %7" PRId64 "  %7" PRId64 "  %7" PRId64 "  %7" PRId64 "  %4.0f%%%s\n", name,
               whole(kv, "held"), whole(kv, "cached"), whole(kv, "free"), whole(kv, "total"),
               total > 0 ? 100 * json_member_number(kv, "held") / total : 0.0, more);
}

static void put_kv(struct buf *out, const struct json *e)
{
    buf_puts(out, "\nKV         held   cached     free   blocks   held\n");
    for (const struct json *r = json_first(json_find(e, "ranks")); r; r = json_next(r)) {
        char name[32];
        snprintf(name, sizeof name, "rank %" PRId64, whole(r, "id"));
        put_blocks(out, name, json_find(r, "kv"), json_true(json_find(r, "alive")) ? "" : "  failed");
    }
    put_blocks(out, "host", json_find(e, "host_kv"), "");
    put_blocks(out, "disk", json_find(e, "disk_kv"), "");
}

int state_page(const struct json *now, const struct json *before, struct buf *out, struct err *e)
{
    const struct json *engine = json_find(now, "engine"), *front = json_find(now, "front");
    if (json_type(front) != JSON_OBJECT)
        return err_set(e, E_INPUT, "this is not what /admin/state answers: it has no \"front\"");
    if (json_type(engine) != JSON_OBJECT) {
        buf_printf(out, "an encoder is served alone; %" PRId64 " connections\n", whole(front, "connections"));
        return 0;
    }
    buf_puts(out, "up         ");
    put_time(out, json_member_number(engine, "uptime_s"));
    buf_printf(out, "%s; %" PRId64 " connections, %" PRId64 " clients gone before their answer\n",
               json_true(json_find(front, "draining")) ? ", draining" : "", whole(front, "connections"),
               whole(front, "clients_gone"));
    put_policy(out, json_find(engine, "policy"));
    put_requests(out, engine);
    put_rates(out, engine, json_find(before, "engine"));
    put_limits(out, engine);
    put_queue(out, engine);
    put_groups(out, engine);
    put_pending(out, engine);
    put_kv(out, engine);
    return 0;
}
