#include "models/tokenizer/pretok_scan.h"

#include "models/tokenizer/unicode.h"

static inline unsigned class_at(const struct piece *p, size_t i, int *len)
{
    return p->classes[unicode_char(p->s + i, len)];
}

/* The end of the run of characters from i on that have one of the bits `any`. */
static inline size_t run_of(const struct piece *p, size_t i, unsigned any)
{
    int len;
    while (i < p->n && class_at(p, i, &len) & any)
        i += (size_t)len;
    return i;
}

/* The end of the run of characters that have none of them. */
static inline size_t run_without(const struct piece *p, size_t i, unsigned none)
{
    int len;
    while (i < p->n && !(class_at(p, i, &len) & none))
        i += (size_t)len;
    return i;
}

/* \s+(?!\S)|\s+ for the run of space that begins at i and ends at end. */
static size_t space_end(const struct piece *p, size_t i, size_t end)
{
    if (end == p->n)
        return end;
    size_t last = end - 1;
    while ((p->s[last] & 0xC0) == 0x80)
        last--;
    return last > i ? last : end;
}

/* '(s|t|re|ve|m|ll|d) at i: its length, or 0. fold: in any case, where the long s counts as an s. */
static size_t contraction(const struct piece *p, size_t i, bool fold)
{
    const char *s = p->s + i;
    size_t n = p->n - i;
    if (n < 2 || s[0] != '\'')
        return 0;
    if (fold && n >= 3 && (unsigned char)s[1] == 0xC5 && (unsigned char)s[2] == 0xBF)
        return 3;
    int a = s[1], b = n > 2 ? s[2] : 0;
    if (fold) {
        a |= a >= 'A' && a <= 'Z' ? 32 : 0;
        b |= b >= 'A' && b <= 'Z' ? 32 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

bool scan_gpt2(const struct piece *p, size_t from, struct span *m)
{
    if (from >= p->n)
        return false;
    int len, next_len;
    m->from = from;
    if ((m->to = contraction(p, from, false))) {
        m->to += from;
        return true;
    }
    unsigned c = class_at(p, from, &len);
    size_t i = from;
    if (p->s[from] == ' ' && from + 1 < p->n) {
        unsigned d = class_at(p, from + 1, &next_len);
        if (!(d & CHAR_SPACE)) {
            c = d;
            i++;
        }
    }
    if (c & CHAR_LETTER)
        m->to = run_of(p, i, CHAR_LETTER);
    else if (c & CHAR_NUMBER)
        m->to = run_of(p, i, CHAR_NUMBER);
    else if (c & CHAR_SPACE)
        m->to = space_end(p, from, run_of(p, from, CHAR_SPACE));
    else
        m->to = run_without(p, i, CHAR_SPACE | CHAR_LETTER | CHAR_NUMBER);
    return true;
}

static bool is_newline(char c)
{
    return c == '\n' || c == '\r';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at from, where a space stands. */
static size_t newlines_or_space(const struct piece *p, size_t from)
{
    size_t end = run_of(p, from, CHAR_SPACE), i = end;
    while (i > from && !is_newline(p->s[i - 1]))
        i--;
    return i > from ? i : space_end(p, from, end);
}

static inline size_t numbers_end(const struct piece *p, size_t i, int most)
{
    int len;
    for (int k = 0; k < most && i < p->n && class_at(p, i, &len) & CHAR_NUMBER; k++)
        i += (size_t)len;
    return i;
}

/* ` ?[...]+` and what may follow: the run of none of `none` from i on, then the newlines and `also`. */
static size_t other_end(const struct piece *p, size_t i, unsigned none, char also)
{
    i = run_without(p, i, none);
    while (i < p->n && (is_newline(p->s[i]) || (also && p->s[i] == also)))
        i++;
    return i;
}

/* What differs between the patterns of Llama 3, Qwen 2 and Qwen 3.5. */
struct cl100k {
    int digits;    /* most in a word */
    unsigned word; /* classes of a word's characters */
};

static inline bool scan_cl100k(const struct piece *p, size_t from, struct span *m, struct cl100k k)
{
    const unsigned not_other = CHAR_SPACE | CHAR_NUMBER | k.word;
    if (from >= p->n)
        return false;
    int len, next_len;
    m->from = from;
    if ((m->to = contraction(p, from, true))) {
        m->to += from;
        return true;
    }
    unsigned c = class_at(p, from, &len);
    size_t next = from + (size_t)len;
    unsigned d = next < p->n ? class_at(p, next, &next_len) : CHAR_SPACE;
    if (c & CHAR_NUMBER)
        m->to = numbers_end(p, from, k.digits);
    else if (c & k.word || (d & k.word && !is_newline(p->s[from])))
        m->to = run_of(p, next, k.word);
    else if (c & CHAR_SPACE && (p->s[from] != ' ' || d & not_other))
        m->to = newlines_or_space(p, from);
    else
        m->to = other_end(p, next, not_other, 0);
    return true;
}

bool scan_llama3(const struct piece *p, size_t from, struct span *m)
{
    return scan_cl100k(p, from, m, (struct cl100k){3, CHAR_LETTER});
}

bool scan_qwen2(const struct piece *p, size_t from, struct span *m)
{
    return scan_cl100k(p, from, m, (struct cl100k){1, CHAR_LETTER});
}

bool scan_qwen35(const struct piece *p, size_t from, struct span *m)
{
    return scan_cl100k(p, from, m, (struct cl100k){1, CHAR_LETTER | CHAR_MARK});
}

static bool is_upper(unsigned c) /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
{
    return c & (CHAR_LETTER | CHAR_MARK) && !(c & CHAR_LOWER);
}

static bool is_lower(unsigned c) /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
{
    return c & (CHAR_LETTER | CHAR_MARK) && !(c & CHAR_UPPER);
}

static size_t run_in(const struct piece *p, size_t i, bool (*in)(unsigned))
{
    int len;
    while (i < p->n && in(class_at(p, i, &len)))
        i += (size_t)len;
    return i;
}

/* upper*lower+ at i: its end, or i. */
static size_t capped_end(const struct piece *p, size_t i)
{
    int len;
    size_t u = run_in(p, i, is_upper), end = run_in(p, u, is_lower);
    if (end > u)
        return end;
    while (u > i) { /* give back: the last character of the run that is lower, too, stands for lower+ */
        size_t last = u;
        do
            u--;
        while ((p->s[u] & 0xC0) == 0x80);
        if (is_lower(class_at(p, u, &len)))
            return last;
    }
    return i;
}

/* The two word alternatives of the o200k pattern at from: the end, or from. */
static size_t cased_word_end(const struct piece *p, size_t from)
{
    int len;
    unsigned c = class_at(p, from, &len);
    size_t next = from + (size_t)len, end;
    bool prefix = !(c & (CHAR_LETTER | CHAR_NUMBER)) && !is_newline(p->s[from]);
    if (prefix && (end = capped_end(p, next)) > next)
        return end;
    if ((end = capped_end(p, from)) > from)
        return end;
    if (prefix && (end = run_in(p, next, is_upper)) > next)
        return end; /* upper+lower*: no lower can follow, else the first alternative had matched */
    return run_in(p, from, is_upper);
}

static inline bool scan_o200k(const struct piece *p, size_t from, struct span *m, int digits, bool suffix)
{
    const unsigned not_other = CHAR_SPACE | CHAR_NUMBER | CHAR_LETTER;
    if (from >= p->n)
        return false;
    int len, next_len;
    m->from = from;
    m->to = cased_word_end(p, from);
    if (m->to > from) {
        m->to += suffix ? contraction(p, m->to, true) : 0;
        return true;
    }
    unsigned c = class_at(p, from, &len);
    size_t next = from + (size_t)len;
    unsigned d = next < p->n ? class_at(p, next, &next_len) : CHAR_SPACE;
    if (c & CHAR_NUMBER)
        m->to = numbers_end(p, from, digits);
    else if (c & CHAR_SPACE && (p->s[from] != ' ' || d & not_other))
        m->to = newlines_or_space(p, from);
    else
        m->to = other_end(p, next, not_other, '/');
    return true;
}

bool scan_gpt4o(const struct piece *p, size_t from, struct span *m)
{
    return scan_o200k(p, from, m, 3, true);
}

bool scan_tekken(const struct piece *p, size_t from, struct span *m)
{
    return scan_o200k(p, from, m, 1, false);
}

static bool is_ascii_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_ascii_punct(char c)
{
    return c > ' ' && c < 127 && !is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

/* This pattern does not match everything: characters of no class it names are gaps, handed on as they are. */
bool scan_deepseek3(const struct piece *p, size_t from, struct span *m)
{
    const unsigned word = CHAR_LETTER | CHAR_MARK, sign = CHAR_PUNCT | CHAR_SYMBOL;
    int len, next_len;
    for (size_t i = from; i < p->n; i += (size_t)len) {
        unsigned c = class_at(p, i, &len);
        size_t next = i + (size_t)len;
        unsigned d = next < p->n ? class_at(p, next, &next_len) : 0;
        m->from = i;
        m->to = 0;
        if (is_ascii_punct(p->s[i]) && next < p->n && is_ascii_letter(p->s[next]))
            for (m->to = next; m->to < p->n && is_ascii_letter(p->s[m->to]);)
                m->to++;
        else if (c & word || (d & word && !(c & sign) && !is_newline(p->s[i])))
            m->to = run_of(p, next, word);
        else if (c & sign || (p->s[i] == ' ' && d & sign))
            for (m->to = run_of(p, next, sign); m->to < p->n && is_newline(p->s[m->to]);)
                m->to++;
        else if (c & CHAR_SPACE)
            m->to = newlines_or_space(p, i);
        if (m->to)
            return true;
    }
    return false;
}

bool scan_numbers3(const struct piece *p, size_t from, struct span *m)
{
    m->from = run_without(p, from, CHAR_NUMBER);
    m->to = numbers_end(p, m->from, 3);
    return m->from < p->n;
}

bool scan_digit(const struct piece *p, size_t from, struct span *m)
{
    int len;
    m->from = run_without(p, from, CHAR_DIGIT);
    if (m->from >= p->n)
        return false;
    class_at(p, m->from, &len);
    m->to = m->from + (size_t)len;
    return true;
}

bool scan_punctuation(const struct piece *p, size_t from, struct span *m)
{
    m->from = run_without(p, from, CHAR_PUNCTUATION);
    m->to = run_of(p, m->from, CHAR_PUNCTUATION);
    return m->from < p->n;
}

/* After the byte-level alphabet a byte is a character, and six bytes over 0x7F look like superscripts and
 * fractions. */
static bool is_byte_digit(unsigned char c)
{
    return (c >= '0' && c <= '9') || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
}

bool scan_byte_digits(const struct piece *p, size_t from, struct span *m)
{
    while (from < p->n && !is_byte_digit((unsigned char)p->s[from]))
        from++;
    m->from = from;
    while (from < p->n && is_byte_digit((unsigned char)p->s[from]))
        from++;
    m->to = from;
    return m->from < p->n;
}

bool scan_three_digits(const struct piece *p, size_t from, struct span *m)
{
    size_t run = 0;
    for (size_t i = from; i < p->n; i++) {
        run = p->s[i] >= '0' && p->s[i] <= '9' ? run + 1 : 0;
        if (run == 3) {
            *m = (struct span){i - 2, i + 1};
            return true;
        }
    }
    return false;
}

bool scan_newline(const struct piece *p, size_t from, struct span *m)
{
    while (from < p->n && !is_newline(p->s[from]))
        from++;
    *m = (struct span){from, from + 1};
    return from < p->n;
}

bool scan_trailing_space(const struct piece *p, size_t from, struct span *m)
{
    size_t i = p->n;
    int len;
    while (i > from) {
        size_t last = i - 1;
        while (last > from && (p->s[last] & 0xC0) == 0x80)
            last--;
        if (!(class_at(p, last, &len) & CHAR_SPACE))
            break;
        i = last;
    }
    *m = (struct span){i, p->n};
    return i < p->n;
}

/* What the DeepSeek patterns list by code point. [:-~] holds the letters too. */
static bool is_listed_punct(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '~') || (c >= 0xFF01 && c <= 0xFF0F) ||
           (c >= 0xFF1A && c <= 0xFF5E) || (c >= 0x2018 && c <= 0x201F) || (c >= 0x3000 && c <= 0x3002);
}

static bool is_cjk(uint32_t c)
{
    return (c >= 0x0800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}

/* The first maximal run whose characters are in the set, from `from` on. */
static inline bool listed_run(const struct piece *p, size_t from, struct span *m, bool (*in)(uint32_t))
{
    int len;
    while (from < p->n && !in(unicode_char(p->s + from, &len)))
        from += (size_t)len;
    m->from = from;
    while (from < p->n && in(unicode_char(p->s + from, &len)))
        from += (size_t)len;
    m->to = from;
    return m->from < p->n;
}

/* Puts the space before a match into it: the \s? of \s?[...]+ (no set here holds a space but U+3000, which
 * then stands first). */
static bool with_space(const struct piece *p, size_t from, struct span *m)
{
    int len;
    if (m->from == from)
        return true;
    size_t before = m->from - 1;
    while (before > from && (p->s[before] & 0xC0) == 0x80)
        before--;
    if (class_at(p, before, &len) & CHAR_SPACE)
        m->from = before;
    return true;
}

bool scan_listed_punct(const struct piece *p, size_t from, struct span *m)
{
    return listed_run(p, from, m, is_listed_punct) && with_space(p, from, m);
}

static bool is_kana(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

bool scan_kana(const struct piece *p, size_t from, struct span *m)
{
    return listed_run(p, from, m, is_kana);
}

bool scan_cjk(const struct piece *p, size_t from, struct span *m)
{
    return listed_run(p, from, m, is_cjk);
}

static bool class_run(const struct piece *p, size_t from, struct span *m, unsigned any)
{
    m->from = run_without(p, from, any);
    m->to = run_of(p, m->from, any);
    return m->from < p->n && with_space(p, from, m);
}

bool scan_cased(const struct piece *p, size_t from, struct span *m)
{
    return class_run(p, from, m, CHAR_CASED);
}

bool scan_letters(const struct piece *p, size_t from, struct span *m)
{
    return class_run(p, from, m, CHAR_LETTER);
}

bool scan_punct(const struct piece *p, size_t from, struct span *m)
{
    return class_run(p, from, m, CHAR_PUNCT);
}
