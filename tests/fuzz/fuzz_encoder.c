/* Any bytes as an encoder: the lengths of four JSON files (two bytes each), their texts, then a safetensors file or a
 * GGUF file. What is taken must run on a short sequence, or say that its vectors are not finite. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/encode/bert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_DIM = 1 << 15, TOKENS = 5 };

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

static int open_gguf(struct bert **b, struct bert_config *c, const void *file, size_t n, struct err *e)
{
    struct gguf *g;
    TRY(gguf_open_memory(&g, file, n, e));
    int rc = bert_config_gguf(c, g, e);
    bert_gguf_is_encoder(g);
    if (!rc)
        rc = bert_open(b, c, NULL, g, e);
    gguf_close(g);
    return rc;
}

static int open_folder(struct bert **b, struct bert_config *c, const struct bert_text texts[BERT_FILES],
                       const void *file, size_t n, struct err *e)
{
    struct safetensors *st;
    if (texts[BERT_CONFIG].data)
        bert_config_is_encoder(texts[BERT_CONFIG].data, texts[BERT_CONFIG].n, texts[BERT_MODULES].data != NULL);
    TRY(bert_config_read(c, texts, e));
    ASSERT(c->max_tokens >= 1 && c->max_tokens <= c->n_positions && c->hidden % c->n_heads == 0);
    TRY(safetensors_open_memory(&st, file, n, e));
    int rc = bert_open(b, c, st, NULL, e);
    safetensors_close(st);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bert_text texts[BERT_FILES] = {{0}};
    struct bert_config c;
    struct bert *b = NULL;
    struct err e = {0};
    size_t at = 2 * BERT_FILES;
    if (size < at)
        return 0;
    char *copy = mem_try(size); /* the texts end where their memory ends, for what reads on */
    ASSERT(copy);
    memcpy(copy, data, size);
    for (int i = 0; i < BERT_FILES; i++) {
        size_t n = (size_t)data[2 * i] | (size_t)data[2 * i + 1] << 8;
        n = n < size - at ? n : size - at;
        if (n)
            texts[i] = (struct bert_text){copy + at, n};
        at += n;
    }
    bool gguf = size - at >= 4 && memcmp(copy + at, "GGUF", 4) == 0;
    int rc = gguf ? open_gguf(&b, &c, copy + at, size - at, &e) : open_folder(&b, &c, texts, copy + at, size - at, &e);
    ASSERT(rc ? e.text[0] && !b : b != NULL);
    if (b && c.hidden <= MOST_DIM)
        run(b, &c);
    bert_close(b);
    mem_free(copy);
    return 0;
}
