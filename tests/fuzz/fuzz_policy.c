/* Policy sources: whatever the bytes are, the loader answers with a policy or a reason, and what it accepted
 * decides a few made-up steps without harm. No watchdog: an instruction count bounds each call, so that a
 * slow machine finds the same things as a fast one. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "lua/rehearse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decide(const struct policy *p, struct rehearsal_size size)
{
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, size, 50);
    rehearsal_crowd(&r, 24, 11);
    r.world.step = 1000; /* further than any dry run went */
    struct node_facts node = rehearsal_node(&r);
    struct view before = rehearsal_view(&r);
    plan_begin(&r.plan, r.now_ns);
    enum verdict v = p->ops->start(p->ctx, &node, &before, &r.plan, &e);
    if (!verdict_stands(v))
        plan_begin(&r.plan, r.now_ns);
    rehearsal_advance(&r, 0, NULL, NULL);
    for (int i = 0; i < 4 && !verdict_torn(v); i++) {
        struct view view = rehearsal_view(&r);
        plan_begin(&r.plan, r.now_ns);
        v = p->ops->step(p->ctx, &view, &r.plan, &e);
        if (!verdict_stands(v))
            plan_begin(&r.plan, r.now_ns);
        rehearsal_advance(&r, 3, NULL, NULL);
        ASSERT(world_check(&r.world));
        p->ops->idle(p->ctx);
    }
    rehearsal_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct policy p;
    struct err e = {0};
    struct lua_opts o = {.hard_ns = 200000, .heap_bytes = 256 << 10, .quiet = true};
    /* libFuzzer's bytes have no NUL at their end; the source has a length */
    if (lua_policy_load(&p, "fuzz", (const char *)data, size, &o, NULL, &e)) {
        ASSERT(e.text[0]);
        for (const char *c = e.text; *c; c++)
            ASSERT((unsigned char)*c >= 0x20);
        return 0;
    }
    decide(&p, (struct rehearsal_size){
                   .kv_blocks = 64, .tokens_per_block = 16, .max_num_seqs = 16, .max_num_batched_tokens = 128});
    decide(&p, (struct rehearsal_size){.kv_blocks = 64,
                                       .tokens_per_block = 16,
                                       .max_num_seqs = 16,
                                       .max_num_batched_tokens = 128,
                                       .n_ranks = 4,
                                       .groups = {3, 4}});
    struct buf out = {0};
    p.ops->export_state(p.ctx, &out, &e);
    p.ops->params_get(p.ctx, &out);
    p.ops->metrics(p.ctx, "policy=\"fuzz\"", &out);
    buf_free(&out);
    p.ops->destroy(p.ctx);
    return 0;
}
