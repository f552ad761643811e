#include "engine/lab/search/tune_metric.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct known {
    const char *name, *path;
    bool is_latency, more;
} known[] = {
    {"TTFT", "ttft_ms", true, false},
    {"TPOT", "tpot_ms", true, false},
    {"queue", "queue_ms", true, false},
    {"completion", "completion_ms", true, false},
    {"throughput", "throughput", false, true},
    {"output", "output_throughput", false, true},
    {"peak", "peak_throughput", false, true},
    {"goodput", "goodput", false, true},
    {"requests", "requests_per_s", false, true},
    {"good", "good", false, true},
    {"duration", "seconds", false, false},
    {"switches", "n_switches", false, false},
    {"preemptions", "preemptions", false, false},
    {"kv", "kv_high_water", false, false},
};
enum { N_KNOWN = sizeof known / sizeof *known };

static const char choices[] = "p1 to p100 or mean of TTFT, TPOT, queue and completion; throughput, output, peak "
                              "(tokens/s), goodput, requests (per second), good, duration, "
                              "switches, preemptions, kv";

static bool same(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i]) || !b[i])
            return false;
    return !b[n];
}

int tune_metric_read(struct tune_metric *m, const char *text, struct err *e)
{
    const char *at = text + strspn(text, " ");
    size_t n = strcspn(at, " ");
    int percent = -1;
    *m = (struct tune_metric){0};
    if (same(at, "mean", n)) {
        percent = 0;
    } else if ((*at == 'p' || *at == 'P') && isdigit((unsigned char)at[1])) {
        char *end;
        long v = strtol(at + 1, &end, 10);
        percent = end == at + n && v >= 1 && v <= 100 ? (int)v : -1;
    }
    if (percent >= 0) {
        at += n + strspn(at + n, " ");
        n = strcspn(at, " ");
    }
    const char *rest = at + n + strspn(at + n, " ");
    for (int i = 0; i < N_KNOWN && !*rest; i++) {
        if (!same(at, known[i].name, n) || known[i].is_latency != (percent >= 0))
            continue;
        *m = (struct tune_metric){
            .path = known[i].path, .percent = percent, .is_latency = known[i].is_latency, .more = known[i].more};
        if (percent > 0)
            snprintf(m->name, sizeof m->name, "p%d %s", percent, known[i].name);
        else
            snprintf(m->name, sizeof m->name, "%s%s", percent == 0 ? "mean " : "", known[i].name);
        return 0;
    }
    return err_set(e, E_INPUT, "there is no metric '%.40s' (there are: %s)", text, choices);
}

/* A number with a unit of time where the metric is one. */
static bool read_limit(struct tune_bound *b, const char *text)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"us", 1e-3}, {"ms", 1}, {"s", 1e3}};
    char *end;
    b->limit = strtod(text, &end);
    bool ok = end != text && isfinite(b->limit) && b->limit >= 0;
    end += strspn(end, " ");
    for (int i = 0; i < 3 && b->metric.is_latency && ok && *end; i++)
        if (!strcmp(end, units[i].unit)) {
            b->limit *= units[i].ms;
            return true;
        }
    return ok && !*end;
}

int tune_bound_read(struct tune_bound *b, const char *text, struct err *e)
{
    char name[64];
    const char *sign = strpbrk(text, "<>");
    *b = (struct tune_bound){0};
    if (!sign || sign - text >= (long)sizeof name)
        return err_set(e, E_INPUT, "--subject-to wants \"METRIC <= VALUE\" or \"METRIC >= VALUE\", not '%.60s'", text);
    snprintf(name, sizeof name, "%.*s", (int)(sign - text), text);
    for (size_t n = strlen(name); n && name[n - 1] == ' ';)
        name[--n] = 0;
    TRY(tune_metric_read(&b->metric, name, e));
    b->at_least = *sign == '>';
    const char *value = sign + 1 + (sign[1] == '=');
    if (!read_limit(b, value + strspn(value, " ")))
        return err_set(e, E_INPUT, "--subject-to: '%.40s' is no value for %s%s", value, b->metric.name,
                       b->metric.is_latency ? " (like 50ms or 0.5s)" : "");
    return 0;
}

bool tune_metric_of(const struct tune_metric *m, const struct json *run, double *out)
{
    const struct json *found = json_find(run, m->path);
    if (m->is_latency && m->percent == 0)
        found = json_find(found, "mean");
    if (m->is_latency && m->percent > 0) {
        found = json_first(json_find(found, "percentiles"));
        for (int i = 1; i < m->percent && found; i++)
            found = json_next(found);
    }
    if (json_type(found) != JSON_NUMBER)
        return false;
    *out = json_number(found);
    return true;
}

double tune_bound_excess(const struct tune_bound *b, double v)
{
    double past = b->at_least ? b->limit - v : v - b->limit;
    return past <= 0 ? 0 : past / (b->limit > 0 ? b->limit : 1);
}
