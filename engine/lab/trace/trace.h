/* Request traces from files, one row at a time: our CSV (arrival_s, input_tokens, output_tokens and, where wanted,
 * priority, tenant, hash_ids), the Azure LLM inference CSV (TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's
 * JSON lines (timestamp, input_length, output_length, hash_ids). A wall: what comes out is in range and in order of
 * time. Owned by whoever opened it, one thread. Invariant: only the current row is in memory, whatever the size of the
 * file. */
#ifndef LAB_TRACE_TRACE_H
#define LAB_TRACE_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/err.h"
#include "engine/world/ids.h"

enum {
    TRACE_MAX_TOKENS = 1 << 22, /* prompt or answer of a row */
    TRACE_MAX_HASHES = 1 << 13, /* ids of a row: TRACE_MAX_TOKENS of TRACE_HASH_TOKENS each */
    TRACE_HASH_TOKENS = 512, /* Mooncake's block: equal ids stand for equal text from the beginning of the prompt on */
    TRACE_LINE_BYTES = 1 << 20,
    TRACE_MAX_PRIORITY = 1000000,
};

struct trace_row {
    uint64_t index;         /* 0, 1, ... in the trace */
    int64_t arrival_ns;     /* after the trace's first row; of a recording after its first arrival, and in the order of
                               submission */
    int64_t front_ns;       /* of a recording: from then until the engine heard of it */
    int n_prompt, n_output; /* >= 1 */
    int priority;
    bool open_ended; /* the client gave no limit of its own */
    char tenant[NAME_BYTES];
    int64_t cancel_ns; /* its client leaves then, unless it has its answer; 0: it does not leave */
    double slo_ttft_ms, slo_tpot_ms;
    const uint64_t *hashes; /* borrowed until the next row is asked for; NULL: the prompt is its own */
    int n_hashes;
    int hash_tokens; /* that an id stands for; 0: TRACE_HASH_TOKENS. Past the last id the prompt is its own */
};

struct trace;

/* The kind of file follows from its first line. hashes_path: a file with the columns row, hash_ids beside it, or NULL.
 * E_NOTFOUND, E_SYS, or E_INPUT with "file:line: field ...". */
int trace_open(struct trace **out, const char *path, const char *hashes_path, struct err *e);
/* The same from streams, which the trace owns from then on (on failure too); hashes may be NULL. name is for messages.
 */
int trace_open_streams(struct trace **out, FILE *rows, FILE *hashes, const char *name, struct err *e);
void trace_close(struct trace *t); /* NULL is fine */
/* *end when there was none left (row is untouched then). */
int trace_next(struct trace *t, struct trace_row *row, bool *end, struct err *e);
/* The row's prompt, made up from (seed, row, position), or from the prefix hashes where it has them, so that what was
 * shared is shared. out: n_prompt ids in [0, vocab). */
void trace_prompt(const struct trace_row *row, uint64_t seed, int vocab, int32_t *out);

#endif
