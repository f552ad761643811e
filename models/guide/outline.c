#include "models/guide/outline.h"

#include <string.h>

#include "engine/base/mem.h"
#include "models/guide/gbnf.h"
#include "models/guide/regex.h"
#include "models/guide/schema.h"

enum { MOST_BYTES = 1 << 18 };

static int too_large(struct err *e)
{
    return err_set(e, E_INPUT, "it is too large: more than %d KiB", MOST_BYTES >> 10);
}

static int check_size(const struct json *schema, struct err *e)
{
    struct buf text = {.limit = MOST_BYTES};
    json_write(&text, schema, NULL);
    bool over = text.over;
    buf_free(&text);
    return over ? too_large(e) : 0;
}

/* What has been begun with rule 0 is finished, or all of it is freed. */
static int finish(struct schemas *s, int rc, struct grammar **out, struct err *e)
{
    if (!rc)
        rc = schemas_make(s, e);
    if (!rc)
        rc = grammar_finish(&s->json.m, out, e);
    schemas_free(s);
    return rc;
}

int outline_schema(const struct json *schema, struct grammar **out, struct err *e)
{
    struct schemas s;
    TRY(check_size(schema, e));
    schemas_init(&s);
    schemas_rule(&s, schema, schema);
    return finish(&s, 0, out, e);
}

int outline_object(struct grammar **out, struct err *e)
{
    struct schemas s;
    schemas_init(&s);
    int32_t whole = grammar_rule(&s.json.m);
    grammar_make_rule(&s.json.m, whole, rule_object(&s.json, grammar_end(&s.json.m)));
    return finish(&s, 0, out, e);
}

int outline_choice(const struct json *texts, struct grammar **out, struct err *e)
{
    struct schemas s;
    struct strings all = {.items = mem_new_array(json_count(texts) + 1, sizeof *all.items)};
    schemas_init(&s);
    int32_t whole = grammar_rule(&s.json.m), end = grammar_end(&s.json.m);
    int rc = json_type(texts) == JSON_ARRAY && json_first(texts) ? 0 : err_set(e, E_INPUT, "it must list some strings");
    if (!rc)
        rc = check_size(texts, e);
    for (const struct json *v = json_first(texts); v && !rc; v = json_next(v)) {
        if (!json_text(v) || !*json_text(v))
            rc = err_set(e, E_INPUT, "a choice must be a string that is not empty");
        else
            all.items[all.n++] = (char *)(uintptr_t)json_text(v); /* read only */
    }
    if (!rc)
        grammar_make_rule(&s.json.m, whole, grammar_one_of(&s.json.m, &all, end));
    mem_free(all.items);
    return finish(&s, rc, out, e);
}

int outline_regex(const char *text, struct grammar **out, struct err *e)
{
    struct schemas s;
    int32_t first = -1;
    if (strnlen(text, MOST_BYTES + 1) > MOST_BYTES)
        return too_large(e);
    schemas_init(&s);
    int32_t whole = grammar_rule(&s.json.m);
    int rc = regex_make(&s.json.m, text, false, grammar_end(&s.json.m), &first, e);
    grammar_make_rule(&s.json.m, whole, first);
    return finish(&s, rc, out, e);
}

int outline_gbnf(const char *text, struct grammar **out, struct err *e)
{
    struct schemas s;
    if (strnlen(text, MOST_BYTES + 1) > MOST_BYTES)
        return too_large(e);
    schemas_init(&s);
    return finish(&s, gbnf_make(&s.json.m, text, e), out, e);
}

/* ---- calls */

static const struct {
    const char *before, *between, *after, *more; /* around the name and the arguments; between calls */
} calls[] = {
    [TOOLS_HERMES] = {"<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>", "\n"},
    [TOOLS_LLAMA3] = {"{\"name\": ", ", \"parameters\": ", "}", "; "},
};

static int32_t put(struct schemas *s, const char *text, int32_t next)
{
    return grammar_text(&s->json.m, text, strlen(text), next);
}

static int32_t make_call(struct schemas *s, enum tool_format format, const struct json *function, int32_t next)
{
    const struct json *parameters = json_find(function, "parameters");
    const char *name = json_member_text(function, "name");
    bool any = json_type(parameters) != JSON_OBJECT || !json_first(parameters);
    int32_t after = put(s, calls[format].after, next),
            first = any ? rule_object(&s->json, after)
                        : grammar_call(&s->json.m, schemas_rule(s, parameters, parameters), after);
    first = put(s, calls[format].between, first);
    struct buf quoted = {0};
    json_put_string(&quoted, name, strlen(name), false);
    first = put(s, calls[format].before, put(s, quoted.data, first));
    buf_free(&quoted);
    return first;
}
/* ---- thoughts */

/* How much of the marker is said once b has followed the first n bytes of it. */
static size_t said_after(const char *marker, size_t n, char b)
{
    for (size_t k = n + 1; k; k--) /* the longest beginning of it that this ends with */
        if (marker[k - 1] == b && memcmp(marker, marker + n - (k - 1), k - 1) == 0)
            return k;
    return 0;
}

/* What is no further byte of the marker, of which n bytes are said. */
static int32_t other_ways(struct grammar_maker *m, const char *marker, size_t n, const int32_t *places)
{
    int32_t ways = grammar_wide(m, places[0]);
    for (size_t to = 0; to <= n; to++) {
        struct grammar_set s = {{0}};
        bool any = false;
        for (int b = 0; b < 128; b++)
            if (b != marker[n] && said_after(marker, n, (char)b) == to) {
                s.bits[b >> 6] |= (uint64_t)1 << (b & 63);
                any = true;
            }
        if (any)
            ways = grammar_split(m, ways, grammar_set(m, &s, places[to]));
    }
    return ways;
}

/* Any text that ends with the first marker in it. */
static int32_t up_to(struct grammar_maker *m, const char *marker, int32_t next)
{
    size_t n = strlen(marker);
    int32_t *places = mem_new_array(n + 1, sizeof *places); /* by how much of the marker is said */
    places[n] = next;
    for (size_t i = n; i-- > 0;)
        places[i] = grammar_open(m, grammar_byte(m, (unsigned char)marker[i], places[i + 1]));
    for (size_t i = 0; i < n; i++)
        grammar_close(m, places[i], other_ways(m, marker, i, places));
    next = places[0];
    mem_free(places);
    return next;
}

int outline_thought(const char *begin, const char *end, const struct grammar *inner, struct grammar **out,
                    struct err *e)
{
    struct grammar_maker m = {0};
    int32_t whole = grammar_rule(&m), form = grammar_include(&m, inner),
            behind = grammar_call(&m, form, grammar_end(&m));
    int32_t line = grammar_split(&m, behind, grammar_byte(&m, '\n', behind)),
            lines = grammar_split(&m, behind, grammar_byte(&m, '\n', line)), first = up_to(&m, end, lines);
    if (begin)
        first = grammar_split(&m, behind, grammar_text(&m, begin, strlen(begin), first));
    grammar_make_rule(&m, whole, first);
    return grammar_finish(&m, out, e);
}

int outline_calls(enum tool_format format, const struct json *tools, const char *name, bool several,
                  struct grammar **out, struct err *e)
{
    struct schemas s;
    int32_t all = -1;
    if (format != TOOLS_HERMES && format != TOOLS_LLAMA3)
        return err_set(e, E_UNSUPPORTED, "a call cannot be forced in the way in which this model writes them");
    TRY(check_size(tools, e));
    schemas_init(&s);
    int32_t whole = grammar_rule(&s.json.m), end = grammar_end(&s.json.m),
            more = several ? grammar_open(&s.json.m, end) : end;
    for (const struct json *t = json_first(tools); t; t = json_next(t)) {
        const struct json *f = json_find(t, "function");
        if (name && strcmp(name, json_member_text(f, "name")) != 0)
            continue;
        int32_t one = make_call(&s, format, f, more);
        all = all < 0 ? one : grammar_split(&s.json.m, all, one);
    }
    if (several && all >= 0)
        grammar_close(&s.json.m, more, put(&s, calls[format].more, all));
    grammar_make_rule(&s.json.m, whole, all);
    return finish(&s, all < 0 ? err_set(e, E_INPUT, "there is no such function in 'tools'") : 0, out, e);
}
