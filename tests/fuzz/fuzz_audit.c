/* The two files of a state folder that are read at a start: an audit log verifies or is refused with the number of a
 * line, what verifies is taken by the book and written again in the same bytes, and last-good.json is a version or
 * refused. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/serve/versions/book.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take(void *ctx, uint64_t seq, const struct audit_entry *a)
{
    ASSERT(seq > 0 && memchr(a->reason, 0, sizeof a->reason));
    book_take(ctx, a);
}

static void read_log(const char *text, size_t n, struct book *b)
{
    struct audit_found f;
    struct err e = {0};
    int rc = audit_read(text, n, take, b, &f, &e);
    ASSERT(f.whole <= n);
    ASSERT(rc ? rc == E_INPUT && !strncmp(e.text, "line ", 5) : !memchr(text + f.whole, '\n', n - f.whole));
    struct buf json = {0};
    book_put(b, &json);
    book_begin(b);
    struct version *v;
    while ((v = book_surplus(b)) != NULL) {
        struct audit_entry a = {.event = "prune", .result = "ok"};
        memcpy(a.policy, v->name, sizeof a.policy);
        memcpy(a.to, v->sha256, sizeof a.to);
        book_take(b, &a);
    }
    buf_free(&json);
}

/* Lines as any writer could bind them: each line of the input that is an entry, with the seq and prev that belong. */
static void bind(const char *text, size_t n, struct book *b)
{
    struct audit_chain c;
    struct buf out = {0};
    audit_begin(&c);
    for (size_t at = 0; at + 6 < n && c.seq < 300; at += 6) {
        static const char *const events[] = {"load", "activate", "withdraw", "commit", "delete", "release", "boot"};
        static const char *const results[] = {"ok", "refused", "quarantined", "rests"};
        struct audit_entry a = {.at_s = 1};
        strcpy(a.event, events[(unsigned char)text[at] % 7]);
        strcpy(a.result, results[(unsigned char)text[at + 1] % 4]);
        a.policy[0] = (char)('a' + (unsigned char)text[at + 2] % 3);
        memset(a.to, "0123456789abcdef"[(unsigned char)text[at + 3] % 16], 64);
        memset(a.from, "0123456789abcdef"[(unsigned char)text[at + 4] % 16], 64);
        memcpy(a.reason, text + at, 6);
        audit_put(&c, &a, &out);
    }
    struct audit_found f;
    struct err e = {0};
    ASSERT(audit_read(out.data ? out.data : "", out.len, take, b, &f, &e) == 0 && f.chain.seq == c.seq);
    ASSERT(strcmp(f.chain.prev, c.prev) == 0 && f.whole == out.len);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct book *b = mem_new(sizeof *b);
    struct good g;
    struct err e = {0};
    read_log((const char *)data, size, b);
    bind((const char *)data, size, b);
    book_free(b);
    mem_free(b);
    if (good_read(&g, (const char *)data, size, &e) == 0) {
        struct buf out = {0};
        struct good again;
        ASSERT(version_name_ok(g.name) && version_sha_ok(g.sha256, 64));
        good_put(&g, &out);
        ASSERT(good_read(&again, out.data, out.len, &e) == 0 && !strcmp(again.name, g.name));
        good_free(&again);
        buf_free(&out);
    }
    good_free(&g);
    return 0;
}
