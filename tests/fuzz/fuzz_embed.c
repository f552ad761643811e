/* Request bodies of /v1/embeddings, /rerank and /score: what they become, and the answer that is made of it. The first
 * byte chooses the route and the model; checked is what the embedder relies on: ids of the vocabulary, lengths that the
 * model takes; and that the answer is JSON with as many entries as were asked for. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/serve/embed/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_fault(const struct fault *f)
{
    struct buf out = {0};
    ASSERT(f->status >= 400 && f->status < 600 && f->text[0] && f->code);
    fault_put(f, &out);
    struct json *j = json_parse(out.data, out.len, NULL, NULL);
    ASSERT(json_text(json_find(json_find(j, "error"), "message")));
    json_free(j);
    buf_free(&out);
}

static void check_answer(const struct embed_ask *a, const struct encoder_seq *seqs, int64_t n_tokens)
{
    size_t dim = (size_t)a->model->facts->dim;
    float *vectors = mem_new_array((size_t)a->n, dim * sizeof *vectors);
    struct fault f = {0};
    struct buf out = {0};
    for (int i = 0; i < a->n; i++)
        for (size_t d = 0; d < dim; d++)
            vectors[(size_t)i * dim + d] = (float)seqs[i].ids[d % (size_t)seqs[i].n] / (float)(d + 1);
    ASSERT(embed_answer_put(a, &(struct embed_result){vectors, n_tokens, "id", 1}, &out, &f) == 0);
    struct json *j = json_parse(out.data, out.len, NULL, NULL);
    size_t want = a->n_scores ? (size_t)a->n_scores : (size_t)a->n;
    if (a->route == EMBED_RERANK && a->top_n && (size_t)a->top_n < want)
        want = (size_t)a->top_n;
    ASSERT(json_count(json_find(j, a->route == EMBED_RERANK ? "results" : "data")) == want);
    json_free(j);
    buf_free(&out);
    mem_free(vectors);
}

static void check_tokens(const struct embed_ask *a)
{
    struct encoder_seq *seqs = mem_new_array((size_t)a->n, sizeof *seqs);
    struct tokens ids = {0};
    struct fault f = {0};
    struct embed_part all = {0, a->n, NULL};
    ASSERT(a->n >= 1 && a->n <= 2 * EMBED_MAX_INPUTS);
    if (embed_ask_tokenize(a, &all, seqs, &ids, &f)) {
        check_fault(&f);
    } else {
        const int32_t *at = ids.ids;
        for (int i = 0; i < a->n; at += seqs[i++].n) {
            ASSERT(seqs[i].n >= 1 && seqs[i].n <= a->model->facts->max_tokens);
            ASSERT(seqs[i].n_first >= 1 && seqs[i].n_first <= seqs[i].n);
            ASSERT(!a->truncate || seqs[i].n <= a->truncate);
            seqs[i].ids = at;
        }
        ASSERT((size_t)(at - ids.ids) == ids.len);
        for (size_t i = 0; i < ids.len; i++)
            ASSERT(ids.ids[i] >= 0 && ids.ids[i] < a->model->facts->n_vocab);
        check_answer(a, seqs, (int64_t)ids.len);
    }
    tokens_free(&ids);
    mem_free(seqs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct embed_model models[2]; /* made once: they never change */
    static const char *const others[] = {"writer"};
    static const char *const paths[] = {"tests/data/encoder_sim", "tests/data/encoder_pairs"};
    if (size < 1)
        return 0;
    for (int i = 0; i < 2 && !models[1].encoder; i++) {
        struct encoder *c;
        ASSERT(encoder_open(&c, paths[i], "sim", NULL) == 0);
        models[i] = (struct embed_model){.name = "m", .root = "m", .others = others, .n_others = 1};
        ASSERT(embed_model_init(&models[i], c, NULL) == 0);
    }
    struct embed_ask a = {.route = (enum embed_route)(data[0] % EMBED_ROUTES)};
    struct fault f = {0};
    if (embed_ask_read(&a, &models[data[0] / EMBED_ROUTES % 2], (const char *)data + 1, size - 1, &f))
        check_fault(&f);
    else
        check_tokens(&a);
    embed_ask_free(&a);
    return 0;
}
