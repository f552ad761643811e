/* Where processes of policies come from: a small process, forked from this one before it has a thread, that forks a
 * child whenever it is asked. So no fork copies a large process or finds a lock taken, and what the children have from
 * it holds no key, no prompt and no open file. It ends when this process does, however that ends, and its children end
 * with it. Any thread may ask; one answer at a time. Invariant: every child that was born is ended by nursery_end. */
#ifndef LUA_NURSERY_H
#define LUA_NURSERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct exchange_page;
struct nursery;

/* The process of a policy, seen from the engine. */
struct born {
    int pid, pidfd; /* pidfd -1: there is none */
    struct exchange_page *page;
};

/* NULL, or why policies cannot have processes of their own in this build or on this system. */
const char *nursery_refusal(void);
/* After seen_open, before any thread. forget wipes, in the nursery, what this process has read of secrets by now (NULL:
 * nothing); its arguments and environment are wiped there in any case. E_UNSUPPORTED (nursery_refusal), E_SYS. */
int nursery_start(struct nursery **out, void (*forget)(void *ctx), void *ctx, struct err *e);
void nursery_stop(struct nursery *n); /* all that were born have ended; NULL is fine */

/* A process that waits for a job. E_SYS. */
int nursery_bear(struct nursery *n, struct born *out, struct err *e);
/* Kills it if it lives, and takes it back. why: how it had ended, or that it was killed. */
void nursery_end(struct nursery *n, struct born *b, char *why, size_t cap);
bool born_lives(const struct born *b);
int64_t born_cpu_ns(const struct born *b); /* CPU time that it has used; -1: it has ended */

struct nursery_counts {
    uint64_t born, died, killed; /* died: by themselves, while a policy was in them; killed: because they were late */
};
struct nursery_counts nursery_counts(const struct nursery *n);
void nursery_count_end(struct nursery *n, bool killed); /* of one that was lost */

#endif
