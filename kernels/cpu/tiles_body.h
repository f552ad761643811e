/* Tiles: a leaf's keys and values as many queries multiply them, out of the cache or out of a row's path through a
 * tree. A part of attention_body.h, which includes it and says what the forms are. */
#ifndef CPU_TILES_BODY_H
#define CPU_TILES_BODY_H

/* Sixteen elements, as halves where the job takes those. */
INLINE vf load_tile(enum dtype t, bool half, const void *p, size_t i)
{
    vf x = load_cached(t, p, i);
    return half && t != DT_BF16 && t != DT_I8 ? vf_round_half(vf_drop_small(x)) : x;
}

/* Widens run s of the leaf into the job's tiles, where many queries will read it. */
INLINE void widen_run(enum dtype t, bool half, const struct attend_job *j, int s, struct leaf_kv *kv)
{
    float *k = j->k_tile + s * SEGMENT, *v = j->v_tile + (size_t)(s * SEGMENT) * kv->v_stride;
    for (int d = 0; d < j->head_dim; d++)
        vf_store(k + (size_t)d * ATTN_LEAF, load_tile(t, half, kv->k[s], (size_t)d * kv->k_stride));
    for (size_t i = 0; i < SEGMENT * kv->v_stride; i += 16)
        vf_store(v + i, load_tile(t, half, kv->v[s], i));
    if (half && j->head_dim % 2)
        vf_store(k + (size_t)j->head_dim * ATTN_LEAF, vf_set1(0));
    kv->k[s] = k;
    kv->v[s] = v;
}

#ifdef VEC_PAIRS
INLINE void lace_two(enum dtype t, const void *p, size_t even, size_t odd, uint8_t *out)
{
    if (t == DT_BF16)
        pair_store(out, pair_of((const uint16_t *)p + even, (const uint16_t *)p + odd));
    else if (t == DT_I8)
        pair_store(out, pair_of_bytes((const int8_t *)p + even, (const int8_t *)p + odd));
    else
        vf_store_pairs(out, vf_drop_small(load_cached(t, p, even)), vf_drop_small(load_cached(t, p, odd)));
}

INLINE void lace_run(enum dtype t, const struct attend_job *j, int s, struct leaf_kv *kv)
{
    uint8_t *k = (uint8_t *)j->k_tile + (size_t)(4 * s * SEGMENT),
            *v = (uint8_t *)j->v_tile + (size_t)(2 * s * SEGMENT) * kv->v_stride;
    for (int d = 0; d + 1 < j->head_dim; d += 2)
        lace_two(t, kv->k[s], (size_t)d * kv->k_stride, (size_t)(d + 1) * kv->k_stride,
                 k + (size_t)(2 * d) * ATTN_LEAF);
    if (j->head_dim % 2)
        vf_store_pairs(k + (size_t)(2 * (j->head_dim - 1)) * ATTN_LEAF,
                       vf_drop_small(load_cached(t, kv->k[s], (size_t)(j->head_dim - 1) * kv->k_stride)), vf_set1(0));
    for (size_t p = 0; p < SEGMENT; p += 2)
        for (size_t d = 0; d < kv->v_stride; d += 16)
            lace_two(t, kv->v[s], p * kv->v_stride + d, (p + 1) * kv->v_stride + d, v + 2 * p * kv->v_stride + 4 * d);
    kv->k[s] = k;
    kv->v[s] = v;
}
#endif

/* Element d of position p in a tile. */
INLINE void put_in_tile(enum form f, void *tile, size_t at, size_t pair_at, float x)
{
    if (f == DOT_LACED)
        ((uint16_t *)tile)[pair_at] = f32_to_bf16(x);
    else
        ((float *)tile)[at] = x;
}

/* The leaf's scales where they may be changed. */
static void copy_scales(const struct attend_job *j, const int range[2], struct leaf_kv *kv)
{
    for (int s = range[0] / SEGMENT; s * SEGMENT < range[1]; s++) {
        float *k = j->scales + s * SEGMENT, *v = k + ATTN_LEAF;
        memcpy(k, kv->k_scale[s], SEGMENT * sizeof *k);
        memcpy(v, kv->v_scale[s], SEGMENT * sizeof *v);
        kv->k_scale[s] = k;
        kv->v_scale[s] = v;
    }
}

/* Puts what a path has in the leaf's positions below `to` into the tiles, in place of what is cached there. */
INLINE void graft_path(enum dtype t, enum form f, const struct attend_job *j, int leaf, int to)
{
    size_t size = (size_t)dtype_get(t)->bytes, tokens = (size_t)j->tokens_per_block, dim = (size_t)j->padded_dim;
    int start = leaf * ATTN_LEAF, i = j->path0 < start ? start - j->path0 : 0;
    for (; i < j->n_path && j->path0 + i < start + to; i++) {
        size_t slot = (size_t)j->path[i], at = slot % tokens, run = at / SEGMENT * SEGMENT,
               p = (size_t)(j->path0 + i - start);
        const uint8_t *k = j->head + (size_t)j->blocks[slot / tokens] * j->block_bytes, *v = k + j->v_bytes;
        float lanes[SEGMENT];
        if (j->path[i] == j->path0 + i)
            continue;
        if (t == DT_I8) {
            j->scales[p] = ((const float *)(const void *)(k + tokens * (size_t)j->head_dim))[at];
            j->scales[ATTN_LEAF + p] = ((const float *)(const void *)(v + tokens * dim))[at];
        }
        for (size_t d = 0; d < (size_t)j->head_dim; d++) {
            vf_store(lanes, load_tile(t, !is_one(f), k + run * size, d * tokens));
            put_in_tile(f, j->k_tile, d * ATTN_LEAF + p, (d / 2 * ATTN_LEAF + p) * 2 + d % 2, lanes[at - run]);
        }
        for (size_t d = 0; d < dim; d++) {
            if (d % SEGMENT == 0)
                vf_store(lanes, load_tile(t, !is_one(f), v + at * dim * size, d));
            put_in_tile(f, j->v_tile, p * dim + d, (p / 2 * dim + d) * 2 + p % 2, lanes[d % SEGMENT]);
        }
    }
}

INLINE void tile_leaf(enum dtype t, enum form f, const struct attend_job *j, int leaf, const int range[2],
                      struct leaf_kv *kv)
{
    for (int s = range[0] / SEGMENT; s * SEGMENT < range[1]; s++) {
#ifdef VEC_PAIRS
        if (f == DOT_LACED) {
            lace_run(t, j, s, kv);
            continue;
        }
#endif
        widen_run(t, f == HALF_TILE, j, s, kv);
    }
    kv->k_stride = ATTN_LEAF;
    if (j->path && kv->scaled)
        copy_scales(j, range, kv);
    if (j->path)
        graft_path(t, f, j, leaf, range[1]);
}

#define TILE_LEAF(name, kind)                                                                                          \
    static void name(const struct attend_job *j, int leaf, const int range[2], struct leaf_kv *kv)                     \
    {                                                                                                                  \
        if (j->dtype == DT_F16)                                                                                        \
            tile_leaf(DT_F16, kind, j, leaf, range, kv);                                                               \
        else if (j->dtype == DT_BF16)                                                                                  \
            tile_leaf(DT_BF16, kind, j, leaf, range, kv);                                                              \
        else if (j->dtype == DT_F8)                                                                                    \
            tile_leaf(DT_F8, kind, j, leaf, range, kv);                                                                \
        else if (j->dtype == DT_I8)                                                                                    \
            tile_leaf(DT_I8, kind, j, leaf, range, kv);                                                                \
        else                                                                                                           \
            tile_leaf(DT_F32, kind, j, leaf, range, kv);                                                               \
        kv->form = kind;                                                                                               \
    }
TILE_LEAF(tile_ones, ONE_F32)
TILE_LEAF(tile_halves, HALF_TILE)
#ifdef VEC_PAIRS
TILE_LEAF(tile_laced, DOT_LACED)
#endif

#endif
