/* Runs simulations side by side: command lines of this very program, each in a process of its own, up to a given number
 * at once, each with a JSON file for its results. They end in any order, so a caller who wants the same bytes every
 * time looks at the results only when all are there. Processes, rather than threads or a bare fork, because a policy's
 * memory, crash or endless loop then ends with its process, and because what is read back is the very JSON that a user
 * of `moonshift simulate` gets. SIGINT and SIGTERM end them all. One caller, main thread, before any other starts.
 * Invariant: every child has ended when jobs_run returns. */
#ifndef LAB_SEARCH_JOBS_H
#define LAB_SEARCH_JOBS_H

#include <signal.h>

#include "engine/base/err.h"
#include "engine/base/json.h"

struct job {
    char **args; /* without the program's name; the caller's */
    int n_args;
    struct json *result; /* what it wrote after --json, the caller's; NULL: it failed, or was not run */
    char *failure;       /* why, without "moonshift: ", the caller's; NULL: it has a result, or was not run */
    int64_t elapsed_ns;
};

/* From opening to closing, SIGINT and SIGTERM end no more than the jobs: between two jobs_run they wait for the next.
 */
struct job_signals {
    sigset_t before;
    int fd;
};

struct jobs {
    const struct job_signals *signals;
    struct job *items;
    int n;
    int parallel;        /* 0: as many as there are cores */
    const char *what;    /* for the line of progress, shown when stderr is a terminal */
    int n_before, n_all; /* the line counts from n_before to n_all; n_all 0: to n */
};

int job_signals_open(struct job_signals *s, struct err *e);
void job_signals_close(struct job_signals *s);
/* E_GONE: interrupted; those that had ended have their results. E_SYS: no process, no folder for the answers. */
int jobs_run(struct jobs *j, struct err *e);
/* Frees results and failures; args stay. */
void jobs_clear(struct jobs *j);

#endif
