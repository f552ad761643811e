#include "engine/cli/step_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 100, COUNT_WIDTH = 8, MOST_COLUMNS = 40, CELL = 40 };

/* ---- plain text */

/* As it is, but for what a terminal obeys; a tab is as wide as four blanks. */
static void put_plain(struct buf *out, const char *text)
{
    for (; text && *text; text++) {
        if (*text == '\t')
            buf_puts(out, "    ");
        else if (*text == '\xc2' && ((unsigned char)text[1] & 0xe0) == 0x80) { /* U+0080 to U+009F */
            buf_putc(out, '?');
            text++;
        } else
            buf_putc(out, (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
    }
}

static const char *text_of(const struct json *o, const char *name)
{
    const char *text = json_text(json_find(o, name));
    return text ? text : "?";
}

static int64_t number(const struct json *o, const char *name)
{
    int64_t n = 0;
    return json_i64(json_find(o, name), &n) ? n : 0;
}

/* A number, a word, or "inf" for what JSON has no number for; lists and objects as JSON. */
static void put_value(struct buf *out, const struct json *v)
{
    struct buf text = {0};
    if (json_type(v) == JSON_STRING)
        put_plain(out, json_text(v));
    else if (json_type(v) == JSON_NULL)
        buf_puts(out, "inf");
    else if (json_type(v) == JSON_NUMBER && !json_is_integer(v))
        buf_printf(out, "%.10g", json_number(v));
    else {
        json_write(&text, v, NULL);
        put_plain(out, text.data);
    }
    buf_free(&text);
}

static bool is_plain(const struct json *v)
{
    return json_type(v) != JSON_ARRAY && json_type(v) != JSON_OBJECT;
}

/* "name value" after one another, in lines of a certain width. */
struct flow {
    struct buf *out;
    size_t at;
};

static void flow_put(struct flow *f, const char *name, const struct json *v)
{
    struct buf item = {0};
    put_plain(&item, name);
    buf_putc(&item, ' ');
    put_value(&item, v);
    if (f->at && f->at + item.len + 3 > WIDTH) {
        buf_putc(f->out, '\n');
        f->at = 0;
    }
    buf_puts(f->out, f->at ? ",  " : "  ");
    buf_put(f->out, item.data, item.len);
    f->at += item.len + 3;
    buf_free(&item);
}

static void flow_end(struct flow *f)
{
    if (f->at)
        buf_putc(f->out, '\n');
    f->at = 0;
}

/* ---- the decision */

static void put_head(struct buf *out, const struct json *d, const char *recording)
{
    const struct json *p = json_find(d, "policy"), *decided = json_find(d, "decided");
    buf_printf(out, "decision %" PRId64 ", %.6f s after the start (line %" PRId64 " of ", number(d, "decision"),
               (double)number(d, "t_ns") * 1e-9, number(d, "line"));
    put_plain(out, recording);
    buf_puts(out, "), by ");
    put_plain(out, text_of(p, "name"));
    buf_printf(out, " (%.12s)\n", text_of(p, "sha256"));
    const char *verdict = text_of(json_find(decided, "policy"), "verdict");
    if (strcmp(verdict, "ok") != 0) {
        buf_puts(out, "its call: ");
        put_plain(out, verdict);
        if (json_text(json_find(d, "error"))) {
            buf_puts(out, " (");
            put_plain(out, text_of(d, "error"));
            buf_putc(out, ')');
        }
        buf_putc(out, '\n');
    }
}

static void put_chunks(struct buf *out, const struct json *decided)
{
    for (const struct json *c = json_first(json_find(decided, "chunks")); c; c = json_next(c)) {
        buf_printf(out, "    %" PRId64 " token%s of ", number(c, "tokens"), number(c, "tokens") == 1 ? "" : "s");
        put_plain(out, text_of(c, "request"));
        buf_printf(out, " in group %" PRId64 "%s\n", number(c, "group"),
                   json_true(json_find(c, "starts")) ? ", which starts" : "");
    }
}

static void put_verbs(struct buf *out, const struct json *decided)
{
    for (const struct json *v = json_first(json_find(decided, "verbs")); v; v = json_next(v)) {
        struct flow f = {.out = out};
        buf_puts(out, "    ");
        put_plain(out, text_of(v, "verb"));
        for (const struct json *x = json_first(v); x; x = json_next(x))
            if (strcmp(json_key(x), "verb") != 0)
                flow_put(&f, json_key(x), x);
        buf_putc(out, '\n');
    }
}

static void put_plan(struct buf *out, const struct json *d)
{
    const struct json *plan = json_find(d, "plan"), *decided = json_find(d, "decided");
    buf_puts(out, "\nThe plan\n  ");
    put_plain(out, text_of(plan, "words"));
    buf_putc(out, '\n');
    put_chunks(out, decided);
    put_verbs(out, decided);
    if (json_true(json_find(plan, "equal"))) {
        buf_puts(out, "  as recorded\n");
        return;
    }
    buf_puts(out, "  recorded was another: ");
    put_plain(out, text_of(plan, "recorded"));
    buf_putc(out, '\n');
}

/* ---- the facts */

static void put_groups(struct buf *out, const struct json *groups)
{
    for (const struct json *g = json_first(groups); g; g = json_next(g)) {
        struct flow f = {.out = out};
        buf_printf(out, "\n  group %" PRId64 "\n", number(g, "id"));
        for (const struct json *x = json_first(g); x; x = json_next(x))
            if (strcmp(json_key(x), "id") != 0)
                flow_put(&f, json_key(x), x);
        flow_end(&f);
    }
}

/* The columns of a row, in the order of the first one. */
static int read_columns(const struct json *rows, const char *names[MOST_COLUMNS])
{
    int n = 0;
    for (const struct json *x = json_first(json_first(rows)); x && n < MOST_COLUMNS; x = json_next(x))
        names[n++] = json_key(x);
    return n;
}

/* The value of a row, or with row NULL the column's name, as it is shown. Returns how wide that is. */
static size_t cell(const struct json *row, const char *name, char text[CELL])
{
    struct buf b = {0};
    const struct json *v = json_find(row, name);
    if (!row)
        put_plain(&b, name);
    else if (v)
        put_value(&b, v);
    snprintf(text, CELL, "%s", b.data ? b.data : "");
    buf_free(&b);
    return strlen(text);
}

static void put_rows(struct buf *out, const struct json *rows)
{
    const char *names[MOST_COLUMNS];
    char text[CELL];
    int n = read_columns(rows, names), shown = 0;
    size_t wide[MOST_COLUMNS] = {0};
    for (int i = 0; i < n; i++)
        wide[i] = cell(NULL, names[i], text);
    for (const struct json *r = json_first(rows); r && shown < STEP_VIEW_ROWS; r = json_next(r), shown++)
        for (int i = 0; i < n; i++) {
            size_t len = cell(r, names[i], text);
            wide[i] = len > wide[i] ? len : wide[i];
        }
    for (int i = 0; i < n; i++) {
        cell(NULL, names[i], text);
        buf_printf(out, "  %*s", (int)wide[i], text);
    }
    buf_puts(out, n ? "\n" : "");
    shown = 0;
    for (const struct json *r = json_first(rows); r && shown < STEP_VIEW_ROWS; r = json_next(r), shown++) {
        for (int i = 0; i < n; i++) {
            cell(r, names[i], text);
            buf_printf(out, "  %*s", (int)wide[i], text);
        }
        buf_putc(out, '\n');
    }
    if ((size_t)shown < json_count(rows))
        buf_printf(out, "  and %zu more (--json has all)\n", json_count(rows) - (size_t)shown);
}

static void put_queue(struct buf *out, const char *name, const struct json *q)
{
    buf_printf(out, "\n  %s: %" PRId64 ", in the queue's order", name, number(q, "n"));
    buf_puts(out, json_count(json_find(q, "columns")) ? "\n" : " (the policy needs no columns of it)\n");
    put_rows(out, json_find(q, "rows"));
}

static void put_facts(struct buf *out, const struct json *call)
{
    const struct json *view = json_find(call, "view");
    struct flow f = {.out = out};
    buf_puts(out, "\nWhat it saw\n");
    for (const struct json *x = json_first(view); x; x = json_next(x))
        if (is_plain(x))
            flow_put(&f, json_key(x), x);
    flow_end(&f);
    for (const struct json *x = json_first(view); x; x = json_next(x))
        if (json_type(x) == JSON_ARRAY && strcmp(json_key(x), "groups") != 0)
            flow_put(&f, json_key(x), x);
    flow_end(&f);
    for (const struct json *x = json_first(json_find(call, "params")); x; x = json_next(x)) {
        char name[80];
        snprintf(name, sizeof name, "p.%.70s", json_key(x));
        flow_put(&f, name, json_find(x, "value"));
    }
    flow_end(&f);
    put_groups(out, json_find(view, "groups"));
    put_queue(out, "waiting", json_find(view, "waiting"));
    put_queue(out, "running", json_find(view, "running"));
}

/* ---- the lines */

static void put_source(struct buf *out, const struct json *source)
{
    buf_puts(out, "\nThe lines that ran: ");
    put_plain(out, text_of(source, "file"));
    buf_putc(out, '\n');
    for (const struct json *l = json_first(json_find(source, "lines")); l; l = json_next(l)) {
        const struct json *count = json_find(l, "count");
        char mark[32] = "";
        if (count && number(l, "count"))
            snprintf(mark, sizeof mark, "%" PRId64 "x", number(l, "count"));
        else if (count)
            snprintf(mark, sizeof mark, "-");
        buf_printf(out, "%*s %5" PRId64 " | ", COUNT_WIDTH, mark, number(l, "line"));
        put_plain(out, text_of(l, "text"));
        buf_putc(out, '\n');
    }
}

static void put_call(struct buf *out, const struct json *call)
{
    put_facts(out, call);
    buf_printf(out, "\nIts call executed %" PRId64 " bytecodes", number(call, "bytecodes"));
    if (json_text(json_find(call, "error"))) {
        buf_puts(out, " and failed: ");
        put_plain(out, text_of(call, "error"));
    }
    buf_puts(out, json_count(json_find(call, "log")) ? ", and logged\n" : "\n");
    for (const struct json *l = json_first(json_find(call, "log")); l; l = json_next(l)) {
        buf_puts(out, "    ");
        put_plain(out, json_text(l));
        buf_putc(out, '\n');
    }
    for (const struct json *s = json_first(json_find(call, "sources")); s; s = json_next(s))
        put_source(out, s);
}

/* Why there is nothing to show of a script. */
static const char *no_script(const struct json *d)
{
    const struct json *by = json_find(json_find(d, "decided"), "policy");
    return strcmp(text_of(json_find(d, "policy"), "sha256"), "native") == 0
               ? "The native policy decided: no script ran, so there are no lines to show."
           : json_true(json_find(by, "native"))
               ? "Its call was cut off when this was recorded, so it is not made again; the native policy decided."
               : "Nothing is known of its call.";
}

int step_render(const struct json *decision, const char *recording, struct buf *out, struct err *e)
{
    const struct json *call = json_find(decision, "call");
    if (json_type(json_find(decision, "plan")) != JSON_OBJECT)
        return err_set(e, E_INPUT, "this is no decision of a recording: it has no plan");
    put_head(out, decision, recording);
    put_plan(out, decision);
    if (json_true(json_find(json_find(json_find(decision, "decided"), "policy"), "native")) && call &&
        json_type(call) == JSON_OBJECT)
        buf_puts(out, "  made by the native policy, as the call did not stand\n");
    if (json_type(call) == JSON_OBJECT)
        put_call(out, call);
    else
        buf_printf(out, "\n%s\n", no_script(decision));
    return 0;
}
