#include "engine/lab/trace/generate.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/lab/trace/portable_math.h"
#include "engine/base/nearest.h"

enum kind { POISSON, GAMMA, BATCH, SHIFT_BURSTY, FLYING_BURSTY, FLYING_TABLE1, KIND_COUNT };
static const char *const kind_names[KIND_COUNT] = {"poisson",      "gamma",         "batch",
                                                   "shift-bursty", "flying-bursty", "flying-table1"};

enum { BURSTS = 4 };

struct range {
    int64_t low, high;
};

struct settings {
    double rate, burstiness, seconds, every;
    double requests, batches; /* whole numbers; 0: no limit */
    struct range input, output;
};

struct generator {
    enum kind kind;
    struct settings set;
    struct rng arrivals, lengths, rates, priorities;
    uint64_t n_rows;
    double t;
    double phase_rate, phase_end;
    int phase; /* -1: before the first */
};

/* ---- draws */

static double draw_exp(struct rng *r, double rate)
{
    return -portable_ln(1 - rng_unit(r)) / rate;
}

static double draw_normal(struct rng *r)
{
    double u1 = rng_unit(r), u2 = rng_unit(r);
    return sqrt(-2 * portable_ln(1 - u1)) * portable_cos_turns(u2); /* a square root is exact everywhere */
}

struct bell {
    double median, sigma, low, high;
};

static int draw_lognormal(struct rng *r, struct bell b)
{
    double v = rint(b.median * portable_exp(b.sigma * draw_normal(r))); /* half to even */
    return (int)(v < b.low ? b.low : v > b.high ? b.high : v);
}

static int64_t draw_int(struct rng *r, struct range x)
{
    return x.low + (int64_t)(rng_unit(r) * (double)(x.high - x.low + 1));
}

/* Gamma of this shape and mean 1 (Marsaglia and Tsang, 2000). */
static double draw_gamma(struct rng *r, double shape)
{
    double lift = shape < 1 ? portable_exp(portable_ln(1 - rng_unit(r)) / shape) : 1;
    double a = shape < 1 ? shape + 1 : shape, d = a - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = draw_normal(r), v = 1 + c * x;
        double u = 1 - rng_unit(r);
        v = v * v * v;
        if (v > 0 && portable_ln(u) < 0.5 * x * x + d - d * v + d * portable_ln(v))
            return lift * d * v / shape;
    }
}

/* ---- phases of the piecewise-Poisson kinds */

/* Rate and end of the phase after the present one; false: there is none. */
static bool next_phase(struct generator *g)
{
    double from = g->phase_end;
    int i = ++g->phase;
    bool high = i & 1;
    if (g->kind == SHIFT_BURSTY) { /* base, burst, base, ..., base */
        double burst = g->set.seconds * (i / 2 + 0.5) / BURSTS;
        if (i > 2 * BURSTS)
            return false;
        g->phase_rate = high ? 4 + 38 : 4;
        g->phase_end = i == 2 * BURSTS ? g->set.seconds : high ? burst + 8 : burst;
    } else if (g->kind == FLYING_BURSTY) {
        double u = rng_unit(&g->rates);
        g->phase_rate = high ? 10 + 20 * u : 2 + 3 * u;
        g->phase_end = from + (high ? 15 : 60);
    } else {
        g->phase_rate = high ? 5 : 3;
        g->phase_end = from + 30;
    }
    return true;
}

/* A draw that reaches past the phase's end is thrown away: what comes after it has no memory. */
static bool phased_arrival(struct generator *g)
{
    if (g->phase < 0)
        next_phase(g);
    for (;;) {
        double d = draw_exp(&g->arrivals, g->phase_rate);
        if (g->t + d < g->phase_end) {
            g->t += d;
            return true;
        }
        g->t = g->phase_end;
        if (!next_phase(g))
            return false;
    }
}

static bool arrival(struct generator *g)
{
    uint64_t per_batch = (uint64_t)g->set.requests;
    switch (g->kind) {
    case POISSON:
        g->t += draw_exp(&g->arrivals, g->set.rate);
        return true;
    case GAMMA:
        g->t += draw_gamma(&g->arrivals, g->set.burstiness) / g->set.rate;
        return true;
    case BATCH:
        g->t = (double)(g->n_rows / per_batch) * g->set.every;
        return g->n_rows < per_batch * (uint64_t)g->set.batches;
    case SHIFT_BURSTY:
    case FLYING_BURSTY:
    case FLYING_TABLE1:
        return phased_arrival(g);
    case KIND_COUNT:
        break;
    }
    return false;
}

static void lengths(struct generator *g, struct trace_row *row)
{
    struct rng *r = &g->lengths;
    if (g->kind != SHIFT_BURSTY) {
        row->n_prompt = (int)draw_int(r, g->set.input);
        row->n_output = (int)draw_int(r, g->set.output);
        return;
    }
    static const struct bell inputs[] = {{117, 0.5, 16, 32768}, {3560, 0.6, 16, 32768}},
                             outputs[] = {{225, 0.5, 2, 4096}, {324, 0.6, 2, 4096}};
    bool agent = rng_unit(r) < 0.57;
    row->n_prompt = draw_lognormal(r, inputs[agent]);
    row->n_output = draw_lognormal(r, outputs[agent]);
}

bool generator_next(struct generator *g, struct trace_row *row)
{
    bool counted = g->kind != BATCH && g->set.requests > 0;
    if ((counted && (double)g->n_rows >= g->set.requests) || !arrival(g) ||
        (g->set.seconds > 0 && g->t > g->set.seconds))
        return false;
    *row = (struct trace_row){.index = g->n_rows++, .arrival_ns = (int64_t)rint(g->t * 1e6) * 1000};
    lengths(g, row);
    if (g->kind == FLYING_TABLE1)
        row->priority = rng_unit(&g->priorities) < 0.2 ? -1 : 0;
    return true;
}

/* ---- settings */

enum { OF_RATE = 1 << POISSON | 1 << GAMMA, OF_LENGTHS = OF_RATE | 1 << BATCH };

static const struct key {
    const char *name;
    int kinds; /* that have it */
    bool whole, is_range;
    size_t offset;
    double min, max;
} keys[] = {
    {"rate", OF_RATE, false, false, offsetof(struct settings, rate), 1e-6, 1e6},
    {"burstiness", 1 << GAMMA, false, false, offsetof(struct settings, burstiness), 0.01, 1000},
    {"requests", OF_LENGTHS | 1 << FLYING_BURSTY | 1 << FLYING_TABLE1, true, false, offsetof(struct settings, requests),
     1, 1e8},
    {"seconds", OF_RATE | 1 << SHIFT_BURSTY, false, false, offsetof(struct settings, seconds), 1, 1e7},
    {"batches", 1 << BATCH, true, false, offsetof(struct settings, batches), 1, 1e6},
    {"every", 1 << BATCH, false, false, offsetof(struct settings, every), 0, 1e6},
    {"input", OF_LENGTHS, true, true, offsetof(struct settings, input), 1, TRACE_MAX_TOKENS},
    {"output", OF_LENGTHS, true, true, offsetof(struct settings, output), 1, TRACE_MAX_TOKENS},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

static const struct settings defaults[KIND_COUNT] = {
    [POISSON] = {.rate = 1, .input = {1024, 1024}, .output = {128, 128}},
    [GAMMA] = {.rate = 1, .burstiness = 0.25, .input = {1024, 1024}, .output = {128, 128}},
    [BATCH] = {.requests = 256, .batches = 1, .input = {1024, 1024}, .output = {128, 128}},
    [SHIFT_BURSTY] = {.seconds = 512},
    [FLYING_BURSTY] = {.requests = 4000, .input = {128, 7168}, .output = {64, 512}},
    [FLYING_TABLE1] = {.requests = 900, .input = {1, 2316}, .output = {1, 1186}},
};

static int kind_of(const char *spec) /* -1: none */
{
    size_t n = strcspn(spec, ":");
    for (int k = 0; k < KIND_COUNT; k++)
        if (strlen(kind_names[k]) == n && !strncmp(spec, kind_names[k], n))
            return k;
    return -1;
}

bool generator_named(const char *spec)
{
    return kind_of(spec) >= 0;
}

const char *generator_names(void)
{
    return "poisson, gamma, batch, shift-bursty, flying-bursty, flying-table1";
}

const char *generator_nearest(const char *spec)
{
    char word[32] = {0};
    size_t n = strcspn(spec, ":");
    memcpy(word, spec, n < sizeof word ? n : sizeof word - 1);
    return nearest_word(word, kind_names, KIND_COUNT);
}

static bool read_number(const struct key *k, const char *text, char **end, double *out)
{
    if (*text < '0' || *text > '9')
        return false;
    *out = strtod(text, end);
    return *out >= k->min && *out <= k->max && (!k->whole || *out == rint(*out));
}

static int set_key(struct generator *g, const struct key *k, const char *text, struct err *e)
{
    void *at = (char *)&g->set + k->offset;
    double low, high;
    char *end;
    bool ok = read_number(k, text, &end, &low);
    if (ok && !k->is_range && !*end) {
        *(double *)at = low;
        return 0;
    }
    if (ok && k->is_range) {
        high = low;
        ok = !*end || (*end == '-' && read_number(k, end + 1, &end, &high) && !*end && high >= low);
        *(struct range *)at = (struct range){(int64_t)low, (int64_t)high};
        if (ok)
            return 0;
    }
    return err_set(e, E_INPUT, "%s: %s must be %s from %.12g to %.12g%s, not '%.40s'", kind_names[g->kind], k->name,
                   k->whole ? "a whole number" : "a number", k->min, k->max, k->is_range ? " (or LOW-HIGH)" : "", text);
}

static int set_pair(struct generator *g, char *pair, struct err *e)
{
    const char *names[N_KEYS];
    int n = 0;
    char *value = strchr(pair, '=');
    if (value)
        *value++ = 0;
    for (int i = 0; i < N_KEYS; i++) {
        if (!(keys[i].kinds & 1 << g->kind))
            continue;
        names[n++] = keys[i].name;
        if (!strcmp(keys[i].name, pair))
            return value ? set_key(g, &keys[i], value, e)
                         : err_set(e, E_INPUT, "%s: %s needs a value", kind_names[g->kind], pair);
    }
    const char *near = nearest_word(pair, names, n);
    struct buf all = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    err_set(e, E_INPUT, "%s has no setting '%.40s'%s%s%s (there are: %s)", kind_names[g->kind], pair,
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "", all.data ? all.data : "none");
    buf_free(&all);
    return E_INPUT;
}

static int read_spec(struct generator *g, const char *spec, struct err *e)
{
    const char *colon = strchr(spec, ':');
    char *text = mem_strdup(colon ? colon + 1 : ""), *at = text;
    int rc = 0;
    while (!rc && *at) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = 0;
        rc = set_pair(g, at, e);
        at = comma ? comma + 1 : at + strlen(at);
        if (!comma)
            break;
    }
    mem_free(text);
    bool endless = (g->kind == POISSON || g->kind == GAMMA) && g->set.requests == 0 && g->set.seconds == 0;
    if (!rc && endless)
        return err_set(e, E_INPUT, "%s needs requests=N or seconds=S, or it would never end", kind_names[g->kind]);
    return rc;
}

int generator_open(struct generator **out, const char *spec, uint64_t seed, struct err *e)
{
    int kind = kind_of(spec);
    if (kind < 0)
        return err_set(e, E_INPUT, "there is no generator '%.40s' (there are: %s)", spec, generator_names());
    struct generator *g = mem_new(sizeof *g);
    *g = (struct generator){.kind = (enum kind)kind, .set = defaults[kind], .phase = -1};
    struct rng *streams[] = {&g->arrivals, &g->lengths, &g->rates, &g->priorities};
    for (uint64_t k = 0; k < 4; k++)
        rng_init(streams[k], seed * 1000003 + k + 1);
    int rc = read_spec(g, spec, e);
    if (rc) {
        mem_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void generator_close(struct generator *g)
{
    mem_free(g);
}

void generator_describe(const struct generator *g, struct buf *out)
{
    char mark = ':';
    buf_puts(out, kind_names[g->kind]);
    for (int i = 0; i < N_KEYS; i++) {
        const void *at = (const char *)&g->set + keys[i].offset;
        const struct range *r = at;
        if (!(keys[i].kinds & 1 << g->kind) || (!keys[i].is_range && *(const double *)at == 0))
            continue;
        if (keys[i].is_range)
            buf_printf(out, "%c%s=%lld-%lld", mark, keys[i].name, (long long)r->low, (long long)r->high);
        else
            buf_printf(out, "%c%s=%.12g", mark, keys[i].name, *(const double *)at);
        mark = ',';
    }
}
