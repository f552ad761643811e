#include "engine/world/world.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

void world_init(struct world *w, const struct limits *l, struct metrics *m)
{
    memset(w, 0, sizeof *w);
    w->limits = *l;
    w->metrics = m;
    request_table_init(&w->requests);
}

void world_free(struct world *w)
{
    mem_free(w->waiting.items);
    mem_free(w->running.items);
    request_table_free(&w->requests);
    kv_free(&w->kv);
    memset(w, 0, sizeof *w);
}

/* The first place whose request is not sooner than r. */
static int queue_place(const struct req_queue *q, const struct request *r)
{
    int lo = 0, hi = q->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (request_compare(q->items[mid], r) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void queue_insert(struct req_queue *q, struct request *r)
{
    if (q->n == q->cap) {
        q->cap = q->cap ? q->cap * 2 : 64;
        q->items = mem_resize(q->items, (size_t)q->cap, sizeof *q->items);
    }
    int i = queue_place(q, r);
    memmove(q->items + i + 1, q->items + i, (size_t)(q->n - i) * sizeof *q->items);
    q->items[i] = r;
    q->n++;
    q->journal[q->n_changes++ % QUEUE_JOURNAL] = (struct queue_change){r->id, true};
}

void queue_delete(struct req_queue *q, struct request *r)
{
    int i = queue_place(q, r);
    ASSERT(i < q->n && q->items[i] == r);
    q->n--;
    memmove(q->items + i, q->items + i + 1, (size_t)(q->n - i) * sizeof *q->items);
    q->journal[q->n_changes++ % QUEUE_JOURNAL] = (struct queue_change){r->id, false};
}

static void note_arrival(struct world *w, int64_t now_ns)
{
    const double tau = 10.0;
    double gap = w->last_arrival_ns ? (double)(now_ns - w->last_arrival_ns) * 1e-9 : tau;
    w->arrival_rate = w->arrival_rate * exp(-gap / tau) + 1.0 / tau;
    w->last_arrival_ns = now_ns;
}

/* Can this request ever run here? */
static int check_fits(const struct world *w, const struct request_spec *s, struct err *e)
{
    const struct limits *l = &w->limits;
    if (s->n_prompt >= l->max_model_len + (s->max_tokens == 0))
        return err_set(e, E_INPUT, "the prompt has %d tokens; the model's context is %d tokens", s->n_prompt, l->max_model_len);
    int n = s->n_prompt + (s->max_tokens < l->max_model_len - s->n_prompt ? s->max_tokens : l->max_model_len - s->n_prompt);
    if (kv_blocks_for(&w->kv, n) > w->kv.n_blocks)
        return err_set(e, E_INPUT, "the request needs KV cache for %d tokens; the whole cache holds %d", n,
                       w->kv.n_blocks * w->kv.tokens_per_block);
    return 0;
}

int world_submit(struct world *w, struct request_spec *s, int64_t now_ns, struct request **out, struct err *e)
{
    const struct limits *l = &w->limits;
    TRY(check_fits(w, s, e));
    int max_waiting = l->max_num_queued_reqs ? l->max_num_queued_reqs : MAX_REQUESTS;
    if (w->waiting.n >= max_waiting)
        return err_set(e, E_FULL, "the queue is full: %d requests are waiting (--max-num-queued-reqs)", w->waiting.n);
    if (l->max_num_queued_tokens && w->waiting.n && w->waiting_tokens + s->n_prompt > l->max_num_queued_tokens)
        return err_set(e, E_FULL, "the queue is full: %lld prompt tokens are waiting (--max-num-queued-tokens)",
                       (long long)w->waiting_tokens);
    struct request *r = request_add(&w->requests, s);
    if (!r)
        return err_set(e, E_FULL, "the server holds %d requests, its limit", MAX_REQUESTS);
    if (s->max_tokens > l->max_model_len - s->n_prompt)
        s->max_tokens = l->max_model_len - s->n_prompt;
    r->state = REQ_WAITING;
    r->order = w->next_order++;
    r->key = (double)s->arrival_ns * 1e-9;
    r->waiting_since_ns = now_ns;
    w->waiting_tokens += r->n_tokens;
    w->n_submitted++;
    metrics_add(w->metrics, C_SUBMITTED, 1);
    note_arrival(w, now_ns);
    queue_insert(&w->waiting, r);
    *out = r;
    return 0;
}

static struct req_queue *queue_of(struct world *w, const struct request *r)
{
    return r->state == REQ_WAITING ? &w->waiting : &w->running;
}

void world_rekey(struct world *w, struct request *r, double key)
{
    ASSERT(isfinite(key));
    queue_delete(queue_of(w, r), r);
    r->key = key;
    queue_insert(queue_of(w, r), r);
}

/* The prefix key of whole block i of its timeline. */
static struct kv_key block_key(const struct world *w, struct request *r, int i)
{
    int tpb = w->kv.tokens_per_block;
    while (r->n_keys <= i) {
        if (r->n_keys == r->cap_keys) {
            r->cap_keys = r->cap_keys ? r->cap_keys * 2 : 16;
            r->keys = mem_resize(r->keys, (size_t)r->cap_keys, sizeof *r->keys);
        }
        struct kv_key parent = r->n_keys ? r->keys[r->n_keys - 1] : r->root_key;
        r->keys[r->n_keys] = kv_key_next(parent, r->tokens + r->n_keys * tpb, tpb);
        r->n_keys++;
    }
    return r->keys[i];
}

int world_prefix(const struct world *w, struct request *r, int32_t *blocks, int max)
{
    /* prompt logprobs need the logits of every prompt token, so nothing of it may be skipped */
    if (!w->limits.prefix_caching || r->n_blocks || (r->spec->sampling.n_prompt_logprobs >= 0 && !r->prompt_lp_sent))
        return 0;
    int whole = (r->n_tokens - 1) / w->kv.tokens_per_block; /* one token at least is computed: its logits are wanted */
    int n = 0;
    for (; n < whole; n++) {
        int32_t b = kv_lookup(&w->kv, block_key(w, r, n));
        if (b < 0)
            break;
        if (blocks && n < max)
            blocks[n] = b;
    }
    return n;
}

static void own_block(struct request *r, int32_t block)
{
    if (r->n_blocks == r->cap_blocks) {
        r->cap_blocks = r->cap_blocks ? r->cap_blocks * 2 : 8;
        r->blocks = mem_resize(r->blocks, (size_t)r->cap_blocks, sizeof *r->blocks);
    }
    r->blocks[r->n_blocks++] = block;
}

/* Gives the blocks from `keep` on back, the last first: the tail of a chain is the least likely to be asked for again. */
static void drop_blocks(struct world *w, struct request *r, int keep)
{
    while (r->n_blocks > keep)
        kv_drop(&w->kv, r->blocks[--r->n_blocks]);
}

void world_start(struct world *w, struct request *r, int64_t now_ns)
{
    ASSERT(r->state == REQ_WAITING);
    queue_delete(&w->waiting, r);
    w->waiting_tokens -= r->n_tokens;
    r->state = REQ_RUNNING;
    queue_insert(&w->running, r);
    if (!r->paused) {
        int n = world_prefix(w, r, NULL, 0), tpb = w->kv.tokens_per_block;
        for (int i = 0; i < n; i++) {
            int32_t b = kv_lookup(&w->kv, r->keys[i]);
            kv_hold(&w->kv, b);
            own_block(r, b);
        }
        r->n_computed = r->n_prefix = n * tpb;
        r->n_published = n;
        if (w->limits.prefix_caching) {
            metrics_add(w->metrics, C_PREFIX_QUERIES, (uint64_t)r->n_tokens);
            metrics_add(w->metrics, C_PREFIX_HITS, (uint64_t)r->n_prefix);
        }
    }
    r->paused = false;
    if (!r->first_scheduled_ns) {
        r->first_scheduled_ns = now_ns;
        r->n_prefix_first = r->n_prefix;
    }
    r->last_scheduled_ns = now_ns;
}

bool world_reserve(struct world *w, struct request *r, int n_tokens)
{
    int want = kv_blocks_for(&w->kv, n_tokens), had = r->n_blocks;
    while (r->n_blocks < want) {
        int32_t b = kv_take(&w->kv);
        if (b < 0) {
            drop_blocks(w, r, had);
            return false;
        }
        own_block(r, b);
    }
    return true;
}

void world_preempt(struct world *w, struct request *r, bool keep_kv, int64_t now_ns)
{
    ASSERT(!r->busy && (r->state == REQ_RUNNING || r->paused));
    if (r->state == REQ_RUNNING) {
        queue_delete(&w->running, r);
        r->state = REQ_WAITING;
        r->waiting_since_ns = now_ns;
        w->waiting_tokens += r->n_tokens;
        queue_insert(&w->waiting, r);
        r->n_preempted++;
        metrics_add(w->metrics, C_PREEMPTIONS, 1);
    }
    r->paused = keep_kv && r->n_blocks > 0;
    if (r->paused)
        return;
    drop_blocks(w, r, 0);
    r->n_recomputed += r->n_computed;
    metrics_add(w->metrics, C_RECOMPUTED, (uint64_t)r->n_computed);
    r->n_computed = r->n_prefix = r->n_published = 0;
}

void world_commit(struct world *w, struct request *r, int n_computed)
{
    ASSERT(n_computed >= r->n_computed && n_computed <= r->n_tokens && kv_blocks_for(&w->kv, n_computed) <= r->n_blocks);
    r->n_computed = n_computed;
    if (!w->limits.prefix_caching)
        return;
    for (int full = n_computed / w->kv.tokens_per_block; r->n_published < full; r->n_published++)
        kv_publish(&w->kv, r->blocks[r->n_published], block_key(w, r, r->n_published));
}

void world_end(struct world *w, struct request *r, enum ending how)
{
    static const enum counter counters[] = {[END_STOP] = C_STOP, [END_LENGTH] = C_LENGTH, [END_ABORT] = C_ABORT,
                                            [END_ERROR] = C_ERROR, [END_REFUSED] = C_REFUSED_POLICY};
    ASSERT(!r->busy && r->state != REQ_FREE && how != END_NONE);
    queue_delete(queue_of(w, r), r);
    if (r->state == REQ_WAITING)
        w->waiting_tokens -= r->n_tokens;
    r->state = REQ_FREE;
    drop_blocks(w, r, 0);
    metrics_add(w->metrics, counters[how], 1);
    w->n_ended++;
    request_remove(&w->requests, r);
}

bool world_eligible(const struct world *w, const struct request *r)
{
    if (!r->spec->leader || r->n_computed || r->n_preempted)
        return true;
    const struct request *leader = request_find_tag(&w->requests, r->spec->leader);
    return !leader || leader == r || leader->n_computed >= leader->spec->n_prompt;
}

bool world_has_work(const struct world *w)
{
    for (int i = 0; i < w->running.n; i++)
        if (!w->running.items[i]->busy)
            return true;
    for (int i = 0; i < w->waiting.n; i++)
        if (world_eligible(w, w->waiting.items[i]))
            return true;
    return false;
}

static bool queue_check(const struct req_queue *q, enum req_state state)
{
    for (int i = 0; i < q->n; i++)
        if (q->items[i]->state != state || (i && request_compare(q->items[i - 1], q->items[i]) >= 0))
            return false;
    return true;
}

bool world_check(const struct world *w)
{
    int64_t waiting_tokens = 0;
    for (int i = 0; i < w->waiting.n; i++)
        waiting_tokens += w->waiting.items[i]->n_tokens;
    return kv_check(&w->kv) && queue_check(&w->waiting, REQ_WAITING) && queue_check(&w->running, REQ_RUNNING) &&
           w->waiting.n + w->running.n == w->requests.n_live && waiting_tokens == w->waiting_tokens &&
           w->n_submitted == w->n_ended + (uint64_t)w->requests.n_live;
}
