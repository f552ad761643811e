#include "engine/lab/search/tune_window.h"

#include "engine/base/mem.h"

struct arrival {
    double at_s, tokens;
};

static int read_all(const struct arrivals_setup *trace, struct arrival **out, size_t *n, struct err *e)
{
    struct arrivals *a;
    struct trace_row row;
    struct arrival *list = NULL;
    size_t have = 0, room = 0;
    bool end = false;
    TRY(arrivals_open(&a, trace, e));
    int rc = arrivals_next(a, &row, &end, e);
    for (; !rc && !end; rc = arrivals_next(a, &row, &end, e)) {
        if (have == room) {
            room = room ? 2 * room : 1024;
            list = mem_resize(list, room, sizeof *list);
        }
        list[have++] = (struct arrival){(double)row.arrival_ns * 1e-9, (double)row.n_prompt + row.n_output};
    }
    arrivals_close(a);
    *out = list;
    *n = have;
    return rc;
}

static double rows_in(const struct arrival *list, size_t n, double from, double seconds)
{
    double rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += list[i].at_s >= from && list[i].at_s < from + seconds;
    return rows;
}

/* Of all windows of this length that begin with an arrival, the first with the most tokens. */
static double busiest(const struct arrival *list, size_t n, double seconds)
{
    double tokens = 0, most = -1, from = 0;
    for (size_t i = 0, end = 0; i < n; i++) {
        for (; end < n && list[end].at_s < list[i].at_s + seconds; end++)
            tokens += list[end].tokens;
        if (tokens > most) {
            most = tokens;
            from = list[i].at_s;
        }
        tokens -= list[i].tokens;
    }
    return from;
}

int tune_windows_read(struct tune_windows *w, const struct arrivals_setup *trace, struct err *e)
{
    struct arrival *list = NULL;
    size_t n = 0;
    int rc = read_all(trace, &list, &n, e);
    *w = (struct tune_windows){.rows = (double)n, .generated = generator_named(trace->spec)};
    for (size_t i = 0; i < n; i++)
        w->tokens += list[i].tokens;
    w->span_s = n ? list[n - 1].at_s : 0;
    double part = w->span_s / TUNE_QUARTERS;
    if (part > 0) {
        w->busiest = (struct tune_window){.from = busiest(list, n, part), .seconds = part};
        w->busiest.rows = rows_in(list, n, w->busiest.from, part);
    }
    for (int i = 0; i < TUNE_QUARTERS; i++) {
        struct tune_window *q = &w->quarters[i];
        if (w->generated)
            *q = (struct tune_window){.seed_more = (uint64_t)i + 1, .rows = w->rows};
        else if (part > 0) /* the last one has the last arrival, too */
            *q = (struct tune_window){.from = i * part,
                                      .seconds = part * (i + 1 < TUNE_QUARTERS ? 1 : 1 + 1e-9),
                                      .rows = rows_in(list, n, i * part, part)};
    }
    mem_free(list);
    return rc;
}
