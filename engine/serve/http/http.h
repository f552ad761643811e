/* The HTTP server: listeners, connections, requests in, answers out. It knows nothing of what the routes mean: a
 * handler gets an exchange (one request and its answer) and answers now or later, whole or as a stream. Front thread
 * only. Bytes put into an answer leave at the end of the loop's turn, one write a connection. Reading never stops while
 * an answer is under way, so a client that leaves is noticed at once; bytes sent ahead (pipelining) wait, bounded. A
 * sender or a reader that is too slow loses its connection: bounded backlog, bounded time, a least rate. Where there is
 * no room (connections of a listener or an address, bytes of bodies), those who hold most for least go, not the
 * newcomer (room.c). The parser and the connection are our own, over plain events: evhttp of libevent 2.1 ends the
 * process on a pipelined byte once reading goes on during an answer, and without reading it does not see a client
 * leave. Invariants: an exchange is answered once; nobody touches it after its answer ended or its gone() ran. */
#ifndef SERVE_HTTP_HTTP_H
#define SERVE_HTTP_HTTP_H

#include "engine/base/clock.h"
#include "engine/serve/http/loop.h"
#include "engine/serve/http/parse.h"

struct http;
struct http_conn;

struct http_limits { /* 0 = the default */
    size_t body;     /* bytes of one request body; 64 MiB */
    size_t bodies;   /* of all bodies being received, of each listener; 1 GiB. The largest goes when there are more */
    size_t backlog;  /* unsent bytes of one stream; 1 MiB */
    size_t answers;  /* unsent bytes of all connections; 1 GiB. The largest goes when there are more; one answer has a
                        quarter at most */
    size_t rate; /* bytes a second at which a body must come, and an answer be taken, over receive_s and send_s; 1024 */
    int connections;       /* of the public listener; 4096, or what the system's limit of files allows */
    int per_address;       /* of them from one address (IPv6: one network of 64 bits); half of them */
    int admin_connections; /* of the admin listener, which are none of those; 64 */
    int idle_s;            /* keep-alive without a request; 75 */
    int receive_s;         /* a whole head; and see rate; 30 */
    int body_s;            /* a whole body; 600 */
    int send_s;            /* see rate; 30 */
};

struct http_exchange {
    struct http_head head;
    struct buf body;          /* whole; a handler may take it */
    size_t max_body;          /* bytes of it; 0: the server's limit. set by admit */
    int64_t began_ns;         /* when its head was complete */
    bool admin;               /* came through the second listener */
    bool answered, streaming; /* begun; being streamed */
    int status;               /* once answered */
    struct buf extra;         /* header lines added by http_add_header */
    struct http_conn *conn;
    /* A handler that answers later sets these. gone: the client has left (or was too slow); nothing can be
     * answered any more. */
    void *user;
    void (*gone)(struct http_exchange *x);
    bool drop_on_eof; /* a client that shuts its sending side counts as gone: for work that is not worth doing
                         for nobody */
};

struct http_setup {
    struct loop *loop;
    struct clock *clock;
    struct http_limits limits;
    void *ctx;
    /* A head is whole and nothing of its body was read or asked for (100 Continue). True: let it in. False: it was
     * answered; what the client still sends of the body is read away, bounded, and the connection ends. NULL: all come
     * in. */
    bool (*admit)(void *ctx, struct http_exchange *x);
    void (*handle)(void *ctx, struct http_exchange *x);
    /* An exchange ended: answered, or gone (status 499). For counts and the access log. */
    void (*done)(void *ctx, const struct http_exchange *x, int64_t now_ns);
    /* The body of an error answer that the server itself gives (malformed request, too large, ...). */
    void (*error_body)(int status, const char *why, struct buf *out);
};

int http_create(struct http **out, const struct http_setup *s, struct err *e);
void http_destroy(struct http *h); /* open exchanges are gone */
/* Binds and listens; port 0 picks one (http_port). E_INPUT: bad host; E_SYS: in use and the like. At most 2
 * listeners. */
int http_listen(struct http *h, const char *host, int port, bool admin, struct err *e);
/* Whether this address could be had now; takes nothing. The same errors. */
int http_can_listen(const char *host, int port, struct err *e);
int http_port(const struct http *h, bool admin); /* 0: none */
bool http_is_any(const struct http *h);          /* does the public listener hear every address? */
bool http_is_loopback(const struct http *h,
                      bool admin);             /* the address that is listened on; false also when there is none */
void http_close_after_answers(struct http *h); /* draining: idle connections close, the others after their answer */
void http_close_listeners(struct http *h);
void http_close_connections(struct http *h); /* at once */
int http_n_connections(const struct http *h);
int http_n_exchanges(const struct http *h);   /* being answered */
size_t http_backlog(const struct http *h);    /* unsent bytes in all */
size_t http_max_answer(const struct http *h); /* bytes of one */
/* Room for `held` bytes of answers that are being made: those that leave most untaken end. false: there is none even
 * so. Not while an exchange is being answered. */
bool http_make_room(struct http *h, size_t held);
void http_flush(struct http *h); /* send what is there now, e.g. between two batches of tokens */

/* ---- answering */
void http_add_header(struct http_exchange *x, const char *name,
                     const char *value); /* before the answer; value must be one line */
/* The whole answer. type may be NULL with n 0. The exchange is over. One that is larger than http_max_answer becomes a
 * 507. */
void http_answer(struct http_exchange *x, int status, const char *type, const char *body, size_t n);
/* A streamed answer: begin, put as often as wanted (straight into the returned buffer: append only), end. */
void http_stream_begin(struct http_exchange *x, int status, const char *type);
struct buf *http_stream_put(struct http_exchange *x);
void http_stream_end(struct http_exchange *x);           /* the exchange is over */
size_t http_unsent(const struct http_exchange *x);       /* bytes of a stream that the client has not taken yet */
int64_t http_last_put_ns(const struct http_exchange *x); /* when bytes were last put; its beginning when none */
const char *http_reason(int status);

#endif
