/* What the loader refuses, with the file, the line and the reason: before anything of the source runs, while
 * it loads, and in tests and dry runs. */
#include "tests/rig/policy_rig.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/rng.h"

#define STEP                                                                                                           \
    "step = function(view, act, p) for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() "               \
    "b:prefill(view.waiting) "                                                                                         \
    "if b.tokens > 0 then act.forward(g, b, { tp = 1 }) end end end"
#define POLICY(more) "return { api = 1, doc = 'a policy', " more STEP " }"

static struct lua_watchdog *dog;

static int load_for(int n_ranks, const char *source, size_t n, const char *params, struct err *e)
{
    struct policy p;
    struct lua_opts o = {.watchdog = dog, .quiet = true, .n_ranks = n_ranks, .folder = "policies"};
    int rc = lua_policy_load(&p, "x.lua", source, n, &o, params, e);
    if (!rc)
        p.ops->destroy(p.ctx);
    return rc;
}

static int load(const char *source, size_t n, const char *params, struct err *e)
{
    return load_for(1, source, n, params, e);
}

static void expect(const char *source, const char *why)
{
    struct err e = {0};
    int rc = load(source, strlen(source), NULL, &e);
    if (!rc)
        fail_msg("loaded, but should say: %s", why);
    if (!strstr(e.text, why))
        fail_msg("says: %s\nshould say: %s", e.text, why);
    for (const char *p = e.text; *p; p++)
        assert_true((unsigned char)*p >= 0x20);
}

static void expect_good(const char *source)
{
    struct err e = {0};
    if (load(source, strlen(source), NULL, &e))
        fail_msg("%s", e.text);
}

static void good_ones_load(void **state)
{
    (void)state;
    static const char *const files[] = {
        "policies/fcfs.lua",   "policies/priority.lua", "policies/fair.lua",       "policies/shift.lua",
        "policies/flying.lua", "policies/static.lua",   "policies/auto.lua",       "policies/sidp.lua",
        "policies/bucket.lua", "policies/daynight.lua", "policies/leastwaste.lua", "policies/ontime.lua",
        "policies/prefix.lua", "policies/session.lua",  "policies/shortest.lua",   "policies/tiers.lua"};
    expect_good(POLICY(""));
    expect_good("\xef\xbb\xbf" POLICY(""));
    expect_good("return { api = 1, " STEP "}"); /* doc is for readers */
    expect_good("#!/usr/bin/luajit\n" POLICY(""));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct buf b = {0};
        struct err e = {0};
        assert_int_equal(file_read(&b, files[i], LUA_SOURCE_BYTES, &e), 0);
        if (load_for(8, b.data, b.len, NULL, &e))
            fail_msg("%s", e.text);
        buf_free(&b);
    }
}

/* A policy that can do with one rank only is fine for one, and is refused where there are more. */
static void for_one_rank_only(void **state)
{
    (void)state;
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"return { api = 1, doc = 'x', step = function(view, act) local b = act.batch(1) b:decodes() b:prefill() if "
         "b.tokens > 0 then act.forward(1, b) end end }",
         "attempt to index local 'b' (a nil value)"},
        {"return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) do local b = "
         "act.batch(g) b:decodes() b:prefill()\n"
         "  if b.tokens > 0 then act.forward(g, b, { tp = 1 }) end end end }",
         "step runs nothing, although requests wait and there is room (dry run on 2 ranks, one group)"},
        {"return { api = 1, doc = 'x', step = function(view, act) if #view.pending > 0 then while true do end end for "
         "_, g in ipairs(view.idle) do\n"
         "  local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }",
         "still running"},
        {NULL, NULL},
    };
    for (size_t i = 0; cases[i].why; i++) {
        struct err e = {0};
        expect_good(cases[i].source);
        assert_int_equal(load_for(4, cases[i].source, strlen(cases[i].source), NULL, &e), E_POLICY);
        if (!strstr(e.text, cases[i].why) || strncmp(e.text, "x.lua", 5) != 0)
            fail_msg("says: %s\nshould say: %s", e.text, cases[i].why);
        struct buf report = {0};
        struct lua_opts o = {.watchdog = dog, .quiet = true};
        assert_int_equal(lua_policy_check("x", cases[i].source, strlen(cases[i].source), &o, NULL, &report, &e), 0);
        assert_non_null(strstr(report.data, "dry runs on 2, 4 and 8 ranks: for one rank only: x.lua"));
        buf_free(&report);
    }
}

/* Dry runs look at the whole view after every call, and find the line: in step, in admit, through a local, in the very
 * last call of a world. */
static void a_write_into_the_view_has_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *code, *where;
    } cases[] = {
        {"step = function(view, act)\n local b = act.batch(view.idle[1])\n b:decodes() b:prefill(view.waiting)\n "
         "view.n_waiting = 0\n"
         " act.forward(view.idle[1], b) end",
         "x.lua:5:"},
        {"needs = { 'running.prompt' }, step = function(view, act)\n for _, g in ipairs(view.idle) do local b = "
         "act.batch(g) b:decodes() b:prefill(view.waiting)\n"
         " local list = view.running.prompt\n if view.running.n > 3 then\n  list[view.running.n] = 1\n end\n if "
         "b.tokens > 0 then act.forward(g, b) end end end",
         "x.lua:6:"},
        {"step = function(view, act)\n for _, g in ipairs(view.idle) do\n  g.load = 5\n  local b = act.batch(g) "
         "b:decodes() b:prefill(view.waiting)\n"
         " if b.tokens > 0 then act.forward(g, b) end end end",
         "x.lua:4:"},
        {STEP ",\nadmit = function(r, view)\n if r.prompt > 20 then\n  view.now = 1\n end return 1 end", "x.lua:5:"},
        {STEP ",\nfinish = function(r, view)\n local now = view.now\n view.now = now + 1 end", "x.lua:5:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char source[1000];
        struct err e = {0};
        snprintf(source, sizeof source, "return { api = 1,\n%s }", cases[i].code);
        assert_int_equal(load_for(1, source, strlen(source), NULL, &e), E_POLICY);
        if (strncmp(e.text, cases[i].where, strlen(cases[i].where)) != 0 ||
            !strstr(e.text, "the policy writes into its view, which is read only"))
            fail_msg("says: %s\nshould begin with %s", e.text, cases[i].where);
    }
}

static void syntax_and_shape(void **state)
{
    (void)state;
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"", "x.lua: a policy returns its table, not a nil"},
        {"return 7", "a policy returns its table, not a number"},
        {"return {\n api = 1\n doc = 'x' }", "x.lua:3: '}' expected (to close '{' at line 1) near 'doc'"},
        {"return {}", "x.lua: api is missing: write api = 1"},
        {"return { api = 2 }", "api 2 is not offered; this build has api 1"},
        {"return { api = '1' }", "api is missing"},
        {"return { api = 1 }", "step is missing"},
        {"return { api = 1, doc = 5 }", "doc must be a text, not a number"},
        {"return { api = 1, doc = 'x' }", "step is missing"},
        {"return { api = 1, doc = 'x', step = 5 }", "step must be a function, not a number"},
        {"return { api = 1, doc = 'x', stpe = function() end }", "unknown field 'stpe'; did you mean 'step'?"},
        {"return { api = 1, doc = 'x', 5, step = function() end }", "has a field that has no name"},
        {POLICY("needs = { 'priorty' }, "), "needs: there is no column 'priorty'; did you mean 'priority'?"},
        {POLICY("needs = { 'sleeping.key' }, "), "needs: there is no column 'sleeping.key'"},
        {POLICY("needs = 5, "), "needs must be a list"},
        {POLICY("tests = { 5 }, "), "tests must be a table of functions by name"},
        {POLICY("tests = { a = function(t) assert(false, 'so it is') end }, "), "test 'a' fails: x.lua:1: so it is"},
        {POLICY("tests = { a = function(t) t.step { wating = {} } end }, "),
         "t.step has no field 'wating'; did you mean 'waiting'?"},
        {POLICY("tests = { a = function(t) t.step { waiting = { { in_host = true } } } end }, "),
         "is not in host memory: raise host_kv_blocks, or kv_blocks"},
        {POLICY(
             "tests = { a = function(t) t.step { host_kv_blocks = 1, waiting = { { prompt = 40, in_host = true } } } "
             "end }, "),
         "is not in host memory: raise host_kv_blocks, or kv_blocks"},
        {"local kept return { api = 1, doc = 'x', tests = { a = function(t) for i = 1, 3 do t.step { waiting "
         "= { {} } } end end },\n"
         " step = function(view, act) if kept then kept:decodes() end kept = kept or act.batch(1) end }",
         "x.lua:2: the batch belongs to an earlier step"},
        {"local kept return { api = 1, doc = 'x', tests = { a = function(t) kept = t t.step { waiting = { {} "
         "} } end },\n"
         " step = function(view, act) local b = act.batch(1) if kept then kept.step {} end b:decodes() end }",
         "x.lua:2: t.start, t.step and t.admit are for tests, not for hooks"},
        {"local kept return { api = 1, doc = 'x', tests = { a = function(t) kept = t t.step { waiting = { {} "
         "} } end },\n"
         " step = function() end, admit = function() if kept then kept.admit {} end end }",
         "x.lua:2: t.start, t.step and t.admit are for tests, not for hooks"},
        {POLICY("tests = { a = function(t) t.step { waiting = 'many' } end }, "),
         "waiting must be a list of requests, not a string"},
        {POLICY("tests = { a = function(t) t.step { ranks = 4, groups = { { 1, 2 } } } end }, "),
         "groups: number 1 cannot be: aligned power-of-two ranges"},
        {POLICY("tests = { a = function(t) t.step { ranks = 2, groups = { { 0 }, { 0, 1 } } } end }, "), "cannot be"},
        {POLICY("tests = { a = function(t) t.step { groups = { 'all' } } end }, "),
         "a group must be a list of ranks, not a string"},
        {POLICY("tests = { a = function(t) t.step { ranks = 99 } end }, "), "ranks must be a number from 1 to 16"},
        {POLICY("tests = { a = function(t) t.step { tokens_per_block = 24 } end }, "),
         "tokens_per_block must be a multiple of 16"},
        {POLICY("tests = { a = function(t) t.start { waiting = {} } end }, "), "t.start has no field 'waiting'"},
        {POLICY("tests = { a = function(t) t.step { running = { 5 } } end }, "), "table expected, got number"},
        {POLICY("tests = { a = function(t) t.step { running = { { prompt = 100 } }, kv_blocks = 1 } end }, "),
         "does not fit its world"},
        {"error('no')", "x.lua:1: no"},
        {"error()", "x.lua:1: the error value is a nil, not a text"},
        {"error({})", "x.lua:1: the error value is a table, not a text"},
        {"error('a\\n\\0\\200b')", "x.lua:1: a\\x0a\\x00\\xc8b"},
        {"return { api = 1, doc = 'x', step = function() end }", "step runs nothing, although requests wait"},
        {POLICY("admit = function() return 'soon' end, "), "admit returned a string; a sort key is a number"},
        {POLICY("admit = function(r, view) return 0 / 0 end, "), "not finite"},
        {POLICY("finish = function(r) return r.nothing.here end, "), "x.lua:1: a request has no 'nothing'"},
        {POLICY("start = function(node) error(node.model) end, "), "x.lua:1: rehearsal"},
        {"local n = 0\nreturn { api = 1, doc = 'x', admit = function(r) return #tostring(rng) + n end, " STEP "}",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].why)
            expect(cases[i].source, cases[i].why);
        else
            expect_good(cases[i].source);
}

/* A guess is taken whole, asked for again, and part of it taken back; its record is that of the request. */
static void drafts_say_what_they_are(void **state)
{
    (void)state;
    expect(
        "return { api = 1, doc = 'x', needs = { 'id', 'accepted' }, tests = { a = function(t) t.step { running = { { "
        "name = 'a', prompt = 40, "
        "max_tokens = 90, output = 20, accepted = 3, rejected = 2 } } } end },\nstep = function(view, act) local b = "
        "act.batch(view.idle[1]) b:decodes() local id = view.running.id[1] or view.waiting.id[1]\n"
        "local n, match, score, name = act.draft(id, 5, nil, 'tree') if not n or n == 0 or view.running.accepted[1] ~= "
        "3 then "
        "b:prefill() if b.tokens > 0 then act.forward(b.group, b) end return end\n"
        "local none, why = act.draft(id, 6) local cut, had = act.draft(id, 2), b.tokens "
        "local right, of, wrong = select(2, view.drafted(id, 'lookup'))\n"
        "assert(match > 3 and score > 0)\n"
        "error(n .. ' ' .. name .. ' ' .. cut .. ' ' .. had .. ' ' .. right .. ' ' .. of .. ' ' .. why .. ' ' .. "
        "select(2, act.draft(id, 1, 'moon'))) end }",
        "5 lookup 2 3 3 2 it has draft tokens already: another call can take some of them back there is no source "
        "\"moon\" of draft tokens here; there is \"lookup\"");
    expect("return { api = 1, doc = 'x', needs = { 'id' }, step = function(view, act) local id = view.waiting.id[1]\n"
           "if id then act.draft(id, 1, nil, 'bush') end end }",
           "the shape of the draft must be \"chain\" or \"tree\"");
}

static void params_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *params, *why;
    } cases[] = {
        {"params = { a = 5 }, ", "params.a must be a table"},
        {"params = { a = {} }, ", "params.a: a default is needed"},
        {"params = { a = { default = 1, mni = 2 } }, ", "params.a: unknown field 'mni'; did you mean 'min'?"},
        {"params = { a = { default = 1, min = 2 } }, ", "params.a: the default must be at least 2"},
        {"params = { a = { default = 3, max = 2 } }, ", "params.a: the default must be at most 2"},
        {"params = { a = { default = 0/0 } }, ", "params.a: the default must be a finite number"},
        {"params = { a = { default = 1, min = 'x' } }, ", "params.a: min must be a number"},
        {"params = { a = { default = 1.5, type = 'integer' } }, ", "params.a: the default must be a whole number"},
        {"params = { a = { default = 1, type = 'string' } }, ", "params.a: the type does not fit the default"},
        {"params = { a = { default = 'x', choices = { 'y', 'z' } } }, ", "must be one of \"y\", \"z\""},
        {"params = { a = { default = { 5 } } }, ", "params.a: the default must be a table of numbers by name"},
        {"params = { a = { default = { b = 'x' } } }, ", "params.a: the default must be a table of numbers by name"},
        {"params = { a = { default = { b = 5 }, max = 2 } }, ", "params.a: the default must be at most 2"},
        {"params = { a = { default = 1, unit = 'mss' } }, ", "params.a: unknown unit 'mss'; did you mean 'ms'?"},
        {"params = { a = { default = 1, unit = 'furlongs' } }, ",
         "params.a: unknown unit 'furlongs' (there are: ms, s, "},
        {"params = { a = { default = 1, unit = '' } }, ", "params.a: unknown unit ''"},
        {"params = { a = { default = 1, unit = 5 } }, ", "params.a: unit must be a text"},
        {"params = { a = { default = true, unit = 'ms' } }, ",
         "params.a: only numbers have a unit, and this is a bool"},
        {"params = { a = { default = 'x', unit = 'ms' } }, ",
         "params.a: only numbers have a unit, and this is a string"},
        {"params = { a = { default = 2, unit = 'share' } }, ", "params.a: the default must be at most 1"},
        {"params = { a = { default = 0, max = 2, unit = 'share' } }, ", "params.a: a share is 0 to 1, and its bounds"},
        {"params = { a = { default = 0, min = -1, unit = 'share' } }, ", "params.a: a share is 0 to 1, and its bounds"},
        {"params = { a = { default = { b = -1 }, unit = 'share' } }, ", "params.a: the default must be at least 0"},
        {"params = 7, ", "params must be a table of declarations by name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char source[1024];
        snprintf(source, sizeof source, "return { api = 1, doc = 'x', %s" STEP " }", cases[i].params);
        expect(source, cases[i].why);
    }
    static const struct {
        const char *json, *why;
    } given[] = {
        {"{\"n\":5,\"b\":false,\"s\":\"two\",\"m\":{\"x\":1,\"y\":2}}", NULL},
        {"{}", NULL},
        {"{\"n\":11}", "param 'n' must be at most 10"},
        {"{\"n\":\"5\"}", "param 'n' must be an integer, not a string"},
        {"{\"b\":1}", "param 'b' must be a boolean"},
        {"{\"s\":\"three\"}", "param 's' must be one of"},
        {"{\"m\":{\"x\":\"1\"}}", "param 'm' must be an object of numbers"},
        {"{\"m\":{\"\":1}}", "param 'm' has a key that is empty"},
        {"{\"q\":1}", "the policy has no param 'q'"},
        {"[1]", "params must be an object"},
        {"{\"n\":", "line 1"},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        struct err e = {0};
        static const char source[] =
            POLICY("params = { n = { default = 1, max = 10, type = 'integer' }, b = { default = true }, "
                   "s = { default = 'one', choices = { 'one', 'two' } }, m = { default = {} } }, ");
        int rc = load(source, sizeof source - 1, given[i].json, &e);
        if ((rc == 0) != !given[i].why || (rc && !strstr(e.text, given[i].why)))
            fail_msg("%s: %s", given[i].json, e.text);
    }
}

/* Names that are not there: each is refused before the source runs, with its line. */
static void escapes(void **state)
{
    (void)state;
    static const char *const names[] = {
        "pcall",  "xpcall",   "coroutine", "pairs",   "next",    "setmetatable", "getmetatable",   "rawget",
        "rawset", "rawequal", "rawlen",    "setfenv", "getfenv", "load",         "loadstring",     "loadfile",
        "dofile", "require",  "module",    "package", "unpack",  "newproxy",     "collectgarbage", "gcinfo",
        "debug",  "jit",      "ffi",       "io",      "os",      "_G",           "_VERSION",       "print",
        "arg",    "_ENV",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[1200], why[80];
        snprintf(source, sizeof source, "local a = 1\n\nlocal b = %s\n" POLICY(""), names[i]);
        snprintf(why, sizeof why, "x.lua:3: ");
        expect(source, why);
        snprintf(source, sizeof source,
                 "local function deep()\n  return function() return { f = function()\n %s() end } "
                 "end\nend\n" POLICY(""),
                 names[i]);
        expect(source, why);
    }
    static const char *const fields[] = {"string.rep",      "string.gsub",  "string.match", "string.find",
                                         "string.gmatch",   "string.dump",  "string.upper", "string.reverse",
                                         "table.sort",      "table.concat", "table.maxn",   "math.random",
                                         "math.randomseed", "bit.nothing"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char source[1200], why[80];
        snprintf(source, sizeof source, "local a = 1\nlocal b = %s\n" POLICY(""), fields[i]);
        snprintf(why, sizeof why, "x.lua:2: '%s' is not offered", fields[i]);
        expect(source, why);
    }
    expect("x = 5", "x.lua:1: assignment to the global 'x'; declare it local");
    expect("local a\nmath = nil", "x.lua:2: assignment to the global 'math'");
    expect("local a = maht.floor(1)", "unknown global 'maht'; did you mean 'math'?");
    expect("local s = ('x'):rep(1e9)", "x.lua:1: attempt to call method 'rep'");
    expect("local s = ('x').gsub", "a policy returns its table");
    expect("local a\nlocal b = 1LL", "x.lua:2: a 64-bit or imaginary constant");
    expect("local b = { 5, 2ULL }", "a 64-bit or imaginary constant");
    expect("local b\nlocal c = function()\n return 3i end", "x.lua:3: a 64-bit or imaginary constant");
    expect("return 1LL", "a 64-bit or imaginary constant");
    expect("local s = '' if s.x then s.x = 1 end s.y = 2", "x.lua:1: attempt to index local 's'");
}

/* All that can be reached from a policy is plain: no cdata, no thread, no address in any text. */
static void nothing_else_is_reachable(void **state)
{
    (void)state;
    expect_good("local function walk(v, depth)\n"
                "  local t = type(v)\n"
                "  assert(t == 'nil' or t == 'boolean' or t == 'number' or t == 'string' or t == 'table' or "
                "t == 'function', t)\n"
                "  assert(#tostring(v) < 40 and tostring({}) == 'table' and tostring(walk) == 'function')\n"
                "  if t == 'table' and depth < 5 then for k, x in sorted_pairs(v) do walk(k, depth + 1) "
                "walk(x, depth + 1) end end\n"
                "end\n"
                "for _, lib in ipairs { math, string, table, bit, assert, error, ipairs, select, tonumber, "
                "type, tostring, sorted_pairs, rng, clamp, log } do walk(lib, 0) end\n"
                "local calls = 0 local function once(a, b) calls = calls + 1 if calls < 10 then walk(a, 0) "
                "walk(b, 0) end end\n"
                "walk(rng(1), 0) walk(ipairs({}), 0) walk(sorted_pairs({}), 0)\n"
                "assert(string.format('%s %s', {}, walk) == 'table function')\n"
                "return { api = 1, doc = 'x', needs = { 'tenant', 'first', 'last' },\n"
                "  start = function(node, act, p) walk(node, 0) walk(act, 0) walk(p, 0) end,\n"
                "  admit = function(r, view, act, p) once(r, view) end,\n"
                "  finish = function(r, view, p) once(r, view) end,\n"
                "  step = function(view, act, p) once(view, act) for _, g in ipairs(view.idle) do local b = "
                "act.batch(g) assert(type(b) == 'userdata')\n"
                "    b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }");
}

static void library_works(void **state)
{
    (void)state;
    expect_good("local t = { 3, 1, 2 }\n"
                "table.insert(t, 9) table.insert(t, 1, 8) assert(#t == 5 and t[1] == 8 and t[5] == 9)\n"
                "assert(table.remove(t, 1) == 8 and table.remove(t) == 9 and #t == 3 and t[1] == 3)\n"
                "assert(table.remove({}) == nil)\n"
                "local keys = '' for k, v in sorted_pairs { b = 1, a = 2, [10] = 3, [-1] = 4 } do keys = "
                "keys .. tostring(k) .. tostring(v) end\n"
                "assert(keys == '-14103a2b1', keys)\n"
                "local gone = { a = 1, b = 2, c = 3 } local seen = '' for k in sorted_pairs(gone) do gone.b "
                "= nil seen = seen .. k end assert(seen == 'ac')\n"
                "local r, s = rng(5), rng(5) for i = 1, 100 do local x = r() assert(x >= 0 and x < 1 and x "
                "== s()) end\n"
                "for i = 1, 100 do local n = r(6) assert(n >= 1 and n <= 6 and n == math.floor(n)) end\n"
                "assert(clamp(5, 1, 3) == 3 and clamp(0, 1, 3) == 1 and clamp(2, 1, 3) == 2)\n"
                "assert(string.format('%d|%5.2f|%s|%x|%c|%%|%-4s|%04d|%g', 5, 1.005, 'a', 255, 65, 'b', 7, "
                "0.5) == '5| 1.00|a|ff|A|%|b   |0007|0.5')\n"
                "assert(string.format('%s', 'a\\0b') == 'a\\0b' and ('x'):len() == 1 and ('abc'):sub(2, 3) "
                "== 'bc' and ('a'):byte() == 97)\n"
                "assert(tostring(nil) == 'nil' and tostring(true) == 'true' and tostring(1e15) == '1e+15' "
                "and tonumber('0x10') == 16)\n"
                "assert(bit.band(6, 3) == 2 and math.fmod(7, 4) == 3 and math.huge > 1e308 and select('#', "
                "1, 2) == 2)\n" POLICY(""));
    expect("string.format('%p', {})", "'%p' is not offered");
    expect("string.format('%q', 'x')", "'%q' is not offered");
    expect("string.format('%99999d', 1)", "'%9' is not offered");
    expect("string.format('%.999f', 1)", "'%9' is not offered");
    expect("string.format('%', 1)", "is not offered");
    expect("string.format('%d', 'x')", "bad argument #2");
    expect("string.format('%d', 1e300)", "fits 64 bits");
    expect("string.format('%d')", "bad argument #2");
    expect("table.insert({}, 5, 1)", "table.insert: position 5 is not in 1..1");
    expect("table.insert({}, -2147483648, 1)", "is not in 1..1");
    expect("table.insert({}, 0/0, 1)", "is not in 1..1");
    expect("table.remove({ 1 }, 1.5)", "is not in 1..1");
    expect("table.insert(nil, 1)", "bad argument #1");
    expect("for k in sorted_pairs { [{}] = 1 } do end", "a key of the table is a table");
    expect("local t = {} for i = 1, 5000 do t[i] = i end sorted_pairs(t)", "more than 4096 keys");
    expect("rng()", "bad argument #1");
    expect("rng(1/0)", "the seed must be a finite number");
    expect("rng(1)(0)", "rng: 0 is not in 1..2^53");
}

/* Text only: bytecode in any disguise is refused, and mutated bytecode never reaches the machine. */
static void bytecode(void **state)
{
    (void)state;
    struct err e = {0};
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    assert_int_equal(luaL_dostring(L, "return string.dump(loadstring([==[" POLICY("") "]==]))"), 0);
    size_t n;
    const char *dump = lua_tolstring(L, -1, &n);
    static const char *const before[] = {"", "\xef\xbb\xbf", "#!x\n", "\xef\xbb\xbf#!x\n"};
    for (int i = 0; i < 4; i++) {
        struct buf b = {0};
        buf_puts(&b, before[i]);
        buf_put(&b, dump, n);
        assert_int_not_equal(load(b.data, b.len, NULL, &e), 0);
        buf_free(&b);
    }
    struct rng r;
    rng_init(&r, 1);
    char *mutant = mem_new(n);
    for (int i = 0; i < 2000; i++) {
        memcpy(mutant, dump, n);
        for (int k = 0; k < 3; k++)
            mutant[1 + rng_below(&r, n - 1)] = (char)rng_next(&r);
        assert_int_not_equal(load(mutant, n, NULL, &e), 0);
    }
    mem_free(mutant);
    lua_close(L);
}

static void repeated(struct buf *out, const char *before, const char *unit, int n, const char *after)
{
    buf_clear(out);
    buf_puts(out, before);
    for (int i = 0; i < n; i++)
        buf_puts(out, unit);
    buf_puts(out, after);
}

/* Deep and large sources. */
static void monsters(void **state)
{
    (void)state;
    struct buf b = {0};
    struct err e = {0};
    static const struct {
        const char *before, *unit, *after;
        int n;
    } cases[] = {
        {"local x = ", "(", "1", 100000},
        {"local x = ", "{", "1", 100000},
        {"local x = ", "-", "1", 100000},
        {"local x = ", "not ", "1", 50000},
        {"local x = 'a'", "..'b'", "", 20000},
        {"", "do ", "", 50000},
        {"", "if x then ", "", 20000},
        {"local x = ", "function() return ", "1", 10000},
        {"local x = 1", "+1", "", 60000},
        {"local t = {} local x = t", ".a", "", 60000},
        {"local x = 1", "^2", "", 60000},
        {"", "local a\n", "", 20000},
        {"local x = '", "\\200", "'", 50000},
        {"local s = [", "=", "[", 100000},
        {"local x = 0x", "f", "", 100000},
        {"local x = ", "9", "", 100000},
        {"--[[", "x", "", 100000},
        {"goto a ", "goto a ", "", 20000},
        {"local f f", "()", "", 60000},
        {"local f f", "{}", "", 60000},
        {"local f f", "''", "", 60000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        repeated(&b, cases[i].before, cases[i].unit, cases[i].n, cases[i].after);
        assert_int_not_equal(load(b.data, b.len, NULL, &e), 0);
    }
    repeated(&b, "--", "x", LUA_SOURCE_BYTES, "");
    assert_int_not_equal(load(b.data, b.len, NULL, &e), 0);
    assert_non_null(strstr(e.text, "at most 262144 are taken"));
    static const char *const runs[] = {
        "local function f() return 1 + f() end f()",
        "local function f(a) local b = { a } f(b) end f()",
        "local t = {} for i = 1, 1e6 do t = { t } end",
        "local function f(...) return f(1, ...) end f()",
        "local a, b function a() b() end function b() a() end a()",
        "local t = {} for i = 1, 4000 do t[string.format('%d', i)] = i end for i = 1, 50 do for k in "
        "sorted_pairs(t) do end end",
        "local s = 'x' for i = 1, 18 do s = s .. s end local t = { s:byte(1, -1) }",
        "string.format(string.format('%s', ('%99d')), 1)",
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        assert_int_not_equal(load(runs[i], strlen(runs[i]), NULL, &e), 0);
    buf_free(&b);
}

/* The same on a stack of 256 KiB: what overflows must be Lua's stack, not C's. */
static void small_stack(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {256 << 10, 256 << 10};
        setrlimit(RLIMIT_STACK, &limit);
        execl("/proc/self/exe", "policy_load", "monsters", NULL);
        _exit(99);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Loops and floods while it loads, and in what the loader runs. */
static void loops_and_floods(void **state)
{
    (void)state;
    static const char *const attacks[] = {
        "while true do end",
        "for i = 1, 1 / 0 do end",
        "for i = 1, 2, 0 do end",
        "::a:: goto a",
        "repeat until false",
        "local function f() return f() end f()",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1 / 0 do t[i] = i end",
        "local t = {} for i = 1, 1 / 0 do t[i] = function() return i end end",
        "for i = 1, 1 / 0 do local t = { i } end",
        "local t = {} for i = 1, 1 / 0 do t[#t + 1] = tostring(i) end",
    };
    static const char *const places[] = {
        "%s\n" POLICY(""),
        "return { api = 1, doc = 'x', start = function()\n%s end, " STEP "}",
        "return { api = 1, doc = 'x', admit = function()\n%s end, " STEP "}",
        "return { api = 1, doc = 'x', finish = function()\n%s end, " STEP "}",
        "return { api = 1, doc = 'x', tests = { a = function()\n%s end }, " STEP "}",
        "return { api = 1, doc = 'x', step = function()\n%s end }",
    };
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++)
        for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
            char source[1200];
            struct err e = {0};
            snprintf(source, sizeof source, places[k], attacks[i]);
            assert_int_not_equal(load(source, strlen(source), NULL, &e), 0);
            if (!strstr(e.text, "still running") && !strstr(e.text, "out of memory"))
                fail_msg("%s: %s", source, e.text);
            if (!strstr(e.text, k ? "x.lua:2" : "x.lua:1"))
                fail_msg("no line: %s: %s", source, e.text);
        }
}

static void names_and_limits(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",    ".lua", "../x",    "a/b",
        "a b", "x\n",  ".hidden", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    struct policy p;
    struct err e = {0};
    struct lua_opts o = {.watchdog = dog};
    static const char source[] = POLICY("");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(lua_policy_load(&p, bad[i], source, sizeof source - 1, &o, NULL, &e), E_INPUT);
    o.heap_bytes = 5 << 20;
    assert_int_equal(lua_policy_load(&p, "x", source, sizeof source - 1, &o, NULL, &e), E_INPUT);
    o = (struct lua_opts){.watchdog = dog, .hard_ns = 1};
    assert_int_equal(lua_policy_load(&p, "x", source, sizeof source - 1, &o, NULL, &e), E_INPUT);
    o = (struct lua_opts){.watchdog = dog};
    assert_int_equal(lua_policy_load(&p, "x-1.b", source, sizeof source - 1, &o, NULL, &e), 0);
    assert_string_equal(p.name, "x-1.b");
    assert_int_equal(strlen(p.sha256), 64);
    p.ops->destroy(p.ctx);
}

/* Decisions must come from the view alone. */
static void two_machines_decide_the_same(void **state)
{
    (void)state;
    expect_good("local r = rng(9)\nreturn { api = 1, doc = 'x', admit = function() return r() end, " STEP " }");
    expect_good("local n, seen = 0, {}\nreturn { api = 1, doc = 'x', admit = function(q) n = n + 1 seen[q] = "
                "n return -n end, " STEP " }");
}

static int start(void **state)
{
    (void)state;
    return lua_watchdog_start(&dog, NULL);
}

static int stop(void **state)
{
    (void)state;
    lua_watchdog_stop(dog);
    return 0;
}

/* What passed just now is not tried once more; its text, table and params are looked at all the same. */
static void again_leaves_the_tests_out(void **state)
{
    (void)state;
    static const char *const failing = POLICY("tests = { a = function(t) assert(false, 'so it is') end }, ");
    static const char *const wrong[] = {POLICY("docs = 1, "), "return {", POLICY("params = { x = 5 }, ")};
    struct lua_opts o = {.watchdog = dog, .quiet = true, .n_ranks = 1, .again = true};
    struct policy p;
    struct err e = {0};
    expect(failing, "so it is");
    assert_int_equal(lua_policy_load(&p, "x.lua", failing, strlen(failing), &o, NULL, &e), 0);
    p.ops->destroy(p.ctx);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(lua_policy_load(&p, "x.lua", wrong[i], strlen(wrong[i]), &o, NULL, &e), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest alone[] = {cmocka_unit_test(monsters)};
    if (argc > 1 && strcmp(argv[1], "monsters") == 0)
        return cmocka_run_group_tests(alone, start, stop);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_ones_load),
        cmocka_unit_test(for_one_rank_only),
        cmocka_unit_test(syntax_and_shape),
        cmocka_unit_test(a_write_into_the_view_has_its_line),
        cmocka_unit_test(drafts_say_what_they_are),
        cmocka_unit_test(params_are_checked),
        cmocka_unit_test(escapes),
        cmocka_unit_test(nothing_else_is_reachable),
        cmocka_unit_test(library_works),
        cmocka_unit_test(bytecode),
        cmocka_unit_test(monsters),
        cmocka_unit_test(small_stack),
        cmocka_unit_test(loops_and_floods),
        cmocka_unit_test(names_and_limits),
        cmocka_unit_test(two_machines_decide_the_same),
        cmocka_unit_test(again_leaves_the_tests_out),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
