/* Fetches keys and values ahead of their use. Those of a few queries come from memory, which is what takes the time: of
 * itself a core asks for too little at once, and for nothing beyond a page, and each head has but a part of each block.
 * So while a run of 16 positions is read, that which comes RUNS_AHEAD later is asked for, line by line, of the next
 * leaf where this one ends. Included by attention_body.h. */
#ifndef CPU_AHEAD_BODY_H
#define CPU_AHEAD_BODY_H

enum { RUNS_AHEAD = 8, LINE = 64 };

/* Read from the cache, not from a tile. */
INLINE bool is_cached(enum form f)
{
    return f != HALF_TILE && f != DOT_LACED;
}

/* For element d of a run's keys, and of halves the next one. */
INLINE void fetch_keys(enum form f, const struct leaf_kv *kv, int run, int d)
{
    const int elements = is_one(f) ? 1 : 2, of_line = (int)(LINE / (SEGMENT * size_of(f)));
    if (!is_cached(f) || d % of_line)
        return;
    const uint8_t *at = kv->ahead[run] + (size_t)d * kv->k_stride * size_of(f);
    prefetch_far(at);
    if (elements > of_line)
        prefetch_far(at + kv->k_stride * size_of(f));
}

/* For G runs of 16 elements, from element d on, of the value at position p. */
INLINE void fetch_value(enum form f, int G, const struct leaf_kv *kv, int p, int d)
{
    if (!is_cached(f))
        return;
    const uint8_t *run = kv->ahead[LEAF_SEGMENTS + p / SEGMENT];
    size_t from = ((size_t)(p % SEGMENT) * kv->v_stride + (size_t)d) * size_of(f);
    UNROLL for (int i = 0; i < G * SEGMENT * (int)size_of(f); i += LINE) prefetch_far(run + from + i);
}

/* The run of keys, or of values, at position p. */
INLINE const uint8_t *run_at(const struct attend_job *j, int p, bool values)
{
    size_t at = (size_t)(p % j->tokens_per_block), size = (size_t)dtype_get(j->dtype)->bytes;
    const uint8_t *keys = j->head + (size_t)j->blocks[p / j->tokens_per_block] * j->block_bytes;
    return values ? keys + j->v_bytes + at * (size_t)j->padded_dim * size : keys + at * size;
}

/* What will be read after the leaf's [range[0], range[1]), and then [range[2], range[3]) of the next one; where there
 * is nothing to ask for, something near. */
INLINE void look_ahead(const struct attend_job *j, int leaf, const int range[4], struct leaf_kv *kv)
{
    const uint8_t *near = j->k_tile ? (const uint8_t *)j->k_tile : run_at(j, leaf * ATTN_LEAF + range[0], false);
    for (int i = 0; i < LEAF_RUNS; i++) {
        int run = (i + RUNS_AHEAD) % LEAF_RUNS, at = run % LEAF_SEGMENTS * SEGMENT,
            beyond = i + RUNS_AHEAD >= LEAF_RUNS;
        bool seen = !j->k_tile && at < range[2 * beyond + 1] && at + SEGMENT > range[2 * beyond];
        kv->ahead[i] = seen ? run_at(j, (leaf + beyond) * ATTN_LEAF + at, run >= LEAF_SEGMENTS) : near;
    }
}

#endif
