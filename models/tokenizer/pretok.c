#include "models/tokenizer/pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "models/tokenizer/pretok_scan.h"

enum { MAX_STAGES = 7, MATCH_LIMIT = 20000000, HEAP_LIMIT_KIB = 65536 };

/* White space, spelled out: versions of PCRE2 differ over U+180E. For use inside [...]. */
#define WS "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CL100K(numbers)                                                                                                \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS                   \
                 "]*[\\r\\n]+|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(numbers, suffix)                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix           \
    "|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" SPACES
#define CASED                                                                                                          \
    "A-Za-z\\xB5\\xC0-\\xD6\\xD8-\\xF6\\xF8-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}"               \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-"             \
    "\\x{3A1}"                                                                                                         \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{"            \
    "13F5}"                                                                                                            \
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                  \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}"                  \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{"               \
    "1FBC}"                                                                                                            \
    "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{"              \
    "1FEC}"                                                                                                            \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{"               \
    "211D}"                                                                                                            \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}"           \
    "-\\x{2149}"                                                                                                       \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"           \
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}"                  \
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"                  \
    "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{"              \
    "10CF2}"                                                                                                           \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

struct stage {
    const char *pattern;
    bool bytes;        /* the pattern sees bytes, not characters */
    pretok_scan *scan; /* finds the same; NULL: the pattern runs */
};

enum stage_id {
    ST_END,
    ST_GPT2,
    ST_LLAMA3,
    ST_QWEN2,
    ST_DIGIT,
    ST_PUNCTUATION,
    ST_BYTE_DIGITS,
    ST_THREE_DIGITS,
    ST_NEWLINE,
    ST_CASED,
    ST_LISTED_PUNCT,
    ST_TRAILING_SPACE,
    ST_CJK,
    ST_LETTERS,
    ST_PUNCT,
    ST_QWEN35,
    ST_GPT4O,
    ST_TEKKEN,
    ST_NUMBERS3,
    ST_KANA,
    ST_DEEPSEEK3,
    ST_COUNT
};

static const struct stage stages[ST_COUNT] = {
    [ST_GPT2] = {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES, false, scan_gpt2},
    [ST_LLAMA3] = {CL100K("\\p{N}{1,3}"), false, scan_llama3},
    [ST_QWEN2] = {CL100K("\\p{N}"), false, scan_qwen2},
    [ST_DIGIT] = {"\\p{N}", false, scan_digit},
    [ST_PUNCTUATION] = {"[\\p{P}$+<=>^`|~]+", false, scan_punctuation},
    [ST_BYTE_DIGITS] = {"[0-9\\xB2\\xB3\\xB9\\xBC-\\xBE]+", true, scan_byte_digits},
    [ST_THREE_DIGITS] = {"[0-9][0-9][0-9]", true, scan_three_digits},
    [ST_NEWLINE] = {"[\\r\\n]", false, scan_newline},
    [ST_CASED] = {"[" WS "]?[" CASED "]+", false, scan_cased},
    [ST_LISTED_PUNCT] = {"[" WS
                         "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
                         false, scan_listed_punct},
    [ST_TRAILING_SPACE] = {"[" WS "]+$", false, scan_trailing_space},
    [ST_CJK] = {"[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", false, scan_cjk},
    [ST_LETTERS] = {"[" WS "]?\\p{L}+", false, scan_letters},
    [ST_PUNCT] = {"[" WS "]?\\p{P}+", false, scan_punct},
    [ST_QWEN35] = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
                                "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" SPACES,
                   false, scan_qwen35},
    [ST_GPT4O] = {O200K("\\p{N}{1,3}", CONTRACTIONS "?"), false, scan_gpt4o},
    [ST_TEKKEN] = {O200K("\\p{N}", ""), false, scan_tekken},
    [ST_NUMBERS3] = {"\\p{N}{1,3}", false, scan_numbers3},
    [ST_KANA] = {"[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+", false, scan_kana},
    [ST_DEEPSEEK3] =
        {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
         " ?[\\p{P}\\p{S}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" SPACES,
         false, scan_deepseek3},
};

static const struct kind {
    const char *name;
    uint8_t chain[MAX_STAGES];
    struct pretok_traits traits; /* nfc, ignore_merges, add_bos */
} kinds[] = {
    {"default", {ST_GPT2}, {0}},
    {"gpt-2", {ST_GPT2}, {0}},
    {"phi-2", {ST_GPT2}, {0}},
    {"roberta-bpe", {ST_GPT2}, {0}},
    {"mpt", {ST_GPT2}, {.nfc = true}},
    {"olmo", {ST_GPT2}, {.nfc = true}},
    {"smollm", {ST_DIGIT, ST_GPT2}, {0}},
    {"starcoder", {ST_DIGIT, ST_GPT2}, {0}},
    {"refact", {ST_DIGIT, ST_GPT2}, {0}},
    {"command-r", {ST_DIGIT, ST_GPT2}, {.nfc = true}},
    {"llama-bpe", {ST_LLAMA3}, {.ignore_merges = true, .add_bos = true}},
    {"llama3", {ST_LLAMA3}, {.ignore_merges = true, .add_bos = true}},
    {"llama-v3", {ST_LLAMA3}, {.ignore_merges = true, .add_bos = true}},
    {"qwen2", {ST_QWEN2}, {.nfc = true}},
    {"deepseek-r1-qwen", {ST_QWEN2}, {.nfc = true}},
    {"qwen35", {ST_QWEN35}, {.nfc = true}},
    {"falcon", {ST_PUNCTUATION, ST_GPT2, ST_BYTE_DIGITS, ST_THREE_DIGITS}, {0}},
    {"deepseek-llm", {ST_NEWLINE, ST_CASED, ST_LISTED_PUNCT, ST_TRAILING_SPACE, ST_CJK, ST_DIGIT}, {0}},
    {"deepseek-coder", {ST_NEWLINE, ST_LETTERS, ST_PUNCT, ST_CJK, ST_DIGIT}, {0}},
    {"deepseek-v3", {ST_NUMBERS3, ST_KANA, ST_DEEPSEEK3}, {0}},
    {"gpt-4o", {ST_GPT4O}, {0}},
    {"llama4", {ST_GPT4O}, {.add_bos = true}},
    {"tekken", {ST_TEKKEN}, {.ignore_merges = true, .add_bos = true}},
};

struct pretok {
    const struct kind *kind;
    const uint16_t *classes;
    pcre2_code *codes[MAX_STAGES]; /* of every stage; those with a scanner are compiled too, for the tests' sake */
};

const char *pretok_name(size_t i)
{
    return i < sizeof kinds / sizeof *kinds ? kinds[i].name : NULL;
}

struct pretok_traits pretok_traits(const struct pretok *p)
{
    return p->kind->traits;
}

static const struct kind *find_kind(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, name, n) == 0)
            return kinds + i;
    return NULL;
}

static int unknown_kind(const char *name, size_t n, struct err *e)
{
    struct buf known = {0};
    char shown[33] = {0};
    for (size_t i = 0; i < n && i < sizeof shown - 1; i++)
        shown[i] = (char)(name[i] > 32 && name[i] < 127 ? name[i] : '?');
    for (size_t i = 0; pretok_name(i); i++)
        buf_printf(&known, "%s%s", i ? " " : "", pretok_name(i));
    int rc = err_set(e, E_UNSUPPORTED, "pre-tokenizer \"%s\" is not supported (tokenizer.ggml.pre); supported: %s",
                     shown, known.data);
    buf_free(&known);
    return rc;
}

static int compile(pcre2_code **out, const struct stage *st, struct err *e)
{
    int error;
    PCRE2_SIZE at;
    uint32_t options = st->bytes ? 0 : PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
    *out = pcre2_compile((PCRE2_SPTR)st->pattern, PCRE2_ZERO_TERMINATED, options, &error, &at, NULL);
    if (!*out)
        return err_set(e, E_SYS,
                       "PCRE2 refuses a pre-tokenizer's pattern (error %d at %zu); version 10.34 or later is "
                       "needed, with Unicode",
                       error, (size_t)at);
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    return 0;
}

int pretok_create(struct pretok **out, const char *name, size_t n, const uint16_t *classes, struct err *e)
{
    const struct kind *kind = n ? find_kind(name, n) : find_kind("default", 7);
    *out = NULL;
    if (!kind)
        return unknown_kind(name, n, e);
    struct pretok *p = mem_new(sizeof *p);
    p->kind = kind;
    p->classes = classes;
    for (int i = 0; i < MAX_STAGES && kind->chain[i]; i++) {
        int rc = compile(p->codes + i, stages + kind->chain[i], e);
        if (rc) {
            pretok_free(p);
            return rc;
        }
    }
    *out = p;
    return 0;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < MAX_STAGES; i++)
        pcre2_code_free(p->codes[i]);
    mem_free(p);
}

/* ---- one split ---- */

struct split {
    const struct pretok *p;
    struct word_sink sink;
    bool patterns;           /* never the scanners */
    pcre2_match_data *match; /* made when the first pattern runs */
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    struct err *e;
};

static int prepare_patterns(struct split *sp)
{
    if (sp->match)
        return 0;
    sp->match = pcre2_match_data_create(1, NULL);
    sp->limits = pcre2_match_context_create(NULL);
    sp->stack = pcre2_jit_stack_create(32 << 10, 4 << 20, NULL);
    if (!sp->match || !sp->limits || !sp->stack)
        return err_set(sp->e, E_FULL, "no memory to tokenise");
    pcre2_set_match_limit(sp->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(sp->limits, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(sp->limits, NULL, sp->stack);
    return 0;
}

/* 1: found, 0: none, negative: an error. */
static int find_pattern(struct split *sp, int stage, const struct piece *piece, size_t from, struct span *m)
{
    TRY(prepare_patterns(sp));
    int rc = pcre2_match(sp->p->codes[stage], (PCRE2_SPTR)piece->s, piece->n, from, PCRE2_NO_UTF_CHECK, sp->match,
                         sp->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return err_set(sp->e, E_INPUT, "the text is too hard for the pre-tokenizer's pattern (PCRE2 error %d)", rc);
    PCRE2_SIZE *at = pcre2_get_ovector_pointer(sp->match);
    *m = (struct span){at[0], at[1]};
    return at[1] > at[0];
}

static int find(struct split *sp, int stage, const struct piece *piece, size_t from, struct span *m)
{
    pretok_scan *scan = stages[sp->p->kind->chain[stage]].scan;
    return scan && !sp->patterns ? scan(piece, from, m) : find_pattern(sp, stage, piece, from, m);
}

/* Matches and gaps of one stage, each handed to the next; after the last they are words. */
static int run_stage(struct split *sp, int stage, const char *s, size_t n)
{
    if (stage == MAX_STAGES || !sp->p->kind->chain[stage])
        return sp->sink.word(sp->sink.ctx, s, n);
    struct piece piece = {s, n, sp->p->classes};
    struct span m;
    size_t done = 0;
    while (done < n) {
        int found = find(sp, stage, &piece, done, &m);
        if (found < 0)
            return found;
        if (!found)
            m = (struct span){n, n};
        if (m.from > done)
            TRY(run_stage(sp, stage + 1, s + done, m.from - done));
        if (m.to > m.from)
            TRY(run_stage(sp, stage + 1, s + m.from, m.to - m.from));
        done = m.to;
    }
    return 0;
}

static int split(const struct pretok *p, const char *s, size_t n, struct split sp)
{
    sp.p = p;
    int rc = n ? run_stage(&sp, 0, s, n) : 0;
    pcre2_match_data_free(sp.match);
    pcre2_match_context_free(sp.limits);
    pcre2_jit_stack_free(sp.stack);
    return rc;
}

int pretok_split(const struct pretok *p, const char *s, size_t n, struct word_sink sink, struct err *e)
{
    return split(p, s, n, (struct split){.sink = sink, .e = e});
}

int pretok_split_patterns(const struct pretok *p, const char *s, size_t n, struct word_sink sink, struct err *e)
{
    return split(p, s, n, (struct split){.sink = sink, .e = e, .patterns = true});
}
