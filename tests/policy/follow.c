/* A call that is followed line by line (lua/follow.h): each line is counted as often as it is begun, whatever calls
 * what; nothing else about the call changes; and it is stopped like any other. */
#include "tests/rig/policy_rig.h"

#include "lua/rehearse.h"

static struct lua_watchdog *dog;

/* A policy in a world of so many requests, whose next call is followed or not. */
struct stage {
    struct policy policy;
    struct rehearsal r;
    struct buf told, plan;
    struct err err;
    enum verdict verdict;
};

static void play(struct stage *s, const char *source, const struct lua_opts *more, bool follows)
{
    struct lua_opts o = *more;
    memset(s, 0, sizeof *s);
    o.watchdog = more->watchdog ? more->watchdog : dog;
    o.quiet = o.again = o.keep_text = true;
    o.soft_ns = o.bytecodes = INT64_MAX / 4;
    o.hard_ns = o.hard_ns ? o.hard_ns : 2000000000;
    if (lua_policy_load(&s->policy, "x.lua", source, strlen(source), &o, NULL, &s->err))
        fail_msg("%s", s->err.text);
    rehearsal_init(&s->r,
                   (struct rehearsal_size){
                       .kv_blocks = 4096, .tokens_per_block = 16, .max_num_seqs = 64, .max_num_batched_tokens = 512},
                   100);
    rehearsal_crowd(&s->r, 9, 3);
    struct view v = rehearsal_view(&s->r);
    struct node_facts node = rehearsal_node(&s->r);
    plan_begin(&s->r.plan, s->r.now_ns);
    assert_int_equal(s->policy.ops->start(s->policy.ctx, &node, &v, &s->r.plan, &s->err), VERDICT_OK);
    if (follows)
        s->policy.ops->follow(s->policy.ctx, &s->told);
    plan_begin(&s->r.plan, s->r.now_ns);
    s->verdict = s->policy.ops->step(s->policy.ctx, &v, &s->r.plan, &s->err);
    rehearsal_transcribe(&s->r, &s->plan);
}

static void leave(struct stage *s)
{
    s->policy.ops->destroy(s->policy.ctx);
    rehearsal_free(&s->r);
    buf_free(&s->told);
    buf_free(&s->plan);
}

/* Each line ends with "-- N": it is begun so often; "-- none": nothing is said of it. */
static void check_counts(const struct stage *s)
{
    int n = 0;
    struct json *told = json_parse(s->told.data, s->told.len, NULL, NULL);
    const struct json *file = json_first(json_find(told, "sources"));
    for (const struct json *l = json_first(json_find(file, "lines")); l; l = json_next(l)) {
        const char *text = json_text(json_find(l, "text")), *mark = strstr(text, "-- ");
        const struct json *count = json_find(l, "count");
        if (!mark)
            continue;
        n++;
        if (strcmp(mark, "-- none") == 0 ? count != NULL : !count || json_number(count) != atoi(mark + 3))
            fail_msg("%s: %g", text, count ? json_number(count) : -1);
    }
    assert_true(n > 0);
    json_free(told);
}

static void counts_of(const char *source)
{
    struct stage s;
    play(&s, source, &(struct lua_opts){0}, true);
    if (s.verdict != VERDICT_OK)
        fail_msg("%s", s.err.text);
    check_counts(&s);
    leave(&s);
}

static void lines_are_counted(void **state)
{
    (void)state;
    counts_of("local function fib(n) -- none\n"
              "  if n < 2 then -- 25\n"
              "    return n -- 13\n"
              "  end\n"
              "  return fib(n - 1) + fib(n - 2) -- 12\n"
              "end\n"
              "local function last(n) -- none\n"
              "  if n == 0 then return 0 end -- 6\n"
              "  return last(n - 1) -- 5\n"
              "end\n"
              "local function never() -- none\n"
              "  return 1 -- none\n"
              "end\n"
              "local calls = 0\n"
              "local function one() -- none\n"
              "  calls = calls + 1 -- 3\n"
              "  return calls -- 3\n"
              "end\n"
              "return { api = 1, step = function(view, act) -- none\n"
              "  local sum = fib(6) + last(5) -- 1\n"
              "  sum = sum + one() + one() -- 1\n"
              "  if sum < 0 then -- 1\n"
              "    never() -- 0\n"
              "  end\n"
              "  sum = sum + one()\n"
              "  act.wake(1) -- 1\n"
              "end }\n");
    counts_of("return { api = 1, step = function(view, act)\n"
              "  local n = 0 -- 1\n"
              "  for i = 1, 4 do\n"
              "    n = n + i -- 4\n"
              "    if i % 2 == 0 then n = n - 1 end -- 4\n"
              "  end\n"
              "  while n > 3 do\n"
              "    n = n - 3 -- 2\n"
              "  end\n"
              "  act.wake(1) -- 1\n"
              "end }\n");
}

/* Deeper than is remembered, it still counts and ends. */
static void deep_down(void **state)
{
    (void)state;
    counts_of("local function down(n)\n"
              "  if n == 0 then return 0 end -- 301\n"
              "  local below = down(n - 1)\n"
              "  return below + 1 -- 300\n"
              "end\n"
              "return { api = 1, step = function(view, act)\n"
              "  act.wake(1 + down(300)) -- 1\n"
              "end }\n");
}

#define DECIDES                                                                                                        \
    "local function mine(view, i) return view.running.output[i] > 5 end\n"                                             \
    "return { api = 1, needs = { 'running.output' }, step = function(view, act)\n"                                     \
    "  for _, g in ipairs(view.idle) do\n"                                                                             \
    "    local b = act.batch(g)\n"                                                                                     \
    "    for i = 1, view.running.n do if mine(view, i) then b:add(view.running.id[i]) end end\n"                       \
    "    b:prefill(view.waiting, 100)\n"                                                                               \
    "    log(string.format('%d tokens', b.tokens))\n"                                                                  \
    "    if b.tokens > 0 then act.forward(g, b) end\n"                                                                 \
    "  end\n"                                                                                                          \
    "end }\n"

static void nothing_else_changes(void **state)
{
    (void)state;
    struct stage followed, alone;
    play(&followed, DECIDES, &(struct lua_opts){0}, true);
    play(&alone, DECIDES, &(struct lua_opts){0}, false);
    assert_int_equal(followed.verdict, VERDICT_OK);
    assert_int_equal(alone.verdict, VERDICT_OK);
    assert_int_equal(alone.told.len, 0);
    assert_string_equal(followed.plan.data, alone.plan.data);
    assert_non_null(strstr(followed.plan.data, "forward group"));
    struct json *told = json_parse(followed.told.data, followed.told.len, NULL, NULL);
    const char *logged = json_text(json_first(json_find(told, "log")));
    char line[60];
    snprintf(line, sizeof line, "log %s\n", logged);
    assert_non_null(strstr(followed.plan.data, line));
    const struct json *view = json_find(told, "view");
    assert_int_equal((int)json_number(json_find(view, "n_waiting")), followed.r.world.waiting.n);
    assert_int_equal((int)json_count(json_find(json_find(view, "running"), "rows")), followed.r.world.running.n);
    json_free(told);
    /* the next call is not followed */
    size_t before = followed.told.len;
    struct view v = rehearsal_view(&followed.r);
    plan_begin(&followed.r.plan, followed.r.now_ns);
    assert_int_equal(followed.policy.ops->step(followed.policy.ctx, &v, &followed.r.plan, &followed.err), VERDICT_OK);
    assert_int_equal(followed.told.len, before);
    leave(&followed);
    leave(&alone);
}

/* A policy that keeps n small tables, and needs some more in its call. */
static enum verdict play_full(int n, bool follows)
{
    static const char form[] = "local kept = {}\n"
                               "return { api = 1, step = function(view, act)\n"
                               "  for i = 1, %d do kept[i] = { i } end\n"
                               "  act.wake(1) -- 1\n"
                               "end }\n";
    char source[sizeof form + 16];
    struct stage s;
    snprintf(source, sizeof source, form, n);
    play(&s, source, &(struct lua_opts){.heap_bytes = 256 << 10}, follows);
    if (follows && s.verdict == VERDICT_OK)
        check_counts(&s);
    leave(&s);
    return s.verdict;
}

/* With the heap as full as it may be, a call that stands still does when it is followed. */
static void a_full_heap(void **state)
{
    (void)state;
    int most = 1, many = 100000;
    while (many - most > 1) {
        int middle = (most + many) / 2;
        if (play_full(middle, false) == VERDICT_OK)
            most = middle;
        else
            many = middle;
    }
    assert_true(most > 500);
    assert_int_equal(play_full(most, true), VERDICT_OK);
    assert_int_equal(play_full(many, false), VERDICT_OOM);
}

static void failures_are_told(void **state)
{
    (void)state;
    struct stage s;
    play(&s,
         "return { api = 1, step = function(view, act)\n"
         "  log('so far') -- 1\n"
         "  error('no') -- 1\n"
         "  act.wake(1) -- 0\n"
         "end }\n",
         &(struct lua_opts){0}, true);
    assert_int_equal(s.verdict, VERDICT_ERROR);
    assert_string_equal(s.err.text, "x.lua:3: no");
    assert_non_null(strstr(s.told.data, "{\"verdict\":\"error\",\"error\":\"x.lua:3: no\""));
    assert_non_null(strstr(s.told.data, "\"log\":[\"so far\"]"));
    check_counts(&s);
    leave(&s);
}

static void an_endless_call_is_stopped(void **state)
{
    (void)state;
    struct stage s;
    play(&s,
         "return { api = 1, step = function(view, act)\n"
         "  local n = 0\n"
         "  while true do\n"
         "    n = n + 1\n"
         "  end\n"
         "end }\n",
         &(struct lua_opts){.hard_ns = 5000000}, true);
    assert_int_equal(s.verdict, VERDICT_TIMEOUT);
    assert_non_null(strstr(s.told.data, "{\"verdict\":\"timeout\""));
    leave(&s);
}

static int begin(void **state)
{
    (void)state;
    struct err e = {0};
    return lua_watchdog_start(&dog, &e);
}

static int end(void **state)
{
    (void)state;
    lua_watchdog_stop(dog);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_counted),    cmocka_unit_test(deep_down),
        cmocka_unit_test(nothing_else_changes), cmocka_unit_test(a_full_heap),
        cmocka_unit_test(failures_are_told),    cmocka_unit_test(an_endless_call_is_stopped)};
    return cmocka_run_group_tests(tests, begin, end);
}
