#include "engine/remote/client.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

enum { CONFIG_BYTES = 64 << 10, ADMIN_PORT = 8001 };

/* ---- where, and with which key */

static int read_server(struct remote *r, const char *url, struct err *e)
{
    struct evhttp_uri *u = evhttp_uri_parse(url);
    const char *scheme = u ? evhttp_uri_get_scheme(u) : NULL, *host = u ? evhttp_uri_get_host(u) : NULL;
    const char *path = u ? evhttp_uri_get_path(u) : NULL;
    int rc = 0;
    if (scheme && !strcmp(scheme, "https"))
        rc = err_set(e, E_UNSUPPORTED, "%.200s: TLS is not offered: go through a tunnel, or a proxy on this machine",
                     url);
    else if (!scheme || strcmp(scheme, "http") != 0 || !host || !*host || strlen(host) >= sizeof r->host ||
             (path && *path && strcmp(path, "/") != 0) || evhttp_uri_get_userinfo(u))
        rc = err_set(e, E_INPUT, "a server is named like http://127.0.0.1:8001, not %.200s", url);
    if (!rc) {
        bool six = *host == '[';
        snprintf(r->host, sizeof r->host, "%.*s", (int)(strlen(host) - 2 * six), host + six);
        r->port = evhttp_uri_get_port(u) > 0 ? evhttp_uri_get_port(u) : ADMIN_PORT;
    }
    if (u)
        evhttp_uri_free(u);
    return rc;
}

static int read_key_file(struct remote *r, const char *path, struct err *e)
{
    struct buf text = {0};
    int rc = file_read(&text, path, CONFIG_BYTES, e);
    char *rest = text.data;
    for (char *line; !rc && !r->key && rest && (line = strsep(&rest, "\n"));) {
        line += strspn(line, " \t\r");
        line[strcspn(line, " \t\r")] = 0; /* behind a blank is a name */
        if (*line && *line != '#')
            r->key = mem_strdup(line);
    }
    buf_free(&text);
    return rc || r->key ? rc : err_set(e, E_INPUT, "%.200s has no key", path);
}

static int use_config(struct remote *r, const char *path, bool *has_server, struct err *e)
{
    struct buf text = {0};
    struct stat st;
    TRY(file_read(&text, path, CONFIG_BYTES, e));
    struct json *j = json_parse(text.data ? text.data : "", text.len, &(struct json_limits){.depth = 4}, e);
    int rc = j ? 0 : err_prefix(e, E_INPUT, "%.200s", path);
    const char *server = json_text(json_find(j, "server")), *key = json_text(json_find(j, "key"));
    for (const struct json *m = json_first(j); m && !rc; m = json_next(m))
        if (!json_key(m) || !json_text(m) || (strcmp(json_key(m), "server") != 0 && strcmp(json_key(m), "key") != 0))
            rc = err_set(e, E_INPUT, "%.200s has the texts \"server\" and \"key\", and nothing else", path);
    if (!rc && key && (stat(path, &st) < 0 || (st.st_mode & 077)))
        rc = err_set(e, E_INPUT, "%.200s holds a key, and others can read it: chmod 600 %.100s", path, path);
    if (!rc && server && !*has_server) {
        *has_server = true;
        rc = read_server(r, server, e);
    }
    if (!rc && key && !r->key)
        r->key = mem_strdup(key);
    json_free(j);
    buf_free(&text);
    return rc;
}

int remote_settle(struct remote *r, const struct remote_setup *s, struct err *e)
{
    struct stat st;
    bool has_server = s->server != NULL;
    *r = (struct remote){.host = "127.0.0.1", .port = ADMIN_PORT};
    if (s->server)
        TRY(read_server(r, s->server, e));
    if (s->key)
        r->key = mem_strdup(s->key);
    else if (s->key_file)
        TRY(read_key_file(r, s->key_file, e));
    if (s->config)
        return use_config(r, s->config, &has_server, e);
    return s->usual && stat(s->usual, &st) == 0 ? use_config(r, s->usual, &has_server, e) : 0;
}

void remote_free(struct remote *r)
{
    mem_free(r->key);
    *r = (struct remote){0};
}

/* ---- one request */

struct asking {
    struct event_base *base;
    struct remote_answer *out;
    bool answered, over;
};

static int wait_of(const struct remote *r)
{
    return r->seconds > 0 ? r->seconds : REMOTE_SECONDS;
}

static void answered(struct evhttp_request *req, void *ctx)
{
    struct asking *a = ctx;
    event_base_loopexit(a->base, NULL);
    if (!req || !evhttp_request_get_response_code(req))
        return;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(in);
    a->over = n > REMOTE_BYTES;
    if (a->over)
        return;
    a->answered = true;
    a->out->status = evhttp_request_get_response_code(req);
    buf_put(&a->out->body, evbuffer_pullup(in, -1), n);
}

static void add_headers(const struct remote *r, struct evhttp_request *req)
{
    struct evkeyvalq *h = evhttp_request_get_output_headers(req);
    struct buf line = {0};
    bool six = strchr(r->host, ':') != NULL;
    buf_printf(&line, "%s%s%s:%d", six ? "[" : "", r->host, six ? "]" : "", r->port);
    evhttp_add_header(h, "Host", line.data);
    evhttp_add_header(h, "Connection", "close");
    buf_clear(&line);
    buf_printf(&line, "Bearer %s", r->key ? r->key : "");
    if (r->key)
        evhttp_add_header(h, "Authorization", line.data);
    buf_free(&line);
}

/* The request is the connection's from evhttp_make_request on, also when that fails. */
static bool send_request(const struct remote *r, struct evhttp_connection *c, struct evhttp_request *req,
                         enum remote_method method, const char *path)
{
    static const enum evhttp_cmd_type types[] = {EVHTTP_REQ_GET, EVHTTP_REQ_PUT, EVHTTP_REQ_POST, EVHTTP_REQ_DELETE};
    add_headers(r, req);
    evhttp_connection_set_timeout(c, wait_of(r));
    evhttp_connection_set_max_body_size(c, REMOTE_BYTES);
    return evhttp_make_request(c, req, types[method], path) == 0;
}

int remote_ask(const struct remote *r, enum remote_method method, const char *path, const struct buf *body,
               struct remote_answer *out, struct err *e)
{
    *out = (struct remote_answer){0};
    struct asking a = {.base = event_base_new(), .out = out};
    struct evhttp_connection *c = a.base ? evhttp_connection_base_new(a.base, NULL, r->host, (uint16_t)r->port) : NULL;
    struct evhttp_request *req = c ? evhttp_request_new(answered, &a) : NULL;
    if (req && body && body->len)
        evbuffer_add(evhttp_request_get_output_buffer(req), body->data, body->len);
    if (req && send_request(r, c, req, method, path)) {
        event_base_loopexit(a.base, &(struct timeval){.tv_sec = wait_of(r)});
        event_base_dispatch(a.base);
    }
    if (c)
        evhttp_connection_free(c);
    if (a.base)
        event_base_free(a.base);
    if (a.answered)
        return 0;
    return a.over
               ? err_set(e, E_GONE, "http://%s:%d answers with more than %d MiB", r->host, r->port, REMOTE_BYTES >> 20)
               : err_set(e, E_GONE,
                         "no answer from http://%s:%d within %d s: is the server there, and is that its admin port?",
                         r->host, r->port, wait_of(r));
}
