/* The disk below host memory, carried out: opens it, posts copies of blocks to it and from it, takes back what landed
 * (engine/world/tiers.c says which and why). Engine thread. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/log.h"
#include "engine/base/version.h"
#include "engine/engine_state.h"

enum { MEASURED_TOKENS = 2048 };

static void job_done(void *ctx, struct disk_job *j)
{
    struct engine *engine = ctx;
    queue_post(engine->inbox, &(struct engine_message){.kind = IN_DISK_DONE, .payload = j});
}

/* Of all that the bytes of a block depend on, but for its tokens: who computes, how, and what it lies in. */
static struct kv_key model_key(const struct engine *engine)
{
    const struct engine_setup *s = &engine->setup;
    const struct kv_space *host = node_host_kv(&engine->node);
    char text[512], model[65];
    hash_hex(&s->disk.model, model);
    snprintf(text, sizeof text, "%s %s %s%s %s %d %d %d %d", version_full, s->ops->name,
             rank_facts(engine->node.ranks[0])->isa, s->device.fast ? " fast" : "", model, (int)host->dtype,
             host->n_layers, (int)host->block_bytes, s->block_size);
    return kv_key_root(&engine->world.kv, text);
}

static int check(const struct engine *engine, struct err *e)
{
    const struct engine_setup *s = &engine->setup;
    if (!node_host_kv(&engine->node) || !s->limits.prefix_caching)
        return err_set(e, E_INPUT, "--disk-kv is for cached prefixes, below host memory (--host-kv-memory)");
    if (!s->threaded || !s->ops->computes || s->play || witness_is_exact(s->witness))
        return err_set(e, E_UNSUPPORTED, "--disk-kv needs ranks that compute, and is in no recording");
    if (engine->node.n_ranks > MAX_RANKS - 2)
        return err_set(e, E_INPUT, "--disk-kv is for at most %d ranks", MAX_RANKS - 2);
    return 0;
}

/* What was there before the server was. */
static void adopt(struct engine *engine)
{
    struct disk_slots *slots = disk_kv_slots(engine->disk);
    struct disk_found *found = mem_new_array((size_t)slots->n, sizeof *found);
    int n = disk_slots_scan(slots, found);
    int32_t *phys = mem_new_array((size_t)n + 1, sizeof *phys);
    struct kv_key *keys = mem_new_array((size_t)n + 1, sizeof *keys);
    for (int i = 0; i < n; i++) {
        phys[i] = found[i].slot;
        keys[i] = found[i].key;
    }
    atomic_store(&slots->age, n ? found[n - 1].age + 1 : 1);
    kv_adopt_disk(&engine->world.kv, phys, keys, n);
    if (!engine->setup.quiet)
        log_info("disk", "%s: %d blocks for KV, %lld tokens; it has %d from before", engine->setup.disk.path, slots->n,
                 (long long)slots->n * engine->setup.block_size, n);
    mem_free(found);
    mem_free(phys);
    mem_free(keys);
}

int engine_open_disk(struct engine *engine, struct err *e)
{
    const struct engine_setup *s = &engine->setup;
    bool emptied = false;
    if (!s->disk.path)
        return 0;
    TRY(check(engine, e));
    struct disk_kv_setup setup = {.file = {.path = s->disk.path, .bytes = s->disk.bytes, .model = model_key(engine)},
                                  .host = node_host_kv(&engine->node),
                                  .done = job_done,
                                  .ctx = engine};
    int rc = disk_kv_open(&engine->disk, &setup, &emptied, e);
    if (rc)
        return err_prefix(e, rc, "--disk-kv");
    if (emptied && !s->quiet)
        log_info("disk", "%s was that of another model, or of another version or setting: it is empty now",
                 s->disk.path);
    kv_open_disk(&engine->world.kv, disk_kv_slots(engine->disk)->n);
    adopt(engine);
    return 0;
}

void engine_tend_disk(struct engine *engine)
{
    if (!engine->disk)
        return;
    world_fetch(&engine->world);
    world_save_cached(&engine->world, engine->setup.limits.max_num_batched_tokens);
    engine_post_moves(engine);
}

bool engine_post_disk(struct engine *engine, struct kv_copy *v)
{
    const struct kv_pool *kv = &engine->world.kv;
    bool down = v->to_place == kv->disk_place;
    if (kv->disk_place < 0 || (!down && v->from_place != kv->disk_place))
        return false;
    const int32_t *host = down ? v->from : v->to, *disk = down ? v->to : v->from;
    struct disk_job *j = disk_job_new(v->n_to);
    j->write = down;
    j->ctx = v;
    for (int i = 0; i < j->n; i++) {
        j->host[i] = kv_phys(kv, kv->host_place, host[i], 0);
        j->slots[i] = kv_phys(kv, kv->disk_place, disk[i], 0);
        j->keys[i] = v->keys[i];
    }
    engine->n_moving++;
    disk_kv_post(engine->disk, j);
    return true;
}

/* Once of each kind: a file may have many blocks that are not whole. */
static void say_failed(struct engine *engine, const struct disk_job *j)
{
    bool *said = &engine->disk_said[j->write];
    if (!engine->setup.quiet && !*said)
        log_warn("disk", "%s: %s: %s. Others are counted only (moonshift:kv_disk_failures_total)",
                 engine->setup.disk.path, j->err.text,
                 j->write ? "nothing more is written there until the server begins anew"
                          : "what is missing is computed");
    *said = true;
}

void engine_disk_done(struct engine *engine, struct disk_job *j)
{
    struct kv_copy *v = j->ctx;
    struct world *w = &engine->world;
    double *cost = &w->cost.disk_ns_per_token, n = (double)j->n_done * engine->setup.block_size;
    if (j->n_done < j->n)
        say_failed(engine, j);
    if (!j->write && j->n_done) /* a few tokens say little */
        *cost += n / (n + MEASURED_TOKENS) * ((double)j->ns / n - *cost);
    v->n_landed = j->n_done;
    engine->n_moving--;
    engine_note_change(engine);
    world_copy_done(w, v, engine->now_ns);
    engine->stories.stale = true;
    disk_job_free(j);
}
