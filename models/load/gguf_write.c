#include "models/load/gguf_write.h"

#include <string.h>

enum { VERSION = 3, COUNT_AT = 16, ALIGNMENT = 32 };

static void put(struct gguf_writer *w, uint64_t v, size_t bytes)
{
    buf_put(w->out, &v, bytes); /* little-endian, as gguf.h has it */
}

static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    gguf_write_item(w, key, strlen(key));
    put(w, type, 4);
    w->n_keys++;
}

void gguf_write_begin(struct gguf_writer *w, struct buf *out)
{
    *w = (struct gguf_writer){.out = out, .begun_at = out->len};
    buf_puts(out, "GGUF");
    put(w, VERSION, 4);
    put(w, 0, 8); /* tensors */
    put(w, 0, 8); /* keys, once they are known */
}

void gguf_write_string(struct gguf_writer *w, const char *key, const char *s, size_t n)
{
    put_key(w, key, GGUF_STRING);
    gguf_write_item(w, s, n);
}

void gguf_write_i32(struct gguf_writer *w, const char *key, int32_t v)
{
    put_key(w, key, GGUF_I32);
    put(w, (uint32_t)v, 4);
}

void gguf_write_bool(struct gguf_writer *w, const char *key, bool v)
{
    put_key(w, key, GGUF_BOOL);
    put(w, v, 1);
}

void gguf_write_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t count)
{
    put_key(w, key, GGUF_ARRAY);
    put(w, type, 4);
    put(w, count, 8);
}

void gguf_write_item(struct gguf_writer *w, const char *s, size_t n)
{
    put(w, n, 8);
    buf_put(w->out, s, n);
}

void gguf_write_byte(struct gguf_writer *w, uint8_t v)
{
    put(w, v, 1);
}

void gguf_write_end(struct gguf_writer *w)
{
    memcpy(w->out->data + w->begun_at + COUNT_AT, &w->n_keys, sizeof w->n_keys);
    while ((w->out->len - w->begun_at) % ALIGNMENT)
        put(w, 0, 1);
}
