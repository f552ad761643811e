#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/search/advise_inner.h"

/* What one simulation may cost: about a tenth of a second. */
enum { MOST_REQUESTS = 1000, MOST_OUTPUT = 60000, MOST_INPUT = 4000000 };

/* ---- --shape */

struct shape {
    char in[32], out[32]; /* "4096" or "2000-4000" */
    double rate, batch;   /* 0: not given */
};

static int set_number(double *to, const char *key, const char *v, struct err *e)
{
    char *end;
    *to = strtod(v, &end);
    if (end == v || *end || !(*to > 0) || !isfinite(*to))
        return err_set(e, E_INPUT, "--shape: %s wants a number above 0, not '%.40s'", key, v);
    return 0;
}

static int set_one(struct shape *s, char *word, struct err *e)
{
    char *v = strchr(word, '=');
    if (!v)
        return err_set(e, E_INPUT, "--shape: '%.40s' is not NAME=VALUE; like in=4096,out=250,rate=4", word);
    *v++ = 0;
    if (!strcmp(word, "rate"))
        return set_number(&s->rate, "rate", v, e);
    if (!strcmp(word, "batch"))
        return set_number(&s->batch, "batch", v, e);
    if (strcmp(word, "in") != 0 && strcmp(word, "out") != 0)
        return err_set(e, E_INPUT, "--shape: unknown '%.40s' (there are: in, out, rate, batch)", word);
    char *to = word[0] == 'i' ? s->in : s->out;
    if (!*v || strlen(v) >= sizeof s->in || strspn(v, "0123456789-") != strlen(v))
        return err_set(e, E_INPUT, "--shape: %s wants tokens, like 4096 or 2000-4000, not '%.40s'", word, v);
    snprintf(to, sizeof s->in, "%s", v);
    return 0;
}

/* The generator that makes such traffic. How many requests is bounded by what is simulated. */
static int read_shape(struct buf *spec, const char *text, const struct advise_ask *ask, double times, struct err *e)
{
    struct shape s = {0};
    char *copy = mem_strdup(text), *rest = copy;
    int rc = 0;
    for (char *word = strsep(&rest, ","); word && !rc; word = strsep(&rest, ","))
        rc = set_one(&s, word, e);
    mem_free(copy);
    if (rc)
        return rc;
    if (ask->rate > 0 && (s.rate > 0 || s.batch > 0))
        return err_set(e, E_INPUT, "--rate and the --shape both say how often requests come: leave one of them away");
    s.rate = ask->rate > 0 ? ask->rate : s.rate;
    if (!s.in[0] || !s.out[0] || (s.rate > 0) == (s.batch > 0))
        return err_set(e, E_INPUT, "--shape wants in, out, and one of rate (requests a second) and batch (requests)");
    if (s.batch > 0)
        buf_printf(spec, "batch:requests=%.0f,input=%s,output=%s", ceil(s.batch), s.in, s.out);
    else
        buf_printf(spec, "poisson:rate=%.9g,requests=%.0f,input=%s,output=%s", s.rate, times * MOST_REQUESTS, s.in,
                   s.out);
    return 0;
}

/* ---- the rows */

struct sums {
    double n, input, output, last_s;
};

static int add_rows(struct advise_load *l, struct arrivals *a, struct sums *s, double times, struct err *e)
{
    struct trace_row row;
    bool end = false;
    for (;;) {
        TRY(arrivals_next(a, &row, &end, e));
        if (end)
            return 0;
        if (s->n >= times * MOST_REQUESTS || s->output > times * MOST_OUTPUT || s->input > times * MOST_INPUT) {
            l->cut = true;
            return 0;
        }
        s->n++;
        s->input += row.n_prompt;
        s->output += row.n_output;
        s->last_s = (double)row.arrival_ns * 1e-9;
        l->longest = row.n_prompt + row.n_output > l->longest ? row.n_prompt + row.n_output : l->longest;
    }
}

int advise_read_load(struct advise_load *l, const struct advise_ask *ask, double times, struct err *e)
{
    struct buf spec = {0};
    struct arrivals *a = NULL;
    struct sums s = {0};
    int rc = 0;
    if (ask->shape)
        rc = read_shape(&spec, ask->shape, ask, times, e);
    else
        buf_puts(&spec, ask->trace);
    l->spec = buf_take(&spec);
    const struct arrivals_setup setup = {.spec = l->spec,
                                         .hashes = ask->hashes,
                                         .seed = ask->seed,
                                         .max_requests = (uint64_t)ask->requests,
                                         .max_seconds = ask->seconds,
                                         .rate = ask->shape ? 0 : ask->rate};
    rc = rc ? rc : arrivals_open(&a, &setup, e);
    rc = rc ? rc : add_rows(l, a, &s, times, e);
    rc = rc ? rc : arrivals_describe(a, &l->words, e);
    if (!rc && setup.rate > 0)
        buf_printf(&l->words, ", %g requests/s", setup.rate);
    arrivals_close(a);
    if (!rc && s.n == 0)
        return err_set(e, E_INPUT, "there is no request in %.200s", l->spec);
    if (rc)
        return rc;
    l->n_simulated = (int64_t)s.n;
    l->input = s.input / s.n;
    l->output = s.output / s.n;
    l->rate = s.last_s > 0 ? s.n / s.last_s : 0;
    return 0;
}

void advise_load_free(struct advise_load *l)
{
    mem_free(l->spec);
    buf_free(&l->words);
}
