/* Matrices as the CPU backend stores them: rows interleaved by sixteen, so that a SIMD lane is an output and no kernel
 * has to add up lanes. Made at load by the rank's thread, immutable afterwards. Invariant: a weight keeps the
 * precision of its file, but for the fast form of F16 and BF16; none is widened to f32 in memory.
 *
 * Group g holds rows 16g .. 16g+15 (the last one is padded with zero rows), columns ascending.
 *
 * F32, F16, BF16: for each column its 16 values. Pairs, the fast form of F16 and BF16: for each two columns and each
 * row the bfloat16 of the even one and that of the odd one (zero behind an odd last column). Scaled fp8: for each 64
 * columns the f32 scales of the 16 rows, then for each column its 16 codes. Quantised types: for each 32 columns a
 * block. Chunk c (0..7) of a block is columns 4c..4c+3, and byte j (0..63) of a chunk is row j/4, column j%4 of it.
 *
 *   2 bits   128 bytes: bits 2(c%4)..+1 of byte 64(c/4)+j are byte j of chunk c
 *   3 bits   then 64 bytes: bit c of byte j is the third bit of byte j of chunk c
 *   4 bits   256 bytes: byte 64c+j has the low nibble of chunk c and, in its high nibble, that of chunk c+4 (c = 0..3)
 *   5 bits   then 64 bytes: bit c of byte j is the fifth bit of byte j of chunk c
 *   6 bits   then 128 bytes: bits 2(c%4)..+1 of byte 64(c/4)+j are the upper bits of byte j of chunk c
 *   8 bits   512 bytes: chunk after chunk, signed
 *   coded    as 4 bits, each of which stands for one of dtype_codes
 *
 * (The fifth and the upper bits lie behind the 256 bytes.) After the bits come the scales of the 16 rows. Types with
 * blocks of 32 columns have f16 d (and f16 m). K types have before every 256 columns f16 d (and f16 dmin), and of each
 * block
 *
 *   4, 5 bits   a u8 scale, then a u8 minimum
 *   3, 6 bits   an int8 scale for 16 columns, then one for the next 16
 *   2 bits      a byte for 16 columns, then one for the next 16: the scale in its low nibble, the minimum in the other
 *   coded       nothing: the int8 scales of all eight blocks lie behind d, so that the blocks keep their alignment */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include "kernels/backend.h"
#include "kernels/cpu/slab.h"

enum { GROUP_ROWS = WEIGHT_GROUP, BLOCK_COLS = 32, LEAF_COLS = SUM_LEAF, SUPER_BLOCKS = 8 };

/* What the kernels tell apart. The first five are multiplied as floats. U: unsigned bits and a zero point; M: with a
 * min; S: signed; C: coded; K: scales of 256-column blocks. */
enum family {
    FAM_F32,
    FAM_F16,
    FAM_BF16,
    FAM_PAIR,
    FAM_F8,
    FAM_U4,
    FAM_U4M,
    FAM_U5,
    FAM_U5M,
    FAM_S8,
    FAM_C4,
    FAM_KC4,
    FAM_K2,
    FAM_K3,
    FAM_K4,
    FAM_K5,
    FAM_K6
};

struct weight {
    enum dtype type;
    enum family family;
    int rows, cols, groups;
    size_t group_bytes; /* from one group to the next, a multiple of 64 */
    uint8_t *data;
    bool borrows; /* data is another's */
};

static inline bool family_is_float(enum family f)
{
    return f <= FAM_F8;
}

static inline bool family_is_k(enum family f)
{
    return f >= FAM_KC4;
}

/* How the weights of a block lie, which is what a dot needs to know: so many bits each, or CODED. */
enum { CODED = 16 };

static inline int family_bits(enum family f)
{
    if (f == FAM_C4 || f == FAM_KC4)
        return CODED;
    return f == FAM_S8                                  ? 8
           : f == FAM_K6                                ? 6
           : f == FAM_U5 || f == FAM_U5M || f == FAM_K5 ? 5
           : f == FAM_K3                                ? 3
           : f == FAM_K2                                ? 2
                                                        : 4;
}

/* A panel of 3 bits is one of 6: their zeros are 4 and 32. */
enum { THREE_AS_SIX = 32 - 4 };

/* Dots and scales are of 16 columns, not of 32: a block has two parts. */
static inline bool bits_in_halves(int bits)
{
    return bits == 2 || bits == 3 || bits == 6;
}

static inline int family_parts(enum family f)
{
    return bits_in_halves(family_bits(f)) ? 2 : 1;
}

static inline bool family_has_min(enum family f)
{
    return f == FAM_U4M || f == FAM_U5M || f == FAM_K2 || f == FAM_K4 || f == FAM_K5;
}

/* Bytes of the weights of a block, before its scales. */
static inline int family_weight_bytes(enum family f)
{
    int bits = family_bits(f);
    return bits == CODED ? 256 : bits * 64;
}

static inline int family_block_bytes(enum family f)
{
    int scales = f == FAM_U4M || f == FAM_U5M ? 64 : f == FAM_KC4 ? 0 : 32;
    return family_weight_bytes(f) + scales;
}

/* Bytes at the head of every 256 columns. */
static inline int family_head_bytes(enum family f)
{
    if (!family_is_k(f))
        return 0;
    return f == FAM_KC4 ? 32 + SUPER_BLOCKS * GROUP_ROWS : family_has_min(f) ? 64 : 32;
}

/* Where the scales of a block at w lie; head is that of its 256 columns. */
static inline const uint8_t *family_scales(enum family f, const uint8_t *w, const uint8_t *head)
{
    if (f == FAM_KC4) /* a block has 16 times as many bytes as its scales */
        return head + 32 + (w - head - family_head_bytes(f)) / 16;
    return w + family_weight_bytes(f);
}

/* Bytes from one element of a float type to the next. */
static inline int family_element_bytes(enum family f)
{
    return f == FAM_F32 ? 4 : f == FAM_F8 ? 1 : 2;
}

/* Bytes of a leaf's scales, before its columns. */
static inline size_t family_leaf_head(enum family f)
{
    return f == FAM_F8 ? GROUP_ROWS * sizeof(float) : 0;
}

/* Where a leaf of a float type starts in a group. */
static inline const uint8_t *family_leaf(enum family f, const uint8_t *group, int leaf)
{
    return group +
           (size_t)leaf * ((size_t)LEAF_COLS * GROUP_ROWS * (size_t)family_element_bytes(f) + family_leaf_head(f));
}

/* Where block b (32 columns) of a group starts; *head gets the start of its 256 columns. */
static inline const uint8_t *family_block(enum family f, const uint8_t *group, int b, const uint8_t **head)
{
    size_t block = (size_t)family_block_bytes(f);
    if (!family_is_k(f)) {
        *head = group;
        return group + (size_t)b * block;
    }
    size_t super = (size_t)family_head_bytes(f) + SUPER_BLOCKS * block;
    *head = group + (size_t)(b / SUPER_BLOCKS) * super;
    return *head + (size_t)family_head_bytes(f) + (size_t)(b % SUPER_BLOCKS) * block;
}

struct cpu_kernels;
/* Packs src into memory of the slab, F16 and BF16 as pairs that these kernels make, or as they are (NULL).
 * E_UNSUPPORTED for a shape that cannot be (columns not a multiple of the type's block), E_FULL without memory. */
int pack_weight(struct weight **out, const struct weight_src *src, const struct cpu_kernels *pairs, struct slab *room,
                struct err *e);
void pack_free(struct weight *w, struct slab *room); /* NULL is fine */
size_t pack_bytes(enum dtype t, int rows, int cols); /* of one that can be packed */
/* One like it, of this shape, whose bytes will lie in room. NULL without memory. */
struct weight *pack_alias(const struct weight *like, int rows, int cols, void *room);
/* The bytes that a product with this view reads: a run in each group of rows. Of K types columns are taken by 256. */
struct weight_runs pack_window(const struct wview *v);
/* Widens columns col0 .. col0+cols-1 of one row (both multiples of the type's block or of 32, whichever is less), with
 * the bits of dtype_to_f32. */
void pack_row_to_f32(const struct weight *w, int row, int col0, int cols, float *dst);

#endif
