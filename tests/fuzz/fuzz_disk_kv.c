/* Any bytes as the file in which KV outlives the server: it is refused and stays as it is, or opened; what is found
 * then has different keys, is read whole or not at all, and new blocks can be written over it and read again. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/exec/disk_slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAYLOAD = 100, SLOTS = 8 };

static void check_same(int fd, const uint8_t *data, size_t size)
{
    uint8_t now[256];
    for (size_t at = 0; at < size; at += sizeof now) {
        size_t n = size - at < sizeof now ? size - at : sizeof now;
        ASSERT(pread(fd, now, n, (off_t)at) == (ssize_t)n && !memcmp(now, data + at, n));
    }
}

static void use(struct disk_slots *d)
{
    struct disk_found found[SLOTS];
    int n = disk_slots_scan(d, found);
    struct err e = {0};
    void *room = disk_slots_room(d);
    ASSERT(n <= SLOTS);
    for (int i = 0; i < n; i++) {
        ASSERT(found[i].slot >= 0 && found[i].slot < SLOTS && (!i || found[i - 1].age <= found[i].age));
        for (int k = 0; k < i; k++)
            ASSERT(found[k].key.h[0] != found[i].key.h[0] && found[k].slot != found[i].slot);
        int rc = disk_slots_read(d, found[i].slot, found[i].key, room, &e);
        ASSERT(rc == 0 || rc == E_INPUT);
    }
    for (int32_t i = 0; i < SLOTS; i += 3) {
        struct kv_key key = {{(uint64_t)i, 1}};
        memset(disk_slot_payload(room), i, PAYLOAD);
        ASSERT(!disk_slots_write(d, i, key, room, &e));
        memset(room, 0, d->stride);
        ASSERT(!disk_slots_read(d, i, key, room, &e) && disk_slot_payload(room)[PAYLOAD - 1] == i);
    }
    mem_free(room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct disk_slots d;
    struct err e = {0};
    int fd = memfd_create("disk", MFD_CLOEXEC);
    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct disk_slots_setup s = {path, (SLOTS + 1) * 4096, PAYLOAD, {{7, 9}}};
    int rc = disk_slots_open(&d, &s, NULL, &e);
    if (rc) {
        ASSERT(rc == E_INPUT && e.text[0]);
        check_same(fd, data, size);
    } else {
        use(&d);
        disk_slots_close(&d);
    }
    close(fd);
    return 0;
}
