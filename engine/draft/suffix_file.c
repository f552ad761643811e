#include "engine/draft/suffix_file.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/world/ids.h"

static const char magic[16] = "moonshift-said1\n";

/* All numbers as this machine has them: a file of another byte order has another magic number in `order`. */
enum { ORDER = 0x01020304 };

struct head {
    char magic[16];
    struct sha256 sum; /* of all that follows */
    uint32_t order, n_vocabulary;
    struct sha256 vocabulary;
};
enum { SUMMED = offsetof(struct head, order) };

/* Before the tokens of each sequence. */
struct said {
    char tenant[NAME_BYTES];
    uint32_t zero, n;
};

_Static_assert(sizeof(struct head) % sizeof(int32_t) == 0 && sizeof(struct said) % sizeof(int32_t) == 0,
               "tokens are read where they lie");

/* ---- out */

struct writing {
    struct buf out;
    struct suffix_file_count *count;
};

static bool write_one(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    struct writing *w = ctx;
    struct said s = {.n = (uint32_t)n};
    if (n > 0) {
        memcpy(s.tenant, tenant, strlen(tenant));
        buf_put(&w->out, &s, sizeof s);
        buf_put(&w->out, tokens, (size_t)n * sizeof *tokens);
        w->count->sequences++;
        w->count->tokens += n;
    }
    return true;
}

int suffix_file_write(const char *path, const struct suffix_vocabulary *v, const struct suffix_cache *c,
                      struct suffix_file_count *count, struct err *e)
{
    struct head h = {.order = ORDER, .n_vocabulary = (uint32_t)v->n_tokens, .vocabulary = v->sum};
    struct writing w = {.count = count};
    *count = (struct suffix_file_count){0};
    memcpy(h.magic, magic, sizeof magic);
    buf_put(&w.out, &h, sizeof h);
    suffix_cache_each(c, write_one, &w);
    h.sum = hash_sha256(w.out.data + SUMMED, w.out.len - SUMMED);
    memcpy(w.out.data, &h, sizeof h);
    int rc = file_replace_private(path, w.out.data, w.out.len, e);
    buf_free(&w.out);
    return rc;
}

/* ---- in */

static int damaged(struct err *e, const char *what)
{
    return err_set(e, E_INPUT, "it is damaged: %s", what);
}

static int check_head(const void *data, size_t size, const struct suffix_vocabulary *v, struct err *e)
{
    struct head h;
    if (size < sizeof h || memcmp(data, magic, sizeof magic) != 0)
        return err_set(e, E_INPUT, "it is no file of draft texts");
    memcpy(&h, data, sizeof h);
    if (h.order != ORDER)
        return err_set(e, E_INPUT, "it comes from a machine with another order of bytes");
    if (h.n_vocabulary != (uint32_t)v->n_tokens || !hash_equal(&h.vocabulary, &v->sum))
        return err_set(e, E_INPUT, "its tokens are those of another vocabulary, of %" PRIu32 " (this model's: %d)",
                       h.n_vocabulary, v->n_tokens);
    return 0;
}

static int check_sum(const char *data, size_t size, struct err *e)
{
    struct sha256 said, sum = hash_sha256(data + SUMMED, size - SUMMED);
    memcpy(&said, data + offsetof(struct head, sum), sizeof said);
    return hash_equal(&sum, &said) ? 0 : damaged(e, "its SHA-256 is another one");
}

/* The sequence at *at, and *at behind it. A right sum says that it was written like this, and not that it was by us. */
static int next_said(const char *data, size_t size, size_t *at, const struct suffix_vocabulary *v, struct said *s,
                     struct err *e)
{
    if (size - *at < sizeof *s)
        return damaged(e, "it ends within a sequence");
    memcpy(s, data + *at, sizeof *s);
    *at += sizeof *s;
    if (!memchr(s->tenant, 0, sizeof s->tenant))
        return damaged(e, "a tenant's name has no end");
    if (s->n == 0 || s->n > INT32_MAX || (size - *at) / sizeof(int32_t) < s->n)
        return damaged(e, "a sequence is longer than the file");
    const int32_t *tokens = (const int32_t *)(data + *at);
    for (uint32_t i = 0; i < s->n; i++)
        if (tokens[i] < 0 || tokens[i] >= v->n_tokens)
            return damaged(e, "a token is not in the vocabulary");
    *at += s->n * sizeof *tokens;
    return 0;
}

int suffix_file_parse(const void *data, size_t size, const struct suffix_vocabulary *v,
                      const struct suffix_reader *reader, struct err *e)
{
    struct said s;
    TRY(check_head(data, size, v, e));
    TRY(check_sum(data, size, e));
    for (size_t at = sizeof(struct head); at < size;)
        TRY(next_said(data, size, &at, v, &s, e));
    for (size_t at = sizeof(struct head); reader && at < size;) {
        TRY(next_said(data, size, &at, v, &s, e));
        reader->take(reader->ctx, s.tenant, (const int32_t *)((const char *)data + at) - s.n, (int)s.n);
    }
    return 0;
}

int suffix_file_read(const char *path, const struct suffix_vocabulary *v, const struct suffix_reader *reader,
                     struct err *e)
{
    struct file_map m;
    if (access(path, F_OK) != 0)
        return err_set(e, E_NOTFOUND, "%s: there is no such file", path);
    int rc = file_map_open(&m, path, e);
    if (rc)
        return rc;
    rc = suffix_file_parse(m.data, m.size, v, reader, e);
    file_map_close(&m);
    return rc ? err_prefix(e, rc, "%s", path) : 0;
}
