#include "engine/lab/bands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/sim/machine.h"

enum { NAME_COLUMN = 28, LEAST_COLUMN = 34, CELL_BYTES = 64 };

/* ---- what is compared: a row each, with the place of its number in the JSON of a run */

enum direction { NEITHER, LESS_IS_BETTER, MORE_IS_BETTER };

static const struct metric {
    const char *name, *key, *inner; /* as shown, NULL: in JSON only; in JSON, and there a field of it or NULL */
    double times;                   /* what is shown of what the JSON says */
    enum direction better;
    bool slo; /* only with objectives */
} of_all[] = {
    {"requests", "requests", NULL, 1, NEITHER, false},
    {"  finished", "finished", NULL, 1, NEITHER, false},
    {"  refused", "refused", NULL, 1, NEITHER, false},
    {"  failed", "failed", NULL, 1, NEITHER, false},
    {"duration (s)", "seconds", NULL, 1, LESS_IS_BETTER, false},
    {NULL, "ttft_ms", "mean", 1, LESS_IS_BETTER, false},
    {"TTFT p50 (ms)", "ttft_ms", "p50", 1, LESS_IS_BETTER, false},
    {"TTFT p90 (ms)", "ttft_ms", "p90", 1, LESS_IS_BETTER, false},
    {"TTFT p99 (ms)", "ttft_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "tpot_ms", "mean", 1, LESS_IS_BETTER, false},
    {"TPOT p50 (ms)", "tpot_ms", "p50", 1, LESS_IS_BETTER, false},
    {"TPOT p90 (ms)", "tpot_ms", "p90", 1, LESS_IS_BETTER, false},
    {"TPOT p99 (ms)", "tpot_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "queue_ms", "mean", 1, LESS_IS_BETTER, false},
    {"queue p50 (ms)", "queue_ms", "p50", 1, LESS_IS_BETTER, false},
    {"queue p90 (ms)", "queue_ms", "p90", 1, LESS_IS_BETTER, false},
    {"queue p99 (ms)", "queue_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "completion_ms", "mean", 1, LESS_IS_BETTER, false},
    {"completion p50 (ms)", "completion_ms", "p50", 1, LESS_IS_BETTER, false},
    {"completion p90 (ms)", "completion_ms", "p90", 1, LESS_IS_BETTER, false},
    {"completion p99 (ms)", "completion_ms", "p99", 1, LESS_IS_BETTER, false},
    {"throughput (tokens/s)", "throughput", NULL, 1, MORE_IS_BETTER, false},
    {"  output (tokens/s)", "output_throughput", NULL, 1, MORE_IS_BETTER, false},
    {"  peak of 10 s (tokens/s)", "peak_throughput", NULL, 1, MORE_IS_BETTER, false},
    {"requests/s", "requests_per_s", NULL, 1, MORE_IS_BETTER, false},
    {"goodput (requests/s)", "goodput", NULL, 1, MORE_IS_BETTER, true},
    {"switches", "n_switches", NULL, 1, NEITHER, false},
    {"preemptions", "preemptions", NULL, 1, NEITHER, false},
    {"KV high water (%)", "kv_high_water", NULL, 100, NEITHER, false},
    {"steps", "steps", NULL, 1, NEITHER, false},
    {"outside of tables (%)", "outside", "share", 100, NEITHER, false},
};
enum { N_OF_ALL = sizeof of_all / sizeof *of_all, OUTSIDE = N_OF_ALL - 1 };

static const struct metric of_tenants[] = {
    {NULL, "requests", NULL, 1, NEITHER, false},
    {"  finished", "finished", NULL, 1, NEITHER, false},
    {NULL, "refused", NULL, 1, NEITHER, false},
    {NULL, "ttft_ms", "mean", 1, LESS_IS_BETTER, false},
    {"  TTFT p50 (ms)", "ttft_ms", "p50", 1, LESS_IS_BETTER, false},
    {"  TTFT p99 (ms)", "ttft_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "tpot_ms", "mean", 1, LESS_IS_BETTER, false},
    {"  TPOT p50 (ms)", "tpot_ms", "p50", 1, LESS_IS_BETTER, false},
    {NULL, "tpot_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "queue_ms", "p50", 1, LESS_IS_BETTER, false},
    {"  queue p99 (ms)", "queue_ms", "p99", 1, LESS_IS_BETTER, false},
    {NULL, "completion_ms", "p99", 1, LESS_IS_BETTER, false},
    {"  within objectives", "good", NULL, 1, MORE_IS_BETTER, true},
    {"  prompt tokens", "prompt_tokens", NULL, 1, NEITHER, false},
    {"  output tokens", "output_tokens", NULL, 1, NEITHER, false},
};
enum {
    N_OF_TENANTS = sizeof of_tenants / sizeof *of_tenants,
    OUTPUT_TOKENS = N_OF_TENANTS - 1,
    PROMPT_TOKENS = OUTPUT_TOKENS - 1
};

/* The values of all requests, or of one tenant's. */
struct figures {
    const struct bands *bands;
    const struct metric *metrics;
    int n_metrics;
    double *values;
};

static struct figures all_of(const struct bands *b)
{
    return (struct figures){b, of_all, N_OF_ALL, b->values};
}

static struct figures tenant_of(const struct bands *b, int tenant)
{
    return (struct figures){b, of_tenants, N_OF_TENANTS, b->tenants[tenant].values};
}

static double *values_of(const struct figures *f, int policy, int metric)
{
    return f->values + ((size_t)policy * (size_t)f->n_metrics + (size_t)metric) * (size_t)f->bands->n_samples;
}

static double *new_values(const struct bands *b, int n_metrics)
{
    size_t n = (size_t)b->n_samples * (size_t)b->n_policies * (size_t)n_metrics;
    double *values = mem_new_array(n, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = NAN;
    return values;
}

void bands_open(struct bands *b, int n_samples, int n_policies)
{
    *b = (struct bands){.n_samples = n_samples, .n_policies = n_policies};
    b->labels = mem_new_array((size_t)n_policies, sizeof *b->labels);
    b->values = new_values(b, N_OF_ALL);
}

void bands_free(struct bands *b)
{
    for (int i = 0; i < b->n_policies; i++)
        mem_free(b->labels[i]);
    for (int i = 0; i < b->n_tenants; i++) {
        mem_free(b->tenants[i].name);
        mem_free(b->tenants[i].values);
    }
    mem_free(b->tenants);
    mem_free(b->labels);
    mem_free(b->values);
    buf_free(&b->words);
    *b = (struct bands){0};
}

static void take_figures(const struct figures *f, int policy, int sample, const struct json *from)
{
    for (int m = 0; m < f->n_metrics; m++) {
        const struct json *v = json_find(from, f->metrics[m].key);
        v = f->metrics[m].inner ? json_find(v, f->metrics[m].inner) : v;
        if (json_type(v) == JSON_NUMBER)
            values_of(f, policy, m)[sample] = json_number(v) * f->metrics[m].times;
    }
}

/* The place of a tenant; -1: there is none left. */
static int place_of(struct bands *b, const char *name)
{
    for (int i = 0; i < b->n_tenants; i++)
        if (!strcmp(b->tenants[i].name, name))
            return i;
    if (b->n_tenants == BANDS_TENANTS)
        return -1;
    if (!b->tenants)
        b->tenants = mem_new_array(BANDS_TENANTS, sizeof *b->tenants);
    b->tenants[b->n_tenants] = (struct bands_tenant){mem_strdup(name), new_values(b, N_OF_TENANTS)};
    return b->n_tenants++;
}

static void take_tenants(struct bands *b, int policy, int sample, const struct json *run)
{
    for (const struct json *t = json_first(json_find(run, "tenants")); t; t = json_next(t)) {
        const char *name = json_text(json_find(t, "tenant"));
        int at = name ? place_of(b, name) : -1;
        if (at < 0)
            continue;
        struct figures f = tenant_of(b, at);
        take_figures(&f, policy, sample, t);
    }
}

int bands_take(struct bands *b, int i, const struct json *result, struct err *e)
{
    const struct json *run = json_first(json_find(result, "runs"));
    for (int p = 0; p < b->n_policies; p++, run = json_next(run)) {
        const char *label = json_text(json_find(run, "label"));
        if (!label || (b->labels[p] && strcmp(b->labels[p], label) != 0))
            return err_set(e, E_INPUT, "sample %d has no results of policy %d", i, p + 1);
        if (!b->labels[p])
            b->labels[p] = mem_strdup(label);
        struct figures f = all_of(b);
        take_figures(&f, p, i, run);
        take_tenants(b, p, i, run);
    }
    return 0;
}

/* ---- quantiles */

static const int percents[] = {0, 5, 10, 25, 50, 75, 90, 95, 100};
enum { N_PERCENTS = sizeof percents / sizeof *percents, P5 = 1, P50 = 4, P95 = 7 };

/* Sorted values, and those at percents. As many are left out above as below: 5% at most on either side of a 90% band.
 */
struct spread {
    double at[N_PERCENTS];
    int n;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct spread spread_of(const double *values, int n)
{
    struct spread s = {0};
    double *sorted = mem_new_array((size_t)n + 1, sizeof *sorted);
    for (int i = 0; i < n; i++)
        if (!isnan(values[i]))
            sorted[s.n++] = values[i];
    qsort(sorted, (size_t)s.n, sizeof *sorted, by_value);
    for (int k = 0; k < N_PERCENTS && s.n; k++) {
        int p = percents[k], low = p <= 50 ? p * s.n / 100 : s.n - 1 - (100 - p) * s.n / 100;
        s.at[k] = p == 50 ? (sorted[(s.n - 1) / 2] + sorted[s.n / 2]) / 2 : sorted[low];
    }
    mem_free(sorted);
    return s;
}

/* Two policies on the same luck: the second less the first, and by how much of the first. */
struct pair {
    struct spread difference, relative; /* relative.n 0: the first is 0 somewhere */
    const char *word; /* of the second: "better", "worse", "tie"; NULL: in no sample both have a value */
};

static struct pair pair_of(const struct figures *f, int metric, int first, int second)
{
    const struct bands *b = f->bands;
    const double *x = values_of(f, first, metric), *y = values_of(f, second, metric);
    double *d = mem_new_array((size_t)b->n_samples, sizeof *d), *r = mem_new_array((size_t)b->n_samples, sizeof *r);
    struct pair p = {0};
    bool whole = true;
    for (int i = 0; i < b->n_samples; i++) {
        d[i] = y[i] - x[i]; /* NAN where one of them is */
        r[i] = d[i] / x[i];
        whole = whole && (isnan(d[i]) || x[i] > 0);
    }
    p.difference = spread_of(d, b->n_samples);
    if (whole)
        p.relative = spread_of(r, b->n_samples);
    mem_free(d);
    mem_free(r);
    if (!p.difference.n)
        return p;
    bool less = p.difference.at[P95]<0, more = p.difference.at[P5]> 0;
    bool better = f->metrics[metric].better == LESS_IS_BETTER ? less : more;
    p.word = !less && !more ? "tie" : better ? "better" : "worse";
    return p;
}

/* ---- the table */

/* Four digits, or all those before the point. */
static int decimals(double v)
{
    int n = 3;
    for (double x = fabs(v); x >= 10 && n > 0; x /= 10)
        n--;
    return n;
}

/* Some sample rests on prices outside of what was measured. */
static bool marked(const struct bands *b, int policy)
{
    struct figures all = all_of(b);
    struct spread s = spread_of(values_of(&all, policy, OUTSIDE), b->n_samples);
    return s.n && s.at[N_PERCENTS - 1] >= 100 * SIM_OUTSIDE_MARK;
}

static void put_cell(const struct figures *f, int policy, int metric, char *cell)
{
    struct spread s = spread_of(values_of(f, policy, metric), f->bands->n_samples);
    double low = s.at[P5], high = s.at[P95];
    int digits = decimals(high);
    bool timed = f->metrics[metric].better != NEITHER;
    if (!s.n)
        snprintf(cell, CELL_BYTES, "-");
    else if (low == high && !timed)
        snprintf(cell, CELL_BYTES, "%.*f", high == floor(high) ? 0 : digits, high);
    else
        snprintf(cell, CELL_BYTES, "%s%.*f (%.*f..%.*f)", timed && marked(f->bands, policy) ? "~" : "", digits,
                 s.at[P50], digits, low, digits, high);
}

static int column_width(const struct bands *b, int policy)
{
    int n = (int)strlen(b->labels[policy]);
    return (n < LEAST_COLUMN ? LEAST_COLUMN : n) + 2;
}

static bool shown(const struct figures *f, int metric)
{
    const struct metric *m = &f->metrics[metric];
    bool any = f->metrics != of_all || metric != OUTSIDE;
    for (int p = 0; p < f->bands->n_policies; p++)
        any = any || marked(f->bands, p);
    return m->name && any && (f->bands->goodput || !m->slo);
}

static void put_labels(const struct bands *b, const char *title, int from, struct buf *out)
{
    buf_printf(out, "%-*s", NAME_COLUMN, title);
    for (int p = from; p < b->n_policies; p++)
        buf_printf(out, "%*s", column_width(b, p), b->labels[p]);
    buf_putc(out, '\n');
}

/* "+12.3% (8.1..15.0) worse" */
static void put_difference(const struct figures *f, int metric, int policy, char *cell)
{
    struct pair p = pair_of(f, metric, 0, policy);
    if (!p.word) {
        snprintf(cell, CELL_BYTES, "-");
        return;
    }
    if (p.relative.n) {
        snprintf(cell, CELL_BYTES, "%+.1f%% (%+.1f..%+.1f) %6s", 100 * p.relative.at[P50], 100 * p.relative.at[P5],
                 100 * p.relative.at[P95], p.word);
        return;
    }
    double most = fmax(fabs(p.difference.at[P5]), fabs(p.difference.at[P95]));
    int digits = decimals(most);
    snprintf(cell, CELL_BYTES, "%+.*f (%+.*f..%+.*f) %6s", digits, p.difference.at[P50], digits, p.difference.at[P5],
             digits, p.difference.at[P95], p.word);
}

static void put_medians(const struct figures *f, struct buf *out)
{
    char cell[CELL_BYTES];
    for (int m = 0; m < f->n_metrics; m++) {
        if (!shown(f, m))
            continue;
        buf_printf(out, "%-*s", NAME_COLUMN, f->metrics[m].name);
        for (int p = 0; p < f->bands->n_policies; p++) {
            put_cell(f, p, m, cell);
            buf_printf(out, "%*s", column_width(f->bands, p), cell);
        }
        buf_putc(out, '\n');
    }
}

static void put_differences(const struct figures *f, struct buf *out)
{
    char cell[CELL_BYTES];
    for (int m = 0; m < f->n_metrics; m++) {
        if (!shown(f, m) || f->metrics[m].better == NEITHER)
            continue;
        buf_printf(out, "%-*s", NAME_COLUMN, f->metrics[m].name);
        for (int p = 1; p < f->bands->n_policies; p++) {
            put_difference(f, m, p, cell);
            buf_printf(out, "%*s", column_width(f->bands, p), cell);
        }
        buf_putc(out, '\n');
    }
}

/* The order in which they are shown: by the tokens of all samples, under the first policy. */
static int by_tokens(const struct bands *b, int order[BANDS_TENANTS])
{
    double tokens[BANDS_TENANTS] = {0};
    for (int t = 0; t < b->n_tenants; t++) {
        struct figures f = tenant_of(b, t);
        for (int m = PROMPT_TOKENS; m <= OUTPUT_TOKENS; m++)
            for (int i = 0; i < b->n_samples; i++)
                tokens[t] += isnan(values_of(&f, 0, m)[i]) ? 0 : values_of(&f, 0, m)[i];
        int at = t;
        for (; at && tokens[order[at - 1]] < tokens[t]; at--)
            order[at] = order[at - 1];
        order[at] = t;
    }
    return b->n_tenants < BANDS_SHOWN_TENANTS ? b->n_tenants : BANDS_SHOWN_TENANTS;
}

static void put_tenants(const struct bands *b, void (*put)(const struct figures *, struct buf *), struct buf *out)
{
    int order[BANDS_TENANTS], n = by_tokens(b, order);
    for (int i = 0; i < n; i++) {
        struct figures f = tenant_of(b, order[i]);
        buf_printf(out, "tenant %s\n", b->tenants[order[i]].name);
        put(&f, out);
    }
}

void bands_table(const struct bands *b, struct buf *out)
{
    struct figures all = all_of(b);
    put_labels(b, "median (90% band)", 0, out);
    put_medians(&all, out);
    put_tenants(b, put_medians, out);
    if (b->n_policies > 1) {
        buf_printf(out, "\nagainst %s, sample by sample on the same luck: median (90%% band) of the difference\n",
                   b->labels[0]);
        put_labels(b, "", 1, out);
        put_differences(&all, out);
        put_tenants(b, put_differences, out);
    }
    if (b->n_tenants > BANDS_SHOWN_TENANTS)
        buf_printf(out, "%d more tenants with fewer tokens: --json has them\n", b->n_tenants - BANDS_SHOWN_TENANTS);
    if (b->n_samples < BANDS_FEW)
        buf_printf(out,
                   "\nof fewer than %d samples a 90%% band is all that was seen, and wider than its name where more "
                   "are drawn\n",
                   BANDS_FEW);
}

/* ---- JSON */

static void put_spread(const struct spread *s, struct buf *out)
{
    buf_printf(out, "{\"n\":%d", s->n);
    for (int k = 0; k < N_PERCENTS && s->n; k++) {
        buf_printf(out, ",\"p%d\":", percents[k]);
        json_put_double(out, s->at[k]);
    }
    buf_putc(out, '}');
}

static void put_key(const struct metric *m, struct buf *out)
{
    buf_printf(out, m->inner ? "\"%s.%s\":" : "\"%s\":", m->key, m->inner);
}

static void put_policy(const struct figures *f, int policy, struct buf *out)
{
    const struct bands *b = f->bands;
    buf_puts(out, "{\"label\":");
    buf_put_json(out, b->labels[policy], strlen(b->labels[policy]));
    buf_puts(out, ",\"metrics\":{");
    for (int m = 0; m < f->n_metrics; m++) {
        double *v = values_of(f, policy, m);
        struct spread s = spread_of(v, b->n_samples);
        buf_puts(out, m ? "," : "");
        put_key(&f->metrics[m], out);
        buf_puts(out, "{\"quantiles\":");
        put_spread(&s, out);
        buf_puts(out, ",\"samples\":[");
        for (int i = 0; i < b->n_samples; i++) {
            buf_puts(out, i ? "," : "");
            if (isnan(v[i]))
                buf_puts(out, "null");
            else
                json_put_double(out, v[i]);
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "}}");
}

static void put_pair(const struct figures *f, int first, int second, struct buf *out)
{
    const struct bands *b = f->bands;
    const char *comma = "";
    buf_puts(out, "{\"first\":");
    buf_put_json(out, b->labels[first], strlen(b->labels[first]));
    buf_puts(out, ",\"second\":");
    buf_put_json(out, b->labels[second], strlen(b->labels[second]));
    buf_puts(out, ",\"metrics\":{");
    for (int m = 0; m < f->n_metrics; m++) {
        struct pair p = f->metrics[m].better == NEITHER ? (struct pair){0} : pair_of(f, m, first, second);
        if (!p.word)
            continue;
        buf_puts(out, comma);
        comma = ",";
        put_key(&f->metrics[m], out);
        buf_printf(out, "{\"second_is\":\"%s\",\"difference\":", p.word);
        put_spread(&p.difference, out);
        buf_puts(out, ",\"relative\":");
        put_spread(&p.relative, out);
        buf_putc(out, '}');
    }
    buf_puts(out, "}}");
}

static void put_figures(const struct figures *f, struct buf *out)
{
    const struct bands *b = f->bands;
    const char *comma = "";
    buf_puts(out, ",\"policies\":[");
    for (int p = 0; p < b->n_policies; p++) {
        buf_puts(out, p ? "," : "");
        put_policy(f, p, out);
    }
    buf_puts(out, "],\"pairs\":[");
    for (int i = 0; i < b->n_policies; i++)
        for (int k = i + 1; k < b->n_policies; k++) {
            buf_puts(out, comma);
            comma = ",";
            put_pair(f, i, k, out);
        }
    buf_putc(out, ']');
}

void bands_json(const struct bands *b, struct buf *out)
{
    buf_printf(out, "{\"samples\":%d,\"drawn\":", b->n_samples);
    buf_put_json(out, b->words.data ? b->words.data : "", b->words.len);
    buf_puts(out, ",\"twin\":");
    if (b->twin)
        buf_put_json(out, b->twin, strlen(b->twin));
    else
        buf_puts(out, "null");
    struct figures all = all_of(b);
    put_figures(&all, out);
    for (int i = 0; i < b->n_tenants; i++) {
        struct figures f = tenant_of(b, i);
        buf_puts(out, i ? ",{\"tenant\":" : ",\"tenants\":[{\"tenant\":");
        buf_put_json(out, b->tenants[i].name, strlen(b->tenants[i].name));
        put_figures(&f, out);
        buf_putc(out, '}');
    }
    buf_puts(out, b->n_tenants ? "]}" : "}");
}
