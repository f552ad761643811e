/* From a request's body to token ids: chat messages through the model's template, prompts in their four shapes, and the
 * check against the model's length. Runs on a text worker; reads only what never changes. Invariant: a prompt is not
 * empty, fits the model's length, and has only ids of the vocabulary. */
#ifndef SERVE_OPENAI_PROMPT_H
#define SERVE_OPENAI_PROMPT_H

#include "engine/serve/openai/params.h"
#include "engine/serve/front/front_text.h"

enum { OPENAI_MAX_PROMPTS = 2048 };

struct openai_prompt {
    int32_t *ids;
    int n, max_tokens;
    bool open_ended; /* the client gave no max_tokens */
    char *echo;      /* its text, when echo is asked for; else NULL */
    size_t n_echo;
};

struct openai_prompts {
    struct openai_prompt *items;
    int n;
};

/* One reading: of which model, as what, and whether anybody still waits for it. */
struct openai_reading {
    const struct front_text *text;
    const struct openai_params *params;
    struct cancel *cancel; /* NULL: never cancelled */
};

int openai_prompts_read(const struct openai_reading *r, const struct json *body, struct openai_prompts *out,
                        struct fault *f);
void openai_prompts_free(struct openai_prompts *ps);
/* Appends the text of a message's content: a string, or an array of text parts, joined by newlines, as vLLM does;
 * nothing is "". E_INPUT with f, which names param: another kind of part. */
int openai_content_text(const struct json *content, const char *param, struct buf *text, struct fault *f);
/* The template's text for body's messages. */
int openai_render(const struct openai_reading *r, const struct json *body, struct buf *out, struct fault *f);
int openai_encode(const struct openai_reading *r, const struct buf *text, bool add_special, struct tokens *out,
                  struct fault *f);
/* The text of ids. E_GONE, E_FULL: given up. */
int openai_decode(const struct openai_reading *r, const struct tokens *ids, bool skip_special, struct buf *out,
                  struct fault *f);

#endif
