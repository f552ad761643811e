/* A server over the fake engine, in this process, and a small blocking client for it. Tests only. */
#ifndef RIG_FRONT_FIXTURE_H
#define RIG_FRONT_FIXTURE_H

#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/serve/server.h"
#include "tests/rig/fake_engine.h"

struct site {
    struct fake engine;
    struct clock clock;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct server_setup setup;
    struct server *server;
    struct thread *thread;
    int port, admin_port;
    int rc;
};

static const char *const site_names[] = {"fake-model", "alias/of it"};
static const char site_template[] = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if tools %}{% endif %}";

static inline void site_serve(void *arg)
{
    struct site *s = arg;
    s->rc = server_run(s->server);
}

/* Fills s->setup; change it before site_start. */
static inline void site_init(struct site *s)
{
    struct err e = {0};
    memset(s, 0, sizeof *s);
    clock_init_real(&s->clock);
    assert_int_equal(tokenizer_bytes(&s->tokenizer, 512, &e), 0);
    assert_int_equal(chat_compile(&s->chat, site_template, strlen(site_template), &e), 0);
    s->setup = (struct server_setup){.host = "127.0.0.1",
                                     .admin_host = "127.0.0.1",
                                     .names = site_names,
                                     .n_names = 2,
                                     .tokenizer = s->tokenizer,
                                     .chat = s->chat,
                                     .chat_source = site_template,
                                     .n_vocab = 512,
                                     .max_model_len = 4096,
                                     .clock = &s->clock};
}

static inline void site_start(struct site *s)
{
    struct err e = {0};
    fake_start(&s->engine);
    s->setup.inbox = s->engine.inbox;
    s->setup.outbox = s->engine.outbox;
    if (server_create(&s->server, &s->setup, &e))
        fail_msg("server_create: %s", e.text);
    s->port = server_port(s->server, false);
    s->admin_port = server_port(s->server, true);
    assert_int_equal(thread_start(&s->thread, "server", site_serve, s, &e), 0);
}

/* ---- the client */

static inline int site_connect(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void site_send(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w <= 0)
            return; /* the server may have closed already: the test looks at what it said */
        p += w;
        n -= (size_t)w;
    }
}

/* One read; 0 at the end or after 2 minutes of silence. */
static inline size_t site_read(int fd, struct buf *out)
{
    char tmp[65536];
    struct pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 120000) <= 0)
        return 0;
    ssize_t n = recv(fd, tmp, sizeof tmp, 0);
    if (n > 0)
        buf_put(out, tmp, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

static inline void site_read_all(int fd, struct buf *out)
{
    while (site_read(fd, out))
        ;
}

/* A head that is refused, followed at once by its body of n bytes: all that is answered until the server closes. */
static inline struct buf site_refuse(int port, const char *head, int n)
{
    struct buf junk = {0}, out = {0};
    int fd = site_connect(port);
    for (int i = 0; i < n; i++)
        buf_putc(&junk, 'j');
    site_send(fd, head, strlen(head));
    site_send(fd, junk.data, junk.len);
    site_read_all(fd, &out);
    buf_free(&junk);
    close(fd);
    return out;
}

static inline bool site_read_until(int fd, struct buf *out, const char *what)
{
    while (!out->len || !memmem(out->data, out->len, what, strlen(what)))
        if (!site_read(fd, out))
            return false;
    return true;
}

struct reply {
    int status;
    struct buf head, body;
};

static inline void reply_free(struct reply *r)
{
    buf_free(&r->head);
    buf_free(&r->body);
}

static inline const char *reply_header(const struct reply *r, const char *name_colon)
{
    const char *at = strcasestr(r->head.data, name_colon);
    return at ? at + strlen(name_colon) : NULL;
}

/* Decodes chunks of raw[from..] into out. true: the last chunk was there. */
static inline bool reply_unchunk(const struct buf *raw, size_t from, struct buf *out, size_t *end)
{
    while (from < raw->len) {
        char *stop;
        const char *eol = memmem(raw->data + from, raw->len - from, "\r\n", 2);
        size_t n = strtoul(raw->data + from, &stop, 16);
        if (!eol || stop != eol)
            return false;
        from = (size_t)(eol - raw->data) + 2;
        if (from + n + 2 > raw->len)
            return false;
        buf_put(out, raw->data + from, n);
        from += n + 2;
        if (n == 0) {
            *end = from;
            return true;
        }
    }
    return false;
}

/* One whole response from fd; bytes after it stay in `ahead` (may be NULL when none can come). */
static inline struct reply site_reply(int fd, struct buf *ahead)
{
    struct buf own = {0}, *raw = ahead ? ahead : &own;
    struct reply r = {0};
    if (!site_read_until(fd, raw, "\r\n\r\n"))
        fail_msg("no whole response head came: %.200s", raw->data ? raw->data : "");
    size_t head = (size_t)((char *)memmem(raw->data, raw->len, "\r\n\r\n", 4) - raw->data) + 4, end = 0;
    buf_put(&r.head, raw->data, head);
    assert_int_equal(sscanf(r.head.data, "HTTP/1.1 %d", &r.status), 1);
    const char *length = reply_header(&r, "content-length:");
    if (reply_header(&r, "transfer-encoding: chunked")) {
        while (buf_clear(&r.body), !reply_unchunk(raw, head, &r.body, &end))
            if (!site_read(fd, raw))
                fail_msg("the chunked body did not end: %s", raw->data);
    } else {
        size_t n = length ? strtoul(length, NULL, 10) : 0;
        while (raw->len < head + n)
            if (!site_read(fd, raw))
                fail_msg("the body did not come");
        buf_put(&r.body, raw->data + head, n);
        end = head + n;
    }
    buf_cut(raw, end);
    buf_free(&own);
    if (!r.body.data)
        buf_put(&r.body, "", 0);
    return r;
}

static inline void site_post_on(int fd, const char *method, const char *path, const char *extra, const char *body)
{
    struct buf out = {0};
    buf_printf(&out, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", method, path,
               extra ? extra : "", strlen(body), body);
    site_send(fd, out.data, out.len);
    buf_free(&out);
}

static inline struct reply site_do(int port, const char *method, const char *path, const char *extra, const char *body)
{
    int fd = site_connect(port);
    site_post_on(fd, method, path, extra, body);
    struct reply r = site_reply(fd, NULL);
    close(fd);
    return r;
}

/* Polls until the engine has seen so many sequences. */
static inline bool site_has_seen(struct site *s, int n)
{
    for (int i = 0; i < 2000 && s->engine.n_submitted < n; i++)
        usleep(5000);
    return s->engine.n_submitted >= n;
}

/* Polls until the engine has no sequence left. */
static inline bool site_settles(struct site *s)
{
    for (int i = 0; i < 2000; i++) {
        if (s->engine.n_live_now == 0 && s->engine.n_submitted == s->engine.n_ended)
            return true;
        usleep(5000);
    }
    return false;
}

/* Drains over the admin route and checks that the books balance. */
static inline void site_stop(struct site *s)
{
    struct reply r = site_do(s->admin_port, "POST", "/admin/drain",
                             s->setup.admin_key ? "Authorization: Bearer root\r\n" : NULL, "");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    thread_join(s->thread);
    assert_int_equal(s->rc, 0);
    fake_stop(&s->engine);
    server_destroy(s->server);
    assert_int_equal(s->engine.n_submitted, s->engine.n_ended);
    fake_free(&s->engine);
    chat_free(s->chat);
    tokenizer_free(s->tokenizer);
}

#endif
