/* The doors of a server: who may come in is known from the head alone. Keys, files of keys, host names, pages in
 * browsers. */
#include "tests/rig/front_fixture.h"

#include "engine/base/file.h"
#include "engine/serve/front/auth.h"
#include "engine/serve/http/hosts.h"

static struct site site;
static const char *const keys[] = {"sk-alpha=team", "sk-beta=team", "sk-free", "sk-other"};
static const char *const origins[] = {"https://a.example"};
static const char *const admin_hosts[] = {"ops.example"};

static int setup(void **state)
{
    (void)state;
    site_init(&site);
    site.setup.api_keys = keys;
    site.setup.n_api_keys = 4;
    site.setup.admin_key = "root";
    site.setup.origins = origins;
    site.setup.n_origins = 1;
    site.setup.admin_hosts = admin_hosts;
    site.setup.n_admin_hosts = 1;
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

/* The first bytes that come back for a head whose body is never sent. */
static void says(int port, const char *head, const char *want)
{
    int fd = site_connect(port);
    struct buf out = {0};
    site_send(fd, head, strlen(head));
    site_read_until(fd, &out, "\r\n\r\n");
    if (!out.len || strncmp(out.data, want, strlen(want)) != 0)
        fail_msg("%s\n... was answered: %s\n... instead of: %s", head, out.data ? out.data : "nothing", want);
    if (want[9] != '1') { /* no 100 Continue: the connection ends without the body */
        site_read_all(fd, &out);
        assert_non_null(strstr(out.data, "Connection: close"));
    }
    buf_free(&out);
    close(fd);
}

#define HEAD(line, more) line " HTTP/1.1\r\nHost: localhost\r\n" more "\r\n"
#define UNSENT "Content-Length: 900000\r\n"

static void keys_are_asked_for_before_the_body(void **state)
{
    (void)state;
    static const char *const refused[] = {
        HEAD("POST /v1/chat/completions", UNSENT),
        HEAD("POST /v1/completions", UNSENT),
        HEAD("POST /tokenize", UNSENT),
        HEAD("POST /detokenize", UNSENT),
        HEAD("POST /v1/embeddings", UNSENT),
        HEAD("POST /nope", UNSENT),
        HEAD("POST /tokenize", "Transfer-Encoding: chunked\r\n"),
        HEAD("POST /tokenize", "Expect: 100-continue\r\n" UNSENT),
        HEAD("POST /tokenize", "Authorization: Bearer root\r\n" UNSENT),
        HEAD("POST /tokenize", "Content-Length: 99999999999\r\n"),
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        says(site.port, refused[i], "HTTP/1.1 401 ");
    says(site.admin_port, HEAD("PUT /admin/policies/x", UNSENT), "HTTP/1.1 401 ");
    says(site.admin_port,
         HEAD("PUT /admin/policies/x", "Expect: 100-continue\r\nAuthorization: Bearer sk-free\r\n" UNSENT),
         "HTTP/1.1 401 ");
    says(site.port, HEAD("POST /tokenize", "Expect: 100-continue\r\nAuthorization: Bearer sk-free\r\n" UNSENT),
         "HTTP/1.1 100 ");
    says(site.admin_port,
         HEAD("PUT /admin/policies/x", "Expect: 100-continue\r\nAuthorization: Bearer root\r\n" UNSENT),
         "HTTP/1.1 100 ");
    /* what is wrong with the request beyond its key is known as soon */
    says(site.port, HEAD("POST /nope", "Authorization: Bearer sk-free\r\n" UNSENT), "HTTP/1.1 404 ");
    says(site.port, HEAD("DELETE /tokenize", "Authorization: Bearer sk-free\r\n" UNSENT), "HTTP/1.1 405 ");
    says(site.port, HEAD("POST /tokenize", "Authorization: Bearer sk-free\r\nContent-Length: 99999999999\r\n"),
         "HTTP/1.1 413 ");
    says(site.port, HEAD("GET /health", UNSENT), "HTTP/1.1 413 ");
    says(site.admin_port, HEAD("PUT /admin/policies/x", "Authorization: Bearer root\r\nContent-Length: 9000000\r\n"),
         "HTTP/1.1 413 ");
}

/* A client that sends its body whatever comes sees the answer, and no reset before it. */
static void a_refused_body_is_read_away(void **state)
{
    (void)state;
    struct buf out = site_refuse(site.port, HEAD("POST /v1/completions", "Content-Length: 3000000\r\n"), 3000000);
    assert_non_null(strstr(out.data, "401 Unauthorized"));
    assert_non_null(strstr(out.data, "invalid_api_key"));
    buf_free(&out);
}

/* A refusal without a body does not cost the connection. */
static void a_refused_head_may_be_followed_by_a_better_one(void **state)
{
    (void)state;
    int fd = site_connect(site.port);
    for (int i = 0; i < 3; i++) {
        site_post_on(fd, "GET", "/v1/models", i == 1 ? "Authorization: Bearer sk-free\r\n" : NULL, "");
        struct reply r = site_reply(fd, NULL);
        assert_int_equal(r.status, i == 1 ? 200 : 401);
        reply_free(&r);
    }
    close(fd);
}

static void expect(int port, const char *method, const char *path, const char *extra, const char *body, int status)
{
    struct reply r = site_do(port, method, path, extra, body);
    if (r.status != status)
        fail_msg("%s %s %s: %d instead of %d: %s", method, path, extra, r.status, status, r.body.data);
    reply_free(&r);
}

static void pages_post_json_or_nothing(void **state)
{
    (void)state;
    static const char *const routes[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
    static const char *const bodies[] = {"{\"prompt\":\"SAY:a\"}",
                                         "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:a\"}]}",
                                         "{\"prompt\":\"a\"}", "{\"tokens\":[97]}"};
#define KEY "Authorization: Bearer sk-free\r\n"
    for (int i = 0; i < 4; i++) {
        expect(site.port, "POST", routes[i], KEY "Origin: http://evil\r\n", bodies[i], 415);
        expect(site.port, "POST", routes[i], KEY "Origin: null\r\nContent-Type: text/plain\r\n", bodies[i], 415);
        expect(site.port, "POST", routes[i],
               KEY "Origin: http://evil\r\nContent-Type: application/x-www-form-urlencoded\r\n", bodies[i], 415);
        expect(site.port, "POST", routes[i],
               KEY "Origin: https://a.example\r\nContent-Type: text/plain;application/json\r\n", bodies[i], 415);
        expect(site.port, "POST", routes[i],
               KEY "Origin: https://a.example\r\nContent-Type: Application/JSON; charset=utf-8\r\n", bodies[i], 200);
        expect(site.port, "POST", routes[i], KEY, bodies[i], 200); /* no browser */
        expect(site.port, "POST", routes[i], KEY "Content-Type: application/x-www-form-urlencoded\r\n", bodies[i],
               200); /* curl -d */
    }
}

static void admin_answers_to_hosts_it_knows(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        {"localhost", 200},
        {"LOCALHOST:8001", 200},
        {"localhost.", 200},
        {"127.0.0.1:1", 200},
        {"127.9.9.9", 200},
        {"[::1]:8001", 200},
        {"ops.example", 200},
        {"OPS.example:80", 200},
        {"evil.example", 403},
        {"127.0.0.1.evil.example", 403},
        {"127.x.example", 403},
        {"localhost.evil.example", 403},
        {"", 403},
        {"10.0.0.1", 403},
        {"evil.example@localhost", 403},
        {"localhost:evil", 403},
        {"[::1", 403},
        {"ops.example.evil", 403},
        {"2130706433", 403},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0};
        buf_printf(&b, "GET /admin/state HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer root\r\n\r\n", cases[i].host);
        int fd = site_connect(site.admin_port);
        site_send(fd, b.data, b.len);
        struct reply r = site_reply(fd, NULL);
        if (r.status != cases[i].status)
            fail_msg("Host: %s: %d instead of %d", cases[i].host, r.status, cases[i].status);
        assert_true(r.status == 200 || strstr(r.body.data, "--admin-allowed-hosts"));
        assert_true(r.status == 200 || !strstr(r.body.data, "evil"));
        reply_free(&r);
        buf_free(&b);
        close(fd);
    }
}

static void hosts_are_parsed_not_guessed(void **state)
{
    (void)state;
    static const char *const loopback[] = {"localhost", "127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"};
    static const char *const others[] = {
        "127.x.example", "127.0.0.1.example", "127.", "127.1", "0.0.0.0", "::", "10.0.0.1",
        "128.0.0.1",     "localhost.example", "1::1", ""};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        assert_true(hosts_is_loopback(loopback[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (hosts_is_loopback(others[i]))
            fail_msg("%s is no loopback address", others[i]);
    struct hosts open = {NULL, 0, "node7.example", false};
    assert_true(hosts_know(&open, "node7.example:8001") && hosts_know(&open, "192.0.2.7:8001") &&
                hosts_know(&open, "[2001:db8::1]:8001") && hosts_know(&open, NULL));
    assert_false(hosts_know(&open, "evil.example"));
    static const char *const any[] = {"*"};
    open.names = any;
    open.n_names = 1;
    assert_true(hosts_know(&open, "evil.example"));
}

/* ---- keys */

static void a_spec_is_refused(const char *spec)
{
    struct auth a = {0};
    struct err e = {0};
    if (!auth_add_spec(&a, spec, &e))
        fail_msg("'%s' was taken", spec);
    assert_true(strlen(spec) < 2 || !strstr(e.text, spec)); /* an error goes into logs */
    auth_free(&a);
}

static const struct auth_key *with(const struct auth *a, const char *key)
{
    char header[200];
    snprintf(header, sizeof header, "Bearer %s", key);
    return auth_find(a, header);
}

static void keys_have_one_meaning(void **state)
{
    (void)state;
    struct auth a = {0};
    struct err e = {0};
    static const char *const specs[] = {"alpha=team", "beta=team", "free", "other", "c2VjcmV0==", "cGFk=pad"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        assert_int_equal(auth_add_spec(&a, specs[i], &e), 0);
    assert_string_equal(with(&a, "alpha")->tenant, "team");
    assert_string_equal(with(&a, "c2VjcmV0==")->tenant, "");
    assert_string_equal(with(&a, "cGFk")->tenant, "pad");
    assert_null(with(&a, "alpha=team"));
    assert_null(with(&a, ""));
    assert_null(auth_find(&a, "Basic free"));
    /* a prefix cache is shared within a tenant, and with nobody else */
    assert_string_equal(with(&a, "alpha")->salt, with(&a, "beta")->salt);
    assert_string_not_equal(with(&a, "free")->salt, with(&a, "other")->salt);
    assert_string_not_equal(with(&a, "free")->salt, "");
    struct buf said = {0};
    auth_describe(&a, &said);
    assert_string_equal(said.data, "6 keys of tenants team, pad, 3 without a tenant");
    buf_free(&said);
    auth_free(&a);
    static const char *const refused[] = {"",           "=",        "=team",          "a=b=team",
                                          "sk=one=two", "a==b=c",   "key=bad tenant", "key=.team",
                                          "two words",  "tab\tkey", "k\x7f=t"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        a_spec_is_refused(refused[i]);
}

static void keys_come_from_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says; /* says NULL: fine */
    } cases[] = {
        {"# ours\n\nsk-a=b team-a\r\n  sk-c\t \nsk-d\tteam-d", NULL},
        {"", "no key"},
        {"# nothing\n", "no key"},
        {"ok\nsk-a team extra\n", ":2: expected KEY or KEY TENANT"},
        {"sk-a bad/tenant\n", ":1: tenant names"},
    };
    char path[] = "/tmp/moonshift-keys-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct auth a = {0};
        struct err e = {0};
        assert_int_equal(file_replace(path, cases[i].text, strlen(cases[i].text), &e), 0);
        int rc = auth_read(&a, path, &e);
        if ((rc != 0) != (cases[i].says != NULL) || (rc && !strstr(e.text, cases[i].says)))
            fail_msg("case %zu: %d %s", i, rc, e.text);
        assert_null(strstr(e.text, "sk-"));
        if (!rc) {
            assert_int_equal(a.n, 3);
            assert_string_equal(with(&a, "sk-a=b")->tenant, "team-a"); /* whole: only a command line has '=' between */
            assert_string_equal(with(&a, "sk-c")->tenant, "");
            assert_string_equal(with(&a, "sk-d")->tenant, "team-d");
        }
        auth_free(&a);
    }
    unlink(path);
    struct auth a = {0};
    struct err e = {0};
    assert_int_equal(auth_read(&a, path, &e), E_NOTFOUND);
    auth_free(&a);
}

/* What of a key reaches the engine: the last request's words. */
static struct fake_seen ask(const char *extra)
{
    int n = site.engine.n_submitted;
    expect(site.port, "POST", "/v1/completions", extra, "{\"prompt\":\"SAY:a\"}", 200);
    assert_int_equal(site.engine.n_submitted, n + 1);
    return site.engine.seen[n % FAKE_SEEN];
}

static void keys_do_not_share_a_prefix_cache(void **state)
{
    (void)state;
    struct fake_seen a = ask("Authorization: Bearer sk-alpha\r\n"), b = ask("Authorization: Bearer sk-beta\r\n");
    struct fake_seen c = ask("Authorization: Bearer sk-free\r\n"), d = ask("Authorization: Bearer sk-other\r\n"),
                     again = ask("Authorization: Bearer sk-free\r\n");
    assert_string_equal(a.tenant, "team");
    assert_string_equal(a.salt, b.salt);
    assert_string_equal(c.tenant, "default");
    assert_string_equal(c.salt, again.salt);
    assert_string_not_equal(c.salt, d.salt);
    assert_string_not_equal(c.salt, a.salt);
    assert_null(strstr(c.salt, "sk-free"));
}

/* Two clients that call their requests the same get their word back, and are two requests. */
static void a_clients_request_id_is_not_the_engines(void **state)
{
    (void)state;
    struct fake_seen a = ask("Authorization: Bearer sk-free\r\nX-Request-Id: bench-7\r\n"),
                     b = ask("Authorization: Bearer sk-free\r\nX-Request-Id: bench-7\r\n");
    assert_string_not_equal(a.name, b.name);
    assert_int_equal(strncmp(a.name, "cmpl-bench-7-", 13), 0);
    char extra[200];
    static const char word[] = "a-request-id-that-is-quite-long-and-goes-on-as-far-as-it-may-go";
    snprintf(extra, sizeof extra, "Authorization: Bearer sk-free\r\nX-Request-Id: %s\r\n", word);
    assert_int_equal(strlen(word), NAME_BYTES - 1);
    a = ask(extra);
    b = ask(extra);
    assert_string_not_equal(a.name, b.name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_asked_for_before_the_body),
        cmocka_unit_test(a_refused_body_is_read_away),
        cmocka_unit_test(a_refused_head_may_be_followed_by_a_better_one),
        cmocka_unit_test(pages_post_json_or_nothing),
        cmocka_unit_test(admin_answers_to_hosts_it_knows),
        cmocka_unit_test(hosts_are_parsed_not_guessed),
        cmocka_unit_test(keys_have_one_meaning),
        cmocka_unit_test(keys_come_from_files),
        cmocka_unit_test(keys_do_not_share_a_prefix_cache),
        cmocka_unit_test(a_clients_request_id_is_not_the_engines),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
