/* Probes by their books: what was said is an answer or not, words are words, the marker is found wherever tokens cut
 * it; a probe shares its parent's prefix, leaves nothing behind, is seen by no tenant and no limit of the queue, gives
 * way first, runs where its parent runs, and is refused where it cannot be. */
#include "tests/rig/kv_rig.h"

/* Tokens are bytes; from 1000 on parts of the marker. */
static void piece(const void *ctx, int32_t token, struct buf *text)
{
    static const char *const parts[] = {"so</th", "ink", ">", "</think> and more", "</thi</think>", "</Think>"};
    (void)ctx;
    if (token >= 1000)
        buf_puts(text, parts[token - 1000]);
    else
        buf_putc(text, (char)token);
}

static struct thinking make_thinking(const char *text)
{
    struct thinking t = {.piece = piece};
    assert_true(thinking_set(&t, "</think>", text, (const int32_t[]){301, 302, 303}, 3));
    return t;
}

static struct probe_said said(const char *begin, const char *text)
{
    struct thinking t = make_thinking(begin);
    struct probe_said s = {.depth = t.depth};
    for (const char *c = text; *c; c++)
        probe_say(&t, &s, c, 1);
    return s;
}

static void an_answer_ends_where_its_brace_closes(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *text, *answer;
        bool complete;
    } cases[] = {
        {"\\boxed{", "42}", "42", true},
        {"\\boxed{", " 1 / 2\n}$. Wait}", "1/2", true},
        {"\\boxed{", "\\frac{1}{2}} so", "\\frac{1}{2}", true},
        {"\\boxed{", "\\frac{1}{2", "", false},
        {"\\boxed{", "}", "", true},
        {"\\boxed{", "", "", false},
        {"{\"answer\": {", "1}, 2}", "1", true},
        {"The answer:", " 4 2 \nbut", "42", true},
        {"The answer:", "{42}", "", false},
    };
    char answer[PROBE_BYTES + 1];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct probe_said s = said(cases[i].begin, cases[i].text);
        assert_int_equal(s.complete, cases[i].complete);
        assert_int_equal(probe_answer(&s, answer), strlen(cases[i].answer));
        assert_string_equal(answer, cases[i].answer);
    }
    struct thinking t;
    assert_false(thinking_set(&t, "</think>", "a}", (const int32_t[]){1}, 1));
    assert_false(thinking_set(&t, "", "a", (const int32_t[]){1}, 1));
    assert_false(thinking_set(&t, "</think>", "a", NULL, 0));
}

/* However much is said, it is kept up to a bound. */
static void what_is_said_is_bounded(void **state)
{
    (void)state;
    struct thinking t = make_thinking("{");
    struct probe_said s = {.depth = t.depth};
    char long_word[300];
    memset(long_word, 'x', sizeof long_word);
    for (int i = 0; i < PROBE_TOKENS; i++)
        probe_say(&t, &s, long_word, sizeof long_word);
    probe_say(&t, &s, "}", 1);
    assert_true(s.n == PROBE_BYTES && !s.complete);
}

static void words_are_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
        bool there;
    } cases[] = {
        {"I know}", "no", false},
        {"no", "no", true},
        {"}. No!", "no", true},
        {"a no-go", "no", true},
        {"none, nor no", "no", true},
        {"nono", "no", false},
        {"no2", "no", false},
        {"no\xC3\xA9", "no", false},
        {"not \n sure", "not sure", true},
        {"not surely", "not sure", false},
        {"notsure", "not sure", false},
        {"WAIT", "wait", true},
        {"await", "wait", false},
        {"", "wait", false},
        {"wait", "", false},
        {"wai", "wait", false},
        {"not ", "not sure", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct probe_said s = said("{", cases[i].text);
        if (probe_has_words(&s, cases[i].words, strlen(cases[i].words)) != cases[i].there)
            fail_msg("'%s' in '%s'", cases[i].words, cases[i].text);
    }
}

/* ---- the side request */

struct rig {
    struct bench b;
    struct thinking t;
    struct request *r; /* it thinks: 40 tokens of prompt, 10 of output, all but the last computed */
};

static struct request *think(struct bench *b, int n_prompt, int first, int max_tokens, int every)
{
    struct request *r = submit(b, n_prompt, first);
    r->spec->max_tokens = max_tokens;
    r->spec->probe_every = every;
    r->spec->probe_window = every ? 3 : 0;
    r->probes = every ? mem_new(sizeof *r->probes) : NULL;
    start(b, r);
    for (int i = 0; i < 10; i++)
        request_append(r, 'a' + i);
    assert_true(world_reserve(&b->w, r, r->n_tokens));
    world_commit(&b->w, r, r->n_tokens - 1);
    return r;
}

static void set_up_thinking(struct rig *g, int max_tokens)
{
    memset(g, 0, sizeof *g);
    set_up(&g->b, 1, 0);
    g->t = make_thinking("{");
    g->b.w.thinking = &g->t;
    g->r = think(&g->b, 40, 500, max_tokens, 8);
}

static struct request *probe(struct rig *g)
{
    return world_probe(&g->b.w, g->r, ++g->b.now);
}

static int tenant_total(const struct world *w)
{
    const struct tenant *t = tenants_find(&w->tenants, "");
    return t ? t->n_waiting * 100 + t->n_running : 0;
}

static void a_probe_shares_and_leaves_nothing(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 100);
    struct world *w = &g.b.w;
    int cached = kv_place(&w->kv, place_of(&g.b))->index.count, held = kv_available(&w->kv, place_of(&g.b));
    uint64_t hits = g.b.m.counters[C_PREFIX_HITS], submitted = g.b.m.counters[C_SUBMITTED];
    int64_t waiting_tokens = w->waiting_tokens;
    struct request *p = probe(&g);
    assert_true(world_check(w));
    assert_int_equal(tenant_total(w), 1);
    assert_true(w->waiting_tokens == waiting_tokens && w->waiting.n == 1 && w->n_probes_waiting == 1);
    assert_true(p->spec->n_prompt == 53 && p->tokens[49] == 'j' && p->tokens[50] == 301 && p->tokens[52] == 303);
    assert_int_equal(p->spec->max_tokens, PROBE_TOKENS);
    assert_int_equal(start(&g.b, p), 53 - 48); /* three blocks are its parent's */
    assert_memory_equal(p->blocks, g.r->blocks, 3 * sizeof *p->blocks);
    assert_int_equal(held - kv_available(&w->kv, place_of(&g.b)), 1);
    for (int i = 0; i < 20; i++)
        request_append(p, 'x');
    assert_true(world_reserve(w, p, p->n_tokens));
    world_commit(w, p, p->n_tokens - 1);
    assert_true(world_check(w) && tenant_total(w) == 1 && w->n_probes_running == 1);
    assert_false(probe_is_over(w, p));
    g.r->group += 7; /* elsewhere */
    assert_true(probe_is_over(w, p));
    g.r->group -= 7;
    probe_say(&g.t, p->said, "7}", 2);
    world_end(w, p, END_LENGTH);
    assert_int_equal(kv_place(&w->kv, place_of(&g.b))->index.count, cached);
    assert_int_equal(kv_available(&w->kv, place_of(&g.b)), held);
    assert_true(g.b.m.counters[C_PREFIX_HITS] == hits && g.b.m.counters[C_SUBMITTED] == submitted);
    assert_true(g.r->probes->n_said == 1 && !g.r->probes->under_way && g.r->probes->asked_at == 10);
    assert_int_equal(probe_last(g.r, 1)->n, 2);
    assert_null(probe_last(g.r, 2));
    assert_int_equal(g.b.m.counters[C_LENGTH], 0);
    world_end(w, g.r, END_STOP);
    tear_down(&g.b);
}

/* One that was cut off said nothing; the last ones are kept. */
static void answers_are_a_ring(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 100);
    for (int i = 0; i < PROBE_WINDOW + 5; i++) {
        struct request *p = probe(&g);
        char digit[] = {(char)('a' + i), '}'};
        probe_say(&g.t, p->said, digit, 2);
        world_end(&g.b.w, p, i % 7 == 3 ? END_ABORT : END_STOP);
    }
    assert_int_equal(g.r->probes->n_said, PROBE_WINDOW + 5 - 3);
    assert_int_equal(probe_last(g.r, 1)->text[0], 'a' + PROBE_WINDOW + 4);
    assert_int_equal(probe_last(g.r, 3)->text[0], 'a' + 18);
    assert_int_equal(probe_last(g.r, 4)->text[0], 'a' + 16); /* the 17th was cut off */
    assert_non_null(probe_last(g.r, PROBE_WINDOW));
    assert_null(probe_last(g.r, PROBE_WINDOW + 1));
    assert_null(probe_last(g.r, 0));
    world_end(&g.b.w, g.r, END_STOP);
    tear_down(&g.b);
}

/* The same each time, another at another place and of another request. */
static void a_probe_draws_by_seed_and_place(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 100);
    uint64_t seeds[4];
    for (int i = 0; i < 4; i++) {
        struct request *p = probe(&g);
        seeds[i] = p->spec->sampling.seed;
        assert_true(p->spec->sampling.temperature == 0.6f && p->spec->sampling.top_p == 0.95f);
        world_end(&g.b.w, p, END_STOP);
        if (i == 1)
            request_append(g.r, 'z');
        if (i == 2)
            g.r->spec->sampling.seed++;
    }
    assert_true(seeds[0] == seeds[1] && seeds[1] != seeds[2] && seeds[2] != seeds[3]);
    world_end(&g.b.w, g.r, END_STOP);
    tear_down(&g.b);
}

static void it_takes_no_place_in_the_queue(void **state)
{
    (void)state;
    struct rig g;
    struct err e;
    set_up_thinking(&g, 100);
    g.b.w.limits.max_num_queued_reqs = 1;
    g.b.w.limits.max_num_queued_tokens = 40;
    struct request *p = probe(&g);
    struct request_spec s = {.n_prompt = 40, .max_tokens = 1};
    assert_int_equal(world_may_take(&g.b.w, &s, &e), 0);
    struct request *other = submit(&g.b, 40, 900);
    assert_int_equal(world_may_take(&g.b.w, &s, &e), E_FULL);
    assert_ptr_equal(world_head(&g.b.w), other);
    assert_true(request_compare(g.r, p) < 0 && request_compare(p, other) < 0);
    world_end(&g.b.w, other, END_ABORT);
    world_end(&g.b.w, p, END_ABORT);
    world_end(&g.b.w, g.r, END_STOP);
    tear_down(&g.b);
}

/* Sixteen blocks: the parent has four, the probe one of its own, a later request eleven, and then another block is
 * wanted. */
static void it_gives_way_first(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 100);
    struct request *p = probe(&g);
    start(&g.b, p);
    struct request *later = submit(&g.b, 11 * 16 - 1, 700);
    later->spec->max_tokens = 9;
    start(&g.b, later);
    request_append(later, 1);
    world_commit(&g.b.w, later, later->n_tokens - 1);
    request_append(later, 1);
    world_commit(&g.b.w, later, later->n_tokens - 1);
    assert_int_equal(kv_available(&g.b.w.kv, place_of(&g.b)), 0);
    plan_begin(&g.b.p, ++g.b.now);
    struct plan_batch *b = plan_batch(&g.b.p, 1);
    plan_decodes(b);
    assert_true(g.b.p.n_verbs == 1 && g.b.p.verbs[0].kind == PLAN_PREEMPT && g.b.p.verbs[0].request == p);
    assert_false(g.b.p.pressed);
    assert_true(plan_forward(b, (struct layout){1, 1, 1}));
    plan_apply(&g.b.p);
    assert_true(probe_is_over(&g.b.w, p) && p->n_blocks == 0 && g.b.m.counters[C_PREEMPTIONS] == 0);
    world_end(&g.b.w, p, END_ABORT);
    world_end(&g.b.w, later, END_STOP);
    world_end(&g.b.w, g.r, END_STOP);
    tear_down(&g.b);
}

/* Not even who is parked for a group that is not there, which gives way to all others: eleven of its blocks lie on each
 * rank, and of sixteen the parent has four, the probe one. */
static void nobody_gives_way_to_it(void **state)
{
    (void)state;
    struct rig g = {0};
    set_up(&g.b, 2, 0);
    g.t = make_thinking("{");
    g.b.w.thinking = &g.t;
    struct request *old = submit(&g.b, 11 * 32 - 1, 900);
    old->spec->max_tokens = 9;
    start(&g.b, old);
    for (uint64_t rank = 1; rank <= 2; rank *= 2)
        partition_ask(&g.b.w, &(struct switch_order){.mask = rank, .base = {1, 1, 1}, .fate = FATE_PARK}, ++g.b.now);
    partition_advance(&g.b.w, ++g.b.now);
    assert_true(world_strands(&g.b.w, old));
    g.r = think(&g.b, 40, 500, 100, 8);
    struct request *p = probe(&g);
    start(&g.b, p);
    assert_int_equal(kv_available(&g.b.w.kv, place_of(&g.b)), 0);
    for (int i = 0; i < 12; i++)
        request_append(p, 'x');
    world_commit(&g.b.w, p, 64);
    assert_int_equal(tries(&g.b, p), 0);
    assert_int_equal(g.b.p.n_verbs, 0);
    world_end(&g.b.w, p, END_ABORT);
    for (int i = 0; i < 31; i++)
        request_append(g.r, 'y');
    assert_true(world_reserve(&g.b.w, g.r, 80)); /* with the block that the probe had */
    world_commit(&g.b.w, g.r, 80);
    assert_int_equal(tries(&g.b, g.r), 1); /* to its parent, though, it does */
    assert_true(g.b.p.n_verbs == 1 && g.b.p.verbs[0].request == old);
    world_end(&g.b.w, old, END_ABORT);
    world_end(&g.b.w, g.r, END_STOP);
    tear_down(&g.b);
}

static void it_is_over_with_its_parent(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 1000);
    struct request *p = probe(&g);
    assert_false(probe_is_over(&g.b.w, p));
    for (int i = 0; i <= PROBE_LATE; i++) {
        assert_false(probe_is_over(&g.b.w, p));
        request_append(g.r, 'a');
    }
    assert_true(probe_is_over(&g.b.w, p)); /* it never began */
    g.r->n_tokens -= PROBE_LATE;
    assert_false(probe_is_over(&g.b.w, p));
    g.r->probes->closed = true;
    assert_true(probe_is_over(&g.b.w, p));
    g.r->probes->closed = false;
    assert_false(probe_is_over(&g.b.w, p));
    world_preempt(&g.b.w, g.r, true, ++g.b.now);
    assert_true(probe_is_over(&g.b.w, p));
    assert_int_equal(tries(&g.b, p), 0);
    assert_non_null(strstr(g.b.p.reason, "where its parent runs"));
    world_end(&g.b.w, g.r, END_STOP);
    assert_true(probe_is_over(&g.b.w, p));
    world_end(&g.b.w, p, END_ABORT);
    tear_down(&g.b);
}

/* ---- plans */

static void refused(bool done, const struct plan *p, const char *why)
{
    assert_false(done);
    if (!strstr(p->reason, why))
        fail_msg("'%s' says nothing of '%s'", p->reason, why);
}

static void plans_refuse_with_a_reason(void **state)
{
    (void)state;
    struct rig g;
    set_up_thinking(&g, 100);
    struct plan *p = &g.b.p;
    struct request *plain = think(&g.b, 16, 900, 100, 0);
    plan_begin(p, ++g.b.now);
    refused(plan_probe(p, 12345), p, "no such request");
    refused(plan_probe(p, plain->id), p, "did not ask");
    refused(plan_conclude(p, plain->id), p, "did not ask");
    g.b.w.thinking = NULL;
    refused(plan_probe(p, g.r->id), p, "nothing is probed here");
    g.b.w.thinking = &g.t;
    g.r->spec->max_tokens = 13;
    refused(plan_conclude(p, g.r->id), p, "max_tokens leaves no room");
    g.r->spec->max_tokens = 14;
    assert_true(plan_probe(p, g.r->id));
    assert_true(g.r->plan_serial != p->serial);
    refused(plan_probe(p, g.r->id), p, "probes the request already");
    assert_true(plan_conclude(p, g.r->id));
    refused(plan_conclude(p, g.r->id), p, "already used");
    assert_int_equal(plan_decodes(plan_batch(p, 1)), 1); /* the other one */
    plan_begin(p, ++g.b.now);
    struct request *probe = world_probe(&g.b.w, g.r, g.b.now);
    refused(plan_probe(p, g.r->id), p, "under way");
    refused(plan_probe(p, probe->id), p, "did not ask");
    g.r->probes->closed = true;
    refused(plan_conclude(p, g.r->id), p, "its thinking is over");
    world_end(&g.b.w, probe, END_ABORT);
    world_end(&g.b.w, plain, END_ABORT);
    world_end(&g.b.w, g.r, END_ABORT);
    tear_down(&g.b);
}

static void the_marker_is_found_wherever_tokens_cut_it(void **state)
{
    (void)state;
    static const struct {
        int32_t tokens[4];
        bool closed;
    } cases[] = {{{1000, 1001, 1002}, true},
                 {{1000, 1001, 'x', 1002}, false},
                 {{1003}, true},
                 {{1004}, true},
                 {{1005}, false},
                 {{1000, 1000, 1001, 1002}, true},
                 {{1001, 1002}, false}};
    struct rig g;
    set_up_thinking(&g, 100);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *g.r->probes = (struct probe_book){0};
        for (int k = 0; k < 4 && cases[i].tokens[k]; k++)
            probe_hear(&g.t, g.r, cases[i].tokens[k]);
        assert_int_equal(g.r->probes->closed, cases[i].closed);
    }
    world_end(&g.b.w, g.r, END_ABORT);
    tear_down(&g.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_where_its_brace_closes),
        cmocka_unit_test(what_is_said_is_bounded),
        cmocka_unit_test(words_are_words),
        cmocka_unit_test(a_probe_shares_and_leaves_nothing),
        cmocka_unit_test(answers_are_a_ring),
        cmocka_unit_test(a_probe_draws_by_seed_and_place),
        cmocka_unit_test(it_takes_no_place_in_the_queue),
        cmocka_unit_test(it_gives_way_first),
        cmocka_unit_test(nobody_gives_way_to_it),
        cmocka_unit_test(it_is_over_with_its_parent),
        cmocka_unit_test(plans_refuse_with_a_reason),
        cmocka_unit_test(the_marker_is_found_wherever_tokens_cut_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
