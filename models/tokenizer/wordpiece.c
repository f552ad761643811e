#include "models/tokenizer/wordpiece.h"

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "models/tokenizer/unicode.h"

enum { ROOTS = 2, MAX_NODES = (1 << 24) - 1, MAX_PROBES = 512, RUN_WORK = 4096 };

/* ---- the trie ---- */

/* The place of the edge from node by byte: where it is, or where it would go. */
static uint64_t *find_edge(const struct wordpiece *w, uint32_t node, unsigned char byte, int *probes)
{
    uint64_t key = (uint64_t)node << 8 | byte, h = key * 0x9e3779b97f4a7c15u;
    uint64_t i = (h ^ h >> 32) & w->mask;
    for (*probes = 0; w->edges[i] && w->edges[i] >> 24 != key; (*probes)++)
        i = (i + 1) & w->mask;
    return &w->edges[i];
}

/* 0: there is none; no edge leads to a root. */
static uint32_t step(const struct wordpiece *w, uint32_t node, unsigned char byte)
{
    int probes;
    return (uint32_t)(*find_edge(w, node, byte, &probes) & MAX_NODES);
}

static int put_piece(struct wordpiece *w, uint32_t node, const char *s, size_t n, int32_t id, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        int probes;
        unsigned char byte = (unsigned char)s[i];
        uint64_t *edge = find_edge(w, node, byte, &probes);
        if (probes > MAX_PROBES)
            return err_set(e, E_INPUT, "the pieces crowd one place of their table; no real vocabulary does");
        if (!*edge) {
            w->token[w->n_nodes] = -1;
            *edge = (uint64_t)node << 32 | (uint64_t)byte << 24 | w->n_nodes++;
        }
        node = (uint32_t)(*edge & MAX_NODES);
    }
    w->token[node] = id;
    return 0;
}

int wordpiece_init(struct wordpiece *w, const struct vocab *v, struct err *e)
{
    size_t most = ROOTS, cap = 64;
    for (int32_t id = 0; id < v->n; id++)
        most += v->kind[id] == TOKEN_NORMAL ? v->start[id + 1] - v->start[id] : 0;
    if (most > MAX_NODES)
        return err_set(e, E_INPUT, "the pieces are %zu bytes in all; %d are possible", most, MAX_NODES);
    while (cap < most * 2)
        cap *= 2;
    w->edges = mem_try_array(cap, sizeof *w->edges);
    w->token = mem_try_array(most, sizeof *w->token);
    if (!w->edges || !w->token)
        return err_set(e, E_FULL, "no memory for the pieces of %d tokens", v->n);
    w->mask = cap - 1;
    w->n_nodes = ROOTS;
    w->token[0] = w->token[1] = -1;
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *s = vocab_text(v, id, &n);
        bool begins = n && *s == ' ';
        if (v->kind[id] == TOKEN_NORMAL && !v->foreign[id] && n > begins)
            TRY(put_piece(w, begins ? 0 : 1, s + begins, n - begins, id, e));
    }
    return 0;
}

void wordpiece_free(struct wordpiece *w)
{
    mem_free(w->edges);
    mem_free(w->token);
    w->edges = NULL;
    w->token = NULL;
}

/* ---- normalising ---- */

/* Characters below 128, up to one of another kind: returns how many bytes of s they are. A control character takes part
 * in what follows it, since marks on both sides of it meet when it is dropped. */
static size_t put_ascii(const struct wordpiece *w, struct wordpiece_text *t, const char *s, size_t n)
{
    size_t i = 0;
    for (; i < n && (unsigned char)s[i] < 0x80; i++) {
        unsigned char c = (unsigned char)s[i];
        bool is_upper = w->lower && c >= 'A' && c <= 'Z';
        if (w->clean_text && t->classes[c] & CHAR_CONTROL)
            continue;
        buf_putc(&t->normal, w->clean_text && t->classes[c] & CHAR_BLANK ? ' ' : (char)(is_upper ? c + 32 : c));
    }
    return i;
}

static bool is_chinese(uint32_t c)
{
    static const uint32_t ranges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

static void put_char(const struct wordpiece *w, struct wordpiece_text *t, uint32_t c)
{
    char s[4];
    bool chinese = w->split_chinese && is_chinese(c);
    if (w->clean_text && t->classes[c] & CHAR_CONTROL)
        return;
    if (w->clean_text && t->classes[c] & CHAR_BLANK)
        c = ' ';
    if (chinese)
        buf_putc(&t->run, ' ');
    buf_put(&t->run, s, (size_t)utf8_encode(c, s));
    if (chinese)
        buf_putc(&t->run, ' ');
}

/* Fills t->run from a run of other characters, with the control characters in it; returns how many bytes of s it is. */
static size_t take_run(const struct wordpiece *w, struct wordpiece_text *t, const char *s, size_t n)
{
    size_t i = 0;
    buf_clear(&t->run);
    while (i < n) {
        uint32_t c;
        int len = utf8_decode(s + i, n - i, &c);
        if (len == 1 && !(w->clean_text && t->classes[c] & CHAR_CONTROL))
            break;
        put_char(w, t, len > 0 ? c : 0xFFFD);
        i += len > 0 ? (size_t)len : 1;
    }
    return i;
}

static int put_run(const struct wordpiece *w, struct wordpiece_text *t, struct err *e)
{
    const struct buf *from = &t->run;
    if (w->strip_accents && from->len) {
        buf_clear(&t->plain);
        TRY(unicode_strip_accents(t->classes, from->data, from->len, &t->plain, e));
        from = &t->plain;
    }
    if (w->lower)
        unicode_to_lower(from->data, from->len, &t->normal);
    else if (from->len)
        buf_put(&t->normal, from->data, from->len);
    return 0;
}

int wordpiece_normalise(const struct wordpiece *w, struct wordpiece_text *t, const char *s, size_t n, struct err *e)
{
    buf_clear(&t->normal);
    buf_reserve(&t->normal, n);
    while (n) {
        size_t part = n < RUN_WORK ? n : RUN_WORK, len = put_ascii(w, t, s, part);
        if (len < part) {
            s += len;
            n -= len;
            TRY(cancel_check(t->cancel, len, e));
            len = take_run(w, t, s, n);
            TRY(put_run(w, t, e));
        }
        TRY(cancel_check(t->cancel, len, e));
        s += len;
        n -= len;
    }
    return 0;
}

void wordpiece_text_free(struct wordpiece_text *t)
{
    buf_free(&t->normal);
    buf_free(&t->run);
    buf_free(&t->plain);
}

/* ---- words and pieces ---- */

size_t wordpiece_word(const uint16_t *classes, const char *s, size_t n, int *n_chars)
{
    size_t i = 0;
    int len;
    *n_chars = 0;
    for (; i < n; i += (size_t)len, (*n_chars)++) {
        uint16_t class = classes[unicode_char(s + i, &len)];
        if (class & CHAR_BLANK)
            break;
        if (class & CHAR_PUNCTUATION) {
            if (i)
                break;
            *n_chars = 1;
            return (size_t)len;
        }
    }
    return i;
}

size_t wordpiece_cut(const struct wordpiece *w, const char *word, size_t n, int32_t *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t node = at ? 1 : 0;
        size_t end = at;
        for (size_t i = at; i < n; i++) {
            node = step(w, node, (unsigned char)word[i]);
            if (!node)
                break;
            if (w->token[node] >= 0) {
                out[n_out] = w->token[node];
                end = i + 1;
            }
        }
        if (end == at)
            return 0;
        n_out++;
        at = end;
    }
    return n_out;
}
