/* The JSON shapes of answers: logprobs of both routes, prompt logprobs, usage. Appends to a buffer; knows
 * nothing of connections. Pure. */
#ifndef SERVE_OPENAI_SHAPE_H
#define SERVE_OPENAI_SHAPE_H

#include "engine/engine.h"
#include "models/tokenizer/tokenizer.h"

/* Logprobs gathered for the next frame, or the whole answer. chat: content entries in tokens. completions:
 * the four lists, without brackets. */
struct shape_logprobs {
    struct buf tokens, logprobs, tops, offsets;
};
void shape_logprobs_free(struct shape_logprobs *l);
void shape_logprobs_clear(struct shape_logprobs *l);

struct shape_token {
    const struct tokenizer *tokenizer;
    int32_t id;
    const struct token_logprobs *lp; /* NULL: none (the first token of a prompt) */
    int n_top;                       /* at most so many alternatives */
    bool as_id;                      /* "token_id:17" instead of text */
};
void shape_chat_token(struct shape_logprobs *l, const struct shape_token *t);
/* *chars: characters of text so far; moves on. */
void shape_completion_token(struct shape_logprobs *l, const struct shape_token *t, size_t *chars);
void shape_put_chat(struct buf *out, const struct shape_logprobs *l);       /* {"content":[...]} */
void shape_put_completion(struct buf *out, const struct shape_logprobs *l); /* {"tokens":[...],...} */
/* vLLM's prompt_logprobs: [null,{"17":{"logprob","rank","decoded_token"},...},...] */
void shape_put_prompt(struct buf *out, const struct tokenizer *t, const int32_t *ids, const struct prompt_logprobs *p);

struct shape_usage {
    int n_prompt, n_output;
    int n_cached, n_thought; /* -1: not known yet; not told from the others */
};
void shape_put_usage(struct buf *out, const struct shape_usage *u);
void shape_put_ids(struct buf *out, const int32_t *ids, size_t n);

#endif
