/* Attention on tensor cores with the softmax kept as a running maximum and sum (Milakov and Gimelshein 2018; Dao et
 * al. 2022). Keys and values come into shared memory by asynchronous copies, 64 positions a round, while the round
 * before is multiplied. The heads that share a kv head are rows of one tile, so its cache is read once for all of
 * them. fp8 caches come as codes and are widened to f16 in shared memory.
 *
 * - Wide tiles: each of the four warps has 16 queries and sees every key. Bound by the tensor cores. On devices of
 *   compute capability 9.0 flash_hopper.cu computes them instead, except for fp8 caches.
 * - Narrow tiles: all warps have the same 16 queries and a quarter of the keys each. Bound by reading the cache, so a
 *   long cache is cut into parts that run side by side. */
#include "kernels/cuda/tensor.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/rope.h"

enum { FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP, GROUP_KEYS = 16, SHARED_PAD = 8 };

/* What a cache holds: 16 bits as they are multiplied, or fp8, which is multiplied as f16. */
enum class cached { f16, bf16, f8 };
__host__ __device__ static constexpr half_type half_of(enum cached c)
{
    return c == cached::bf16 ? half_type::bf16 : half_type::f16;
}

/* Keys and values of two rounds. Rows are padded so that eight of them begin in different banks. */
template <int D, bool F8> struct flash_space {
    enum { BUFFERS = 2 };
    uint16_t k[2][FLASH_KEYS][D + SHARED_PAD], v[2][FLASH_KEYS][D + SHARED_PAD];
};
/* fp8: codes of two rounds, widened one at a time. */
template <int D> struct flash_space<D, true> {
    enum { BUFFERS = 1 };
    uint16_t k[1][FLASH_KEYS][D + SHARED_PAD], v[1][FLASH_KEYS][D + SHARED_PAD];
    alignas(16) uint8_t raw_k[2][FLASH_KEYS][D], raw_v[2][FLASH_KEYS][D];
};

/* Of 16 queries of a narrow tile, one warp's or one part's sums: o, then m and l. A row takes whole float4, and rows
 * begin in different banks. */
template <int D> struct flash_sums {
    float row[FLASH_ROWS][D + FLASH_SUMS_MORE];
};

/* What a lane knows of its two rows, g and g + 8 of the warp's 16. */
struct flash_rows {
    const void *q[2]; /* NULL: no such query */
    int64_t out[2];   /* where in the job's output; -1: no such query */
    int lo[2], hi[2]; /* positions seen: lo <= p < hi; none: hi = lo = 0 */
};

template <int D> struct flash_state {
    uint32_t q[D / 16][4];
    float o[D / 8][4], m[2], l[2];
};

/* Which queries, and where their cache lies. */
struct flash_site {
    struct seq_at seq;
    const uint8_t *head;        /* of block 0 */
    int kv;                     /* its kv head */
    int head0, heads, first, n; /* queries first .. first + n - 1 */
    int key0, key1;
};

__device__ static bool find_site(const struct flash_job &j, const struct flash_item &it, struct flash_site *s)
{
    int kv = s->kv;
    s->seq = j.step.seqs[it.seq];
    s->head0 = j.first_head[kv];
    s->heads = j.first_head[kv + 1] - s->head0;
    s->head = j.kv.base + (size_t)kv * j.kv.head_bytes;
    int tile = j.wide ? FLASH_TILE : FLASH_ROWS, left;
    s->first = it.tile * tile;
    left = s->seq.n_rows * s->heads - s->first;
    s->n = left < tile ? left : tile;
    if (s->n <= 0)
        return false;
    int p0 = s->seq.pos0 + s->first / s->heads, p1 = s->seq.pos0 + (s->first + s->n - 1) / s->heads;
    s->key0 = j.window > 0 && p0 >= j.window ? (p0 - j.window + 1) / FLASH_KEYS * FLASH_KEYS : 0;
    s->key1 = p1 + 1;
    if (!j.wide) {
        s->key0 = it.key0;
        s->key1 = it.key1;
    }
    return true;
}

__device__ static void find_rows(const struct flash_job &j, const struct flash_site &s, struct flash_rows *r)
{
    int base = j.wide ? warp_id() * FLASH_ROWS : 0, bytes = j.half_q ? sizeof(uint16_t) : sizeof(float);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = base + lane_id() / 4 + 8 * i;
        bool here = query < s.n;
        int at = s.first + (here ? query : 0), row = s.seq.row0 + at / s.heads, head = s.head0 + at % s.heads,
            p = s.seq.pos0 + at / s.heads;
        r->q[i] = here ? (const uint8_t *)j.q + ((int64_t)row * j.ldq + head * j.kv.head_dim) * bytes : NULL;
        r->out[i] = here ? (int64_t)row * j.ldo + head * j.kv.head_dim : -1;
        r->hi[i] = here ? p + 1 : 0;
        r->lo[i] = here && j.window > 0 && p >= j.window ? p - j.window + 1 : 0;
    }
}

template <half_type H, int D, bool HALF>
__device__ static void scale_queries(const struct flash_job &j, const struct flash_rows &r, struct flash_state<D> *s)
{
    int t = lane_id() % 4;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const void *q = r.q[i % 2];
            float2 v = q ? act_pair(q, HALF, 16 * k + 2 * t + i / 2 * 8) : make_float2(0, 0);
            s->q[k][i] = pair_of<H>(v.x * j.scale, v.y * j.scale);
        }
}

template <half_type H, int D, bool WIDE>
__device__ static void load_queries(const struct flash_job &j, const struct flash_rows &r, struct flash_state<D> *s)
{
    if (WIDE && j.half_q) /* a narrow tile's are f32 in shared memory by now: registers are short there */
        scale_queries<H, D, true>(j, r, s);
    else
        scale_queries<H, D, false>(j, r, s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
#pragma unroll
    for (int e = 0; e < D / 8; e++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s->o[e][i] = 0;
}

/* Of a round: all positions, those that earlier steps wrote, or those that this one writes. */
enum class fetched { all, old, own };

/* Positions key .. key + 63 into buffer `to`: warp w brings 16 of them, which lie in one block. */
template <int D, bool F8, enum fetched WHICH>
__device__ static void fetch_round(const struct flash_job &j, const struct flash_site &s, int key,
                                   struct flash_space<D, F8> *sp, int to)
{
    enum { HALVES = F8 ? D / 2 : D, CHUNKS = HALVES / 8, ROUNDS = GROUP_KEYS * CHUNKS / WARP };
    int first = key + warp_id() * GROUP_KEYS, lane = lane_id();
    const uint8_t *at = s.head;
    if (first < s.key1) {
        int block = j.step.blocks[s.seq.block0 + first / j.kv.tokens];
        at += (size_t)block * j.kv.block_bytes + (size_t)(first % j.kv.tokens) * HALVES * 2;
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int chunk = i * WARP + lane, row = chunk / CHUNKS, c = chunk % CHUNKS;
        bool there = first + row < s.key1;
        if (WHICH != fetched::all && (first + row >= s.seq.pos0) != (WHICH == fetched::own))
            continue;
        const uint8_t *from = there ? at + (row * HALVES + c * 8) * 2 : s.head;
        if constexpr (F8) {
            cp_async(&sp->raw_k[to][warp_id() * GROUP_KEYS + row][c * 16], from, there);
            cp_async(&sp->raw_v[to][warp_id() * GROUP_KEYS + row][c * 16], there ? from + j.kv.value_at : from, there);
        } else {
            cp_async(&sp->k[to][warp_id() * GROUP_KEYS + row][c * 8], from, there);
            cp_async(&sp->v[to][warp_id() * GROUP_KEYS + row][c * 8], there ? from + j.kv.value_at : from, there);
        }
    }
}

__device__ static inline void widen_chunk(const uint8_t *from, uint16_t *to)
{
    uint4 v = *(const uint4 *)from;
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    uint32_t pair[8];
#pragma unroll
    for (int i = 0; i < 4; i++)
        f8_to_f16(word[i], pair + 2 * i);
    ((uint4 *)to)[0] = {pair[0], pair[1], pair[2], pair[3]};
    ((uint4 *)to)[1] = {pair[4], pair[5], pair[6], pair[7]};
}

/* The codes that this lane has fetched, widened. */
template <int D> __device__ static void widen_round(struct flash_space<D, true> *sp, int at)
{
    enum { CHUNKS = D / 16, ROUNDS = GROUP_KEYS * CHUNKS / WARP };
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int chunk = i * WARP + lane_id(), row = warp_id() * GROUP_KEYS + chunk / CHUNKS, c = chunk % CHUNKS * 16;
        widen_chunk(&sp->raw_k[at][row][c], &sp->k[0][row][c]);
        widen_chunk(&sp->raw_v[at][row][c], &sp->v[0][row][c]);
    }
}

/* Scores of the warp's queries and 16 N keys from `first` of the buffer on. */
template <half_type H, int D, int N>
__device__ static void qk_product(const struct flash_state<D> &s, const uint16_t (*k)[D + SHARED_PAD],
                                  float c[2 * N][4])
{
    int matrix = lane_id() / 8, row = lane_id() % 8;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[2 * n][i] = c[2 * n + 1][i] = 0;
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            uint32_t b[4];
            ldmatrix(b, &k[n * GROUP_KEYS + matrix / 2 * 8 + row][e * 16 + matrix % 2 * 8]);
            mma<H>(c[2 * n], s.q[e], b);
            mma<H>(c[2 * n + 1], s.q[e], b + 2);
        }
    }
}

/* Scores of positions that a query does not see become -infinity. key: position of the first score. */
template <int N> __device__ static void mask(const struct flash_rows &r, int key, float c[2 * N][4])
{
    if (key >= r.lo[0] && key >= r.lo[1] && key + N * GROUP_KEYS <= r.hi[0] && key + N * GROUP_KEYS <= r.hi[1])
        return;
    int t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < 2 * N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int p = key + n * 8 + 2 * t + i % 2;
            if (p < r.lo[i / 2] || p >= r.hi[i / 2])
                c[n][i] = -INFINITY;
        }
}

__device__ static inline float quad_max(float v)
{
    float other = __shfl_xor_sync(ALL_LANES, v, 1);
    v = v > other ? v : other;
    other = __shfl_xor_sync(ALL_LANES, v, 2);
    return v > other ? v : other;
}

__device__ static inline float quad_sum(float v)
{
    v = v + __shfl_xor_sync(ALL_LANES, v, 1);
    return v + __shfl_xor_sync(ALL_LANES, v, 2);
}

/* Online softmax: scores become weights relative to the running maximum, and the sums so far are rescaled to it. */
template <int D, int N> __device__ static void softmax(struct flash_state<D> *s, float c[2 * N][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = s->m[r];
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            most = c[n][2 * r] > most ? c[n][2 * r] : most;
            most = c[n][2 * r + 1] > most ? c[n][2 * r + 1] : most;
        }
        most = quad_max(most);
        float zero = most == -INFINITY ? 0 : most, shrink = exp2_fast(s->m[r] - zero), sum = 0;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            c[n][2 * r] = exp2_fast(c[n][2 * r] - zero);
            c[n][2 * r + 1] = exp2_fast(c[n][2 * r + 1] - zero);
            sum += c[n][2 * r] + c[n][2 * r + 1];
        }
        s->m[r] = most;
        s->l[r] = s->l[r] * shrink + sum; /* this lane's columns; the quad is added up at the end */
#pragma unroll
        for (int e = 0; e < D / 8; e++) {
            s->o[e][2 * r] *= shrink;
            s->o[e][2 * r + 1] *= shrink;
        }
    }
}

template <half_type H, int D, int N>
__device__ static void pv_product(struct flash_state<D> *s, const uint16_t (*v)[D + SHARED_PAD],
                                  const float c[2 * N][4])
{
    int matrix = lane_id() / 8, row = lane_id() % 8;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint32_t a[4] = {pair_of<H>(c[2 * n][0], c[2 * n][1]), pair_of<H>(c[2 * n][2], c[2 * n][3]),
                               pair_of<H>(c[2 * n + 1][0], c[2 * n + 1][1]),
                               pair_of<H>(c[2 * n + 1][2], c[2 * n + 1][3])};
#pragma unroll
        for (int e = 0; e < D / 16; e++) {
            uint32_t b[4];
            ldmatrix_trans(b, &v[n * GROUP_KEYS + matrix % 2 * 8 + row][e * 16 + matrix / 2 * 8]);
            mma<H>(s->o[2 * e], a, b);
            mma<H>(s->o[2 * e + 1], a, b + 2);
        }
    }
}

/* ---- what goes in, for steps of decodes: nobody but this tile reads these queries, nobody but this part these keys */

/* The keys and values of these rows of the step, by the warps that have no queries or few. A call, so that the rounds
 * keep their registers. */
__device__ __noinline__ static void write_new(const struct rope_write_job &j, struct seq_at seq, int kv, int row,
                                              int end)
{
    for (row += FLASH_WARPS - 1 - warp_id(); row < end; row += FLASH_WARPS)
        rope_into_cache(j, cache_row_of(j.write.step, j.write.kv, seq, row, kv), row, kv);
}

/* The tile's queries, after RoPE or as they are, in shared memory; from then on rows point there. */
template <int D>
__device__ static void share_queries(const struct flash_job &j, const struct flash_site &s, float (*to)[D],
                                     struct flash_rows *rows)
{
    for (int i = warp_id(); i < s.n; i += FLASH_WARPS) {
        int row = s.seq.row0 + i / s.heads, head = s.head0 + i % s.heads;
        int64_t first = (int64_t)row * j.ldq + head * D;
        rope_head(j.rope_write.q, {j.q, j.half_q, first}, row, j.rope_write.q.gain,
                  [&](int c, float v) { to[i][c] = v; });
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (rows->q[i])
            rows->q[i] = to[lane_id() / 4 + 8 * i];
}

/* Where the second round's keys will be, which come later. */
template <int D> __device__ static inline float (*queries_in(struct flash_space<D, false> *sp))[D]
{
    return (float(*)[D])sp->k[1];
}
template <int D> __device__ static inline float (*queries_in(struct flash_space<D, true> *sp))[D]
{
    return (float(*)[D])sp->raw_k[1];
}

/* ---- what comes out */

template <int D>
__device__ static void store_wide(const struct flash_job &j, const struct flash_rows &r, struct flash_state<D> *s)
{
    int t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float l = quad_sum(s->l[i]), inverse = l == 0 ? 0 : 1.0f / l; /* NaN shows */
        if (r.out[i] < 0)
            continue;
#pragma unroll
        for (int e = 0; e < D / 8; e++)
            put_act_pair(j.out, j.half_out, r.out[i] + e * 8 + 2 * t,
                         make_float2(s->o[e][2 * i] * inverse, s->o[e][2 * i + 1] * inverse));
    }
}

template <int D> __device__ static void share_narrow(struct flash_state<D> *s, struct flash_sums<D> *to)
{
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *row = to->row[g + 8 * i];
        float l = quad_sum(s->l[i]);
#pragma unroll
        for (int e = 0; e < D / 8; e++) {
            row[e * 8 + 2 * t] = s->o[e][2 * i];
            row[e * 8 + 2 * t + 1] = s->o[e][2 * i + 1];
        }
        if (t == 0) {
            row[D] = s->m[i];
            row[D + 1] = l;
        }
    }
}

/* Element c of query r, added up over the warps in their order, with their m and l. */
template <int D> __device__ static float3 add_warps(const struct flash_sums<D> *sums, int r, int c)
{
    float m = -INFINITY, l = 0, o = 0;
#pragma unroll
    for (int i = 0; i < FLASH_WARPS; i++)
        m = sums[i].row[r][D] > m ? sums[i].row[r][D] : m;
#pragma unroll
    for (int i = 0; i < FLASH_WARPS; i++) {
        float f = m > -INFINITY ? exp2_fast(sums[i].row[r][D] - m) : 0;
        l += f * sums[i].row[r][D + 1];
        o += f * sums[i].row[r][c];
    }
    return make_float3(o, m, l);
}

template <int D>
__device__ static inline void store_one(const struct flash_job &j, const struct flash_site &s, int r, int c, float o,
                                        float l)
{
    int row = s.seq.row0 + r / s.heads, head = s.head0 + r % s.heads;
    put_act(j.out, j.half_out, (int64_t)row * j.ldo + head * D + c, l == 0 ? 0 : o / l);
}

/* ---- parts: other CTAs wrote them, so no L1 may answer */

/* The warps' sums, added, into this part's place; true for the last part of the tile to come here. */
template <int D>
__device__ static bool leave_part(const struct flash_item &it, const struct flash_site &s,
                                  const struct flash_sums<D> *sums, struct flash_sums<D> *parts, uint32_t *arrived)
{
    SHARED(last, bool last);
    struct flash_sums<D> *mine = &parts[it.part];
    for (int i = (int)threadIdx.x; i < s.n * D; i += FLASH_THREADS) {
        int r = i / D, c = i % D;
        float3 v = add_warps<D>(sums, r, c);
        mine->row[r][c] = v.x;
        if (c == 0) {
            mine->row[r][D] = v.y;
            mine->row[r][D + 1] = v.z;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) { /* its fences are those of all: a barrier is before the one and behind the other */
        __threadfence();
        last = atomicAdd(arrived, 1u) == (uint32_t)it.n_parts - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* What parts count for in the results, while all of them are added: each part's factor, and one over the sum of their
 * weights. */
template <int D> struct flash_shares {
    float factor[FLASH_ROWS][FLASH_MOST_PARTS], inverse[FLASH_ROWS];
    static_assert(sizeof(float) * FLASH_ROWS * (FLASH_MOST_PARTS + 1) <= sizeof(struct flash_space<D, true>) &&
                      sizeof(struct flash_space<D, true>) <= sizeof(struct flash_space<D, false>),
                  "they lie where keys and values did");
};

template <int D>
__device__ static void share_parts(const struct flash_sums<D> *parts, int n, int queries, struct flash_shares<D> *to)
{
    for (int r = warp_id(); r < queries; r += FLASH_WARPS) {
        float own = -INFINITY, l = 0;
        for (int i = lane_id(); i < n; i += WARP) {
            float2 ml = __ldcg((const float2 *)&parts[i].row[r][D]);
            float most = ml.x > own ? ml.x : own;
            to->factor[r][i] = ml.x;
            l = most > -INFINITY ? l * exp2_fast(own - most) + ml.y * exp2_fast(ml.x - most) : ml.y;
            own = most;
        }
        float m = warp_max(own);
        l = own > -INFINITY ? l * exp2_fast(own - m) : 0;
        for (int i = lane_id(); i < n; i += WARP)
            to->factor[r][i] = m > -INFINITY ? exp2_fast(to->factor[r][i] - m) : 0;
        for (int k = WARP / 2; k; k /= 2)
            l += __shfl_xor_sync(ALL_LANES, l, k);
        if (lane_id() == 0)
            to->inverse[r] = l == 0 ? 0 : 1.0f / l; /* NaN shows */
    }
    __syncthreads();
}

/* Four elements of a query, of PARTS_AT_ONCE parts from `first` on. */
enum { PARTS_AT_ONCE = 8 };
template <int D>
__device__ static inline void load_parts(const struct flash_sums<D> *parts, int first, int n, int i,
                                         float4 v[PARTS_AT_ONCE])
{
    int r = i / (D / 4), c = i % (D / 4) * 4;
#pragma unroll
    for (int k = 0; k < PARTS_AT_ONCE; k++)
        v[k] = first + k < n ? __ldcg((const float4 *)&parts[first + k].row[r][c]) : make_float4(0, 0, 0, 0);
}

/* In the order of the parts. v: the first of them, which this thread has loaded for element 4 threadIdx.x already. */
template <int D>
__device__ static void store_parts(const struct flash_job &j, const struct flash_site &s,
                                   const struct flash_sums<D> *parts, int n, const struct flash_shares<D> &shares,
                                   float4 v[PARTS_AT_ONCE])
{
    for (int i = (int)threadIdx.x; i < s.n * (D / 4); i += FLASH_THREADS) {
        int r = i / (D / 4), c = i % (D / 4) * 4;
        float4 o = make_float4(0, 0, 0, 0);
        for (int first = 0; first < n; first += PARTS_AT_ONCE) {
            if (first || i >= FLASH_THREADS)
                load_parts<D>(parts, first, n, i, v);
#pragma unroll
            for (int k = 0; k < PARTS_AT_ONCE; k++) {
                float f = first + k < n ? shares.factor[r][first + k] : 0;
                o = make_float4(fmaf(f, v[k].x, o.x), fmaf(f, v[k].y, o.y), fmaf(f, v[k].z, o.z), fmaf(f, v[k].w, o.w));
            }
        }
        int64_t at = (int64_t)(s.seq.row0 + r / s.heads) * j.ldo + (s.head0 + r % s.heads) * D + c;
        float f = shares.inverse[r];
        put_act_pair(j.out, j.half_out, at, make_float2(o.x * f, o.y * f));
        put_act_pair(j.out, j.half_out, at + 2, make_float2(o.z * f, o.w * f));
    }
}

template <int D>
__device__ static void end_narrow(const struct flash_job &j, const struct flash_item &it, const struct flash_site &s,
                                  struct flash_state<D> *state, struct flash_sums<D> *sums)
{
    share_narrow<D>(state, &sums[warp_id()]);
    __syncthreads();
    if (it.n_parts == 1) {
        for (int i = (int)threadIdx.x; i < s.n * D; i += FLASH_THREADS) {
            float3 v = add_warps<D>(sums, i / D, i % D);
            store_one<D>(j, s, i / D, i % D, v.x, v.z);
        }
        return;
    }
    uint32_t *arrived = &j.arrived[s.kv * j.n_slots + it.slot];
    struct flash_sums<D> *parts = (struct flash_sums<D> *)j.partial + (int64_t)s.kv * j.n_parts + it.part0;
    if (!leave_part<D>(it, s, sums, parts, arrived))
        return;
    struct flash_shares<D> *shares = (struct flash_shares<D> *)sums; /* nobody reads the warps' sums any more */
    float4 first[PARTS_AT_ONCE] = {};
    if ((int)threadIdx.x < s.n * (D / 4))
        load_parts<D>(parts, 0, it.n_parts, (int)threadIdx.x, first); /* along with what share_parts loads */
    share_parts<D>(parts, it.n_parts, s.n, shares);
    store_parts<D>(j, s, parts, it.n_parts, *shares, first);
    if (threadIdx.x == 0)
        *arrived = 0;
}

/* ---- the kernel */

/* Narrow tiles: three CTAs side by side, as flash_plan.c has it, where the compiler left to itself takes more
 * registers, or spills for the sake of a fifth CTA. 0: its choice. */
template <enum cached C, int D, bool WIDE>
__global__ void __launch_bounds__(FLASH_THREADS, !WIDE && (C == cached::f8) == (D == 64) ? 3 : 0)
    flash_kernel(const __grid_constant__ struct flash_job j)
{
    enum { N = WIDE ? FLASH_KEYS / GROUP_KEYS : 1 };
    constexpr half_type H = half_of(C);
    constexpr bool F8 = C == cached::f8;
    SHARED_BYTES(shared);
    struct flash_space<D, F8> *sp = (struct flash_space<D, F8> *)shared;
    griddepcontrol_launch_dependents();
    int place = (int)(WIDE ? blockIdx.x : blockIdx.y);
    struct flash_site site = {};
    struct flash_item it = j.items[place]; /* there is room for it, whether it counts or not */
    site.kv = (int)(WIDE ? blockIdx.y : blockIdx.x);
    bool here = place < *j.n_items && find_site(j, it, &site),
         writes = !WIDE && here && j.rope && site.key1 > site.seq.pos0, shares = !WIDE && (j.rope || j.half_q);
    if (here && j.rope) /* the plan and the blocks are of the step's beginning, old keys of steps before */
        fetch_round<D, F8, fetched::old>(j, site, site.key0, sp, 0);
    griddepcontrol_wait();
    if (!here)
        return;
    struct flash_rows rows;
    struct flash_state<D> state;
    find_rows(j, site, &rows);
    if (!j.rope)
        fetch_round<D, F8, fetched::all>(j, site, site.key0, sp, 0);
    if (writes) {
        int to_row = site.seq.row0 - site.seq.pos0;
        write_new(j.rope_write, site.seq, site.kv, to_row + (site.key0 > site.seq.pos0 ? site.key0 : site.seq.pos0),
                  to_row + site.key1);
    }
    cp_async_commit();
    if (shares)
        share_queries<D>(j, site, queries_in<D>(sp), &rows);
    if (writes) { /* the barrier of shared queries is behind what was written */
        fetch_round<D, F8, fetched::own>(j, site, site.key0, sp, 0);
        cp_async_commit();
    }
    load_queries<H, D, WIDE>(j, rows, &state);
    if (shares)
        __syncthreads(); /* all have them: the second round may come */
    for (int key = site.key0, at = 0; key < site.key1; key += FLASH_KEYS, at ^= 1) {
        if (key + FLASH_KEYS < site.key1)
            fetch_round<D, F8, fetched::all>(j, site, key + FLASH_KEYS, sp, at ^ 1);
        cp_async_commit();
        cp_async_wait<1>();
        if constexpr (F8)
            widen_round<D>(sp, at);
        __syncthreads();
        int first = WIDE ? 0 : warp_id() * GROUP_KEYS, buffer = F8 ? 0 : at;
        float c[2 * N][4];
        qk_product<H, D, N>(state, &sp->k[buffer][first], c);
        mask<N>(rows, key + first, c);
        softmax<D, N>(&state, c);
        pv_product<H, D, N>(&state, &sp->v[buffer][first], c);
        __syncthreads();
    }
    if constexpr (WIDE)
        store_wide<D>(j, rows, &state);
    else
        end_narrow<D>(j, it, site, &state, (struct flash_sums<D> *)shared);
}

/* ---- launching */

template <enum cached C, int D, bool WIDE> static cudaError_t launch_one(cudaStream_t s, const struct flash_job *j)
{
    dim3 items(j->most_items, j->kv.n_heads), heads(j->kv.n_heads, j->most_items), grid = WIDE ? items : heads;
    if (j->pdl)
        return launch_pdl(flash_kernel<C, D, WIDE>, grid, dim3(FLASH_THREADS),
                          sizeof(struct flash_space<D, C == cached::f8>), s, *j);
    return launch(flash_kernel<C, D, WIDE>, grid, dim3(FLASH_THREADS), sizeof(struct flash_space<D, C == cached::f8>),
                  s, *j);
}

template <enum cached C, int D> static cudaError_t launch_kind(cudaStream_t s, const struct flash_job *j)
{
    return j->wide ? launch_one<C, D, true>(s, j) : launch_one<C, D, false>(s, j);
}

template <enum cached C, int D> static cudaError_t prepare_kind(void)
{
    int bytes = (int)sizeof(struct flash_space<D, C == cached::f8>);
    cudaError_t e = cudaFuncSetAttribute(flash_kernel<C, D, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e ? e : cudaFuncSetAttribute(flash_kernel<C, D, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t flash_prepare(void)
{
    cudaError_t e = prepare_kind<cached::f16, 64>();
    e = e ? e : prepare_kind<cached::f16, 128>();
    e = e ? e : prepare_kind<cached::bf16, 64>();
    e = e ? e : prepare_kind<cached::bf16, 128>();
    e = e ? e : prepare_kind<cached::f8, 64>();
    return e ? e : prepare_kind<cached::f8, 128>();
}

bool flash_can(enum dtype t, int head_dim)
{
    return (t == DT_F16 || t == DT_BF16 || t == DT_F8) && (head_dim == 64 || head_dim == 128);
}

cudaError_t launch_flash(cudaStream_t s, const struct flash_job *j)
{
    if (j->most_items == 0)
        return cudaSuccess;
    if (!flash_can(j->kv.type, j->kv.head_dim))
        return cudaErrorInvalidValue;
    if (j->wide && j->hopper)
        return launch_flash_hopper(s, j);
    if (j->kv.type == DT_F8)
        return j->kv.head_dim == 64 ? launch_kind<cached::f8, 64>(s, j) : launch_kind<cached::f8, 128>(s, j);
    if (j->kv.type == DT_F16)
        return j->kv.head_dim == 64 ? launch_kind<cached::f16, 64>(s, j) : launch_kind<cached::f16, 128>(s, j);
    return j->kv.head_dim == 64 ? launch_kind<cached::bf16, 64>(s, j) : launch_kind<cached::bf16, 128>(s, j);
}
