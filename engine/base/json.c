#include "engine/base/json.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

/* A struct json is a cJSON. cJSON's deprecated valueint carries what a double cannot say of a number: */
enum number_kind {
    NUMBER_FLOAT, /* written with '.' or 'e' */
    NUMBER_SMALL, /* an integer that valuedouble holds exactly */
    NUMBER_LONG,  /* an integer of int64; its digits are in valuestring */
    NUMBER_BIG,   /* an integer past int64; its digits are in valuestring */
};

enum {
    DEPTH_MAX = 900, /* cJSON stops at 1000 */
    NUMBER_MAX = 63, /* cJSON reads a number through 64 bytes */
};

/* ---- the check of the text, before cJSON sees it ---- */

struct scan {
    const char *text;
    size_t n, at;
    size_t nodes, max_nodes;
    int depth, max_depth;
    struct err *e;
};

static int scan_fail(struct scan *s, int code, const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < s->at && i < s->n; i++) {
        unsigned char c = (unsigned char)s->text[i];
        if (c == '\n') {
            line++;
            column = 1;
        } else if ((c & 0xC0) != 0x80) {
            column++;
        }
    }
    return err_set(s->e, code, "JSON line %zu column %zu: %s", line, column, what);
}

static int scan_peek(const struct scan *s)
{
    return s->at < s->n ? (unsigned char)s->text[s->at] : -1;
}

static void scan_space(struct scan *s)
{
    while (s->at < s->n) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        s->at++;
    }
}

/* Reads the four hex digits at `at`; -1 when they are not. */
static int hex4(const struct scan *s, size_t at)
{
    if (at + 4 > s->n)
        return -1;
    int v = 0;
    for (size_t i = at; i < at + 4; i++) {
        int c = (unsigned char)s->text[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* at stands on the backslash. */
static int scan_escape(struct scan *s)
{
    int c = s->at + 1 < s->n ? (unsigned char)s->text[s->at + 1] : 0;
    if (c && strchr("\"\\/bfnrt", c)) {
        s->at += 2;
        return 0;
    }
    if (c != 'u')
        return scan_fail(s, E_INPUT, "a backslash that starts no escape");
    int u = hex4(s, s->at + 2);
    if (u < 0)
        return scan_fail(s, E_INPUT, "\\u wants four hex digits");
    if (u == 0)
        return scan_fail(s, E_INPUT, "\\u0000 in a string is not accepted");
    if (u < 0xD800 || u > 0xDFFF) {
        s->at += 6;
        return 0;
    }
    int low = s->at + 8 <= s->n && s->text[s->at + 6] == '\\' && s->text[s->at + 7] == 'u' ? hex4(s, s->at + 8) : -1;
    if (u > 0xDBFF || low < 0xDC00 || low > 0xDFFF)
        return scan_fail(s, E_INPUT, "half a surrogate pair in a string");
    s->at += 12;
    return 0;
}

static int scan_string(struct scan *s)
{
    s->at++;
    while (s->at < s->n) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return 0;
        }
        if (c == '\\') {
            TRY(scan_escape(s));
        } else if (c < 0x20) {
            return scan_fail(s, E_INPUT, "a bare control character in a string");
        } else if (c < 0x80) {
            s->at++;
        } else {
            uint32_t cp;
            int len = utf8_decode(s->text + s->at, s->n - s->at, &cp);
            if (len <= 0)
                return scan_fail(s, E_INPUT, "bytes that are not UTF-8");
            s->at += (size_t)len;
        }
    }
    return scan_fail(s, E_INPUT, "a string without an end");
}

static bool scan_digits(struct scan *s)
{
    size_t from = s->at;
    while (s->at < s->n && isdigit((unsigned char)s->text[s->at]))
        s->at++;
    return s->at > from;
}

/* Cuts the literal at `at` as the grammar has it and says whether it is one. */
static bool cut_number(struct scan *s, bool *integer)
{
    *integer = true;
    if (scan_peek(s) == '-')
        s->at++;
    if (scan_peek(s) == '0')
        s->at++;
    else if (!scan_digits(s))
        return false;
    if (scan_peek(s) == '.') {
        *integer = false;
        s->at++;
        if (!scan_digits(s))
            return false;
    }
    if (scan_peek(s) == 'e' || scan_peek(s) == 'E') {
        *integer = false;
        s->at++;
        if (scan_peek(s) == '+' || scan_peek(s) == '-')
            s->at++;
        return scan_digits(s);
    }
    return true;
}

static int scan_number(struct scan *s)
{
    size_t from = s->at;
    bool integer;
    if (!cut_number(s, &integer))
        return scan_fail(s, E_INPUT, "not a number");
    size_t len = s->at - from;
    if (len > NUMBER_MAX)
        return scan_fail(s, E_INPUT, "a number of more than 63 characters");
    if (!integer) {
        char copy[NUMBER_MAX + 1];
        memcpy(copy, s->text + from, len);
        copy[len] = 0;
        if (isinf(strtod(copy, NULL)))
            return scan_fail(s, E_INPUT, "a number too large for a double");
    }
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return scan_fail(s, E_INPUT, "neither null, true nor false");
    s->at += n;
    return 0;
}

static int scan_value(struct scan *s);

static int scan_member_key(struct scan *s)
{
    scan_space(s);
    if (scan_peek(s) != '"')
        return scan_fail(s, E_INPUT, scan_peek(s) < 0 ? "the text ends inside an object" : "expected a key in quotes");
    TRY(scan_string(s));
    scan_space(s);
    if (scan_peek(s) != ':')
        return scan_fail(s, E_INPUT, "expected ':' after a key");
    s->at++;
    return 0;
}

/* at stands on the opening bracket. */
static int scan_container(struct scan *s, bool object)
{
    char close = object ? '}' : ']';
    if (++s->depth > s->max_depth)
        return scan_fail(s, E_INPUT, "nested too deeply");
    s->at++;
    scan_space(s);
    if (scan_peek(s) == close) {
        s->at++;
        s->depth--;
        return 0;
    }
    for (;;) {
        if (object)
            TRY(scan_member_key(s));
        TRY(scan_value(s));
        scan_space(s);
        int c = scan_peek(s);
        if (c != ',' && c != close)
            return scan_fail(s, E_INPUT, c < 0 ? "the text ends too early" : "expected ',' or the closing bracket");
        s->at++;
        if (c == close) {
            s->depth--;
            return 0;
        }
    }
}

static int scan_value(struct scan *s)
{
    scan_space(s);
    if (++s->nodes > s->max_nodes)
        return scan_fail(s, E_INPUT, "too many values");
    int c = scan_peek(s);
    switch (c) {
    case '{':
        return scan_container(s, true);
    case '[':
        return scan_container(s, false);
    case '"':
        return scan_string(s);
    case 'n':
        return scan_word(s, "null");
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case -1:
        return scan_fail(s, E_INPUT, "the text ends where a value should be");
    }
    if (c == '-' || isdigit(c))
        return scan_number(s);
    return scan_fail(s, E_INPUT, "expected a value");
}

static int scan_text(struct scan *s)
{
    TRY(scan_value(s));
    scan_space(s);
    return s->at == s->n ? 0 : scan_fail(s, E_INPUT, "something follows the end of the document");
}

/* ---- the walk after cJSON: exact integers, and the last of equal keys ---- */

/* Moves s to the next number literal of checked text and leaves it behind the literal. */
static size_t next_number(struct scan *s, bool *integer)
{
    for (;;) {
        char c = s->text[s->at];
        if (c == '"') {
            for (s->at++; s->text[s->at] != '"'; s->at++)
                if (s->text[s->at] == '\\')
                    s->at++;
        } else if (c == '-' || isdigit((unsigned char)c)) {
            size_t from = s->at;
            cut_number(s, integer);
            return from;
        }
        s->at++;
    }
}

static bool note_number(struct scan *s, cJSON *node)
{
    bool integer;
    size_t from = next_number(s, &integer), len = s->at - from;
    node->valueint = NUMBER_FLOAT;
    if (!integer)
        return true;
    node->valueint = NUMBER_SMALL;
    if (fabs(node->valuedouble) <= 0x1p53 - 1)
        return true;
    /* cJSON frees valuestring with the node, with the C library's free. */
    node->valuestring = strndup(s->text + from, len);
    if (!node->valuestring)
        return false;
    errno = 0;
    (void)strtoll(node->valuestring, NULL, 10);
    node->valueint = errno == ERANGE ? NUMBER_BIG : NUMBER_LONG;
    return true;
}

struct member {
    cJSON *node;
    size_t i;
};

static int member_order(const void *pa, const void *pb)
{
    const struct member *a = pa, *b = pb;
    int c = strcmp(a->node->string, b->node->string);
    return c ? c : a->i < b->i ? -1 : a->i > b->i;
}

/* Of equal keys the last value stays, in the first one's place. */
static bool keep_last_of_equals(cJSON *object)
{
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    if (n < 2)
        return true;
    struct member few[16], *all = n <= 16 ? few : mem_try_array(n, sizeof *all);
    if (!all)
        return false;
    for (cJSON *c = object->child; c; c = c->next, i++)
        all[i] = (struct member){c, i};
    qsort(all, n, sizeof *all, member_order);
    for (size_t first = 0, last; first < n; first = last + 1) {
        for (last = first; last + 1 < n && strcmp(all[first].node->string, all[last + 1].node->string) == 0;)
            last++;
        if (last == first)
            continue;
        for (size_t k = first + 1; k <= last; k++)
            cJSON_DetachItemViaPointer(object, all[k].node);
        for (size_t k = first + 1; k < last; k++)
            cJSON_Delete(all[k].node);
        cJSON_ReplaceItemViaPointer(object, all[first].node, all[last].node);
    }
    if (all != few)
        mem_free(all);
    return true;
}

static bool settle(struct scan *s, cJSON *node)
{
    if (cJSON_IsNumber(node))
        return note_number(s, node);
    if (!cJSON_IsObject(node) && !cJSON_IsArray(node))
        return true;
    for (cJSON *c = node->child; c; c = c->next)
        if (!settle(s, c))
            return false;
    return !cJSON_IsObject(node) || keep_last_of_equals(node);
}

struct json *json_parse(const char *text, size_t n, const struct json_limits *limits, struct err *e)
{
    struct json_limits l = limits ? *limits : (struct json_limits){0};
    size_t max_bytes = l.bytes ? l.bytes : (size_t)64 << 20;
    if (n > max_bytes) {
        err_set(e, E_INPUT, "JSON of %zu bytes; at most %zu are accepted", n, max_bytes);
        return NULL;
    }
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        text += 3;
        n -= 3;
    }
    struct scan s = {
        .text = text, .n = n, .e = e, .max_nodes = l.nodes ? l.nodes : 4000000, .max_depth = l.depth ? l.depth : 64};
    if (s.max_depth > DEPTH_MAX)
        s.max_depth = DEPTH_MAX;
    if (scan_text(&s))
        return NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, NULL, 0);
    s.at = 0;
    if (!root || !settle(&s, root)) {
        cJSON_Delete(root);
        err_set(e, E_FULL, "no memory for JSON of %zu bytes", n);
        return NULL;
    }
    return (struct json *)root;
}

/* ---- reading ---- */

static const cJSON *as_cjson(const struct json *j)
{
    return (const cJSON *)j;
}

void json_free(struct json *root)
{
    cJSON_Delete((cJSON *)root);
}

enum json_type json_type(const struct json *j)
{
    const cJSON *c = as_cjson(j);
    if (cJSON_IsBool(c))
        return JSON_BOOL;
    if (cJSON_IsNumber(c))
        return JSON_NUMBER;
    if (cJSON_IsString(c))
        return JSON_STRING;
    if (cJSON_IsArray(c))
        return JSON_ARRAY;
    return cJSON_IsObject(c) ? JSON_OBJECT : JSON_NULL;
}

const char *json_type_name(const struct json *j)
{
    static const char *const names[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};
    return names[json_type(j)];
}

const struct json *json_find(const struct json *object, const char *key)
{
    const cJSON *c = as_cjson(object);
    return cJSON_IsObject(c) ? (const struct json *)cJSON_GetObjectItemCaseSensitive(c, key) : NULL;
}

const struct json *json_first(const struct json *j)
{
    const cJSON *c = as_cjson(j);
    return cJSON_IsArray(c) || cJSON_IsObject(c) ? (const struct json *)c->child : NULL;
}

const struct json *json_next(const struct json *j)
{
    return j ? (const struct json *)as_cjson(j)->next : NULL;
}

const char *json_key(const struct json *member)
{
    return member ? as_cjson(member)->string : NULL;
}

size_t json_count(const struct json *j)
{
    size_t n = 0;
    for (const struct json *c = json_first(j); c; c = json_next(c))
        n++;
    return n;
}

const char *json_text(const struct json *string)
{
    return cJSON_IsString(as_cjson(string)) ? as_cjson(string)->valuestring : NULL;
}

bool json_true(const struct json *j)
{
    return cJSON_IsTrue(as_cjson(j));
}

double json_number(const struct json *j)
{
    return cJSON_IsNumber(as_cjson(j)) ? as_cjson(j)->valuedouble : 0;
}

bool json_i64(const struct json *j, int64_t *out)
{
    const cJSON *c = as_cjson(j);
    if (!cJSON_IsNumber(c) || c->valueint == NUMBER_BIG)
        return false;
    if (c->valueint == NUMBER_LONG) {
        *out = strtoll(c->valuestring, NULL, 10);
        return true;
    }
    double v = c->valuedouble;
    if (v != floor(v) || v < -0x1p63 || v >= 0x1p63)
        return false;
    *out = (int64_t)v;
    return true;
}

bool json_is_integer(const struct json *j)
{
    const cJSON *c = as_cjson(j);
    return cJSON_IsNumber(c) && (c->valueint == NUMBER_SMALL || c->valueint == NUMBER_LONG);
}

const char *json_digits(const struct json *j)
{
    const cJSON *c = as_cjson(j);
    return cJSON_IsNumber(c) && c->valueint == NUMBER_BIG ? c->valuestring : NULL;
}
