#include "engine/cli/what_if_table.h"

#include <stdio.h>
#include <string.h>

enum { NAME_COLUMN = 26, CELL = 24 };
static const double MARKED_SHARE = 0.001; /* of guessed step time, from which on a figure has a ~ */

/* As it is, but for what a terminal obeys. */
static void put_plain(struct buf *out, const char *text)
{
    for (; text && *text; text++)
        buf_putc(out, (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
}

static void put_cell(struct buf *out, const char *text)
{
    char cut[CELL + 1];
    struct buf plain = {0};
    snprintf(cut, sizeof cut, "%s", text);
    put_plain(&plain, cut);
    buf_printf(out, " %*s", CELL, plain.data ? plain.data : "");
    buf_free(&plain);
}

/* ---- rows: a number of each, and by how much the other's differs */

struct row {
    const char *name, *part, *field; /* part NULL: the run's own */
    int digits;
    bool timed;
};

static const struct json *value_of(const struct json *run, const struct row *r)
{
    const struct json *v = json_find(r->part ? json_find(run, r->part) : run, r->field);
    return json_type(v) == JSON_NUMBER ? v : NULL;
}

static void number_cell(struct buf *out, const struct json *run, const struct row *r)
{
    const struct json *v = value_of(run, r);
    char text[CELL + 1] = "-";
    bool marked = r->timed && json_member_number(run, "guessed") >= MARKED_SHARE;
    if (v)
        snprintf(text, sizeof text, "%s%.*f", marked ? "~" : "", r->digits, json_number(v));
    put_cell(out, text);
}

static void put_row(struct buf *out, const struct json *live, const struct json *other, const struct row *r)
{
    const struct json *a = value_of(live, r), *b = value_of(other, r);
    char text[CELL + 1] = "";
    buf_printf(out, "%-*s", NAME_COLUMN, r->name);
    if (live)
        number_cell(out, live, r);
    number_cell(out, other, r);
    if (a && b && json_number(a) > 0 && json_number(a) != json_number(b))
        snprintf(text, sizeof text, "%+.1f%%", 100 * (json_number(b) / json_number(a) - 1));
    if (live && *text)
        buf_printf(out, " %9s", text);
    buf_putc(out, '\n');
}

static void put_rows(struct buf *out, const struct json *live, const struct json *other)
{
    static const struct row rows[] = {{"requests", NULL, "requests", 0, false},
                                      {"  finished", NULL, "finished", 0, false},
                                      {"  refused", NULL, "refused", 0, false},
                                      {"  failed", NULL, "failed", 0, false},
                                      {"  never ended", NULL, "unfinished", 0, false},
                                      {"TTFT p50 (ms)", "ttft_ms", "p50", 2, true},
                                      {"TTFT p90 (ms)", "ttft_ms", "p90", 2, true},
                                      {"TTFT p99 (ms)", "ttft_ms", "p99", 2, true},
                                      {"TPOT p50 (ms)", "tpot_ms", "p50", 2, true},
                                      {"TPOT p90 (ms)", "tpot_ms", "p90", 2, true},
                                      {"TPOT p99 (ms)", "tpot_ms", "p99", 2, true},
                                      {"completion p50 (ms)", "completion_ms", "p50", 2, true},
                                      {"completion p90 (ms)", "completion_ms", "p90", 2, true},
                                      {"completion p99 (ms)", "completion_ms", "p99", 2, true},
                                      {"throughput (tokens/s)", NULL, "throughput", 1, true},
                                      {"  output (tokens/s)", NULL, "output_throughput", 1, true},
                                      {"preemptions", NULL, "preemptions", 0, false},
                                      {"switches", NULL, "switches", 0, false},
                                      {"steps", NULL, "steps", 0, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_row(out, live, other, &rows[i]);
}

static void put_names(struct buf *out, const struct json *live, const struct json *other)
{
    const struct json *runs[] = {live, other};
    buf_printf(out, "%-*s", NAME_COLUMN, "");
    for (int i = 0; i < 2; i++) {
        char text[CELL + 1];
        const char *name = json_text(json_find(runs[i], "name")), *sha = json_text(json_find(runs[i], "sha256"));
        snprintf(text, sizeof text, "%.11s (%.8s)", name ? name : "?", sha ? sha : "");
        if (runs[i])
            put_cell(out, text);
    }
    buf_putc(out, '\n');
    if (!live)
        return;
    buf_printf(out, "%-*s", NAME_COLUMN, "");
    put_cell(out, "live");
    put_cell(out, "what if");
    buf_putc(out, '\n');
}

static void put_list(struct buf *out, const struct json *list, const char *before)
{
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        buf_puts(out, before);
        put_plain(out, json_text(j));
        buf_putc(out, '\n');
    }
}

int what_if_table(const struct json *answer, struct buf *out, bool *good, struct err *e)
{
    const struct json *window = json_find(answer, "window"), *model = json_find(answer, "model"),
                      *live = json_find(answer, "live"), *other = json_find(answer, "other");
    if (json_type(window) != JSON_OBJECT || json_type(other) != JSON_OBJECT)
        return err_set(e, E_INPUT, "this is no answer of /admin/what-if");
    live = json_type(live) == JSON_OBJECT ? live : NULL;
    *good = json_true(json_find(answer, "ok"));
    buf_printf(out,
               "Traffic  the last %.1f s that the server keeps, %.0f requests\n"
               "Steps    priced by the %.0f that it ran in that time, with an error of %.1f%% on one of them\n\n",
               json_member_number(window, "seconds"), json_member_number(window, "requests"),
               json_member_number(model, "steps"), 100 * json_member_number(model, "error"));
    put_names(out, live, other);
    put_rows(out, live, other);
    buf_putc(out, '\n');
    put_list(out, json_find(answer, "notes"), "Note: ");
    put_list(out, json_find(answer, "problems"), "Failed: ");
    if (*good)
        buf_puts(out, "It went without an error.\n");
    return 0;
}
