/* The host-side arithmetic of the CUDA backend: how attention is cut, and the memory of a rank. No GPU needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/heap.h"
#include "kernels/cuda/lt.h"
#include "kernels/cuda/plan.h"

/* ---- attention */

enum { SEQS = 12, MOST_POSITION = 5000 };

static void random_batch(struct rng *r, struct batch *b, struct batch_seq *seqs)
{
    int row = 0;
    b->n_seqs = 1 + (int)rng_below(r, SEQS);
    for (int i = 0; i < b->n_seqs; i++) {
        int n = rng_below(r, 2) ? 1 : 1 + (int)rng_below(r, 300);
        seqs[i] = (struct batch_seq){row, n, (int)rng_below(r, MOST_POSITION - 300), NULL};
        row += n;
    }
    b->seqs = seqs;
    b->n_rows = row;
}

/* Every position that a row sees is in exactly one item of that row; parts of a row are numbered one after the other and folded once. */
static void check_cut(const struct batch *b, const struct flash_shape *s)
{
    struct flash_counts n = flash_cut(b, s, NULL, NULL);
    struct flash_item *items = mem_new_array((size_t)n.n_items, sizeof *items);
    struct flash_fold *folds = mem_new_array((size_t)n.n_folds + 1, sizeof *folds);
    int *covered = mem_new_array((size_t)b->n_rows, sizeof *covered), *parts = mem_new_array((size_t)n.n_parts + 1, sizeof *parts);
    struct flash_counts again = flash_cut(b, s, items, folds);
    assert_memory_equal(&n, &again, sizeof n);
    for (int i = 0; i < n.n_items; i++) {
        const struct flash_item *it = &items[i];
        const struct batch_seq *q = &b->seqs[it->seq];
        assert_true(it->n_rows > 0 && it->n_rows * s->most_heads <= FLASH_QUERIES && it->begin < it->end && it->begin % 64 == 0);
        assert_true(it->row0 >= q->row0 && it->row0 + it->n_rows <= q->row0 + q->n_rows);
        for (int row = it->row0; row < it->row0 + it->n_rows; row++) {
            int last = q->pos0 + row - q->row0, first = s->window > 0 && last >= s->window ? last - s->window + 1 : 0;
            int from = it->begin > first ? it->begin : first, to = it->end < last + 1 ? it->end : last + 1;
            covered[row] += to > from ? to - from : 0;
        }
        if (it->part >= 0)
            parts[it->part]++;
    }
    for (int i = 0; i < b->n_seqs; i++)
        for (int k = 0; k < b->seqs[i].n_rows; k++) {
            int seen = b->seqs[i].pos0 + k + 1;
            assert_int_equal(covered[b->seqs[i].row0 + k], s->window > 0 && seen > s->window ? s->window : seen);
        }
    for (int i = 0, next = 0; i < n.n_folds; next += folds[i++].n_parts)
        assert_true(folds[i].part == next && folds[i].n_parts > 1 && folds[i].part + folds[i].n_parts <= n.n_parts);
    for (int i = 0; i < n.n_parts; i++)
        assert_int_equal(parts[i], 1);
    mem_free(items), mem_free(folds), mem_free(covered), mem_free(parts);
}

static void attention_is_cut_whole(void **state)
{
    struct rng r;
    (void)state;
    rng_init(&r, 1);
    for (int round = 0; round < 400; round++) {
        struct batch_seq seqs[SEQS];
        struct batch b = {0};
        struct flash_shape s = {.most_heads = 1 + (int)rng_below(&r, FLASH_QUERIES), .n_kv = 1 + (int)rng_below(&r, 16), .n_sms = 1 + (int)rng_below(&r, 200)};
        s.window = rng_below(&r, 3) ? 0 : 1 + (int)rng_below(&r, 2000);
        random_batch(&r, &b, seqs);
        check_cut(&b, &s);
    }
}

/* ---- what the library's choices depend on */

static void keys_tell_products_apart(void **state)
{
    char *base = (char *)0x7f0000000000;
    struct lt_product p = {.w = base, .x = base, .y = (float *)(base + 64), .outs = 4096, .cols = 4096, .rows = 100, .ldw = 4096, .ldx = 4096, .ldy = 4096};
    struct lt_key a = lt_key_of(&p), b;
    struct lt_product other[6] = {p, p, p, p, p, p};
    (void)state;
    assert_int_equal(a.align_w, 256);
    assert_int_equal(a.align_y, 64);
    other[0].rows = 101;
    other[1].w = base + 128;
    other[2].bias = (const float *)base;
    other[3].accumulate = true;
    other[4].f16 = true;
    other[5].ldy = 8192;
    for (int i = 0; i < 6; i++) {
        b = lt_key_of(&other[i]);
        assert_true(memcmp(&a, &b, sizeof a) != 0 && lt_hash(&a) != lt_hash(&b));
    }
    p.w = base + 256 * 77; /* another layer of the same model: the same choice */
    b = lt_key_of(&p);
    assert_memory_equal(&a, &b, sizeof a);
}

/* A lone decode fills the GPU; a full batch is not cut. */
static void parts_follow_the_load(void **state)
{
    struct batch_seq one = {0, 1, 32767, NULL}, many[256];
    struct batch b = {.n_rows = 1, .n_seqs = 1, .seqs = &one};
    struct flash_shape s = {.most_heads = 4, .n_kv = 8, .n_sms = 132};
    (void)state;
    struct flash_counts n = flash_cut(&b, &s, NULL, NULL);
    assert_true(n.n_items * s.n_kv >= 132 && n.n_items * s.n_kv <= 4 * 132 && n.n_folds == 1);
    for (int i = 0; i < 256; i++)
        many[i] = (struct batch_seq){i, 1, 1000, NULL};
    b = (struct batch){.n_rows = 256, .n_seqs = 256, .seqs = many};
    n = flash_cut(&b, &s, NULL, NULL);
    assert_true(n.n_items == 256 && n.n_folds == 0 && n.n_parts == 0);
}

/* ---- memory */

struct source {
    int live, calls;
    size_t most;            /* bytes it can give */
    size_t given;
};

static void *get(void *ctx, size_t bytes)
{
    struct source *s = ctx;
    s->calls++;
    if (s->given + bytes > s->most)
        return NULL;
    s->given += bytes;
    s->live++;
    return aligned_alloc(HEAP_ALIGN, (bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN);
}

static void put_back(void *ctx, void *p)
{
    ((struct source *)ctx)->live--;
    free(p);
}

static void pieces_do_not_overlap(void **state)
{
    enum { PIECES = 300 };
    struct source s = {.most = SIZE_MAX};
    struct heap h;
    struct rng r;
    char *pieces[PIECES] = {0};
    size_t sizes[PIECES] = {0};
    (void)state;
    rng_init(&r, 2);
    heap_init(&h, &(struct heap_source){get, put_back, &s});
    for (int round = 0; round < 3000; round++) {
        int i = (int)rng_below(&r, PIECES);
        if (pieces[i]) {
            for (size_t k = 0; k < sizes[i]; k += 97)
                assert_int_equal(pieces[i][k], (char)i);
            heap_give(&h, pieces[i]);
            pieces[i] = NULL;
            continue;
        }
        sizes[i] = 1 + rng_below(&r, rng_below(&r, 50) ? 5000 : HEAP_CHUNK);
        pieces[i] = heap_take(&h, sizes[i]);
        assert_true(pieces[i] && (uintptr_t)pieces[i] % HEAP_ALIGN == 0);
        memset(pieces[i], i, sizes[i]);
    }
    assert_true(s.calls < 1500); /* small pieces share chunks */
    for (int i = 0; i < PIECES; i++)
        heap_give(&h, pieces[i]);
    assert_true(s.live == 0 && h.held == 0 && h.n_chunks == 0);
    heap_free(&h);
}

static void no_memory_is_no_piece(void **state)
{
    struct source s = {.most = HEAP_CHUNK};
    struct heap h;
    (void)state;
    heap_init(&h, &(struct heap_source){get, put_back, &s});
    void *p = heap_take(&h, 10);
    assert_non_null(p);
    assert_null(heap_take(&h, HEAP_CHUNK));
    assert_null(heap_take(&h, SIZE_MAX - 5));
    assert_non_null(heap_take(&h, 0));
    heap_give(&h, NULL);
    heap_free(&h);
    assert_int_equal(s.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_is_cut_whole), cmocka_unit_test(parts_follow_the_load), cmocka_unit_test(keys_tell_products_apart),
                                       cmocka_unit_test(pieces_do_not_overlap), cmocka_unit_test(no_memory_is_no_piece)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
