/* Wide tiles of flash.cu (prompts over f16 and bf16 caches) with the instructions of compute capability 9.0; used
 * where the device has them; elsewhere flash.cu's own kernel runs. The arithmetic is the same: 16-bit queries that are
 * scaled before they are rounded, f32 scores, a running maximum and sum.
 *
 * There is a CTA for each multiprocessor; it takes one tile after the other: FLASH_HOPPER_TILE queries of one kv head.
 * It has three warp groups. The first brings keys and values, 128 positions at a time, into a ring of slots in shared
 * memory: asynchronous copies of 16 bytes, swizzled as wgmma reads them, which arrive at the slot's mbarrier. Copies
 * and not the tensor memory accelerator, since a paged cache has its blocks anywhere: 16 positions lie together for
 * certain, no more. The other two have 64 queries each, and most of the registers. They go from the last positions to
 * the first, so what needs a mask comes first, and as in FlashAttention-3 (Shah et al. 2024) the scores of a round are
 * multiplied side by side with the weights and values of the round before, and one group computes its softmax while the
 * other one uses the tensor cores: they alternate by two named barriers (ping-pong scheduling). Scores become weights
 * in the registers in which the next product needs them. The copying group does not wait for the end of a tile: the
 * next one's keys arrive while this one's results are stored and the next queries read, and the barriers are made once.
 * Tiles that see many positions are first in the plan, and the kv heads of a tile follow each other: what is left over
 * at the end is short.
 *
 * In a round of heads of 128 the tensor cores of a multiprocessor have 2 * 16 products of 64 cycles each, while a
 * scheduler issues some 500 instructions for each of its two softmax warps and some 170 for its copying one (counted
 * in the machine code): the products are meant to be what it waits for.
 *
 * Why not cuDNN: one more library at run time, and blocks of any size anywhere in the pool, heads of a kv head as rows
 * of one tile, and windows are all this needs. Which of the two is faster, or how fast this is, has not been measured:
 * tests/bench/gpu/gpu_bench.c times it beside flash.cu's kernel. */
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/fast.h"

enum {
    KEYS = 128,
    SLICE = 16,
    GROUP_QUERIES = 64,
    GROUPS = FLASH_HOPPER_TILE / GROUP_QUERIES,
    GROUP_WARPS = GROUP_THREADS / WARP,
    THREADS = (1 + GROUPS) * GROUP_THREADS
};
/* Registers of a thread that copies and of one that multiplies: as many as the CTA begins with. */
enum { COPY_REGISTERS = 56, PRODUCT_REGISTERS = 224, FIRST_REGISTERS = 65536 / THREADS / 8 * 8 };
static_assert(COPY_REGISTERS + GROUPS * PRODUCT_REGISTERS <= (1 + GROUPS) * FIRST_REGISTERS,
              "more registers than there are");
enum { TURN_NAME = 1, QUERIES_NAME = TURN_NAME + GROUPS }; /* barriers of each group */

/* Rows of 64 elements, swizzled; heads of 128 have two panels of them. */
template <int D> struct hopper_space {
    enum { PANELS = D / 64, SLOTS = D == 128 ? 6 : 8 };
    uint16_t q[GROUPS][PANELS][GROUP_QUERIES * 64];
    uint16_t slot[SLOTS][PANELS][KEYS * 64];
    struct mbarrier full[SLOTS], empty[SLOTS];
};

/* The slot that is next, and the parity of its phase. Keys and values take slots in the order in which they are used.
 */
struct ring {
    int slot;
    uint32_t parity;
};

template <int D> __device__ static inline void ring_next(struct ring *r)
{
    if (++r->slot == hopper_space<D>::SLOTS) {
        r->slot = 0;
        r->parity ^= 1;
    }
}

struct hopper_tile {
    struct seq_at seq;
    const uint8_t *head;        /* of block 0 */
    int head0, heads, first, n; /* queries first .. first + n - 1 */
    int groups;                 /* that have queries */
    int key0, key1, rounds;
};

#if HOPPER_CODE

__device__ static inline int window_begin(const struct flash_job &j, int position)
{
    return j.window > 0 && position >= j.window ? position - j.window + 1 : 0;
}

/* False: this kv head has no such tile. */
__device__ static bool find_tile(const struct flash_job &j, int i, struct hopper_tile *t)
{
    int kv = i % j.kv.n_heads;
    struct flash_item it = j.items[i / j.kv.n_heads];
    t->seq = j.step.seqs[it.seq];
    t->head0 = j.first_head[kv];
    t->heads = j.first_head[kv + 1] - t->head0;
    t->head = j.kv.base + (size_t)kv * j.kv.head_bytes;
    t->first = it.tile * FLASH_HOPPER_TILE;
    int left = t->seq.n_rows * t->heads - t->first;
    t->n = left < FLASH_HOPPER_TILE ? left : FLASH_HOPPER_TILE;
    if (t->n <= 0)
        return false;
    t->groups = (t->n + GROUP_QUERIES - 1) / GROUP_QUERIES;
    t->key0 = window_begin(j, t->seq.pos0 + t->first / t->heads) / KEYS * KEYS;
    t->key1 = t->seq.pos0 + (t->first + t->n - 1) / t->heads + 1;
    t->rounds = (t->key1 - t->key0 + KEYS - 1) / KEYS;
    return true;
}

/* The CTA's next tile: one of every wave, of odd ones from the other end, since tiles are sorted by length. */
__device__ static bool next_tile(const struct flash_job &j, int *wave, struct hopper_tile *t)
{
    int n = *j.n_items * j.kv.n_heads, all = (int)gridDim.x, own = (int)blockIdx.x;
    while (*wave * all < n) {
        int i = *wave * all + (*wave % 2 ? all - 1 - own : own);
        ++*wave;
        if (i < n && find_tile(j, i, t))
            return true;
    }
    return false;
}

/* ---- the group that copies */

/* What this thread copies of a round's keys: 16 bytes of every ROWS-th row of its warp's slices, which lie in one block
 * each. */
template <int D> struct hopper_source {
    enum { CHUNKS = D / 8, ROWS = WARP / CHUNKS, SLICES = KEYS / SLICE / GROUP_WARPS };
    const uint8_t *at[SLICES];
};

template <int D>
__device__ static inline void find_source(const struct flash_job &j, const struct hopper_tile &t, int key,
                                          struct hopper_source<D> *s)
{
    enum { CHUNKS = hopper_source<D>::CHUNKS, SLICES = hopper_source<D>::SLICES };
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        int position = key + (warp_id() * SLICES + i) * SLICE;
        s->at[i] = t.head;
        if (position < t.key1) {
            int block = j.step.blocks[t.seq.block0 + position / j.kv.tokens];
            s->at[i] += (size_t)block * j.kv.block_bytes +
                        (size_t)(position % j.kv.tokens + lane_id() / CHUNKS) * (D * 2) + lane_id() % CHUNKS * 16;
        }
    }
}

/* left: positions from the slot's first one to the last there is; ALL: enough. */
template <int D, bool ALL>
__device__ static inline void copy_slot(const struct hopper_source<D> &s, size_t offset, int left, uint8_t *slot)
{
    enum { CHUNKS = hopper_source<D>::CHUNKS, ROWS = hopper_source<D>::ROWS, SLICES = hopper_source<D>::SLICES };
    int row = lane_id() / CHUNKS, c = lane_id() % CHUNKS, first = warp_id() * SLICES * SLICE,
        swizzled = swizzled_at(row, c % 8);
    uint8_t *to = slot + c / 8 * (KEYS * 128) + first * 128;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int k = 0; k < SLICE; k += ROWS) { /* row + k, swizzled: row < ROWS, and k is a multiple of it */
            uint8_t *at = to + (swizzled ^ k % 8 * 16) + (i * SLICE + k) * 128;
            bool there = ALL || first + i * SLICE + row + k < left;
            cp_async(at, s.at[i] + offset + (there ? k * D * 2 : 0), there);
        }
}

/* One slot: keys, or values at an offset, of positions key .. key + KEYS - 1; zeros past the last one. */
template <int D>
__device__ static void fill_slot(const struct hopper_tile &t, struct hopper_space<D> *sp, int key,
                                 const struct hopper_source<D> &s, size_t offset, struct ring *at)
{
    uint8_t *slot = (uint8_t *)sp->slot[at->slot];
    mbarrier_wait(&sp->empty[at->slot], at->parity ^ 1);
    if (key + KEYS <= t.key1)
        copy_slot<D, true>(s, offset, KEYS, slot);
    else
        copy_slot<D, false>(s, offset, t.key1 - key, slot);
    mbarrier_arrive_copies(&sp->full[at->slot]);
    ring_next<D>(at);
}

/* In the order of use: the keys of a round come before the values of the round before it. */
template <int D>
__device__ static void fill_slots(const struct flash_job &j, const struct hopper_tile &t, struct hopper_space<D> *sp,
                                  struct ring *at)
{
    struct hopper_source<D> now, before;
    int last = t.key0 + (t.rounds - 1) * KEYS;
    find_source<D>(j, t, last, &before);
    fill_slot<D>(t, sp, last, before, 0, at);
    for (int key = last - KEYS; key >= t.key0; key -= KEYS) {
        find_source<D>(j, t, key, &now);
        fill_slot<D>(t, sp, key, now, 0, at);
        fill_slot<D>(t, sp, key + KEYS, before, j.kv.value_at, at);
        before = now;
    }
    fill_slot<D>(t, sp, t.key0, before, j.kv.value_at, at);
}

/* It is ahead by as many slots as there are: a tile's first keys are on their way while the one before it ends. */
template <int D> __device__ static void copy_tiles(const struct flash_job &j, struct hopper_space<D> *sp)
{
    struct ring at = {0, 0};
    struct hopper_tile t;
    for (int wave = 0; next_tile(j, &wave, &t);)
        fill_slots<D>(j, t, sp, &at);
    cp_async_wait_all();
}

/* ---- the groups that multiply */

/* A group's part of a tile. What a thread's two rows see: positions lo <= p < hi. What is no query sees what the last
 * one does. */
struct hopper_part {
    int group, key0;
    bool turns; /* the other group has queries, too */
    int lo[2], hi[2];
    int most_lo, least_hi; /* of all rows of the group */
};

/* s: a round's scores, then weights. o: the sums so far, with their maximum m and the sum of weights l. */
template <int D> struct hopper_state {
    float s[KEYS / 2], o[D / 2], m[2], l[2];
    uint32_t p[KEYS / 16][4];
};

__device__ static inline int position_of(const struct hopper_tile &t, int query)
{
    return t.seq.pos0 + (t.first + (query < t.n ? query : t.n - 1)) / t.heads;
}

/* The thread's upper row. */
__device__ static inline int own_query(int group)
{
    return group * GROUP_QUERIES + warp_id() % GROUP_WARPS * 16 + lane_id() / 4;
}

__device__ static void find_part(const struct flash_job &j, const struct hopper_tile &t, int group,
                                 struct hopper_part *r)
{
    r->group = group;
    r->key0 = t.key0;
    r->turns = t.groups == GROUPS;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int p = position_of(t, own_query(group) + 8 * i);
        r->hi[i] = p + 1;
        r->lo[i] = window_begin(j, p);
    }
    r->least_hi = position_of(t, group * GROUP_QUERIES) + 1;
    r->most_lo = window_begin(j, position_of(t, group * GROUP_QUERIES + GROUP_QUERIES - 1));
}

/* Elements at .. at + 7 of q. */
__device__ static inline void read_eight(const struct flash_job &j, int64_t at, float4 *v, float4 *w)
{
    if (!j.half_q) {
        v[0] = ((const float4 *)j.q)[at / 4];
        w[0] = ((const float4 *)j.q)[at / 4 + 1];
        return;
    }
    uint4 u = ((const uint4 *)j.q)[at / 8];
    *v = make_float4(bf16_bits((uint16_t)u.x), bf16_bits((uint16_t)(u.x >> 16)), bf16_bits((uint16_t)u.y),
                     bf16_bits((uint16_t)(u.y >> 16)));
    *w = make_float4(bf16_bits((uint16_t)u.z), bf16_bits((uint16_t)(u.z >> 16)), bf16_bits((uint16_t)u.w),
                     bf16_bits((uint16_t)(u.w >> 16)));
}

/* The group's queries into shared memory, scaled; zeros where there are no more. No warp reads those of the tile before
 * any more. */
template <half_type H, int D>
__device__ static void put_queries(const struct flash_job &j, const struct hopper_tile &t, int group,
                                   struct hopper_space<D> *sp)
{
    enum { CHUNKS = D / 8 };
    named_barrier_sync(QUERIES_NAME + group, GROUP_THREADS);
#pragma unroll 2
    for (int i = (int)threadIdx.x % GROUP_THREADS; i < GROUP_QUERIES * CHUNKS; i += GROUP_THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS, query = group * GROUP_QUERIES + r, at = t.first + query;
        float4 v = make_float4(0, 0, 0, 0), w = v;
        if (query < t.n) {
            int64_t q = (int64_t)(t.seq.row0 + at / t.heads) * j.ldq + (t.head0 + at % t.heads) * D + c * 8;
            read_eight(j, q, &v, &w);
        }
        store_shared((uint8_t *)sp->q[group][c / 8] + swizzled_at(r, c % 8),
                     make_uint4(pair_of<H>(v.x * j.scale, v.y * j.scale), pair_of<H>(v.z * j.scale, v.w * j.scale),
                                pair_of<H>(w.x * j.scale, w.y * j.scale), pair_of<H>(w.z * j.scale, w.w * j.scale)));
    }
    fence_proxy_async();
    named_barrier_sync(QUERIES_NAME + group, GROUP_THREADS);
}

/* Waits until the slot is full and returns its address. */
template <int D> __device__ static inline uint32_t acquire_slot(struct hopper_space<D> *sp, const struct ring &at)
{
    mbarrier_wait(&sp->full[at.slot], at.parity);
    return shared_address(sp->slot[at.slot]);
}

/* This warp has read the slot. */
template <int D> __device__ static inline void release_slot(struct hopper_space<D> *sp, struct ring *at)
{
    __syncwarp();
    if (lane_id() == 0)
        mbarrier_arrive(&sp->empty[at->slot]);
    ring_next<D>(at);
}

/* Begins S = Q K^T for the keys in the slot. */
template <half_type H, int D>
__device__ static inline void qk_product(struct hopper_space<D> *sp, int group, uint32_t slot, float (&s)[KEYS / 2])
{
    enum { Q_PANEL = GROUP_QUERIES * 128, K_PANEL = KEYS * 128 };
    uint64_t q = wgmma_descriptor(shared_address(sp->q[group]), 16, ATOM_BYTES),
             k = wgmma_descriptor(slot, 16, ATOM_BYTES);
    wgmma_fence();
#pragma unroll
    for (int e = 0; e < D / 16; e++)
        wgmma_ss<H>(s, q + (e / 4 * Q_PANEL + e % 4 * 32) / 16, k + (e / 4 * K_PANEL + e % 4 * 32) / 16, e > 0);
    wgmma_commit();
}

/* Begins O += P V for the values in the slot. */
template <half_type H, int D> __device__ static inline void pv_product(uint32_t slot, struct hopper_state<D> *st)
{
    uint64_t v = wgmma_descriptor(slot, KEYS * 128, ATOM_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_rs<H>(st->o, st->p[k], v + k * 2 * ATOM_BYTES / 16, true);
    wgmma_commit();
}

/* Scores of positions that a query does not see become -infinity. key: position of the first score. */
__device__ static inline void mask(const struct hopper_part &r, int key, float (&s)[KEYS / 2])
{
    if (key >= r.most_lo && key + KEYS <= r.least_hi)
        return;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        int p = key + i / 4 * 8 + lane_id() % 4 * 2 + i % 2, row = i / 2 % 2;
        if (p < r.lo[row] || p >= r.hi[row])
            s[i] = -INFINITY;
    }
}

__device__ static inline float quad_largest(float v)
{
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
    return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 2));
}

/* Online softmax: scores become weights relative to the running maximum; rescale: the factor for the sums so far. */
template <int D> __device__ static inline void softmax(struct hopper_state<D> *st, float rescale[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = st->m[r], sum[2] = {0, 0};
#pragma unroll
        for (int i = 2 * r; i < KEYS / 2; i += 4)
            most = fmaxf(most, fmaxf(st->s[i], st->s[i + 1]));
        most = quad_largest(most);
        float zero = most == -INFINITY ? 0 : most;
        rescale[r] = exp2_fast(st->m[r] - zero);
#pragma unroll
        for (int i = 2 * r; i < KEYS / 2; i += 4) {
            st->s[i] = exp2_fast(st->s[i] - zero);
            st->s[i + 1] = exp2_fast(st->s[i + 1] - zero);
            sum[0] += st->s[i];
            sum[1] += st->s[i + 1];
        }
        st->m[r] = most;
        st->l[r] =
            st->l[r] * rescale[r] + (sum[0] + sum[1]); /* this thread's columns; the quad is added up at the end */
    }
}

/* Weights as the next product wants them: none is larger than 1. */
template <half_type H, int D> __device__ static inline void pack_weights(struct hopper_state<D> *st)
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float low = st->s[2 * i], high = st->s[2 * i + 1];
        st->p[i / 4][i % 4] = H == half_type::f16 ? pack_f16(low, high) : pack_bf16(low, high);
    }
}

template <int D>
__device__ static void store(const struct flash_job &j, const struct hopper_tile &t, int group,
                             struct hopper_state<D> *st)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = own_query(group) + 8 * i, at = t.first + query;
        float l = st->l[i] + __shfl_xor_sync(ALL_LANES, st->l[i], 1);
        l = l + __shfl_xor_sync(ALL_LANES, l, 2);
        if (query >= t.n)
            continue;
        int64_t out = (int64_t)(t.seq.row0 + at / t.heads) * j.ldo + (t.head0 + at % t.heads) * D + lane_id() % 4 * 2;
        float part = l == 0 ? 0 : 1 / l;
#pragma unroll
        for (int e = 0; e < D / 8; e++)
            put_act_pair(j.out, j.half_out, out + 8 * e,
                         make_float2(st->o[4 * e + 2 * i] * part, st->o[4 * e + 2 * i + 1] * part));
    }
}

/* The groups take turns at the tensor cores: each waits until the other has enqueued its products, and computes its
 * softmax while those run. */
__device__ static inline void wait_for_turn(const struct hopper_part &part)
{
    if (part.turns)
        named_barrier_sync(TURN_NAME + part.group, GROUPS * GROUP_THREADS);
}

/* After the last round no group waits for the second one to pass its turn. */
__device__ static inline void pass_turn(const struct hopper_part &part, int key)
{
    if (part.turns && (part.group == 0 || key > part.key0))
        named_barrier_arrive(TURN_NAME + 1 - part.group, GROUPS * GROUP_THREADS);
}

/* One round: its scores become weights, while the weights of the round before are multiplied by their values. */
template <half_type H, int D>
__device__ static inline void round_on(struct hopper_space<D> *sp, const struct hopper_part &part, int key,
                                       struct ring *at, struct hopper_state<D> *st)
{
    struct ring next = *at;
    ring_next<D>(&next);
    uint32_t keys = acquire_slot<D>(sp, *at), values = acquire_slot<D>(sp, next);
    float rescale[2];
    fence_proxy_async();
    wait_for_turn(part);
    qk_product<H, D>(sp, part.group, keys, st->s);
    pv_product<H, D>(values, st);
    pass_turn(part, key);
    wgmma_wait<1>();
    wgmma_fence_operand(st->s);
    release_slot<D>(sp, at);
    mask(part, key, st->s);
    softmax<D>(st, rescale);
    wgmma_wait<0>();
    wgmma_fence_operand(st->o);
    release_slot<D>(sp, at);
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        st->o[i] *= rescale[i / 2 % 2];
    pack_weights<H, D>(st);
}

/* Scores and weights of the last positions. */
template <half_type H, int D>
__device__ static inline void round_first(struct hopper_space<D> *sp, const struct hopper_part &part, int key,
                                          struct ring *at, struct hopper_state<D> *st)
{
    float rescale[2];
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        st->o[i] = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        st->m[i] = -INFINITY;
        st->l[i] = 0;
    }
    uint32_t keys = acquire_slot<D>(sp, *at);
    fence_proxy_async();
    qk_product<H, D>(sp, part.group, keys, st->s);
    wgmma_wait<0>();
    wgmma_fence_operand(st->s);
    release_slot<D>(sp, at);
    mask(part, key, st->s);
    softmax<D>(st, rescale);
    pack_weights<H, D>(st);
}

template <half_type H, int D>
__device__ static void attend(const struct flash_job &j, const struct hopper_tile &t, int group,
                              struct hopper_space<D> *sp, struct ring *at)
{
    struct hopper_part part;
    struct hopper_state<D> st;
    int last = t.key0 + (t.rounds - 1) * KEYS;
    find_part(j, t, group, &part);
    put_queries<H, D>(j, t, group, sp);
    round_first<H, D>(sp, part, last, at, &st);
    if (group == 1 && last > t.key0)
        pass_turn(part, last);
    for (int key = last - KEYS; key >= t.key0; key -= KEYS)
        round_on<H, D>(sp, part, key, at, &st);
    uint32_t values = acquire_slot<D>(sp, *at);
    fence_proxy_async();
    pv_product<H, D>(values, &st);
    wgmma_wait<0>();
    wgmma_fence_operand(st.o);
    release_slot<D>(sp, at);
    store<D>(j, t, group, &st);
}

/* A tile in which the group has no queries: its keys and values pass by. */
template <int D>
__device__ static void skip_tile(const struct hopper_tile &t, struct hopper_space<D> *sp, struct ring *at)
{
    for (int i = 0; i < 2 * t.rounds; i++) {
        acquire_slot<D>(sp, *at);
        release_slot<D>(sp, at);
    }
}

template <half_type H, int D>
__device__ static void multiply_tiles(const struct flash_job &j, int group, struct hopper_space<D> *sp)
{
    struct ring at = {0, 0};
    struct hopper_tile t;
    for (int wave = 0; next_tile(j, &wave, &t);) {
        if (group < t.groups)
            attend<H, D>(j, t, group, sp, &at);
        else
            skip_tile<D>(t, sp, &at);
    }
}

#endif

template <half_type H, int D>
__global__ void __launch_bounds__(THREADS, 1) flash_hopper_kernel(const __grid_constant__ struct flash_job j)
{
#if HOPPER_CODE
    SHARED_BYTES(shared);
    struct hopper_space<D> *sp = (struct hopper_space<D> *)(shared + (-shared_address(shared) & (ATOM_BYTES - 1)));
    int group = __shfl_sync(ALL_LANES, warp_id() / GROUP_WARPS, 0) -
                1; /* the same for the whole warp, as the compiler now knows */
    griddepcontrol_launch_dependents();
    if (threadIdx.x < hopper_space<D>::SLOTS) {
        mbarrier_init(&sp->full[threadIdx.x], GROUP_THREADS);
        mbarrier_init(&sp->empty[threadIdx.x], GROUPS * GROUP_WARPS);
    }
    __syncthreads();
    griddepcontrol_wait();
    if (group < 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        copy_tiles<D>(j, sp);
    } else {
        setmaxnreg_inc<PRODUCT_REGISTERS>();
        multiply_tiles<H, D>(j, group, sp);
    }
#endif
}

/* ---- launching */

template <int D> static constexpr int space_bytes(void)
{
    return (int)sizeof(struct hopper_space<D>) + ATOM_BYTES; /* the first atom is aligned by hand */
}
static_assert(space_bytes<128>() <= 227 << 10 && space_bytes<64>() <= 227 << 10, "more shared memory than there is");

/* A kernel of another architecture is empty and needs next to no registers. */
template <half_type H, int D> static cudaError_t prepare_one(bool *here)
{
    struct cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, flash_hopper_kernel<H, D>);
    *here = *here && e == cudaSuccess && a.numRegs >= FIRST_REGISTERS;
    return *here ? cudaFuncSetAttribute(flash_hopper_kernel<H, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        space_bytes<D>())
                 : e;
}

cudaError_t flash_hopper_prepare(bool *here)
{
    *here = true;
    cudaError_t e = prepare_one<half_type::f16, 64>(here);
    e = e ? e : prepare_one<half_type::f16, 128>(here);
    e = e ? e : prepare_one<half_type::bf16, 64>(here);
    return e ? e : prepare_one<half_type::bf16, 128>(here);
}

bool flash_hopper_can(enum dtype t, int head_dim)
{
    return (t == DT_F16 || t == DT_BF16) && (head_dim == 64 || head_dim == 128);
}

template <half_type H, int D> static cudaError_t launch_one(cudaStream_t s, const struct flash_job *j)
{
    int tiles = j->most_items * j->kv.n_heads;
    dim3 grid(tiles < j->n_sms ? tiles : j->n_sms);
    if (j->pdl)
        return launch_pdl(flash_hopper_kernel<H, D>, grid, dim3(THREADS), space_bytes<D>(), s, *j);
    return launch(flash_hopper_kernel<H, D>, grid, dim3(THREADS), space_bytes<D>(), s, *j);
}

cudaError_t launch_flash_hopper(cudaStream_t s, const struct flash_job *j)
{
    if (!flash_hopper_can(j->kv.type, j->kv.head_dim))
        return cudaErrorInvalidValue;
    if (j->kv.type == DT_F16)
        return j->kv.head_dim == 64 ? launch_one<half_type::f16, 64>(s, j) : launch_one<half_type::f16, 128>(s, j);
    return j->kv.head_dim == 64 ? launch_one<half_type::bf16, 64>(s, j) : launch_one<half_type::bf16, 128>(s, j);
}
