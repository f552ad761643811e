/* The input of a batch job: a file of OpenAI batch lines, read one at a time, so that ten million of them take no more
 * memory than one. Blank lines are passed over. One thread. Invariant: a line that is too long, or no request, is
 * reported as such, and the next one is read as if nothing had been. */
#ifndef SERVE_BATCH_INPUT_H
#define SERVE_BATCH_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct input;

/* The same url as a literal, when lines may be requests of it: what writes, and vectors. NULL: they may not. */
const char *input_path(const char *url);
#define INPUT_PATHS "\"/v1/chat/completions\", \"/v1/completions\", \"/v1/responses\" or \"/v1/embeddings\""

struct batch_line {
    int64_t number;   /* from 1, of those that are not blank */
    struct buf id;    /* custom_id as a JSON string; empty: it has none */
    const char *path; /* one of input_path */
    struct buf body;  /* of the request */
    const char *code; /* why it is no request: OpenAI's word for it; NULL: it is one */
    char why[400];
};

/* E_SYS, E_NOTFOUND; E_INPUT: not a regular file. */
int input_open(struct input **out, const char *path, struct err *e);
void input_close(struct input *in);             /* NULL is fine */
int64_t input_count(const struct input *in);    /* lines in all, blank ones not counted */
int64_t input_modified(const struct input *in); /* Unix seconds */
/* What tells this file from another one, as text. */
void input_print(const struct input *in, struct buf *out);
/* Passes over n lines. */
void input_skip(struct input *in, int64_t n);
/* The next line. False: there is none. The caller frees it. seed: what a request that writes and asks for none gets,
 * mixed with its number, so that its answer is the same whenever the line is run. */
bool input_next(struct input *in, uint64_t seed, struct batch_line *out);
void batch_line_free(struct batch_line *l);

#endif
