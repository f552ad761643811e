#include "models/tokenizer/bpe.h"

#include <string.h>

#include "engine/base/mem.h"

enum { SHORT_WORD = 40, MAX_PROBES = 512, MERGE_WORK = 32 /* a merge takes as long as so many bytes of other work */ };

#define NO_RANK UINT32_MAX
#define EMPTY UINT64_MAX
#define NONE UINT32_MAX

int bpe_init(struct bpe *b, size_t n_merges, struct err *e)
{
    size_t cap = 64;
    while (cap < n_merges * 2)
        cap *= 2;
    b->slots = mem_try_array(cap, sizeof *b->slots);
    b->merged = mem_try_array(n_merges, sizeof *b->merged);
    if (!b->slots || !b->merged) {
        bpe_free(b);
        return err_set(e, E_FULL, "no memory for %zu merges", n_merges);
    }
    memset(b->slots, 0xFF, cap * sizeof *b->slots);
    b->mask = cap - 1;
    b->n_merges = n_merges;
    return 0;
}

void bpe_free(struct bpe *b)
{
    mem_free(b->slots);
    mem_free(b->merged);
    memset(b, 0, sizeof *b);
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << BPE_ID_BITS | (uint32_t)right;
}

static uint64_t slot_of(const struct bpe *b, uint64_t key)
{
    return (key * 0x9e3779b97f4a7c15u) >> 29 & b->mask;
}

int bpe_set(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged, struct err *e)
{
    uint64_t key = pair_key(left, right), i = slot_of(b, key);
    for (int probes = 0; b->slots[i] != EMPTY && b->slots[i] >> BPE_RANK_BITS != key; probes++) {
        if (probes == MAX_PROBES)
            return err_set(e, E_INPUT, "the merges crowd one place of their table; no real vocabulary does");
        i = (i + 1) & b->mask;
    }
    b->slots[i] = key << BPE_RANK_BITS | rank;
    b->merged[rank] = merged;
    return 0;
}

static inline uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint64_t i = slot_of(b, key);; i = (i + 1) & b->mask) {
        uint64_t slot = b->slots[i];
        if (slot >> BPE_RANK_BITS == key && slot != EMPTY)
            return (uint32_t)(slot & ((1u << BPE_RANK_BITS) - 1));
        if (slot == EMPTY)
            return NO_RANK;
    }
}

/* Quadratic, and faster than anything else while the word is short. */
static size_t merge_short(const struct bpe *b, int32_t *sym, size_t n)
{
    uint32_t rank[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(b, sym[i], sym[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == NO_RANK)
            break;
        sym[best] = b->merged[rank[best]];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
            rank[i - 1] = rank[i];
        }
        /* rank[best] now holds what followed the swallowed symbol; both neighbours of the new one are looked
         * up again */
        if (best + 1 < n)
            rank[best] = rank_of(b, sym[best], sym[best + 1]);
        if (best > 0)
            rank[best - 1] = rank_of(b, sym[best - 1], sym[best]);
    }
    return n;
}

/* A long word: symbols in a linked list, pairs in a heap of rank << 32 | position. An entry is stale unless
 * rank[position] still is its rank. */
struct long_word {
    const struct bpe *b;
    int32_t *sym;
    uint32_t *next, *prev, *rank;
    uint64_t *heap;
    size_t n_heap;
    struct cancel *cancel;
    struct err *e;
};

static void heap_push(struct long_word *w, uint64_t v)
{
    size_t i = w->n_heap++;
    while (i && w->heap[(i - 1) / 2] > v) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = v;
}

static uint64_t heap_pop(struct long_word *w)
{
    uint64_t top = w->heap[0], v = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap)
            break;
        c += c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c];
        if (w->heap[c] >= v)
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = v;
    return top;
}

static void rank_pair(struct long_word *w, uint32_t i)
{
    uint32_t j = w->next[i];
    w->rank[i] = j == NONE ? NO_RANK : rank_of(w->b, w->sym[i], w->sym[j]);
    if (w->rank[i] != NO_RANK)
        heap_push(w, (uint64_t)w->rank[i] << 32 | i);
}

static int merge_list(struct long_word *w, size_t *n_symbols)
{
    size_t n = *n_symbols;
    for (size_t i = 0; i < n; i++) {
        w->next[i] = i + 1 < n ? (uint32_t)i + 1 : NONE;
        w->prev[i] = i ? (uint32_t)i - 1 : NONE;
    }
    for (size_t i = 0; i < n; i++) {
        TRY(cancel_check(w->cancel, MERGE_WORK, w->e));
        rank_pair(w, (uint32_t)i);
    }
    while (w->n_heap) {
        TRY(cancel_check(w->cancel, MERGE_WORK, w->e));
        uint64_t top = heap_pop(w);
        uint32_t i = (uint32_t)top, j = w->next[i];
        if (w->rank[i] != top >> 32)
            continue;
        w->sym[i] = w->b->merged[w->rank[i]];
        w->rank[j] = NO_RANK;
        w->next[i] = w->next[j];
        if (w->next[j] != NONE)
            w->prev[w->next[j]] = i;
        rank_pair(w, i);
        if (w->prev[i] != NONE)
            rank_pair(w, w->prev[i]);
    }
    size_t out = 0;
    for (uint32_t i = 0; i != NONE; i = w->next[i])
        w->sym[out++] = w->sym[i];
    *n_symbols = out;
    return 0;
}

static int merge_long(const struct bpe *b, struct bpe_scratch *s, int32_t *sym, size_t *n, struct err *e)
{
    /* Every merge removes one symbol and pushes two pairs, so 3n bounds what is ever pushed. */
    size_t bytes = *n * (3 * sizeof(uint64_t) + 3 * sizeof(uint32_t));
    if (s->bytes < bytes) {
        mem_free(s->memory);
        s->bytes = 0;
        s->memory = mem_try(bytes);
        if (!s->memory)
            return err_set(e, E_FULL, "no memory to tokenise a word of %zu bytes", *n);
        s->bytes = bytes;
    }
    struct long_word w = {.b = b, .sym = sym, .heap = s->memory, .cancel = s->cancel, .e = e};
    w.next = (uint32_t *)(w.heap + 3 * *n);
    w.prev = w.next + *n;
    w.rank = w.prev + *n;
    return merge_list(&w, n);
}

int bpe_merge(const struct bpe *b, struct bpe_scratch *s, int32_t *symbols, size_t *n, struct err *e)
{
    if (*n > SHORT_WORD)
        return merge_long(b, s, symbols, n, e);
    *n = merge_short(b, symbols, *n);
    return 0;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    mem_free(s->memory);
    memset(s, 0, sizeof *s);
}
