#include "engine/serve/batch/input.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum { LINE_BYTES = 16 << 20, HEAD_BYTES = 1 << 20 };

struct input {
    FILE *file;
    struct stat about;
    char raw[65536]; /* read, and not yet looked at: [at, n) */
    size_t at, n;
    struct buf line;
    int64_t count, number;
    struct sha256 head;
};

/* The next line into in->line, as much of it as may be; *over: it was longer. False: the end. */
static bool read_line(struct input *in, bool *over)
{
    *over = false;
    buf_clear(&in->line);
    for (bool any = false;; any = true) {
        if (in->at == in->n) {
            in->at = 0;
            in->n = fread(in->raw, 1, sizeof in->raw, in->file);
        }
        if (in->n == 0)
            return any;
        char *from = in->raw + in->at, *end = memchr(from, '\n', in->n - in->at);
        size_t n = end ? (size_t)(end + 1 - from) : in->n - in->at;
        in->at += n;
        if (in->line.len + n > LINE_BYTES)
            *over = true;
        else
            buf_put(&in->line, from, n);
        if (end)
            return true;
    }
}

static bool is_blank(const struct input *in)
{
    return strspn(in->line.len ? in->line.data : "", " \t\r\n") == in->line.len;
}

static bool read_text(struct input *in, bool *over)
{
    while (read_line(in, over))
        if (*over || !is_blank(in))
            return true;
    return false;
}

static void look_at_all(struct input *in)
{
    struct buf head = {0};
    bool over;
    buf_reserve(&head, HEAD_BYTES);
    head.len = fread(head.data, 1, HEAD_BYTES, in->file);
    in->head = hash_sha256(head.data, head.len);
    buf_free(&head);
    rewind(in->file);
    while (read_text(in, &over))
        in->count++;
    rewind(in->file);
    in->at = in->n = 0;
}

int input_open(struct input **out, const char *path, struct err *e)
{
    struct input *in = mem_new(sizeof *in);
    in->file = fopen(path, "re");
    int rc = 0;
    if (!in->file || fstat(fileno(in->file), &in->about) != 0)
        rc = err_set(e, errno == ENOENT ? E_NOTFOUND : E_SYS, "%.300s: %s", path, strerror(errno));
    else if (!S_ISREG(in->about.st_mode))
        rc = err_set(e, E_INPUT, "%.300s is not a regular file: a job that is begun again reads it again", path);
    if (rc) {
        input_close(in);
        return rc;
    }
    look_at_all(in);
    *out = in;
    return 0;
}

void input_close(struct input *in)
{
    if (!in)
        return;
    if (in->file)
        fclose(in->file);
    buf_free(&in->line);
    mem_free(in);
}

int64_t input_count(const struct input *in)
{
    return in->count;
}

int64_t input_modified(const struct input *in)
{
    return (int64_t)in->about.st_mtime;
}

void input_print(const struct input *in, struct buf *out)
{
    char hex[65];
    hash_hex(&in->head, hex);
    buf_printf(out, "%lld bytes, %" PRId64 " lines, begins with sha256 %.16s", (long long)in->about.st_size, in->count,
               hex);
}

void input_skip(struct input *in, int64_t n)
{
    bool over;
    while (n-- > 0 && read_text(in, &over))
        in->number++;
}

/* ---- a line */

static void refuse(struct batch_line *l, const char *code, const char *why)
{
    l->code = code;
    snprintf(l->why, sizeof l->why, "%s", why);
}

/* The request as it came, and a seed where it has none and samples. */
static void put_body(struct buf *out, const struct json *body, bool samples, uint64_t seed)
{
    buf_putc(out, '{');
    for (const struct json *m = json_first(body); m; m = json_next(m)) {
        json_put_string(out, json_key(m), strlen(json_key(m)), false);
        buf_putc(out, ':');
        json_write(out, m, NULL);
        buf_putc(out, ',');
    }
    if (samples && json_type(json_find(body, "seed")) == JSON_NULL)
        buf_printf(out, "\"seed\":%" PRIu64 "}", seed);
    else if (out->len > 1)
        out->data[out->len - 1] = '}';
    else
        buf_putc(out, '}');
}

static const char embeddings[] = "/v1/embeddings";

const char *input_path(const char *url)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses", embeddings};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (url && !strcmp(url, paths[i]))
            return paths[i];
    return NULL;
}

static void read_request(const struct json *root, uint64_t seed, struct batch_line *l)
{
    const struct json *id = json_find(root, "custom_id"), *method = json_find(root, "method"),
                      *body = json_find(root, "body");
    if (json_text(id))
        json_put_string(&l->id, json_text(id), strlen(json_text(id)), false);
    l->path = input_path(json_text(json_find(root, "url")));
    if (json_type(root) != JSON_OBJECT)
        refuse(l, "invalid_json_line", "the line is not a JSON object");
    else if (!json_text(id))
        refuse(l, "missing_custom_id", "custom_id must be a string, by which you know the answer");
    else if (!json_text(method) || strcmp(json_text(method), "POST") != 0)
        refuse(l, "invalid_method", "method must be \"POST\"");
    else if (!l->path)
        refuse(l, "invalid_url", "url must be " INPUT_PATHS);
    else if (json_type(body) != JSON_OBJECT)
        refuse(l, "invalid_body", "body must be an object: what you would post to the url");
    else if (json_true(json_find(body, "stream")))
        refuse(l, "invalid_body", "stream is not for batches");
    else
        put_body(&l->body, body, l->path != embeddings, seed);
}

bool input_next(struct input *in, uint64_t seed, struct batch_line *out)
{
    struct err why = {0};
    bool over;
    if (!read_text(in, &over))
        return false;
    *out = (struct batch_line){.number = ++in->number};
    struct json *root = over ? NULL : json_parse(in->line.data, in->line.len, NULL, &why);
    if (over)
        refuse(out, "line_too_long", "a line has at most 16 MiB");
    else if (!root)
        refuse(out, "invalid_json_line", why.text);
    else
        read_request(root, rng_at(seed, (uint64_t)out->number) >> 12, out); /* exact as a JSON number */
    json_free(root);
    return true;
}

void batch_line_free(struct batch_line *l)
{
    buf_free(&l->id);
    buf_free(&l->body);
    *l = (struct batch_line){0};
}
