/* A client of an HTTP server on this machine: posts JSON over connections that stay open, one request at a time on
 * each, over libevent. One thread at a time: answers come as callbacks from http_client_turn. Invariant: every post is
 * answered once, with status 0 when no answer came. */
#ifndef SERVE_HTTP_CLIENT_H
#define SERVE_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

struct http_client;

struct http_client_setup {
    int port;            /* on 127.0.0.1 */
    const char *key;     /* as a bearer token */
    int n_connections;   /* and posts under way at most */
    size_t answer_bytes; /* of the largest answer that is taken */
    void (*answered)(void *ctx, void *post, int status, const char *body, size_t n);
    void *ctx;
};

int http_client_open(struct http_client **out, const struct http_client_setup *s, struct err *e); /* E_SYS */
void http_client_close(struct http_client *c); /* NULL is fine; what is under way is not answered any more */
bool http_client_is_full(const struct http_client *c);
/* Not when full. body is copied. False: it could not be sent, and is not answered. */
bool http_client_post(struct http_client *c, const char *path, const char *body, size_t n, void *post);
/* Waits until something has been answered, at most so long. */
void http_client_turn(struct http_client *c, int ms);

#endif
