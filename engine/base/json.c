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

/* A struct json is a cJSON: nodes are made, linked and freed by that library, and its parser is not used, since it
 * checks neither UTF-8 nor duplicate keys, knows no line and keeps 53 bits of an integer. cJSON's deprecated valueint
 * carries what a double cannot say of a number: */
enum number_kind {
    NUMBER_FLOAT, /* written with '.' or 'e' */
    NUMBER_SMALL, /* an integer that valuedouble holds exactly */
    NUMBER_LONG,  /* an integer of int64; its digits are in valuestring */
    NUMBER_BIG,   /* an integer past int64; its digits are in valuestring */
};

enum {
    DEPTH_MAX = 900, /* each level is a few frames of the stack here, and one when it is freed */
    NUMBER_MAX = 63,
};

/* ---- text to tree ---- */

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

static int no_memory(struct scan *s)
{
    return err_set(s->e, E_FULL, "no memory for JSON of %zu bytes", s->n);
}

/* at stands on the backslash. Returns the code point that is meant, or a negative code. */
static int scan_escape(struct scan *s)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int c = s->at + 1 < s->n ? (unsigned char)s->text[s->at + 1] : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (name) {
        s->at += 2;
        return meanings[name - names];
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
        return u;
    }
    int low = s->at + 8 <= s->n && s->text[s->at + 6] == '\\' && s->text[s->at + 7] == 'u' ? hex4(s, s->at + 8) : -1;
    if (u > 0xDBFF || low < 0xDC00 || low > 0xDFFF)
        return scan_fail(s, E_INPUT, "half a surrogate pair in a string");
    s->at += 12;
    return 0x10000 + ((u & 0x3FF) << 10 | (low & 0x3FF));
}

/* Moves over bytes of a string that stand for themselves. */
static int scan_plain(struct scan *s)
{
    const unsigned char *text = (const unsigned char *)s->text;
    size_t at = s->at, n = s->n;
    int len = 1;
    while (at < n && len > 0 && text[at] >= 0x20 && text[at] != '"' && text[at] != '\\') {
        uint32_t cp;
        len = text[at] < 0x80 ? 1 : utf8_decode(s->text + at, n - at, &cp);
        at += len > 0 ? (size_t)len : 0;
    }
    s->at = at;
    if (len <= 0)
        return scan_fail(s, E_INPUT, "bytes that are not UTF-8");
    if (at == n)
        return scan_fail(s, E_INPUT, "a string without an end");
    return text[at] < 0x20 ? scan_fail(s, E_INPUT, "a bare control character in a string") : 0;
}

/* The string from `from`, which is checked, to its closing quote, where at stands: without its escapes. */
static void decode_string(struct scan *s, size_t from, char *out)
{
    size_t end = s->at;
    for (s->at = from; s->at < end;) {
        const char *plain = s->text + s->at, *escape = memchr(plain, '\\', end - s->at);
        size_t n = escape ? (size_t)(escape - plain) : end - s->at;
        memcpy(out, plain, n);
        out += n;
        s->at += n;
        if (escape)
            out += utf8_encode((uint32_t)scan_escape(s), out);
    }
    *out = 0;
}

/* at stands on the opening quote. *out: the text, from cJSON's allocator, since a node frees it. */
static int scan_string(struct scan *s, char **out)
{
    size_t from = ++s->at;
    for (;;) {
        TRY(scan_plain(s));
        if (s->text[s->at] == '"')
            break;
        int cp = scan_escape(s);
        if (cp < 0)
            return cp;
    }
    *out = cJSON_malloc(s->at - from + 1); /* no escape is shorter than what it stands for */
    if (!*out)
        return no_memory(s);
    decode_string(s, from, *out);
    s->at++;
    return 0;
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

/* An integer that a double cannot hold keeps its digits. */
static int settle_integer(struct scan *s, cJSON *node, const char *digits)
{
    node->valueint = NUMBER_SMALL;
    if (fabs(node->valuedouble) <= 0x1p53 - 1)
        return 0;
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    node->valueint = errno == ERANGE ? NUMBER_BIG : NUMBER_LONG;
    node->valuestring = cJSON_malloc(strlen(digits) + 1);
    if (!node->valuestring)
        return no_memory(s);
    memcpy(node->valuestring, digits, strlen(digits) + 1);
    return 0;
}

static int scan_number(struct scan *s, cJSON *node)
{
    size_t from = s->at;
    bool integer;
    if (!cut_number(s, &integer))
        return scan_fail(s, E_INPUT, "not a number");
    size_t len = s->at - from;
    if (len > NUMBER_MAX)
        return scan_fail(s, E_INPUT, "a number of more than 63 characters");
    char copy[NUMBER_MAX + 1];
    memcpy(copy, s->text + from, len);
    copy[len] = 0;
    node->type = cJSON_Number;
    node->valueint = NUMBER_FLOAT;
    node->valuedouble = strtod(copy, NULL);
    if (!integer && isinf(node->valuedouble))
        return scan_fail(s, E_INPUT, "a number too large for a double");
    return integer ? settle_integer(s, node, copy) : 0;
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

static int scan_word(struct scan *s, cJSON *node, const char *word, int type)
{
    size_t n = strlen(word);
    node->type = type;
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return scan_fail(s, E_INPUT, "neither null, true nor false");
    s->at += n;
    return 0;
}

static int scan_value(struct scan *s, cJSON **out);

static int scan_member_key(struct scan *s, char **key)
{
    scan_space(s);
    if (scan_peek(s) != '"')
        return scan_fail(s, E_INPUT, scan_peek(s) < 0 ? "the text ends inside an object" : "expected a key in quotes");
    TRY(scan_string(s, key));
    scan_space(s);
    if (scan_peek(s) != ':')
        return scan_fail(s, E_INPUT, "expected ':' after a key");
    s->at++;
    return 0;
}

/* One item or member, behind `last` (NULL: the first). What there is of it hangs in the tree, also after a failure. */
static int scan_item(struct scan *s, cJSON *parent, cJSON **last)
{
    char *key = NULL;
    cJSON *node = NULL;
    int rc = cJSON_IsObject(parent) ? scan_member_key(s, &key) : 0;
    rc = rc ? rc : scan_value(s, &node);
    if (!node) {
        cJSON_free(key);
        return rc;
    }
    node->string = key;
    node->prev = *last;
    if (*last)
        (*last)->next = node;
    else
        parent->child = node;
    parent->child->prev = node; /* as cJSON has it: the first one's prev is the last */
    *last = node;
    return rc;
}

/* at stands on the opening bracket. */
static int scan_container(struct scan *s, cJSON *node, int type)
{
    char close = type == cJSON_Object ? '}' : ']';
    cJSON *last = NULL;
    node->type = type;
    if (++s->depth > s->max_depth)
        return scan_fail(s, E_INPUT, "nested too deeply");
    s->at++;
    scan_space(s);
    int c = scan_peek(s);
    if (c == close)
        s->at++;
    while (c != close) {
        TRY(scan_item(s, node, &last));
        scan_space(s);
        c = scan_peek(s);
        if (c != ',' && c != close)
            return scan_fail(s, E_INPUT, c < 0 ? "the text ends too early" : "expected ',' or the closing bracket");
        s->at++;
    }
    s->depth--;
    return type == cJSON_Array || keep_last_of_equals(node) ? 0 : no_memory(s);
}

/* *out: what there is of the value, also after a failure; NULL: nothing. */
static int scan_value(struct scan *s, cJSON **out)
{
    scan_space(s);
    if (++s->nodes > s->max_nodes)
        return scan_fail(s, E_INPUT, "too many values");
    cJSON *node = *out = cJSON_CreateNull();
    int c = scan_peek(s);
    if (!node)
        return no_memory(s);
    switch (c) {
    case '{':
        return scan_container(s, node, cJSON_Object);
    case '[':
        return scan_container(s, node, cJSON_Array);
    case '"':
        node->type = cJSON_String;
        return scan_string(s, &node->valuestring);
    case 'n':
        return scan_word(s, node, "null", cJSON_NULL);
    case 't':
        return scan_word(s, node, "true", cJSON_True);
    case 'f':
        return scan_word(s, node, "false", cJSON_False);
    case -1:
        return scan_fail(s, E_INPUT, "the text ends where a value should be");
    }
    if (c == '-' || isdigit(c))
        return scan_number(s, node);
    return scan_fail(s, E_INPUT, "expected a value");
}

static int scan_text(struct scan *s, cJSON **root)
{
    TRY(scan_value(s, root));
    scan_space(s);
    return s->at == s->n ? 0 : scan_fail(s, E_INPUT, "something follows the end of the document");
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
    cJSON *root = NULL;
    int rc = scan_text(&s, &root);
    if (rc) {
        cJSON_Delete(root);
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

const char *json_member_text(const struct json *object, const char *key)
{
    const char *text = json_text(json_find(object, key));
    return text ? text : "";
}

double json_member_number(const struct json *object, const char *key)
{
    return json_number(json_find(object, key));
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
