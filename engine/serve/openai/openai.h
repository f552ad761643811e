/* A request of an API of answers (api.h), from the request to its last byte: the body goes to a text worker, its
 * sequences to the engine, the engine's events to the answers. Keeps the books: every sequence handed in has one ending
 * here. Front thread only. Invariant: when a client leaves, its sequences are cancelled. */
#ifndef SERVE_OPENAI_OPENAI_H
#define SERVE_OPENAI_OPENAI_H

#include "engine/serve/front/auth.h"
#include "engine/serve/front/front.h"
#include "engine/serve/openai/answer.h"
#include "engine/serve/openai/grammars.h"

struct openai {
    struct front *front;
    struct map by_tag; /* tag -> struct openai_choice * */
    struct openai_answer *answers;
    struct grammars grammars; /* asked for lately */
    uint64_t next_tag;
    int n_answers, n_orders; /* with the engine; with the text workers */
    int n_behind;            /* sequences of answers that are not handed to the engine yet */
    size_t held;             /* bytes gathered in all answers */
};

void openai_init(struct openai *o, struct front *f);
void openai_free(struct openai *o); /* no event may follow */
void openai_handle(struct openai *o, struct http_exchange *x, const struct openai_api *api, const struct auth_key *key);
void openai_event(struct openai *o,
                  const struct engine_event *ev); /* TOKEN, PROMPT_LOGPROBS, END; the payload stays the caller's */
void openai_tick(struct openai *o, int64_t now_ns);
void openai_fail_all(struct openai *o, const char *why); /* every client is told 503; the sequences are cancelled */
static inline bool openai_is_idle(const struct openai *o)
{
    return !o->answers && !o->n_orders;
}

#endif
