/* The audit log's chain, and the folder that keeps it: what verifies, what does not and where, what is left after a
 * write that failed. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/serve/versions/store.h"

static struct audit_entry entry(const char *event, const char *reason)
{
    struct audit_entry a = {.at_s = 1767225600};
    snprintf(a.actor, sizeof a.actor, "key:alice");
    snprintf(a.event, sizeof a.event, "%s", event);
    snprintf(a.policy, sizeof a.policy, "mine");
    snprintf(a.result, sizeof a.result, "ok");
    snprintf(a.reason, sizeof a.reason, "%s", reason);
    memset(a.to, 'a', 64);
    return a;
}

static struct buf chain(int n)
{
    struct buf out = {0};
    struct audit_chain c;
    audit_begin(&c);
    for (int i = 0; i < n; i++) {
        struct audit_entry a = entry("load", i == 1 ? "a \"reason\"\nof two lines, \xc3\xa9" : "");
        audit_put(&c, &a, &out);
    }
    return out;
}

static void count(void *ctx, uint64_t seq, const struct audit_entry *a)
{
    uint64_t *n = ctx;
    assert_int_equal(seq, ++*n);
    assert_int_equal(a->at_s, 1767225600);
    assert_string_equal(a->actor, "key:alice");
}

static void compare(void *ctx, uint64_t seq, const struct audit_entry *a)
{
    count(ctx, seq, a);
    assert_string_equal(a->reason, seq == 2 ? "a \"reason\"\nof two lines, \xc3\xa9" : "");
}

static void a_line_is_what_the_page_says(void **state)
{
    (void)state;
    struct buf text = chain(1);
    char want[600], zeros[65], as[65];
    memset(zeros, '0', 64);
    memset(as, 'a', 64);
    zeros[64] = as[64] = 0;
    snprintf(want, sizeof want,
             "{\"seq\":1,\"time\":\"2026-01-01T00:00:00Z\",\"actor\":\"key:alice\",\"event\":\"load\",\"policy\":"
             "\"mine\",\"from\":\"\",\"to\":\"%s\",\"result\":\"ok\",\"reason\":\"\",\"prev\":\"%s\"}\n",
             as, zeros);
    assert_string_equal(text.data, want);
    buf_free(&text);
}

static void a_whole_chain_is_read_back(void **state)
{
    (void)state;
    struct buf text = chain(5);
    struct audit_found f;
    uint64_t n = 0;
    assert_int_equal(audit_read(text.data, text.len, compare, &n, &f, NULL), 0);
    assert_int_equal(n, 5);
    assert_int_equal(f.chain.seq, 5);
    assert_int_equal(f.whole, text.len);
    for (size_t cut = text.len - 1; cut > text.len - 40; cut--) { /* without its end the last line is not there */
        assert_int_equal(audit_read(text.data, cut, NULL, NULL, &f, NULL), 0);
        assert_int_equal(f.chain.seq, 4);
        assert_true(f.whole < cut);
    }
    buf_free(&text);
}

/* The n-th line of text, from 0: where it begins, and its bytes with the newline. */
static char *line_of(const struct buf *text, int n, size_t *bytes)
{
    char *at = text->data;
    while (n--)
        at = strchr(at, '\n') + 1;
    *bytes = (size_t)(strchr(at, '\n') + 1 - at);
    return at;
}

static void refused(const struct buf *text, const char *says)
{
    struct audit_found f;
    struct err e = {0};
    assert_int_equal(audit_read(text->data, text->len, NULL, NULL, &f, &e), E_INPUT);
    if (!strstr(e.text, says))
        fail_msg("'%s' does not say '%s'", e.text, says);
}

static void every_changed_byte_shows(void **state)
{
    (void)state;
    struct buf text = chain(3);
    size_t bytes;
    line_of(&text, 2, &bytes);
    size_t before_last = text.len - bytes; /* nothing follows the last line that would know its sum */
    for (size_t i = 0; i < before_last; i++) {
        struct audit_found f;
        struct err e = {0};
        char was = text.data[i];
        text.data[i] = was == 'x' ? 'y' : 'x';
        int rc = audit_read(text.data, text.len, NULL, NULL, &f, &e);
        if (rc != E_INPUT || strncmp(e.text, "line ", 5) != 0)
            fail_msg("byte %zu: %d: %s", i, rc, e.text);
        text.data[i] = was;
    }
    buf_free(&text);
}

static void lines_that_miss_repeat_or_do_not_fit_are_named(void **state)
{
    (void)state;
    size_t bytes;
    struct buf text = chain(4);
    char *at = line_of(&text, 1, &bytes);
    memmove(at, at + bytes, text.len - (size_t)(at - text.data) - bytes);
    text.len -= bytes;
    refused(&text, "line 2: its seq is 3 and not 2: a line is missing");
    buf_free(&text);

    text = chain(2);
    at = line_of(&text, 1, &bytes);
    char copy[1024];
    memcpy(copy, at, bytes);
    buf_put(&text, copy, bytes);
    refused(&text, "line 3: its seq is 2, which was there before");
    buf_free(&text);

    text = chain(3);
    at = line_of(&text, 1, &bytes);
    memcpy(strstr(at, "\"prev\":\"") + 8, "0000", 4);
    refused(&text, "line 2: its prev is not the SHA-256 of the line before");
    buf_free(&text);

    text = chain(1);
    memcpy(strstr(text.data, "\"prev\":\"") + 8, "1", 1);
    refused(&text, "line 1: it is the first, and its prev is not 64 zeros");
    buf_free(&text);
}

static void what_is_no_line_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\n", "{}\n", "[1]\n", "{\"seq\":-1}\n", "{\"seq\":1.5}\n", "nonsense\n", "{\"seq\":1,\"prev\":7}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buf text = {0};
        buf_puts(&text, texts[i]);
        refused(&text, "line 1: ");
        buf_free(&text);
    }
}

/* ---- the folder */

static char dir[64];

static void path_of(const char *name, char out[160])
{
    snprintf(out, 160, "%s/%s", dir, name);
}

static int new_folder(void **state)
{
    (void)state;
    log_setup(&(struct log_opts){.level = LOG_ERROR});
    snprintf(dir, sizeof dir, "/tmp/moonshift-store-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    char line[160];
    snprintf(line, sizeof line, "rm -rf %s", dir);
    return system(line);
}

static struct store *opened(void)
{
    struct store *s;
    struct err e = {0};
    if (store_open(&s, dir, NULL, NULL, &e))
        fail_msg("%s", e.text);
    return s;
}

static void a_second_opener_is_kept_out(void **state)
{
    (void)state;
    struct store *s = opened(), *other = NULL;
    struct err e = {0};
    assert_int_equal(store_open(&other, dir, NULL, NULL, &e), E_INPUT);
    assert_null(other);
    assert_non_null(strstr(e.text, dir));
    store_close(s);
    store_close(opened());
}

static void sources_are_what_their_names_say(void **state)
{
    (void)state;
    struct store *s = opened();
    struct buf out = {0};
    struct err e = {0};
    struct sha256 sum = hash_sha256("return {}", 9);
    char hex[65], path[160], name[80];
    hash_hex(&sum, hex);
    assert_int_equal(store_put(s, hex, "return {}", 9, &e), 0);
    assert_int_equal(store_put(s, hex, "return {}", 9, &e), 0);
    assert_int_equal(store_get(s, hex, 1000, &out, &e), 0);
    assert_true(buf_equals(&out, "return {}"));
    snprintf(name, sizeof name, "policies/%s.lua", hex);
    path_of(name, path);
    assert_int_equal(file_replace(path, "return 1 ", 9, NULL), 0);
    buf_clear(&out);
    assert_int_equal(store_get(s, hex, 1000, &out, &e), E_INPUT);
    assert_int_equal(out.len, 0);
    store_drop(s, hex);
    assert_int_equal(store_get(s, hex, 1000, &out, &e), E_NOTFOUND);
    buf_free(&out);
    store_close(s);
}

static size_t size_of(const char *name)
{
    char path[160];
    struct stat st;
    path_of(name, path);
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

/* Writes fail past a size of file, as they do on a full disk: what was there stays whole, and goes on later. */
static void a_full_disk_tears_nothing(void **state)
{
    (void)state;
    struct store *s = opened();
    struct err e = {0};
    struct audit_entry a = entry("load", "");
    struct rlimit full, was;
    for (int i = 0; i < 3; i++)
        assert_int_equal(store_log(s, &a, &e), 0);
    size_t whole = size_of("audit.jsonl");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    full = was;
    full.rlim_cur = whole + 100; /* in the middle of the next line */
    setrlimit(RLIMIT_FSIZE, &full);
    int rc = store_log(s, &a, &e);
    struct good g = {.params = NULL};
    snprintf(g.name, sizeof g.name, "mine");
    memset(g.sha256, 'b', 64);
    char *large = calloc(1, 4096);
    memset(large, ' ', 4000);
    int source = store_put(s, g.sha256, large, 4000, NULL);
    setrlimit(RLIMIT_FSIZE, &was);
    free(large);
    assert_int_equal(rc, E_SYS);
    assert_int_equal(source, E_SYS);
    assert_int_equal(size_of("audit.jsonl"), whole);
    assert_int_equal(store_log(s, &a, &e), 0);
    assert_int_equal(store_set_good(s, &g, &e), 0);
    store_close(s);
    uint64_t n = 0;
    assert_int_equal(store_open(&s, dir, count, &n, &e), 0);
    assert_int_equal(n, 4);
    struct good back;
    assert_int_equal(store_good(s, &back, &e), 0);
    assert_string_equal(back.name, "mine");
    good_free(&back);
    store_close(s);
}

static void lines_are_found_by_number(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct store *s;
        struct err e = {0};
        struct audit_entry a = entry("load", "");
        assert_int_equal(store_open(&s, with ? dir : NULL, NULL, NULL, &e), 0);
        for (int i = 0; i < 9; i++)
            assert_int_equal(store_log(s, &a, &e), 0);
        static const struct {
            uint64_t from;
            int n, first, lines;
        } cases[] = {{0, 3, 7, 3}, {0, 100, 1, 9}, {4, 2, 4, 2}, {9, 5, 9, 1}, {10, 5, 0, 0}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct buf out = {0};
            char want[20];
            int lines = 0;
            assert_int_equal(store_lines(s, cases[i].from, cases[i].n, &out, &e), 0);
            for (size_t k = 0; k < out.len; k++)
                lines += out.data[k] == '\n';
            assert_int_equal(lines, cases[i].lines);
            snprintf(want, sizeof want, "{\"seq\":%d,", cases[i].first);
            assert_true(!lines || strncmp(out.data, want, strlen(want)) == 0);
            buf_free(&out);
        }
        store_close(s);
    }
}

static void a_last_good_that_says_nothing_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{}", "[]", "{\"name\":\"../x\",\"sha256\":\"\",\"params\":{}}",
                                        "{\"name\":\"x\",\"sha256\":\"abc\",\"params\":{}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct good g;
        struct err e = {0};
        assert_int_equal(good_read(&g, texts[i], strlen(texts[i]), &e), E_INPUT);
        assert_true(e.text[0] && !g.params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_what_the_page_says),
        cmocka_unit_test(a_whole_chain_is_read_back),
        cmocka_unit_test(every_changed_byte_shows),
        cmocka_unit_test(lines_that_miss_repeat_or_do_not_fit_are_named),
        cmocka_unit_test(what_is_no_line_is_refused),
        cmocka_unit_test_setup_teardown(a_second_opener_is_kept_out, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(sources_are_what_their_names_say, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_full_disk_tears_nothing, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(lines_are_found_by_number, new_folder, drop_folder),
        cmocka_unit_test(a_last_good_that_says_nothing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
