/* The parameters of a completion request, read from its JSON body and checked one by one: types, ranges, and
 * what is not offered here (refused by name, never ignored). Unknown fields are accepted, as every client
 * expects, and named in a debug line; a field of the other route is refused. This is the wall for JSON bodies:
 * behind it every value is in range. Pure; any thread. */
#ifndef SERVE_OPENAI_PARAMS_H
#define SERVE_OPENAI_PARAMS_H

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/serve/front/fault.h"
#include "engine/serve/openai/stop.h"
#include "engine/serve/openai/thoughts.h"
#include "models/template/tool_calls.h"
#include "engine/world/probe.h"
#include "engine/world/sampling.h"
#include "models/tokenizer/tokenizer.h"

enum openai_route { ROUTE_CHAT, ROUTE_COMPLETIONS };
enum { OPENAI_LEAST_INTERVAL = 8, OPENAI_MOST_INTERVAL = 1 << 20, OPENAI_WINDOW = 3 };
enum { OPENAI_MAX_N = 128, OPENAI_MAX_STOP_IDS = 256, OPENAI_MAX_SALT = 1024 };

struct openai_params {
    enum openai_route route;
    bool stream, include_usage, continuous_usage;
    bool include_stop, ignore_eos, skip_special, return_token_ids, tokens_as_ids, echo;
    bool add_special, add_generation_prompt, continue_final;
    bool show_prompt_logprobs; /* the field of that name was given; n_prompt_logprobs may also come from echo
                                */
    bool logprobs;             /* chat: asked for; completions: logprobs is not null */
    int n, max_tokens;         /* max_tokens: -1 not given */
    int min_tokens, priority;
    int truncate;                      /* 0: no, -1: to what fits, else keep so many of the last tokens */
    int n_logprobs, n_prompt_logprobs; /* -1: none */
    bool has_seed;
    int64_t seed;
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int top_k;
    int probe_every, probe_window;      /* early_stop; 0: not asked for */
    bool show_thoughts, split_thoughts; /* chat: what the model thinks is shown; is told from the answer */
    enum think_state thinks;            /* chat: how the prompt leaves the model; TEXT: thoughts are not looked for */
    struct tool_names tools;            /* chat: functions that the model may call */
    bool one_call;                      /* no more than one of them */
    struct stops stops;
    int32_t stop_ids[OPENAI_MAX_STOP_IDS];
    int n_stop_ids;
    struct logit_bias *bias; /* sorted; shared by the sequences */
    int n_bias;
    int32_t *allowed; /* sorted; shared by the sequences */
    int n_allowed;
    struct grammar *grammar;   /* what the answer has to be (guided.h); held; shared by the sequences; NULL: anything */
    struct sha256 grammar_key; /* of what it was made of */
    char salt[OPENAI_MAX_SALT + 1];
};

/* Reads body, an object. n_vocab bounds token ids. E_INPUT with f; p must be freed in both cases. */
int openai_params_read(struct openai_params *p, enum openai_route route, const struct json *body, int n_vocab,
                       struct fault *f);
void openai_params_free(struct openai_params *p);

/* A list of at most max token ids in range, into out (zeroed by the caller, freed by it in both cases).
 * E_INPUT with f naming the field. */
int openai_read_ids(const struct json *list, const char *name, int n_vocab, size_t max, struct tokens *out,
                    struct fault *f);

#endif
