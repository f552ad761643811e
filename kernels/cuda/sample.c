/* Sampling on the host's side: the parameters and lists of each row of logits on their way to the device. finish hands
 * over the results. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/device.h"

enum { MOST_VOCAB = 1 << 19 };

/* The distinct tokens of a row and how often each was output. counts is all zero between calls. */
struct counting {
    int32_t *counts, *distinct;
    int vocab;
};

enum { SEEN = 1 << 30 };

static bool penalised(const struct sampling *h)
{
    return h->repetition_penalty != 1 || h->frequency_penalty != 0 || h->presence_penalty != 0;
}

static int count_tokens(const struct sample_row *r, struct counting *c)
{
    int n = 0, n_prompt = r->how->repetition_penalty != 1 ? r->n_prompt : 0;
    for (int i = 0; i < n_prompt + r->n_output; i++) {
        int32_t id = i < n_prompt ? r->prompt[i] : r->output[i - n_prompt];
        if (id < 0 || id >= c->vocab)
            continue;
        if (!c->counts[id])
            c->distinct[n++] = id;
        c->counts[id] = (c->counts[id] | SEEN) + (i >= n_prompt);
    }
    return n;
}

/* Upper bound of the 32-bit words that the lists of a row take. */
static size_t most_words(const struct sample_row *r, int vocab)
{
    size_t n = (size_t)r->n_banned + (size_t)r->n_allowed + 2 * (size_t)r->how->n_bias,
           seen = (size_t)r->n_prompt + (size_t)r->n_output;
    return n + (penalised(r->how) ? 2 * (seen < (size_t)vocab ? seen : (size_t)vocab) : 0);
}

static int32_t *put(int32_t *to, const int32_t *ids, int n)
{
    if (n > 0)
        memcpy(to, ids, (size_t)n * sizeof *to);
    return to + n;
}

/* Returns how many words it has written. */
static int64_t put_lists(const struct sample_row *r, struct sample_params *a, struct counting *c, int32_t *to)
{
    int32_t *first = to;
    const struct sampling *h = r->how;
    a->n_allowed = r->n_allowed > 0 ? r->n_allowed : -1;
    a->n_banned = r->n_banned;
    a->n_bias = h->n_bias;
    to = put(to, r->allowed, r->n_allowed);
    to = put(to, r->banned, r->n_banned);
    for (int i = 0; i < h->n_bias; i++) {
        *to++ = h->bias[i].token;
        memcpy(to++, &h->bias[i].bias, sizeof *to);
    }
    a->n_seen = penalised(h) ? count_tokens(r, c) : 0;
    for (int i = 0; i < a->n_seen; i++) {
        int32_t id = c->distinct[i];
        *to++ = id;
        *to++ = c->counts[id] & (SEEN - 1);
        c->counts[id] = 0;
    }
    return to - first;
}

static struct sample_params params_of(const struct sample_row *r)
{
    const struct sampling *h = r->how;
    if (r->given >= 0) /* nothing is sampled, so `how` is not read */
        return (struct sample_params){
            .given = r->given, .n_top = r->n_top, .logprobs = 1, .temperature = 1, .top_p = 1, .n_allowed = -1};
    return (struct sample_params){.draw = (double)(rng_at(h->seed, r->position) >> 11) * 0x1p-53,
                                  .temperature = h->temperature,
                                  .top_p = h->top_p,
                                  .min_p = h->min_p,
                                  .repetition = h->repetition_penalty,
                                  .frequency = h->frequency_penalty,
                                  .presence = h->presence_penalty,
                                  .top_k = h->top_k,
                                  .given = -1,
                                  .n_top = r->n_top,
                                  .logprobs = r->n_top >= 0,
                                  .n_allowed = -1,
                                  .changed = r->n_banned > 0 || h->n_bias > 0 || r->n_allowed > 0 || penalised(h)};
}

size_t sample_list_words(const struct batch *b, int first, int n, int vocab)
{
    size_t words = 0;
    for (int i = first; i < first + n; i++)
        words += b->samples[i].given < 0 ? most_words(&b->samples[i], vocab) : 0;
    return words;
}

static bool counting_open(struct device *d, struct counting *c, int first, int n, int vocab)
{
    bool needed = false;
    *c = (struct counting){.vocab = vocab};
    for (int i = 0; i < n; i++) {
        const struct sample_row *r = &d->batch->samples[first + i];
        needed = needed || (r->given < 0 && penalised(r->how));
    }
    if (!needed)
        return true;
    c->counts = mem_try_array(2 * (size_t)vocab, sizeof *c->counts);
    if (!c->counts) {
        gpu_fail(d, E_FULL, "no memory to count tokens for penalties");
        return false;
    }
    c->distinct = c->counts + vocab;
    return true;
}

bool write_sample_params(struct device *d, int first, int n, struct params_writer *to)
{
    const struct sample_row *rows = d->batch->samples + first;
    struct counting c;
    if (!counting_open(d, &c, first, n, to->vocab))
        return false;
    for (int i = 0; i < n; i++) {
        to->params[i] = params_of(&rows[i]);
        to->params[i].lists = to->used;
        if (to->params[i].changed)
            to->used += put_lists(&rows[i], &to->params[i], &c, to->words + to->used);
    }
    mem_free(c.counts);
    return true;
}

/* Asks and lists of rows [first, first + n) on their way; j.params and j.lists are set. */
static bool send_params(struct device *d, struct sample_job *j, int first)
{
    size_t words = sample_list_words(d->batch, first, j->n, j->vocab),
           params_bytes = (size_t)j->n * sizeof(struct sample_params);
    if (!mirror_room(d, &d->lists, params_bytes + words * sizeof(int32_t) + 32))
        return false;
    size_t at = mirror_take(&d->lists, params_bytes), list_at = d->lists.used;
    struct params_writer a = {.params = (struct sample_params *)(d->lists.host + at),
                              .words = (int32_t *)(d->lists.host + list_at),
                              .vocab = j->vocab};
    if (!write_sample_params(d, first, j->n, &a))
        return false;
    mirror_take(&d->lists, (size_t)a.used * sizeof(int32_t));
    j->params = (const struct sample_params *)(d->lists.dev + at);
    j->lists = (const int32_t *)(d->lists.dev + list_at);
    mirror_push(d, &d->lists, at);
    return !gpu_failed(d);
}

static bool any_changed(const struct device *d, int first, int n)
{
    for (int i = 0; i < n; i++)
        if (params_of(&d->batch->samples[first + i]).changed)
            return true;
    return false;
}

/* Which rows' results finish hands over. */
static void note_sampled(struct device *d, int first, int n)
{
    d->sampled = mem_resize(d->sampled, (size_t)d->n_sampled + 1, sizeof *d->sampled);
    d->sampled[d->n_sampled++] = (struct sampled){first, n};
}

/* The results of the whole step lie side by side; only this rank's part is written, on the device and at the host. */
static bool take_results(struct device *d, struct sample_job *j, int first)
{
    size_t each = sizeof(struct sample_out), all = (size_t)d->batch->n_logits * each;
    if (d->results.used == 0) {
        if (!mirror_room(d, &d->results, all + 16))
            return false;
        mirror_take(&d->results, all);
    }
    j->out = (struct sample_out *)d->results.dev + first;
    j->hosts[0] = (struct sample_out *)d->results.host + first;
    note_sampled(d, first, j->n);
    return true;
}

/* The parameters of a graph lie in the frame, its results in the memory of the flight. */
static void capture_sample(struct device *d, struct sample_job *j, int first)
{
    const struct frame *f = &d->frame;
    j->params = (const struct sample_params *)frame_at(f, f->params) + first;
    j->lists = frame_at(f, f->words);
    j->out = f->results + first;
    j->turn = f->turn;
    for (int i = 0; i < FLIGHTS; i++)
        j->hosts[i] = f->results_hosts[i] + first;
    d->graph->vocab = j->vocab;
    note_sampled(d, first, j->n);
    gpu_launched(d, launch_sample(d->stream, j), "sample");
}

static void send_sample(struct device *d, struct sample_job *j, int first)
{
    if (send_params(d, j, first) && take_results(d, j, first))
        gpu_launched(d, launch_sample(d->stream, j), "sample");
}

void cuda_sample(struct device *d, struct act logits, int vocab, int first, int n)
{
    struct sample_job j = {.logits = logits.data, .ld = logits.ld, .vocab = vocab, .n = n};
    if (gpu_failed(d) || n == 0)
        return;
    ASSERT(first >= 0 && first + n <= d->batch->n_logits && vocab > 0);
    if (vocab > MOST_VOCAB) {
        gpu_fail(d, E_UNSUPPORTED, "the vocabulary is too large to sample from on a GPU: use --device cpu");
        return;
    }
    if (d->graph || any_changed(d, first, n)) { /* any row of a later step may be changed */
        if (!gpu_grow(d, &d->work->changed, (size_t)n * (size_t)vocab * sizeof(float)))
            return;
        j.changed = d->work->changed.data;
    }
    if (d->graph)
        capture_sample(d, &j, first);
    else
        send_sample(d, &j, first);
}
