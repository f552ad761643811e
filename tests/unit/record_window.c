/* The window of a server's last traffic: what is written are whole lines in their order, from the asked time on, behind
 * a first line that says where it begins; memory stays within what was given; and one thread adds while others write.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/lab/recording/record_window.h"

enum { MS = 1000000 };

/* One chunk; the times of its first and last line with one are given. */
static void add(struct record_window *w, const char *text, int64_t from, int64_t to, int n_arrived)
{
    record_window_add(w, &(struct record_chunk){text, strlen(text), from, to, n_arrived});
}

/* What a window is as text; NULL: rc. The caller frees it. */
static char *written(struct record_window *w, int64_t last_ns, struct record_window_facts *f, int *rc)
{
    char *text = NULL;
    size_t n = 0;
    struct err e = {0};
    FILE *to = open_memstream(&text, &n);
    *rc = record_window_write(w, &(struct record_window_ask){.last_ns = last_ns, .policy = "a \"b\"", .sha256 = "00"},
                              to, f, &e);
    fclose(to);
    assert_true(!*rc || e.text[0]);
    return text;
}

static void check_text(struct record_window *w, int64_t last_ns, struct record_window_facts *f, const char *expected)
{
    int rc;
    char *text = written(w, last_ns, f, &rc);
    assert_int_equal(rc, 0);
    assert_string_equal(text, expected);
    free(text);
}

#define HEAD(from, order)                                                                                              \
    "{\"x\":1,\"window\":{\"from_ns\":" #from ",\"order\":" #order "},"                                                \
    "\"policy\":{\"name\":\"a \\\"b\\\"\",\"sha256\":\"00\",\"params\":{}}}\n"

static void it_is_written_as_it_came(void **state)
{
    (void)state;
    struct record_window *w = record_window_new(0);
    struct record_window_facts f;
    int rc;
    free(written(w, 0, &f, &rc));
    assert_int_equal(rc, E_NOTFOUND); /* it has not begun */
    record_window_begin(w, mem_strdup("{\"x\":1,"));
    add(w, "v 1 step slow\nt 5\n", 0, 5, 0);
    free(written(w, 0, &f, &rc));
    assert_int_equal(rc, E_NOTFOUND); /* nobody came */
    add(w, "e 7 2 stop 4 0\na 8 - 7 3\n", 7, 8, 1);
    free(written(w, 0, &f, &rc));
    assert_int_equal(rc, E_NOTFOUND); /* he was turned away */
    add(w, "a 10 3 9 40\nk 0011\nq 10 D00\np 3 0\ns 20 1 1\nf 20 1\n", 10, 20, 1);
    add(w, "e 30 3 length 5 0\ne 31 1 abort 5 0\na 32 6 31\ne 40 6 error 0 0\n", 30, 40, 1);
    check_text(w, 0, &f,
               HEAD(5, 3) "t 5\ne 7 2 stop 4 0\na 8 - 7 3\na 10 3 9 40\nk 0011\nq 10 D00\np 3 0\ns 20 1 1\n"
                          "e 30 3 length 5 0\ne 31 1 abort 5 0\na 32 6 31\ne 40 6 error 0 0\n");
    assert_true(f.from_ns == 5 && f.to_ns == 40 && f.n_arrived == 2 && f.n_ended == 1 && f.n_before == 2 &&
                f.n_steps == 1 && f.most == 0);
    check_text(w, 29, &f, HEAD(20, 6) "s 20 1 1\ne 30 3 length 5 0\ne 31 1 abort 5 0\na 32 6 31\ne 40 6 error 0 0\n");
    assert_true(f.n_arrived == 1 && f.n_before == 2 && f.n_ended == 0);
    check_text(w, 1000, &f, /* more than there is */
               HEAD(5, 3) "t 5\ne 7 2 stop 4 0\na 8 - 7 3\na 10 3 9 40\nk 0011\nq 10 D00\np 3 0\ns 20 1 1\n"
                          "e 30 3 length 5 0\ne 31 1 abort 5 0\na 32 6 31\ne 40 6 error 0 0\n");
    free(written(w, 5, &f, &rc));
    assert_int_equal(rc, E_NOTFOUND); /* in its last 5 ns nobody came */
    record_window_look(w, &f);
    assert_true(f.from_ns == 0 && f.to_ns == 40 && f.n_arrived == 3 && f.most == RECORD_WINDOW_LEAST);
    record_window_free(w);
}

static void params_and_names_are_in_the_first_line(void **state)
{
    (void)state;
    struct record_window *w = record_window_new(0);
    struct record_window_facts f;
    struct err e = {0};
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    record_window_begin(w, mem_strdup("{"));
    add(w, "a 1 0 1\n", 1, 1, 1);
    struct record_window_ask ask = {.policy = "p", .sha256 = "ff", .params = "{\"k\":2}"};
    assert_int_equal(record_window_write(w, &ask, to, &f, &e), 0);
    fclose(to);
    assert_string_equal(text, "{\"window\":{\"from_ns\":1,\"order\":0},\"policy\":{\"name\":\"p\",\"sha256\":\"ff\","
                              "\"params\":{\"k\":2}}}\na 1 0 1\n");
    free(text);
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_int_equal(record_window_write(w, &ask, full, &f, &e), E_SYS);
    fclose(full);
    record_window_free(w);
}

/* A request and a step each ms, numbered: whatever is written has all numbers from the first to the last. */
static void put_ms(struct buf *out, int64_t i)
{
    buf_printf(out, "a %lld %lld %lld\ns %lld x\n", (long long)i * MS, (long long)i, (long long)i * MS,
               (long long)i * MS + 1);
}

/* It may begin with either of the two lines of a number. Returns how many lines there are behind the first one. */
static int64_t check_numbers(const char *text, const struct record_window_facts *f)
{
    const char *line = strchr(text, '\n') + 1;
    int64_t first = -1, n = 0, arrived = 0, from = 0;
    for (; *line; line = strchr(line, '\n') + 1, n++) {
        int64_t t = strtoll(line + 1, NULL, 10);
        if (first < 0) {
            from = t;
            first = 2 * (t / MS) + (*line == 's');
        }
        bool step = (first + n) % 2;
        assert_int_equal(t, (first + n) / 2 * MS + step);
        assert_true(*line == (step ? 's' : 'a'));
        arrived += !step;
    }
    assert_int_equal(f->from_ns, from);
    assert_int_equal(f->n_arrived, arrived);
    return n;
}

static void memory_is_bounded_and_the_oldest_goes(void **state)
{
    (void)state;
    enum { MOST = 2 << 20, ALL = 200000, A_CHUNK = 700 };
    struct record_window *w = record_window_new(MOST);
    struct record_window_facts f;
    struct buf text = {0}, large = {0};
    size_t total = 0;
    int rc;
    record_window_begin(w, mem_strdup("{"));
    for (int64_t i = 0; i < ALL; i++) {
        put_ms(&text, i);
        if (i % A_CHUNK && i + 1 < ALL)
            continue;
        record_window_add(w, &(struct record_chunk){.text = text.data,
                                                    .n = text.len,
                                                    .from_ns = (i ? (i - 1) / A_CHUNK * A_CHUNK + 1 : 0) * MS,
                                                    .to_ns = i * MS + 1,
                                                    .n_arrived = 1});
        total += text.len;
        buf_clear(&text);
        record_window_look(w, &f);
        assert_true(f.bytes <= MOST && f.most == MOST);
    }
    assert_true(total > 3 * MOST);
    char *all = written(w, 0, &f, &rc);
    int64_t n = check_numbers(all, &f);
    assert_true(f.bytes > MOST * 3 / 4 && f.bytes < MOST && n < 2 * ALL && f.to_ns == (int64_t)(ALL - 1) * MS + 1);
    free(all);
    all = written(w, 249 * (int64_t)MS + 1, &f, &rc); /* the last 250 requests */
    assert_int_equal(check_numbers(all, &f), 2 * 250);
    free(all);
    buf_puts(&large, "a 300000000000000 9 1 ");
    for (int i = 0; i < 3 * RECORD_BLOCK_BYTES; i++)
        buf_putc(&large, 'x');
    buf_putc(&large, '\n');
    add(w, large.data, 300000000000000, 300000000000000, 1); /* larger than a block */
    record_window_look(w, &f);
    assert_true(f.bytes <= MOST);
    all = written(w, 1, &f, &rc);
    assert_string_equal(strchr(all, '\n') + 1, large.data);
    free(all);
    buf_free(&text);
    buf_free(&large);
    record_window_free(w);
}

struct adding {
    struct record_window *w;
    _Atomic bool over;
};

static void add_many(void *arg)
{
    struct adding *a = arg;
    struct buf text = {0};
    for (int64_t i = 0; i < 60000; i++) {
        put_ms(&text, i);
        if (i % 37 == 0) {
            record_window_add(a->w, &(struct record_chunk){text.data, text.len, i * MS, i * MS + 1, 1});
            buf_clear(&text);
        }
    }
    buf_free(&text);
    atomic_store(&a->over, true);
}

static void it_is_written_while_it_goes_on(void **state)
{
    (void)state;
    struct adding a = {.w = record_window_new(0)};
    struct thread *t = NULL;
    struct record_window_facts f;
    struct err e = {0};
    int rc, n = 0;
    record_window_begin(a.w, mem_strdup("{"));
    assert_int_equal(thread_start(&t, "add", add_many, &a, &e), 0);
    for (bool over = false; !over || n < 3;) {
        over = atomic_load(&a.over);
        char *text = written(a.w, 0, &f, &rc);
        assert_true(rc == 0 || (rc == E_NOTFOUND && !over));
        if (!rc) {
            check_numbers(text, &f);
            n++;
        }
        free(text);
    }
    thread_join(t);
    record_window_free(a.w);
    record_window_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_written_as_it_came), cmocka_unit_test(params_and_names_are_in_the_first_line),
        cmocka_unit_test(memory_is_bounded_and_the_oldest_goes), cmocka_unit_test(it_is_written_while_it_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
