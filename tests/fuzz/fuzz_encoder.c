/* Any bytes as an encoder: the lengths of four JSON files (two bytes each), their texts, then a safetensors file or a
 * GGUF file; of a BERT encoder or of a decoder. What is taken must run on a short sequence, or say that its vectors are
 * not finite. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/encode/bert.h"
#include "models/encode/decoder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_DIM = 1 << 15, MOST_WORK = 1 << 24, TOKENS = 5 };

static void run(const struct bert *b, const struct bert_config *c)
{
    int32_t ids[TOKENS];
    int n = c->n_positions < TOKENS ? c->n_positions : TOKENS, dim = c->n_labels ? c->n_labels : c->hidden;
    float *out = mem_new_array((size_t)dim * 2, sizeof *out);
    struct bert_run *r;
    struct err e = {0};
    for (int i = 0; i < n; i++)
        ids[i] = (i * 7 + 1) % c->n_vocab;
    struct encoder_seq seqs[] = {{ids, n, n, out}, {ids, 1, 0, out + dim}};
    ASSERT(bert_run_open(&r, b, 1, n + 1, NULL, &e) == 0);
    int rc = bert_run(r, seqs, 2, &e);
    ASSERT(rc == 0 || (rc == E_DEVICE && e.text[0]));
    for (int i = 0; i < 2 * dim && !rc; i++)
        ASSERT(isfinite(out[i]));
    bert_run_close(r);
    mem_free(out);
}

/* ---- decoders */

static void run_decoder(const struct decoder *d, const struct model_config *c)
{
    int32_t ids[TOKENS];
    int n = c->context < TOKENS ? c->context : TOKENS;
    float *out = mem_new_array((size_t)c->hidden * 2, sizeof *out);
    struct decoder_run *r;
    struct err e = {0};
    for (int i = 0; i < n; i++)
        ids[i] = (i * 7 + 1) % c->vocab;
    struct encoder_seq seqs[] = {{ids, n, n, out}, {ids, 1, 1, out + c->hidden}};
    ASSERT(decoder_run_open(&r, d, 1, n + 1, NULL, &e) == 0);
    int rc = decoder_run(r, seqs, 2, &e);
    ASSERT(rc == 0 || e.text[0]);
    for (int i = 0; i < 2 * c->hidden && !rc; i++)
        ASSERT(isfinite(out[i]));
    decoder_run_close(r);
    mem_free(out);
}

static void try_decoder(struct model *m, const struct encoder_card *card)
{
    const struct model_config *c = model_config(m);
    struct decoder *d;
    struct err e = {0};
    int64_t work = (int64_t)c->hidden * c->intermediate + (int64_t)c->hidden * c->n_heads * c->head_dim;
    if (decoder_check(c, card, &e) || work * c->n_layers > MOST_WORK || (int64_t)c->vocab * c->hidden > MOST_WORK) {
        model_close(m);
        return;
    }
    int rc = decoder_open(&d, m, card, &e);
    ASSERT(rc ? e.text[0] && !d : d != NULL);
    if (d)
        run_decoder(d, c);
    decoder_close(d);
    model_close(m);
}

/* True: it was one, whatever became of it. */
static bool take_decoder(const struct card_text texts[CARD_FILES], const char *file, size_t n, bool gguf)
{
    struct encoder_card card;
    struct model *m;
    struct gguf *g;
    struct err e = {0};
    const struct card_text *config = &texts[CARD_CONFIG];
    if (!gguf) {
        if (!config->data || !card_is_decoder(config->data, config->n))
            return false;
        if (card_read(&card, texts, &e) == 0 &&
            model_embedder_from_hf(&m, (struct model_text){config->data, config->n}, file, n, &e) == 0)
            try_decoder(m, &card);
        return true;
    }
    if (gguf_open_memory(&g, file, n, &e))
        return false;
    bool yes = card_gguf_is_decoder(g);
    if (yes && card_from_gguf(&card, g, &e) == 0 && model_embedder_from_gguf(&m, g, "fuzz", &e) == 0)
        try_decoder(m, &card); /* the file is the model's */
    else
        gguf_close(g);
    return yes;
}

/* ---- BERT */

static int open_gguf(struct bert **b, struct bert_config *c, const void *file, size_t n, struct err *e)
{
    struct gguf *g;
    TRY(gguf_open_memory(&g, file, n, e));
    int rc = bert_config_gguf(c, g, e);
    card_gguf_is_encoder(g);
    if (!rc)
        rc = bert_open(b, c, NULL, g, e);
    gguf_close(g);
    return rc;
}

static int open_folder(struct bert **b, struct bert_config *c, const struct card_text texts[CARD_FILES],
                       const void *file, size_t n, struct err *e)
{
    struct safetensors *st;
    if (texts[CARD_CONFIG].data)
        card_is_encoder(texts[CARD_CONFIG].data, texts[CARD_CONFIG].n, texts[CARD_MODULES].data != NULL);
    TRY(bert_config_read(c, texts, e));
    ASSERT(c->max_tokens >= 1 && c->max_tokens <= c->n_positions && c->hidden % c->n_heads == 0);
    TRY(safetensors_open_memory(&st, file, n, e));
    int rc = bert_open(b, c, st, NULL, e);
    safetensors_close(st);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct card_text texts[CARD_FILES] = {{0}};
    struct bert_config c;
    struct bert *b = NULL;
    struct err e = {0};
    size_t at = 2 * CARD_FILES;
    if (size < at)
        return 0;
    char *copy = mem_try(size); /* the texts end where their memory ends, for what reads on */
    ASSERT(copy);
    memcpy(copy, data, size);
    for (int i = 0; i < CARD_FILES; i++) {
        size_t n = (size_t)data[2 * i] | (size_t)data[2 * i + 1] << 8;
        n = n < size - at ? n : size - at;
        if (n)
            texts[i] = (struct card_text){copy + at, n};
        at += n;
    }
    bool gguf = size - at >= 4 && memcmp(copy + at, "GGUF", 4) == 0;
    if (take_decoder(texts, copy + at, size - at, gguf)) {
        mem_free(copy);
        return 0;
    }
    int rc = gguf ? open_gguf(&b, &c, copy + at, size - at, &e) : open_folder(&b, &c, texts, copy + at, size - at, &e);
    ASSERT(rc ? e.text[0] && !b : b != NULL);
    if (b && c.hidden <= MOST_DIM)
        run(b, &c);
    bert_close(b);
    mem_free(copy);
    return 0;
}
