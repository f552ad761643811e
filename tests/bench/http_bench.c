/* A client for the front's throughput: C connections over epoll, each asking for streamed completions one after the
 * other; and a probe of what the loopback itself can carry in writes of the same size. http_bench.py runs both beside a
 * server on one core. usage: http_bench stream PORT CONNECTIONS REQUESTS TOKENS     requests in all; prints JSON
 *        http_bench probe CONNECTIONS BYTES SECONDS             one send a message, round robin; prints JSON */
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
#include "engine/base/thread.h"

enum { READ_BYTES = 1 << 18 };

struct connection {
    bool asks;
    int fd;
    int tail; /* how much of the end mark came */
    double asked, first;
};

struct run {
    struct connection *all;
    int n, epoll, left, open_requests;
    struct buf request;
    long frames, bytes, done;
    double ttft, worst_ttft;
    char *scratch;
    char last;
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

static int ask(struct run *r, struct connection *c)
{
    c->asks = r->left > 0;
    if (!c->asks)
        return 0;
    r->left--;
    r->open_requests++;
    c->tail = 0;
    c->first = 0;
    c->asked = now();
    return send(c->fd, r->request.data, r->request.len, MSG_NOSIGNAL) == (ssize_t)r->request.len ? 0 : -1;
}

/* Counts frames and looks for the end of the answer, the chunk of size 0. */
static int take(struct run *r, struct connection *c, const char *p, ssize_t n)
{
    static const char mark[] = "\r\n0\r\n\r\n";
    if (!c->first && memmem(p, (size_t)n, "data: ", 6)) {
        c->first = now() - c->asked;
        r->ttft += c->first;
        r->worst_ttft = c->first > r->worst_ttft ? c->first : r->worst_ttft;
    }
    for (const char *at = p; (at = memmem(at, (size_t)(n - (at - p)), "\n\n", 2)); at += 2)
        r->frames++;
    for (ssize_t i = n > 16 ? n - 16 : 0; i < n; i++) {
        c->tail = p[i] == mark[c->tail] ? c->tail + 1 : p[i] == mark[0] ? 1 : 0;
        if (c->tail == (int)sizeof mark - 1) {
            r->done++;
            r->open_requests--;
            return ask(r, c);
        }
    }
    return 0;
}

static int stream(int port, int connections, int requests, int tokens)
{
    struct run r = {
        .n = connections, .left = requests, .epoll = epoll_create1(EPOLL_CLOEXEC), .scratch = mem_new(READ_BYTES)};
    struct buf body = {0};
    buf_puts(&body, "{\"prompt\":[1");
    for (int i = 0; i < 31; i++)
        buf_printf(&body, ",%d", 40 + i);
    buf_printf(&body, "],\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true,\"temperature\":0}", tokens);
    buf_printf(&r.request,
               "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "
               "%zu\r\n\r\n%s",
               body.len, body.data);
    r.all = mem_new_array((size_t)connections, sizeof *r.all);
    for (int i = 0; i < connections; i++) {
        struct connection *c = &r.all[i];
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        c->fd = dial(port);
        if (c->fd < 0 || epoll_ctl(r.epoll, EPOLL_CTL_ADD, c->fd, &e) < 0)
            return fprintf(stderr, "cannot connect to port %d: %s\n", port, strerror(errno)), 1;
    }
    double began = now();
    for (int i = 0; i < connections; i++)
        ask(&r, &r.all[i]);
    while (r.open_requests > 0) {
        struct epoll_event ready[64];
        int n = epoll_wait(r.epoll, ready, 64, 10000);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!c->asks) { /* it has had its answers: the server may close it */
                epoll_ctl(r.epoll, EPOLL_CTL_DEL, c->fd, NULL);
                continue;
            }
            ssize_t got = recv(c->fd, r.scratch, READ_BYTES, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN) || (got > 0 && take(&r, c, r.scratch, got)))
                return fprintf(stderr, "the server closed a connection\n"), 1;
            r.bytes += got > 0 ? got : 0;
        }
        if (n == 0)
            return fprintf(stderr, "nothing came for 10 s\n"), 1;
    }
    double s = now() - began;
    printf("{\"connections\":%d,\"requests\":%ld,\"tokens\":%ld,\"frames\":%ld,\"seconds\":%.4f,\"tokens_per_s\":%.0f,"
           "\"bytes_per_frame\":%.0f,"
           "\"ttft_mean_ms\":%.2f,\"ttft_max_ms\":%.2f}\n",
           connections, r.done, r.done * tokens, r.frames, s, (double)r.done * tokens / s,
           (double)r.bytes / (double)r.frames, r.ttft / (double)r.done * 1e3, r.worst_ttft * 1e3);
    return 0;
}

/* ---- the probe */

struct sink {
    int epoll;
};

static void swallow(void *arg)
{
    struct sink *s = arg;
    static char scratch[READ_BYTES];
    thread_pin_self(1);
    for (;;) {
        struct epoll_event ready[64];
        int n = epoll_wait(s->epoll, ready, 64, 2000);
        if (n <= 0)
            return;
        for (int i = 0; i < n; i++)
            if (recv(ready[i].data.fd, scratch, sizeof scratch, MSG_DONTWAIT) == 0)
                epoll_ctl(s->epoll, EPOLL_CTL_DEL, ready[i].data.fd, NULL);
    }
}

static int probe(int connections, int bytes, double seconds)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        *fds = mem_new_array((size_t)connections, sizeof *fds), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    if (bind(listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(listener, 1024) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        return 1;
    struct sink s = {epoll_create1(EPOLL_CLOEXEC)};
    struct thread *t;
    for (int i = 0; i < connections; i++) {
        fds[i] = dial(ntohs(a.sin_port));
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = accept(listener, NULL, NULL)};
        epoll_ctl(s.epoll, EPOLL_CTL_ADD, e.data.fd, &e);
    }
    if (thread_start(&t, "sink", swallow, &s, NULL))
        return 1;
    thread_pin_self(0);
    char *message = mem_new((size_t)bytes);
    long n = 0;
    double began = now(), end = began + seconds;
    while (now() < end)
        for (int i = 0; i < connections; i++, n++)
            (void)!send(fds[i], message, (size_t)bytes, MSG_NOSIGNAL);
    double took = now() - began;
    for (int i = 0; i < connections; i++)
        close(fds[i]);
    thread_join(t);
    printf("{\"connections\":%d,\"bytes\":%d,\"sends_per_s\":%.0f}\n", connections, bytes, (double)n / took);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "stream") == 0)
        return stream(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    if (argc == 5 && strcmp(argv[1], "probe") == 0)
        return probe(atoi(argv[2]), atoi(argv[3]), atof(argv[4]));
    fprintf(stderr, "usage: http_bench stream PORT CONNECTIONS REQUESTS TOKENS | probe CONNECTIONS BYTES SECONDS\n");
    return 2;
}
