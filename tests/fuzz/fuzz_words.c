/* A Hugging Face folder's tokenizer: any bytes as its files, with a NUL between one and the next. What is taken must
 * make a tokenizer or be refused by it, and the ids of a text are then in range. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "models/tokenizer/hf_words.h"
#include "tests/rig/ask_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        ask_tokenizer(g);
        gguf_close(g);
    }
    buf_free(&out);
    return 0;
}
