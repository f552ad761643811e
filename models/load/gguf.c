#include "models/load/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

enum {
    MAX_KEY = 65535, /* bytes, the format's own limit */
    MAX_NAME = 255,  /* bytes of a tensor name */
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_ALIGNMENT = 1 << 20,
    LEAST_KEY_BYTES = 8 + 1 + 4 + 1, /* length, key, type, value: what the smallest entry takes in the file */
    LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, one dim, type, offset */
    ON_DISK_ARRAY = 9, /* GGUF's numbers of types; enum gguf_type has the same order up to its end */
    ON_DISK_TYPES = 13,
};

struct entry {
    struct gguf_string key;
    enum gguf_type type;
    const uint8_t *value;    /* scalars: the bytes as stored */
    struct gguf_string text; /* strings */
    struct gguf_array array; /* arrays */
};

struct gguf {
    struct file_map map; /* empty when the bytes are the caller's */
    char *adopted;       /* or NULL */
    const uint8_t *data;
    size_t size, data_start, alignment;
    struct entry *entries;
    struct gguf_tensor *tensors;
    uint32_t *entry_order, *tensor_order; /* indices sorted by name: look-ups stay log n for hostile names too */
    size_t n_entries, n_tensors;
};

/* ---- reading bytes ---- */

struct reader {
    const uint8_t *at, *end;
};

static size_t left(const struct reader *r)
{
    return (size_t)(r->end - r->at);
}

static bool take(struct reader *r, void *out, size_t n)
{
    if (left(r) < n)
        return false;
    memcpy(out, r->at, n);
    r->at += n;
    return true;
}

static bool take_string(struct reader *r, struct gguf_string *out)
{
    uint64_t n;
    if (!take(r, &n, 8) || n > left(r))
        return false;
    out->data = (const char *)r->at;
    out->len = (size_t)n;
    r->at += n;
    return true;
}

/* Bytes of one item; 0 for strings and arrays. */
static size_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[ON_DISK_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < ON_DISK_TYPES ? bytes[type] : 0;
}

/* A name as text for messages: short, and nothing that could forge a log line. */
struct shown {
    char text[72];
};

static struct shown show(struct gguf_string s)
{
    struct shown out;
    size_t n = s.len < 64 ? s.len : 64;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.data[i];
        out.text[i] = (char)(c >= 32 && c < 127 ? c : '?');
    }
    memcpy(out.text + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return out;
}

static int cut_short(struct err *e, const char *what, size_t i)
{
    return err_set(e, E_INPUT, "GGUF: the file ends within %s %zu; it is cut short or damaged", what, i);
}

static int check_bools(const uint8_t *p, size_t n, struct gguf_string key, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1)
            return err_set(e, E_INPUT, "GGUF: key %s: %d is no boolean", show(key).text, p[i]);
    return 0;
}

/* ---- metadata ---- */

static int read_array(struct reader *r, struct entry *en, struct err *e)
{
    uint32_t type;
    uint64_t count;
    struct shown name = show(en->key);
    const char *key = name.text;
    if (!take(r, &type, 4) || !take(r, &count, 8))
        return err_set(e, E_INPUT, "GGUF: key %s: the file ends within its array", key);
    if (type == ON_DISK_ARRAY)
        return err_set(e, E_UNSUPPORTED, "GGUF: key %s is an array of arrays, which no model file needs", key);
    if (type >= ON_DISK_TYPES)
        return err_set(e, E_INPUT, "GGUF: key %s: unknown item type %u", key, type);
    size_t least = type == GGUF_STRING ? 8 : scalar_bytes(type);
    if (count > left(r) / least)
        return err_set(e, E_INPUT, "GGUF: key %s: %llu items do not fit in the file", key, (unsigned long long)count);
    en->array = (struct gguf_array){(enum gguf_type)type, (size_t)count, r->at};
    if (type == GGUF_BOOL)
        TRY(check_bools(r->at, (size_t)count, en->key, e));
    if (type != GGUF_STRING) {
        r->at += count * least;
        return 0;
    }
    struct gguf_string s;
    for (uint64_t i = 0; i < count; i++)
        if (!take_string(r, &s))
            return err_set(e, E_INPUT, "GGUF: key %s: string %llu runs past the end of the file", key,
                           (unsigned long long)i);
    return 0;
}

static int read_value(struct reader *r, struct entry *en, struct err *e)
{
    size_t n = scalar_bytes(en->type);
    if (en->type == GGUF_ARRAY)
        return read_array(r, en, e);
    if (en->type == GGUF_STRING)
        return take_string(r, &en->text)
                   ? 0
                   : err_set(e, E_INPUT, "GGUF: key %s: its string runs past the end of the file", show(en->key).text);
    if (left(r) < n)
        return err_set(e, E_INPUT, "GGUF: key %s: the file ends within its value", show(en->key).text);
    en->value = r->at;
    r->at += n;
    return en->type == GGUF_BOOL ? check_bools(en->value, 1, en->key, e) : 0;
}

static int read_entry(struct reader *r, struct entry *en, size_t i, struct err *e)
{
    uint32_t type;
    if (!take_string(r, &en->key))
        return cut_short(e, "metadata key", i);
    if (en->key.len == 0 || en->key.len > MAX_KEY || memchr(en->key.data, 0, en->key.len))
        return err_set(e, E_INPUT, "GGUF: metadata key %zu is empty, longer than %d bytes or holds a NUL", i, MAX_KEY);
    if (!take(r, &type, 4))
        return cut_short(e, "metadata entry", i);
    if (type >= ON_DISK_TYPES)
        return err_set(e, E_INPUT, "GGUF: key %s has the unknown type %u", show(en->key).text, type);
    en->type = (enum gguf_type)type;
    return read_value(r, en, e);
}

/* ---- order and look-up ---- */

static int compare(struct gguf_string a, const char *b, size_t n)
{
    int c = memcmp(a.data, b, a.len < n ? a.len : n);
    return c ? c : (a.len > n) - (a.len < n);
}

static struct gguf_string entry_name(const void *items, size_t i)
{
    return ((const struct entry *)items)[i].key;
}

static struct gguf_string tensor_name(const void *items, size_t i)
{
    return ((const struct gguf_tensor *)items)[i].name;
}

struct names {
    struct gguf_string (*name)(const void *items, size_t i);
    const void *items;
};

static int by_name(const void *a, const void *b, void *ctx)
{
    const struct names *of = ctx;
    struct gguf_string y = of->name(of->items, *(const uint32_t *)b);
    return compare(of->name(of->items, *(const uint32_t *)a), y.data, y.len);
}

static int sort_names(uint32_t *order, size_t n, struct names of, const char *what, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, n, sizeof *order, by_name, &of);
    for (size_t i = 1; i < n; i++)
        if (by_name(order + i - 1, order + i, &of) == 0)
            return err_set(e, E_INPUT, "GGUF: two %s are called %s", what, show(of.name(of.items, order[i])).text);
    return 0;
}

/* The index of the item of that name, or n. */
static size_t find_name(const uint32_t *order, size_t n, struct names of, const char *name)
{
    size_t lo = 0, hi = n, len = strlen(name);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare(of.name(of.items, order[mid]), name, len);
        if (c == 0)
            return order[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return n;
}

static const struct entry *find_entry(const struct gguf *g, const char *key)
{
    size_t i = find_name(g->entry_order, g->n_entries, (struct names){entry_name, g->entries}, key);
    return i < g->n_entries ? g->entries + i : NULL;
}

/* ---- tensors ---- */

static const int8_t dtype_of[] = {
    [0] = DT_F32 + 1,   [1] = DT_F16 + 1,   [2] = DT_Q4_0 + 1,    [3] = DT_Q4_1 + 1,    [6] = DT_Q5_0 + 1,
    [7] = DT_Q5_1 + 1,  [8] = DT_Q8_0 + 1,  [10] = DT_Q2_K + 1,   [11] = DT_Q3_K + 1,   [12] = DT_Q4_K + 1,
    [13] = DT_Q5_K + 1, [14] = DT_Q6_K + 1, [20] = DT_IQ4_NL + 1, [23] = DT_IQ4_XS + 1, [30] = DT_BF16 + 1,
};

static const char *const foreign_types[] = {
    [4] = "Q4_2",      [5] = "Q4_3",   [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS",  [17] = "IQ2_XS",
    [18] = "IQ3_XXS",  [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S", [24] = "I8",       [25] = "I16",
    [26] = "I32",      [27] = "I64",   [28] = "F64",   [29] = "IQ1_M", [31] = "Q4_0_4_4", [32] = "Q4_0_4_8",
    [33] = "Q4_0_8_8", [34] = "TQ1_0", [35] = "TQ2_0", [39] = "MXFP4", [40] = "NVFP4",
};

static int read_type(struct gguf_tensor *t, uint32_t type, struct err *e)
{
    if (type < sizeof dtype_of / sizeof *dtype_of && dtype_of[type]) {
        t->type = (enum dtype)(dtype_of[type] - 1);
        return 0;
    }
    const char *name = type < sizeof foreign_types / sizeof *foreign_types ? foreign_types[type] : NULL;
    return err_set(e, E_UNSUPPORTED,
                   "GGUF: tensor %s has type %s (%u), which is not supported; take a file quantised to F32, F16, BF16, "
                   "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS",
                   show(t->name).text, name ? name : "unknown", type);
}

static int size_tensor(struct gguf_tensor *t, struct err *e)
{
    const struct dtype_info *info = dtype_get(t->type);
    if (t->dims[0] % info->block)
        return err_set(e, E_INPUT, "GGUF: tensor %s: %lld columns are no multiple of the %d of a %s block",
                       show(t->name).text, (long long)t->dims[0], info->block, info->name);
    size_t bytes = 0;
    bool over = __builtin_mul_overflow((size_t)(t->dims[0] / info->block), (size_t)info->bytes, &bytes);
    for (int d = 1; d < 4; d++)
        over |= __builtin_mul_overflow(bytes, (size_t)t->dims[d], &bytes);
    if (over || bytes > SIZE_MAX / 64) /* so element counts and sums of sizes cannot overflow either */
        return err_set(e, E_INPUT, "GGUF: tensor %s: its size overflows", show(t->name).text);
    t->bytes = bytes;
    return 0;
}

static int read_dims(struct reader *r, struct gguf_tensor *t, size_t i, struct err *e)
{
    uint32_t n_dims;
    if (!take(r, &n_dims, 4))
        return cut_short(e, "tensor", i);
    if (n_dims < 1 || n_dims > 4)
        return err_set(e, E_INPUT, "GGUF: tensor %s has %u dimensions; 1 to 4 are possible", show(t->name).text,
                       n_dims);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < 4; d++) {
        uint64_t dim = 1;
        if (d < t->n_dims && !take(r, &dim, 8))
            return cut_short(e, "tensor", i);
        if (dim < 1 || dim > INT64_MAX / 2)
            return err_set(e, E_INPUT, "GGUF: tensor %s: dimension %d is %llu", show(t->name).text, d,
                           (unsigned long long)dim);
        t->dims[d] = (int64_t)dim;
    }
    return 0;
}

/* Leaves the offset in *offset; it is turned into a pointer once the end of the tensor list is known. */
static int read_tensor(struct reader *r, struct gguf_tensor *t, size_t i, uint64_t *offset, struct err *e)
{
    uint32_t type;
    if (!take_string(r, &t->name))
        return cut_short(e, "the name of tensor", i);
    if (t->name.len == 0 || t->name.len > MAX_NAME || memchr(t->name.data, 0, t->name.len))
        return err_set(e, E_INPUT, "GGUF: the name of tensor %zu is empty, longer than %d bytes or holds a NUL", i,
                       MAX_NAME);
    TRY(read_dims(r, t, i, e));
    if (!take(r, &type, 4) || !take(r, offset, 8))
        return cut_short(e, "tensor", i);
    TRY(read_type(t, type, e));
    return size_tensor(t, e);
}

static int place_tensors(struct gguf *g, const uint64_t *offsets, size_t after, struct err *e)
{
    size_t pad = (g->alignment - after % g->alignment) % g->alignment;
    size_t room = g->size - after > pad ? g->size - after - pad : 0;
    g->data_start = room ? after + pad : g->size;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = g->tensors + i;
        if (offsets[i] % g->alignment)
            return err_set(e, E_INPUT, "GGUF: tensor %s starts at %llu, which is no multiple of the alignment %zu",
                           show(t->name).text, (unsigned long long)offsets[i], g->alignment);
        if (offsets[i] > room || t->bytes > room - offsets[i])
            return err_set(e, E_INPUT,
                           "GGUF: tensor %s (%zu bytes at %llu) runs past the end of the file; it is cut "
                           "short: fetch it again",
                           show(t->name).text, t->bytes, (unsigned long long)offsets[i]);
        t->data = g->data + g->data_start + offsets[i];
    }
    return 0;
}

static int by_place(const void *a, const void *b, void *ctx)
{
    const struct gguf_tensor *tensors = ctx;
    uintptr_t x = (uintptr_t)tensors[*(const uint32_t *)a].data, y = (uintptr_t)tensors[*(const uint32_t *)b].data;
    return (x > y) - (x < y);
}

static int check_overlap(struct gguf *g, struct err *e)
{
    uint32_t *order = g->tensor_order; /* sorted by name afterwards */
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, g->n_tensors, sizeof *order, by_place, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = g->tensors + order[i - 1], *b = g->tensors + order[i];
        if ((uintptr_t)b->data - (uintptr_t)a->data < a->bytes)
            return err_set(e, E_INPUT, "GGUF: tensors %s and %s overlap", show(a->name).text, show(b->name).text);
    }
    return 0;
}

/* ---- the file ---- */

static int read_header(struct reader *r, uint64_t *n_tensors, uint64_t *n_entries, struct err *e)
{
    char magic[4];
    uint32_t version;
    if (!take(r, magic, 4) || memcmp(magic, "GGUF", 4) != 0)
        return err_set(e, E_INPUT, "not a GGUF file (it does not begin with \"GGUF\")");
    if (!take(r, &version, 4))
        return err_set(e, E_INPUT, "GGUF: the file ends within its header");
    if (version && (version & 0xFFFF) == 0)
        return err_set(e, E_UNSUPPORTED,
                       "GGUF: the file is big-endian; convert it with gguf-convert-endian (package gguf)");
    if (version == 1)
        return err_set(e, E_UNSUPPORTED,
                       "GGUF version 1 is not supported; convert the model again (versions 2 and 3 are)");
    if (version != 2 && version != 3)
        return err_set(e, E_UNSUPPORTED, "GGUF version %u is not known; versions 2 and 3 are supported", version);
    if (!take(r, n_tensors, 8) || !take(r, n_entries, 8))
        return err_set(e, E_INPUT, "GGUF: the file ends within its header");
    if (*n_entries > left(r) / LEAST_KEY_BYTES || *n_entries > MAX_KEYS)
        return err_set(e, E_INPUT, "GGUF: %llu metadata keys cannot be in a file of this size",
                       (unsigned long long)*n_entries);
    if (*n_tensors > left(r) / LEAST_TENSOR_BYTES || *n_tensors > MAX_TENSORS)
        return err_set(e, E_INPUT, "GGUF: %llu tensors cannot be in a file of this size",
                       (unsigned long long)*n_tensors);
    return 0;
}

static int read_alignment(struct gguf *g, struct err *e)
{
    uint64_t a = 32;
    if (find_entry(g, "general.alignment") && !gguf_u64(g, "general.alignment", &a))
        return err_set(e, E_INPUT, "GGUF: general.alignment is no unsigned integer");
    if (a == 0 || (a & (a - 1)) || a > MAX_ALIGNMENT)
        return err_set(e, E_INPUT, "GGUF: general.alignment is %llu; a power of two up to %d is possible",
                       (unsigned long long)a, MAX_ALIGNMENT);
    g->alignment = (size_t)a;
    return 0;
}

static int read_tensors(struct gguf *g, struct reader *r, struct err *e)
{
    uint64_t *offsets = mem_try_array(g->n_tensors, sizeof *offsets);
    if (!offsets)
        return err_set(e, E_FULL, "GGUF: no memory for %zu tensors", g->n_tensors);
    int rc = 0;
    for (size_t i = 0; i < g->n_tensors && !rc; i++)
        rc = read_tensor(r, g->tensors + i, i, offsets + i, e);
    if (!rc)
        rc = place_tensors(g, offsets, (size_t)(r->at - g->data), e);
    mem_free(offsets);
    if (rc)
        return rc;
    TRY(check_overlap(g, e));
    return sort_names(g->tensor_order, g->n_tensors, (struct names){tensor_name, g->tensors}, "tensors", e);
}

static int parse(struct gguf *g, struct err *e)
{
    struct reader r = {g->data, g->data + g->size};
    uint64_t n_tensors = 0, n_entries = 0;
    TRY(read_header(&r, &n_tensors, &n_entries, e));
    g->entries = mem_try_array((size_t)n_entries, sizeof *g->entries);
    g->entry_order = mem_try_array((size_t)n_entries, sizeof *g->entry_order);
    g->tensors = mem_try_array((size_t)n_tensors, sizeof *g->tensors);
    g->tensor_order = mem_try_array((size_t)n_tensors, sizeof *g->tensor_order);
    if (!g->entries || !g->entry_order || !g->tensors || !g->tensor_order)
        return err_set(e, E_FULL, "GGUF: no memory for its tables");
    for (size_t i = 0; i < n_entries; i++)
        TRY(read_entry(&r, g->entries + i, i, e));
    g->n_entries = (size_t)n_entries;
    g->n_tensors = (size_t)n_tensors;
    TRY(sort_names(g->entry_order, g->n_entries, (struct names){entry_name, g->entries}, "metadata keys", e));
    TRY(read_alignment(g, e));
    return read_tensors(g, &r, e);
}

int gguf_open_memory(struct gguf **out, const void *data, size_t n, struct err *e)
{
    static const uint8_t nothing[1];
    *out = NULL;
    struct gguf *g = mem_new(sizeof *g);
    g->data = data ? data : nothing;
    g->size = data ? n : 0;
    int rc = parse(g, e);
    if (rc)
        gguf_close(g);
    else
        *out = g;
    return rc;
}

int gguf_adopt(struct gguf **out, struct buf *bytes, struct err *e)
{
    TRY(gguf_open_memory(out, bytes->data, bytes->len, e));
    (*out)->adopted = buf_take(bytes);
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    *out = NULL;
    struct file_map map;
    TRY(file_map_open(&map, path, e));
    int rc = gguf_open_memory(out, map.data, map.size, e);
    if (rc) {
        file_map_close(&map);
        return err_prefix(e, rc, "%s", path);
    }
    (*out)->map = map;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    file_map_close(&g->map);
    mem_free(g->adopted);
    mem_free(g->entries);
    mem_free(g->entry_order);
    mem_free(g->tensors);
    mem_free(g->tensor_order);
    mem_free(g);
}

const struct file_map *gguf_map(const struct gguf *g)
{
    return &g->map;
}

void gguf_drop_pages(const struct gguf *g)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)g->data + g->data_start + page - 1) & ~(page - 1), to = (uintptr_t)g->data + g->size;
    if (!g->map.data || from >= to)
        return;
    madvise((void *)from, to - from, MADV_DONTNEED); /* a read-only file map: a later touch reads the file again */
}

/* ---- accessors ---- */

struct number {
    enum { NONE, NEGATIVE, NATURAL, REAL } kind;
    int64_t i;
    uint64_t u;
    double f;
};

static struct number integer(int64_t v)
{
    return (struct number){v < 0 ? NEGATIVE : NATURAL, v, (uint64_t)v, (double)v};
}

static struct number real(double v)
{
    return (struct number){REAL, 0, 0, v};
}

/* The value as it stands in the file (unaligned). Booleans, strings and arrays are no numbers. */
static struct number number_at(enum gguf_type type, const void *p)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f;
        double d;
    } v;
    memcpy(&v, p, scalar_bytes(type));
    switch (type) {
    case GGUF_U8:
        return integer(v.u8);
    case GGUF_I8:
        return integer(v.i8);
    case GGUF_U16:
        return integer(v.u16);
    case GGUF_I16:
        return integer(v.i16);
    case GGUF_U32:
        return integer(v.u32);
    case GGUF_I32:
        return integer(v.i32);
    case GGUF_I64:
        return integer(v.i64);
    case GGUF_U64:
        return (struct number){NATURAL, (int64_t)v.u64, v.u64, (double)v.u64};
    case GGUF_F32:
        return real((double)v.f);
    case GGUF_F64:
        return real(v.d);
    default:
        return (struct number){.kind = NONE};
    }
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_entry(g, key) != NULL;
}

static struct number find_number(const struct gguf *g, const char *key)
{
    const struct entry *en = find_entry(g, key);
    if (!en || !en->value)
        return (struct number){.kind = NONE};
    return number_at(en->type, en->value);
}

bool gguf_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    struct number v = find_number(g, key);
    if (v.kind == NATURAL)
        *out = v.u;
    return v.kind == NATURAL;
}

bool gguf_i64(const struct gguf *g, const char *key, int64_t *out)
{
    struct number v = find_number(g, key);
    bool fits = v.kind == NEGATIVE || (v.kind == NATURAL && v.u <= INT64_MAX);
    if (fits)
        *out = v.i;
    return fits;
}

bool gguf_f64(const struct gguf *g, const char *key, double *out)
{
    struct number v = find_number(g, key);
    if (v.kind != NONE)
        *out = v.f;
    return v.kind != NONE;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct entry *en = find_entry(g, key);
    if (!en || en->type != GGUF_BOOL)
        return false;
    *out = *en->value;
    return true;
}

bool gguf_string(const struct gguf *g, const char *key, struct gguf_string *out)
{
    const struct entry *en = find_entry(g, key);
    if (!en || en->type != GGUF_STRING)
        return false;
    *out = en->text;
    return true;
}

bool gguf_array(const struct gguf *g, const char *key, struct gguf_array *out)
{
    const struct entry *en = find_entry(g, key);
    if (!en || en->type != GGUF_ARRAY)
        return false;
    *out = en->array;
    return true;
}

struct gguf_string gguf_array_string(const struct gguf_array *a, size_t *cursor)
{
    uint64_t n;
    const char *p = (const char *)a->data + *cursor;
    memcpy(&n, p, 8);
    *cursor += 8 + (size_t)n;
    return (struct gguf_string){p + 8, (size_t)n};
}

double gguf_array_number(const struct gguf_array *a, size_t i)
{
    size_t bytes = scalar_bytes(a->type);
    if (i >= a->count || !bytes)
        return 0;
    return number_at(a->type, (const uint8_t *)a->data + i * bytes).f;
}

size_t gguf_n_metadata(const struct gguf *g)
{
    return g->n_entries;
}

struct gguf_string gguf_metadata_key(const struct gguf *g, size_t i)
{
    return i < g->n_entries ? g->entries[i].key : (struct gguf_string){"", 0};
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? g->tensors + i : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    size_t i = find_name(g->tensor_order, g->n_tensors, (struct names){tensor_name, g->tensors}, name);
    return i < g->n_tensors ? g->tensors + i : NULL;
}
