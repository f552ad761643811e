/* Named threads that are always joined. pthread.h lives here, in queue.c and in monitor.c only. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <stddef.h>

#include "engine/base/err.h"

struct thread;

/* Starts fn(arg) in a thread of that name (15 characters are kept). Signals are blocked in it: they belong to the main
 * thread. */
int thread_start(struct thread **out, const char *name, void (*fn)(void *), void *arg, struct err *e);
void thread_join(struct thread *t); /* waits and frees; NULL is fine */
int thread_cores(void);             /* CPUs this process may run on; cores.h: how many of them to compute on */
/* Asks for one core of the process's set (i modulo their number); returns false when the system refuses.
 * For benchmarks. */
int thread_pin_self(int i);

#endif
