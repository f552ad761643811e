#include "engine/serve/http/parse.h"

#include <string.h>

#include "engine/base/mem.h"

static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};

const char *http_method_name(enum http_method m)
{
    return m < HTTP_METHOD_COUNT ? methods[m] : "OTHER";
}

size_t http_head_length(const char *p, size_t n, size_t *seen)
{
    size_t from = *seen > 3 ? *seen - 3 : 0;
    const char *end = n > from ? memmem(p + from, n - from, "\r\n\r\n", 4) : NULL;
    *seen = n;
    return end ? (size_t)(end - p) + 4 : 0;
}

static int refuse(struct http_head *h, int status, struct err *e, const char *why)
{
    h->status = status;
    return err_set(e, E_INPUT, "%s", why);
}

/* The characters of a method or header name (RFC 9110 token). */
static bool is_token(unsigned char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        return true;
    return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decodes in place. */
static bool decode_path(char *s)
{
    char *w = s;
    for (; *s; s++) {
        char c = *s;
        if (c == '%') {
            int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);
            if (lo < 0 || (hi == 0 && lo == 0))
                return false;
            c = (char)(hi << 4 | lo);
            s += 2;
        }
        *w++ = c;
    }
    *w = 0;
    return true;
}

static int parse_target(struct http_head *h, char *target, struct err *e)
{
    if (strlen(target) > HTTP_MAX_TARGET)
        return refuse(h, 414, e, "the request target is too long");
    for (const char *c = target; *c; c++)
        if (*c <= 0x20 || *c == 0x7f)
            return refuse(h, 400, e, "a byte in the request target that may not stand there");
    if (strncmp(target, "http://", 7) == 0) {
        target = strchr(target + 7, '/');
        if (!target)
            return refuse(h, 400, e, "the request target has no path");
    }
    if (target[0] != '/' && !(h->method == HTTP_OPTIONS && strcmp(target, "*") == 0))
        return refuse(h, 400, e, "the request target must begin with /");
    char *query = strchr(target, '?');
    h->query = "";
    if (query) {
        *query = 0;
        h->query = query + 1;
    }
    if (!decode_path(target))
        return refuse(h, 400, e, "a bad percent escape in the path");
    h->path = target;
    return 0;
}

static int parse_request_line(struct http_head *h, char *line, struct err *e)
{
    char *sp = strchr(line, ' '), *sp2 = sp ? strchr(sp + 1, ' ') : NULL;
    if (!sp2 || sp == line || strchr(sp2 + 1, ' '))
        return refuse(h, 400, e, "the request line is not METHOD TARGET VERSION");
    *sp = *sp2 = 0;
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c))
            return refuse(h, 400, e, "the request method is not a token");
    const char *version = sp2 + 1;
    if (strncmp(version, "HTTP/", 5) != 0)
        return refuse(h, 400, e, "the request line does not end with an HTTP version");
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return refuse(h, 505, e, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    h->minor = version[7] - '0';
    for (h->method = 0; h->method < HTTP_METHOD_COUNT; h->method++)
        if (strcmp(line, methods[h->method]) == 0)
            return parse_target(h, sp + 1, e);
    return refuse(h, 501, e, "unknown request method");
}

static int parse_header_line(struct http_head *h, char *line, struct err *e)
{
    char *c = line;
    for (; is_token((unsigned char)*c); c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c | 32);
    if (c == line || *c != ':')
        return refuse(h, 400, e, "a header line that is not NAME: VALUE");
    *c++ = 0;
    while (*c == ' ' || *c == '\t')
        c++;
    char *end = c + strlen(c);
    while (end > c && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    for (const unsigned char *v = (unsigned char *)c; *v; v++)
        if ((*v < 0x20 && *v != '\t') || *v == 0x7f)
            return refuse(h, 400, e, "a control character in a header value");
    if (h->n_headers == HTTP_MAX_HEADERS)
        return refuse(h, 431, e, "too many header lines");
    h->headers[h->n_headers++] = (struct http_header){line, c};
    return 0;
}

const char *http_head_find(const struct http_head *h, const char *name)
{
    for (int i = 0; i < h->n_headers; i++)
        if (strcmp(h->headers[i].name, name) == 0)
            return h->headers[i].value;
    return NULL;
}

static int count_headers(const struct http_head *h, const char *name)
{
    int n = 0;
    for (int i = 0; i < h->n_headers; i++)
        n += strcmp(h->headers[i].name, name) == 0;
    return n;
}

/* Does a comma-separated header contain this word? */
static bool list_has(const struct http_head *h, const char *name, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; i < h->n_headers; i++) {
        if (strcmp(h->headers[i].name, name) != 0)
            continue;
        for (const char *v = h->headers[i].value; *v;) {
            v += strspn(v, ", \t");
            size_t len = strcspn(v, ", \t");
            if (len == n && strncasecmp(v, word, n) == 0)
                return true;
            v += len;
        }
    }
    return false;
}

static int parse_length(struct http_head *h, struct err *e)
{
    const char *te = http_head_find(h, "transfer-encoding"), *cl = http_head_find(h, "content-length");
    h->content_length = -1;
    if (count_headers(h, "content-length") > 1 || count_headers(h, "transfer-encoding") > 1 || (te && cl))
        return refuse(h, 400, e, "more than one statement of the body's length");
    if (te) {
        if (h->minor == 0)
            return refuse(h, 400, e, "HTTP/1.0 has no transfer encodings");
        if (strcasecmp(te, "chunked") != 0)
            return refuse(h, 501, e, "the only transfer encoding here is chunked");
        h->chunked = true;
    }
    if (!cl)
        return 0;
    size_t n = strlen(cl);
    if (n == 0 || n > 18 || strspn(cl, "0123456789") != n)
        return refuse(h, 400, e, "Content-Length is not a number");
    h->content_length = 0;
    for (; *cl; cl++)
        h->content_length = h->content_length * 10 + (*cl - '0');
    return 0;
}

static int parse_meaning(struct http_head *h, struct err *e)
{
    TRY(parse_length(h, e));
    int hosts = count_headers(h, "host");
    if (hosts > 1 || (hosts == 0 && h->minor == 1))
        return refuse(h, 400, e, "exactly one Host header is needed");
    h->keep_alive = h->minor == 1 ? !list_has(h, "connection", "close") : list_has(h, "connection", "keep-alive");
    const char *expect = http_head_find(h, "expect");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return refuse(h, 417, e, "only Expect: 100-continue is understood");
    h->expect_continue = expect && h->minor == 1;
    return 0;
}

int http_head_parse(struct http_head *h, const char *p, size_t n, struct err *e)
{
    memset(h, 0, sizeof *h);
    h->path = h->query = "";
    h->content_length = -1;
    if (n > HTTP_MAX_HEAD)
        return refuse(h, 431, e, "the request head is too large");
    if (memchr(p, 0, n))
        return refuse(h, 400, e, "a NUL in the request head");
    h->text = mem_strndup(p, n);
    char *line = h->text;
    for (bool first = true; *line; first = false) {
        char *end = strpbrk(line, "\r\n");
        if (!end || end[0] != '\r' || end[1] != '\n')
            return refuse(h, 400, e, "a line of the request head that does not end with CR LF");
        *end = 0;
        if (!*line && !end[2])
            break;
        if (first)
            TRY(parse_request_line(h, line, e));
        else
            TRY(parse_header_line(h, line, e));
        line = end + 2;
    }
    return parse_meaning(h, e);
}

void http_head_free(struct http_head *h)
{
    mem_free(h->text);
    memset(h, 0, sizeof *h);
    h->path = h->query = "";
}

const char *http_query_find(const char *query, const char *name, char *out, size_t n)
{
    size_t len = strlen(name);
    while (*query) {
        size_t part = strcspn(query, "&");
        if (part >= len && strncmp(query, name, len) == 0 && (part == len || query[len] == '=')) {
            size_t from = part == len ? len : len + 1, copy = part - from;
            copy = copy < n ? copy : n - 1;
            memcpy(out, query + from, copy);
            out[copy] = 0;
            return out;
        }
        query += part + (query[part] == '&');
    }
    return NULL;
}

/* ---- chunked bodies ---- */

/* The line at p: its length with CR LF; 0 when it is not whole yet; -1 when it is malformed. */
static long line_length(const char *p, size_t n, size_t max)
{
    const char *lf = memchr(p, '\n', n < max ? n : max);
    if (!lf)
        return n < max ? 0 : -1;
    return lf > p && lf[-1] == '\r' ? lf - p + 1 : -1;
}

static int read_size(struct http_chunks *c, const char *p, size_t n)
{
    uint64_t v = 0;
    size_t i = 0;
    for (; i < n && hex(p[i]) >= 0; i++) {
        if (i == 15)
            return E_INPUT;
        v = v << 4 | (uint64_t)hex(p[i]);
    }
    if (i == 0 || (p[i] != '\r' && p[i] != ';' && p[i] != ' ' && p[i] != '\t'))
        return E_INPUT;
    for (size_t k = i; k < n - 2; k++)
        if ((unsigned char)p[k] < 0x20 && p[k] != '\t')
            return E_INPUT;
    c->left = v;
    c->step = v ? CHUNK_DATA : CHUNK_TRAILER;
    return 0;
}

static int read_trailer(struct http_chunks *c, size_t n)
{
    c->n_trailers += n;
    if (n == 2)
        c->step = CHUNK_DONE;
    return c->n_trailers > HTTP_MAX_TRAILERS ? E_INPUT : 0;
}

/* One step at p[0..n): sets *took, 0 when more bytes are needed. */
static int chunk_step(struct http_chunks *c, const char *p, size_t n, size_t *took, struct buf *out)
{
    if (c->step == CHUNK_DATA) {
        *took = n < c->left ? n : (size_t)c->left;
        buf_put(out, p, *took);
        c->left -= *took;
        if (!c->left)
            c->step = CHUNK_DATA_END;
        return 0;
    }
    long len = line_length(p, n, c->step == CHUNK_TRAILER ? HTTP_MAX_TRAILERS : HTTP_MAX_CHUNK_LINE);
    if (len < 0)
        return E_INPUT;
    *took = (size_t)len;
    if (len == 0)
        return 0;
    if (c->step == CHUNK_SIZE)
        return read_size(c, p, (size_t)len);
    if (c->step == CHUNK_TRAILER)
        return read_trailer(c, (size_t)len);
    c->step = CHUNK_SIZE;
    return len == 2 ? 0 : E_INPUT;
}

int http_chunks_feed(struct http_chunks *c, const struct http_bytes *in, size_t *used, struct buf *out, size_t limit)
{
    *used = 0;
    while (c->step != CHUNK_DONE && *used < in->n) {
        size_t took = 0;
        bool begins = c->step == CHUNK_SIZE;
        TRY(chunk_step(c, in->p + *used, in->n - *used, &took, out));
        if (begins && c->step == CHUNK_DATA && (out->len > limit || c->left > limit - out->len))
            return E_FULL;
        if (!took)
            break;
        *used += took;
    }
    return 0;
}
