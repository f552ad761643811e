#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/simulate_inner.h"

enum { SHOWN_TENANTS = 8 }; /* in the table: those with the most tokens */

static const char *shown_name(const struct replay *p, int tenant)
{
    return p->tenants[tenant][0] ? p->tenants[tenant] : "default";
}

/* ---- the table */

struct shown {
    int tenant;
    uint64_t tokens; /* asked for */
};

/* Those of the first run, which has the requests of all, the ones with the most tokens first. */
static int find_shown(const struct replay *p, struct shown out[REPLAY_TENANTS])
{
    int n = p->n_tenants;
    for (int i = 0; i < n; i++)
        out[i] = (struct shown){.tenant = i};
    for (size_t i = 0; i < p->n_requests; i++)
        out[p->requests[i].tenant].tokens += (uint64_t)p->requests[i].n_prompt + (uint64_t)p->requests[i].n_asked;
    for (int i = 1; i < n; i++)
        for (int k = i; k && out[k - 1].tokens < out[k].tokens; k--) {
            struct shown x = out[k];
            out[k] = out[k - 1];
            out[k - 1] = x;
        }
    return n;
}

enum figure { FINISHED, TTFT_50, TTFT_99, TPOT_50, QUEUE_99, TOKENS, FIGURES };

static void put_figure(const struct simulate_run *run, const struct tally *t, enum figure f, char *cell)
{
    static const struct {
        enum tally_latency latency;
        int percent;
    } of[FIGURES] = {[TTFT_50] = {TALLY_TTFT, 50},
                     [TTFT_99] = {TALLY_TTFT, 99},
                     [TPOT_50] = {TALLY_TPOT, 50},
                     [QUEUE_99] = {TALLY_QUEUE, 99}};
    if (f == FINISHED || f == TOKENS) {
        uint64_t v = f == FINISHED ? t->n_finished : t->n_prompt_tokens + t->n_output_tokens;
        snprintf(cell, CELL_BYTES, "%llu", (unsigned long long)v);
        return;
    }
    int64_t ns = tally_percentile(t, of[f].latency, of[f].percent);
    if (ns < 0)
        snprintf(cell, CELL_BYTES, "-");
    else
        simulate_cell_timed(run, cell, (double)ns * 1e-6, 2);
}

static void put_tenant(const struct simulate_report *r, struct buf *out, int tenant)
{
    static const char *const names[FIGURES] = {"  finished",      "  TTFT p50 (ms)",  "  TTFT p99 (ms)",
                                               "  TPOT p50 (ms)", "  queue p99 (ms)", "  tokens"};
    struct tally *tallies = mem_new_array((size_t)r->n_runs, sizeof *tallies);
    char cell[CELL_BYTES];
    for (int i = 0; i < r->n_runs; i++)
        tally_make_tenant(&tallies[i], &r->runs[i].replay, (struct tally_slo){0}, tenant);
    buf_printf(out, "tenant %s\n", shown_name(&r->runs[0].replay, tenant));
    for (int f = 0; f < FIGURES; f++) {
        buf_printf(out, "%-*s", NAME_COLUMN, names[f]);
        for (int i = 0; i < r->n_runs; i++) {
            put_figure(&r->runs[i], &tallies[i], (enum figure)f, cell);
            buf_printf(out, "%*s", (int)simulate_column_width(&r->runs[i]), cell);
        }
        buf_putc(out, '\n');
    }
    for (int i = 0; i < r->n_runs; i++)
        tally_free(&tallies[i]);
    mem_free(tallies);
}

void simulate_tenants_table(const struct simulate_report *r, struct buf *out)
{
    struct shown shown[REPLAY_TENANTS];
    int n = find_shown(&r->runs[0].replay, shown);
    for (int i = 0; i < n && n > 1 && i < SHOWN_TENANTS; i++)
        put_tenant(r, out, shown[i].tenant);
    if (n > SHOWN_TENANTS)
        buf_printf(out, "%d more tenants with fewer tokens: --json has them\n", n - SHOWN_TENANTS);
}

/* ---- JSON */

void simulate_tenants_json(struct buf *out, const struct simulate_run *run, struct tally_slo slo)
{
    const struct replay *p = &run->replay;
    if (p->n_tenants < 2)
        return;
    buf_puts(out, ",\"tenants\":[");
    for (int i = 0; i < p->n_tenants; i++) {
        struct tally t;
        const char *name = shown_name(p, i);
        tally_make_tenant(&t, p, slo, i);
        buf_puts(out, i ? ",{\"tenant\":" : "{\"tenant\":");
        buf_put_json(out, name, strlen(name));
        buf_printf(out, ",\"requests\":%llu,\"finished\":%llu,\"refused\":%llu,\"good\":%llu",
                   (unsigned long long)t.n_requests, (unsigned long long)t.n_finished, (unsigned long long)t.n_refused,
                   (unsigned long long)t.n_good);
        buf_printf(out, ",\"prompt_tokens\":%llu,\"output_tokens\":%llu", (unsigned long long)t.n_prompt_tokens,
                   (unsigned long long)t.n_output_tokens);
        for (int l = 0; l < TALLY_COUNT; l++)
            simulate_json_latency(out, &t, (enum tally_latency)l);
        buf_putc(out, '}');
        tally_free(&t);
    }
    buf_putc(out, ']');
}
