#include <string.h>

#include "engine/lab/search/advise_inner.h"

double advise_price_of_million(const struct advise *a, int n_devices, double tokens_per_s)
{
    return tokens_per_s > 0 ? a->ask->price * n_devices / 3600 / tokens_per_s * 1e6 : 0;
}

static void put_objectives(const struct advise *a, struct buf *out)
{
    if (a->ask->slo_ttft_ms > 0)
        buf_printf(out, ", TTFT at most %g ms", a->ask->slo_ttft_ms);
    if (a->ask->slo_tpot_ms > 0)
        buf_printf(out, ", TPOT at most %g ms", a->ask->slo_tpot_ms);
}

static void put_value(const struct fleet *x, enum advise_goal g, const char *unit, struct buf *out)
{
    buf_printf(out, "%.*f", g == GOAL_TPOT ? 2 : 1, x->way.value[g]);
    if (x->n_samples)
        buf_printf(out, " (%.*f to %.*f)", g == GOAL_TPOT ? 2 : 1, x->low[g], g == GOAL_TPOT ? 2 : 1, x->high[g]);
    buf_puts(out, unit);
}

static void put_fleet(const struct advise *a, int place, const struct fleet *x, struct buf *out)
{
    int n = x->keeps * x->server->n_ranks;
    buf_printf(out, "  %d  %d device%s: %d server%s of %d, each ", place, n, n == 1 ? "" : "s", x->keeps,
               x->keeps == 1 ? "" : "s", x->server->n_ranks);
    advise_put_layout(x->server, &x->way, out);
    buf_printf(out, "%s\n     TTFT ", x->way.outside >= SIM_OUTSIDE_MARK ? "  ~" : "");
    put_value(x, GOAL_TTFT, " ms, TPOT ", out);
    put_value(x, GOAL_TPOT, " ms, ", out);
    buf_printf(out, "%.4g requests/s, ", x->way.requests_per_s);
    put_value(x, GOAL_THROUGHPUT, " tok/s", out);
    if (a->ask->price > 0)
        buf_printf(out, "\n     a million tokens cost %.4g, a million of answers alone %.4g",
                   advise_price_of_million(a, n, x->way.value[GOAL_THROUGHPUT]),
                   advise_price_of_million(a, n, x->way.output));
    if (x->n_samples)
        buf_printf(out, "\n     the objectives are kept in %d of %d samples", x->n_kept, x->n_samples);
    buf_putc(out, '\n');
    advise_put_way(x->server, &x->way, out);
}

void advise_put_fleets(const struct advise *a, struct buf *out)
{
    const struct fleets *f = a->fleets;
    int best[ADVISE_SIZES], n = f ? advise_best_fleets(f, best) : 0;
    if (!f)
        return;
    buf_printf(out, "\nDevices for %.4g requests/s", f->load.rate);
    put_objectives(a, out);
    if (!n)
        buf_printf(out, ": no %lld devices keep that\n", (long long)a->ask->max_devices);
    else
        buf_printf(out, "\n     (the fewest servers of each size behind a router, %s; %lld requests, %d simulations)\n",
                   a->ask->router, (long long)f->load.n_simulated, f->n_simulated);
    for (int i = 0; i < n; i++)
        put_fleet(a, i + 1, &f->items[best[i]], out);
}

/* ---- JSON */

static void put_number(struct buf *out, const char *key, double v)
{
    buf_printf(out, ",\"%s\":", key);
    json_put_double(out, v);
}

static void json_fleet(const struct advise *a, const struct fleet *x, struct buf *out)
{
    static const char *const names[GOAL_COUNT] = {"throughput", "p95_ttft_ms", "p95_tpot_ms"};
    int n = x->keeps * x->server->n_ranks;
    buf_printf(out, "{\"devices\":%d,\"servers\":%d,\"ranks\":%d", n, x->keeps, x->server->n_ranks);
    if (a->ask->price > 0) {
        put_number(out, "million_tokens", advise_price_of_million(a, n, x->way.value[GOAL_THROUGHPUT]));
        put_number(out, "million_output_tokens", advise_price_of_million(a, n, x->way.output));
    }
    if (x->n_samples) {
        buf_printf(out, ",\"samples\":%d,\"kept\":%d,\"bands\":{", x->n_samples, x->n_kept);
        for (int g = 0; g < GOAL_COUNT; g++) {
            buf_printf(out, "%s\"%s\":[", g ? "," : "", names[g]);
            json_put_double(out, x->low[g]);
            buf_putc(out, ',');
            json_put_double(out, x->high[g]);
            buf_putc(out, ']');
        }
        buf_putc(out, '}');
    }
    buf_puts(out, ",\"plan\":");
    advise_json_candidate(x->server, &x->way, out);
    buf_putc(out, '}');
}

void advise_json_fleets(const struct advise *a, struct buf *out)
{
    const struct fleets *f = a->fleets;
    int best[ADVISE_SIZES], n = f ? advise_best_fleets(f, best) : 0;
    if (!f)
        return;
    buf_printf(out, ",\"fleets\":{\"max_devices\":%lld,\"router\":\"%s\",\"requests\":%lld,\"simulated\":%d",
               (long long)a->ask->max_devices, a->ask->router, (long long)f->load.n_simulated, f->n_simulated);
    buf_puts(out, ",\"trace\":");
    buf_put_json(out, f->load.spec, strlen(f->load.spec));
    put_number(out, "rate", f->load.rate);
    buf_puts(out, ",\"best\":[");
    for (int i = 0; i < n; i++) {
        buf_puts(out, i ? ",\n" : "\n");
        json_fleet(a, &f->items[best[i]], out);
    }
    buf_puts(out, "]}");
}
