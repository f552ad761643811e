#include "kernels/cpu/profile.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "kernels/cpu/collective.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/probe.h"
#include "kernels/profile.h"

enum { PROBE_MIB_A_THREAD = 64, PROBE_LEAST_MIB = 128, PROBE_MOST_MIB = 2048 };

/* What is counted of the step in progress lies with the rank's thread; it goes to the sum, which others read, at once
 * when the step has ended. A step that failed counts for nothing. */
struct watch {
    bool in_step;
    struct profile_steps step; /* of one step */
    enum profile_size size;
    int64_t begun_ns, ended_ns; /* ended: of the step before; 0: there was none */
    struct monitor *lock;       /* of the sum */
    struct profile sum;
};

/* ---- an op between two looks at the clock */

struct look {
    int64_t ns;
    struct pool_time pool;
};

static struct look look(const struct device *d)
{
    return (struct look){clock_now(&d->clock), pool_watched(d->pool)};
}

/* What an op has to do; bytes: but for those that are stored. */
struct load {
    double bytes, stored_bytes, int8_ops, float_ops;
};

/* Of an op that began with `from`; only between begin and finish, where profiles are of. */
static void note(struct device *d, enum profile_op op, const struct look *from, struct load l)
{
    struct look now = look(d);
    struct profile_count *c = &d->watch->step.ops[op];
    if (!d->watch->in_step || device_failed(d))
        return;
    c->calls++;
    c->ns += now.ns - from->ns;
    c->pool_ns += now.pool.run_ns - from->pool.run_ns;
    c->wait_ns += now.pool.wait_ns - from->pool.wait_ns;
    c->bytes += l.bytes + l.stored_bytes;
    c->stored_bytes += l.stored_bytes;
    c->int8_ops += l.int8_ops;
    c->float_ops += l.float_ops;
}

/* ---- steps */

static enum profile_size size_of(int rows)
{
    return rows <= 1 ? PROFILE_ONE : rows <= PROFILE_MOST_FEW ? PROFILE_FEW : PROFILE_MANY;
}

static int watched_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    struct watch *w = d->watch;
    struct look from = look(d);
    memset(&w->step, 0, sizeof w->step);
    w->in_step = false;
    int rc = cpu_begin(d, b, rope, e);
    if (rc)
        return rc;
    w->in_step = true;
    w->begun_ns = from.ns;
    w->size = size_of(b->n_rows);
    w->step.steps = 1;
    w->step.rows = (uint64_t)b->n_rows;
    w->step.before_ns = w->ended_ns ? from.ns - w->ended_ns : 0;
    note(d, PROFILE_PREPARE, &from, (struct load){0});
    return 0;
}

static void watched_begin_part(struct device *d, const struct batch_part *p)
{
    struct look from = look(d);
    cpu_begin_part(d, p);
    note(d, PROFILE_PREPARE, &from, (struct load){0});
}

static void add_steps(struct profile_steps *to, const struct profile_steps *s)
{
    to->steps += s->steps;
    to->rows += s->rows;
    to->ns += s->ns;
    to->before_ns += s->before_ns;
    for (int i = 0; i < PROFILE_OPS; i++)
        profile_add(&to->ops[i], &s->ops[i]);
}

static int watched_finish(struct device *d, struct step_time *t, struct err *e)
{
    struct watch *w = d->watch;
    int rc = backend_cpu()->finish(d, t, e);
    w->ended_ns = clock_now(&d->clock);
    w->step.ns = w->ended_ns - w->begun_ns;
    if (w->in_step && !rc) {
        monitor_lock(w->lock);
        add_steps(&w->sum.steps[w->size], &w->step);
        monitor_unlock(w->lock);
    }
    w->in_step = false;
    return rc;
}

/* ---- the ops */

static double float_bytes(int rows, int cols)
{
    return (double)rows * cols * (double)sizeof(float);
}

static void watched_embed(struct device *d, struct wview table, struct act y, int first, int n)
{
    struct look from = look(d);
    cpu_embed(d, table, y, first, n);
    note(d, PROFILE_EMBED, &from,
         (struct load){.stored_bytes = (double)n * (double)dtype_row_bytes(table.w->type, table.cols)});
}

static enum profile_op op_of(enum linear_place place)
{
    static const enum profile_op ops[] = {[LINEAR_ELSEWHERE] = PROFILE_OTHER_LINEAR,
                                          [LINEAR_QKV] = PROFILE_QKV,
                                          [LINEAR_ATTENTION_OUT] = PROFILE_ATTENTION_OUT,
                                          [LINEAR_GATE_UP] = PROFILE_GATE_UP,
                                          [LINEAR_DOWN] = PROFILE_DOWN,
                                          [LINEAR_HEAD] = PROFILE_HEAD,
                                          [LINEAR_DRAFT] = PROFILE_DRAFT};
    return ops[place];
}

static struct load load_of_linear(const struct linear_args *a)
{
    struct load l = {0};
    for (int i = 0; i < a->n_out; i++) {
        const struct wview *v = &a->out[i].w;
        struct weight_runs runs = pack_window(v);
        double ops = 2.0 * a->rows * v->rows * v->cols;
        l.stored_bytes += (double)runs.bytes * runs.runs;
        *(family_is_float(v->w->family) ? &l.float_ops : &l.int8_ops) += ops;
    }
    return l;
}

static void watched_linear(struct device *d, const struct linear_args *a)
{
    struct look from = look(d);
    cpu_linear(d, a);
    if (a->rows > 0 && !device_failed(d)) /* what is refused has no window to be counted */
        note(d, op_of(a->place), &from, load_of_linear(a));
}

static void watched_rope(struct device *d, const struct rope_args *a)
{
    struct look from = look(d);
    cpu_rope(d, a);
    double heads = float_bytes(a->rows, (a->n_heads + a->n_kv_heads) * a->head_dim);
    note(d, PROFILE_ROPE, &from, (struct load){.bytes = 2 * heads});
}

/* Of one position of a layer, keys and values. */
static double cached_bytes(const struct kv_view *kv)
{
    size_t elements = (size_t)(kv->head_dim + kv_padded_dim(kv->head_dim)) * (size_t)kv->n_kv_heads;
    enum dtype t = kv->space->dtype;
    return (double)(elements * kv_element_bytes(t) + 2 * (size_t)kv->n_kv_heads * kv_scale_bytes(t, 1));
}

static void watched_kv_write(struct device *d, struct act k, struct act v, const struct kv_view *kv)
{
    struct look from = look(d);
    cpu_kv_write(d, k, v, kv);
    note(d, PROFILE_KV_WRITE, &from, (struct load){.stored_bytes = d->batch->n_rows * cached_bytes(kv)});
}

/* Each row has a product with the key and one with the value of each position that it sees, for each of its heads. What
 * several rows of a sequence see is read once. */
static struct load load_of_attention(const struct device *d, const struct attention_args *a)
{
    double pairs = 0, positions = 0;
    for (int i = 0; i < d->batch->n_seqs; i++) {
        const struct batch_seq *s = &d->batch->seqs[i];
        int end = s->pos0 + s->n_rows, first = end;
        for (int r = s->row0; r < s->row0 + s->n_rows; r++) {
            int at = cpu_row_position(s, r), from = cpu_first_seen(a, at);
            first = from < first ? from : first;
            pairs += at + 1 - from;
        }
        positions += end - first;
    }
    return (struct load){.stored_bytes = positions * cached_bytes(&a->kv),
                         .float_ops = 4 * pairs * a->n_heads * a->kv.head_dim};
}

static void watched_attention(struct device *d, const struct attention_args *a)
{
    if (device_failed(d))
        return;
    struct load l = load_of_attention(d, a);
    struct look from = look(d);
    cpu_attention(d, a);
    note(d, PROFILE_ATTENTION, &from, l);
}

static void watched_gather(struct device *d, struct act x, int row0, struct act y, int first, int n)
{
    struct look from = look(d);
    cpu_gather(d, x, row0, y, first, n);
    note(d, PROFILE_GATHER, &from, (struct load){.bytes = 2 * float_bytes(n, x.cols)});
}

static void watched_sample(struct device *d, struct act logits, int vocab, int first, int n)
{
    struct look from = look(d);
    cpu_sample(d, logits, vocab, first, n);
    note(d, PROFILE_SAMPLE, &from, (struct load){.bytes = float_bytes(n, vocab)});
}

static void watched_exchange(struct device *d, const struct exchange_args *a)
{
    struct look from = look(d);
    struct load l = {0};
    cpu_exchange(d, a);
    for (int i = 0; i < a->n_rects; i++)
        l.bytes += 2 * float_bytes(a->rects[i].rows, a->rects[i].cols);
    note(d, PROFILE_EXCHANGE, &from, l);
}

/* The planes of all members, as if each added all of them. */
static void watched_reduce(struct device *d, const struct reduce_args *a)
{
    struct look from = look(d);
    cpu_reduce(d, a);
    note(d, PROFILE_REDUCE, &from, (struct load){.bytes = (a->order->n_planes + 1) * float_bytes(a->rows, a->y.cols)});
}

/* ---- draft heads */

static bool watched_well(const struct device *d)
{
    return cpu_draft()->well(d);
}

static void watched_norm(struct device *d, struct act x, const float *gain, float eps, struct act y, int rows)
{
    struct look from = look(d);
    cpu_draft()->norm(d, x, gain, eps, y, rows);
    note(d, PROFILE_DRAFT, &from, (struct load){0});
}

static void watched_cell(struct device *d, const struct draft_cell_args *a)
{
    struct look from = look(d);
    cpu_draft()->cell(d, a);
    note(d, PROFILE_DRAFT, &from, (struct load){0});
}

static void watched_top(struct device *d, struct act logits, int vocab, int rows, int32_t *ids, float *shares)
{
    struct look from = look(d);
    cpu_draft()->top(d, logits, vocab, rows, ids, shares);
    note(d, PROFILE_DRAFT, &from, (struct load){0});
}

static const struct draft_ops *watched_draft(void)
{
    static const struct draft_ops ops = {
        .well = watched_well, .norm = watched_norm, .cell = watched_cell, .top = watched_top};
    return &ops;
}

/* ---- the device */

static void watched_close(struct device *d)
{
    if (d && d->watch)
        monitor_free(d->watch->lock);
    if (d)
        mem_free(d->watch);
    backend_cpu()->close(d);
}

static int watched_open(struct device **out, const struct device_opts *o, struct err *e)
{
    TRY(backend_cpu()->open(out, o, e));
    struct watch *w = (*out)->watch = mem_new(sizeof *w);
    w->lock = monitor_new();
    w->sum = (struct profile){.n_devices = 1, .n_threads = pool_threads((*out)->pool)};
    int rc = pool_watch((*out)->pool, e);
    if (rc) {
        watched_close(*out);
        *out = NULL;
    }
    return rc;
}

/* To *best, if it is more: what others do on the machine only makes less of it. */
static void probe_one(struct probe *p, enum probe_kind what, double *best)
{
    double rate = probe_rate(p, what);
    *best = rate > *best ? rate : *best;
}

static void watched_probe(struct device *d)
{
    struct profile_peaks peaks = d->watch->sum.peaks; /* written here alone */
    int mib = PROBE_MIB_A_THREAD * pool_threads(d->pool);
    const char *isa = d->opts.fast ? d->facts.isa : d->kernels->isa; /* tiles are for fast inputs */
    struct probe *p;
    mib = mib < PROBE_LEAST_MIB ? PROBE_LEAST_MIB : mib > PROBE_MOST_MIB ? PROBE_MOST_MIB : mib;
    if (probe_open(&p, d->pool, isa, mib, NULL))
        return; /* shares of what nobody knows are not shown */
    probe_one(p, PROBE_READ, &peaks.bytes);
    probe_one(p, PROBE_INT8, &peaks.int8_ops);
    probe_one(p, PROBE_F32, &peaks.float_ops);
    if (d->opts.fast && (d->tiles || d->half_dots == DOTS_EVERYWHERE))
        probe_one(p, PROBE_PAIRS, &peaks.float_ops);
    probe_close(p);
    monitor_lock(d->watch->lock);
    d->watch->sum.peaks = peaks;
    monitor_unlock(d->watch->lock);
}

static void watched_add_profile(struct device *d, struct profile *sum)
{
    const struct profile *p = &d->watch->sum;
    monitor_lock(d->watch->lock);
    sum->n_devices += p->n_devices;
    sum->n_threads += p->n_threads;
    sum->peaks.bytes += p->peaks.bytes;
    sum->peaks.int8_ops += p->peaks.int8_ops;
    sum->peaks.float_ops += p->peaks.float_ops;
    for (int i = 0; i < PROFILE_SIZES; i++)
        add_steps(&sum->steps[i], &p->steps[i]);
    monitor_unlock(d->watch->lock);
}

void cpu_watch(struct backend_ops *ops)
{
    ops->open = watched_open;
    ops->close = watched_close;
    ops->begin = watched_begin;
    ops->begin_part = watched_begin_part;
    ops->finish = watched_finish;
    ops->embed = watched_embed;
    ops->linear = watched_linear;
    ops->rope = watched_rope;
    ops->kv_write = watched_kv_write;
    ops->attention = watched_attention;
    ops->gather = watched_gather;
    ops->sample = watched_sample;
    ops->draft = watched_draft;
    ops->exchange = watched_exchange;
    ops->reduce = watched_reduce;
    ops->probe = watched_probe;
    ops->add_profile = watched_add_profile;
}
