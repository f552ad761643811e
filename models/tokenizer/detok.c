/* Ids to text, one at a time. */
#include <string.h>

#include "engine/base/utf8.h"
#include "models/tokenizer/tokenizer_impl.h"

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special, .strip_space = t->space_prefix != PREFIX_NEVER};
}

/* Bytes at s that one U+FFFD stands for: the longest prefix of some character, at least one. */
static size_t bad_prefix(const char *s, size_t n)
{
    uint32_t cp;
    size_t k = 1;
    while (k < n && k < 3 && utf8_decode(s, k + 1, &cp) == 0)
        k++;
    return k;
}

/* Moves what is decided of s[0..n) to out; returns how many bytes that took. The rest is the start of a
 * character. */
static size_t settle(const char *s, size_t n, struct buf *out)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        size_t good = unicode_valid_prefix(s + i, n - i);
        buf_put(out, s + i, good);
        i += good;
        if (i == n || utf8_decode(s + i, n - i, &cp) == 0)
            break;
        buf_puts(out, "\xEF\xBF\xBD");
        i += bad_prefix(s + i, n - i);
    }
    return i;
}

/* Feeds bytes; at most 3 are held between calls. */
static void feed(struct detok *d, const char *s, size_t n, struct buf *out)
{
    while (d->n_held && n) {
        d->held[d->n_held++] = *s++;
        n--;
        size_t done = settle(d->held, (size_t)d->n_held, out);
        d->n_held -= (int)done;
        memmove(d->held, d->held + done, (size_t)d->n_held);
    }
    size_t done = settle(s, n, out);
    if (done < n) {
        memcpy(d->held, s + done, n - done);
        d->n_held = (int)(n - done);
    }
}

void detok_put(struct detok *d, int32_t id, struct buf *out)
{
    const struct tokenizer *t = d->t;
    if (id < 0 || id >= t->n_vocab || (d->skip_special && tokenizer_is_special(t, id)))
        return;
    if (t->is_bytes) {
        struct buf piece = {0};
        tokenizer_piece(t, id, &piece);
        feed(d, piece.data, piece.len, out);
        buf_free(&piece);
        return;
    }
    size_t n;
    const char *s = vocab_text(&t->vocab, id, &n);
    if (d->strip_space && n) {
        d->strip_space = false;
        n -= *s == ' ';
        s += *s == ' ';
    }
    feed(d, s, n, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->n_held)
        buf_puts(out, "\xEF\xBF\xBD"); /* what is held is the start of one character */
    d->n_held = 0;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    struct detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detok_put(&d, ids[i], out);
    detok_flush(&d, out);
}
