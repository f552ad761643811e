/* Any bytes as text. The first byte picks a pre-tokenizer (or SentencePiece); the ids must be in range and
 * stand for the text, the words must be those of the patterns, and text cut into single ids must stream as
 * whole UTF-8. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/tokenizer/pretok.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/rig/pcre_known.h"
#include "tests/rig/tiny_vocab.h"

enum { MAX_KINDS = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct kinds {
    struct tokenizer *tokenizers[MAX_KINDS + 1];
    struct pretok *pretoks[MAX_KINDS];
    uint16_t *classes;
    struct pcre_known known;
    size_t n;
};

static struct tokenizer *make(const struct buf *file)
{
    struct gguf *g;
    struct tokenizer *t;
    struct err e;
    ASSERT(gguf_open_memory(&g, file->data, file->len, &e) == 0);
    ASSERT(tokenizer_from_gguf(&t, g, &e) == 0);
    gguf_close(g);
    return t;
}

/* Built once: a fuzz target is one process with one thread. */
static struct kinds *all_kinds(void)
{
    static struct kinds k;
    if (k.n)
        return &k;
    struct err e;
    k.classes = unicode_build_classes();
    known_init(&k.known, k.classes);
    for (; pretok_name(k.n) && k.n < MAX_KINDS; k.n++) {
        struct buf file = {0};
        tiny_byte_level(pretok_name(k.n), &file);
        k.tokenizers[k.n] = make(&file);
        ASSERT(pretok_create(k.pretoks + k.n, pretok_name(k.n), strlen(pretok_name(k.n)), k.classes, &e) == 0);
        buf_free(&file);
    }
    struct buf file = {0};
    tiny_sentencepiece(true, &file);
    k.tokenizers[k.n] = make(&file);
    buf_free(&file);
    return &k;
}

static int note(void *ctx, const char *s, size_t n)
{
    (void)s;
    ASSERT(n > 0);
    build_put(ctx, n, 4);
    return 0;
}

static void check_words(const struct kinds *k, size_t kind, const char *s, size_t n)
{
    struct buf fast = {0}, defined = {0};
    struct err e;
    int len;
    for (size_t i = 0; i < n; i += (size_t)len)
        if (!known_char(&k->known, unicode_char(s + i, &len)))
            return;
    ASSERT(pretok_split(k->pretoks[kind], s, n, (struct word_sink){note, &fast}, &e) == 0);
    if (pretok_split_patterns(k->pretoks[kind], s, n, (struct word_sink){note, &defined}, &e) == 0) {
        ASSERT(fast.len == defined.len);
        ASSERT(!fast.len || memcmp(fast.data, defined.data, fast.len) == 0);
    }
    buf_free(&fast);
    buf_free(&defined);
}

static void check_stream(const struct tokenizer *t, const struct tokens *ids)
{
    struct buf out = {0}, whole = {0};
    struct detok d;
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = out.len;
        detok_put(&d, ids->ids[i], &out);
        ASSERT(out.len == before || utf8_valid(out.data + before, out.len - before));
    }
    detok_flush(&d, &out);
    tokenizer_decode(t, ids->ids, ids->len, false, &whole);
    ASSERT(out.len == whole.len && (!out.len || memcmp(out.data, whole.data, out.len) == 0));
    buf_free(&out);
    buf_free(&whole);
}

/* Without composition and without SentencePiece's spaces, the pieces are the text. */
static void check_pieces(const struct tokenizer *t, const struct tokens *ids, const char *s, size_t n)
{
    struct buf out = {0};
    for (size_t i = 0; i < ids->len; i++)
        tokenizer_piece(t, ids->ids[i], &out);
    ASSERT(out.len == n && (!n || memcmp(out.data, s, n) == 0));
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const struct kinds *k = all_kinds();
    size_t kind = data[0] % (k->n + 1), n = size - 2;
    const char *s = (const char *)data + 2;
    const struct tokenizer *t = k->tokenizers[kind];
    struct tokens ids = {0};
    struct err e;
    if (tokenizer_encode(t, s, n, (struct tokenize_how){.flags = data[1] & 3, .max_tokens = data[1] & 4 ? 5 : 0}, &ids,
                         &e) == 0) {
        for (size_t i = 0; i < ids.len; i++)
            ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_vocab(t));
        check_stream(t, &ids);
        if (kind < k->n && !pretok_traits(k->pretoks[kind]).nfc && !(data[1] & TOKENIZE_BOS))
            check_pieces(t, &ids, s, n);
    }
    if (kind < k->n && utf8_valid(s, n))
        check_words(k, kind, s, n);
    tokens_free(&ids);
    return 0;
}
