/* Memory with several owners, gone with the last of them: for lists that are made once and then only read, by many
 * requests and threads. Each owner holds once and drops once, on any thread. Invariant: the memory is read-only from
 * the second hold on. */
#ifndef BASE_SHARED_H
#define BASE_SHARED_H

#include <stddef.h>

void *shared_new(size_t count, size_t size); /* zeroed, overflow checked, held once; ASSERTs on failure */
void *shared_hold(void *p);                  /* p, held once more; NULL is fine */
void shared_drop(void *p);                   /* NULL is fine */

#endif
