#include "kernels/cuda/plan.h"

/* PART: fewer positions are not worth a CTA of their own; a part begins and ends at a multiple of STEP, or at the end. */
enum { PART = 256, STEP = 64, MOST_PARTS = 64, CTAS_PER_SM = 2 };

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Rows that one item takes. */
static int rows_of(const struct flash_shape *s)
{
    return FLASH_QUERIES / s->most_heads;
}

/* Parts that every item would need to fill the GPU. */
static int wanted_parts(const struct batch *b, const struct flash_shape *s)
{
    int64_t ctas = 0, want = (int64_t)CTAS_PER_SM * s->n_sms;
    for (int i = 0; i < b->n_seqs; i++)
        ctas += (int64_t)ceil_div(b->seqs[i].n_rows, rows_of(s)) * s->n_kv;
    int64_t parts = ctas ? (want + ctas - 1) / ctas : 1;
    return parts < MOST_PARTS ? (int)parts : MOST_PARTS;
}

static void cut_item(struct flash_item it, int parts, struct flash_counts *n, struct flash_item *items, struct flash_fold *folds)
{
    int length = it.end - it.begin, end = it.end;
    int each = ceil_div(ceil_div(length, parts), STEP) * STEP;
    each = each < PART ? PART : each;
    int n_parts = ceil_div(length, each), first = n->n_parts;
    for (int i = 0; i < n_parts; i++, n->n_items++) {
        it.begin = end - length + i * each;
        it.end = i + 1 < n_parts ? it.begin + each : end;
        it.part = n_parts > 1 ? first + i : -1;
        if (items)
            items[n->n_items] = it;
    }
    if (n_parts == 1)
        return;
    if (folds)
        folds[n->n_folds] = (struct flash_fold){it.row0, it.n_rows, first, n_parts};
    n->n_folds++;
    n->n_parts += n_parts;
}

struct flash_counts flash_cut(const struct batch *b, const struct flash_shape *s, struct flash_item *items, struct flash_fold *folds)
{
    struct flash_counts n = {0, 0, 0};
    int rows = rows_of(s), parts = wanted_parts(b, s);
    for (int i = 0; i < b->n_seqs; i++) {
        const struct batch_seq *q = &b->seqs[i];
        for (int r = 0; r < q->n_rows; r += rows) {
            int count = q->n_rows - r < rows ? q->n_rows - r : rows, first = q->pos0 + r;
            int seen = s->window > 0 && first >= s->window ? first - s->window + 1 : 0;
            struct flash_item it = {.seq = i, .row0 = q->row0 + r, .n_rows = count, .begin = seen / STEP * STEP, .end = first + count};
            cut_item(it, parts, &n, items, folds);
        }
    }
    return n;
}
