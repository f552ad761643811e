/* Any bytes as a GGUF file, with every accessor asked, and any vocabulary that gets through as a tokenizer at
 * work. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "tests/rig/ask_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sink += ((const uint8_t *)p)[i];
}

static void ask_key(const struct gguf *g, const char *key)
{
    uint64_t u;
    int64_t i;
    double f;
    bool b;
    struct gguf_string s;
    struct gguf_array a;
    size_t cursor = 0;
    int kinds = gguf_bool(g, key, &b) + gguf_f64(g, key, &f) + gguf_string(g, key, &s) + gguf_array(g, key, &a);
    ASSERT(kinds == 1);
    gguf_u64(g, key, &u);
    gguf_i64(g, key, &i);
    if (gguf_string(g, key, &s))
        touch(s.data, s.len);
    if (!gguf_array(g, key, &a))
        return;
    for (size_t k = 0; k < a.count; k++)
        if (a.type == GGUF_STRING) {
            s = gguf_array_string(&a, &cursor);
            touch(s.data, s.len);
        } else {
            sink += gguf_array_number(&a, k) != 0;
        }
}

static void ask_tensors(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char *name = mem_strndup(t->name.data, t->name.len);
        ASSERT(gguf_tensor_find(g, name) == t);
        touch(t->data, t->bytes);
        mem_free(name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct err e;
    if (gguf_open_memory(&g, data, size, &e)) {
        ASSERT(e.text[0] && !g);
        return 0;
    }
    for (size_t i = 0; i < gguf_n_metadata(g); i++) {
        struct gguf_string s = gguf_metadata_key(g, i);
        char *key = mem_strndup(s.data, s.len);
        ask_key(g, key);
        mem_free(key);
    }
    ask_tensors(g);
    ask_tokenizer(g);
    gguf_close(g);
    return 0;
}
