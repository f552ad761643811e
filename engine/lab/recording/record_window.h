/* The last of what a server did, in memory: the lines of the recorder (record.h), bounded in bytes, of which a window
 * can be written to a file at any time, for `simulate --what-if`. The recorder's thread adds; any other thread asks and
 * writes, while it goes on. Lines lie in blocks that are filled once and never change; who writes a window holds the
 * blocks, not the lock, so the engine waits for no more than a copy of some pointers. A window begins in the middle:
 * its first line has a mark that says from when it is and which request is its first; what it says of earlier requests
 * is for readers to pass by. Requests that were in flight when it begins are not in it. Owned by whoever made it, freed
 * after the recorder. Invariant: blocks that nobody holds take no more memory than was given. */
#ifndef LAB_RECORDING_RECORD_WINDOW_H
#define LAB_RECORDING_RECORD_WINDOW_H

#include <stdint.h>
#include <stdio.h>

#include "engine/base/err.h"

enum { RECORD_BLOCK_BYTES = 1 << 16, RECORD_WINDOW_LEAST = 1 << 20 };

struct record_window;

/* Whole lines, one after the other. Times are in ns since the engine's start. */
struct record_chunk {
    const char *text; /* copied */
    size_t n;
    int64_t from_ns, to_ns; /* of the first and the last line that has a time */
    int n_arrived;
};

/* What it holds. */
struct record_window_facts {
    int64_t from_ns, to_ns; /* times of the first and the last line */
    uint64_t n_arrived;     /* requests; of what is written, those that were admitted */
    uint64_t n_ended;       /* of those that were admitted in it; of what is written only, as are the next two */
    uint64_t n_before;      /* requests from before it that ended in it: they are left away */
    uint64_t n_steps;
    size_t bytes, most; /* in memory; what it may have. Of what is written: bytes of text, most is 0 */
};

/* Which part of it, and who is to be named as live. */
struct record_window_ask {
    int64_t last_ns; /* the last so many ns; 0: all of it */
    const char *policy, *sha256;
    const char *params; /* a JSON object; NULL: {} */
};

struct record_window *record_window_new(size_t most); /* at least RECORD_WINDOW_LEAST */
void record_window_free(struct record_window *w);     /* NULL is fine */

/* The recorder's thread. head: the first line up to the policy, which moves (record_head_node()). */
void record_window_begin(struct record_window *w, char *head);
void record_window_add(struct record_window *w, const struct record_chunk *c);

/* Any thread. */
void record_window_look(struct record_window *w, struct record_window_facts *out);
/* E_NOTFOUND: no request came in it; E_SYS: it cannot be written. */
int record_window_write(struct record_window *w, const struct record_window_ask *ask, FILE *to,
                        struct record_window_facts *out, struct err *e);

#endif
