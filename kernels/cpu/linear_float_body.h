/* Tiles of float weights: one after the other, or bfloat16 in pairs. A part of linear_body.h, which includes it and
 * says what a tile is and where its sums go. */
#ifndef CPU_LINEAR_FLOAT_BODY_H
#define CPU_LINEAR_FLOAT_BODY_H

INLINE vf float_weights(enum family f, const uint8_t *p)
{
    return f == FAM_F32   ? vf_load((const float *)p)
           : f == FAM_F16 ? vf_load_f16((const uint16_t *)p)
           : f == FAM_F8  ? vf_load_f8(p)
                          : vf_load_bf16((const uint16_t *)p);
}

INLINE void float_tile(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    size_t step = (size_t)family_element_bytes(t.f) * GROUP_ROWS, next = j->w->group_bytes;
    const float *x = j->x + (size_t)p.row * j->ldx;
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[MAX_SUMS], w[FLOAT_WIDE];
        UNROLL_SUMS for (int r = 0; r < t.G * t.R; r++) acc[r] = vf_set1(0);
        int end = (leaf + 1) * LEAF_COLS < j->col1 ? (leaf + 1) * LEAF_COLS : j->col1;
        const uint8_t *at = family_leaf(t.f, group_at(j, p.g), leaf), *columns = at + family_leaf_head(t.f);
        for (int c = leaf * LEAF_COLS; c < end; c++, columns += step) {
            if (t.G == 1 && (uintptr_t)columns % 64 == 0)
                fetch_weights(t.R, columns + PREFETCH_AHEAD);
            UNROLL for (int i = 0; i < t.G; i++) w[i] = float_weights(t.f, columns + (size_t)i * next);
            UNROLL for (int r = 0; r < t.R; r++)
            {
                vf in = vf_load1(x + (size_t)r * j->ldx + (c - j->col0));
                UNROLL for (int i = 0; i < t.G; i++) acc[i * t.R + r] = vf_fma(w[i], in, acc[i * t.R + r]);
            }
        }
        if (t.f == FAM_F8) {
            UNROLL for (int i = 0; i < t.G; i++)
            {
                vf d = vf_load((const float *)(at + (size_t)i * next));
                UNROLL for (int r = 0; r < t.R; r++) acc[i * t.R + r] = vf_mul(d, acc[i * t.R + r]);
            }
        }
        leaf_done(j, t, p, j->steps[leaf - j->leaf0], acc, s);
    }
}

/* ---- pairs */

/* A leaf of a row's inputs as f32. */
INLINE void widen_inputs(const struct linear_job *j, const uint16_t *x, int leaf, float *wide)
{
    int block = (leaf * LEAF_COLS - j->col0) / BLOCK_COLS;
    for (int c = 0; c < 2 * leaf_pairs(j, leaf); c += 16) {
        size_t at = (size_t)(block + c / BLOCK_COLS) * j->in.tile * BLOCK_COLS;
        vf_store(wide + c, vf_load_bf16(x + at + c % BLOCK_COLS));
    }
}

INLINE void half_tile(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    const uint16_t *x = half_row(j, p.row);
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[MAX_SUMS], even[FLOAT_WIDE], odd[FLOAT_WIDE];
        float wide[TILE][LEAF_COLS];
        const uint8_t *w = family_leaf(FAM_PAIR, group_at(j, p.g), leaf);
        UNROLL_SUMS for (int r = 0; r < t.G * t.R; r++) acc[r] = vf_set1(0);
        UNROLL for (int r = 0; r < t.R; r++) widen_inputs(j, x + (size_t)r * BLOCK_COLS, leaf, wide[r]);
        for (int i = 0; i < leaf_pairs(j, leaf); i++, w += (size_t)4 * GROUP_ROWS) {
            UNROLL for (int k = 0; k < t.G; k++) vf_load_pairs(w + (size_t)k * j->w->group_bytes, &even[k], &odd[k]);
            UNROLL for (int r = 0; r < t.R; r++)
            {
                vf second = vf_load1(wide[r] + 2 * i + 1), first = vf_load1(wide[r] + 2 * i);
                UNROLL for (int k = 0; k < t.G; k++)
                {
                    acc[k * t.R + r] = vf_fma(odd[k], second, acc[k * t.R + r]);
                    acc[k * t.R + r] = vf_fma(even[k], first, acc[k * t.R + r]);
                }
            }
        }
        leaf_done(j, t, p, j->steps[leaf - j->leaf0], acc, s);
    }
}

#ifdef VEC_PAIRS
/* n pairs of one block of 32 columns. */
INLINE void pair_block(struct tile t, bool first, int n, const uint8_t *w, size_t next, const uint16_t *x, vf acc[])
{
    for (int i = 0; i < n; i++) {
        vi two[FLOAT_WIDE];
        UNROLL for (int k = 0; k < t.G; k++)
        {
            const uint8_t *at = w + (size_t)64 * (size_t)i + (size_t)k * next;
            if (first)
                fetch_weights(t.R, at + PREFETCH_AHEAD);
            two[k] = pair_load(at);
        }
        UNROLL for (int r = 0; r < t.R; r++)
        {
            vi in = pair_load1(x + BLOCK_COLS * r + 2 * i);
            UNROLL for (int k = 0; k < t.G; k++) acc[k * t.R + r] = pair_add(acc[k * t.R + r], two[k], in);
        }
    }
}

INLINE void pair_tile(struct tile t, const struct linear_job *j, struct place p, struct linear_scratch *s)
{
    const uint8_t *w = family_leaf(FAM_PAIR, group_at(j, p.g), j->leaf0);
    const uint16_t *x = half_row(j, p.row);
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        vf acc[MAX_SUMS];
        UNROLL_SUMS for (int r = 0; r < t.G * t.R; r++) acc[r] = vf_set1(0);
        for (int left = leaf_pairs(j, leaf); left > 0; left -= 16, w += 1024, x += j->in.tile * BLOCK_COLS) {
            if (left >= 16 && p.at == 0)
                pair_block(t, true, 16, w, j->w->group_bytes, x, acc);
            else if (left >= 16)
                pair_block(t, false, 16, w, j->w->group_bytes, x, acc);
            else
                pair_block(t, false, left, w, j->w->group_bytes, x, acc);
        }
        leaf_done(j, t, p, j->steps[leaf - j->leaf0], acc, s);
    }
}
#else
#define pair_tile half_tile
#endif

/* dots: pairs by the CPU's own. */
INLINE void float_rows(struct tile t, bool dots, int R, const struct linear_job *j, struct place p,
                       struct linear_scratch *s)
{
    t.R = R;
    if (t.f != FAM_PAIR)
        float_tile(t, j, p, s);
    else if (dots)
        pair_tile(t, j, p, s);
    else
        half_tile(t, j, p, s);
}

INLINE void float_group(enum family f, bool dots, const struct linear_job *j, struct place p, int n,
                        struct linear_scratch *s)
{
    struct tile t = {.f = f, .G = 1};
    for (int took; n > 0; n -= took, p.row += took) {
        took = tile_rows(n, TILE);
        switch (took) {
        case 1:
            float_rows(t, dots, 1, j, p, s);
            break;
        case 2:
            float_rows(t, dots, 2, j, p, s);
            break;
        case 3:
            float_rows(t, dots, 3, j, p, s);
            break;
        case 4:
            float_rows(t, dots, 4, j, p, s);
            break;
        default:
            if (TILE > 4)
                float_rows(t, dots, TILE, j, p, s);
        }
    }
}

/* Whole tiles of all of the groups, then the other rows, group after group. */
INLINE void float_groups(enum family f, bool dots, const struct linear_job *j, struct place p, int n, int groups,
                         struct linear_scratch *s)
{
    if (FLOAT_WIDE > 1 && groups == FLOAT_WIDE)
        for (; n >= TILE; n -= TILE, p.row += TILE, p.at += TILE)
            float_rows((struct tile){.f = f, .G = FLOAT_WIDE}, dots, TILE, j, p, s);
    for (; groups > 0; groups--, p.g++)
        float_group(f, dots, j, p, n, s);
}

static void linear_pair(const struct linear_job *j, struct place p, int n, int groups, struct linear_scratch *s)
{
    if (j->half_dots)
        float_groups(FAM_PAIR, true, j, p, n, groups, s);
    else
        float_groups(FAM_PAIR, false, j, p, n, groups, s);
}

#define FLOAT_KERNEL(name, fam)                                                                                        \
    static void name(const struct linear_job *j, struct place p, int n, int groups, struct linear_scratch *s)          \
    {                                                                                                                  \
        float_groups(fam, false, j, p, n, groups, s);                                                                  \
    }
FLOAT_KERNEL(linear_f32, FAM_F32)
FLOAT_KERNEL(linear_f16, FAM_F16)
FLOAT_KERNEL(linear_bf16, FAM_BF16)
FLOAT_KERNEL(linear_f8, FAM_F8)

#endif
