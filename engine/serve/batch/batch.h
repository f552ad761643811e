/* A batch job: the lines of a file, answered by a server on this machine, written to files in the order of the input.
 * So many lines are on their way at a time as keep the engine busy; what is answered out of turn waits until those
 * before it are written. A job that was killed, and is started again with the same words, goes on after the last line
 * that was written: each line is answered and written once, and the files are, byte for byte, what they would have been
 * without the kill. One thread, its own. Source of the format: OpenAI's batch files. */
#ifndef SERVE_BATCH_BATCH_H
#define SERVE_BATCH_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"

struct batch;

struct batch_setup {
    const char *input, *output, *errors; /* paths; borrowed until batch_close */
    const char *model;                   /* what tells it from another one, as text: a job ends with the same */
    uint64_t seed;                       /* of requests that ask for none */
    struct clock *clock;
    bool terminal;      /* progress is one line, written over */
    bool quiet;         /* nothing is said */
    bool keeps_journal; /* the caller has books of its own: batch_end leaves the file OUTPUT.job, for it to remove last
                         */
};

/* Reads what there is. E_INPUT: the output is another job's, or no job's; E_NOTFOUND, E_SYS. */
int batch_open(struct batch **out, const struct batch_setup *s, struct err *e);
void batch_close(struct batch *b);         /* NULL is fine */
int64_t batch_left(const struct batch *b); /* lines without a result */

enum batch_word {
    BATCH_GO,
    BATCH_STOP,   /* as if the server took no more */
    BATCH_EXPIRE, /* lines without an answer get none: they are errors */
};
struct batch_server {
    int port;
    const char *key;
    int at_once; /* lines on their way at most */
    /* NULL: the job goes on to its end, and ends where the server takes no more. Else it is asked now and then, and a
     * server that takes no more for now is asked again. */
    enum batch_word (*word)(void *ctx, int64_t done, int64_t errors);
    void *ctx;
};
/* Until every line has its result, or the server takes no more: E_GONE then, and what is written stays. */
int batch_run(struct batch *b, const struct batch_server *s, struct err *e);
/* No line is left: says what came of it, and the job is over. E_INPUT: lines are missing after all; E_SYS. */
int batch_end(struct batch *b, struct err *e);

#endif
