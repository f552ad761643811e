/* Writes small GGUF files into memory for tests and fuzz targets. Every number can be given, so the files may be
 * malformed on purpose; nothing is checked here. Owned by the test, one thread. */
#ifndef RIG_GGUF_BUILD_H
#define RIG_GGUF_BUILD_H

#include <stdint.h>
#include <string.h>

#include "engine/base/buf.h"
#include "models/load/gguf.h"

struct gguf_build {
    struct buf keys, tensors;
    uint64_t n_keys, n_tensors;
};

static inline void build_put(struct buf *b, uint64_t v, size_t bytes)
{
    buf_put(b, &v, bytes);
}

static inline void build_text(struct buf *b, const char *s, size_t n)
{
    build_put(b, n, 8);
    buf_put(b, s, n);
}

static inline void build_key(struct gguf_build *g, const char *key, uint32_t type)
{
    build_text(&g->keys, key, strlen(key));
    build_put(&g->keys, type, 4);
    g->n_keys++;
}

static inline void build_u32(struct gguf_build *g, const char *key, uint32_t v)
{
    build_key(g, key, GGUF_U32);
    build_put(&g->keys, v, 4);
}

static inline void build_bool(struct gguf_build *g, const char *key, uint8_t v)
{
    build_key(g, key, GGUF_BOOL);
    build_put(&g->keys, v, 1);
}

static inline void build_string(struct gguf_build *g, const char *key, const char *s)
{
    build_key(g, key, GGUF_STRING);
    build_text(&g->keys, s, strlen(s));
}

/* The head of an array; the items follow by build_put or build_text on g->keys. */
static inline void build_array(struct gguf_build *g, const char *key, uint32_t type, uint64_t count)
{
    build_key(g, key, GGUF_ARRAY);
    build_put(&g->keys, type, 4);
    build_put(&g->keys, count, 8);
}

static inline void build_tensor(struct gguf_build *g, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                                uint64_t offset)
{
    build_text(&g->tensors, name, strlen(name));
    build_put(&g->tensors, 2, 4);
    build_put(&g->tensors, cols, 8);
    build_put(&g->tensors, rows, 8);
    build_put(&g->tensors, type, 4);
    build_put(&g->tensors, offset, 8);
    g->n_tensors++;
}

/* The whole file: header, keys, tensors, padding to 32, data_bytes of zeros. Frees what g holds. */
static inline void build_finish(struct gguf_build *g, uint32_t version, size_t data_bytes, struct buf *out)
{
    buf_put(out, "GGUF", 4);
    build_put(out, version, 4);
    build_put(out, g->n_tensors, 8);
    build_put(out, g->n_keys, 8);
    buf_put(out, g->keys.data, g->keys.len);
    buf_put(out, g->tensors.data, g->tensors.len);
    while (g->n_tensors && out->len % 32)
        buf_putc(out, 0);
    for (size_t i = 0; i < data_bytes; i++)
        buf_putc(out, 0);
    buf_free(&g->keys);
    buf_free(&g->tensors);
    memset(g, 0, sizeof *g);
}

#endif
