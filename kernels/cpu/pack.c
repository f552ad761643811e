#include "kernels/cpu/pack.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cpu/inline.h"

enum { WORDS = BLOCK_COLS / 4 };

/* One block of 32 columns of one row, taken apart: the weights as stored, their scales as bits. */
struct row_block {
    uint32_t q[WORDS];     /* four weights a word, the first one lowest: unsigned, or the int8 of 8-bit types */
    uint16_t d, m;         /* f16 */
    uint8_t scale[2], min; /* K types; 6 bits: two int8 */
};

static const enum family families[DT_COUNT] = {
    [DT_F32] = FAM_F32,  [DT_F16] = FAM_F16, [DT_BF16] = FAM_BF16, [DT_Q4_0] = FAM_U4,
    [DT_Q4_1] = FAM_U4M, [DT_Q5_0] = FAM_U5, [DT_Q5_1] = FAM_U5M,  [DT_Q8_0] = FAM_S8,
    [DT_Q4_K] = FAM_K4,  [DT_Q5_K] = FAM_K5, [DT_Q6_K] = FAM_K6,   [DT_F8_SCALED] = FAM_F8,
};

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t word_at(const uint8_t *p, int i)
{
    uint32_t v;
    memcpy(&v, p + 4 * i, 4);
    return v;
}

/* The lower or the upper four bits of each of its bytes. */
static uint32_t low_nibbles(uint32_t v)
{
    return v & 0x0f0f0f0f;
}

static uint32_t high_nibbles(uint32_t v)
{
    return v >> 4 & 0x0f0f0f0f;
}

/* Bits 0..3 of v, each as the fifth bit of a byte. */
static uint32_t fifth_bits(uint32_t v)
{
    return ((v & 1) | (v & 2) << 7 | (v & 4) << 14 | (v & 8) << 21) << 4;
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: d, perhaps m, perhaps fifth bits, weights. */
INLINE void read_simple(enum dtype t, const uint8_t *p, struct row_block *b)
{
    bool with_min = t == DT_Q4_1 || t == DT_Q5_1, five = t == DT_Q5_0 || t == DT_Q5_1;
    b->d = u16_at(p);
    p += 2;
    if (with_min) {
        b->m = u16_at(p);
        p += 2;
    }
    if (t == DT_Q8_0) {
        memcpy(b->q, p, BLOCK_COLS);
        return;
    }
    uint32_t fifth = five ? word_at(p, 0) : 0;
    p += five ? 4 : 0;
    for (int i = 0; i < WORDS / 2; i++) {
        b->q[i] = low_nibbles(word_at(p, i)) | fifth_bits(fifth >> 4 * i);
        b->q[i + WORDS / 2] = high_nibbles(word_at(p, i)) | fifth_bits(fifth >> (16 + 4 * i));
    }
}

/* Sub-block j of Q4_K or Q5_K; dtype.c describes the bytes. */
INLINE void read_k45(enum dtype t, const uint8_t *p, int j, struct row_block *b)
{
    const uint8_t *s = p + 4, *q = p + (t == DT_Q4_K ? 16 : 48) + (j / 2) * 32;
    b->d = u16_at(p);
    b->m = u16_at(p + 2);
    b->scale[0] = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    b->min = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4);
    for (int i = 0; i < WORDS; i++) {
        b->q[i] = j % 2 ? high_nibbles(word_at(q, i)) : low_nibbles(word_at(q, i));
        if (t == DT_Q5_K)
            b->q[i] |= (word_at(p + 16, i) >> j & 0x01010101) << 4;
    }
}

INLINE void read_k6(const uint8_t *p, int j, struct row_block *b)
{
    const uint8_t *low = p + (j / 4) * 64 + (j % 2) * 32, *high = p + 128 + (j / 4) * 32;
    int r = j % 4;
    b->d = u16_at(p + 208);
    b->scale[0] = p[192 + 2 * j];
    b->scale[1] = p[192 + 2 * j + 1];
    for (int i = 0; i < WORDS; i++) {
        uint32_t l = word_at(low, i);
        b->q[i] = (r < 2 ? low_nibbles(l) : high_nibbles(l)) | (word_at(high, i) >> 2 * r & 0x03030303) << 4;
    }
}

INLINE void read_block(enum dtype t, size_t bytes, const uint8_t *row, int b, struct row_block *out)
{
    if (!family_is_k(families[t])) {
        read_simple(t, row + (size_t)b * bytes, out);
        return;
    }
    const uint8_t *super = row + (size_t)(b / SUPER_BLOCKS) * bytes;
    if (t == DT_Q6_K)
        read_k6(super, b % SUPER_BLOCKS, out);
    else
        read_k45(t, super, b % SUPER_BLOCKS, out);
}

static void put_u16(uint8_t *p, int i, uint16_t v)
{
    memcpy(p + 2 * i, &v, 2);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* The weights of lane `row` into a packed block. A word is four columns: chunks hold the lanes' words side by side. */
INLINE void put_weights(int bits, uint8_t *block, int row, const uint32_t q[WORDS])
{
    uint8_t *w = block + 4 * row, *upper = w + 256;
    uint32_t fifth = 0, two[2] = {0};
    if (bits == 8) {
        for (int c = 0; c < WORDS; c++)
            put_u32(w + 64 * c, q[c]);
        return;
    }
    for (int c = 0; c < WORDS / 2; c++)
        put_u32(w + 64 * c, low_nibbles(q[c]) | low_nibbles(q[c + WORDS / 2]) << 4);
    for (int c = 0; c < WORDS; c++) {
        fifth |= (q[c] >> 4 & 0x01010101) << c;
        two[c / 4] |= (q[c] >> 4 & 0x03030303) << 2 * (c % 4);
    }
    if (bits == 5)
        put_u32(upper, fifth);
    if (bits == 6) {
        put_u32(upper, two[0]);
        put_u32(upper + 64, two[1]);
    }
}

static int get_weight(int bits, const uint8_t *w, int row, int i)
{
    int c = i / 4, j = row * 4 + i % 4;
    if (bits == 8)
        return (int8_t)w[64 * c + j];
    int q = w[64 * (c % 4) + j] >> (c < 4 ? 0 : 4) & 15;
    if (bits == 5)
        q |= (w[256 + j] >> c & 1) << 4;
    if (bits == 6)
        q |= (w[256 + 64 * (c / 4) + j] >> 2 * (c % 4) & 3) << 4;
    return q;
}

INLINE void put_block(enum family f, uint8_t *block, uint8_t *head, int row, const struct row_block *b)
{
    put_weights(family_bits(f), block, row, b->q);
    uint8_t *scales = block + family_weight_bytes(f);
    if (!family_is_k(f)) {
        put_u16(scales, row, b->d);
        if (family_has_min(f))
            put_u16(scales + 32, row, b->m);
        return;
    }
    put_u16(head, row, b->d);
    scales[row] = b->scale[0];
    scales[16 + row] = f == FAM_K6 ? b->scale[1] : b->min;
    if (f != FAM_K6)
        put_u16(head + 32, row, b->m);
}

/* A leaf of one row of scaled fp8. */
static void pack_f8(uint8_t *group, int lane, int leaf, const uint8_t *row)
{
    const uint8_t *src = row + (size_t)leaf * (4 + LEAF_COLS);
    uint8_t *to = (uint8_t *)family_leaf(FAM_F8, group, leaf);
    memcpy(to + 4 * lane, src, 4);
    to += family_leaf_head(FAM_F8);
    for (int c = 0; c < LEAF_COLS; c++)
        to[c * GROUP_ROWS + lane] = src[4 + c];
}

/* A row's elements, each GROUP_ROWS behind the one before. */
static void spread_words(uint8_t *to, const uint8_t *src, int n)
{
    for (int c = 0; c < n; c++)
        memcpy(to + (size_t)c * GROUP_ROWS * 4, src + (size_t)c * 4, 4);
}

static void spread_halves(uint8_t *to, const uint8_t *src, int n)
{
    for (int c = 0; c < n; c++)
        memcpy(to + (size_t)c * GROUP_ROWS * 2, src + (size_t)c * 2, 2);
}

static void pack_floats(const struct weight *w, uint8_t *group, int lane, int col, const uint8_t *row)
{
    size_t size = (size_t)family_element_bytes(w->family);
    uint8_t *to = group + ((size_t)col * GROUP_ROWS + (size_t)lane) * size;
    int n = w->cols - col < LEAF_COLS ? w->cols - col : LEAF_COLS;
    if (w->family == FAM_F32)
        spread_words(to, row + (size_t)col * size, n);
    else
        spread_halves(to, row + (size_t)col * size, n);
}

/* A few columns of all rows of a group at a time: what is written stays in the L1 cache until it is whole. */
static void pack_float_group(const struct weight *w, uint8_t *group, int lanes, const uint8_t *src, size_t row_bytes)
{
    for (int col = 0; col < w->cols; col += LEAF_COLS)
        for (int lane = 0; lane < lanes; lane++) {
            const uint8_t *row = src + (size_t)lane * row_bytes;
            if (w->family == FAM_F8)
                pack_f8(group, lane, col / LEAF_COLS, row);
            else
                pack_floats(w, group, lane, col, row);
        }
}

/* Inlined for each type, so that nothing is asked about it in the loops. */
INLINE void pack_group_of(enum dtype t, uint8_t *group, int lanes, int blocks, const uint8_t *src, size_t row_bytes)
{
    const enum family f = families[t];
    size_t bytes = (size_t)dtype_get(t)->bytes;
    for (int b = 0; b < blocks; b++) {
        const uint8_t *head;
        uint8_t *block = (uint8_t *)family_block(f, group, b, &head);
        for (int lane = 0; lane < lanes; lane++) {
            struct row_block rb = {0};
            read_block(t, bytes, src + (size_t)lane * row_bytes, b, &rb);
            put_block(f, block, (uint8_t *)head, lane, &rb);
        }
    }
}

static void pack_group(const struct weight *w, int g, const uint8_t *src, size_t row_bytes)
{
    uint8_t *group = w->data + (size_t)g * w->group_bytes;
    int left = w->rows - g * GROUP_ROWS, lanes = left < GROUP_ROWS ? left : GROUP_ROWS, n = w->cols / BLOCK_COLS;
#define OF(t)                                                                                                          \
    case t:                                                                                                            \
        pack_group_of(t, group, lanes, n, src, row_bytes);                                                             \
        break
    switch (w->type) {
        OF(DT_Q4_0);
        OF(DT_Q4_1);
        OF(DT_Q5_0);
        OF(DT_Q5_1);
        OF(DT_Q8_0);
        OF(DT_Q4_K);
        OF(DT_Q5_K);
        OF(DT_Q6_K);
    default:
        pack_float_group(w, group, lanes, src, row_bytes);
    }
#undef OF
}

static size_t group_bytes(enum family f, int cols)
{
    size_t n;
    if (family_is_float(f))
        n = (size_t)cols * GROUP_ROWS * (size_t)family_element_bytes(f) +
            (size_t)(cols / LEAF_COLS) * family_leaf_head(f);
    else
        n = (size_t)(cols / BLOCK_COLS) * (size_t)family_block_bytes(f) +
            (size_t)((cols + 255) / 256) * (size_t)family_head_bytes(f);
    return (n + 63) & ~(size_t)63;
}

static int groups_of(int rows)
{
    return (rows - 1) / GROUP_ROWS + 1;
}

size_t pack_bytes(enum dtype t, int rows, int cols)
{
    return (size_t)groups_of(rows) * group_bytes(families[t], cols);
}

static struct weight describe(enum dtype t, int rows, int cols)
{
    return (struct weight){.type = t,
                           .family = families[t],
                           .rows = rows,
                           .cols = cols,
                           .groups = groups_of(rows),
                           .group_bytes = group_bytes(families[t], cols)};
}

int pack_weight(struct weight **out, const struct weight_src *src, struct err *e)
{
    *out = NULL;
    const struct dtype_info *info = dtype_get(src->type);
    int block = info->block;
    if (src->type == DT_F8)
        return err_set(e, E_UNSUPPORTED, "a matrix of fp8 needs its scales: %s", dtype_get(DT_F8_SCALED)->name);
    if (src->rows <= 0 || src->cols <= 0 || src->cols > 1 << 22)
        return err_set(e, E_UNSUPPORTED, "a matrix of %d x %d cannot be multiplied with", src->rows, src->cols);
    if (src->cols % block)
        return err_set(e, E_UNSUPPORTED, "%d columns are not a multiple of %d, the block of type %s", src->cols, block,
                       info->name);
    struct weight *w = mem_try(sizeof *w);
    if (!w)
        return err_set(e, E_FULL, "no memory for a matrix of %d x %d", src->rows, src->cols);
    *w = describe(src->type, src->rows, src->cols);
    w->data = mem_try_aligned(pack_bytes(src->type, src->rows, src->cols) + PACK_TAIL, 64);
    if (!w->data) {
        mem_free(w);
        return err_set(e, E_FULL, "no memory for a matrix of %d x %d (%s)", src->rows, src->cols, info->name);
    }
    size_t row_bytes = dtype_row_bytes(src->type, src->cols);
    for (int g = 0; g < w->groups; g++)
        pack_group(w, g, (const uint8_t *)src->data + (size_t)g * GROUP_ROWS * row_bytes, row_bytes);
    *out = w;
    return 0;
}

void pack_free(struct weight *w)
{
    if (!w)
        return;
    if (!w->borrows)
        mem_free(w->data);
    mem_free(w);
}

struct weight *pack_alias(enum dtype t, int rows, int cols, void *room)
{
    struct weight *w = mem_try(sizeof *w);
    if (!w)
        return NULL;
    *w = describe(t, rows, cols);
    w->data = room;
    w->borrows = true;
    return w;
}

/* How far from the start of a group the columns from `col` on are, or with `end` where the columns before it end. */
static size_t column_at(enum family f, int col, bool end)
{
    if (family_is_float(f))
        return (size_t)col * GROUP_ROWS * (size_t)family_element_bytes(f) +
               (size_t)(col / LEAF_COLS) * family_leaf_head(f);
    size_t block = (size_t)family_block_bytes(f);
    if (!family_is_k(f))
        return (size_t)(col / BLOCK_COLS) * block;
    int cols = BLOCK_COLS * SUPER_BLOCKS, super = (end ? col + cols - 1 : col) / cols;
    return (size_t)super * ((size_t)family_head_bytes(f) + SUPER_BLOCKS * block);
}

struct weight_runs pack_window(const struct wview *v)
{
    const struct weight *w = v->w;
    int group = v->row0 / GROUP_ROWS, end = v->rows ? groups_of(v->row0 + v->rows) : group;
    ASSERT(v->row0 % GROUP_ROWS == 0 && v->row0 + v->rows <= w->rows && v->col0 % LEAF_COLS == 0);
    ASSERT(v->col0 + v->cols <= w->cols);
    size_t at = column_at(w->family, v->col0, false);
    return (struct weight_runs){.at = (size_t)group * w->group_bytes + at,
                                .bytes = column_at(w->family, v->col0 + v->cols, true) - at,
                                .pitch = w->group_bytes,
                                .runs = end - group};
}

static float float_at(enum family f, const uint8_t *p)
{
    float x;
    uint16_t h;
    if (f == FAM_F32) {
        memcpy(&x, p, 4);
        return x;
    }
    if (f == FAM_F8)
        return f8_to_f32(*p);
    memcpy(&h, p, 2);
    return f == FAM_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static float f16_lane(const uint8_t *p, int lane)
{
    uint16_t h;
    memcpy(&h, p + 2 * lane, 2);
    return f16_to_f32(h);
}

/* Widens block b of one lane; the operations are those of dtype_to_f32. */
static void block_to_f32(enum family f, const uint8_t *group, int lane, int b, float *y)
{
    const uint8_t *head, *w = family_block(f, group, b, &head), *scales = w + family_weight_bytes(f);
    int bits = family_bits(f), zero = f == FAM_U4 ? 8 : f == FAM_U5 ? 16 : f == FAM_K6 ? 32 : 0;
    float d = f16_lane(family_is_k(f) ? head : scales, lane), m = 0;
    float part[2] = {d, d};
    if (f == FAM_K6) {
        part[0] = d * (float)(int8_t)scales[lane];
        part[1] = d * (float)(int8_t)scales[16 + lane];
    } else if (family_is_k(f)) {
        part[0] = part[1] = d * (float)scales[lane];
        m = -(f16_lane(head + 32, lane) * (float)scales[16 + lane]);
    } else if (family_has_min(f)) {
        m = f16_lane(scales + 32, lane);
    }
    for (int i = 0; i < BLOCK_COLS; i++) {
        float x = part[i / 16] * (float)(get_weight(bits, w, lane, i) - zero);
        y[i] = family_has_min(f) ? x + m : x;
    }
}

void pack_row_to_f32(const struct weight *w, int row, int col0, int cols, float *dst)
{
    ASSERT(row >= 0 && row < w->rows && col0 >= 0 && cols >= 0 && col0 + cols <= w->cols);
    const uint8_t *group = w->data + (size_t)(row / GROUP_ROWS) * w->group_bytes;
    int lane = row % GROUP_ROWS;
    if (family_is_float(w->family)) {
        size_t size = (size_t)family_element_bytes(w->family);
        for (int c = col0; c < col0 + cols; c++) {
            const uint8_t *leaf = family_leaf(w->family, group, c / LEAF_COLS);
            size_t at = (size_t)(c % LEAF_COLS) * GROUP_ROWS + (size_t)lane;
            float x = float_at(w->family, leaf + family_leaf_head(w->family) + at * size);
            dst[c - col0] = w->family == FAM_F8 ? float_at(FAM_F32, leaf + 4 * lane) * x : x;
        }
        return;
    }
    ASSERT(col0 % BLOCK_COLS == 0 && cols % BLOCK_COLS == 0);
    for (int b = 0; b < cols / BLOCK_COLS; b++)
        block_to_f32(w->family, group, lane, col0 / BLOCK_COLS + b, dst + b * BLOCK_COLS);
}
