/* The front's event loop: file descriptors and timers as callbacks on one thread, over libevent. After every callback
 * the loop calls `after`, where the HTTP server sends what the callback left in its connections' buffers: one write a
 * connection, however many events arrived. Invariant: one callback runs at a time. */
#ifndef SERVE_HTTP_LOOP_H
#define SERVE_HTTP_LOOP_H

#include <stdbool.h>

#include "engine/base/err.h"

struct loop;
struct loop_event;
typedef void (*loop_fn)(void *ctx);

enum loop_kind {
    LOOP_READ, /* fd is readable (or at its end) */
    LOOP_WRITE,
};

int loop_create(struct loop **out, struct err *e); /* E_SYS */
void loop_destroy(struct loop *l);                 /* every event must be freed before */
void loop_after(struct loop *l, loop_fn fn, void *ctx);
/* Made disarmed; stays armed until loop_disarm. NULL when the system refuses. */
struct loop_event *loop_fd(struct loop *l, int fd, enum loop_kind kind, loop_fn fn, void *ctx);
struct loop_event *loop_every(struct loop *l, int ms, loop_fn fn, void *ctx); /* armed */
void loop_arm(struct loop_event *v);
void loop_disarm(struct loop_event *v);
void loop_again(struct loop_event *v);      /* its callback runs once more in the next turn */
void loop_event_free(struct loop_event *v); /* NULL is fine */
void loop_run(struct loop *l);              /* until loop_stop */
void loop_turn(struct loop *l);             /* what is due now, without waiting; for tests */
void loop_stop(struct loop *l);

#endif
