#include "models/load/read_ahead.h"

#include <stdatomic.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { PIECE = 32 << 20 };

struct read_ahead {
    const struct model *model;
    struct thread *thread;
    atomic_bool stop;
};

static void read_all(void *arg)
{
    struct read_ahead *r = arg;
    const struct file_map *map;
    for (size_t i = 0; (map = model_map(r->model, i)); i++)
        for (size_t at = 0; at < map->size; at += PIECE)
            if (atomic_load(&r->stop) || !file_map_read(map, at, PIECE))
                return;
}

struct read_ahead *read_ahead_start(const struct model *m)
{
    struct err e;
    if (!model_map(m, 0))
        return NULL;
    struct read_ahead *r = mem_new(sizeof *r);
    r->model = m;
    if (!thread_start(&r->thread, "read-ahead", read_all, r, &e))
        return r;
    mem_free(r);
    return NULL;
}

void read_ahead_end(struct read_ahead *r)
{
    if (!r)
        return;
    atomic_store(&r->stop, true);
    thread_join(r->thread);
    mem_free(r);
}
