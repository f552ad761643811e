#include "models/guide/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "models/guide/digits.h"
#include "models/guide/regex.h"

struct schema_rule {
    const struct json *schema, *document;
    int32_t rule;
};

enum { MOST_RULES = 20000 };

/* Keywords that bind and are not kept. */
static const char *const refused[] = {
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "multipleOf",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "propertyNames",
    "$dynamicRef",
    "$recursiveRef",
    "contentEncoding",
};

void schemas_init(struct schemas *s)
{
    *s = (struct schemas){0};
    json_rules_init(&s->json);
}

void schemas_free(struct schemas *s)
{
    grammar_maker_free(&s->json.m);
    map_free(&s->by_schema);
    mem_free(s->list);
    s->list = NULL;
}

int32_t schemas_rule(struct schemas *s, const struct json *schema, const struct json *document)
{
    uint64_t rule;
    if (map_find(&s->by_schema, (uintptr_t)schema, &rule))
        return (int32_t)rule;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 16;
        s->list = mem_resize(s->list, (size_t)s->cap, sizeof *s->list);
    }
    s->list[s->n] = (struct schema_rule){schema, document, grammar_rule(&s->json.m)};
    map_set(&s->by_schema, (uintptr_t)schema, (uint64_t)s->list[s->n].rule);
    return s->list[s->n++].rule;
}

/* ---- schemas */

/* One schema that is being made: where it goes on, and what to say of it. */
struct making {
    struct schemas *s;
    const struct json *schema, *document;
    int32_t end;
    struct err *e;
};

static const struct json *find(const struct making *k, const char *name)
{
    return json_find(k->schema, name);
}

static int wrong(const struct making *k, const char *name, const char *why)
{
    return err_set(k->e, E_INPUT, "'%.60s' %s", name, why);
}

static int32_t either(struct schemas *s, int32_t a, int32_t b)
{
    return a < 0 ? b : grammar_split(&s->json.m, a, b);
}

static int32_t sub(const struct making *k, const struct json *schema, int32_t next)
{
    return grammar_call(&k->s->json.m, schemas_rule(k->s, schema, k->document), next);
}

/* As Python writes it, and models do. */
static void put_literal(const struct json *v, struct buf *out)
{
    json_write(out, v, &(struct json_style){.spaced = true});
}

/* A count of characters or items. */
static int read_count(const struct making *k, const char *name, int otherwise, int *out)
{
    const struct json *v = find(k, name);
    int64_t n;
    *out = otherwise;
    if (!v)
        return 0;
    if (!json_i64(v, &n) || n < 0)
        return wrong(k, name, "must be an integer from 0 on");
    *out = n > GRAMMAR_MOST_NODES ? GRAMMAR_MOST_NODES : (int)n;
    return 0;
}

static int make_string(const struct making *k, int32_t *out)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"},
        {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"date-time", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
                      "(\\.[0-9]{1,6})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    };
    struct grammar_maker *m = &k->s->json.m;
    const struct json *pattern = find(k, "pattern");
    const char *regex = json_text(pattern), *format = json_text(find(k, "format"));
    bool bounded = find(k, "minLength") || find(k, "maxLength");
    int least, most;
    TRY(read_count(k, "minLength", 0, &least));
    TRY(read_count(k, "maxLength", -1, &most));
    if (pattern && !regex)
        return wrong(k, "pattern", "must be a string");
    if (pattern && bounded)
        return wrong(k, "pattern", "beside 'minLength' or 'maxLength' is not supported");
    for (size_t i = 0; format && !regex && !bounded && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i].name) == 0)
            regex = formats[i].pattern;
    int32_t close = grammar_byte(m, '"', k->end), body = close;
    if (regex) {
        TRY(regex_make(m, regex, true, close, &body, k->e));
    } else if (most < 0) {
        body = grammar_open(m, close);
        grammar_close(m, body, rule_character(&k->s->json, body));
    }
    if (most >= 0 && most < least)
        return wrong(k, "maxLength", "is less than 'minLength'");
    for (int i = least; i < most && !m->over; i++)
        body = grammar_split(m, rule_character(&k->s->json, body), close);
    for (int i = 0; i < least && !m->over; i++)
        body = rule_character(&k->s->json, body);
    *out = grammar_byte(m, '"', body);
    return 0;
}

/* A bound and its exclusive twin, which JSON Schema's fourth draft wrote as true or false; the tighter one counts. up:
 * an upper bound. */
static int read_bound(const struct making *k, const char *const names[2], bool up, double *bound, bool *open)
{
    const struct json *plain = find(k, names[0]), *strict = find(k, names[1]);
    *bound = up ? INFINITY : -INFINITY;
    *open = false;
    if (plain && json_type(plain) != JSON_NUMBER)
        return wrong(k, names[0], "must be a number");
    if (strict && json_type(strict) != JSON_NUMBER && json_type(strict) != JSON_BOOL)
        return wrong(k, names[1], "must be a number");
    if (plain) {
        *bound = json_number(plain);
        *open = json_type(strict) == JSON_BOOL && json_true(strict);
    }
    if (json_type(strict) == JSON_NUMBER && (up ? json_number(strict) <= *bound : json_number(strict) >= *bound)) {
        *bound = json_number(strict);
        *open = true;
    }
    return 0;
}

static int read_bounds(const struct making *k, double of[2], bool open[2])
{
    static const char *const least[] = {"minimum", "exclusiveMinimum"}, *const most[] = {"maximum", "exclusiveMaximum"};
    TRY(read_bound(k, least, false, &of[0], &open[0]));
    TRY(read_bound(k, most, true, &of[1], &open[1]));
    if ((double)DIGITS_MOST < of[0] || of[1] < -(double)DIGITS_MOST)
        return wrong(k, of[1] < 0 ? "maximum" : "minimum", "is out of range: numbers have at most 16 digits");
    of[0] = fmax(of[0], -(double)DIGITS_MOST);
    of[1] = fmin(of[1], (double)DIGITS_MOST);
    return 0;
}

static int make_integer(const struct making *k, int32_t *out)
{
    double of[2];
    bool open[2];
    TRY(read_bounds(k, of, open));
    int64_t least = (int64_t)ceil(of[0]), most = (int64_t)floor(of[1]);
    struct digits_bounds b = {.least = least + (open[0] && (double)least == of[0]),
                              .most = most - (open[1] && (double)most == of[1])};
    if (!isfinite(of[0]) || b.least < -DIGITS_MOST)
        b.least = -DIGITS_MOST;
    if (b.most > DIGITS_MOST)
        b.most = DIGITS_MOST;
    *out = digits_integer(&k->s->json.m, &b, k->end);
    return *out < 0 ? wrong(k, "minimum", "and 'maximum' leave no integer") : 0;
}

static int make_number(const struct making *k, int32_t *out)
{
    double of[2];
    bool open[2];
    TRY(read_bounds(k, of, open));
    for (int i = 0; i < 2; i++)
        if (of[i] != floor(of[i]))
            return wrong(k, i ? "maximum" : "minimum", "of a number that is no integer has to be one");
    *out = digits_number(
        &k->s->json.m,
        &(struct digits_bounds){(int64_t)of[0], (int64_t)of[1], .least_open = open[0], .most_open = open[1]}, k->end);
    return *out < 0 ? wrong(k, "minimum", "and 'maximum' leave no number") : 0;
}

static bool has_bounds(const struct making *k)
{
    return find(k, "minimum") || find(k, "maximum") || find(k, "exclusiveMinimum") || find(k, "exclusiveMaximum");
}

/* ---- arrays */

struct array {
    const struct json *first, *rest; /* schemas of the first items; of those behind; NULL: none, or any value */
    bool has_rest;                   /* there may be items behind the first */
    int n_first, least, most;        /* most -1: any number */
};

static int read_array(const struct making *k, struct array *a)
{
    const struct json *items = find(k, "items"), *prefix = find(k, "prefixItems");
    bool old = json_type(items) == JSON_ARRAY; /* before draft 2020-12 */
    *a = (struct array){.first = old ? items : prefix, .rest = old ? find(k, "additionalItems") : items};
    if (a->first && json_type(a->first) != JSON_ARRAY)
        return wrong(k, "prefixItems", "must be an array of schemas");
    TRY(read_count(k, "minItems", 0, &a->least));
    TRY(read_count(k, "maxItems", -1, &a->most));
    a->n_first = a->first ? (int)json_count(a->first) : 0;
    bool closed = json_type(a->rest) == JSON_BOOL && !json_true(a->rest);
    a->has_rest = !closed && (a->rest || !a->first || a->least > a->n_first);
    if (!a->has_rest && (a->most < 0 || a->most > a->n_first))
        a->most = a->n_first;
    return a->most >= 0 && a->least > a->most ? wrong(k, "minItems", "is more than there may be") : 0;
}

static int32_t make_item(const struct making *k, const struct json *schema, int32_t next)
{
    return schema ? sub(k, schema, next) : rule_value(&k->s->json, next);
}

static int make_array(const struct making *k, int32_t *out)
{
    struct grammar_maker *m = &k->s->json.m;
    struct array a;
    TRY(read_array(k, &a));
    int32_t empty = grammar_byte(m, ']', k->end), close = rule_spaces(&k->s->json, empty), first;
    int n = a.most >= 0 ? a.most : a.least > a.n_first ? a.least : a.n_first;
    const struct json **schemas = mem_new_array((size_t)n + 1, sizeof *schemas), *item = json_first(a.first);
    for (int i = 0; i < n; i++, item = item ? json_next(item) : NULL)
        schemas[i] = item ? item : a.rest;
    if (a.most < 0 && !n)
        n = 1, schemas[0] = a.rest;
    if (a.most < 0) {
        first = grammar_open(m, close);
        grammar_close(m, first, grammar_byte(m, ',', rule_spaces(&k->s->json, make_item(k, a.rest, first))));
    } else {
        first = n ? close : empty;
    }
    for (int i = n - 1; i >= 0 && !m->over; i--) { /* with i items there */
        first = make_item(k, schemas[i], first);
        if (i)
            first = grammar_byte(m, ',', rule_spaces(&k->s->json, first));
        if (i >= a.least)
            first = grammar_split(m, first, i ? close : empty);
    }
    mem_free(schemas);
    *out = grammar_byte(m, '[', rule_spaces(&k->s->json, first));
    return 0;
}

/* ---- objects */

struct member {
    const char *name;
    const struct json *schema; /* NULL: any value */
    bool required;
    int32_t rule;
};

struct members {
    struct member *list;
    int n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of `required`, sorted. */
static int read_required(const struct making *k, const char ***out, size_t *n)
{
    const struct json *required = find(k, "required");
    *n = 0;
    *out = NULL;
    if (!required || json_type(required) == JSON_BOOL) /* draft 3 said it of the member itself */
        return 0;
    if (json_type(required) != JSON_ARRAY)
        return wrong(k, "required", "must be an array of names");
    const char **names = mem_new_array(json_count(required) + 1, sizeof *names);
    for (const struct json *v = json_first(required); v; v = json_next(v)) {
        if (!json_text(v)) {
            mem_free(names);
            return wrong(k, "required", "must be an array of names");
        }
        names[(*n)++] = json_text(v);
    }
    if (*n)
        qsort(names, *n, sizeof *names, by_name);
    *out = names;
    return 0;
}

/* Those of `properties` in their order, then those that are required beyond them. */
static int read_members(const struct making *k, struct members *out)
{
    const struct json *properties = find(k, "properties");
    const char **names;
    size_t n;
    if (properties && json_type(properties) != JSON_OBJECT)
        return wrong(k, "properties", "must be an object of schemas");
    TRY(read_required(k, &names, &n));
    out->list = mem_new_array(json_count(properties) + n + 1, sizeof *out->list);
    for (const struct json *v = json_first(properties); v; v = json_next(v)) {
        const char *name = json_key(v);
        bool required = n && bsearch(&name, names, n, sizeof *names, by_name);
        if (required || json_type(v) != JSON_BOOL || json_true(v)) /* false: it may not be there */
            out->list[out->n++] = (struct member){name, v, required, -1};
    }
    for (size_t i = 0; i < n; i++)
        if (!json_find(properties, names[i]) && (!i || strcmp(names[i], names[i - 1]) != 0))
            out->list[out->n++] = (struct member){names[i], NULL, true, -1};
    mem_free(names);
    return 0;
}

/* "name": value */
static int32_t make_member(const struct making *k, const struct member *x)
{
    struct grammar_maker *m = &k->s->json.m;
    int32_t rule = grammar_rule(m), first = make_item(k, x->schema, grammar_end(m));
    struct buf name = {0};
    json_put_string(&name, x->name, strlen(x->name), false);
    first = grammar_text(m, name.data, name.len, grammar_byte(m, ':', rule_spaces(&k->s->json, first)));
    grammar_make_rule(m, rule, first);
    buf_free(&name);
    return rule;
}

/* Each has two ways in: with nothing before it, and behind another one. */
static int32_t make_members(const struct making *k, struct members *x)
{
    struct grammar_maker *m = &k->s->json.m;
    int32_t first = grammar_byte(m, '}', k->end), behind = rule_spaces(&k->s->json, first);
    for (int i = x->n - 1; i >= 0 && !m->over; i--) {
        int32_t rule = make_member(k, &x->list[i]), alone = grammar_call(m, rule, behind),
                after = grammar_byte(m, ',', rule_spaces(&k->s->json, alone));
        first = x->list[i].required ? alone : grammar_split(m, alone, first);
        behind = x->list[i].required ? after : grammar_split(m, after, behind);
    }
    return grammar_byte(m, '{', rule_spaces(&k->s->json, first));
}

/* Any names, with values by one schema. */
static int32_t make_map(const struct making *k, const struct json *values)
{
    struct grammar_maker *m = &k->s->json.m;
    int32_t close = grammar_byte(m, '}', k->end), more = grammar_open(m, rule_spaces(&k->s->json, close)),
            one = rule_text(&k->s->json, grammar_byte(m, ':', rule_spaces(&k->s->json, sub(k, values, more))));
    grammar_close(m, more, grammar_byte(m, ',', rule_spaces(&k->s->json, one)));
    return grammar_byte(m, '{', rule_spaces(&k->s->json, grammar_split(m, one, close)));
}

static int make_object(const struct making *k, int32_t *out)
{
    const struct json *more = find(k, "additionalProperties");
    struct members x = {0};
    TRY(read_members(k, &x));
    if (x.n || (json_type(more) == JSON_BOOL && !json_true(more)))
        *out = make_members(k, &x);
    else if (json_type(more) == JSON_OBJECT)
        *out = make_map(k, more);
    else
        *out = rule_object(&k->s->json, k->end);
    mem_free(x.list);
    return 0;
}

/* ---- any schema */

static int make_type(const struct making *k, const char *type, int32_t *out)
{
    if (strcmp(type, "object") == 0)
        return make_object(k, out);
    if (strcmp(type, "array") == 0)
        return make_array(k, out);
    if (strcmp(type, "string") == 0)
        return make_string(k, out);
    if (strcmp(type, "integer") == 0 && has_bounds(k))
        return make_integer(k, out);
    if (strcmp(type, "number") == 0 && has_bounds(k))
        return make_number(k, out);
    if (strcmp(type, "integer") == 0)
        *out = rule_integer(&k->s->json, k->end);
    else if (strcmp(type, "number") == 0)
        *out = rule_number(&k->s->json, k->end);
    else if (strcmp(type, "boolean") == 0)
        *out = grammar_split(&k->s->json.m, rule_word(&k->s->json, "true", k->end),
                             rule_word(&k->s->json, "false", k->end));
    else if (strcmp(type, "null") == 0)
        *out = rule_word(&k->s->json, "null", k->end);
    else
        return wrong(k, "type", "must be object, array, string, number, integer, boolean or null");
    return 0;
}

/* Of a schema that does not say its type. NULL: any. */
static const char *type_by_keywords(const struct making *k)
{
    static const struct {
        const char *keyword, *type;
    } of[] = {
        {"properties", "object"},
        {"required", "object"},
        {"additionalProperties", "object"},
        {"items", "array"},
        {"prefixItems", "array"},
        {"minItems", "array"},
        {"maxItems", "array"},
        {"pattern", "string"},
        {"minLength", "string"},
        {"maxLength", "string"},
        {"minimum", "number"},
        {"maximum", "number"},
        {"exclusiveMinimum", "number"},
        {"exclusiveMaximum", "number"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (find(k, of[i].keyword))
            return of[i].type;
    return NULL;
}

static int make_types(const struct making *k, int32_t *out)
{
    const struct json *type = find(k, "type");
    const char *guess = type_by_keywords(k);
    if (!type && !guess) {
        *out = rule_value(&k->s->json, k->end);
        return 0;
    }
    if (!type || json_text(type))
        return make_type(k, type ? json_text(type) : guess, out);
    if (json_type(type) != JSON_ARRAY || !json_first(type))
        return wrong(k, "type", "must be a name, or an array of names");
    *out = -1;
    for (const struct json *v = json_first(type); v; v = json_next(v)) {
        int32_t one;
        TRY(make_type(k, json_text(v) ? json_text(v) : "", &one));
        *out = either(k->s, *out, one);
    }
    return 0;
}

/* Names of $refs: ~1 is /, ~0 is ~. */
static const struct json *step_into(const struct json *at, const char *name, size_t n)
{
    char key[256];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (len + 1 == sizeof key)
            return NULL;
        bool escaped = name[i] == '~' && i + 1 < n && (name[i + 1] == '0' || name[i + 1] == '1');
        key[len++] = !escaped ? name[i] : name[i + 1] == '0' ? '~' : '/';
        i += escaped;
    }
    key[len] = 0;
    if (json_type(at) != JSON_ARRAY)
        return json_find(at, key);
    const struct json *v = json_first(at);
    for (long i = strtol(key, NULL, 10); v && i > 0; i--)
        v = json_next(v);
    return v;
}

static int make_ref(const struct making *k, const struct json *v, int32_t *out)
{
    const char *ref = json_text(v);
    const struct json *at = k->document;
    if (!ref || *ref != '#' || (ref[1] && ref[1] != '/'))
        return wrong(k, "$ref", "must lead to a place in this schema, such as \"#/$defs/name\"");
    for (const char *p = ref + 1; *p && at; p += strcspn(p + 1, "/") + 1)
        at = step_into(at, p + 1, strcspn(p + 1, "/"));
    if (!at)
        return err_set(k->e, E_INPUT, "'$ref': there is no %.100s", ref);
    *out = sub(k, at, k->end);
    return 0;
}

static int make_any_of(const struct making *k, const struct json *list, int32_t *out)
{
    *out = -1;
    for (const struct json *v = json_first(list); v; v = json_next(v))
        *out = either(k->s, *out, sub(k, v, k->end));
    return *out < 0 ? wrong(k, "anyOf", "must be an array of schemas") : 0;
}

static int make_enum(const struct making *k, const struct json *list, int32_t *out)
{
    if (json_type(list) != JSON_ARRAY || !json_first(list))
        return wrong(k, "enum", "must be an array of values");
    struct strings texts = {.items = mem_new_array(json_count(list), sizeof *texts.items)};
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        struct buf text = {0};
        put_literal(v, &text);
        texts.items[texts.n++] = buf_take(&text);
    }
    *out = grammar_one_of(&k->s->json.m, &texts, k->end);
    for (int i = 0; i < texts.n; i++)
        mem_free(texts.items[i]);
    mem_free(texts.items);
    return 0;
}

static int make_const(const struct making *k, const struct json *v, int32_t *out)
{
    struct buf text = {0};
    put_literal(v, &text);
    *out = grammar_text(&k->s->json.m, text.data, text.len, k->end);
    buf_free(&text);
    return 0;
}

static int make_all_of(const struct making *k, const struct json *list, int32_t *out)
{
    if (json_type(list) != JSON_ARRAY || json_count(list) != 1)
        return wrong(k, "allOf", "of more than one schema is not supported");
    *out = sub(k, json_first(list), k->end);
    return 0;
}

/* Keywords that say all of a schema. */
static const struct {
    const char *name;
    int (*make)(const struct making *, const struct json *, int32_t *);
    bool with_type; /* `type` beside it says nothing new */
} whole[] = {
    {"$ref", make_ref, false},     {"const", make_const, true},   {"enum", make_enum, true},
    {"anyOf", make_any_of, false}, {"oneOf", make_any_of, false}, {"allOf", make_all_of, false},
};

static int check_alone(const struct making *k, size_t chosen)
{
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (i != chosen && find(k, whole[i].name) && !(whole[chosen].with_type && whole[i].with_type))
            return err_set(k->e, E_INPUT, "'%s' beside '%s' is not supported", whole[i].name, whole[chosen].name);
    if (!whole[chosen].with_type && (find(k, "type") || type_by_keywords(k)))
        return err_set(k->e, E_INPUT, "keywords of a type beside '%s' are not supported", whole[chosen].name);
    return 0;
}

static int make_schema(const struct making *k, int32_t *out)
{
    if (json_type(k->schema) == JSON_BOOL && json_true(k->schema)) {
        *out = rule_value(&k->s->json, k->end);
        return 0;
    }
    if (json_type(k->schema) != JSON_OBJECT)
        return err_set(k->e, E_INPUT, "a schema must be an object, not %s", json_type_name(k->schema));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct json *v = find(k, refused[i]);
        if (v && json_type(v) != JSON_NULL && !(json_type(v) == JSON_BOOL && !json_true(v)))
            return wrong(k, refused[i], "is not supported");
    }
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (find(k, whole[i].name)) {
            TRY(check_alone(k, i));
            return whole[i].make(k, find(k, whole[i].name), out);
        }
    return make_types(k, out);
}

int schemas_make(struct schemas *s, struct err *e)
{
    for (; s->n_made < s->n; s->n_made++) {
        struct schema_rule r = s->list[s->n_made]; /* a copy: the list grows */
        struct making k = {.s = s, .schema = r.schema, .document = r.document, .end = grammar_end(&s->json.m), .e = e};
        int32_t first;
        if (s->n > MOST_RULES || s->json.m.over)
            return err_set(e, E_INPUT, "it is too large");
        TRY(make_schema(&k, &first));
        grammar_make_rule(&s->json.m, r.rule, first);
    }
    return 0;
}
