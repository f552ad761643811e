#include "engine/serve/openai/shape.h"

#include <string.h>

#include "engine/base/json.h"

void shape_logprobs_free(struct shape_logprobs *l)
{
    buf_free(&l->tokens);
    buf_free(&l->logprobs);
    buf_free(&l->tops);
    buf_free(&l->offsets);
}

void shape_logprobs_clear(struct shape_logprobs *l)
{
    buf_clear(&l->tokens);
    buf_clear(&l->logprobs);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
}

static void comma(struct buf *b)
{
    if (b->len)
        buf_putc(b, ',');
}

/* JSON has no infinity; vLLM says -9999 for a token that could not be. */
static void put_logprob(struct buf *out, float lp)
{
    json_put_double(out, lp > -9999.0f ? (double)lp : -9999.0);
}

/* The text of one token; bytes that are no whole character show as U+FFFD when written as JSON. */
static void token_text(const struct shape_token *t, int32_t id, struct buf *out)
{
    if (t->as_id)
        buf_printf(out, "token_id:%d", id);
    else
        tokenizer_piece(t->tokenizer, id, out);
}

static void put_text(struct buf *out, const struct buf *text)
{
    buf_put_json(out, text->data ? text->data : "", text->len);
}

static void put_chat_entry(struct buf *out, const struct shape_token *t, int32_t id, float lp)
{
    struct buf text = {0};
    token_text(t, id, &text);
    buf_puts(out, "{\"token\":");
    put_text(out, &text);
    buf_puts(out, ",\"logprob\":");
    put_logprob(out, lp);
    buf_puts(out, ",\"bytes\":[");
    if (t->as_id) {
        buf_clear(&text);
        tokenizer_piece(t->tokenizer, id, &text);
    }
    for (size_t i = 0; i < text.len; i++) {
        if (i)
            buf_putc(out, ',');
        buf_put_u64(out, (unsigned char)text.data[i]);
    }
    buf_putc(out, ']');
    buf_free(&text);
}

static int n_tops(const struct shape_token *t)
{
    return t->lp->n_top < t->n_top ? t->lp->n_top : t->n_top;
}

void shape_chat_token(struct shape_logprobs *l, const struct shape_token *t)
{
    struct buf *out = &l->tokens;
    comma(out);
    put_chat_entry(out, t, t->id, t->lp->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < n_tops(t); i++) {
        if (i)
            buf_putc(out, ',');
        put_chat_entry(out, t, t->lp->top_ids[i], t->lp->top_logprobs[i]);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* Is key (with its quotes and colon) in the map already? A quote inside another key is escaped, so it never
 * follows a comma. */
static bool has_key(const struct buf *map, const struct buf *key)
{
    for (const char *at = map->data; map->len && at; at++) {
        at = memmem(at, map->len - (size_t)(at - map->data), key->data, key->len);
        if (!at)
            return false;
        if (at == map->data || at[-1] == ',')
            return true;
    }
    return false;
}

/* One entry of a top_logprobs map. Two tokens may look alike as text: the first, more probable one keeps the
 * key. */
static void put_top(struct buf *map, const struct shape_token *t, int32_t id, float lp)
{
    struct buf text = {0}, key = {0};
    token_text(t, id, &text);
    put_text(&key, &text);
    buf_putc(&key, ':');
    if (!has_key(map, &key)) {
        comma(map);
        buf_put(map, key.data, key.len);
        put_logprob(map, lp);
    }
    buf_free(&text);
    buf_free(&key);
}

static void put_tops(struct buf *out, const struct shape_token *t)
{
    struct buf map = {0};
    bool chosen = false;
    for (int i = 0; i < n_tops(t); i++) {
        put_top(&map, t, t->lp->top_ids[i], t->lp->top_logprobs[i]);
        chosen |= t->lp->top_ids[i] == t->id;
    }
    if (!chosen)
        put_top(&map, t, t->id, t->lp->logprob);
    buf_putc(out, '{');
    buf_put(out, map.data, map.len);
    buf_putc(out, '}');
    buf_free(&map);
}

static size_t count_chars(const struct buf *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++)
        n += ((unsigned char)text->data[i] & 0xC0) != 0x80;
    return n;
}

void shape_completion_token(struct shape_logprobs *l, const struct shape_token *t, size_t *chars)
{
    struct buf text = {0};
    token_text(t, t->id, &text);
    comma(&l->tokens);
    comma(&l->logprobs);
    comma(&l->tops);
    comma(&l->offsets);
    put_text(&l->tokens, &text);
    buf_put_u64(&l->offsets, *chars);
    *chars += count_chars(&text);
    buf_free(&text);
    if (!t->lp) {
        buf_puts(&l->logprobs, "null");
        buf_puts(&l->tops, "null");
        return;
    }
    put_logprob(&l->logprobs, t->lp->logprob);
    put_tops(&l->tops, t);
}

static void put_list(struct buf *out, const char *key, const struct buf *items)
{
    buf_printf(out, "\"%s\":[", key);
    buf_put(out, items->data, items->len);
    buf_putc(out, ']');
}

void shape_put_chat(struct buf *out, const struct shape_logprobs *l)
{
    buf_putc(out, '{');
    put_list(out, "content", &l->tokens);
    buf_putc(out, '}');
}

void shape_put_completion(struct buf *out, const struct shape_logprobs *l)
{
    buf_putc(out, '{');
    put_list(out, "tokens", &l->tokens);
    buf_putc(out, ',');
    put_list(out, "token_logprobs", &l->logprobs);
    buf_putc(out, ',');
    put_list(out, "top_logprobs", &l->tops);
    buf_putc(out, ',');
    put_list(out, "text_offset", &l->offsets);
    buf_putc(out, '}');
}

static void put_ranked(struct buf *out, const struct tokenizer *t, int32_t id, float lp, int rank)
{
    struct buf text = {0};
    tokenizer_piece(t, id, &text);
    buf_printf(out, "\"%d\":{\"logprob\":", id);
    put_logprob(out, lp);
    buf_printf(out, ",\"rank\":%d,\"decoded_token\":", rank);
    put_text(out, &text);
    buf_putc(out, '}');
    buf_free(&text);
}

void shape_put_prompt(struct buf *out, const struct tokenizer *t, const int32_t *ids, const struct prompt_logprobs *p)
{
    buf_puts(out, "[null");
    for (int i = 1; i < p->n; i++) {
        const struct token_logprobs *lp = &p->items[i];
        bool chosen = false;
        buf_puts(out, ",{");
        for (int k = 0; k < lp->n_top; k++) {
            if (k)
                buf_putc(out, ',');
            put_ranked(out, t, lp->top_ids[k], lp->top_logprobs[k], k + 1);
            chosen |= lp->top_ids[k] == ids[i];
        }
        if (!chosen) {
            if (lp->n_top)
                buf_putc(out, ',');
            put_ranked(out, t, ids[i], lp->logprob, lp->rank);
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

void shape_put_usage(struct buf *out, const struct shape_usage *u)
{
    buf_puts(out, "{\"prompt_tokens\":");
    buf_put_u64(out, (unsigned)u->n_prompt);
    buf_puts(out, ",\"total_tokens\":");
    buf_put_u64(out, (unsigned long long)u->n_prompt + (unsigned)u->n_output);
    buf_puts(out, ",\"completion_tokens\":");
    buf_put_u64(out, (unsigned)u->n_output);
    if (u->n_cached >= 0)
        buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%d}", u->n_cached);
    if (u->n_thought >= 0)
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%d}", u->n_thought);
    buf_putc(out, '}');
}

void shape_put_ids(struct buf *out, const int32_t *ids, size_t n)
{
    buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_putc(out, ',');
        buf_put_u64(out, (unsigned)ids[i]);
    }
    buf_putc(out, ']');
}
