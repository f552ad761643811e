/* Where the requests of a simulation come from: a trace file or a generator, cut off after a number of requests or
 * seconds. Owned by whoever opened it, one thread. Invariant: no row follows the reported end. */
#ifndef LAB_ARRIVALS_H
#define LAB_ARRIVALS_H

#include "engine/lab/trace/generate.h"
#include "engine/lab/trace/trace.h"

struct arrivals;

struct arrivals_setup {
    const char *spec;   /* a file's path, or a generator with its settings */
    const char *hashes; /* the prefix hashes beside the file; NULL: none */
    uint64_t seed;
    double from_s;         /* rows before it are left away; times are from there */
    uint64_t max_requests; /* of the rest; 0: all */
    double max_seconds;    /* of the rest; 0: all; rows at or after it are left away */
    double rate;           /* rows come closer together or further apart, so that all of the trace, whatever
                              max_requests says, has so many a second; 0: as they are */
};

/* E_INPUT: what the wall says of a row, or no rate can be given to rows that all come at once. */
int arrivals_open(struct arrivals **out, const struct arrivals_setup *s, struct err *e);
void arrivals_close(struct arrivals *a); /* NULL is fine */
int arrivals_next(struct arrivals *a, struct trace_row *row, bool *end, struct err *e);
/* What it is: a generator with its settings, or the file's name and the SHA-256 of its bytes. */
int arrivals_describe(const struct arrivals *a, struct buf *out, struct err *e);

#endif
