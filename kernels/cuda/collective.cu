/* What a member does with the buffers that the others publish, once its stream has waited for them: copies rectangles,
 * adds planes in the tree's order, and takes the others' parts of a sum. Bound by memory bandwidth, or by the link
 * where the members have devices of their own: so 16 bytes at a time where all addresses allow it, and several loads of
 * a thread under way. What a thread adds stays in registers: its arrays are indexed by constants only. */
#include "kernels/cuda/prim.h"

enum { THREADS = 256, MOST_CTAS = 1024, SHALLOW = 6, DEEP = 20, AHEAD = 4 };

static bool is_aligned(const void *p, int64_t ld)
{
    return (uintptr_t)p % sizeof(float4) == 0 && ld % 4 == 0;
}

/* ---- rectangles */

/* CTAs of one z: one rectangle of W's, blockDim.y rows at a time. */
template <typename W> static __global__ void copy_kernel(struct copy_job j)
{
    const struct copy_rect &r = j.rects[blockIdx.z];
    int each = sizeof(W) / sizeof(float), cols = r.cols / each;
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), step = (int)(gridDim.y * blockDim.y);
    for (int row = (int)(blockIdx.y * blockDim.y + threadIdx.y); row < r.rows && c < cols; row += step)
        ((W *)(r.to + (int64_t)row * r.ld_to))[c] = ((const W *)(r.from + (int64_t)row * r.ld_from))[c];
}

cudaError_t launch_copy(cudaStream_t s, const struct copy_job *j)
{
    bool wide = true;
    int rows = 1, cols = 1, x = WARP;
    for (int i = 0; i < j->n; i++) {
        const struct copy_rect *r = &j->rects[i];
        rows = r->rows > rows ? r->rows : rows;
        cols = r->cols > cols ? r->cols : cols;
        wide = wide && r->cols % 4 == 0 && is_aligned(r->from, r->ld_from) && is_aligned(r->to, r->ld_to);
    }
    cols = wide ? cols / 4 : cols;
    while (x < THREADS && x < cols)
        x *= 2;
    int columns = ceil_div(cols, x), y = ceil_div(rows, THREADS / x), most = ceil_div(MOST_CTAS, columns);
    dim3 grid(columns, y < most ? y : most, j->n), block(x, THREADS / x);
    return wide ? launch(copy_kernel<float4>, grid, block, 0, s, *j)
                : launch(copy_kernel<float>, grid, block, 0, s, *j);
}

/* ---- sums */

__device__ static inline float plus(float a, float b)
{
    return a + b;
}

__device__ static inline float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Where the element `at` of rows x cols lies. */
struct place {
    int64_t row;
    int col;
};
__device__ static inline struct place place_of(int64_t at, int cols)
{
    return {at / cols, (int)(at % cols)};
}

template <typename V> __device__ static inline V load(const float *p, int64_t ld, struct place w)
{
    return *(const V *)(p + w.row * ld + w.col);
}

template <typename V>
__device__ static inline void put_sum(float *y, int64_t ld, struct place w, V sum, bool accumulate)
{
    V *to = (V *)(y + w.row * ld + w.col);
    *to = accumulate ? plus(*to, sum) : sum;
}

/* The first of a thread's elements. */
template <typename V> __device__ static inline int64_t own_element()
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * (int64_t)(sizeof(V) / sizeof(float));
}

/* N planes, a power of two, that are added in pairs, then pairs of pairs. Thread: four elements. */
template <int N> static __global__ void sum_pairs_kernel(struct sum_job j)
{
    int64_t at = j.first + own_element<float4>();
    if (at >= j.end)
        return;
    struct place w = place_of(at, j.cols);
    float4 v[N];
#pragma unroll
    for (int p = 0; p < N; p++)
        v[p] = load<float4>(j.planes[p], j.lds[p], w);
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int p = 0; p < N; p += 2 * step)
            v[p] = plus(v[p], v[p + step]);
    put_sum(j.y, j.ldy, w, v[0], j.accumulate);
}

/* Any order of at most DEPTH planes that wait for their sibling: planes are pushed, the last at [0], each followed by
 * its additions of the top two. Thread: one V. */
template <typename V, int DEPTH> static __global__ void sum_tree_kernel(struct sum_job j)
{
    int64_t at = j.first + own_element<V>();
    if (at >= j.end)
        return;
    struct place w = place_of(at, j.cols);
    V stack[DEPTH] = {};
    for (int p = 0; p < j.n_planes; p += AHEAD) {
        V next[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (p + u < j.n_planes)
                next[u] = load<V>(j.planes[p + u], j.lds[p + u], w);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (p + u == j.n_planes)
                break;
#pragma unroll
            for (int k = DEPTH - 1; k > 0; k--)
                stack[k] = stack[k - 1];
            stack[0] = next[u];
            for (int n = j.adds[p + u]; n > 0; n--) {
                stack[0] = plus(stack[1], stack[0]);
#pragma unroll
                for (int k = 1; k < DEPTH - 1; k++)
                    stack[k] = stack[k + 1];
            }
        }
    }
    put_sum(j.y, j.ldy, w, stack[0], j.accumulate);
}

/* How many planes of the order wait at once. */
static int depth_of(const struct sum_job *j)
{
    int depth = 0, most = 0;
    for (int p = 0; p < j->n_planes; p++) {
        depth++;
        most = depth > most ? depth : most;
        depth -= j->adds[p];
    }
    return most;
}

/* After plane p as many additions as p + 1 has factors of two. */
static bool is_pairs(const struct sum_job *j)
{
    int n = j->n_planes;
    for (int p = 0; p < n; p++) {
        int twos = 0;
        while ((p + 1) % (2 << twos) == 0)
            twos++;
        if (j->adds[p] != twos)
            return false;
    }
    return n == 1 || n == 2 || n == 4 || n == 8;
}

static bool is_wide(const struct sum_job *j)
{
    bool wide = j->cols % 4 == 0 && j->first % 4 == 0 && is_aligned(j->y, j->ldy);
    for (int p = 0; p < j->n_planes; p++)
        wide = wide && is_aligned(j->planes[p], j->lds[p]);
    return wide;
}

cudaError_t launch_sum(cudaStream_t s, const struct sum_job *j)
{
    bool pairs = is_pairs(j), wide = is_wide(j) && (pairs || depth_of(j) <= SHALLOW);
    dim3 grid(ceil_div(j->end - j->first, THREADS * (wide ? 4 : 1))), block(THREADS);
    if (!wide)
        return launch(sum_tree_kernel<float, DEEP>, grid, block, 0, s, *j);
    switch (pairs ? j->n_planes : 0) {
    case 1:
        return launch(sum_pairs_kernel<1>, grid, block, 0, s, *j);
    case 2:
        return launch(sum_pairs_kernel<2>, grid, block, 0, s, *j);
    case 4:
        return launch(sum_pairs_kernel<4>, grid, block, 0, s, *j);
    case 8:
        return launch(sum_pairs_kernel<8>, grid, block, 0, s, *j);
    default:
        return launch(sum_tree_kernel<float4, SHALLOW>, grid, block, 0, s, *j);
    }
}

/* ---- parts of a sum */

/* CTAs of one y: one member's part. Thread: one V. */
template <typename V> static __global__ void take_kernel(struct take_job j)
{
    int m = (int)blockIdx.y;
    int64_t at = j.first[m] + own_element<V>();
    if (at >= j.first[m + 1])
        return;
    struct place w = place_of(at, j.cols);
    put_sum(j.y, j.ldy, w, load<V>(j.parts[m], j.lds[m], w), j.accumulate);
}

cudaError_t launch_take(cudaStream_t s, const struct take_job *j)
{
    bool wide = j->cols % 4 == 0 && is_aligned(j->y, j->ldy);
    int64_t most = 0;
    for (int m = 0; m < j->n; m++) {
        int64_t n = j->first[m + 1] - j->first[m];
        most = n > most ? n : most;
        wide = wide && j->first[m] % 4 == 0 && is_aligned(j->parts[m], j->lds[m]);
    }
    dim3 grid(ceil_div(most, THREADS * (wide ? 4 : 1)), j->n), block(THREADS);
    return wide ? launch(take_kernel<float4>, grid, block, 0, s, *j)
                : launch(take_kernel<float>, grid, block, 0, s, *j);
}
