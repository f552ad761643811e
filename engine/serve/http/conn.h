/* One connection of the HTTP server: bytes in, requests out, answers in, bytes out. Owned by http.c, whose parts it is;
 * front thread only. Invariant: a connection outlives its callbacks (it is marked dead and freed at the end of the
 * turn). */
#ifndef SERVE_HTTP_CONN_H
#define SERVE_HTTP_CONN_H

#include <sys/socket.h>

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "engine/serve/http/http.h"

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

/* What the connections of one listener hold together. Each listener has its own: who fills the public one does not keep
 * the operator out. */
struct http_room {
    int n_conns, max_conns, per_address; /* per_address 0: no bound */
    size_t body_bytes, max_bodies;       /* in bodies being received */
    struct map by_address;               /* address_key -> how many connections */
    int64_t said_ns;                     /* when it was last said in the log that there is no room */
};

struct http_conn {
    struct http *http;
    struct http_room *room;
    uint64_t address; /* whose limit it counts for */
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
    size_t counted;       /* of its body, in the room */
    size_t unsent;        /* of its backlog, in http's */
    int64_t since_ns;     /* the step began, of a head with its first byte */
    struct conn_pace {    /* has enough come, or gone, since then? */
        int64_t since_ns; /* 0: not asked for */
        size_t bytes;
    } receiving, sending;
    int64_t put_ns;
    struct http_exchange x;
};

/* The server, as its parts see it. */
struct http {
    struct http_setup setup;
    struct list conns, dirty, dead;
    struct http_room rooms[2]; /* of the public and of the admin listener */
    size_t unsent;             /* as the connections were counted last */
    int64_t said_ns;           /* when it was last said in the log that they are too many */
    int n_exchanges;
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

void conn_open(struct http *h, int fd, bool admin, uint64_t address);
void conn_kill(struct http_conn *c); /* closes at once; an exchange under way is gone */
void conn_flush(struct http_conn *c);
void conn_check_time(struct http_conn *c, int64_t now_ns);
void conn_touch(struct http_conn *c); /* it has something to send or to read on: looked at when the turn ends */
static inline size_t conn_backlog(const struct http_conn *c)
{
    return c->out.len - c->out_at;
}

/* room.c */
void rooms_init(struct http *h);
void rooms_free(struct http *h);
uint64_t room_address_key(const struct sockaddr_storage *a);
/* Room for one more from this address: who idles longest, or sends its request slowest, goes. false: everybody is busy.
 */
bool room_make(struct http *h, bool admin, uint64_t address);
void room_enter(struct http_conn *c);
void room_leave(struct http_conn *c);
void room_count_body(struct http_conn *c); /* what it holds of its body by now: nothing unless it is receiving one */
void room_count_unsent(struct http_conn *c);
/* Ends those that hold most unsent bytes, but for `but`, until there is room for `more`. Only where no list of
 * connections is being walked. */
void room_bound_unsent(struct http *h, const struct http_conn *but, size_t more);
struct http_conn *room_largest_body(struct http *h, const struct http_room *r); /* NULL: it is within its bound */

/* answer.c */
void conn_fail(struct http_conn *c, int status, const char *why); /* an answer by the server itself, then close */
void conn_chunk_close(struct http_conn *c);                       /* writes the size of the open chunk */

#endif
