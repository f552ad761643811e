/* One connection of the HTTP server: bytes in, requests out, answers in, bytes out. Owned by http.c, whose
 * parts it is; front thread only. Never true: freed while a callback of it runs (it is marked dead and freed
 * at the end of the turn). */
#ifndef FRONT_HTTP_CONN_H
#define FRONT_HTTP_CONN_H

#include "engine/base/list.h"
#include "engine/front/http.h"

enum conn_step {
    CONN_HEAD, /* waiting for a head */
    CONN_BODY,
    CONN_ANSWER, /* a handler has the exchange */
    CONN_LINGER, /* answered and shut; reading away what the client still sends, so that it sees the answer */
};

enum {
    CONN_AHEAD = 262144,
    CONN_READ = 65536,
    CONN_LINGER_BYTES = 4 << 20,
    CONN_CHUNK_HEAD = 10,
    CONN_CHUNK_MAX = 8 << 20,
    CONN_LINGER_S = 2
};

struct http_conn {
    struct http *http;
    int fd;
    enum conn_step step;
    bool admin, dead, doomed, eof, closing, advancing, dirty, writing;
    struct loop_event *on_read, *on_write;
    struct list all, dirty_node;
    struct buf in, out;
    size_t out_at; /* of out: sent already */
    size_t head_seen;
    size_t chunk_at; /* of out: where the open chunk's size goes; SIZE_MAX: no chunk is open */
    size_t linger_bytes;
    struct http_chunks chunks;
    int64_t since_ns; /* step began, or last byte of a body */
    int64_t sent_ns;  /* last progress in sending; set when a backlog begins */
    int64_t put_ns;
    struct http_exchange x;
};

/* The server, as its parts see it. */
struct http {
    struct http_setup setup;
    struct list conns, dirty, dead;
    int n_conns, n_exchanges;
    size_t body_bytes; /* in bodies being received */
    bool draining;
    struct http_listener {
        struct http *http;
        int fd, port;
        bool admin, paused;
        struct loop_event *event;
    } listeners[2];
    int n_listeners;
    struct loop_event *tick;
    char date[40];
    char *scratch; /* CONN_READ bytes */
};

void conn_open(struct http *h, int fd, bool admin);
void conn_kill(struct http_conn *c); /* closes at once; an exchange under way is gone */
void conn_flush(struct http_conn *c);
void conn_check_time(struct http_conn *c, int64_t now_ns);
void conn_touch(
    struct http_conn *c); /* it has something to send or to read on: looked at when the turn ends */
static inline size_t conn_backlog(const struct http_conn *c)
{
    return c->out.len - c->out_at;
}

/* http_answer.c */
void conn_fail(struct http_conn *c, int status,
               const char *why);            /* an answer by the server itself, then close */
void conn_chunk_close(struct http_conn *c); /* writes the size of the open chunk */

#endif
