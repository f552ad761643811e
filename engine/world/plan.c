#include "engine/world/plan.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

void plan_init(struct plan *p, struct world *w)
{
    memset(p, 0, sizeof *p);
    p->world = w;
    arena_init(&p->arena);
}

void plan_free(struct plan *p)
{
    arena_free(&p->arena);
}

void plan_begin(struct plan *p, int64_t now_ns)
{
    struct world *w = p->world;
    arena_reset(&p->arena);
    p->now_ns = now_ns;
    p->serial++;
    p->n_batches = p->n_verbs = p->cap_verbs = p->n_logs = 0;
    p->verbs = NULL;
    p->pressed = false;
    p->blocks_free = kv_available(&w->kv);
    p->n_running = w->running.n;
    p->wake_ns = 0;
    p->reason = NULL;
}

static bool refuse(struct plan *p, const char *why)
{
    p->reason = why;
    return false;
}

static bool touched(const struct plan *p, const struct request *r)
{
    return r->plan_serial == p->serial;
}

/* Room for one more element in an arena array: the old copy stays behind, the arena dies with the step. */
static void *grown(struct plan *p, void *old, int n, int *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 16;
    void *bigger = arena_new(&p->arena, (size_t)*cap * size);
    if (n)
        memcpy(bigger, old, (size_t)n * size);
    return bigger;
}

static struct plan_verb *add_verb(struct plan *p, enum plan_verb_kind kind, struct request *r)
{
    p->verbs = grown(p, p->verbs, p->n_verbs, &p->cap_verbs, sizeof *p->verbs);
    struct plan_verb *v = &p->verbs[p->n_verbs++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->request = r;
    if (r)
        r->plan_serial = p->serial;
    return v;
}

/* Blocks that come back when r lets go of its own: those nobody else holds. */
static int own_blocks(const struct plan *p, const struct request *r)
{
    int n = 0;
    for (int i = 0; i < r->n_blocks; i++)
        n += p->world->kv.blocks[r->blocks[i]].refs == 1;
    return n;
}

static void do_preempt(struct plan *p, struct request *r, enum preempt_how how)
{
    struct plan_verb *v = add_verb(p, PLAN_PREEMPT, r);
    v->how = how;
    if (r->state == REQ_RUNNING)
        p->n_running--;
    if (how == PREEMPT_RECOMPUTE)
        p->blocks_free += own_blocks(p, r);
}

bool plan_preempt(struct plan *p, req_id id, enum preempt_how how)
{
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->busy)
        return refuse(p, "the request is in the step that runs now");
    if (r->state != REQ_RUNNING && !(r->paused && how == PREEMPT_RECOMPUTE))
        return refuse(p, "the request is not running");
    do_preempt(p, r, how);
    return true;
}

/* Who gives way to r: a paused request first (its KV serves nobody now), then the last running one; only those behind r in the order. */
static struct request *find_victim(const struct plan *p, const struct request *r)
{
    const struct req_queue *queues[] = {&p->world->waiting, &p->world->running};
    for (int q = 0; q < 2; q++)
        for (int i = queues[q]->n - 1; i >= 0; i--) {
            struct request *v = queues[q]->items[i];
            if (request_compare(v, r) <= 0)
                break;
            if (!v->busy && v->n_blocks && !touched(p, v))
                return v;
        }
    return NULL;
}

static bool make_room(struct plan *p, const struct request *r, int blocks)
{
    while (p->blocks_free < blocks) {
        struct request *v = find_victim(p, r);
        if (!v)
            return refuse(p, "the KV cache is full");
        p->pressed |= v->state == REQ_RUNNING;
        do_preempt(p, v, PREEMPT_RECOMPUTE);
    }
    return true;
}

struct plan_batch *plan_batch(struct plan *p, int group)
{
    const struct world *w = p->world;
    if (group < 1 || group > w->n_groups) {
        p->reason = "no such group";
        return NULL;
    }
    if (!w->groups[group - 1].idle) {
        p->reason = "the group is running a step";
        return NULL;
    }
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->group == group) {
            p->reason = "this plan has a batch for the group already";
            return NULL;
        }
    struct plan_batch *b = arena_new(&p->arena, sizeof *b);
    b->plan = p;
    b->group = group;
    p->batches[p->n_batches++] = b;
    return b;
}

static void add_item(struct plan_batch *b, struct request *r, int n_tokens, int n_prefix)
{
    b->items = grown(b->plan, b->items, b->n_items, &b->cap_items, sizeof *b->items);
    bool starts = r->state == REQ_WAITING;
    b->items[b->n_items++] = (struct plan_item){.request = r, .n_tokens = n_tokens, .n_prefix = n_prefix, .starts = starts};
    b->n_tokens += n_tokens;
    b->plan->n_running += starts;
    r->plan_serial = b->plan->serial;
}

/* Blocks that a running request lacks for n more tokens. */
static int lacking(const struct plan *p, const struct request *r, int n)
{
    return kv_blocks_for(&p->world->kv, r->n_computed + n) - r->n_blocks;
}

static int rows_left(const struct plan_batch *b, int budget)
{
    int limit = b->plan->world->limits.max_num_batched_tokens;
    return (budget < limit ? budget : limit) - b->n_tokens;
}

/* A running request goes on with up to n tokens. Returns how many; 0 with a reason. */
static int add_running(struct plan_batch *b, struct request *r, int n)
{
    struct plan *p = b->plan;
    int want = request_remaining(r) < n ? request_remaining(r) : n;
    int need = lacking(p, r, want);
    if (need > 0 && !make_room(p, r, need)) {
        /* what fits into the blocks at hand still moves it on */
        want = (r->n_blocks + p->blocks_free) * p->world->kv.tokens_per_block - r->n_computed;
        if (want <= 0)
            return 0;
        need = lacking(p, r, want);
    }
    p->blocks_free -= need > 0 ? need : 0;
    add_item(b, r, want, 0);
    return want;
}

/* What holding the cached prefix costs: blocks that count as available now and will not any more. A block held once may belong to a request that
 * this plan preempts, and was then counted as coming back. */
static int prefix_cost(struct plan *p, struct request *r, int *n_blocks)
{
    int n = world_prefix(p->world, r, NULL, 0), cost = 0;
    int at_most = p->n_verbs ? 1 : 0;
    for (int i = 0; i < n; i++)
        cost += p->world->kv.blocks[kv_lookup(&p->world->kv, r->keys[i])].refs <= at_most;
    *n_blocks = n;
    return cost;
}

/* Takes a waiting request into the batch. It starts only when its whole timeline finds room, so that a started prefill can end. */
static int add_waiting(struct plan_batch *b, struct request *r, int n)
{
    struct plan *p = b->plan;
    const struct world *w = p->world;
    if (p->n_running >= w->limits.max_num_seqs)
        return refuse(p, "max_num_seqs requests are running");
    if (!world_eligible(w, r))
        return refuse(p, "it waits for the prompt it shares with a sibling");
    int hits = 0, cost = prefix_cost(p, r, &hits), tpb = w->kv.tokens_per_block;
    int whole = kv_blocks_for(&w->kv, r->n_tokens) - r->n_blocks - hits + cost;
    int spare = p->n_running ? w->kv.n_blocks / 100 : 0; /* room for those that already decode */
    while (p->blocks_free < whole + spare) {
        struct request *v = find_victim(p, r);
        if (!v || v->state != REQ_WAITING) /* a paused one behind it gives way, running ones do not */
            return refuse(p, "the KV cache has no room for its prompt");
        do_preempt(p, v, PREEMPT_RECOMPUTE);
        cost = prefix_cost(p, r, &hits);
        whole = kv_blocks_for(&w->kv, r->n_tokens) - r->n_blocks - hits + cost;
    }
    int done = r->paused ? r->n_computed : hits * tpb;
    int want = r->n_tokens - done < n ? r->n_tokens - done : n;
    int blocks = kv_blocks_for(&w->kv, done + want) - r->n_blocks - hits + cost;
    p->blocks_free -= blocks > 0 ? blocks : 0;
    add_item(b, r, want, hits * tpb);
    return want;
}

int plan_add(struct plan_batch *b, req_id id, int n)
{
    struct plan *p = b->plan;
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->busy)
        return refuse(p, "the request is in the step that runs now");
    if (b->forwarded)
        return refuse(p, "the batch was already forwarded");
    int room = rows_left(b, b->plan->world->limits.max_num_batched_tokens);
    if (room <= 0)
        return refuse(p, "the step is full (max_num_batched_tokens)");
    if (n <= 0 || n > room)
        n = room;
    return r->state == REQ_RUNNING ? add_running(b, r, n) : add_waiting(b, r, n);
}

int plan_decodes(struct plan_batch *b)
{
    struct plan *p = b->plan;
    const struct req_queue *q = &p->world->running;
    int before = b->n_items;
    if (b->forwarded)
        return refuse(p, "the batch was already forwarded");
    for (int i = 0; i < q->n && rows_left(b, b->n_tokens + 1) > 0; i++) {
        struct request *r = q->items[i];
        if (touched(p, r) || r->busy || !request_decoding(r))
            continue;
        if (!add_running(b, r, 1) && !touched(p, r)) {
            do_preempt(p, r, PREEMPT_RECOMPUTE); /* nobody behind it holds KV: it gives way itself */
            p->pressed = true;
        }
    }
    b->n_decodes += b->n_items - before;
    return b->n_items - before;
}

/* Running requests whose prompt is not computed yet. */
static void continue_prefills(struct plan_batch *b, int budget)
{
    const struct req_queue *q = &b->plan->world->running;
    for (int i = 0; i < q->n && rows_left(b, budget) > 0; i++) {
        struct request *r = q->items[i];
        if (!touched(b->plan, r) && !r->busy && !request_decoding(r))
            add_running(b, r, rows_left(b, budget));
    }
}

int plan_prefill(struct plan_batch *b, const req_id *list, int n, int budget)
{
    struct plan *p = b->plan;
    struct world *w = p->world;
    int before = b->n_tokens;
    p->reason = NULL;
    if (b->forwarded)
        return refuse(p, "the batch was already forwarded");
    continue_prefills(b, budget);
    if (!list)
        n = w->waiting.n;
    for (int i = 0; i < n && !p->pressed && rows_left(b, budget) > 0; i++) {
        struct request *r = list ? request_find(&w->requests, list[i]) : w->waiting.items[i];
        if (!r || r->state != REQ_WAITING || touched(p, r) || !world_eligible(w, r))
            continue; /* gone, or already used, or waiting for a sibling: that is nobody's fault */
        if (!add_waiting(b, r, rows_left(b, budget)))
            break;
    }
    return b->n_tokens - before;
}

bool plan_forward(struct plan_batch *b, struct layout l)
{
    const struct group *g = &b->plan->world->groups[b->group - 1];
    if (b->forwarded)
        return refuse(b->plan, "the batch was already forwarded");
    if (b->n_tokens == 0)
        return refuse(b->plan, "the batch is empty");
    if (l.sp < 1 || l.tp < 1 || l.pp < 1 || l.sp > MAX_RANKS || l.tp > MAX_RANKS || l.pp > MAX_RANKS)
        return refuse(b->plan, "sp, tp and pp must be from 1 to 64");
    if (layout_size(l) != g->n_ranks)
        return refuse(b->plan, "sp * tp * pp is not the number of ranks of the group");
    b->layout = l;
    b->forwarded = true;
    return true;
}

static const char *keep_text(struct plan *p, const char *text, size_t n, size_t max)
{
    n = n < max ? n : max;
    char *copy = arena_new(&p->arena, n + 1);
    memcpy(copy, text, n);
    return copy;
}

bool plan_refuse(struct plan *p, req_id id, int code, int retry_after_s, const char *why)
{
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->state != REQ_WAITING || r->paused || request_output(r) > 0)
        return refuse(p, "only a request that has not begun can be refused");
    if (code < 400 || code > 599)
        return refuse(p, "the code must be from 400 to 599");
    if (retry_after_s < -1 || retry_after_s > 86400)
        return refuse(p, "retry_after must be from 0 to 86400 seconds");
    struct plan_verb *v = add_verb(p, PLAN_REFUSE, r);
    v->code = code;
    v->retry_after_s = retry_after_s;
    v->text = keep_text(p, why ? why : "", why ? strlen(why) : 0, 199);
    return true;
}

bool plan_wake(struct plan *p, double after_ms)
{
    if (!(after_ms > 0 && after_ms <= 60000))
        return refuse(p, "wake takes more than 0 and at most 60000 ms");
    int64_t at = p->now_ns + (int64_t)(after_ms * 1e6);
    if (!p->wake_ns || at < p->wake_ns)
        p->wake_ns = at;
    return true;
}

bool plan_log(struct plan *p, const char *text, size_t n)
{
    if (p->n_logs >= 8)
        return refuse(p, "at most 8 log lines a step");
    p->n_logs++;
    add_verb(p, PLAN_LOG, NULL)->text = keep_text(p, text, n, 500);
    return true;
}

bool plan_is_empty(const struct plan *p)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            return false;
    return true;
}

void plan_apply(struct plan *p)
{
    struct world *w = p->world;
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_PREEMPT)
            world_preempt(w, p->verbs[i].request, p->verbs[i].how == PREEMPT_HARD, p->now_ns);
    /* all prefixes are held before any block is taken: taking may evict what a later item counts on */
    for (int i = 0; i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++)
            if (p->batches[i]->items[k].starts)
                world_start(w, p->batches[i]->items[k].request, p->now_ns);
    for (int i = 0; i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++) {
            struct plan_item *it = &p->batches[i]->items[k];
            bool ok = world_reserve(w, it->request, it->request->n_computed + it->n_tokens);
            ASSERT(ok);
        }
}
