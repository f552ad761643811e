/* Code that policies share: where it is read from, what is refused with which line, that it is inside of the policy's
 * limits, and that the sha256 of a policy covers it. */
#include "tests/rig/policy_rig.h"

#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"

#define STEP "step = function(view, act, p) lib.one.serve(view, act) end"
#define POLICY(libs) "return {\n  api = 1,\n  lib = { " libs " },\n  " STEP ",\n}\n"

static const char serve[] = "local one = {}\n"
                            "function one.serve(view, act)\n"
                            "  for _, g in ipairs(view.idle) do\n"
                            "    local b = act.batch(g)\n"
                            "    b:decodes()\n"
                            "    b:prefill(view.waiting)\n"
                            "    if b.tokens > 0 then act.forward(g, b) end\n"
                            "  end\n"
                            "end\n"
                            "return one\n";

static struct lua_watchdog *dog;
static char folder[] = "/tmp/moonshift_libs_XXXXXX";

static void write_lib(const char *name, const char *text)
{
    char path[200];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/lib/%s.lua", folder, name);
    if (file_replace(path, text, strlen(text), &e))
        fail_msg("%s", e.text);
}

static void remove_lib(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/lib/%s.lua", folder, name);
    unlink(path);
}

static int load_from(const char *where, const char *source, struct policy *p, struct err *e)
{
    struct lua_opts o = {.watchdog = dog, .quiet = true, .folder = where};
    return lua_policy_load(p, "x.lua", source, strlen(source), &o, NULL, e);
}

static void expect_from(const char *where, const char *source, const char *why)
{
    struct err e = {0};
    struct policy p;
    if (!load_from(where, source, &p, &e))
        fail_msg("loaded, but should say: %s", why);
    if (!strstr(e.text, why))
        fail_msg("says: %s\nshould say: %s", e.text, why);
}

static void expect(const char *source, const char *why)
{
    expect_from(folder, source, why);
}

static struct policy good(const char *source)
{
    struct err e = {0};
    struct policy p;
    if (load_from(folder, source, &p, &e))
        fail_msg("%s", e.text);
    return p;
}

static void sha_of(const char *source, char out[65])
{
    struct policy p = good(source);
    memcpy(out, p.sha256, 65);
    p.ops->destroy(p.ctx);
}

static void a_policy_is_made_of_its_libraries(void **state)
{
    (void)state;
    write_lib("one", serve);
    struct policy p = good(POLICY("'one'"));
    assert_string_equal(p.libs, "one");
    p.ops->destroy(p.ctx);
    write_lib("two", "return { lib = { 'one' }, serve = function(view, act) return lib.one.serve(view, act) end }");
    p = good("return { api = 1, lib = { 'two' }, step = function(view, act) lib.two.serve(view, act) end }");
    assert_string_equal(p.libs, "one two");
    p.ops->destroy(p.ctx);
}

static void its_sha256_covers_them(void **state)
{
    (void)state;
    static const char alone[] = "return { api = 1, step = function(v, act) for _, g in ipairs(v.idle) do local b = "
                                "act.batch(g) b:decodes() b:prefill(v.waiting) if b.tokens > 0 then act.forward(g, b) "
                                "end end end }";
    char first[65], again[65], other[65], hex[65];
    struct sha256 plain = hash_sha256(alone, strlen(alone));
    hash_hex(&plain, hex);
    sha_of(alone, first);
    assert_string_equal(first, hex); /* without libraries it is that of the file */
    write_lib("one", serve);
    write_lib("two", "return {}");
    sha_of(POLICY("'one', 'two'"), first);
    sha_of(POLICY("'one', 'two'"), again);
    assert_string_equal(first, again);
    write_lib("two", "return { }");
    sha_of(POLICY("'one', 'two'"), other);
    assert_string_not_equal(first, other);
    write_lib("two", "return {}");
    write_lib("four", "return {}");
    sha_of(POLICY("'one', 'four'"), again);
    assert_string_not_equal(first, again);
    sha_of(POLICY("'one', 'two'"), again);
    assert_string_equal(first, again);
    write_lib("three", "return { lib = { 'two' } }");
    sha_of(POLICY("'one', 'three'"), first);
    write_lib("two", "return { }");
    sha_of(POLICY("'one', 'three'"), other);
    assert_string_not_equal(first, other); /* one that only another names */
}

static void what_is_wrong_is_told_with_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *lib, *why;
    } wrong[] = {
        {"return 5", "lib/one.lua:1: a library returns a table, not a number"},
        {"local a\nreturn {", "lib/one.lua:2: "},
        {"local a\nlocal b = os.time()\nreturn {}", "lib/one.lua:2: 'os' is not offered"},
        {"local a\nb = 4\nreturn {}", "lib/one.lua:2: assignment to the global 'b'"},
        {"local a = nil\na.b = 4\nreturn {}", "lib/one.lua:2: attempt to index"},
        {"return {\n serve = function(view) return view.wating end }", "lib/one.lua:2: view has no 'wating'"},
        {"return {\n serve = function(view)\n view.n_waiting = 5 end }",
         "lib/one.lua:3: the policy writes into its view"},
        {"return {\n lib = { 'gone' } }", "lib/one.lua:2: there is no lib/gone.lua in "},
        {"return { lib = { 'one' } }", "lib/one.lua:1: libraries name each other in a circle: one, one"},
        {"return { lib = { two = 'two' } }", "lib must be a list of names"},
        {"local x = lib.two\nreturn {}", "lib/one.lua:1: lib, which is filled when the whole file has run, has no "
                                         "'two'"},
        {"while true do end", "lib/one.lua:1: still running after"},
        {"local t = {}\nfor i = 1, 1e6 do t[i] = { i } end\nreturn t", "out of memory"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_lib("one", wrong[i].lib);
        expect(POLICY("'one'"), wrong[i].why);
    }
    write_lib("one", serve);
    expect(POLICY("'gone'"), "x.lua:3: there is no lib/gone.lua in ");
    expect(POLICY("'one',\n  'gone'"), "x.lua:4: there is no lib/gone.lua in ");
    expect_from(NULL, POLICY("'one'"), "x.lua:3: lib 'one': this policy has no folder");
    expect(POLICY("'one', 'one'"), "lib names 'one' twice");
    expect(POLICY("'../one'"), "lib: '../one' is no name of a file");
    expect(POLICY("'one.lua'"), "lib: 'one.lua' is no name of a file");
    expect(POLICY("4"), "lib must be a list of names");
    expect("return { api = 1, lib = 'one', " STEP " }", "lib must be a list of names");
    expect("return { api = 1, " STEP " }", "x.lua:1: lib, which is filled when the whole file has run, has no 'one'");
    expect("lib = 4 return { api = 1, " STEP " }", "x.lua:1: assignment to the global 'lib'");
    expect("return { api = 1, step = function() lib.one = 4 end }", "is read only: 'one' cannot be set");
}

static void there_is_a_limit_to_all_of_it(void **state)
{
    (void)state;
    struct buf big = {0};
    write_lib("one", serve);
    for (int i = 0; i < 9; i++) {
        char name[8];
        snprintf(name, sizeof name, "n%d", i);
        write_lib(name, "return {}");
    }
    expect(POLICY("'one', 'n0', 'n1', 'n2', 'n3', 'n4', 'n5', 'n6', 'n7'"), "lib names more than 8 files");
    write_lib("n0", "return { lib = { 'n1', 'n2', 'n3', 'n4', 'n5', 'n6', 'n7' } }");
    expect(POLICY("'one', 'n0'"), "lib/n0.lua:1: lib 'n7' is one too many");
    buf_puts(&big, "return {}\n--");
    while (big.len < LUA_SOURCE_BYTES)
        buf_putc(&big, 'x');
    write_lib("n0", big.data);
    expect(POLICY("'one', 'n0'"), "x.lua:3: with lib 'n0' the policy has ");
    buf_putc(&big, 'x');
    write_lib("n0", big.data);
    expect(POLICY("'one', 'n0'"), "x.lua:3: lib 'n0' cannot be read: ");
    buf_free(&big);
}

static void a_link_may_not_lead_out_of_the_folder(void **state)
{
    (void)state;
    char out[200], path[200], within[200];
    struct err e = {0};
    snprintf(out, sizeof out, "%s_outside.lua", folder);
    snprintf(path, sizeof path, "%s/lib/one.lua", folder);
    snprintf(within, sizeof within, "%s/lib/kept.lua", folder);
    assert_int_equal(file_replace(out, serve, strlen(serve), &e), 0);
    remove_lib("one");
    assert_int_equal(symlink(out, path), 0);
    expect(POLICY("'one'"), "is a link that leads out of its folder");
    remove_lib("one");
    write_lib("kept", serve);
    assert_int_equal(symlink(within, path), 0);
    struct policy p = good(POLICY("'one'"));
    p.ops->destroy(p.ctx);
    remove_lib("one");
    unlink(out);
}

static int load_text(const struct buf *text, struct policy *p, struct err *e)
{
    struct lua_opts o = {.watchdog = dog, .quiet = true}; /* without a folder */
    return lua_policy_load(p, "x.lua", text->data, text->len, &o, NULL, e);
}

/* Its text with its libraries in it is the same policy wherever they are by then, and nothing else is that policy. */
static void a_policy_and_its_libraries_are_one_text(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf text = {0}, again = {0};
    struct policy p;
    char want[65], hex[65];
    struct lua_opts o = {.watchdog = dog, .quiet = true, .folder = folder};
    write_lib("one", serve);
    write_lib("two", "return { lib = { 'one' } }");
    static const char source[] = POLICY("'two', 'one'");
    sha_of(source, want);
    assert_int_equal(lua_policy_text("x", source, sizeof source - 1, &o, &text, &e), 0);
    remove_lib("one");
    remove_lib("two");
    expect(source, "there is no lib/two.lua");
    struct sha256 sum = hash_sha256(text.data, text.len);
    hash_hex(&sum, hex);
    assert_string_equal(hex, want);
    if (load_text(&text, &p, &e))
        fail_msg("%s", e.text);
    assert_string_equal(p.sha256, want);
    assert_string_equal(p.libs, "one two");
    p.ops->destroy(p.ctx);
    o.folder = NULL;
    assert_int_equal(lua_policy_text("x", text.data, text.len, &o, &again, &e), 0);
    assert_int_equal(again.len, text.len);
    assert_memory_equal(again.data, text.data, text.len);
    struct rng rng;
    int n_cut = 0, n_changed = 0;
    rng_init(&rng, 3);
    for (int i = 0; i < 400; i++) {
        struct buf other = {0};
        buf_put(&other, text.data, i < 100 ? rng_below(&rng, text.len) : text.len);
        if (i >= 100) /* mostly in its head, where the lengths are */
            other.data[rng_below(&rng, i < 300 ? 40 : text.len)] ^= (char)(1 << rng_below(&rng, 7));
        e = (struct err){0};
        if (load_text(&other, &p, &e)) {
            assert_non_null(strstr(e.text, ".lua"));
            n_cut += i < 100;
        } else {
            assert_string_not_equal(p.sha256, want);
            p.ops->destroy(p.ctx);
            n_changed++;
        }
        buf_free(&other);
    }
    assert_int_equal(n_cut, 100); /* no part of it is a policy */
    assert_true(n_changed > 0);   /* a letter of a library may be another one */
    static const char *const wrong[] = {"policy 5\nlib one 4\nreturn 5", "policy 99999999\nx",
                                        "policy 0\nlib a 0\nlib a 0\n", "policy 1\nlib ../x 1\nab",
                                        "policy 3\nlib one 18446744073709551615\nabc"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct buf t = {0};
        buf_puts(&t, wrong[i]);
        e = (struct err){0};
        assert_int_not_equal(load_text(&t, &p, &e), 0);
        if (!strstr(e.text, "x.lua:1: "))
            fail_msg("%s", e.text);
        buf_free(&t);
    }
    buf_free(&text);
    buf_free(&again);
}

static int start(void **state)
{
    (void)state;
    char lib[200];
    struct err e = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(lib, sizeof lib, "%s/lib", folder);
    return mkdir(lib, 0755) || lua_watchdog_start(&dog, &e);
}

static int stop(void **state)
{
    (void)state;
    static const char *const names[] = {"one", "two", "three", "four", "kept", "n0", "n1",
                                        "n2",  "n3",  "n4",    "n5",   "n6",   "n7", "n8"};
    char lib[200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        remove_lib(names[i]);
    snprintf(lib, sizeof lib, "%s/lib", folder);
    lua_watchdog_stop(dog);
    return rmdir(lib) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_policy_is_made_of_its_libraries),
        cmocka_unit_test(its_sha256_covers_them),
        cmocka_unit_test(what_is_wrong_is_told_with_its_line),
        cmocka_unit_test(there_is_a_limit_to_all_of_it),
        cmocka_unit_test(a_link_may_not_lead_out_of_the_folder),
        cmocka_unit_test(a_policy_and_its_libraries_are_one_text),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
