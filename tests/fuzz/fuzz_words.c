/* A Hugging Face folder's tokenizer: any bytes as its files, with a NUL between one and the next. What is taken must
 * make a tokenizer or be refused by it, and the ids of a text are then in range. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "models/tokenizer/hf_words.h"
#include "models/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct gguf *g)
{
    static const char text[] = " Hello, he said:\n\t42 <s>\xC3\xA9\xFF</s><|end|>";
    struct tokenizer *t;
    struct tokens ids = {0};
    struct buf out = {0};
    struct err e;
    if (tokenizer_from_gguf(&t, g, &e))
        return;
    for (int flags = 0; flags < 4; flags++)
        if (tokenizer_encode(t, text, sizeof text - 1, (struct tokenize_how){.flags = flags}, &ids, &e) == 0)
            for (size_t i = 0; i < ids.len; i++)
                ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_vocab(t));
    tokenizer_decode(t, ids.ids, ids.len, false, &out);
    buf_free(&out);
    tokens_free(&ids);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_text files[HF_FILES] = {{0}};
    const char *s = (const char *)data;
    struct buf out = {0};
    struct err e = {0};
    struct gguf *g;
    for (int i = 0; i < HF_FILES && size > 0; i++) {
        const char *end = memchr(s, 0, size);
        size_t n = end ? (size_t)(end - s) : size;
        if (n > 0)
            files[i] = (struct hf_text){s, n};
        n += end != NULL;
        s += n;
        size -= n;
    }
    if (hf_words_write(&out, files, &e)) {
        ASSERT(out.len == 0 && e.text[0]);
    } else {
        ASSERT(gguf_adopt(&g, &out, &e) == 0);
        use(g);
        gguf_close(g);
    }
    buf_free(&out);
    return 0;
}
