#include "engine/exec/disk_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"

enum { PAGE = 4096, MOST_SLOTS = 1 << 24 };
#define SLOT_MAGIC 0x31746f6c732d766bull /* "kv-slot1" */
static const char file_magic[16] = "moonshift-kv-1\n";

struct file_head {
    char magic[16];
    struct kv_key model;
    uint64_t payload, zero;
    struct sha256 sum; /* of the rest */
};

struct slot_head {
    uint64_t magic;
    struct kv_key key;
    uint64_t age;
    struct sha256 sum; /* of the whole slot, with the model in its place */
};
_Static_assert(sizeof(struct slot_head) == 64, "disk_slot_payload");

static off_t at(const struct disk_slots *d, int32_t slot)
{
    return PAGE + (off_t)d->stride * slot;
}

/* All n bytes, or -1 with errno; 0 there means that the file ends before. */
static int read_all(int fd, void *p, size_t n, off_t from)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)p + done, n - done, from + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got ? errno : 0;
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const void *p, size_t n, off_t from)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, (const char *)p + done, n - done, from + (off_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return -1;
        done += (size_t)put;
    }
    return 0;
}

/* ---- opening */

static int take_hold(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, E_INPUT, "%s is no regular file: name one, it is made where there is none", path);
    if (st.st_uid != geteuid())
        return err_set(e, E_INPUT, "%s belongs to another user, who could have put anything there: name another file",
                       path);
    if (flock(fd, LOCK_EX | LOCK_NB))
        return err_set(e, E_INPUT, "%s is in use by another server: each needs a file of its own", path);
    return 0;
}

static struct file_head head_of(const struct disk_slots *d)
{
    struct file_head h = {.model = d->model, .payload = d->payload};
    memcpy(h.magic, file_magic, sizeof h.magic);
    h.sum = hash_sha256(&h, offsetof(struct file_head, sum));
    return h;
}

/* The file as it is now: ours, or empty, or of another model; or somebody's who has nothing to do with this. */
static int look_at_head(const struct disk_slots *d, const char *path, bool *ours, bool *empty, struct err *e)
{
    struct file_head h = {0}, want = head_of(d);
    struct stat st;
    if (fstat(d->fd, &st))
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    *empty = st.st_size == 0;
    *ours = !*empty && !read_all(d->fd, &h, sizeof h, 0) && !memcmp(&h, &want, sizeof h);
    if (!*empty && memcmp(h.magic, file_magic, sizeof h.magic) != 0)
        return err_set(e, E_INPUT, "%s has something else than KV in it, and stays as it is: name another file", path);
    return 0;
}

int disk_slots_clear(struct disk_slots *d, struct err *e)
{
    struct file_head h = head_of(d);
    if (ftruncate(d->fd, 0) || write_all(d->fd, &h, sizeof h, 0))
        return err_set(e, E_SYS, "the file for KV: %s", strerror(errno));
    return 0;
}

/* Now that it is known to be ours: its owner's alone, and no more than it may have. */
static int bound(const struct disk_slots *d, const char *path, struct err *e)
{
    struct stat st;
    if (fchmod(d->fd, 0600) || fstat(d->fd, &st) || (st.st_size > at(d, d->n) && ftruncate(d->fd, at(d, d->n))))
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    return 0;
}

static int size_up(struct disk_slots *d, const struct disk_slots_setup *s, struct err *e)
{
    d->payload = s->payload;
    d->stride = (sizeof(struct slot_head) + s->payload + PAGE - 1) / PAGE * PAGE;
    size_t n = s->bytes < PAGE ? 0 : (s->bytes - PAGE) / d->stride;
    d->n = n > MOST_SLOTS ? MOST_SLOTS : (int)n;
    d->model = s->model;
    if (!n)
        return err_set(e, E_INPUT, "%s: %zu bytes are not enough: one block takes %zu", s->path, s->bytes,
                       d->stride + PAGE);
    return 0;
}

int disk_slots_open(struct disk_slots *d, const struct disk_slots_setup *s, bool *emptied, struct err *e)
{
    bool ours = false, empty = false;
    memset(d, 0, sizeof *d);
    d->fd = -1;
    TRY(size_up(d, s, e));
    d->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    int rc = d->fd < 0 ? err_set(e, E_INPUT, "%s: %s", s->path, strerror(errno)) : take_hold(d->fd, s->path, e);
    if (!rc)
        rc = look_at_head(d, s->path, &ours, &empty, e);
    if (!rc && !ours)
        rc = disk_slots_clear(d, e);
    if (!rc)
        rc = bound(d, s->path, e);
    if (emptied)
        *emptied = !rc && !ours && !empty;
    if (rc)
        disk_slots_close(d);
    return rc;
}

void disk_slots_close(struct disk_slots *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
}

/* ---- slots */

static int newer_first(const void *a, const void *b)
{
    const struct disk_found *x = a, *y = b;
    return x->age < y->age ? 1 : x->age > y->age ? -1 : x->slot - y->slot;
}

int disk_slots_scan(const struct disk_slots *d, struct disk_found *found)
{
    struct map seen;
    struct stat st;
    int n = 0, kept = 0;
    off_t end = fstat(d->fd, &st) ? 0 : st.st_size;
    for (int32_t i = 0; i < d->n && at(d, i + 1) <= end; i++) {
        struct slot_head h;
        if (!read_all(d->fd, &h, sizeof h, at(d, i)) && h.magic == SLOT_MAGIC && h.key.h[1] & 1)
            found[n++] = (struct disk_found){h.age, h.key, i};
    }
    qsort(found, (size_t)n, sizeof *found, newer_first);
    map_init(&seen);
    for (int i = 0; i < n; i++)
        if (!map_find(&seen, found[i].key.h[0], NULL)) {
            map_set(&seen, found[i].key.h[0], 1);
            found[kept++] = found[i];
        }
    map_free(&seen);
    for (int i = 0; i < kept / 2; i++) {
        struct disk_found x = found[i];
        found[i] = found[kept - 1 - i];
        found[kept - 1 - i] = x;
    }
    return kept;
}

void *disk_slots_room(const struct disk_slots *d)
{
    return mem_new(d->stride);
}

static struct sha256 sum_of(const struct disk_slots *d, void *room)
{
    struct slot_head *h = room;
    memset(&h->sum, 0, sizeof h->sum);
    memcpy(&h->sum, &d->model, sizeof d->model);
    return hash_sha256(room, d->stride);
}

int disk_slots_write(struct disk_slots *d, int32_t slot, struct kv_key key, void *room, struct err *e)
{
    struct slot_head *h = room;
    *h = (struct slot_head){.magic = SLOT_MAGIC, .key = key, .age = atomic_fetch_add(&d->age, 1)};
    h->sum = sum_of(d, room);
    return write_all(d->fd, room, d->stride, at(d, slot)) ? err_set(e, E_SYS, "%s", strerror(errno)) : 0;
}

int disk_slots_read(const struct disk_slots *d, int32_t slot, struct kv_key key, void *room, struct err *e)
{
    struct slot_head *h = room;
    if (read_all(d->fd, room, d->stride, at(d, slot)))
        return errno ? err_set(e, E_SYS, "%s", strerror(errno)) : err_set(e, E_INPUT, "the file ends before its slot");
    struct sha256 sum = h->sum, real = sum_of(d, room);
    bool good = h->magic == SLOT_MAGIC && !memcmp(&h->key, &key, sizeof key) && hash_equal(&sum, &real);
    return good ? 0 : err_set(e, E_INPUT, "a block is not whole");
}
