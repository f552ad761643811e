#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/advise_inner.h"

enum { BEST = 5 };

static const char *const goal_names[GOAL_COUNT] = {"throughput", "ttft", "tpot"};

/* ---- words */

static void put_flags(const struct advise *a, const struct candidate *c, struct buf *out)
{
    struct strings words = {0};
    advise_flags(a, c, &words);
    for (int i = 0; i < words.n; i++) {
        buf_printf(out, "%s%s", i ? " " : "", words.items[i]);
        mem_free(words.items[i]);
    }
    mem_free(words.items);
}

static void put_residency(const struct candidate *c, struct buf *out)
{
    if (c->slots)
        buf_printf(out, "pooled, %d slots", c->slots);
    else if (c->sharded)
        buf_printf(out, "its share, %.1f GiB of the layers", c->shard / 0x1p30);
    else
        buf_puts(out, "whole");
}

void advise_put_layout(const struct advise *a, const struct candidate *c, struct buf *out)
{
    struct layout l = c->layout;
    buf_printf(out, "%d x {sp=%d, tp=%d, pp=%d}", c->groups, l.sp, l.tp, l.pp);
    if (c->policy == POLICY_SHIFT)
        buf_printf(out, ", small steps {tp=%d}", a->n_ranks);
    else if (c->policy == POLICY_FLYING)
        buf_printf(out, ", few requests 1 x {tp=%d}", a->n_ranks);
    else if (c->policy == POLICY_SEESAW)
        buf_printf(out, ", tokens {tp=%d}", c->second.tp);
}

void advise_put_way(const struct advise *a, const struct candidate *c, struct buf *out)
{
    struct buf weights = {0};
    put_residency(c, &weights);
    buf_printf(out, "     a rank holds weights %.1f GiB (%s), KV %.1f GiB, reserve %.1f GiB\n     ",
               c->weights / 0x1p30, weights.data, c->kv / 0x1p30, a->facts.reserve / 0x1p30);
    put_flags(a, c, out);
    buf_putc(out, '\n');
    buf_free(&weights);
}

static void put_candidate(const struct advise *a, int place, const struct candidate *c, struct buf *out)
{
    struct buf layout = {0};
    advise_put_layout(a, c, &layout);
    buf_printf(out, "  %d  %8.0f tok/s  TTFT %9.1f ms  TPOT %7.2f ms  ", place, c->value[GOAL_THROUGHPUT],
               c->value[GOAL_TTFT], c->value[GOAL_TPOT]);
    if (a->ask->price > 0)
        buf_printf(out, "%.4g a million  ", advise_price_of_million(a, a->n_ranks, c->value[GOAL_THROUGHPUT]));
    buf_printf(out, "%s%s\n", layout.data, c->outside >= SIM_OUTSIDE_MARK ? "  ~" : "");
    advise_put_way(a, c, out);
    buf_free(&layout);
}

static void put_bound(struct buf *out, const char *name, double ms)
{
    if (ms > 0)
        buf_printf(out, ", %s at most %g ms", name, ms);
}

static void put_goal(const struct advise *a, enum advise_goal g, const int *best, int n, struct buf *out)
{
    static const char *const titles[GOAL_COUNT] = {"Throughput", "Time to the first token",
                                                   "Time of each further token"};
    buf_printf(out, "\n%s", titles[g]);
    if (g != GOAL_TTFT)
        put_bound(out, "TTFT", a->ask->slo_ttft_ms);
    if (g != GOAL_TPOT)
        put_bound(out, "TPOT", a->ask->slo_tpot_ms);
    buf_puts(out, !n                                       ? ": nothing came to an end\n"
                  : advise_keeps(a, &a->items[best[0]], g) ? "\n"
                                                           : ": nothing keeps that; nearest first\n");
    for (int i = 0; i < n; i++)
        put_candidate(a, i + 1, &a->items[best[i]], out);
}

static int count_failures(const struct advise *a, const struct candidate **first)
{
    int n = 0;
    for (int i = 0; i < a->n; i++)
        if (a->items[i].failure && !n++)
            *first = &a->items[i];
    return n;
}

static void put_head(const struct advise *a, struct buf *out)
{
    const struct advise_load *l = &a->load;
    const struct candidate *failed = NULL;
    int n = count_failures(a, &failed);
    buf_printf(out, "Machine  %s, %d devices; model %s\nTraffic  %s\n", a->ask->hardware, a->n_ranks, a->ask->model,
               l->words.data ? l->words.data : l->spec);
    buf_printf(out, "         %s %lld requests: %.0f tokens in and %.0f out on average, %s",
               l->cut ? "the first" : "all", (long long)l->n_simulated, l->input, l->output,
               l->rate > 0 ? "" : "all at once\n");
    if (l->rate > 0)
        buf_printf(out, "%.3g a second\n", l->rate);
    buf_printf(
        out,
        "Plans    %d fit into the memory (%d do not), %d of them were simulated: predictions of a fitted model,\n"
        "         never measurements. TTFT and TPOT: of 95 of 100 requests at most.\n",
        a->n, a->n_refused, a->n_simulated);
    if (n)
        buf_printf(out, "Refused  %d that cannot be run; the first: %.300s\n", n, failed->failure);
}

/* ---- JSON */

static void json_flags(const struct advise *a, const struct candidate *c, struct buf *out)
{
    struct strings words = {0};
    advise_flags(a, c, &words);
    buf_puts(out, ",\"flags\":[");
    for (int i = 0; i < words.n; i++) {
        buf_puts(out, i ? "," : "");
        buf_put_json(out, words.items[i], strlen(words.items[i]));
        mem_free(words.items[i]);
    }
    buf_putc(out, ']');
    mem_free(words.items);
}

void advise_json_candidate(const struct advise *a, const struct candidate *c, struct buf *out)
{
    struct buf words = {0};
    advise_policy_words(c, &words);
    buf_printf(out,
               "{\"groups\":%d,\"sp\":%d,\"tp\":%d,\"pp\":%d,\"sharded\":%s,\"tokens_tp\":%d,\"pool_slots\":%d,"
               "\"chunk\":%d",
               c->groups, c->layout.sp, c->layout.tp, c->layout.pp, c->sharded ? "true" : "false", c->second.tp,
               c->slots, c->chunk);
    json_put_member(out, "policy", words.data);
    json_flags(a, c, out);
    json_put_member_double(out, "weight_bytes", c->weights);
    json_put_member_double(out, "kv_bytes", c->kv);
    json_put_member_double(out, "reserve_bytes", a->facts.reserve);
    json_put_member_double(out, "formula_requests_per_s", c->price[GOAL_THROUGHPUT]);
    json_put_member_double(out, "formula_ttft_ms", c->price[GOAL_TTFT] * 1e3);
    json_put_member_double(out, "formula_tpot_ms", c->price[GOAL_TPOT] * 1e3);
    if (c->known) {
        json_put_member_double(out, "throughput", c->value[GOAL_THROUGHPUT]);
        json_put_member_double(out, "output_throughput", c->output);
        json_put_member_double(out, "requests_per_s", c->requests_per_s);
        json_put_member_double(out, "goodput", c->goodput);
        json_put_member_double(out, "p95_ttft_ms", c->value[GOAL_TTFT]);
        json_put_member_double(out, "p95_tpot_ms", c->value[GOAL_TPOT]);
        json_put_member_double(out, "mean_ttft_ms", c->mean[GOAL_TTFT]);
        json_put_member_double(out, "mean_tpot_ms", c->mean[GOAL_TPOT]);
        json_put_member_double(out, "finished", c->finished);
        json_put_member_double(out, "outside", c->outside);
    }
    if (c->failure)
        json_put_member(out, "failure", c->failure);
    buf_putc(out, '}');
    buf_free(&words);
}

static void json_plan(const struct advise *a, int best[GOAL_COUNT][BEST], const int n[GOAL_COUNT], struct buf *out)
{
    const struct advise_load *l = &a->load;
    buf_puts(out, "{\"format\":\"moonshift-plan-1\"");
    json_put_member(out, "hardware", a->ask->hardware);
    json_put_member(out, "model", a->ask->model);
    json_put_member(out, "trace", l->spec);
    buf_printf(out, ",\"ranks\":%d,\"requests\":%lld,\"cut\":%s", a->n_ranks, (long long)l->n_simulated,
               l->cut ? "true" : "false");
    json_put_member_double(out, "mean_input", l->input);
    json_put_member_double(out, "mean_output", l->output);
    json_put_member_double(out, "rate", l->rate);
    json_put_member_double(out, "slo_ttft_ms", a->ask->slo_ttft_ms);
    json_put_member_double(out, "slo_tpot_ms", a->ask->slo_tpot_ms);
    json_put_member_double(out, "price", a->ask->price);
    buf_printf(out, ",\"simulated\":%d,\"without_room\":%d,\"best\":{", a->n_simulated, a->n_refused);
    for (int g = 0; g < GOAL_COUNT; g++) {
        buf_printf(out, "%s\"%s\":[", g ? "," : "", goal_names[g]);
        for (int i = 0; i < n[g]; i++)
            buf_printf(out, "%s%d", i ? "," : "", best[g][i]);
        buf_putc(out, ']');
    }
    buf_puts(out, "},\"plans\":[");
    for (int i = 0; i < a->n; i++) {
        buf_puts(out, i ? ",\n" : "\n");
        advise_json_candidate(a, &a->items[i], out);
    }
    buf_putc(out, '\n');
    buf_putc(out, ']');
    advise_json_fleets(a, out);
    buf_puts(out, "}\n");
}

int advise_report(const struct advise *a, struct err *e)
{
    struct buf out = {0};
    int best[GOAL_COUNT][BEST], n[GOAL_COUNT], rc = 0;
    put_head(a, &out);
    for (int g = 0; g < GOAL_COUNT; g++) {
        n[g] = advise_best(a, (enum advise_goal)g, BEST, best[g]);
        put_goal(a, (enum advise_goal)g, best[g], n[g], &out);
    }
    advise_put_fleets(a, &out);
    fputs(out.data, stdout);
    if (a->ask->json) {
        buf_clear(&out);
        json_plan(a, best, n, &out);
        rc = file_replace(a->ask->json, out.data, out.len, e);
    }
    buf_free(&out);
    if (rc)
        return rc;
    if (!n[GOAL_THROUGHPUT])
        return err_set(e, E_NOTFOUND, "none of the %d simulations came to an end", a->n_simulated);
    int fleets[ADVISE_SIZES], n_fleets = a->fleets ? advise_best_fleets(a->fleets, fleets) : 0;
    if (!n_fleets && !advise_keeps(a, &a->items[best[GOAL_THROUGHPUT][0]], GOAL_THROUGHPUT))
        return err_set(e, E_NOTFOUND, "no plan keeps the objectives; the nearest are shown first");
    return 0;
}
