#include "engine/guards.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum { SHORTEST_SPAN_NS = 1000000 };

struct guards *guards_create(int64_t window_ns, int64_t start_ns)
{
    struct guards *g = mem_new(sizeof *g);
    *g = (struct guards){.start_ns = start_ns, .span_ns = window_ns / GUARD_WINDOW};
    if (g->span_ns < SHORTEST_SPAN_NS)
        g->span_ns = SHORTEST_SPAN_NS;
    for (int i = 0; i < GUARD_TENANT; i++)
        g->keys[i].serial = ++g->next_serial;
    return g;
}

void guards_free(struct guards *g)
{
    for (int i = 0; g && i < GUARD_KEYS; i++)
        for (int k = 0; k < GUARD_KINDS; k++)
            mem_free(g->keys[i].series[k].items);
    mem_free(g);
}

/* ---- spans */

static uint32_t counted(struct guards *g, const struct metrics *m, enum counter c)
{
    uint64_t n = m->counters[c] - g->counted[c];
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* Who has not begun, and is waited for by somebody. */
static void look_at_queue(struct guard_span *s, const struct world *w, int64_t end_ns)
{
    s->n_waiting = 0;
    s->waiting_tokens = 0;
    s->oldest_s = 0;
    for (int i = 0; i < w->waiting.n; i++) {
        const struct request *r = w->waiting.items[i];
        if (r->parent || r->spec->offline || r->first_scheduled_ns)
            continue;
        double age = (double)(end_ns - r->spec->arrival_ns) * 1e-9;
        s->n_waiting++;
        s->waiting_tokens += (uint64_t)r->spec->n_prompt;
        s->oldest_s = age > s->oldest_s ? age : s->oldest_s;
    }
}

static void end_span(struct guards *g, const struct world *w, struct verdict_counts calls)
{
    const struct metrics *m = w->metrics;
    struct guard_span s = g->now;
    s.n_ended = counted(g, m, C_STOP) + counted(g, m, C_LENGTH) + counted(g, m, C_ABORT);
    s.n_errors = counted(g, m, C_ERROR);
    s.n_refused = counted(g, m, C_REFUSED_POLICY);
    s.n_preempted = counted(g, m, C_PREEMPTIONS);
    s.n_steps = counted(g, m, C_STEPS);
    s.output_tokens = counted(g, m, C_GENERATION_TOKENS);
    s.recomputed_tokens = counted(g, m, C_RECOMPUTED);
    s.n_failed_calls = (uint32_t)(calls.failed - g->n_failed_calls);
    s.n_slow_calls = (uint32_t)(calls.slow - g->n_slow_calls);
    look_at_queue(&s, w, g->start_ns + (g->open + 1) * g->span_ns);
    g->spans[g->open % GUARD_SPANS] = s;
    g->open++;
    for (int i = 0; i < GUARD_KEYS; i++)
        g->keys[i].arrived[g->open % GUARD_SPANS] = (struct guard_arrivals){0};
    g->now = (struct guard_span){0};
    memcpy(g->counted, m->counters, sizeof g->counted);
    g->n_failed_calls = calls.failed;
    g->n_slow_calls = calls.slow;
}

void guards_roll(struct guards *g, const struct world *w, struct verdict_counts calls, int64_t now_ns)
{
    int64_t span = g ? guards_span_of(g, now_ns) : 0;
    if (!g || span <= g->open)
        return;
    end_span(g, w, calls);
    if (span - g->open > GUARD_SPANS) /* of a long silence the last spans are enough: all others are written anew */
        g->open = span - GUARD_SPANS;
    while (g->open < span)
        end_span(g, w, calls);
}

const struct guard_span *guards_span(const struct guards *g, int64_t i)
{
    ASSERT(i >= 0 && i < g->open && i >= g->open - GUARD_SPANS);
    return &g->spans[i % GUARD_SPANS];
}

/* ---- keys */

enum guard_class guards_class(const struct request_spec *s)
{
    if (s->offline)
        return CLASS_OFFLINE;
    return s->priority < 0 ? CLASS_PREMIUM : s->priority > 0 ? CLASS_LOW : CLASS_NORMAL;
}

int guards_find_tenant(const struct guards *g, const char *name)
{
    for (int i = GUARD_TENANT; i < GUARD_KEYS; i++)
        if (g->keys[i].serial && !strcmp(g->keys[i].name, name))
            return i;
    return -1;
}

/* A tenant without a place takes a free one, or that of the one that has been silent for longest, for a window at
 * least. -1: every place is in use; then it counts among all, and in its class. */
static int place_tenant(struct guards *g, const char *name)
{
    int found = guards_find_tenant(g, name), oldest = GUARD_TENANT;
    if (found >= 0)
        return found;
    for (int i = GUARD_TENANT; i < GUARD_KEYS; i++) {
        if (!g->keys[i].serial) {
            oldest = i;
            break;
        }
        if (g->keys[i].heard_span < g->keys[oldest].heard_span)
            oldest = i;
    }
    struct guard_key *k = &g->keys[oldest];
    if (k->serial && g->open - k->heard_span <= GUARD_WINDOW)
        return -1;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->serial = ++g->next_serial;
    k->first_token_ns = 0;
    memset(k->arrived, 0, sizeof k->arrived);
    for (int i = 0; i < GUARD_KINDS; i++) /* the memory stays */
        k->series[i] = (struct guard_series){.items = k->series[i].items};
    return oldest;
}

/* ---- samples */

static void keep(struct guards *g, int key, enum guard_kind kind, struct guard_sample sample)
{
    struct guard_series *s = &g->keys[key].series[kind];
    g->keys[key].heard_span = g->open;
    if (!s->items)
        s->items = mem_new_array(GUARD_SAMPLES, sizeof *s->items);
    if (!s->n || s->span != g->open) {
        s->span = g->open;
        s->n_kept = s->n_seen = 0;
    }
    s->n_seen++;
    if (s->n_kept < GUARD_A_SPAN) {
        s->items[s->n++ % GUARD_SAMPLES] = sample;
        s->n_kept++;
        return;
    }
    uint64_t at =
        rng_at(g->n_drawn++, (uint64_t)s->n_seen) % (uint64_t)s->n_seen; /* each has the same chance to stay */
    if (at < GUARD_A_SPAN)
        s->items[(s->n - 1 - at) % GUARD_SAMPLES] = sample;
}

static void sample(struct guards *g, const struct request *r, enum guard_kind kind, int64_t ns)
{
    struct guard_sample s = {r->spec->arrival_ns, (float)((double)ns * 1e-9)};
    keep(g, GUARD_CLASS + (int)guards_class(r->spec), kind, s);
    if (r->spec->offline) /* nobody waits for it: it says nothing of its tenant */
        return;
    int tenant = place_tenant(g, r->spec->tenant);
    keep(g, GUARD_ALL, kind, s);
    if (tenant >= 0)
        keep(g, tenant, kind, s);
}

static void count_arrival(struct guards *g, int key, const struct request_spec *s)
{
    struct guard_arrivals *a = &g->keys[key].arrived[g->open % GUARD_SPANS];
    g->keys[key].heard_span = g->open;
    a->requests++;
    a->tokens += (uint64_t)s->n_prompt;
}

void guards_arrived(struct guards *g, const struct request_spec *s)
{
    int tenant = g ? place_tenant(g, s->tenant) : -1;
    if (!g)
        return;
    count_arrival(g, GUARD_ALL, s);
    count_arrival(g, GUARD_CLASS + (int)guards_class(s), s);
    if (tenant >= 0)
        count_arrival(g, tenant, s);
}

void guards_progress(struct guards *g, const struct request *r, int furthest)
{
    int prompt = r->spec->n_prompt, now = r->n_furthest < prompt ? r->n_furthest : prompt;
    if (g && now > furthest)
        g->now.prompt_tokens += (uint64_t)(now - furthest);
}

void guards_first_token(struct guards *g, const struct request *r, int64_t now_ns)
{
    if (!g || r->parent)
        return;
    g->now.n_first_tokens++;
    g->now.ttft_s += (double)(now_ns - r->spec->arrival_ns) * 1e-9;
    sample(g, r, GUARD_TTFT, now_ns - r->spec->arrival_ns);
    sample(g, r, GUARD_QUEUE, r->first_scheduled_ns - r->spec->arrival_ns);
    int tenant = guards_find_tenant(g, r->spec->tenant);
    g->keys[GUARD_ALL].first_token_ns = g->keys[GUARD_CLASS + (int)guards_class(r->spec)].first_token_ns = now_ns;
    if (tenant >= 0)
        g->keys[tenant].first_token_ns = now_ns;
}

void guards_ended(struct guards *g, const struct request *r)
{
    int n = request_output(r);
    if (!g || r->parent || !r->first_token_ns || n < 2)
        return;
    int64_t tpot_ns = (r->last_token_ns - r->first_token_ns) / (n - 1);
    g->now.n_tpot++;
    g->now.tpot_s += (double)tpot_ns * 1e-9;
    sample(g, r, GUARD_TPOT, tpot_ns);
}

/* ---- words */

void guards_key_words(const struct guards *g, int key, char *out, size_t cap)
{
    static const char *const classes[] = {"premium requests", "normal requests", "low requests", "lines of batches"};
    if (key == GUARD_ALL)
        snprintf(out, cap, "all requests");
    else if (key < GUARD_TENANT)
        snprintf(out, cap, "%s", classes[key - GUARD_CLASS]);
    else if (!*g->keys[key].name)
        snprintf(out, cap, "the default tenant");
    else
        snprintf(out, cap, "tenant %s", g->keys[key].name);
}

const char *guards_kind_name(enum guard_kind k)
{
    static const char *const names[] = {"TTFT", "TPOT", "queue time"};
    return names[k];
}
