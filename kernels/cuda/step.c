/* The start and the end of a step, and the ops that take one row at a time. The inputs of a step go to the device in
 * one copy; block lists follow with the first op that knows how many tokens a block has. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/trial.h"

/* Appends n words. */
static const int32_t *put_words(struct mirror *m, const int32_t *words, int n)
{
    size_t bytes = (size_t)n * sizeof *words, at = mirror_take(m, bytes);
    if (n > 0)
        memcpy(m->host + at, words, bytes);
    return (const int32_t *)(m->dev + at);
}

static const int32_t *put_row_seqs(struct mirror *m, const struct batch *b)
{
    size_t at = mirror_take(m, (size_t)b->n_rows * sizeof(int32_t));
    int32_t *to = (int32_t *)(m->host + at);
    memset(to, 0, (size_t)b->n_rows * sizeof *to);
    for (int s = 0; s < b->n_seqs; s++) {
        ASSERT(b->seqs[s].row0 >= 0 && b->seqs[s].n_rows >= 0 && b->seqs[s].row0 + b->seqs[s].n_rows <= b->n_rows);
        for (int i = 0; i < b->seqs[s].n_rows; i++)
            to[b->seqs[s].row0 + i] = s;
    }
    return (const int32_t *)(m->dev + at);
}

void step_angles(struct device *d, const float *inv_freq)
{
    int n_rows = d->view.n_rows, dim = d->rope.dim;
    if (dim == 0 || !gpu_grow(d, &d->work->angles, (size_t)n_rows * (size_t)dim * sizeof(float)))
        return;
    struct angles_job j = {.positions = d->view.positions,
                           .inv_freq = inv_freq,
                           .scale = d->rope.scale,
                           .n_rows = n_rows,
                           .dim = dim,
                           .out = d->work->angles.data};
    gpu_launched(d, launch_angles(d->stream, &j), "angles");
}

static void put_angles(struct device *d)
{
    const struct rope *rope = &d->rope;
    ASSERT(rope->dim >= 0 && rope->dim % 2 == 0);
    size_t bytes = (size_t)(rope->dim / 2) * sizeof(float), at = mirror_take(&d->rows, bytes);
    if (bytes)
        memcpy(d->rows.host + at, rope->inv_freq, bytes);
    mirror_push(d, &d->rows, at);
    step_angles(d, (const float *)(d->rows.dev + at));
}

/* The rows of the batch on their way to the device, with the step's logit rows, and their angles. n_ids: 0 where no
 * op asks for them. */
static void put_view(struct device *d, int n_ids)
{
    const struct batch *b = d->batch;
    size_t words = 3 * (size_t)b->n_rows + (size_t)b->n_logits + (size_t)d->rope.dim, first;
    d->block_tokens = d->item_rows = 0;
    d->flash.planned = false;
    if (!mirror_room(d, &d->rows, words * sizeof(int32_t) + 8 * 16))
        return;
    first = mirror_take(&d->rows, 0);
    d->view = (struct step_view){.ids = put_words(&d->rows, b->ids, n_ids), .n_rows = b->n_rows, .n_seqs = b->n_seqs};
    d->view.positions = put_words(&d->rows, b->positions, b->n_rows);
    d->view.logit_rows = put_words(&d->rows, b->logit_rows, b->n_logits);
    d->view.row_seq = put_row_seqs(&d->rows, b);
    mirror_push(d, &d->rows, first);
    put_angles(d);
}

int cuda_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    memset(&d->error, 0, sizeof d->error);
    if (d->broken.code)
        return err_set(e, d->broken.code, "%s", d->broken.text);
    if (b->n_rows > d->opts.max_rows)
        return err_set(e, E_FULL, "a step of %d rows on a device opened for %d", b->n_rows, d->opts.max_rows);
    gpu_use(d);
    d->batch = b;
    d->rope = rope ? *rope : (struct rope){0};
    d->n_sampled = 0;
    d->rows.used = d->blocks.used = d->items.used = d->lists.used = d->results.used = d->plans.used =
        0; /* finish has waited for all of it */
    gpu_ok(d, cudaEventRecord(d->begun, d->stream), "beginning a step");
    put_view(d, b->n_rows);
    if (!gpu_failed(d))
        return 0;
    gpu_ok(d, cudaStreamSynchronize(d->stream),
           "beginning a step"); /* what is on its way is read from memory that the next step writes */
    d->batch = NULL;
    return err_set(e, d->error.code, "%s", d->error.text);
}

void cuda_begin_part(struct device *d, const struct batch_part *p)
{
    if (gpu_failed(d))
        return;
    if (d->graph) {
        gpu_fail(d, E_UNSUPPORTED, "a captured step whose rows do not all go on");
        return;
    }
    ASSERT(p->n_rows > 0 && p->n_rows <= d->opts.max_rows);
    d->part = *d->batch; /* the step's, or a part's before, which has the same logit rows */
    d->part.n_rows = p->n_rows;
    d->part.ids = NULL;
    d->part.positions = p->positions;
    d->part.n_seqs = p->n_seqs;
    d->part.seqs = p->seqs;
    d->batch = &d->part;
    put_view(d, 0);
}

static int blocks_of(const struct batch_seq *s, int tokens)
{
    return (s->pos0 + s->n_rows + tokens - 1) / tokens;
}

bool step_blocks(struct device *d, int tokens)
{
    const struct batch *b = d->batch;
    size_t n = 0;
    if (d->block_tokens == tokens)
        return true;
    if (d->graph) {
        gpu_fail(d, E_UNSUPPORTED, "blocks of two sizes in one graph");
        return false;
    }
    for (int s = 0; s < b->n_seqs; s++)
        n += (size_t)blocks_of(&b->seqs[s], tokens);
    size_t seq_bytes = (size_t)b->n_seqs * sizeof(struct seq_at);
    if (!mirror_room(d, &d->blocks, seq_bytes + n * sizeof(int32_t) + 32))
        return false;
    size_t first = mirror_take(&d->blocks, seq_bytes), at = mirror_take(&d->blocks, n * sizeof(int32_t));
    struct seq_at *seqs = (struct seq_at *)(d->blocks.host + first);
    int32_t *to = (int32_t *)(d->blocks.host + at), used = 0;
    for (int s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *q = &b->seqs[s];
        int each = blocks_of(q, tokens);
        seqs[s] = (struct seq_at){q->row0, q->n_rows, q->pos0, used};
        memcpy(to + used, q->blocks, (size_t)each * sizeof *to);
        used += each;
    }
    mirror_push(d, &d->blocks, first);
    d->view.seqs = (const struct seq_at *)(d->blocks.dev + first);
    d->view.blocks = (const int32_t *)(d->blocks.dev + at);
    d->block_tokens = tokens;
    return !gpu_failed(d);
}

static void hand_over(const struct step_results *r)
{
    _Static_assert(sizeof(struct sample_out) == sizeof(struct sample_result), "one layout on both sides");
    for (int i = 0; i < r->n; i++)
        for (int k = r->rows[i].first; k < r->rows[i].first + r->rows[i].n && k < r->batch->n_logits; k++)
            memcpy(&r->batch->results[k], r->from + k, sizeof(struct sample_result));
}

int step_end(struct device *d, const cudaEvent_t between[2], const struct step_results *r, struct step_time *t,
             struct err *e)
{
    float ms = 0;
    if (!gpu_failed(d) && !d->broken.code)
        gpu_ok(d, cudaEventElapsedTime(&ms, between[0], between[1]), "timing a step");
    if (t)
        t->ns = (int64_t)((double)ms * 1e6);
    if (gpu_failed(d))
        return err_set(e, d->error.code, "%s", d->error.text);
    if (d->broken.code)
        return err_set(e, d->broken.code, "%s", d->broken.text);
    hand_over(r);
    return 0;
}

int cuda_finish(struct device *d, struct step_time *t, struct err *e)
{
    struct step_results r = {d->batch, d->sampled, d->n_sampled, (const struct sample_out *)d->results.host};
    gpu_ok(d, cudaEventRecord(d->ended, d->stream), "ending a step");
    gpu_ok(d, cudaStreamSynchronize(d->stream),
           "a step"); /* also after an error: what is on its way is read from memory that the next step writes */
    d->batch = NULL;
    trials_collect(d, gpu_failed(d));
    return step_end(d, (const cudaEvent_t[2]){d->begun, d->ended}, &r, t, e);
}

/* ---- ops */

void cuda_embed(struct device *d, struct wview table, struct act y, int first, int n)
{
    if (gpu_failed(d) || n == 0)
        return;
    ASSERT(first >= 0 && n >= 0 && first + n <= d->batch->n_rows);
    for (int i = 0; i < n; i++)
        ASSERT(d->batch->ids[first + i] >= 0 && d->batch->ids[first + i] < table.rows);
    struct embed_job j = {.table = cuda_window(&table), .ids = d->view.ids + first, .y = y.data, .ldy = y.ld, .n = n};
    gpu_launched(d, launch_embed(d->stream, &j), "embed");
}

struct rope_job step_rope(const struct device *d, const struct rope_args *a, struct act x, int n_heads,
                          const float *gain)
{
    return (struct rope_job){.x = x.data,
                             .half = x.half,
                             .ld = x.ld,
                             .rows = a->rows,
                             .n_heads = n_heads,
                             .head_dim = a->head_dim,
                             .gain = gain,
                             .eps = a->eps,
                             .angles = d->work->angles.data,
                             .dim = d->rope.dim,
                             .halves = d->rope.halves};
}

static void rope_heads(struct device *d, const struct rope_args *a, struct act x, int n_heads, const float *gain)
{
    struct rope_job j = step_rope(d, a, x, n_heads, gain);
    if (n_heads > 0 && a->rows > 0 && (gain || j.dim > 0))
        gpu_launched(d, launch_rope(d->stream, &j), "rope");
}

void cuda_rope(struct device *d, const struct rope_args *a)
{
    if (gpu_failed(d))
        return;
    ASSERT(d->rope.dim <= a->head_dim && a->rows <= d->batch->n_rows);
    rope_heads(d, a, a->q, a->n_heads, a->q_gain);
    rope_heads(d, a, a->k, a->n_kv_heads, a->k_gain);
}

void cuda_gather(struct device *d, struct act x, int row0, struct act y, int first, int n)
{
    if (gpu_failed(d) || n == 0)
        return;
    ASSERT(first >= 0 && first + n <= d->batch->n_logits);
    struct gather_job j = {.x = x.data,
                           .y = y.data,
                           .rows = d->view.logit_rows + first,
                           .row0 = row0,
                           .ldx = x.ld,
                           .ldy = y.ld,
                           .n = n,
                           .cols = x.cols};
    gpu_launched(d, launch_gather(d->stream, &j), "gather");
}
