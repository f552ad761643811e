#include "models/tokenizer/hf_pretok.h"

#include <string.h>

#include "engine/base/buf.h"

#define CL100K(numbers)                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers                                              \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"                                                                    \
    "|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(numbers, suffix)                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix           \
    "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPLIT(pattern) "split " pattern "\n"
#define BYTES "bytes\n" /* ByteLevel, which only spells */
#define WORDS "words\n" /* ByteLevel with GPT-2's own pattern */
#define EACH_DIGIT "digits\n"

/* Steps in order, each with its line end, as `describe` writes them. */
static const struct published {
    const char *name, *steps;
    bool nfc, ignore_merges;
} all[] = {
    {"gpt-2", WORDS, false, false},
    {"mpt", WORDS, true, false},
    {"smollm", EACH_DIGIT WORDS, false, false},
    {"command-r", EACH_DIGIT WORDS, true, false},
    {"llama-bpe", SPLIT(CL100K("\\p{N}{1,3}")) BYTES, false, true},
    {"qwen2", SPLIT(CL100K("\\p{N}")) BYTES, true, false},
    {"qwen35",
     SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
           "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
           "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+") BYTES,
     true, false},
    {"deepseek-v3",
     SPLIT("\\p{N}{1,3}") SPLIT("[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+")
         SPLIT("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+") BYTES,
     false, false},
    {"gpt-4o", SPLIT(O200K("\\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")) BYTES, false, false},
    {"tekken", SPLIT(O200K("\\p{N}", "")) BYTES, false, true},
};

static bool has(const struct json *j, const char *key, const char *text)
{
    const char *s = json_text(json_find(j, key));
    return s && strcmp(s, text) == 0;
}

/* The steps of a Sequence, or the one that stands alone. */
static const struct json *first_step(const struct json *p)
{
    return has(p, "type", "Sequence") ? json_first(json_find(p, "pretokenizers")) : p;
}

static const struct json *next_step(const struct json *p, const struct json *step)
{
    return step == p ? NULL : json_next(step);
}

static int describe(const struct json *step, struct buf *to, struct err *e)
{
    const char *type = json_text(json_find(step, "type")),
               *pattern = json_text(json_find(json_find(step, "pattern"), "Regex"));
    bool isolated = has(step, "behavior", "Isolated") || has(step, "behavior", "isolated");
    if (has(step, "type", "Split") && pattern && isolated && !json_true(json_find(step, "invert"))) {
        buf_printf(to, "split %s\n", pattern);
    } else if (has(step, "type", "Digits") && json_true(json_find(step, "individual_digits"))) {
        buf_puts(to, EACH_DIGIT);
    } else if (has(step, "type", "ByteLevel") && !json_true(json_find(step, "add_prefix_space"))) {
        const struct json *own = json_find(step, "use_regex"); /* not said: yes */
        buf_puts(to, !own || json_true(own) ? WORDS : BYTES);
    } else {
        return err_set(e, E_UNSUPPORTED, "pre_tokenizer: the step %.40s, or how it is set, is not known",
                       type ? type : "without a type");
    }
    return 0;
}

bool hf_pretok_is_byte_level(const struct json *p)
{
    for (const struct json *s = first_step(p); s; s = next_step(p, s))
        if (has(s, "type", "ByteLevel"))
            return true;
    return false;
}

static const char *find(const char *steps, bool nfc, bool ignore_merges, struct err *e)
{
    const struct published *near = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].steps, steps) != 0)
            continue;
        if (all[i].nfc == nfc && all[i].ignore_merges == ignore_merges)
            return all[i].name;
        near = &all[i];
    }
    if (near)
        err_set(e, E_UNSUPPORTED, "it cuts words as \"%s\" does, but %s where that %s", near->name,
                near->nfc != nfc ? (nfc ? "composes text (NFC)" : "does not compose text (NFC)")
                : ignore_merges  ? "ignores merges"
                                 : "does not ignore merges",
                near->nfc != nfc ? (nfc ? "does not" : "does")
                : ignore_merges  ? "does not"
                                 : "does");
    else
        err_set(e, E_UNSUPPORTED, "pre_tokenizer: it cuts words in a way that no known model does (%.80s...)", steps);
    return NULL;
}

const char *hf_pretok_name(const struct json *p, bool nfc, bool ignore_merges, struct err *e)
{
    struct buf steps = {0};
    const char *name = NULL;
    int rc = 0;
    for (const struct json *s = first_step(p); s && !rc; s = next_step(p, s))
        rc = describe(s, &steps, e);
    if (!rc)
        name = find(steps.len ? steps.data : "", nfc, ignore_merges, e);
    buf_free(&steps);
    return name;
}
