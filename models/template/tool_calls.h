/* Calls of tools in the text of an answer, as it comes. What belongs to a call is taken out of the text and given as
 * the function's name and its arguments, once the call is whole; white space around it goes with it. What only looks
 * like a call (no JSON, a function that the request does not have, cut off) stays text, byte for byte: nothing is lost.
 * What is found does not depend on how the text was cut. Each byte is looked at once, and a call's JSON is parsed once,
 * so the time is linear in the text. A reader belongs to one text and one thread; names are shared and immutable. */
#ifndef MODELS_TEMPLATE_TOOL_CALLS_H
#define MODELS_TEMPLATE_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

/* How a model writes a call; the names are vLLM's. */
enum tool_format {
    TOOLS_NONE,    /* calls are text */
    TOOLS_HERMES,  /* <tool_call>{"name": f, "arguments": {...}}</tool_call>: Qwen, Hermes */
    TOOLS_LLAMA3,  /* the whole answer is {"name": f, "parameters": {...}}; several with ; between them */
    TOOLS_MISTRAL, /* [TOOL_CALLS] [{"name": f, "arguments": {...}}, ...], or [TOOL_CALLS]f[ARGS]{...} */
};

/* "none", "hermes", "llama3_json", "mistral"; "auto": what the chat template, whose text is source, asks its model for,
 * TOOLS_NONE if it is none of these, or NULL. */
enum tool_format tool_format_of(const char *name, const char *source);
/* Are its markers control tokens, which have to be shown to be seen? */
bool tool_format_is_control(enum tool_format format);

/* The functions of a request. */
struct tool_names {
    char **items; /* sorted, owned */
    size_t n;
};
void tool_names_add(struct tool_names *t, const char *name); /* a copy; then tool_names_ready, before they are used */
void tool_names_ready(struct tool_names *t);
void tool_names_free(struct tool_names *t);

struct tool_call {
    char *name, *arguments; /* arguments: a JSON object */
};

struct tool_reader {
    /* out: what was read and not yet taken by the caller */
    struct buf text;
    struct tool_call *calls;
    int n_calls, n_found; /* of them; of all so far, those that were taken included */
    size_t call_bytes;    /* of calls */
    /* inner */
    enum tool_format format;
    const struct tool_names *names;
    bool single;  /* behind the first call nothing is read */
    bool closing; /* a call has just been taken: its end marker may follow */
    enum { TOOLS_BETWEEN, TOOLS_HEAD, TOOLS_FUNCTION, TOOLS_JSON, TOOLS_TEXT } state;
    struct buf held;         /* not decided yet */
    size_t n_mark;           /* bytes at its end that may begin a marker */
    size_t name_at, json_at; /* in held */
    int depth;
    bool quoted, escaped;
};

/* names outlive the reader. */
void tool_reader_init(struct tool_reader *r, enum tool_format format, const struct tool_names *names, bool single);
void tool_reader_free(struct tool_reader *r);
void tool_reader_put(struct tool_reader *r, const char *s, size_t n);
void tool_reader_end(struct tool_reader *r); /* nothing follows: what is held becomes text */
void tool_reader_drop_calls(struct tool_reader *r);
size_t tool_reader_bytes(const struct tool_reader *r); /* that it holds, the calls included */
/* The id of a call: nine letters and digits, as Mistral's templates demand. */
enum { TOOL_ID_BYTES = 10 };
void tool_call_id(char out[TOOL_ID_BYTES], uint64_t seed, int choice, int call);

#endif
