/* JSON from outside, with limits, as a tree of cJSON's nodes (whose header lives in json.c only). A parsed document is
 * a tree of opaque `struct json` owned by its root, made in one pass that checks what cJSON's parser leaves open: size,
 * depth, node count, UTF-8, NUL in strings, trailing bytes; and 64-bit integers keep every bit. Duplicate keys: the
 * last one wins, as in every client's language. One thread at a time per document. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct json;

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_limits {
    size_t bytes; /* 0 = 64 MiB */
    int depth;    /* 0 = 64 */
    size_t nodes; /* values in all; 0 = 4 million */
};

/* Parses text[0..n). limits may be NULL. NULL on failure, with E_INPUT and the line and column in e. */
struct json *json_parse(const char *text, size_t n, const struct json_limits *limits, struct err *e);
void json_free(struct json *root); /* NULL is fine */

enum json_type json_type(const struct json *j);                           /* NULL counts as JSON_NULL */
const char *json_type_name(const struct json *j);                         /* "a string", "an array", ... for messages */
const struct json *json_find(const struct json *object, const char *key); /* NULL: absent or not an object */
const struct json *json_first(const struct json *array_or_object);        /* NULL when empty */
const struct json *json_next(const struct json *j);
const char *json_key(const struct json *member); /* NULL for array items */
size_t json_count(const struct json *array_or_object);
const char *json_text(const struct json *string);                         /* NULL when not a string */
bool json_true(const struct json *j);                                     /* true only for the literal true */
double json_number(const struct json *j);                                 /* 0 when not a number */
const char *json_member_text(const struct json *object, const char *key); /* "" when it has no such string */
double json_member_number(const struct json *object, const char *key);    /* 0 when it has no such number */
bool json_i64(const struct json *j, int64_t *out); /* false: not an integral number in range; exact */
bool json_is_integer(const struct json *j);        /* written without '.', 'e' and fits int64 */
const char *json_digits(const struct json *j);     /* an integer past int64: its text as it came; else NULL */
/* Writes j compactly, or with Python's separators (", " and ": ") when spaced; numbers print as they came when
 * integral, shortest round-trip otherwise. indent > 0: pretty. */
struct json_style {
    bool spaced;
    int indent;
    bool ascii_only; /* \uXXXX for everything past ASCII */
    bool sort_keys;
};
void json_write(struct buf *out, const struct json *j, const struct json_style *style); /* style NULL: compact */
/* A string with quotes as Python's json.dumps writes it (buf_put_json also escapes DEL); s is UTF-8. */
void json_put_string(struct buf *out, const char *s, size_t n, bool ascii_only);
/* A double as Python's repr: the shortest digits that read back as v, "1.0" when integral, "inf", "-inf", "nan". */
void json_put_double(struct buf *out, double v);
/* A member of an object, with a comma before it unless it is the first: text (NULL: null), and a double. */
void json_put_member(struct buf *out, const char *key, const char *text);
void json_put_member_double(struct buf *out, const char *key, double v);

#endif
