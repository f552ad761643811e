#include "models/tokenizer/unicode.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum { HANGUL = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7, N_V = 21, N_T = 28, N_HANGUL = 11172 };

uint16_t *unicode_build_classes(void)
{
    uint16_t *classes = mem_new_array(0x110000, sizeof *classes);
    for (size_t i = 0; i < n_unicode_classes; i++) {
        uint32_t from = unicode_classes[i] >> 8, bits = unicode_class_sets[unicode_classes[i] & 255];
        uint32_t to = i + 1 < n_unicode_classes ? unicode_classes[i + 1] >> 8 : 0x110000;
        for (uint32_t c = from; bits && c < to; c++)
            classes[c] = (uint16_t)bits;
    }
    return classes;
}

size_t unicode_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        uint64_t w;
        while (i + 8 <= n && (memcpy(&w, s + i, 8), (w & 0x8080808080808080u) == 0))
            i += 8;
        if (i >= n)
            break;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

bool unicode_may_move(const uint16_t *classes, const char *s, size_t n)
{
    int len;
    for (size_t i = 0; i < n; i += (size_t)len) {
        uint64_t w;
        while (i + 8 <= n && (memcpy(&w, s + i, 8), (w & 0x8080808080808080u) == 0))
            i += 8;
        if (i >= n)
            break;
        if (classes[unicode_char(s + i, &len)] & CHAR_MOVES)
            return true;
    }
    return false;
}

/* ---- NFC: decompose, order the marks, compose ---- */

struct marked {
    uint32_t cp;
    uint8_t order; /* canonical combining class; 0 starts a new run */
};

struct marks {
    struct marked *at;
    size_t len, cap;
};

static uint8_t order_of(uint32_t cp)
{
    size_t lo = 0, hi = n_unicode_orders; /* the last run that begins at or before cp */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (unicode_orders[mid] >> 8 <= cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? (uint8_t)(unicode_orders[lo - 1] & 255) : 0;
}

/* The entry of a sorted table whose top bits are key, or 0. */
static uint64_t find(const uint64_t *table, size_t n, uint64_t key, int shift)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid] >> shift < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && table[lo] >> shift == key ? table[lo] : 0;
}

static bool put(struct marks *m, uint32_t cp, uint8_t order)
{
    if (m->len == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 256;
        struct marked *bigger = mem_try_array(cap, sizeof *bigger);
        if (!bigger)
            return false;
        if (m->len)
            memcpy(bigger, m->at, m->len * sizeof *bigger);
        mem_free(m->at);
        m->at = bigger;
        m->cap = cap;
    }
    m->at[m->len++] = (struct marked){cp, order};
    return true;
}

/* Canonical decomposition; the tables nest a few steps deep at most. */
static bool decompose(struct marks *m, uint32_t cp)
{
    if (cp - HANGUL < N_HANGUL) {
        uint32_t i = cp - HANGUL, t = i % N_T;
        return put(m, HANGUL_L + i / (N_V * N_T), 0) && put(m, HANGUL_V + i / N_T % N_V, 0) &&
               (!t || put(m, HANGUL_T + t, 0));
    }
    uint64_t d = find(unicode_decomposed, n_unicode_decomposed, cp, 42);
    if (!d)
        return put(m, cp, order_of(cp));
    uint32_t second = (uint32_t)(d & 0x1FFFFF);
    return decompose(m, (uint32_t)(d >> 21 & 0x1FFFFF)) && (!second || decompose(m, second));
}

/* A stable counting sort of one run of marks: linear also for a run of a million. */
static bool order_run(struct marked *run, size_t n)
{
    bool sorted = true;
    for (size_t i = 1; i < n; i++)
        sorted &= run[i - 1].order <= run[i].order;
    if (sorted)
        return true;
    struct marked *copy = mem_try_array(n, sizeof *copy);
    if (!copy)
        return false;
    size_t start[257] = {0};
    memcpy(copy, run, n * sizeof *copy);
    for (size_t i = 0; i < n; i++)
        start[run[i].order + 1]++;
    for (int k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        run[start[copy[i].order]++] = copy[i];
    mem_free(copy);
    return true;
}

static bool order_marks(struct marks *m)
{
    for (size_t i = 0; i < m->len;) {
        size_t j = i;
        while (j < m->len && m->at[j].order)
            j++;
        if (j > i + 1 && !order_run(m->at + i, j - i))
            return false;
        i = j + (j == i);
    }
    return true;
}

/* The character that a pair composes to, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < 19 && b - HANGUL_V < N_V)
        return HANGUL + ((a - HANGUL_L) * N_V + (b - HANGUL_V)) * N_T;
    if (a - HANGUL < N_HANGUL && (a - HANGUL) % N_T == 0 && b - HANGUL_T - 1 < N_T - 1)
        return a + (b - HANGUL_T);
    return (uint32_t)(find(unicode_composed, n_unicode_composed, (uint64_t)a << 21 | b, 21) & 0x1FFFFF);
}

static void compose(struct marks *m)
{
    size_t out = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < m->len; i++) {
        struct marked c = m->at[i];
        bool adjacent = starter != SIZE_MAX && out == starter + 1;
        bool open = adjacent || (starter != SIZE_MAX && m->at[out - 1].order < c.order); /* else a mark blocks it */
        uint32_t whole = open ? compose_pair(m->at[starter].cp, c.cp) : 0;
        if (whole) {
            m->at[starter].cp = whole;
            continue;
        }
        if (c.order == 0)
            starter = out;
        m->at[out++] = c;
    }
    m->len = out;
}

/* Writes m out and frees it. ok: nothing failed so far, in a text of n bytes. */
static int put_marks(struct marks *m, bool ok, size_t n, struct buf *out, struct err *e)
{
    if (ok)
        buf_reserve(out, m->len * 4);
    for (size_t i = 0; i < m->len && ok; i++) {
        char c[4];
        buf_put(out, c, (size_t)utf8_encode(m->at[i].cp, c));
    }
    mem_free(m->at);
    return ok ? 0 : err_set(e, E_FULL, "no memory to normalise %zu bytes of text", n);
}

int unicode_nfc(const uint16_t *classes, const char *s, size_t n, struct buf *out, struct err *e)
{
    struct marks m = {0};
    bool ok = true;
    int len, next_len;
    for (size_t i = 0; i < n && ok; i += (size_t)len) {
        uint32_t cp = unicode_char(s + i, &len);
        size_t next = i + (size_t)len;
        /* A character stays whole unless it may move, or what follows may get in between its parts. */
        bool still =
            !(classes[cp] & CHAR_MOVES) && (next >= n || !(classes[unicode_char(s + next, &next_len)] & CHAR_MOVES));
        ok = still ? put(&m, cp, 0) : decompose(&m, cp);
    }
    ok = ok && order_marks(&m);
    if (ok)
        compose(&m);
    return put_marks(&m, ok, n, out, e);
}

int unicode_strip_accents(const uint16_t *classes, const char *s, size_t n, struct buf *out, struct err *e)
{
    struct marks m = {0};
    bool ok = true;
    int len;
    for (size_t i = 0; i < n && ok; i += (size_t)len)
        ok = decompose(&m, unicode_char(s + i, &len));
    ok = ok && order_marks(&m);
    size_t kept = 0;
    for (size_t i = 0; i < m.len && ok; i++)
        if (!(classes[m.at[i].cp] & CHAR_ACCENT))
            m.at[kept++] = m.at[i];
    m.len = kept;
    return put_marks(&m, ok, n, out, e);
}

void unicode_to_lower(const char *s, size_t n, struct buf *out)
{
    int len;
    for (size_t i = 0; i < n; i += (size_t)len) {
        char c[4];
        uint32_t cp = unicode_char(s + i, &len);
        uint64_t low = find(unicode_lowered, n_unicode_lowered, cp, 42);
        uint32_t second = (uint32_t)(low & 0x1FFFFF);
        if (low)
            buf_put(out, c, (size_t)utf8_encode((uint32_t)(low >> 21 & 0x1FFFFF), c));
        else
            buf_put(out, s + i, (size_t)len);
        if (second)
            buf_put(out, c, (size_t)utf8_encode(second, c));
    }
}
