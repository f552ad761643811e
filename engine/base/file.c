#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct err *e, const char *what, const char *path)
{
    int code = errno == ENOENT ? E_NOTFOUND : E_SYS;
    return err_set(e, code, "cannot %s %s: %s", what, path, strerror(errno));
}

int file_map_open(struct file_map *m, const char *path, struct err *e)
{
    memset(m, 0, sizeof *m);
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer is refused below, not waited for */
    if (fd < 0)
        return fail(e, "open", path);
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) < 0) {
        rc = fail(e, "stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, E_INPUT, "%s is not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = fail(e, "map", path);
        } else {
            m->data = p;
            m->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    memset(m, 0, sizeof *m);
}

bool file_map_read(const struct file_map *m, size_t at, size_t n)
{
    void *from = (void *)(uintptr_t)(m->data + at);
    n = n < m->size - at ? n : m->size - at;
#ifdef MADV_POPULATE_READ
    if (madvise(from, n, MADV_POPULATE_READ) == 0)
        return true;
#endif
    return madvise(from, n, MADV_WILLNEED) == 0; /* Linux before 5.14 */
}

/* Reads to the end and closes. */
static int read_all(struct buf *out, int fd, const char *path, size_t limit, struct err *e)
{
    size_t start = out->len;
    for (;;) {
        buf_reserve(out, 65536);
        ssize_t n = read(fd, out->data + out->len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc = fail(e, "read", path);
            close(fd);
            return rc;
        }
        out->len += (size_t)n;
        out->data[out->len] = 0;
        if (out->len - start > limit) {
            close(fd);
            return err_set(e, E_INPUT, "%s is larger than %zu bytes", path, limit);
        }
        if (n == 0)
            break;
    }
    close(fd);
    return 0;
}

void file_folder(const char *path, char *out, size_t cap)
{
    const char *slash = strrchr(path, '/');
    int n = slash > path ? (int)(slash - path) : 1;
    snprintf(out, cap, "%.*s", n, slash ? path : ".");
}

int file_read(struct buf *out, const char *path, size_t limit, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? fail(e, "open", path) : read_all(out, fd, path, limit, e);
}

/* Asked of the open file, so that nobody can put another in its place meanwhile; of its path where /proc is not there.
 */
static bool lies_within(int fd, const char *dir, const char *path)
{
    char link[40], real[PATH_MAX], home[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, real, sizeof real - 1);
    real[n > 0 ? n : 0] = 0;
    if ((n <= 0 && !realpath(path, real)) || !realpath(dir, home))
        return false;
    size_t len = strcmp(home, "/") ? strlen(home) : 0;
    return strncmp(real, home, len) == 0 && real[len] == '/';
}

static int open_within(const char *dir, const char *path, int *fd, struct err *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK |
                         O_NOCTTY); /* a pipe without a writer is refused below, not waited for */
    if (*fd < 0)
        return fail(e, "open", path);
    int rc = fstat(*fd, &st) < 0    ? fail(e, "stat", path)
             : !S_ISREG(st.st_mode) ? err_set(e, E_INPUT, "%s is not a regular file", path)
             : dir && !lies_within(*fd, dir, path)
                 ? err_set(e, E_INPUT, "%s is a link that leads out of its folder", path)
                 : 0;
    if (rc)
        close(*fd);
    return rc;
}

int file_read_within(struct buf *out, const char *dir, const char *path, size_t limit, struct err *e)
{
    int fd;
    TRY(open_within(dir, path, &fd, e));
    return read_all(out, fd, path, limit, e);
}

bool file_is_within(const char *dir, const char *path)
{
    int fd, rc = open_within(dir, path, &fd, NULL);
    if (!rc)
        close(fd);
    return rc == 0;
}

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        p += w;
        n -= (size_t)w;
    }
    return fsync(fd);
}

struct bytes {
    const void *data;
    size_t n;
};

static int replace(const char *path, const struct bytes *b, mode_t mode, struct err *e)
{
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp-XXXXXX", path);
    int fd = mkostemp(tmp.data, O_CLOEXEC), rc = 0;
    if (fd < 0) {
        rc = fail(e, "create beside", path);
    } else {
        fchmod(fd, mode);
        int bad = write_all(fd, b->data, b->n);
        if (close(fd) < 0 || bad || rename(tmp.data, path) < 0) {
            rc = fail(e, "write", path);
            unlink(tmp.data);
        }
    }
    buf_free(&tmp);
    return rc;
}

int file_replace(const char *path, const void *data, size_t n, struct err *e)
{
    return replace(path, &(struct bytes){data, n}, 0644, e);
}

int file_replace_private(const char *path, const void *data, size_t n, struct err *e)
{
    return replace(path, &(struct bytes){data, n}, 0600, e);
}
