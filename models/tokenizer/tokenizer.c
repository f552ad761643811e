#include "models/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "models/tokenizer/tokenizer_impl.h"

enum { N_BYTES = 256, BYTES_BOS = 256, BYTES_EOS = 257, BYTES_LEAST = 258 };

void tokens_put(struct tokens *t, int32_t id)
{
    if (t->len == t->cap)
        t->ids = mem_resize(t->ids, t->cap = t->cap ? t->cap * 2 : 64, sizeof *t->ids);
    t->ids[t->len++] = id;
}

void tokens_append(struct tokens *t, const int32_t *ids, size_t n)
{
    if (!n)
        return;
    if (t->cap - t->len < n) {
        t->cap = t->len + n > t->cap * 2 ? t->len + n : t->cap * 2;
        t->ids = mem_resize(t->ids, t->cap, sizeof *t->ids);
    }
    memcpy(t->ids + t->len, ids, n * sizeof *ids);
    t->len += n;
}

void tokens_free(struct tokens *t)
{
    mem_free(t->ids);
    memset(t, 0, sizeof *t);
}

/* ---- creation ---- */

/* What each key is, where the file has it: a key of another kind would be read as absent, and the file served as
 * another model. */
static int check_keys(const struct gguf *g, struct err *e)
{
    enum kind { TEXT, FLAG, ID, LIST };
    static const char *const names[] = {"a text", "true or false", "a whole number", "a list"};
    static const struct {
        const char *key;
        enum kind kind;
    } keys[] = {
        {"tokenizer.ggml.model", TEXT},
        {"tokenizer.ggml.pre", TEXT},
        {"tokenizer.chat_template", TEXT},
        {"tokenizer.ggml.tokens", LIST},
        {"tokenizer.ggml.token_type", LIST},
        {"tokenizer.ggml.scores", LIST},
        {"tokenizer.ggml.merges", LIST},
        {"tokenizer.ggml.bos_token_id", ID},
        {"tokenizer.ggml.eos_token_id", ID},
        {"tokenizer.ggml.eot_token_id", ID},
        {"tokenizer.ggml.eom_token_id", ID},
        {"tokenizer.ggml.unknown_token_id", ID},
        {"tokenizer.ggml.cls_token_id", ID},
        {"tokenizer.ggml.seperator_token_id", ID},
        {"moonshift.wordpiece.prefix", TEXT},
        {"moonshift.wordpiece.clean_text", FLAG},
        {"moonshift.wordpiece.split_chinese", FLAG},
        {"moonshift.wordpiece.strip_accents", FLAG},
        {"moonshift.wordpiece.lowercase", FLAG},
        {"moonshift.wordpiece.max_chars", ID},
        {"tokenizer.ggml.add_bos_token", FLAG},
        {"tokenizer.ggml.add_eos_token", FLAG},
        {"tokenizer.ggml.add_space_prefix", FLAG},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct gguf_string text;
        struct gguf_array list;
        bool flag;
        int64_t id;
        const char *key = keys[i].key;
        bool good[] = {gguf_string(g, key, &text), gguf_bool(g, key, &flag), gguf_i64(g, key, &id),
                       gguf_array(g, key, &list)};
        if (gguf_has(g, key) && !good[keys[i].kind])
            return err_set(e, E_INPUT, "%s is not %s", key, names[keys[i].kind]);
    }
    return 0;
}

/* An id key: absent and -1 mean none; out of range is an error, and so is -1 that was written as unsigned. */
static int read_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t *id, struct err *e)
{
    int64_t v;
    if (!gguf_i64(g, key, &v) || v == -1)
        return 0;
    if (v < 0 || v >= t->n_vocab)
        return err_set(e, E_INPUT, "%s is %lld, and there are %d tokens", key, (long long)v, t->n_vocab);
    *id = (int32_t)v;
    return 0;
}

static bool is_end_name(const char *s, size_t n)
{
    static const char *const names[] = {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot|>",
        "<|eom|>",
        "</s>",
        "<end_of_turn>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|END_OF_TURN_TOKEN|>",
        "<|return|>",
        "<|end_of_turn|>",
        "<end_of_utterance>",
        "<\xEF\xBD\x9C\x65nd\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0)
            return true;
    return false;
}

static bool is_marked(const struct tokenizer *t, int32_t id)
{
    uint8_t kind = t->vocab.kind[id];
    return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN || kind == TOKEN_USER;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void put_end(struct tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_end_ids; i++)
        if (t->end_ids[i] == id)
            return;
    if (id < 0)
        return;
    t->end_ids = mem_resize(t->end_ids, t->n_end_ids + 1, sizeof *t->end_ids);
    t->end_ids[t->n_end_ids++] = id;
}

static int find_ends(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int32_t eot = -1, eom = -1;
    TRY(read_id(t, g, "tokenizer.ggml.eot_token_id", &eot, e));
    TRY(read_id(t, g, "tokenizer.ggml.eom_token_id", &eom, e));
    put_end(t, t->eos);
    put_end(t, eot);
    put_end(t, eom);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *s = vocab_text(&t->vocab, id, &n);
        if (is_marked(t, id) && is_end_name(s, n))
            put_end(t, id);
    }
    if (t->n_end_ids)
        qsort(t->end_ids, t->n_end_ids, sizeof *t->end_ids, by_id);
    return 0;
}

static int find_added(struct tokenizer *t, struct err *e)
{
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *s = vocab_text(&t->vocab, id, &n);
        if (is_marked(t, id))
            TRY(added_put(&t->added, s, n, id, t->vocab.kind[id] != TOKEN_USER, e));
    }
    return 0;
}

static int check_bytes(const struct tokenizer *t, struct err *e)
{
    for (int b = ' '; b <= '~'; b++)
        if (t->vocab.byte_id[b] < 0)
            return err_set(e, E_INPUT,
                           "the vocabulary has no token for the byte 0x%02x; it is no byte-level vocabulary", b);
    return 0;
}

static int load_byte_level(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_string pre = {"", 0};
    gguf_string(g, "tokenizer.ggml.pre", &pre);
    t->classes = unicode_build_classes();
    TRY(pretok_create(&t->pretok, pre.data, pre.len, t->classes, e));
    t->traits = pretok_traits(t->pretok);
    t->add_bos = t->traits.add_bos;
    TRY(vocab_load(&t->vocab, g, VOCAB_BYTE_LEVEL, e));
    t->n_vocab = t->vocab.n;
    TRY(check_bytes(t, e));
    return merges_from_list(t, g, e);
}

/* add_space_prefix of a GGUF file; models/tokenizer/hf_words.c says more. */
static enum space_prefix read_prefix(const struct gguf *g)
{
    struct gguf_string how = {"", 0};
    bool any = true;
    gguf_bool(g, "tokenizer.ggml.add_space_prefix", &any);
    gguf_string(g, "moonshift.space_prefix", &how);
    if (how.len == 13 && memcmp(how.data, "unless-spaced", 13) == 0)
        return PREFIX_UNLESS_SPACED;
    if (how.len == 19 && memcmp(how.data, "first-unless-spaced", 19) == 0)
        return PREFIX_FIRST_UNLESS_SPACED;
    return any ? PREFIX_ALWAYS : PREFIX_NEVER;
}

static int load_sentencepiece(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    TRY(vocab_load(&t->vocab, g, VOCAB_SENTENCEPIECE, e));
    t->n_vocab = t->vocab.n;
    t->add_bos = true;
    t->space_prefix = read_prefix(g);
    if (t->n_vocab > 2) {
        t->bos = 1; /* SentencePiece's own defaults */
        t->eos = 2;
    }
    TRY(read_id(t, g, "tokenizer.ggml.unknown_token_id", &t->unknown, e));
    int n_bytes = 0;
    for (int b = 0; b < N_BYTES; b++)
        n_bytes += t->vocab.byte_id[b] >= 0;
    if (n_bytes < N_BYTES && t->unknown < 0)
        return err_set(e, E_INPUT,
                       "the vocabulary has %d of 256 byte tokens and no unknown token: some text has no ids", n_bytes);
    struct gguf_array merges;
    return gguf_array(g, "tokenizer.ggml.merges", &merges) ? merges_from_list(t, g, e) : merges_from_scores(t, g, e);
}

/* A special token by its key, else by its name. */
static int find_special(const struct tokenizer *t, const struct gguf *g, const char *key, const char *name, int32_t *id,
                        struct err *e)
{
    *id = -1;
    TRY(read_id(t, g, key, id, e));
    for (int32_t i = 0; i < t->n_vocab && *id < 0; i++) {
        size_t n, skip;
        const char *s = vocab_text(&t->vocab, i, &n);
        skip = n && *s == ' ';
        if (n - skip == strlen(name) && memcmp(s + skip, name, n - skip) == 0)
            *id = i;
    }
    return 0;
}

/* GGUF files say nothing of the normalizer: it is that of the uncased models, as in llama.cpp. [CLS] and [SEP] are the
 * tokens that go around a text: bos and eos. */
static int load_wordpiece(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct wordpiece *w = &t->wordpiece;
    int64_t max_chars = 100;
    t->classes = unicode_build_classes();
    TRY(vocab_load(&t->vocab, g, VOCAB_WORDPIECE, e));
    t->n_vocab = t->vocab.n;
    t->space_prefix = PREFIX_ALWAYS; /* detok: the first word loses its space */
    w->clean_text = w->split_chinese = w->strip_accents = w->lower = true;
    gguf_bool(g, "moonshift.wordpiece.clean_text", &w->clean_text);
    gguf_bool(g, "moonshift.wordpiece.split_chinese", &w->split_chinese);
    gguf_bool(g, "moonshift.wordpiece.strip_accents", &w->strip_accents);
    gguf_bool(g, "moonshift.wordpiece.lowercase", &w->lower);
    gguf_i64(g, "moonshift.wordpiece.max_chars", &max_chars);
    if (max_chars < 1 || max_chars > WORDPIECE_MAX_CHARS)
        return err_set(e, E_INPUT, "a word may have at most %lld characters; 1 to %d are possible",
                       (long long)max_chars, WORDPIECE_MAX_CHARS);
    w->max_chars = (int)max_chars;
    TRY(find_special(t, g, "tokenizer.ggml.unknown_token_id", "[UNK]", &t->unknown, e));
    if (t->unknown < 0)
        return err_set(e, E_INPUT, "the vocabulary has no unknown token: some words have no ids");
    TRY(find_special(t, g, "tokenizer.ggml.cls_token_id", "[CLS]", &t->bos, e));
    TRY(find_special(t, g, "tokenizer.ggml.seperator_token_id", "[SEP]", &t->eos, e));
    t->add_bos = t->add_eos = true;
    return wordpiece_init(w, &t->vocab, e);
}

static bool is_named(struct gguf_string s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

static int load_any(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_string model;
    TRY(check_keys(g, e));
    if (!gguf_string(g, "tokenizer.ggml.model", &model))
        return err_set(e, E_INPUT, "the file names no tokenizer (tokenizer.ggml.model)");
    if (is_named(model, "gpt2"))
        TRY(load_byte_level(t, g, e));
    else if (is_named(model, "llama"))
        TRY(load_sentencepiece(t, g, e));
    else if (is_named(model, "bert"))
        TRY(load_wordpiece(t, g, e));
    else
        return err_set(e, E_UNSUPPORTED,
                       "tokenizer \"%s\" is not supported; \"gpt2\" (byte-level BPE), \"llama\" "
                       "(SentencePiece BPE) and \"bert\" (WordPiece) are",
                       vocab_show(model.data, model.len).text);
    TRY(read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, e));
    TRY(read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, e));
    gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    gguf_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos);
    t->add_bos = t->add_bos && t->bos >= 0;
    t->add_eos = t->add_eos && t->eos >= 0;
    TRY(find_added(t, e));
    return find_ends(t, g, e);
}

int tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g, struct err *e)
{
    *out = NULL;
    struct tokenizer *t = mem_new(sizeof *t);
    t->bos = t->eos = t->unknown = -1;
    int rc = load_any(t, g, e);
    if (rc) {
        tokenizer_free(t);
        return err_prefix(e, rc, "tokenizer");
    }
    *out = t;
    return 0;
}

int tokenizer_bytes(struct tokenizer **out, int n_vocab, struct err *e)
{
    *out = NULL;
    if (n_vocab < BYTES_LEAST)
        return err_set(e, E_INPUT, "a byte vocabulary needs at least %d ids, not %d", BYTES_LEAST, n_vocab);
    struct tokenizer *t = mem_new(sizeof *t);
    t->is_bytes = true;
    t->n_vocab = n_vocab;
    t->bos = BYTES_BOS;
    t->eos = BYTES_EOS;
    t->unknown = -1;
    int rc = added_put(&t->added, "<|bos|>", 7, BYTES_BOS, true, e);
    if (!rc)
        rc = added_put(&t->added, "<|eos|>", 7, BYTES_EOS, true, e);
    if (rc) {
        tokenizer_free(t);
        return rc;
    }
    put_end(t, BYTES_EOS);
    *out = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pretok_free(t->pretok);
    vocab_free(&t->vocab);
    bpe_free(&t->bpe);
    wordpiece_free(&t->wordpiece);
    added_free(&t->added);
    mem_free(t->classes);
    mem_free(t->whole);
    mem_free(t->end_ids);
    mem_free(t);
}

/* ---- facts ---- */

int tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab)
        return false;
    if (t->is_bytes)
        return id == BYTES_BOS || id == BYTES_EOS;
    return t->vocab.kind[id] == TOKEN_CONTROL || t->vocab.kind[id] == TOKEN_UNKNOWN;
}

size_t tokenizer_end_ids(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->end_ids;
    return t->n_end_ids;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t n)
{
    int32_t id = added_find(&t->added, piece, n);
    if (id >= 0)
        return id;
    if (t->is_bytes)
        return n == 1 ? (unsigned char)*piece : -1;
    return n ? vocab_find(&t->vocab, piece, n) : -1;
}

void tokenizer_piece(const struct tokenizer *t, int32_t id, struct buf *out)
{
    if (id < 0 || id >= t->n_vocab)
        return;
    if (!t->is_bytes) {
        size_t n;
        const char *s = vocab_text(&t->vocab, id, &n);
        buf_put(out, s, n);
    } else if (id < N_BYTES) {
        buf_putc(out, (char)id);
    } else if (tokenizer_is_special(t, id)) {
        buf_puts(out, id == BYTES_BOS ? "<|bos|>" : "<|eos|>");
    } else {
        buf_printf(out, "<unused%d>", (int)id);
    }
}
