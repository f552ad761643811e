#include "kernels/cuda/frame.h"

#include <limits.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cuda/device.h"

/* WORDS: 32-bit words for the block lists and sampling lists of a step. A step that needs more takes long anyway, and
 * runs without a graph. */
enum { WORDS = 128 << 10, MOST_HALF_DIM = 128, CUT_ROWS = 1 };

/* ---- where things lie */

static size_t place(size_t *end, size_t n, size_t each)
{
    size_t at = *end;
    *end = (at + n * each + 15) / 16 * 16;
    return at;
}

static size_t lay_out(struct frame *f)
{
    size_t end = sizeof(struct frame_head), rows = (size_t)f->most_rows;
    f->ids = place(&end, rows, sizeof(int32_t));
    f->feeds = place(&end, rows, sizeof(int32_t));
    f->positions = place(&end, rows, sizeof(int32_t));
    f->logit_rows = place(&end, rows, sizeof(int32_t));
    f->row_seq = place(&end, rows, sizeof(int32_t));
    f->seqs = place(&end, rows, sizeof(struct seq_at));
    f->inv_freq = place(&end, MOST_HALF_DIM, sizeof(float));
    f->params = place(&end, rows, sizeof(struct sample_params));
    f->cuts = place(&end, rows, sizeof(struct attend_item));
    f->counts = place(&end, 2, sizeof(int32_t));
    f->items = place(&end, (size_t)f->most_items, sizeof(struct flash_item));
    f->words = place(&end, WORDS, sizeof(int32_t));
    return end;
}

static int most_items(const struct device *d, int rows)
{
    struct flash_plan wide, narrow;
    frame_plan(&narrow, &(struct flash_shape){.kv_heads = 1, .most_heads = 1, .n_sms = d->n_sms, .tile = FLASH_TILE},
               rows);
    frame_plan(&wide,
               &(struct flash_shape){.kv_heads = 1, .most_heads = ATTEND_MAX_KV, .n_sms = d->n_sms, .tile = FLASH_TILE},
               rows);
    return wide.n_wide > narrow.n_narrow ? wide.n_wide : narrow.n_narrow;
}

bool frame_open(struct device *d, int most_rows)
{
    struct frame *f = &d->frame;
    f->most_items = most_items(d, most_rows);
    f->most_rows = most_rows;
    size_t bytes = lay_out(f), results = (size_t)most_rows * sizeof *f->results,
           fed = (size_t)most_rows * sizeof *f->fed;
    f->dev = heap_take(&d->heap, bytes);
    f->results = heap_take(&d->heap, results);
    f->fed = heap_take(&d->heap, fed);
    f->turn = heap_take(&d->heap, sizeof *f->turn);
    bool ok = f->dev && f->results && f->fed && f->turn;
    for (int i = 0; i < FLIGHTS && ok; i++) {
        ok = cudaMallocHost((void **)&f->hosts[i], bytes) == cudaSuccess &&
             cudaMallocHost((void **)&f->results_hosts[i], results) == cudaSuccess;
        if (ok)
            memset(f->hosts[i], 0, bytes);
    }
    f->host = f->hosts[0];
    if (ok)
        return gpu_ok(d, cudaMemsetAsync(f->dev, 0, bytes, d->stream), "clearing memory") &&
               gpu_ok(d, cudaMemsetAsync(f->turn, 0, sizeof *f->turn, d->stream), "clearing memory") &&
               gpu_ok(d, cudaMemsetAsync(f->fed, 0, fed, d->stream), "clearing memory");
    cudaGetLastError();
    frame_close(d);
    gpu_fail(d, E_FULL, "no pinned memory for the arrays of graphs: use --enforce-eager");
    return false;
}

void frame_close(struct device *d)
{
    struct frame *f = &d->frame;
    for (int i = 0; i < FLIGHTS; i++) {
        if (f->hosts[i])
            cudaFreeHost(f->hosts[i]);
        if (f->results_hosts[i])
            cudaFreeHost(f->results_hosts[i]);
    }
    heap_give(&d->heap, f->dev);
    heap_give(&d->heap, f->results);
    heap_give(&d->heap, f->fed);
    heap_give(&d->heap, f->turn);
    memset(f, 0, sizeof *f);
}

bool frame_set_angles(struct device *d, const struct rope *rope)
{
    if (rope->dim > 2 * MOST_HALF_DIM)
        return false;
    for (int i = 0; i < FLIGHTS && rope->dim > 0; i++)
        memcpy(d->frame.hosts[i] + d->frame.inv_freq, rope->inv_freq, (size_t)(rope->dim / 2) * sizeof(float));
    return true;
}

struct step_view frame_view(const struct frame *f, int rows)
{
    return (struct step_view){.ids = frame_at(f, f->ids),
                              .positions = frame_at(f, f->positions),
                              .row_seq = frame_at(f, f->row_seq),
                              .logit_rows = frame_at(f, f->logit_rows),
                              .seqs = frame_at(f, f->seqs),
                              .blocks = frame_at(f, f->words),
                              .n_rows = rows,
                              .n_seqs = rows};
}

static uint32_t whole_words(size_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16); /* every array has room for it: lay_out */
}

struct frame_job frame_fetch(const struct frame *f, int rows)
{
    const struct {
        size_t at, n, each;
    } arrays[] = {
        {f->positions, (size_t)rows, sizeof(int32_t)},       {f->logit_rows, (size_t)rows, sizeof(int32_t)},
        {f->row_seq, (size_t)rows, sizeof(int32_t)},         {f->seqs, (size_t)rows, sizeof(struct seq_at)},
        {f->inv_freq, MOST_HALF_DIM, sizeof(float)},         {f->params, (size_t)rows, sizeof(struct sample_params)},
        {f->cuts, (size_t)rows, sizeof(struct attend_item)}, {f->counts, 2, sizeof(int32_t)}};
    struct frame_job j = {.hosts = {f->hosts[0], f->hosts[1]},
                          .dev = f->dev,
                          .turn = f->turn,
                          .items = (uint32_t)f->items,
                          .words = (uint32_t)f->words,
                          .ids = (uint32_t)f->ids,
                          .feeds = (uint32_t)f->feeds,
                          .fed = f->fed,
                          .results = f->results,
                          .n = rows};
    _Static_assert(sizeof arrays / sizeof *arrays <= FRAME_PIECES && FLIGHTS == 2, "as many as a job has");
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        j.pieces[j.n_pieces++] =
            (struct frame_piece){(uint32_t)arrays[i].at, whole_words(arrays[i].n * arrays[i].each)};
    return j;
}

/* As flash_plan cuts: a wide sequence by its heads, narrow ones into at most as many parts as run at once, and one more
 * each for what is left over. */
void frame_plan(struct flash_plan *p, const struct flash_shape *s, int rows)
{
    int parts = flash_places(s) / s->kv_heads + rows;
    *p = (struct flash_plan){0};
    if (s->most_heads > FLASH_ROWS)
        p->n_wide = rows * ((s->most_heads + s->tile - 1) / s->tile);
    else
        *p = (struct flash_plan){.n_narrow = parts, .n_slots = rows, .n_parts = parts};
}

/* ---- a step */

static size_t count_blocks(const struct batch *b)
{
    size_t n = 0;
    for (int i = 0; i < b->n_seqs; i++)
        n += (size_t)b->seqs[i].pos0 / 16 + 1; /* a block has at least 16 tokens */
    return n;
}

bool frame_fits(const struct frame *f, const struct batch *b)
{
    if (b->n_rows > f->most_rows || b->n_seqs != b->n_rows || b->n_logits != b->n_rows)
        return false;
    for (int i = 0; i < b->n_rows; i++)
        if (b->seqs[i].row0 != i || b->seqs[i].n_rows != 1 || b->logit_rows[i] != i || b->samples[i].given >= 0)
            return false;
    return count_blocks(b) + sample_list_words(b, 0, b->n_rows, INT_MAX) <=
           WORDS; /* without the vocabulary's bound: members that sample nothing do not know it */
}

static void fill_rows(const struct frame *f, const struct batch *b, int rows)
{
    int32_t *ids = (int32_t *)(f->host + f->ids), *feeds = (int32_t *)(f->host + f->feeds),
            *positions = (int32_t *)(f->host + f->positions);
    int32_t *logit_rows = (int32_t *)(f->host + f->logit_rows), *row_seq = (int32_t *)(f->host + f->row_seq);
    struct attend_item *cuts = (struct attend_item *)(f->host + f->cuts);
    for (int i = 0; i < rows; i++) {
        bool real = i < b->n_rows;
        ids[i] = real && !b->fed ? b->ids[i] : 0;
        feeds[i] = real && b->fed;
        positions[i] = real ? b->positions[i] : 0;
        logit_rows[i] = i;
        row_seq[i] = real ? i : -1;
        cuts[i] = (struct attend_item){real ? i : 0, i, real ? CUT_ROWS : 0};
    }
}

/* Appends the block lists to the words. */
static void fill_blocks(const struct frame *f, const struct batch *b, int tokens, struct params_writer *words)
{
    struct seq_at *seqs = (struct seq_at *)(f->host + f->seqs);
    for (int i = 0; i < b->n_seqs; i++) {
        int n = b->seqs[i].pos0 / tokens + 1;
        seqs[i] = (struct seq_at){i, 1, b->seqs[i].pos0, (int32_t)words->used};
        memcpy(words->words + words->used, b->seqs[i].blocks, (size_t)n * sizeof(int32_t));
        words->used += n;
    }
}

/* How many there are. */
static int fill_items(const struct frame *f, const struct batch *b, const struct flash_shape *shape)
{
    struct flash_plan p;
    int32_t *counts = (int32_t *)(f->host + f->counts);
    flash_plan(&p, b, shape, NULL);
    ASSERT(p.n_wide + p.n_narrow <= f->most_items);
    flash_plan(&p, b, shape, (struct flash_item *)(f->host + f->items));
    counts[0] = p.n_wide;
    counts[1] = p.n_narrow;
    return p.n_wide + p.n_narrow;
}

/* Padding rows get plain parameters. */
static bool fill_asks(struct device *d, const struct sampled *rows, struct params_writer *a)
{
    int left = d->batch->n_logits - rows->first, n = left < rows->n ? left : rows->n;
    a->params = (struct sample_params *)(d->frame.host + d->frame.params) + rows->first;
    for (int i = n > 0 ? n : 0; i < rows->n; i++)
        a->params[i] = (struct sample_params){.top_p = 1, .repetition = 1, .given = -1, .n_top = -1, .n_allowed = -1};
    return n <= 0 || write_sample_params(d, rows->first, n, a);
}

bool frame_fill(struct device *d, const struct frame_shape *s)
{
    struct frame *f = &d->frame;
    struct frame_head *head = (struct frame_head *)f->host;
    struct params_writer a = {.words = (int32_t *)(f->host + f->words), .vocab = s->vocab};
    fill_rows(f, d->batch, s->rows);
    for (int i = 0; i < s->n_sampled; i++)
        if (!fill_asks(d, &s->sampled[i], &a))
            return false;
    fill_blocks(f, d->batch, s->tokens_per_block, &a);
    int items = s->flash ? fill_items(f, d->batch, s->flash) : 0;
    *head = (struct frame_head){.turn = ++f->last_turn,
                                .item_bytes = whole_words((size_t)items * sizeof(struct flash_item)),
                                .word_bytes = whole_words((size_t)a.used * sizeof(int32_t))};
    return true;
}
