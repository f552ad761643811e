/* A Hugging Face checkpoint made in memory: a tiny Llama whose matrices are fp8 in one of the three forms. Tests only.
 */
#ifndef RIG_SAFETENSORS_BUILD_H
#define RIG_SAFETENSORS_BUILD_H

#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "kernels/dtype.h"

struct st_build {
    struct buf header, body, file;
};

static inline void st_free(struct st_build *b)
{
    buf_free(&b->header);
    buf_free(&b->body);
    buf_free(&b->file);
}

/* shape as JSON: "[3,4]". bytes of data; NULL: so many bytes that count up without NaN codes. */
static inline void st_add(struct st_build *b, const char *name, const char *type, const char *shape, const void *data,
                          size_t bytes)
{
    char text[512];
    snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
             b->header.len ? "," : "{", name, type, shape, b->body.len, b->body.len + bytes);
    buf_puts(&b->header, text);
    for (size_t i = 0; i < bytes; i++) {
        char c = data ? ((const char *)data)[i] : (char)(i * 7 % 0x7f);
        buf_put(&b->body, &c, 1);
    }
}

/* The file's bytes, once: they belong to b. */
static inline const struct buf *st_file(struct st_build *b)
{
    uint64_t n;
    buf_puts(&b->header, "}");
    while (b->header.len % 8)
        buf_puts(&b->header, " ");
    n = b->header.len;
    buf_put(&b->file, &n, 8);
    buf_put(&b->file, b->header.data, b->header.len);
    buf_put(&b->file, b->body.data, b->body.len);
    return &b->file;
}

#endif
