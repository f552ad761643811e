/* Clients that hold on to a server: trickled heads and bodies, too many connections, too many bytes, answers that
 * nobody takes. Others are served, and an operator always is. Addresses of 127.0.0.0/8 stand for clients from
 * elsewhere. */
#include <arpa/inet.h>
#include <errno.h>

#include "tests/rig/front_fixture.h"

#include "engine/base/thread.h"

static void start(struct site *s, struct http_limits l)
{
    site_init(s);
    s->setup.http = l;
    site_start(s);
}

static int connect_from(const char *address, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in me = {.sin_family = AF_INET}, to = {.sin_family = AF_INET,
                                                           .sin_port = htons((uint16_t)port),
                                                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(inet_pton(AF_INET, address, &me.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The status of a small request from there; 0: nothing came. */
static int status_from(const char *address, int port, const char *method, const char *path, const char *body)
{
    int fd = connect_from(address, port), status = 0;
    struct buf out = {0};
    site_post_on(fd, method, path, NULL, body);
    if (site_read_until(fd, &out, "\r\n\r\n"))
        sscanf(out.data, "HTTP/1.1 %d", &status);
    buf_free(&out);
    close(fd);
    return status;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static void send_head(int fd, size_t length)
{
    char head[128];
    int n = snprintf(head, sizeof head, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", length);
    site_send(fd, head, (size_t)n);
}

static bool is_over(int fd, struct buf *out)
{
    char tmp[4096];
    ssize_t n = recv(fd, tmp, sizeof tmp, MSG_DONTWAIT);
    if (n > 0)
        buf_put(out, tmp, (size_t)n);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Sends `piece` again and again, a pause between, until the server has ended the connection; what it said is in out. */
static void drip(int fd, const char *piece, size_t n, int pause_ms, struct buf *out)
{
    int64_t end = now_ms() + 60000;
    while (!is_over(fd, out)) {
        if (now_ms() > end)
            fail_msg("a client that sends %zu bytes each %d ms is still there after a minute", n, pause_ms);
        send(fd, piece, n, MSG_NOSIGNAL);
        usleep((unsigned)pause_ms * 1000);
    }
    buf_put(out, "", 0);
    close(fd);
}

static const struct http_limits hasty = {.receive_s = 1, .body_s = 4, .send_s = 1, .idle_s = 2, .rate = 1000};

static void trickles_end(void **state)
{
    (void)state;
    struct site s;
    struct buf out = {0};
    static char junk[8000];
    memset(junk, 'j', sizeof junk);
    start(&s, hasty);
    /* a byte now and then keeps no body alive, */
    int fd = site_connect(s.port);
    send_head(fd, 100000);
    drip(fd, "x", 1, 50, &out);
    assert_non_null(strstr(out.data, "408 Request Timeout"));
    buf_clear(&out);
    /* nor what was sent in advance, */
    fd = site_connect(s.port);
    send_head(fd, 100000);
    site_send(fd, junk, sizeof junk);
    drip(fd, "x", 1, 50, &out);
    assert_non_null(strstr(out.data, "408"));
    buf_clear(&out);
    /* nor a good rate for ever; chunks are bodies too, and their size lines none */
    fd = site_connect(s.port);
    send_head(fd, 60000000);
    drip(fd, junk, sizeof junk, 50, &out);
    assert_non_null(strstr(out.data, "408"));
    buf_clear(&out);
    fd = site_connect(s.port);
    const char *chunked = "POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    site_send(fd, chunked, strlen(chunked));
    char chunk[220];
    snprintf(chunk, sizeof chunk, "1;%0200d\r\nx\r\n", 0);
    drip(fd, chunk, strlen(chunk), 50, &out);
    assert_non_null(strstr(out.data, "408"));
    buf_clear(&out);
    /* heads have their time as a whole, and empty lines before one are no head */
    drip(site_connect(s.port), "G", 1, 50, &out);
    assert_non_null(strstr(out.data, "408"));
    buf_clear(&out);
    drip(site_connect(s.port), "\r\n", 2, 50, &out);
    drip(site_connect(s.port), "\r", 1, 50, &out);
    buf_free(&out);
    site_stop(&s);
}

static void a_steady_sender_is_served(void **state)
{
    (void)state;
    struct site s;
    start(&s, (struct http_limits){.receive_s = 1, .rate = 1000});
    int fd = site_connect(s.port);
    send_head(fd, 30000);
    site_send(fd, "{\"prompt\":\"", 11);
    for (int i = 0; i < 30; i++) {
        char part[1001];
        memset(part, 'a', 1000);
        site_send(fd, part, i < 29 ? 1000 : 30000 - 29000 - 13);
        usleep(100000);
    }
    site_send(fd, "\"}", 2);
    struct reply r = site_reply(fd, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    site_stop(&s);
}

/* A thread that sends a byte now and then on many connections. */
struct crowd {
    int fds[300];
    int n, n_dripping;
    _Atomic bool stop;
    struct thread *thread;
};

static void drip_all(void *arg)
{
    struct crowd *c = arg;
    while (!c->stop) {
        for (int i = 0; i < c->n_dripping; i++)
            send(c->fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        usleep(20000);
    }
}

static void crowd_joins(struct crowd *c, const char *address, int port, int n, const char *first)
{
    for (int i = 0; i < n; i++) {
        c->fds[c->n] = connect_from(address, port);
        site_send(c->fds[c->n++], first, strlen(first));
    }
}

static void crowd_leaves(struct crowd *c)
{
    c->stop = true;
    thread_join(c->thread);
    for (int i = 0; i < c->n; i++)
        close(c->fds[i]);
}

/* Half-sent heads, half-sent bodies and idlers, more than there is room for, from one address and from many: everybody
 * else is served, from their addresses too, and so is the operator, whose listener they crowd as well. */
static void trickles_take_no_place_from_others(void **state)
{
    (void)state;
    struct site s;
    struct crowd c = {0};
    start(&s, (struct http_limits){.connections = 32, .admin_connections = 8});
    static const char body[] = "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{";
    crowd_joins(&c, "127.0.0.2", s.port, 60, body);
    crowd_joins(&c, "127.0.0.3", s.port, 20, "GET /hea");
    crowd_joins(&c, "127.0.0.4", s.port, 40, "");
    crowd_joins(&c, "127.0.0.2", s.admin_port, 20, "GET /admin/sta");
    c.n_dripping = c.n; /* those that join later only open */
    assert_int_equal(thread_start(&c.thread, "crowd", drip_all, &c, NULL), 0);
    for (int i = 0; i < (getenv("MOONSHIFT_SLOW") ? 12 : 40); i++) {
        static const char *const from[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.9"};
        assert_int_equal(status_from(from[i % 4], s.port, "POST", "/tokenize", "{\"prompt\":\"abc\"}"), 200);
        assert_int_equal(status_from(from[i % 4], s.admin_port, "GET", "/admin/state", ""), 200);
        /* nor does one who has only just begun make room for a newcomer */
        int fd = connect_from("127.0.0.2", s.port);
        send_head(fd, 16);
        crowd_joins(&c, "127.0.0.2", s.port, 2, body);
        site_send(fd, "{\"prompt\":\"abc\"}", 16);
        struct reply r = site_reply(fd, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        close(fd);
    }
    crowd_leaves(&c);
    site_stop(&s);
}

/* Who is being answered is never ended for a newcomer. One address has its share, the rest is for others; beside a full
 * house the operator is served. */
static void the_busy_stay(void **state)
{
    (void)state;
    struct site s;
    int fds[8];
    start(&s, (struct http_limits){.connections = 8, .per_address = 6, .admin_connections = 2});
    for (int i = 0; i < 8; i++) {
        fds[i] = connect_from(i < 6 ? "127.0.0.2" : "127.0.0.3", s.port);
        site_post_on(fds[i], "POST", "/v1/completions", NULL, "{\"prompt\":\"HANG\",\"max_tokens\":9}");
        assert_true(site_has_seen(&s, i + 1));
        if (i == 5) {
            assert_int_equal(status_from("127.0.0.2", s.port, "GET", "/health", ""), 503);
            assert_int_equal(status_from("127.0.0.3", s.port, "GET", "/health", ""), 200);
        }
    }
    assert_int_equal(status_from("127.0.0.4", s.port, "GET", "/health", ""), 503);
    for (int i = 0; i < 5; i++)
        assert_int_equal(status_from("127.0.0.2", s.admin_port, "GET", "/admin/state", ""), 200);
    assert_int_equal(s.engine.n_live_now, 8);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    assert_true(site_settles(&s));
    assert_int_equal(status_from("127.0.0.2", s.port, "GET", "/health", ""), 200);
    site_stop(&s);
}

/* Bodies that are held open up to the bound for all: a small request is served, and the largest goes. */
static void the_largest_body_goes(void **state)
{
    (void)state;
    struct site s;
    int fds[5];
    static char junk[400000];
    static const size_t sizes[5] = {200000, 400000, 300000, 100000, 1000};
    memset(junk, 'j', sizeof junk);
    start(&s, (struct http_limits){.body = 1 << 20, .bodies = 1001000});
    for (int i = 0; i < 5; i++) {
        fds[i] = site_connect(s.port);
        send_head(fds[i], 500000);
        site_send(fds[i], junk, sizes[i]);
    }
    for (int i = 0; i < 20; i++) {
        struct reply r = site_do(s.port, "POST", "/tokenize", NULL, "{\"prompt\":\"a small one, surely\"}");
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    site_send(fds[0], junk, 1000); /* a thousand more than there may be: 400,000 go, not the thousand */
    struct reply r = site_reply(fds[1], NULL);
    assert_int_equal(r.status, 503);
    assert_non_null(reply_header(&r, "retry-after: 1"));
    reply_free(&r);
    for (int i = 0; i < 5; i++) {
        struct buf out = {0};
        if (i != 1)
            assert_false(is_over(fds[i], &out) || out.len);
        buf_free(&out);
    }
    site_send(fds[2], junk, 199998); /* the others end well */
    site_send(fds[2], "jj", 2);
    r = site_reply(fds[2], NULL);
    assert_int_equal(r.status, 400); /* no JSON, but read whole */
    reply_free(&r);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    site_stop(&s);
}

static int connect_narrow(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int64_t unsent_bytes(const struct site *s)
{
    struct reply r = site_do(s->admin_port, "GET", "/admin/state", NULL, "");
    const char *at = strstr(r.body.data, "\"unsent_bytes\":");
    assert_non_null(at);
    int64_t n = strtoll(at + strlen("\"unsent_bytes\":"), NULL, 10);
    reply_free(&r);
    return n;
}

/* A request for /tokenize whose answer has about nine bytes for each of n letters. */
static void put_long_body(struct buf *body, int n)
{
    buf_clear(body);
    buf_puts(body, "{\"return_token_strs\":true,\"prompt\":\"");
    for (int i = 0; i < n; i++)
        buf_putc(body, 'a');
    buf_puts(body, "\"}");
}

/* Whole answers that nobody takes: together they hold no more than they may, those who take theirs get them whole, and
 * the rest end. */
static void untaken_answers_are_bounded(void **state)
{
    (void)state;
    /* An answer is more than twice what a kernel takes off its hands. */
#ifdef __SANITIZE_THREAD__
    enum { READERS = 12, PROMPT = 1000000, MOST = 40 << 20 };
#else
    enum { READERS = 16, PROMPT = 1500000, MOST = 64 << 20 };
#endif
    struct site s;
    struct buf body = {0};
    int fds[READERS];
    int64_t highest = 0;
    start(&s, (struct http_limits){.answers = MOST, .send_s = 600});
    put_long_body(&body, PROMPT);
    for (int i = 0; i < READERS; i++) {
        fds[i] = connect_narrow(s.port);
        site_post_on(fds[i], "POST", "/tokenize", NULL, body.data);
        int64_t n = unsent_bytes(&s);
        highest = n > highest ? n : highest;
        if (n > MOST)
            fail_msg("%lld bytes wait to be taken", (long long)n);
        if (i % 8 == 7) {
            struct reply r = site_do(s.port, "POST", "/tokenize", NULL, body.data);
            assert_int_equal(r.status, 200);
            assert_true(r.body.len > 7 * PROMPT && r.body.data[r.body.len - 1] == '}');
            reply_free(&r);
        }
    }
    assert_true(highest > MOST / 2); /* the bound was at work */
    for (int i = 0; i < READERS; i++)
        close(fds[i]);
    /* one that would be more than its share is not held at all */
    put_long_body(&body, 2 * PROMPT);
    struct reply r = site_do(s.port, "POST", "/tokenize", NULL, body.data);
    assert_int_equal(r.status, 507);
    assert_non_null(strstr(r.body.data, "return_token_strs"));
    reply_free(&r);
    buf_free(&body);
    site_stop(&s);
}

/* Whole answers that are still being made count too: one that grows beyond its share ends, with its sequences; as a
 * stream it comes whole. */
static void answers_in_the_making_are_bounded(void **state)
{
    (void)state;
    enum { CLIENTS = 16, MOST = 8 << 20 };
    struct site s;
    int fds[CLIENTS], served = 0;
    site_init(&s);
    s.setup.http = (struct http_limits){.answers = MOST};
    s.engine.pause_us = 1000; /* the front keeps up, on a busy machine too, so a cancel comes in time */
    site_start(&s);
    static const char large[] = "{\"prompt\":\"y\",\"n\":4,\"max_tokens\":4000,\"logprobs\":20,\"ignore_eos\":true%s}";
    char body[200];
    snprintf(body, sizeof body, large, "");
    struct reply r = site_do(s.port, "POST", "/v1/completions", NULL, body);
    assert_int_equal(r.status, 507);
    assert_non_null(strstr(r.body.data, "answer_too_large"));
    reply_free(&r);
    assert_true(site_settles(&s));
    assert_true(s.engine.n_cancelled > 0);
    s.engine.pause_us = 200;
    snprintf(body, sizeof body, large, ",\"stream\":true");
    r = site_do(s.port, "POST", "/v1/completions", NULL, body);
    assert_true(r.status == 200 && r.body.len > MOST / 4 && strstr(r.body.data, "[DONE]"));
    reply_free(&r);
    /* each within its share, all of them not, which begin together */
    int before = s.engine.n_submitted;
    s.engine.pause_us = 50000;
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = site_connect(s.port);
        site_post_on(fds[i], "POST", "/v1/completions", NULL,
                     "{\"prompt\":\"y\",\"max_tokens\":4000,\"logprobs\":20,\"ignore_eos\":true}");
    }
    assert_true(site_has_seen(&s, before + CLIENTS));
    s.engine.pause_us = 200;
    for (int i = 0; i < CLIENTS; i++) {
        r = site_reply(fds[i], NULL);
        assert_true(r.status == 200 || r.status == 503);
        assert_true(r.status == 503 || r.body.len > MOST / 16);
        served += r.status == 200;
        reply_free(&r);
        close(fds[i]);
    }
    assert_true(served > 0 && served < CLIENTS);
    assert_true(site_settles(&s));
    site_stop(&s);
}

/* A reader that takes a little now and then keeps nothing alive. */
static void sipping_readers_end(void **state)
{
    (void)state;
    struct site s;
    struct buf body = {0};
    start(&s, (struct http_limits){.send_s = 1, .rate = 10000});
    put_long_body(&body, 3000000);
    int fd = connect_narrow(s.port);
    site_post_on(fd, "POST", "/tokenize", NULL, body.data);
    int64_t end = now_ms() + 60000;
    while (unsent_bytes(&s) == 0)
        assert_true(now_ms() < end && usleep(10000) == 0);
    while (unsent_bytes(&s) > 0) {
        char sip[300];
        assert_true(now_ms() < end && usleep(100000) == 0);
        (void)!recv(fd, sip, sizeof sip, MSG_DONTWAIT);
    }
    close(fd);
    buf_free(&body);
    site_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trickles_end),
        cmocka_unit_test(a_steady_sender_is_served),
        cmocka_unit_test(trickles_take_no_place_from_others),
        cmocka_unit_test(the_busy_stay),
        cmocka_unit_test(the_largest_body_goes),
        cmocka_unit_test(untaken_answers_are_bounded),
        cmocka_unit_test(answers_in_the_making_are_bounded),
        cmocka_unit_test(sipping_readers_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
