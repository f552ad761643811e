#include "models/guide/guide_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

struct piece {
    const char *bytes;
    uint32_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int c = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    return c ? c : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id < y->id ? -1 : 1;
}

static void lay_out(struct guide_tokens *t, const struct piece *p)
{
    for (int i = 0; i < t->n; i++) {
        uint32_t alike = 0;
        while (i && alike < p[i].n && alike < p[i - 1].n && p[i].bytes[alike] == p[i - 1].bytes[alike])
            alike++;
        t->ids[i] = p[i].id;
        t->where[p[i].id] = i;
        t->alike[i] = (uint16_t)alike;
        t->at[i] = (uint32_t)t->bytes.len;
        buf_put(&t->bytes, p[i].bytes, p[i].n);
    }
    t->at[t->n] = (uint32_t)t->bytes.len;
}

struct guide_tokens *guide_tokens_new(const struct tokenizer *tokenizer)
{
    struct guide_tokens *t = mem_new(sizeof *t);
    struct buf all = {0};
    size_t *first;
    t->n_vocab = tokenizer_n_vocab(tokenizer);
    size_t n = (size_t)t->n_vocab;
    first = mem_new_array(n + 1, sizeof *first);
    for (size_t i = 0; i < n; i++) {
        first[i] = all.len;
        if (!tokenizer_is_special(tokenizer, (int32_t)i))
            tokenizer_piece(tokenizer, (int32_t)i, &all);
    }
    first[n] = all.len;
    struct piece *p = mem_new_array(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++)
        if (first[i + 1] > first[i] && first[i + 1] - first[i] <= GUIDE_TOKEN_BYTES)
            p[t->n++] = (struct piece){all.data + first[i], (uint32_t)(first[i + 1] - first[i]), (int32_t)i};
    if (t->n)
        qsort(p, (size_t)t->n, sizeof *p, by_bytes);
    t->ids = mem_new_array((size_t)t->n + 1, sizeof *t->ids);
    t->at = mem_new_array((size_t)t->n + 1, sizeof *t->at);
    t->alike = mem_new_array((size_t)t->n + 1, sizeof *t->alike);
    t->where = mem_new_array(n + 1, sizeof *t->where);
    memset(t->where, 0xFF, n * sizeof *t->where);
    lay_out(t, p);
    t->n_ends = tokenizer_end_ids(tokenizer, &t->ends);
    mem_free(p);
    mem_free(first);
    buf_free(&all);
    return t;
}

void guide_tokens_free(struct guide_tokens *t)
{
    if (!t)
        return;
    buf_free(&t->bytes);
    mem_free(t->ids);
    mem_free(t->at);
    mem_free(t->alike);
    mem_free(t->where);
    mem_free(t);
}

bool guide_tokens_end(const struct guide_tokens *t, int32_t id)
{
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}
