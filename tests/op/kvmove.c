/* Moves of cached tokens against a reference that finds each element by itself: placements of 1, 2, 3, 4 and 6 ranks in
 * 1, 2 and 3 stages, and host memory; tokens per block that follow from them, parts of blocks, cycles. Bytes that a
 * move does not own stay as they were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/exec/move.h"
#include "kernels/backend.h"

enum { RANKS = 6, LAYERS = 5, FEW = 190, MANY = 1200 };

struct host {
    const struct backend_ops *ops;
    struct device *devices[RANKS];
    struct kv_space spaces[RANKS], staged[2][RANKS]; /* of all layers; by side and share, of a stage's */
    struct kv_space host;
    enum dtype dtype;
    struct heads heads;
    int n_tokens, n_blocks;
    struct rng rng;
};

static size_t element_bytes(const struct host *h)
{
    return h->dtype == DT_F32 ? 4 : h->dtype == DT_F8 || h->dtype == DT_I8 ? 1 : 2;
}

static void open_host_of(struct host *h, enum dtype t, struct heads heads, int n_tokens, uint64_t seed)
{
    *h = (struct host){.ops = backend_cpu(), .dtype = t, .heads = heads, .n_tokens = n_tokens};
    h->n_blocks = (n_tokens / 16 + 1) * 3 + 4;
    h->n_blocks += h->n_blocks % 2;
    rng_init(&h->rng, seed);
    for (int r = 0; r < RANKS; r++) {
        struct device_opts o = {.n_threads = 1 + r % 2, .max_rows = 1, .max_logits = 1};
        assert_int_equal(h->ops->open(&h->devices[r], &o, NULL), 0);
        h->spaces[r] = (struct kv_space){.block_bytes = h->ops->kv_block_bytes(t, 16, heads.n_kv, heads.head_dim),
                                         .n_blocks = h->n_blocks,
                                         .n_layers = LAYERS,
                                         .dtype = t};
        h->spaces[r].base = mem_new((size_t)LAYERS * (size_t)h->n_blocks * h->spaces[r].block_bytes);
    }
    h->host = h->spaces[0];
    h->host.base = mem_new((size_t)LAYERS * (size_t)h->n_blocks * h->host.block_bytes);
}

static void open_host(struct host *h, enum dtype t, struct heads heads, uint64_t seed)
{
    open_host_of(h, t, heads, FEW, seed);
}

static void close_host(struct host *h)
{
    mem_free(h->host.base);
    for (int r = 0; r < RANKS; r++) {
        mem_free(h->spaces[r].base);
        h->ops->close(h->devices[r]);
    }
}

/* Host memory instead: all heads of all layers. */
static void place_host(struct host *h, struct move *m, struct move_end *end, int side)
{
    int n = (h->n_tokens + 15) / 16, start = (int)rng_below(&h->rng, (uint64_t)h->n_blocks / 2);
    int32_t *blocks = arena_new(&m->arena, (size_t)n * sizeof *blocks);
    m->n_layers = LAYERS;
    *end = (struct move_end){.n = 1, .stages = 1, .host = true, .tokens_per_block = 16, .n_blocks = n};
    for (int b = 0; b < n; b++)
        blocks[b] = 2 * ((start + 3 * b) % (h->n_blocks / 2)) + side;
    end->blocks = blocks;
    end->spaces[0] = &h->host;
}

/* Random ranks and blocks for a placement of n in some stages. No two placements of a case share blocks: side 0 has the
 * even ones. */
static void place(struct host *h, struct move *m, struct move_end *end, int n, int side)
{
    int stages = 1 + (int)rng_below(&h->rng, 3);
    stages = n % stages ? 1 : stages;
    int most = head_max_kv(&h->heads, n / stages), tokens = 16, pieces = stage_pieces(LAYERS, stages);
    while (h->ops->kv_block_bytes(h->dtype, tokens + 16, most, h->heads.head_dim) <= h->spaces[0].block_bytes)
        tokens += 16;
    m->n_layers = LAYERS;
    *end = (struct move_end){
        .n = n, .stages = stages, .tokens_per_block = tokens, .n_blocks = (h->n_tokens + tokens - 1) / tokens};
    int32_t *blocks = arena_new(&m->arena, (size_t)(n * end->n_blocks) * sizeof *blocks);
    int first = (int)rng_below(&h->rng, RANKS);
    for (int i = 0; i < n; i++) {
        end->ranks[i] = (first + i) % RANKS;
        struct kv_space *s = &h->staged[side][i];
        *s = h->spaces[end->ranks[i]];
        s->n_blocks *= pieces;
        s->n_layers /= pieces;
        end->spaces[i] = s;
        int start = (int)rng_below(&h->rng, (uint64_t)h->n_blocks / 2);
        for (int b = 0; b < end->n_blocks; b++)
            blocks[i * end->n_blocks + b] = 2 * ((start + 3 * b) % (h->n_blocks / 2)) + side +
                                            (int)rng_below(&h->rng, (uint64_t)pieces) * h->n_blocks;
    }
    end->blocks = blocks;
}

/* Element `i` of the key (or value) of a token, by the definition in kv.c; i past the last one: byte i - head_dim of
 * its scale. NULL: this share has no such head. */
static uint8_t *element(const struct host *h, const struct move_end *end, int share, const int where[4], bool value)
{
    int layer = where[0], kv = where[1], token = where[2], i = where[3], tokens = end->tokens_per_block,
        dim = h->heads.head_dim;
    int padded = (dim + 15) / 16 * 16;
    int width = end->n / end->stages;
    struct head_span s = head_span(&h->heads, width, share % width, 1);
    struct layer_span l = stage_layers(LAYERS, end->stages, share / width);
    const struct kv_space *space = end->spaces[share];
    if (kv < s.kv0 || kv >= s.kv0 + s.n_kv || layer < l.first || layer >= l.first + l.n)
        return NULL;
    size_t scales = h->dtype == DT_I8 ? 4 * (size_t)tokens : 0, size = element_bytes(h),
           keys = (size_t)tokens * (size_t)dim * size, values = (size_t)tokens * (size_t)padded * size;
    int block = end->blocks[share * end->n_blocks + token / tokens], at = token % tokens;
    uint8_t *p = (uint8_t *)space->base +
                 ((size_t)(layer - l.first) * (size_t)space->n_blocks + (size_t)block) * space->block_bytes +
                 (size_t)(kv - s.kv0) * (keys + values + 2 * scales) + (value ? keys + scales : 0);
    if (i >= dim)
        return p + (value ? values : keys) + 4 * (size_t)at + (size_t)(i - dim);
    return p + (value ? (size_t)at * (size_t)padded + (size_t)i : (size_t)i * (size_t)tokens + (size_t)at) * size;
}

/* What an element holds: a function of where it is and of a tag. */
static uint32_t content(const int where[4], bool value, uint32_t tag)
{
    uint64_t x =
        (((uint64_t)where[0] * 131 + (uint64_t)where[1]) * 1009 + (uint64_t)where[2]) * 521 + (uint64_t)where[3];
    return (uint32_t)rng_at(tag * 2 + value, x);
}

/* For every element of tokens [first, end): writes what it should hold, or checks it. */
static void each_element(const struct host *h, const struct move_end *end, const int tokens[2], uint32_t tag,
                         bool check)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int kv = 0; kv < h->heads.n_kv; kv++)
            for (int token = tokens[0]; token < tokens[1]; token++)
                for (int i = 0; i < 2 * (h->heads.head_dim + (h->dtype == DT_I8 ? 4 : 0)); i++)
                    for (int share = 0; share < end->n; share++) {
                        int where[4] = {layer, kv, token, i / 2};
                        uint32_t want = content(where, i % 2, tag);
                        uint8_t *p = element(h, end, share, where, i % 2);
                        if (p && !check)
                            memcpy(p, &want, element_bytes(h));
                        if (p && check && memcmp(p, &want, element_bytes(h)) != 0)
                            fail_msg("%d ranks: layer %d, head %d, token %d, element %d of the %s", end->n, layer, kv,
                                     token, i / 2, i % 2 ? "value" : "key");
                    }
}

static void carry_out(struct host *h, struct move *m, int first, int n)
{
    m->first_token = first;
    m->n_tokens = n;
    m->bytes = 0;
    m->element_bits = (int)element_bytes(h) * 8;
    for (int i = 0; i < move_mover(m)->n; i++)
        move_run(m, i, h->ops, h->devices[move_mover(m)->ranks[i]]);
}

static int64_t bytes_of(const struct host *h, const struct move_end *to, int tokens)
{
    int64_t heads = 0;
    for (int i = 0; i < to->n; i++)
        heads += head_span(&h->heads, to->n / to->stages, i % (to->n / to->stages), 1).n_kv *
                 stage_layers(LAYERS, to->stages, i / (to->n / to->stages)).n;
    return heads * 2 * h->heads.head_dim * tokens * (int64_t)element_bytes(h);
}

/* All tokens but a few at both ends, where there are many. */
static void random_range(struct host *h, int *first, int *end)
{
    int n = h->n_tokens, few = n == MANY ? 40 : n;
    *first = (int)rng_below(&h->rng, (uint64_t)few);
    *end = n == MANY ? n - (int)rng_below(&h->rng, 40) : *first + (int)rng_below(&h->rng, (uint64_t)(n - *first) + 1);
}

static void random_case(struct host *h)
{
    static const int widths[] = {1, 2, 3, 4, 6};
    struct move *m = move_new();
    int first, n;
    random_range(h, &first, &n);
    m->heads = h->heads;
    int tier = (int)rng_below(&h->rng, 4); /* 0: out of host memory; 1: into it */
    place(h, m, &m->from, widths[rng_below(&h->rng, 5)], 0);
    place(h, m, &m->to, widths[rng_below(&h->rng, 5)], 1);
    if (tier < 2)
        place_host(h, m, tier ? &m->to : &m->from, tier);
    each_element(h, &m->from, (const int[2]){0, h->n_tokens}, 1, false);
    each_element(h, &m->to, (const int[2]){0, h->n_tokens}, 2, false);
    carry_out(h, m, first, n);
    each_element(h, &m->to, (const int[2]){0, first}, 2, true);
    each_element(h, &m->to, (const int[2]){first, n}, 1, true);
    each_element(h, &m->to, (const int[2]){n, h->n_tokens}, 2, true);
    each_element(h, &m->from, (const int[2]){0, h->n_tokens}, 1, true);
    assert_int_equal(m->bytes, bytes_of(h, &m->to, n - first));
    move_free(m);
}

static const struct heads shapes[] = {{8, 2, 64}, {9, 3, 64}, {6, 6, 24}, {28, 4, 128}, {8, 1, 64}, {40, 8, 16}};

static void tokens_arrive_where_they_belong(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_F32, DT_BF16, DT_F8, DT_I8};
    for (int k = 0; k < 10; k++) {
        struct host h;
        open_host(&h, types[k % 5], shapes[k * 5 % 6], (uint64_t)k);
        for (int i = 0; i < (getenv("MOONSHIFT_SLOW") ? 3 : 10); i++)
            random_case(&h);
        close_host(&h);
    }
}

/* More than caches keep: such moves go past them. */
static void many_tokens_do_too(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_F8, DT_I8, DT_F32};
    static const struct heads large[] = {{8, 4, 64}, {16, 8, 72}, {4, 2, 64}, {8, 8, 64}};
    for (int k = 0; k < (getenv("MOONSHIFT_SLOW") ? 2 : 4); k++) {
        struct host h;
        open_host_of(&h, types[k], large[k], MANY, (uint64_t)k);
        for (int i = 0; i < (getenv("MOONSHIFT_SLOW") ? 1 : 3); i++)
            random_case(&h);
        close_host(&h);
    }
}

/* 1 -> 2 -> 4 -> 1 -> 4 -> 2 -> 1: every element as it was at the start. */
static void cycles_of_widths_change_nothing(void **state)
{
    (void)state;
    static const int widths[] = {2, 4, 1, 4, 2, 3, 1};
    for (int k = 0; k < 6; k++) {
        struct host h;
        struct move *m = move_new();
        open_host(&h, DT_F16, shapes[k], 9);
        m->heads = h.heads;
        place(&h, m, &m->from, 1, 0);
        each_element(&h, &m->from, (const int[2]){0, FEW}, 7, false);
        for (int i = 0; i < 7; i++) {
            place(&h, m, &m->to, widths[i], (i + 1) % 2);
            carry_out(&h, m, 0, FEW);
            m->from = m->to;
        }
        each_element(&h, &m->from, (const int[2]){0, FEW}, 7, true);
        move_free(m);
        close_host(&h);
    }
}

static void a_move_of_nothing(void **state)
{
    (void)state;
    struct host h;
    struct move *m = move_new();
    open_host(&h, DT_F16, shapes[0], 1);
    m->heads = h.heads;
    place(&h, m, &m->from, 2, 0);
    place(&h, m, &m->to, 4, 1);
    carry_out(&h, m, 20, 20);
    assert_int_equal(m->bytes, 0);
    move_free(m);
    close_host(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_arrive_where_they_belong),
        cmocka_unit_test(many_tokens_do_too),
        cmocka_unit_test(cycles_of_widths_change_nothing),
        cmocka_unit_test(a_move_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
