#include "engine/serve/http/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

void conn_touch(struct http_conn *c)
{
    if (c->dirty || c->dead)
        return;
    c->dirty = true;
    list_push_back(&c->http->dirty, &c->dirty_node);
}

/* Reading goes on while an answer is under way: that is how a client that leaves is noticed. It pauses only while
 * the client does not take what it was sent. */
static void set_interest(struct http_conn *c)
{
    if (c->dead)
        return;
    bool room = c->step == CONN_ANSWER || c->step == CONN_LINGER || conn_backlog(c) <= c->http->setup.limits.backlog;
    if (!c->eof && room)
        loop_arm(c->on_read);
    else
        loop_disarm(c->on_read);
}

static void end_exchange(struct http_conn *c)
{
    struct http *h = c->http;
    struct http_exchange *x = &c->x;
    if (c->step == CONN_ANSWER) {
        if (x->gone)
            x->gone(x);
        x->status = 499;
        h->setup.done(h->setup.ctx, x, clock_now(h->setup.clock));
        h->n_exchanges--;
    }
    http_head_free(&x->head);
    buf_free(&x->body);
    buf_free(&x->extra);
}

void conn_kill(struct http_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    end_exchange(c);
    c->step = CONN_LINGER;
    room_count_body(c);
    room_count_unsent(c);
    room_leave(c);
    loop_event_free(c->on_read);
    loop_event_free(c->on_write);
    close(c->fd);
    buf_free(&c->in);
    buf_free(&c->out);
    list_remove(&c->dirty_node);
    list_remove(&c->all);
    list_push_back(&c->http->dead, &c->all);
}

static void dispatch(struct http_conn *c)
{
    struct http *h = c->http;
    c->step = CONN_ANSWER;
    room_count_body(c);
    h->n_exchanges++;
    h->setup.handle(h->setup.ctx, &c->x);
}

static bool has_body(const struct http_head *h)
{
    return h->chunked || h->content_length > 0;
}

/* The doors are asked before a byte of the body is read. Who is refused is answered at once, and ends when a body would
 * follow. */
static bool admitted(struct http_conn *c)
{
    struct http *h = c->http;
    struct http_exchange *x = &c->x;
    bool keep_alive = x->head.keep_alive;
    if (!h->setup.admit)
        return true;
    x->head.keep_alive = keep_alive && !has_body(&x->head);
    c->step = CONN_ANSWER;
    h->n_exchanges++;
    if (!h->setup.admit(h->setup.ctx, x))
        return false;
    h->n_exchanges--;
    c->step = CONN_HEAD;
    x->head.keep_alive = keep_alive;
    return true;
}

static size_t body_limit(const struct http_conn *c)
{
    size_t most = c->http->setup.limits.body;
    return c->x.max_body && c->x.max_body < most ? c->x.max_body : most;
}

static void begin_body(struct http_conn *c)
{
    if (c->x.head.content_length > (int64_t)body_limit(c)) {
        conn_fail(c, 413, "the request body is too large");
    } else if (has_body(&c->x.head)) {
        c->step = CONN_BODY;
        c->receiving = (struct conn_pace){.since_ns = c->since_ns};
        c->x.body.limit = body_limit(c);
        c->chunks = (struct http_chunks){0};
        if (c->x.head.expect_continue && !c->in.len)
            buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn_touch(c);
    } else {
        dispatch(c);
    }
}

/* True when it got somewhere. */
static bool step_head(struct http_conn *c)
{
    struct http *h = c->http;
    size_t blank = 0;
    while (c->head_seen == 0 && blank + 1 < c->in.len && memcmp(c->in.data + blank, "\r\n", 2) == 0)
        blank += 2;
    buf_cut(&c->in, blank);
    if (c->head_seen == 0 && c->in.len == 1 && c->in.data[0] == '\r')
        return false; /* half an empty line is no beginning yet: nor is its time that of a head */
    if (c->head_seen == 0 && c->in.len)
        c->since_ns = clock_now(h->setup.clock);
    size_t n = c->in.len ? http_head_length(c->in.data, c->in.len, &c->head_seen) : 0;
    if (n == 0 && c->in.len > HTTP_MAX_HEAD)
        conn_fail(c, 431, "the request head is too large");
    if (n == 0)
        return false;
    struct err e = {0};
    int rc = http_head_parse(&c->x.head, c->in.data, n, &e);
    buf_cut(&c->in, n);
    c->head_seen = 0;
    c->x.conn = c;
    c->x.admin = c->admin;
    c->since_ns = c->x.began_ns = clock_now(h->setup.clock);
    if (rc)
        conn_fail(c, c->x.head.status, e.text);
    else if (admitted(c))
        begin_body(c);
    return true;
}

static int take_body(struct http_conn *c, bool *whole)
{
    struct http_exchange *x = &c->x;
    size_t used = 0, limit = body_limit(c), before = x->body.len;
    int rc = 0;
    if (x->head.chunked) {
        struct http_bytes in = {c->in.data, c->in.len};
        rc = http_chunks_feed(&c->chunks, &in, &used, &x->body, limit);
        *whole = c->chunks.step == CHUNK_DONE;
    } else {
        used = (size_t)x->head.content_length - x->body.len;
        used = used < c->in.len ? used : c->in.len;
        buf_put(&x->body, c->in.data, used);
        *whole = x->body.len == (size_t)x->head.content_length;
    }
    buf_cut(&c->in, used);
    c->receiving.bytes += x->body.len - before;
    return rc;
}

static bool step_body(struct http_conn *c)
{
    struct http *h = c->http;
    bool whole = false;
    int rc = c->in.len ? take_body(c, &whole) : 0;
    struct http_conn *largest;
    room_count_body(c);
    while ((largest = room_largest_body(h, c->room)))
        conn_fail(largest, 503, "too many large requests at once; try again later");
    if (c->step != CONN_BODY)
        return true; /* it was itself the largest */
    if (c->x.body.over) {
        conn_fail(c, 503, "there is no memory for this request now; try again later");
        return true;
    }
    if (rc) {
        conn_fail(c, rc == E_FULL ? 413 : 400,
                  rc == E_FULL ? "the request body is too large" : "malformed chunked body");
        return true;
    }
    if (whole)
        dispatch(c);
    return whole;
}

/* Turns received bytes into requests, as far as they go. */
static void advance(struct http_conn *c)
{
    if (c->advancing || c->dead)
        return;
    c->advancing = true;
    bool on = true;
    while (on && !c->dead && !c->closing && conn_backlog(c) <= c->http->setup.limits.backlog)
        on = c->step == CONN_HEAD ? step_head(c) : c->step == CONN_BODY && step_body(c);
    c->advancing = false;
    if (c->dead)
        return;
    if (c->eof && !c->closing && c->step != CONN_ANSWER && conn_backlog(c) == 0)
        conn_kill(c); /* nothing more can come of it */
    else if (c->eof && c->step != CONN_ANSWER)
        c->closing = true;
    set_interest(c);
}

static void on_eof(struct http_conn *c)
{
    c->eof = true;
    if (c->step == CONN_LINGER || (c->step == CONN_ANSWER && c->x.drop_on_eof))
        conn_kill(c);
    else
        advance(c);
    set_interest(c);
}

static void linger(struct http_conn *c, size_t n)
{
    c->linger_bytes += n;
    if (c->linger_bytes > CONN_LINGER_BYTES)
        conn_kill(c);
}

static void on_read(void *ctx)
{
    struct http_conn *c = ctx;
    ssize_t n = recv(c->fd, c->http->scratch, CONN_READ, 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            conn_kill(c);
        return;
    }
    if (n == 0) {
        on_eof(c);
        return;
    }
    if (c->step == CONN_LINGER) {
        linger(c, (size_t)n);
        return;
    }
    buf_put(&c->in, c->http->scratch, (size_t)n);
    if (c->in.over || (c->step == CONN_ANSWER && c->in.len > CONN_AHEAD)) {
        /* Leaving it unread would hide the end of the connection behind it. */
        conn_kill(c);
        return;
    }
    advance(c);
    set_interest(c);
}

static void on_write(void *ctx)
{
    conn_touch(ctx);
}

/* Everything was answered and sent: say so, and read away what still comes, or the peer's kernel would throw
 * the answer away. */
static void shut(struct http_conn *c)
{
    if (c->eof || shutdown(c->fd, SHUT_WR) < 0) {
        conn_kill(c);
        return;
    }
    c->step = CONN_LINGER;
    c->since_ns = clock_now(c->http->setup.clock);
    buf_free(&c->in);
    set_interest(c);
}

static int send_some(struct http_conn *c)
{
    size_t left = conn_backlog(c);
    if (!left)
        return 0;
    ssize_t n = send(c->fd, c->out.data + c->out_at, left, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return E_GONE;
    if (n > 0) {
        c->out_at += (size_t)n;
        c->sending.bytes += (size_t)n;
    }
    if (c->out_at == c->out.len) {
        c->out_at = 0;
        buf_clear(&c->out);
        if (c->out.cap > 1 << 20)
            buf_free(&c->out);
    } else if (c->out_at > c->out.len / 2) {
        buf_cut(&c->out, c->out_at);
        c->out_at = 0;
    }
    return 0;
}

void conn_flush(struct http_conn *c)
{
    if (c->dead)
        return;
    conn_chunk_close(c);
    if (c->doomed || c->out.over || send_some(c)) {
        conn_kill(c);
        return;
    }
    room_count_unsent(c);
    if (conn_backlog(c)) {
        if (!c->sending.since_ns)
            c->sending = (struct conn_pace){.since_ns = clock_now(c->http->setup.clock)};
        loop_arm(c->on_write);
    } else {
        c->sending.since_ns = 0;
        loop_disarm(c->on_write);
    }
    if (c->closing && c->step != CONN_ANSWER && c->step != CONN_LINGER && !conn_backlog(c))
        shut(c);
    else if (c->step == CONN_HEAD || c->step == CONN_BODY)
        advance(c);
}

/* Each stretch of this many seconds must bring its share of bytes: an average could be paid for in advance. */
static bool is_slow(const struct http_conn *c, struct conn_pace *p, int seconds, int64_t now)
{
    if (!p->since_ns || now - p->since_ns <= seconds * INT64_C(1000000000))
        return false;
    bool slow = p->bytes < c->http->setup.limits.rate * (size_t)seconds;
    *p = (struct conn_pace){.since_ns = now};
    return slow;
}

void conn_check_time(struct http_conn *c, int64_t now)
{
    const struct http_limits *l = &c->http->setup.limits;
    int64_t second = 1000000000, age = now - c->since_ns;
    bool idle = c->step == CONN_HEAD && !c->in.len && !conn_backlog(c);
    if (is_slow(c, &c->sending, l->send_s, now) || (c->step == CONN_LINGER && age > CONN_LINGER_S * second) ||
        (idle && (age > l->idle_s * second || c->http->draining))) {
        conn_kill(c);
        return;
    }
    bool late_head = c->step == CONN_HEAD && c->in.len && age > l->receive_s * second;
    bool late_body = c->step == CONN_BODY && (is_slow(c, &c->receiving, l->receive_s, now) || age > l->body_s * second);
    if ((late_head || late_body) && !c->closing)
        conn_fail(c, 408, "the request did not arrive in time");
}

void conn_open(struct http *h, int fd, bool admin, uint64_t address)
{
    int on = 1, idle = 60;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    struct http_conn *c = mem_new(sizeof *c);
    *c = (struct http_conn){
        .http = h, .room = &h->rooms[admin], .address = address, .fd = fd, .admin = admin, .chunk_at = SIZE_MAX};
    c->x.conn = c;
    c->in.limit = CONN_AHEAD + 2 * CONN_READ;
    c->out.limit = h->setup.limits.answers;
    c->since_ns = clock_now(h->setup.clock);
    list_init(&c->dirty_node);
    list_push_back(&h->conns, &c->all);
    room_enter(c);
    c->on_read = loop_fd(h->setup.loop, fd, LOOP_READ, on_read, c);
    c->on_write = loop_fd(h->setup.loop, fd, LOOP_WRITE, on_write, c);
    if (!c->on_read || !c->on_write)
        conn_kill(c);
    else
        set_interest(c);
}
