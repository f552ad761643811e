/* Copies cached tokens from the blocks of one placement to those of another: other ranks, other tokens per block. A
 * head of a block is its keys [element][position] and then its values [position][element] (kv.c), so a run of positions
 * is one copy of values and one short row of keys for each element, and of scales, where there are any. Between
 * placements of as many tokens per block whole blocks are copied, all their heads at once. Where there is much to copy
 * it goes past the caches, in whole lines if blocks of one side are parts of blocks of the other: nobody reads so much
 * soon, and a plain store would read the destination first. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/inline.h"
#include "kernels/cpu/stream.h"

enum { RUN = 16, LARGE = 1 << 20, MOST_PARTS = 16 };

/* Where one head of one layer lies on one side. */
struct head_at {
    const struct kv_end *end;
    size_t k_bytes, head_bytes, layer_bytes, row_bytes; /* row: one key element of a block */
    size_t scales;                                      /* bytes of those behind its keys, and of its values */
};

struct move_call {
    const struct kv_move *m;
    struct head_at from, to;
    size_t size, value_bytes; /* of one element; of one position's values */
    int heads;                /* of one item */
    bool streams;             /* more than caches would keep */
    int small, parts;         /* then: tokens of the smaller blocks, and how many make a larger one; 0: else */
};

static struct head_at head_of(const struct kv_end *end, int head_dim)
{
    enum dtype t = end->space->dtype;
    size_t k = kv_key_bytes(t, end->tokens_per_block, head_dim);
    return (struct head_at){end,
                            k,
                            k + kv_value_bytes(t, end->tokens_per_block, head_dim),
                            (size_t)end->space->n_blocks * end->space->block_bytes,
                            (size_t)end->tokens_per_block * kv_element_bytes(t),
                            kv_scale_bytes(t, end->tokens_per_block)};
}

static uint8_t *find(const struct head_at *h, int layer, int head, int position)
{
    const struct kv_end *e = h->end;
    int block = e->blocks[position / e->tokens_per_block];
    ASSERT(block >= 0 && block < e->space->n_blocks);
    return (uint8_t *)e->space->base + (size_t)(e->layer + layer) * h->layer_bytes +
           (size_t)block * e->space->block_bytes + (size_t)(e->head + head) * h->head_bytes;
}

/* Short rows of the most common lengths as single moves. */
static void copy_keys(const struct move_call *c, const uint8_t *from, uint8_t *to, size_t bytes)
{
    size_t from_step = c->from.row_bytes, to_step = c->to.row_bytes;
    int n = c->m->head_dim;
    if (bytes == 16)
        for (int i = 0; i < n; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, 16);
    else if (bytes == 32)
        for (int i = 0; i < n; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, 32);
    else if (bytes == 64)
        for (int i = 0; i < n; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, 64);
    else
        for (int i = 0; i < n; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, bytes);
}

/* Of n positions of a head, whose keys begin at from, and at to. */
static void copy_scales(const struct move_call *c, const uint8_t *from, uint8_t *to, const size_t at[2], int n)
{
    if (!c->from.scales)
        return;
    const uint8_t *a = from - c->from.scales + at[0] * sizeof(float);
    uint8_t *b = to - c->to.scales + at[1] * sizeof(float);
    memcpy(b + c->to.k_bytes, a + c->from.k_bytes, (size_t)n * sizeof(float));
    memcpy(b + c->to.head_bytes, a + c->from.head_bytes, (size_t)n * sizeof(float));
}

static void copy_run(const struct move_call *c, int layer, int head, int position, int n)
{
    const struct kv_move *m = c->m;
    const uint8_t *from = find(&c->from, layer, head, position);
    uint8_t *to = find(&c->to, layer, head, position);
    size_t from_at = (size_t)(position % m->from.tokens_per_block), to_at = (size_t)(position % m->to.tokens_per_block);
    copy_keys(c, from + from_at * c->size, to + to_at * c->size, (size_t)n * c->size);
    memcpy(to + c->to.k_bytes + to_at * c->value_bytes, from + c->from.k_bytes + from_at * c->value_bytes,
           (size_t)n * c->value_bytes);
    copy_scales(c, from, to, (const size_t[2]){from_at, to_at}, n);
}

/* `parts` blocks of a side lie in one of the other. Element by element, so that what is written lies in a row, and
 * lines of memory are whole when they go past the caches. Inlined for each length of a row. */
INLINE void stream_keys(const struct move_call *c, const uint8_t *const from[], uint8_t *const to[], size_t bytes)
{
    size_t from_step = c->from.row_bytes, to_step = c->to.row_bytes;
    int n = c->m->head_dim, parts = c->parts;
    if (from_step < to_step)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < parts; k++)
                stream_row(to[0] + (size_t)i * to_step + (size_t)k * bytes, from[k] + (size_t)i * bytes, bytes);
    else
        for (int i = 0; i < n; i++)
            for (int k = 0; k < parts; k++)
                stream_row(to[k] + (size_t)i * bytes, from[0] + (size_t)i * from_step + (size_t)k * bytes, bytes);
}

/* One head of a block that is whole on the side of larger blocks: of all its blocks on the other side. */
static void copy_parts(const struct move_call *c, int layer, int head, int position)
{
    const struct kv_move *m = c->m;
    int small = c->small;
    const uint8_t *from[MOST_PARTS];
    uint8_t *to[MOST_PARTS];
    for (int i = 0; i < c->parts; i++) {
        from[i] = find(&c->from, layer, head, position + i * small);
        to[i] = find(&c->to, layer, head, position + i * small);
    }
    if (small * (int)c->size == 32)
        stream_keys(c, from, to, 32);
    else if (small * (int)c->size == 64)
        stream_keys(c, from, to, 64);
    else
        stream_keys(c, from, to, (size_t)small * c->size);
    size_t bytes = (size_t)small * c->value_bytes;
    for (int i = 0; i < c->parts; i++) {
        size_t from_at = (size_t)(position + i * small) % (size_t)m->from.tokens_per_block,
               to_at = (size_t)(position + i * small) % (size_t)m->to.tokens_per_block;
        stream_copy(to[i] + c->to.k_bytes + to_at * c->value_bytes,
                    from[i] + c->from.k_bytes + from_at * c->value_bytes, bytes);
        copy_scales(c, from[i], to[i], (const size_t[2]){from_at, to_at}, small);
    }
}

/* Positions from here on that lie in one block on either side. */
static int run_at(const struct kv_move *m, int position)
{
    int a = m->from.tokens_per_block - position % m->from.tokens_per_block;
    int b = m->to.tokens_per_block - position % m->to.tokens_per_block, left = m->end_token - position;
    a = a < b ? a : b;
    return a < left ? a : left;
}

/* Heads of one block that is whole on both sides. */
static void copy_block(const struct move_call *c, int layer, int head, int position)
{
    const uint8_t *from = find(&c->from, layer, head, position);
    uint8_t *to = find(&c->to, layer, head, position);
    size_t bytes = (size_t)c->heads * c->to.head_bytes;
    if (c->streams)
        stream_copy(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void move_item(void *ctx, int item, int thread)
{
    const struct move_call *c = ctx;
    const struct kv_move *m = c->m;
    int each = m->n_heads / c->heads, layer = item / each, head = item % each * c->heads;
    (void)thread;
    for (int p = m->first_token, n; p < m->end_token; p += n) {
        n = run_at(m, p);
        int whole = n * c->parts;
        if (c->parts > 1 && p % whole == 0 && p + whole <= m->end_token && n == c->small) {
            for (int h = head; h < head + c->heads; h++)
                copy_parts(c, layer, h, p);
            n = whole;
        } else if (n == m->from.tokens_per_block && n == m->to.tokens_per_block)
            copy_block(c, layer, head, p);
        else
            for (int h = head; h < head + c->heads; h++)
                copy_run(c, layer, h, p, n);
    }
    stream_fence();
}

/* Streaming wants rows that are multiples of its stores, and so aligned. */
static void find_parts(struct move_call *c)
{
    int a = c->m->from.tokens_per_block, b = c->m->to.tokens_per_block, small = a < b ? a : b, large = a < b ? b : a;
    bool aligned = (uintptr_t)c->m->to.space->base % 16 == 0 && c->to.head_bytes % 16 == 0 && c->value_bytes % 16 == 0;
    if (large % small || large / small > MOST_PARTS || large == small || !aligned)
        return;
    c->small = small;
    c->parts = large / small;
}

void cpu_kv_move(struct device *d, const struct kv_move *m)
{
    enum dtype t = m->from.space->dtype;
    int layers = m->n_layers;
    struct move_call c = {.m = m,
                          .from = head_of(&m->from, m->head_dim),
                          .to = head_of(&m->to, m->head_dim),
                          .size = kv_element_bytes(t)};
    c.value_bytes = (size_t)kv_padded_dim(m->head_dim) * c.size;
    ASSERT(t == m->to.space->dtype && m->first_token >= 0);
    ASSERT(m->from.layer + layers <= m->from.space->n_layers && m->to.layer + layers <= m->to.space->n_layers);
    ASSERT(m->from.tokens_per_block % RUN == 0 && m->to.tokens_per_block % RUN == 0);
    ASSERT((size_t)(m->from.head + m->n_heads) * c.from.head_bytes <= m->from.space->block_bytes);
    ASSERT((size_t)(m->to.head + m->n_heads) * c.to.head_bytes <= m->to.space->block_bytes);
    int64_t tokens = m->end_token - m->first_token, bytes = 2 * tokens * layers * m->n_heads * (int64_t)c.value_bytes;
    c.streams = bytes >= LARGE;
    if (c.streams)
        find_parts(&c);
    c.heads = c.parts || m->from.tokens_per_block == m->to.tokens_per_block ? m->n_heads : 1;
    device_run(d, layers * (m->n_heads / c.heads), bytes / 8, move_item, &c);
}
