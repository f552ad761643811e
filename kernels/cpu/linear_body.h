/* Linear layers on the lanes of vec_*.h. Included once by each kernels_*.c. kernels.h states the order of every sum. */
#ifndef CPU_LINEAR_BODY_H
#define CPU_LINEAR_BODY_H

/* A block ready to multiply: in place in the packed matrix, or unpacked into the panel. */
struct block_at {
    const uint8_t *w, *head;  /* head: of its 256 columns (K types, in place) */
    const float *scale, *min; /* panel */
};

INLINE int zero_shift(enum family f)
{
    return f == FAM_S8 ? S8_SHIFT : f == FAM_U4 ? 3 : f == FAM_U5 ? 4 : f == FAM_K6 ? 5 : 0;
}

INLINE vf packed_scale(enum family f, const struct block_at *b, int part)
{
    const uint8_t *s = b->w + family_weight_bytes(f);
    if (!family_is_k(f))
        return vf_load_f16((const uint16_t *)s);
    vf d = vf_load_f16((const uint16_t *)b->head);
    return vf_mul(d, f == FAM_K6 ? vf_load_s8((const int8_t *)s + 16 * part) : vf_load_u8(s));
}

INLINE vf packed_min(enum family f, const struct block_at *b)
{
    const uint8_t *s = b->w + family_weight_bytes(f);
    if (!family_is_k(f))
        return vf_load_f16((const uint16_t *)(s + 32));
    vf dmin = vf_load_f16((const uint16_t *)(b->head + 32));
    return vf_sub(vf_set1(0), vf_mul(dmin, vf_load_u8(s + 16)));
}

/* Adds the chunks that share a scale: all of a block, or for K6 the part's half. */
INLINE void part_add(enum family f, bool panel, bool fast, int R, int part, const struct block_at *b, const int8_t *q,
                     const struct qmeta *meta, vf acc[])
{
    vi dot[MAX_TILE];
    dot_block(family_bits(f), panel, fast, part, R, b->w, q, dot);
    int shift = zero_shift(f);
    vf dw = panel ? vf_load(b->scale + GROUP_ROWS * part) : packed_scale(f, b, part);
    UNROLL for (int r = 0; r < R; r++)
    {
        const struct qmeta *m = meta + r;
        vi t = dot[r];
        if (shift)
            t = vi_sub_shifted(t, vi_load1(f == FAM_K6 ? &m->half[part] : &m->sum), shift);
        acc[r] = vf_fma(vf_mul(dw, vf_load1(&m->d)), vi_to_f(t), acc[r]);
    }
}

/* acc[r] += block * inputs of row r. */
INLINE void block_add(enum family f, bool panel, bool fast, int R, const struct block_at *b, const int8_t *q,
                      const struct qmeta *meta, vf acc[])
{
    part_add(f, panel, fast, R, 0, b, q, meta, acc);
    if (f == FAM_K6)
        part_add(f, panel, fast, R, 1, b, q, meta, acc);
    if (family_has_min(f)) {
        vf mw = panel ? vf_load(b->min) : packed_min(f, b);
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_fma(mw, vf_load1(&meta[r].s), acc[r]);
    }
}

/* Where a node of a level waits for its right sibling; at: the row within the row block. */
INLINE float *level_at(struct linear_scratch *s, int at, int level, int r)
{
    return level < INNER_LEVELS ? s->inner[level][r] : s->outer[at + r][level - INNER_LEVELS];
}

static void put_lanes(const struct linear_job *j, int g, int row, vf v)
{
    int first = (g - j->group0) * GROUP_ROWS, n = j->rows_out - first;
    float t[GROUP_ROWS], *y = j->y + (size_t)row * j->ldy + first;
    vf_store(t, v);
    for (int i = 0; i < n && i < GROUP_ROWS; i++) {
        float x = j->bias ? t[i] + j->bias[first + i] : t[i];
        y[i] = j->accumulate ? y[i] + x : x;
    }
}

INLINE void put_row(const struct linear_job *j, int g, int row, vf v)
{
    int first = (g - j->group0) * GROUP_ROWS;
    if (j->rows_out - first < GROUP_ROWS) {
        put_lanes(j, g, row, v);
        return;
    }
    float *y = j->y + (size_t)row * j->ldy + first;
    if (j->bias)
        v = vf_add(v, vf_load(j->bias + first));
    if (j->accumulate)
        v = vf_add(vf_load(y), v);
    vf_store(y, v);
}

/* Leaf's sums in acc[0..R): into the tree, or out. */
INLINE void leaf_done(const struct linear_job *j, int R, int g, int row, int at, struct sum_step step, vf acc[],
                      struct linear_scratch *s)
{
    for (uint32_t add = step.add; add; add &= add - 1) {
        int level = __builtin_ctz(add);
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_add(vf_load(level_at(s, at, level, r)), acc[r]);
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        if (step.level >= 0)
            vf_store(level_at(s, at, step.level, r), acc[r]);
        else
            put_row(j, g, row + r, acc[r]);
    }
}

INLINE void prefetch_bytes(const uint8_t *p, int n)
{
    UNROLL for (int i = 0; i < n; i += 64) prefetch(p + i);
}

/* Block b of the packed matrix. */
INLINE struct block_at block_in_place(enum family f, const uint8_t *group, int b)
{
    struct block_at at = {0};
    at.w = family_block(f, group, b, &at.head);
    prefetch_bytes(at.w + 1024, 320);
    return at;
}

/* Block i of the panel. */
INLINE struct block_at block_of_panel(const struct linear_scratch *s, int i)
{
    return (struct block_at){.w = s->panel + (size_t)i * PANEL_BLOCK, .scale = s->scale[i][0], .min = s->min[i]};
}

INLINE void prefetch_block(enum family f, const uint8_t *group, int b)
{
    const uint8_t *head, *next = family_block(f, group, b, &head);
    prefetch_bytes(next, family_block_bytes(f));
}

/* Rows row .. row+R-1 of the call, leaves [leaf0, leaf1). Of two leaves that are added to each other the left one's
 * sums wait in registers. */
INLINE void quant_tile(enum family f, bool panel, bool fast, int R, const struct linear_job *j, int g, int row, int at,
                       int leaf0, int leaf1, struct linear_scratch *s)
{
    const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
    int blocks = j->col1 / BLOCK_COLS, b0 = 2 * leaf0, n = (2 * leaf1 < blocks ? 2 * leaf1 : blocks) - b0;
    size_t input = quant_at(j->blocks, j->tile, (size_t)row) + (size_t)(b0 - j->col0 / BLOCK_COLS) * j->tile;
    const int8_t *q = j->q + input * quant_block(fast);
    const struct qmeta *meta = j->meta + input;
    const struct sum_step *steps = j->steps + (leaf0 - j->leaf0);
    vf left[MAX_TILE];
    UNROLL for (int r = 0; r < R; r++) left[r] = vf_set1(0);
    for (int b = 0; b < n; steps++) {
        vf acc[MAX_TILE];
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_set1(0);
        struct sum_step step = *steps;
        bool first = b == 0;
        for (int end = b + 2 < n ? b + 2 : n; b < end; b++) {
            struct block_at block = panel ? block_of_panel(s, b) : block_in_place(f, group, b0 + b);
            if (panel && at == 0) /* what the next panel is made of lies behind this one's */
                prefetch_block(f, group, b0 + b + n);
            block_add(f, panel, fast, R, &block, q, meta, acc);
            q += j->tile * quant_block(fast);
            meta += j->tile;
        }
        if (step.level == 0 && b < n) {
            UNROLL for (int r = 0; r < R; r++) left[r] = acc[r];
            continue;
        }
        if ((step.add & 1) && !first) {
            UNROLL for (int r = 0; r < R; r++) acc[r] = vf_add(left[r], acc[r]);
            step.add &= ~1u;
        }
        leaf_done(j, R, g, row, at, step, acc, s);
    }
}

/* The same for so few rows, in place, that the loads are what takes the time. */
INLINE void few_tile(enum family f, bool fast, int R, const struct linear_job *j, int g, int row, int leaf0, int leaf1,
                     struct linear_scratch *s)
{
    const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
    int blocks = j->col1 / BLOCK_COLS, first = j->col0 / BLOCK_COLS;
    size_t input = quant_at(j->blocks, j->tile, (size_t)row);
    for (int leaf = leaf0; leaf < leaf1; leaf++) {
        vf acc[MAX_TILE];
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_set1(0);
        int end = 2 * leaf + 2 < blocks ? 2 * leaf + 2 : blocks;
        for (int b = 2 * leaf; b < end; b++) {
            struct block_at block = block_in_place(f, group, b);
            size_t i = input + (size_t)(b - first) * j->tile;
            block_add(f, false, fast, R, &block, j->q + i * quant_block(fast), j->meta + i, acc);
        }
        leaf_done(j, R, g, row, 0, j->steps[leaf - j->leaf0], acc, s);
    }
}

/* Rows that one tile takes of n, of at most `tile`. */
INLINE int tile_rows(int n, int tile)
{
    return n >= tile ? tile : n >= 4 ? 4 : n;
}

INLINE int quant_rows_at_once(bool fast)
{
    return fast ? FAST_TILE : QUANT_TILE;
}

INLINE void one_tile(enum family f, bool panel, bool fast, int R, const struct linear_job *j, int g, int row, int at,
                     int leaf0, int leaf1, struct linear_scratch *s)
{
    if (!panel && R < 4)
        few_tile(f, fast, R, j, g, row, leaf0, leaf1, s);
    else
        quant_tile(f, panel, fast, R, j, g, row, at, leaf0, leaf1, s);
}

/* One tile of tile_rows(n, quant_rows_at_once) rows. */
INLINE void quant_rows(enum family f, bool panel, bool fast, const struct linear_job *j, int g, int row, int n, int at,
                       int leaf0, int leaf1, struct linear_scratch *s)
{
    int most = quant_rows_at_once(fast), rows = tile_rows(n, most);
    if (rows == 1)
        one_tile(f, panel, fast, 1, j, g, row, at, leaf0, leaf1, s);
    else if (rows == 2)
        one_tile(f, panel, fast, 2, j, g, row, at, leaf0, leaf1, s);
    else if (most > 2 && rows == 3)
        one_tile(f, panel, fast, 3, j, g, row, at, leaf0, leaf1, s);
    else if (most > 3 && rows == 4)
        one_tile(f, panel, fast, 4, j, g, row, at, leaf0, leaf1, s);
    else if (most > 4)
        one_tile(f, panel, fast, 8, j, g, row, at, leaf0, leaf1, s);
}

/* Unpacks the blocks of leaves [leaf0, leaf1) of group g. */
INLINE void panel_fill(enum family f, bool fast, const struct linear_job *j, int g, int leaf0, int leaf1,
                       struct linear_scratch *s)
{
    const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
    int blocks = j->col1 / BLOCK_COLS, end = 2 * leaf1 < blocks ? 2 * leaf1 : blocks;
    for (int b = 2 * leaf0; b < end; b++) {
        struct block_at at = {0};
        int i = b - 2 * leaf0;
        at.w = family_block(f, group, b, &at.head);
        panel_block(family_bits(f), fast, at.w, s->panel + (size_t)i * PANEL_BLOCK);
        for (int part = 0; part < (f == FAM_K6 ? 2 : 1); part++)
            vf_store(s->scale[i][part], packed_scale(f, &at, part));
        if (family_has_min(f))
            vf_store(s->min[i], packed_min(f, &at));
    }
}

typedef void panel_fn(const struct linear_job *j, int g, int row, int n, int at, int leaf0, int leaf1,
                      struct linear_scratch *s);

/* Few rows multiply straight from the packed bytes, tile after tile; more unpack each weight once for all of them. */
INLINE void quant_group(enum family f, bool fast, panel_fn *panel_rows, const struct linear_job *j, int g, int row0,
                        int n, struct linear_scratch *s)
{
    int most = quant_rows_at_once(fast);
    if (n <= in_place_rows(f, fast)) {
        for (int i = 0; i < n; i += tile_rows(n - i, most))
            quant_rows(f, false, fast, j, g, row0 + i, n - i, 0, j->leaf0, j->leaf1, s);
        return;
    }
    for (int a = j->leaf0, b; a < j->leaf1; a = b) {
        b = (a / SPAN_LEAVES + 1) * SPAN_LEAVES;
        b = b < j->leaf1 ? b : j->leaf1;
        panel_fill(f, fast, j, g, a, b, s);
        for (int i = 0; i < n; i += tile_rows(n - i, most))
            panel_rows(j, g, row0 + i, n - i, i, a, b, s);
    }
}

/* Each twice: for inputs of sixteen bits, and for fast ones. */
#define PANEL_KERNEL(name, fam)                                                                                        \
    static void name(const struct linear_job *j, int g, int row, int n, int at, int leaf0, int leaf1,                  \
                     struct linear_scratch *s)                                                                         \
    {                                                                                                                  \
        quant_rows(fam, true, false, j, g, row, n, at, leaf0, leaf1, s);                                               \
    }                                                                                                                  \
    static void fast_##name(const struct linear_job *j, int g, int row, int n, int at, int leaf0, int leaf1,           \
                            struct linear_scratch *s)                                                                  \
    {                                                                                                                  \
        quant_rows(fam, true, true, j, g, row, n, at, leaf0, leaf1, s);                                                \
    }
#define GROUP_KERNEL(name, fam, panel_name)                                                                            \
    static void name(const struct linear_job *j, int g, int row0, int n, struct linear_scratch *s)                     \
    {                                                                                                                  \
        if (j->fast)                                                                                                   \
            quant_group(fam, true, fast_##panel_name, j, g, row0, n, s);                                               \
        else                                                                                                           \
            quant_group(fam, false, panel_name, j, g, row0, n, s);                                                     \
    }
PANEL_KERNEL(panel_u4, FAM_U4)
PANEL_KERNEL(panel_u4m, FAM_U4M)
PANEL_KERNEL(panel_u5, FAM_U5)
PANEL_KERNEL(panel_u5m, FAM_U5M)
PANEL_KERNEL(panel_s8, FAM_S8)
PANEL_KERNEL(panel_k6, FAM_K6)
GROUP_KERNEL(group_u4, FAM_U4, panel_u4)
GROUP_KERNEL(group_u4m, FAM_U4M, panel_u4m)
GROUP_KERNEL(group_u5, FAM_U5, panel_u5)
GROUP_KERNEL(group_u5m, FAM_U5M, panel_u5m)
GROUP_KERNEL(group_s8, FAM_S8, panel_s8)
GROUP_KERNEL(group_k4, FAM_K4, panel_u4m)
GROUP_KERNEL(group_k5, FAM_K5, panel_u5m)
GROUP_KERNEL(group_k6, FAM_K6, panel_k6)

INLINE vf float_weights(enum family f, const uint8_t *p)
{
    return f == FAM_F32   ? vf_load((const float *)p)
           : f == FAM_F16 ? vf_load_f16((const uint16_t *)p)
           : f == FAM_F8  ? vf_load_f8(p)
                          : vf_load_bf16((const uint16_t *)p);
}

INLINE void float_tile(enum family f, int R, const struct linear_job *j, int g, int row, struct linear_scratch *s)
{
    size_t step = (size_t)family_element_bytes(f) * GROUP_ROWS;
    const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
    const float *x = j->x + (size_t)row * j->ldx;
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[TILE];
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_set1(0);
        int end = (leaf + 1) * LEAF_COLS < j->col1 ? (leaf + 1) * LEAF_COLS : j->col1;
        const uint8_t *at = family_leaf(f, group, leaf), *columns = at + family_leaf_head(f);
        for (int c = leaf * LEAF_COLS; c < end; c++, columns += step) {
            vf w = float_weights(f, columns);
            UNROLL for (int r = 0; r < R; r++) acc[r] =
                vf_fma(w, vf_load1(x + (size_t)r * j->ldx + (c - j->col0)), acc[r]);
        }
        if (f == FAM_F8) {
            vf d = vf_load((const float *)at);
            UNROLL for (int r = 0; r < R; r++) acc[r] = vf_mul(d, acc[r]);
        }
        leaf_done(j, R, g, row, 0, j->steps[leaf - j->leaf0], acc, s);
    }
}

/* ---- pairs */

/* Block 0 of a row's inputs. */
INLINE const uint16_t *half_row(const struct linear_job *j, int row)
{
    return j->half + quant_at(j->blocks, j->tile, (size_t)row) * BLOCK_COLS;
}

INLINE int leaf_pairs(const struct linear_job *j, int leaf)
{
    int left = j->col1 - leaf * LEAF_COLS;
    return left < LEAF_COLS ? (left + 1) / 2 : LEAF_COLS / 2;
}

INLINE void half_tile(int R, const struct linear_job *j, int g, int row, struct linear_scratch *s)
{
    const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
    const uint16_t *x = half_row(j, row);
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[TILE], even, odd;
        float wide[TILE][LEAF_COLS];
        const uint8_t *w = family_leaf(FAM_PAIR, group, leaf);
        int pairs = leaf_pairs(j, leaf), block = (leaf * LEAF_COLS - j->col0) / BLOCK_COLS;
        UNROLL for (int r = 0; r < R; r++)
        {
            acc[r] = vf_set1(0);
            for (int c = 0; c < 2 * pairs; c += 16) {
                size_t at = ((size_t)(block + c / BLOCK_COLS) * j->tile + (size_t)r) * BLOCK_COLS;
                vf_store(wide[r] + c, vf_load_bf16(x + at + c % BLOCK_COLS));
            }
        }
        for (int i = 0; i < pairs; i++, w += (size_t)4 * GROUP_ROWS) {
            vf_load_pairs(w, &even, &odd);
            UNROLL for (int r = 0; r < R; r++)
            {
                acc[r] = vf_fma(odd, vf_load1(wide[r] + 2 * i + 1), acc[r]);
                acc[r] = vf_fma(even, vf_load1(wide[r] + 2 * i), acc[r]);
            }
        }
        leaf_done(j, R, g, row, 0, j->steps[leaf - j->leaf0], acc, s);
    }
}

#ifdef VEC_PAIRS
/* n pairs of one block of 32 columns. */
INLINE void pair_block(int R, int n, const uint8_t *w, const uint16_t *x, vf acc[])
{
    for (int i = 0; i < n; i++) {
        vi two = pair_load(w + (size_t)64 * (size_t)i);
        UNROLL for (int r = 0; r < R; r++) acc[r] = pair_add(acc[r], two, x + BLOCK_COLS * r + 2 * i);
    }
}

INLINE void pair_tile(int R, const struct linear_job *j, int g, int row, struct linear_scratch *s)
{
    const uint8_t *w = family_leaf(FAM_PAIR, j->w->data + (size_t)g * j->w->group_bytes, j->leaf0);
    const uint16_t *x = half_row(j, row);
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[TILE];
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_set1(0);
        for (int left = leaf_pairs(j, leaf); left > 0; left -= 16, w += 1024, x += j->tile * BLOCK_COLS) {
            if (left >= 16)
                pair_block(R, 16, w, x, acc);
            else
                pair_block(R, left, w, x, acc);
        }
        leaf_done(j, R, g, row, 0, j->steps[leaf - j->leaf0], acc, s);
    }
}
#else
#define pair_tile half_tile
#endif

/* dots: pairs by the CPU's own. */
INLINE void float_rows(enum family f, bool dots, int R, const struct linear_job *j, int g, int row,
                       struct linear_scratch *s)
{
    if (f != FAM_PAIR)
        float_tile(f, R, j, g, row, s);
    else if (dots)
        pair_tile(R, j, g, row, s);
    else
        half_tile(R, j, g, row, s);
}

INLINE void float_group(enum family f, bool dots, const struct linear_job *j, int g, int row0, int n,
                        struct linear_scratch *s)
{
    for (int i = 0; i < n; i += tile_rows(n - i, TILE)) {
        switch (tile_rows(n - i, TILE)) {
        case 1:
            float_rows(f, dots, 1, j, g, row0 + i, s);
            break;
        case 2:
            float_rows(f, dots, 2, j, g, row0 + i, s);
            break;
        case 3:
            float_rows(f, dots, 3, j, g, row0 + i, s);
            break;
        case 4:
            float_rows(f, dots, 4, j, g, row0 + i, s);
            break;
        default:
            if (TILE > 4)
                float_rows(f, dots, TILE, j, g, row0 + i, s);
        }
    }
}

static void group_pair(const struct linear_job *j, int g, int row0, int n, struct linear_scratch *s)
{
    if (j->half_dots)
        float_group(FAM_PAIR, true, j, g, row0, n, s);
    else
        float_group(FAM_PAIR, false, j, g, row0, n, s);
}

#define FLOAT_KERNEL(name, fam)                                                                                        \
    static void name(const struct linear_job *j, int g, int row0, int n, struct linear_scratch *s)                     \
    {                                                                                                                  \
        float_group(fam, false, j, g, row0, n, s);                                                                     \
    }
FLOAT_KERNEL(group_f32, FAM_F32)
FLOAT_KERNEL(group_f16, FAM_F16)
FLOAT_KERNEL(group_bf16, FAM_BF16)
FLOAT_KERNEL(group_f8, FAM_F8)

static void linear_kernel(const struct linear_job *j, int g, int row0, int n, struct linear_scratch *s)
{
    static void (*const by_family[])(const struct linear_job *, int, int, int, struct linear_scratch *) = {
        [FAM_F32] = group_f32, [FAM_F16] = group_f16, [FAM_BF16] = group_bf16, [FAM_PAIR] = group_pair,
        [FAM_F8] = group_f8,   [FAM_U4] = group_u4,   [FAM_U4M] = group_u4m,   [FAM_U5] = group_u5,
        [FAM_U5M] = group_u5m, [FAM_S8] = group_s8,   [FAM_K4] = group_k4,     [FAM_K5] = group_k5,
        [FAM_K6] = group_k6,
    };
    by_family[j->w->family](j, g, row0, n, s);
}

#endif
