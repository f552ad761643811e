#include "engine/serve/embed/answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/serve/embed/digits.h"
#include "models/encode/pool.h"

struct score {
    int i;
    float value;
};

/* Of all values at once: any NaN or infinity makes the sum one. Products with 0 are 0 for every number. */
static bool all_finite(const float *v, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i] * 0.0f;
    return sum == 0;
}

static void put_head(const struct embed_ask *a, const struct embed_result *r, const char *kind, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s-", kind);
    buf_puts(out, r->id);
    buf_putc(out, '"');
    if (a->route != EMBED_RERANK)
        buf_printf(out, ",\"object\":\"list\",\"created\":%lld", (long long)r->created_s);
    buf_puts(out, ",\"model\":");
    buf_put_json(out, a->model->name, strlen(a->model->name));
}

static void put_usage(const struct embed_result *r, struct buf *out)
{
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}", (long long)r->n_tokens,
               (long long)r->n_tokens);
}

/* ---- vectors */

/* The first of its floats, normalised if whole vectors are. room NULL: nothing is cut. */
static const float *cut(const struct embed_ask *a, const float *v, float *room)
{
    if (!room)
        return v;
    memcpy(room, v, (size_t)a->dim * sizeof *room);
    if (a->model->facts->normalised)
        pool_normalise(room, a->dim);
    return room;
}

static void put_vectors(const struct embed_ask *a, const struct embed_result *r, struct buf *out)
{
    int dim = a->model->facts->dim;
    float *room = a->dim < dim ? mem_new_array((size_t)a->dim, sizeof *room) : NULL;
    put_head(a, r, "embd", out);
    buf_puts(out, ",\"data\":[");
    for (int i = 0; i < a->n; i++) {
        const float *v = cut(a, r->out + (size_t)i * (size_t)dim, room);
        buf_puts(out, i ? ",{\"object\":\"embedding\",\"index\":" : "{\"object\":\"embedding\",\"index\":");
        buf_put_u64(out, (unsigned long long)i);
        buf_puts(out, ",\"embedding\":");
        if (a->base64)
            digits_put_base64(out, v, a->dim);
        else
            digits_put_floats(out, v, a->dim);
        buf_putc(out, '}');
    }
    mem_free(room);
    buf_putc(out, ']');
    put_usage(r, out);
    buf_putc(out, '}');
}

/* ---- scores */

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static float cosine(const float *x, const float *y, int n)
{
    double lengths = sqrt(dot(x, x, n) * dot(y, y, n));
    return lengths > 0 ? (float)(dot(x, y, n) / lengths) : 0;
}

static float score_of(const struct embed_ask *a, const struct embed_result *r, int i)
{
    int dim = a->model->facts->dim;
    if (a->n_left)
        return cosine(r->out + (size_t)(a->n_left > 1 ? i : 0) * (size_t)dim,
                      r->out + (size_t)(a->n_left + i) * (size_t)dim, dim);
    return r->out[i]; /* of a pair; it has its activation */
}

static void put_score(struct buf *out, float v)
{
    char text[DIGITS_FLOAT];
    buf_put(out, text, digits_put(text, v));
}

static void put_scores(const struct embed_ask *a, const struct embed_result *r, const struct score *s, struct buf *out)
{
    put_head(a, r, "score", out);
    buf_puts(out, ",\"data\":[");
    for (int i = 0; i < a->n_scores; i++) {
        buf_printf(out, "%s{\"index\":%d,\"object\":\"score\",\"score\":", i ? "," : "", i);
        put_score(out, s[i].value);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
    put_usage(r, out);
    buf_putc(out, '}');
}

/* Best first; equals in the order in which they came. */
static int by_score(const void *a, const void *b)
{
    const struct score *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : x->i - y->i;
}

static const char **texts_of(const struct embed_ask *a)
{
    const char **texts = mem_new_array((size_t)a->n_scores, sizeof *texts);
    int i = 0;
    for (const struct json *d = json_first(a->docs); d; d = json_next(d))
        texts[i++] = embed_ask_document(d);
    return texts;
}

static void put_ranks(const struct embed_ask *a, const struct embed_result *r, struct score *s, struct buf *out)
{
    int n = a->top_n && a->top_n < a->n_scores ? a->top_n : a->n_scores;
    const char **texts = a->documents ? texts_of(a) : NULL;
    qsort(s, (size_t)a->n_scores, sizeof *s, by_score);
    put_head(a, r, "rerank", out);
    put_usage(r, out);
    buf_puts(out, ",\"results\":[");
    for (int i = 0; i < n; i++) {
        buf_printf(out, "%s{\"index\":%d", i ? "," : "", s[i].i);
        if (texts) {
            buf_puts(out, ",\"document\":{\"text\":");
            buf_put_json(out, texts[s[i].i], strlen(texts[s[i].i]));
            buf_putc(out, '}');
        }
        buf_puts(out, ",\"relevance_score\":");
        put_score(out, s[i].value);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
    mem_free(texts);
}

static void put_scored(const struct embed_ask *a, const struct embed_result *r, struct buf *out)
{
    struct score *s = mem_new_array((size_t)a->n_scores, sizeof *s);
    for (int i = 0; i < a->n_scores; i++)
        s[i] = (struct score){i, score_of(a, r, i)};
    if (a->route == EMBED_RERANK)
        put_ranks(a, r, s, out);
    else
        put_scores(a, r, s, out);
    mem_free(s);
}

int embed_answer_put(const struct embed_ask *a, const struct embed_result *r, struct buf *out, struct fault *f)
{
    if (!all_finite(r->out, (size_t)a->n * (size_t)a->model->facts->dim)) {
        fault_set(f, 500, "model_error", NULL, "the model gave a value that is not a number");
        return E_DEVICE;
    }
    if (a->n_scores)
        put_scored(a, r, out);
    else
        put_vectors(a, r, out);
    return 0;
}

size_t embed_answer_bytes(const struct embed_ask *a)
{
    size_t floats = (size_t)a->n * (size_t)a->model->facts->dim;
    return a->n_scores ? floats + (size_t)a->n_scores * 64 + (a->documents ? a->bytes : 0)
                       : (a->base64 ? floats * 16 / 3 : floats * 13) + (size_t)a->n * 48;
}
