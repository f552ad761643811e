#include "engine/serve/http/http.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/serve/http/hosts.h"
#include "engine/serve/http/conn.h"

static void default_limits(struct http_limits *l)
{
    l->body = l->body ? l->body : (size_t)64 << 20;
    l->bodies = l->bodies ? l->bodies : (size_t)1 << 30;
    l->backlog = l->backlog ? l->backlog : (size_t)1 << 20;
    l->answers = l->answers ? l->answers : (size_t)1 << 30;
    l->rate = l->rate ? l->rate : 1024;
    l->connections = l->connections ? l->connections : 4096;
    l->admin_connections = l->admin_connections ? l->admin_connections : 64;
    l->idle_s = l->idle_s ? l->idle_s : 75;
    l->receive_s = l->receive_s ? l->receive_s : 30;
    l->body_s = l->body_s ? l->body_s : 600;
    l->send_s = l->send_s ? l->send_s : 30;
}

static void set_date(struct http *h)
{
    time_t now = (time_t)clock_wall_seconds();
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

void http_flush(struct http *h)
{
    while (!list_empty(&h->dirty)) {
        struct http_conn *c = LIST_ENTRY(h->dirty.next, struct http_conn, dirty_node);
        list_remove(&c->dirty_node);
        c->dirty = false;
        conn_flush(c);
    }
    room_bound_unsent(h, NULL, 0);
    LIST_EACH_SAFE(pos, tmp, &h->dead)
    {
        list_remove(pos);
        mem_free(LIST_ENTRY(pos, struct http_conn, all));
    }
}

static void flush_after(void *h)
{
    http_flush(h);
}

static void on_tick(void *ctx)
{
    struct http *h = ctx;
    int64_t now = clock_now(h->setup.clock);
    set_date(h);
    LIST_EACH_SAFE(pos, tmp, &h->conns)
    conn_check_time(LIST_ENTRY(pos, struct http_conn, all), now);
    for (int i = 0; i < h->n_listeners; i++)
        if (h->listeners[i].paused) {
            h->listeners[i].paused = false;
            loop_arm(h->listeners[i].event);
        }
}

int http_create(struct http **out, const struct http_setup *s, struct err *e)
{
    struct http *h = mem_new(sizeof *h);
    h->setup = *s;
    default_limits(&h->setup.limits);
    rooms_init(h);
    list_init(&h->conns);
    list_init(&h->dirty);
    list_init(&h->dead);
    h->scratch = mem_new(CONN_READ);
    set_date(h);
    h->tick = loop_every(s->loop, 500, on_tick, h);
    if (!h->tick) {
        http_destroy(h);
        *out = NULL;
        return err_set(e, E_SYS, "no timer for the HTTP server");
    }
    loop_after(s->loop, flush_after, h);
    *out = h;
    return 0;
}

void http_destroy(struct http *h)
{
    if (!h)
        return;
    http_close_listeners(h);
    http_close_connections(h);
    loop_event_free(h->tick);
    loop_after(h->setup.loop, NULL, NULL);
    rooms_free(h);
    mem_free(h->scratch);
    mem_free(h);
}

static void turn_away(int fd)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: "
                               "0\r\nConnection: close\r\n\r\n";
    (void)!send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
}

static void on_accept(void *ctx)
{
    struct http_listener *l = ctx;
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof from;
        int fd = accept4(l->fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            l->paused = true; /* until the next tick: the event would fire without pause */
            loop_disarm(l->event);
        }
        if (fd < 0)
            return;
        uint64_t address = room_address_key(&from);
        if (room_make(l->http, l->admin, address))
            conn_open(l->http, fd, l->admin, address);
        else
            turn_away(fd);
    }
}

/* A socket bound to this address, which listens if asked to; -1 and errno. */
static int bind_one(const struct addrinfo *a, bool listens, int *port)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_storage got;
    socklen_t n = sizeof got;
    char service[16];
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || (listens && listen(fd, 1024) < 0) ||
        getsockname(fd, (struct sockaddr *)&got, &n) < 0 ||
        getnameinfo((struct sockaddr *)&got, n, NULL, 0, service, sizeof service, NI_NUMERICSERV)) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    *port = 0;
    for (const char *c = service; *c; c++)
        *port = *port * 10 + (*c - '0');
    return fd;
}

/* The first of the host's addresses that can be had. */
static int bind_any(const char *host, int port, bool listens, struct http_listener *out, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host && *host ? host : NULL, service, &hints, &list);
    if (rc)
        return err_set(e, E_INPUT, "cannot listen on host %s: %s", host ? host : "*", gai_strerror(rc));
    out->fd = -1;
    for (const struct addrinfo *a = list; a && out->fd < 0; a = a->ai_next)
        out->fd = bind_one(a, listens, &out->port);
    int why = errno;
    freeaddrinfo(list);
    if (out->fd < 0)
        return err_set(e, E_SYS, "cannot listen on %s port %d: %s", host ? host : "*", port, strerror(why));
    return 0;
}

int http_can_listen(const char *host, int port, struct err *e)
{
    struct http_listener l = {0};
    TRY(bind_any(host, port, false, &l, e));
    close(l.fd);
    return 0;
}

int http_listen(struct http *h, const char *host, int port, bool admin, struct err *e)
{
    if (h->n_listeners == 2)
        return err_set(e, E_FULL, "at most 2 listeners");
    struct http_listener *l = &h->listeners[h->n_listeners];
    *l = (struct http_listener){.http = h, .admin = admin};
    TRY(bind_any(host, port, true, l, e));
    h->n_listeners++;
    l->event = loop_fd(h->setup.loop, l->fd, LOOP_READ, on_accept, l);
    if (!l->event) {
        h->n_listeners--;
        close(l->fd);
        return err_set(e, E_SYS, "no event for the listener");
    }
    loop_arm(l->event);
    return 0;
}

int http_port(const struct http *h, bool admin)
{
    for (int i = 0; i < h->n_listeners; i++)
        if (h->listeners[i].admin == admin)
            return h->listeners[i].port;
    return 0;
}

/* The address of a listener. False: there is none. */
static bool name_of(const struct http *h, bool admin, char host[HOST_BYTES])
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    for (int i = 0; i < h->n_listeners; i++)
        if (h->listeners[i].admin == admin)
            return getsockname(h->listeners[i].fd, (struct sockaddr *)&a, &n) == 0 &&
                   getnameinfo((struct sockaddr *)&a, n, host, HOST_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
    return false;
}

bool http_is_loopback(const struct http *h, bool admin)
{
    char host[HOST_BYTES];
    return name_of(h, admin, host) && hosts_is_loopback(host);
}

bool http_is_any(const struct http *h)
{
    char host[HOST_BYTES];
    return name_of(h, false, host) && (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"));
}

void http_close_listeners(struct http *h)
{
    for (int i = 0; i < h->n_listeners; i++) {
        loop_event_free(h->listeners[i].event);
        close(h->listeners[i].fd);
    }
    h->n_listeners = 0;
}

void http_close_after_answers(struct http *h)
{
    h->draining = true;
}

void http_close_connections(struct http *h)
{
    LIST_EACH_SAFE(pos, tmp, &h->conns)
    conn_kill(LIST_ENTRY(pos, struct http_conn, all));
    http_flush(h);
}

int http_n_connections(const struct http *h)
{
    return h->rooms[false].n_conns + h->rooms[true].n_conns;
}

int http_n_exchanges(const struct http *h)
{
    return h->n_exchanges;
}

size_t http_backlog(const struct http *h)
{
    size_t n = 0;
    LIST_EACH(pos, &h->conns)
    n += conn_backlog(LIST_ENTRY(pos, struct http_conn, all));
    return n;
}

bool http_make_room(struct http *h, size_t held)
{
    room_bound_unsent(h, NULL, held);
    return h->unsent + held <= h->setup.limits.answers;
}

size_t http_max_answer(const struct http *h)
{
    return h->setup.limits.answers / 4;
}
