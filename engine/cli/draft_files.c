#include "engine/cli/draft_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "models/load/family.h"
#include "models/tokenizer/hf_words.h"

enum { CONFIG_BYTES = 1 << 20 };

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool draft_files_generate(const char *path)
{
    char config[4096];
    struct buf text = {0};
    struct err e;
    struct json *j = NULL;
    if (!is_folder(path))
        return is_file(path);
    bool fits = snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config;
    if (fits && !file_read(&text, config, CONFIG_BYTES, &e))
        j = json_parse(text.data ? text.data : "", text.len, NULL, &e);
    const char *arch = j ? json_text(json_first(json_find(j, "architectures"))) : NULL;
    bool known = arch && family_find_hf(arch);
    json_free(j);
    buf_free(&text);
    return known;
}

/* As it may stand in a message. */
static void put_piece(const struct tokenizer *t, int32_t id, struct buf *out)
{
    struct buf piece = {0};
    tokenizer_piece(t, id, &piece);
    buf_putc(out, '"');
    for (size_t i = 0; i < piece.len && i < 40; i++) {
        unsigned char c = (unsigned char)piece.data[i];
        if (c < 32 || c > 126 || c == '"' || c == '\\')
            buf_printf(out, "\\x%02x", c);
        else
            buf_putc(out, (char)c);
    }
    buf_putc(out, '"');
    buf_free(&piece);
}

static int differ(const struct tokenizer *draft, const struct tokenizer *words, int32_t id, struct err *e)
{
    struct buf theirs = {0}, ours = {0};
    put_piece(draft, id, &theirs);
    put_piece(words, id, &ours);
    err_set(e, E_INPUT, "token %d is %.*s in the draft model and %.*s in the model: they need the same vocabulary", id,
            (int)theirs.len, theirs.data, (int)ours.len, ours.data);
    buf_free(&theirs);
    buf_free(&ours);
    return E_INPUT;
}

int draft_files_compare(const struct tokenizer *draft, const struct tokenizer *words, struct err *e)
{
    struct buf a = {0}, b = {0};
    int n = tokenizer_n_vocab(words), rc = 0;
    if (tokenizer_n_vocab(draft) != n)
        return err_set(e, E_INPUT, "the draft model has a vocabulary of %d tokens, and the model one of %d",
                       tokenizer_n_vocab(draft), n);
    for (int32_t id = 0; id < n && !rc; id++) {
        buf_clear(&a);
        buf_clear(&b);
        tokenizer_piece(draft, id, &a);
        tokenizer_piece(words, id, &b);
        if (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len) != 0))
            rc = differ(draft, words, id, e);
    }
    buf_free(&a);
    buf_free(&b);
    return rc;
}

/* The rows of a table beyond the tokenizer's tokens are padding, and there may be more or fewer of them. */
static int compare_words(const struct model *m, const struct gguf *g, const struct tokenizer *words, struct err *e)
{
    struct tokenizer *own;
    TRY(tokenizer_from_gguf(&own, g, e));
    int n = tokenizer_n_vocab(own), vocab = model_config(m)->vocab, rc = 0;
    if (n > vocab)
        rc = err_set(e, E_INPUT, "its tokenizer has %d tokens and it %d: it is another model's", n, vocab);
    else
        rc = draft_files_compare(own, words, e);
    tokenizer_free(own);
    return rc;
}

static int compare_sizes(const struct model *m, const struct model *model, struct err *e)
{
    int n = model_config(m)->vocab, vocab = model_config(model)->vocab;
    return n == vocab ? 0
                      : err_set(e, E_INPUT, "the draft model has a vocabulary of %d tokens, and the model one of %d", n,
                                vocab);
}

static int check(const struct model *m, const char *path, const struct model *model, const struct tokenizer *words,
                 struct err *e)
{
    struct gguf *of_folder = NULL;
    struct err why = {0};
    int rc = model_gguf(m) ? 0 : hf_words_open(&of_folder, path, &why);
    if (rc && rc != E_NOTFOUND)
        return err_set(e, rc, "%s", why.text);
    const struct gguf *g = of_folder ? of_folder : model_gguf(m);
    rc = g ? compare_words(m, g, words, e) : compare_sizes(m, model, e);
    gguf_close(of_folder);
    return rc;
}

int draft_files_open(struct model **out, const char *path, const struct model *model, const struct tokenizer *words,
                     struct err *e)
{
    TRY(is_folder(path) ? model_open_hf(out, path, e) : model_open_gguf(out, path, e));
    int rc = check(*out, path, model, words, e);
    if (!rc)
        return 0;
    model_close(*out);
    *out = NULL;
    return err_prefix(e, rc, "%.200s", path);
}
