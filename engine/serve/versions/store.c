#include "engine/serve/versions/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { MEMORY_LINES = 256 << 10, PATH_BYTES = 4096, SHA_DIGITS = 64 };

struct store {
    char *dir; /* NULL: in memory */
    int lock_fd, log_fd, dir_fd, sources_fd;
    struct audit_chain chain;
    size_t log_bytes; /* of whole lines */
    bool torn;        /* a line that failed could not be cut off */
    struct buf lines; /* in memory: the newest */
};

static int fail(struct err *e, const char *what, const char *path)
{
    return err_set(e, E_SYS, "--state-dir: cannot %s %.250s: %s", what, path, strerror(errno));
}

static void path_of(const struct store *s, const char *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%s", s->dir, name);
}

static void source_path(const struct store *s, const char *sha256, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/policies/%s.lua", s->dir, sha256);
}

/* ---- opening */

static int take_folder(struct store *s, struct err *e)
{
    char path[PATH_BYTES];
    if (strlen(s->dir) > PATH_BYTES - 128)
        return err_set(e, E_INPUT, "--state-dir: the path is too long");
    if (mkdir(s->dir, 0700) != 0 && errno != EEXIST)
        return fail(e, "make", s->dir);
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0)
        return fail(e, "open", s->dir);
    path_of(s, "lock", path);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return fail(e, "write to", path);
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(e, E_INPUT, "--state-dir %.200s is another server's, which runs: give each its own", s->dir);
    path_of(s, "policies", path);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return fail(e, "make", path);
    s->sources_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->sources_fd < 0 ? fail(e, "open", path) : 0;
}

static bool is_temporary(const char *name)
{
    return strstr(name, ".tmp-") != NULL;
}

/* What a server left that died while it wrote. */
static void sweep(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));)
        if (is_temporary(f->d_name))
            unlinkat(folder, f->d_name, 0);
    if (d)
        closedir(d);
}

/* The last line has no end: it goes into a file of its own, and the log ends before it. */
static int set_aside(struct store *s, const struct file_map *m, struct err *e)
{
    char path[PATH_BYTES], name[64];
    size_t torn = m->size - s->log_bytes;
    snprintf(name, sizeof name, "audit.torn-%lld", (long long)clock_wall_seconds());
    path_of(s, name, path);
    TRY(file_replace_private(path, m->data + s->log_bytes, torn, e));
    if (ftruncate(s->log_fd, (off_t)s->log_bytes) < 0 || fsync(s->log_fd) < 0)
        return fail(e, "cut", "audit.jsonl");
    log_warn("policy", "the audit log ended in the middle of a line: its %zu bytes are in %s", torn, path);
    struct audit_entry a = {.at_s = clock_wall_seconds(), .actor = "boot", .event = "torn", .result = "ok"};
    snprintf(a.reason, sizeof a.reason, "a last line of %zu bytes without an end was put into %s", torn, name);
    return store_log(s, &a, e);
}

static int open_log(struct store *s, audit_fn fn, void *ctx, struct err *e)
{
    char path[PATH_BYTES];
    struct file_map m;
    struct audit_found found;
    path_of(s, "audit.jsonl", path);
    s->log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (s->log_fd < 0)
        return fail(e, "write to", path);
    TRY(file_map_open(&m, path, e));
    int rc = audit_read((const char *)m.data, m.size, fn, ctx, &found, e);
    if (rc)
        err_prefix(
            e, rc,
            "%.200s does not verify. See what was done to it; then move it away, and the server begins a new one",
            path);
    s->chain = found.chain;
    s->log_bytes = found.whole;
    if (!rc && found.whole < m.size)
        rc = set_aside(s, &m, e);
    file_map_close(&m);
    return rc;
}

int store_open(struct store **out, const char *dir, audit_fn fn, void *ctx, struct err *e)
{
    struct store *s = mem_new(sizeof *s);
    *s = (struct store){.dir = dir ? mem_strdup(dir) : NULL, .lock_fd = -1, .log_fd = -1, .dir_fd = -1};
    s->sources_fd = -1;
    audit_begin(&s->chain);
    int rc = dir ? take_folder(s, e) : 0;
    if (!rc && dir) {
        sweep(s->dir_fd);
        sweep(s->sources_fd);
        rc = open_log(s, fn, ctx, e);
    }
    *out = rc ? NULL : s;
    if (rc)
        store_close(s);
    return rc;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    int fds[] = {s->log_fd, s->sources_fd, s->dir_fd, s->lock_fd};
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    buf_free(&s->lines);
    mem_free(s->dir);
    mem_free(s);
}

const char *store_dir(const struct store *s)
{
    return s->dir;
}

/* ---- sources */

int store_put(struct store *s, const char *sha256, const void *source, size_t n, struct err *e)
{
    char path[PATH_BYTES];
    struct stat st;
    if (!s->dir)
        return 0;
    source_path(s, sha256, path);
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == n)
        return 0;
    TRY(file_replace_private(path, source, n, e));
    return fsync(s->sources_fd) < 0 ? fail(e, "sync the folder of", path) : 0;
}

int store_get(struct store *s, const char *sha256, size_t limit, struct buf *out, struct err *e)
{
    char path[PATH_BYTES], hex[65];
    if (!s->dir)
        return err_set(e, E_NOTFOUND, "there is no --state-dir");
    source_path(s, sha256, path);
    size_t begin = out->len;
    TRY(file_read_within(out, NULL, path, limit, e));
    struct sha256 sum = hash_sha256(out->data + begin, out->len - begin);
    hash_hex(&sum, hex);
    if (strcmp(hex, sha256) == 0)
        return 0;
    out->len = begin;
    return err_set(e, E_INPUT, "%.250s was changed: its SHA-256 is %.12s...", path, hex);
}

void store_drop(struct store *s, const char *sha256)
{
    char path[PATH_BYTES];
    if (!s->dir)
        return;
    source_path(s, sha256, path);
    unlink(path);
}

void store_each(struct store *s, void (*fn)(void *ctx, const char *sha256), void *ctx)
{
    int fd = s->dir ? openat(s->sources_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        char sha[SHA_DIGITS + 1];
        snprintf(sha, sizeof sha, "%.64s", f->d_name);
        if (version_sha_ok(sha, SHA_DIGITS) && strcmp(f->d_name + SHA_DIGITS, ".lua") == 0)
            fn(ctx, sha);
    }
    if (d)
        closedir(d);
}

/* ---- the log */

static int append(struct store *s, const struct buf *line, struct err *e)
{
    size_t done = 0;
    if (s->torn && ftruncate(s->log_fd, (off_t)s->log_bytes) < 0)
        return fail(e, "cut", "audit.jsonl");
    s->torn = false;
    while (done < line->len) {
        ssize_t n = write(s->log_fd, line->data + done, line->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        done += (size_t)n;
    }
    if (done == line->len && fdatasync(s->log_fd) == 0) {
        s->log_bytes += line->len;
        return 0;
    }
    int rc = fail(e, "write to", "audit.jsonl");
    s->torn = ftruncate(s->log_fd, (off_t)s->log_bytes) < 0;
    return rc;
}

static void keep(struct store *s, const struct buf *line)
{
    while (s->lines.len && s->lines.len + line->len > MEMORY_LINES)
        buf_cut(&s->lines, (size_t)((char *)memchr(s->lines.data, '\n', s->lines.len) - s->lines.data) + 1);
    buf_put(&s->lines, line->data, line->len);
}

int store_log(struct store *s, const struct audit_entry *a, struct err *e)
{
    struct audit_chain next = s->chain;
    struct buf line = {0};
    int rc = 0;
    audit_put(&next, a, &line);
    if (s->dir)
        rc = append(s, &line, e);
    else
        keep(s, &line);
    if (!rc)
        s->chain = next;
    buf_free(&line);
    return rc;
}

/* Where the n-th line from the end begins, or line number `from`; `first` is the number of the first in text. */
static void pick(const char *text, size_t size, uint64_t from, uint64_t first, struct buf *out, int n)
{
    size_t at = 0;
    uint64_t number = first;
    while (at < size && n > 0) {
        const char *newline = memchr(text + at, '\n', size - at);
        size_t bytes = newline ? (size_t)(newline - text) + 1 - at : 0;
        if (!bytes)
            return;
        if (number++ >= from) {
            buf_put(out, text + at, bytes);
            n--;
        }
        at += bytes;
    }
}

int store_lines(struct store *s, uint64_t from, int n, struct buf *out, struct err *e)
{
    char path[PATH_BYTES];
    struct file_map m;
    if (!from)
        from = s->chain.seq > (uint64_t)n ? s->chain.seq - (uint64_t)n + 1 : 1;
    if (!s->dir) {
        uint64_t lines = 0;
        for (size_t i = 0; i < s->lines.len; i++)
            lines += s->lines.data[i] == '\n';
        pick(s->lines.data, s->lines.len, from, s->chain.seq - lines + 1, out, n);
        return 0;
    }
    path_of(s, "audit.jsonl", path);
    TRY(file_map_open(&m, path, e));
    pick((const char *)m.data, m.size < s->log_bytes ? m.size : s->log_bytes, from, 1, out, n);
    file_map_close(&m);
    return 0;
}

/* ---- the last good one */

int store_set_good(struct store *s, const struct good *g, struct err *e)
{
    char path[PATH_BYTES];
    struct buf text = {0};
    if (!s->dir)
        return 0;
    path_of(s, "last-good.json", path);
    good_put(g, &text);
    int rc = file_replace_private(path, text.data, text.len, e);
    buf_free(&text);
    if (!rc && fsync(s->dir_fd) < 0)
        rc = fail(e, "sync", s->dir);
    return rc;
}

int store_good(struct store *s, struct good *out, struct err *e)
{
    char path[PATH_BYTES];
    struct buf text = {0};
    *out = (struct good){0};
    if (!s->dir)
        return err_set(e, E_NOTFOUND, "there is no --state-dir");
    path_of(s, "last-good.json", path);
    int rc = file_read_within(&text, NULL, path, GOOD_BYTES, e);
    if (!rc && (rc = good_read(out, text.data ? text.data : "", text.len, e)) != 0)
        err_prefix(e, rc, "%.200s", path);
    buf_free(&text);
    return rc;
}
