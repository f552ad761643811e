/* Policies that turn bad while they are live: each class ends with the server up, the step decided by the
 * fallback, every request with its one ending, and the cause in the metrics and in the last error. They
 * behave until step 40, so that no dry run sees it. */
#include "tests/rig/policy_rig.h"

static const char frame[] =
    "local kept, n = nil, 0\n"
    "local function good(view, act) for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() "
    "b:prefill(view.waiting)\n"
    "  if b.tokens > 0 then act.forward(g, b) end end end\n"
    "local function bad(view, act, p) %s\nend\n"
    "local function late(view) return view.step >= 40 end\n"
    "return { api = 1, doc = 'hostile', needs = { 'tenant', 'prompt', 'computed', 'first', 'last' },\n"
    "%s }\n";

enum place { IN_STEP, IN_ADMIT, IN_FINISH, INSTEAD };

static const char *const places[] = {
    "step = function(view, act, p) if late(view) then bad(view, act, p) end good(view, act) end",
    "step = function(view, act, p) good(view, act) end, admit = function(r, view, act, p) if late(view) then "
    "return bad(view, act, r) end end",
    "step = function(view, act, p) good(view, act) end, finish = function(r, view, p) if late(view) then "
    "bad(view, nil, r) end end",
    "step = function(view, act, p) if late(view) then bad(view, act, p) else good(view, act) end end",
};

struct attack {
    enum place place;
    const char *code;
    enum verdict verdict; /* OK: nothing happens to anyone */
    const char *why;      /* part of the last error; NULL: any */
};

/* A stream of requests through a policy that turns bad in the middle. */
static void run_attack(struct rig *t, const struct attack *a)
{
    char source[4096];
    snprintf(source, sizeof source, frame, a->code, places[a->place]);
    if (rig_swap(t, "hostile", source))
        fail_msg("%s\n%s", a->code, t->reply.data);
    assert_true(strlen(source) < sizeof source - 1);
    for (int i = 0; i < 60; i++) {
        rig_submit(t, i % 3 ? "blue" : "red", 20 + i % 30, 4 + i % 9);
        rig_run_until(t, clock_now(&t->clock) + 2000000);
    }
    rig_settle(t);
}

static void check_attack(struct rig *t, const struct attack *a)
{
    static const char *const hooks[] = {"step", "admit", "finish", "step"};
    char line[128], error[600];
    rig_last_error(t, error, sizeof error);
    for (int v = VERDICT_ERROR; v < VERDICT_COUNT; v++) {
        snprintf(line, sizeof line, "policy_hook_errors_total{hook=\"%s\",kind=\"%s\"}", hooks[a->place],
                 verdict_name((enum verdict)v));
        double n = rig_metric(t, line);
        if ((v == (int)a->verdict) != (n > 0))
            fail_msg("%s is %g; the last error is: %s\n%s", line, n, error, a->code);
        snprintf(line, sizeof line, "policy_fallback_total{reason=\"%s\"}", verdict_name((enum verdict)v));
        if (strcmp(hooks[a->place], "step") == 0)
            assert_int_equal(rig_metric(t, line), n);
    }
    /* a process whose watchdog gets no core in time is killed: then nobody knows at which line it was */
    const char *why = rig_nursery() && a->verdict == VERDICT_TIMEOUT && a->why ? "still running" : a->why;
    if (a->verdict >= VERDICT_ERROR && why && !strstr(error, why))
        fail_msg("%s\nthe last error is: %s\nand should say: %s", a->code, error, why);
    for (const char *p = error; *p; p++)
        assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
    for (uint64_t i = 1; i <= t->n_tags; i++)
        if (t->heard[i].ending != END_LENGTH)
            fail_msg("%s\nrequest %d ends with %d (%s)", a->code, (int)i, t->heard[i].ending, error);
    rig_check(t);
}

/* hard_ms: 2 where the stop is what is tested; long where something else must come first, on however slow a
 * machine. */
static void run_all(const struct attack *list, size_t n, const struct rig_knobs *knobs)
{
    /* In processes of their own each takes longer, and what is tried on them is the same: some of them, but for those
     * who look closely. */
    size_t each = rig_nursery() && !getenv("MOONSHIFT_WIDE") ? 5 : 1;
    for (size_t i = 0; i < n; i += each) {
        struct rig t;
        rig_open(&t, knobs);
        run_attack(&t, &list[i]);
        check_attack(&t, &list[i]);
        rig_close(&t);
    }
}

#define RUN(list, hard_ms) RUN_ON(list, .hard_ns = (int64_t)(hard_ms)*1000000)
#define RUN_ON(list, ...) run_all(list, sizeof(list) / sizeof *(list), &(struct rig_knobs){__VA_ARGS__})
enum { SHORT = 2, LONG = 2000 };

static void loops(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP, "while true do end", VERDICT_TIMEOUT, "hostile.lua:4: still running"},
        {IN_STEP, "local x = 0 while true do x = x + 1 end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "::a:: goto a", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "for i = 1, 1 / 0 do end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "for i = 1, 2, 0 do end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local function f() return f() end f()", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local f, g function f() return g() end function g() return f() end f()", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "repeat act.log('x') until false", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "while true do act.wake(5) end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "while true do act.batch(1) end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local b = act.batch(1) while true do b:prefill(view.waiting, 0) end", VERDICT_TIMEOUT, NULL},
        {IN_ADMIT, "while true do end", VERDICT_TIMEOUT, NULL},
        {IN_FINISH, "while true do end", VERDICT_TIMEOUT, NULL},
    };
    RUN(list, SHORT);
}

static void memory(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP, "local s = 'x' while true do s = s .. s end", VERDICT_OOM, "hostile.lua:4: out of memory"},
        {IN_STEP, "kept = {} for i = 1, 1 / 0 do kept[i] = i end", VERDICT_OOM, NULL},
        {IN_STEP, "kept = {} for i = 1, 1 / 0 do kept[i] = function() return i end end", VERDICT_OOM, NULL},
        {IN_STEP, "kept = {} for i = 1, 1 / 0 do kept[tostring(i)] = true end", VERDICT_OOM, NULL},
        {IN_STEP, "for i = 1, 1 / 0 do local t = { i } end", VERDICT_OOM, NULL},
        {IN_STEP, "local t = {} for i = 1, 4000 do t[i] = 1 end while true do for k in sorted_pairs(t) do end end",
         VERDICT_OOM, NULL},
        {IN_STEP, "for i = 1, 1e6 do view.idle[i] = i end", VERDICT_OOM, NULL},
        {IN_STEP, "for i = 1, 1e6 do view.waiting.tenant[i + 1e6] = i end", VERDICT_OOM, NULL},
        {IN_STEP, "for i = 1, 1e6 do view.groups[1].ranks[i] = i end", VERDICT_OOM, NULL},
        {IN_ADMIT, "kept = {} for i = 1, 1 / 0 do kept[i] = {} end", VERDICT_OOM, NULL},
        {IN_FINISH, "for i = 1, 1 / 0 do view.idle[i] = {} end", VERDICT_OOM, NULL},
        /* less than the cap a step, and none of it kept: the collector keeps up */
        {IN_STEP, "for i = 1, 500 do local t = { i, i } end", VERDICT_OK, NULL},
        /* a live heap that leaves no room for anything else still leaves the host its own */
        {IN_STEP, "if not kept then kept = {} for i = 1, 32768 do kept[i] = i end end", VERDICT_OK, NULL},
    };
    RUN(list, LONG);
}

/* One call into C between two instructions is short, whatever it is given: the stop comes as usual. */
static void time_in_c(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP,
         "local t = {} for i = 1, 60000 do t[i] = 1 end while true do table.insert(t, 1, 1) table.remove(t, "
         "1) end",
         VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local s = '1' for i = 1, 16 do s = s .. s end while true do tonumber(s) end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local s = '1' for i = 1, 16 do s = s .. s end while true do local x = s:sub(2) < s end",
         VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local s = 'x' for i = 1, 12 do s = s .. s end while true do select('#', s:byte(1, -1)) end",
         VERDICT_TIMEOUT, NULL},
        {IN_STEP, "while true do string.format('%99.99f', 1e308) end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "local r = rng(1) while true do r(6) end", VERDICT_TIMEOUT, NULL},
        {IN_STEP, "table.insert({}, -2147483648, 1)", VERDICT_ERROR, "is not in 1..1"},
        {IN_STEP, "local s = 'x' for i = 1, 14 do s = s .. s end local t = { s:byte(1, -1) }", VERDICT_ERROR,
         "string slice too long"},
    };
    RUN(list, SHORT);
}

static void errors(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP, "error('no')", VERDICT_ERROR, "hostile.lua:4: no"},
        {IN_STEP, "local function f() return 1 + f() end f()", VERDICT_ERROR, "stack overflow"},
        {IN_STEP, "error('no', 0)", VERDICT_ERROR, "hostile.lua:4: no"},
        {IN_STEP, "error()", VERDICT_ERROR, "the error value is a nil"},
        {IN_STEP, "error({})", VERDICT_ERROR, "the error value is a table"},
        {IN_STEP, "error(7)", VERDICT_ERROR, "hostile.lua:4: 7"},
        {IN_STEP, "error(error)", VERDICT_ERROR, "the error value is a function"},
        {IN_STEP, "local s = 'x' for i = 1, 17 do s = s .. s end error(s)", VERDICT_ERROR, "..."},
        {IN_STEP, "error('a\\r\\n\\27[31m\\0\\255\\127')", VERDICT_ERROR, "a\\x0d\\x0a\\x1b[31m\\x00\\xff\\x7f"},
        {IN_STEP, "error('\\226\\128\\174gnp\\226\\128\\139')", VERDICT_ERROR, "hostile.lua:4: \\u{202e}gnp\\u{200b}"},
        {IN_STEP, "local x = nil + 1", VERDICT_ERROR, "hostile.lua:4: attempt to perform arithmetic"},
        {IN_STEP, "view.nothing.here = 1", VERDICT_ERROR, "hostile.lua:4: view has no 'nothing'"},
        {IN_STEP, "view[1] = 1", VERDICT_ERROR, "hostile.lua:4: view is read only: '1' cannot be set"},
        {IN_STEP, "view.mine = {}", VERDICT_ERROR, "view is read only: 'mine' cannot be set"},
        {IN_STEP, "view.waiting.mine = {}", VERDICT_ERROR, "waiting is read only: 'mine' cannot be set"},
        {IN_STEP, "act.mine = 1", VERDICT_ERROR, "act is read only: 'mine' cannot be set"},
        {IN_STEP, "p.mine = 1", VERDICT_ERROR, "p (the params) is read only: 'mine' cannot be set"},
        {IN_STEP, "view.groups[1].mine = 1", VERDICT_ERROR, "a group is read only: 'mine' cannot be set"},
        {IN_STEP, "act.forwrd(1)", VERDICT_ERROR, "hostile.lua:4: act has no 'forwrd'; did you mean 'forward'?"},
        {IN_STEP, "if view.n_wating > 3 then return end", VERDICT_ERROR,
         "view has no 'n_wating'; did you mean 'n_waiting'?"},
        {IN_STEP, "local n = view.groups[1].n_runing", VERDICT_ERROR,
         "a group has no 'n_runing'; did you mean 'n_running'?"},
        {IN_STEP, "local n = p.treshold", VERDICT_ERROR, "p (the params) has no 'treshold'"},
        {IN_STEP, "local n = view.waiting.key[1]", VERDICT_ERROR,
         "hostile.lua:4: view.waiting.key is not there: add \"waiting.key\" to needs (or \"key\", for both queues)"},
        {IN_STEP, "local n = view.running.promt[1]", VERDICT_ERROR,
         "view.running has no column 'promt'; did you mean 'prompt'?"},
        {IN_ADMIT, "return p.promt", VERDICT_ERROR, "hostile.lua:4: a request has no 'promt'; did you mean 'prompt'?"},
        {IN_ADMIT, "return p.ttft_ms", VERDICT_ERROR, "a request has no 'ttft_ms'"},
        {IN_STEP, "assert(false)", VERDICT_ERROR, "hostile.lua:4: assertion failed!"},
        {IN_ADMIT, "error('no')", VERDICT_ERROR, "admit: error: hostile.lua:4: no"},
        {IN_FINISH, "error('no')", VERDICT_ERROR, "finish: error: hostile.lua:4: no"},
    };
    RUN(list, LONG);
}

/* What admit returns, and verbs with the wrong arguments: a wrong type raises. */
static void results(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_ADMIT, "return 'soon'", VERDICT_MALFORMED, "admit returned a string"},
        {IN_ADMIT, "return '7'", VERDICT_MALFORMED, "admit returned a string"},
        {IN_ADMIT, "return {}", VERDICT_MALFORMED, "admit returned a table"},
        {IN_ADMIT, "return true", VERDICT_MALFORMED, "admit returned a boolean"},
        {IN_ADMIT, "return 0 / 0", VERDICT_MALFORMED, "not finite"},
        {IN_ADMIT, "return -1 / 0", VERDICT_MALFORMED, "not finite"},
        {IN_ADMIT, "return -0", VERDICT_OK, NULL},
        {IN_ADMIT, "return 1.5e300", VERDICT_OK, NULL},
        {IN_ADMIT, "return 2 ^ 53 + 1, 'more', {}", VERDICT_OK, NULL},
        {IN_ADMIT, "act.refuse(5)", VERDICT_ERROR, "5 is not a request id"},
        {IN_ADMIT, "act.refuse(p, 200)", VERDICT_ERROR, "the code must be a whole number from 400 to 599"},
        {IN_ADMIT, "act.refuse(p, 429, -1)", VERDICT_ERROR, "retry_after"},
        {IN_ADMIT, "act.refuse(p, 429, 1, {})", VERDICT_ERROR, "the reason must be a text"},
        {IN_ADMIT, "act.refuse({}, 429)", VERDICT_ERROR, "a request id is expected, not a table"},
        {IN_STEP, "act.batch(0)", VERDICT_ERROR, "a group's id must be a whole number"},
        {IN_STEP, "act.batch({})", VERDICT_ERROR, "a group of view.groups is expected, not a nil"},
        {IN_STEP, "act.batch()", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.batch(1 / 0)", VERDICT_ERROR, "a group's id must be a whole number"},
        {IN_STEP, "act.batch(1):add()", VERDICT_ERROR, "a request id is expected"},
        {IN_STEP, "act.batch(1):add('7')", VERDICT_ERROR, "a request id is expected, not a string"},
        {IN_STEP, "act.batch(1):add(0 / 0)", VERDICT_ERROR, "is not a request id"},
        {IN_STEP, "act.batch(1):add(1e300)", VERDICT_ERROR, "is not a request id"},
        {IN_STEP, "act.batch(1):add(65536.5)", VERDICT_ERROR, "is not a request id"},
        {IN_STEP, "act.batch(1):add(65536, -1)", VERDICT_ERROR, "the number of tokens must be a whole number"},
        {IN_STEP, "act.batch(1):prefill(view.waiting, -1)", VERDICT_ERROR, "the token budget must be a whole number"},
        {IN_STEP, "act.batch(1):prefill(view.waiting, 0 / 0)", VERDICT_ERROR, "the token budget"},
        {IN_STEP, "act.batch(1):prefill('all')", VERDICT_ERROR,
         "view.waiting or a list of request ids is expected, not a string"},
        {IN_STEP, "act.batch(1):prefill({ {} })", VERDICT_ERROR, "a request id is expected, not a table"},
        {IN_STEP, "act.batch(1).tokens = 5", VERDICT_ERROR, "a batch is changed by its verbs only"},
        {IN_STEP, "local x = act.batch(1).token", VERDICT_ERROR, "a batch has no 'token'"},
        {IN_STEP, "act.batch(1).decodes()", VERDICT_ERROR, "a batch is expected"},
        {IN_STEP, "act.batch(1).decodes(view)", VERDICT_ERROR, "a batch is expected, not a table"},
        {IN_STEP, "if kept then kept:decodes() end kept = act.batch(1) good = nil", VERDICT_ERROR, NULL},
        {IN_STEP, "act.forward(1, {}, {})", VERDICT_ERROR, "a batch is expected, not a table"},
        {IN_STEP, "act.forward(1, act.batch(1), { dp = 1 })", VERDICT_ERROR,
         "a layout has no field 'dp'; did you mean 'sp'?"},
        {IN_STEP, "act.forward(1, act.batch(1), { tp = 'x' })", VERDICT_ERROR, "tp must be a number"},
        {IN_STEP, "act.forward(1, act.batch(1), {}, 5)", VERDICT_ERROR,
         "options like { ahead = 4 } are expected, not a number"},
        {IN_STEP, "act.forward(1, act.batch(1), {}, { ahead = 'x' })", VERDICT_ERROR, "ahead must be a number"},
        {IN_STEP, "act.forward(1, act.batch(1), {}, { ahead = -1 })", VERDICT_ERROR, "ahead must be"},
        {IN_STEP, "act.forward(1, act.batch(1), {}, { ahead = 1025 })", VERDICT_ERROR, "ahead must be"},
        {IN_STEP, "act.forward(1, act.batch(1), {}, { comm = 1 })", VERDICT_ERROR, "comm"},
        {IN_STEP, "act.forward(1, act.batch(1), 5)", VERDICT_ERROR, "a layout like { tp = 1 } is expected"},
        {IN_STEP, "act.preempt(65536, 'softly')", VERDICT_ERROR, "how must be \"recompute\" or \"hard\""},
        {IN_STEP, "act.preempt(65536)", VERDICT_ERROR, "how must be"},
        {IN_STEP, "act.wake('soon')", VERDICT_ERROR, "milliseconds are expected"},
        {IN_STEP, "act.log()", VERDICT_ERROR, "bad argument #1"},
    };
    RUN(list, LONG);
}

/* The same of the verbs about groups. */
static void orders(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP, "act.bind(1)", VERDICT_ERROR, "a list of ranks is expected, not a number"},
        {IN_STEP, "act.bind({ 'x' })", VERDICT_ERROR, "a rank must be a number, not a string"},
        {IN_STEP, "act.bind({ -1 })", VERDICT_ERROR, "a rank must be a whole number from 0 to 63"},
        {IN_STEP, "act.bind({ 0 / 0 })", VERDICT_ERROR, "a rank must be a whole number"},
        {IN_STEP, "act.bind({ 64 })", VERDICT_ERROR, "a rank must be a whole number"},
        {IN_STEP, "act.bind({ 0 }, 'hard')", VERDICT_ERROR, "options like { when = \"drain\" } are expected"},
        {IN_STEP, "act.bind({ 0 }, { wen = 'hard' })", VERDICT_ERROR, "has no field 'wen'; did you mean 'when'?"},
        {IN_STEP, "act.bind({ 0 }, { [{}] = 1 })", VERDICT_ERROR, "has no field '(not a name)'"},
        {IN_STEP, "act.bind({ 0 }, { when = 'now' })", VERDICT_ERROR,
         "when must be \"hard\", \"drain\", \"soft\" or \"ready\""},
        {IN_STEP, "act.bind({ 0 }, { kv = 5 })", VERDICT_ERROR,
         "kv must be \"keep\", \"migrate\", \"park\", \"recompute\" or \"host\""},
        {IN_STEP, "act.bind({ 0 }, { max_wait_ms = 0 })", VERDICT_ERROR, "max_wait_ms must be a whole number"},
        {IN_STEP, "act.bind({ 0 }, { max_wait_ms = 1 / 0 })", VERDICT_ERROR, "max_wait_ms must be a whole number"},
        {IN_STEP, "act.bind({ 0 }, { base = 5 })", VERDICT_ERROR, "a layout like { tp = 1 } is expected"},
        {IN_STEP, "act.bind({ 0 }, { base = { dp = 5 } })", VERDICT_ERROR, "a layout has no field 'dp'"},
        {IN_STEP, "act.bind({ 0 }, { requests = 5 })", VERDICT_ERROR, "requests must be a list of request ids"},
        {IN_STEP, "act.bind({ 0 }, { requests = { 5 } })", VERDICT_ERROR, "5 is not a request id"},
        {IN_STEP, "act.bind({ 0 }, { reason = {} })", VERDICT_ERROR, "reason must be a text"},
        {IN_STEP, "act.release()", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.release(1, 'gently')", VERDICT_ERROR, "kv must be"},
        {IN_STEP, "act.release(1, 5)", VERDICT_ERROR, "options like { when = \"drain\" } are expected"},
        {IN_STEP, "act.remap('x', 1)", VERDICT_ERROR, "a request id is expected, not a string"},
        {IN_STEP, "act.remap(65536)", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.remap(65536, 1, 'x')", VERDICT_ERROR, "kv must be"},
        {IN_STEP, "act.open({})", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.comm(5)", VERDICT_ERROR, "a list of ranks is expected"},
        {IN_STEP, "act.comm({ 0 }, 'threeshot')", VERDICT_ERROR,
         "the algorithm must be \"auto\", \"oneshot\", \"twoshot\" or \"library\""},
        {IN_STEP, "act.weights(1, 5)", VERDICT_ERROR, "a layout like { tp = 1 } is expected"},
        {IN_STEP, "view.estimate(1, {}, 'much')", VERDICT_ERROR, "a batch is expected, not a string"},
        {IN_STEP, "view.estimate(1, {}, -1)", VERDICT_ERROR, "the number of tokens must be a whole number"},
        {IN_STEP, "view.estimate({}, {}, 1)", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "view.narrowest()", VERDICT_ERROR, "the number of tokens must be a number"},
        {IN_STEP, "view.forecast(0, 1)", VERDICT_ERROR, "the wide group's ranks must be a whole number"},
        {IN_STEP, "view.forecast(1, 'a')", VERDICT_ERROR, "a narrow group's ranks"},
        {IN_STEP, "view.forecast(1, 1, { settles = 1 })", VERDICT_ERROR, "settles has to be true or false"},
        {IN_STEP, "view.forecast(1, 1, 3)", VERDICT_ERROR, "options like"},
        {IN_STEP, "view.forecast(1, 1, { out = 3 })", VERDICT_ERROR, "has no field 'out'"},
        {IN_STEP, "view.estimate(view.groups[1], nil, { promt = 9 })", VERDICT_ERROR,
         "a made-up step has no field 'promt'; did you mean 'prompt'?"},
        {IN_STEP, "view.estimate(view.groups[1], nil, { decodes = 1e9 })", VERDICT_ERROR, "decodes must be a whole"},
        {IN_STEP, "view.estimate(view.groups[1], nil, { prompt = 0.5 })", VERDICT_ERROR, "prompt must be a whole"},
        {IN_STEP, "view.forecast(1, 1, { output = 0 })", VERDICT_ERROR, "output has to be a number"},
        {IN_STEP, "view.forecast(1, 1, { ahead = 0/0 })", VERDICT_ERROR, "ahead has to be a number"},
        {IN_STEP, "view.forecast(1, 1, { most = 1e300 })", VERDICT_ERROR, "most has to be a number"},
        {IN_STEP, "view.forecast(1, 1, { tpot = -1 })", VERDICT_ERROR, "tpot has to be a number"},
        {IN_STEP, "view.estimate_move(-1)", VERDICT_ERROR, "the number of tokens must be a whole number"},
        {IN_STEP, "view.estimate_move(1, 'moon')", VERDICT_ERROR, "the place"},
        {IN_STEP, "view.estimate(1, nil, 1, { micro = -1 })", VERDICT_ERROR, "micro"},
        {IN_STEP, "view.narrowest(0 / 0)", VERDICT_ERROR, "the number of tokens must be a whole number"},
        {IN_STEP, "act.draft(65536, 65)", VERDICT_ERROR, "the number of draft tokens must be a whole number"},
        {IN_STEP, "act.draft(65536, 4, {})", VERDICT_ERROR, "string expected"},
        {IN_STEP, "act.draft({}, 4)", VERDICT_ERROR, "a request id is expected"},
        {IN_STEP, "act.evict_drafts('newest')", VERDICT_ERROR, "\"oldest\", \"unused\" or \"largest\""},
        {IN_STEP, "act.embed('fast')", VERDICT_ERROR, "table expected"},
        {IN_STEP, "act.embed({ rout = 'x' })", VERDICT_ERROR, "did you mean 'route'?"},
        {IN_STEP, "act.embed({ route = 'random' })", VERDICT_ERROR,
         "\"least_loaded\", \"round_robin\" or \"by_length\""},
        {IN_STEP, "act.embed({ replicas = 0 })", VERDICT_ERROR, "replicas must be a whole number"},
        {IN_STEP, "act.embed({ replicas = 1.5 })", VERDICT_ERROR, "replicas must be a whole number"},
        {IN_STEP, "act.embed({ route = 'by_length' })", VERDICT_ERROR, "goes with short"},
        {IN_STEP, "act.embed({ short = 5, short_replicas = 1 })", VERDICT_ERROR, "goes with short"},
        {IN_STEP, "view.drafted({}, 'lookup')", VERDICT_ERROR, "a request id is expected"},
        {IN_STEP, "view.drafted(65536)", VERDICT_ERROR, "string expected"},
        {IN_STEP, "view.drafted(65536, 'lookup', 0)", VERDICT_ERROR, "the depth must be a whole number from 1 to 16"},
        {IN_STEP, "view.drafted(65536, 'lookup', 17)", VERDICT_ERROR, "the depth must be a whole number from 1 to 16"},
        {IN_STEP, "view.estimate(view.groups[1], nil, 4, { drafts = -1 })", VERDICT_ERROR, "drafts must be"},
        {IN_STEP, "view.victims()", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.preempt({}, 'drain')", VERDICT_ERROR, "a group of view.groups is expected"},
        {IN_STEP, "act.preempt(1, 'drain')", VERDICT_ERROR, "1 is not a request id"},
        {IN_STEP, "act.batch(view.groups[1]):prefill(view.waiting, 5, 'all')", VERDICT_ERROR,
         "the last argument of prefill is \"any\""},
    };
    RUN(list, LONG);
}

/* Verbs that are refused return nil and a reason, and the plan stands as it was. */
static void refused_verbs(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {INSTEAD,
         "local function no(ok, why, part) assert(ok == nil and type(why) == 'string', why) n = n + 1 "
         "for i = 1, #why do if why:sub(i, i + #part - 1) == part then return end end error(why) end\n"
         "local function refused(part, ok, why) no(ok, why, part) end\n"
         "refused('no such group', act.batch(2)) refused('no such request', act.preempt(65536 * 60000, "
         "'hard'))\n"
         "refused('no such group', act.preempt({ id = 7 }, 'hard')) refused('about groups', act.preempt(65536, "
         "'drain'))\n"
         "refused('no encoder', act.embed({ replicas = 1 })) refused('no encoder', view.embed()) "
         "refused('is kept here', act.evict_drafts('unused')) refused('simulated', act.draft(65536, 4)) "
         "refused('nothing has to move', act.reshard(1, { tp = 1 })) "
         "refused('no such group', act.reshard(9, { tp = 1 }))\n"
         "refused('no such ranks', act.bind({ 0, 1 })) refused('empty', act.bind({})) refused('twice', act.bind({ 0, 0 "
         "})) assert(act.bind({ 0 }))\n"
         "refused('there is no host memory', act.bind({ 0 }, { kv = 'host' })) refused('number of ranks', act.bind({ 0 "
         "}, { base = { sp = "
         "2 } }))\n"
         "refused('no such group', act.release(2)) refused('no such group', view.estimate(2, {}, 5)) refused('no such "
         "group', act.weights(2))\n"
         "refused('number of ranks', view.estimate(1, { tp = 2 }, 5)) refused('number of ranks', act.weights(1, { pp = "
         "2 })) "
         "assert(act.weights(1).zero_copy)\n"
         "refused('no communicator', act.comm({ 0, 1 })) assert(act.comm({ 0 }).ranks[1] == 0) refused('caches so "
         "many', view.narrowest(1e9))\n"
         "refused('no such group', view.victims(2)) assert(#view.victims(1) == 0 and act.widen() == false)\n"
         "refused('no such group', act.open(2)) refused('no such request', act.remap(65536 * 60000, 1))\n"
         "refused('60000', act.wake(-1)) refused('60000', act.wake(1e9)) refused('60000', act.wake(0 / 0))\n"
         "refused('no such request', act.refuse(65536 * 60000, 429))\n"
         "for i = 1, 8 do assert(act.log(i)) end refused('8 log lines', act.log('x'))\n"
         "local r, w = view.running, view.waiting\n"
         "if r.n > 0 then refused('has not begun', act.refuse(r.id[1], 429)) end\n"
         "if w.n > 0 then refused('not running', act.preempt(w.id[1], 'recompute')) end\n"
         "local g = view.idle[1]\n"
         "if kept == nil and r.n + w.n > 0 then local b = act.batch(g) refused('empty', act.forward(g, b)) "
         "refused('already', "
         "act.batch(g)) \n"
         "  if r.n > 0 then assert(b:add(r.id[1]) > 0) refused('already used', b:add(r.id[1])) "
         "refused('already used', act.preempt(r.id[1], 'hard')) end\n"
         "  b:decodes() b:prefill({}, 0) b:prefill(view.running, 64) b:prefill(w) assert(b.n >= 1 and "
         "b.tokens >= 1 and b.group == 1)\n"
         "  refused('number of ranks', act.forward(g, b, { sp = 2 })) refused('another group', "
         "act.forward(2, b))\n"
         "  assert(act.forward(g, b, {})) refused('already forwarded', act.forward(g, b)) assert(b:decodes() "
         "== 0 and b:prefill() == 0)\n"
         "end",
         VERDICT_OK, NULL}};
    RUN(list, LONG);
}

/* Bad use of a partition, on four ranks: no request is lost, and what is not lawful is refused. */
static void many_ranks(void **state)
{
    (void)state;
    static const struct attack list[] = {
        /* another partition at every step, given up before it comes about */
        {IN_STEP,
         "n = n + 1 act.bind(({ { 0, 1 }, { 0, 1, 2, 3 }, { 1 }, { 2, 3 } })[n % 4 + 1], { when = ({ 'drain', 'soft', "
         "'hard' })[n % 3 + 1] })",
         VERDICT_OK, NULL},
        {IN_STEP, "for _, g in ipairs(view.groups) do act.release(g, 'park') end", VERDICT_STALLED,
         "every group is idle"},
        {IN_STEP, "for _, g in ipairs(view.groups) do act.preempt(g, 'drain') act.open(g) end", VERDICT_OK, NULL},
        {IN_STEP, "for _, g in ipairs(view.idle) do act.preempt(g, 'hard') end", VERDICT_STALLED, NULL},
        {IN_STEP,
         "kept = kept or view.groups[1] if n == 0 then n = 1 act.bind({ 0 }) elseif kept.id ~= view.groups[1].id then "
         "assert(not act.batch(kept)) end",
         VERDICT_OK, NULL},
        {IN_STEP,
         "act.wake(0.1) if view.step % 3 == 0 then for i = 1, view.running.n do act.remap(view.running.id[i], "
         "view.groups[i % #view.groups + 1]) end end",
         VERDICT_OK, NULL},
        {IN_STEP, "assert(act.bind({ 0, 1 }) ~= nil) assert(not act.bind({ 1, 2 })) assert(not act.bind({ 0, 1, 2 }))",
         VERDICT_OK, NULL},
        {IN_STEP, "for i = 1, 20 do act.bind({ 0, 1 }) act.bind({ i % 4 }) act.comm({ 2, 3 }, 'oneshot') end",
         VERDICT_STALLED, "changes the partition time and again"},
        {IN_STEP,
         "for _, g in ipairs(view.groups) do g.size, g.ranks, g.idle, g.kv_free, g.steps = -1, {}, 5, 'x', 0.5 end",
         VERDICT_MALFORMED, "read only"},
        {IN_STEP, "view.groups[1], view.free_ranks, view.pending = nil, false, 7", VERDICT_OK, NULL},
        {IN_STEP,
         "act.bind({ 0, 1, 2, 3 }, { requests = view.running.id, reason = '\\0\\n\\255' .. tostring(view.step) })",
         VERDICT_OK, NULL},
    };
    RUN_ON(list, .hard_ns = LONG * 1000000ll, .ranks = 4, .group_size = 2);
}

static void view_abuse(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {IN_STEP, "for i = 1, view.running.n do view.running.tenant[i] = 'mine' end", VERDICT_MALFORMED, "read only"},
        {IN_STEP, "for i = 1, view.running.n do view.running.prompt[i] = -1 end", VERDICT_MALFORMED, "read only"},
        {IN_STEP, "for i = 1, view.running.n do view.running.id[i] = nil end", VERDICT_MALFORMED, "read only"},
        {IN_STEP,
         "view.now, view.step, view.n_waiting, view.n_running, view.kv_free, view.kv_total = 1e9, 1e9, 1e9, "
         "1e9, 1e9, 1e9 "
         "view.arrival_rate, view.max_num_seqs, view.tokens_per_block, view.waiting_tokens = {}, 'x', false, 5",
         VERDICT_MALFORMED, "read only"},
        {IN_STEP, "view.waiting = nil", VERDICT_ERROR, "'waiting'"},
        {IN_STEP, "view.running = nil view.running.n = 1", VERDICT_ERROR, NULL},
        {IN_STEP, "view.idle = nil", VERDICT_ERROR, "'idle'"},
        {IN_STEP, "act.batch = nil", VERDICT_ERROR, NULL},
        {IN_STEP, "view.idle[1].id = 7", VERDICT_ERROR, NULL},
        {IN_STEP, "view.waiting.n, view.running.n = 1e9, -5", VERDICT_OK, NULL},
        {IN_STEP, "view.idle[2], view.idle[1] = view.idle[1], nil good = nil", VERDICT_ERROR, NULL},
        {IN_STEP, "kept = kept or view.running.id n = n + #kept", VERDICT_OK, NULL},
        {IN_ADMIT, "p.id, p.tenant, p.prompt = 5, nil, {} return 1", VERDICT_OK, NULL},
    };
    RUN(list, LONG);
}

/* Bugs of decision: nothing raises, and work does not get done. */
static void bad_decisions(void **state)
{
    (void)state;
    static const struct attack list[] = {
        {INSTEAD, "", VERDICT_STALLED, "every group is idle, and the plan runs nothing and asks for no wake"},
        {INSTEAD, "act.wake(100)", VERDICT_STALLED, "it has only asked to be woken"},
        {INSTEAD, "local b = act.batch(view.idle[1]) b:decodes() b:prefill(view.waiting)", VERDICT_STALLED, NULL},
        {INSTEAD, "act.batch(view.idle[1])", VERDICT_STALLED, NULL},
        /* everything that runs is stopped, in every step */
        {IN_STEP, "for i = 1, view.running.n do act.preempt(view.running.id[i], 'recompute') end", VERDICT_STALLED,
         NULL},
        {IN_STEP, "for i = 1, view.running.n do act.preempt(view.running.id[i], 'hard') end", VERDICT_STALLED, NULL},
        {IN_STEP, "act.wake(0.001)", VERDICT_OK, NULL},
    };
    RUN(list, LONG);
}

/* One tenant is never run, though there is room: that is noticed, and the native policy runs it. */
static void starvation(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.5});
    assert_int_equal(
        rig_swap(&t, "racist",
                 "return { api = 1, doc = 'x', needs = { 'tenant' }, step = function(view, act, p)\n"
                 "  local g, ids, w = view.idle[1], {}, view.waiting\n"
                 "  for i = 1, w.n do if w.tenant[i] ~= 'red' or view.step < 20 then ids[#ids + 1] = w.id[i] "
                 "end end\n"
                 "  local b = act.batch(g) b:decodes() b:prefill(ids) if b.tokens > 0 then act.forward(g, b) "
                 "else act.wake(50) end\n"
                 "end }"),
        0);
    for (int i = 0; i < 600; i++) {
        if (i % 6 == 0)
            rig_submit(&t, i % 30 ? "blue" : "red", 10, 5);
        rig_run_until(&t, clock_now(&t.clock) + 5000000);
    }
    rig_run(&t);
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") > 0);
    rig_check(&t);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    rig_close(&t);
}

/* Refusing is a policy's right: the client hears the code, and the rest goes on. */
static void refusals(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){0});
    assert_int_equal(
        rig_swap(&t, "strict",
                 "return { api = 1, doc = 'x', admit = function(r, view, act) if r.tenant == 'red' then "
                 "act.refuse(r, 429, 7, 'no\\nred') end end,\n"
                 "  needs = { 'prompt' }, step = function(view, act, p) local w = view.waiting\n"
                 "  for i = 1, w.n do if w.prompt[i] > 100 then act.refuse(w.id[i], 413) end end\n"
                 "  local b = act.batch(1) b:decodes() b:prefill(w) if b.tokens > 0 then act.forward(1, b) "
                 "end end }"),
        0);
    uint64_t red = rig_submit(&t, "red", 10, 5), big = rig_submit(&t, "blue", 200, 5),
             blue = rig_submit(&t, "blue", 10, 5);
    rig_run(&t);
    assert_int_equal(t.heard[red].ending, END_REFUSED);
    assert_int_equal(t.heard[red].status, 429);
    assert_int_equal(t.heard[big].ending, END_REFUSED);
    assert_int_equal(t.heard[big].status, 413);
    assert_int_equal(t.heard[blue].ending, END_LENGTH);
    rig_check(&t);
    rig_close(&t);
}

/* A torn machine never runs again: the version before takes over, and then the native one. */
static void who_takes_over(void **state)
{
    (void)state;
    char source[4096];
    struct rig t;
    rig_open(&t, &(struct rig_knobs){0});
    assert_int_equal(rig_swap(&t, "before",
                              "return { api = 1, doc = 'x', step = function(view, act)\n"
                              "  local b = act.batch(1) b:decodes() b:prefill() if b.tokens > 0 then "
                              "act.forward(1, b) end end }"),
                     0);
    double generation = rig_state(&t, "policy.active.generation");
    snprintf(source, sizeof source, frame, "while true do end", places[IN_STEP]);
    assert_int_equal(rig_swap(&t, "torn", source), 0);
    for (int i = 0; i < 40; i++) {
        rig_submit(&t, "", 20, 5);
        rig_run_until(&t, clock_now(&t.clock) + 2000000);
    }
    rig_run(&t);
    rig_check(&t);
    assert_true(rig_metric(&t, "policy_hook_errors_total{hook=\"step\",kind=\"timeout\"}") == 1);
    assert_true(rig_state(&t, "policy.withdrawn") == 1);
    assert_true(rig_state(&t, "policy.active.generation") == generation + 2);
    assert_true(rig_metric(&t, "policy_lua_heap_bytes{policy=\"before\"") >= 0);
    rig_close(&t);
}

/* Export and import may be as bad as any hook: the swap is refused, or the state is lost, and nothing else.
 */
static void state_across_a_swap(void **state)
{
    (void)state;
    static const struct {
        const char *export, *import;
        bool swaps;
    } cases[] = {
        {"return { n = 5, list = { 1, 2, { 'x' } }, deep = { a = { b = { c = true } } } }",
         "assert(s.n == 5 and s.list[3][1] == 'x' and s.deep.a.b.c == true)", true},
        {"return nil", "error('not called')", true},
        {"return 7", "assert(s == 7)", true},
        {"error('no')", "error('not called')", true},
        {"while true do end", "error('not called')", true},
        {"local t = {} t.t = t return t", "error('not called')", true},
        {"return { f = error }", "error('not called')", true},
        {"return { [1.5] = 1 }", "error('not called')", true},
        {"return { [1] = 1, [3] = 2 }", "error('not called')", true},
        {"return 0 / 0", "error('not called')", true},
        {"local t = {} for i = 1, 4000 do t[i] = 'twenty bytes of text' end return t", "error('not called')", true},
        {"local s = 'x' for i = 1, 17 do s = s .. s end return s", "error('not called')", true},
        {"return { a = '\\255\\0' }", "assert(s.a)", true},
        {"return { n = 1 }", "error('too old')", false},
        {"return { n = 1 }", "while true do end", false},
        {"return { n = 1 }", "local t = {} while true do t[#t + 1] = {} end", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig t;
        char source[2048];
        const char *form = "return { api = 1, doc = 'x', export = function() %s end, import = function(s) %s "
                           "end, step = function(view, act)\n"
                           "  local b = act.batch(1) b:decodes() b:prefill() if b.tokens > 0 then "
                           "act.forward(1, b) end end }";
        rig_open(&t, &(struct rig_knobs){0});
        rig_submit(&t, "", 20, 30);
        snprintf(source, sizeof source, form, cases[i].export, "");
        assert_int_equal(rig_swap(&t, "old", source), 0);
        rig_run_until(&t, clock_now(&t.clock) + 5000000);
        snprintf(source, sizeof source, form, "", cases[i].import);
        int rc = rig_swap(&t, "new", source);
        if ((rc == 0) != cases[i].swaps)
            fail_msg("%s / %s: %s", cases[i].export, cases[i].import, t.reply.data);
        rig_run(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops),          cmocka_unit_test(memory),
        cmocka_unit_test(time_in_c),      cmocka_unit_test(errors),
        cmocka_unit_test(results),        cmocka_unit_test(orders),
        cmocka_unit_test(refused_verbs),  cmocka_unit_test(many_ranks),
        cmocka_unit_test(view_abuse),     cmocka_unit_test(bad_decisions),
        cmocka_unit_test(starvation),     cmocka_unit_test(refusals),
        cmocka_unit_test(who_takes_over), cmocka_unit_test(state_across_a_swap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
