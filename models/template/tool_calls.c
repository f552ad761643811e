#include "models/template/tool_calls.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

static const struct {
    const char *name, *open, *close; /* no marker has its first byte twice, so a match cannot begin inside another */
} formats[] = {
    [TOOLS_NONE] = {"none", NULL, NULL},
    [TOOLS_HERMES] = {"hermes", "<tool_call>", "</tool_call>"},
    [TOOLS_LLAMA3] = {"llama3_json", "<|python_tag|>", NULL},
    [TOOLS_MISTRAL] = {"mistral", "[TOOL_CALLS]", NULL},
};

bool tool_format_is_control(enum tool_format format)
{
    return format == TOOLS_MISTRAL; /* Hermes' are shown; Llama's, where it is not, says nothing */
}

static enum tool_format format_in(const char *s)
{
    if (strstr(s, "[TOOL_CALLS]"))
        return TOOLS_MISTRAL;
    /* GLM and Qwen's coders write XML between the same tags. */
    if (strstr(s, "<tool_call>"))
        return strstr(s, "<arg_key>") || strstr(s, "<function=") ? TOOLS_NONE : TOOLS_HERMES;
    return strstr(s, "\"parameters\": dictionary of") ? TOOLS_LLAMA3 : TOOLS_NONE;
}

enum tool_format tool_format_of(const char *name, const char *source)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0)
            return (enum tool_format)i;
    return source ? format_in(source) : TOOLS_NONE;
}

/* ---- names */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void tool_names_add(struct tool_names *t, const char *name)
{
    t->items = mem_resize(t->items, t->n + 1, sizeof *t->items);
    t->items[t->n++] = mem_strdup(name);
}

void tool_names_ready(struct tool_names *t)
{
    if (t->n)
        qsort(t->items, t->n, sizeof *t->items, by_text);
}

void tool_names_free(struct tool_names *t)
{
    for (size_t i = 0; i < t->n; i++)
        mem_free(t->items[i]);
    mem_free(t->items);
    *t = (struct tool_names){0};
}

static bool offers(const struct tool_names *t, const char *name)
{
    return t->n && bsearch(&name, t->items, t->n, sizeof *t->items, by_text);
}

/* ---- a call's JSON */

static size_t bytes_of(const struct tool_call *c)
{
    return sizeof *c + strlen(c->name) + strlen(c->arguments);
}

static void drop_from(struct tool_reader *r, int first)
{
    for (int i = first; i < r->n_calls; i++) {
        r->call_bytes -= bytes_of(&r->calls[i]);
        mem_free(r->calls[i].name);
        mem_free(r->calls[i].arguments);
    }
    r->n_calls = first;
}

/* The arguments as JSON text; some models write them as a string, or none for a function that takes none. false: they
 * are not an object. */
static bool put_arguments(const struct json *call, struct buf *out)
{
    const struct json *v = json_find(call, "arguments");
    v = v ? v : json_find(call, "parameters");
    const char *s = json_text(v);
    struct json *parsed = s ? json_parse(s, strlen(s), NULL, NULL) : NULL;
    v = parsed ? parsed : v;
    bool good = json_type(v) == JSON_OBJECT || json_type(v) == JSON_NULL;
    if (json_type(v) == JSON_OBJECT)
        json_write(out, v, &(struct json_style){.spaced = true});
    else
        buf_puts(out, "{}");
    json_free(parsed);
    return good;
}

static void add_call(struct tool_reader *r, const char *name, struct buf *arguments)
{
    r->calls = mem_resize(r->calls, (size_t)r->n_calls + 1, sizeof *r->calls);
    r->calls[r->n_calls] = (struct tool_call){mem_strdup(name), buf_take(arguments)};
    r->call_bytes += bytes_of(&r->calls[r->n_calls++]);
}

/* {"name": f, "arguments": {...}} */
static bool take_object(struct tool_reader *r, const struct json *j)
{
    const char *name = json_text(json_find(j, "name"));
    struct buf arguments = {0};
    bool good = name && offers(r->names, name) && put_arguments(j, &arguments);
    if (good)
        add_call(r, name, &arguments);
    buf_free(&arguments);
    return good;
}

/* [{"name": f, "arguments": {...}}, ...]: all of them or none. */
static bool take_list(struct tool_reader *r, const struct json *j)
{
    int before = r->n_calls;
    for (const struct json *v = json_first(j); v; v = json_next(v)) {
        if (r->single && r->n_calls)
            break;
        if (!take_object(r, v)) {
            drop_from(r, before);
            return false;
        }
    }
    return r->n_calls > before;
}

/* name[ARGS]{...}: the object is the arguments. */
static bool take_named(struct tool_reader *r, const struct json *j)
{
    const char *at = r->held.data + r->name_at, *bracket = memchr(at, '[', r->json_at - r->name_at);
    char *name = mem_strndup(at, bracket ? (size_t)(bracket - at) : r->json_at - r->name_at);
    struct buf arguments = {0};
    bool good = json_type(j) == JSON_OBJECT && offers(r->names, name);
    if (good) {
        json_write(&arguments, j, &(struct json_style){.spaced = true});
        add_call(r, name, &arguments);
    }
    mem_free(name);
    return good;
}

static bool take(struct tool_reader *r, const struct json *j)
{
    int before = r->n_calls;
    bool good = r->name_at < r->json_at      ? take_named(r, j)
                : json_type(j) == JSON_ARRAY ? take_list(r, j)
                                             : take_object(r, j);
    r->n_found += r->n_calls - before;
    return good;
}

/* ---- the text */

static void set_state(struct tool_reader *r, int state)
{
    r->state = state;
    r->n_mark = 0;
}

/* What is held is no call. */
static void give_up(struct tool_reader *r)
{
    buf_put(&r->text, r->held.data, r->held.len);
    buf_clear(&r->held);
    r->closing = false;
    set_state(r, r->format == TOOLS_LLAMA3 ? TOOLS_TEXT : TOOLS_BETWEEN);
}

static void open_json(struct tool_reader *r, char b)
{
    r->json_at = r->held.len;
    if (r->state != TOOLS_FUNCTION)
        r->name_at = r->json_at;
    r->depth = 1;
    r->quoted = r->escaped = false;
    buf_putc(&r->held, b);
    set_state(r, TOOLS_JSON);
}

static void close_json(struct tool_reader *r)
{
    struct json *j = json_parse(r->held.data + r->json_at, r->held.len - r->json_at, NULL, NULL);
    if (j && take(r, j)) {
        buf_clear(&r->held);
        r->closing = true;
        set_state(r, TOOLS_BETWEEN);
    } else {
        give_up(r);
    }
    json_free(j);
}

static void put_json(struct tool_reader *r, char b)
{
    buf_putc(&r->held, b);
    if (r->quoted) {
        r->quoted = b != '"' || r->escaped;
        r->escaped = b == '\\' && !r->escaped;
        return;
    }
    r->quoted = b == '"';
    r->depth += b == '{' || b == '[' ? 1 : b == '}' || b == ']' ? -1 : 0;
    if (r->depth == 0)
        close_json(r);
}

static bool is_space(char b)
{
    return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

/* Is the marker that may begin at the end of what is held still this one with b behind it? */
static bool goes_on(const struct tool_reader *r, const char *marker, char b)
{
    return marker && marker[r->n_mark] == b &&
           (!r->n_mark || memcmp(r->held.data + r->held.len - r->n_mark, marker, r->n_mark) == 0);
}

/* A byte that begins a marker or goes on with one. */
static bool put_mark(struct tool_reader *r, char b)
{
    const char *open = formats[r->format].open, *close = r->closing ? formats[r->format].close : NULL;
    bool opens = goes_on(r, open, b), closes = goes_on(r, close, b);
    if (!opens && !closes)
        return false;
    buf_putc(&r->held, b);
    r->n_mark++;
    if (opens && !open[r->n_mark]) {
        set_state(r, TOOLS_HEAD);
    } else if (closes && !close[r->n_mark]) {
        buf_clear(&r->held); /* its call has been taken */
        r->closing = false;
        r->n_mark = 0;
    }
    return true;
}

static void put(struct tool_reader *r, char b);

static void put_between(struct tool_reader *r, char b)
{
    bool bare = r->format == TOOLS_LLAMA3;
    if (put_mark(r, b))
        return;
    if (r->n_mark) { /* it was none; b may begin one */
        give_up(r);
        put(r, b);
        return;
    }
    if (bare && b == '{') {
        open_json(r, b);
        return;
    }
    buf_putc(&r->held, b);
    if (!is_space(b) && !(bare && r->n_found && b == ';'))
        give_up(r);
}

/* Behind a marker. */
static void put_head(struct tool_reader *r, char b)
{
    bool mistral = r->format == TOOLS_MISTRAL;
    if (b == '{' || (mistral && b == '[')) {
        open_json(r, b);
    } else if (is_space(b)) {
        buf_putc(&r->held, b);
    } else if (mistral) {
        r->name_at = r->held.len;
        set_state(r, TOOLS_FUNCTION);
        buf_putc(&r->held, b);
    } else {
        give_up(r);
        put(r, b);
    }
}

/* In the name of a function, where it stands before its arguments. */
static void put_function(struct tool_reader *r, char b)
{
    if (b == '{') {
        open_json(r, b);
    } else if (is_space(b)) {
        give_up(r);
        put(r, b);
    } else {
        buf_putc(&r->held, b);
    }
}

static void put(struct tool_reader *r, char b)
{
    switch (r->state) {
    case TOOLS_BETWEEN:
        put_between(r, b);
        return;
    case TOOLS_HEAD:
        put_head(r, b);
        return;
    case TOOLS_FUNCTION:
        put_function(r, b);
        return;
    case TOOLS_JSON:
        put_json(r, b);
        return;
    case TOOLS_TEXT:
        buf_putc(&r->text, b);
        return;
    }
}

void tool_reader_init(struct tool_reader *r, enum tool_format format, const struct tool_names *names, bool single)
{
    *r = (struct tool_reader){.format = format, .names = names, .single = single};
    r->state = format == TOOLS_NONE ? TOOLS_TEXT : TOOLS_BETWEEN;
}

void tool_reader_put(struct tool_reader *r, const char *s, size_t n)
{
    for (size_t i = 0; i < n && !(r->single && r->n_found); i++)
        put(r, s[i]);
}

void tool_reader_end(struct tool_reader *r)
{
    size_t space = 0;
    while (space < r->held.len && is_space(r->held.data[space]))
        space++;
    if (r->n_found && space == r->held.len) /* around a call */
        buf_clear(&r->held);
    give_up(r);
}

void tool_reader_drop_calls(struct tool_reader *r)
{
    drop_from(r, 0);
    mem_free(r->calls);
    r->calls = NULL;
}

void tool_reader_free(struct tool_reader *r)
{
    tool_reader_drop_calls(r);
    buf_free(&r->text);
    buf_free(&r->held);
}

size_t tool_reader_bytes(const struct tool_reader *r)
{
    return r->text.len + r->held.len + r->call_bytes;
}

void tool_call_id(char out[TOOL_ID_BYTES], uint64_t seed, int choice, int call)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    struct rng r = {rng_at(seed, (uint64_t)(unsigned)choice << 32 | (unsigned)call)};
    for (int i = 0; i < TOOL_ID_BYTES - 1; i++)
        out[i] = letters[rng_below(&r, sizeof letters - 1)];
    out[TOOL_ID_BYTES - 1] = 0;
}
