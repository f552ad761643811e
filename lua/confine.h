/* What the process of a policy may do: nothing but compute, take memory up to a bound, and talk over its page. Called
 * in the process itself, which is lost if it fails. Invariant: nothing of what is taken away can be had back. */
#ifndef LUA_CONFINE_H
#define LUA_CONFINE_H

#include "engine/base/err.h"

/* NULL, or why this build cannot confine a process. */
const char *confine_refusal(void);
/* It dies when its parent does, and can gain no right. parent: the pid that it should have. E_GONE: it has ended. */
int confine_ties(int parent, struct err *e);
/* Memory, files and all other system calls. Threads that there are by now go on, confined like all; none is started
 * any more. E_SYS. */
int confine(struct err *e);

#endif
