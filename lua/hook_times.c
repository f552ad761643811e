#include "lua/hook_times.h"

#include <inttypes.h>
#include <stdio.h>

static const double bucket_seconds[TIME_BUCKETS] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                                    2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2};

void duration_add(struct duration *d, int64_t ns)
{
    int i = 0;
    while (i < TIME_BUCKETS && (double)ns > bucket_seconds[i] * 1e9)
        i++;
    d->buckets[i]++;
    d->count++;
    d->sum_ns += ns;
}

static void put_duration(const struct duration *d, const char *name, const char *labels, struct buf *out)
{
    uint64_t total = 0;
    for (int i = 0; i < TIME_BUCKETS; i++) {
        total += d->buckets[i];
        buf_printf(out, "%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, labels, bucket_seconds[i], total);
    }
    buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, d->count);
    buf_printf(out, "%s_sum{%s} %.9f\n%s_count{%s} %" PRIu64 "\n", name, labels, (double)d->sum_ns * 1e-9, name, labels,
               d->count);
}

static void put_gauge(const char *name, const char *help, const char *labels, double value, struct buf *out)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %.0f\n", name, help, name, name, labels, value);
}

void hook_times_put(const struct hook_times *t, const char *labels, struct buf *out)
{
    buf_puts(out, "# HELP policy_hook_duration_seconds Wall time of the policy's calls.\n# TYPE "
                  "policy_hook_duration_seconds histogram\n");
    for (int i = 0; i < HOOK_COUNT; i++) {
        char with_hook[256];
        if (!(t->has >> i & 1))
            continue;
        snprintf(with_hook, sizeof with_hook, "%s,hook=\"%s\"", labels, policy_hook_name((enum policy_hook)i));
        put_duration(&t->hooks[i], "policy_hook_duration_seconds", with_hook, out);
    }
    buf_puts(out, "# HELP policy_gc_pause_seconds Collector work between the steps.\n# TYPE "
                  "policy_gc_pause_seconds histogram\n");
    put_duration(&t->collector, "policy_gc_pause_seconds", labels, out);
    put_gauge("policy_lua_heap_bytes", "Heap of the policy, without the host's own tables.", labels,
              (double)t->heap_bytes, out);
    put_gauge("policy_lua_heap_limit_bytes", "What that heap may grow to.", labels, (double)t->heap_limit, out);
}
