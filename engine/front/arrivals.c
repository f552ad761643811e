#include "engine/front/arrivals.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

struct arrivals {
    struct arrivals_setup setup;
    struct trace *trace;            /* or */
    struct generator *generator;
    uint64_t n;
    bool ended;
};

static int open_file(struct arrivals *a, struct err *e)
{
    const struct arrivals_setup *s = &a->setup;
    bool is_name = !strpbrk(s->spec, "/.") && access(s->spec, F_OK) != 0;
    const char *near = is_name ? generator_nearest(s->spec) : NULL;
    if (is_name)
        return err_set(e, E_NOTFOUND, "'%.60s' is no file and no generator%s%s%s (generators: %s)", s->spec, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "", generator_names());
    return trace_open(&a->trace, s->spec, s->hashes, e);
}

int arrivals_open(struct arrivals **out, const struct arrivals_setup *s, struct err *e)
{
    struct arrivals *a = mem_new(sizeof *a);
    a->setup = *s;
    bool generated = generator_named(s->spec);
    int rc = generated && s->hashes ? err_set(e, E_INPUT, "a generator has no prefix hashes: leave --trace-hashes away")
             : generated            ? generator_open(&a->generator, s->spec, s->seed, e)
                                    : open_file(a, e);
    if (rc) {
        mem_free(a);
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
    mem_free(a);
}

int arrivals_next(struct arrivals *a, struct trace_row *row, bool *end, struct err *e)
{
    struct trace_row r;
    *end = a->ended || (a->setup.max_requests && a->n == a->setup.max_requests);
    if (!*end && a->generator)
        *end = !generator_next(a->generator, &r);
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
