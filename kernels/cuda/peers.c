/* The other GPUs of a group: their memory, which this device reads, the link to them, and whether they are of its kind.
 * On the rank's thread, when the device opens. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/device.h"

static bool is_peer(const struct device *d, int i)
{
    return i != d->index && (d->opts.peers >> i & 1);
}

static int reach(struct device *d, int peer, struct err *e)
{
    int can = 0;
    TRY(gpu_exists(peer, e));
    cudaError_t rc = cudaDeviceCanAccessPeer(&can, d->index, peer);
    if (rc == cudaSuccess && can)
        rc = cudaDeviceEnablePeerAccess(peer, 0);
    if (rc == cudaErrorPeerAccessAlreadyEnabled)
        rc = cudaSuccess;
    cudaGetLastError();
    if (rc == cudaSuccess && can)
        return 0;
    return err_set(e, E_UNSUPPORTED,
                   "GPU %d cannot read the memory of GPU %d (%s): run a server for each, with --devices %d and "
                   "--devices %d",
                   d->index, peer, can ? cudaGetErrorString(rc) : "no peer access", d->index, peer);
}

/* Of all links between GPUs NVLink alone carries atomics. */
static bool has_nvlink(const struct device *d, int peer)
{
    int atomics = 0;
    cudaError_t rc = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, d->index, peer);
    cudaGetLastError();
    return rc == cudaSuccess && atomics;
}

static void say_link(struct device *d, bool nvlink, const char *how)
{
    char list[96];
    size_t n = 0, used = strlen(d->facts.link);
    for (int i = 0; i < 64 && n < sizeof list; i++)
        if (is_peer(d, i) && has_nvlink(d, i) == nvlink)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", n ? ", " : "", i);
    if (n)
        snprintf(d->facts.link + used, sizeof d->facts.link - used, "%sGPU %s %s", used ? ", " : "", list, how);
}

/* The odd ones out say so: steps of unequal GPUs work, and are as fast as the slowest. */
static void compare_with_first(struct device *d)
{
    struct cudaDeviceProp own, other;
    int first = __builtin_ctzll(d->opts.peers);
    if (first == d->index || cudaGetDeviceProperties(&own, d->index) != cudaSuccess ||
        cudaGetDeviceProperties(&other, first) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    if (strcmp(own.name, other.name) != 0)
        gpu_lacks(d,
                  "GPU %d is another model (%.60s): a step takes as long as the slowest, and each has KV for as many "
                  "tokens as the smallest",
                  first, other.name);
}

int peers_open(struct device *d, struct err *e)
{
    if (!(d->opts.peers & ~(1ull << d->index)))
        return 0;
    for (int i = 0; i < 64; i++)
        if (is_peer(d, i))
            TRY(reach(d, i, e));
    say_link(d, true, "by NVLink");
    say_link(d, false, "over PCIe");
    compare_with_first(d);
    return 0;
}
