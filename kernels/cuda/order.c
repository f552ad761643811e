/* Places in the order of what a device was given, for other threads that have to know when it got there (pooled
 * weights), and copies from the memory of another device. A place is an event of the device's stream. There are so many
 * events; an older place is then a later one, which is reached later, and never waits for whoever asks. */
#include "kernels/cuda/device.h"

uint64_t cuda_mark(struct device *d)
{
    cudaEvent_t *at = &d->marks[(d->last_mark + 1) % MARKS];
    gpu_use(d);
    if (gpu_failed(d) || d->broken.code || (!*at && !gpu_ok(d, cudaEventCreate(at), "making an event")) ||
        !gpu_ok(d, cudaEventRecord(*at, d->stream), "marking a place"))
        return 0;
    return ++d->last_mark;
}

bool cuda_reach(struct device *d, uint64_t mark)
{
    return mark && cudaEventSynchronize(d->marks[mark % MARKS]) == cudaSuccess;
}

int64_t cuda_between(struct device *d, uint64_t from, uint64_t to)
{
    float ms = 0;
    if (!from || !to || d->last_mark - from >= MARKS || d->broken.code)
        return 0;
    gpu_use(d);
    gpu_ok(d, cudaEventElapsedTime(&ms, d->marks[from % MARKS], d->marks[to % MARKS]), "timing a wait");
    return (int64_t)((double)ms * 1e6);
}

int cuda_pull(struct device *d, const struct pull *p)
{
    gpu_use(d);
    bool one = p->runs == 1 || (p->dst_pitch == p->bytes && p->src_pitch == p->bytes);
    cudaError_t rc = one ? cudaMemcpyAsync(p->dst, p->src, p->bytes * (size_t)p->runs, cudaMemcpyDefault, d->stream)
                         : cudaMemcpy2DAsync(p->dst, p->dst_pitch, p->src, p->src_pitch, p->bytes, (size_t)p->runs,
                                             cudaMemcpyDefault, d->stream);
    if (gpu_ok(d, rc, "pulling"))
        gpu_ok(d, cudaStreamSynchronize(d->stream), "pulling");
    return d->broken.code;
}

void marks_close(struct device *d)
{
    for (int i = 0; i < MARKS; i++)
        if (d->marks[i])
            cudaEventDestroy(d->marks[i]);
}
