/* What the guards say. Each asks whether something is next to impossible as chance. Requests that are late come in
 * crowds: one burst makes hundreds of them. So what is counted is not requests but stretches of time, long enough that
 * what happens in one says little about the next, and in which most requests are late. What a burst brings is judged
 * against the bursts of before: the queue that any span of time can leave behind depends on the work that came in its
 * busiest seconds, at every scale. If the busiest 2, 4, 8, 16 and 30 spans after the swap brought no more than those
 * before it, the longest queue is no longer for the load's sake. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/guard_stats.h"
#include "engine/probation.h"

static const double ALPHA = 1e-8;       /* asked in every span of each of some 40 keys */
static const double LEAST_CHANCE = 0.1; /* what was never seen before may yet be as likely as that */
static const double LATE_SHARE = 0.3, SLOW = 0.6, UNSLOWED = 0.85, TIMES = 2;
static const double LOAD_SLACK = 1.1, LOAD_SLACK_WIDE = 2, LOAD_SLACK_MEANS = 1.5, OUTPUT_SLACK = 1.25;
static const double FLOOR_S[GUARD_KINDS] = {0.05, 0.005, 0.05}; /* nobody minds less than that */
static const int SCALES[LOAD_SCALES] = {2, 4, 8, 16, GUARD_WINDOW};
enum { LEAST_SPANS = 10, MOST_OF_STRETCH = 3, MAX_PENDING = 1024, LEAST_OVERTAKEN = 10 };

const char *guard_name(enum guard g)
{
    static const char *const names[] = {"starvation", "throughput", "preemptions", "refusals", "ttft", "tpot"};
    return names[g];
}

/* ---- the load */

static void measure_load(const struct guards *g, int key, int64_t from, int64_t to, struct load *l)
{
    *l = (struct load){.n_spans = (int)(to - from)};
    for (int s = 0; s < LOAD_SCALES; s++) {
        double requests = 0, tokens = 0;
        for (int64_t i = from; i < to; i++) {
            requests += guards_arrivals(g, key, i)->requests;
            tokens += (double)guards_arrivals(g, key, i)->tokens;
            if (i - from >= SCALES[s]) {
                requests -= guards_arrivals(g, key, i - SCALES[s])->requests;
                tokens -= (double)guards_arrivals(g, key, i - SCALES[s])->tokens;
            }
            l->requests[s] = requests > l->requests[s] ? requests : l->requests[s];
            l->tokens[s] = tokens > l->tokens[s] ? tokens : l->tokens[s];
        }
    }
    for (int64_t i = from; i < to; i++)
        l->output_rate += (double)guards_span(g, i)->output_tokens / (double)(to - from);
}

/* May the load be why it is worse? One request more is nothing. */
static bool is_busier(const struct load *now, const struct load *before, double slack)
{
    double whole = before->requests[LOAD_SCALES - 1], one = whole ? before->tokens[LOAD_SCALES - 1] / whole : 0;
    for (int s = 0; s < LOAD_SCALES; s++)
        if (now->requests[s] > slack * before->requests[s] + 1 || now->tokens[s] > slack * before->tokens[s] + one)
            return true;
    return now->output_rate > (slack > OUTPUT_SLACK ? slack : OUTPUT_SLACK) * before->output_rate + 1;
}

/* ---- before the swap */

struct look {
    struct probation *p;
    const struct guards *g;
    const struct world *w;
    int64_t now_ns, from, to; /* spans that are judged */
    struct load load;         /* of all requests in them */
    struct guard_pending {
        int64_t arrival_ns;
        int class, tenant;
    } pending[MAX_PENDING]; /* requests without a first token */
    int n_pending;
    bool overrun;
};

struct stretches {
    int n, n_late, n_requests, n_requests_late;
    bool still; /* two of the last three are late */
};

/* Stretches of k spans each from span `from` on, by when requests came. */
struct counts {
    int all[GUARD_SPANS], late[GUARD_SPANS];
};

static void count_sample(const struct guards *g, struct counts *c, int64_t from, int k, struct guard_sample s,
                         float late)
{
    int64_t at = (guards_span_of(g, s.arrival_ns) - from) / k;
    if (at < 0 || at >= GUARD_SPANS)
        return;
    c->all[at]++;
    c->late[at] += s.seconds > late;
}

static struct stretches sum_counts(const struct counts *c)
{
    struct stretches s = {0};
    bool last[3] = {0};
    for (int i = 0; i < GUARD_SPANS; i++) {
        if (!c->all[i])
            continue;
        bool late = 2 * c->late[i] > c->all[i];
        last[s.n++ % 3] = late;
        s.n_late += late;
        s.n_requests += c->all[i];
        s.n_requests_late += c->late[i];
    }
    s.still = last[0] + last[1] + last[2] >= 2;
    return s;
}

static int samples_of(const struct guard_series *s)
{
    return s->n < GUARD_SAMPLES ? (int)s->n : GUARD_SAMPLES;
}

static double chance_of(int n_late, int n)
{
    double p = (n_late + 1.0) / (n + 2.0);
    return p > LEAST_CHANCE ? p : LEAST_CHANCE;
}

/* One kind of one key: what is late, and how often most requests of a stretch were. */
static void sum_up_kind(const struct guards *g, int key, enum guard_kind kind, int64_t from, struct guard_before *b)
{
    const struct guard_series *s = &g->keys[key].series[kind];
    float values[GUARD_SAMPLES];
    int n = 0;
    for (int i = 0; i < samples_of(s); i++)
        if (guards_span_of(g, s->items[i].arrival_ns) >= from)
            values[n++] = s->items[i].seconds;
    b->n[kind] = n;
    if (!n)
        return;
    double p90 = stats_quantile(values, n, 0.9), p99 = stats_quantile(values, n, 0.99), late = TIMES * p90;
    late = late > p99 ? late : p99;
    late = late > p90 + FLOOR_S[kind] ? late : p90 + FLOOR_S[kind];
    b->p90[kind] = (float)p90;
    b->late[kind] = (float)late;
    b->spans[kind] = 1 + (int)fmin(late * 1e9 / (double)g->span_ns / 2, GUARD_WINDOW);
    if (kind == GUARD_QUEUE)
        b->queue_p99 = (float)p99;
    struct counts c = {0};
    for (int i = 0; i < samples_of(s); i++)
        count_sample(g, &c, from, b->spans[kind], s->items[i], b->late[kind]);
    struct stretches before = sum_counts(&c);
    b->chance[kind] = chance_of(before.n_late, before.n);
}

static void sum_up_flows(struct probation *p, int64_t from, int64_t to)
{
    const struct guards *g = p->guards;
    struct flows_before *f = &p->flows;
    double n = to > from ? (double)(to - from) : 1, waiting = 0;
    *f = (struct flows_before){0};
    for (int64_t i = from; i < to; i++) {
        const struct guard_span *s = guards_span(g, i);
        f->prompt_tokens += (double)s->prompt_tokens / n;
        f->output_tokens += (double)s->output_tokens / n;
        f->n_steps += s->n_steps / n;
        f->n_preempted += s->n_preempted / n;
        f->recomputed_tokens += (double)s->recomputed_tokens / n;
        f->n_arrived += guards_arrivals(g, GUARD_ALL, i)->requests / n;
        f->n_refused += s->n_refused / n;
        waiting += s->n_waiting / n;
    }
    p->usual_waiting = waiting;
    p->busy_tokens = (uint64_t)f->prompt_tokens + 1;
}

struct flow_sums {
    double prompt, output;
    int n, n_slow; /* stretches */
};

/* Stretches of k spans in which more waited than a span's work, and little was served. */
static struct flow_sums sum_flows(const struct probation *p, int64_t from, int64_t to, int k)
{
    struct flow_sums out = {0};
    for (int64_t i = from; i + k <= to; i += k) {
        double prompt = 0, output = 0;
        bool full = true;
        for (int j = 0; j < k; j++) {
            const struct guard_span *s = guards_span(p->guards, i + j);
            prompt += (double)s->prompt_tokens;
            output += (double)s->output_tokens;
            full &= s->waiting_tokens >= p->busy_tokens;
        }
        out.prompt += prompt;
        out.output += output;
        out.n++;
        out.n_slow += full && prompt < SLOW * k * p->flows.prompt_tokens && output < SLOW * k * p->flows.output_tokens;
    }
    return out;
}

static int64_t window_before(int64_t span)
{
    return span > GUARD_WINDOW ? span - GUARD_WINDOW : 0;
}

void probation_sum_flows(struct probation *p)
{
    int64_t to = p->guards->open, from = window_before(to);
    sum_up_flows(p, from, to);
    for (p->flows.stretch = 1; p->flows.stretch <= MOST_OF_STRETCH && p->flows.n_steps * p->flows.stretch < 5;)
        p->flows.stretch++;
    struct flow_sums then = sum_flows(p, from, to, p->flows.stretch);
    p->flows.slow_chance = chance_of(then.n_slow, then.n);
}

void probation_sum_up(struct probation *p)
{
    const struct guards *g = p->guards;
    int64_t to = p->first_span - 1, from = window_before(to);
    for (int i = 0; i < GUARD_KEYS; i++) {
        struct guard_before *b = &p->before[i];
        *b = (struct guard_before){.serial = g->keys[i].serial};
        for (int k = 0; k < GUARD_KINDS; k++)
            sum_up_kind(g, i, (enum guard_kind)k, from, b);
        measure_load(g, i, from, to, &b->load);
    }
}

/* ---- requests that are late */

static bool is_of(const struct guard_pending *q, int key)
{
    return key == GUARD_ALL || q->class == key || q->tenant == key;
}

static struct stretches count_late(const struct look *l, int key, enum guard_kind kind, int64_t from)
{
    const struct guard_before *b = &l->p->before[key];
    const struct guard_series *s = &l->g->keys[key].series[kind];
    struct counts c = {0};
    for (int i = 0; i < samples_of(s); i++)
        if (s->items[i].arrival_ns >= l->p->settled_ns)
            count_sample(l->g, &c, from, b->spans[kind], s->items[i], b->late[kind]);
    for (int i = 0; kind == GUARD_TTFT && i < l->n_pending; i++) { /* it will take longer than it has waited */
        struct guard_sample waits = {l->pending[i].arrival_ns,
                                     (float)((double)(l->now_ns - l->pending[i].arrival_ns) * 1e-9)};
        if (is_of(&l->pending[i], key) && waits.seconds > b->late[kind] && waits.arrival_ns >= l->p->settled_ns)
            count_sample(l->g, &c, from, b->spans[kind], waits, b->late[kind]);
    }
    return sum_counts(&c);
}

/* Does more wait all the time than there is time for, and is no less served than before? Then a queue that grows says
 * nothing about the policy. */
static bool is_overrun(const struct look *l)
{
    double prompt = 0, output = 0;
    int n_full = 0, n = (int)(l->to - l->from);
    for (int64_t i = l->from; i < l->to; i++) {
        const struct guard_span *s = guards_span(l->g, i);
        prompt += (double)s->prompt_tokens;
        output += (double)s->output_tokens;
        n_full += s->waiting_tokens >= l->p->busy_tokens;
    }
    return 2 * n_full > n && prompt > UNSLOWED * l->p->flows.prompt_tokens * n &&
           output > UNSLOWED * l->p->flows.output_tokens * n;
}

/* Where means are compared, what comes in all counts, beyond what chance brings of so many requests, and single peaks
 * where they are much higher. */
static bool has_more(const struct load *a, const struct load *b)
{
    enum { ALL = LOAD_SCALES - 1 };
    double usual = b->requests[ALL] > 0 ? LOAD_SLACK + 2 / sqrt(b->requests[ALL]) : 0;
    double share = b->n_spans ? usual * a->n_spans / b->n_spans : 0;
    return a->requests[ALL] > share * b->requests[ALL] || a->tokens[ALL] > share * b->tokens[ALL] ||
           is_busier(a, b, LOAD_SLACK_MEANS);
}

static void note_load(struct look *l)
{
    const struct load *before = &l->p->before[GUARD_ALL].load;
    l->p->load.more = l->overrun || has_more(&l->load, before);
    l->p->load.less = l->load.n_spans >= before->n_spans && has_more(before, &l->load);
}

/* Says what is worse; the state if the load is no reason. */
static enum guard_state explain(struct look *l, int key, double slack, struct guard_report *out)
{
    struct load of_key;
    measure_load(l->g, key, l->from, l->to, &of_key);
    bool busier =
        is_busier(&l->load, &l->p->before[GUARD_ALL].load, slack) || is_busier(&of_key, &l->p->before[key].load, slack);
    size_t n = strlen(out->words);
    bool overrun = l->overrun && slack == LOAD_SLACK;
    if (busier || overrun)
        snprintf(out->words + n, sizeof out->words - n, "; %s, which may be why",
                 busier ? "more comes than before"
                        : "more waits all the time than is served, and no less than before is");
    return busier || overrun ? GUARD_WAITS : GUARD_TRIPPED;
}

static enum guard_state judge_late(struct look *l, int key, enum guard_kind kind, struct guard_report *out)
{
    const struct guard_before *b = &l->p->before[key];
    int64_t settled = l->p->settled_ns ? guards_span_of(l->g, l->p->settled_ns) : INT64_MAX;
    int64_t from = l->from > settled ? l->from : settled;
    char who[NAME_BYTES + 16];
    if (!b->serial || b->serial != l->g->keys[key].serial || b->n[kind] < PROBATION_LEAST_REQUESTS ||
        b->load.n_spans < LEAST_SPANS || b->spans[kind] > MOST_OF_STRETCH)
        return GUARD_UNKNOWN;
    if (from == INT64_MAX)
        return GUARD_CALM;
    struct stretches s = count_late(l, key, kind, from);
    if (s.n_requests_late < LEAST_OVERTAKEN || s.n_requests_late < LATE_SHARE * s.n_requests || !s.still ||
        stats_binomial_tail(s.n, b->chance[kind], s.n_late) > ALPHA)
        return GUARD_CALM;
    guards_key_words(l->g, key, who, sizeof who);
    snprintf(
        out->words, sizeof out->words,
        "%s of %s: %.0f%% of %d took longer than %.3g s, most of them in %d of %d stretches of %.3g s; before, 90%% "
        "took at most %.3g s",
        guards_kind_name(kind), who, 100.0 * s.n_requests_late / s.n_requests, s.n_requests, b->late[kind], s.n_late,
        s.n, (double)l->g->span_ns * 1e-9 * b->spans[kind], b->p90[kind]);
    return explain(l, key, LOAD_SLACK, out);
}

/* The worst of all keys; for all requests it is said first. Known when it is known of all requests. */
static void look_at_late(struct look *l, enum guard_kind kind, struct guard_report *out)
{
    *out = (struct guard_report){0};
    for (int key = 0; key < GUARD_KEYS && out->state != GUARD_TRIPPED; key++) {
        struct guard_report r = {0};
        r.state = judge_late(l, key, kind, &r);
        if (r.state > out->state && (key == GUARD_ALL || r.state != GUARD_UNKNOWN))
            *out = r;
    }
}

/* ---- flows */

static void look_at_throughput(struct look *l, struct guard_report *out)
{
    const struct flows_before *f = &l->p->flows;
    const struct load *before = &l->p->before[GUARD_ALL].load;
    int k = f->stretch;
    *out = (struct guard_report){0};
    if (before->n_spans < LEAST_SPANS || f->prompt_tokens < 1 || f->output_tokens < 1 || k > MOST_OF_STRETCH) {
        out->state = GUARD_UNKNOWN;
        return;
    }
    struct flow_sums now = sum_flows(l->p, l->from, l->to, k);
    double spans = (double)now.n * k, prompt = now.prompt / spans, output = now.output / spans;
    if (now.n * k < LEAST_SPANS || prompt > SLOW * f->prompt_tokens || output > SLOW * f->output_tokens ||
        stats_binomial_tail(now.n, f->slow_chance, now.n_slow) > ALPHA)
        return;
    double s = (double)l->g->span_ns * 1e-9;
    snprintf(out->words, sizeof out->words,
             "throughput: %.0f prompt and %.0f output tokens/s while more waited in %d of %d stretches of %.3g s; "
             "before, %.0f and %.0f",
             prompt / s, output / s, now.n_slow, now.n, s * k, f->prompt_tokens / s, f->output_tokens / s);
    out->state = explain(l, GUARD_ALL, LOAD_SLACK_WIDE, out);
}

/* What is counted in single spans: how many they are, and in how many of them it happened. */
static void look_at_preemptions(struct look *l, struct guard_report *out)
{
    const struct flows_before *f = &l->p->flows;
    double n = 0, preempted = 0, recomputed = 0, prompt = 0;
    int with = 0;
    *out = (struct guard_report){0};
    for (int64_t i = l->from; i < l->to; i++) {
        const struct guard_span *s = guards_span(l->g, i);
        n++;
        preempted += s->n_preempted;
        recomputed += (double)s->recomputed_tokens;
        prompt += (double)s->prompt_tokens;
        with += s->n_preempted > 0;
    }
    double chance = 1 - exp(-5 * f->n_preempted); /* that a span has one, were there five times as many as before */
    if (l->p->before[GUARD_ALL].load.n_spans < LEAST_SPANS)
        out->state = GUARD_UNKNOWN;
    if (out->state == GUARD_UNKNOWN || n < LEAST_SPANS || preempted < 5 * f->n_preempted * n + 10 ||
        recomputed < 5 * f->recomputed_tokens * n + 0.25 * prompt ||
        stats_binomial_tail((int)n, chance > LEAST_CHANCE ? chance : LEAST_CHANCE, with) > ALPHA)
        return;
    double s = (double)l->g->span_ns * 1e-9;
    snprintf(out->words, sizeof out->words,
             "preemptions: %.2g/s, and %.0f tokens/s computed again beside %.0f of new prompts; before, %.2g/s and "
             "%.0f",
             preempted / n / s, recomputed / n / s, prompt / n / s, f->n_preempted / s, f->recomputed_tokens / s);
    out->state = explain(l, GUARD_ALL, LOAD_SLACK, out);
}

static void look_at_refusals(struct look *l, struct guard_report *out)
{
    const struct flows_before *f = &l->p->flows;
    double arrived = 0, refused = 0, before = f->n_arrived > 0 ? f->n_refused / f->n_arrived : 0;
    int n = 0, with = 0;
    *out = (struct guard_report){0};
    for (int64_t i = l->from; i < l->to; i++) {
        uint32_t came = guards_arrivals(l->g, GUARD_ALL, i)->requests, no = guards_span(l->g, i)->n_refused;
        arrived += came;
        refused += no;
        n += came > 0;
        with += 3 * no > came;
    }
    if (arrived < PROBATION_LEAST_REQUESTS || f->n_arrived * GUARD_WINDOW < PROBATION_LEAST_REQUESTS)
        out->state = GUARD_UNKNOWN;
    if (out->state == GUARD_UNKNOWN || refused < (3 * before + LATE_SHARE) * arrived ||
        stats_binomial_tail(n, LEAST_CHANCE > 2 * before ? LEAST_CHANCE : 2 * before, with < n ? with : n) > ALPHA)
        return;
    snprintf(out->words, sizeof out->words, "refusals: the policy refused %.0f%% of %.0f requests; before, %.0f%%",
             100 * refused / arrived, arrived, 100 * before);
    out->state = explain(l, GUARD_ALL, LOAD_SLACK, out);
}

/* ---- starvation */

struct waiting_now {
    int64_t oldest_ns[GUARD_KEYS];
    int n_late[GUARD_KEYS]; /* have waited longer than they may */
    bool began[GUARD_KEYS]; /* one that runs has begun since the oldest came */
};

static double longest_wait_s(const struct look *l, int key)
{
    const struct guard_before *b = &l->p->before[key], *all = &l->p->before[GUARD_ALL];
    double p99 = b->n[GUARD_QUEUE] >= 8 && b->serial == l->g->keys[key].serial ? b->queue_p99 : all->queue_p99;
    double floor_s = 5 * (double)l->g->span_ns * 1e-9;
    return 10 * p99 > floor_s ? 10 * p99 : floor_s;
}

static int64_t waits_since(const struct look *l, int64_t arrival_ns)
{
    return arrival_ns > l->p->since_ns ? arrival_ns : l->p->since_ns;
}

static void count_waiting(struct look *l, struct waiting_now *n)
{
    const struct req_queue *q = &l->w->waiting;
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        if (r->parent || r->spec->offline || r->first_scheduled_ns)
            continue;
        int keys[] = {GUARD_CLASS + (int)guards_class(r->spec), guards_find_tenant(l->g, r->spec->tenant)};
        int64_t arrival = r->spec->arrival_ns;
        for (int k = 0; k < 2; k++) {
            if (keys[k] < 0)
                continue;
            int64_t *oldest = &n->oldest_ns[keys[k]];
            *oldest = !*oldest || arrival < *oldest ? arrival : *oldest;
            n->n_late[keys[k]] += (double)(l->now_ns - waits_since(l, arrival)) * 1e-9 > longest_wait_s(l, keys[k]);
        }
        if (l->n_pending < MAX_PENDING)
            l->pending[l->n_pending++] = (struct guard_pending){arrival, keys[0], keys[1]};
    }
}

static void count_running(struct look *l, struct waiting_now *n)
{
    const struct req_queue *q = &l->w->running;
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        int keys[] = {GUARD_CLASS + (int)guards_class(r->spec), guards_find_tenant(l->g, r->spec->tenant)};
        for (int k = 0; k < 2 && !r->parent; k++)
            if (keys[k] >= 0 && n->oldest_ns[keys[k]])
                n->began[keys[k]] |= r->first_scheduled_ns >= waits_since(l, n->oldest_ns[keys[k]]);
        if (!r->parent && !r->spec->offline && !r->first_token_ns && l->n_pending < MAX_PENDING)
            l->pending[l->n_pending++] = (struct guard_pending){r->spec->arrival_ns, keys[0], keys[1]};
    }
}

static void look_at_starvation(struct look *l, struct guard_report *out)
{
    struct probation *p = l->p;
    struct waiting_now n = {0};
    char who[NAME_BYTES + 16];
    *out = (struct guard_report){0};
    count_waiting(l, &n);
    count_running(l, &n);
    for (int key = GUARD_CLASS; key < GUARD_KEYS; key++) {
        if (n.oldest_ns[key] != p->oldest_ns[key])
            p->n_overtook[key] = 0;
        p->oldest_ns[key] = n.oldest_ns[key];
        int64_t since = waits_since(l, n.oldest_ns[key]);
        double waited = (double)(l->now_ns - since) * 1e-9, limit = longest_wait_s(l, key);
        bool none = !n.began[key] && l->g->keys[key].first_token_ns < since;
        if (!n.oldest_ns[key] || !none || p->n_overtook[key] < LEAST_OVERTAKEN || waited < limit ||
            (n.n_late[key] < 2 && waited < 3 * limit) || out->state == GUARD_TRIPPED)
            continue;
        guards_key_words(l->g, key, who, sizeof who);
        snprintf(out->words, sizeof out->words,
                 "starvation of %s: none has begun for %.3g s, %d wait longer than %.3g s, and %d that came later got "
                 "their first token",
                 who, waited, n.n_late[key], limit, p->n_overtook[key]);
        out->state = explain(l, key, LOAD_SLACK_WIDE, out);
    }
}

void probation_note_first_token(struct probation *p, const struct request *r)
{
    if (!p->on || r->parent)
        return;
    p->n_first_tokens++;
    if (r->spec->offline)
        return;
    int class = GUARD_CLASS + (int)guards_class(r->spec), tenant = guards_find_tenant(p->guards, r->spec->tenant);
    for (int key = GUARD_CLASS; key < GUARD_KEYS; key++)
        if (key != class && key != tenant && p->oldest_ns[key] && r->spec->arrival_ns > p->oldest_ns[key])
            p->n_overtook[key]++;
}

enum guard probation_look(struct probation *p, const struct world *w, int64_t now_ns)
{
    struct look l = {.p = p, .g = p->guards, .w = w, .now_ns = now_ns, .to = p->guards->open};
    l.from = l.to - GUARD_WINDOW > p->first_span ? l.to - GUARD_WINDOW : p->first_span;
    measure_load(l.g, GUARD_ALL, l.from, l.to, &l.load);
    l.overrun = is_overrun(&l);
    note_load(&l);
    look_at_starvation(&l, &p->reports[GUARD_STARVATION]); /* it also finds who has no first token yet */
    look_at_late(&l, GUARD_TTFT, &p->reports[GUARD_FIRST_TOKENS]);
    look_at_late(&l, GUARD_TPOT, &p->reports[GUARD_TOKEN_TIMES]);
    look_at_throughput(&l, &p->reports[GUARD_THROUGHPUT]);
    look_at_preemptions(&l, &p->reports[GUARD_PREEMPTIONS]);
    look_at_refusals(&l, &p->reports[GUARD_REFUSALS]);
    for (int i = 0; i < GUARD_COUNT; i++)
        if (p->reports[i].state == GUARD_TRIPPED)
            return (enum guard)i;
    return GUARD_COUNT;
}
