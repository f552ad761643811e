/* Any bytes as a speculator: the length of config.json (two bytes), its text, then a safetensors file. What is taken
 * guesses from a hidden state: tokens of its vocabulary, or nothing. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/forward/heads.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_DIM = 1 << 12 };

static void guess(struct heads *h, struct device *d, const struct speculator_config *c)
{
    int32_t draft = 1;
    float *rows = mem_new_array(3 * (size_t)c->hidden, 2 * sizeof *rows), *gain = rows + 3 * (size_t)c->hidden;
    struct sample_result results[3] = {{.token = 0}, {.token = 1}, {.token = c->vocab - 1}};
    struct heads_ask asks[] = {{.first = 0, .at = -1}, {.first = 1, .at = -1, .drafts = {1, &draft, NULL}}};
    struct heads_asks all = {results, asks, 2};
    for (int i = 0; i < 3 * c->hidden; i++)
        rows[i] = (float)(i % 7) - 3;
    for (int i = 0; i < c->hidden; i++)
        gain[i] = 1;
    ASSERT(backend_cpu()->begin(d, &(struct batch){.n_rows = 1}, NULL, NULL) == 0);
    heads_keep(h,
               &(struct heads_rows){
                   .asks = &all, .n = 1, .rows = 3, .hidden = {rows, c->hidden, c->hidden, false}, .out_norm = gain});
    heads_guess(h, &all, 0, 1);
    ASSERT(backend_cpu()->finish(d, NULL, NULL) == 0);
    for (int i = 0; i < 2; i++) {
        const struct draft_made *m = &asks[i].made;
        ASSERT(m->n >= 0 && m->n <= c->n_used && m->right == i);
        for (int k = 0; k < m->n; k++)
            ASSERT(m->tokens[k] >= 0 && m->tokens[k] < c->vocab && m->shares[k] >= 0 && m->shares[k] <= 1);
    }
    mem_free(rows);
}

static void run(const struct speculator *s)
{
    const struct device_opts o = {.n_threads = 1, .max_rows = 4, .max_logits = 4};
    struct device *d;
    struct heads_weights *w;
    struct heads *h;
    struct err e = {0};
    ASSERT(backend_cpu()->open(&d, &o, &e) == 0);
    if (heads_weights_load(&w, s, backend_cpu(), d, &e)) {
        ASSERT(e.text[0]);
    } else {
        ASSERT(heads_open(&h, w, d, &e) == 0);
        guess(h, d, speculator_config(s));
        heads_close(h);
        heads_weights_free(w);
    }
    backend_cpu()->close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct speculator *s;
    struct err e = {0};
    size_t n = size >= 2 ? (size_t)(data[0] | data[1] << 8) : 0;
    if (size < 2 || n > size - 2)
        return 0;
    size_t rest = size - 2 - n;
    char *text = mem_try(n + 1), *file = mem_try(rest + 1);
    ASSERT(text && file);
    memcpy(text, data + 2, n);
    memcpy(file, data + 2 + n, rest);
    int rc = speculator_open_memory(&s, (struct model_text){text, n}, file, rest, &e);
    ASSERT(rc ? e.text[0] && !s : s != NULL);
    if (s && speculator_config(s)->hidden <= MOST_DIM && speculator_config(s)->vocab <= MOST_DIM)
        run(s);
    speculator_close(s);
    mem_free(text);
    mem_free(file);
    return 0;
}
