#include "kernels/cpu/device.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/cores.h"
#include "engine/base/mem.h"
#include "kernels/cpu/collective.h"
#include "kernels/cpu/coming.h"
#include "kernels/cpu/profile.h"

static void cpu_name(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, n, "CPU");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, n, "%.60s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

static void fill_facts(struct device *d, const char *isa)
{
    char name[64];
    cpu_name(name, sizeof name);
    d->facts.n_threads = pool_threads(d->pool);
    snprintf(d->facts.isa, sizeof d->facts.isa, "%s", isa);
    snprintf(d->facts.name, sizeof d->facts.name, "%.48s (%.12s, %d threads%s)", name, d->facts.isa, d->facts.n_threads,
             d->opts.fast ? ", fast inputs" : "");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    d->facts.memory_bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    d->facts.act_bytes = sizeof(float);
}

static void cpu_close(struct device *d)
{
    if (!d)
        return;
    pool_close(d->pool);
    coming_free(d->coming);
    slab_close(d->weights);
    mem_free(d->row_seq);
    mem_free(d->linear);
    mem_free(d->angles.data);
    mem_free(d->inputs.data);
    mem_free(d->attention.data);
    mem_free(d->attention_thread.data);
    mem_free(d->sampling.data);
    mem_free(d);
}

static bool fetch_some(void *ctx, int thread)
{
    return coming_fetch(ctx, thread);
}

static int cpu_open(struct device **out, const struct device_opts *o, struct err *e)
{
    struct device *d = mem_new(sizeof *d);
    const struct isa *isa;
    int n_threads = o->n_threads > 0 ? o->n_threads : cores_usable(), rc = E_FULL;
    *out = NULL;
    d->opts = *o;
    clock_init_real(&d->clock);
    d->half_dots = isa_half_dots();
    if ((rc = isa_pick(o->isa, &isa, e)) != 0 || (rc = pool_open(&d->pool, n_threads, e)) != 0) {
        cpu_close(d);
        return rc;
    }
    d->kernels = isa->kernels();
    d->tiles = isa->tiles ? isa->tiles() : NULL;
    d->row_seq = mem_try_array((size_t)(o->max_rows > 0 ? o->max_rows : 1), sizeof *d->row_seq);
    d->linear = mem_try_aligned((size_t)n_threads * sizeof *d->linear, 64);
    d->weights = slab_open(o->keeps_memory);
    d->coming = coming_new(n_threads);
    if (!d->row_seq || !d->linear || !d->weights || !d->coming) {
        cpu_close(d);
        return err_set(e, E_FULL, "no memory for %d threads and %d rows", n_threads, o->max_rows);
    }
    pool_while_idle(d->pool, fetch_some, d->coming);
    fill_facts(d, isa->name);
    *out = d;
    return 0;
}

static void cpu_facts(const struct device *d, struct device_facts *out)
{
    *out = d->facts;
}

static void *cpu_alloc(struct device *d, size_t bytes)
{
    (void)d;
    return mem_try_aligned(bytes, 64);
}

static void cpu_release(struct device *d, void *p)
{
    (void)d;
    mem_free(p);
}

static int cpu_copy(struct device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

static int cpu_weight_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    return pack_weight(out, src, d->opts.fast ? d->kernels : NULL, d->weights, e);
}

static void cpu_weight_free(struct device *d, struct weight *w)
{
    pack_free(w, d->weights);
}

static size_t cpu_weight_bytes(const struct weight *w)
{
    return (size_t)w->groups * w->group_bytes;
}

static const void *cpu_weight_data(const struct weight *w)
{
    return w->data;
}

static size_t cpu_weight_room(const struct weight_shape *s)
{
    return pack_bytes(s->like->type, s->rows, s->cols);
}

static int cpu_weight_at(struct device *d, struct weight **out, const struct weight_shape *s, void *room, struct err *e)
{
    (void)d;
    *out = pack_alias(s->like, s->rows, s->cols, room);
    return *out ? 0 : err_set(e, E_FULL, "no memory for a slot of the FFN pool");
}

static int cpu_weight_window(struct wview v, struct weight_runs out[WEIGHT_PLANES])
{
    *out = pack_window(&v);
    return 1;
}

static int cpu_pull(struct device *d, const struct pull *p)
{
    (void)d;
    if (p->dst_pitch == p->bytes && p->src_pitch == p->bytes) {
        memcpy(p->dst, p->src, p->bytes * (size_t)p->runs);
        return 0;
    }
    for (size_t i = 0; i < (size_t)p->runs; i++)
        memcpy((char *)p->dst + i * p->dst_pitch, (const char *)p->src + i * p->src_pitch, p->bytes);
    return 0;
}

/* Whole pages only: their neighbours may be in use. */
static void cpu_forget(struct device *d, void *p, size_t bytes)
{
    (void)d;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)p + page - 1) & ~(page - 1),
              end = ((uintptr_t)p + bytes) & ~(page - 1);
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* By reading and writing a byte of each page: MADV_POPULATE_WRITE is younger than some kernels. */
static void cpu_touch(struct device *d, void *p, size_t bytes)
{
    (void)d;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    volatile char *at = p;
    for (size_t i = 0; i < bytes; i += page)
        at[i] = at[i];
}

bool device_grow(struct device *d, struct scratch *s, size_t bytes)
{
    if (s->bytes >= bytes)
        return true;
    mem_free(s->data);
    s->bytes = 0;
    s->data = mem_try_aligned(bytes, 64);
    if (!s->data) {
        device_fail(d, E_FULL, "no memory for a step's working space");
        return false;
    }
    s->bytes = bytes;
    return true;
}

void device_fail(struct device *d, int code, const char *text)
{
    if (!d->error.code)
        err_set(&d->error, code, "%s", text);
}

void device_run(struct device *d, int n_items, int64_t work_ns, pool_fn *fn, void *ctx)
{
    const int64_t hand_over_ns = 3000;
    if (work_ns >= hand_over_ns) {
        pool_run(d->pool, n_items, fn, ctx);
        return;
    }
    for (int i = 0; i < n_items; i++)
        fn(ctx, i, 0);
}

static int cpu_finish(struct device *d, struct step_time *t, struct err *e)
{
    if (t)
        t->ns = clock_now(&d->clock) - d->begun_ns;
    d->batch = NULL;
    if (d->error.code)
        return err_set(e, d->error.code, "%s", d->error.text);
    return 0;
}

const struct backend_ops *backend_cpu(void)
{
    static const struct backend_ops ops = {
        .name = "cpu",
        .computes = true,
        .loads_beside = true,
        .shares_memory = true,
        .open = cpu_open,
        .close = cpu_close,
        .facts = cpu_facts,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .upload = cpu_copy,
        .download = cpu_copy,
        .weight_load = cpu_weight_load,
        .weight_free = cpu_weight_free,
        .weight_bytes = cpu_weight_bytes,
        .weight_data = cpu_weight_data,
        .weight_room = cpu_weight_room,
        .weight_at = cpu_weight_at,
        .weight_window = cpu_weight_window,
        .pull = cpu_pull,
        .forget = cpu_forget,
        .touch = cpu_touch,
        .kv_block_bytes = cpu_kv_block_bytes,
        .begin = cpu_begin,
        .begin_part = cpu_begin_part,
        .finish = cpu_finish,
        .embed = cpu_embed,
        .linear = cpu_linear,
        .rope = cpu_rope,
        .kv_write = cpu_kv_write,
        .attention = cpu_attention,
        .gather = cpu_gather,
        .sample = cpu_sample,
        .draft = cpu_draft,
        .kv_move = cpu_kv_move,
        .kv_pack = cpu_kv_pack,
        .comm_open = rendezvous_open,
        .comm_close = rendezvous_close,
        .comm_abort = rendezvous_abort,
        .comm_reset = rendezvous_reset,
        .exchange = cpu_exchange,
        .reduce = cpu_reduce,
        .watch = cpu_watch,
    };
    return &ops;
}
