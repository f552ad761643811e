#include "models/tokenizer/vocab.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum { MAX_IDS = 1 << 21, MAX_PIECE = 4096, MAX_PROBES = 512 };

#define EMPTY UINT64_MAX

struct vocab_shown vocab_show(const char *s, size_t n)
{
    struct vocab_shown out;
    size_t keep = n < 56 ? n : 56;
    for (size_t i = 0; i < keep; i++)
        out.text[i] = (char)(s[i] >= 32 && s[i] < 127 ? s[i] : '?');
    memcpy(out.text + keep, n > keep ? "..." : "", n > keep ? 4 : 1);
    return out;
}

static inline uint64_t load(const char *s, size_t n)
{
    uint64_t w = 0;
    if (n >= 8) {
        memcpy(&w, s, 8);
    } else if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, s, 4);
        memcpy(&b, s + n - 4, 4);
        w = (uint64_t)a << 32 | b;
    } else if (n) {
        const unsigned char *u = (const unsigned char *)s;
        w = (uint64_t)u[0] << 16 | (uint64_t)u[n / 2] << 8 | u[n - 1];
    }
    return w;
}

uint64_t vocab_hash(const char *s, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u;
    for (; n > 8; s += 8, n -= 8) {
        h = (h ^ load(s, 8)) * 0x9fb21c651e98df25u;
        h ^= h >> 32;
    }
    h = (h ^ load(s, n)) * 0xd1342543de82ef95u;
    return h ^ h >> 29;
}

/* ---- GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on, in order ----
 */

static bool is_plain(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

static int byte_of(uint32_t cp)
{
    if (cp < 256)
        return is_plain((int)cp) ? (int)cp : -1;
    cp -= 256;
    if (cp <= 32)
        return (int)cp; /* 0..32 */
    if (cp <= 66)
        return 127 + ((int)cp - 33); /* 127..160 */
    return cp == 67 ? 173 : -1;
}

int vocab_unspell(const char *s, size_t n, char *out)
{
    int len = 0;
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int step = utf8_decode(s + i, n - i, &cp);
        int byte = step > 0 ? byte_of(cp) : -1;
        if (byte < 0)
            return -1;
        out[len++] = (char)byte;
        i += (size_t)step;
    }
    return len;
}

/* ---- look-up ---- */

int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    uint64_t h = vocab_hash(s, n);
    for (uint64_t i = h & v->mask;; i = (i + 1) & v->mask) {
        uint64_t slot = v->slots[i];
        if (slot == EMPTY)
            return -1;
        if (slot >> 32 != h >> 32)
            continue;
        int32_t id = (int32_t)(slot & UINT32_MAX);
        if (v->start[id + 1] - v->start[id] == n && memcmp(v->text + v->start[id], s, n) == 0)
            return id;
    }
}

static int insert(struct vocab *v, int32_t id, struct err *e)
{
    size_t n;
    const char *s = vocab_text(v, id, &n);
    uint64_t h = vocab_hash(s, n), i = h & v->mask, value = h >> 32 << 32 | (uint32_t)id;
    for (int probes = 0; v->slots[i] != EMPTY; probes++) {
        int32_t other = (int32_t)(v->slots[i] & UINT32_MAX);
        if (v->slots[i] >> 32 == h >> 32 && v->start[other + 1] - v->start[other] == n &&
            memcmp(v->text + v->start[other], s, n) == 0)
            break;
        if (probes == MAX_PROBES)
            return err_set(e, E_INPUT, "the tokens crowd one place of their table; no real vocabulary does");
        i = (i + 1) & v->mask;
    }
    v->slots[i] = value;
    return 0;
}

static int index_pieces(struct vocab *v, struct err *e)
{
    size_t cap = 64;
    while (cap < (size_t)v->n * 2)
        cap *= 2;
    v->slots = mem_try_array(cap, sizeof *v->slots);
    if (!v->slots)
        return err_set(e, E_FULL, "no memory for %d tokens", v->n);
    memset(v->slots, 0xFF, cap * sizeof *v->slots);
    v->mask = cap - 1;
    for (int32_t id = 0; id < v->n; id++)
        if (v->kind[id] == TOKEN_NORMAL && !v->foreign[id] && v->start[id + 1] > v->start[id])
            TRY(insert(v, id, e));
    return 0;
}

/* ---- pieces ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* <0xNN> */
static int byte_piece(struct gguf_string s)
{
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>' || hex(s.data[3]) < 0 || hex(s.data[4]) < 0)
        return -1;
    return hex(s.data[3]) * 16 + hex(s.data[4]);
}

int vocab_plain_spaces(const char *s, size_t n, char *out)
{
    int len = 0;
    for (size_t i = 0; i < n;) {
        bool mark = n - i >= 3 && memcmp(s + i, "\xE2\x96\x81", 3) == 0;
        out[len++] = mark ? ' ' : s[i];
        i += mark ? 3 : 1;
    }
    return len;
}

/* Writes a WordPiece piece at out, at most s.len + 1 bytes. */
static int store_wordpiece(struct vocab *v, int32_t id, struct gguf_string s, char *out)
{
    bool phantom = !v->prefix.data;
    const char *mark = phantom ? "\xE2\x96\x81" : v->prefix.data;
    size_t n_mark = phantom ? 3 : v->prefix.len;
    bool marked = s.len >= n_mark && memcmp(s.data, mark, n_mark) == 0 && (phantom || s.len > n_mark);
    bool begins = marked == phantom;
    size_t skip = marked ? n_mark : 0;
    if (begins)
        *out = ' ';
    memcpy(out + begins, s.data + skip, s.len - skip);
    v->foreign[id] = !begins && s.len > skip && s.data[skip] == ' ';
    return (int)(s.len - skip + begins);
}

/* Writes the bytes that a piece stands for at out (at most s.len, or one more in WordPiece); returns their number. */
static int store_piece(struct vocab *v, int32_t id, struct gguf_string s, char *out, struct err *e)
{
    uint8_t kind = v->kind[id];
    if (v->style == VOCAB_BYTE_LEVEL && kind == TOKEN_NORMAL) {
        int n = vocab_unspell(s.data, s.len, out);
        if (n >= 0)
            return n;
        v->foreign[id] = true;
    }
    if (kind == TOKEN_BYTE) {
        int byte = byte_piece(s);
        if (byte < 0)
            return err_set(e, E_INPUT, "token %d is marked as a byte and spelled \"%s\", not <0xNN>", id,
                           vocab_show(s.data, s.len).text);
        *out = (char)byte;
        v->byte_id[byte] = id;
        return 1;
    }
    if (v->style == VOCAB_SENTENCEPIECE && (kind == TOKEN_NORMAL || kind == TOKEN_USER))
        return vocab_plain_spaces(s.data, s.len, out);
    if (v->style == VOCAB_WORDPIECE && kind == TOKEN_NORMAL)
        return store_wordpiece(v, id, s, out);
    memcpy(out, s.data, s.len);
    return (int)s.len;
}

static int load_pieces(struct vocab *v, const struct gguf_array *a, struct err *e)
{
    size_t cursor = 0, total = 0;
    for (size_t i = 0; i < a->count; i++) {
        struct gguf_string s = gguf_array_string(a, &cursor);
        if (s.len > MAX_PIECE)
            return err_set(e, E_INPUT, "token %zu is %zu bytes long; %d are possible", i, s.len, MAX_PIECE);
        total += s.len + (v->style == VOCAB_WORDPIECE);
    }
    if (total > UINT32_MAX)
        return err_set(e, E_INPUT, "the tokens are %zu bytes in all; 4 GiB are possible", total);
    v->text = mem_try(total + 1);
    if (!v->text)
        return err_set(e, E_FULL, "no memory for the text of %d tokens", v->n);
    cursor = 0;
    for (int32_t id = 0; id < v->n; id++) {
        int n = store_piece(v, id, gguf_array_string(a, &cursor), v->text + v->start[id], e);
        if (n < 0)
            return n;
        v->start[id + 1] = v->start[id] + (uint32_t)n;
    }
    return 0;
}

static int load_kinds(struct vocab *v, const struct gguf *g, struct err *e)
{
    struct gguf_array a;
    memset(v->kind, TOKEN_NORMAL, (size_t)v->n);
    if (!gguf_array(g, "tokenizer.ggml.token_type", &a))
        return 0;
    if (a.type == GGUF_STRING || a.count != (size_t)v->n)
        return err_set(e, E_INPUT, "tokenizer.ggml.token_type has %zu items for %d tokens", a.count, v->n);
    for (int i = 0; i < v->n; i++) {
        double kind = gguf_array_number(&a, (size_t)i);
        if (!(kind >= TOKEN_NORMAL && kind <= TOKEN_BYTE) || kind != (int)kind)
            return err_set(e, E_INPUT, "tokenizer.ggml.token_type: token %d has the unknown kind %g", i, kind);
        v->kind[i] = (uint8_t)kind;
    }
    return 0;
}

/* One for each token, whether they are asked or not: a list that was cut is a file that was cut. */
static int check_scores(const struct vocab *v, const struct gguf *g, struct err *e)
{
    struct gguf_array a;
    if (!gguf_array(g, "tokenizer.ggml.scores", &a) || (a.type != GGUF_STRING && a.count == (size_t)v->n))
        return 0;
    if (a.type == GGUF_STRING)
        return err_set(e, E_INPUT, "tokenizer.ggml.scores is a list of texts, not of numbers");
    return err_set(e, E_INPUT, "tokenizer.ggml.scores has %zu items for %d tokens", a.count, v->n);
}

int vocab_load(struct vocab *v, const struct gguf *g, enum vocab_style style, struct err *e)
{
    struct gguf_array a;
    memset(v, 0, sizeof *v);
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    v->style = style;
    if (!gguf_array(g, "tokenizer.ggml.tokens", &a) || a.type != GGUF_STRING)
        return err_set(e, E_INPUT, "the file has no list of tokens (tokenizer.ggml.tokens)");
    if (a.count == 0 || a.count >= MAX_IDS)
        return err_set(e, E_INPUT, "tokenizer.ggml.tokens has %zu tokens; 1 to %d are possible", a.count, MAX_IDS - 1);
    v->n = (int)a.count;
    v->start = mem_try_array(a.count + 1, sizeof *v->start);
    v->kind = mem_try_array(a.count, 1);
    v->foreign = mem_try_array(a.count, sizeof *v->foreign);
    if (!v->start || !v->kind || !v->foreign)
        return err_set(e, E_FULL, "no memory for %d tokens", v->n);
    gguf_string(g, "moonshift.wordpiece.prefix", &v->prefix);
    TRY(load_kinds(v, g, e));
    TRY(check_scores(v, g, e));
    TRY(load_pieces(v, &a, e));
    TRY(index_pieces(v, e));
    for (int b = 0; b < 256 && style == VOCAB_BYTE_LEVEL; b++) {
        char c = (char)b;
        v->byte_id[b] = vocab_find(v, &c, 1);
    }
    v->prefix = (struct gguf_string){NULL, 0}; /* it lies in the file */
    return 0;
}

void vocab_free(struct vocab *v)
{
    mem_free(v->text);
    mem_free(v->start);
    mem_free(v->kind);
    mem_free(v->foreign);
    mem_free(v->slots);
    memset(v, 0, sizeof *v);
}
