/* A client of a running server's admin routes, for commands: one request at a time over libevent's evhttp, bounded in
 * size and time. Where the server is and which key it wants come from flags, else from a file of the user's own. Main
 * thread. Invariants: the key is in no text of an error; a file that holds a key and that others can read is refused.
 */
#ifndef REMOTE_CLIENT_H
#define REMOTE_CLIENT_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum { REMOTE_BYTES = 16 << 20, REMOTE_SECONDS = 60 }; /* of an answer */

struct remote {
    char host[256];
    int port;
    char *key;   /* NULL: none */
    int seconds; /* until an answer has to be there; 0: REMOTE_SECONDS */
};

struct remote_setup {
    const char *server;   /* http://HOST:PORT; NULL: the file's, else http://127.0.0.1:8001 */
    const char *key;      /* NULL: key_file's, else the file's */
    const char *key_file; /* its first line that says something; NULL: none */
    const char *config;   /* JSON: {"server": URL, "key": KEY}; NULL: `usual` */
    const char *usual;    /* such a file, if it is there; NULL: none */
};
/* E_INPUT: no URL, or a file that cannot be used; E_NOTFOUND, E_SYS: a file. Freed in every case. */
int remote_settle(struct remote *r, const struct remote_setup *s, struct err *e);
void remote_free(struct remote *r);

enum remote_method { REMOTE_GET, REMOTE_PUT, REMOTE_POST, REMOTE_DELETE };
struct remote_answer {
    int status;
    struct buf body; /* the caller frees it */
};
/* path with its query. body may be NULL. E_GONE: nobody answers, or not in time, or more than REMOTE_BYTES. */
int remote_ask(const struct remote *r, enum remote_method method, const char *path, const struct buf *body,
               struct remote_answer *out, struct err *e);

#endif
