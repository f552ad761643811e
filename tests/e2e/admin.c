/* The admin routes over the fake engine and the real policy host: loads, refusals with their place, names and sizes,
 * the watched file. */
#include <sys/stat.h>

#include "tests/rig/front_fixture.h"

#include "engine/base/file.h"
#include "lua/host.h"

static struct site site;
static struct lua_opts lua;
static char dir[64];
static struct buf fcfs;

static void write_policy(const char *name, const char *text, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s.lua", dir, name);
    assert_int_equal(file_replace(path, text, n, NULL), 0);
}

static int setup(void **state)
{
    (void)state;
    struct err e = {0};
    snprintf(dir, sizeof dir, "/tmp/moonshift-admin-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(file_read(&fcfs, "policies/fcfs.lua", LUA_SOURCE_BYTES, &e), 0);
    write_policy("fcfs", fcfs.data, fcfs.len);
    write_policy("other", fcfs.data, fcfs.len);
    lua.quiet = true;
    assert_int_equal(lua_watchdog_start(&lua.watchdog, &e), 0);
    site_init(&site);
    site.setup.lua = &lua;
    site.setup.policy_dir = dir;
    site.setup.policy_name = "fcfs";
    static char path[128];
    snprintf(path, sizeof path, "%s/fcfs.lua", dir);
    site.setup.policy_path = path;
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char path[128];
    static const char *const names[] = {"fcfs", "other"};
    site_stop(&site);
    lua_watchdog_stop(lua.watchdog);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.lua", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    buf_free(&fcfs);
    return 0;
}

static struct json *admin(const char *method, const char *path, const char *body, int status)
{
    struct reply r = site_do(site.admin_port, method, path, NULL, body);
    if (r.status != status)
        fail_msg("%s %s: %d instead of %d: %s", method, path, r.status, status, r.body.data);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    assert_non_null(j);
    reply_free(&r);
    return j;
}

static int64_t reloads(const char *result)
{
    struct reply r = site_do(site.port, "GET", "/metrics", NULL, "");
    char name[64];
    snprintf(name, sizeof name, "policy_reload_total{result=\"%s\"} ", result);
    const char *at = strstr(r.body.data, name);
    assert_non_null(at);
    int64_t n = strtoll(at + strlen(name), NULL, 10);
    reply_free(&r);
    return n;
}

static void a_good_policy_goes_live(void **state)
{
    (void)state;
    int64_t before = reloads("ok");
    struct json *j = admin("PUT", "/admin/policies/mine", fcfs.data, 200);
    assert_string_equal(json_text(json_find(json_find(j, "active"), "name")), "mine");
    json_free(j);
    json_free(admin("PUT", "/admin/policies/mine.lua", fcfs.data, 200));
    j = admin("PUT", "/admin/policies/other?from=folder", "", 200); /* the file of that name */
    assert_string_equal(json_text(json_find(json_find(j, "active"), "name")), "other");
    json_free(j);
    assert_int_equal(reloads("ok"), before + 3);
    j = admin("GET", "/admin/policies", "", 200);
    assert_int_equal(json_count(json_find(j, "files")), 2);
    assert_int_equal(json_count(json_find(j, "versions")), 2); /* mine was sent twice */
    json_free(j);
}

static void a_broken_policy_says_where(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        int line;
    } cases[] = {
        {"return {\n api = 1,\n step = function(\n", 3},
        {"return { api = 1,\n step = function(v, act, p)\n  os.exit(1)\n end }\n", 3},
        {"x = 1\n", 1},
        {"return 5\n", 0},
        {"", 0},
        {"\x1bLJ\x02", 0},
    };
    int64_t before = reloads("validate"), unread = reloads("unreadable");
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!cases[i].source[0])
            continue;
        struct json *j = admin("PUT", "/admin/policies/bad", cases[i].source, 400);
        const struct json *e = json_find(j, "error");
        int64_t line = -1;
        assert_true(json_i64(json_find(e, "line"), &line));
        if (cases[i].line && line < cases[i].line - 1)
            fail_msg("case %zu: line %d: %s", i, (int)line, json_text(json_find(e, "message")));
        assert_true(cases[i].line == 0 || strcmp(json_text(json_find(e, "file")), "bad.lua") == 0);
        assert_true(strlen(json_text(json_find(e, "reason"))) > 3);
        json_free(j);
        n++;
    }
    assert_int_equal(reloads("validate"), before + n);
    json_free(admin("PUT", "/admin/policies/missing?from=folder", "", 400)); /* no such file */
    assert_int_equal(reloads("unreadable"), unread + 1);
}

/* A pipe in the folder would hold its reader for ever, and a link may lead anywhere: neither is read, watched or shown.
 * A link that stays inside is how some systems lay files. */
static void the_folder_is_not_left(void **state)
{
    (void)state;
    char pipe_path[128], out_path[128], in_path[128], outside[64] = "/tmp/moonshift-outside-XXXXXX";
    int fd = mkstemp(outside);
    assert_int_equal(write(fd, fcfs.data, fcfs.len), (ssize_t)fcfs.len);
    close(fd);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe.lua", dir);
    snprintf(out_path, sizeof out_path, "%s/out.lua", dir);
    snprintf(in_path, sizeof in_path, "%s/in.lua", dir);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(symlink(outside, out_path), 0);
    assert_int_equal(symlink("fcfs.lua", in_path), 0);
    static const char *const says[][2] = {{"pipe", "not a regular file"}, {"out", "leads out of its folder"}};
    for (int i = 0; i < 2; i++) {
        char route[64];
        snprintf(route, sizeof route, "/admin/policies/%s?from=folder", says[i][0]);
        struct json *j = admin("PUT", route, "", 400);
        if (!strstr(json_text(json_find(json_find(j, "error"), "message")), says[i][1]))
            fail_msg("%s: %s", route, json_text(json_find(json_find(j, "error"), "message")));
        json_free(j);
    }
    struct json *j = admin("GET", "/admin/policies", "", 200);
    assert_int_equal(json_count(json_find(j, "files")), 3);
    json_free(j);
    /* live from a request, under the name of such a file: that is not followed */
    json_free(admin("PUT", "/admin/policies/out", fcfs.data, 200));
    j = admin("GET", "/admin/policies", "", 200);
    assert_int_equal(json_type(json_find(j, "watched")), JSON_NULL);
    json_free(j);
    json_free(admin("PUT", "/admin/policies/in?from=folder", "", 200));
    unlink(pipe_path);
    unlink(out_path);
    unlink(in_path);
    unlink(outside);
}

/* A client that forgot the body, or whose file was empty, changes nothing. */
static void an_empty_body_is_refused(void **state)
{
    (void)state;
    int64_t before = reloads("ok");
    static const struct {
        const char *path, *body, *says;
    } cases[] = {
        {"/admin/policies/other", "", "the body is empty"},
        {"/admin/policies/other?from=disk", "", "from may only be folder"},
        {"/admin/policies/other?from=folder", "return {}", "which of them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *j = admin("PUT", cases[i].path, cases[i].body, 400);
        assert_non_null(strstr(json_text(json_find(json_find(j, "error"), "message")), cases[i].says));
        json_free(j);
    }
    assert_int_equal(reloads("ok"), before);
}

static void names_and_sizes_are_checked(void **state)
{
    (void)state;
    static const char *const names[] = {
        "..%2fx", ".x", "a%20b", "a/b", "%2e%2e", "0123456789012345678901234567890123456789x", ".lua"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200];
        snprintf(path, sizeof path, "/admin/policies/%s", names[i]);
        json_free(admin("PUT", path, fcfs.data, 400));
    }
    struct buf big = {0};
    for (int i = 0; i < 300 << 10; i++)
        buf_putc(&big, ' ');
    json_free(admin("PUT", "/admin/policies/big", big.data, 413));
    buf_free(&big);
    json_free(admin("GET", "/admin/nope", "", 404));
    json_free(admin("POST", "/admin/policy", "", 405));
}

static void checking_changes_nothing(void **state)
{
    (void)state;
    int64_t before = reloads("ok");
    struct json *j = admin("POST", "/admin/policy/check?name=mine", fcfs.data, 200);
    assert_true(json_true(json_find(j, "ok")));
    assert_true(strlen(json_text(json_find(j, "report"))) > 20);
    json_free(j);
    json_free(admin("POST", "/admin/policy/check", "nonsense(", 400));
    assert_int_equal(reloads("ok"), before);
}

static void params_and_rollback_are_passed_on(void **state)
{
    (void)state;
    json_free(admin("PATCH", "/admin/policy/params", "{\"budget\":5}", 200));
    json_free(admin("PATCH", "/admin/policy/params", "[]", 400));
    json_free(admin("PATCH", "/admin/policy/params", "{", 400));
    json_free(admin("POST", "/admin/policy/rollback", "", 409));
    json_free(admin("POST", "/admin/reset_prefix_cache", "", 200));
    struct json *j = admin("GET", "/admin/policy", "", 200);
    assert_string_equal(json_text(json_find(json_find(j, "active"), "name")), "fake");
    json_free(j);
    j = admin("GET", "/admin/state", "", 200);
    assert_int_equal(json_type(json_find(json_find(j, "front"), "submitted")), JSON_NUMBER);
    json_free(j);
}

static void a_policy_that_cannot_start_is_refused(void **state)
{
    (void)state;
    site.engine.policy_code = E_POLICY;
    int64_t before = reloads("init_error");
    struct json *j = admin("PUT", "/admin/policies/mine", fcfs.data, 400);
    assert_string_equal(json_text(json_find(json_find(j, "error"), "code")), "policy_start_failed");
    json_free(j);
    assert_int_equal(reloads("init_error"), before + 1);
    site.engine.policy_code = 0;
}

static bool reaches(const char *result, int64_t want)
{
    for (int i = 0; i < 200; i++) {
        if (reloads(result) >= want)
            return true;
        usleep(25000);
    }
    return false;
}

/* The live policy's file: an edit goes live, a broken one is refused and counted, the next good one goes live again; a
 * touch does nothing twice. */
static void edits_of_the_live_file_go_live(void **state)
{
    (void)state;
    json_free(admin("PUT", "/admin/policies/fcfs?from=folder", "", 200));
    usleep(200000);
    int64_t ok = reloads("ok"), bad = reloads("validate");
    struct buf edited = {0};
    buf_put(&edited, fcfs.data, fcfs.len);
    buf_puts(&edited, "-- edited\n");
    write_policy("fcfs", edited.data, edited.len);
    assert_true(reaches("ok", ok + 1));
    write_policy("fcfs", "return {", 8);
    assert_true(reaches("validate", bad + 1));
    write_policy("other", edited.data, edited.len); /* not the live one */
    usleep(300000);
    assert_int_equal(reloads("ok"), ok + 1);
    assert_int_equal(reloads("validate"), bad + 1);
    write_policy("fcfs", fcfs.data, fcfs.len);
    assert_true(reaches("ok", ok + 2));
    json_free(admin("PUT", "/admin/policies/other?from=folder", "", 200)); /* now the other one is live, and watched */
    write_policy("other", fcfs.data, fcfs.len);
    assert_true(reaches("ok", ok + 4));
    buf_free(&edited);
}

static const char with_lib[] = "return { api = 1, lib = { \"way\" },\n"
                               "  step = function(view, act) lib.way.serve(view, act) end }";
static const char way[] = "local way = {}\nfunction way.serve(view, act)\n  for _, g in ipairs(view.idle) do\n"
                          "    local b = act.batch(g)\n    b:decodes()\n    b:prefill(view.waiting)\n"
                          "    if b.tokens > 0 then act.forward(g, b) end\n  end\nend\nreturn way\n";

static void check_last(const char *name, const char *actor, const char *sha256)
{
    struct json *j = admin("GET", "/admin/policies", "", 200);
    const struct json *versions = json_find(j, "versions"), *v = NULL;
    for (const struct json *k = json_first(versions); k; k = json_next(k))
        v = k;
    assert_string_equal(json_text(json_find(v, "name")), name);
    assert_string_equal(json_text(json_find(v, "actor")), actor);
    assert_string_not_equal(json_text(json_find(v, "sha256")), sha256);
    json_free(j);
}

/* A library lies in lib/ of the server's folder, whether the policy comes from there or with the request; what is wrong
 * with it is told; an edit of it goes live as one of the policy does, and has a sha256 of its own. */
static void a_library_is_part_of_the_policy(void **state)
{
    (void)state;
    char lib[128], sha256[65];
    snprintf(lib, sizeof lib, "%s/lib", dir);
    assert_int_equal(mkdir(lib, 0755), 0);
    write_policy("lib/way", way, sizeof way - 1);
    json_free(admin("POST", "/admin/policy/check", with_lib, 200));
    struct json *j = admin("PUT", "/admin/policies/other", with_lib, 200);
    snprintf(sha256, sizeof sha256, "%s", json_text(json_find(json_find(j, "active"), "sha256")));
    json_free(j);
    usleep(200000);
    int64_t ok = reloads("ok"), bad = reloads("validate");
    write_policy("other", with_lib, sizeof with_lib - 1); /* its file is watched, and now it is that file */
    assert_true(reaches("ok", ok + 1));
    usleep(200000);
    write_policy("lib/way", "return {\n 5 }", 12);
    assert_true(reaches("validate", bad + 1));
    write_policy("lib/unused", "return {}", 9);
    struct buf edited = {0};
    buf_puts(&edited, way);
    buf_puts(&edited, "-- edited\n");
    write_policy("lib/way", edited.data, edited.len);
    assert_true(reaches("ok", ok + 2));
    check_last("other", "file", sha256);
    write_policy("lib/unused", "return 5", 8); /* nobody's */
    usleep(300000);
    assert_int_equal(reloads("ok"), ok + 2);
    assert_int_equal(reloads("validate"), bad + 1);
    snprintf(lib, sizeof lib, "%s/lib/way.lua", dir);
    unlink(lib);
    j = admin("PUT", "/admin/policies/other", with_lib, 400);
    assert_non_null(strstr(json_text(json_find(json_find(j, "error"), "message")), "there is no lib/way.lua in "));
    json_free(j);
    char again[160]; /* what is kept has its libraries in it, as they were */
    snprintf(again, sizeof again, "/admin/policies/other/activate?sha=%s", sha256);
    j = admin("POST", again, "", 200);
    assert_string_equal(json_text(json_find(json_find(j, "active"), "sha256")), sha256);
    assert_string_equal(json_text(json_find(json_find(j, "active"), "libs")), "way");
    json_free(j);
    snprintf(lib, sizeof lib, "%s/lib/unused.lua", dir);
    unlink(lib);
    *strrchr(lib, '/') = 0;
    assert_int_equal(rmdir(lib), 0);
    write_policy("other", fcfs.data, fcfs.len);
    buf_free(&edited);
}

static void health_says_when_no_request_can_be_served(void **state)
{
    (void)state;
    fake_emit(&site.engine, (struct engine_event){.kind = EV_DOWN, .payload = mem_strdup("every rank has failed")});
    struct reply r = {0};
    for (int i = 0; i < 500 && r.status != 503; i++) {
        usleep(10000);
        reply_free(&r);
        r = site_do(site.port, "GET", "/health", NULL, "");
    }
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "every rank has failed"));
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_policy_goes_live),
        cmocka_unit_test(an_empty_body_is_refused),
        cmocka_unit_test(the_folder_is_not_left),
        cmocka_unit_test(a_broken_policy_says_where),
        cmocka_unit_test(names_and_sizes_are_checked),
        cmocka_unit_test(checking_changes_nothing),
        cmocka_unit_test(params_and_rollback_are_passed_on),
        cmocka_unit_test(a_policy_that_cannot_start_is_refused),
        cmocka_unit_test(edits_of_the_live_file_go_live),
        cmocka_unit_test(a_library_is_part_of_the_policy),
        cmocka_unit_test(health_says_when_no_request_can_be_served),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
