/* HTTP bytes through a live connection: a socket pair, the real connection code, and a handler that answers whole, in
 * pieces, later, or never. 0xFF bytes in the input cut it into writes with turns of the loop between them, after some
 * of which half a minute has gone. Doors refuse /private. Checked: heads keep their promises, every exchange ends once,
 * nothing is left behind. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/serve/http/conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct handler {
    struct http_exchange *waiting;
    int n_handled, n_done, n_gone;
};

static void gone(struct http_exchange *x)
{
    struct handler *h = x->user;
    ASSERT(h->waiting == x);
    h->waiting = NULL;
    h->n_gone++;
}

static void check_head(const struct http_head *h)
{
    ASSERT(h->path[0] == '/' || strcmp(h->path, "*") == 0);
    for (int i = 0; i < h->n_headers; i++)
        for (const char *c = h->headers[i].value; *c; c++)
            ASSERT((unsigned char)*c >= 0x20 || *c == '\t');
    char out[16];
    http_query_find(h->query, "name", out, sizeof out);
}

static bool admit(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    ASSERT(!x->body.len && !x->answered);
    x->max_body = strcmp(x->head.path, "/small") == 0 ? 8 : 0;
    if (strcmp(x->head.path, "/private") != 0)
        return true;
    http_answer(x, 401, "text/plain", "no", 2);
    return false;
}

static void handle(void *ctx, struct http_exchange *x)
{
    struct handler *h = ctx;
    h->n_handled++;
    ASSERT(strcmp(x->head.path, "/private") != 0);
    ASSERT(!x->max_body || x->body.len <= x->max_body);
    check_head(&x->head);
    ASSERT(!h->waiting);
    if (strcmp(x->head.path, "/stream") == 0) {
        http_stream_begin(x, 200, "text/event-stream");
        for (int i = 0; i < 3; i++)
            buf_puts(http_stream_put(x), "data: x\n\n");
        http_stream_end(x);
    } else if (strncmp(x->head.path, "/later", 6) == 0) {
        h->waiting = x;
        x->user = h;
        x->gone = gone;
        x->drop_on_eof = x->head.path[6] == 'x';
    } else {
        const char *echo = http_head_find(&x->head, "x-echo");
        http_add_header(x, "X-Echo", echo ? echo : "none");
        http_answer(x, 200, "text/plain", x->body.data, x->body.len);
    }
}

static void done(void *ctx, const struct http_exchange *x, int64_t now)
{
    (void)x;
    (void)now;
    ((struct handler *)ctx)->n_done++;
}

static void error_body(int status, const char *why, struct buf *out)
{
    buf_printf(out, "%d %s", status, why);
}

static void drain(int fd)
{
    char tmp[4096];
    while (recv(fd, tmp, sizeof tmp, MSG_DONTWAIT) > 0)
        ;
}

static void answer_waiting(struct handler *h)
{
    struct http_exchange *x = h->waiting;
    h->waiting = NULL;
    if (x)
        http_answer(x, 503, "text/plain", "later", 5);
}

static void wait_long(struct http *http, struct clock *clock)
{
    clock_advance_to(clock, clock_now(clock) + 31000000000);
    LIST_EACH_SAFE(pos, tmp, &http->conns)
    conn_check_time(LIST_ENTRY(pos, struct http_conn, all), clock_now(clock));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct loop *loop;
    struct http *http;
    struct handler h = {0};
    struct clock clock;
    int pair[2];
    clock_init_virtual(&clock, 1000000000);
    struct http_setup s = {.clock = &clock,
                           .limits = {.body = 4096, .bodies = 8192, .backlog = 4096},
                           .ctx = &h,
                           .admit = admit,
                           .handle = handle,
                           .done = done,
                           .error_body = error_body};
    ASSERT(loop_create(&loop, NULL) == 0);
    s.loop = loop;
    ASSERT(http_create(&http, &s, NULL) == 0);
    ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    conn_open(http, pair[0], false, 0);
    for (size_t at = 0; at < size;) {
        const uint8_t *cut = memchr(data + at, 0xFF, size - at);
        size_t n = cut ? (size_t)(cut - (data + at)) : size - at;
        (void)!send(pair[1], data + at, n, MSG_NOSIGNAL);
        loop_turn(loop);
        drain(pair[1]);
        if (cut && at % 3 == 0)
            answer_waiting(&h);
        if (cut && at % 4 == 0)
            wait_long(http, &clock);
        http_flush(http);
        at += n + 1;
    }
    loop_turn(loop);
    answer_waiting(&h);
    http_flush(http);
    drain(pair[1]);
    loop_turn(loop);
    close(pair[1]);
    loop_turn(loop);
    http_destroy(http);
    ASSERT(!h.waiting && h.n_done >= h.n_handled);
    loop_destroy(loop);
    return 0;
}
