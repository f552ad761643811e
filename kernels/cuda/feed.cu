/* Tokens from one captured step to the next. Each member knows what it has sampled, and all need all of it: a few
 * hundred numbers at most. */
#include "kernels/cuda/prim.h"

enum { FEED_THREADS = 256 };

static __global__ void feed_kernel(struct feed_job j)
{
    for (int i = (int)threadIdx.x; i < j.n; i += FEED_THREADS) {
        if (j.feeds[i])
            j.ids[i] = j.fed[i];
        j.results[i].token = -1;
    }
}

cudaError_t launch_feed(cudaStream_t s, const struct feed_job *j)
{
    return launch(feed_kernel, dim3(1), dim3(FEED_THREADS), 0, s, *j);
}

static __global__ void gather_tokens_kernel(struct gather_tokens_job j)
{
    for (int i = (int)threadIdx.x; i < j.n; i += FEED_THREADS)
        for (int m = 0; m < j.n_members; m++) {
            int token = j.results[m][i].token;
            if (token >= 0)
                j.fed[i] = token;
        }
}

cudaError_t launch_gather_tokens(cudaStream_t s, const struct gather_tokens_job *j)
{
    return launch(gather_tokens_kernel, dim3(1), dim3(FEED_THREADS), 0, s, *j);
}
