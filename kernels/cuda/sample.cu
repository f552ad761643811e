/* Sampling a token from a row of logits as kernels/cpu/sample.c does it: the same order of tokens, the same rules, the
 * same draw. One CTA per row. A row is read from memory a few times (greedy: once), which is the bound. Weights are
 * the CPU's e^x as whole multiples of 2^-44, so that a sum has the same value in any order; a token that weighs less
 * than that is never drawn. Sets of tokens are prefixes of the order, found by four passes of a histogram over the
 * bits of the logits (a radix select). */
#include "kernels/cuda/prim.h"

#include <cfloat>
#include <climits>

enum { SAMPLE_THREADS = 512, SAMPLE_WARPS = SAMPLE_THREADS / WARP, BINS = 256, MOST_TILES = 1024, MOST_TOP = 20 };
typedef unsigned long long mass_t; /* multiples of 2^-44 */

/* A prefix of the order: logits with more than `key`, and of those with just that the ids up to `last`. */
struct prefix {
    uint32_t key;
    int last;
};

struct heat {
    float max, inverse;
};

struct sample_space {
    mass_t bins[BINS], tiles[MOST_TILES], warps[SAMPLE_WARPS];
    mass_t above, target, unit;
    uint32_t key;
    int chosen, n_listed;
    struct prefix found;
    int ids[MOST_TOP];
    float values[MOST_TOP];
};

/* Larger for larger logits; both zeros are one. */
__device__ static uint32_t key_of(float x)
{
    uint32_t u = __float_as_uint(x + 0.0f);
    return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}

__device__ static float value_of(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

__device__ static bool in_prefix(struct prefix p, uint32_t key, int id)
{
    return key > p.key || (key == p.key && id <= p.last);
}

/* kernels/cpu/sample.c: exp_down. */
__device__ static float exp_down(float y)
{
    float in = y > -87.0f ? y : -87.0f;
    float t = in * 1.44269504f + 12582912.0f;
    float n = t - 12582912.0f;
    float r = in - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return y > -87.0f ? __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23)) : 0.0f;
}

__device__ static mass_t mass_of(struct heat h, float x)
{
    return (mass_t)(exp_down((x - h.max) * h.inverse) * 0x1p44f);
}

/* ---- sums over the CTA: the same in every thread */

__device__ static __forceinline__ mass_t warp_sum(mass_t v)
{
    for (int k = WARP / 2; k; k /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, k);
    return v;
}

__device__ static __forceinline__ mass_t cta_sum(struct sample_space *s, mass_t v)
{
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0)
        s->warps[warp_id()] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < SAMPLE_WARPS; w++)
        v += s->warps[w];
    return v;
}

__device__ static __forceinline__ mass_t cta_max(struct sample_space *s, mass_t v)
{
    for (int k = WARP / 2; k; k /= 2) {
        mass_t other = __shfl_xor_sync(ALL_LANES, v, k);
        v = other > v ? other : v;
    }
    __syncthreads();
    if (lane_id() == 0)
        s->warps[warp_id()] = v;
    __syncthreads();
    for (int w = 0; w < SAMPLE_WARPS; w++)
        v = s->warps[w] > v ? s->warps[w] : v;
    return v;
}

/* ---- passes over the row */

/* f(i, x[i]) of this thread's elements; several are on their way at once, whatever f writes. Rows of any length begin
 * anywhere: only those that begin at 16 bytes are read by as many. */
template <typename F> __device__ static __forceinline__ void each_logit(const float *x, int n, F f)
{
    enum { AT_ONCE = 4, STEP = 4 * SAMPLE_THREADS };
    int all = (uintptr_t)x % sizeof(float4) == 0 ? n / (AT_ONCE * STEP) * (AT_ONCE * STEP) : 0;
    for (int i = 4 * (int)threadIdx.x; i < all; i += AT_ONCE * STEP) {
        float4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            v[k] = *(const float4 *)&x[i + k * STEP];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            f(i + k * STEP, v[k].x), f(i + k * STEP + 1, v[k].y);
            f(i + k * STEP + 2, v[k].z), f(i + k * STEP + 3, v[k].w);
        }
    }
    for (int i = all + (int)threadIdx.x; i < n; i += SAMPLE_THREADS)
        f(i, x[i]);
}

struct best {
    float x;
    int id;
};

/* Replaces what is not a number; the first of the order. */
__device__ static __forceinline__ struct best clean(struct sample_space *s, float *x, int n)
{
    mass_t most = 0;
    each_logit(x, n, [&](int i, float was) {
        float v = was > -INFINITY ? was : -INFINITY;
        v = v < FLT_MAX ? v : FLT_MAX;
        if (v != was)
            x[i] = v;
        mass_t m = (mass_t)key_of(v) << 32 | (uint32_t)~i;
        most = m > most ? m : most;
    });
    most = cta_max(s, most);
    return {value_of((uint32_t)(most >> 32)), (int)~(uint32_t)most};
}

/* What an element adds: its weight, or one. */
__device__ static __forceinline__ mass_t part_of(const struct heat *h, float x)
{
    return h ? mass_of(*h, x) : 1;
}

__device__ static __forceinline__ mass_t sum_prefix(struct sample_space *s, const float *x, int n, struct prefix p,
                                                    const struct heat *h)
{
    mass_t sum = 0;
    each_logit(x, n, [&](int i, float v) { sum += in_prefix(p, key_of(v), i) ? part_of(h, v) : 0; });
    return cta_sum(s, sum);
}

/* The sum of numbers of up to 46 bits over the warp. */
__device__ static __forceinline__ mass_t warp_sum_small(mass_t v)
{
    enum { HALF = 23 };
    return __reduce_add_sync(ALL_LANES, (uint32_t)v & ((1u << HALF) - 1)) +
           ((mass_t)__reduce_add_sync(ALL_LANES, (uint32_t)(v >> HALF)) << HALF);
}

/* *to += v, in shared memory, which adds 32 bits by itself: 64 would be a loop of compare and swap, in which lanes that
 * add to the same place hold each other up. */
__device__ static __forceinline__ void add_mass(mass_t *to, mass_t v)
{
    uint32_t *half = (uint32_t *)to, low = (uint32_t)v, high = (uint32_t)(v >> 32);
    if (low && atomicAdd(&half[0], low) + low < low)
        high++;
    if (high)
        atomicAdd(&half[1], high);
}

/* Each lane's v into its bin; all lanes of the warp take part, those with 0 add nothing. In the upper bits of the key
 * nearly all logits fall into a handful of bins, so the lanes of the first few bins add up among themselves, and one of
 * them adds to the bin. */
__device__ static __forceinline__ void add_to_bins(struct sample_space *s, uint32_t bin, mass_t v)
{
    enum { TOGETHER = 4 };
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        uint32_t left = __ballot_sync(ALL_LANES, v != 0);
        if (!left)
            return;
        int first = __ffs((int)left) - 1;
        bool same = bin == __shfl_sync(ALL_LANES, bin, first);
        mass_t sum = warp_sum_small(same ? v : 0);
        if (lane_id() == first)
            add_mass(&s->bins[bin], sum);
        v = same ? 0 : v;
    }
    if (v)
        add_mass(&s->bins[bin], v);
}

/* Eight more bits of the key of the prefix's last element: s->key, s->above. */
__device__ static __forceinline__ void narrow(struct sample_space *s, const float *x, int n, struct prefix in,
                                              const struct heat *h, int shift)
{
    uint32_t key = s->key;
    __syncthreads();
    for (int b = (int)threadIdx.x; b < BINS; b += SAMPLE_THREADS)
        s->bins[b] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i - lane_id() < n; i += SAMPLE_THREADS) {
        float v = i < n ? x[i] : 0;
        uint32_t k = key_of(v);
        bool here = i < n && (shift == 24 || k >> (shift + 8) == key >> (shift + 8)) && in_prefix(in, k, i);
        add_to_bins(s, k >> shift & 255, here ? part_of(h, v) : 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int b = BINS - 1;
        for (; b > 0 && s->above + s->bins[b] < s->target; b--)
            s->above += s->bins[b];
        s->key = key | (uint32_t)b << shift;
        s->unit = s->bins[b];
    }
    __syncthreads();
}

/* s->found.last: of the elements of `in` whose key is s->key, the id of the need-th. */
__device__ static __forceinline__ void find_last(struct sample_space *s, const float *x, int n, struct prefix in,
                                                 mass_t need)
{
    int n_tiles = (n + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
    for (int t = 0; t < n_tiles; t++) {
        int i = t * SAMPLE_THREADS + (int)threadIdx.x;
        mass_t here = cta_sum(s, i < n && key_of(x[i]) == s->key && in_prefix(in, s->key, i));
        if (here < need) {
            need -= here;
            continue;
        }
        if (threadIdx.x == 0)
            for (i = t * SAMPLE_THREADS; i < n; i++)
                if (key_of(x[i]) == s->key && in_prefix(in, s->key, i) && --need == 0) {
                    s->found.last = i;
                    break;
                }
        break;
    }
    __syncthreads();
}

/* The shortest prefix of the order, inside `in`, that adds up to at least target (> 0, and no more than all of `in`).
 */
__device__ static __forceinline__ struct prefix shortest(struct sample_space *s, const float *x, int n,
                                                         struct prefix in, const struct heat *h, mass_t target)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        s->key = 0;
        s->above = 0;
        s->target = target;
    }
    __syncthreads();
    for (int shift = 24; shift >= 0; shift -= 8)
        narrow(s, x, n, in, h, shift);
    mass_t each = part_of(h, value_of(s->key)), left = s->target - s->above, all = s->unit;
    mass_t need = each ? (left + each - 1) / each : 1;
    if (threadIdx.x == 0)
        s->found = {s->key, s->key == in.key ? in.last : INT_MAX};
    __syncthreads();
    if (each && need * each < all)
        find_last(s, x, n, in, need);
    return s->found;
}

/* ---- logprobs, of the raw logits */

__device__ static __forceinline__ void list_top(struct sample_space *s, const float *x, int n, int n_top,
                                                double log_sum, struct sample_out *out)
{
    n_top = n_top < n ? n_top : n;
    n_top = n_top < MOST_TOP ? n_top : MOST_TOP;
    if (threadIdx.x == 0) {
        out->n_top = n_top > 0 ? n_top : 0;
        s->n_listed = 0;
    }
    if (n_top <= 0)
        return;
    struct prefix p = shortest(s, x, n, {0, INT_MAX}, nullptr, (mass_t)n_top);
    for (int i = (int)threadIdx.x; i < n; i += SAMPLE_THREADS)
        if (in_prefix(p, key_of(x[i]), i)) {
            int at = atomicAdd(&s->n_listed, 1);
            s->ids[at] = i;
            s->values[at] = x[i];
        }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < n_top; i++)
        for (int k = i; k > 0 && (s->values[k] > s->values[k - 1] ||
                                  (s->values[k] == s->values[k - 1] && s->ids[k] < s->ids[k - 1]));
             k--) {
            int id = s->ids[k];
            float v = s->values[k];
            s->ids[k] = s->ids[k - 1], s->values[k] = s->values[k - 1];
            s->ids[k - 1] = id, s->values[k - 1] = v;
        }
    for (int i = 0; i < n_top; i++) {
        out->top_ids[i] = s->ids[i];
        out->top_logprobs[i] = (float)((double)s->values[i] - log_sum);
    }
}

__device__ static __forceinline__ void report(struct sample_space *s, const float *raw, int n, int id, double log_sum,
                                              struct sample_out *out)
{
    mass_t ahead = 0;
    float x = raw[id];
    each_logit(raw, n, [&](int i, float v) { ahead += i < id ? v >= x : i > id && v > x; });
    ahead = cta_sum(s, ahead);
    if (threadIdx.x == 0) {
        out->logprob = (float)((double)x - log_sum);
        out->rank = (int)ahead + 1;
    }
}

/* ---- changes to the logits */

/* The lists of a row, one after the other. */
struct lists {
    const int32_t *allowed, *banned, *bias, *seen;
};

__device__ static struct lists lists_of(const struct sample_job &j, const struct sample_params &a)
{
    struct lists l;
    l.allowed = j.lists + a.lists;
    l.banned = l.allowed + (a.n_allowed > 0 ? a.n_allowed : 0);
    l.bias = l.banned + a.n_banned;
    l.seen = l.bias + 2 * a.n_bias;
    return l;
}

__device__ static bool in_range(int32_t id, int n)
{
    return id >= 0 && id < n;
}

__device__ static __forceinline__ void penalise(float *x, int n, const struct sample_params &a, const int32_t *seen)
{
    for (int i = (int)threadIdx.x; i < a.n_seen; i += SAMPLE_THREADS) {
        int32_t id = seen[2 * i], count = seen[2 * i + 1];
        if (!in_range(id, n))
            continue;
        float v = x[id];
        v = v > 0 ? v / a.repetition : v * a.repetition;
        v = v - a.frequency * (float)count;
        x[id] = count ? v - a.presence : v;
    }
}

/* raw into x, changed. Each list is applied before the next; the ids of a list are distinct, or (bias) sorted. */
__device__ static __forceinline__ void change(const float *raw, float *x, int n, const struct sample_params &a,
                                              const struct lists &l)
{
    for (int i = (int)threadIdx.x; i < n; i += SAMPLE_THREADS)
        x[i] = a.n_allowed >= 0 ? -INFINITY : raw[i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.n_allowed; i += SAMPLE_THREADS)
        if (in_range(l.allowed[i], n))
            x[l.allowed[i]] = raw[l.allowed[i]];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.n_banned; i += SAMPLE_THREADS)
        if (in_range(l.banned[i], n))
            x[l.banned[i]] = -INFINITY;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.n_bias; i += SAMPLE_THREADS) {
        int32_t id = l.bias[2 * i];
        if (!in_range(id, n) || (i > 0 && l.bias[2 * i - 2] == id))
            continue;
        for (int k = i; k < a.n_bias && l.bias[2 * k] == id; k++)
            x[id] = x[id] + __uint_as_float((uint32_t)l.bias[2 * k + 1]);
    }
    __syncthreads();
    penalise(x, n, a, l.seen);
    __syncthreads();
}

/* ---- the choice */

/* No logit is finite: the lowest id that may be chosen. Thread 0 alone. */
__device__ static __forceinline__ int choose_anything(int n, const struct sample_params &a, const struct lists &l)
{
    for (int i = 0; i < (a.n_allowed >= 0 ? a.n_allowed : n); i++) {
        int32_t id = a.n_allowed >= 0 ? l.allowed[i] : i;
        bool banned = !in_range(id, n);
        for (int k = 0; k < a.n_banned && !banned; k++)
            banned = l.banned[k] == id;
        if (!banned)
            return id;
    }
    return 0;
}

/* What min_p, top_k and top_p keep. */
__device__ static __forceinline__ struct prefix restrict_to(struct sample_space *s, const float *x, int n,
                                                            const struct sample_params &a, struct heat h)
{
    struct prefix p = {0, INT_MAX};
    if (a.min_p > 0) {
        float cut = (float)((double)h.max + log((double)a.min_p) / (double)h.inverse);
        p.key = key_of(cut < h.max ? cut : h.max);
    }
    if (a.top_k > 0 && a.top_k < n) {
        mass_t all = sum_prefix(s, x, n, p, nullptr);
        if (all > (mass_t)a.top_k)
            p = shortest(s, x, n, p, nullptr, (mass_t)a.top_k);
    }
    if (a.top_p < 1) {
        mass_t sum = sum_prefix(s, x, n, p, &h), target = (mass_t)ceil((double)a.top_p * (double)sum);
        target = target < 1 ? 1 : target > sum ? sum : target;
        p = shortest(s, x, n, p, &h, target);
    }
    return p;
}

/* Walks the weights of a tile, each thread's own, to the target; s->chosen. */
__device__ static __forceinline__ void walk_tile(struct sample_space *s, mass_t own, int tile, mass_t target)
{
    int i = tile * SAMPLE_THREADS + (int)threadIdx.x;
    mass_t upto = own;
    for (int k = 1; k < WARP; k *= 2) {
        mass_t other = __shfl_up_sync(ALL_LANES, upto, k);
        upto += lane_id() >= k ? other : 0;
    }
    __syncthreads();
    if (lane_id() == WARP - 1)
        s->warps[warp_id()] = upto;
    __syncthreads();
    for (int w = 0; w < warp_id(); w++)
        upto += s->warps[w];
    if (own && target < upto && target >= upto - own)
        s->chosen = i;
    __syncthreads();
}

__device__ static __forceinline__ int draw(struct sample_space *s, const float *x, int n, struct prefix p,
                                           struct heat h, double u)
{
    int n_tiles = (n + SAMPLE_THREADS - 1) / SAMPLE_THREADS, tile = 0;
    for (int t = warp_id(); t < n_tiles; t += SAMPLE_WARPS) {
        float v[SAMPLE_WARPS];
        mass_t sum = 0;
        int first = t * SAMPLE_THREADS + lane_id();
#pragma unroll
        for (int k = 0; k < SAMPLE_WARPS; k++)
            v[k] = first + k * WARP < n ? x[first + k * WARP] : -INFINITY;
#pragma unroll
        for (int k = 0; k < SAMPLE_WARPS; k++)
            sum += in_prefix(p, key_of(v[k]), first + k * WARP) ? mass_of(h, v[k]) : 0;
        sum = warp_sum(sum);
        if (lane_id() == 0)
            s->tiles[t] = sum;
    }
    __syncthreads();
    mass_t total = 0;
    for (int t = (int)threadIdx.x; t < n_tiles; t += SAMPLE_THREADS)
        total += s->tiles[t];
    total = cta_sum(s, total);
    mass_t target = (mass_t)(u * (double)total);
    target = target < total ? target : total - 1;
    while (target >= s->tiles[tile])
        target -= s->tiles[tile++];
    int i = tile * SAMPLE_THREADS + (int)threadIdx.x;
    walk_tile(s, i < n && in_prefix(p, key_of(x[i]), i) ? mass_of(h, x[i]) : 0, tile, target);
    return s->chosen;
}

__device__ static __forceinline__ int choose(struct sample_space *s, const float *x, int n, struct best best,
                                             const struct sample_params &a, const struct lists &l)
{
    if (best.x == -INFINITY) {
        if (threadIdx.x == 0)
            s->chosen = choose_anything(n, a, l);
        __syncthreads();
        return s->chosen;
    }
    if (a.temperature < 1e-5f)
        return best.id;
    struct heat h = {best.x, 1.0f / a.temperature};
    struct prefix p = restrict_to(s, x, n, a, h);
    return draw(s, x, n, p, h, a.draw);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_kernel(struct sample_job j)
{
    SHARED(s, struct sample_space s);
    const struct sample_params &a = j.params[blockIdx.x];
    float *raw = j.logits + (int64_t)blockIdx.x * j.ld, *x = raw;
    struct sample_out *out = &j.out[blockIdx.x];
    struct lists l = lists_of(j, a);
    double log_sum = 0;
    int token = a.given;
    for (int i = (int)threadIdx.x; i < (int)(sizeof *out / sizeof(int32_t)); i += SAMPLE_THREADS)
        ((int32_t *)out)[i] = 0;
    __syncthreads();
    struct best first = clean(&s, raw, j.vocab);
    __syncthreads();
    if (a.logprobs) {
        struct heat plain = {first.x, 1};
        if (first.x != -INFINITY)
            log_sum = (double)first.x + log((double)sum_prefix(&s, raw, j.vocab, {0, INT_MAX}, &plain) * 0x1p-44);
        list_top(&s, raw, j.vocab, a.n_top, log_sum, out);
        __syncthreads();
    }
    if (token < 0 && a.changed) {
        x = j.changed + (int64_t)blockIdx.x * j.vocab;
        change(raw, x, j.vocab, a, l);
        first = clean(&s, x, j.vocab);
        __syncthreads();
    }
    if (token < 0)
        token = choose(&s, x, j.vocab, first, a, l);
    if (threadIdx.x == 0)
        out->token = token;
    if (a.logprobs && in_range(token, j.vocab))
        report(&s, raw, j.vocab, token, log_sum, out);
    struct sample_out *host = j.hosts[0];
#pragma unroll
    for (int i = 1; i < FLIGHTS; i++)
        host = j.turn && j.turn->from == i ? j.hosts[i] : host;
    __syncthreads();
    for (int i = (int)threadIdx.x; host && i < (int)(sizeof *out / sizeof(int32_t)); i += SAMPLE_THREADS)
        ((int32_t *)&host[blockIdx.x])[i] = ((const int32_t *)out)[i];
}

cudaError_t launch_sample(cudaStream_t s, const struct sample_job *j)
{
    if (j->vocab > MOST_TILES * SAMPLE_THREADS)
        return cudaErrorInvalidValue;
    return launch(sample_kernel, dim3(j->n), dim3(SAMPLE_THREADS), 0, s, *j);
}
