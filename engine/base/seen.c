#include "engine/base/seen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"

/* Sizes are powers of two from 32 bytes on, header included; what is freed waits for the next of its size. */
enum { LEAST_SHIFT = 5, SIZES = 40 };

struct block {
    size_t shift;
    struct block *next; /* while it is free; else the caller's bytes begin 16 bytes into the block */
};
enum { HEADER = 16 };

struct seen {
    unsigned char *base;
    size_t bytes, used;
    int fd;
    bool only_read;
    struct monitor *lock;
    struct block *unused[SIZES];
};

static struct seen seen = {.fd = -1};

int seen_open(size_t bytes, struct err *e)
{
    ASSERT(!seen.base);
    int fd = memfd_create("seen", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return err_set(e, E_SYS, "no memory to share with processes of policies: %s", strerror(why));
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        int why = errno;
        close(fd);
        return err_set(e, E_SYS, "cannot map memory to share with processes of policies: %s", strerror(why));
    }
    seen.lock = monitor_new();
    seen.base = p;
    seen.bytes = bytes;
    seen.fd = fd;
    return 0;
}

bool seen_is_open(void)
{
    return seen.base != NULL;
}

int seen_file(void)
{
    return seen.fd;
}

/* Mapped anew by a descriptor that only reads, so that no call of this process can make it writable again. */
int seen_only_read(struct err *e)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", seen.fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *p = fd < 0 ? MAP_FAILED : mmap(seen.base, seen.bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return err_set(e, E_SYS, "cannot map the engine's memory: %s", strerror(why));
    close(seen.fd);
    seen.fd = -1;
    seen.only_read = true;
    return 0;
}

static size_t shift_for(size_t bytes)
{
    size_t shift = LEAST_SHIFT;
    while ((size_t)1 << shift < bytes)
        shift++;
    return shift;
}

/* NULL: it does not fit. */
static struct block *take(size_t shift)
{
    monitor_lock(seen.lock);
    struct block *b = seen.unused[shift];
    if (b) {
        seen.unused[shift] = b->next;
    } else if (seen.bytes - seen.used >= (size_t)1 << shift) {
        b = (struct block *)(seen.base + seen.used);
        seen.used += (size_t)1 << shift;
        b->shift = shift;
    }
    monitor_unlock(seen.lock);
    return b;
}

void *seen_new(size_t bytes)
{
    ASSERT(bytes < (size_t)1 << (SIZES - 2));
    struct block *b = seen.base && !seen.only_read ? take(shift_for(bytes + HEADER)) : NULL;
    if (!b)
        return mem_new(bytes);
    return memset((unsigned char *)b + HEADER, 0, bytes);
}

void *seen_new_array(size_t count, size_t size)
{
    size_t bytes;
    ASSERT(!__builtin_mul_overflow(count, size, &bytes));
    return seen_new(bytes);
}

void *seen_resize(void *p, size_t count, size_t size)
{
    return p ? mem_resize(p, count, size) : seen_new_array(count, size);
}

bool seen_has(const void *p)
{
    return (size_t)((uintptr_t)p - (uintptr_t)seen.base) < seen.bytes;
}

static struct block *block_of(const void *p)
{
    return (struct block *)((uintptr_t)p - HEADER);
}

size_t seen_size(const void *p)
{
    return ((size_t)1 << block_of(p)->shift) - HEADER;
}

void seen_free(void *p)
{
    struct block *b = block_of(p);
    if (seen.only_read)
        return; /* the parent's */
    monitor_lock(seen.lock);
    b->next = seen.unused[b->shift];
    seen.unused[b->shift] = b;
    monitor_unlock(seen.lock);
}
