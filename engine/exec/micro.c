#include "engine/exec/micro.h"

#include "engine/base/check.h"

/* Where the cut has got to: the first sequence that goes on, and the first logit row that is left. */
struct cut {
    struct arena *arena;
    const struct batch *from;
    int seq, logit;
};

/* Sequences with rows in [row, end), cut to those. */
static void take_seqs(struct cut *c, struct batch *m, int row, int end)
{
    const struct batch *b = c->from;
    int n = 0;
    while (c->seq + n < b->n_seqs && b->seqs[c->seq + n].row0 < end)
        n++;
    struct batch_seq *seqs = arena_new(c->arena, (size_t)n * sizeof *seqs);
    for (int i = 0; i < n; i++) {
        const struct batch_seq *s = &b->seqs[c->seq + i];
        int first = s->row0 > row ? s->row0 : row, past = s->row0 + s->n_rows < end ? s->row0 + s->n_rows : end;
        seqs[i] = (struct batch_seq){first - row, past - first, s->pos0 + first - s->row0, s->blocks, s->tree};
    }
    m->n_seqs = n;
    m->seqs = seqs;
    const struct batch_seq *last = &b->seqs[c->seq + n - 1];
    c->seq += last->row0 + last->n_rows > end ? n - 1 : n;
}

static void take_logits(struct cut *c, struct batch *m, int row, int end)
{
    const struct batch *b = c->from;
    int first = c->logit;
    while (c->logit < b->n_logits && b->logit_rows[c->logit] < end)
        c->logit++;
    int32_t *rows = arena_new(c->arena, (size_t)(c->logit - first) * sizeof *rows + 1);
    for (int i = first; i < c->logit; i++)
        rows[i - first] = b->logit_rows[i] - row;
    m->n_logits = c->logit - first;
    m->logit_rows = rows;
    m->samples = b->samples + first;
    m->results = b->results + first;
}

struct batch *micro_split(struct arena *a, const struct batch *b, int n)
{
    struct batch *out = arena_new(a, (size_t)n * sizeof *out);
    struct cut c = {.arena = a, .from = b};
    ASSERT(n >= 1 && n <= b->n_rows);
    for (int i = 0; i < n; i++) {
        int row = (int)((int64_t)b->n_rows * i / n), end = (int)((int64_t)b->n_rows * (i + 1) / n);
        out[i] = *b;
        out[i].n_rows = end - row;
        out[i].ids = b->ids + row;
        out[i].positions = b->positions + row;
        take_seqs(&c, &out[i], row, end);
        take_logits(&c, &out[i], row, end);
    }
    ASSERT(c.seq == b->n_seqs && c.logit == b->n_logits);
    return out;
}
