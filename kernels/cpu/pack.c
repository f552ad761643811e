#include "kernels/cpu/pack.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/transpose.h"

static const enum family families[DT_COUNT] = {
    [DT_F32] = FAM_F32,   [DT_F16] = FAM_F16,    [DT_BF16] = FAM_BF16, [DT_Q4_0] = FAM_U4,
    [DT_Q4_1] = FAM_U4M,  [DT_Q5_0] = FAM_U5,    [DT_Q5_1] = FAM_U5M,  [DT_Q8_0] = FAM_S8,
    [DT_IQ4_NL] = FAM_C4, [DT_IQ4_XS] = FAM_KC4, [DT_Q2_K] = FAM_K2,   [DT_Q3_K] = FAM_K3,
    [DT_Q4_K] = FAM_K4,   [DT_Q5_K] = FAM_K5,    [DT_Q6_K] = FAM_K6,   [DT_F8_SCALED] = FAM_F8,
};

/* How far from the start of a group the columns from `col` on are, or with `end` where the columns before it end. */
static size_t column_at(enum family f, int col, bool end)
{
    col += f == FAM_PAIR && col % 2;
    if (family_is_float(f))
        return (size_t)col * GROUP_ROWS * (size_t)family_element_bytes(f) +
               (size_t)(col / LEAF_COLS) * family_leaf_head(f);
    size_t block = (size_t)family_block_bytes(f);
    if (!family_is_k(f))
        return (size_t)(col / BLOCK_COLS) * block;
    int cols = BLOCK_COLS * SUPER_BLOCKS, super = (end ? col + cols - 1 : col) / cols;
    return (size_t)super * ((size_t)family_head_bytes(f) + SUPER_BLOCKS * block);
}

static int get_weight(int bits, const uint8_t *w, int row, int i)
{
    int c = i / 4, j = row * 4 + i % 4;
    if (bits == 8)
        return (int8_t)w[64 * c + j];
    if (bits < 4) {
        int low = w[64 * (c / 4) + j] >> 2 * (c % 4) & 3;
        return bits == 2 ? low : low | (w[128 + j] >> c & 1) << 2;
    }
    int q = w[64 * (c % 4) + j] >> (c < 4 ? 0 : 4) & 15;
    if (bits == 5)
        q |= (w[256 + j] >> c & 1) << 4;
    if (bits == 6)
        q |= (w[256 + 64 * (c / 4) + j] >> 2 * (c % 4) & 3) << 4;
    return bits == CODED ? dtype_codes[q] : q;
}

/* The rows of a group in their file. */
struct rows {
    const uint8_t *at;
    size_t pitch;
    int n; /* fewer than GROUP_ROWS at the end of a matrix */
};

/* A tile of float types has as many columns as 16 bytes have; those of rows that are not there are zero. */
INLINE void put_tile(int size, uint8_t *to, struct rows r)
{
    uint8_t some[TILE_ROWS * TILE_BYTES] = {0};
    if (r.n < GROUP_ROWS) {
        for (int i = 0; i < r.n; i++)
            memcpy(some + (ptrdiff_t)i * TILE_BYTES, r.at + (size_t)i * r.pitch, TILE_BYTES);
        r = (struct rows){some, TILE_BYTES, GROUP_ROWS};
    }
    if (size == 4)
        transpose_words(to, r.at, r.pitch);
    else if (size == 2)
        transpose_halves(to, r.at, r.pitch);
    else
        transpose_bytes(to, r.at, r.pitch);
}

/* Columns of elements of so many bytes, a tile at a time; the last few one by one. */
INLINE void put_columns(int size, uint8_t *to, struct rows r, int n)
{
    int col = 0, step = TILE_BYTES / size;
    for (; col + step <= n; col += step)
        put_tile(size, to + (ptrdiff_t)col * GROUP_ROWS * size,
                 (struct rows){r.at + (ptrdiff_t)col * size, r.pitch, r.n});
    for (; col < n; col++)
        for (int i = 0; i < r.n; i++)
            memcpy(to + ((ptrdiff_t)col * GROUP_ROWS + i) * size, r.at + (size_t)i * r.pitch + (ptrdiff_t)col * size,
                   (size_t)size);
}

/* The rows that follow these are asked for beforehand: sixteen rows at once are more than the CPU sees coming. */
INLINE void expect_rows(struct rows r, size_t offset, size_t bytes)
{
    for (int i = 0; i < GROUP_ROWS; i++)
        for (size_t k = 0; k < bytes; k += 64)
            __builtin_prefetch(r.at + (size_t)(GROUP_ROWS + i) * r.pitch + offset + k);
}

/* 64 columns, for scaled fp8 the rows' scales before them. */
INLINE size_t put_leaf(int size, uint8_t *to, struct rows r, int n)
{
    size_t head = size == 1 ? GROUP_ROWS * sizeof(float) : 0;
    for (int i = 0; i < r.n && head; i++)
        memcpy(to + (ptrdiff_t)4 * i, r.at + (size_t)i * r.pitch, 4);
    put_columns(size, to + head, (struct rows){r.at + (head ? 4 : 0), r.pitch, r.n}, n);
    return head + (size_t)n * GROUP_ROWS * (size_t)size;
}

/* F16 and BF16 to pairs: each leaf as it is, then laced. */
static void pack_pairs(const struct cpu_kernels *k, enum family from, uint8_t *group, int cols, struct rows r)
{
    _Alignas(64) uint8_t leaf[LEAF_COLS * GROUP_ROWS * 2], laced[sizeof leaf];
    for (int col = 0; col < cols; col += LEAF_COLS) {
        int n = cols - col < LEAF_COLS ? cols - col : LEAF_COLS, pairs = (n + 1) / 2;
        struct rows at = {r.at + (size_t)col * 2, r.pitch, r.n};
        memset(leaf, 0, sizeof leaf);
        expect_rows(r, (size_t)col * 2, (size_t)LEAF_COLS * 2);
        put_leaf(2, leaf, at, n);
        k->lace(from, leaf, pairs, laced);
        stream_copy(group, laced, (size_t)pairs * 64);
        group += (size_t)pairs * 64;
    }
}

/* What is packed is made in the L1 cache and goes past the others from there. */
INLINE void pack_floats(int size, uint8_t *group, int cols, struct rows r)
{
    _Alignas(64) uint8_t leaf[LEAF_COLS * GROUP_ROWS * sizeof(float)] = {0};
    size_t row_bytes = (size_t)LEAF_COLS * (size_t)size + (size == 1 ? sizeof(float) : 0);
    for (int col = 0; col < cols; col += LEAF_COLS) {
        expect_rows(r, (size_t)(col / LEAF_COLS) * row_bytes, row_bytes);
        struct rows from = {r.at + (size_t)(col / LEAF_COLS) * row_bytes, r.pitch, r.n};
        size_t bytes = put_leaf(size, leaf, from, cols - col < LEAF_COLS ? cols - col : LEAF_COLS);
        stream_copy(group, leaf, bytes);
        group += bytes;
    }
}

/* ---- quantised types. Their bytes are put side by side first: what is done to the bits then is the same for all rows
 */

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint8_t octets __attribute__((vector_size(16)));

/* A word of each row of a group; four columns, or the upper bits of a block. */
struct word {
    quad v[4];
};

static const uint32_t low4 = 0x0f0f0f0f, low2 = 0x03030303, low1 = 0x01010101;

INLINE struct rows rows_at(struct rows r, size_t offset)
{
    return (struct rows){r.at + offset, r.pitch, r.n};
}

/* Words 0 .. 4n-1 of the rows. */
INLINE void read_words(struct word *out, int n, struct rows r)
{
    for (int i = 0; i < n; i++)
        put_tile(4, (uint8_t *)(out + (ptrdiff_t)4 * i), rows_at(r, (size_t)i * TILE_BYTES));
}

INLINE void put_word(uint8_t *to, const struct word *x)
{
    memcpy(to, x, sizeof *x);
}

/* The f16 at the start of each row. */
INLINE void put_halves(uint8_t *to, struct rows r)
{
    for (int i = 0; i < r.n; i++)
        memcpy(to + (ptrdiff_t)2 * i, r.at + (size_t)i * r.pitch, 2);
}

/* Eight words have the nibbles of two blocks, those of one in their lower halves. A packed word has columns of its own
 * block only. */
INLINE void put_nibbles(uint8_t *low, uint8_t *high, const struct word w[8])
{
    for (int c = 0; c < 4; c++)
        for (int k = 0; k < 4; k++) {
            quad a = w[c].v[k], b = w[c + 4].v[k], x = (a & low4) | (b & low4) << 4, y = (a >> 4 & low4) | (b & ~low4);
            memcpy(low + (ptrdiff_t)64 * c + (ptrdiff_t)16 * k, &x, 16);
            memcpy(high + (ptrdiff_t)64 * c + (ptrdiff_t)16 * k, &y, 16);
        }
}

/* Bit 4c + j of a word becomes bit 8j + c: a rotation of the bits' numbers, four times two of these change places. */
INLINE quad swap_bits(quad x, int by, uint32_t where)
{
    quad t = (x ^ x >> by) & where;
    return x ^ t ^ t << by;
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL: d, perhaps m, perhaps fifth bits, weights. */
INLINE void pack_simple(enum dtype t, uint8_t *block, struct rows r)
{
    const enum family f = families[t];
    bool five = family_bits(f) == 5;
    size_t at = family_has_min(f) ? 4 : 2;
    uint8_t *scales = block + family_weight_bytes(f);
    put_halves(scales, r);
    if (family_has_min(f))
        put_halves(scales + 32, rows_at(r, 2));
    for (int i = 0; i < r.n && five; i++)
        memcpy(block + 256 + (ptrdiff_t)4 * i, r.at + (size_t)i * r.pitch + at, 4);
    for (int k = 0; k < 4 && five; k++) {
        quad x;
        memcpy(&x, block + 256 + (ptrdiff_t)16 * k, 16);
        x = swap_bits(x, 7, 0x00aa00aa);  /* numbers' bits 0 and 3 */
        x = swap_bits(x, 14, 0x0000cccc); /* 1 and 4 */
        x = swap_bits(x, 1, 0x22222222);  /* 0 and 1 */
        x = swap_bits(x, 3, 0x0a0a0a0a);  /* 0 and 2 */
        memcpy(block + 256 + (ptrdiff_t)16 * k, &x, 16);
    }
    at += five ? 4 : 0;
    put_tile(4, block, rows_at(r, at));
    if (family_bits(f) == 8)
        put_tile(4, block + 256, rows_at(r, at + TILE_BYTES));
}

/* The fifth (or third) bits of the j-th block of a super-block, of whose weights w has one bit for each block. */
INLINE void put_fifth(uint8_t *to, const struct word w[8], int j)
{
    struct word out = {0};
    for (int c = 0; c < 8; c++)
        for (int k = 0; k < 4; k++)
            out.v[k] |= (w[c].v[k] >> j & low1) << c;
    put_word(to, &out);
}

/* 256 columns of Q4_K or Q5_K; dtype.c describes the bytes. */
INLINE void pack_k45(enum dtype t, uint8_t *super, struct rows r)
{
    const enum family f = families[t];
    const ptrdiff_t block = family_block_bytes(f), scales = family_weight_bytes(f);
    uint8_t *first = super + family_head_bytes(f);
    struct word w[8], fifth[8];
    octets head[16], *s = head + 4;
    put_halves(super, r);
    put_halves(super + 32, rows_at(r, 2));
    put_tile(1, (uint8_t *)head, r);
    for (int j = 0; j < SUPER_BLOCKS; j++) {
        octets scale = j < 4 ? s[j] & 63 : (s[(j + 4) % 12] & 15) | (s[(j + 8) % 12] >> 6) << 4,
               min = j < 4 ? s[j + 4] & 63 : s[(j + 4) % 12] >> 4 | (s[j] >> 6) << 4;
        memcpy(first + j * block + scales, &scale, 16);
        memcpy(first + j * block + scales + 16, &min, 16);
    }
    if (t == DT_Q5_K)
        read_words(fifth, 2, rows_at(r, 16));
    for (int j = 0; j < SUPER_BLOCKS && t == DT_Q5_K; j++)
        put_fifth(first + j * block + 256, fifth, j);
    for (int j = 0; j < SUPER_BLOCKS; j += 2) {
        read_words(w, 2, rows_at(r, (size_t)((t == DT_Q4_K ? 16 : 48) + j / 2 * 32)));
        put_nibbles(first + j * block, first + (j + 1) * block, w);
    }
}

/* The upper two bits of a block whose four columns of a word have them from bit `at` of each byte on. */
INLINE void put_upper(uint8_t *to, const struct word w[8], int at)
{
    struct word out[2] = {0};
    for (int c = 0; c < 8; c++)
        for (int k = 0; k < 4; k++)
            out[c / 4].v[k] |= (w[c].v[k] >> at & low2) << 2 * (c % 4);
    put_word(to, out);
    put_word(to + 64, out + 1);
}

/* 256 columns of Q6_K: each half has nibbles of blocks 0 and 2, of 1 and 3, and the upper bits of all four. */
INLINE void pack_k6(uint8_t *super, struct rows r)
{
    const ptrdiff_t block = family_block_bytes(FAM_K6), scales = family_weight_bytes(FAM_K6);
    uint8_t *first = super + family_head_bytes(FAM_K6);
    struct word w[8];
    octets s[16];
    put_halves(super, rows_at(r, 208));
    put_tile(1, (uint8_t *)s, rows_at(r, 192));
    for (int j = 0; j < SUPER_BLOCKS; j++)
        memcpy(first + j * block + scales, s + (ptrdiff_t)2 * j, 32);
    for (int j = 0; j < SUPER_BLOCKS; j += 4) {
        for (int i = 0; i < 2; i++) {
            read_words(w, 2, rows_at(r, (size_t)(j * 16 + i * 32)));
            put_nibbles(first + (j + i) * block, first + (j + i + 2) * block, w);
        }
        read_words(w, 2, rows_at(r, (size_t)(128 + j * 8)));
        for (int i = 0; i < 4; i++)
            put_upper(first + (j + i) * block + 256, w, 2 * i);
    }
}

/* 256 columns of Q2_K or Q3_K: each half has the two bits of its four blocks in 32 bytes. */
INLINE void pack_k23(enum dtype t, uint8_t *super, struct rows r)
{
    const enum family f = families[t];
    const ptrdiff_t block = family_block_bytes(f), scales = family_weight_bytes(f);
    const bool three = t == DT_Q3_K;
    uint8_t *first = super + family_head_bytes(f);
    struct word w[8], third[8];
    octets head[16], *s = three ? head + 2 : head;
    put_halves(super, rows_at(r, three ? 108 : 80));
    if (three)
        read_words(third, 2, r);
    else
        put_halves(super + 32, rows_at(r, 82));
    put_tile(1, (uint8_t *)head, rows_at(r, three ? 94 : 0)); /* of Q3_K, too, all of them lie within the block */
    for (int j = 0; j < 2 * SUPER_BLOCKS; j++) {
        octets scale;
        if (three)
            scale = ((s[j % 8] >> 4 * (j / 8) & 15) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
        else
            scale = s[j];
        memcpy(first + j / 2 * block + scales + (ptrdiff_t)16 * (j % 2), &scale, 16);
    }
    for (int j = 0; j < SUPER_BLOCKS; j++) {
        if (j % 4 == 0)
            read_words(w, 2, rows_at(r, (size_t)((three ? 32 : 16) + j * 8)));
        put_upper(first + j * block, w, 2 * (j % 4));
        if (three)
            put_fifth(first + j * block + 128, third, j);
    }
}

/* 256 columns of IQ4_XS: eight runs of nibbles as IQ4_NL has them. */
INLINE void pack_kc4(uint8_t *super, struct rows r)
{
    const ptrdiff_t block = family_block_bytes(FAM_KC4);
    uint8_t *first = super + family_head_bytes(FAM_KC4);
    octets head[16];
    put_halves(super, r);
    put_tile(1, (uint8_t *)head, r);
    for (int j = 0; j < SUPER_BLOCKS; j++) {
        octets low = head[4 + j / 2] >> 4 * (j % 2) & 15, high = head[2 + j / 4] >> 2 * (j % 4) & 3,
               scale = (low | high << 4) - 32;
        memcpy(super + 32 + (ptrdiff_t)16 * j, &scale, 16);
        put_tile(4, first + j * block, rows_at(r, (size_t)(8 + 16 * j)));
    }
}

/* As pack_floats; inlined for each type, so that nothing is asked about it in the loops. */
INLINE void pack_blocks(enum dtype t, uint8_t *group, int blocks, struct rows r)
{
    enum { MOST_BYTES = SUPER_BLOCKS * (512 + 64) + 64 };
    const enum family f = families[t];
    const size_t bytes = (size_t)dtype_get(t)->bytes, turn = family_is_k(f) ? bytes : bytes * SUPER_BLOCKS;
    _Alignas(64) uint8_t packed[MOST_BYTES] = {0};
    for (int b = 0; b < blocks; b += SUPER_BLOCKS) {
        int n = blocks - b < SUPER_BLOCKS ? blocks - b : SUPER_BLOCKS;
        struct rows here = rows_at(r, (size_t)(b / SUPER_BLOCKS) * turn);
        expect_rows(here, 0, turn);
        if (t == DT_Q6_K)
            pack_k6(packed, here);
        else if (t == DT_Q2_K || t == DT_Q3_K)
            pack_k23(t, packed, here);
        else if (t == DT_IQ4_XS)
            pack_kc4(packed, here);
        else if (family_is_k(f))
            pack_k45(t, packed, here);
        for (int i = 0; i < n && !family_is_k(f); i++)
            pack_simple(t, packed + (ptrdiff_t)i * family_block_bytes(f), rows_at(here, (size_t)i * bytes));
        size_t made = (size_t)family_head_bytes(f) + (size_t)n * (size_t)family_block_bytes(f);
        stream_copy(group, packed, made);
        group += made;
    }
}

static void pack_group(const struct weight *w, const struct cpu_kernels *pairs, int g, const uint8_t *src, size_t pitch)
{
    uint8_t *group = w->data + (size_t)g * w->group_bytes;
    size_t end = column_at(w->family, w->cols, true);
    int left = w->rows - g * GROUP_ROWS;
    struct rows r = {src, pitch, left < GROUP_ROWS ? left : GROUP_ROWS};
    switch (w->type) {
#define OF(t)                                                                                                          \
    case t:                                                                                                            \
        pack_blocks(t, group, w->cols / BLOCK_COLS, r);                                                                \
        break
        OF(DT_Q4_0);
        OF(DT_Q4_1);
        OF(DT_Q5_0);
        OF(DT_Q5_1);
        OF(DT_Q8_0);
        OF(DT_IQ4_NL);
        OF(DT_IQ4_XS);
        OF(DT_Q2_K);
        OF(DT_Q3_K);
        OF(DT_Q4_K);
        OF(DT_Q5_K);
        OF(DT_Q6_K);
#undef OF
    case DT_F32:
        pack_floats(4, group, w->cols, r);
        break;
    case DT_F8_SCALED:
        pack_floats(1, group, w->cols, r);
        break;
    default:
        if (w->family == FAM_PAIR)
            pack_pairs(pairs, families[w->type], group, w->cols, r);
        else
            pack_floats(2, group, w->cols, r);
    }
    memset(group + end, 0, w->group_bytes - end);
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

static struct weight describe(enum dtype t, enum family f, int rows, int cols)
{
    return (struct weight){.type = t,
                           .family = f,
                           .rows = rows,
                           .cols = cols,
                           .groups = groups_of(rows),
                           .group_bytes = group_bytes(f, cols)};
}

int pack_weight(struct weight **out, const struct weight_src *src, const struct cpu_kernels *pairs, struct slab *room,
                struct err *e)
{
    *out = NULL;
    bool half = src->type == DT_F16 || src->type == DT_BF16;
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
    *w = describe(src->type, pairs && half ? FAM_PAIR : families[src->type], src->rows, src->cols);
    w->data = slab_take(room, pack_bytes(src->type, src->rows, src->cols));
    if (!w->data) {
        mem_free(w);
        return err_set(e, E_FULL, "no memory for a matrix of %d x %d (%s)", src->rows, src->cols, info->name);
    }
    size_t pitch = weight_src_pitch(src);
    for (int g = 0; g < w->groups; g++)
        pack_group(w, pairs, g, (const uint8_t *)src->data + (size_t)g * GROUP_ROWS * pitch, pitch);
    stream_fence();
    *out = w;
    return 0;
}

void pack_free(struct weight *w, struct slab *room)
{
    if (!w)
        return;
    if (!w->borrows)
        slab_give(room, w->data, (size_t)w->groups * w->group_bytes);
    mem_free(w);
}

struct weight *pack_alias(const struct weight *like, int rows, int cols, void *room)
{
    struct weight *w = mem_try(sizeof *w);
    if (!w)
        return NULL;
    *w = describe(like->type, like->family, rows, cols);
    w->data = room;
    w->borrows = true;
    return w;
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

struct scale {
    float d, m;
};

/* Those of 16 columns, of the block's first or second ones. */
static struct scale scale_of(enum family f, const uint8_t *head, const uint8_t *scales, int lane, int part)
{
    const bool has_min = family_has_min(f);
    if (!family_is_k(f))
        return (struct scale){f16_lane(scales, lane), has_min ? f16_lane(scales + 32, lane) : 0};
    const float d = f16_lane(head, lane), dmin = has_min ? f16_lane(head + 32, lane) : 0;
    const uint8_t *s = scales + (family_parts(f) == 2 ? 16 * part : 0) + lane;
    if (f == FAM_K2)
        return (struct scale){d * (float)(*s & 15), -(dmin * (float)(*s >> 4))};
    if (has_min)
        return (struct scale){d * (float)*s, -(dmin * (float)s[16])};
    return (struct scale){d * (float)(int8_t)*s, 0};
}

/* Widens block b of one lane; the operations are those of dtype_to_f32. */
static void block_to_f32(enum family f, const uint8_t *group, int lane, int b, float *y)
{
    const uint8_t *head, *w = family_block(f, group, b, &head), *scales = family_scales(f, w, head);
    int bits = family_bits(f), zero = f == FAM_U4 ? 8 : f == FAM_U5 ? 16 : f == FAM_K6 ? 32 : f == FAM_K3 ? 4 : 0;
    const struct scale part[2] = {scale_of(f, head, scales, lane, 0), scale_of(f, head, scales, lane, 1)};
    for (int i = 0; i < BLOCK_COLS; i++) {
        float x = part[i / 16].d * (float)(get_weight(bits, w, lane, i) - zero);
        y[i] = family_has_min(f) ? x + part[i / 16].m : x;
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
            size_t i = (size_t)(c % LEAF_COLS), at = i * GROUP_ROWS + (size_t)lane;
            if (w->family == FAM_PAIR)
                at = (i / 2 * GROUP_ROWS + (size_t)lane) * 2 + i % 2;
            float x = float_at(w->family, leaf + family_leaf_head(w->family) + at * size);
            dst[c - col0] = w->family == FAM_F8 ? float_at(FAM_F32, leaf + 4 * lane) * x : x;
        }
        return;
    }
    ASSERT(col0 % BLOCK_COLS == 0 && cols % BLOCK_COLS == 0);
    for (int b = 0; b < cols / BLOCK_COLS; b++)
        block_to_f32(w->family, group, lane, col0 / BLOCK_COLS + b, dst + b * BLOCK_COLS);
}
