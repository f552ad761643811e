/* `moonshift reproduce`: the numbers that papers published beside what `moonshift simulate` says. A list, which is
 * data, says what was published, which command lines are run, and which of their results (or what formula over them)
 * answers it, or why nothing can. Results go to stdout, progress to stderr. Main thread. Invariant: every number of the
 * list is reported, with a result or the reason why there is none. */
#ifndef LAB_SEARCH_REPRODUCE_H
#define LAB_SEARCH_REPRODUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/strings.h"

struct reproduce_ask {
    const char *list;     /* the file with what was published */
    struct strings only;  /* words: only numbers that have one of them somewhere; none: all */
    bool bars;            /* only numbers with a bar, and a bar that is missed is an error */
    const char *hardware; /* NULL: the fitted machine */
    const char *markdown; /* a file to write; NULL: none */
    int64_t jobs;         /* at once; 0: as many as there are cores */
};

/* The list is a wall: E_INPUT names the entry. E_POLICY: a bar is missed (with bars). E_GONE: interrupted. */
int reproduce(const struct reproduce_ask *ask, struct err *e);

#endif
