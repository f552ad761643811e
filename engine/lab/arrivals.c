#include "engine/lab/arrivals.h"

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
    int64_t first_ns, last_ns; /* of the recording's arrivals; first: -1: none yet */
    uint64_t n;
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

int arrivals_open(struct arrivals **out, const struct arrivals_setup *s, struct err *e)
{
    struct arrivals *a = mem_new(sizeof *a);
    a->setup = *s;
    a->first_ns = -1;
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
    const struct recording_outcome *o =
        x->order >= 0 && (uint64_t)x->order < a->digest.n_outcomes ? &a->digest.outcomes[x->order] : NULL;
    bool left = o && o->left_ns && o->ending == END_ABORT;
    bool whole = o && (o->ending == END_STOP || o->ending == END_LENGTH);
    int n = left ? x->max_tokens : whole ? o->n_output : a->digest.mean_output;
    row->n_output = n < 1 ? 1 : n < TRACE_MAX_TOKENS ? n : TRACE_MAX_TOKENS;
    row->cancel_ns = left && o->left_ns > a->first_ns ? o->left_ns - a->first_ns : 0;
}

static int next_recorded(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    struct recorded x;
    do {
        TRY(recording_next(a->recording, &x, end, e));
    } while (!*end && x.kind != 'a');
    if (*end)
        return 0;
    int64_t at = x.arrival_ns > 0 ? x.arrival_ns : 0;
    if (a->first_ns < 0)
        a->first_ns = a->last_ns = at;
    a->last_ns = at > a->last_ns ? at : a->last_ns;
    *row = (struct trace_row){.index = a->n,
                              .arrival_ns = a->last_ns - a->first_ns,
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

int arrivals_next(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    struct trace_row r = {0};
    *end = a->ended || (a->setup.max_requests && a->n == a->setup.max_requests);
    if (!*end && a->generator)
        *end = !generator_next(a->generator, &r);
    else if (!*end && a->recording)
        TRY(next_recorded(a, &r, end, e));
    else if (!*end)
        TRY(trace_next(a->trace, &r, end, e));
    if (!*end && a->setup.max_seconds > 0 && (double)r.arrival_ns >= a->setup.max_seconds * 1e9)
        *end = true;
    a->ended = *end;
    if (*end)
        return 0;
    a->n++;
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
