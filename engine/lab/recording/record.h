/* What an engine does, as lines of text: everything that a replay needs to take the same decisions again, and the
 * decisions themselves. For `moonshift serve --record FILE` they go to a file (record_file.h), for what-if on a running
 * server to a window in memory (record_window.h), or to both. No text, no token ids: prompts and answers are lengths
 * and keyed hashes of their prefixes, whose key is drawn for each recording and never written; draft tokens are numbers
 * of tokens. The engine's thread writes short lines into memory (record.c says what they are) and hands them over a few
 * times a second. A recording that was cut off is good up to its last whole line. Made before the engine and closed
 * after it. Invariant: the engine never waits for the disk. */
#ifndef LAB_RECORDING_RECORD_H
#define LAB_RECORDING_RECORD_H

#include "engine/engine.h"
#include "engine/lab/recording/record_window.h"

enum { RECORD_FORMAT = 3, RECORD_KEYS_A_LINE = 1024, RECORD_CHUNK_BYTES = 1 << 15, RECORD_MAX_CHOICES = 1 << 16 };

struct recorder;

/* path: the file; NULL: none, and its witness is not exact. window: borrowed until recorder_close; NULL: none. E_INPUT:
 * the file is there already; E_SYS. */
int recorder_open(struct recorder **out, const char *path, struct record_window *window, struct err *e);
const struct witness *recorder_witness(struct recorder *r); /* for engine_setup; valid until recorder_close */
/* The engine stands: the first line, which says what the node is. Before the engine's thread starts. r NULL is
 * fine. */
struct recorder_start {
    const struct node_facts *node;
    const struct model_config *model;
    struct layout start; /* the partition to begin with, as engine_setup had it */
    int block_size;
    const char *version;
};
void recorder_begin(struct recorder *r, const struct recorder_start *s, const struct engine *engine);
/* After the engine's thread has ended. NULL is fine. */
void recorder_close(struct recorder *r);
uint64_t recorder_bytes(const struct recorder *r); /* handed over so far; for benchmarks */

/* A keyed hash (SipHash-2-4 of 16 bytes): the same for equal input, and says nothing about it to anyone without the
 * key.
 */
uint64_t record_hash(const uint64_t key[2], const uint64_t input[2]);
/* Letters, digits, '.', '_' and '-' as they are, all else as %41; "-" alone and nothing as "%2d" and "-". */
void record_name(struct buf *out, const char *name);
/* A policy's params as an object of name: value. */
void record_params(struct buf *out, const struct policy *p);

#endif
