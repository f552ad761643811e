/* What the process of a policy may write into its page: verbs of any bytes. The engine's reader refuses what no policy
 * could ask, and what it takes the plan checks, so that a plan that came of it can be carried out and the books add up.
 * Errors, texts and reports of a process are read, too. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "lua/exchange.h"
#include "lua/rehearse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t n;
};

static void take(struct input *in, void *to, size_t n)
{
    size_t has = in->n < n ? in->n : n;
    memset(to, 0, n);
    memcpy(to, in->data, has);
    in->data += has;
    in->n -= has;
}

/* Half of the numbers are small, or nothing would ever be lawful. */
static void take_verb(struct input *in, struct exchange_page *x)
{
    uint8_t shape[4];
    take(in, shape, sizeof shape);
    take(in, &x->verb, shape[0] & 1 ? sizeof x->verb : 0);
    x->verb.kind = shape[1] % (CALL_KINDS + 2) - 1;
    if (!(shape[0] & 1)) {
        uint8_t small[12];
        take(in, small, sizeof small);
        x->verb.id = (uint64_t)1 << 32 | small[0];
        x->verb.group = small[1] % 8;
        x->verb.n = small[2] - 1;
        x->verb.more = small[3] - 1;
        x->verb.from = small[4] - 1;
        x->verb.how = small[5] % 5;
        x->verb.listed = x->verb.n_list = small[6] % 2;
        x->verb.ranks = small[7];
        x->verb.until_ns = small[8] * INT64_C(1000000000);
        x->verb.ms = small[9];
        x->verb.layout = (struct layout){small[10] % 5, small[11] % 5, 1};
    }
    take(in, x->switch_order, shape[2] % (sizeof x->switch_order + 1));
    take(in, x->verb_text, shape[3] % 64);
    take(in, x->list, 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct exchange_page *x;
    struct exchange_verb v = {0};
    struct exchange_end end;
    struct input in = {data, size};
    struct rehearsal *r = mem_new(sizeof *r);
    uint8_t hook;
    if (!x)
        x = mem_new(sizeof *x);
    take(&in, &hook, 1);
    rehearsal_init(r,
                   (struct rehearsal_size){.kv_blocks = 64,
                                           .tokens_per_block = 16,
                                           .max_num_seqs = 16,
                                           .max_num_batched_tokens = 128,
                                           .n_ranks = 4,
                                           .groups = {3, 4},
                                           .n_host = 16,
                                           .n_pooled = hook & 1 ? 4 : 0},
                   50);
    rehearsal_crowd(r, 24, 11);
    struct view view = rehearsal_view(r);
    struct verb_scope scope = {hook & 2 ? HOOK_START : HOOK_STEP, &view, &r->plan, NULL};
    plan_begin(&r->plan, r->now_ns);
    for (int i = 0; in.n && i < 64; i++) {
        struct verb_result done = {0};
        take_verb(&in, x);
        if (!exchange_take_verb(x, &v) || !verb_is_lawful(&scope, &v.call))
            continue;
        verb_carry_out(&scope, &v.call, &done);
    }
    rehearsal_advance(r, 3, NULL, NULL);
    ASSERT(world_check(&r->world));
    in = (struct input){data, size};
    take(&in, &x->end, sizeof x->end);
    take(&in, &x->n_text, sizeof x->n_text);
    exchange_take_end(x, &end);
    ASSERT(strlen(end.error) < sizeof end.error && strlen(end.why) < sizeof end.why);
    struct buf text = {0};
    ASSERT(exchange_take_text(x, &text) == (x->n_text >= 0 && x->n_text <= EXCHANGE_TEXT));
    buf_free(&text);
    mem_free(v.list);
    rehearsal_free(r);
    mem_free(r);
    return 0;
}
