#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/serve/http/conn.h"

enum { LARGE_ANSWER = 65536 };

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } all[] = {
        {100, "Continue"},
        {200, "OK"},
        {201, "Created"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status)
            return all[i].reason;
    return status < 400 ? "OK" : status < 500 ? "Client Error" : "Server Error";
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    if (strpbrk(value, "\r\n"))
        return;
    buf_printf(&x->extra, "%s: %s\r\n", name, value);
}

static void put_head(struct http_exchange *x, int status, const char *type)
{
    struct http_conn *c = x->conn;
    ASSERT(!x->answered);
    x->answered = true;
    x->status = status;
    if (c->http->draining || (c->eof && !c->in.len) || !x->head.keep_alive)
        c->closing = true;
    buf_printf(&c->out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: moonshift\r\n", status, http_reason(status),
               c->http->date);
    if (type)
        buf_printf(&c->out, "Content-Type: %s\r\n", type);
    buf_put(&c->out, x->extra.data, x->extra.len);
    if (c->closing)
        buf_puts(&c->out, "Connection: close\r\n");
    else if (x->head.minor == 0)
        buf_puts(&c->out, "Connection: keep-alive\r\n");
}

/* The answer is whole: the connection is free for its next request. */
static void finish(struct http_exchange *x)
{
    struct http_conn *c = x->conn;
    struct http *h = c->http;
    int64_t now = clock_now(h->setup.clock);
    h->setup.done(h->setup.ctx, x, now);
    h->n_exchanges--;
    http_head_free(&x->head);
    buf_free(&x->body);
    buf_free(&x->extra);
    *x = (struct http_exchange){.conn = c};
    c->step = CONN_HEAD;
    c->head_seen = 0;
    c->since_ns = now;
    conn_touch(c);
}

static bool has_body(const struct http_exchange *x, int status)
{
    return x->head.method != HTTP_HEAD && status != 204 && status != 304;
}

static void answer_too_large(struct http_exchange *x)
{
    struct buf body = {0};
    x->conn->http->setup.error_body(507, "the answer is larger than this server holds for anyone; ask for less at once",
                                    &body);
    http_answer(x, 507, "application/json", body.data, body.len);
    buf_free(&body);
}

void http_answer(struct http_exchange *x, int status, const char *type, const char *body, size_t n)
{
    struct http_conn *c = x->conn;
    if (n > http_max_answer(c->http) && status != 507) {
        answer_too_large(x);
        return;
    }
    /* Small ones are looked at when the turn ends: errors are answered where connections are being walked, and none may
     * go there. */
    if (n > LARGE_ANSWER)
        room_bound_unsent(c->http, c, n);
    put_head(x, status, type);
    if (status != 204)
        buf_printf(&c->out, "Content-Length: %zu\r\n", n);
    buf_puts(&c->out, "\r\n");
    if (has_body(x, status))
        buf_put(&c->out, body, n);
    room_count_unsent(c);
    finish(x);
}

void http_stream_begin(struct http_exchange *x, int status, const char *type)
{
    struct http_conn *c = x->conn;
    if (x->head.minor == 0)
        x->head.keep_alive = false; /* the end of the connection is the end of the body */
    put_head(x, status, type);
    buf_puts(&c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    buf_puts(&c->out, x->head.minor ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    x->streaming = true;
    c->put_ns = clock_now(c->http->setup.clock);
    conn_touch(c);
}

struct buf *http_stream_put(struct http_exchange *x)
{
    struct http_conn *c = x->conn;
    ASSERT(x->streaming);
    if (!c->dirty) {
        /* Only what earlier turns left behind counts: one burst may be larger than the bound. */
        if (conn_backlog(c) > c->http->setup.limits.backlog)
            c->doomed = true;
        c->put_ns = clock_now(c->http->setup.clock);
        conn_touch(c);
    }
    if (c->chunk_at != SIZE_MAX && c->out.len - c->chunk_at > CONN_CHUNK_MAX)
        conn_chunk_close(c);
    if (c->chunk_at == SIZE_MAX && x->head.minor) {
        c->chunk_at = c->out.len;
        buf_puts(&c->out, "00000000\r\n");
    }
    return &c->out;
}

void conn_chunk_close(struct http_conn *c)
{
    if (c->chunk_at == SIZE_MAX)
        return;
    if (c->out.over) { /* its beginning may not be there: the connection ends */
        c->chunk_at = SIZE_MAX;
        return;
    }
    static const char digits[] = "0123456789abcdef";
    size_t n = c->out.len - c->chunk_at - CONN_CHUNK_HEAD;
    ASSERT(n < 1ull << 32);
    if (n == 0)
        c->out.len = c->chunk_at; /* nothing was put: an empty chunk would be the end */
    else
        buf_puts(&c->out, "\r\n");
    for (int i = 7; n && i >= 0; i--, n >>= 4)
        c->out.data[c->chunk_at + (size_t)i] = digits[n & 15];
    c->chunk_at = SIZE_MAX;
}

void http_stream_end(struct http_exchange *x)
{
    struct http_conn *c = x->conn;
    ASSERT(x->streaming);
    conn_chunk_close(c);
    if (x->head.minor)
        buf_puts(&c->out, "0\r\n\r\n");
    finish(x);
}

size_t http_unsent(const struct http_exchange *x)
{
    return conn_backlog(x->conn);
}

int64_t http_last_put_ns(const struct http_exchange *x)
{
    return x->streaming ? x->conn->put_ns : x->began_ns;
}

void conn_fail(struct http_conn *c, int status, const char *why)
{
    struct http_exchange *x = &c->x;
    struct buf body = {0};
    if (status == 503)
        http_add_header(x, "Retry-After", "1");
    c->http->setup.error_body(status, why, &body);
    x->head.keep_alive = false;
    x->head.minor = 1;
    if (!x->began_ns)
        x->began_ns = clock_now(c->http->setup.clock);
    if (c->step != CONN_ANSWER)
        c->http->n_exchanges++;
    c->step = CONN_ANSWER;
    room_count_body(c);
    http_answer(x, status, "application/json", body.data, body.len);
    buf_free(&body);
}
