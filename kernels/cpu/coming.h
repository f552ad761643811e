/* The weights that come next. A few rows take as long as their weights take to come from memory, and memory has nothing
 * to do while one thread works alone between products, or waits for the last item of one. So a thread that has nothing
 * to do asks for the start of its lane of the next product (pool.h), into its own cache. Which one that is, is
 * learned: the one that came after this one last time. Owned by the device; the rank's thread notes products, each
 * thread of its pool fetches. Invariant: a wrong guess costs some traffic, and never anything else: nothing of what is
 * asked for is read, so that it may be gone by then. */
#ifndef CPU_COMING_H
#define CPU_COMING_H

#include <stdbool.h>
#include <stddef.h>

struct coming;

/* The bytes of a product that a thread reads first. */
struct span {
    const void *at;
    size_t bytes; /* 0: none */
};

struct coming *coming_new(int n_threads); /* NULL: no memory */
void coming_free(struct coming *c);       /* NULL is fine */
/* [n_threads], to be filled in before a product is noted. */
struct span *coming_spans(struct coming *c);
/* A product begins, whose spans are there; or (unknown) one of which nothing need be fetched, nor behind it. */
void coming_note(struct coming *c, bool known);
/* Asks for some lines of what comes next. False: all of it has been asked for. */
bool coming_fetch(struct coming *c, int thread);

#endif
