/* A child process that runs this very program, at the lowest priority and bounded in CPU time and memory, with none of
 * its open files and none of the settings that its environment mirrors (MOONSHIFT_...). What it says on stderr goes to
 * a file. Owned by whoever started it, one thread; looked at from time to time, for nobody waits for it. Invariants:
 * every child that was started has been waited for when child_end returns; none outlives the thread that started it,
 * however that ends. */
#ifndef SERVE_WHATIF_CHILD_H
#define SERVE_WHATIF_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "engine/base/err.h"

struct child {
    pid_t pid;  /* 0: none runs */
    int status; /* as of waitpid, once it has ended */
};

struct child_setup {
    char *const *args; /* "moonshift" first, NULL last */
    const char *said;  /* the file for stderr */
    int cpu_s;
    size_t memory;
};

int child_start(struct child *c, const struct child_setup *s, struct err *e); /* E_SYS */
bool child_has_ended(struct child *c); /* true also when none was started; status says how, once */
void child_kill(struct child *c);      /* it has not ended until child_has_ended says so */
void child_end(struct child *c);       /* killed, and waited for */
/* In the child, first of all: it ends with whoever started it. parent: what CHILD_PARENT is in its environment; NULL:
 * it is nobody's child. E_GONE: that one has ended meanwhile. */
#define CHILD_PARENT "CHILD_OF_MOONSHIFT"
int child_tie(const char *parent, struct err *e);

#endif
