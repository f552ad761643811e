/* The books of KV over the tiers, without an engine: prompts come, are computed and go; the test says when copies land.
 * Used by tests/unit/host_kv.c and disk_books.c; static, so that each has its own. */
#ifndef RIG_KV_RIG_H
#define RIG_KV_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/world/plan.h"

enum { BLOCKS = 16, HOST = 32, MOST = 64 };

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    uint64_t tag;
    int64_t now;
    int landing; /* of a copy to or from the disk, so many blocks are whole; -1: all */
};

static inline void set_up_disk(struct bench *b, int ranks, int host_blocks, int disk_blocks)
{
    memset(b, 0, sizeof *b);
    b->landing = -1;
    struct limits l = {.max_num_seqs = 8, .max_num_batched_tokens = 512, .max_model_len = 1024, .prefix_caching = true};
    struct node_shape shape;
    metrics_init(&b->m);
    node_shape_uniform(&shape, ranks, &(struct heads){4, 4, 64}, 8, 16);
    world_init(&b->w, &l, &shape, BLOCKS, &b->m);
    b->w.cost = (struct world_cost){.prefill_ns_per_token = 1000, .move_ns_per_token = 1, .swap_ns_per_token = 1};
    if (host_blocks)
        kv_open_host(&b->w.kv, host_blocks, 16);
    if (disk_blocks)
        kv_open_disk(&b->w.kv, disk_blocks);
    partition_ask(&b->w, &(struct switch_order){.mask = rank_range(0, ranks), .base = {ranks, 1, 1}}, 0);
    assert_int_equal(partition_advance(&b->w, 0), 1);
    plan_init(&b->p, &b->w);
}

static inline void set_up(struct bench *b, int ranks, int host_blocks)
{
    set_up_disk(b, ranks, host_blocks, 0);
}

static inline void tear_down(struct bench *b)
{
    assert_true(world_check(&b->w));
    plan_free(&b->p);
    world_free(&b->w);
}

static inline struct request *submit(struct bench *b, int n_prompt, int first_token)
{
    struct request_spec *s = mem_new(sizeof *s);
    struct request *r = NULL;
    s->tag = ++b->tag;
    s->arrival_ns = ++b->now;
    s->n_prompt = n_prompt;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = first_token + i;
    s->max_tokens = 1;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    assert_int_equal(world_submit(&b->w, s, b->now, &r, NULL), 0);
    return r;
}

static inline void land(struct bench *b)
{
    int n = b->w.n_copies;
    b->w.n_copies = 0;
    for (int i = 0; i < n; i++) {
        struct kv_copy *m = b->w.copies[i];
        m->n_landed = b->landing >= 0 && b->landing < m->n_to ? b->landing : m->n_to;
        world_copy_done(&b->w, m, b->now);
    }
}

/* The first group: of all ranks, where a test does not change that. */
static inline int group_of(const struct bench *b)
{
    return partition_group(&b->w.partition, 0)->id;
}

/* Starts it; returns how many tokens its ranks compute. */
static inline int start(struct bench *b, struct request *r)
{
    int before;
    plan_begin(&b->p, ++b->now);
    struct plan_batch *batch = plan_batch(&b->p, group_of(b));
    assert_true(plan_add(batch, r->id, 0) > 0);
    assert_true(plan_forward(batch, (struct layout){kv_place(&b->w.kv, batch->group->place)->n, 1, 1}));
    plan_apply(&b->p);
    before = r->n_computed;
    land(b);
    world_commit(&b->w, r, r->n_tokens);
    assert_true(kv_check(&b->w.kv));
    return r->n_tokens - before;
}

/* What plan_add says to a request now. */
static inline int tries(struct bench *b, struct request *r)
{
    plan_begin(&b->p, ++b->now);
    return plan_add(plan_batch(&b->p, group_of(b)), r->id, 0);
}

/* A prompt of so many blocks of 16 tokens comes, is computed and goes. Returns the tokens that were computed. */
static inline int serve(struct bench *b, int n_blocks, int first_token)
{
    struct request *r = submit(b, n_blocks * 16, first_token);
    int n = start(b, r);
    world_end(&b->w, r, END_LENGTH);
    return n;
}

/* Of the group: host memory, where there is some, has the first. */
static inline int place_of(const struct bench *b)
{
    return partition_group(&b->w.partition, 0)->place;
}

static inline int host_cached(const struct bench *b)
{
    return kv_place(&b->w.kv, b->w.kv.host_place)->n_cached;
}

#endif
