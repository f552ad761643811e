#include "models/encode/encoder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "models/encode/decoder.h"
#include "models/encode/encoder_inner.h"
#include "models/load/config.h"
#include "models/tokenizer/hf_words.h"

static const size_t max_config_bytes = 1 << 20;

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* One file of a folder; *out stays empty where there is none. */
static int read_text(const char *dir, enum card_file f, struct buf *out, struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, card_file_name(f)) >= (int)sizeof path)
        return err_set(e, E_INPUT, "%.80s...: the path is too long", dir);
    return access(path, F_OK) == 0 ? file_read(out, path, max_config_bytes, e) : 0;
}

static int read_folder(struct encoder_files *f, struct err *e)
{
    struct buf bytes[CARD_FILES] = {0};
    struct card_text texts[CARD_FILES] = {0};
    int rc = 0;
    for (int i = 0; i < CARD_FILES && !rc; i++) {
        rc = read_text(f->path, (enum card_file)i, &bytes[i], e);
        texts[i] = (struct card_text){bytes[i].data, bytes[i].len};
    }
    const struct card_text *config = &texts[CARD_CONFIG];
    f->decoder = config->data && card_is_decoder(config->data, config->n);
    if (!rc && !f->decoder)
        rc = bert_config_read(&f->bert, texts, e);
    if (!rc && f->decoder)
        rc = config_embedder_from_hf(&f->model, config->data, config->n, e);
    if (!rc && f->decoder)
        rc = card_read(&f->card, texts, e);
    for (int i = 0; i < CARD_FILES; i++)
        buf_free(&bytes[i]);
    return rc;
}

static int read_gguf(struct encoder_files *f, struct err *e)
{
    f->decoder = card_gguf_is_decoder(f->gguf);
    if (!f->decoder)
        return bert_config_gguf(&f->bert, f->gguf, e);
    TRY(config_embedder_from_gguf(&f->model, f->gguf, e));
    return card_from_gguf(&f->card, f->gguf, e);
}

static int open_tokenizer(struct tokenizer **out, const struct encoder_files *f, struct err *e)
{
    struct gguf *words = NULL;
    int n_vocab = f->decoder ? f->model.vocab : f->bert.n_vocab;
    *out = NULL;
    int rc = f->folder ? hf_words_open(&words, f->path, e) : 0;
    if (!rc)
        rc = tokenizer_from_gguf(out, f->folder ? words : f->gguf, e);
    if (!rc && tokenizer_n_vocab(*out) > n_vocab) {
        rc = err_set(e, E_INPUT, "the tokenizer has %d tokens and the model vectors for %d", tokenizer_n_vocab(*out),
                     n_vocab);
        tokenizer_free(*out);
        *out = NULL;
    }
    gguf_close(words);
    return rc;
}

/* general.name, or the last part of the path. */
static void set_name(struct encoder_facts *facts, const struct encoder_files *f)
{
    struct gguf_string own;
    size_t n = strlen(f->path);
    while (n && f->path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && f->path[from - 1] != '/')
        from--;
    if (f->gguf && gguf_string(f->gguf, "general.name", &own) && own.len && !memchr(own.data, 0, own.len))
        snprintf(facts->name, sizeof facts->name, "%.*s", (int)(own.len < 120 ? own.len : 120), own.data);
    else
        snprintf(facts->name, sizeof facts->name, "%.*s", (int)(n - from), f->path + from);
}

static void set_facts(struct encoder *c, const struct encoder_files *f)
{
    const struct bert_config *b = &f->bert;
    const struct model_config *m = &f->model;
    const struct encoder_card *card = f->decoder ? &f->card : &b->card;
    struct encoder_facts *to = &c->facts;
    set_name(to, f);
    to->decoder = f->decoder;
    to->dim = f->decoder ? m->hidden : b->n_labels ? b->n_labels : b->hidden;
    to->n_positions = f->decoder ? m->context : b->n_positions;
    to->max_tokens = card->max_tokens && card->max_tokens < to->n_positions ? card->max_tokens : to->n_positions;
    to->n_vocab = f->decoder ? m->vocab : b->n_vocab;
    to->n_labels = b->n_labels;
    to->pooling = card->pooling;
    to->normalised = card->normalised;
    to->cuts = card->cuts;
}

static int check_cuts(const struct encoder_files *f, struct err *e)
{
    const struct encoder_cuts *cuts = f->decoder ? &f->card.cuts : &f->bert.card.cuts;
    int dim = f->decoder ? f->model.hidden : f->bert.hidden;
    for (int i = 0; i < cuts->n; i++)
        if (cuts->at[i] > dim)
            return err_set(e, E_INPUT, "config.json: matryoshka_dimensions has %d; a vector has %d", cuts->at[i], dim);
    return 0;
}

/* What it is, without its weights. */
static int read_files(struct encoder_files *f, struct err *e)
{
    f->folder = is_folder(f->path);
    if (!f->folder)
        TRY(gguf_open(&f->gguf, f->path, e));
    TRY(f->folder ? read_folder(f, e) : read_gguf(f, e));
    TRY(check_cuts(f, e));
    return f->decoder ? decoder_check(&f->model, &f->card, e) : 0;
}

int encoder_check(const char *path, struct err *e)
{
    struct encoder_files files = {.path = path};
    int rc = read_files(&files, e);
    gguf_close(files.gguf);
    return rc;
}

static int open_files(struct encoder **out, struct encoder_files *f, const char *device, struct err *e)
{
    struct tokenizer *tokenizer;
    bool sim = strcmp(device, "sim") == 0;
    if (!sim && strcmp(device, "cpu") != 0)
        return err_set(e, E_UNSUPPORTED, "encoders run on the devices cpu and sim, not on %.40s", device);
    TRY(read_files(f, e));
    TRY(open_tokenizer(&tokenizer, f, e));
    int rc = sim ? encoder_open_sim(out, f, e) : encoder_open_cpu(out, f, e);
    if (rc) {
        tokenizer_free(tokenizer);
        return rc;
    }
    (*out)->tokenizer = tokenizer;
    set_facts(*out, f);
    return 0;
}

int encoder_open(struct encoder **out, const char *path, const char *device, struct err *e)
{
    struct encoder_files files = {.path = path};
    *out = NULL;
    int rc = open_files(out, &files, device, e);
    gguf_close(files.gguf);
    return rc ? err_prefix(e, rc, "%.200s", path) : 0;
}

void encoder_close(struct encoder *c)
{
    if (!c)
        return;
    tokenizer_free(c->tokenizer);
    c->ops->close(c);
}

const struct encoder_facts *encoder_facts(const struct encoder *c)
{
    return &c->facts;
}

bool encoder_is(const char *path)
{
    char modules[PATH_MAX];
    bool yes = false;
    if (!is_folder(path)) {
        struct gguf *g;
        if (gguf_open(&g, path, NULL))
            return false;
        yes = card_gguf_is_encoder(g);
        gguf_close(g);
        return yes;
    }
    struct buf config = {0};
    snprintf(modules, sizeof modules, "%s/modules.json", path);
    if (read_text(path, CARD_CONFIG, &config, NULL) == 0 && config.data)
        yes = card_is_encoder(config.data, config.len, access(modules, F_OK) == 0);
    buf_free(&config);
    return yes;
}

/* ---- texts ---- */

static int too_long(size_t max, struct err *e)
{
    return err_set(e, E_INPUT, "the text is longer than %zu tokens", max);
}

/* The second of a pair, and its [SEP]. */
static int tokenize_second(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how,
                           struct tokens *out, size_t n_first, struct err *e)
{
    int32_t sep = tokenizer_eos(c->tokenizer);
    size_t before = out->len, taken = n_first + (sep >= 0), max = how.max_tokens;
    if (max && taken > max)
        return too_long(max, e);
    how.flags &= ~TOKENIZE_BOS;
    how.max_tokens = max ? max - taken + 1 : 0; /* one more than fits: 0 would be no limit */
    int rc = tokenizer_encode(c->tokenizer, t->pair, t->n_pair, how, out, e);
    if ((rc == E_INPUT && max) || (!rc && max && taken + (out->len - before) > max))
        return too_long(max, e);
    if (!rc && sep >= 0)
        tokens_put(out, sep);
    return rc;
}

int encoder_tokenize_pair(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how,
                          struct tokens *out, int *n_first, struct err *e)
{
    size_t before = out->len;
    how.flags |= TOKENIZE_BOS;
    TRY(tokenizer_encode(c->tokenizer, t->text, t->n, how, out, e));
    *n_first = (int)(out->len - before);
    int rc = t->pair ? tokenize_second(c, t, how, out, out->len - before, e) : 0;
    if (rc)
        out->len = before;
    return rc;
}

int encoder_tokenize(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how, struct tokens *out,
                     int *n_first, struct err *e)
{
    return c->ops->tokenize(c, t, how, out, n_first, e);
}

/* ---- replicas ---- */

int encoder_replica_new(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                        struct err *e)
{
    *out = NULL;
    if (n_threads < 1 || max_rows < 1)
        return err_set(e, E_INPUT, "an encoder needs at least one thread and room for one token");
    TRY(c->ops->replica_new(out, c, n_threads, max_rows, e));
    (*out)->encoder = c;
    (*out)->max_rows = max_rows;
    return 0;
}

void encoder_replica_free(struct encoder_replica *r)
{
    if (r)
        r->encoder->ops->replica_free(r);
}

static int check_seq(const struct encoder_facts *facts, const struct encoder_seq *s, struct err *e)
{
    if (s->n < 1 || s->n > facts->n_positions)
        return err_set(e, E_INPUT, "a sequence of %d tokens; the model takes 1 to %d", s->n, facts->n_positions);
    if (s->n_first < 0 || s->n_first > s->n)
        return err_set(e, E_INPUT, "a first segment of %d tokens in a sequence of %d", s->n_first, s->n);
    for (int i = 0; i < s->n; i++)
        if (s->ids[i] < 0 || s->ids[i] >= facts->n_vocab)
            return err_set(e, E_INPUT, "there is no token %d; the vocabulary has %d", s->ids[i], facts->n_vocab);
    return 0;
}

int encoder_replica_run(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        TRY(check_seq(&r->encoder->facts, &seqs[i], e));
        rows += seqs[i].n;
    }
    if (rows > r->max_rows)
        return err_set(e, E_FULL, "%lld tokens at once; the replica has room for %d", (long long)rows, r->max_rows);
    return n > 0 ? r->encoder->ops->replica_run(r, seqs, n, e) : 0;
}
