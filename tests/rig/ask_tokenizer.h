/* What a fuzz target asks of a tokenizer made of hostile bytes: ids of a text in every way, all in range, and back. */
#ifndef RIG_ASK_TOKENIZER_H
#define RIG_ASK_TOKENIZER_H

#include <string.h>

#include "engine/base/check.h"
#include "models/tokenizer/tokenizer.h"

static inline void ask_tokenizer(const struct gguf *g)
{
    static const char text[] = " Hello, he said:\n\t42 <s>\xC3\xA9\xF0\x9F\xA6\x99\xFF</s><|end|> 12345 abc\n";
    struct tokenizer *t;
    struct tokens ids = {0};
    struct buf out = {0};
    struct err e;
    if (tokenizer_from_gguf(&t, g, &e))
        return;
    for (int flags = 0; flags < 4; flags++)
        tokenizer_encode(t, text, sizeof text - 1, (struct tokenize_how){.flags = flags}, &ids, &e);
    for (size_t i = 0; i < ids.len; i++)
        ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_vocab(t));
    tokenizer_decode(t, ids.ids, ids.len, false, &out);
    for (int32_t id = -1; id <= tokenizer_n_vocab(t) && id < 4096; id++)
        tokenizer_piece(t, id, &out);
    buf_free(&out);
    tokens_free(&ids);
    tokenizer_free(t);
}

#endif
