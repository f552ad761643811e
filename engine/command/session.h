/* The talk of a command with a running server: asked by its admin routes, one request at a time, with what came of it
 * on standard error and in the process's status. One of these lies in command_remote(), which closes it. Main thread.
 */
#ifndef COMMAND_SESSION_H
#define COMMAND_SESSION_H

#include "engine/command/app.h"
#include "engine/remote/client.h"

enum { SESSION_REFUSED = 1, SESSION_AWAY = 3 }; /* status of the process */

struct session {
    struct app *app;
    struct remote remote;
    struct remote_answer answer; /* the last one */
    struct buf path;             /* of the next request */
};

/* False: it was refused, or nobody answered; that has been said, and the status is set. */
bool session_ask(struct session *s, enum remote_method method, const struct buf *body);
/* In two parts, for who has a screen to leave between them: rc and e are what session_try said. */
int session_try(struct session *s, enum remote_method method, const struct buf *body, struct err *e);
bool session_judge(struct session *s, int rc, const struct err *e);
void session_print(const struct session *s);        /* the answer as it came */
struct json *session_json(const struct session *s); /* NULL: it is none; the caller frees it */

/* limits.c, top.c: the commands. E_INPUT: what was asked for is wrong. */
int session_limits(struct session *s, struct err *e);
int session_state(struct session *s, struct err *e);
int session_top(struct session *s, struct err *e);

#endif
