#include "engine/serve/versions/audit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"

enum { TIME_BYTES = 21 };

static void put_time(int64_t at_s, char out[TIME_BYTES])
{
    time_t t = (time_t)at_s;
    struct tm tm = {0};
    gmtime_r(&t, &tm);
    if (!strftime(out, TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &tm))
        out[0] = 0;
}

static bool read_time(const char *text, int64_t *out)
{
    struct tm tm = {0};
    char again[TIME_BYTES];
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm) : NULL;
    if (!end || *end)
        return false;
    *out = timegm(&tm);
    put_time(*out, again);
    return strcmp(text, again) == 0;
}

void audit_begin(struct audit_chain *c)
{
    c->seq = 0;
    memset(c->prev, '0', 64);
    c->prev[64] = 0;
}

static void advance(struct audit_chain *c, const char *line, size_t n)
{
    struct sha256 sum = hash_sha256(line, n);
    hash_hex(&sum, c->prev);
    c->seq++;
}

/* Where each text of an entry lies, and what it is called in a line. */
struct field {
    const char *name;
    size_t at, bytes;
};
#define FIELD(member)                                                                                                  \
    {                                                                                                                  \
#member, offsetof(struct audit_entry, member), sizeof((struct audit_entry *)0)->member                         \
    }
static const struct field fields[] = {FIELD(actor), FIELD(event),  FIELD(policy), FIELD(from),
                                      FIELD(to),    FIELD(result), FIELD(reason)};
enum { N_FIELDS = sizeof fields / sizeof *fields };

void audit_show(const struct audit_entry *a, struct buf *json)
{
    char at[TIME_BYTES];
    put_time(a->at_s, at);
    buf_printf(json, "\"time\":\"%s\"", at);
    for (int i = 0; i < N_FIELDS; i++) {
        const char *text = (const char *)a + fields[i].at;
        buf_printf(json, ",\"%s\":", fields[i].name);
        buf_put_json(json, text, strlen(text));
    }
}

void audit_put(struct audit_chain *c, const struct audit_entry *a, struct buf *out)
{
    size_t begin = out->len;
    buf_printf(out, "{\"seq\":%" PRIu64 ",", c->seq + 1);
    audit_show(a, out);
    buf_printf(out, ",\"prev\":\"%s\"}", c->prev);
    advance(c, out->data + begin, out->len - begin);
    buf_putc(out, '\n');
}

static int read_fields(const struct json *j, struct audit_entry *a, struct err *e)
{
    *a = (struct audit_entry){0};
    if (!read_time(json_text(json_find(j, "time")), &a->at_s))
        return err_set(e, E_INPUT, "its time is no RFC 3339 time in UTC");
    for (int i = 0; i < N_FIELDS; i++) {
        const char *text = json_text(json_find(j, fields[i].name));
        if (!text)
            return err_set(e, E_INPUT, "it has no text \"%s\"", fields[i].name);
        snprintf((char *)a + fields[i].at, fields[i].bytes, "%s", text);
    }
    return 0;
}

static int read_line(const struct json *j, const struct audit_chain *c, struct audit_entry *a, struct err *e)
{
    int64_t seq;
    const char *prev = json_text(json_find(j, "prev"));
    if (!json_i64(json_find(j, "seq"), &seq) || seq < 1)
        return err_set(e, E_INPUT, "it has no seq");
    if ((uint64_t)seq <= c->seq)
        return err_set(e, E_INPUT, "its seq is %" PRId64 ", which was there before", seq);
    if ((uint64_t)seq != c->seq + 1)
        return err_set(e, E_INPUT, "its seq is %" PRId64 " and not %" PRIu64 ": a line is missing", seq, c->seq + 1);
    if (!prev || strcmp(prev, c->prev) != 0)
        return err_set(e, E_INPUT,
                       c->seq ? "its prev is not the SHA-256 of the line before: that one was changed"
                              : "it is the first, and its prev is not 64 zeros");
    return read_fields(j, a, e);
}

int audit_read(const char *text, size_t n, audit_fn fn, void *ctx, struct audit_found *out, struct err *e)
{
    struct json_limits limits = {.bytes = AUDIT_LINE, .depth = 2, .nodes = 64};
    const char *newline;
    audit_begin(&out->chain);
    out->whole = 0;
    while (out->whole < n && (newline = memchr(text + out->whole, '\n', n - out->whole)) != NULL) {
        const char *line = text + out->whole;
        size_t bytes = (size_t)(newline - line);
        struct audit_entry a;
        struct json *j = json_parse(line, bytes, &limits, e);
        int rc = j ? read_line(j, &out->chain, &a, e) : E_INPUT;
        json_free(j);
        if (rc)
            return err_prefix(e, E_INPUT, "line %" PRIu64, out->chain.seq + 1);
        advance(&out->chain, line, bytes);
        if (fn)
            fn(ctx, out->chain.seq, &a);
        out->whole += bytes + 1;
    }
    return 0;
}
