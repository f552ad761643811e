/* The host-side arithmetic of the CUDA backend: what tells products apart, and the memory of a rank. No GPU needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/copier.h"
#include "kernels/cuda/heap.h"
#include "kernels/cuda/lt.h"

static void keys_tell_products_apart(void **state)
{
    char *base = (char *)0x7f0000000000;
    struct lt_product p = {.w = base,
                           .x = base,
                           .y = (float *)(base + 64),
                           .outs = 4096,
                           .cols = 4096,
                           .rows = 100,
                           .ldw = 4096,
                           .ldx = 4096,
                           .ldy = 4096};
    struct lt_key a = lt_key_of(&p), b;
    struct lt_product other[8] = {p, p, p, p, p, p, p, p};
    (void)state;
    assert_int_equal(a.align_w, 256);
    assert_int_equal(a.align_y, 64);
    other[0].rows = 101;
    other[1].w = base + 128;
    other[2].bias = (const float *)base;
    other[3].accumulate = true;
    other[4].factors = LT_F16;
    other[5].ldy = 8192;
    other[6].factors = LT_F8_ROWS;
    other[7].factors = LT_F8_BLOCKS;
    for (int i = 0; i < 8; i++) {
        b = lt_key_of(&other[i]);
        assert_true(memcmp(&a, &b, sizeof a) != 0 && lt_hash(&a) != lt_hash(&b));
    }
    p.w = base + 256 * 77; /* another layer of the same model: the same choice */
    b = lt_key_of(&p);
    assert_memory_equal(&a, &b, sizeof a);
}

/* A lone decode fills the GPU; a full batch is not cut. */
/* ---- memory */

struct source {
    int live, calls;
    size_t most; /* bytes it can give */
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

/* Every byte arrives, and none beside them, however the parts fall. */
static void several_threads_copy_what_one_would(void **state)
{
    static const size_t sizes[] = {0, 1, 4095, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 77, 16 << 20};
    enum { MOST = 16 << 20 };
    uint8_t *from = mem_new(MOST), *to = mem_new(MOST + 1);
    (void)state;
    for (size_t i = 0; i < MOST; i += 8) {
        uint64_t v = rng_at(8, i);
        memcpy(from + i, &v, 8);
    }
    for (int threads = 1; threads <= 5; threads += 2) {
        struct copier *c = copier_open(threads);
        assert_true((c != NULL) == (threads > 1));
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            memset(to, 0xee, MOST + 1);
            copier_copy(c, to, from, sizes[k]);
            assert_memory_equal(to, from, sizes[k]);
            assert_int_equal(to[sizes[k]], 0xee);
        }
        copier_close(c);
    }
    mem_free(from);
    mem_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_tell_products_apart),
                                       cmocka_unit_test(pieces_do_not_overlap), cmocka_unit_test(no_memory_is_no_piece),
                                       cmocka_unit_test(several_threads_copy_what_one_would)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
