#include "models/tokenizer/hf_words.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "models/load/gguf_write.h"
#include "models/tokenizer/hf_pretok.h"
#include "models/tokenizer/hf_wordpiece.h"
#include "models/tokenizer/vocab.h"

enum { MOST_IDS = (1 << 21) - 1, FILE_BYTES = 64 << 20, MOST_ENDS = 3, MOST_HOLES = 4096 };

#define MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

struct piece {
    const char *text; /* NULL: no token has this id */
    uint8_t kind;
};

struct words {
    const struct json *tokenizer, *config, *generation; /* the parsed files, config and generation perhaps NULL */
    const struct json *model;
    struct piece *pieces;
    int n;
    bool byte_level;
    bool is_wordpiece;
    struct hf_wordpiece wordpiece;
    const char *pre;    /* byte-level: the pre-tokenizer's name */
    const char *prefix; /* else: when a space goes before the text (tokenizer_impl.h), or NULL */
    int32_t bos, unknown, ends[MOST_ENDS];
    int n_ends;
    bool add_bos, add_eos;
};

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

static bool is_empty(const struct json *j, const char *key)
{
    return !get(j, key) || is(j, key, "");
}

/* ---- pieces */

static int read_id(const struct json *j, const char *what, int32_t *id, struct err *e)
{
    int64_t v;
    bool good = json_i64(j, &v) && v >= 0 && v < MOST_IDS;
    *id = good ? (int32_t)v : -1;
    if (!good)
        return err_set(e, E_INPUT, "the id of the token \"%s\" is not a number from 0 to %d",
                       vocab_show(what, strlen(what)).text, MOST_IDS - 1);
    return 0;
}

static int count_ids(struct words *w, const struct json *vocab, const struct json *added, struct err *e)
{
    int32_t id;
    size_t count = json_count(vocab) + json_count(added);
    for (const struct json *v = json_first(vocab); v; v = json_next(v)) {
        TRY(read_id(v, json_key(v), &id, e));
        w->n = id >= w->n ? id + 1 : w->n;
    }
    for (const struct json *a = json_first(added); a; a = json_next(a)) {
        const char *text = json_text(json_find(a, "content"));
        if (!text || !*text)
            return err_set(e, E_INPUT, "added_tokens: a token without content");
        TRY(read_id(json_find(a, "id"), text, &id, e));
        w->n = id >= w->n ? id + 1 : w->n;
    }
    if ((size_t)w->n > 2 * count + MOST_HOLES)
        return err_set(e, E_INPUT, "there are %zu tokens with ids up to %d; no real vocabulary has so many holes",
                       count, w->n - 1);
    w->pieces = mem_try_array((size_t)w->n + 1, sizeof *w->pieces);
    return w->pieces ? 0 : err_set(e, E_FULL, "no memory for %d tokens", w->n);
}

static int put_piece(struct words *w, int32_t id, const char *text, uint8_t kind, struct err *e)
{
    struct piece *p = &w->pieces[id];
    if (p->text && strcmp(p->text, text) != 0)
        return err_set(e, E_INPUT, "two tokens have the id %d: \"%s\" and \"%s\"", id,
                       vocab_show(p->text, strlen(p->text)).text, vocab_show(text, strlen(text)).text);
    *p = (struct piece){text, kind};
    return 0;
}

static bool is_sentencepiece(const struct words *w)
{
    return !w->byte_level && !w->is_wordpiece;
}

static bool is_byte_piece(const char *s)
{
    return strlen(s) == 6 && strncmp(s, "<0x", 3) == 0 && s[5] == '>';
}

static bool is_ascii(const char *s)
{
    for (; *s; s++)
        if (*s & 0x80)
            return false;
    return true;
}

/* Tokens that are found in the text as they stand, and nothing around them. */
static int put_added(struct words *w, const struct json *a, struct err *e)
{
    static const char *const around[] = {"single_word", "lstrip", "rstrip"};
    const char *text = json_text(json_find(a, "content"));
    int32_t id;
    TRY(read_id(json_find(a, "id"), text, &id, e));
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        if (json_true(get(a, around[i])))
            return err_set(e, E_UNSUPPORTED, "added_tokens: \"%s\" is %s, which is not known",
                           vocab_show(text, strlen(text)).text, around[i]);
    if (json_true(get(a, "normalized")) && (!w->byte_level || !is_ascii(text)))
        return err_set(e, E_UNSUPPORTED, "added_tokens: \"%s\" is normalized, which is not known",
                       vocab_show(text, strlen(text)).text);
    bool unknown = is(w->model, "unk_token", text), special = json_true(get(a, "special"));
    return put_piece(w, id, text, unknown ? TOKEN_UNKNOWN : special ? TOKEN_CONTROL : TOKEN_USER, e);
}

static int read_pieces(struct words *w, struct err *e)
{
    const struct json *vocab = get(w->model, "vocab"), *added = get(w->tokenizer, "added_tokens");
    int32_t id;
    if (json_type(vocab) != JSON_OBJECT)
        return err_set(e, E_INPUT, "model.vocab is %s, not an object", json_type_name(vocab));
    if (added && json_type(added) != JSON_ARRAY)
        return err_set(e, E_INPUT, "added_tokens is %s, not an array", json_type_name(added));
    TRY(count_ids(w, vocab, added, e));
    for (const struct json *v = json_first(vocab); v; v = json_next(v)) {
        TRY(read_id(v, json_key(v), &id, e));
        bool unknown = is(w->model, "unk_token", json_key(v)), byte = is_sentencepiece(w) && is_byte_piece(json_key(v));
        TRY(put_piece(w, id, json_key(v), unknown ? TOKEN_UNKNOWN : byte ? TOKEN_BYTE : TOKEN_NORMAL, e));
    }
    for (const struct json *a = json_first(added); a; a = json_next(a))
        TRY(put_added(w, a, e));
    return 0;
}

static int32_t find_piece(const struct words *w, const char *text)
{
    for (int32_t id = w->n - 1; id >= 0 && text; id--)
        if (w->pieces[id].text && strcmp(w->pieces[id].text, text) == 0)
            return id;
    return -1;
}

/* ---- how text is prepared */

struct form {
    bool nfc, spaces, prepend; /* spaces: become U+2581 */
};

static int read_normal_step(const struct json *s, struct form *f, struct err *e)
{
    const char *type = json_text(get(s, "type"));
    const struct json *pattern = get(s, "pattern");
    if (is(s, "type", "NFC"))
        f->nfc = true;
    else if (is(s, "type", "Prepend") && is(s, "prepend", MARK) && !f->spaces)
        f->prepend = true;
    else if (is(s, "type", "Replace") && is(pattern, "String", " ") && is(s, "content", MARK))
        f->spaces = true;
    else
        return err_set(e, E_UNSUPPORTED, "normalizer: the step %.40s, or how it is set, is not known",
                       type ? type : "without a type");
    return 0;
}

static int read_normalizer(const struct json *n, struct form *f, struct err *e)
{
    if (!n || !is(n, "type", "Sequence"))
        return n ? read_normal_step(n, f, e) : 0;
    for (const struct json *s = json_first(get(n, "normalizers")); s; s = json_next(s))
        TRY(read_normal_step(s, f, e));
    return 0;
}

/* SentencePiece's spaces, by a normalizer or by a step of its own. */
static int read_spaces(struct words *w, const struct form *f, const struct json *pre, struct err *e)
{
    const struct json *split = get(pre, "split");
    if (f->nfc || !json_true(get(w->model, "byte_fallback")))
        return err_set(e, E_UNSUPPORTED, "it is neither byte-level nor SentencePiece's with byte_fallback");
    if (f->spaces && !pre) {
        w->prefix = f->prepend ? "always" : NULL;
        return 0;
    }
    bool never = is(pre, "prepend_scheme", "never"), always = is(pre, "prepend_scheme", "always"),
         first = is(pre, "prepend_scheme", "first");
    if (f->spaces || f->prepend || !is(pre, "type", "Metaspace") || !is(pre, "replacement", MARK) ||
        json_type(split) != JSON_BOOL || json_true(split) || !(never || always || first))
        return err_set(e, E_UNSUPPORTED,
                       "its normalizer and pre_tokenizer are not ones of SentencePiece that are known");
    w->prefix = always ? "unless-spaced" : first ? "first-unless-spaced" : NULL;
    return 0;
}

static int read_model(struct words *w, struct err *e)
{
    const struct json *m = w->model = get(w->tokenizer, "model"), *pre = get(w->tokenizer, "pre_tokenizer");
    struct form form = {0};
    w->is_wordpiece = hf_is_wordpiece(m);
    if (w->is_wordpiece)
        return hf_wordpiece_read(&w->wordpiece, w->tokenizer, e);
    if (json_type(m) != JSON_OBJECT || !get(m, "merges"))
        return err_set(e, E_INPUT, "it has no model with merges");
    if (get(m, "type") && !is(m, "type", "BPE"))
        return err_set(e, E_UNSUPPORTED,
                       "a model of the type \"%.40s\"; BPE (byte-pair encoding) and WordPiece are "
                       "supported",
                       json_text(get(m, "type")) ? json_text(get(m, "type")) : "?");
    if (!is_empty(m, "continuing_subword_prefix") || !is_empty(m, "end_of_word_suffix") ||
        (get(m, "dropout") && json_number(get(m, "dropout")) != 0))
        return err_set(e, E_UNSUPPORTED, "model: prefixes or suffixes of subwords, or dropout");
    TRY(read_normalizer(get(w->tokenizer, "normalizer"), &form, e));
    w->byte_level = hf_pretok_is_byte_level(pre);
    bool ignores = json_true(get(m, "ignore_merges"));
    if (!w->byte_level)
        return ignores ? err_set(e, E_UNSUPPORTED, "model: ignore_merges without byte-level words")
                       : read_spaces(w, &form, pre, e);
    if (form.spaces || form.prepend || json_true(get(m, "byte_fallback")))
        return err_set(e, E_UNSUPPORTED, "it is byte-level and SentencePiece's at once");
    w->pre = hf_pretok_name(pre, form.nfc, ignores, e);
    return w->pre ? 0 : E_UNSUPPORTED;
}

/* ---- what goes around the text */

/* A token of the config: its text, or an object with it. */
static const char *named_token(const struct json *config, const char *key)
{
    const struct json *t = get(config, key);
    return json_type(t) == JSON_OBJECT ? json_text(get(t, "content")) : json_text(t);
}

/* A model for embeddings may end texts with a token that is not its eos_token: it is then the first of the ends. */
static bool put_first(struct words *w, int32_t id)
{
    int at = 0;
    while (at < w->n_ends && w->ends[at] != id)
        at++;
    if (at == MOST_ENDS || !w->n_ends)
        return false;
    w->n_ends += at == w->n_ends;
    memmove(w->ends + 1, w->ends, (size_t)at * sizeof *w->ends);
    w->ends[0] = id;
    return true;
}

static int read_template(struct words *w, const struct json *p, struct err *e)
{
    bool before = true;
    for (const struct json *s = json_first(get(p, "single")); s; s = json_next(s)) {
        const char *text = json_text(get(get(s, "SpecialToken"), "id"));
        int32_t id = find_piece(w, text);
        if (get(s, "Sequence") && before)
            before = false;
        else if (id >= 0 && before && !w->add_bos && (w->bos < 0 || w->bos == id)) {
            w->bos = id;
            w->add_bos = true;
        } else if (id >= 0 && !before && !w->add_eos && put_first(w, id))
            w->add_eos = true;
        else
            return err_set(
                e, E_UNSUPPORTED,
                "post_processor: it puts other tokens around a text than one that begins and one that ends it");
    }
    return 0;
}

static int read_processor(struct words *w, const struct json *p, struct err *e)
{
    if (!p || is(p, "type", "ByteLevel")) /* says where words are, which nobody asks for */
        return 0;
    if (is(p, "type", "TemplateProcessing"))
        return read_template(w, p, e);
    const char *type = json_text(get(p, "type"));
    return err_set(e, E_UNSUPPORTED, "post_processor: the type %.40s is not known", type ? type : "?");
}

static void add_end(struct words *w, int32_t id)
{
    for (int i = 0; i < w->n_ends; i++)
        if (w->ends[i] == id)
            return;
    if (id >= 0 && w->n_ends < MOST_ENDS)
        w->ends[w->n_ends++] = id;
}

/* A token that the config names must be there: without its end a model would not stop. */
static int find_named(const struct words *w, const char *key, int32_t *id, struct err *e)
{
    const char *text = named_token(w->config, key);
    *id = find_piece(w, text);
    return !text || *id >= 0 ? 0
                             : err_set(e, E_INPUT, "the %s of tokenizer_config.json, \"%s\", is none of its tokens",
                                       key, vocab_show(text, strlen(text)).text);
}

static void add_numbered_end(struct words *w, const struct json *number)
{
    int64_t id;
    if (json_i64(number, &id) && id >= 0 && id < w->n)
        add_end(w, (int32_t)id);
}

/* eos_token, then what generation_config.json adds. */
static int read_ends(struct words *w, struct err *e)
{
    const struct json *more = get(w->generation, "eos_token_id");
    int32_t eos;
    TRY(find_named(w, "eos_token", &eos, e));
    add_end(w, eos);
    add_numbered_end(w, more);
    for (const struct json *m = json_type(more) == JSON_ARRAY ? json_first(more) : NULL; m; m = json_next(m))
        add_numbered_end(w, m);
    return 0;
}

/* [CLS] and [SEP], as bos and eos. */
static int read_bert_ends(struct words *w, struct err *e)
{
    const struct hf_wordpiece *p = &w->wordpiece;
    const char *names[] = {p->unknown, p->cls, p->sep};
    int32_t ids[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        ids[i] = find_piece(w, names[i]);
        if (names[i] && ids[i] < 0)
            return err_set(e, E_INPUT, "\"%s\" is none of its tokens", vocab_show(names[i], strlen(names[i])).text);
    }
    w->unknown = ids[0];
    w->bos = ids[1];
    w->add_bos = w->add_eos = p->cls;
    add_end(w, ids[2]);
    return 0;
}

static int read_around(struct words *w, struct err *e)
{
    if (w->is_wordpiece)
        return read_bert_ends(w, e);
    const struct json *p = get(w->tokenizer, "post_processor"), *bos = get(w->config, "add_bos_token"),
                      *eos = get(w->config, "add_eos_token");
    TRY(find_named(w, "bos_token", &w->bos, e));
    w->unknown = find_piece(w, json_text(get(w->model, "unk_token")));
    TRY(read_ends(w, e));
    if (is(p, "type", "Sequence"))
        for (const struct json *s = json_first(get(p, "processors")); s; s = json_next(s))
            TRY(read_processor(w, s, e));
    else
        TRY(read_processor(w, p, e));
    if (bos)
        w->add_bos = json_true(bos); /* what the library makes of it when it loads the file */
    if (eos)
        w->add_eos = json_true(eos);
    return 0;
}

/* ---- writing */

static int write_merges(struct gguf_writer *out, const struct json *merges, struct err *e)
{
    struct buf pair = {0};
    int rc = json_type(merges) == JSON_ARRAY
                 ? 0
                 : err_set(e, E_INPUT, "model.merges is %s, not an array", json_type_name(merges));
    if (!rc)
        gguf_write_array(out, "tokenizer.ggml.merges", GGUF_STRING, json_count(merges));
    for (const struct json *m = rc ? NULL : json_first(merges); m && !rc; m = json_next(m)) {
        const struct json *left = json_type(m) == JSON_ARRAY ? json_first(m) : NULL,
                          *right = left ? json_next(left) : NULL;
        const char *a = json_text(left), *b = json_text(right), *whole = json_text(m);
        buf_clear(&pair);
        if (a && b && !strchr(a, ' ') && !strchr(b, ' ') && !json_next(right))
            buf_printf(&pair, "%s %s", a, b);
        else if (whole)
            buf_puts(&pair, whole);
        else
            rc =
                err_set(e, E_INPUT, "model.merges: an item is neither two pieces nor a text with a space between them");
        gguf_write_item(out, pair.data ? pair.data : "", pair.len);
    }
    buf_free(&pair);
    return rc;
}

static void write_pieces(struct gguf_writer *out, const struct words *w)
{
    char hole[32];
    gguf_write_array(out, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)w->n);
    for (int i = 0; i < w->n; i++) {
        snprintf(hole, sizeof hole, "[PAD%d]", i);
        const char *text = w->pieces[i].text ? w->pieces[i].text : hole;
        gguf_write_item(out, text, strlen(text));
    }
    gguf_write_array(out, "tokenizer.ggml.token_type", GGUF_U8, (uint64_t)w->n);
    for (int i = 0; i < w->n; i++)
        gguf_write_byte(out, w->pieces[i].text ? w->pieces[i].kind : TOKEN_UNUSED);
}

static void write_text(struct gguf_writer *out, const char *key, const char *text)
{
    gguf_write_string(out, key, text, strlen(text));
}

/* The template of its own file, else the config's: one text, or several of which one is the default. */
static void write_chat(struct gguf_writer *out, const struct words *w, const struct hf_text *file)
{
    const struct json *own = get(w->config, "chat_template");
    const char *text = json_text(own);
    for (const struct json *t = json_type(own) == JSON_ARRAY ? json_first(own) : NULL; t && !text; t = json_next(t))
        if (is(t, "name", "default"))
            text = json_text(get(t, "template"));
    if (file->data)
        gguf_write_string(out, "tokenizer.chat_template", file->data, file->n);
    else if (text)
        write_text(out, "tokenizer.chat_template", text);
}

static int write_all(struct gguf_writer *out, const struct words *w, const struct hf_text *chat, struct err *e)
{
    static const char *const ends[MOST_ENDS] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                                "tokenizer.ggml.eom_token_id"};
    write_text(out, "tokenizer.ggml.model", w->is_wordpiece ? "bert" : w->byte_level ? "gpt2" : "llama");
    if (w->pre)
        write_text(out, "tokenizer.ggml.pre", w->pre);
    write_pieces(out, w);
    if (w->is_wordpiece)
        hf_wordpiece_write(out, &w->wordpiece);
    else
        TRY(write_merges(out, get(w->model, "merges"), e));
    gguf_write_i32(out, "tokenizer.ggml.bos_token_id", w->bos); /* -1: none */
    if (w->n_ends == 0)
        gguf_write_i32(out, ends[0], -1);
    for (int i = 0; i < w->n_ends; i++)
        gguf_write_i32(out, ends[i], w->ends[i]);
    gguf_write_i32(out, "tokenizer.ggml.unknown_token_id", w->unknown);
    gguf_write_bool(out, "tokenizer.ggml.add_bos_token", w->add_bos);
    gguf_write_bool(out, "tokenizer.ggml.add_eos_token", w->add_eos);
    if (is_sentencepiece(w)) {
        gguf_write_bool(out, "tokenizer.ggml.add_space_prefix", w->prefix != NULL);
        write_text(out, "moonshift.space_prefix", w->prefix ? w->prefix : "never");
    }
    write_chat(out, w, chat);
    return 0;
}

/* ---- the whole */

static int parse(const struct hf_text *t, const char *name, struct json **out, struct err *e)
{
    *out = NULL;
    if (!t->data)
        return 0;
    *out = json_parse(t->data, t->n, NULL, e);
    return *out ? 0 : err_prefix(e, E_INPUT, "%s", name);
}

static int translate(struct words *w, const struct hf_text *chat, struct buf *out, struct err *e)
{
    struct gguf_writer writer;
    size_t before = out->len;
    int rc = read_model(w, e);
    if (!rc)
        rc = read_pieces(w, e);
    if (!rc)
        rc = read_around(w, e);
    if (rc)
        return err_prefix(e, rc, "tokenizer.json");
    gguf_write_begin(&writer, out);
    rc = write_all(&writer, w, chat, e);
    if (!rc)
        gguf_write_end(&writer);
    else
        out->len = before;
    return rc ? err_prefix(e, rc, "tokenizer.json") : 0;
}

static const char *const names[HF_FILES] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                            "chat_template.jinja"};

int hf_words_write(struct buf *out, const struct hf_text files[HF_FILES], struct err *e)
{
    struct json *parsed[HF_FILES] = {0};
    struct words w = {.bos = -1, .unknown = -1};
    int rc = files[HF_TOKENIZER].data ? 0 : err_set(e, E_INPUT, "there is no tokenizer.json");
    for (int i = 0; i < HF_CHAT_TEMPLATE && !rc; i++)
        rc = parse(&files[i], names[i], &parsed[i], e);
    if (!rc) {
        w.tokenizer = parsed[HF_TOKENIZER];
        w.config = parsed[HF_TOKENIZER_CONFIG];
        w.generation = parsed[HF_GENERATION_CONFIG];
        rc = translate(&w, &files[HF_CHAT_TEMPLATE], out, e);
    }
    mem_free(w.pieces);
    for (int i = 0; i < HF_FILES; i++)
        json_free(parsed[i]);
    return rc;
}

int hf_words_open(struct gguf **out, const char *dir, struct err *e)
{
    struct buf texts[HF_FILES] = {0}, bytes = {0};
    struct hf_text files[HF_FILES] = {0};
    int rc = 0;
    *out = NULL;
    for (int i = 0; i < HF_FILES && !rc; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= (int)sizeof path)
            rc = err_set(e, E_INPUT, "%.80s...: the path is too long", dir);
        else if (access(path, F_OK) != 0)
            rc = i == HF_TOKENIZER ? err_set(e, E_NOTFOUND, "%s: there is no tokenizer.json", dir) : 0;
        else
            rc = file_read(&texts[i], path, FILE_BYTES, e);
        if (!rc && texts[i].data)
            files[i] = (struct hf_text){texts[i].data, texts[i].len};
    }
    if (!rc && (rc = hf_words_write(&bytes, files, e)))
        err_prefix(e, rc, "%s", dir);
    if (!rc)
        rc = gguf_adopt(out, &bytes, e);
    for (int i = 0; i < HF_FILES; i++)
        buf_free(&texts[i]);
    buf_free(&bytes);
    return rc;
}
