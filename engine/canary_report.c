/* What is known of a canary, as JSON and as metrics: the results of both sides beside each other. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/canary.h"

static double seconds_of(const struct canary_book *b, int64_t now_ns)
{
    return (double)((b->ended_ns ? b->ended_ns : now_ns) - b->began_ns) * 1e-9;
}

static void put_times(struct buf *json, const char *name, const struct result_times *t)
{
    buf_printf(json, ",\"%s_ms\":{\"n\":%" PRIu64 ",\"mean\":%.6g,\"p50\":%.6g,\"p90\":%.6g,\"p99\":%.6g}", name, t->n,
               1e3 * results_mean(t), 1e3 * results_quantile(t, 0.5), 1e3 * results_quantile(t, 0.9),
               1e3 * results_quantile(t, 0.99));
}

static void put_side(struct buf *json, const char *name, const struct side_results *s, double seconds)
{
    buf_printf(json,
               "\"%s\":{\"came\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"done\":%" PRIu64 ",\"aborted\":%" PRIu64
               ",\"errors\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"preempted\":%" PRIu64 ",\"output_tokens\":%" PRIu64
               ",\"tokens_per_s\":%.6g",
               name, s->n_came, s->n_ended, s->n_done, s->n_aborted, s->n_errors, s->n_refused, s->n_preempted,
               s->output_tokens, seconds > 0 ? (double)s->output_tokens / seconds : 0);
    for (int m = 0; m < RESULT_MEASURES; m++)
        put_times(json, result_measure_name((enum result_measure)m), &s->times[m]);
    buf_putc(json, '}');
}

static void put_compared(struct buf *json, const struct canary_results *r)
{
    const struct side_results *a = &r->live, *b = &r->canary;
    buf_puts(json, ",\"compared\":{");
    for (int m = 0; m < RESULT_MEASURES; m++) {
        struct rank_test t = results_compare(&a->times[m], &b->times[m]);
        buf_printf(json, "\"%s\":{\"p\":%.3g,\"canary_longer\":%.4f,\"enough\":%s},",
                   result_measure_name((enum result_measure)m), t.p, t.larger, t.enough ? "true" : "false");
    }
    buf_printf(json, "\"errors\":{\"p\":%.3g},\"refused\":{\"p\":%.3g}}",
               results_compare_shares(a->n_errors, a->n_ended, b->n_errors, b->n_ended),
               results_compare_shares(a->n_refused, a->n_ended, b->n_refused, b->n_ended));
}

static void put_calls(struct buf *json, const struct live *l)
{
    bool some = false;
    uint64_t fallbacks = 0;
    buf_puts(json, ",\"calls\":{");
    for (int v = 0; v < VERDICT_COUNT; v++) {
        uint64_t n = 0;
        for (int h = 0; h < HOOK_COUNT; h++)
            n += l->verdicts[h][v];
        if (n)
            buf_printf(json, "%s\"%s\":%" PRIu64, some ? "," : "", verdict_name((enum verdict)v), n);
        some |= n > 0;
        fallbacks += l->fallbacks[v];
    }
    buf_printf(json, "},\"fallbacks\":%" PRIu64, fallbacks);
}

static void put_groups(struct buf *json, const struct canary_book *b)
{
    buf_puts(json, ",\"groups\":[");
    for (int i = 0; i < b->n_groups; i++)
        buf_printf(json, "%s%d", i ? "," : "", b->groups[i]);
    buf_putc(json, ']');
}

void canary_put(const struct canary *c, int64_t now_ns, struct buf *json)
{
    const struct canary_book *b = &c->book;
    double seconds = seconds_of(b, now_ns);
    if (!b->name[0]) {
        buf_puts(json, "{\"state\":\"none\"}");
        return;
    }
    buf_printf(json, "{\"state\":\"%s\"", c->on ? "on" : "ended");
    json_put_member(json, "name", b->name);
    buf_printf(json, ",\"sha256\":\"%s\"", b->sha256);
    json_put_member(json, "beside", b->beside);
    put_groups(json, b);
    buf_printf(json, ",\"share\":%.6g,\"ran_s\":%.3f,\"left_s\":%.3f,\"sides\":{", b->share, seconds,
               c->on ? (double)(b->until_ns - now_ns) * 1e-9 : 0);
    put_side(json, "live", &b->results.live, seconds);
    buf_putc(json, ',');
    put_side(json, "canary", &b->results.canary, seconds);
    buf_putc(json, '}');
    put_compared(json, &b->results);
    put_calls(json, &c->live);
    json_put_member(json, "last_error", c->live.last_error);
    json_put_member(json, "why_ended", b->why_ended);
    buf_putc(json, '}');
}

bool canary_take_end(struct canary *c, struct buf *json)
{
    const struct canary_book *b = &c->book;
    const struct side_results *l = &b->results.live, *m = &b->results.canary;
    struct buf why = {0};
    if (c->on || c->told || !b->name[0])
        return false;
    c->told = true;
    buf_printf(&why,
               "%.160s; of its requests %" PRIu64 " ended, %" PRIu64 " of them with an error or refused; of the live "
               "policy's %" PRIu64 ", %" PRIu64 " of them so; TTFT %.1f ms and %.1f ms, TPOT %.2f ms and %.2f ms (p50)",
               b->why_ended, m->n_ended, m->n_errors + m->n_refused, l->n_ended, l->n_errors + l->n_refused,
               1e3 * results_quantile(&m->times[RESULT_TTFT], 0.5), 1e3 * results_quantile(&l->times[RESULT_TTFT], 0.5),
               1e3 * results_quantile(&m->times[RESULT_TPOT], 0.5),
               1e3 * results_quantile(&l->times[RESULT_TPOT], 0.5));
    buf_puts(json, "{\"event\":\"canary-end\"");
    json_put_member(json, "name", b->name);
    buf_printf(json, ",\"sha256\":\"%s\"", b->sha256);
    json_put_member(json, "reason", why.data);
    buf_putc(json, '}');
    buf_free(&why);
    return true;
}

/* ---- metrics */

static const char *const side_names[] = {"live", "canary"};

static void put_endings(const struct side_results *const sides[2], struct buf *out)
{
    buf_puts(out,
             "# HELP policy_canary_requests Requests that came since the canary began and have ended, by who decided "
             "for them and by ending.\n# TYPE policy_canary_requests gauge\n");
    for (int i = 0; i < 2; i++) {
        const struct side_results *s = sides[i];
        const uint64_t n[] = {s->n_done, s->n_aborted, s->n_errors, s->n_refused};
        static const char *const names[] = {"done", "abort", "error", "refused"};
        for (int k = 0; k < 4; k++)
            buf_printf(out, "policy_canary_requests{side=\"%s\",ending=\"%s\"} %" PRIu64 "\n", side_names[i], names[k],
                       n[k]);
    }
}

static void put_seconds(const struct side_results *const sides[2], enum result_measure m, const char *name,
                        const char *help, struct buf *out)
{
    static const double quantiles[] = {0.5, 0.9, 0.99};
    buf_printf(out, "# HELP %s %s, of those requests.\n# TYPE %s summary\n", name, help, name);
    for (int i = 0; i < 2; i++) {
        const struct result_times *t = &sides[i]->times[m];
        for (int q = 0; q < 3; q++)
            buf_printf(out, "%s{side=\"%s\",quantile=\"%g\"} %.9g\n", name, side_names[i], quantiles[q],
                       results_quantile(t, quantiles[q]));
        buf_printf(out, "%s_sum{side=\"%s\"} %.9g\n%s_count{side=\"%s\"} %" PRIu64 "\n", name, side_names[i], t->sum_s,
                   name, side_names[i], t->n);
    }
}

void canary_metrics(const struct canary *c, struct buf *out)
{
    const struct canary_results *r = &c->book.results;
    const struct side_results *const sides[] = {&r->live, &r->canary};
    buf_printf(out,
               "# HELP policy_canary Whether a policy decides for some groups beside the live one.\n"
               "# TYPE policy_canary gauge\npolicy_canary %d\n",
               c->on);
    put_endings(sides, out);
    buf_puts(out, "# HELP policy_canary_tokens Output tokens of those requests.\n# TYPE policy_canary_tokens gauge\n");
    for (int i = 0; i < 2; i++)
        buf_printf(out, "policy_canary_tokens{side=\"%s\"} %" PRIu64 "\n", side_names[i], sides[i]->output_tokens);
    put_seconds(sides, RESULT_TTFT, "policy_canary_ttft_seconds", "Time to the first token", out);
    put_seconds(sides, RESULT_TPOT, "policy_canary_tpot_seconds", "Time per output token after the first", out);
    put_seconds(sides, RESULT_QUEUE, "policy_canary_queue_seconds", "Time in the queue before the first step", out);
}
