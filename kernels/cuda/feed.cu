/* How a captured step begins and ends, without the host. Its arrays are read over the bus where the host wrote them: a
 * few KiB, bound by the latency of two reads. A copy would be the work of another engine, which the step's kernels
 * would have to wait for. Tokens go from one step to the next: each member knows what it has sampled, and all need all
 * of it, a few hundred numbers. */
#include "kernels/cuda/prim.h"

enum { FEED_THREADS = 256, FETCH_CTAS = 8 };

__device__ static const struct frame_head *head_of(const struct frame_job &j, int host)
{
    return (const struct frame_head *)j.hosts[host];
}

/* The frame of the next turn. The other one has an earlier turn, or, where the host is ahead, a later one. */
__device__ static int next_frame(const struct frame_job &j)
{
    uint32_t done = j.turn->done, least = ~0u;
    int next = 0;
    for (int i = 0; i < FLIGHTS; i++) {
        uint32_t ahead = head_of(j, i)->turn - done - 1;
        if (ahead < least) {
            least = ahead;
            next = i;
        }
    }
    return next;
}

__device__ static void fetch(const char *from, char *to, struct frame_piece p)
{
    int n = (int)(p.bytes / sizeof(uint4)), step = FETCH_CTAS * FEED_THREADS;
    for (int i = (int)(blockIdx.x * FEED_THREADS + threadIdx.x); i < n; i += step)
        ((uint4 *)(to + p.at))[i] = ((const uint4 *)(from + p.at))[i];
}

static __global__ void fetch_frame_kernel(struct frame_job j)
{
    int at = next_frame(j), first = (int)(blockIdx.x * FEED_THREADS + threadIdx.x);
    const struct frame_head head = *head_of(j, at);
    const char *from = j.hosts[at];
    if (first == 0) {
        j.turn->now = head.turn;
        j.turn->from = at;
    }
    for (int i = 0; i < j.n_pieces; i++)
        fetch(from, j.dev, j.pieces[i]);
    fetch(from, j.dev, {j.items, head.item_bytes});
    fetch(from, j.dev, {j.words, head.word_bytes});
    for (int i = first; i < j.n; i += FETCH_CTAS * FEED_THREADS) {
        int32_t feeds = ((const int32_t *)(from + j.feeds))[i], id = ((const int32_t *)(from + j.ids))[i];
        ((int32_t *)(j.dev + j.ids))[i] = feeds ? j.fed[i] : id;
        j.results[i].token = -1;
    }
}

cudaError_t launch_fetch_frame(cudaStream_t s, const struct frame_job *j)
{
    return launch(fetch_frame_kernel, dim3(FETCH_CTAS), dim3(FEED_THREADS), 0, s, *j);
}

static __global__ void gather_tokens_kernel(struct gather_tokens_job j)
{
    for (int i = (int)threadIdx.x; i < j.n; i += FEED_THREADS)
        for (int m = 0; m < j.n_members; m++) {
            int token = j.results[m][i].token;
            if (token >= 0)
                j.fed[i] = token;
        }
    if (threadIdx.x == 0)
        j.turn->done = j.turn->now;
}

cudaError_t launch_gather_tokens(cudaStream_t s, const struct gather_tokens_job *j)
{
    return launch(gather_tokens_kernel, dim3(1), dim3(FEED_THREADS), 0, s, *j);
}
