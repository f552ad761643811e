/* What a model says that thinks. The first byte says where the prompt leaves it, and where the text is cut. How it is
 * cut changes nothing, and nothing but white space and the markers is lost. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/serve/openai/thoughts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(struct thought_reader *r, const char *s, size_t n, size_t piece)
{
    size_t given = 0;
    for (size_t len; n; s += len, n -= len) {
        len = piece < n ? piece : n;
        given += len;
        thought_reader_put(r, s, len);
        ASSERT(thought_reader_bytes(r) <= given);
    }
    thought_reader_end(r);
    ASSERT(!r->held.len);
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

static size_t solid(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !strchr(" \n\t\r", s[i]) || !s[i];
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct think_marks marks;
    struct thought_reader whole, cut;
    if (!*marks.end)
        think_marks_set(&marks, "</think>", false);
    if (size < 1)
        return 0;
    enum think_state from = data[0] & 1 ? THINK_INSIDE : THINK_FIRST;
    const char *text = (const char *)data + 1;
    size_t n = size - 1, piece = 1 + (data[0] >> 1) % 16;
    thought_reader_init(&whole, &marks, from);
    thought_reader_init(&cut, &marks, from);
    read_all(&whole, text, n, n + 1);
    read_all(&cut, text, n, piece);
    ASSERT(same(&whole.thought, &cut.thought) && same(&whole.text, &cut.text));
    size_t lost =
        solid(text, n) - solid(whole.thought.data, whole.thought.len) - solid(whole.text.data, whole.text.len);
    ASSERT(lost == 0 || lost == strlen(marks.end) || lost == strlen(marks.begin) ||
           lost == strlen(marks.begin) + strlen(marks.end));
    thought_reader_free(&whole);
    thought_reader_free(&cut);
    return 0;
}
