/* Watches over the end of the server, from a thread of its own. It takes SIGTERM and SIGINT whatever the other threads
 * do, tells the server what they mean, and ends the process when shutdown takes longer than allowed, wherever it hangs
 * (a front that does not come back to its loop, a step that does not end, a text that is still being read). The first
 * signal drains; the second, or the end of the allowed time, stops; a third, or GUARD_GRACE_S after a stop, ends the
 * process at once with status 1. SIGHUP asks for the live policy's file to be read again. Owned by main; signals belong
 * to it from guard_start on. Invariant: a signal is acted on at once, whatever the other threads do. */
#ifndef SERVE_GUARD_H
#define SERVE_GUARD_H

#include "engine/base/err.h"

enum { GUARD_GRACE_S = 3 };

struct guard;

enum guard_word { GUARD_NOTHING, GUARD_DRAIN, GUARD_STOP, GUARD_RELOAD };

/* timeout_s: from the first signal (or guard_note_drain) until the stop. Call it on the main thread: SIGTERM, SIGINT
 * and SIGHUP are blocked there from now on. */
int guard_start(struct guard **out, int timeout_s, struct err *e);
int guard_fd(const struct guard *g);         /* readable when there is a word for the server */
enum guard_word guard_take(struct guard *g); /* one at a time */
void guard_note_drain(struct guard *g);      /* a drain began by other means: its time runs */
void guard_end(struct guard *g);             /* everything has ended in time; NULL is fine */

#endif
