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

/* Adds NAME=VALUE to the path's query; value NULL: nothing. */
void session_flag(struct buf *path, const char *name, const char *value);
int session_check_sha(const char *flag, const char *sha, struct err *e); /* E_INPUT; NULL is fine */
int session_check_name(const char *name, struct err *e);                 /* of a policy. E_INPUT */
bool session_is_file(const char *word);                                  /* it has a / or ends in .lua */
int session_name_file(struct session *s, struct err *e); /* what the policy of a file is called, in the app. E_INPUT */
/* trial.c: a what-if with the path as it stands. source NULL: of a version that is kept, which the path names. False:
 * it was refused, or failed in it, and that has been said. */
bool session_passes(struct session *s, const struct buf *source, int *rc, struct err *e);

/* shadow.c: the policy of the command line is to go on beside the live one, as verb says ("shadow", "canary").
 * *answered: the server has said yes. E_INPUT: what was asked for is wrong. */
int session_post_beside(struct session *s, const char *verb, bool *answered, struct err *e);

/* canary.c, limits.c, top.c, shadow.c, trial.c: the commands. E_INPUT: what was asked for is wrong. */
int session_limits(struct session *s, struct err *e);
int session_state(struct session *s, struct err *e);
int session_top(struct session *s, struct err *e);
int session_shadow(struct session *s, struct err *e);
int session_canary(struct session *s, struct err *e);
int session_what_if(struct session *s, struct err *e);

#endif
