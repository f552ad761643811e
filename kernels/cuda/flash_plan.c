#include "kernels/cuda/flash_plan.h"

#include <stdlib.h>

/* CTAs that run side by side on one multiprocessor: what shared memory allows for heads of 128. */
enum { CTAS_PER_SM = 3 };

int flash_places(const struct flash_shape *s)
{
    return s->n_sms * CTAS_PER_SM;
}

struct cutting {
    const struct flash_shape *shape;
    int rounds; /* of FLASH_KEYS positions, of a part */
    struct flash_plan *plan;
    struct flash_item *items;
};

static bool is_wide(const struct flash_shape *s, const struct batch_seq *q)
{
    return q->n_rows * s->most_heads > FLASH_ROWS;
}

/* Of the round in which the query at this position sees its first key. */
static int key_from(const struct flash_shape *s, int position)
{
    return s->window > 0 && position >= s->window ? (position - s->window + 1) / FLASH_KEYS * FLASH_KEYS : 0;
}

static int first_key(const struct flash_shape *s, const struct batch_seq *q)
{
    return key_from(s, q->pos0);
}

static int count_rounds(const struct flash_shape *s, const struct batch_seq *q)
{
    return (q->pos0 + q->n_rows - first_key(s, q) + FLASH_KEYS - 1) / FLASH_KEYS;
}

static void cut_wide(struct cutting *c, int seq, const struct batch_seq *q)
{
    const struct flash_shape *s = c->shape;
    int queries = q->n_rows * s->most_heads;
    for (int tile = 0; tile * s->tile < queries; tile++, c->plan->n_wide++) {
        int end = (tile + 1) * s->tile < queries ? (tile + 1) * s->tile : queries;
        if (c->items)
            c->items[c->plan->n_wide] =
                (struct flash_item){.seq = seq,
                                    .tile = tile,
                                    .n_parts = 1,
                                    .key0 = key_from(s, q->pos0 + tile * s->tile / s->most_heads),
                                    .key1 = q->pos0 + (end - 1) / s->most_heads + 1};
    }
}

/* Most positions first: what begins last is short, and all multiprocessors end at about the same time. */
static int by_keys(const void *a, const void *b)
{
    const struct flash_item *x = a, *y = b;
    int more = (y->key1 - y->key0) - (x->key1 - x->key0);
    if (more)
        return more;
    return x->seq != y->seq ? x->seq - y->seq : x->tile - y->tile;
}

static void cut_narrow(struct cutting *c, int seq, const struct batch_seq *q)
{
    int first = first_key(c->shape, q), end = q->pos0 + q->n_rows, step = c->rounds * FLASH_KEYS;
    int n = (end - first + step - 1) / step;
    struct flash_plan *p = c->plan;
    for (int i = 0; i < n; i++, p->n_narrow++)
        if (c->items)
            c->items[p->n_wide + p->n_narrow] = (struct flash_item){.seq = seq,
                                                                    .key0 = first + i * step,
                                                                    .key1 = i + 1 < n ? first + (i + 1) * step : end,
                                                                    .part = i,
                                                                    .n_parts = n,
                                                                    .slot = p->n_slots,
                                                                    .part0 = p->n_parts};
    p->n_slots += n > 1;
    p->n_parts += n > 1 ? n : 0;
}

/* Parts as short as they may be while all of them, of all kv heads, still run at once, and a tile has no more than it
 * may. */
static int rounds_of_part(const struct batch *b, const struct flash_shape *s)
{
    int64_t all = 0, places = flash_places(s);
    int longest = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        if (is_wide(s, &b->seqs[i]))
            continue;
        int rounds = count_rounds(s, &b->seqs[i]);
        all += (int64_t)rounds * s->kv_heads;
        longest = rounds > longest ? rounds : longest;
    }
    int64_t rounds = (all + places - 1) / places, least = (longest + FLASH_MOST_PARTS - 1) / FLASH_MOST_PARTS;
    rounds = rounds > least ? rounds : least;
    return rounds > 1 ? (int)rounds : 1;
}

void flash_plan(struct flash_plan *p, const struct batch *b, const struct flash_shape *s, struct flash_item *items)
{
    struct cutting c = {.shape = s, .rounds = rounds_of_part(b, s), .plan = p, .items = items};
    *p = (struct flash_plan){0};
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_rows > 0 && is_wide(s, &b->seqs[i]))
            cut_wide(&c, i, &b->seqs[i]);
    if (items && p->n_wide > 1)
        qsort(items, (size_t)p->n_wide, sizeof *items, by_keys);
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_rows > 0 && !is_wide(s, &b->seqs[i]))
            cut_narrow(&c, i, &b->seqs[i]);
}
