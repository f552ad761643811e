/* Files: whole reads with a bound, maps, replacement that no reader can catch half done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/thread.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s", "/tmp/unit_file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void reads_and_limits(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = {0};
    const char *p = path_of("a");
    assert_int_equal(file_replace(p, "hello\0world", 11, &e), 0);
    buf_puts(&b, "> ");
    assert_int_equal(file_read(&b, p, 11, &e), 0);
    assert_int_equal(b.len, 13);
    assert_memory_equal(b.data, "> hello\0world", 14);
    buf_clear(&b);
    assert_int_equal(file_read(&b, p, 10, &e), E_INPUT);
    assert_non_null(strstr(e.text, "larger than 10"));
    buf_clear(&b);
    assert_int_equal(file_read(&b, path_of("none"), 10, &e), E_NOTFOUND);
    assert_non_null(strstr(e.text, "none"));
    assert_int_equal(file_read(&b, folder, 10, &e), E_SYS);
    buf_free(&b);
}

static void big_files_come_whole(void **state)
{
    (void)state;
    struct buf in = {0}, out = {0};
    for (int i = 0; i < 60000; i++)
        buf_printf(&in, "%d\n", i);
    assert_int_equal(file_replace(path_of("big"), in.data, in.len, NULL), 0);
    assert_int_equal(file_read(&out, path_of("big"), in.len, NULL), 0);
    assert_int_equal(out.len, in.len);
    assert_memory_equal(out.data, in.data, in.len);
    buf_free(&in);
    buf_free(&out);
}

static void maps(void **state)
{
    (void)state;
    struct err e = {0};
    struct file_map m;
    file_replace(path_of("m"), "abc", 3, NULL);
    assert_int_equal(file_map_open(&m, path_of("m"), &e), 0);
    assert_int_equal(m.size, 3);
    assert_memory_equal(m.data, "abc", 3);
    file_map_close(&m);
    file_map_close(&m);
    struct stat kept;
    file_replace_private(path_of("own"), "abc", 3, NULL);
    assert_int_equal(stat(path_of("own"), &kept), 0);
    assert_int_equal(kept.st_mode & 0777, 0600);
    file_replace(path_of("empty"), "", 0, NULL);
    assert_int_equal(file_map_open(&m, path_of("empty"), &e), 0);
    assert_true(!m.data && !m.size);
    file_map_close(&m);
    assert_int_equal(file_map_open(&m, path_of("none"), &e), E_NOTFOUND);
    assert_int_equal(file_map_open(&m, folder, &e), E_INPUT);
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(file_map_open(&m, path_of("fifo"), &e), E_INPUT); /* and does not wait for a writer */
}

static void failed_replacement_leaves_the_old(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(file_replace(path_of("nowhere/x"), "1", 1, &e), E_NOTFOUND);
    mkdir(path_of("dir"), 0700);
    assert_int_equal(file_replace(path_of("dir"), "1", 1, &e), E_SYS); /* a folder is not replaced by a file */
    struct stat st;
    assert_true(stat(path_of("dir"), &st) == 0 && S_ISDIR(st.st_mode));
    char command[200];
    snprintf(command, sizeof command, "ls '%s' | grep -q tmp-", folder); /* no temporary stays behind */
    assert_int_not_equal(system(command), 0);
}

struct writer {
    char path[100];
    atomic_int stop;
};

static void rewrite(void *p)
{
    struct writer *w = p;
    char data[5000];
    for (int i = 0; !atomic_load(&w->stop); i++) {
        memset(data, 'a' + i % 26, sizeof data);
        file_replace(w->path, data, (size_t)(100 + i * 37 % 4900), NULL);
    }
}

static void readers_see_old_or_new(void **state)
{
    (void)state;
    struct writer w = {.stop = 0};
    snprintf(w.path, sizeof w.path, "%s/swap", folder);
    file_replace(w.path, "zz", 2, NULL);
    struct thread *t;
    assert_int_equal(thread_start(&t, "writer", rewrite, &w, NULL), 0);
    for (int i = 0; i < 3000; i++) {
        struct buf b = {0};
        assert_int_equal(file_read(&b, w.path, 10000, NULL), 0);
        for (size_t k = 1; k < b.len; k++)
            assert_int_equal(b.data[k], b.data[0]);
        buf_free(&b);
    }
    atomic_store(&w.stop, 1);
    thread_join(t);
}

static size_t pages_in_memory(const struct file_map *m)
{
    static unsigned char there[1 << 12];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (m->size + page - 1) / page, n = 0;
    assert_true(pages <= sizeof there);
    assert_int_equal(mincore((void *)(uintptr_t)m->data, m->size, there), 0);
    for (size_t i = 0; i < pages; i++)
        n += there[i] & 1;
    return n;
}

/* Bytes that were thrown out of the page cache are there again, those of the last page, too. Where a file system keeps
 * all of its own (tmpfs), nothing was thrown out. */
static void a_map_is_read_before_it_is_touched(void **state)
{
    (void)state;
    enum { BYTES = (3 << 20) + 5 };
    struct err e = {0};
    struct file_map m;
    char *bytes = calloc(1, BYTES);
    const char *p = path_of("map");
    assert_int_equal(file_replace(p, bytes, BYTES, &e), 0);
    int fd = open(p, O_RDONLY | O_CLOEXEC);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    assert_int_equal(file_map_open(&m, p, &e), 0);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (BYTES + page - 1) / page;
    assert_true(file_map_read(&m, 0, 1 << 20));
    assert_true(file_map_read(&m, 1 << 20, SIZE_MAX));
    for (int i = 0; i < 1000 && pages_in_memory(&m) < all; i++)
        usleep(10000);
    assert_int_equal(pages_in_memory(&m), all);
    file_map_close(&m);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_and_limits),
        cmocka_unit_test(a_map_is_read_before_it_is_touched),
        cmocka_unit_test(big_files_come_whole),
        cmocka_unit_test(maps),
        cmocka_unit_test(failed_replacement_leaves_the_old),
        cmocka_unit_test(readers_see_old_or_new),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
