/* A file of slots, each of one block of KV: what outlives the server. A slot has a checksum over all of it, its key and
 * the model included, so nothing in the file has to be trusted: what was torn by a crash, was changed by somebody, or
 * is another model's is not there. Nothing is ordered or flushed, therefore; what the system had not written yet when
 * it stopped is lost. One server has the file at a time (flock), its owner alone may read it. Reads of slots, and
 * writes of others, may be on several threads at once. */
#ifndef EXEC_DISK_SLOTS_H
#define EXEC_DISK_SLOTS_H

#include <stdatomic.h>

#include "engine/base/err.h"
#include "engine/world/kv.h"

struct disk_slots {
    int fd;
    size_t payload, stride; /* bytes of a block; of a slot in the file */
    int n;
    struct kv_key model;
    atomic_ullong age;
};

struct disk_slots_setup {
    const char *path;
    size_t bytes;        /* the most that the file may have */
    size_t payload;      /* of a block */
    struct kv_key model; /* of everything but the tokens that the bytes of a block depend on */
};

struct disk_found {
    uint64_t age;
    struct kv_key key;
    int32_t slot;
};

/* Makes the file where there is none. One of another model or of blocks of another size is emptied, with a line in the
 * log; *emptied (or NULL) says so. E_INPUT: it is no such file (which stays as it is), somebody else's, in use by
 * another server, or `bytes` are less than a slot; E_SYS. */
int disk_slots_open(struct disk_slots *d, const struct disk_slots_setup *s, bool *emptied, struct err *e);
void disk_slots_close(struct disk_slots *d);
/* What it says it has, the oldest first, no key twice. found: [n] of them; returns how many. Only a read tells whether
 * they are whole. */
int disk_slots_scan(const struct disk_slots *d, struct disk_found *found);
/* Memory for one slot, to be freed with mem_free, and where the block lies in it. */
void *disk_slots_room(const struct disk_slots *d);
static inline unsigned char *disk_slot_payload(void *room)
{
    return (unsigned char *)room + 64;
}
int disk_slots_write(struct disk_slots *d, int32_t slot, struct kv_key key, void *room, struct err *e); /* E_SYS */
/* E_INPUT: it is not whole, or has another key; E_SYS. */
int disk_slots_read(const struct disk_slots *d, int32_t slot, struct kv_key key, void *room, struct err *e);
int disk_slots_clear(struct disk_slots *d, struct err *e); /* it has nothing any more. E_SYS */

#endif
