/* A client for the front's rate of vectors: C connections over epoll, each asking for vectors of I texts of W words,
 * one request after the other. Beside a server on the device sim (embed_bench.py) that is the rate of everything but
 * the encoder. usage: embed_bench PORT CONNECTIONS SECONDS INPUTS WORDS float|base64     prints JSON */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"

enum { READ_BYTES = 1 << 20, REQUESTS = 16 };

struct connection {
    int fd, n_asked;
    struct buf head; /* of the answer that is coming, until it is whole */
    long left;       /* bytes of its body that are missing; -1: the head is not whole */
    double asked;
};

struct run {
    struct connection *all;
    struct buf requests[REQUESTS];
    int n, epoll, open;
    double until, wait, worst;
    long done, bytes;
    char *scratch;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int dial(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Texts of common words, no two alike. */
static void make_requests(struct run *r, int inputs, int words, const char *format)
{
    static const char *const common[] = {"the",  "red",       "river", "of",    "paris", "is",     "fast",
                                         "and",  "blue",      "queen", "with",  "slow",  "dog",    "who",
                                         "sees", "moonlight", "from",  "north", "city",  "capital"};
    unsigned x = 1;
    for (int k = 0; k < REQUESTS; k++) {
        struct buf body = {0};
        buf_puts(&body, "{\"model\":\"encoder\",\"input\":[");
        for (int i = 0; i < inputs; i++) {
            buf_puts(&body, i ? ",\"" : "\"");
            for (int w = 0; w < words; w++) {
                x = x * 1664525u + 1013904223u;
                buf_printf(&body, "%s%s", w ? " " : "", common[(x >> 16) % 20]);
            }
            buf_putc(&body, '"');
        }
        buf_printf(&body, "],\"encoding_format\":\"%s\"}", format);
        buf_printf(&r->requests[k],
                   "POST /v1/embeddings HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "
                   "%zu\r\n\r\n%s",
                   body.len, body.data);
        buf_free(&body);
    }
}

static int ask(struct run *r, struct connection *c)
{
    const struct buf *b = &r->requests[c->n_asked++ % REQUESTS];
    if ((c->asked = now()) >= r->until)
        return 0;
    c->left = -1;
    r->open++;
    for (size_t at = 0; at < b->len;) {
        ssize_t n = send(c->fd, b->data + at, b->len - at, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        at += (size_t)n;
    }
    return 0;
}

static int finish(struct run *r, struct connection *c)
{
    double s = now() - c->asked;
    r->done++;
    r->open--;
    r->wait += s;
    r->worst = s > r->worst ? s : r->worst;
    return ask(r, c);
}

static int take(struct run *r, struct connection *c, const char *p, long n)
{
    r->bytes += n;
    if (c->left < 0) {
        buf_put(&c->head, p, (size_t)n);
        const char *end = memmem(c->head.data, c->head.len, "\r\n\r\n", 4),
                   *length = strcasestr(c->head.data, "content-length:");
        if (!end)
            return 0;
        if (strncmp(c->head.data, "HTTP/1.1 200", 12) != 0 || !length)
            return fprintf(stderr, "%.300s\n", c->head.data), -1;
        n = (long)(c->head.len - (size_t)(end + 4 - c->head.data));
        c->left = strtol(length + 15, NULL, 10);
        buf_clear(&c->head);
    }
    c->left -= n;
    return c->left == 0 ? finish(r, c) : 0;
}

static int go(struct run *r)
{
    for (int i = 0; i < r->n; i++)
        if (ask(r, &r->all[i]))
            return -1;
    while (r->open) {
        struct epoll_event ready[64];
        int n = epoll_wait(r->epoll, ready, 64, 10000);
        if (n == 0)
            return fprintf(stderr, "nothing came for 10 s\n"), -1;
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, r->scratch, READ_BYTES, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN) || (got > 0 && take(r, c, r->scratch, got)))
                return fprintf(stderr, "the server closed a connection\n"), -1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return fprintf(stderr, "usage: embed_bench PORT CONNECTIONS SECONDS INPUTS WORDS float|base64\n"), 2;
    int inputs = atoi(argv[4]);
    struct run r = {.n = atoi(argv[2]), .epoll = epoll_create1(EPOLL_CLOEXEC), .scratch = mem_new(READ_BYTES)};
    make_requests(&r, inputs, atoi(argv[5]), argv[6]);
    r.all = mem_new_array((size_t)r.n, sizeof *r.all);
    for (int i = 0; i < r.n; i++) {
        struct connection *c = &r.all[i];
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        c->n_asked = i;
        c->fd = dial(atoi(argv[1]));
        if (c->fd < 0 || epoll_ctl(r.epoll, EPOLL_CTL_ADD, c->fd, &e) < 0)
            return fprintf(stderr, "cannot connect to port %s: %s\n", argv[1], strerror(errno)), 1;
    }
    double began = now();
    r.until = began + atof(argv[3]);
    if (go(&r))
        return 1;
    double s = now() - began;
    printf("{\"connections\":%d,\"inputs\":%d,\"requests\":%ld,\"seconds\":%.3f,\"vectors_per_s\":%.0f,"
           "\"mb_per_s\":%.1f,\"mean_ms\":%.3f,\"worst_ms\":%.2f}\n",
           r.n, inputs, r.done, s, (double)r.done * inputs / s, (double)r.bytes / s * 1e-6,
           r.wait / (double)r.done * 1e3, r.worst * 1e3);
    return 0;
}
