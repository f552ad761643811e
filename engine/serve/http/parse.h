/* HTTP/1.1 request bytes, read strictly (RFC 9112): the head as a whole once its end is there, and the chunked body as
 * it comes. Pure: no sockets, no time. This is the wall for bytes from the network; whatever two readers could
 * understand differently (bare LF, folded lines, two lengths, length and chunks) is refused. Invariant: header values
 * hold no control bytes, and paths no NUL. */
#ifndef SERVE_HTTP_PARSE_H
#define SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum {
    HTTP_MAX_HEADERS = 100,
    HTTP_MAX_TARGET = 8192, /* bytes of the request target */
    HTTP_MAX_HEAD = 65536,  /* bytes of a whole head */
    HTTP_MAX_CHUNK_LINE = 256,
    HTTP_MAX_TRAILERS = 8192,
};

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_PATCH, HTTP_DELETE, HTTP_OPTIONS, HTTP_METHOD_COUNT };
const char *http_method_name(enum http_method m);

struct http_header {
    const char *name;  /* lower case */
    const char *value; /* without blanks at its ends */
};

struct http_head {
    enum http_method method;
    int minor;         /* HTTP/1.minor */
    const char *path;  /* percent-decoded; begins with '/' (or is "*") */
    const char *query; /* as it came, "" when there is none */
    struct http_header headers[HTTP_MAX_HEADERS];
    int n_headers;
    int64_t content_length; /* -1: none said */
    bool chunked, keep_alive, expect_continue;
    int status; /* after a failure: what to answer */
    char *text; /* owns what the pointers above point into */
};

/* Where the head in p[0..n) ends: its length with the empty line, 0 when the end is not there yet. *seen lets
 * the next call go on where this one stopped; it begins at 0. */
size_t http_head_length(const char *p, size_t n, size_t *seen);
/* Reads a whole head. E_INPUT with h->status and a reason; h must be freed in both cases. */
int http_head_parse(struct http_head *h, const char *p, size_t n, struct err *e);
void http_head_free(struct http_head *h);
const char *http_head_find(const struct http_head *h, const char *lower_name); /* NULL: absent; the first of several */
/* The value of a query parameter, "" for a bare name, NULL when absent; copied into out (cut to fit). Not
 * percent-decoded. */
const char *http_query_find(const char *query, const char *name, char *out, size_t n);

enum http_chunk_step { CHUNK_SIZE, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_DONE };

struct http_bytes {
    const char *p;
    size_t n;
};

struct http_chunks {
    enum http_chunk_step step;
    uint64_t left; /* of the chunk under way */
    size_t n_trailers;
};

/* Reads chunked bytes, appends the payload to out, sets *used. E_INPUT: malformed. E_FULL: out would pass
 * limit. The end has come when c->step is CHUNK_DONE. */
int http_chunks_feed(struct http_chunks *c, const struct http_bytes *in, size_t *used, struct buf *out, size_t limit);

#endif
