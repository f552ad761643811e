#include "engine/base/json.h"
#include "engine/serve/whatif/foretell.h"
#include "engine/serve/whatif/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* As it stands there; null where it is not. */
static void pass(struct buf *out, const char *as, const struct json *value)
{
    buf_printf(out, ",\"%s\":", as);
    json_write(out, value, NULL);
}

/* ---- the parts of a run */

static void put_latency(struct buf *out, const struct json *run, const char *name)
{
    static const char *const points[] = {"mean", "p50", "p90", "p99"};
    const struct json *l = json_find(run, name);
    buf_printf(out, ",\"%s\":{\"n\":%.0f", name, json_member_number(l, "n"));
    for (int i = 0; i < 4; i++)
        pass(out, points[i], json_find(l, points[i]));
    buf_putc(out, '}');
}

/* Points of a curve: means over so many bins, weighted where there are weights; null where there is nothing. */
static void put_curve(struct buf *out, const char *name, const struct json *values, const struct json *weights, int per)
{
    const struct json *v = json_first(values), *w = json_first(weights);
    const char *comma = "";
    buf_printf(out, ",\"%s\":[", name);
    while (v) {
        double sum = 0, n = 0;
        for (int i = 0; i < per && v; i++, v = json_next(v), w = w ? json_next(w) : NULL) {
            double weight = weights ? json_number(w) : 1;
            if (json_type(v) == JSON_NUMBER && weight > 0) {
                sum += json_number(v) * weight;
                n += weight;
            }
        }
        buf_puts(out, comma);
        if (n > 0)
            json_put_double(out, sum / n);
        else
            buf_puts(out, "null");
        comma = ",";
    }
    buf_putc(out, ']');
}

static void put_curves(struct buf *out, const struct json *run)
{
    const struct json *series = json_find(run, "series"), *by = json_find(run, "by_arrival");
    size_t n = json_count(json_find(series, "waiting"));
    int per = (int)((n + WHATIF_POINTS - 1) / WHATIF_POINTS);
    per = per > 0 ? per : 1;
    buf_puts(out, ",\"curve\":{\"bin_s\":");
    json_put_double(out, json_member_number(series, "bin_s") * per);
    put_curve(out, "ttft_ms", json_find(by, "ttft_ms"), json_find(by, "n"), per);
    put_curve(out, "tpot_ms", json_find(by, "tpot_ms"), json_find(by, "n"), per);
    put_curve(out, "throughput", json_find(series, "throughput"), NULL, per);
    put_curve(out, "running", json_find(series, "running"), NULL, per);
    put_curve(out, "waiting", json_find(series, "waiting"), NULL, per);
    buf_putc(out, '}');
}

/* Scheduling points that the native policy decided in its place. */
static double n_fallbacks(const struct json *run)
{
    double n = 0;
    for (const struct json *j = json_first(json_find(json_find(run, "policy"), "fallback_steps")); j; j = json_next(j))
        n += json_number(j);
    return n;
}

static double guessed_share(const struct json *run)
{
    double share = 0;
    for (const struct json *g = json_first(json_find(json_find(run, "recording"), "guesses")); g; g = json_next(g))
        share += json_member_number(g, "time");
    return share;
}

static void put_run(struct buf *out, const char *key, const struct whatif_policy *p, const struct json *run)
{
    static const char *const counts[] = {"requests",    "finished", "refused", "failed",    "unfinished",
                                         "preemptions", "steps",    "seconds", "throughput"};
    const struct json *policy = json_find(run, "policy"), *error = json_find(policy, "last_error");
    buf_printf(out, ",\"%s\":{", key);
    json_put_member(out, "name", p->name);
    buf_putc(out, ',');
    json_put_member(out, "sha256", p->sha256);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        pass(out, counts[i], json_find(run, counts[i]));
    pass(out, "output_throughput", json_find(run, "output_throughput"));
    pass(out, "switches", json_find(run, "n_switches"));
    put_latency(out, run, "ttft_ms");
    put_latency(out, run, "tpot_ms");
    put_latency(out, run, "queue_ms");
    put_latency(out, run, "completion_ms");
    json_put_member_double(out, "guessed", guessed_share(run));
    pass(out, "guesses", json_find(json_find(run, "recording"), "guesses"));
    buf_printf(out, ",\"errors\":%.0f,\"withdrawn\":%.0f,", n_fallbacks(run), json_member_number(policy, "withdrawn"));
    json_put_member(out, "last_error", json_text(error) ? json_text(error) : "");
    put_curves(out, run);
    buf_putc(out, '}');
}

/* ---- what is wrong with it, and how far to trust the figures */

struct texts {
    struct buf *out;
    int n;
};

static void say(struct texts *l, const char *text)
{
    if (l->n++)
        buf_putc(l->out, ',');
    buf_put_json(l->out, text, strlen(text));
}

static int put_problems(struct buf *out, const struct json *run)
{
    const struct json *policy = json_find(run, "policy");
    const char *error = json_text(json_find(policy, "last_error")),
               *next = json_text(json_find(json_find(policy, "active"), "name"));
    double fallbacks = n_fallbacks(run), withdrawn = json_member_number(policy, "withdrawn"),
           decisions = json_member_number(run, "decisions"), left = json_member_number(run, "unfinished");
    char text[600];
    struct texts l = {.out = out};
    buf_puts(out, ",\"problems\":[");
    if (fallbacks > 0) {
        snprintf(text, sizeof text,
                 "the native policy decided %.0f of %.0f scheduling points in its place; last: %.300s", fallbacks,
                 decisions, error && *error ? error : "it starved requests");
        say(&l, text);
    }
    if (withdrawn > 0) {
        snprintf(text, sizeof text,
                 "it would have been withdrawn, and %.60s decided from then on: its figures are not all its own",
                 next ? next : "another");
        say(&l, text);
    }
    if (left > 0) {
        snprintf(text, sizeof text, "%.0f requests would not have come to an end", left);
        say(&l, text);
    }
    buf_putc(out, ']');
    return l.n;
}

static void put_notes(struct buf *out, const struct whatif_report *r, const struct json *run)
{
    char text[300];
    double guessed = guessed_share(run);
    struct texts l = {.out = out};
    buf_puts(out, ",\"notes\":[");
    if (!r->live)
        say(&l, "the live policy's source is not known here, so there is nothing to compare with");
    else if (!strcmp(r->live->sha256, r->other->sha256))
        say(&l, "this is the live policy: both are the same");
    if (r->window->n_before) {
        snprintf(text, sizeof text,
                 "%" PRIu64
                 " requests were under way when the window begins: they are left away, so both begin with an "
                 "empty server",
                 r->window->n_before);
        say(&l, text);
    }
    if (guessed >= 0.001) {
        snprintf(text, sizeof text,
                 "%.1f%% of the time of its steps is guessed: this server has not run such steps in that time",
                 100 * guessed);
        say(&l, text);
    }
    buf_putc(out, ']');
}

static void put_window(struct buf *out, const struct whatif_window *w)
{
    buf_puts(out, "{\"window\":{\"seconds\":");
    json_put_double(out, w->seconds);
    buf_printf(out,
               ",\"requests\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"left_away\":%" PRIu64 ",\"steps\":%" PRIu64
               ",\"bytes\":%zu}",
               w->n_requests, w->n_ended, w->n_before, w->n_steps, w->bytes);
}

int whatif_report(const struct whatif_report *r, const struct json *result, struct buf *out, struct err *e)
{
    const struct json *runs = json_find(result, "runs"), *live = r->live ? json_first(runs) : NULL;
    const struct json *other = r->live ? live ? json_next(live) : NULL : json_first(runs);
    const struct json *recorded = json_find(json_find(other, "recording"), "recorded");
    if (!other || !recorded)
        return err_set(e, E_INPUT, "the simulation did not say what became of the policy");
    put_window(out, r->window);
    json_put_member_double(out, "took_s", r->took_s);
    buf_puts(out, ",\"model\":{\"steps\":");
    json_write(out, json_find(recorded, "steps"), NULL);
    pass(out, "error", json_find(recorded, "model_error"));
    buf_putc(out, '}');
    if (live)
        put_run(out, "live", r->live, live);
    else
        buf_puts(out, ",\"live\":null");
    put_run(out, "other", r->other, other);
    int n = put_problems(out, other);
    buf_printf(out, ",\"ok\":%s", n ? "false" : "true");
    if (live && !n)
        whatif_foretell(live, other, r->stretch_s, r->predicted);
    r->predicted->window_s = r->window->seconds;
    put_notes(out, r, other);
    buf_putc(out, '}');
    return 0;
}
