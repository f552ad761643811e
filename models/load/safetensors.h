/* One safetensors file, which is untrusted: opening it maps the file and checks the header and every name, type, shape
 * and offset; afterwards every accessor is total. Little-endian machines. Immutable once open, any thread; everything
 * returned lives until safetensors_close. Invariant: the bytes of every tensor lie inside the file. */
#ifndef MODELS_LOAD_SAFETENSORS_H
#define MODELS_LOAD_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/dtype.h"

struct safetensors;

struct st_tensor {
    const char *name, *type_name; /* printable: "model.norm.weight", "F8_E4M3" */
    bool known;                   /* type says what it is; else it is of no use here (I64, F8_E5M2, ...) */
    enum dtype type;              /* DT_F32, DT_F16, DT_BF16 or DT_F8 */
    int n_dims;
    int64_t dims[4];     /* the last is the contiguous one; unused ones are 1 */
    int64_t count;       /* elements */
    const uint8_t *data; /* of any alignment */
    size_t bytes;
};

int safetensors_open(struct safetensors **out, const char *path, struct err *e);
/* The same over bytes in memory (fuzzing, tests); data must outlive it. */
int safetensors_open_memory(struct safetensors **out, const void *data, size_t n, struct err *e);
void safetensors_close(struct safetensors *s);                       /* NULL is fine */
const struct file_map *safetensors_map(const struct safetensors *s); /* empty when the bytes are the caller's */
/* The weights are loaded: the file stays in the page cache alone. */
void safetensors_drop_pages(const struct safetensors *s);

size_t safetensors_n(const struct safetensors *s);
const struct st_tensor *safetensors_at(const struct safetensors *s, size_t i);           /* by name, ascending */
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name); /* NULL: absent */

#endif
