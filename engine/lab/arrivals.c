#include "engine/lab/arrivals.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/lab/recording/recording_digest.h"

struct arrivals {
    struct arrivals_setup setup;
    struct trace *trace;         /* or */
    struct generator *generator; /* or */
    struct recording *recording;
    struct recording_digest digest;
    uint64_t n, n_given; /* rows of all; of them, those that were not left away */
    double stretch;      /* of the time between rows; 0: none */
    bool ended;
};

static int open_file(struct arrivals *a, struct err *e)
{
    const struct arrivals_setup *s = &a->setup;
    bool is_name = !strpbrk(s->spec, "/.") && access(s->spec, F_OK) != 0;
    const char *near = is_name ? generator_nearest(s->spec) : NULL;
    if (is_name)
        return err_set(e, E_NOTFOUND, "'%.60s' is no file and no generator%s%s%s (generators: %s)", s->spec,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "", generator_names());
    if (!recording_is_file(s->spec))
        return trace_open(&a->trace, s->spec, s->hashes, e);
    if (s->hashes)
        return err_set(e, E_INPUT, "a recording has prefix hashes of its own: leave --trace-hashes away");
    TRY(recording_digest(&a->digest, s->spec, e));
    return recording_open(&a->recording, s->spec, e);
}

static int open_any(struct arrivals **out, const struct arrivals_setup *s, struct err *e)
{
    struct arrivals *a = mem_new(sizeof *a);
    a->setup = *s;
    bool generated = generator_named(s->spec);
    int rc = generated && s->hashes ? err_set(e, E_INPUT, "a generator has no prefix hashes: leave --trace-hashes away")
             : generated            ? generator_open(&a->generator, s->spec, s->seed, e)
                                    : open_file(a, e);
    if (rc) {
        arrivals_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

/* How often they come: the rows are read once for it. */
static int find_rate(const struct arrivals_setup *s, double *rate, struct err *e)
{
    struct arrivals *a = NULL;
    struct trace_row row = {0};
    bool end = false;
    int rc = open_any(&a, s, e);
    while (!rc && !end)
        rc = arrivals_next(a, &row, &end, e);
    if (!rc && (a->n_given < 2 || row.arrival_ns <= 0))
        rc = err_set(e, E_INPUT, "%.60s: its requests come at once, so no rate can be given to them", s->spec);
    *rate = rc ? 0 : (double)(a->n_given - 1) / ((double)row.arrival_ns * 1e-9);
    arrivals_close(a);
    return rc;
}

int arrivals_open(struct arrivals **out, const struct arrivals_setup *s, struct err *e)
{
    double rate = 0;
    if (s->rate > 0) {
        struct arrivals_setup as_is = *s;
        as_is.rate = 0;
        as_is.max_requests = 0; /* however many of them are wanted, each comes when it comes */
        TRY(find_rate(&as_is, &rate, e));
    }
    TRY(open_any(out, s, e));
    (*out)->stretch = s->rate > 0 ? rate / s->rate : 0;
    return 0;
}

void arrivals_close(struct arrivals *a)
{
    if (!a)
        return;
    trace_close(a->trace);
    generator_close(a->generator);
    recording_close(a->recording);
    recording_digest_free(&a->digest);
    mem_free(a);
}

/* The answer's length and whether its client leaves, as it was; of a request without an ending, the average of the
 * others.
 */
static void recorded_outcome(const struct arrivals *a, const struct recorded *x, struct trace_row *row)
{
    const struct recording_outcome *o = recording_outcome_of(&a->digest, x->order);
    bool left = o && o->left_ns && o->ending == END_ABORT;
    bool whole = o && (o->ending == END_STOP || o->ending == END_LENGTH);
    int n = left ? x->max_tokens : whole ? o->n_output : a->digest.mean_output;
    row->n_output = n < 1 ? 1 : n < TRACE_MAX_TOKENS ? n : TRACE_MAX_TOKENS;
    int64_t first = a->digest.first_arrival_ns;
    row->cancel_ns = left && o->left_ns > first ? o->left_ns - first : 0;
}

static int next_recorded(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    struct recorded x;
    do {
        TRY(recording_next(a->recording, &x, end, e));
    } while (!*end && x.kind != 'a');
    if (*end)
        return 0;
    int64_t at = recorded_arrival_ns(&x);
    *row = (struct trace_row){.index = a->n,
                              .arrival_ns = at - a->digest.first_arrival_ns,
                              .front_ns = x.t_ns > at ? x.t_ns - at : 0,
                              .n_prompt = x.n_prompt,
                              .priority = x.priority,
                              .open_ended = x.open_ended,
                              .slo_ttft_ms = x.slo_ttft_ms,
                              .slo_tpot_ms = x.slo_tpot_ms,
                              .hashes = x.n_keys ? x.keys : NULL,
                              .n_hashes = x.n_keys,
                              .hash_tokens = KV_UNIT};
    snprintf(row->tenant, sizeof row->tenant, "%s", x.tenant);
    recorded_outcome(a, &x, row);
    return 0;
}

static int next_of_all(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    if (a->recording)
        return next_recorded(a, row, end, e);
    if (!a->generator)
        return trace_next(a->trace, row, end, e);
    *end = !generator_next(a->generator, row);
    return 0;
}

int arrivals_next(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    struct trace_row r = {0};
    int64_t from = (int64_t)(a->setup.from_s * 1e9);
    *end = a->ended || (a->setup.max_requests && a->n_given == a->setup.max_requests);
    do {
        if (*end)
            break;
        r = (struct trace_row){0};
        TRY(next_of_all(a, &r, end, e));
        a->n += !*end;
    } while (!*end && r.arrival_ns < from);
    if (!*end && a->setup.max_seconds > 0 && (double)(r.arrival_ns - from) >= a->setup.max_seconds * 1e9)
        *end = true;
    a->ended = *end;
    if (*end)
        return 0;
    a->n_given++;
    r.arrival_ns -= from;
    r.cancel_ns -= r.cancel_ns ? from : 0;
    if (a->stretch > 0) {
        int64_t waits = r.cancel_ns - r.arrival_ns;
        r.arrival_ns = llround((double)r.arrival_ns * a->stretch);
        r.cancel_ns = r.cancel_ns ? r.arrival_ns + waits : 0;
    }
    *row = r;
    return 0;
}

int arrivals_describe(const struct arrivals *a, struct buf *out, struct err *e)
{
    if (a->generator) {
        generator_describe(a->generator, out);
        return 0;
    }
    struct file_map m;
    TRY(file_map_open(&m, a->setup.spec, e));
    struct sha256 h = hash_sha256(m.data ? (const void *)m.data : "", m.size);
    file_map_close(&m);
    char hex[65];
    const char *slash = strrchr(a->setup.spec, '/');
    hash_hex(&h, hex);
    buf_printf(out, "%s (sha256 %s)", slash ? slash + 1 : a->setup.spec, hex);
    return 0;
}
