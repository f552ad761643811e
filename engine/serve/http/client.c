#include "engine/serve/http/client.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <stdio.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct line {
    struct http_client *client;
    struct evhttp_connection *connection;
    void *post;
    bool busy;
};

struct http_client {
    struct http_client_setup setup;
    struct event_base *base;
    struct event *timer;
    struct line *lines; /* [n_connections] */
    char authorization[160];
    int n_busy;
};

static void on_answer(struct evhttp_request *r, void *arg)
{
    struct line *l = arg;
    struct http_client *c = l->client;
    struct evbuffer *in = r ? evhttp_request_get_input_buffer(r) : NULL;
    size_t n = in ? evbuffer_get_length(in) : 0;
    const char *body = n ? (const char *)evbuffer_pullup(in, -1) : "";
    int status = r ? evhttp_request_get_response_code(r) : 0;
    void *post = l->post;
    l->busy = false;
    l->post = NULL;
    c->n_busy--;
    if (c->setup.answered)
        c->setup.answered(c->setup.ctx, post, status, body ? body : "", body ? n : 0);
}

static void on_time(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

int http_client_open(struct http_client **out, const struct http_client_setup *s, struct err *e)
{
    struct http_client *c = mem_new(sizeof *c);
    c->setup = *s;
    c->base = event_base_new();
    c->timer = c->base ? evtimer_new(c->base, on_time, NULL) : NULL;
    c->lines = mem_new_array((size_t)s->n_connections, sizeof *c->lines);
    snprintf(c->authorization, sizeof c->authorization, "Bearer %.120s", s->key);
    for (int i = 0; i < s->n_connections && c->timer; i++) {
        struct line *l = &c->lines[i];
        l->client = c;
        l->connection = evhttp_connection_base_new(c->base, NULL, "127.0.0.1", (unsigned short)s->port);
        if (!l->connection)
            break;
        evhttp_connection_set_timeout(l->connection, 365 * 86400); /* an answer may take as long as it takes */
        evhttp_connection_set_max_body_size(l->connection, (ev_ssize_t)s->answer_bytes);
    }
    if (!c->timer || !c->lines[s->n_connections - 1].connection) {
        http_client_close(c);
        return err_set(e, E_SYS, "cannot make %d connections", s->n_connections);
    }
    *out = c;
    return 0;
}

void http_client_close(struct http_client *c)
{
    if (!c)
        return;
    c->setup.answered = NULL;
    for (int i = 0; i < c->setup.n_connections; i++)
        if (c->lines[i].connection)
            evhttp_connection_free(c->lines[i].connection);
    if (c->timer)
        event_free(c->timer);
    if (c->base)
        event_base_free(c->base);
    mem_free(c->lines);
    mem_free(c);
}

bool http_client_is_full(const struct http_client *c)
{
    return c->n_busy == c->setup.n_connections;
}

bool http_client_post(struct http_client *c, const char *path, const char *body, size_t n, void *post)
{
    struct line *l = c->lines;
    while (l->busy)
        l++;
    ASSERT(!http_client_is_full(c));
    struct evhttp_request *r = evhttp_request_new(on_answer, l);
    ASSERT(r);
    struct evkeyvalq *head = evhttp_request_get_output_headers(r);
    evhttp_add_header(head, "Host", "127.0.0.1");
    evhttp_add_header(head, "Content-Type", "application/json");
    evhttp_add_header(head, "Authorization", c->authorization);
    evbuffer_add(evhttp_request_get_output_buffer(r), body, n);
    l->busy = true;
    l->post = post;
    c->n_busy++;
    if (evhttp_make_request(l->connection, r, EVHTTP_REQ_POST, path) == 0)
        return true;
    l->busy = false;
    c->n_busy--;
    return false;
}

void http_client_turn(struct http_client *c, int ms)
{
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    evtimer_add(c->timer, &t);
    event_base_loop(c->base, EVLOOP_ONCE);
}
