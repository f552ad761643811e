/* Text to ids: special tokens first, then words, then merges. */
#include <string.h>

#include "engine/base/mem.h"
#include "models/tokenizer/tokenizer_impl.h"

enum {
    CACHE_SLOTS = 4096,
    CACHE_FROM_BYTES = 4096,
    SHORT_SYMBOLS = 64,
    MAX_TEXT = 1 << 30,
    MAX_CACHED = 64,
    WORD_WORK = 16
};

/* A word that this text had before, and where its ids stand in the output: nothing is copied. */
struct cached {
    const char *word;
    size_t ids_at;
    uint32_t n_word, n_ids, generation;
};

struct encoder {
    const struct tokenizer *t;
    struct tokens *out;
    size_t first, max; /* ids in out before; most to add (0: no limit) */
    struct cancel *cancel;
    struct bpe_scratch scratch;
    int32_t *symbols; /* for long words */
    size_t cap_symbols;
    struct cached *cache;        /* NULL for short texts */
    uint32_t generation;         /* entries of another one point at text that is gone */
    struct buf composed, spaced; /* NFC; SentencePiece's own form */
    struct wordpiece_text words; /* WordPiece's own form */
    struct err *e;
};

static int check_room(const struct encoder *c)
{
    if (c->max && c->out->len - c->first > c->max)
        return err_set(c->e, E_INPUT, "the text is longer than %zu tokens", c->max);
    return 0;
}

static int32_t *room_for(struct encoder *c, size_t n, int32_t *few)
{
    if (n <= SHORT_SYMBOLS)
        return few;
    if (n > c->cap_symbols) {
        mem_free(c->symbols);
        c->symbols = mem_try_array(n, sizeof *c->symbols);
        c->cap_symbols = c->symbols ? n : 0;
    }
    return c->symbols;
}

static int merge_word(struct encoder *c, const char *s, size_t n)
{
    int32_t few[SHORT_SYMBOLS], *symbols = room_for(c, n, few);
    if (!symbols)
        return err_set(c->e, E_FULL, "no memory to tokenise a word of %zu bytes", n);
    size_t len = tokenizer_symbols(c->t, s, n, symbols);
    TRY(bpe_merge(&c->t->bpe, &c->scratch, symbols, &len, c->e));
    tokens_append(c->out, symbols, len);
    return check_room(c);
}

static int encode_word(void *ctx, const char *s, size_t n)
{
    struct encoder *c = ctx;
    TRY(cancel_check(c->cancel, n + WORD_WORK, c->e));
    int32_t id = vocab_find(&c->t->vocab, s, n);
    if (id >= 0 && (c->t->whole[id] || c->t->traits.ignore_merges)) {
        tokens_put(c->out, id);
        return check_room(c);
    }
    if (!c->cache || n > MAX_CACHED)
        return merge_word(c, s, n);
    struct cached *slot = c->cache + (vocab_hash(s, n) >> 20) % CACHE_SLOTS;
    if (slot->word && slot->generation == c->generation && slot->n_word == n && memcmp(slot->word, s, n) == 0) {
        int32_t ids[MAX_CACHED];
        memcpy(ids, c->out->ids + slot->ids_at, slot->n_ids * sizeof *ids);
        tokens_append(c->out, ids, slot->n_ids);
        return check_room(c);
    }
    size_t at = c->out->len;
    TRY(merge_word(c, s, n));
    *slot = (struct cached){s, at, (uint32_t)n, (uint32_t)(c->out->len - at), c->generation};
    return 0;
}

/* ---- byte-level ---- */

/* Bytes that are not UTF-8 are words of their own; what lies between is cut as text of its own. */
static int encode_valid_runs(struct encoder *c, const char *s, size_t n)
{
    struct word_sink sink = {encode_word, c};
    while (n) {
        size_t good = unicode_valid_prefix(s, n), bad = good;
        if (good) {
            TRY(pretok_split(c->t->pretok, s, good, sink, c->e));
        }
        while (bad < n && unicode_valid_prefix(s + bad, n - bad < 4 ? n - bad : 4) == 0)
            bad++;
        if (bad > good)
            TRY(encode_word(c, s + good, bad - good));
        s += bad;
        n -= bad;
    }
    return 0;
}

static int compose_text(struct encoder *c, const char *s, size_t n)
{
    const uint16_t *classes = c->t->classes;
    buf_clear(&c->composed);
    c->generation++;
    while (n) {
        size_t good = unicode_valid_prefix(s, n);
        if (good)
            TRY(unicode_nfc(classes, s, good, &c->composed, c->e));
        if (good < n)
            buf_putc(&c->composed, s[good++]);
        s += good;
        n -= good;
    }
    return 0;
}

static bool needs_nfc(const struct encoder *c, const char *s, size_t n)
{
    bool moves = false;
    while (n && c->t->traits.nfc && !moves) {
        size_t good = unicode_valid_prefix(s, n);
        moves = good && unicode_may_move(c->t->classes, s, good);
        good += good < n;
        s += good;
        n -= good;
    }
    return moves;
}

static int encode_byte_level(struct encoder *c, const char *s, size_t n)
{
    if (!needs_nfc(c, s, n))
        return encode_valid_runs(c, s, n);
    TRY(compose_text(c, s, n));
    int rc = encode_valid_runs(c, c->composed.data, c->composed.len);
    c->generation++;
    return rc;
}

/* ---- SentencePiece ---- */

static bool needs_space(enum space_prefix how, const char *s, size_t n, bool first)
{
    bool spaced = n && (s[0] == ' ' || (n >= 3 && memcmp(s, "\xE2\x96\x81", 3) == 0));
    return how == PREFIX_ALWAYS || (how != PREFIX_NEVER && !spaced && (first || how == PREFIX_UNLESS_SPACED));
}

/* The vocabulary here spells U+2581 as a space, so text needs a copy only for the prefix and for a literal
 * U+2581. */
static void space_out(struct encoder *c, const char *s, size_t n, bool first)
{
    buf_clear(&c->spaced);
    c->generation++;
    buf_reserve(&c->spaced, n + 1);
    if (needs_space(c->t->space_prefix, s, n, first))
        buf_putc(&c->spaced, ' ');
    while (n) {
        const char *mark = memmem(s, n, "\xE2\x96\x81", 3);
        size_t len = mark ? (size_t)(mark - s) : n;
        buf_put(&c->spaced, s, len);
        if (mark)
            buf_putc(&c->spaced, ' ');
        len += mark ? 3 : 0;
        s += len;
        n -= len;
    }
}

static int encode_sentencepiece(struct encoder *c, const char *text, size_t n_text, bool first)
{
    space_out(c, text, n_text, first);
    const char *s = c->spaced.data;
    size_t n = c->spaced.len;
    while (n) {
        size_t len = n;
        if (c->t->words_by_space) {
            len = 0;
            while (len < n && s[len] == ' ')
                len++;
            const char *next = len < n ? memchr(s + len, ' ', n - len) : NULL;
            len = next ? (size_t)(next - s) : n;
        }
        TRY(encode_word(c, s, len));
        s += len;
        n -= len;
    }
    return 0;
}

/* ---- WordPiece ---- */

static int encode_piece_word(struct encoder *c, const char *s, size_t n, int n_chars)
{
    int32_t few[SHORT_SYMBOLS], *ids = few;
    size_t n_ids = 0;
    TRY(cancel_check(c->cancel, n + WORD_WORK, c->e));
    if (n_chars <= c->t->wordpiece.max_chars) {
        ids = room_for(c, n, few);
        if (!ids)
            return err_set(c->e, E_FULL, "no memory to tokenise a word of %zu bytes", n);
        n_ids = wordpiece_cut(&c->t->wordpiece, s, n, ids);
    }
    if (n_ids)
        tokens_append(c->out, ids, n_ids);
    else
        tokens_put(c->out, c->t->unknown);
    return check_room(c);
}

static int encode_wordpiece(struct encoder *c, const char *text, size_t n_text)
{
    struct wordpiece_text *t = &c->words;
    t->classes = c->t->classes;
    t->cancel = c->cancel;
    TRY(wordpiece_normalise(&c->t->wordpiece, t, text, n_text, c->e));
    const char *s = t->normal.data;
    size_t n = t->normal.len;
    while (n) {
        int n_chars;
        size_t len = wordpiece_word(t->classes, s, n, &n_chars);
        if (len) {
            TRY(encode_piece_word(c, s, len, n_chars));
        } else { /* one character of a gap */
            int step;
            unicode_char(s, &step);
            TRY(cancel_check(c->cancel, 1, c->e));
            len = (size_t)step;
        }
        s += len;
        n -= len;
    }
    return 0;
}

/* ---- the whole ---- */

static int encode_bytes(struct encoder *c, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tokens_put(c->out, (unsigned char)s[i]);
        TRY(check_room(c));
        TRY(cancel_check(c->cancel, 1, c->e));
    }
    return 0;
}

/* first: at the beginning of the whole text. */
static int encode_plain(struct encoder *c, const char *s, size_t n, bool first)
{
    if (!n)
        return 0;
    if (c->t->is_bytes)
        return encode_bytes(c, s, n);
    switch (c->t->vocab.style) {
    case VOCAB_BYTE_LEVEL:
        return encode_byte_level(c, s, n);
    case VOCAB_WORDPIECE:
        return encode_wordpiece(c, s, n);
    default:
        return encode_sentencepiece(c, s, n, first);
    }
}

static int encode_all(struct encoder *c, const char *text, size_t n, int flags)
{
    struct added_match m;
    size_t at = 0;
    if (flags & TOKENIZE_BOS && c->t->add_bos)
        tokens_put(c->out, c->t->bos);
    TRY(check_room(c));
    while (at < n && added_search(&c->t->added, text, n, at, flags & TOKENIZE_SPECIAL, &m)) {
        TRY(cancel_check(c->cancel, m.to - at, c->e));
        TRY(encode_plain(c, text + at, m.from - at, at == 0));
        tokens_put(c->out, m.id);
        TRY(check_room(c));
        at = m.to;
    }
    TRY(encode_plain(c, text + at, n - at, at == 0));
    if (flags & TOKENIZE_BOS && c->t->add_eos)
        tokens_put(c->out, c->t->eos);
    return check_room(c);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, struct tokenize_how how, struct tokens *out,
                     struct err *e)
{
    if (n > MAX_TEXT)
        return err_set(e, E_INPUT, "the text is %zu bytes long; %d are possible", n, MAX_TEXT);
    struct encoder c = {.t = t, .out = out, .first = out->len, .max = how.max_tokens, .cancel = how.cancel, .e = e};
    c.scratch.cancel = how.cancel;
    if (n >= CACHE_FROM_BYTES)
        c.cache = mem_try_array(CACHE_SLOTS, sizeof *c.cache); /* without it, only slower */
    int rc = encode_all(&c, text, n, how.flags);
    if (rc)
        out->len = c.first;
    bpe_scratch_free(&c.scratch);
    mem_free(c.symbols);
    mem_free(c.cache);
    buf_free(&c.composed);
    buf_free(&c.spaced);
    wordpiece_text_free(&c.words);
    return rc;
}
