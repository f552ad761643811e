/* Any bytes as text for WordPiece. The ids must be in range, the first byte's limit must hold, and where no word is
 * unknown, the text of the ids must give the same ids again. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/rig/tiny_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SPECIALS = 4 };

/* Built once: a fuzz target is one process with one thread. */
static const struct tokenizer *subject(void)
{
    static struct tokenizer *t;
    if (!t) {
        struct buf file = {0};
        struct gguf *g;
        struct err e;
        tiny_wordpiece(&file);
        ASSERT(gguf_open_memory(&g, file.data, file.len, &e) == 0);
        ASSERT(tokenizer_from_gguf(&t, g, &e) == 0);
        gguf_close(g);
        buf_free(&file);
    }
    return t;
}

static void check_again(const struct tokenizer *t, const struct tokens *ids)
{
    struct buf text = {0};
    struct tokens again = {0};
    struct err e;
    for (size_t i = 0; i < ids->len; i++)
        if (ids->ids[i] < SPECIALS)
            return;
    tokenizer_decode(t, ids->ids, ids->len, false, &text);
    ASSERT(tokenizer_encode(t, text.data ? text.data : "", text.len, (struct tokenize_how){0}, &again, &e) == 0);
    ASSERT(again.len == ids->len && (!ids->len || memcmp(again.ids, ids->ids, ids->len * sizeof *ids->ids) == 0));
    tokens_free(&again);
    buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct tokenizer *t = subject();
    struct tokens ids = {0};
    struct err e = {0};
    if (size < 1)
        return 0;
    size_t most = data[0] & 4 ? 7 : 0;
    struct tokenize_how how = {.flags = data[0] & 3, .max_tokens = most};
    int rc = tokenizer_encode(t, (const char *)data + 1, size - 1, how, &ids, &e);
    ASSERT(rc == 0 || (rc == E_INPUT && most && ids.len == 0 && e.text[0]));
    ASSERT(!most || ids.len <= most);
    for (size_t i = 0; i < ids.len; i++)
        ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_vocab(t));
    if (!rc && !how.flags)
        check_again(t, &ids);
    tokens_free(&ids);
    return 0;
}
