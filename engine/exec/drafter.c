#include "engine/exec/drafter.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/exec/kv_memory.h"
#include "engine/exec/weights.h"

enum {
    AT_ONCE = 32,     /* asks that go through together */
    MOST_ROWS = 256,  /* of a forward */
    MOST_SLICE = 256, /* rows of a step with which a member catches up, beside the few of those who are nearly there */
    FEW = 2 + MOST_HEADS
};

struct drafter_seat {
    struct drafter *of;
    struct forward forward;
    struct clock clock;
    struct drafter_time *time; /* of the step under way */
    int32_t ids[MOST_ROWS], positions[MOST_ROWS], logit_rows[AT_ONCE];
    struct batch_seq seqs[AT_ONCE];
    struct sample_row samples[AT_ONCE];
    struct sample_result results[AT_ONCE];
    struct batch batch; /* of the forward that is put together */
};

struct drafter {
    const struct backend_ops *ops;
    struct device *device;
    const struct model_config *config;
    int vocab, max_rows, n_seats;
    struct weights *weights;
    struct kv_memory kv;
    struct drafter_seat *seats[MAX_RANKS];
};

/* ---- what there is */

static void describe_kv(struct kv_memory *kv, const struct backend_ops *ops, const struct model_config *c,
                        enum dtype type)
{
    kv_memory_init(kv, &(struct kv_memory_setup){.ops = ops,
                                                 .dtype = type,
                                                 .bits = (int)dtype_get(type)->bytes * 8,
                                                 .block_size = DRAFTER_BLOCK,
                                                 .n_layers = c->n_layers,
                                                 .heads = shard_heads(c)});
}

size_t drafter_block_bytes(const struct backend_ops *ops, const struct model_config *c, enum dtype kv_dtype)
{
    struct kv_memory kv;
    describe_kv(&kv, ops, c, kv_dtype);
    return kv_memory_block_bytes(&kv);
}

static int take(struct drafter *d, const struct drafter_plan *p, struct err *e)
{
    struct weights_setup w = {.model = p->model, .ops = d->ops, .device = d->device, .n_ranks = 1};
    describe_kv(&d->kv, d->ops, d->config, p->kv_dtype);
    d->kv.all.n_blocks = p->n_blocks;
    TRY(weights_load(&d->weights, &w, e));
    return kv_memory_take(&d->kv, d->device, e) ? err_set(e, E_FULL,
                                                          "no memory for a KV cache of %d blocks: lower "
                                                          "--draft-kv-memory",
                                                          p->n_blocks)
                                                : 0;
}

int drafter_open(struct drafter **out, const struct drafter_setup *s, struct err *e)
{
    struct err why = {0};
    *out = NULL;
    ASSERT(s->ops->draft && s->plan->n_blocks > 0);
    struct drafter *d = mem_new(sizeof *d);
    d->ops = s->ops;
    d->device = s->device;
    d->config = model_config(s->plan->model);
    d->vocab = s->vocab;
    d->n_seats = s->n_ranks;
    d->max_rows = s->max_rows < MOST_ROWS ? s->max_rows : MOST_ROWS;
    int rc = take(d, s->plan, &why);
    if (rc) {
        drafter_close(d);
        return err_set(e, rc, "the draft model: %s", why.text);
    }
    *out = d;
    return 0;
}

void drafter_close(struct drafter *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_seats; i++)
        if (d->seats[i]) {
            forward_free(&d->seats[i]->forward);
            mem_free(d->seats[i]);
        }
    kv_memory_free(&d->kv, d->device);
    weights_free(d->weights);
    mem_free(d);
}

static int logits_at_once(const struct drafter *d)
{
    return d->max_rows < AT_ONCE ? d->max_rows : AT_ONCE;
}

size_t drafter_bytes(const struct drafter *d)
{
    size_t seat = sizeof(struct drafter_seat) +
                  forward_scratch_bytes(d->config, d->max_rows, logits_at_once(d), 1, sizeof(float));
    return weights_bytes(d->weights) + kv_memory_block_bytes(&d->kv) * (size_t)d->kv.all.n_blocks +
           seat * (size_t)d->n_seats;
}

int drafter_sit(struct drafter *d, int rank, struct device *device, struct err *e)
{
    struct err why = {0};
    struct drafter_seat *s = mem_new(sizeof *s);
    s->of = d;
    clock_init_real(&s->clock);
    s->forward = (struct forward){.ops = d->ops, .device = device, .config = d->config, .kv = &d->kv.all};
    int rc = forward_init(&s->forward, d->max_rows, logits_at_once(d), 1, &why);
    if (rc) {
        mem_free(s);
        return err_set(e, rc, "the draft model: %s", why.text);
    }
    d->seats[rank] = s;
    return 0;
}

struct drafter_seat *drafter_seat(struct drafter *d, int rank)
{
    return d->seats[rank];
}

/* ---- one ask */

/* Where it is at. Its timeline now is what it was, and what the step has said. */
struct course {
    struct drafter_ask *ask;
    int32_t said[MOST_DRAFTS + 1];
    int n_said;
    int at, goal, end; /* tokens of the timeline that are cached; that shall be, by this step; that there are */
    int32_t newest;    /* guessed last */
    bool over;
};

static int32_t token_at(const struct course *c, int i)
{
    const struct drafter_ask *a = c->ask;
    return i < a->n_tokens ? a->tokens[i] : c->said[i - a->n_tokens];
}

/* The tokens that the step has sampled, along the draft tokens that were right. */
static void hear(struct course *c, const struct sample_result *results)
{
    const struct sample_result *res = &results[c->ask->first];
    int at = -1;
    c->n_said = 0;
    do {
        int32_t token = res[at + 1].token;
        c->said[c->n_said++] = token;
        at = drafts_next(&c->ask->drafts, at, token);
    } while (at >= 0);
    c->ask->made.right = c->n_said - 1;
    c->end = c->ask->n_tokens + c->n_said;
}

/* Of what was guessed before, that counts as cached which has been said since. */
static void begin(struct course *c, struct drafter_ask *a, const struct sample_result *results)
{
    const struct draft_cache *cache = &a->cache;
    *c = (struct course){.ask = a, .at = cache->n_cached};
    hear(c, results);
    for (int i = 0; i < cache->n_ahead && c->at < c->end - 1 && token_at(c, c->at) == cache->ahead[i]; i++)
        c->at++;
    a->made.n_cached = cache->n_cached;
    c->goal = c->end;
}

/* Who is nearly there gets there; the others have the slice, one after the other. */
static void set_goal(struct course *c, int *slice, int vocab)
{
    int n = c->end - c->at;
    if (n > FEW) {
        n = n < *slice ? n : *slice;
        *slice -= n;
    }
    c->goal = c->at + n;
    for (int i = c->at; i < c->goal && !c->over; i++)
        c->over = token_at(c, i) < 0 || token_at(c, i) >= vocab; /* a padding row of a larger table */
}

/* ---- forwards */

static void open_batch(struct drafter_seat *s)
{
    s->batch = (struct batch){.ids = s->ids,
                              .positions = s->positions,
                              .seqs = s->seqs,
                              .logit_rows = s->logit_rows,
                              .samples = s->samples,
                              .results = s->results};
}

/* Rows of one sequence from this position on; true: its last one shall say a token. */
static void add_rows(struct drafter_seat *s, const struct drafter_ask *a, int pos, int n, bool says)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct batch *b = &s->batch;
    s->seqs[b->n_seqs++] = (struct batch_seq){.row0 = b->n_rows, .n_rows = n, .pos0 = pos, .blocks = a->cache.blocks};
    for (int i = 0; i < n; i++)
        s->positions[b->n_rows++] = pos + i;
    if (!says)
        return;
    s->logit_rows[b->n_logits] = b->n_rows - 1;
    s->samples[b->n_logits++] = (struct sample_row){.how = &greedy, .given = -1};
}

static bool run(struct drafter_seat *s)
{
    struct drafter *d = s->of;
    struct err e;
    struct drafter_pass p = {.ns = -clock_now(&s->clock)};
    struct forward_member m = {.weights = weights_view(d->weights, (struct layout){1, 1, 1}, 0),
                               .tokens_per_block = DRAFTER_BLOCK};
    int rc = forward_run(&s->forward, &m, &s->batch, NULL, &e);
    p.ns += clock_now(&s->clock);
    for (int i = 0; i < s->batch.n_seqs; i++)
        step_size_add(&p.size, s->seqs[i].n_rows, s->seqs[i].pos0);
    p.size.n_logits = s->batch.n_logits;
    if (!s->time->first.size.rows)
        s->time->first = p;
    s->time->last = p;
    return rc == 0;
}

/* What the drafter says next of it. */
static void take_token(const struct drafter_seat *s, struct course *c, const struct sample_result *res)
{
    struct draft_made *m = &c->ask->made;
    c->newest = res->token;
    c->over = res->token < 0 || res->token >= s->of->vocab || res->token >= s->of->config->vocab;
    if (c->over)
        return;
    m->tokens[m->n] = res->token;
    m->shares[m->n++] = expf(res->logprob);
    c->over = m->n == c->ask->most;
}

/* Rows of asks that are behind, as many as a forward has. False: nobody is behind any more. */
static bool gather(struct drafter_seat *s, struct course *courses, int n, int upto[AT_ONCE])
{
    open_batch(s);
    for (int i = 0; i < n; i++) {
        struct course *c = &courses[i];
        int room = s->of->max_rows - s->batch.n_rows, rows = c->goal - c->at < room ? c->goal - c->at : room;
        upto[i] = c->at;
        if (c->over || rows <= 0)
            continue;
        for (int k = 0; k < rows; k++)
            s->ids[s->batch.n_rows + k] = token_at(c, c->at + k);
        add_rows(s, c->ask, c->at, rows, c->at + rows == c->end);
        upto[i] = c->at + rows;
    }
    return s->batch.n_rows > 0;
}

/* Feeds what has been said. Who is there by then has its first token. */
static bool catch_up(struct drafter_seat *s, struct course *courses, int n)
{
    int upto[AT_ONCE];
    while (gather(s, courses, n, upto)) {
        if (!run(s))
            return false;
        for (int i = 0, k = 0; i < n; i++) {
            struct course *c = &courses[i];
            bool moved = upto[i] > c->at;
            c->at = upto[i];
            c->ask->made.n_cached = c->at > c->ask->made.n_cached ? c->at : c->ask->made.n_cached;
            if (moved && c->at == c->end)
                take_token(s, c, &s->results[k++]);
        }
    }
    for (int i = 0; i < n; i++)
        courses[i].over |= courses[i].at < courses[i].end;
    return true;
}

/* One token more for each that goes on. False: for nobody. */
static bool go_on(struct drafter_seat *s, struct course *courses, int n)
{
    open_batch(s);
    for (int i = 0; i < n; i++)
        if (!courses[i].over) {
            s->ids[s->batch.n_rows] = courses[i].newest;
            add_rows(s, courses[i].ask, courses[i].end + courses[i].ask->made.n - 1, 1, true);
        }
    if (!s->batch.n_rows || !run(s))
        return false;
    for (int i = 0, k = 0; i < n; i++)
        if (!courses[i].over)
            take_token(s, &courses[i], &s->results[k++]);
    return true;
}

void drafter_guess(struct drafter_seat *s, const struct drafter_asks *asks, int me, int n, struct drafter_time *t)
{
    struct course courses[AT_ONCE];
    int slice = MOST_SLICE, most = logits_at_once(s->of);
    *t = (struct drafter_time){.ns = -clock_now(&s->clock)};
    s->time = t;
    for (int i = me; i < asks->n;) {
        int k = 0;
        for (; i < asks->n && k < most; i += n, k++) {
            begin(&courses[k], &asks->items[i], asks->results);
            set_goal(&courses[k], &slice, s->of->config->vocab);
        }
        if (catch_up(s, courses, k))
            while (go_on(s, courses, k))
                ;
    }
    t->ns += clock_now(&s->clock);
}
