#include "engine/serve/batch/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { ABOUT_BYTES = 4096, ID_RANDOM = 12 };

/* An upload under way. */
struct begun {
    char owner[FILES_OWNER];
    uint64_t bytes;
};

struct files {
    struct files_limits limits;
    char *dir;
    int dir_fd, lock_fd;
    struct kept_file *list;
    struct begun *begun;
    int n, n_begun, cap_begun;
    uint64_t bytes, begun_bytes, next;
};

static char *path_of(const struct files *s, const char *id, const char *ending)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s.%s", s->dir, id, ending);
    return buf_take(&path);
}

/* ---- what is there at the start */

static bool copy_text(const struct json *root, const char *key, char *out, size_t most)
{
    const char *text = json_text(json_find(root, key));
    size_t n = text ? strlen(text) : most;
    if (n >= most)
        return false;
    memcpy(out, text, n + 1);
    return true;
}

static bool copy_number(const struct json *root, const char *key, int64_t *out)
{
    return json_i64(json_find(root, key), out) && *out >= 0;
}

/* What ID.json says, if it is whole and the data is as long as it says. */
static bool read_about(const struct files *s, const char *id, struct kept_file *f)
{
    char *about = path_of(s, id, "json"), *data = path_of(s, id, "data");
    struct buf text = {0};
    struct stat st;
    int64_t number = 0, bytes = 0;
    *f = (struct kept_file){0};
    struct json *root = file_read(&text, about, ABOUT_BYTES, NULL) ? NULL : json_parse(text.data, text.len, NULL, NULL);
    bool ok = copy_text(root, "id", f->id, sizeof f->id) && strcmp(f->id, id) == 0 &&
              copy_text(root, "owner", f->owner, sizeof f->owner) &&
              copy_text(root, "filename", f->name, sizeof f->name) && copy_number(root, "number", &number) &&
              copy_number(root, "bytes", &bytes) && copy_number(root, "created_at", &f->created_s) &&
              stat(data, &st) == 0 && st.st_size == bytes;
    f->number = (uint64_t)number;
    f->bytes = (uint64_t)bytes;
    json_free(root);
    buf_free(&text);
    mem_free(about);
    mem_free(data);
    return ok;
}

static void keep(struct files *s, const struct kept_file *f)
{
    s->list = mem_resize(s->list, (size_t)s->n + 1, sizeof *s->list);
    s->list[s->n++] = *f;
    s->bytes += f->bytes;
    if (f->number >= s->next)
        s->next = f->number + 1;
}

static int by_number(const void *a, const void *b)
{
    const struct kept_file *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* "file-...": the id in a name of ours, without its ending. False: the name is none of ours. */
static bool id_in(const char *name, char id[FILES_ID])
{
    size_t n = strcspn(name, ".");
    if (n != FILES_ID - 1 || strncmp(name, "file-", 5) != 0 || strspn(name + 5, "0123456789abcdef") != n - 5 ||
        !name[n])
        return false;
    memcpy(id, name, n);
    id[n] = 0;
    return true;
}

static bool is_known(const struct files *s, const char *id)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->list[i].id, id) == 0)
            return true;
    return false;
}

static int look_at_all(struct files *s, struct err *e)
{
    char id[FILES_ID];
    struct kept_file f;
    DIR *d = opendir(s->dir);
    if (!d)
        return err_set(e, E_SYS, "--batch-dir %.200s: %s", s->dir, strerror(errno));
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d))
        if (id_in(entry->d_name, id) && strcmp(entry->d_name + FILES_ID - 1, ".json") == 0) {
            if (read_about(s, id, &f))
                keep(s, &f);
            else
                log_warn("files", "%s/%s.json and its data do not fit each other: both are left out", s->dir, id);
        }
    rewinddir(d);
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        char *about = id_in(entry->d_name, id) ? path_of(s, id, "json") : NULL;
        if (about && (strstr(entry->d_name, ".tmp-") || (!is_known(s, id) && access(about, F_OK) != 0)))
            unlinkat(dirfd(d), entry->d_name, 0); /* of an upload that a killed server did not end */
        mem_free(about);
    }
    closedir(d);
    if (s->n)
        qsort(s->list, (size_t)s->n, sizeof *s->list, by_number);
    return 0;
}

static int take_folder(struct files *s, struct err *e)
{
    if (mkdir(s->dir, 0700) != 0 && errno != EEXIST)
        return err_set(e, E_SYS, "--batch-dir %.200s: %s", s->dir, strerror(errno));
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->lock_fd = s->dir_fd < 0 ? -1 : openat(s->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_set(e, E_SYS, "--batch-dir %.200s: %s", s->dir, strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(e, E_INPUT, "--batch-dir %.200s is another server's: give each its own", s->dir);
    return 0;
}

int files_open(struct files **out, const char *dir, const struct files_limits *l, struct err *e)
{
    struct files *s = mem_new(sizeof *s);
    *s = (struct files){.limits = *l, .dir = mem_strdup(dir), .dir_fd = -1, .lock_fd = -1};
    int rc = take_folder(s, e);
    if (!rc)
        rc = look_at_all(s, e);
    if (rc)
        files_close(s);
    else
        *out = s;
    return rc;
}

void files_close(struct files *s)
{
    if (!s)
        return;
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    mem_free(s->list);
    mem_free(s->begun);
    mem_free(s->dir);
    mem_free(s);
}

const struct files_limits *files_limits_of(const struct files *s)
{
    return &s->limits;
}

/* ---- a new one */

static bool name_file(struct kept_file *f)
{
    unsigned char random[ID_RANDOM];
    int at = snprintf(f->id, sizeof f->id, "file-");
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    for (int i = 0; i < ID_RANDOM; i++)
        at += snprintf(f->id + at, sizeof f->id - (size_t)at, "%02x", random[i]);
    return true;
}

/* One owner of several leaves half of it to the others. */
static int check_share(const struct files *s, const char *owner, uint64_t bytes, struct err *e)
{
    uint64_t held = bytes;
    int n = 1;
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->list[i].owner, owner) == 0) {
            held += s->list[i].bytes;
            n++;
        }
    for (int i = 0; i < s->n_begun; i++)
        if (strcmp(s->begun[i].owner, owner) == 0) {
            held += s->begun[i].bytes;
            n++;
        }
    if (held > s->limits.bytes / 2 || n > (s->limits.n + 1) / 2)
        return err_set(e, E_FULL,
                       "the files of one key have at most half of --batch-bytes and of --batch-files, %" PRIu64
                       " bytes and %d files: delete some",
                       s->limits.bytes / 2, (s->limits.n + 1) / 2);
    return 0;
}

int files_begin(struct files *s, const char *owner, uint64_t bytes, struct kept_file *out, struct err *e)
{
    if (s->n + s->n_begun >= s->limits.n)
        return err_set(e, E_FULL, "there are %d files (--batch-files): delete some", s->limits.n);
    if (s->bytes + s->begun_bytes + bytes > s->limits.bytes)
        return err_set(e, E_FULL, "all files together have at most %" PRIu64 " bytes (--batch-bytes): delete some",
                       s->limits.bytes);
    if (s->limits.shared)
        TRY(check_share(s, owner, bytes, e));
    *out = (struct kept_file){.number = s->next++, .created_s = clock_wall_seconds()};
    snprintf(out->owner, sizeof out->owner, "%s", owner);
    if (!name_file(out))
        return err_set(e, E_SYS, "no random bytes");
    if (s->n_begun == s->cap_begun) {
        s->cap_begun = s->cap_begun ? 2 * s->cap_begun : 8;
        s->begun = mem_resize(s->begun, (size_t)s->cap_begun, sizeof *s->begun);
    }
    struct begun *b = &s->begun[s->n_begun++];
    memcpy(b->owner, out->owner, sizeof b->owner);
    b->bytes = bytes;
    s->begun_bytes += bytes;
    return 0;
}

static void unlink_both(const struct files *s, const char *id)
{
    char *about = path_of(s, id, "json"), *data = path_of(s, id, "data");
    unlink(about); /* first: without it there is no file */
    unlink(data);
    mem_free(about);
    mem_free(data);
}

/* What it is; its data is there. From then on it is. */
static int write_about(const struct files *s, const struct kept_file *f, struct err *e)
{
    char *about = path_of(s, f->id, "json");
    struct buf text = {0};
    buf_printf(&text,
               "{\"number\":%" PRIu64 ",\"id\":\"%s\",\"owner\":\"%s\",\"bytes\":%" PRIu64 ",\"created_at\":%" PRId64,
               f->number, f->id, f->owner, f->bytes, f->created_s);
    buf_puts(&text, ",\"filename\":");
    buf_put_json(&text, f->name, strlen(f->name));
    buf_puts(&text, "}\n");
    int rc = file_replace_private(about, text.data, text.len, e);
    if (!rc && fsync(s->dir_fd) != 0) /* their names, too, outlast the power */
        rc = err_set(e, E_SYS, "cannot write %.300s: %s", s->dir, strerror(errno));
    buf_free(&text);
    mem_free(about);
    return rc;
}

int files_write(const struct files *s, struct kept_file *f, const char *p, size_t n, struct err *e)
{
    char *data = path_of(s, f->id, "data");
    f->bytes = n;
    int rc = file_replace_private(data, p, n, e);
    if (!rc)
        rc = write_about(s, f, e);
    if (rc)
        unlink_both(s, f->id);
    mem_free(data);
    return rc;
}

void files_name(struct kept_file *out)
{
    bool named = name_file(out);
    ASSERT(named); /* the system has random bytes, or no server had come so far */
}

/* A second name first: a server that is killed in between sweeps out a data file that nothing says anything of. */
int files_adopt(const struct files *s, struct kept_file *f, const char *path, struct err *e)
{
    char *data = path_of(s, f->id, "data");
    struct stat st;
    int rc = 0;
    if (access(path, F_OK) == 0) {
        unlink(data);
        if (link(path, data) != 0 || chmod(data, 0600) != 0)
            rc = err_set(e, E_SYS, "cannot name %.300s: %s", data, strerror(errno));
    }
    if (!rc && stat(data, &st) != 0)
        rc = err_set(e, E_SYS, "cannot read %.300s: %s", data, strerror(errno));
    if (!rc) {
        f->bytes = (uint64_t)st.st_size;
        rc = write_about(s, f, e);
    }
    if (!rc)
        unlink(path);
    mem_free(data);
    return rc;
}

void files_take(struct files *s, const struct kept_file *f)
{
    struct kept_file mine = *f;
    if (is_known(s, f->id))
        return;
    mine.number = s->next;
    keep(s, &mine);
}

char *files_path(const struct files *s, const char *id)
{
    return path_of(s, id, "data");
}

static void end_place(struct files *s, const char *owner, uint64_t begun_bytes)
{
    int i = 0;
    while (i < s->n_begun && (s->begun[i].bytes != begun_bytes || strcmp(s->begun[i].owner, owner) != 0))
        i++;
    ASSERT(i < s->n_begun);
    s->begun[i] = s->begun[--s->n_begun];
    s->begun_bytes -= begun_bytes;
}

void files_add(struct files *s, const struct kept_file *f, uint64_t begun_bytes)
{
    end_place(s, f->owner, begun_bytes);
    keep(s, f);
    qsort(s->list, (size_t)s->n, sizeof *s->list, by_number); /* uploads end in any order */
}

void files_give_up(struct files *s, const struct kept_file *f, uint64_t begun_bytes)
{
    end_place(s, f->owner, begun_bytes);
    unlink_both(s, f->id);
}

/* ---- those that are there */

int files_count(const struct files *s)
{
    return s->n;
}

const struct kept_file *files_at(const struct files *s, int i)
{
    return &s->list[i];
}

const struct kept_file *files_find(const struct files *s, const char *id, const char *owner)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->list[i].id, id) == 0 && strcmp(s->list[i].owner, owner) == 0)
            return &s->list[i];
    return NULL;
}

int files_read(const struct files *s, const struct kept_file *f, struct buf *out, struct err *e)
{
    char *data = path_of(s, f->id, "data");
    int rc = file_read(out, data, (size_t)f->bytes + 1, e);
    mem_free(data);
    return rc;
}

int files_remove(struct files *s, const struct kept_file *f, struct err *e)
{
    char *about = path_of(s, f->id, "json");
    int rc = unlink(about) == 0 || errno == ENOENT ? 0 : err_set(e, E_SYS, "cannot remove it: %s", strerror(errno));
    mem_free(about);
    if (rc)
        return rc;
    unlink_both(s, f->id);
    s->bytes -= f->bytes;
    size_t i = (size_t)(f - s->list);
    memmove(&s->list[i], &s->list[i + 1], ((size_t)s->n - i - 1) * sizeof *s->list);
    s->n--;
    return 0;
}
