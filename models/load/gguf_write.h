/* Writes the metadata of a GGUF file (version 3, keys only, no tensors) into memory. Owned by the caller, one thread.
 * It checks nothing; gguf_open_memory does that. */
#ifndef MODELS_LOAD_GGUF_WRITE_H
#define MODELS_LOAD_GGUF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "models/load/gguf.h"

struct gguf_writer {
    struct buf *out;
    size_t begun_at; /* in out */
    uint64_t n_keys;
};

void gguf_write_begin(struct gguf_writer *w, struct buf *out);
void gguf_write_string(struct gguf_writer *w, const char *key, const char *s, size_t n);
void gguf_write_i32(struct gguf_writer *w, const char *key, int32_t v);
void gguf_write_bool(struct gguf_writer *w, const char *key, bool v);
/* The head of an array; exactly `count` items follow, strings by gguf_write_item, bytes (GGUF_U8) by gguf_write_byte.
 */
void gguf_write_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t count);
void gguf_write_item(struct gguf_writer *w, const char *s, size_t n);
void gguf_write_byte(struct gguf_writer *w, uint8_t v);
void gguf_write_end(struct gguf_writer *w);

#endif
