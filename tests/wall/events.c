/* Watchers of /admin/events that do not read: events pass them by, they are told how many, their memory is bounded and
 * they keep their connection. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/room/events.h"

enum { EVENT_BYTES = 20000, EVENTS = 600, SLOW_BOUND = 512 << 10 };

struct stand {
    struct clock clock;
    struct loop *loop;
    struct front front;
    struct events events;
    char line[EVENT_BYTES + 1];
};

static void handle(void *ctx, struct http_exchange *x)
{
    events_watch(&((struct stand *)ctx)->events, x);
}

static void error_body(int status, const char *why, struct buf *out)
{
    buf_printf(out, "%d %s", status, why);
}

static void done(void *ctx, const struct http_exchange *x, int64_t now_ns)
{
    (void)ctx;
    (void)x;
    (void)now_ns;
}

static void open_stand(struct stand *w)
{
    struct err e = {0};
    *w = (struct stand){0};
    clock_init_real(&w->clock);
    memset(w->line, '7', EVENT_BYTES);
    assert_int_equal(loop_create(&w->loop, &e), 0);
    struct http_setup s = {
        .loop = w->loop,
        .clock = &w->clock,
        .ctx = w,
        .handle = handle,
        .done = done,
        .error_body = error_body,
        .limits.send_s = 3600}; /* one that takes nothing at all is cut by http.h's rule, which wall/slow.c tests */
    assert_int_equal(http_create(&w->front.http, &s, &e), 0);
    assert_int_equal(http_listen(w->front.http, "127.0.0.1", 0, false, &e), 0);
    w->front.clock = &w->clock;
    events_init(&w->events, &w->front);
}

static void close_stand(struct stand *w)
{
    http_destroy(w->front.http);
    loop_destroy(w->loop);
}

static int watch(struct stand *w, int room)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), had = w->events.n;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(w->front.http, false)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    const char *ask = "GET /admin/events HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_int_equal(send(fd, ask, strlen(ask), 0), (ssize_t)strlen(ask));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (w->events.n == had)
        loop_turn(w->loop);
    return fd;
}

/* Reads what has come, and turns the loop until `word` has or nothing more can come; the rest of the stream. */
static bool read_until(struct stand *w, int fd, struct buf *out, const char *word)
{
    char tmp[65536];
    for (int quiet = 0; quiet < 2000;) {
        ssize_t n = recv(fd, tmp, sizeof tmp, 0);
        if (n == 0)
            return false;
        if (n > 0)
            buf_put(out, tmp, (size_t)n);
        buf_put(out, "", 1);
        out->len--;
        if (n > 0 && memmem(out->data, out->len, word, strlen(word)))
            return true;
        quiet = n > 0 ? 0 : quiet + 1;
        loop_turn(w->loop);
        if (n < 0)
            usleep(1000);
    }
    return false;
}

static void events_pass_a_slow_watcher_by(void **state)
{
    (void)state;
    struct stand w;
    struct buf out = {0};
    open_stand(&w);
    int slow = watch(&w, 4096), quick = watch(&w, 1 << 20);
    struct buf heard = {0};
    for (int i = 0; i < EVENTS; i++) {
        char mark[40];
        snprintf(mark, sizeof mark, "\"event %d\"", i);
        memcpy(w.line, mark, strlen(mark)); /* as JSON goes it is none: nobody here reads it as such */
        events_tell(&w.events, "pulse", w.line, EVENT_BYTES);
        http_flush(w.front.http);
        buf_clear(&heard);
        assert_true(read_until(&w, quick, &heard, mark)); /* the quick one has everything */
        assert_non_null(memmem(heard.data, heard.len, "{\"missed\":0,", 12));
        assert_true(http_backlog(w.front.http) < SLOW_BOUND);
    }
    assert_int_equal(w.events.n, 2);
    while (read_until(&w, slow, &out, "never said")) /* all that was kept for it */
        ;
    size_t kept = out.len / EVENT_BYTES;
    assert_true(kept > 2 && kept < EVENTS);
    buf_clear(&out);
    events_tell(&w.events, "pulse", "\"last\"", 6);
    http_flush(w.front.http);
    assert_true(read_until(&w, slow, &out, "\"last\""));
    unsigned missed = 0;
    const char *at = memmem(out.data, out.len, "\"missed\":", 9);
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"missed\":%u", &missed), 1);
    assert_int_equal(missed + kept, EVENTS);
    close(slow);
    close(quick);
    while (w.events.n)
        loop_turn(w.loop);
    buf_free(&out);
    buf_free(&heard);
    close_stand(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_pass_a_slow_watcher_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
