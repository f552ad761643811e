/* Where cached keys and values lie, and the ops over them. */
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"

enum { MAX_HEAD_DIM = 256, ATTEND_ROWS = 8 };

static int padded_dim(int head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

static size_t row_bytes(enum dtype t, int head_dim)
{
    return (size_t)padded_dim(head_dim) * (size_t)kv_element_bytes(t);
}

size_t cuda_kv_block_bytes(enum dtype t, int tokens, int n_kv_heads, int head_dim)
{
    bool known = t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_F8;
    if (!known || tokens <= 0 || tokens % 16 || n_kv_heads <= 0 || head_dim <= 0 || head_dim > MAX_HEAD_DIM)
        return 0;
    return 2 * (size_t)n_kv_heads * (size_t)tokens * row_bytes(t, head_dim);
}

/* The layer of a view. */
static struct kv_at layer_at(const struct kv_view *kv)
{
    const struct kv_space *s = kv->space;
    size_t keys = (size_t)kv->tokens_per_block * row_bytes(s->dtype, kv->head_dim);
    ASSERT(cuda_kv_block_bytes(s->dtype, kv->tokens_per_block, kv->n_kv_heads, kv->head_dim) <= s->block_bytes);
    return (struct kv_at){.base = (uint8_t *)s->base + (size_t)kv->layer * (size_t)s->n_blocks * s->block_bytes,
                          .block_bytes = s->block_bytes,
                          .head_bytes = 2 * keys,
                          .value_at = keys,
                          .tokens = kv->tokens_per_block,
                          .n_heads = kv->n_kv_heads,
                          .head_dim = kv->head_dim,
                          .padded_dim = padded_dim(kv->head_dim),
                          .type = s->dtype};
}

static struct kv_write_job write_job_of(const struct device *d, struct act k, struct act v, const struct kv_view *kv)
{
    ASSERT(k.half == v.half);
    return (struct kv_write_job){
        .step = d->view, .k = k.data, .v = v.data, .ldk = k.ld, .ldv = v.ld, .half = k.half, .kv = layer_at(kv)};
}

void cuda_kv_write(struct device *d, struct act k, struct act v, const struct kv_view *kv)
{
    if (gpu_failed(d) || d->batch->n_seqs == 0 || !step_blocks(d, kv->tokens_per_block))
        return;
    struct kv_write_job j = write_job_of(d, k, v, kv);
    gpu_launched(d, launch_kv_write(d->stream, &j), "kv_write");
}

static struct rope_write_job rope_write_job_of(const struct device *d, const struct rope_args *a, struct act v,
                                               const struct kv_view *kv)
{
    ASSERT(d->rope.dim <= a->head_dim && a->rows == d->batch->n_rows && kv->n_kv_heads == a->n_kv_heads);
    return (struct rope_write_job){
        .q = step_rope(d, a, a->q, a->n_heads, a->q_gain), .k_gain = a->k_gain, .write = write_job_of(d, a->k, v, kv)};
}

void cuda_rope_write(struct device *d, const struct rope_args *a, struct act v, const struct kv_view *kv)
{
    if (gpu_failed(d) || a->rows == 0 || !step_blocks(d, kv->tokens_per_block))
        return;
    struct rope_write_job j = rope_write_job_of(d, a, v, kv);
    gpu_launched(d, launch_rope_write(d->stream, &j), "rope_write");
}

/* ---- attention */

/* q heads are numbered so that those of a kv head follow each other. Returns the most of one. */
static int order_heads(const struct attention_args *a, uint16_t *first_head)
{
    int most = 1, h = 0;
    ASSERT(a->kv.n_kv_heads <= ATTEND_MAX_KV);
    for (int k = 0; k < a->kv.n_kv_heads; k++) {
        first_head[k] = (uint16_t)h;
        while (h < a->n_heads && a->kv_head[h] == k)
            h++;
        most = h - first_head[k] > most ? h - first_head[k] : most;
    }
    first_head[a->kv.n_kv_heads] = (uint16_t)h;
    ASSERT(h == a->n_heads);
    return most;
}

/* Pieces of sequences of up to `rows` rows; NULL: only counts. */
static int cut_rows(const struct batch *b, int rows, struct attend_item *items)
{
    int n = 0;
    for (int s = 0; s < b->n_seqs; s++)
        for (int r = 0; r < b->seqs[s].n_rows; r += rows, n++) {
            int left = b->seqs[s].n_rows - r;
            if (items)
                items[n] = (struct attend_item){s, b->seqs[s].row0 + r, left < rows ? left : rows};
        }
    return n;
}

/* Once a step: all its layers are cut alike. */
static bool send_items(struct device *d, int rows)
{
    size_t bytes = (size_t)cut_rows(d->batch, rows, NULL) * sizeof(struct attend_item);
    if (d->item_rows == rows)
        return true;
    if (!mirror_room(d, &d->items, bytes + 16))
        return false;
    if (d->items.used &&
        !gpu_ok(d, cudaStreamSynchronize(d->stream), "attention")) /* the previous pieces are still being read */
        return false;
    d->items.used = 0;
    mirror_take(&d->items, bytes);
    d->n_items = cut_rows(d->batch, rows, (struct attend_item *)d->items.host);
    d->item_rows = rows;
    mirror_push(d, &d->items, 0);
    return !gpu_failed(d);
}

static void attend_invariant(struct device *d, const struct attention_args *a)
{
    struct attend_job j = {.q = a->q.data,
                           .out = a->out.data,
                           .ldq = a->q.ld,
                           .ldo = a->out.ld,
                           .half_q = a->q.half,
                           .half_out = a->out.half,
                           .window = a->window,
                           .scale = a->scale * 1.44269504f};
    int most = order_heads(a, j.first_head);
    if (d->graph) {
        j.items = frame_at(&d->frame, d->frame.cuts);
        j.n_items = d->graph->rows;
    } else {
        if (!send_items(d, most < ATTEND_ROWS ? ATTEND_ROWS / most : 1) || d->n_items == 0)
            return;
        j.items = (const struct attend_item *)d->items.dev;
        j.n_items = d->n_items;
    }
    j.step = d->view;
    j.kv = layer_at(&a->kv);
    gpu_launched(d, launch_attend(d->stream, &j), "attention");
}

static bool attends_fast(const struct device *d, const struct attention_args *a)
{
    return !d->opts.invariant && flash_can(a->kv.space->dtype, a->kv.head_dim);
}

/* Does every kv head have queries? */
static bool all_heads_asked(const struct flash_job *j)
{
    for (int k = 0; k < j->kv.n_heads; k++)
        if (j->first_head[k] == j->first_head[k + 1])
            return false;
    return true;
}

/* rope_write: NULL, or what to do first. */
static void attend_fast(struct device *d, const struct attention_args *a, const struct rope_write_job *rope_write)
{
    struct flash_job j = {.q = a->q.data,
                          .out = a->out.data,
                          .ldq = a->q.ld,
                          .ldo = a->out.ld,
                          .half_q = a->q.half,
                          .half_out = a->out.half,
                          .window = a->window,
                          .scale = a->scale * 1.44269504f,
                          .step = d->view,
                          .kv = layer_at(&a->kv),
                          .rope = rope_write};
    int most = order_heads(a, j.first_head);
    if (rope_write)
        j.rope_write = *rope_write;
    if (rope_write && !all_heads_asked(&j)) { /* the kernel writes only the keys of kv heads that have queries */
        gpu_launched(d, launch_rope_write(d->stream, rope_write), "rope_write");
        j.rope = false;
    }
    cuda_flash(d, &j, most);
}

void cuda_attention(struct device *d, const struct attention_args *a)
{
    if (gpu_failed(d) || a->n_heads == 0 || !step_blocks(d, a->kv.tokens_per_block))
        return;
    if (attends_fast(d, a))
        attend_fast(d, a, NULL);
    else
        attend_invariant(d, a);
}

void cuda_rope_attention(struct device *d, const struct rope_args *r, struct act v, const struct attention_args *a)
{
    if (gpu_failed(d) || r->rows == 0 || !step_blocks(d, a->kv.tokens_per_block))
        return;
    if (attends_fast(d, a) && a->n_heads > 0) {
        struct rope_write_job rope_write = rope_write_job_of(d, r, v, &a->kv);
        ASSERT(a->q.data == r->q.data);
        attend_fast(d, a, &rope_write);
        return;
    }
    cuda_rope_write(d, r, v, &a->kv);
    cuda_attention(d, a);
}

/* ---- moves */

static struct kv_move_side side_of(const struct kv_end *end, const struct kv_move *m)
{
    size_t keys = (size_t)end->tokens_per_block * row_bytes(end->space->dtype, m->head_dim);
    ASSERT((size_t)(end->head + m->n_heads) * 2 * keys <= end->space->block_bytes && end->tokens_per_block % 16 == 0);
    size_t layer_bytes = (size_t)end->space->n_blocks * end->space->block_bytes;
    return (struct kv_move_side){.base = (uint8_t *)end->space->base + (size_t)end->layer * layer_bytes,
                                 .layer_bytes = layer_bytes,
                                 .block_bytes = end->space->block_bytes,
                                 .head_bytes = 2 * keys,
                                 .value_at = keys,
                                 .tokens = end->tokens_per_block,
                                 .head = end->head};
}

static const int32_t *put_blocks(struct device *d, const struct kv_end *end, int n)
{
    size_t at = mirror_take(&d->lists, (size_t)n * sizeof(int32_t));
    memcpy(d->lists.host + at, end->blocks, (size_t)n * sizeof(int32_t));
    return (const int32_t *)(d->lists.dev + at);
}

/* Waits for its end: the source's blocks may be given away afterwards. */
void cuda_kv_move(struct device *d, const struct kv_move *m)
{
    enum dtype t = m->from.space->dtype;
    int n_from = (m->end_token + m->from.tokens_per_block - 1) / m->from.tokens_per_block;
    int n_to = (m->end_token + m->to.tokens_per_block - 1) / m->to.tokens_per_block;
    struct kv_move_job j = {.from = side_of(&m->from, m),
                            .to = side_of(&m->to, m),
                            .n_layers = m->n_layers,
                            .n_heads = m->n_heads,
                            .first_token = m->first_token,
                            .n_tokens = m->end_token - m->first_token,
                            .row_bytes = row_bytes(t, m->head_dim)};
    ASSERT(t == m->to.space->dtype && m->first_token >= 0 && !d->batch);
    ASSERT(m->from.layer + j.n_layers <= m->from.space->n_layers && m->to.layer + j.n_layers <= m->to.space->n_layers);
    gpu_use(d);
    d->lists.used = 0; /* outside of steps nothing is on its way */
    if (d->broken.code || j.n_tokens <= 0)
        return;
    memset(&d->error, 0, sizeof d->error);
    if (!mirror_room(d, &d->lists, (size_t)(n_from + n_to) * sizeof(int32_t) + 32)) {
        d->broken =
            d->error; /* a move reports no errors, and the sequence has no cache now: the next step must not run */
        return;
    }
    j.from.blocks = put_blocks(d, &m->from, n_from);
    j.to.blocks = put_blocks(d, &m->to, n_to);
    mirror_push(d, &d->lists, 0);
    if (gpu_launched(d, launch_kv_move(d->stream, &j), "kv_move"))
        gpu_ok(d, cudaStreamSynchronize(d->stream), "kv_move");
}
