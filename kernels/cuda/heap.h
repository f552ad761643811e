/* The memory of one rank on its device. Small pieces come out of large chunks and large pieces are allocated alone, so
 * that thousands of norms and biases do not cost a driver call each. Owned by the device, used by the thread that uses
 * the device. Pieces are aligned to 256 bytes; a chunk is freed with its last piece. The heap handles addresses and
 * never touches the memory behind them. Invariant: a piece keeps its address until it is freed. */
#ifndef CUDA_HEAP_H
#define CUDA_HEAP_H

#include <stdbool.h>
#include <stddef.h>

enum { HEAP_ALIGN = 256, HEAP_CHUNK = 32 << 20 };

/* Where chunks come from; get may return NULL. */
struct heap_source {
    void *(*get)(void *ctx, size_t bytes);
    void (*put)(void *ctx, void *p);
    void *ctx;
};

struct heap_chunk {
    char *base;
    size_t bytes, used;
    int live; /* pieces */
};

struct heap {
    struct heap_source source;
    struct heap_chunk *chunks;
    int n_chunks;
    size_t held; /* bytes of all chunks */
};

void heap_init(struct heap *h, const struct heap_source *source);
/* NULL: the source has no more. */
void *heap_take(struct heap *h, size_t bytes);
/* p must be a piece of this heap; NULL is fine. */
void heap_give(struct heap *h, void *p);
void heap_free(struct heap *h); /* all of it */

#endif
