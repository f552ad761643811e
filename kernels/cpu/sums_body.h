/* What kernels of linear layers share: how far ahead they ask for weights, where inputs of halves lie, where sums go
 * (into the tree over leaves, kernels.h, and out). Part of a linear_*.c or
 * kernels_*.c by linear_body.h or linear_amx.c, after the lanes (vec_*.h). */
#ifndef CPU_SUMS_BODY_H
#define CPU_SUMS_BODY_H

/* Bytes: a core waits for memory less when it asks for more at once than it would by itself. Into the L2 cache: the L1
 * is small, and what lies in the L2 it fetches in time. All lines have to be asked for: what asks so far ahead keeps
 * the core from seeing by itself what comes. (Or, of each block, one: leads_itself.) */
enum { PREFETCH_AHEAD = 8192, LONG_GROUP = 8192 };

/* Into the L2 cache, or of so few rows, which take no room beside them, into the L1. */
INLINE void fetch_weights(int rows, const uint8_t *p)
{
    if (rows < 4)
        prefetch(p);
    else
        prefetch_far(p);
}

/* What a tile is, known when it is compiled: R rows of G groups. Its sums are [G][R]. */
struct tile {
    enum family f;
    bool panel, fast; /* quantised weights: unpacked; the inputs are fast ones */
    bool ahead;       /* in place: it is one of several, which share in fetching the next group */
    int R, G;
};

/* Where it lies: the matrix's group, the call's row, the row within the row block. The tile is one of so many that
 * share in fetching what comes next: the panel's weights, or the group. */
struct place {
    int g, row, at;
    int leaf0, leaf1;
    int tile, tiles;
};

INLINE const uint8_t *group_at(const struct linear_job *j, int g)
{
    return j->w->data + (size_t)g * j->w->group_bytes;
}

/* Block 0 of a row's inputs. */
INLINE const uint16_t *half_row(const struct linear_job *j, int row)
{
    return j->half + quant_at(j->blocks, j->in.tile, (size_t)row) * BLOCK_COLS;
}

INLINE int leaf_pairs(const struct linear_job *j, int leaf)
{
    int left = j->col1 - leaf * LEAF_COLS;
    return left < LEAF_COLS ? (left + 1) / 2 : LEAF_COLS / 2;
}

/* Where the nodes of a level wait for their right siblings. */
struct nodes {
    float *first;
    size_t group, row; /* from one to the next, in floats */
};

INLINE struct nodes level_at(struct linear_scratch *s, int at, int level)
{
    if (level < INNER_LEVELS)
        return (struct nodes){s->inner[level][0][0], MAX_TILE * GROUP_ROWS, GROUP_ROWS};
    return (struct nodes){s->outer[level - INNER_LEVELS][0][at], ROW_BLOCK * GROUP_ROWS, GROUP_ROWS};
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

INLINE void add_nodes(struct tile t, struct nodes n, vf acc[])
{
    UNROLL for (int i = 0; i < t.G; i++)
    {
        UNROLL for (int r = 0; r < t.R; r++) acc[i * t.R + r] =
            vf_add(vf_load(n.first + (size_t)i * n.group + (size_t)r * n.row), acc[i * t.R + r]);
    }
}

INLINE void keep_nodes(struct tile t, struct nodes n, const vf acc[])
{
    UNROLL for (int i = 0; i < t.G; i++)
    {
        UNROLL for (int r = 0; r < t.R; r++)
            vf_store(n.first + (size_t)i * n.group + (size_t)r * n.row, acc[i * t.R + r]);
    }
}

/* Leaf's sums in acc: into the tree, or out. */
INLINE void leaf_done(const struct linear_job *j, struct tile t, struct place p, struct sum_step step, vf acc[],
                      struct linear_scratch *s)
{
    for (uint32_t add = step.add; add; add &= add - 1)
        add_nodes(t, level_at(s, p.at, __builtin_ctz(add)), acc);
    if (step.level >= 0) {
        keep_nodes(t, level_at(s, p.at, step.level), acc);
        return;
    }
    UNROLL for (int i = 0; i < t.G; i++)
    {
        UNROLL for (int r = 0; r < t.R; r++) put_row(j, p.g + i, p.row + r, acc[i * t.R + r]);
    }
}

#endif
