#include "models/tokenizer/hf_wordpiece.h"

#include <string.h>

#include "models/tokenizer/wordpiece.h"

static const struct json *get(const struct json *j, const char *key)
{
    const struct json *v = json_find(j, key);
    return json_type(v) == JSON_NULL ? NULL : v; /* absent and null mean the same */
}

static bool is(const struct json *j, const char *key, const char *text)
{
    const char *s = json_text(get(j, key));
    return s && strcmp(s, text) == 0;
}

static const char *type_of(const struct json *j)
{
    const char *type = json_text(get(j, "type"));
    return type ? type : "?";
}

bool hf_is_wordpiece(const struct json *model)
{
    return is(model, "type", "WordPiece") ||
           (!get(model, "type") && !get(model, "merges") && get(model, "max_input_chars_per_word"));
}

static int read_normalizer(struct hf_wordpiece *w, const struct json *n, struct err *e)
{
    const struct json *strip = get(n, "strip_accents");
    if (!n)
        return 0;
    if (!is(n, "type", "BertNormalizer"))
        return err_set(e, E_UNSUPPORTED, "normalizer: the type %.40s; for WordPiece BertNormalizer is known",
                       type_of(n));
    w->clean_text = json_true(get(n, "clean_text"));
    w->split_chinese = json_true(get(n, "handle_chinese_chars"));
    w->lower = json_true(get(n, "lowercase"));
    w->strip_accents = strip ? json_true(strip) : w->lower;
    return 0;
}

/* A prefix of letters could be read as a piece that begins a word, and words have no punctuation inside them. */
static bool prefix_is_known(const char *s)
{
    size_t n = strspn(s, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
    return n >= 1 && n <= 8 && s[n] == 0;
}

static int read_model(struct hf_wordpiece *w, const struct json *m, struct err *e)
{
    int64_t max_chars = 100;
    w->prefix = json_text(get(m, "continuing_subword_prefix"));
    w->unknown = json_text(get(m, "unk_token"));
    if (!w->prefix || !prefix_is_known(w->prefix))
        return err_set(e, E_UNSUPPORTED,
                       "model.continuing_subword_prefix is not made of 1 to 8 punctuation characters of ASCII");
    if (!w->unknown)
        return err_set(e, E_INPUT, "model has no unk_token");
    if (get(m, "max_input_chars_per_word") &&
        (!json_i64(get(m, "max_input_chars_per_word"), &max_chars) || max_chars < 1 || max_chars > WORDPIECE_MAX_CHARS))
        return err_set(e, E_INPUT, "model.max_input_chars_per_word is not a number from 1 to %d", WORDPIECE_MAX_CHARS);
    w->max_chars = (int)max_chars;
    return 0;
}

/* ---- what goes around a text ---- */

/* An item of a template: the segment 'A' or 'B', or a special token; 0: neither. *type: of the segment it belongs to.
 */
static char template_item(const struct json *s, const char **token, int64_t *type)
{
    const struct json *special = get(s, "SpecialToken"), *sequence = get(s, "Sequence");
    const char *id = json_text(get(sequence ? sequence : special, "id"));
    *type = 0;
    if (!id || !json_i64(get(sequence ? sequence : special, "type_id"), type))
        return 0;
    *token = id;
    if (!sequence)
        return 't';
    return strcmp(id, "A") == 0 ? 'A' : strcmp(id, "B") == 0 ? 'B' : 0;
}

/* Whether items are [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with the second segment's type from B on. */
static bool is_template(const struct json *items, bool pair, struct hf_wordpiece *w)
{
    static const char kinds[] = "tAtBt";
    size_t n = pair ? 5 : 3, i = 0;
    for (const struct json *s = json_first(items); s; s = json_next(s), i++) {
        const char *token = "";
        int64_t type;
        if (i >= n || template_item(s, &token, &type) != kinds[i] || type != (i >= 3))
            return false;
        if (!pair && i == 0)
            w->cls = token;
        else if (!pair && i == 2)
            w->sep = token;
        else if (kinds[i] == 't' && strcmp(token, i == 0 ? w->cls : w->sep) != 0)
            return false;
    }
    return i == n;
}

static int read_processor(struct hf_wordpiece *w, const struct json *p, struct err *e)
{
    if (!p)
        return 0;
    if (is(p, "type", "BertProcessing")) { /* a token is a list of its text and its id */
        w->cls = json_text(json_first(get(p, "cls")));
        w->sep = json_text(json_first(get(p, "sep")));
        return w->cls && w->sep ? 0 : err_set(e, E_INPUT, "post_processor: BertProcessing has no cls, or no sep");
    }
    if (!is(p, "type", "TemplateProcessing"))
        return err_set(e, E_UNSUPPORTED, "post_processor: the type %.40s is not known", type_of(p));
    if (!is_template(get(p, "single"), false, w) || !is_template(get(p, "pair"), true, w))
        return err_set(e, E_UNSUPPORTED,
                       "post_processor: its templates are not [CLS] A [SEP] and [CLS] A [SEP] B [SEP]");
    return 0;
}

int hf_wordpiece_read(struct hf_wordpiece *w, const struct json *tokenizer, struct err *e)
{
    const struct json *pre = get(tokenizer, "pre_tokenizer");
    memset(w, 0, sizeof *w);
    TRY(read_normalizer(w, get(tokenizer, "normalizer"), e));
    if (!is(pre, "type", "BertPreTokenizer"))
        return err_set(e, E_UNSUPPORTED, "pre_tokenizer: the type %.40s; for WordPiece BertPreTokenizer is known",
                       type_of(pre));
    TRY(read_model(w, get(tokenizer, "model"), e));
    return read_processor(w, get(tokenizer, "post_processor"), e);
}

void hf_wordpiece_write(struct gguf_writer *out, const struct hf_wordpiece *w)
{
    gguf_write_string(out, "moonshift.wordpiece.prefix", w->prefix, strlen(w->prefix));
    gguf_write_bool(out, "moonshift.wordpiece.clean_text", w->clean_text);
    gguf_write_bool(out, "moonshift.wordpiece.split_chinese", w->split_chinese);
    gguf_write_bool(out, "moonshift.wordpiece.strip_accents", w->strip_accents);
    gguf_write_bool(out, "moonshift.wordpiece.lowercase", w->lower);
    gguf_write_i32(out, "moonshift.wordpiece.max_chars", w->max_chars);
}
