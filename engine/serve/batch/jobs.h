/* The batch jobs of a server's clients (/v1/batches): what each is, on the disk as BATCH-ID.json beside the files it
 * reads and makes, and the thread that runs them, one after the other, oldest first. Their lines come back to the
 * server over its own port with a key of the server's alone, so they are requests like others, but offline: policies
 * put them last (request.offline). A job outlasts a restart or a kill, as batch.h says. Its end: all lines answered, 24
 * hours, a cancel, an input that is wrong, or a key that is no more; a server that stops only interrupts it. Calls come
 * on the front thread. Invariant: what a client was told of a job is on the disk. */
#ifndef SERVE_BATCH_JOBS_H
#define SERVE_BATCH_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/serve/batch/files.h"
#include "engine/serve/front/auth.h"

enum { JOBS_ID = 32, JOBS_LIVE = 64, JOBS_KEPT = 1000, JOBS_METADATA = 16384, JOBS_WINDOW_S = 86400 };

enum job_status {
    JOB_VALIDATING,
    JOB_IN_PROGRESS,
    JOB_FINALIZING,
    JOB_CANCELLING,
    JOB_COMPLETED, /* from here on it has ended */
    JOB_FAILED,
    JOB_EXPIRED,
    JOB_CANCELLED,
    JOB_STATUSES
};
const char *job_status_name(enum job_status s);
static inline bool job_has_ended(enum job_status s)
{
    return s >= JOB_COMPLETED;
}

struct batch_job {
    uint64_t number; /* they are listed in this order */
    char id[JOBS_ID], owner[FILES_OWNER], endpoint[32];
    char tenant[NAME_BYTES], salt[NAME_BYTES];                /* of its lines */
    char input[FILES_ID], output[FILES_ID], errors[FILES_ID]; /* of files; output, errors: "" until there is one */
    enum job_status status;
    int64_t at_s[JOB_STATUSES];       /* when it came to be so; 0: never. VALIDATING: when it was made */
    int64_t total, completed, failed; /* lines */
    int64_t wrong_line;               /* of a failed one; 0: none */
    char code[32], why[400];
    char *metadata; /* a JSON object, or "null" */
};

struct jobs;

struct jobs_setup {
    const char *dir;             /* of the files */
    struct files *files;         /* borrowed */
    const char *model, *encoder; /* what tells each from another one; NULL: there is none */
    struct clock *clock;
    int at_once; /* lines on their way at most */
};

/* Reads what there is. The thread starts with jobs_start. E_SYS, E_INPUT. */
int jobs_open(struct jobs **out, const struct jobs_setup *s, struct err *e);
/* The port of the server, which answers by now. */
int jobs_start(struct jobs *j, int port, struct err *e);
void jobs_interrupt(struct jobs *j); /* what runs ends soon, and goes on after the next start. NULL is fine */
void jobs_stop(struct jobs *j);      /* the same, and waits for it. NULL is fine */
void jobs_close(struct jobs *j);     /* stopped; NULL is fine */
/* The key of one of its lines: whose they are. NULL: the header names no job that runs. */
const struct auth_key *jobs_key(struct jobs *j, const char *authorization);
/* Jobs of owners that have no key any more end. has: true for owners that have. */
void jobs_drop_strangers(struct jobs *j, bool (*has)(void *ctx, const char *owner), void *ctx);
/* Files that jobs have made since the last call are there for all to find. Often. */
void jobs_settle(struct jobs *j);

/* A new one; job->owner, endpoint, tenant, salt, input and metadata (moves) are the caller's. E_FULL: too many are
 * under way; E_SYS. */
int jobs_add(struct jobs *j, struct batch_job *job, struct err *e);
/* A copy, with metadata borrowed until the next call. False: none of theirs. */
bool jobs_find(struct jobs *j, const char *id, const char *owner, struct batch_job *out);
/* The i-th, newest first. False: there are no more. */
bool jobs_at(struct jobs *j, int i, struct batch_job *out);
bool jobs_cancel(struct jobs *j, const char *id); /* false: it has ended */
bool jobs_use(struct jobs *j, const char *file);  /* does a job that has not ended read this file? */
struct jobs_counts {
    int by_status[JOB_STATUSES];
    int64_t done, failed; /* lines, since the start of the server */
};
void jobs_count(struct jobs *j, struct jobs_counts *out);

#endif
