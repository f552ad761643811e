#include "models/load/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

enum { MAX_NAME = 255, MAX_TENSORS = 1 << 20, MAX_HEADER = 64 << 20, LENGTH_BYTES = 8 };
static const int64_t most_elements = (int64_t)1 << 46;

struct safetensors {
    struct file_map map; /* empty when the bytes are the caller's */
    const uint8_t *data, *body;
    size_t size, body_bytes;
    struct json *header; /* names and type names live here */
    struct st_tensor *tensors;
    size_t n;
};

static const struct {
    const char *name;
    int bytes;
    bool known;
    enum dtype type;
} types[] = {
    {"F32", 4, true, DT_F32},     {"F16", 2, true, DT_F16},     {"BF16", 2, true, DT_BF16}, {"F8_E4M3", 1, true, DT_F8},
    {"F8_E5M2", 1, false, DT_F8}, {"F8_E8M0", 1, false, DT_F8}, {"F64", 8, false, DT_F32},  {"I64", 8, false, DT_F32},
    {"I32", 4, false, DT_F32},    {"I16", 2, false, DT_F32},    {"I8", 1, false, DT_F32},   {"U64", 8, false, DT_F32},
    {"U32", 4, false, DT_F32},    {"U16", 2, false, DT_F32},    {"U8", 1, false, DT_F32},   {"BOOL", 1, false, DT_F32},
};

/* Short, and nothing that could forge a log line. */
static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 32 || s[i] > 126)
            return false;
    return n >= 1 && n <= MAX_NAME;
}

static int read_type(struct st_tensor *t, const struct json *o, int *element_bytes, struct err *e)
{
    const char *name = json_text(json_find(o, "dtype"));
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            t->type_name = types[i].name;
            t->known = types[i].known;
            t->type = types[i].type;
            *element_bytes = types[i].bytes;
            return 0;
        }
    return err_set(e, E_UNSUPPORTED, "safetensors: tensor %s has no element type that is known here", t->name);
}

static int read_shape(struct st_tensor *t, const struct json *o, struct err *e)
{
    const struct json *shape = json_find(o, "shape");
    size_t n = json_count(shape);
    if (json_type(shape) != JSON_ARRAY || n > 4)
        return err_set(e, E_UNSUPPORTED, "safetensors: tensor %s has no shape of up to 4 dimensions", t->name);
    t->n_dims = (int)n;
    t->count = 1;
    for (int i = 0; i < 4; i++)
        t->dims[i] = 1;
    int at = 0;
    for (const struct json *d = json_first(shape); d; d = json_next(d), at++) {
        int64_t v;
        if (!json_i64(d, &v) || v < 0 || v > most_elements || (v && t->count > most_elements / v))
            return err_set(e, E_INPUT, "safetensors: tensor %s has an impossible shape", t->name);
        t->dims[at] = v;
        t->count *= v;
    }
    return 0;
}

static int read_offsets(const struct safetensors *s, struct st_tensor *t, const struct json *o, int element_bytes,
                        struct err *e)
{
    const struct json *a = json_find(o, "data_offsets"), *first = json_first(a);
    int64_t begin, end, body = (int64_t)s->body_bytes;
    if (json_type(a) != JSON_ARRAY || json_count(a) != 2 || !json_i64(first, &begin) ||
        !json_i64(json_next(first), &end))
        return err_set(e, E_INPUT, "safetensors: tensor %s has no two data_offsets", t->name);
    if (begin < 0 || end < begin || end > body)
        return err_set(e, E_INPUT, "safetensors: tensor %s ends at byte %lld of %lld: the file is cut off or damaged",
                       t->name, (long long)end, (long long)body);
    if (end - begin != t->count * element_bytes)
        return err_set(e, E_INPUT, "safetensors: tensor %s has %lld bytes where its shape makes %lld", t->name,
                       (long long)(end - begin), (long long)(t->count * element_bytes));
    t->data = s->body + begin;
    t->bytes = (size_t)(end - begin);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int read_tensors(struct safetensors *s, struct err *e)
{
    size_t n = json_count(s->header);
    if (json_type(s->header) != JSON_OBJECT || n > MAX_TENSORS)
        return err_set(e, E_INPUT, "safetensors: the header is no object of up to %d tensors", MAX_TENSORS);
    s->tensors = mem_try_array(n + 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(e, E_FULL, "no memory for a list of %zu tensors", n);
    for (const struct json *o = json_first(s->header); o; o = json_next(o)) {
        struct st_tensor *t = &s->tensors[s->n];
        int element_bytes = 0;
        t->name = json_key(o);
        if (strcmp(t->name, "__metadata__") == 0)
            continue;
        if (!name_ok(t->name))
            return err_set(e, E_INPUT,
                           "safetensors: the name of tensor %zu is empty, longer than %d bytes or not printable", s->n,
                           MAX_NAME);
        TRY(read_type(t, o, &element_bytes, e));
        TRY(read_shape(t, o, e));
        TRY(read_offsets(s, t, o, element_bytes, e));
        s->n++;
    }
    qsort(s->tensors, s->n, sizeof *s->tensors, by_name); /* json.h keeps the last of two equal names */
    return 0;
}

static int read_header(struct safetensors *s, struct err *e)
{
    uint64_t n = 0;
    if (s->size >= LENGTH_BYTES)
        memcpy(&n, s->data, LENGTH_BYTES);
    if (s->size < LENGTH_BYTES || n < 2 || n > s->size - LENGTH_BYTES || s->data[LENGTH_BYTES] != '{')
        return err_set(e, E_INPUT, "this is no safetensors file, or it is cut off");
    if (n > MAX_HEADER)
        return err_set(e, E_INPUT, "safetensors: a header of %llu bytes; %d are possible", (unsigned long long)n,
                       MAX_HEADER);
    struct json_limits limits = {.bytes = (size_t)n, .depth = 8, .nodes = 16u << 20};
    s->body = s->data + LENGTH_BYTES + n;
    s->body_bytes = s->size - LENGTH_BYTES - (size_t)n;
    s->header = json_parse((const char *)s->data + LENGTH_BYTES, (size_t)n, &limits, e);
    return s->header ? read_tensors(s, e) : err_prefix(e, E_INPUT, "safetensors header");
}

static int open_bytes(struct safetensors **out, struct safetensors *s, struct err *e)
{
    int rc = read_header(s, e);
    if (rc) {
        safetensors_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

int safetensors_open(struct safetensors **out, const char *path, struct err *e)
{
    struct safetensors *s = mem_new(sizeof *s);
    *out = NULL;
    int rc = file_map_open(&s->map, path, e);
    if (rc) {
        mem_free(s);
        return rc;
    }
    s->data = s->map.data;
    s->size = s->map.size;
    rc = open_bytes(out, s, e);
    return rc ? err_prefix(e, rc, "%s", path) : 0;
}

int safetensors_open_memory(struct safetensors **out, const void *data, size_t n, struct err *e)
{
    struct safetensors *s = mem_new(sizeof *s);
    *out = NULL;
    s->data = data;
    s->size = n;
    return open_bytes(out, s, e);
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    json_free(s->header);
    file_map_close(&s->map);
    mem_free(s->tensors);
    mem_free(s);
}

const struct file_map *safetensors_map(const struct safetensors *s)
{
    return &s->map;
}

void safetensors_drop_pages(const struct safetensors *s)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)s->body + page - 1) & ~(page - 1),
              to = (uintptr_t)s->data + s->size;
    if (s->map.data && from < to)
        madvise((void *)from, to - from, MADV_DONTNEED); /* a read-only file map: a later touch reads the file again */
}

size_t safetensors_n(const struct safetensors *s)
{
    return s->n;
}

const struct st_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct st_tensor key = {.name = name};
    return s->n ? bsearch(&key, s->tensors, s->n, sizeof key, by_name) : NULL;
}
