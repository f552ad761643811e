/* A lock with one condition: for the few places where threads share a state rather than send messages. Whoever changes
 * what others wait for wakes all of them, and they look again. Any thread; made and freed by its owner, when nobody is
 * inside. Invariant: monitor_wait is called with the lock held, and holds it when it returns. */
#ifndef BASE_MONITOR_H
#define BASE_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

struct monitor;

struct monitor *monitor_new(void);
void monitor_free(struct monitor *m); /* NULL is fine */
void monitor_lock(struct monitor *m);
bool monitor_try(struct monitor *m); /* false: somebody else is inside */
void monitor_unlock(struct monitor *m);
void monitor_wake(struct monitor *m); /* everybody who waits; with or without the lock */
/* Until somebody wakes it, or so many ns have passed (< 0: no bound): false. It may also return true for nothing. */
bool monitor_wait(struct monitor *m, int64_t timeout_ns);

#endif
