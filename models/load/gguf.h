/* GGUF files, versions 2 and 3. They are untrusted: gguf_open maps the file and checks every offset, count, type,
 * string and size, and afterwards every accessor is total. Little-endian files on little-endian machines. Immutable
 * once open, any thread. Invariant: everything returned points into the map and lives until gguf_close. */
#ifndef MODELS_LOAD_GGUF_H
#define MODELS_LOAD_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "kernels/dtype.h"

struct gguf;

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_string {
    const char *data; /* not NUL-terminated */
    size_t len;
};

struct gguf_array {
    enum gguf_type type; /* of the items; never GGUF_ARRAY */
    size_t count;
    const void *data; /* items as stored (unaligned), or the first string's length field */
};

struct gguf_tensor {
    struct gguf_string name;
    enum dtype type;
    int n_dims;
    int64_t dims[4]; /* dims[0] is the contiguous one (columns); unused ones are 1 */
    const void *data;
    size_t bytes;
};

int gguf_open(struct gguf **out, const char *path, struct err *e);
/* The same over bytes in memory (fuzzing, tests); data must outlive it. */
int gguf_open_memory(struct gguf **out, const void *data, size_t n, struct err *e);
/* The same, and what bytes held is gguf's until gguf_close; after a failure it is still theirs. */
int gguf_adopt(struct gguf **out, struct buf *bytes, struct err *e);
void gguf_close(struct gguf *g);
const struct file_map *gguf_map(const struct gguf *g); /* empty when the bytes are the caller's */
void gguf_drop_pages(const struct gguf *g); /* the weights are loaded: the file stays in the page cache alone */

bool gguf_has(const struct gguf *g, const char *key);
/* Metadata. Each returns false when the key is absent or of another kind; integers convert between widths when they
 * fit. */
bool gguf_u64(const struct gguf *g, const char *key, uint64_t *out);
bool gguf_i64(const struct gguf *g, const char *key, int64_t *out);
bool gguf_f64(const struct gguf *g, const char *key, double *out);
bool gguf_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_string(const struct gguf *g, const char *key, struct gguf_string *out);
bool gguf_array(const struct gguf *g, const char *key, struct gguf_array *out);
/* Walks a string array: start with *cursor = 0 and call count times. */
struct gguf_string gguf_array_string(const struct gguf_array *a, size_t *cursor);
double gguf_array_number(const struct gguf_array *a, size_t i); /* any numeric item type */
/* By place in the file; for tests. */
size_t gguf_n_metadata(const struct gguf *g);
struct gguf_string gguf_metadata_key(const struct gguf *g, size_t i);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL: absent */

#endif
