#include "kernels/cpu/linear_amx.h"

#if (defined(__AMX_INT8__) && defined(__AMX_BF16__)) || defined(CPU_INTRINSICS)
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/panel_body.h"

/* Blocks whose dots are in memory at once: two leaves', which are added to each other. Lanes take half of the rows at a
 * time, so that the sums of both leaves are in registers. */
enum { AT_ONCE = 4, DOTS = AMX_TILE * GROUP_ROWS, LANE_ROWS = AMX_TILE / 2 };

/* [block][part][group] of [row][output]: as many of each as there are. */
struct dots {
    _Alignas(64) int32_t of[AT_ONCE * 2 * QUANT_WIDE * DOTS];
};

/* Tiles: the inputs of a part (columns that share a scale), the weights of two groups, the dots of both. Not an enum:
 * gcc puts the names' text into instructions. */
#define T_INPUTS 0
#define T_LEFT 1
#define T_RIGHT 2
#define T_LEFT_DOTS 3
#define T_RIGHT_DOTS 4
enum { N_TILES = 5 };

/* Rows of inputs, bytes of each, rows of weights: four columns, or two, are one. */
static void configure(int rows, int in_bytes, int weight_rows)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < N_TILES; i++) {
        c.rows[i] = (uint8_t)(i == T_LEFT || i == T_RIGHT ? weight_rows : rows);
        c.row_bytes[i] = (uint16_t)(i == T_INPUTS ? in_bytes : 64);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* gcc 12 thinks that loadconfig reads 8 bytes */
    _tile_loadconfig(&c);
}

INLINE void part_dots(int G, const int8_t *q, const uint8_t *w, int32_t *out)
{
    _tile_loadd(T_INPUTS, q, FAST_BLOCK);
    _tile_loadd(T_LEFT, w, 64);
    _tile_zero(T_LEFT_DOTS);
    _tile_dpbssd(T_LEFT_DOTS, T_INPUTS, T_LEFT);
    _tile_stored(T_LEFT_DOTS, out, 64);
    if (G > 1) {
        _tile_loadd(T_RIGHT, w + PANEL_BLOCK, 64);
        _tile_zero(T_RIGHT_DOTS);
        _tile_dpbssd(T_RIGHT_DOTS, T_INPUTS, T_RIGHT);
        _tile_stored(T_RIGHT_DOTS, out + DOTS, 64);
    }
}

/* A panel and the inputs of a row tile. */
struct product {
    const struct linear_scratch *s;
    struct qinput in; /* of the panel's first block */
};

/* Blocks [b, end) of the panel. */
INLINE void dots_of(struct tile t, const struct product *p, int b, int end, struct dots *d)
{
    for (int i = b; i < end; i++)
        for (int part = 0; part < family_parts(t.f); part++)
            part_dots(t.G, p->in.q + (size_t)i * AMX_TILE * FAST_BLOCK + 16 * part,
                      p->s->panel + (size_t)(i * t.G) * PANEL_BLOCK + 256 * part,
                      d->of + ((i - b) * family_parts(t.f) + part) * t.G * DOTS);
}

/* What lanes read of a block: of half of a row tile and one group. */
struct lanes {
    const int32_t *dots;
    const float *scale, *min;
    const union qword *meta;
    const int32_t *half;
};

INLINE struct lanes lanes_at(struct tile t, const struct product *p, int b, const struct dots *d, int g, int row)
{
    const size_t at = (size_t)(b * 2 * t.G + g) * GROUP_ROWS;
    return (struct lanes){d->of + g * DOTS + row * GROUP_ROWS, p->s->scale + at, p->s->min + at,
                          p->in.meta + (size_t)b * 3 * AMX_TILE + row, p->in.half + (size_t)b * 2 * AMX_TILE + row};
}

/* acc += what the block adds. */
INLINE void block_sums(struct tile t, const struct lanes *l, vf acc[])
{
    const int parts = family_parts(t.f);
    for (int part = 0; part < parts; part++) {
        vf dw = vf_load(l->scale + part * t.G * GROUP_ROWS);
        UNROLL for (int r = 0; r < LANE_ROWS; r++)
        {
            vf dot = vi_to_f(_mm512_load_si512(l->dots + part * t.G * DOTS + r * GROUP_ROWS));
            acc[r] = vf_fma(vf_mul(dw, vf_load1(&l->meta[AMX_TILE + r].f)), dot, acc[r]);
        }
    }
    for (int part = 0; part < parts && family_has_min(t.f); part++) {
        vf mw = vf_load(l->min + part * t.G * GROUP_ROWS);
        UNROLL for (int r = 0; r < LANE_ROWS; r++)
        {
            vf x = vf_load1(&l->meta[(parts == 2 ? 1 : 2) * AMX_TILE + r].f);
            if (parts == 2)
                x = vf_mul(x, vi_to_f(vi_load1(l->half + part * AMX_TILE + r)));
            acc[r] = vf_fma(mw, x, acc[r]);
        }
    }
}

/* The sums of a leaf's blocks, behind which l is then. */
INLINE void leaf_sums(struct tile t, struct lanes *l, int blocks, vf acc[])
{
    UNROLL for (int r = 0; r < LANE_ROWS; r++) acc[r] = vf_set1(0);
    UNROLL for (int i = 0; i < blocks; i++)
    {
        block_sums(t, l, acc);
        l->dots += family_parts(t.f) * t.G * DOTS;
        l->scale += 2 * t.G * GROUP_ROWS;
        l->min += 2 * t.G * GROUP_ROWS;
        l->meta += 3 * AMX_TILE;
        l->half += 2 * AMX_TILE;
    }
}

/* Of two leaves that are added to each other, or of one by itself. */
INLINE void leaves_sums(struct tile t, struct lanes l, int blocks, vf acc[])
{
    vf right[LANE_ROWS];
    if (blocks == AT_ONCE) {
        leaf_sums(t, &l, 2, acc);
        leaf_sums(t, &l, 2, right);
    } else {
        leaf_sums(t, &l, blocks < 2 ? blocks : 2, acc);
        if (blocks <= 2)
            return;
        leaf_sums(t, &l, blocks - 2, right);
    }
    UNROLL for (int r = 0; r < LANE_ROWS; r++) acc[r] = vf_add(acc[r], right[r]);
}

INLINE int least(int a, int b)
{
    return a < b ? a : b;
}

/* Half of a row tile, from `row` on, and a group. Of its rows n are there; which may be less than none. */
struct half {
    int g, row, n;
    int inner; /* levels of nodes that last for one row tile and span only */
};

INLINE struct nodes half_nodes(struct linear_scratch *s, struct place at, struct half h, int level)
{
    if (level < h.inner)
        return (struct nodes){s->inner[level][2 * h.g + (h.row > 0)][0], 0, GROUP_ROWS};
    return (struct nodes){s->outer[level - h.inner][h.g][at.at + h.row], 0, GROUP_ROWS};
}

/* As leaf_done. */
INLINE void half_done(const struct linear_job *j, struct place at, struct half h, struct sum_step step, vf acc[],
                      struct linear_scratch *s)
{
    const struct tile t = {.R = LANE_ROWS, .G = 1};
    for (uint32_t add = step.add; add; add &= add - 1)
        add_nodes(t, half_nodes(s, at, h, __builtin_ctz(add)), acc);
    if (step.level >= 0) {
        keep_nodes(t, half_nodes(s, at, h, step.level), acc);
        return;
    }
    UNROLL for (int r = 0; r < LANE_ROWS; r++)
    {
        if (r < h.n)
            put_row(j, at.g + h.g, at.row + h.row + r, acc[r]);
    }
}

/* Outputs of the next row tile, if this one's are done by now: what tiles store would wait behind them for memory. */
INLINE void prefetch_outputs(struct tile t, const struct linear_job *j, struct place at, int n)
{
    if (at.leaf1 != j->leaf1)
        return;
    const float *y = j->y + ((size_t)at.row + j->in.tile) * j->ldy + (at.g - j->group0) * GROUP_ROWS;
    for (int r = 0; r < n; r++, y += j->ldy)
        for (int g = 0; g < t.G; g++)
            __builtin_prefetch(y + g * GROUP_ROWS, 1);
}

/* The tree gets what a panel adds to a row tile, from whose first one n rows are there. */
INLINE void tile_sums(struct tile t, const struct linear_job *j, struct place at, int n, struct linear_scratch *s)
{
    int b0 = 2 * at.leaf0, blocks = least(2 * at.leaf1, j->col1 / BLOCK_COLS) - b0;
    struct product p = {s, qinput_at(&j->in, j->blocks, (size_t)at.row, (size_t)(b0 - j->col0 / BLOCK_COLS), true)};
    struct dots dots;
    prefetch_outputs(t, j, at, least(n - AMX_TILE, AMX_TILE));
    for (int due = at.tile; due < blocks; due += at.tiles) /* what the next panel is made of lies behind this one's */
        prefetch_panel(t, j, at, b0 + due + blocks);
    for (int leaf = at.leaf0, next; leaf < at.leaf1; leaf = next) {
        next = least((leaf | 1) + 1, at.leaf1);
        int b = 2 * (leaf - at.leaf0), end = least(2 * (next - at.leaf0), blocks);
        struct sum_step step = j->steps[next - 1 - j->leaf0];
        if (next - leaf == 2)
            step.add &= ~1u;
        dots_of(t, &p, b, end, &dots);
        for (int g = 0; g < t.G; g++) {
            for (int row = 0; row < AMX_TILE; row += LANE_ROWS) {
                vf acc[LANE_ROWS];
                leaves_sums(t, lanes_at(t, &p, b, &dots, g, row), end - b, acc);
                half_done(j, at, (struct half){g, row, n - row, INNER_LEVELS}, step, acc, s);
            }
        }
    }
}

/* The panel's blocks as signed bytes. */
INLINE void fill(enum family f, const struct linear_job *j, struct place p, int G, struct linear_scratch *s)
{
    struct tile t = {.f = f, .G = G};
    int b0 = 2 * p.leaf0, end = least(2 * p.leaf1, j->col1 / BLOCK_COLS), shift = zero_shift(f);
    for (int i = 0; i < G; i++) {
        for (int b = b0; b < end; b++) {
            struct block_at at = {0};
            int to = (b - b0) * G + i;
            at.w = family_block(f, group_at(j, p.g + i), b, &at.head);
            UNROLL for (int c = 0; c < 8; c++)
            {
                __m512i x = chunk(family_bits(f), false, at.w, c);
                if (shift == S8_SHIFT) /* the same, where it would not fit */
                    x = _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80));
                else if (shift)
                    x = _mm512_sub_epi8(x, _mm512_set1_epi8((char)(1 << shift)));
                _mm512_storeu_si512(s->panel + (size_t)to * PANEL_BLOCK + 64 * c, x);
            }
            panel_scales(t, &at, to, s);
        }
    }
}

typedef void fill_fn(const struct linear_job *j, struct place p, int G, struct linear_scratch *s);
typedef void tile_fn(const struct linear_job *j, struct place p, int n, struct linear_scratch *s);

#define FILL(name, fam)                                                                                                \
    static void name(const struct linear_job *j, struct place p, int G, struct linear_scratch *s)                      \
    {                                                                                                                  \
        fill(fam, j, p, G, s);                                                                                         \
    }
FILL(fill_u4, FAM_U4)
FILL(fill_u4m, FAM_U4M)
FILL(fill_u5, FAM_U5)
FILL(fill_u5m, FAM_U5M)
FILL(fill_s8, FAM_S8)
FILL(fill_c4, FAM_C4)
FILL(fill_kc4, FAM_KC4)
FILL(fill_k2, FAM_K2)
FILL(fill_k3, FAM_K3)
FILL(fill_k4, FAM_K4)
FILL(fill_k5, FAM_K5)
FILL(fill_k6, FAM_K6)

/* A panel's tiles are alike whose blocks have as many parts and minima. */
#define TILES(name, like)                                                                                              \
    static void name##_1(const struct linear_job *j, struct place p, int n, struct linear_scratch *s)                  \
    {                                                                                                                  \
        tile_sums((struct tile){.f = like, .G = 1}, j, p, n, s);                                                       \
    }                                                                                                                  \
    static void name##_2(const struct linear_job *j, struct place p, int n, struct linear_scratch *s)                  \
    {                                                                                                                  \
        tile_sums((struct tile){.f = like, .G = 2}, j, p, n, s);                                                       \
    }
TILES(plain, FAM_U4)
TILES(with_min, FAM_U4M)
TILES(halves, FAM_K6)
TILES(halves_with_min, FAM_K2)

static tile_fn *tiles_of(enum family f, int G)
{
    static tile_fn *const of[2][2][2] = {{{plain_1, plain_2}, {with_min_1, with_min_2}},
                                         {{halves_1, halves_2}, {halves_with_min_1, halves_with_min_2}}};
    return of[family_parts(f) - 1][family_has_min(f)][G - 1];
}

static fill_fn *fill_of(enum family f)
{
    static fill_fn *const of[] = {
        [FAM_U4] = fill_u4, [FAM_U4M] = fill_u4m, [FAM_U5] = fill_u5,   [FAM_U5M] = fill_u5m,
        [FAM_S8] = fill_s8, [FAM_C4] = fill_c4,   [FAM_KC4] = fill_kc4, [FAM_K2] = fill_k2,
        [FAM_K3] = fill_k3, [FAM_K4] = fill_k4,   [FAM_K5] = fill_k5,   [FAM_K6] = fill_k6,
    };
    return of[f];
}

static void groups_by_tiles(const struct linear_job *j, int g, int G, int row0, int n, struct linear_scratch *s)
{
    fill_fn *fill_panel = fill_of(j->w->family);
    tile_fn *row_tile_sums = tiles_of(j->w->family, G);
    for (int a = j->leaf0, b; a < j->leaf1; a = b) {
        b = least((a / SPAN_LEAVES + 1) * SPAN_LEAVES, j->leaf1);
        struct place p = {g, row0, 0, a, b, .tiles = (n + AMX_TILE - 1) / AMX_TILE};
        fill_panel(j, p, G, s);
        for (int left = n; left > 0; left -= AMX_TILE, p.row += AMX_TILE, p.at += AMX_TILE, p.tile++)
            row_tile_sums(j, p, left, s);
    }
}

/* ---- pairs of bfloat16 */

enum { BLOCK_PAIRS = BLOCK_COLS / 2, BLOCK_BYTES = BLOCK_PAIRS * 64, FEW_ROWS = 4 };

/* Leaves whose weights stay in the L1 cache while row after row passes, and what of their tree does not outlast them.
 */
enum { PAIR_LEAVES = 4, PAIR_LEVELS = 2 };

/* Block b of a group's weights, of which `pairs` are there: in `whole`, if that is not all of it. */
INLINE const uint8_t *pairs_at(const struct linear_job *j, int g, int b, int pairs, uint8_t *whole)
{
    const uint8_t *w = group_at(j, g) + (size_t)b * BLOCK_BYTES;
    if (pairs >= BLOCK_PAIRS)
        return w;
    memset(whole, 0, BLOCK_BYTES);
    memcpy(whole, w, (size_t)pairs * 64);
    __asm__ volatile("" : : "r"(whole) : "memory"); /* nor what loadd reads */
    return whole;
}

/* The sums of a leaf, [group] of [row][output]. x: the inputs of its first block. */
INLINE void leaf_by_tiles(int G, const struct linear_job *j, struct place at, int leaf, const uint16_t *x, float *out)
{
    _Alignas(64) uint8_t whole[2][BLOCK_BYTES];
    int b = 2 * leaf;
    _tile_zero(T_LEFT_DOTS);
    if (G > 1)
        _tile_zero(T_RIGHT_DOTS);
    for (int left = leaf_pairs(j, leaf); left > 0; left -= BLOCK_PAIRS, b++, x += j->in.tile * BLOCK_COLS) {
        for (int i = 0; i < G * BLOCK_BYTES && at.at == 0; i += 64)
            fetch_weights((int)j->in.tile,
                          group_at(j, at.g + i / BLOCK_BYTES) + b * BLOCK_BYTES + i % BLOCK_BYTES + PREFETCH_AHEAD);
        for (size_t i = 0; i < j->in.tile && at.tile + 1 < at.tiles; i++) /* of the next row tile */
            prefetch((const uint8_t *)(x + (j->blocks * j->in.tile + i) * BLOCK_COLS));
        _tile_loadd(T_INPUTS, x, 64);
        _tile_loadd(T_LEFT, pairs_at(j, at.g, b, left, whole[0]), 64);
        _tile_dpbf16ps(T_LEFT_DOTS, T_INPUTS, T_LEFT);
        if (G > 1) {
            _tile_loadd(T_RIGHT, pairs_at(j, at.g + 1, b, left, whole[1]), 64);
            _tile_dpbf16ps(T_RIGHT_DOTS, T_INPUTS, T_RIGHT);
        }
    }
    _tile_stored(T_LEFT_DOTS, out, 64);
    if (G > 1)
        _tile_stored(T_RIGHT_DOTS, out + DOTS, 64);
}

/* The tree gets the leaves of a row tile, from whose first one n rows are there. */
INLINE void pair_tile_sums(int G, const struct linear_job *j, struct place at, int n, struct linear_scratch *s)
{
    _Alignas(64) float sums[2][QUANT_WIDE * DOTS];
    const struct tile t = {.G = G};
    const size_t of_leaf = 2 * j->in.tile * BLOCK_COLS;
    const uint16_t *x = half_row(j, at.row) + (size_t)(at.leaf0 - j->leaf0) * of_leaf;
    prefetch_outputs(t, j, at, least(n - (int)j->in.tile, (int)j->in.tile));
    if (j->in.tile % LANE_ROWS) /* lanes add what no tile stores, too: not numbers that take long */
        memset(sums, 0, sizeof sums);
    for (int leaf = at.leaf0, next; leaf < at.leaf1; x += (size_t)(next - leaf) * of_leaf, leaf = next) {
        next = least((leaf | 1) + 1, at.leaf1);
        struct sum_step step = j->steps[next - 1 - j->leaf0];
        bool two = next - leaf == 2;
        step.add &= two ? ~1u : ~0u;
        leaf_by_tiles(G, j, at, leaf, x, sums[0]);
        if (two)
            leaf_by_tiles(G, j, at, leaf + 1, x + of_leaf, sums[1]);
        for (int g = 0; g < G; g++)
            for (int row = 0; row < (int)j->in.tile; row += LANE_ROWS) {
                const float *left = sums[0] + g * DOTS + row * GROUP_ROWS, *right = left + QUANT_WIDE * DOTS;
                vf acc[LANE_ROWS];
                UNROLL for (int r = 0; r < LANE_ROWS; r++)
                {
                    acc[r] = vf_load(left + r * GROUP_ROWS);
                    acc[r] = two ? vf_add(acc[r], vf_load(right + r * GROUP_ROWS)) : acc[r];
                }
                half_done(j, at, (struct half){g, row, n - row, PAIR_LEVELS}, step, acc, s);
            }
    }
}

/* acc = the sums of a leaf in the same order by lanes, which wait less for the weights where tiles are nearly empty. */
INLINE void leaf_by_lanes(int R, const struct linear_job *j, const uint8_t *w, const uint16_t *x, int pairs, vf acc[])
{
    UNROLL for (int r = 0; r < R; r++) acc[r] = vf_set1(0);
    for (; pairs > 0; pairs -= BLOCK_PAIRS, x += j->in.tile * BLOCK_COLS) {
        vf even[FEW_ROWS], odd[FEW_ROWS];
        UNROLL for (int r = 0; r < R; r++) even[r] = odd[r] = vf_set1(0);
        for (int i = 0; i < least(pairs, BLOCK_PAIRS); i++, w += 64) {
            vf first, second, x0, x1;
            fetch_weights(R, w + PREFETCH_AHEAD);
            vf_load_pairs(w, &first, &second);
            UNROLL for (int r = 0; r < R; r++)
            {
                int32_t two;
                memcpy(&two, x + BLOCK_COLS * r + 2 * i, sizeof two);
                x0 = _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)((uint32_t)two << 16)));
                x1 = _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)((uint32_t)two & 0xffff0000)));
                even[r] = vf_fma(first, x0, even[r]);
                odd[r] = vf_fma(second, x1, odd[r]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) acc[r] = vf_add(acc[r], vf_add(even[r], odd[r]));
    }
}

INLINE void pairs_by_lanes(int R, const struct linear_job *j, int g, int row, struct linear_scratch *s)
{
    const struct tile t = {.R = R, .G = 1};
    const struct place at = {.g = g, .row = row};
    const uint16_t *x = half_row(j, row);
    const uint8_t *w = group_at(j, g) + (size_t)(2 * j->leaf0) * BLOCK_BYTES;
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++, w += 2 * BLOCK_BYTES, x += 2 * j->in.tile * BLOCK_COLS) {
        vf acc[FEW_ROWS];
        leaf_by_lanes(R, j, w, x, leaf_pairs(j, leaf), acc);
        leaf_done(j, t, at, j->steps[leaf - j->leaf0], acc, s);
    }
}

static void few_pairs(const struct linear_job *j, int g, int row, int n, struct linear_scratch *s)
{
    if (n == 1)
        pairs_by_lanes(1, j, g, row, s);
    else if (n == 2)
        pairs_by_lanes(2, j, g, row, s);
    else if (n == 3)
        pairs_by_lanes(3, j, g, row, s);
    else
        pairs_by_lanes(4, j, g, row, s);
}

/* A window's leaves at once for one row tile, and else by spans, whose weights stay in the L1 cache. */
INLINE void pairs_by_tiles(int G, const struct linear_job *j, int g, int row0, int n, struct linear_scratch *s)
{
    int tile = (int)j->in.tile;
    for (int a = j->leaf0, b; a < j->leaf1; a = b) {
        b = n > tile ? least((a / PAIR_LEAVES + 1) * PAIR_LEAVES, j->leaf1) : j->leaf1;
        struct place p = {g, row0, 0, a, b, .tiles = (n + tile - 1) / tile};
        for (int left = n; left > 0; left -= tile, p.row += tile, p.at += tile, p.tile++)
            pair_tile_sums(G, j, p, left, s);
    }
}

static void multiply_pairs(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s)
{
    if (n <= FEW_ROWS && (int)j->in.tile == n) {
        for (; groups > 0; groups--, g++)
            few_pairs(j, g, row0, n, s);
        return;
    }
    configure((int)j->in.tile, 64, BLOCK_PAIRS);
    for (; groups > 1; groups -= 2, g += 2)
        pairs_by_tiles(2, j, g, row0, n, s);
    for (; groups > 0; groups--, g++)
        pairs_by_tiles(1, j, g, row0, n, s);
}

static void multiply(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s)
{
    const int part_cols = BLOCK_COLS / family_parts(j->w->family);
    if (j->w->family == FAM_PAIR) {
        multiply_pairs(j, g, groups, row0, n, s);
    } else {
        configure(AMX_TILE, part_cols, part_cols / 4);
        for (int took; groups > 0; groups -= took, g += took) {
            took = least(groups, QUANT_WIDE);
            groups_by_tiles(j, g, took, row0, n, s);
        }
    }
    _tile_release(); /* a thread that has tiles costs more to switch from */
}

linear_fn *linear_amx(void)
{
    return multiply;
}
#else
#include <stddef.h>

linear_fn *linear_amx(void)
{
    return NULL;
}
#endif
