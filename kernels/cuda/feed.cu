/* How a captured step begins and ends, without the host. Its arrays are read over the bus where the host wrote them: a
 * few KiB, bound by the latency of two reads. A copy would be the work of another engine, which the step's kernels
 * would have to wait for. Tokens go from one step to the next: each member knows what it has sampled, and all need all
 * of it, a few hundred numbers. */
#include "kernels/cuda/prim.h"

enum { FEED_THREADS = 256, FETCH_CTAS = 32 };

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

/* A CTA's part of one piece of work: by CTA `own` of so many. */
struct share {
    int own, of;
};

__device__ static void fetch(const char *from, char *to, struct frame_piece p, struct share s)
{
    int n = (int)(p.bytes / sizeof(uint4));
    for (int i = s.own * FEED_THREADS + (int)threadIdx.x; i < n; i += s.of * FEED_THREADS)
        ((uint4 *)(to + p.at))[i] = ((const uint4 *)(from + p.at))[i];
}

/* Which tokens the rows have, and that none has sampled yet. */
__device__ static void fetch_ids(const struct frame_job &j, const char *from, struct share s)
{
    for (int i = s.own * FEED_THREADS + (int)threadIdx.x; i < j.n; i += s.of * FEED_THREADS) {
        int32_t feeds = ((const int32_t *)(from + j.feeds))[i], id = ((const int32_t *)(from + j.ids))[i];
        ((int32_t *)(j.dev + j.ids))[i] = feeds ? j.fed[i] : id;
        j.results[i].token = -1;
    }
}

/* Each CTA does a part of one of the pieces of work, so that no read over the bus waits for another one. */
static __global__ void fetch_frame_kernel(struct frame_job j)
{
    int at = next_frame(j), n = j.n_pieces + 3, what = (int)blockIdx.x % n;
    const struct frame_head head = *head_of(j, at);
    const char *from = j.hosts[at];
    struct share own = {(int)blockIdx.x / n, (FETCH_CTAS - what + n - 1) / n};
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        j.turn->now = head.turn;
        j.turn->from = at;
    }
    if (what < j.n_pieces)
        fetch(from, j.dev, j.pieces[what], own);
    else if (what == j.n_pieces)
        fetch(from, j.dev, {j.items, head.item_bytes}, own);
    else if (what == j.n_pieces + 1)
        fetch(from, j.dev, {j.words, head.word_bytes}, own);
    else
        fetch_ids(j, from, own);
}
static_assert(FRAME_PIECES + 3 <= FETCH_CTAS, "each piece of work has a CTA");

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
