/* Chat templates: the model's own Jinja template, compiled once and rendered by a small sandboxed interpreter whose
 * steps, output and memory are bounded. It is tested against jinja2's ImmutableSandboxedEnvironment(trim_blocks,
 * lstrip_blocks) with the extras that model authors expect: raise_exception, strftime_now, tojson (which keeps
 * non-ASCII characters), loop.*, namespace, loopcontrols and the `generation` block. What is not supported fails at
 * compile time with the line. Owned by whoever compiled it. Invariant: a compiled template is immutable; any thread
 * may render it. */
#ifndef MODELS_TEMPLATE_CHAT_H
#define MODELS_TEMPLATE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

struct chat_template;

/* Compiles source. E_INPUT "line N: ..." for a bad template, E_UNSUPPORTED "line N: ..." for what is not offered. */
int chat_compile(struct chat_template **out, const char *source, size_t n, struct err *e);
void chat_free(struct chat_template *t);
/* Does it take this name from its context anywhere? If not, what the context has there changes nothing. */
bool chat_takes(const struct chat_template *t, const char *name);

struct chat_limits {
    size_t steps;  /* interpreter steps; 0 = 10 million */
    size_t bytes;  /* output; 0 = 64 MiB */
    size_t memory; /* held while rendering; 0 = 512 MiB */
};

struct chat_input {
    const struct json *context; /* an object; its members are the template's globals: messages, tools, documents,
                                   add_generation_prompt, bos_token, eos_token, and chat_template_kwargs' members */
    int64_t now;                /* Unix seconds for strftime_now (local time) */
    struct chat_limits limits;
    struct cancel *cancel; /* looked at every few steps; NULL: nobody cancels */
};

/* Renders into out (appended). E_INPUT: the template raised (raise_exception's text) or met wrong data, with its line;
 * E_FULL: a bound was passed, or the time is up; E_GONE: cancelled. On failure out holds nothing new. */
int chat_render(const struct chat_template *t, const struct chat_input *in, struct buf *out, struct err *e);

/* A template for models that carry none, by name: "chatml", "llama2", "llama3", "mistral". NULL: no such name. */
const char *chat_builtin(const char *name);

#endif
