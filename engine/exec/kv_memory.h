/* The KV memory of a rank: blocks of constant bytes, layer by layer, taken from its device when serving begins. A rank
 * of a stage of a pipelined group keeps fewer layers: the same memory is then that of so many times fewer layers, with
 * so many times as many blocks (stage_pieces); both views are of the same bytes, and the books of the KV pool say who
 * has which block. Owned by the rank; its thread takes it, any thread may look at it afterwards. Invariant: every view
 * has blocks of the same bytes. */
#ifndef EXEC_KV_MEMORY_H
#define EXEC_KV_MEMORY_H

#include "engine/base/err.h"
#include "engine/world/headmap.h"
#include "kernels/backend.h"

struct kv_memory_setup {
    const struct backend_ops *ops;
    enum dtype dtype;
    int bits;       /* of a cached element: a described machine says itself how large it is */
    int block_size; /* tokens of a block that holds all kv heads */
    int n_layers;
    struct heads heads;
};

struct kv_memory {
    struct kv_memory_setup setup;
    struct kv_space all;        /* n_blocks is set before it is taken */
    struct kv_space *in_pieces; /* [n_layers + 1] that of so many times fewer layers; once taken */
};

void kv_memory_init(struct kv_memory *m, const struct kv_memory_setup *s);
/* E_FULL without memory. */
int kv_memory_take(struct kv_memory *m, struct device *d, struct err *e);
void kv_memory_free(struct kv_memory *m, struct device *d);
size_t kv_memory_block_bytes(const struct kv_memory *m); /* over all layers */
/* Tokens that a block holds when it stores n_kv heads: a multiple of 16. */
int kv_memory_tokens(const struct kv_memory *m, int n_kv_heads);
/* As that of a rank of so many stages. */
const struct kv_space *kv_memory_space(const struct kv_memory *m, int stages);
/* The memory of these blocks goes back to the machine until they are written again. */
void kv_memory_forget(const struct kv_memory *m, struct device *d, const int32_t *blocks, int n);

#endif
