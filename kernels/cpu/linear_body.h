/* Linear layers on the lanes of vec_*.h. Included once by each kernels_*.c. kernels.h states the order of every sum. */
#ifndef CPU_LINEAR_BODY_H
#define CPU_LINEAR_BODY_H

#include "kernels/cpu/panel_body.h"

/* Neighbouring groups that a tile takes at once: an input that is in a register is multiplied with the weights of all
 * of them, where there are registers enough. */
#ifndef VEC_WIDE
enum { FLOAT_WIDE = 1, QUANT_WIDE = 1, WIDE_FAST = FAST_TILE, WIDE_QUANT = QUANT_TILE };

INLINE int wide_from(bool floats, bool fast)
{
    (void)floats;
    (void)fast;
    return 1;
}
#endif

/* The dots of a block, or of the part's half. */
INLINE void dots(struct tile t, int part, const struct block_at *b, const int8_t *q, vi dot[])
{
#ifdef VEC_WIDE
    if (t.G > 1) {
        dot_wide(family_bits(t.f), t.fast, part, t.R, b->w, q, dot);
        return;
    }
#endif
    dot_block(family_bits(t.f), t.panel, t.fast, part, t.R, b->w, q, dot);
}

/* Of 16 of the inputs of a row. */
INLINE const int32_t *half_sum(const struct qinput *in, int part, int r)
{
    return in->half + (part ? in->tile : 0) + r;
}

/* Adds the chunks that share a scale: all of a block, or the part's half. */
INLINE void part_add(struct tile t, int part, const struct block_at *b, const struct qinput *in, vf acc[])
{
    vi dot[MAX_SUMS];
    int shift = zero_shift(t.f);
    dots(t, part, b, in->q, dot);
    UNROLL for (int i = 0; i < t.G; i++)
    {
        vf dw = t.panel ? vf_load(b->scale + GROUP_ROWS * (t.G * part + i)) : packed_scale(t.f, b, part);
        UNROLL for (int r = 0; r < t.R; r++)
        {
            const int32_t *sum = family_parts(t.f) == 2 ? half_sum(in, part, r) : &in->meta[r].i;
            vi x = dot[i * t.R + r];
            if (shift)
                x = vi_sub_shifted(x, vi_load1(sum), shift);
            acc[i * t.R + r] =
                vf_fma(vf_mul(dw, vf_load1(&in->meta[in->tile + (size_t)r].f)), vi_to_f(x), acc[i * t.R + r]);
        }
    }
}

/* Adds what the minimum is times the inputs that share it. */
INLINE void part_add_min(struct tile t, int part, const struct block_at *b, const struct qinput *in, vf acc[])
{
    UNROLL for (int i = 0; i < t.G; i++)
    {
        vf mw = t.panel ? vf_load(b->min + GROUP_ROWS * (t.G * part + i)) : packed_min(t.f, b, part);
        UNROLL for (int r = 0; r < t.R; r++)
        {
            vf x = vf_load1(&in->meta[(family_parts(t.f) == 2 ? 1 : 2) * in->tile + (size_t)r].f);
            if (family_parts(t.f) == 2)
                x = vf_mul(x, vi_to_f(vi_load1(half_sum(in, part, r))));
            acc[i * t.R + r] = vf_fma(mw, x, acc[i * t.R + r]);
        }
    }
}

/* acc += block * inputs of each row. */
INLINE void block_add(struct tile t, const struct block_at *b, const struct qinput *in, vf acc[])
{
    const bool two = family_parts(t.f) == 2, min = family_has_min(t.f);
    part_add(t, 0, b, in, acc);
    if (two)
        part_add(t, 1, b, in, acc);
    if (min)
        part_add_min(t, 0, b, in, acc);
    if (min && two)
        part_add_min(t, 1, b, in, acc);
}

INLINE void prefetch_bytes(const uint8_t *p, int n)
{
    UNROLL for (int i = 0; i < n; i += 64) prefetch_far(p + i);
}

/* Whether the core may see by itself what comes: it does so in an order that suits memory better. Told one line of each
 * block it keeps up with memory, of one row, where weights are soon unpacked and a group of them is long. */
INLINE bool leads_itself(struct tile t, size_t group_bytes)
{
    int bits = family_bits(t.f);
    bool light = !family_is_k(t.f) && (bits == 4 || bits == 8 || bits == CODED);
    return t.R == 1 && light && group_bytes >= LONG_GROUP;
}

/* Block b of the packed matrix. all: lines of what comes are asked for, else one. */
INLINE struct block_at block_in_place(enum family f, bool all, const uint8_t *group, int b)
{
    struct block_at at = {0};
    at.w = family_block(f, group, b, &at.head);
    if (all)
        prefetch_bytes(at.w + PREFETCH_AHEAD, family_block_bytes(f));
    else
        prefetch_far(at.w + PREFETCH_AHEAD);
    if (family_head_bytes(f) >= 64 && b % SUPER_BLOCKS == SUPER_BLOCKS - 1) /* the next head, in lines of its own */
        prefetch_bytes(at.w + family_block_bytes(f) + PREFETCH_AHEAD, family_head_bytes(f));
    return at;
}

INLINE int quant_rows_at_once(bool fast, int G)
{
    return G > 1 ? (fast ? WIDE_FAST : WIDE_QUANT) : fast ? FAST_TILE : QUANT_TILE;
}

/* What a tile of quantised weights reads, block after block. */
struct reading {
    const struct linear_job *j;
    const struct linear_scratch *s;
    struct qinput in;
    int g, b0, b;         /* the group's; the tile's first block; the next one, of the tile's */
    const uint8_t *ahead; /* what is to be asked for with the next block, so many bytes */
    size_t share;
};

/* Of several tiles in place the first one waits for the weights, and memory would wait while the others compute: so the
 * whole ones share in asking for the next group's. */
enum { LARGEST_AHEAD = 128 << 10 }; /* bytes of a group: both lie in the L2 cache */

INLINE void plan_ahead(struct reading *r, struct place p, int blocks)
{
    size_t bytes = r->j->w->group_bytes;
    r->share = bytes / (size_t)(blocks * p.tiles);
    r->ahead = group_at(r->j, p.g + 1) + (size_t)(p.tile * blocks) * r->share;
}

INLINE struct block_at next_in_place(struct tile t, struct reading *r)
{
    const uint8_t *group = group_at(r->j, r->g);
    struct block_at at = {0};
    if (!t.ahead)
        return block_in_place(t.f, true, group, r->b0 + r->b);
    for (size_t i = 0; i < r->share; i += 64)
        prefetch_far(r->ahead + i);
    r->ahead += r->share;
    at.w = family_block(t.f, group, r->b0 + r->b, &at.head);
    return at;
}

/* The sums of the blocks before `end`, which are a leaf. */
INLINE void leaf_sum(struct tile t, struct reading *r, int end, vf acc[])
{
    UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) acc[i] = vf_set1(0);
    for (; r->b < end; r->b++) {
        struct block_at block = t.panel ? block_of_panel(t, r->s, r->b) : next_in_place(t, r);
        block_add(t, &block, &r->in, acc);
        qinput_next(&r->in, t.fast);
    }
}

/* A whole span: its part of the tree is always the same. */
_Static_assert(SPAN_LEAVES == 8 && INNER_LEVELS == 3, "three levels stand in span_sum");

INLINE void span_sum(struct tile t, struct reading *r, struct linear_scratch *s, vf acc[])
{
    vf left[MAX_SUMS];
    UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) left[i] = vf_set1(0);
    for (int leaf = 0; leaf < SPAN_LEAVES; leaf++) {
        leaf_sum(t, r, r->b + 2, acc);
        if (leaf % 2 == 0) {
            UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) left[i] = acc[i];
            continue;
        }
        UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) acc[i] = vf_add(left[i], acc[i]);
        if (leaf % 4 == 3)
            add_nodes(t, level_at(s, 0, 1), acc);
        if (leaf == SPAN_LEAVES - 1)
            add_nodes(t, level_at(s, 0, 2), acc);
        else
            keep_nodes(t, level_at(s, 0, leaf % 4 == 3 ? 2 : 1), acc);
    }
}

/* A tile of quantised weights. Of two leaves that are added to each other the left one's sums wait in registers. */
INLINE void quant_tile(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    int blocks = j->col1 / BLOCK_COLS, b0 = 2 * p.leaf0, n = (2 * p.leaf1 < blocks ? 2 * p.leaf1 : blocks) - b0;
    const struct sum_step *steps = j->steps + (p.leaf0 - j->leaf0);
    struct reading r = {.j = j, .s = s, .g = p.g, .b0 = b0};
    r.in = qinput_at(&j->in, j->blocks, (size_t)p.row, (size_t)(b0 - j->col0 / BLOCK_COLS), t.fast);
    if (t.G > 1 || t.R == (int)row_tile(t.fast))
        r.in.tile = row_tile(t.fast); /* which it is where there are so many rows: now the compiler knows */
    /* What the next panel is made of lies behind this one's. */
    for (int due = p.tile; t.panel && due < n; due += p.tiles)
        prefetch_panel(t, j, p, b0 + due + n);
    if (t.ahead)
        plan_ahead(&r, p, n);
    vf acc[MAX_SUMS], left[MAX_SUMS];
    if (t.G > 1 && n == 2 * SPAN_LEAVES && t.R == quant_rows_at_once(t.fast, t.G)) {
        struct sum_step step = steps[SPAN_LEAVES - 1];
        step.add &= ~((1u << INNER_LEVELS) - 1);
        span_sum(t, &r, s, acc);
        leaf_done(j, t, p, step, acc, s);
        return;
    }
    UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) left[i] = vf_set1(0);
    for (; r.b < n; steps++) {
        struct sum_step step = *steps;
        bool first = r.b == 0;
        leaf_sum(t, &r, r.b + 2 < n ? r.b + 2 : n, acc);
        if (step.level == 0 && r.b < n) {
            UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) left[i] = acc[i];
            continue;
        }
        if ((step.add & 1) && !first) {
            UNROLL_SUMS for (int i = 0; i < t.G * t.R; i++) acc[i] = vf_add(left[i], acc[i]);
            step.add &= ~1u;
        }
        leaf_done(j, t, p, step, acc, s);
    }
}

/* The same for so few rows, in place, that the loads are what takes the time. */
INLINE void few_tile(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    int blocks = j->col1 / BLOCK_COLS, first = 2 * p.leaf0 - j->col0 / BLOCK_COLS;
    struct qinput in = qinput_at(&j->in, j->blocks, (size_t)p.row, (size_t)first, t.fast);
    const uint8_t *group = group_at(j, p.g);
    bool all = !leads_itself(t, j->w->group_bytes);
    for (int leaf = p.leaf0; leaf < p.leaf1; leaf++) {
        vf acc[MAX_SUMS];
        UNROLL for (int r = 0; r < t.R; r++) acc[r] = vf_set1(0);
        int end = 2 * leaf + 2 < blocks ? 2 * leaf + 2 : blocks;
        for (int b = 2 * leaf; b < end; b++) {
            struct block_at block = block_in_place(t.f, all, group, b);
            block_add(t, &block, &in, acc);
            qinput_next(&in, t.fast);
        }
        leaf_done(j, t, p, j->steps[leaf - j->leaf0], acc, s);
    }
}

/* Rows that one tile takes of n, of at most `tile`. */
INLINE int tile_rows(int n, int tile)
{
    return n >= tile ? tile : n >= 4 ? 4 : n;
}

INLINE void one_tile(struct tile t, int R, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    t.R = R;
    if (!t.panel && t.G == 1 && R < 4)
        few_tile(t, j, p, s);
    else
        quant_tile(t, j, p, s);
}

/* One tile of tile_rows(n, quant_rows_at_once) rows. */
INLINE void quant_rows(struct tile t, const struct linear_job *j, struct place p, int n, struct linear_scratch *s)
{
    int most = quant_rows_at_once(t.fast, t.G), rows = tile_rows(n, most);
    if (rows == 1)
        one_tile(t, 1, j, p, s);
    else if (rows == 2)
        one_tile(t, 2, j, p, s);
    else if (most > 2 && rows == 3)
        one_tile(t, 3, j, p, s);
    else if (most > 3 && rows == 4)
        one_tile(t, 4, j, p, s);
    else if (most > 4)
        one_tile(t, 8, j, p, s);
}

/* The same in place, where each tile unpacks the weights once more: as many rows as there are, up to a tile. */
INLINE int quant_rows_in_place(struct tile t, const struct linear_job *j, struct place p, int n,
                               struct linear_scratch *s)
{
    int most = quant_rows_at_once(t.fast, 1);
    t.G = 1; /* as it is: now the compiler knows */
    struct tile one_of_several = t;
    one_of_several.ahead = true;
    if (p.tiles > 0 && n >= most)
        one_tile(one_of_several, most, j, p, s);
    else if (most == 8 && n == 5)
        one_tile(t, 5, j, p, s);
    else if (most == 8 && n == 6)
        one_tile(t, 6, j, p, s);
    else if (most == 8 && n == 7)
        one_tile(t, 7, j, p, s);
    else
        quant_rows(t, j, p, n, s);
    return most == 8 && n < most ? n : tile_rows(n, most);
}

/* All tiles of n rows by one panel. */
INLINE void panel_tiles(struct tile t, const struct linear_job *j, struct place p, int n, struct linear_scratch *s)
{
    for (int took; n > 0; n -= took, p.at += took, p.row += took, p.tile++) {
        took = tile_rows(n, quant_rows_at_once(t.fast, t.G));
        quant_rows(t, j, p, n, s);
    }
}

/* Unpacks the blocks of leaves [p.leaf0, p.leaf1) of G groups. */
INLINE void panel_fill(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    int blocks = j->col1 / BLOCK_COLS, end = 2 * p.leaf1 < blocks ? 2 * p.leaf1 : blocks;
    for (int i = 0; i < t.G; i++) {
        for (int b = 2 * p.leaf0; b < end; b++) {
            struct block_at at = {0};
            int to = (b - 2 * p.leaf0) * t.G + i;
            at.w = family_block(t.f, group_at(j, p.g + i), b, &at.head);
            panel_block(family_bits(t.f), t.fast, at.w, s->panel + (size_t)to * PANEL_BLOCK);
            panel_scales(t, &at, to, s);
        }
    }
}

/* Up to how many rows multiply straight from the packed bytes. Where several groups are taken at once those are in a
 * panel, and one alone is not. */
INLINE int rows_in_place(struct tile t)
{
#ifdef VEC_WIDE
    return t.G == 1 ? ROW_BLOCK : 0;
#else
    return in_place_rows(t.f, t.fast);
#endif
}

typedef void panel_fn(const struct linear_job *j, const struct place *p, int n, struct linear_scratch *s);

/* Few rows multiply straight from the packed bytes, tile after tile; more unpack each weight once for all of them. */
INLINE void quant_group(struct tile t, panel_fn *panel_rows, const struct linear_job *j, struct place p, int n,
                        struct linear_scratch *s)
{
    int most = quant_rows_at_once(t.fast, t.G);
    if (n <= rows_in_place(t)) {
        int tile = quant_rows_at_once(t.fast, 1);
        bool all = j->col0 == 0 && j->col1 == j->w->cols;
        p.tiles = n > tile && all && j->w->group_bytes <= LARGEST_AHEAD ? n / tile : 0;
        for (int took; n > 0; n -= took, p.row += took, p.tile++)
            took = quant_rows_in_place(t, j, p, n, s);
        return;
    }
    t.panel = true;
    for (int a = j->leaf0, b; a < j->leaf1; a = b) {
        b = (a / SPAN_LEAVES + 1) * SPAN_LEAVES;
        b = b < j->leaf1 ? b : j->leaf1;
        struct place part = {p.g, p.row, 0, a, b, .tiles = (n + most - 1) / most};
        panel_fill(t, j, part, s);
        panel_rows(j, &part, n, s);
    }
}

/* Each twice: for inputs of sixteen bits, and for fast ones. */
#define PANEL_KERNEL(name, fam)                                                                                        \
    static void name(const struct linear_job *j, const struct place *p, int n, struct linear_scratch *s)               \
    {                                                                                                                  \
        panel_tiles((struct tile){.f = fam, .panel = true, .G = QUANT_WIDE}, j, *p, n, s);                             \
    }                                                                                                                  \
    static void fast_##name(const struct linear_job *j, const struct place *p, int n, struct linear_scratch *s)        \
    {                                                                                                                  \
        panel_tiles((struct tile){.f = fam, .panel = true, .fast = true, .G = QUANT_WIDE}, j, *p, n, s);               \
    }
#define QUANT_KERNEL(name, fam, panel_name)                                                                            \
    static void name(const struct linear_job *j, struct place p, int n, int groups, struct linear_scratch *s)          \
    {                                                                                                                  \
        if (j->fast && groups == QUANT_WIDE)                                                                           \
            quant_group((struct tile){.f = fam, .fast = true, .G = QUANT_WIDE}, fast_##panel_name, j, p, n, s);        \
        else if (groups == QUANT_WIDE)                                                                                 \
            quant_group((struct tile){.f = fam, .G = QUANT_WIDE}, panel_name, j, p, n, s);                             \
        else if (QUANT_WIDE > 1 && j->fast)                                                                            \
            quant_group((struct tile){.f = fam, .fast = true, .G = 1}, NULL, j, p, n, s);                              \
        else if (QUANT_WIDE > 1)                                                                                       \
            quant_group((struct tile){.f = fam, .G = 1}, NULL, j, p, n, s);                                            \
    }
PANEL_KERNEL(panel_u4, FAM_U4)
PANEL_KERNEL(panel_u4m, FAM_U4M)
PANEL_KERNEL(panel_u5, FAM_U5)
PANEL_KERNEL(panel_u5m, FAM_U5M)
PANEL_KERNEL(panel_s8, FAM_S8)
PANEL_KERNEL(panel_k2, FAM_K2)
PANEL_KERNEL(panel_k6, FAM_K6)
QUANT_KERNEL(linear_u4, FAM_U4, panel_u4)
QUANT_KERNEL(linear_u4m, FAM_U4M, panel_u4m)
QUANT_KERNEL(linear_u5, FAM_U5, panel_u5)
QUANT_KERNEL(linear_u5m, FAM_U5M, panel_u5m)
QUANT_KERNEL(linear_s8, FAM_S8, panel_s8)
QUANT_KERNEL(linear_c4, FAM_C4, panel_s8)
QUANT_KERNEL(linear_kc4, FAM_KC4, panel_s8)
QUANT_KERNEL(linear_k2, FAM_K2, panel_k2)
QUANT_KERNEL(linear_k3, FAM_K3, panel_k6)
QUANT_KERNEL(linear_k4, FAM_K4, panel_u4m)
QUANT_KERNEL(linear_k5, FAM_K5, panel_u5m)
QUANT_KERNEL(linear_k6, FAM_K6, panel_k6)

#include "kernels/cpu/linear_float_body.h"

static void linear_kernel(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s)
{
    static void (*const by_family[])(const struct linear_job *, struct place, int, int, struct linear_scratch *) = {
        [FAM_F32] = linear_f32, [FAM_F16] = linear_f16, [FAM_BF16] = linear_bf16, [FAM_PAIR] = linear_pair,
        [FAM_F8] = linear_f8,   [FAM_U4] = linear_u4,   [FAM_U4M] = linear_u4m,   [FAM_U5] = linear_u5,
        [FAM_U5M] = linear_u5m, [FAM_S8] = linear_s8,   [FAM_C4] = linear_c4,     [FAM_KC4] = linear_kc4,
        [FAM_K2] = linear_k2,   [FAM_K3] = linear_k3,   [FAM_K4] = linear_k4,     [FAM_K5] = linear_k5,
        [FAM_K6] = linear_k6,
    };
    struct place p = {g, row0, 0, j->leaf0, j->leaf1, 0, 0};
    bool floats = family_is_float(j->w->family);
    int wide = n >= wide_from(floats, j->fast) ? (floats ? FLOAT_WIDE : QUANT_WIDE) : 1;
    for (int took; groups > 0; groups -= took, p.g += took) {
        took = groups >= wide ? wide : 1;
        by_family[j->w->family](j, p, n, took, s);
    }
}

#endif
