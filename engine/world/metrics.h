/* Counters and histograms of the engine, by vLLM's names where vLLM has one, and their text exposition (Prometheus
 * 0.0.4). Engine thread only: a front asks for the text by message. Gauges are passed at render time, so they cannot go
 * stale. */
#ifndef WORLD_METRICS_H
#define WORLD_METRICS_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/world/ids.h"

enum counter {
    C_PROMPT_TOKENS,
    C_PROMPT_CACHED,
    C_GENERATION_TOKENS,
    C_PREFIX_QUERIES,
    C_PREFIX_HITS,
    C_PREEMPTIONS,
    C_RECOMPUTED,
    C_STOP,
    C_LENGTH,
    C_ABORT,
    C_ERROR,
    C_REFUSED_FULL,
    C_REFUSED_POLICY,
    C_REFUSED_INPUT,
    C_SUBMITTED,
    C_STEPS,
    C_KV_EVICTED,
    C_SWITCHES,
    C_MOVES,
    C_MOVED_BYTES,
    C_SWAPPED_OUT_BYTES,
    C_SWAPPED_IN_BYTES,
    C_HOST_HITS,
    C_SAVED_TOKENS,
    C_DISK_READ_TOKENS,
    C_DISK_WRITTEN_TOKENS,
    C_DISK_FAILURES,
    C_RESHARDED_BYTES,
    C_UNPARKED,
    C_RANK_FAILURES,
    C_STEPS_AHEAD,
    C_DRAFTS,
    C_DRAFT_TOKENS,
    C_DRAFT_ACCEPTED,
    C_DRAFT_MODEL_NS,
    C_PROBES,
    C_PROBE_TOKENS,
    C_EARLY_STOPS,
    C_WAS_BYTES,
    C_WAS_WAIT_NS,
    C_CAS_BYTES,
    C_CAS_ROWS,
    C_LAYER_COPIES,
    COUNTER_COUNT
};

enum histogram {
    H_TTFT,
    H_ITL,
    H_TPOT,
    H_E2E,
    H_QUEUE,
    H_PREFILL,
    H_DECODE,
    H_INFERENCE,
    H_PROMPT_TOKENS,
    H_GENERATION_TOKENS,
    H_MAX_TOKENS,
    H_N,
    H_ITERATION_TOKENS,
    H_PREEMPTIONS,
    H_STEP_SECONDS,
    HISTOGRAM_COUNT
};

/* Of each tenant, in few buckets: there are many of them. */
enum tenant_histogram { TENANT_TTFT, TENANT_QUEUE, TENANT_HISTOGRAMS };

enum { HISTOGRAM_MAX_BUCKETS = 28, METRICS_MAX_TENANTS = 32, METRICS_MAX_DRAFTS = 64, TENANT_BUCKETS = 10 };

struct tenant_counts {
    char name[NAME_BYTES];
    uint64_t requests, prompt_tokens, generation_tokens;
    struct {
        uint64_t buckets[TENANT_BUCKETS + 1];
        double sum;
    } histograms[TENANT_HISTOGRAMS];
};

struct metrics {
    uint64_t counters[COUNTER_COUNT];
    struct {
        uint64_t buckets[HISTOGRAM_MAX_BUCKETS + 1];
        double sum;
        uint64_t count;
    } histograms[HISTOGRAM_COUNT];
    uint64_t draft_accepted_at[METRICS_MAX_DRAFTS]; /* draft tokens that were right, by their place behind the newest */
    struct tenant_counts tenants[METRICS_MAX_TENANTS + 1]; /* the last one is "other": label values are bounded */
    int n_tenants;
};

void metrics_init(struct metrics *m);
static inline void metrics_add(struct metrics *m, enum counter c, uint64_t n)
{
    m->counters[c] += n;
}
void metrics_observe(struct metrics *m, enum histogram h, double value);
struct tenant_counts *metrics_tenant(struct metrics *m, const char *name);
void metrics_observe_tenant(struct tenant_counts *t, enum tenant_histogram h, double seconds);
/* A label value: quotes, backslashes and newlines escaped, in quotes. */
void metrics_put_label(struct buf *out, const char *value);
/* {"le": bounds, "n": counts of each and of what lies above, "sum", "count"}, since the start. */
void metrics_put_histogram(const struct metrics *m, enum histogram h, struct buf *json);
/* All counters and histograms with the label model_name. */
void metrics_render(const struct metrics *m, const char *model_name, struct buf *out);

#endif
