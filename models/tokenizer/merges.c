/* Where a tokenizer's merges come from: a list in the file (byte-level), or the scores of the pieces
 * (SentencePiece). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "models/tokenizer/tokenizer_impl.h"

enum { MAX_MERGE_TEXT = 8192, MAX_SCORED_PIECE = 512 };

size_t tokenizer_symbols(const struct tokenizer *t, const char *s, size_t n, int32_t *out)
{
    const struct vocab *v = &t->vocab;
    size_t len = 0;
    uint32_t cp;
    if (v->style == VOCAB_BYTE_LEVEL) {
        for (size_t i = 0; i < n; i++) {
            out[len] = v->byte_id[(unsigned char)s[i]];
            len += out[len] >= 0;
        }
        return len;
    }
    bool after_unknown = false;
    for (size_t i = 0; i < n;) {
        int step = utf8_decode(s + i, n - i, &cp);
        size_t bytes = step > 0 ? (size_t)step : 1, all = 0;
        int32_t id = step > 0 ? vocab_find(v, s + i, bytes) : -1;
        while (id < 0 && all < bytes && v->byte_id[(unsigned char)s[i + all]] >= 0)
            all++;
        if (id >= 0)
            out[len++] = id;
        else if (all == bytes)
            for (size_t k = 0; k < bytes; k++)
                out[len++] = v->byte_id[(unsigned char)s[i + k]];
        else if (!after_unknown)
            out[len++] = t->unknown; /* a run of unknown characters is one unknown token */
        after_unknown = id < 0 && all < bytes;
        i += bytes;
    }
    return len;
}

/* Whether merging alone turns a token's bytes into that token. */
static int find_whole(struct tokenizer *t, struct err *e)
{
    struct bpe_scratch scratch = {0};
    int32_t *symbols = NULL;
    size_t cap = 0;
    int rc = 0;
    t->whole = mem_try_array((size_t)t->vocab.n, sizeof *t->whole);
    if (!t->whole)
        return err_set(e, E_FULL, "no memory for %d tokens", t->vocab.n);
    for (int32_t id = 0; id < t->vocab.n && !rc; id++) {
        size_t n;
        const char *s = vocab_text(&t->vocab, id, &n);
        if (t->vocab.kind[id] != TOKEN_NORMAL || t->vocab.foreign[id] || n == 0)
            continue;
        if (n > cap)
            symbols = mem_resize(symbols, cap = n * 2, sizeof *symbols);
        size_t len = tokenizer_symbols(t, s, n, symbols);
        rc = bpe_merge(&t->bpe, &scratch, symbols, &len, e);
        t->whole[id] = len == 1 && symbols[0] == id;
    }
    mem_free(symbols);
    bpe_scratch_free(&scratch);
    return rc;
}

/* No space in any piece comes after anything else. */
static bool spaces_begin_pieces(const struct vocab *v)
{
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *s = vocab_text(v, id, &n);
        for (size_t i = 1; i < n && v->kind[id] == TOKEN_NORMAL; i++)
            if (s[i] == ' ' && s[i - 1] != ' ')
                return false;
    }
    return true;
}

/* ---- a list of "left right" ---- */

static int find_part(const struct tokenizer *t, const char *s, size_t n, int32_t *id, char *bytes)
{
    int len = t->vocab.style == VOCAB_BYTE_LEVEL ? vocab_unspell(s, n, bytes) : vocab_plain_spaces(s, n, bytes);
    *id = len > 0 ? vocab_find(&t->vocab, bytes, (size_t)len) : -1;
    return len;
}

static int add_merge(struct tokenizer *t, size_t rank, struct gguf_string m, struct err *e)
{
    char bytes[MAX_MERGE_TEXT];
    const char *space = m.len > 1 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
    if (m.len > sizeof bytes || !space)
        return err_set(e, E_INPUT, "merge %zu (\"%s\") is not two pieces with a space between", rank,
                       vocab_show(m.data, m.len).text);
    size_t n_left = (size_t)(space - m.data);
    int32_t left, right;
    int a = find_part(t, m.data, n_left, &left, bytes);
    int b = find_part(t, space + 1, m.len - n_left - 1, &right, bytes + (a > 0 ? a : 0));
    int32_t whole = a > 0 && b > 0 ? vocab_find(&t->vocab, bytes, (size_t)(a + b)) : -1;
    if (left < 0 || right < 0 || whole < 0)
        return err_set(e, E_INPUT, "merge %zu (\"%s\") names a piece that is not in the vocabulary", rank,
                       vocab_show(m.data, m.len).text);
    return bpe_set(&t->bpe, left, right, (uint32_t)rank, whole, e);
}

int merges_from_list(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_array a;
    if (!gguf_array(g, "tokenizer.ggml.merges", &a) || a.type != GGUF_STRING)
        return err_set(e, E_INPUT,
                       "the file has no list of merges (tokenizer.ggml.merges), which byte-level BPE needs");
    if (a.count > BPE_MAX_MERGES)
        return err_set(e, E_INPUT, "tokenizer.ggml.merges has %zu merges; %d are possible", a.count, BPE_MAX_MERGES);
    TRY(bpe_init(&t->bpe, a.count, e));
    t->words_by_space = t->vocab.style == VOCAB_SENTENCEPIECE && spaces_begin_pieces(&t->vocab);
    size_t cursor = 0;
    for (size_t i = 0; i < a.count; i++)
        TRY(add_merge(t, i, gguf_array_string(&a, &cursor), e));
    return find_whole(t, e);
}

/* ---- scores ---- */

struct scored {
    double score;
    int32_t left, right, merged;
    uint16_t n_left, n_right; /* characters */
};

struct scored_list {
    struct scored *at;
    size_t len, cap;
};

/* The `tokenizers` library's order when it converts a SentencePiece model: the score, then the longer left
 * side. */
static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left)
        return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right)
        return x->n_right > y->n_right ? -1 : 1;
    return (x->merged > y->merged) - (x->merged < y->merged);
}

static int put_scored(struct scored_list *l, struct scored s, struct err *e)
{
    if (l->len == BPE_MAX_MERGES)
        return err_set(e, E_INPUT, "the pieces can be merged in more than %d ways", BPE_MAX_MERGES);
    if (l->len == l->cap)
        l->at = mem_resize(l->at, l->cap = l->cap ? l->cap * 2 : 4096, sizeof *l->at);
    l->at[l->len++] = s;
    return 0;
}

static int count_chars(const char *s, size_t n)
{
    int chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += (s[i] & 0xC0) != 0x80;
    return chars;
}

/* Every way to cut a piece into two pieces is a merge. */
static int split_piece(struct tokenizer *t, int32_t id, double score, struct scored_list *l, struct err *e)
{
    size_t n;
    const char *s = vocab_text(&t->vocab, id, &n);
    if (n > MAX_SCORED_PIECE)
        return err_set(e, E_INPUT, "token %d is %zu bytes long; a scored piece can have %d", id, n, MAX_SCORED_PIECE);
    if (!utf8_valid(s, n))
        return err_set(e, E_INPUT, "token %d (\"%s\") is not UTF-8", id, vocab_show(s, n).text);
    int chars = count_chars(s, n), left_chars = 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) == 0x80)
            continue;
        left_chars++;
        int32_t left = vocab_find(&t->vocab, s, i), right = left < 0 ? -1 : vocab_find(&t->vocab, s + i, n - i);
        struct scored m = {score, left, right, id, (uint16_t)left_chars, (uint16_t)(chars - left_chars)};
        if (right >= 0)
            TRY(put_scored(l, m, e));
    }
    return 0;
}

static int collect(struct tokenizer *t, const struct gguf_array *scores, struct scored_list *l, struct err *e)
{
    t->words_by_space = spaces_begin_pieces(&t->vocab);
    for (int32_t id = 0; id < t->vocab.n; id++) {
        double score = gguf_array_number(scores, (size_t)id);
        if (isnan(score))
            return err_set(e, E_INPUT, "tokenizer.ggml.scores: token %d has no number for a score", id);
        size_t n;
        const char *s = vocab_text(&t->vocab, id, &n);
        if (t->vocab.kind[id] == TOKEN_NORMAL && vocab_find(&t->vocab, s, n) == id)
            TRY(split_piece(t, id, score, l, e));
    }
    return 0;
}

int merges_from_scores(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_array scores;
    if (!gguf_array(g, "tokenizer.ggml.scores", &scores) || scores.type == GGUF_STRING)
        return err_set(e, E_INPUT, "the file has no scores (tokenizer.ggml.scores), which SentencePiece BPE needs");
    struct scored_list l = {0};
    int rc = collect(t, &scores, &l, e);
    if (!rc) {
        if (l.len)
            qsort(l.at, l.len, sizeof *l.at, by_score);
        rc = bpe_init(&t->bpe, l.len, e);
    }
    for (size_t i = 0; i < l.len && !rc; i++)
        rc = bpe_set(&t->bpe, l.at[i].left, l.at[i].right, (uint32_t)i, l.at[i].merged, e);
    mem_free(l.at);
    return rc ? rc : find_whole(t, e);
}
