#include "kernels/cpu/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "kernels/cpu/device.h"

enum { BLOCK = 64, LANES = 16 };

/* A token that may be kept. */
struct candidate {
    float x, mass;
    int32_t id;
};

struct sample_scratch {
    int max_vocab;
    float *raw;                 /* logits before any change */
    float *top;                 /* [blocks] largest logit of each run of BLOCK */
    double *mass;               /* [blocks] */
    int32_t *counts, *distinct; /* counts is all zero between calls */
    struct candidate *candidates;
};

/* The logits of a row with their block maxima. */
struct view {
    float *x;
    int n, n_blocks;
    float max;
    struct sample_scratch *s;
};

static size_t blocks_of(int n)
{
    return ((size_t)n + BLOCK - 1) / BLOCK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t sample_scratch_bytes(int max_vocab)
{
    size_t n = (size_t)max_vocab, blocks = blocks_of(max_vocab);
    return aligned(sizeof(struct sample_scratch)) + aligned(n * sizeof(float)) + aligned(blocks * sizeof(float)) +
           aligned(blocks * sizeof(double)) + 2 * aligned(n * sizeof(int32_t)) + aligned(n * sizeof(struct candidate));
}

static void *carve(char **at, size_t bytes)
{
    char *p = *at;
    *at += aligned(bytes);
    return p;
}

struct sample_scratch *sample_scratch_init(void *memory, int max_vocab)
{
    char *at = memory;
    size_t n = (size_t)max_vocab, blocks = blocks_of(max_vocab);
    struct sample_scratch *s = carve(&at, sizeof *s);
    s->max_vocab = max_vocab;
    s->raw = carve(&at, n * sizeof *s->raw);
    s->top = carve(&at, blocks * sizeof *s->top);
    s->mass = carve(&at, blocks * sizeof *s->mass);
    s->counts = carve(&at, n * sizeof *s->counts);
    s->distinct = carve(&at, n * sizeof *s->distinct);
    s->candidates = carve(&at, n * sizeof *s->candidates);
    memset(s->counts, 0, n * sizeof *s->counts);
    return s;
}

/* ---- passes over the row ---- */

/* Replaces what is not a number and finds the largest of n values. The comparisons are false for NaN. */
static float clean(float *x, int n)
{
    float lanes[LANES], best = -INFINITY;
    int i = 0;
    for (int j = 0; j < LANES; j++)
        lanes[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j] > -INFINITY ? x[i + j] : -INFINITY;
            v = v < FLT_MAX ? v : FLT_MAX;
            x[i + j] = v;
            lanes[j] = v > lanes[j] ? v : lanes[j];
        }
    for (; i < n; i++) {
        float v = x[i] > -INFINITY ? x[i] : -INFINITY;
        x[i] = v < FLT_MAX ? v : FLT_MAX;
        best = x[i] > best ? x[i] : best;
    }
    for (int j = 0; j < LANES; j++)
        best = lanes[j] > best ? lanes[j] : best;
    return best;
}

static struct view scan(float *x, int n, struct sample_scratch *s)
{
    struct view v = {x, n, (int)blocks_of(n), -INFINITY, s};
    for (int b = 0; b < v.n_blocks; b++) {
        int left = n - b * BLOCK;
        s->top[b] = clean(x + b * BLOCK, left < BLOCK ? left : BLOCK);
        v.max = s->top[b] > v.max ? s->top[b] : v.max;
    }
    return v;
}

static int first_of(const struct view *v, float value)
{
    for (int b = 0; b < v->n_blocks; b++)
        if (v->s->top[b] == value)
            for (int i = b * BLOCK;; i++)
                if (v->x[i] == value)
                    return i;
    return 0;
}

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* e^y for y <= 0 within 2 units in the last place, 0 below e^-87: plain products and sums, so every machine gives the
 * same bits and a compiler can do many at once. */
static inline float exp_down(float y)
{
    float in = y > -87.0f ? y : -87.0f;
    float t = in * 1.44269504f + 12582912.0f; /* rounds to a whole number that stands in the low bits */
    float n = t - 12582912.0f;
    float r = in - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float e = float_of(bits_of(p) + (bits_of(t) << 23));
    return y > -87.0f ? e : 0.0f;
}

/* How logits become weights: e^((x - max) / temperature). */
struct heat {
    float max, inverse;
};

static inline float mass_of(struct heat h, float x)
{
    return exp_down((x - h.max) * h.inverse);
}

/* Sum of the weights of x[0..n) that are >= cut, in a fixed order. */
static double block_mass(const float *x, int n, struct heat h, float cut)
{
    float lanes[LANES] = {0};
    double sum = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += x[i + j] >= cut ? mass_of(h, x[i + j]) : 0.0f;
    for (int j = 0; i + j < n; j++)
        lanes[j] += x[i + j] >= cut ? mass_of(h, x[i + j]) : 0.0f;
    for (int j = 0; j < LANES; j++)
        sum += (double)lanes[j];
    return sum;
}

/* Fills s->mass; returns the sum over all blocks. */
static double weigh(const struct view *v, struct heat h, float cut)
{
    double sum = 0;
    for (int b = 0; b < v->n_blocks; b++) {
        int left = v->n - b * BLOCK;
        double m = v->s->top[b] >= cut ? block_mass(v->x + b * BLOCK, left < BLOCK ? left : BLOCK, h, cut) : 0;
        v->s->mass[b] = m;
        sum += m;
    }
    return sum;
}

/* ---- candidates ---- */

static bool before(struct candidate a, struct candidate b)
{
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves a pivot of c[lo..hi) to its place in the order, what comes before it to its left; returns the place. The
 * pivot's choice is random enough that no row of logits is slow by chance, and the same for the same row. */
static int partition(struct candidate *c, int lo, int hi)
{
    int pick = lo + (int)(rng_at((uint64_t)lo, (uint64_t)hi) % (uint64_t)(hi - lo)), to = lo;
    swap(&c[pick], &c[hi - 1]);
    for (int i = lo; i < hi - 1; i++)
        if (before(c[i], c[hi - 1]))
            swap(&c[i], &c[to++]);
    swap(&c[to], &c[hi - 1]);
    return to;
}

/* Puts the first k of c[0..n) into c[0..k), in any order. */
static void select_first(struct candidate *c, int n, int k)
{
    int lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        int at = partition(c, lo, hi);
        if (at < k)
            lo = at + 1;
        else
            hi = at;
    }
}

/* The size of the shortest prefix of the order that weighs at least `target`, moved to the front. */
static int select_mass(struct candidate *c, int n, double target)
{
    int lo = 0, hi = n;
    double before_lo = 0;
    while (hi - lo > 1) {
        int at = partition(c, lo, hi);
        double left = before_lo;
        for (int i = lo; i < at; i++)
            left += (double)c[i].mass;
        if (left >= target && at > lo) {
            hi = at;
        } else if (left + (double)c[at].mass >= target) {
            return at + 1;
        } else {
            before_lo = left + (double)c[at].mass;
            lo = at + 1;
        }
    }
    return lo < n ? lo + 1 : n;
}

/* Lists the tokens whose logit is at least `cut`. */
static int gather(const struct view *v, float cut)
{
    struct candidate *c = v->s->candidates;
    int n = 0;
    for (int b = 0; b < v->n_blocks; b++) {
        int end = (b + 1) * BLOCK < v->n ? (b + 1) * BLOCK : v->n;
        if (v->s->top[b] >= cut)
            for (int i = b * BLOCK; i < end; i++)
                if (v->x[i] >= cut)
                    c[n++] = (struct candidate){v->x[i], 0, i};
    }
    return n;
}

/* Lists tokens of which the first k are the first k of the row (0 < k <= v->n); returns how many it lists. The k-th
 * largest block maximum bounds the k-th largest logit from below, so few are listed. */
static int gather_first(const struct view *v, int k)
{
    struct candidate *c = v->s->candidates;
    float cut = -INFINITY;
    if (k <= v->n_blocks) {
        for (int b = 0; b < v->n_blocks; b++)
            c[b] = (struct candidate){v->s->top[b], 0, b};
        select_first(c, v->n_blocks, k);
        cut = c[0].x;
        for (int i = 1; i < k; i++)
            cut = c[i].x < cut ? c[i].x : cut;
    }
    int n = gather(v, cut);
    select_first(c, n, k);
    return n;
}

/* ---- logprobs, of the raw logits ---- */

static void list_top(const struct view *v, int n_top, double log_sum, struct sample_result *out)
{
    struct candidate *c = v->s->candidates;
    out->n_top = n_top < v->n ? n_top : v->n;
    out->n_top = out->n_top < SAMPLING_MAX_LOGPROBS ? out->n_top : SAMPLING_MAX_LOGPROBS;
    if (out->n_top <= 0)
        return;
    gather_first(v, out->n_top);
    for (int i = 1; i < out->n_top; i++)
        for (int j = i; j > 0 && before(c[j], c[j - 1]); j--)
            swap(&c[j], &c[j - 1]);
    for (int i = 0; i < out->n_top; i++) {
        out->top_ids[i] = c[i].id;
        out->top_logprobs[i] = (float)((double)c[i].x - log_sum);
    }
}

static void report(const float *raw, int n, double log_sum, struct sample_result *out)
{
    int ahead = 0, id = out->token;
    float x = raw[id];
    for (int i = 0; i < id; i++)
        ahead += raw[i] >= x;
    for (int i = id + 1; i < n; i++)
        ahead += raw[i] > x;
    out->logprob = (float)((double)x - log_sum);
    out->rank = ahead + 1;
}

/* ---- changes to the logits ---- */

static bool penalised(const struct sampling *h)
{
    return h->repetition_penalty != 1 || h->frequency_penalty != 0 || h->presence_penalty != 0;
}

static bool changes(const struct sample_row *r)
{
    return r->n_banned > 0 || r->how->n_bias > 0 || r->n_allowed > 0 || penalised(r->how);
}

static bool in_range(int32_t id, int n)
{
    return id >= 0 && id < n;
}

static void keep_allowed(float *x, int n, const struct sample_row *r, const float *raw)
{
    for (int i = 0; i < n; i++)
        x[i] = -INFINITY;
    for (int i = 0; i < r->n_allowed; i++)
        if (in_range(r->allowed[i], n))
            x[r->allowed[i]] = raw[r->allowed[i]];
}

enum { SEEN = 1 << 30 }; /* in counts: in the prompt or the output; the low bits count the output */

static int count_tokens(const struct sample_row *r, int n, struct sample_scratch *s)
{
    int n_distinct = 0, n_prompt = r->how->repetition_penalty != 1 ? r->n_prompt : 0;
    for (int i = 0; i < n_prompt + r->n_output; i++) {
        int32_t id = i < n_prompt ? r->prompt[i] : r->output[i - n_prompt];
        if (!in_range(id, n))
            continue;
        if (!s->counts[id])
            s->distinct[n_distinct++] = id;
        s->counts[id] = (s->counts[id] | SEEN) + (i >= n_prompt);
    }
    return n_distinct;
}

static void penalise(float *x, int n, const struct sample_row *r, struct sample_scratch *s)
{
    const struct sampling *h = r->how;
    int n_distinct = count_tokens(r, n, s);
    for (int i = 0; i < n_distinct; i++) {
        int32_t id = s->distinct[i];
        int count = s->counts[id] & (SEEN - 1);
        float v = x[id];
        v = v > 0 ? v / h->repetition_penalty : v * h->repetition_penalty;
        v -= h->frequency_penalty * (float)count;
        x[id] = count ? v - h->presence_penalty : v;
        s->counts[id] = 0;
    }
}

static void change(float *x, int n, const struct sample_row *r, struct sample_scratch *s)
{
    const struct sampling *h = r->how;
    if (r->n_allowed > 0)
        keep_allowed(x, n, r, s->raw);
    for (int i = 0; i < r->n_banned; i++)
        if (in_range(r->banned[i], n))
            x[r->banned[i]] = -INFINITY;
    for (int i = 0; i < h->n_bias; i++)
        if (in_range(h->bias[i].token, n))
            x[h->bias[i].token] += h->bias[i].bias;
    if (penalised(h))
        penalise(x, n, r, s);
}

/* ---- the choice ---- */

static bool is_banned(const struct sample_row *r, int32_t id)
{
    for (int i = 0; i < r->n_banned; i++)
        if (r->banned[i] == id)
            return true;
    return false;
}

/* No logit is finite: the lowest id that may be chosen. */
static int32_t choose_anything(const struct sample_row *r, int n)
{
    for (int i = 0; i < (r->n_allowed > 0 ? r->n_allowed : n); i++) {
        int32_t id = r->n_allowed > 0 ? r->allowed[i] : i;
        if (in_range(id, n) && !is_banned(r, id))
            return id;
    }
    return 0;
}

/* The logit at which a weight is `share` of the largest. */
static float logit_at(struct heat h, double share)
{
    return (float)((double)h.max + log(share) / (double)h.inverse);
}

/* top_p over the candidates listed, of which the first n count; returns how many stay. */
static int keep_top_p(struct candidate *c, int n, struct heat h, float top_p)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        c[i].mass = mass_of(h, c[i].x);
        sum += (double)c[i].mass;
    }
    return select_mass(c, n, (double)top_p * sum);
}

/* Without top_k: tokens so light that all of them together weigh less than 1 - top_p are never kept, so they are not
 * even listed. */
static int gather_top_p(const struct view *v, struct heat h, float top_p, float cut, int *n_kept)
{
    struct candidate *c = v->s->candidates;
    double sum = weigh(v, h, cut), share = 0.5 * (1 - (double)top_p) * sum / v->n;
    float light = logit_at(h, share);
    int n = gather(v, light > cut ? light : cut);
    for (int i = 0; i < n; i++)
        c[i].mass = mass_of(h, c[i].x);
    *n_kept = select_mass(c, n, (double)top_p * sum);
    return n;
}

static int gather_top_k(const struct view *v, const struct sampling *how, struct heat h, float cut, int *n_kept)
{
    struct candidate *c = v->s->candidates;
    int n = gather_first(v, how->top_k), kept = 0;
    for (int i = 0; i < how->top_k; i++)
        if (c[i].x >= cut)
            swap(&c[i], &c[kept++]);
    *n_kept = how->top_p < 1 ? keep_top_p(c, kept, h, how->top_p) : kept;
    return n;
}

/* Finds what min_p, top_k and top_p keep: every logit >= the result. Equals of the last one that fall outside become
 * minus infinity. */
static float restrict_to(const struct view *v, const struct sampling *how, struct heat h)
{
    struct candidate *c = v->s->candidates;
    float cut = how->min_p > 0 ? logit_at(h, (double)how->min_p) : -INFINITY;
    int n, n_kept = 0;
    cut = cut < h.max ? cut : h.max;
    if (how->top_k > 0 && how->top_k < v->n)
        n = gather_top_k(v, how, h, cut, &n_kept);
    else if (how->top_p < 1)
        n = gather_top_p(v, h, how->top_p, cut, &n_kept);
    else
        return cut;
    cut = c[0].x;
    for (int i = 1; i < n_kept; i++)
        cut = c[i].x < cut ? c[i].x : cut;
    for (int i = n_kept; i < n; i++)
        if (c[i].x == cut)
            v->x[c[i].id] = -INFINITY;
    return cut;
}

/* Walks the weights in id order to `target`. Sums over a block and over its elements may differ in the last bits: what
 * runs past the end takes the last token that weighs something. */
static int32_t walk(const struct view *v, struct heat h, float cut, double target)
{
    int block = 0;
    for (int b = 0; b < v->n_blocks; b++) {
        if (v->s->mass[b] <= 0)
            continue;
        block = b;
        if (target < v->s->mass[b])
            break;
        target -= v->s->mass[b];
    }
    int end = (block + 1) * BLOCK < v->n ? (block + 1) * BLOCK : v->n, last = block * BLOCK;
    double at = 0;
    for (int i = block * BLOCK; i < end; i++) {
        float m = v->x[i] >= cut ? mass_of(h, v->x[i]) : 0;
        at += (double)m;
        last = m > 0 ? i : last;
        if (m > 0 && target < at)
            break;
    }
    return last;
}

static int32_t choose(const struct view *v, const struct sample_row *r)
{
    const struct sampling *how = r->how;
    if (v->max == -INFINITY)
        return choose_anything(r, v->n);
    if (how->temperature < 1e-5f)
        return first_of(v, v->max);
    struct heat h = {v->max, 1.0f / how->temperature};
    float cut = restrict_to(v, how, h);
    double sum = weigh(v, h, cut), u = (double)(rng_at(how->seed, r->position) >> 11) * 0x1p-53;
    return walk(v, h, cut, u * sum);
}

void sample_logits(float *logits, int vocab, const struct sample_row *row, struct sample_result *out,
                   struct sample_scratch *s)
{
    ASSERT(vocab > 0 && vocab <= s->max_vocab);
    bool choosing = row->given < 0, logprobs = !choosing || row->n_top >= 0, changed = choosing && changes(row);
    const float *raw = logits;
    double log_sum = 0;
    struct view v = scan(logits, vocab, s);
    *out = (struct sample_result){.token = row->given};
    if (logprobs) {
        struct heat plain = {v.max, 1};
        log_sum = v.max == -INFINITY ? 0 : (double)v.max + log(weigh(&v, plain, -INFINITY));
        list_top(&v, row->n_top, log_sum, out);
    }
    if (changed) {
        raw = memcpy(s->raw, logits, (size_t)vocab * sizeof *logits);
        change(logits, vocab, row, s);
        v = scan(logits, vocab, s);
    }
    if (choosing)
        out->token = choose(&v, row);
    if (logprobs && in_range(out->token, vocab))
        report(raw, vocab, log_sum, out);
}

/* ---- the op ---- */

struct sample_job {
    struct device *d;
    struct act logits;
    int vocab, first;
    char *scratch; /* one after the other, by thread */
};

static void sample_item(void *ctx, int item, int thread)
{
    const struct sample_job *j = ctx;
    const struct batch *b = j->d->batch;
    int i = j->first + item;
    void *s = j->scratch + (size_t)thread * sample_scratch_bytes(j->vocab);
    sample_logits(act_row(j->logits, item), j->vocab, &b->samples[i], &b->results[i], s);
}

/* The device's memory for this begins with what it was made for; a line of 64 bytes, then a scratch for each thread. */
struct sampling_memory {
    int vocab, n_threads;
};

void cpu_sample(struct device *d, struct act logits, int vocab, int first, int n)
{
    enum { HEADER = 64, ROW_PS_PER_LOGIT = 500 };
    struct sampling_memory *m;
    int n_threads = pool_threads(d->pool);
    size_t each = sample_scratch_bytes(vocab);
    if (device_failed(d) || !device_grow(d, &d->sampling, HEADER + (size_t)n_threads * each))
        return;
    m = d->sampling.data;
    char *scratch = (char *)d->sampling.data + HEADER;
    if (m->vocab != vocab || m->n_threads != n_threads) {
        for (int t = 0; t < n_threads; t++)
            sample_scratch_init(scratch + (size_t)t * each, vocab);
        *m = (struct sampling_memory){vocab, n_threads};
    }
    struct sample_job job = {d, logits, vocab, first, scratch};
    device_run(d, n, (int64_t)n * vocab * ROW_PS_PER_LOGIT / 1000, sample_item, &job);
}
