#include "engine/engine_state.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/log.h"

/* Blocks of all ranks together. */
struct kv_counts {
    int free, cached, total; /* total: without what is lent */
};

static struct kv_counts count_kv(const struct world *w)
{
    struct kv_counts c = {.total = w->kv.n_blocks * w->kv.n_ranks};
    for (int i = 0; i < w->kv.n_ranks; i++) {
        c.free += w->kv.ranks[i].n_free;
        c.cached += w->kv.ranks[i].n_cached;
        c.total -= w->kv.ranks[i].n_lent;
    }
    return c;
}

static double kv_usage(const struct world *w)
{
    struct kv_counts c = count_kv(w);
    return c.total ? 1.0 - (double)(c.free + c.cached) / c.total : 0.0;
}

static void put_gauge(struct buf *out, const char *name, const char *help, const char *label, double value)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %.9g\n", name, help, name, name, label, value);
}

static void put_gauges(const struct engine *engine, const char *label, struct buf *out)
{
    const struct world *w = &engine->world;
    struct kv_counts kv = count_kv(w);
    put_gauge(out, "vllm:num_requests_running", "Requests in execution.", label, w->running.n - w->n_probes_running);
    put_gauge(out, "vllm:num_requests_waiting", "Requests that wait.", label, w->waiting.n - w->n_probes_waiting);
    int deferred = -w->n_held;
    for (int i = 0; i < w->waiting.n; i++)
        deferred += !world_eligible(w, w->waiting.items[i]);
    buf_printf(out,
               "# HELP vllm:num_requests_waiting_by_reason Waiting requests by reason.\n"
               "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
               "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d\n"
               "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} %d\n"
               "vllm:num_requests_waiting_by_reason{%s,reason=\"held\"} %d\n",
               label, w->waiting.n - w->n_probes_waiting - deferred - w->n_held, label, deferred, label, w->n_held);
    put_gauge(out, "vllm:kv_cache_usage_perc", "Held KV blocks, 0 to 1.", label, kv_usage(w));
    put_gauge(out, "moonshift:kv_blocks_free", "Free KV blocks.", label, kv.free);
    put_gauge(out, "moonshift:kv_blocks_cached", "KV blocks that only the prefix cache keeps.", label, kv.cached);
    put_gauge(out, "moonshift:kv_blocks", "All KV blocks.", label, kv.total);
    const struct kv_rank *host = w->kv.host_place < 0 ? NULL : &w->kv.ranks[w->kv.n_ranks];
    put_gauge(out, "moonshift:host_kv_blocks", "Blocks of host memory for KV.", label, host ? host->n_blocks : 0);
    put_gauge(out, "moonshift:host_kv_blocks_free", "Of them, free.", label, host ? host->n_free : 0);
    put_gauge(out, "moonshift:host_kv_blocks_cached", "Of them, those that only the prefix cache keeps.", label,
              host ? host->n_cached : 0);
    const struct kv_rank *disk = w->kv.disk_place < 0 ? NULL : &w->kv.ranks[w->kv.n_ranks + 1];
    put_gauge(out, "moonshift:disk_kv_blocks", "Blocks of the disk for KV.", label, disk ? disk->n_blocks : 0);
    put_gauge(out, "moonshift:disk_kv_blocks_cached", "Of them, those that the prefix cache keeps.", label,
              disk ? disk->n_cached : 0);
    int off = 0;
    for (int i = 0; i < engine->node.n_ranks; i++)
        off += rank_facts(engine->node.ranks[i])->parts_off;
    put_gauge(out, "moonshift:device_parts_off",
              "Kernels and libraries of GPUs that came out wrong when they were tried at start, and are not used.",
              label, off);
    put_gauge(out, "moonshift:groups", "Groups of ranks.", label, w->partition.n_groups);
    put_gauge(out, "moonshift:ranks_alive", "Ranks that have not failed.", label,
              w->kv.n_ranks - __builtin_popcountll(w->partition.dead_ranks));
    put_gauge(out, "moonshift:switches_pending", "Orders for the partition that wait.", label, w->partition.n_pending);
    put_gauge(out, "moonshift:step_estimate_error", "Running mean of |predicted - measured| / measured step time.",
              label, w->estimate.error);
    put_gauge(out, "moonshift:requests_untold", "Requests whose newest tokens wait because the front is behind.", label,
              engine->n_behind);
    put_gauge(out, "moonshift:requests_live", "Requests without an ending yet.", label, w->requests.n_live);
    buf_printf(
        out,
        "# HELP vllm:engine_sleep_state 1 for the state the engine is in.\n# TYPE vllm:engine_sleep_state gauge\n"
        "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} 1\n",
        label);
    buf_printf(out,
               "# HELP vllm:cache_config_info The KV cache's settings.\n# TYPE vllm:cache_config_info gauge\n"
               "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"%s\",enable_prefix_"
               "caching=\"%s\"} 1\n",
               label, engine->setup.block_size, w->kv.n_blocks, dtype_get(engine->setup.kv_dtype)->name,
               w->limits.prefix_caching ? "True" : "False");
}

char *engine_metrics_text(struct engine *engine, size_t *n)
{
    struct buf out = {0}, label = {0};
    buf_puts(&label, "engine=\"0\",model_name=");
    metrics_put_label(&label, engine->setup.model_name);
    put_gauges(engine, label.data, &out);
    metrics_render(&engine->metrics, engine->setup.model_name, &out);
    live_metrics(&engine->live, &out);
    shadow_metrics(&engine->shadow, &out);
    canary_metrics(&engine->canary, &out);
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
    const char *state = r->state == REQ_RUNNING ? "running"
                        : r->held_until_ns      ? "held"
                        : r->parked             ? "parked"
                                                : "waiting";
    buf_printf(
        out,
        ",\"state\":\"%s\",\"priority\":%d,\"key\":%.17g,\"prompt\":%d,\"output\":%d,\"computed\":%d,\"blocks\":%d"
        ",\"preempted\":%d,\"group\":%d,\"moving\":%d,\"age_s\":%.3f",
        state, r->spec->priority, r->key, r->spec->n_prompt, request_output(r), r->n_computed, r->n_blocks,
        r->n_preempted, r->group, r->n_moving, (double)(now - r->spec->arrival_ns) * 1e-9);
    if (r->parent)
        buf_puts(out, ",\"probe\":true");
    if (r->held_until_ns) {
        buf_printf(out, ",\"held\":{\"for_s\":%.3f,\"reason\":", (double)(r->held_until_ns - now) * 1e-9);
        buf_put_json(out, r->held_why, strlen(r->held_why));
        buf_putc(out, '}');
    }
    buf_putc(out, '}');
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

static void put_mask(struct buf *out, uint64_t mask)
{
    const char *comma = "";
    buf_putc(out, '[');
    for (int i = 0; i < MAX_RANKS; i++)
        if (mask >> i & 1) {
            buf_printf(out, "%s%d", comma, i);
            comma = ",";
        }
    buf_putc(out, ']');
}

static void put_layout(struct buf *out, const char *name, struct layout l)
{
    buf_printf(out, ",\"%s\":{\"sp\":%d,\"tp\":%d,\"pp\":%d}", name, l.sp, l.tp, l.pp);
}

static void put_ranks(struct buf *out, const struct world *w)
{
    const struct partition *p = &w->partition;
    buf_puts(out, ",\"ranks\":[");
    for (int i = 0; i < w->kv.n_ranks; i++) {
        const struct kv_rank *k = &w->kv.ranks[i];
        int group = 0;
        for (int n = 0; n < p->n_groups; n++)
            group = partition_group(p, n)->mask >> i & 1 ? partition_group(p, n)->id : group;
        buf_printf(out,
                   "%s{\"id\":%d,\"alive\":%s,\"group\":%d,\"kv\":{\"free\":%d,\"held\":%d,\"cached\":%d,\"lent\":%d,"
                   "\"total\":%d}}",
                   i ? "," : "", i, p->dead_ranks >> i & 1 ? "false" : "true", group, k->n_free,
                   w->kv.n_blocks - k->n_free - k->n_cached - k->n_lent, k->n_cached, k->n_lent, w->kv.n_blocks);
    }
    buf_putc(out, ']');
}

/* What each rank holds of the layers, and how far those are that it gets. */
static void put_cuts(struct buf *out, const struct engine *engine)
{
    const struct residency *x = &engine->world.residency;
    if (!x->facts) {
        buf_puts(out, ",\"sharded\":null");
        return;
    }
    buf_printf(out, ",\"sharded\":{\"room_bytes\":%zu,\"load_ns_per_byte\":%.4f,\"coming\":[", x->facts->room,
               engine->world.cost.load_ns_per_byte);
    for (int i = 0; i < engine->n_reshards; i++) {
        const struct reshard_task *t = engine->reshards[i];
        static const char *const kinds[] = {"stage", "take", "drop"};
        buf_printf(out, "%s{\"what\":\"%s\",\"bytes\":%lld,\"of\":%zu,\"ranks\":", i ? "," : "", kinds[t->kind],
                   (long long)atomic_load(&t->bytes), t->expected);
        put_mask(out, t->ranks);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"ranks\":[");
    for (int i = 0; i < engine->node.n_ranks; i++) {
        const struct cut *c = &x->held[i];
        buf_printf(out, "%s{\"bytes\":%zu,\"staged\":%zu,\"stage\":%d,\"share\":%d", i ? "," : "",
                   residency_bytes(x->facts, c), engine->staged_bytes[i], c->stage, c->t);
        put_layout(out, "layout", c->layout);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* How FFN weights are pooled, and what fetching them costs. */
static void put_pool(struct buf *out, const struct engine *engine)
{
    const struct world *w = &engine->world;
    const struct node_facts *n = &engine->facts;
    const struct ffn_setup *f = w->ffn;
    struct ffn_pool_facts seen = {0};
    if (!f) {
        buf_puts(out, ",\"ffn\":null");
        return;
    }
    if (engine->node.pool)
        ffn_pool_look(engine->node.pool, &seen);
    buf_printf(out,
               ",\"ffn\":{\"layers\":%d,\"slots\":%d,\"layer_bytes\":%zu,\"freed_bytes\":%zu,\"fetch_ms\":%.3f,"
               "\"wait_ms\":%.3f,\"replicas\":%d,\"replicas_coming\":%d,\"most_readers\":%d,\"products\":%" PRIu64
               ",\"calls\":%" PRIu64 ",\"owners\":",
               f->n_layers, f->n_slots, n->ffn_layer_bytes, n->ffn_freed_bytes, w->ffn_measured.fetch_ns * 1e-6,
               w->ffn_measured.wait_ns * 1e-6, world_count_replicas(w, REPLICA_HERE),
               world_count_replicas(w, REPLICA_COMING), seen.most_readers, seen.products, seen.calls);
    ffn_put_owners(f, out);
    buf_putc(out, '}');
}

static void put_group(struct buf *out, const struct world *w, const struct group *grp, int64_t now)
{
    const struct kv_place *l = kv_place(&w->kv, grp->place);
    buf_printf(out, "{\"id\":%d,\"ranks\":[", grp->id);
    for (int i = 0; i < grp->n_ranks; i++)
        buf_printf(out, "%s%d", i ? "," : "", grp->ranks[i]);
    buf_printf(out,
               "],\"idle\":%s,\"held\":%s,\"closed\":%s,\"running\":%d,\"since_s\":%.3f,\"steps\":%" PRIu64
               ",\"last_step_ms\":%.3f,\"last_step_tokens\":%d",
               grp->idle ? "true" : "false", grp->held ? "true" : "false", grp->closed || grp->shut ? "true" : "false",
               grp->n_running, (double)(now - grp->bound_ns) * 1e-9, grp->n_steps, (double)grp->last_step_ns * 1e-6,
               grp->last_step_tokens);
    buf_printf(out, ",\"ffn\":\"%s\"", ffn_way_name(ffn_way(w, grp)));
    put_layout(out, "layout", grp->layout);
    put_layout(out, "base", grp->base);
    if (grp->weights.tp)
        put_layout(out, "weights", grp->weights);
    buf_printf(out, ",\"loading\":%s,\"canary\":%s", grp->loading ? "true" : "false", grp->canary ? "true" : "false");
    buf_printf(out, ",\"placement\":{\"tokens_per_block\":%d,\"blocks\":%d,\"cached\":%d,\"available\":%d}}",
               l->tokens_per_block, w->kv.n_blocks - l->n_unused, l->n_cached, kv_available(&w->kv, grp->place));
}

static void put_order(struct buf *out, const struct switch_order *o)
{
    buf_printf(out, "\"verb\":\"%s\",\"ranks\":", o->release ? "release" : "bind");
    put_mask(out, o->mask);
    buf_printf(out, ",\"when\":\"%s\",\"kv\":\"%s\",\"reason\":", switch_when_name(o->when), kv_fate_name(o->fate));
    buf_put_json(out, o->reason, strlen(o->reason));
}

/* Who keeps an order waiting: groups that are in a step, or still have sequences. */
static void put_pending(struct buf *out, const struct world *w, int64_t now)
{
    const struct partition *p = &w->partition;
    buf_puts(out, ",\"pending\":[");
    for (int i = 0; i < p->n_pending; i++) {
        const struct switch_pending *s = &p->pending[i];
        const char *comma = "";
        buf_puts(out, i ? ",{" : "{");
        put_order(out, &s->order);
        buf_printf(out, ",\"waits_s\":%.6f,\"hard_in_s\":%.3f,\"waits_for\":[", (double)(now - s->since_ns) * 1e-9,
                   s->forced ? 0.0 : (double)(s->deadline_ns - now) * 1e-9);
        for (int k = 0; k < p->n_groups; k++) {
            const struct group *grp = partition_group(p, k);
            if (grp->mask & s->order.mask && (!grp->idle || (!s->forced && grp->n_running))) {
                buf_printf(out, "%s%d", comma, grp->id);
                comma = ",";
            }
        }
        buf_puts(out, "]}");
    }
    buf_putc(out, ']');
}

static void put_event(struct buf *out, const struct switch_event *e, int64_t now)
{
    buf_printf(out, "{\"serial\":%" PRIu64 ",", e->serial);
    put_order(out, &e->order);
    buf_printf(out,
               ",\"outcome\":\"%s\",\"ago_s\":%.3f,\"wait_ms\":%.3f,\"cutover_ms\":%.3f,\"moved_bytes\":%" PRIu64
               ",\"kept\":%d,\"moved\":%d,\"parked\":%d,\"recomputed\":%d,\"worst_stall_ms\":%.3f,\"streams_open\":%d}",
               e->failure      ? "failure"
               : e->dropped    ? "dropped"
               : e->superseded ? "superseded"
                               : "done",
               (double)(now - e->done_ns) * 1e-9, (double)(e->done_ns - e->asked_ns) * 1e-6,
               (double)e->cutover_ns * 1e-6, e->bytes, e->n_kept, e->n_moved, e->n_parked, e->n_recomputed,
               (double)e->worst_stall_ns * 1e-6, e->n_open);
}

/* Those after the switch `seen`, newest first. */
static void put_switches(struct buf *out, const struct world *w, uint64_t seen, int64_t now)
{
    const struct partition *p = &w->partition;
    const char *comma = "";
    buf_printf(out, ",\"n_switches\":%" PRIu64 ",\"newest_switch\":%" PRIu64 ",\"switches\":[", p->n_switches,
               p->n_events);
    for (uint64_t s = p->n_events; s > seen && s + SWITCH_EVENTS > p->n_events; s--) {
        buf_puts(out, comma);
        put_event(out, partition_event(p, s), now);
        comma = ",";
    }
    buf_putc(out, ']');
}

/* Host memory, or the disk. */
static void put_tier(struct buf *out, const struct world *w, int place, const char *name)
{
    if (place < 0)
        return;
    const struct kv_rank *h = &w->kv.ranks[kv_place(&w->kv, place)->ranks[0]];
    buf_printf(out, ",\"%s\":{\"free\":%d,\"held\":%d,\"cached\":%d,\"total\":%d}", name, h->n_free,
               h->n_blocks - h->n_free - h->n_cached, h->n_cached, h->n_blocks);
}

enum { PULSE_CLASSES = 8 };

struct class_counts {
    int priority, n;
    int64_t arrival_ns; /* of the oldest */
    int held[HOLD_REASONS + 1];
};

static const char *hold_words(const struct holds *h, int reason)
{
    return reason == HOLD_REASONS ? "(other reasons)" : h->items[reason].why;
}

/* How many of it the policy holds, and why. */
static void put_held(struct buf *out, const struct class_counts *c, const struct holds *h)
{
    const char *comma = "";
    buf_puts(out, ",\"held\":[");
    for (int i = 0; i <= HOLD_REASONS; i++) {
        if (!c->held[i])
            continue;
        buf_printf(out, "%s{\"reason\":", comma);
        buf_put_json(out, hold_words(h, i), strlen(hold_words(h, i)));
        buf_printf(out, ",\"n\":%d}", c->held[i]);
        comma = ",";
    }
    buf_putc(out, ']');
}

/* Who waits, by priority; those of more than PULSE_CLASSES of them are left out, and counted by `queue`. */
static void put_classes(struct buf *out, const struct world *w, int64_t now)
{
    const struct req_queue *q = &w->waiting;
    struct class_counts c[PULSE_CLASSES];
    int n = 0;
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        const struct request_spec *s = r->spec;
        int k = 0;
        while (k < n && c[k].priority != s->priority)
            k++;
        if (k == PULSE_CLASSES || r->parent)
            continue;
        if (k == n)
            c[n++] = (struct class_counts){.priority = s->priority, .arrival_ns = s->arrival_ns};
        c[k].n++;
        c[k].arrival_ns = s->arrival_ns < c[k].arrival_ns ? s->arrival_ns : c[k].arrival_ns;
        if (r->held_until_ns)
            c[k].held[r->held_for]++;
    }
    buf_putc(out, '[');
    for (int k = 0; k < n; k++) {
        buf_printf(out, "%s{\"priority\":%d,\"n\":%d,\"oldest_s\":%.3f", k ? "," : "", c[k].priority, c[k].n,
                   (double)(now - c[k].arrival_ns) * 1e-9);
        put_held(out, &c[k], &w->holds);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

static void put_totals(struct buf *out, const struct engine *engine)
{
    const struct world *w = &engine->world;
    const uint64_t *c = engine->metrics.counters;
    buf_printf(out,
               ",\"totals\":{\"submitted\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"prompt_tokens\":%" PRIu64
               ",\"generation_tokens\":%" PRIu64 ",\"preemptions\":%" PRIu64 "}",
               w->n_submitted, w->n_ended, c[C_PROMPT_TOKENS], c[C_GENERATION_TOKENS], c[C_PREEMPTIONS]);
}

/* Why the policies have held requests, those that hold somebody now and those that did. */
static void put_holds(struct buf *out, const struct holds *h)
{
    const char *comma = "";
    buf_puts(out, ",\"holds\":[");
    for (int i = 0; i <= HOLD_REASONS; i++) {
        const struct hold_reason *r = &h->items[i];
        if ((i >= h->n && i < HOLD_REASONS) || !r->times)
            continue;
        buf_printf(out, "%s{\"reason\":", comma);
        buf_put_json(out, hold_words(h, i), strlen(hold_words(h, i)));
        buf_printf(out, ",\"now\":%d,\"times\":%" PRIu64 "}", r->now, r->times);
        comma = ",";
    }
    buf_putc(out, ']');
}

static void put_limits(struct buf *out, const struct engine *engine)
{
    buf_puts(out, ",\"limits\":");
    limits_put(&engine->world.limits, out);
    buf_puts(out, ",\"limits_at_start\":");
    limits_put(&engine->setup.limits, out);
}

char *engine_state_json(struct engine *engine, size_t *n)
{
    const struct world *w = &engine->world;
    int64_t now = clock_now(engine->setup.clock);
    struct kv_counts kv = count_kv(w);
    struct buf out = {0};
    buf_printf(&out, "{\"uptime_s\":%.3f,\"draining\":%s", (double)(now - engine->started_ns) * 1e-9,
               engine->draining ? "true" : "false");
    buf_printf(&out, ",\"held\":%d,\"parked\":%d,\"queue\":", w->n_held, w->n_parked);
    put_classes(&out, w, now);
    put_holds(&out, &w->holds);
    put_limits(&out, engine);
    put_totals(&out, engine);
    put_queue(&out, "waiting", &w->waiting, now);
    put_queue(&out, "running", &w->running, now);
    buf_printf(
        &out,
        ",\"kv\":{\"free\":%d,\"held\":%d,\"cached\":%d,\"total\":%d,\"tokens_per_block\":%d,\"block_bytes\":%zu}",
        kv.free, kv.total - kv.free - kv.cached, kv.cached, kv.total, engine->setup.block_size,
        engine->node.kv_block_bytes);
    put_tier(&out, w, w->kv.host_place, "host_kv");
    put_tier(&out, w, w->kv.disk_place, "disk_kv");
    buf_printf(&out, ",\"requests\":{\"submitted\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"live\":%d}", w->n_submitted,
               w->n_ended, w->requests.n_live);
    buf_printf(&out, ",\"conserved\":%s", world_check_part(w, &engine->checked) ? "true" : "false");
    put_ranks(&out, w);
    put_pool(&out, engine);
    put_cuts(&out, engine);
    buf_puts(&out, ",\"groups\":[");
    for (int i = 0; i < w->partition.n_groups; i++) {
        if (i)
            buf_putc(&out, ',');
        put_group(&out, w, partition_group(&engine->world.partition, i), now);
    }
    buf_putc(&out, ']');
    put_pending(&out, w, now);
    put_switches(&out, w, 0, now);
    buf_puts(&out, ",\"policy\":");
    live_state(&engine->live, now, &out);
    buf_putc(&out, '}');
    *n = out.len;
    return buf_take(&out);
}

/* ---- for whoever watches live: small whatever the load is */

static void put_steps(struct buf *out, const struct pulse *p, int64_t now)
{
    buf_printf(out, ",\"interval_s\":%.6f,\"steps_missed\":%" PRIu64 ",\"steps\":[", (double)(now - p->since_ns) * 1e-9,
               p->missed);
    for (int i = 0; i < p->n; i++) {
        const struct pulse_row *r = &p->rows[i];
        buf_printf(out, "%s{\"group\":%d,\"n\":%" PRIu64 ",\"rows\":%" PRIu64 ",\"ms\":%.3f", i ? "," : "", r->group,
                   r->steps, r->rows, (double)r->ns * 1e-6);
        put_layout(out, "layout", r->layout);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

char *engine_pulse_json(struct engine *engine, uint64_t seen, size_t *n)
{
    const struct world *w = &engine->world;
    const struct metrics *m = &engine->metrics;
    int64_t now = clock_now(engine->setup.clock);
    struct buf out = {0};
    buf_printf(&out, "{\"uptime_s\":%.3f,\"draining\":%s,\"waiting\":%d,\"running\":%d,\"held\":%d,\"queue\":",
               (double)(now - engine->started_ns) * 1e-9, engine->draining ? "true" : "false",
               w->waiting.n - w->n_probes_waiting, w->running.n - w->n_probes_running, w->n_held);
    put_classes(&out, w, now);
    put_holds(&out, &w->holds);
    buf_puts(&out, ",\"limits\":");
    limits_put(&w->limits, &out);
    put_totals(&out, engine);
    buf_puts(&out, ",\"ttft\":");
    metrics_put_histogram(m, H_TTFT, &out);
    buf_puts(&out, ",\"itl\":");
    metrics_put_histogram(m, H_ITL, &out);
    put_ranks(&out, w);
    put_tier(&out, w, w->kv.host_place, "host_kv");
    put_tier(&out, w, w->kv.disk_place, "disk_kv");
    buf_puts(&out, ",\"groups\":[");
    for (int i = 0; i < w->partition.n_groups; i++) {
        const struct group *g = partition_group(&w->partition, i);
        buf_printf(&out, "%s{\"id\":%d,\"running\":%d,\"idle\":%s,\"ranks\":", i ? "," : "", g->id, g->n_running,
                   g->idle ? "true" : "false");
        put_mask(&out, g->mask);
        put_layout(&out, "layout", g->layout);
        buf_putc(&out, '}');
    }
    buf_putc(&out, ']');
    put_steps(&out, &engine->pulse, now);
    put_switches(&out, w, seen, now);
    buf_puts(&out, ",\"policy\":");
    live_state(&engine->live, now, &out);
    buf_puts(&out, ",\"shadow\":");
    shadow_put_pulse(&engine->shadow, now, &out);
    buf_puts(&out, ",\"canary\":");
    if (engine->canary.book.name[0])
        canary_put(&engine->canary, now, &out);
    else
        buf_puts(&out, "null");
    buf_putc(&out, '}');
    pulse_clear(&engine->pulse, now);
    *n = out.len;
    return buf_take(&out);
}

void engine_log_rates(struct engine *engine, int64_t now)
{
    const struct world *w = &engine->world;
    const uint64_t *c = engine->metrics.counters;
    if (now - engine->rates.since_ns < 10000000000)
        return;
    double s = (double)(now - engine->rates.since_ns) * 1e-9;
    uint64_t prompt = c[C_PROMPT_TOKENS] - engine->rates.prompt_tokens,
             gen = c[C_GENERATION_TOKENS] - engine->rates.generation_tokens;
    if (!engine->setup.quiet && !engine->setup.quiet_stats && (prompt || gen || w->requests.n_live))
        log_info("engine",
                 "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: "
                 "%d reqs, "
                 "Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
                 (double)prompt / s, (double)gen / s, w->running.n - w->n_probes_running,
                 w->waiting.n - w->n_probes_waiting, kv_usage(w) * 100,
                 c[C_PREFIX_QUERIES] ? 100.0 * (double)c[C_PREFIX_HITS] / (double)c[C_PREFIX_QUERIES] : 0.0);
    engine->rates = (struct rates){
        .since_ns = now, .prompt_tokens = c[C_PROMPT_TOKENS], .generation_tokens = c[C_GENERATION_TOKENS]};
}

int engine_put_story(const struct engine *engine, const char *id, int n, struct buf *out)
{
    const struct stories *s = &engine->stories;
    if (!s->keep) {
        buf_puts(out, "no stories of requests are kept: --request-history is 0");
        return E_UNSUPPORTED;
    }
    if (!id) {
        stories_put_slowest(s, &engine->world, n, engine->now_ns, out);
        return 0;
    }
    if (stories_put_id(s, &engine->world, id, engine->now_ns, out))
        return 0;
    buf_printf(out,
               "no request is known by that id: the last %d that ended are kept (--request-history), and those that "
               "were turned away are not",
               s->keep);
    return E_NOTFOUND;
}

int engine_put_decisions(const struct engine *engine, const struct decisions_ask *ask, struct buf *out)
{
    if (!engine->decisions.cap) {
        buf_puts(out, "no decisions are logged: --decision-log-memory is 0");
        return E_UNSUPPORTED;
    }
    decisions_put(&engine->decisions, ask, &engine->stories, &engine->world, engine->started_ns, out);
    return 0;
}
