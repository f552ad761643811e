/* A policy and the encoder beside the model: what it sees of it, what it may say, what the front is told, and that its
 * word ends with it, whichever way it goes. */
#include "tests/rig/policy_rig.h"

/* `p.rule`: the rule that it gives in each step, a table's text; "": none. `p.fall`: it raises. */
static const char says[] =
    "return { api = 1, doc = 'says', params = { rule = { default = '' }, fall = { default = false } },\n"
    "step = function(view, act, p)\n"
    "  if p.fall then error('as told') end\n"
    "  if p.rule == 'one' then assert(act.embed { replicas = 1 }) end\n"
    "  if p.rule == 'round' then assert(act.embed { route = 'round_robin' }) end\n"
    "  if p.rule == 'length' then\n"
    "    assert(act.embed { route = 'by_length', short = 64, short_replicas = 2, replicas = 4 }) end\n"
    "  if p.rule == 'none' then assert(act.embed()) end\n"
    "  if p.rule == 'refused' then\n"
    "    local ok, why = act.embed { replicas = 5 } assert(ok == nil and why == 'the encoder has not so many "
    "replicas')\n"
    "    ok, why = act.embed { route = 'by_length', short = 9, short_replicas = 4 }\n"
    "    assert(ok == nil and why:sub(1, 24) == 'texts that are not short', why)\n"
    "    ok = act.embed { route = 'by_length', short = 9, short_replicas = 2, replicas = 2 } assert(ok == nil) end\n"
    "  if p.rule == 'facts' then local e = view.embed()\n"
    "    assert(e.replicas == 4 and e.alive == 3 and e.allowed == 3 and e.texts == 7 and e.tokens == 900)\n"
    "    assert(#e.running == 4 and e.running[1] == 50 and e.running[4] == -1) end\n"
    "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting)\n"
    "    if b.tokens > 0 then act.forward(g, b) end end\n"
    "end }";
static const char plain[] =
    "return { api = 1, doc = 'plain', step = function(view, act) for _, g in ipairs(view.idle) do local b = "
    "act.batch(g)\n"
    "  b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end end }";
static const char cannot_begin[] =
    "return { api = 1, doc = 'no', start = function(node, act) act.embed { replicas = 2 }\n"
    "  if node.n_ranks > 0 then error('not here') end end, step = function() end }";

struct site {
    struct rig t;
    struct embed_link link;
};

/* The engine was told of the encoder, as by engine_setup.embed. */
static void open_site(struct site *s)
{
    rig_open(&s->t, &(struct rig_knobs){.ranks = 1, .seqs = 17});
    embed_link_init(&s->link, 4);
    ((struct world *)engine_world(s->t.engine))->embed = &s->link;
}

static void close_site(struct site *s)
{
    rig_run(&s->t);
    rig_check(&s->t);
    rig_close(&s->t);
}

static void make_live(struct site *s, const char *name, const char *source)
{
    if (rig_swap(&s->t, name, source))
        fail_msg("%s", s->t.reply.data);
    rig_turn(&s->t);
}

static void rule(struct site *s, const char *word)
{
    char text[64];
    snprintf(text, sizeof text, "{\"rule\": \"%s\"}", word);
    rig_post(&s->t, IN_PARAMS, mem_strdup(text), strlen(text));
    rig_turn(&s->t);
    assert_int_equal(s->t.reply_code, 0);
    rig_submit(&s->t, "", 20, 3);
    rig_settle(&s->t);
    assert_int_equal(rig_state(&s->t, "policy.strikes"), 0);
}

static struct embed_rule told(const struct site *s)
{
    return embed_rule_unpack(s->t.embed_rule);
}

static void the_front_is_told_once_what_is_said(void **state)
{
    (void)state;
    struct site s;
    open_site(&s);
    make_live(&s, "says", says);
    rule(&s, "");
    assert_int_equal(s.t.n_embed_rules, 0);
    rule(&s, "one");
    assert_true(told(&s).way == EMBED_LEAST_LOADED && told(&s).replicas == 1 && s.t.n_embed_rules == 1);
    rule(&s, "length");
    struct embed_rule r = told(&s);
    assert_true(r.way == EMBED_BY_LENGTH && r.replicas == 4 && r.short_tokens == 64 && r.n_short == 2);
    rule(&s, "round");
    assert_true(told(&s).way == EMBED_ROUND_ROBIN && told(&s).replicas == 0);
    rule(&s, "refused"); /* and what was said stands */
    assert_true(told(&s).way == EMBED_ROUND_ROBIN && s.t.n_embed_rules == 3);
    rule(&s, "none");
    assert_int_equal(s.t.embed_rule, 0);
    close_site(&s);
}

static void it_sees_what_the_front_has_put(void **state)
{
    (void)state;
    struct site s;
    struct embed_facts f = {.n_alive = 3, .waiting_texts = 7, .waiting_tokens = 900, .running_tokens = {50, 0, 10, -1}};
    open_site(&s);
    embed_link_put(&s.link, &f);
    make_live(&s, "says", says);
    rule(&s, "facts");
    close_site(&s);
}

static void its_word_ends_with_it(void **state)
{
    (void)state;
    struct site s;
    open_site(&s);
    make_live(&s, "says", says);
    rule(&s, "one");
    make_live(&s, "plain", plain); /* a swap */
    assert_int_equal(s.t.embed_rule, 0);
    rig_post(&s.t, IN_ROLLBACK, NULL, 0); /* it comes back, and has said nothing yet */
    rig_turn(&s.t);
    assert_int_equal(s.t.embed_rule, 0);
    rule(&s, "one");
    assert_int_equal(told(&s).replicas, 1);
    rig_post(&s.t, IN_ROLLBACK, NULL, 0);
    rig_turn(&s.t);
    assert_int_equal(s.t.embed_rule, 0);
    rig_post(&s.t, IN_ROLLBACK, NULL, 0);
    rule(&s, "one");
    rig_post(&s.t, IN_PARAMS, mem_strdup("{\"fall\": true}"), strlen("{\"fall\": true}"));
    rig_submit(&s.t, "", 20, 40);
    rig_settle(&s.t);
    assert_int_equal(rig_state(&s.t, "policy.withdrawn"), 1);
    assert_int_equal(s.t.embed_rule, 0);
    close_site(&s);
}

static void it_stays_where_the_policy_stays(void **state)
{
    (void)state;
    struct site s;
    open_site(&s);
    make_live(&s, "says", says);
    rule(&s, "one");
    assert_int_not_equal(rig_swap(&s.t, "no", cannot_begin), 0);
    rig_turn(&s.t);
    assert_int_equal(told(&s).replicas, 1);
    rule(&s, ""); /* nor does it end when nothing more is said */
    assert_int_equal(told(&s).replicas, 1);
    close_site(&s);
}

static void start_may_say_it(void **state)
{
    (void)state;
    static const char source[] =
        "return { api = 1, doc = 'starts', start = function(node, act) assert(act.embed { replicas = 3 }) end,\n"
        "step = function(view, act) for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes()\n"
        "b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end end }";
    struct site s;
    open_site(&s);
    make_live(&s, "says", source);
    assert_int_equal(told(&s).replicas, 3);
    close_site(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_front_is_told_once_what_is_said),
        cmocka_unit_test(it_sees_what_the_front_has_put),
        cmocka_unit_test(its_word_ends_with_it),
        cmocka_unit_test(it_stays_where_the_policy_stays),
        cmocka_unit_test(start_may_say_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
