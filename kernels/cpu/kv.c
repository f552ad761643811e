/* Where keys and values lie in a block, and how a step's rows get there. Keys are stored [element][position]: the lanes
 * of a score are positions. Values are stored [position][element]: the lanes of an output are elements. Keys and values
 * of DT_I8 are each followed by their scales, one for each position. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/device.h"

enum { MAX_HEAD_DIM = 512, ROWS_PER_ITEM = 16, ROWS_APART = 4 };

size_t cpu_kv_block_bytes(enum dtype t, int tokens, int n_kv_heads, int head_dim)
{
    bool known = t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_F8 || t == DT_I8;
    if (!known || tokens <= 0 || tokens % 16 || n_kv_heads <= 0 || head_dim <= 0 || head_dim > MAX_HEAD_DIM)
        return 0;
    size_t head = kv_key_bytes(t, tokens, head_dim) + kv_value_bytes(t, tokens, head_dim);
    return ((size_t)n_kv_heads * head + 63) & ~(size_t)63;
}

struct kv_call {
    struct device *d;
    struct act k, v;
    const struct kv_view *kv;
    int rows_of_item;
};

/* x ~ scale * q, |q| <= 127; returns the scale, which is NaN where x has one or an infinity. The rounding is that of an
 * addition, so that any compiler makes the same lanes of it. */
static float to_bytes(const float *x, int n, uint8_t *q)
{
    float most = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        sum += x[i] * 0; /* 0, or NaN */
    }
    float k = most > 1e-30f ? 127.0f / most : 0;
    for (int i = 0; i < n; i++) {
        union {
            float f;
            uint32_t u;
        } near = {x[i] * k + 12582912.0f}; /* 1.5 * 2^23 */
        q[i] = (uint8_t)near.u;
    }
    return sum != 0 || sum != sum ? NAN : k > 0 ? most / 127.0f : 0;
}

/* One head's key or value as it is cached; its scale goes to scales[at]. */
static void encode(const struct kv_call *c, const float *x, uint8_t *out, uint8_t *scales, int at)
{
    enum dtype t = c->kv->space->dtype;
    if (t != DT_I8) {
        c->d->kernels->to_cache(x, c->kv->head_dim, t, out);
        return;
    }
    float scale = to_bytes(x, c->kv->head_dim, out);
    memcpy(scales + (size_t)at * sizeof scale, &scale, sizeof scale);
}

static void put_key(const uint8_t *x, size_t size, int head_dim, int tokens, uint8_t *keys, int at)
{
    for (int i = 0; i < head_dim; i++)
        memcpy(keys + ((size_t)i * (size_t)tokens + (size_t)at) * size, x + (size_t)i * size, size);
}

/* Where a row goes. */
struct slot {
    uint8_t *block; /* its part of this layer */
    int at;         /* the position in it */
};

static struct slot slot_of(const struct kv_call *c, int row)
{
    const struct kv_space *space = c->kv->space;
    const struct batch_seq *seq = &c->d->batch->seqs[c->d->row_seq[row]];
    int position = seq->pos0 + row - seq->row0, block = seq->blocks[position / c->kv->tokens_per_block];
    ASSERT(block >= 0 && block < space->n_blocks);
    size_t at = (size_t)c->kv->layer * (size_t)space->n_blocks + (size_t)block;
    return (struct slot){(uint8_t *)space->base + at * space->block_bytes, position % c->kv->tokens_per_block};
}

/* Each element of a key has a line of its own: where a row's are not those of the row before, all are asked for at
 * once. */
static void fetch_slot(const struct kv_call *c, struct slot s)
{
    const struct kv_view *kv = c->kv;
    enum dtype t = kv->space->dtype;
    size_t size = kv_element_bytes(t), line = (size_t)kv->tokens_per_block * size, dim = (size_t)kv->head_dim,
           k_bytes = kv_key_bytes(t, kv->tokens_per_block, kv->head_dim),
           v_bytes = kv_value_bytes(t, kv->tokens_per_block, kv->head_dim);
    for (int h = 0; h < kv->n_kv_heads; h++, s.block += k_bytes + v_bytes) {
        for (size_t i = 0; i < dim; i++)
            __builtin_prefetch(s.block + i * line + (size_t)s.at * size, 1);
        for (size_t i = 0; i < dim * size; i += 64)
            __builtin_prefetch(s.block + k_bytes + (size_t)s.at * dim * size + i, 1);
    }
}

static void write_row(const struct kv_call *c, int row, struct slot s)
{
    const struct kv_view *kv = c->kv;
    enum dtype t = kv->space->dtype;
    int tokens = kv->tokens_per_block, dim = kv->head_dim, padded = kv_padded_dim(dim);
    size_t size = kv_element_bytes(t), k_bytes = kv_key_bytes(t, tokens, dim), v_bytes = kv_value_bytes(t, tokens, dim);
    _Alignas(64) uint8_t temp[MAX_HEAD_DIM * 4];
    uint8_t *p = s.block;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        encode(c, act_row(c->k, row) + (size_t)h * (size_t)dim, temp, p + k_bytes - kv_scale_bytes(t, tokens), s.at);
        if (size == 2)
            put_key(temp, 2, dim, tokens, p, s.at);
        else if (size == 1)
            put_key(temp, 1, dim, tokens, p, s.at);
        else
            put_key(temp, 4, dim, tokens, p, s.at);
        p += k_bytes;
        uint8_t *v = p + (size_t)s.at * (size_t)padded * size;
        encode(c, act_row(c->v, row) + (size_t)h * (size_t)dim, v, p + v_bytes - kv_scale_bytes(t, tokens), s.at);
        memset(v + (size_t)dim * size, 0, (size_t)(padded - dim) * size);
        p += v_bytes;
    }
}

static void write_item(void *ctx, int item, int thread)
{
    const struct kv_call *c = ctx;
    int first = item * c->rows_of_item, end = first + c->rows_of_item;
    const uint8_t *before = slot_of(c, first).block;
    (void)thread;
    end = end < c->d->batch->n_rows ? end : c->d->batch->n_rows;
    for (int r = first; r < end; r++) {
        struct slot s = slot_of(c, r);
        if (r == first || s.block != before)
            fetch_slot(c, s);
        before = s.block;
        write_row(c, r, s);
    }
}

void cpu_kv_write(struct device *d, struct act k, struct act v, const struct kv_view *kv)
{
    /* Rows of a sequence share lines, and so one thread has many of them; others wait for lines of their own. */
    int rows = d->batch->n_rows;
    bool apart = rows == d->batch->n_seqs;
    struct kv_call c = {d, k, v, kv, apart ? ROWS_APART : ROWS_PER_ITEM};
    if (device_failed(d))
        return;
    ASSERT(cpu_kv_block_bytes(kv->space->dtype, kv->tokens_per_block, kv->n_kv_heads, kv->head_dim) <=
           kv->space->block_bytes);
    int64_t work_ns = (int64_t)rows * kv->n_kv_heads * kv->head_dim * (apart ? 8 : 2);
    device_run(d, (rows + c.rows_of_item - 1) / c.rows_of_item, work_ns, write_item, &c);
}

/* One head of one layer. */
static void pack_item(void *ctx, int item, int thread)
{
    const struct kv_pack *p = ctx;
    enum dtype t = p->at.space->dtype;
    int tokens = p->at.tokens_per_block, layer = p->at.layer + item / p->n_heads, head = p->at.head + item % p->n_heads;
    size_t size = kv_element_bytes(t), k_bytes = kv_key_bytes(t, tokens, p->head_dim),
           v_bytes = kv_value_bytes(t, tokens, p->head_dim), v_row = (size_t)kv_padded_dim(p->head_dim) * size,
           scales = kv_scale_bytes(t, tokens), head_at = (size_t)head * (k_bytes + v_bytes);
    uint8_t *base =
        (uint8_t *)p->at.space->base + (size_t)layer * (size_t)p->at.space->n_blocks * p->at.space->block_bytes;
    (void)thread;
    for (int i = 0; i < p->n; i++) {
        size_t from = (size_t)(p->from[i] % tokens), to = (size_t)(p->to[i] % tokens);
        const uint8_t *a = base + (size_t)p->at.blocks[p->from[i] / tokens] * p->at.space->block_bytes + head_at;
        uint8_t *b = base + (size_t)p->at.blocks[p->to[i] / tokens] * p->at.space->block_bytes + head_at;
        for (int e = 0; e < p->head_dim; e++)
            memcpy(b + ((size_t)e * (size_t)tokens + to) * size, a + ((size_t)e * (size_t)tokens + from) * size, size);
        memmove(b + k_bytes + to * v_row, a + k_bytes + from * v_row, v_row);
        for (size_t end = k_bytes, side = 0; side < 2 && scales; side++, end += v_bytes)
            memcpy(b + end - scales + to * sizeof(float), a + end - scales + from * sizeof(float), sizeof(float));
    }
}

void cpu_kv_pack(struct device *d, const struct kv_pack *p)
{
    const struct kv_end *at = &p->at;
    ASSERT(at->layer + p->n_layers <= at->space->n_layers);
    for (int i = 0; i < p->n; i++)
        ASSERT(p->to[i] <= p->from[i] && (i == 0 || (p->from[i - 1] < p->from[i] && p->to[i - 1] < p->to[i])));
    int64_t work_ns = (int64_t)p->n * p->n_layers * p->n_heads * p->head_dim;
    device_run(d, p->n_layers * p->n_heads, work_ns, pack_item, (void *)p);
}
