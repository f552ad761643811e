#include "engine/serve/embed/ask.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

enum { MAX_NODES = 1500000, ID_WORK = 8 };

int embed_model_init(struct embed_model *m, const struct encoder *c, struct err *e)
{
    struct tokens none = {0}, some = {0};
    struct tokenize_how how = {0};
    int first;
    m->encoder = c;
    m->facts = encoder_facts(c);
    m->n_suffix = 0;
    int rc = encoder_tokenize(c, &(struct encoder_text){"", NULL, 0, 0}, how, &none, &first, e);
    if (!rc)
        rc = encoder_tokenize(c, &(struct encoder_text){"a", NULL, 1, 0}, how, &some, &first, e);
    size_t n = 0;
    while (!rc && n < none.len && n < some.len && none.ids[none.len - 1 - n] == some.ids[some.len - 1 - n])
        n++;
    m->n_suffix = (int)n;
    tokens_free(&none);
    tokens_free(&some);
    return rc;
}

/* ---- plain fields */

static int bad(struct fault *f, const char *param, const char *what, const struct json *got)
{
    return fault_set(f, 400, "invalid_type", param, "'%s' must be %s, not %s", param, what, json_type_name(got));
}

static const struct json *given(const struct json *body, const char *name)
{
    const struct json *v = json_find(body, name);
    return json_type(v) == JSON_NULL ? NULL : v;
}

static int read_flag(const struct json *body, const char *name, bool *out, struct fault *f)
{
    const struct json *v = given(body, name);
    if (v && json_type(v) != JSON_BOOL)
        return bad(f, name, "true or false", v);
    if (v)
        *out = json_true(v);
    return 0;
}

static int read_int(const struct json *body, const char *name, int64_t min, int *out, struct fault *f)
{
    const struct json *v = given(body, name);
    int64_t n;
    if (!v)
        return 0;
    if (!json_i64(v, &n))
        return bad(f, name, "an integer", v);
    if (n < min || n > INT32_MAX)
        return fault_set(f, 400, "invalid_value", name, "'%s' must be from %lld to %d, not %lld", name, (long long)min,
                         INT32_MAX, (long long)n);
    *out = (int)n;
    return 0;
}

static int check_model(const struct embed_model *m, const struct json *body, struct fault *f)
{
    const struct json *v = given(body, "model");
    const char *name = json_text(v);
    if (!v)
        return 0;
    if (!name)
        return bad(f, "model", "a string", v);
    if (strcmp(name, m->name) == 0)
        return 0;
    for (int i = 0; i < m->n_others; i++)
        if (strcmp(name, m->others[i]) == 0)
            return fault_set(f, 400, "model_not_supported", "model",
                             "The model '%.100s' writes text; vectors and scores come from '%.100s'", name, m->name);
    return fault_set(f, 404, "model_not_found", "model", "The model '%.100s' does not exist; this server has '%.100s'",
                     name, m->name);
}

/* What would change the answer and is not offered. */
static int check_refused(const struct json *body, struct fault *f)
{
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"messages", "conversations are not embedded: give the text"},
        {"embed_dtype", "vectors are float32"},
        {"endianness", "base64 is little-endian"},
        {"max_tokens_per_doc", "use truncate_prompt_tokens"},
        {"max_chunks_per_doc", "documents are not cut into chunks"},
        {"rank_fields", "a document is a text"},
        {"instruction", "put it in front of the text"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (given(body, refused[i].name))
            return fault_set(f, 400, "unsupported_parameter", refused[i].name, "'%s' is not offered: %s",
                             refused[i].name, refused[i].why);
    return 0;
}

static bool may_cut_to(const struct encoder_facts *facts, int dim)
{
    for (int i = 0; i < facts->cuts.n; i++)
        if (facts->cuts.at[i] == dim)
            return true;
    return dim == facts->dim || (facts->cuts.any && dim < facts->dim);
}

static int read_dimensions(struct embed_ask *a, const struct json *body, struct fault *f)
{
    const struct encoder_facts *facts = a->model->facts;
    a->dim = facts->dim;
    TRY(read_int(body, "dimensions", 1, &a->dim, f));
    if (a->dim != facts->dim && a->route != EMBED_EMBEDDINGS)
        return fault_set(f, 400, "unsupported_parameter", "dimensions", "scores are of whole vectors, of %d dimensions",
                         facts->dim);
    if (may_cut_to(facts, a->dim))
        return 0;
    struct buf known = {0};
    for (int i = 0; i < facts->cuts.n; i++)
        buf_printf(&known, "%s%d", i ? ", " : "", facts->cuts.at[i]);
    int rc = fault_set(f, 400, "unsupported_parameter", "dimensions",
                       "the model '%.100s' has %d dimensions, and %s%.200s", a->model->name, facts->dim,
                       facts->cuts.any ? "no more"
                       : known.len     ? "may be cut to these: "
                                       : "does not say that it may be cut to fewer",
                       known.len ? known.data : "");
    buf_free(&known);
    return rc;
}

/* Fields that are taken as long as they ask for what happens anyway. */
static int check_same(const struct embed_ask *a, const struct json *body, struct fault *f)
{
    const struct encoder_facts *facts = a->model->facts;
    bool special = true, activation = true, normalised = facts->normalised;
    TRY(read_flag(body, "add_special_tokens", &special, f));
    TRY(read_flag(body, "normalize", &normalised, f));
    TRY(read_flag(body, "activation", &activation, f));
    TRY(read_flag(body, "use_activation", &activation, f));
    if (!special)
        return fault_set(f, 400, "unsupported_parameter", "add_special_tokens",
                         "texts get the model's special tokens; to leave them out, give token ids");
    if (!activation)
        return fault_set(f, 400, "unsupported_parameter", "activation",
                         "scores have the activation that the model's card names");
    if (normalised != facts->normalised)
        return fault_set(f, 400, "unsupported_parameter", "normalize", "vectors of this model are %s",
                         facts->normalised ? "normalised" : "not normalised");
    return 0;
}

static int read_format(struct embed_ask *a, const struct json *body, struct fault *f)
{
    const struct json *v = given(body, "encoding_format");
    const char *s = json_text(v);
    if (!v)
        return 0;
    if (!s || (strcmp(s, "float") != 0 && strcmp(s, "base64") != 0))
        return fault_set(f, 400, "invalid_value", "encoding_format",
                         "'encoding_format' must be \"float\" or \"base64\"");
    a->base64 = s[0] == 'b';
    return 0;
}

static int read_fields(struct embed_ask *a, const struct json *body, struct fault *f)
{
    TRY(check_model(a->model, body, f));
    TRY(check_refused(body, f));
    TRY(check_same(a, body, f));
    TRY(read_dimensions(a, body, f));
    TRY(read_format(a, body, f));
    TRY(read_int(body, "top_n", 0, &a->top_n, f));
    TRY(read_flag(body, "return_documents", &a->documents, f));
    TRY(read_int(body, "truncate_prompt_tokens", -1, &a->truncate, f));
    int most = a->model->facts->max_tokens;
    if (a->truncate > most)
        return fault_set(f, 400, "invalid_value", "truncate_prompt_tokens",
                         "'truncate_prompt_tokens' is %d; the model takes %d tokens", a->truncate, most);
    if (a->truncate < 0)
        a->truncate = most;
    return 0;
}

/* ---- inputs */

static int check_count(size_t n, const char *param, struct fault *f)
{
    if (n == 0)
        return fault_set(f, 400, "invalid_value", param, "'%s' is empty", param);
    if (n > EMBED_MAX_INPUTS)
        return fault_set(f, 400, "invalid_value", param, "'%s' has %zu entries; at most %d are accepted", param, n,
                         EMBED_MAX_INPUTS);
    return 0;
}

static struct embed_input *add(struct embed_ask *a, const char *param, int at)
{
    struct embed_input *in = &a->inputs[a->n++];
    in->param = param;
    in->at = at;
    return in;
}

static void add_text(struct embed_ask *a, const char *param, int at, const char *text)
{
    struct embed_input *in = add(a, param, at);
    in->text.text = text;
    in->text.n = strlen(text);
    a->bytes += in->text.n;
}

static int add_item(struct embed_ask *a, const struct json *v, enum json_type type, struct fault *f)
{
    int at = a->n;
    if (json_type(v) != type)
        return fault_set(f, 400, "invalid_type", "input", "'input'[%d] is %s, and others are not", at,
                         json_type_name(v));
    if (type == JSON_STRING)
        add_text(a, "input", at, json_text(v));
    else
        add(a, "input", at)->ids = v;
    return 0;
}

static int read_input(struct embed_ask *a, const struct json *body, struct fault *f)
{
    const struct json *v = given(body, "input"), *first = json_type(v) == JSON_ARRAY ? json_first(v) : NULL;
    if (!v)
        return fault_set(f, 400, "missing_parameter", "input", "'input' is missing");
    if (a->model->facts->n_labels)
        return fault_set(f, 400, "model_not_supported", "model",
                         "the model '%.100s' is a cross-encoder: it scores pairs of texts (/v1/score, /v1/rerank) and "
                         "has no vectors",
                         a->model->name);
    enum json_type type = json_type(first);
    bool one = json_type(v) == JSON_STRING || type == JSON_NUMBER;
    if (!one && json_type(v) != JSON_ARRAY)
        return bad(f, "input", "a string, an array of strings, or token ids", v);
    if (first && type != JSON_STRING && type != JSON_NUMBER && type != JSON_ARRAY)
        return fault_set(f, 400, "invalid_type", "input",
                         "'input'[0] must be a string, a token id or an array of token ids, not %s",
                         json_type_name(first));
    size_t n = one ? 1 : json_count(v);
    TRY(check_count(n, "input", f));
    a->inputs = mem_new_array(n, sizeof *a->inputs);
    a->has_ids = json_type(v) == JSON_ARRAY && type != JSON_STRING;
    if (one)
        return add_item(a, v, json_type(v), f);
    for (; first; first = json_next(first))
        TRY(add_item(a, first, type, f));
    return 0;
}

/* ---- pairs */

const char *embed_ask_document(const struct json *doc)
{
    return json_type(doc) == JSON_OBJECT ? json_text(json_find(doc, "text")) : json_text(doc);
}

/* One side: a text, or a list of them. */
struct side {
    const char *param;
    const struct json *first;
    size_t n;
};

static int read_side(const struct json *body, const char *param, bool list, struct side *s, struct fault *f)
{
    const struct json *v = given(body, param);
    if (!v)
        return fault_set(f, 400, "missing_parameter", param, "'%s' is missing", param);
    bool is_list = json_type(v) == JSON_ARRAY;
    if (list ? !is_list : !embed_ask_document(v) && !is_list)
        return bad(f, param, list ? "an array of texts" : "a string or an array of strings", v);
    *s = (struct side){param, is_list ? json_first(v) : v, is_list ? json_count(v) : 1};
    int at = 0;
    for (const struct json *t = s->first; t && is_list; t = json_next(t), at++)
        if (!embed_ask_document(t))
            return fault_set(f, 400, "invalid_type", param, "'%s'[%d] must be a string or {\"text\": ...}, not %s",
                             param, at, json_type_name(t));
    return 0;
}

static void add_side(struct embed_ask *a, const struct side *s)
{
    int at = 0;
    const struct json *v = s->first;
    for (size_t i = 0; i < s->n; i++, v = json_next(v))
        add_text(a, s->param, at++, embed_ask_document(v));
}

static void add_pairs(struct embed_ask *a, const struct side *l, const struct side *r)
{
    const struct json *left = l->first, *right = r->first;
    for (size_t i = 0; i < r->n; i++) {
        struct embed_input *in = add(a, r->param, (int)i);
        in->text.text = embed_ask_document(left);
        in->text.pair = embed_ask_document(right);
        in->text.n = strlen(in->text.text);
        in->text.n_pair = strlen(in->text.pair);
        a->bytes += in->text.n + in->text.n_pair;
        right = json_next(right);
        if (l->n > 1)
            left = json_next(left);
    }
}

static int read_sides(struct embed_ask *a, const struct side *l, const struct side *r, struct fault *f)
{
    TRY(check_count(l->n, l->param, f));
    TRY(check_count(r->n, r->param, f));
    if (l->n != 1 && l->n != r->n)
        return fault_set(f, 400, "invalid_value", r->param,
                         "'%s' has %zu texts and '%s' %zu: one and many, or as many on both sides", l->param, l->n,
                         r->param, r->n);
    if (a->model->facts->n_labels > 1)
        return fault_set(f, 400, "model_not_supported", "model",
                         "the model '%.100s' has %d labels: scores need a cross-encoder with one, or vectors",
                         a->model->name, a->model->facts->n_labels);
    bool pairs = a->model->facts->n_labels == 1;
    a->n_scores = (int)r->n;
    a->n_left = pairs ? 0 : (int)l->n;
    a->inputs = mem_new_array(l->n + r->n, sizeof *a->inputs);
    if (pairs) {
        add_pairs(a, l, r);
        return 0;
    }
    add_side(a, l);
    add_side(a, r);
    return 0;
}

static int read_rerank(struct embed_ask *a, const struct json *body, struct fault *f)
{
    struct side query, documents;
    TRY(read_side(body, "query", false, &query, f));
    if (json_type(given(body, "query")) == JSON_ARRAY)
        return bad(f, "query", "a string", given(body, "query"));
    TRY(read_side(body, "documents", true, &documents, f));
    a->docs = given(body, "documents");
    return read_sides(a, &query, &documents, f);
}

static int read_score(struct embed_ask *a, const struct json *body, struct fault *f)
{
    struct side one, two;
    TRY(read_side(body, "text_1", false, &one, f));
    TRY(read_side(body, "text_2", false, &two, f));
    return read_sides(a, &one, &two, f);
}

int embed_ask_read(struct embed_ask *a, const struct embed_model *m, const char *body, size_t n, struct fault *f)
{
    struct err e = {0};
    enum embed_route route = a->route;
    *a = (struct embed_ask){.model = m, .route = route, .documents = true};
    a->body = json_parse(body, n, &(struct json_limits){.nodes = MAX_NODES}, &e);
    if (json_type(a->body) != JSON_OBJECT)
        return fault_set(f, e.code == E_FULL ? 503 : 400, "invalid_json", NULL,
                         "the request body is not acceptable: %s", a->body ? "not an object" : e.text);
    TRY(read_fields(a, a->body, f));
    return route == EMBED_EMBEDDINGS ? read_input(a, a->body, f)
           : route == EMBED_RERANK   ? read_rerank(a, a->body, f)
                                     : read_score(a, a->body, f);
}

void embed_ask_free(struct embed_ask *a)
{
    json_free(a->body);
    mem_free(a->inputs);
    a->body = NULL;
    a->inputs = NULL;
    a->docs = NULL;
}

/* ---- tokens */

static void name_input(const struct embed_input *in, char out[64])
{
    snprintf(out, 64, "'%.40s'[%d]", in->param, in->at);
}

static int read_ids(const struct embed_ask *a, const struct embed_input *in, struct tokens *out, struct fault *f)
{
    const struct json *v = json_type(in->ids) == JSON_ARRAY ? json_first(in->ids) : in->ids;
    char name[64];
    name_input(in, name);
    for (; v; v = json_next(v)) {
        int64_t id;
        if (json_type(v) != JSON_NUMBER || !json_i64(v, &id) || id < 0 || id >= a->model->facts->n_vocab)
            return fault_set(f, 400, "invalid_value", in->param, "%s has something that is no token id from 0 to %d",
                             name, a->model->facts->n_vocab - 1);
        tokens_put(out, (int32_t)id);
    }
    return 0;
}

static int encode(const struct embed_ask *a, const struct embed_input *in, struct cancel *cancel, struct tokens *out,
                  int *n_first, struct fault *f)
{
    struct tokenize_how how = {.max_tokens = EMBED_MAX_TEXT_TOKENS, .cancel = cancel};
    struct err e = {0};
    char name[64];
    int rc = encoder_tokenize(a->model->encoder, &in->text, how, out, n_first, &e);
    if (!rc)
        return 0;
    name_input(in, name);
    return fault_set(f, 400, "invalid_value", in->param, "%s cannot be tokenised: %s", name, e.text);
}

/* Too long: cut behind so many, but for the special tokens at its end; or an error. */
static int fit(const struct embed_ask *a, const struct embed_input *in, size_t from, struct tokens *out,
               struct fault *f, int *n_first)
{
    const struct embed_model *m = a->model;
    size_t n = out->len - from, most = a->truncate ? (size_t)a->truncate : (size_t)m->facts->max_tokens;
    size_t suffix = in->ids ? 0 : (size_t)m->n_suffix;
    char name[64];
    name_input(in, name);
    if (n == 0)
        return fault_set(f, 400, "invalid_value", in->param, "%s has no tokens", name);
    if (n <= most)
        return 0;
    if (!a->truncate) {
        fault_set(f, 400, "context_length_exceeded", in->param,
                  "%s has %zu tokens, and the model takes %zu; shorten it, or give truncate_prompt_tokens", name, n,
                  most);
        f->n_prompt = (int)n;
        f->n_ctx = (int)most;
        return E_INPUT;
    }
    if (most <= suffix || (in->text.pair && (size_t)*n_first + suffix > most))
        return fault_set(f, 400, "invalid_value", "truncate_prompt_tokens",
                         "%s cannot be cut to %zu tokens: what comes before it has more", name, most);
    int32_t *ids = out->ids + from;
    memmove(ids + most - suffix, ids + n - suffix, suffix * sizeof *ids);
    out->len = from + most;
    return 0;
}

int embed_ask_tokenize(const struct embed_ask *a, const struct embed_part *part, struct encoder_seq *seqs,
                       struct tokens *out, struct fault *f)
{
    struct err e = {0};
    for (int i = part->from; i < part->to; i++) {
        const struct embed_input *in = &a->inputs[i];
        size_t from = out->len;
        int n_first = 0;
        if (in->ids)
            TRY(read_ids(a, in, out, f));
        else
            TRY(encode(a, in, part->cancel, out, &n_first, f));
        TRY(fit(a, in, from, out, f, &n_first));
        seqs[i].n = (int)(out->len - from);
        seqs[i].n_first = in->text.pair ? n_first : seqs[i].n;
        if (cancel_check(part->cancel, (size_t)seqs[i].n * ID_WORK, &e))
            return fault_set(f, e.code == E_FULL ? 400 : 503, e.code == E_FULL ? "too_long" : "stopping", NULL,
                             "tokenising: %s", e.text);
    }
    return 0;
}
