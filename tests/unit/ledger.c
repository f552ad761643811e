/* The ledger: what is noted is known at once and in the next process, the oldest goes where there is no room, and what
 * cannot be written is counted and loses nothing else. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/serve/versions/ledger.h"

static char dir[64];

static int new_folder(void **state)
{
    (void)state;
    log_setup(&(struct log_opts){.level = LOG_ERROR + 1});
    snprintf(dir, sizeof dir, "/tmp/moonshift-ledger-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    char line[160];
    snprintf(line, sizeof line, "rm -rf %s", dir);
    return system(line);
}

static struct ledger *opened(void)
{
    struct ledger *l;
    struct err e = {0};
    if (ledger_open(&l, dir, &e))
        fail_msg("%s", e.text);
    return l;
}

/* A source of its own for each i, and its hash. */
static void source_of(int i, struct buf *out, char hex[65])
{
    buf_clear(out);
    buf_printf(out, "return %d", i);
    struct sha256 sum = hash_sha256(out->data, out->len);
    hash_hex(&sum, hex);
}

static void note_load(struct ledger *l, int i)
{
    struct buf source = {0};
    char hex[65];
    source_of(i, &source, hex);
    struct audit_entry a = ledger_entry("file", "load", "mine", hex);
    ledger_note(l, &a, &(struct ledger_extra){.source = &source});
    buf_free(&source);
}

static void note(struct ledger *l, const char *event, int from, int to, const char *result)
{
    struct buf source = {0};
    char hex[65];
    source_of(to, &source, hex);
    struct audit_entry a = ledger_entry("engine", event, "mine", hex);
    source_of(from, &source, a.from);
    snprintf(a.result, sizeof a.result, "%s", result);
    snprintf(a.reason, sizeof a.reason, "a reason");
    ledger_note(l, &a, NULL);
    buf_free(&source);
}

static int n_sources(void)
{
    char path[160];
    int n = 0;
    snprintf(path, sizeof path, "%s/policies", dir);
    DIR *d = opendir(path);
    for (struct dirent *f; (f = readdir(d));)
        n += f->d_name[0] != '.';
    closedir(d);
    return n;
}

static struct version *find(struct ledger *l, int i)
{
    struct buf source = {0};
    char hex[65];
    source_of(i, &source, hex);
    buf_free(&source);
    return book_find(l->book, "mine", hex);
}

static const char *quarantined(struct ledger *l, int i)
{
    struct buf source = {0};
    char hex[65];
    source_of(i, &source, hex);
    buf_free(&source);
    return book_quarantined(l->book, hex);
}

static void the_oldest_goes_and_what_is_needed_stays(void **state)
{
    (void)state;
    struct ledger *l = opened();
    for (int i = 0; i < 3; i++)
        note_load(l, i);
    note(l, "activate", 1, 0, "ok"); /* 0 is live, 1 the one before */
    note(l, "commit", 1, 2, "ok");   /* 2 was good last */
    for (int i = 3; i < BOOK_VERSIONS + 10; i++)
        note_load(l, i);
    assert_int_equal(l->book->n, BOOK_VERSIONS);
    assert_int_equal(n_sources(), BOOK_VERSIONS);
    assert_true(find(l, 0) && find(l, 1) && find(l, 2) && !find(l, 3) && !find(l, 12) && find(l, 13));
    ledger_close(l);
    l = opened();
    assert_int_equal(l->book->n, BOOK_VERSIONS);
    assert_true(find(l, 0)->source && find(l, 2)->good && !find(l, 12) && find(l, 13)->source);
    assert_ptr_equal(book_good(l->book, 0), find(l, 2));
    assert_null(book_good(l->book, 1));
    ledger_close(l);
}

static void quarantine_outlives_the_process_until_it_is_lifted(void **state)
{
    (void)state;
    struct ledger *l = opened();
    note_load(l, 1);
    note_load(l, 2);
    note_load(l, 3);
    note(l, "activate", 1, 2, "ok");
    note(l, "withdraw", 2, 1, "quarantined");
    note(l, "activate", 1, 3, "ok");
    note(l, "withdraw", 3, 1, "rests"); /* it was only slow */
    for (int again = 0; again < 2; again++) {
        assert_string_equal(quarantined(l, 2), "a reason");
        assert_null(quarantined(l, 3));
        assert_ptr_equal(book_before(l->book, NULL), find(l, 3)); /* 2 was live, too, and may not be again */
        ledger_close(l);
        l = opened();
    }
    note(l, "release", 1, 2, "ok");
    assert_null(quarantined(l, 2));
    ledger_close(l);
    l = opened();
    assert_null(quarantined(l, 2));
    ledger_close(l);
}

static void a_source_that_no_line_knows_is_removed(void **state)
{
    (void)state;
    struct ledger *l = opened();
    char path[200], hex[65];
    struct buf source = {0};
    note_load(l, 1);
    ledger_close(l);
    source_of(2, &source, hex);
    snprintf(path, sizeof path, "%s/policies/%s.lua", dir, hex);
    assert_int_equal(file_replace(path, source.data, source.len, NULL), 0);
    source_of(1, &source, hex);
    snprintf(path, sizeof path, "%s/policies/%s.lua.tmp-abc", dir, hex);
    assert_int_equal(file_replace(path, "half", 4, NULL), 0);
    assert_int_equal(n_sources(), 3);
    l = opened();
    assert_int_equal(n_sources(), 1);
    assert_true(find(l, 1)->source && !find(l, 2));
    ledger_close(l);
    buf_free(&source);
}

static void told(void *ctx, int rc)
{
    *(int *)ctx = rc;
}

static void what_cannot_be_written_is_counted_and_told(void **state)
{
    (void)state;
    struct ledger *l = opened();
    struct rlimit was, full;
    uint64_t n_failed = 0;
    int rc = 0;
    l->n_failed = &n_failed;
    note_load(l, 1);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    full = was;
    full.rlim_cur = 1;
    setrlimit(RLIMIT_FSIZE, &full);
    struct audit_entry a = ledger_entry("engine", "commit", "mine", find(l, 1)->sha256);
    ledger_note(l, &a, &(struct ledger_extra){.fn = told, .ctx = &rc, .later = true});
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(rc, E_SYS);
    assert_int_equal(n_failed, 1);
    assert_string_equal(l->book->good, ""); /* what is not written is not so */
    ledger_note(l, &a, &(struct ledger_extra){.fn = told, .ctx = &rc, .later = true});
    assert_int_equal(rc, 0);
    assert_string_equal(l->book->good, find(l, 1)->sha256);
    ledger_close(l);
    l = opened();
    assert_string_equal(l->book->good, find(l, 1)->sha256);
    ledger_close(l);
}

/* Hashes that begin alike are laid into the book by name: none that do are known. */
static void the_beginning_of_several_is_none(void **state)
{
    (void)state;
    struct book *b = calloc(1, sizeof *b);
    struct version *v;
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        struct audit_entry a = ledger_entry("file", "load", i ? "one" : "two", "");
        memset(a.to, 'a', 64);
        a.to[20] = i ? 'b' : 'c';
        book_take(b, &a);
        book_keep(b, a.to, "x", 1);
    }
    assert_int_equal(book_resolve(b, NULL, "aaaaaaaa", &v, &e), E_INPUT);
    assert_non_null(strstr(e.text, "several"));
    assert_int_equal(book_resolve(b, "one", "aaaaaaaa", &v, &e), 0);
    assert_int_equal(book_resolve(b, NULL, "aaaaaaaaaaaaaaaaaaaac", &v, &e), 0);
    assert_string_equal(v->name, "two");
    assert_int_equal(book_resolve(b, NULL, "aaaaaaa", &v, &e), E_INPUT);
    assert_int_equal(book_resolve(b, NULL, "bbbbbbbb", &v, &e), E_NOTFOUND);
    book_free(b);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_oldest_goes_and_what_is_needed_stays, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(quarantine_outlives_the_process_until_it_is_lifted, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_source_that_no_line_knows_is_removed, new_folder, drop_folder),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_is_counted_and_told, new_folder, drop_folder),
        cmocka_unit_test(the_beginning_of_several_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
