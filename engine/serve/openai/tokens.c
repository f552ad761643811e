#include "engine/serve/openai/tokens.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/serve/openai/prompt.h"
#include "engine/serve/openai/shape.h"

enum { PIECE_WORK = 32 /* of a token string, in bytes of plain work */ };

struct token_job {
    struct text_job job; /* first */
    const struct front_text *model_text;
    struct http_exchange *x; /* front thread; NULL: gone */
    struct buf body, out;
    struct fault fault;
    int (*work)(struct token_job *t, const struct json *body);
    int (*translate)(const struct json *, struct buf *, struct buf *, struct fault *); /* of count */
};

static bool flag(const struct json *body, const char *name, bool otherwise)
{
    const struct json *v = json_find(body, name);
    return json_type(v) == JSON_BOOL ? json_true(v) : otherwise;
}

static int put_pieces(struct token_job *t, const struct tokens *ids, struct buf *out)
{
    struct buf piece = {0};
    struct err e = {0};
    int rc = 0;
    buf_puts(out, ",\"token_strs\":[");
    for (size_t i = 0; i < ids->len && !rc; i++) {
        buf_clear(&piece);
        tokenizer_piece(t->model_text->tokenizer, ids->ids[i], &piece);
        if (i)
            buf_putc(out, ',');
        buf_put_json(out, piece.data ? piece.data : "", piece.len);
        rc = cancel_check(&t->job.cancel, piece.len + PIECE_WORK, &e);
    }
    buf_putc(out, ']');
    buf_free(&piece);
    return rc ? fault_set(&t->fault, 400, "too_long", NULL, "the tokens' strings: %s", e.text) : 0;
}

static int text_of(struct token_job *t, const struct json *body, struct buf *text, bool *special)
{
    const struct json *prompt = json_find(body, "prompt");
    if (json_find(body, "messages")) {
        struct openai_params p = {.route = ROUTE_CHAT,
                                  .add_generation_prompt = flag(body, "add_generation_prompt", true),
                                  .continue_final = flag(body, "continue_final_message", false)};
        *special = flag(body, "add_special_tokens", false);
        const struct openai_reading r = {t->model_text, &p, &t->job.cancel};
        return openai_render(&r, body, text, &t->fault);
    }
    if (json_type(prompt) != JSON_STRING)
        return fault_set(&t->fault, 400, "missing_parameter", "prompt",
                         "'prompt' must be a string (or give 'messages')");
    *special = flag(body, "add_special_tokens", true);
    buf_puts(text, json_text(prompt));
    return 0;
}

static int ids_of(struct token_job *t, const struct json *body, struct tokens *ids)
{
    struct buf text = {0};
    struct err e = {0};
    bool special = true;
    int rc = text_of(t, body, &text, &special);
    struct tokenize_how how = {.flags = TOKENIZE_SPECIAL | (special ? TOKENIZE_BOS : 0), .cancel = &t->job.cancel};
    if (!rc && tokenizer_encode(t->model_text->tokenizer, text.data ? text.data : "", text.len, how, ids, &e))
        rc = fault_set(&t->fault, 400, "invalid_value", "prompt", "the text cannot be tokenised: %s", e.text);
    buf_free(&text);
    return rc;
}

static int count(struct token_job *t, const struct json *body)
{
    struct buf text = {0}, echo = {0};
    struct tokens ids = {0};
    struct err e = {0};
    int rc = t->translate(body, &text, &echo, &t->fault);
    struct json *request = rc ? NULL : json_parse(text.data, text.len, &(struct json_limits){.depth = 80}, &e);
    if (!rc && !request)
        rc = fault_set(&t->fault, 400, "invalid_json", NULL, "the request body is not acceptable: %s", e.text);
    if (!rc)
        rc = ids_of(t, request, &ids);
    buf_printf(&t->out, "{\"input_tokens\":%zu}", ids.len);
    tokens_free(&ids);
    json_free(request);
    buf_free(&text);
    buf_free(&echo);
    return rc;
}

static int tokenize(struct token_job *t, const struct json *body)
{
    struct tokens ids = {0};
    int rc = ids_of(t, body, &ids);
    if (!rc) {
        buf_printf(&t->out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.len, t->model_text->max_model_len);
        shape_put_ids(&t->out, ids.ids, ids.len);
        if (flag(body, "return_token_strs", false))
            rc = put_pieces(t, &ids, &t->out);
        buf_putc(&t->out, '}');
    }
    tokens_free(&ids);
    return rc;
}

static int detokenize(struct token_job *t, const struct json *body)
{
    struct tokens ids = {0};
    const struct json *list = json_find(body, "tokens");
    if (!list)
        return fault_set(&t->fault, 400, "missing_parameter", "tokens", "'tokens' is missing");
    int rc = openai_read_ids(list, "tokens", t->model_text->n_vocab, SIZE_MAX, &ids, &t->fault);
    struct buf text = {0};
    const struct openai_reading r = {t->model_text, NULL, &t->job.cancel};
    if (!rc)
        rc = openai_decode(&r, &ids, false, &text, &t->fault);
    buf_puts(&t->out, "{\"prompt\":");
    buf_put_json(&t->out, text.data ? text.data : "", text.len);
    buf_putc(&t->out, '}');
    buf_free(&text);
    tokens_free(&ids);
    return rc;
}

static void run(struct text_job *job)
{
    struct token_job *t = (struct token_job *)job;
    struct err e = {0};
    t->fault = (struct fault){0};
    struct json *body = json_parse(t->body.data ? t->body.data : "", t->body.len, NULL, &e);
    if (json_type(body) != JSON_OBJECT)
        fault_set(&t->fault, 400, "invalid_json", NULL, "the request body is not acceptable: %s",
                  body ? "not an object" : e.text);
    else
        t->work(t, body);
    if (cancel_asked(&t->job.cancel))
        fault_set(&t->fault, 503, "stopping", NULL, "the server is stopping");
    json_free(body);
}

static void done(struct text_job *job)
{
    struct token_job *t = (struct token_job *)job;
    if (!t->fault.status && t->out.over)
        fault_set(&t->fault, 507, "answer_too_large", NULL,
                  "the answer is larger than this server holds for anyone; send the text in parts, or leave "
                  "return_token_strs out");
    if (t->x && t->fault.status)
        front_fault(t->x, &t->fault);
    else if (t->x)
        front_json(t->x, &t->out);
    buf_free(&t->body);
    buf_free(&t->out);
    mem_free(t);
}

static void gone(struct http_exchange *x)
{
    struct token_job *t = x->user;
    t->x = NULL;
    cancel_ask(&t->job.cancel);
}

static struct token_job *job_for(struct front *f, struct http_exchange *x,
                                 int (*work)(struct token_job *, const struct json *))
{
    struct token_job *t = mem_new(sizeof *t);
    *t = (struct token_job){.job = {.run = run, .done = done, .bytes = x->body.len},
                            .model_text = &f->model_text,
                            .x = x,
                            .body = x->body,
                            .work = work};
    return t;
}

static void post(struct front *f, struct http_exchange *x, struct token_job *t)
{
    t->out.limit = http_max_answer(f->http);
    fault_set(&t->fault, 503, "stopping", NULL, "the server is stopping");
    x->body = (struct buf){0};
    x->user = t;
    x->gone = gone;
    x->drop_on_eof = true;
    if (text_post(f->text, t->body.len < TEXT_LONG_BYTES ? TEXT_SHORT : TEXT_LONG, &t->job) == 0)
        return;
    x->gone = NULL;
    t->x = NULL;
    done(&t->job);
    front_refuse_busy(x, "too many requests wait to be read; try again later");
}

void tokens_api_tokenize(struct front *f, struct http_exchange *x)
{
    post(f, x, job_for(f, x, tokenize));
}

void tokens_api_detokenize(struct front *f, struct http_exchange *x)
{
    post(f, x, job_for(f, x, detokenize));
}

void tokens_api_count(struct front *f, struct http_exchange *x,
                      int (*translate)(const struct json *, struct buf *, struct buf *, struct fault *))
{
    struct token_job *t = job_for(f, x, count);
    t->translate = translate;
    post(f, x, t);
}

static void put_or_null(struct buf *out, const char *key, const char *s)
{
    buf_printf(out, ",\"%s\":", key);
    if (s && *s)
        buf_put_json(out, s, strlen(s));
    else
        buf_puts(out, "null");
}

void tokens_api_info(struct front *f, struct http_exchange *x)
{
    struct buf out = {0};
    buf_printf(&out,
               "{\"tokenizer_class\":\"moonshift\",\"vocab_size\":%d,\"model_max_length\":%d,\"add_bos_token\":%s",
               f->model_text.n_vocab, f->model_text.max_model_len,
               tokenizer_adds_bos(f->model_text.tokenizer) ? "true" : "false");
    put_or_null(&out, "bos_token", f->model_text.bos);
    put_or_null(&out, "eos_token", f->model_text.eos);
    put_or_null(&out, "chat_template", f->chat_source);
    buf_putc(&out, '}');
    front_json(x, &out);
    buf_free(&out);
}
