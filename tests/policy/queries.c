/* view.cached: what the prefix cache has of a waiting request, in one group and in the best one. */
#include "tests/rig/policy_rig.h"

/* Requests of the tenant "ask" are held for ever, and the reason is what the cache has of them. */
static const char source[] =
    "return { api = 1, doc = 'x', needs = { 'waiting.tenant', 'waiting.held' },\n"
    "  step = function(view, act)\n"
    "    local w = view.waiting\n"
    "    for i = 1, w.n do if w.tenant[i] == 'ask' and w.held[i] == 0 then\n"
    "      local said = string.format('%d', view.cached(w.id[i]))\n"
    "      for _, g in ipairs(view.groups) do said = said .. string.format(' %d', view.cached(w.id[i], g)) end\n"
    "      assert(act.hold(w.id[i], said, view.now + 3600)) end end\n"
    "    for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(w, 4096, 'any')\n"
    "      if b.tokens > 0 then act.forward(g, b) end end end }";

/* A prompt of which the first n_shared tokens are those of every other. */
static uint64_t submit(struct rig *t, const char *tenant, int n_prompt, int n_shared)
{
    uint64_t tag = ++t->n_tags;
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    s->arrival_ns = clock_now(&t->clock);
    s->n_prompt = n_prompt;
    s->max_tokens = 4;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = i < n_shared ? i % 50 : (int32_t)(100 + tag * 7 + (uint64_t)i % 300);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    rig_post(t, IN_SUBMIT, s, 0);
    return tag;
}

static void expect(struct rig *t, int n_shared, const char *want)
{
    uint64_t tag = submit(t, "ask", 200, n_shared);
    rig_turn(t);
    const struct request *r = request_find_tag(&engine_world(t->engine)->requests, tag);
    assert_non_null(r);
    assert_string_equal(r->held_why, want);
}

/* Those that are held have waited for nothing. */
static void close_rig(struct rig *t)
{
    for (uint64_t tag = 1; tag <= t->n_tags; tag++) {
        struct engine_message m = {.kind = IN_CANCEL, .tag = tag, .code = END_ABORT};
        queue_post(engine_inbox(t->engine), &m);
    }
    rig_run_until(t, clock_now(&t->clock) + 1000000000);
    rig_check(t);
    rig_close(t);
}

static void blocks_that_are_cached_count(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 4, .batched = 4096, .ranks = 1});
    assert_int_equal(rig_swap(&t, "queries", source), 0);
    expect(&t, 100, "0 0"); /* nobody has been here */
    submit(&t, "", 100, 100);
    rig_run_until(&t, clock_now(&t.clock) + 1000000000);
    expect(&t, 100, "96 96"); /* whole blocks of 16 */
    expect(&t, 40, "32 32");
    expect(&t, 15, "0 0");
    close_rig(&t);
}

static void each_group_has_its_own(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 8, .batched = 4096, .ranks = 2, .group_size = 1});
    assert_int_equal(rig_swap(&t, "queries", source), 0);
    submit(&t, "", 64, 64);
    rig_run_until(&t, clock_now(&t.clock) + 1000000000);
    expect(&t, 64, "64 64 0");
    close_rig(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_are_cached_count),
        cmocka_unit_test(each_group_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
