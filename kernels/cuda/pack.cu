/* Quantised rows in file format (kernels/dtype.c states the formats) into planes (weight.h). Thread: one block of 32
 * columns; bound by memory bandwidth, run once at load. */
#include "kernels/cuda/prim.h"
#include "kernels/cuda/unpack.h"

enum { PACK_THREADS = 128 };

/* A block of 32 columns, read from the file's bytes. */
struct raw_block {
    uint8_t q[32]; /* with zero_of inside; 8 bits: signed */
    uint16_t d, m;
    uint8_t scale[2], min;
};

__device__ static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

__device__ static int raw_bytes(enum family f)
{
    switch (f) {
    case FAM_U4:
        return 18;
    case FAM_U4M:
        return 20;
    case FAM_U5:
        return 22;
    case FAM_U5M:
        return 24;
    case FAM_S8:
        return 34;
    case FAM_F8:
        return 68;
    case FAM_K4:
        return 144;
    case FAM_K5:
        return 176;
    default:
        return 210;
    }
}

__device__ static void read_plain(enum family f, const uint8_t *p, struct raw_block *b)
{
    b->d = u16_at(p);
    p += 2;
    if (has_min(f)) {
        b->m = u16_at(p);
        p += 2;
    }
    if (f == FAM_S8) {
        for (int i = 0; i < 32; i++)
            b->q[i] = p[i];
        return;
    }
    uint32_t high = 0;
    if (bits_of(f) == 5) {
        high = (uint32_t)u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
        p += 4;
    }
    for (int i = 0; i < 16; i++) {
        b->q[i] = (uint8_t)((p[i] & 15) | (high >> i & 1u) << 4);
        b->q[i + 16] = (uint8_t)(p[i] >> 4 | (high >> (i + 16) & 1u) << 4);
    }
}

/* Sub-block j of a block of 256. */
__device__ static void read_k(enum family f, const uint8_t *p, int j, struct raw_block *b)
{
    const uint8_t *s = p + 4, *high = p + 16, *q = p + (f == FAM_K5 ? 48 : 16) + j / 2 * 32;
    b->d = u16_at(p);
    b->m = u16_at(p + 2);
    if (j < 4) {
        b->scale[0] = s[j] & 63;
        b->min = s[j + 4] & 63;
    } else {
        b->scale[0] = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        b->min = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
    for (int i = 0; i < 32; i++)
        b->q[i] = (uint8_t)((q[i] >> (j % 2 ? 4 : 0) & 15) | (f == FAM_K5 ? (high[i] >> j & 1) << 4 : 0));
}

__device__ static void read_k6(const uint8_t *p, int j, struct raw_block *b)
{
    int half = j / 4, r = j % 4;
    const uint8_t *low = p + half * 64 + r % 2 * 32, *high = p + 128 + half * 32;
    b->d = u16_at(p + 208);
    b->scale[0] = p[192 + half * 8 + r * 2];
    b->scale[1] = p[192 + half * 8 + r * 2 + 1];
    for (int i = 0; i < 32; i++)
        b->q[i] = (uint8_t)((low[i] >> (r < 2 ? 0 : 4) & 15) | (high[i] >> 2 * r & 3) << 4);
}

__device__ static void put_bits(enum family f, const struct weight_planes &to, int64_t i, const struct raw_block &b)
{
    uint8_t *q = (uint8_t *)to.q + (f == FAM_S8 ? 32 : 16) * i;
    uint32_t *h = (uint32_t *)to.h;
    if (f == FAM_S8) {
        for (int e = 0; e < 32; e++)
            q[e] = b.q[e];
        return;
    }
    for (int e = 0; e < 16; e++)
        q[e] = (uint8_t)((b.q[e] & 15) | b.q[e + 16] << 4);
    uint32_t high[2] = {0, 0};
    for (int e = 0; e < 32; e++) {
        if (bits_of(f) == 5)
            high[0] |= (uint32_t)(b.q[e] >> 4) << e;
        else
            high[e / 16] |= (uint32_t)(b.q[e] >> 4) << 2 * (e % 16);
    }
    if (bits_of(f) == 5)
        h[i] = high[0];
    if (bits_of(f) == 6)
        h[2 * i] = high[0], h[2 * i + 1] = high[1];
}

__device__ static void put_scales(enum family f, const struct weight_planes &to, int64_t i, int64_t super,
                                  const struct raw_block &b)
{
    uint16_t *s = (uint16_t *)to.s, *d = (uint16_t *)to.d;
    uint8_t *k = (uint8_t *)to.s + 2 * i;
    if (!is_k(f)) {
        s[has_min(f) ? 2 * i : i] = b.d;
        if (has_min(f))
            s[2 * i + 1] = b.m;
        return;
    }
    k[0] = b.scale[0];
    k[1] = f == FAM_K6 ? b.scale[1] : b.min;
    if (f == FAM_K6) { /* every block of the 256 writes the same */
        d[super] = b.d;
        return;
    }
    d[2 * super] = b.d;
    d[2 * super + 1] = b.m;
}

/* Half `half` of a raw block of 64 columns. */
__device__ static void pack_f8(const struct weight_planes &to, int64_t i, const uint8_t *raw, int half)
{
    uint8_t *q = (uint8_t *)to.q + 32 * i;
    for (int e = 0; e < 32; e++)
        q[e] = raw[4 + 32 * half + e];
    if (half == 0)
        ((uint32_t *)to.s)[i / 2] = (uint32_t)u16_at(raw) | (uint32_t)u16_at(raw + 2) << 16;
}

static __global__ void pack_kernel(struct pack_job j)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int row = (int)(at / j.to.blocks), c = (int)(at % j.to.blocks);
    if (row >= j.n)
        return;
    enum family f = j.to.family;
    const uint8_t *raw = j.raw + (int64_t)row * (int64_t)j.row_bytes +
                         (int64_t)(is_k(f)       ? c / 8
                                   : f == FAM_F8 ? c / 2
                                                 : c) *
                             raw_bytes(f);
    int64_t i = (int64_t)(j.first + row) * j.to.blocks + c,
            super = (int64_t)(j.first + row) * ((j.to.blocks + 7) / 8) + c / 8;
    if (f == FAM_F8) {
        pack_f8(j.to, i, raw, c % 2);
        return;
    }
    struct raw_block b = {};
    if (f == FAM_K6)
        read_k6(raw, c % 8, &b);
    else if (is_k(f))
        read_k(f, raw, c % 8, &b);
    else
        read_plain(f, raw, &b);
    put_bits(f, j.to, i, b);
    put_scales(f, j.to, i, super, b);
}

cudaError_t launch_pack(cudaStream_t s, const struct pack_job *j)
{
    return launch(pack_kernel, dim3(ceil_div((int64_t)j->n * j->to.blocks, PACK_THREADS)), dim3(PACK_THREADS), 0, s,
                  *j);
}
