/* Log lines: one line each whatever the text holds, valid JSON on request, whole under many threads. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/thread.h"
#include "engine/base/utf8.h"

struct capture {
    char path[32];
    int old;
};

static void capture_begin(struct capture *c)
{
    snprintf(c->path, sizeof c->path, "%s", "/tmp/unit_log-XXXXXX");
    int fd = mkstemp(c->path);
    assert_true(fd >= 0);
    fcntl(fd, F_SETFL, O_APPEND);
    c->old = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static void capture_end(struct capture *c, struct buf *out)
{
    dup2(c->old, STDERR_FILENO);
    close(c->old);
    buf_clear(out);
    file_read(out, c->path, 1 << 24, NULL);
    unlink(c->path);
}

static int lines_of(const struct buf *b)
{
    int n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += b->data[i] == '\n';
    return n;
}

static void levels_are_respected(void **state)
{
    (void)state;
    struct capture c;
    struct buf b = {0};
    log_setup(&(struct log_opts){.level = LOG_WARN});
    capture_begin(&c);
    log_info("part", "not this");
    log_warn("part", "%d things", 2);
    capture_end(&c, &b);
    assert_null(strstr(b.data, "not this"));
    assert_int_equal(strncmp(b.data, "WARN ", 5), 0);
    assert_non_null(strstr(b.data, " [part] 2 things\n"));
    buf_free(&b);
}

static void hostile_text_stays_one_line(void **state)
{
    (void)state;
    static const char *const hostile[] = {
        "two\nlines",
        "\x1b[2Jgone",
        "cr\rINFO 00:00:00 [x] forged",
        "bad \xFF\xFE bytes",
        "tab\there",
        "del\x7f",
        "c1 \xC2\x9B"
        "2J",
        "\xE2\x80\xAEturned",
        "no\xE2\x80\x8Bwidth",
        "tag \xF3\xA0\x81\x81",
    };
    struct buf b = {0};
    for (int json = 0; json < 2; json++) {
        log_setup(&(struct log_opts){.level = LOG_INFO, .json = json});
        for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
            struct capture c;
            capture_begin(&c);
            log_info("http", "%s", hostile[i]);
            capture_end(&c, &b);
            assert_int_equal(lines_of(&b), 1);
            assert_true(utf8_valid(b.data, b.len));
            for (size_t k = 0; k + 1 < b.len; k++)
                assert_true((unsigned char)b.data[k] >= 0x20 && b.data[k] != 0x7f);
            assert_null(strstr(b.data, "\xC2\x9B"));
            for (uint32_t cp, k = 0; k < b.len - 1; k += (uint32_t)utf8_decode(b.data + k, b.len - k, &cp))
                assert_true(utf8_decode(b.data + k, b.len - k, &cp) > 0 && utf8_is_seen(cp));
            if (json)
                assert_true(b.data[0] == '{' && !strcmp(b.data + b.len - 2, "}\n"));
        }
    }
    buf_free(&b);
}

static void long_text_is_cut_between_characters(void **state)
{
    (void)state;
    struct buf b = {0}, text = {0};
    for (int i = 0; i < 3000; i++)
        buf_puts(&text, "\xE2\x82\xAC");
    for (int pad = 0; pad < 3; pad++) {
        struct capture c;
        log_setup(&(struct log_opts){.level = LOG_INFO});
        capture_begin(&c);
        log_info("x", "%.*s%s", pad, "ab", text.data);
        capture_end(&c, &b);
        assert_true(utf8_valid(b.data, b.len));
        assert_null(strstr(b.data, "\xEF\xBF\xBD"));
        assert_true(lines_of(&b) == 1 && b.len > 2000 && b.len < 2200);
    }
    buf_free(&b);
    buf_free(&text);
}

static void chatter(void *p)
{
    for (int i = 0; i < 500; i++)
        log_info("many", "thread %d says something of some length, number %d.", *(int *)p, i);
}

static void lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    struct capture c;
    struct buf b = {0};
    struct thread *t[4];
    int numbers[4] = {0, 1, 2, 3};
    log_setup(&(struct log_opts){.level = LOG_INFO});
    capture_begin(&c);
    for (int i = 0; i < 4; i++)
        thread_start(&t[i], "chatter", chatter, &numbers[i], NULL);
    for (int i = 0; i < 4; i++)
        thread_join(t[i]);
    capture_end(&c, &b);
    assert_int_equal(lines_of(&b), 2000);
    for (char *line = b.data, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(!strncmp(line, "INFO ", 5) && end[-1] == '.' && end - line < 100);
    buf_free(&b);
}

static void progress_off_a_terminal(void **state)
{
    (void)state;
    struct capture c;
    struct buf b = {0};
    log_setup(&(struct log_opts){.level = LOG_INFO});
    capture_begin(&c);
    for (int i = 0; i <= 1000; i++)
        log_progress("loading", i, 1000, "tensors");
    capture_end(&c, &b);
    assert_in_range(lines_of(&b), 1, 3);
    assert_non_null(strstr(b.data, "loading: 100% | 1000/1000 tensors\n"));
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_respected),
        cmocka_unit_test(hostile_text_stays_one_line),
        cmocka_unit_test(long_text_is_cut_between_characters),
        cmocka_unit_test(lines_of_threads_do_not_mix),
        cmocka_unit_test(progress_off_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
