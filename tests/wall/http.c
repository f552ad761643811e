/* The HTTP wall: what well-behaved, broken and hostile clients send to a live server, and that it goes on serving the
 * others. */
#include "tests/rig/front_fixture.h"

#include "engine/serve/http/parse.h"

static struct site site;

static int setup(void **state)
{
    (void)state;
    site_init(&site);
    site.setup.http = (struct http_limits){.body = 1 << 20, .receive_s = 1, .connections = 64};
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

/* Sends raw bytes on a fresh connection and returns the status of the first response; 0: closed without one. */
static int status_of(const char *bytes, size_t n)
{
    int fd = site_connect(site.port), status = 0;
    site_send(fd, bytes, n);
    struct buf out = {0};
    if (site_read_until(fd, &out, "\r\n\r\n"))
        sscanf(out.data, "HTTP/1.1 %d", &status);
    buf_free(&out);
    close(fd);
    return status;
}

static void healthy(void)
{
    struct reply r = site_do(site.port, "GET", "/health", NULL, "");
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

static void bad_heads_get_their_status(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        int status;
    } cases[] = {
        {"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
        {"\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
        {"GET http://x/health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
        {"GET /health HTTP/1.0\r\n\r\n", 200},
        {"HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
        {"GET /health HTTP/1.1\r\n\r\n", 400}, /* no Host */
        {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET /health\r\nHost: a\r\n\r\n", 400},
        {"GET  /health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /health HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"G\x01T /health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"BREW /health HTTP/1.1\r\nHost: a\r\n\r\n", 501},
        {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
        {"GET health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /a%0 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"DELETE /health HTTP/1.1\r\nHost: a\r\n\r\n", 405},
        {"GET /health HTTP/1.1\nHost: a\r\n\r\n", 400}, /* bare LF */
        {"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\r\n", 400},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400}, /* TLS */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = i + 1 == sizeof cases / sizeof *cases ? 15 : strlen(cases[i].bytes);
        int got = status_of(cases[i].bytes, n);
        if (got != cases[i].status)
            fail_msg("case %zu: %d instead of %d: %.80s", i, got, cases[i].status, cases[i].bytes);
    }
    healthy();
}

static void large_heads_are_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "GET /");
    for (int i = 0; i < 9000; i++)
        buf_putc(&b, 'a');
    buf_puts(&b, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(status_of(b.data, b.len), 414);
    buf_clear(&b);
    buf_puts(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 200; i++)
        buf_printf(&b, "x%d: y\r\n", i);
    buf_puts(&b, "\r\n");
    assert_int_equal(status_of(b.data, b.len), 431);
    buf_clear(&b);
    buf_puts(&b, "GET / HTTP/1.1\r\nHost: a\r\nx: ");
    for (int i = 0; i < 100000; i++)
        buf_putc(&b, 'z');
    assert_int_equal(status_of(b.data, b.len), 431);
    buf_free(&b);
    healthy();
}

static void heads_may_come_byte_by_byte(void **state)
{
    (void)state;
    const char *text = "POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "5;ext=1\r\n{\"pro\r\n00d\r\nmpt\": \"hallo\"\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n";
    int fd = site_connect(site.port);
    for (const char *c = text; *c; c++) {
        site_send(fd, c, 1);
        usleep(200);
    }
    struct reply r = site_reply(fd, NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"count\":5"));
    reply_free(&r);
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    struct buf b = {0}, ahead = {0};
    for (int i = 0; i < 200; i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"prompt\":\"SAY:answer %d\",\"max_tokens\":40}", i);
        buf_printf(&b, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
        buf_puts(&b, "GET /version HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    int fd = site_connect(site.port);
    site_send(fd, b.data, b.len);
    for (int i = 0; i < 200; i++) {
        char want[32];
        struct reply r = site_reply(fd, &ahead);
        snprintf(want, sizeof want, "\"answer %d\"", i);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body.data, want));
        reply_free(&r);
        r = site_reply(fd, &ahead);
        assert_non_null(strstr(r.body.data, "moonshift"));
        reply_free(&r);
    }
    assert_int_equal(ahead.len, 0);
    buf_free(&ahead);
    buf_free(&b);
    close(fd);
}

/* A client that sends ahead and leaves is noticed; one that sends ahead without end loses its connection. */
static void flood(int n_junk, bool leaves)
{
    int before = site.engine.n_cancelled;
    int fd = site_connect(site.port);
    site_post_on(fd, "POST", "/v1/completions", NULL, "{\"prompt\":\"HANG\",\"max_tokens\":1000,\"stream\":true}");
    struct buf out = {0}, junk = {0};
    assert_true(site_read_until(fd, &out, "\"h\""));
    for (int i = 0; i < n_junk; i++)
        buf_putc(&junk, 'j');
    site_send(fd, junk.data, junk.len);
    if (leaves) {
        usleep(50000);
        assert_int_equal(site.engine.n_cancelled, before);
        close(fd);
    }
    assert_true(site_settles(&site));
    assert_int_equal(site.engine.n_cancelled, before + 1);
    if (!leaves)
        close(fd);
    buf_free(&junk);
    buf_free(&out);
    healthy();
}

static void pipelined_floods_end(void **state)
{
    (void)state;
    flood(200000, true);
    flood(3000000, false);
}

static void leave_during(const char *body, bool reset)
{
    int before = site.engine.n_cancelled;
    int fd = site_connect(site.port);
    site_post_on(fd, "POST", "/v1/completions", NULL, body);
    for (int i = 0; i < 1000 && site.engine.n_live_now == 0; i++)
        usleep(2000);
    assert_int_equal(site.engine.n_live_now, 1);
    struct linger l = {1, 0};
    if (reset)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
    assert_true(site_settles(&site));
    assert_int_equal(site.engine.n_cancelled, before + 1);
}

static void a_client_that_leaves_is_cancelled(void **state)
{
    (void)state;
    leave_during("{\"prompt\":\"HANG\",\"max_tokens\":1000}", false);
    leave_during("{\"prompt\":\"HANG\",\"max_tokens\":1000}", true);
    leave_during("{\"prompt\":\"HANG\",\"max_tokens\":1000,\"stream\":true}", false);
    leave_during("{\"prompt\":\"HANG\",\"max_tokens\":1000,\"stream\":true}", true);
    healthy();
}

/* A half-closed client still gets the answers that cost nothing to finish. */
static void half_closed_clients_get_short_answers(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    const char *text = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /version HTTP/1.1\r\nHost: a\r\n\r\n";
    site_send(fd, text, strlen(text));
    shutdown(fd, SHUT_WR);
    struct buf out = {0};
    site_read_all(fd, &out);
    assert_non_null(strstr(out.data, "http_connections"));
    assert_non_null(strstr(out.data, "\"moonshift\""));
    buf_free(&out);
    close(fd);
}

static void keep_alive_and_close(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    for (int i = 0; i < 3; i++) {
        site_post_on(fd, "GET", "/health", NULL, "");
        struct reply r = site_reply(fd, NULL);
        assert_int_equal(r.status, 200);
        assert_null(reply_header(&r, "connection: close"));
        reply_free(&r);
    }
    site_post_on(fd, "GET", "/health", "Connection: close\r\n", "");
    struct buf out = {0};
    site_read_all(fd, &out);
    assert_non_null(strstr(out.data, "Connection: close"));
    buf_free(&out);
    close(fd);
}

static void http_1_0_streams_end_with_the_connection(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    const char *body = "{\"prompt\":\"SAY:abc\",\"stream\":true}";
    struct buf b = {0}, out = {0};
    buf_printf(&b, "POST /v1/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    site_send(fd, b.data, b.len);
    site_read_all(fd, &out);
    assert_null(strstr(out.data, "chunked"));
    assert_non_null(strstr(out.data, "\r\n\r\ndata: {"));
    assert_string_equal(out.data + out.len - 14, "data: [DONE]\n\n");
    buf_free(&b);
    buf_free(&out);
    close(fd);
}

static void continue_is_said(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    const char *head = "POST /tokenize HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n";
    site_send(fd, head, strlen(head));
    struct buf out = {0};
    assert_true(site_read_until(fd, &out, "\r\n\r\n"));
    assert_string_equal(out.data, "HTTP/1.1 100 Continue\r\n\r\n");
    site_send(fd, "{\"prompt\":\"abc\"}", 16);
    buf_clear(&out);
    assert_true(site_read_until(fd, &out, "\"count\":"));
    buf_free(&out);
    close(fd);
}

/* After a refusal the connection is read to its end, so the client sees the answer and no reset. */
static void too_large_bodies_see_their_413(void **state)
{
    (void)state;
    const char *head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
    struct buf out = site_refuse(site.port, head, 3000000);
    assert_non_null(strstr(out.data, "413 Content Too Large"));
    assert_non_null(strstr(out.data, "\"invalid_request_error\""));
    buf_free(&out);
}

static void slow_heads_time_out(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    site_send(fd, "GET /hea", 8);
    struct buf out = {0};
    site_read_all(fd, &out);
    assert_non_null(strstr(out.data, "408"));
    buf_free(&out);
    close(fd);
    fd = site_connect(site.port);
    const char *head = "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc";
    site_send(fd, head, strlen(head));
    struct buf body = {0};
    site_read_all(fd, &body);
    assert_non_null(strstr(body.data, "408"));
    buf_free(&body);
    close(fd);
}

static void connections_are_bounded(void **state)
{
    (void)state;
    int fds[100];
    for (int i = 0; i < 100; i++)
        fds[i] = site_connect(site.port);
    healthy(); /* the longest idle made room */
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    healthy();
}

/* A reader that takes nothing: its backlog is bounded, then its sequence is cancelled. */
static void slow_readers_lose_their_stream(void **state)
{
    (void)state;
    struct site slow;
    site_init(&slow);
    slow.setup.http = (struct http_limits){.backlog = 20000, .send_s = 1};
    slow.setup.max_model_len = 4000000;
    site_start(&slow);
    int fd = site_connect(slow.port), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    site_post_on(fd, "POST", "/v1/completions", NULL,
                 "{\"prompt\":\"y\",\"max_tokens\":3000000,\"stream\":true,\"ignore_eos\":true}");
    assert_true(site_has_seen(&slow, 1));
    assert_true(site_settles(&slow));
    assert_int_equal(slow.engine.n_cancelled, 1);
    close(fd);
    site_stop(&slow);
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    uint64_t seed = 7;
    static const char *const bits[] = {"GET ",
                                       "POST ",
                                       "/v1/completions",
                                       "/health",
                                       " HTTP/1.1",
                                       "\r\n",
                                       "\r\n\r\n",
                                       "Host: a",
                                       "\n",
                                       ":",
                                       "{}",
                                       "Content-Length: 5",
                                       "Transfer-Encoding: chunked",
                                       "5\r\nabcde\r\n0\r\n\r\n",
                                       "\xff",
                                       " ",
                                       "\t"};
    for (int i = 0; i < 300; i++) {
        struct buf b = {0};
        for (int k = 0; k < 20; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            buf_puts(&b, bits[(seed >> 33) % (sizeof bits / sizeof *bits)]);
        }
        int fd = site_connect(site.port);
        site_send(fd, b.data, b.len);
        close(fd);
        buf_free(&b);
    }
    healthy();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_heads_get_their_status),
        cmocka_unit_test(large_heads_are_refused),
        cmocka_unit_test(heads_may_come_byte_by_byte),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(pipelined_floods_end),
        cmocka_unit_test(a_client_that_leaves_is_cancelled),
        cmocka_unit_test(half_closed_clients_get_short_answers),
        cmocka_unit_test(keep_alive_and_close),
        cmocka_unit_test(http_1_0_streams_end_with_the_connection),
        cmocka_unit_test(continue_is_said),
        cmocka_unit_test(too_large_bodies_see_their_413),
        cmocka_unit_test(slow_heads_time_out),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(slow_readers_lose_their_stream),
        cmocka_unit_test(random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
