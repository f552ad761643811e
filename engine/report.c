#include "engine/engine_state.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/log.h"

static double kv_usage(const struct world *w)
{
    return w->kv.n_blocks ? 1.0 - (double)kv_available(&w->kv) / w->kv.n_blocks : 0.0;
}

static void put_gauge(struct buf *out, const char *name, const char *help, const char *label, double value)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %.9g\n", name, help, name, name, label, value);
}

static void put_gauges(const struct engine *g, const char *label, struct buf *out)
{
    const struct world *w = &g->world;
    put_gauge(out, "vllm:num_requests_running", "Requests in execution.", label, w->running.n);
    put_gauge(out, "vllm:num_requests_waiting", "Requests that wait.", label, w->waiting.n);
    int deferred = 0;
    for (int i = 0; i < w->waiting.n; i++)
        deferred += !world_eligible(w, w->waiting.items[i]);
    buf_printf(out, "# HELP vllm:num_requests_waiting_by_reason Waiting requests by reason.\n"
                    "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
                    "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d\n"
                    "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} %d\n",
               label, w->waiting.n - deferred, label, deferred);
    put_gauge(out, "vllm:kv_cache_usage_perc", "Held KV blocks, 0 to 1.", label, kv_usage(w));
    put_gauge(out, "moonshift:kv_blocks_free", "Free KV blocks.", label, w->kv.n_free);
    put_gauge(out, "moonshift:kv_blocks_cached", "KV blocks that only the prefix cache keeps.", label, w->kv.n_cached);
    put_gauge(out, "moonshift:kv_blocks_total", "All KV blocks.", label, w->kv.n_blocks);
    put_gauge(out, "moonshift:requests_live", "Requests without an ending yet.", label, w->requests.n_live);
    buf_printf(out, "# HELP vllm:engine_sleep_state 1 for the state the engine is in.\n# TYPE vllm:engine_sleep_state gauge\n"
                    "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} 1\n", label);
    buf_printf(out, "# HELP vllm:cache_config_info The KV cache's settings.\n# TYPE vllm:cache_config_info gauge\n"
                    "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\"} 1\n",
               label, w->kv.tokens_per_block, w->kv.n_blocks, dtype_get(g->setup.kv_dtype)->name,
               w->limits.prefix_caching ? "True" : "False");
}

char *engine_metrics_text(struct engine *g, size_t *n)
{
    struct buf out = {0}, label = {0};
    buf_puts(&label, "engine=\"0\",model_name=");
    metrics_put_label(&label, g->setup.model_name);
    put_gauges(g, label.data, &out);
    metrics_render(&g->metrics, g->setup.model_name, &out);
    live_metrics(&g->live, &out);
    buf_free(&label);
    *n = out.len;
    return buf_take(&out);
}

static void put_request(struct buf *out, const struct request *r, int64_t now)
{
    buf_puts(out, "{\"id\":");
    buf_put_json(out, r->spec->name, strlen(r->spec->name));
    buf_puts(out, ",\"tenant\":");
    buf_put_json(out, r->spec->tenant, strlen(r->spec->tenant));
    const char *state = r->state == REQ_RUNNING ? "running" : r->paused ? "paused" : "waiting";
    buf_printf(out, ",\"state\":\"%s\",\"priority\":%d,\"key\":%.17g,\"prompt\":%d,\"output\":%d,\"computed\":%d,\"blocks\":%d"
                    ",\"preempted\":%d,\"age_s\":%.3f}",
               state, r->spec->priority, r->key, r->spec->n_prompt, request_output(r), r->n_computed, r->n_blocks, r->n_preempted,
               (double)(now - r->spec->arrival_ns) * 1e-9);
}

static void put_queue(struct buf *out, const char *name, const struct req_queue *q, int64_t now)
{
    buf_printf(out, ",\"n_%s\":%d,\"%s\":[", name, q->n, name);
    for (int i = 0; i < q->n && i < 256; i++) {
        if (i)
            buf_putc(out, ',');
        put_request(out, q->items[i], now);
    }
    buf_putc(out, ']');
}

char *engine_state_json(struct engine *g, size_t *n)
{
    const struct world *w = &g->world;
    int64_t now = clock_now(g->setup.clock);
    struct buf out = {0};
    buf_printf(&out, "{\"uptime_s\":%.3f,\"draining\":%s", (double)(now - g->started_ns) * 1e-9, g->draining ? "true" : "false");
    put_queue(&out, "waiting", &w->waiting, now);
    put_queue(&out, "running", &w->running, now);
    int held = w->kv.n_blocks - w->kv.n_free - w->kv.n_cached;
    buf_printf(&out, ",\"kv\":{\"free\":%d,\"held\":%d,\"cached\":%d,\"total\":%d,\"tokens_per_block\":%d,\"block_bytes\":%zu}",
               w->kv.n_free, held, w->kv.n_cached, w->kv.n_blocks, w->kv.tokens_per_block, g->kv_block_bytes);
    buf_printf(&out, ",\"requests\":{\"submitted\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"live\":%d}", w->n_submitted, w->n_ended,
               w->requests.n_live);
    buf_printf(&out, ",\"conserved\":%s", world_check(w) ? "true" : "false");
    buf_puts(&out, ",\"groups\":[");
    for (int i = 0; i < w->n_groups; i++) {
        const struct group *grp = &w->groups[i];
        buf_printf(&out, "%s{\"id\":%d,\"ranks\":%d,\"idle\":%s,\"steps\":%" PRIu64 ",\"last_step_ms\":%.3f,\"last_step_tokens\":%d}",
                   i ? "," : "", grp->id, grp->n_ranks, grp->idle ? "true" : "false", grp->n_steps, (double)grp->last_step_ns * 1e-6,
                   grp->last_step_tokens);
    }
    buf_puts(&out, "],\"policy\":");
    live_state(&g->live, &out);
    buf_putc(&out, '}');
    *n = out.len;
    return buf_take(&out);
}

void engine_log_rates(struct engine *g, int64_t now)
{
    const struct world *w = &g->world;
    const uint64_t *c = g->metrics.counters;
    if (now - g->rates.since_ns < 10000000000)
        return;
    double s = (double)(now - g->rates.since_ns) * 1e-9;
    uint64_t prompt = c[C_PROMPT_TOKENS] - g->rates.prompt_tokens, gen = c[C_GENERATION_TOKENS] - g->rates.generation_tokens;
    if (!g->setup.quiet && !g->setup.quiet_stats && (prompt || gen || w->requests.n_live))
        log_info("engine",
                 "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, "
                 "Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
                 (double)prompt / s, (double)gen / s, w->running.n, w->waiting.n, kv_usage(w) * 100,
                 c[C_PREFIX_QUERIES] ? 100.0 * (double)c[C_PREFIX_HITS] / (double)c[C_PREFIX_QUERIES] : 0.0);
    g->rates = (struct rates){.since_ns = now, .prompt_tokens = c[C_PROMPT_TOKENS], .generation_tokens = c[C_GENERATION_TOKENS]};
}
