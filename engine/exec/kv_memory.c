#include "engine/exec/kv_memory.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { TOUCHED = 2 << 20 }; /* bytes of a layer */

/* Bytes of a block of one layer. */
static size_t block_bytes(const struct kv_memory_setup *s, int tokens, int n_kv_heads)
{
    size_t bytes = s->ops->kv_block_bytes(s->dtype, tokens, n_kv_heads, s->heads.head_dim);
    return bytes * (size_t)s->bits / (8 * dtype_get(s->dtype)->bytes);
}

void kv_memory_init(struct kv_memory *m, const struct kv_memory_setup *s)
{
    *m = (struct kv_memory){.setup = *s};
    m->all.block_bytes = block_bytes(s, s->block_size, s->heads.n_kv);
    m->all.n_layers = s->n_layers;
    m->all.dtype = s->dtype;
}

size_t kv_memory_block_bytes(const struct kv_memory *m)
{
    return m->all.block_bytes * (size_t)m->all.n_layers;
}

/* The lowest blocks are written first, in each layer. The first request should not wait while the machine finds pages
 * for them: a huge one, of which a virtual machine may have none yet, has taken 10 ms. */
static void touch_first(const struct kv_memory *m, struct device *d)
{
    size_t layer = (size_t)m->all.n_blocks * m->all.block_bytes, some = layer < TOUCHED ? layer : TOUCHED;
    for (int l = 0; l < m->all.n_layers && m->setup.ops->touch; l++)
        m->setup.ops->touch(d, (char *)m->all.base + (size_t)l * layer, some);
}

int kv_memory_take(struct kv_memory *m, struct device *d, struct err *e)
{
    size_t bytes = kv_memory_block_bytes(m) * (size_t)m->all.n_blocks;
    m->all.base = m->setup.ops->alloc(d, bytes);
    if (!m->all.base)
        return err_set(e, E_FULL, "no memory for %.2f GiB of KV cache: lower --kv-cache-memory-bytes",
                       (double)bytes / 0x1p30);
    touch_first(m, d);
    m->in_pieces = mem_new_array((size_t)m->all.n_layers + 1, sizeof *m->in_pieces);
    for (int k = 1; k <= m->all.n_layers; k++) {
        m->in_pieces[k] = m->all;
        m->in_pieces[k].n_layers = m->all.n_layers / k;
        m->in_pieces[k].n_blocks = m->all.n_blocks * k;
    }
    return 0;
}

void kv_memory_free(struct kv_memory *m, struct device *d)
{
    if (m->all.base)
        m->setup.ops->release(d, m->all.base);
    mem_free(m->in_pieces);
}

int kv_memory_tokens(const struct kv_memory *m, int n_kv_heads)
{
    const struct kv_memory_setup *s = &m->setup;
    int tokens = s->block_size * s->heads.n_kv / n_kv_heads / 16 * 16;
    ASSERT(n_kv_heads > 0 && n_kv_heads <= s->heads.n_kv);
    while (tokens > s->block_size && block_bytes(s, tokens, n_kv_heads) > m->all.block_bytes)
        tokens -= 16;
    return tokens;
}

const struct kv_space *kv_memory_space(const struct kv_memory *m, int stages)
{
    return stages == 1 ? &m->all : &m->in_pieces[stage_pieces(m->all.n_layers, stages)];
}

void kv_memory_forget(const struct kv_memory *m, struct device *d, const int32_t *blocks, int n)
{
    for (int i = 0; i < n; i++)
        for (int l = 0; l < m->all.n_layers; l++) {
            size_t at = ((size_t)l * (size_t)m->all.n_blocks + (size_t)blocks[i]) * m->all.block_bytes;
            m->setup.ops->forget(d, (char *)m->all.base + at, m->all.block_bytes);
        }
}
