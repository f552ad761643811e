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

/* Before a text that it is given? */
static bool puts_space(const struct tokenizer *t)
{
    struct tokens ids = {0};
    struct buf first = {0};
    if (!tokenizer_encode(t, "a", 1, (struct tokenize_how){0}, &ids, NULL) && ids.len)
        tokenizer_piece(t, ids.ids[0], &first);
    bool space = first.len && first.data[0] == ' ';
    tokens_free(&ids);
    buf_free(&first);
    return space;
}

struct guide_tokens *guide_tokens_new(const struct tokenizer *tokenizer)
{
    struct guide_tokens *t = mem_new(sizeof *t);
    struct buf all = {0};
    size_t *first;
    t->tokenizer = tokenizer;
    t->n_vocab = tokenizer_n_vocab(tokenizer);
    t->n_ends = tokenizer_end_ids(tokenizer, &t->ends);
    t->spaced = puts_space(tokenizer);
    size_t n = (size_t)t->n_vocab;
    first = mem_new_array(n + 1, sizeof *first);
    for (size_t i = 0; i < n; i++) {
        first[i] = all.len;
        if (!tokenizer_is_special(tokenizer, (int32_t)i) && !guide_tokens_end(t, (int32_t)i))
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

void guide_tokens_put(const struct guide_tokens *t, int32_t id, struct buf *to)
{
    int32_t at = id >= 0 && id < t->n_vocab ? t->where[id] : -1;
    if (at >= 0)
        buf_put(to, t->bytes.data + t->at[at], t->at[at + 1] - t->at[at]);
}

/* Of tokens [lo, hi), which are alike up to byte `at`: the first one whose byte there is at least c; -1 is where a
 * token has ended. */
static int first_with(const struct guide_tokens *t, int lo, int hi, uint32_t at, int c)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        uint32_t first = t->at[mid];
        int byte = first + at < t->at[mid + 1] ? (unsigned char)t->bytes.data[first + at] : -1;
        if (byte < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void guide_tokens_narrow(const struct guide_tokens *t, int *lo, int *hi, uint32_t at, unsigned char b)
{
    *lo = first_with(t, *lo, *hi, at, b);
    *hi = first_with(t, *lo, *hi, at, b + 1);
}

/* The ids of text[skip..], as far as their bytes are its own. */
static int spell(const struct guide_tokens *t, const struct buf *text, size_t skip, int32_t *to, int most)
{
    struct tokens all = {0};
    struct buf said = {0};
    int n = 0;
    bool good = !tokenizer_encode(t->tokenizer, text->data, text->len, (struct tokenize_how){0}, &all, NULL);
    for (size_t i = 0; good && i < all.len && n < most; i++) {
        size_t at = said.len;
        tokenizer_piece(t->tokenizer, all.ids[i], &said);
        if (!i && t->spaced && said.len)
            memmove(said.data, said.data + 1, --said.len);
        good = t->where[all.ids[i]] >= 0 && said.len <= text->len &&
               memcmp(said.data + at, text->data + at, said.len - at) == 0 && (at >= skip || said.len <= skip);
        if (good && at >= skip)
            to[n++] = all.ids[i];
    }
    tokens_free(&all);
    buf_free(&said);
    return n;
}

int guide_tokens_spell(const struct guide_tokens *t, const char *text, size_t n, int32_t *to, int most)
{
    struct buf whole = {0};
    if (t->spaced)
        buf_puts(&whole, "\n");
    buf_put(&whole, text, n);
    int found = spell(t, &whole, t->spaced, to, most);
    buf_free(&whole);
    return found;
}

bool guide_tokens_end(const struct guide_tokens *t, int32_t id)
{
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}
