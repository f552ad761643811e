#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/lab/simulate_inner.h"

enum { LEAST_COLUMN = 12 };

/* ---- the table: a row of numbers for each fact, a column for each policy */

size_t simulate_column_width(const struct simulate_run *run)
{
    size_t n = strlen(run->label);
    return (n < LEAST_COLUMN ? LEAST_COLUMN : n) + 2;
}

typedef void (*cell_fn)(const struct simulate_run *run, int detail, char *cell);

static void put_row(const struct simulate_report *r, struct buf *out, const char *name, cell_fn fn, int detail)
{
    char cell[CELL_BYTES];
    buf_printf(out, "%-*s", NAME_COLUMN, name);
    for (int i = 0; i < r->n_runs; i++) {
        fn(&r->runs[i], detail, cell);
        buf_printf(out, "%*s", (int)simulate_column_width(&r->runs[i]), cell);
    }
    buf_putc(out, '\n');
}

void simulate_cell_timed(const struct simulate_run *run, char *cell, double v, int digits)
{
    bool marked = sim_outside_share(run->outside) >= SIM_OUTSIDE_MARK ||
                  what_if_guessed_share(&run->recorded.what_if) >= SIM_OUTSIDE_MARK;
    snprintf(cell, CELL_BYTES, "%s%.*f", marked ? "~" : "", digits, v);
}

enum count {
    N_REQUESTS,
    N_FINISHED,
    N_REFUSED,
    N_FAILED,
    N_UNFINISHED,
    N_SWITCHES,
    N_PREEMPTIONS,
    N_STEPS,
    N_DECISIONS,
    N_DRAFTED,
    N_DRAFTS_RIGHT,
    N_HOLDS
};

/* Times that the policy began to hold a request. */
static uint64_t count_holds(const struct simulate_run *run)
{
    const struct holds *h = &run->replay.holds;
    uint64_t n = h->items[HOLD_REASONS].times;
    for (int i = 0; i < h->n; i++)
        n += h->items[i].times;
    return n;
}

static void cell_count(const struct simulate_run *run, int detail, char *cell)
{
    const struct tally *t = &run->tally;
    const uint64_t *c = run->replay.counters;
    const uint64_t values[] = {[N_REQUESTS] = t->n_requests,
                               [N_FINISHED] = t->n_finished,
                               [N_REFUSED] = t->n_refused,
                               [N_FAILED] = t->n_failed,
                               [N_UNFINISHED] = t->n_unfinished,
                               [N_SWITCHES] = c[C_SWITCHES],
                               [N_PREEMPTIONS] = c[C_PREEMPTIONS],
                               [N_STEPS] = c[C_STEPS],
                               [N_DECISIONS] = run->replay.n_decisions,
                               [N_DRAFTED] = c[C_DRAFT_TOKENS],
                               [N_DRAFTS_RIGHT] = c[C_DRAFT_ACCEPTED],
                               [N_HOLDS] = count_holds(run)};
    snprintf(cell, CELL_BYTES, "%llu", (unsigned long long)values[detail]);
}

/* detail: the latency * 1000 + the percentile */
static void cell_latency(const struct simulate_run *run, int detail, char *cell)
{
    int64_t ns = tally_percentile(&run->tally, (enum tally_latency)(detail / 1000), detail % 1000);
    if (ns < 0)
        snprintf(cell, CELL_BYTES, "-");
    else
        simulate_cell_timed(run, cell, (double)ns * 1e-6, 2);
}

enum rate { R_SECONDS, R_THROUGHPUT, R_OUTPUT, R_PEAK, R_REQUESTS, R_GOODPUT, R_GOOD_SHARE, R_KV, R_CACHED };

static void cell_rate(const struct simulate_run *run, int detail, char *cell)
{
    const struct tally *t = &run->tally;
    double finished = t->n_finished ? (double)t->n_finished : 1,
           prompts = t->n_prompt_tokens ? (double)t->n_prompt_tokens : 1;
    const double values[] = {[R_SECONDS] = t->seconds,
                             [R_THROUGHPUT] = t->throughput,
                             [R_OUTPUT] = t->output_throughput,
                             [R_PEAK] = t->peak_throughput,
                             [R_REQUESTS] = t->requests_per_s,
                             [R_GOODPUT] = t->goodput,
                             [R_GOOD_SHARE] = 100 * (double)t->n_good / finished,
                             [R_KV] = 100 * run->replay.kv_high,
                             [R_CACHED] = 100 * (double)t->n_cached_tokens / prompts};
    static const int digits[] = {[R_SECONDS] = 3, [R_THROUGHPUT] = 1, [R_OUTPUT] = 1, [R_PEAK] = 1,  [R_REQUESTS] = 3,
                                 [R_GOODPUT] = 3, [R_GOOD_SHARE] = 1, [R_KV] = 1,     [R_CACHED] = 1};
    simulate_cell_timed(run, cell, values[detail], digits[detail]);
}

/* Where decisions are compared, draft tokens are those of the recording. */
static void put_drafts(const struct simulate_report *r, struct buf *out)
{
    int n = 0;
    for (int i = 0; i < r->n_runs; i++)
        n += r->runs[i].recorded.compared;
    if (r->setup->drafts)
        buf_printf(out, "Drafts   %s%s%s\n", n ? "as recorded" : "",
                   n && n < r->n_runs ? " where decisions are compared, else " : "",
                   n < r->n_runs ? r->setup->drafts : "");
}

static void put_head(const struct simulate_report *r, struct buf *out)
{
    const struct replay *p = &r->runs[0].replay;
    const struct limits *l = &p->limits;
    const struct simulate_ask *o = r->setup->ask;
    buf_printf(out, "Trace    %s, seed %llu\n", r->trace, (unsigned long long)o->seed);
    buf_puts(out, "Machine  ");
    if (p->n_nodes > 1)
        buf_printf(out, "%d nodes behind a router, %s; each ", p->n_nodes, router_word(o->router));
    buf_printf(out, "%s; %d rank%s, %d KV blocks of %d tokens on each\n", r->setup->machine, p->n_ranks,
               p->n_ranks == 1 ? "" : "s", p->kv_blocks, p->tokens_per_block);
    put_drafts(r, out);
    if (r->bands)
        buf_printf(out, "Samples  %s\n", r->bands->words.data);
    buf_printf(out, "Limits   max-num-seqs %d, max-num-batched-tokens %d, max-model-len %d, prefix caching %s\n\n",
               l->max_num_seqs, l->max_num_batched_tokens, l->max_model_len, l->prefix_caching ? "on" : "off");
}

static void put_latencies(const struct simulate_report *r, struct buf *out)
{
    static const char *const names[] = {"TTFT", "TPOT", "queue", "completion"};
    static const int percents[] = {50, 90, 99};
    char name[CELL_BYTES];
    for (int l = 0; l < TALLY_COUNT; l++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%s p%d (ms)", names[l], percents[k]);
            put_row(r, out, name, cell_latency, l * 1000 + percents[k]);
        }
}

static struct json *state_of(const struct replay *p, int node)
{
    return p->states[node] ? json_parse(p->states[node], strlen(p->states[node]), NULL, NULL) : NULL;
}

/* What went wrong with a policy on one of the nodes. */
static void put_policy_notes(const struct simulate_run *run, int node, struct buf *out)
{
    const struct replay *p = &run->replay;
    struct json *state = state_of(p, node);
    const struct json *policy = json_find(state, "policy"), *by = json_find(policy, "fallback_steps");
    char where[32] = "";
    double n = 0;
    if (p->n_nodes > 1)
        snprintf(where, sizeof where, ", node %d", node);
    for (const struct json *j = json_first(by); j; j = json_next(j))
        n += json_number(j);
    if (n > 0)
        buf_printf(out, "%s%s: the native policy decided %.0f of %llu scheduling points in its place; last: %.200s\n",
                   run->label, where, n, (unsigned long long)p->n_decisions,
                   json_text(json_find(policy, "last_error")));
    if (json_member_number(policy, "withdrawn") > 0)
        buf_printf(out,
                   "%s%s: it was withdrawn for its strikes, as it would be in serve, and %s decided from then on%s\n",
                   run->label, where, json_text(json_find(json_find(policy, "active"), "name")),
                   json_member_number(by, "starved") > 0
                       ? " (--starvation-seconds sets how long a request may wait beside room)"
                       : "");
    json_free(state);
}

static const char *hold_words(const struct holds *h, int i)
{
    return i == HOLD_REASONS ? "other reasons" : h->items[i].why[0] ? h->items[i].why : "no reason given";
}

/* Why the policy held requests. */
static void put_holds(const struct simulate_run *run, struct buf *out)
{
    const struct holds *h = &run->replay.holds;
    const char *comma = "";
    if (!count_holds(run))
        return;
    buf_printf(out, "%s: held requests: ", run->label);
    for (int i = 0; i <= HOLD_REASONS; i++)
        if ((i < h->n || i == HOLD_REASONS) && h->items[i].times) {
            buf_printf(out, "%s%llu times (%s)", comma, (unsigned long long)h->items[i].times, hold_words(h, i));
            comma = ", ";
        }
    buf_putc(out, '\n');
}

/* Nothing where none was held. */
static void json_holds(struct buf *out, const struct simulate_run *run)
{
    const struct holds *h = &run->replay.holds;
    const char *comma = "";
    if (!count_holds(run))
        return;
    buf_puts(out, ",\"holds\":[");
    for (int i = 0; i <= HOLD_REASONS; i++)
        if ((i < h->n || i == HOLD_REASONS) && h->items[i].times) {
            const char *why = hold_words(h, i);
            buf_printf(out, "%s{\"reason\":", comma);
            buf_put_json(out, why, strlen(why));
            buf_printf(out, ",\"times\":%llu}", (unsigned long long)h->items[i].times);
            comma = ",";
        }
    buf_putc(out, ']');
}

/* How evenly the router shared the requests out. */
static void put_shares(const struct simulate_run *run, struct buf *out)
{
    const struct replay *p = &run->replay;
    uint64_t n[ROUTER_MAX_NODES] = {0}, least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < p->n_requests; i++)
        n[p->requests[i].node]++;
    for (int i = 0; i < p->n_nodes; i++) {
        least = n[i] < least ? n[i] : least;
        most = n[i] > most ? n[i] : most;
    }
    if (p->n_nodes > 1)
        buf_printf(out, "%s: a node got %llu to %llu requests\n", run->label, (unsigned long long)least,
                   (unsigned long long)most);
}

/* What went wrong with a policy, and what it was worth. */
static void put_notes(const struct simulate_report *r, struct buf *out)
{
    for (int i = 0; i < r->n_runs; i++) {
        const struct simulate_run *run = &r->runs[i];
        if (r->setup->recorded)
            recorded_words(r->setup->recorded, &run->recorded, run->label, out);
        for (int k = 0; k < run->replay.n_nodes; k++)
            put_policy_notes(run, k, out);
        put_holds(run, out);
        put_shares(run, out);
        if (sim_outside_share(run->outside) >= SIM_OUTSIDE_MARK) {
            buf_printf(out, "%s: ~ %.1f%% of the step time was priced outside of what was measured, by extrapolation: ",
                       run->label, 100 * sim_outside_share(run->outside));
            sim_outside_words(run->outside, out);
            buf_putc(out, '\n');
        }
        if (run->replay.stopped)
            buf_printf(out, "%s: stopped at %.1f s; %llu requests had not finished\n", run->label,
                       (double)run->replay.end_ns * 1e-9, (unsigned long long)run->tally.n_unfinished);
        else if (run->replay.n_live && !run->recorded.compared) /* a recording may end at any time */
            buf_printf(out, "%s: nothing more could happen at %.1f s, with %llu requests left\n", run->label,
                       (double)run->replay.end_ns * 1e-9, (unsigned long long)run->replay.n_live);
        if (!run->replay.conserved)
            buf_printf(out, "%s: the books do not add up at the end: this is a bug, please report it\n", run->label);
    }
}

static void cell_label(const struct simulate_run *run, int detail, char *cell)
{
    (void)detail;
    snprintf(cell, CELL_BYTES, "%.*s", CELL_BYTES - 1, run->label);
}

static bool any_holds(const struct simulate_report *r)
{
    bool any = false;
    for (int i = 0; i < r->n_runs; i++)
        any |= count_holds(&r->runs[i]) > 0;
    return any;
}

static void put_rows(const struct simulate_report *r, struct buf *out)
{
    const struct simulate_ask *o = r->setup->ask;
    put_row(r, out, "", cell_label, 0);
    put_row(r, out, "requests", cell_count, N_REQUESTS);
    put_row(r, out, "  finished", cell_count, N_FINISHED);
    put_row(r, out, "  refused", cell_count, N_REFUSED);
    put_row(r, out, "  failed", cell_count, N_FAILED);
    put_row(r, out, "duration (s)", cell_rate, R_SECONDS);
    put_latencies(r, out);
    put_row(r, out, "throughput (tokens/s)", cell_rate, R_THROUGHPUT);
    put_row(r, out, "  output (tokens/s)", cell_rate, R_OUTPUT);
    put_row(r, out, "  peak of 10 s (tokens/s)", cell_rate, R_PEAK);
    put_row(r, out, "requests/s", cell_rate, R_REQUESTS);
    if (o->slo_ttft_ms > 0 || o->slo_tpot_ms > 0) {
        put_row(r, out, "goodput (requests/s)", cell_rate, R_GOODPUT);
        put_row(r, out, "  of finished (%)", cell_rate, R_GOOD_SHARE);
    }
    put_row(r, out, "switches", cell_count, N_SWITCHES);
    put_row(r, out, "preemptions", cell_count, N_PREEMPTIONS);
    put_row(r, out, "KV high water (%)", cell_rate, R_KV);
    put_row(r, out, "prompt cached (%)", cell_rate, R_CACHED);
    put_row(r, out, "steps", cell_count, N_STEPS);
    if (r->setup->engine->drafts) {
        put_row(r, out, "draft tokens", cell_count, N_DRAFTED);
        put_row(r, out, "  of them right", cell_count, N_DRAFTS_RIGHT);
    }
    if (any_holds(r))
        put_row(r, out, "held by the policy", cell_count, N_HOLDS);
    simulate_tenants_table(r, out);
}

void simulate_table(const struct simulate_report *r, struct buf *out)
{
    put_head(r, out);
    if (r->bands)
        bands_table(r->bands, out);
    else
        put_rows(r, out);
    struct buf notes = {0};
    put_notes(r, &notes);
    if (notes.len)
        buf_printf(out, "\n%s", notes.data);
    buf_free(&notes);
}

/* ---- JSON */

void simulate_json_latency(struct buf *out, const struct tally *t, enum tally_latency l)
{
    static const int percents[] = {50, 90, 95, 99};
    buf_printf(out, ",\"%s_ms\":{\"n\":%zu", tally_name(l), t->n[l]);
    if (t->n[l]) {
        char key[16];
        json_put_member_double(out, "mean", (double)tally_mean(t, l) * 1e-6);
        for (int k = 0; k < 4; k++) {
            snprintf(key, sizeof key, "p%d", percents[k]);
            json_put_member_double(out, key, (double)tally_percentile(t, l, percents[k]) * 1e-6);
        }
        json_put_member_double(out, "max", (double)tally_percentile(t, l, 100) * 1e-6);
        buf_puts(out, ",\"percentiles\":[");
        for (int p = 1; p <= 100; p++) {
            buf_puts(out, p > 1 ? "," : "");
            json_put_double(out, (double)tally_percentile(t, l, p) * 1e-6);
        }
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void json_ranks(struct buf *out, uint64_t mask)
{
    const char *comma = "";
    buf_puts(out, "\"ranks\":[");
    for (int i = 0; i < MAX_RANKS; i++)
        if (mask >> i & 1) {
            buf_printf(out, "%s%d", comma, i);
            comma = ",";
        }
    buf_putc(out, ']');
}

static void json_layouts(struct buf *out, const struct replay *p)
{
    buf_puts(out, ",\"layouts\":[");
    for (int i = 0; i < p->n_layouts; i++) {
        const struct replay_layout *l = &p->layouts[i];
        buf_puts(out, i ? ",{" : "{");
        json_ranks(out, l->ranks);
        buf_printf(out, ",\"sp\":%d,\"tp\":%d,\"pp\":%d,\"steps\":%llu,\"tokens\":%llu", l->layout.sp, l->layout.tp,
                   l->layout.pp, (unsigned long long)l->n_steps, (unsigned long long)l->n_tokens);
        json_put_member_double(out, "busy_s", (double)l->busy_ns * 1e-9);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"switches\":[");
    for (size_t i = 0; i < p->n_kept_switches; i++) {
        const struct replay_switch *s = &p->switches[i];
        buf_printf(out, "%s{\"kind\":\"%s\",", i ? "," : "", s->failure ? "failure" : s->release ? "release" : "bind");
        json_ranks(out, s->ranks);
        json_put_member_double(out, "at_s", (double)s->at_ns * 1e-9);
        json_put_member_double(out, "wait_s", (double)s->wait_ns * 1e-9);
        buf_printf(out, ",\"kept\":%d,\"moved\":%d,\"parked\":%d,\"recomputed\":%d,", s->n_kept, s->n_moved,
                   s->n_parked, s->n_recomputed);
        json_put_member(out, "reason", s->reason);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

/* Columns of equal length: row i is the time from i * bin_s on. */
static void json_series(struct buf *out, const struct simulate_run *run)
{
    static const char *const names[] = {"arrived", "ended",   "prefill_tokens", "output_tokens",
                                        "running", "waiting", "groups",         "layout"};
    const struct replay *p = &run->replay;
    buf_puts(out, ",\"series\":{\"bin_s\":");
    json_put_double(out, (double)p->bin_ns * 1e-9);
    for (int c = 0; c < 8; c++) {
        buf_printf(out, ",\"%s\":[", names[c]);
        for (size_t i = 0; i < p->n_bins; i++) {
            const struct replay_bin *b = &p->bins[i];
            const long long values[] = {(long long)b->n_arrived,
                                        (long long)b->n_ended,
                                        (long long)b->n_prefill_tokens,
                                        (long long)b->n_output_tokens,
                                        b->n_running,
                                        b->n_waiting,
                                        b->n_groups,
                                        b->layout};
            buf_printf(out, "%s%lld", i ? "," : "", values[c]);
        }
        buf_putc(out, ']');
    }
    for (int c = 0; c < 2; c++) {
        buf_puts(out, c ? ",\"throughput\":[" : ",\"kv_used\":[");
        for (size_t i = 0; i < p->n_bins; i++) {
            buf_puts(out, i ? "," : "");
            json_put_double(out, c ? run->tally.spread[i] / ((double)p->bin_ns * 1e-9) : p->bins[i].kv_used);
        }
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void json_mean(struct buf *out, double sum, uint64_t n)
{
    if (n)
        json_put_double(out, sum * 1e-6 / (double)n);
    else
        buf_puts(out, "null");
}

/* Of a recording: what those saw who came then, by the bins of the series; null: none came that finished. */
static void json_by_arrival(struct buf *out, const struct replay *p)
{
    struct tally_arrivals *bins = mem_new_array(p->n_bins + 1, sizeof *bins);
    tally_by_arrival(p, bins);
    for (int c = 0; c < 2; c++) {
        buf_puts(out, c ? "],\"tpot_ms\":[" : ",\"by_arrival\":{\"ttft_ms\":[");
        for (size_t i = 0; i < p->n_bins; i++) {
            buf_puts(out, i ? "," : "");
            json_mean(out, c ? bins[i].tpot_ns : bins[i].ttft_ns, c ? bins[i].n_tpot : bins[i].n);
        }
    }
    buf_puts(out, "],\"n\":[");
    for (size_t i = 0; i < p->n_bins; i++)
        buf_printf(out, "%s%llu", i ? "," : "", (unsigned long long)bins[i].n);
    buf_puts(out, "]}");
    mem_free(bins);
}

static void json_policy(struct buf *out, const struct replay *p)
{
    struct json *state = state_of(p, 0);
    const struct json *policy = json_find(state, "policy");
    if (policy) {
        buf_puts(out, ",\"policy\":");
        json_write(out, policy, NULL);
    }
    json_free(state);
}

enum { MAX_CLASSES = 8 };

/* The least priorities that occur, ascending; the most urgent is first. */
static int find_classes(const struct replay *p, int classes[MAX_CLASSES])
{
    int n = 0;
    for (size_t i = 0; i < p->n_requests; i++) {
        int v = p->requests[i].priority, at = 0;
        while (at < n && classes[at] < v)
            at++;
        if (at == MAX_CLASSES || (at < n && classes[at] == v))
            continue;
        n += n < MAX_CLASSES;
        memmove(classes + at + 1, classes + at, (size_t)(n - 1 - at) * sizeof *classes);
        classes[at] = v;
    }
    return n;
}

static void json_classes(struct buf *out, const struct simulate_run *run, struct tally_slo slo)
{
    int classes[MAX_CLASSES], n = find_classes(&run->replay, classes);
    buf_puts(out, ",\"classes\":[");
    for (int i = 0; i < n && n > 1; i++) {
        struct tally t;
        tally_make_class(&t, &run->replay, slo, classes[i]);
        buf_printf(out, "%s{\"priority\":%d,\"finished\":%llu,\"good\":%llu", i ? "," : "", classes[i],
                   (unsigned long long)t.n_finished, (unsigned long long)t.n_good);
        for (int l = 0; l < TALLY_COUNT; l++)
            simulate_json_latency(out, &t, (enum tally_latency)l);
        buf_putc(out, '}');
        tally_free(&t);
    }
    buf_putc(out, ']');
}

static void json_run(struct buf *out, const struct simulate_run *run, struct tally_slo slo,
                     const struct simulate_setup *setup)
{
    const struct recorded_machine *recorded = setup->recorded;
    const struct replay *p = &run->replay;
    const struct tally *t = &run->tally;
    const uint64_t *c = p->counters;
    buf_putc(out, '{');
    json_put_member(out, "label", run->label);
    buf_printf(out,
               ",\"sha256\":\"%s\",\"stopped\":%s,\"conserved\":%s,\"requests\":%llu,\"finished\":%llu,\"refused\":%"
               "llu,\"failed\":%llu,\"unfinished\":%llu",
               run->sha256, p->stopped ? "true" : "false", p->conserved ? "true" : "false",
               (unsigned long long)t->n_requests, (unsigned long long)t->n_finished, (unsigned long long)t->n_refused,
               (unsigned long long)t->n_failed, (unsigned long long)t->n_unfinished);
    buf_printf(out, ",\"prompt_tokens\":%llu,\"output_tokens\":%llu,\"cached_tokens\":%llu,\"good\":%llu",
               (unsigned long long)t->n_prompt_tokens, (unsigned long long)t->n_output_tokens,
               (unsigned long long)t->n_cached_tokens, (unsigned long long)t->n_good);
    json_put_member_double(out, "seconds", t->seconds);
    json_put_member_double(out, "throughput", t->throughput);
    json_put_member_double(out, "output_throughput", t->output_throughput);
    json_put_member_double(out, "peak_throughput", t->peak_throughput);
    json_put_member_double(out, "peak_output", t->peak_output);
    json_put_member_double(out, "requests_per_s", t->requests_per_s);
    json_put_member_double(out, "goodput", t->goodput);
    json_put_member_double(out, "kv_high_water", p->kv_high);
    for (int l = 0; l < TALLY_COUNT; l++)
        simulate_json_latency(out, t, (enum tally_latency)l);
    json_classes(out, run, slo);
    simulate_tenants_json(out, run, slo);
    json_holds(out, run);
    buf_printf(out,
               ",\"n_switches\":%llu,\"preemptions\":%llu,\"recomputed_tokens\":%llu,\"moved_bytes\":%llu,\"steps\":%"
               "llu,\"decisions\":%llu",
               (unsigned long long)c[C_SWITCHES], (unsigned long long)c[C_PREEMPTIONS],
               (unsigned long long)c[C_RECOMPUTED], (unsigned long long)c[C_MOVED_BYTES],
               (unsigned long long)c[C_STEPS], (unsigned long long)p->n_decisions);
    if (setup->engine->drafts)
        buf_printf(out, ",\"draft_tokens\":%llu,\"accepted_tokens\":%llu", (unsigned long long)c[C_DRAFT_TOKENS],
                   (unsigned long long)c[C_DRAFT_ACCEPTED]);
    if (setup->engine->ffn)
        buf_printf(out, ",\"cas_steps\":%llu", (unsigned long long)p->n_cas_steps);
    json_layouts(out, p);
    json_series(out, run);
    if (recorded)
        json_by_arrival(out, p);
    json_policy(out, p);
    if (run->outside) {
        buf_puts(out, ",\"outside\":");
        sim_outside_json(run->outside, out);
    }
    if (recorded) {
        buf_puts(out, ",\"recording\":");
        recorded_json(recorded, &run->recorded, out);
    }
    buf_putc(out, '}');
}

void simulate_json(const struct simulate_report *r, struct buf *out)
{
    const struct simulate_ask *o = r->setup->ask;
    const struct replay *p = &r->runs[0].replay;
    const struct limits *l = &p->limits;
    buf_puts(out, "{\"format\":\"moonshift-simulation-1\",");
    json_put_member(out, "trace", r->trace);
    buf_putc(out, ',');
    json_put_member(out, "machine", r->setup->machine);
    if (r->setup->drafts) {
        buf_putc(out, ',');
        json_put_member(out, "drafts", r->setup->drafts);
    }
    buf_printf(out, ",\"seed\":%llu,\"max_requests\":%lld", (unsigned long long)o->seed, (long long)o->requests);
    if (o->from_s > 0)
        json_put_member_double(out, "from_seconds", o->from_s);
    if (o->rate > 0)
        json_put_member_double(out, "rate", o->rate);
    if (o->nodes > 1) {
        buf_printf(out, ",\"nodes\":%lld,", (long long)o->nodes);
        json_put_member(out, "router", router_word(o->router));
    }
    json_put_member_double(out, "max_seconds", o->seconds);
    json_put_member_double(out, "slo_ttft_ms", o->slo_ttft_ms);
    json_put_member_double(out, "slo_tpot_ms", o->slo_tpot_ms);
    buf_printf(out,
               ",\"ranks\":%d,\"kv_blocks\":%d,\"tokens_per_block\":%d,\"kv_bytes\":%zu,\"limits\":{\"max_num_seqs\":%"
               "d,\"max_num_batched_tokens\":%d,"
               "\"max_model_len\":%d,\"max_num_queued_reqs\":%d,\"max_num_queued_tokens\":%lld,\"prefix_caching\":%s},"
               "\"runs\":[",
               p->n_ranks, p->kv_blocks, p->tokens_per_block, p->kv_bytes, l->max_num_seqs, l->max_num_batched_tokens,
               l->max_model_len, l->max_num_queued_reqs, (long long)l->max_num_queued_tokens,
               l->prefix_caching ? "true" : "false");
    for (int i = 0; i < r->n_runs; i++) {
        buf_puts(out, i ? "," : "");
        json_run(out, &r->runs[i], (struct tally_slo){o->slo_ttft_ms, o->slo_tpot_ms}, r->setup);
    }
    buf_putc(out, ']');
    if (r->bands) {
        buf_puts(out, ",\"bands\":");
        bands_json(r->bands, out);
    }
    buf_puts(out, "}\n");
}
