#include "engine/serve/openai/guided.h"

#include <string.h>

#include "engine/base/shared.h"
#include "models/guide/outline.h"

/* What is asked for, and under which name. value: a schema, a string, a list, or the tools. */
struct wish {
    enum { WISH_NONE, WISH_OBJECT, WISH_SCHEMA, WISH_REGEX, WISH_GRAMMAR, WISH_CHOICE, WISH_CALL } kind;
    const char *param;
    const struct json *value;
    struct json *parsed; /* where it came as a string: owned */
    const char *name;    /* WISH_CALL: of the function; NULL: any */
};

static int bad(struct fault *f, const char *param, const char *why)
{
    return fault_set(f, 400, "invalid_value", param, "'%s' %s", param, why);
}

static int take(struct wish *w, int kind, const char *param, const struct json *value, struct fault *f)
{
    if (w->kind != WISH_NONE)
        return fault_set(f, 400, "invalid_value", param, "'%s' and '%s' both say what the answer has to be", w->param,
                         param);
    w->kind = kind;
    w->param = param;
    w->value = value;
    return 0;
}

/* An object, or JSON text of one. */
static int take_schema(struct wish *w, const char *param, const struct json *v, struct fault *f)
{
    const char *text = json_text(v);
    struct err e = {0};
    TRY(take(w, WISH_SCHEMA, param, v, f));
    if (!text)
        return 0;
    w->value = w->parsed = json_parse(text, strlen(text), NULL, &e);
    return w->parsed ? 0 : fault_set(f, 400, "invalid_value", param, "'%s' is no JSON: %s", param, e.text);
}

static int take_regex(struct wish *w, const char *param, const struct json *v, struct fault *f)
{
    return json_text(v) ? take(w, WISH_REGEX, param, v, f) : bad(f, param, "must be a string, a regular expression");
}

static int take_grammar(struct wish *w, const char *param, const struct json *v, struct fault *f)
{
    return json_text(v) ? take(w, WISH_GRAMMAR, param, v, f) : bad(f, param, "must be a string, a grammar in GBNF");
}

static int take_choice(struct wish *w, const char *param, const struct json *v, struct fault *f)
{
    return take(w, WISH_CHOICE, param, v, f);
}

static int read_format(struct wish *w, const struct json *v, struct fault *f)
{
    static const char name[] = "response_format";
    const char *type = json_text(json_find(v, "type"));
    if (json_type(v) == JSON_NULL)
        return 0;
    if (!type)
        return fault_set(f, 400, "invalid_type", name, "'response_format' must be an object with a 'type'");
    if (strcmp(type, "text") == 0)
        return 0;
    if (strcmp(type, "json_object") == 0)
        return take(w, WISH_OBJECT, name, v, f);
    if (strcmp(type, "json_schema") != 0)
        return fault_set(f, 400, "unsupported_parameter", name,
                         "'response_format' of type '%.40s' is not supported; text, json_object and json_schema are",
                         type);
    const struct json *schema = json_find(json_find(v, "json_schema"), "schema");
    return schema ? take_schema(w, name, schema, f)
                  : bad(f, name, "of type json_schema must have {\"json_schema\": {\"schema\": ...}}");
}

/* vLLM's, and its older names; llama.cpp's and SGLang's. */
static const struct {
    const char *within, *name;
    int (*take)(struct wish *, const char *, const struct json *, struct fault *);
} fields[] = {
    {"structured_outputs", "json", take_schema},
    {"structured_outputs", "regex", take_regex},
    {"structured_outputs", "choice", take_choice},
    {"structured_outputs", "grammar", take_grammar},
    {NULL, "guided_json", take_schema},
    {NULL, "guided_regex", take_regex},
    {NULL, "guided_choice", take_choice},
    {NULL, "guided_grammar", take_grammar},
    {NULL, "grammar", take_grammar},
    {NULL, "ebnf", take_grammar},
    {NULL, "json_schema", take_schema},
    {NULL, "regex", take_regex},
};

static int read_structured(struct wish *w, const struct json *v, struct fault *f)
{
    static const char name[] = "structured_outputs";
    if (json_type(v) != JSON_NULL && json_type(v) != JSON_OBJECT)
        return bad(f, name, "must be an object");
    if (json_type(json_find(v, "structural_tag")) != JSON_NULL)
        return fault_set(f, 400, "unsupported_parameter", name,
                         "'structured_outputs' takes json, json_object, regex, choice and grammar; 'structural_tag' is "
                         "not supported");
    return json_true(json_find(v, "json_object")) ? take(w, WISH_OBJECT, name, v, f) : 0;
}

static int read_fields(struct wish *w, const struct json *body, struct fault *f)
{
    TRY(read_format(w, json_find(body, "response_format"), f));
    TRY(read_structured(w, json_find(body, "structured_outputs"), f));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *within = fields[i].within;
        const struct json *v = json_find(within ? json_find(body, within) : body, fields[i].name);
        if (json_type(v) != JSON_NULL && !(json_type(v) == JSON_STRING && !*json_text(v)))
            TRY(fields[i].take(w, within ? within : fields[i].name, v, f));
    }
    return 0;
}

/* "required", or a function by name. */
static int read_forced(struct wish *w, const struct json *body, struct fault *f)
{
    const struct json *choice = json_find(body, "tool_choice"), *tools = json_find(body, "tools");
    const char *word = json_text(choice);
    if (json_type(choice) == JSON_NULL || (word && strcmp(word, "required") != 0))
        return 0;
    if (!json_first(tools))
        return bad(f, "tool_choice", "asks for a call, and 'tools' has no function");
    w->name = json_text(json_find(json_find(choice, "function"), "name"));
    return take(w, WISH_CALL, "tool_choice", tools, f);
}

/* What would leave no token that may follow, or is read elsewhere. */
static int check_together(const struct openai_params *p, const struct wish *w, struct fault *f)
{
    const char *other = p->allowed       ? "allowed_token_ids"
                        : p->ignore_eos  ? "ignore_eos"
                        : p->min_tokens  ? "min_tokens"
                        : p->probe_every ? "early_stop"
                                         : NULL;
    if (!other)
        return 0;
    return fault_set(f, 400, "invalid_value", other, "'%s' does not go with '%s', which says what the answer has to be",
                     other, w->param);
}

static int make(const struct front_text *t, struct openai_params *p, const struct wish *w, struct err *e)
{
    switch (w->kind) {
    case WISH_OBJECT:
        return outline_object(&p->grammar, e);
    case WISH_SCHEMA:
        return outline_schema(w->value, &p->grammar, e);
    case WISH_REGEX:
        return outline_regex(json_text(w->value), &p->grammar, e);
    case WISH_GRAMMAR:
        return outline_gbnf(json_text(w->value), &p->grammar, e);
    case WISH_CHOICE:
        return outline_choice(w->value, &p->grammar, e);
    case WISH_CALL:
        if (t->tools == TOOLS_NONE)
            return err_set(e, E_UNSUPPORTED,
                           "the chat template does not say how the model writes calls "
                           "(--tool-call-parser does)");
        return outline_calls(t->tools, w->value, w->name, !w->name && !p->one_call, &p->grammar, e);
    case WISH_NONE:
        break;
    }
    return 0;
}

/* A model that thinks may do so first. Where that cannot be told from the form, the answer is the form at once. */
static int let_think(const struct front_text *t, struct openai_params *p, struct err *e)
{
    const struct think_marks *m = t->think;
    struct grammar *form = p->grammar;
    if (p->thinks == THINK_TEXT)
        return 0;
    if (!m->is_text) {
        p->thinks = THINK_TEXT;
        return 0;
    }
    p->grammar = NULL;
    int rc = outline_thought(p->thinks == THINK_FIRST ? m->begin : NULL, m->end, form, &p->grammar, e);
    shared_drop(form);
    return rc;
}

/* Equal keys, equal grammars. */
static struct sha256 key_of(const struct front_text *t, const struct openai_params *p, const struct wish *w)
{
    struct buf text = {0};
    buf_printf(&text, "%d %d %d %d %s ", (int)w->kind, (int)t->tools, p->one_call, (int)p->thinks,
               w->name ? w->name : "");
    if (w->kind != WISH_OBJECT)
        json_write(&text, w->value, NULL);
    struct sha256 key = hash_sha256(text.data, text.len);
    buf_free(&text);
    return key;
}

static int read_wish(const struct front_text *t, struct openai_params *p, const struct json *body, struct wish *w,
                     struct fault *f)
{
    struct err e = {0};
    TRY(read_fields(w, body, f));
    if (p->route == ROUTE_CHAT)
        TRY(read_forced(w, body, f));
    if (w->kind == WISH_NONE)
        return 0;
    TRY(check_together(p, w, f));
    int rc = make(t, p, w, &e);
    if (!rc)
        rc = let_think(t, p, &e);
    if (rc)
        return fault_set(f, 400, rc == E_UNSUPPORTED ? "unsupported_parameter" : "invalid_value", w->param, "'%s': %s",
                         w->param, e.text);
    p->grammar_key = key_of(t, p, w);
    return 0;
}

int openai_guided_read(const struct front_text *t, struct openai_params *p, const struct json *body, struct fault *f)
{
    struct wish w = {.kind = WISH_NONE};
    int rc = read_wish(t, p, body, &w, f);
    json_free(w.parsed);
    return rc;
}
