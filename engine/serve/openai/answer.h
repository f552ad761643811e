/* One completion request being answered: its choices (a sequence of the engine each), their text as it comes, and the
 * frames or the whole body that the client gets. Works on events of its own sequences; knows neither queues nor the
 * engine's inbox: what should happen there it returns. Front thread only. Invariant: text is shown only once it can no
 * longer turn out to be the beginning of a stop string or half a character. */
#ifndef SERVE_OPENAI_ANSWER_H
#define SERVE_OPENAI_ANSWER_H

#include "engine/serve/http/http.h"
#include "engine/serve/openai/order.h"
#include "engine/serve/openai/shape.h"
#include "engine/serve/openai/thoughts.h"

struct openai_answer;

/* An answer as a list of items, for APIs that gather. */
enum openai_item { ITEM_NONE, ITEM_THOUGHT, ITEM_TEXT, ITEM_CALL };
struct openai_items {
    enum openai_item open;
    int n;                /* that have ended */
    struct buf text;      /* of the open one */
    struct buf logprobs;  /* of its tokens */
    struct buf done;      /* those that have ended, as JSON with commas between them */
    unsigned long events; /* frames that were sent */
};

struct openai_choice {
    struct openai_answer *answer;
    uint64_t tag;
    int index, prompt; /* of the answer; which of its prompts */
    struct detok detok;
    struct stop_scan scan;
    struct buf text;                /* streams: not shown yet; else all of it; with readers: not read by them yet */
    struct thought_reader thoughts; /* its text: as text is without readers, or what the other one has not read yet */
    struct tool_reader tools;       /* its text: as text is without readers */
    struct openai_items items;
    size_t scanned; /* of text */
    struct shape_logprobs logprobs;
    struct buf prompt_logprobs;            /* JSON; empty: none */
    size_t chars;                          /* for text_offset */
    struct tokens ids;                     /* for return_token_ids */
    int n_output, n_thought, n_cached;     /* n_thought: tokens of them that were thoughts */
    int stop_id;                           /* the client's stop token that ended it, -1: none */
    struct request_spec *spec;             /* until it is handed to the engine */
    int cost;                              /* prompt tokens that it makes others wait for until it has started */
    bool started;                          /* the engine gave it a token or an ending */
    bool begun, stopped, cancelled, ended; /* stopped: by a stop string */
    enum ending ending;
};

struct openai_answer {
    struct http_exchange *x; /* NULL: the client is gone, or was told of a fault */
    struct openai_params params;
    struct openai_prompts prompts;
    const struct front_text *model_text;
    const struct openai_api *api;
    struct buf echo; /* what it repeats of the request */
    char id[NAME_BYTES + 16];
    struct buf head; /* what every frame begins with, up to the choice's index */
    const char *model;
    int64_t created_s;
    bool force_usage;
    bool has_thoughts, has_tools; /* they are looked for in the text */
    uint64_t call_id;             /* what ids of calls are made of */
    struct openai_choice *choices;
    int n_choices, n_ended;
    int n_given, n_with_engine,
        unstarted; /* choices handed to the engine; of them, without an ending; prompt tokens of those not started */
    int n_prompt, n_output; /* tokens of all prompts; of all choices so far */
    size_t held, counted;   /* bytes gathered for a frame or for the whole; what openai.c has counted of them */
    size_t most;            /* bytes of it that may be held */
    void *owner;            /* heap: what x->user points to; freed with the answer */
    struct openai_answer *next, **link; /* of all answers */
};

/* The text that the client sees: all of it for whole answers, for streams what no frame has taken yet. */
struct buf *openai_choice_shown(struct openai_choice *c);
void openai_choice_take(struct openai_choice *c, size_t n); /* the first n bytes of it are dealt with */

/* Takes params, prompts and specs out of the order. */
struct openai_answer *openai_answer_new(struct openai_order *o, struct http_exchange *x, const char *model);
void openai_answer_free(struct openai_answer *a);
void openai_answer_let_go(struct openai_answer *a); /* frees what was gathered: the client has gone */

/* A token. true: the choice met a stop string and its sequence should be ended as END_STOP. lp may be NULL.
 */
bool openai_answer_token(struct openai_choice *c, const struct engine_event *ev);
void openai_answer_prompt(struct openai_choice *c, const struct prompt_logprobs *p);
/* Its ending (not refused, not failed). When it was the last one, the answer is complete and x is over. */
void openai_answer_end(struct openai_choice *c, const struct engine_event *ev);
/* The request cannot be answered (further): an error body, or an error event when frames are out already. x
 * is over. */
void openai_answer_fault(struct openai_answer *a, const struct fault *f);
const struct fault *openai_answer_too_large(struct fault *f); /* filled */
/* Nothing has come for a while: an SSE comment keeps the connection. */
void openai_answer_ping(struct openai_answer *a);

#endif
