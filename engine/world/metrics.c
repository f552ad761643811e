#include "engine/world/metrics.h"

#include <stdio.h>
#include <string.h>

#define SECONDS_SHORT                                                                                                  \
    {                                                                                                                  \
        .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560          \
    }
#define SECONDS_TOKEN                                                                                                  \
    {                                                                                                                  \
        .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80                             \
    }
#define SECONDS_LONG                                                                                                   \
    {                                                                                                                  \
        .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680                      \
    }
#define TOKENS_125                                                                                                     \
    {                                                                                                                  \
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000              \
    }

static const struct {
    const char *name, *help;
    double bounds[HISTOGRAM_MAX_BUCKETS]; /* ascending, ended by 0 */
} histograms[HISTOGRAM_COUNT] = {
    [H_TTFT] = {"vllm:time_to_first_token_seconds", "From arrival to the first token.", SECONDS_SHORT},
    [H_ITL] = {"vllm:inter_token_latency_seconds", "Between two tokens of a request.", SECONDS_TOKEN},
    [H_TPOT] = {"vllm:request_time_per_output_token_seconds", "Mean time per output token of a request.",
                SECONDS_TOKEN},
    [H_E2E] = {"vllm:e2e_request_latency_seconds", "From arrival to the end.", SECONDS_LONG},
    [H_QUEUE] = {"vllm:request_queue_time_seconds", "From arrival to first being scheduled.", SECONDS_LONG},
    [H_PREFILL] = {"vllm:request_prefill_time_seconds", "From being scheduled to the first token.", SECONDS_LONG},
    [H_DECODE] = {"vllm:request_decode_time_seconds", "From the first token to the last.", SECONDS_LONG},
    [H_INFERENCE] = {"vllm:request_inference_time_seconds", "From being scheduled to the last token.", SECONDS_LONG},
    [H_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a request.", TOKENS_125},
    [H_GENERATION_TOKENS] = {"vllm:request_generation_tokens", "Output tokens of a request.", TOKENS_125},
    [H_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens of a request.", TOKENS_125},
    [H_N] = {"vllm:request_params_n", "n of a request, once for each of its prompts.", {1, 2, 5, 10, 20}},
    [H_ITERATION_TOKENS] = {"vllm:iteration_tokens_total",
                            "Tokens of a step.",
                            {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}},
    [H_PREEMPTIONS] = {"vllm:request_num_preemptions", "Preemptions of a finished request.", {1, 2, 3, 5, 10, 20, 50}},
    [H_STEP_SECONDS] = {"moonshift:step_seconds",
                        "Duration of a step.",
                        {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
};

static const struct {
    const char *name, *labels, *help; /* labels: further ones, or NULL; a NULL help continues the family above */
} counters[COUNTER_COUNT] = {
    [C_PROMPT_TOKENS] = {"vllm:prompt_tokens_total", NULL, "Prompt tokens of started requests."},
    [C_PROMPT_CACHED] = {"vllm:prompt_tokens_cached_total", NULL, "Of them, found in the prefix cache."},
    [C_GENERATION_TOKENS] = {"vllm:generation_tokens_total", NULL, "Tokens generated."},
    [C_PREFIX_QUERIES] = {"vllm:prefix_cache_queries_total", NULL, "Tokens looked up in the prefix cache."},
    [C_PREFIX_HITS] = {"vllm:prefix_cache_hits_total", NULL, "Tokens found in the prefix cache."},
    [C_PREEMPTIONS] = {"vllm:num_preemptions_total", NULL, "Requests put back into the queue."},
    [C_RECOMPUTED] = {"moonshift:recomputed_tokens_total", NULL, "Tokens whose KV was given up by a preemption."},
    [C_STOP] = {"vllm:request_success_total", "finished_reason=\"stop\"", "Ended requests by reason."},
    [C_LENGTH] = {"vllm:request_success_total", "finished_reason=\"length\"", NULL},
    [C_ABORT] = {"vllm:request_success_total", "finished_reason=\"abort\"", NULL},
    [C_ERROR] = {"vllm:request_success_total", "finished_reason=\"error\"", NULL},
    [C_REFUSED_FULL] = {"moonshift:admission_rejected_total", "reason=\"full\"", "Requests refused by reason."},
    [C_REFUSED_POLICY] = {"moonshift:admission_rejected_total", "reason=\"policy\"", NULL},
    [C_REFUSED_INPUT] = {"moonshift:admission_rejected_total", "reason=\"input\"", NULL},
    [C_SUBMITTED] = {"moonshift:requests_submitted_total", NULL, "Requests taken into the queue."},
    [C_STEPS_AHEAD] = {"moonshift:steps_ahead_total", NULL,
                       "Of them, those posted before the step that feeds them had ended."},
    [C_DRAFTS] = {"vllm:spec_decode_num_drafts_total", NULL, "Times that draft tokens of a request were verified."},
    [C_DRAFT_TOKENS] = {"vllm:spec_decode_num_draft_tokens_total", NULL, "Draft tokens that steps have verified."},
    [C_DRAFT_ACCEPTED] = {"vllm:spec_decode_num_accepted_tokens_total", NULL,
                          "Of them, those that were what the request says."},
    [C_DRAFT_MODEL_NS] = {"moonshift:draft_model_seconds_total", NULL, "Time that a draft model took behind steps."},
    [C_PROBES] = {"moonshift:probes_total", NULL, "Times that a request was asked what it would answer by now."},
    [C_PROBE_TOKENS] = {"moonshift:probe_tokens_total", NULL, "Tokens that such probes said."},
    [C_EARLY_STOPS] = {"moonshift:early_stops_total", NULL, "Requests whose thinking was closed early."},
    [C_STEPS] = {"moonshift:steps_total", NULL, "Steps run."},
    [C_KV_EVICTED] = {"moonshift:kv_blocks_evicted_total", NULL, "Cached KV blocks reused for something else."},
    [C_SWITCHES] = {"moonshift:switches_total", NULL, "Changes of the partition carried out."},
    [C_MOVES] = {"moonshift:kv_moves_total", NULL, "Sequences whose KV was copied to another placement."},
    [C_SWAPPED_OUT_BYTES] = {"moonshift:kv_swapped_out_bytes_total", NULL, "KV bytes copied to host memory."},
    [C_HOST_HITS] = {"moonshift:prefix_cache_host_hits_total", NULL,
                     "Of the hits of the prefix cache in tokens, those that host memory had."},
    [C_SAVED_TOKENS] = {"moonshift:kv_saved_tokens_total", NULL,
                        "Cached tokens copied to host memory before ranks evict them."},
    [C_DISK_READ_TOKENS] = {"moonshift:kv_disk_read_tokens_total", NULL,
                            "Cached tokens brought from the disk to host memory."},
    [C_DISK_WRITTEN_TOKENS] = {"moonshift:kv_disk_written_tokens_total", NULL, "Cached tokens written to the disk."},
    [C_DISK_FAILURES] = {"moonshift:kv_disk_failures_total", NULL,
                         "Copies to or from the disk that ended early: what was not whole, or no space left."},
    [C_SWAPPED_IN_BYTES] = {"moonshift:kv_swapped_in_bytes_total", NULL, "KV bytes copied back from host memory."},
    [C_RESHARDED_BYTES] = {"moonshift:weights_resharded_bytes_total", NULL,
                           "Weight bytes brought to ranks by reshards."},
    [C_MOVED_BYTES] = {"moonshift:kv_moved_bytes_total", NULL, "KV bytes copied from rank to rank."},
    [C_UNPARKED] = {"moonshift:kv_park_expired_total", NULL,
                    "Parked requests that gave their KV back at the age bound."},
    [C_RANK_FAILURES] = {"moonshift:rank_failures_total", NULL, "Ranks that failed."},
    [C_WAS_BYTES] = {"moonshift:was_bytes_total", NULL, "Bytes of pooled FFN weights fetched from their owners."},
    [C_WAS_WAIT_NS] = {"moonshift:was_wait_seconds_total", NULL, "Time that steps waited for them."},
    [C_CAS_BYTES] = {"moonshift:cas_bytes_total", NULL, "Bytes of rows sent to the owners of FFN layers, and back."},
    [C_CAS_ROWS] = {"moonshift:cas_rows_total", NULL, "Rows that owners multiplied for other ranks, by layer."},
    [C_LAYER_COPIES] = {"moonshift:layer_copies_total", NULL, "Pooled FFN layers that were copied to every rank."},
};

static const double tenant_bounds[TENANT_BUCKETS] = {.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60};

static const struct {
    const char *name, *help;
} tenant_histograms[TENANT_HISTOGRAMS] = {
    [TENANT_TTFT] = {"moonshift:tenant_time_to_first_token_seconds", "From arrival to the first token, by tenant."},
    [TENANT_QUEUE] = {"moonshift:tenant_queue_time_seconds", "From arrival to first being scheduled, by tenant."},
};

void metrics_init(struct metrics *m)
{
    memset(m, 0, sizeof *m);
    snprintf(m->tenants[METRICS_MAX_TENANTS].name, NAME_BYTES, "other");
}

static int n_bounds(enum histogram h)
{
    int n = 0;
    while (n < HISTOGRAM_MAX_BUCKETS && histograms[h].bounds[n] > 0)
        n++;
    return n;
}

void metrics_observe(struct metrics *m, enum histogram h, double value)
{
    const double *bounds = histograms[h].bounds;
    int i = 0;
    while (i < HISTOGRAM_MAX_BUCKETS && bounds[i] > 0 && value > bounds[i])
        i++;
    m->histograms[h].buckets[i]++;
    m->histograms[h].sum += value;
    m->histograms[h].count++;
}

struct tenant_counts *metrics_tenant(struct metrics *m, const char *name)
{
    const char *shown = *name ? name : "default";
    for (int i = 0; i < m->n_tenants; i++)
        if (!strcmp(m->tenants[i].name, shown))
            return &m->tenants[i];
    if (m->n_tenants == METRICS_MAX_TENANTS)
        return &m->tenants[METRICS_MAX_TENANTS];
    struct tenant_counts *t = &m->tenants[m->n_tenants++];
    snprintf(t->name, NAME_BYTES, "%s", shown);
    return t;
}

void metrics_observe_tenant(struct tenant_counts *t, enum tenant_histogram h, double seconds)
{
    int i = 0;
    while (i < TENANT_BUCKETS && seconds > tenant_bounds[i])
        i++;
    t->histograms[h].buckets[i]++;
    t->histograms[h].sum += seconds;
}

void metrics_put_label(struct buf *out, const char *value)
{
    buf_putc(out, '"');
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            buf_putc(out, '\\');
        if (*value == '\n')
            buf_puts(out, "\\n");
        else
            buf_putc(out, *value);
    }
    buf_putc(out, '"');
}

/* Times are counted in whole nanoseconds and shown in seconds. */
static void put_count(struct buf *out, enum counter c, uint64_t v)
{
    if (c == C_WAS_WAIT_NS || c == C_DRAFT_MODEL_NS)
        buf_printf(out, "%.9f\n", (double)v * 1e-9);
    else
        buf_printf(out, "%llu\n", (unsigned long long)v);
}

static void put_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void render_histogram(const struct metrics *m, enum histogram h, const char *label, struct buf *out)
{
    const char *name = histograms[h].name;
    put_head(out, name, "histogram", histograms[h].help);
    uint64_t sum = 0;
    int n = n_bounds(h);
    for (int i = 0; i <= n; i++) {
        sum += m->histograms[h].buckets[i];
        if (i < n)
            buf_printf(out, "%s_bucket{%s,le=\"%g\"} %llu\n", name, label, histograms[h].bounds[i],
                       (unsigned long long)sum);
    }
    buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, label, (unsigned long long)sum);
    buf_printf(out, "%s_sum{%s} %.9g\n%s_count{%s} %llu\n", name, label, m->histograms[h].sum, name, label,
               (unsigned long long)m->histograms[h].count);
}

static void render_tenants(const struct metrics *m, const char *label, struct buf *out)
{
    static const char *const names[] = {"moonshift:tenant_requests_total", "moonshift:tenant_prompt_tokens_total",
                                        "moonshift:tenant_generation_tokens_total"};
    static const char *const help[] = {"Ended requests by tenant.", "Prompt tokens by tenant.",
                                       "Output tokens by tenant."};
    for (int k = 0; k < 3; k++) {
        put_head(out, names[k], "counter", help[k]);
        for (int i = 0; i <= METRICS_MAX_TENANTS; i++) {
            const struct tenant_counts *t = &m->tenants[i];
            uint64_t v = k == 0 ? t->requests : k == 1 ? t->prompt_tokens : t->generation_tokens;
            if (i >= m->n_tenants && i < METRICS_MAX_TENANTS)
                continue;
            buf_printf(out, "%s{%s,tenant=", names[k], label);
            metrics_put_label(out, t->name);
            buf_printf(out, "} %llu\n", (unsigned long long)v);
        }
    }
}

static void render_tenant_histogram(const struct tenant_counts *t, enum tenant_histogram h, const char *label,
                                    struct buf *out)
{
    const char *name = tenant_histograms[h].name;
    struct buf labels = {0};
    uint64_t sum = 0;
    buf_printf(&labels, "%s,tenant=", label);
    metrics_put_label(&labels, t->name);
    for (int i = 0; i < TENANT_BUCKETS; i++) {
        sum += t->histograms[h].buckets[i];
        buf_printf(out, "%s_bucket{%s,le=\"%g\"} %llu\n", name, labels.data, tenant_bounds[i], (unsigned long long)sum);
    }
    sum += t->histograms[h].buckets[TENANT_BUCKETS];
    buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels.data, (unsigned long long)sum);
    buf_printf(out, "%s_sum{%s} %.9g\n%s_count{%s} %llu\n", name, labels.data, t->histograms[h].sum, name, labels.data,
               (unsigned long long)sum);
    buf_free(&labels);
}

static void render_tenant_histograms(const struct metrics *m, const char *label, struct buf *out)
{
    for (int h = 0; h < TENANT_HISTOGRAMS; h++) {
        put_head(out, tenant_histograms[h].name, "histogram", tenant_histograms[h].help);
        for (int i = 0; i <= METRICS_MAX_TENANTS; i++)
            if (i < m->n_tenants || i == METRICS_MAX_TENANTS)
                render_tenant_histogram(&m->tenants[i], (enum tenant_histogram)h, label, out);
    }
}

/* As many as were ever right, and the first one. */
static void render_drafts(const struct metrics *m, const char *label, struct buf *out)
{
    static const char *const name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    put_head(out, name, "counter", "Of the draft tokens that were right, those in this place.");
    for (int i = 0; i < METRICS_MAX_DRAFTS && (i == 0 || m->draft_accepted_at[i]); i++)
        buf_printf(out, "%s{%s,position=\"%d\"} %llu\n", name, label, i, (unsigned long long)m->draft_accepted_at[i]);
}

void metrics_put_histogram(const struct metrics *m, enum histogram h, struct buf *json)
{
    int n = n_bounds(h);
    buf_puts(json, "{\"le\":[");
    for (int i = 0; i < n; i++)
        buf_printf(json, "%s%g", i ? "," : "", histograms[h].bounds[i]);
    buf_puts(json, "],\"n\":[");
    for (int i = 0; i <= n; i++)
        buf_printf(json, "%s%llu", i ? "," : "", (unsigned long long)m->histograms[h].buckets[i]);
    buf_printf(json, "],\"sum\":%.9g,\"count\":%llu}", m->histograms[h].sum,
               (unsigned long long)m->histograms[h].count);
}

void metrics_render(const struct metrics *m, const char *model_name, struct buf *out)
{
    struct buf label = {0};
    buf_puts(&label, "engine=\"0\",model_name=");
    metrics_put_label(&label, model_name);
    for (int i = 0; i < COUNTER_COUNT; i++) {
        if (counters[i].help)
            put_head(out, counters[i].name, "counter", counters[i].help);
        buf_printf(out, "%s{%s%s%s} ", counters[i].name, label.data, counters[i].labels ? "," : "",
                   counters[i].labels ? counters[i].labels : "");
        put_count(out, (enum counter)i, m->counters[i]);
    }
    for (int i = 0; i < HISTOGRAM_COUNT; i++)
        render_histogram(m, (enum histogram)i, label.data, out);
    render_drafts(m, label.data, out);
    render_tenants(m, label.data, out);
    render_tenant_histograms(m, label.data, out);
    buf_free(&label);
}
