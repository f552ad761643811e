#include "engine/world/world.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

void world_init(struct world *w, const struct limits *l, const struct node_shape *shape, int n_blocks,
                struct metrics *m)
{
    memset(w, 0, sizeof *w);
    w->limits = *l;
    w->shape = *shape;
    w->metrics = m;
    w->cost = (struct world_cost){.prefill_ns_per_token = 1e6,
                                  .move_ns_per_token = 1e4,
                                  .move_ns_fixed = 5e4,
                                  .swap_ns_per_token = 1e4,
                                  .disk_ns_per_token = 1e4}; /* until measured */
    kv_init(&w->kv, shape->n_ranks, n_blocks);
    partition_init(&w->partition, shape->n_ranks);
    estimator_init(&w->estimate);
    estimator_init(&w->draft_estimate);
    request_table_init(&w->requests);
}

static void free_copy(struct kv_copy *m)
{
    mem_free(m->from);
    mem_free(m->to);
    mem_free(m->keys);
    mem_free(m);
}

void world_free(struct world *w)
{
    for (int i = 0; i < w->n_copies; i++)
        free_copy(w->copies[i]);
    mem_free(w->copies);
    mem_free(w->waiting.items);
    mem_free(w->running.items);
    request_table_free(&w->requests);
    tenants_free(&w->tenants);
    world_free_replicas(w);
    kv_free(&w->kv);
    memset(w, 0, sizeof *w);
}

static void note_arrival(struct world *w, int64_t now_ns)
{
    const double tau = 10.0;
    double gap = w->last_arrival_ns ? (double)(now_ns - w->last_arrival_ns) * 1e-9 : tau;
    double x = gap / tau,
           keep = 1 / (1 + x + x * x / 2 +
                       x * x * x / 6); /* nearly e^-x, and the same bits on any machine: policies see it */
    w->arrival_rate = w->arrival_rate * keep + 1.0 / tau;
    w->last_arrival_ns = now_ns;
}

int world_submit(struct world *w, struct request_spec *s, int64_t now_ns, struct request **out, struct err *e)
{
    const struct limits *l = &w->limits;
    TRY(world_may_take(w, s, e));
    struct request *r = request_add(&w->requests, s);
    if (!r)
        return err_set(e, E_FULL, "the server holds %d requests, its limit", MAX_REQUESTS);
    if (s->max_tokens > l->max_model_len - s->n_prompt)
        s->max_tokens = l->max_model_len - s->n_prompt;
    r->state = REQ_WAITING;
    r->order = w->next_order++;
    r->key = (double)s->arrival_ns * 1e-9 + (s->offline ? OFFLINE_BEHIND_S : 0);
    r->waiting_since_ns = r->progress_ns = now_ns;
    r->tenant = tenants_enter(&w->tenants, s->tenant);
    r->canary = side_of_new(w, s);
    world_count_waiting(w, r, 1);
    w->n_submitted++;
    metrics_add(w->metrics, C_SUBMITTED, 1);
    note_arrival(w, now_ns);
    queue_insert(&w->waiting, r);
    replica_make_room(w, r);
    draft_begin(w->drafts, r);
    *out = r;
    return 0;
}

/* Its keys are its parent's as far as their text is the same. */
static void share_keys(struct request *to, const struct request *from)
{
    for (int i = 0; i < from->n_keys && i < from->n_tokens / KV_UNIT; i++)
        request_give_key(to, from->keys[i]);
}

struct request *world_add_probe(struct world *w, struct request_spec *s, struct request *r, int64_t now_ns)
{
    struct request *probe = request_add(&w->requests, s);
    ASSERT(probe);
    probe->parent = r->id;
    probe->state = REQ_WAITING;
    probe->order = w->next_order++;
    probe->key = r->key;
    probe->canary = r->canary;
    probe->waiting_since_ns = probe->progress_ns = now_ns;
    share_keys(probe, r);
    world_count_waiting(w, probe, 1);
    w->n_submitted++;
    queue_insert(&w->waiting, probe);
    return probe;
}

static struct req_queue *queue_of(struct world *w, const struct request *r)
{
    return r->state == REQ_WAITING ? &w->waiting : &w->running;
}

void world_rekey(struct world *w, struct request *r, double key)
{
    ASSERT(isfinite(key));
    if (key == r->key)
        return; /* it has its place already, and nobody has to be told */
    queue_delete(queue_of(w, r), r);
    r->key = key;
    queue_insert(queue_of(w, r), r);
}

/* The prefix key of the first (i + 1) * KV_UNIT tokens of its timeline. */
static struct kv_key unit_key(const struct kv_pool *kv, struct request *r, int i)
{
    while (r->n_keys <= i) {
        struct kv_key parent = r->n_keys ? r->keys[r->n_keys - 1] : kv_key_root(kv, r->spec->salt);
        request_give_key(r, kv_key_next(kv, parent, r->tokens + r->n_keys * KV_UNIT));
    }
    return r->keys[i];
}

const struct kv_key *world_keys(const struct world *w, struct request *r)
{
    int n = r->n_tokens / KV_UNIT;
    if (n)
        unit_key(&w->kv, r, n - 1);
    return r->keys;
}

/* Of block i of a place. */
static struct kv_key block_key(const struct world *w, struct request *r, int place, int i)
{
    return unit_key(&w->kv, r, (i + 1) * (kv_place(&w->kv, place)->tokens_per_block / KV_UNIT) - 1);
}

static const struct kv_key *block_units(const struct world *w, struct request *r, int place, int i)
{
    block_key(w, r, place, i);
    return r->keys + i * (kv_place(&w->kv, place)->tokens_per_block / KV_UNIT);
}

bool world_may_share(const struct world *w, const struct request *r)
{
    return w->limits.prefix_caching && !r->n_blocks &&
           !(r->spec->sampling.n_prompt_logprobs >= 0 && !r->prompt_lp_sent);
}

/* The same where somebody else has its first `had` tokens. */
static int prefix_from(const struct world *w, struct request *r, int place, int had)
{
    if (!world_may_share(w, r) || !kv_place(&w->kv, place)->index.count)
        return 0;
    int whole = (r->n_tokens - 1) /
                kv_place(&w->kv, place)->tokens_per_block; /* one token at least is computed: its logits are wanted */
    int n = had / kv_place(&w->kv, place)->tokens_per_block;
    while (n < whole && kv_lookup(&w->kv, place, block_key(w, r, place, n)) >= 0)
        n++;
    return n;
}

/* Looked for again only where the place's index has changed: a long queue asks for all of it at every step. */
int world_prefix(const struct world *w, struct request *r, int place)
{
    const struct kv_place *l = kv_place(&w->kv, place);
    if (!world_may_share(w, r))
        return 0;
    if (r->n_seen <= place) {
        r->seen = mem_resize(r->seen, (size_t)w->kv.n_places, sizeof *r->seen);
        for (; r->n_seen < w->kv.n_places; r->n_seen++)
            r->seen[r->n_seen] = (struct prefix_seen){0};
    }
    struct prefix_seen *s = &r->seen[place];
    int had = s->n_left == l->n_left ? s->n_blocks : 0;
    if (s->n_left != l->n_left || s->n_entered != l->n_entered || s->n_tokens != r->n_tokens)
        *s = (struct prefix_seen){prefix_from(w, r, place, had * l->tokens_per_block), r->n_tokens, l->n_entered,
                                  l->n_left};
    return s->n_blocks;
}

/* Does another policy decide about ranks of this place (side.h)? Nobody holds its blocks for this request. */
static bool is_of_other_side(const struct world *w, const struct request *r, int place)
{
    uint64_t others = r->canary ? ~w->sides.ranks : w->sides.ranks;
    return w->sides.ranks && place != w->kv.host_place && kv_place(&w->kv, place)->mask & others;
}

int world_prefix_elsewhere(const struct world *w, struct request *r, int but, int min_tokens, int *n_blocks)
{
    int best = -1, had = min_tokens;
    for (int p = 0; p < w->kv.n_places; p++) {
        if (p == but || p == w->kv.disk_place || kv_place(&w->kv, p)->mask & w->partition.dead_ranks ||
            is_of_other_side(w, r, p))
            continue;
        int n = prefix_from(w, r, p, had), tokens = n * kv_place(&w->kv, p)->tokens_per_block;
        if (tokens > min_tokens) {
            min_tokens = tokens;
            *n_blocks = n;
            best = p;
        }
    }
    return best;
}

static void own_block(struct request *r, int32_t block)
{
    if (r->n_blocks == r->cap_blocks) {
        r->cap_blocks = r->cap_blocks ? r->cap_blocks * 2 : 8;
        r->blocks = mem_resize(r->blocks, (size_t)r->cap_blocks, sizeof *r->blocks);
    }
    r->blocks[r->n_blocks++] = block;
}

/* Gives the blocks from `keep` on back, the last first: the tail of a chain is the last to be asked for again. */
static void drop_blocks(struct world *w, struct request *r, int keep)
{
    while (r->n_blocks > keep)
        kv_drop(&w->kv, r->place, r->blocks[--r->n_blocks]);
}

static void leave_group(struct world *w, struct request *r)
{
    struct group *g = partition_find_slot(&w->partition, r->group);
    if (g)
        g->n_running--;
    r->group = 0;
}

static void join_group(struct request *r, struct group *g)
{
    r->group = g->id;
    g->n_running++;
}

static void set_parked(struct world *w, struct request *r, bool parked)
{
    w->n_parked += parked - r->parked;
    r->parked = parked;
}

static void run(struct world *w, struct request *r, struct group *g)
{
    queue_delete(&w->waiting, r);
    world_count_waiting(w, r, -1);
    world_count_running(w, r, 1);
    r->state = REQ_RUNNING;
    queue_insert(&w->running, r);
    join_group(r, g);
    set_parked(w, r, false);
    r->left_behind = false;
}

void world_start(struct world *w, struct request *r, struct group *g, int64_t now_ns)
{
    ASSERT(r->state == REQ_WAITING && !r->held_until_ns);
    if (r->parked) {
        ASSERT(r->place == g->place);
    } else {
        int n = world_prefix(w, r, g->place);
        r->place = g->place;
        for (int i = 0; i < n; i++) {
            int32_t b = kv_lookup(&w->kv, g->place, block_key(w, r, g->place, i));
            kv_hold(&w->kv, g->place, b);
            own_block(r, b);
        }
        r->n_computed = r->n_prefix = n * kv_place(&w->kv, g->place)->tokens_per_block;
        r->n_published = n;
        if (w->limits.prefix_caching && !r->parent) {
            metrics_add(w->metrics, C_PREFIX_QUERIES, (uint64_t)r->n_tokens);
            metrics_add(w->metrics, C_PREFIX_HITS, (uint64_t)r->n_prefix);
        }
    }
    run(w, r, g);
    if (!r->first_scheduled_ns) {
        r->first_scheduled_ns = now_ns;
        r->n_prefix_first = r->n_prefix;
        metrics_add(w->metrics, C_PROMPT_CACHED, r->parent ? 0 : (uint64_t)r->n_prefix);
    }
    r->last_scheduled_ns = now_ns;
}

bool world_reserve(struct world *w, struct request *r, int n_tokens)
{
    int want = kv_blocks_for(&w->kv, r->place, n_tokens), had = r->n_blocks;
    while (r->n_blocks < want) {
        int32_t b = kv_take(&w->kv, r->place);
        if (b < 0) {
            drop_blocks(w, r, had);
            return false;
        }
        own_block(r, b);
    }
    return true;
}

/* ---- copies between placements */

struct kv_copy *world_add_copy(struct world *w, int from_place, int n_from)
{
    struct kv_copy *m = mem_new(sizeof *m);
    m->from_place = from_place;
    m->from = mem_new_array((size_t)(n_from ? n_from : 1), sizeof *m->from);
    m->n_from = n_from;
    if (w->n_copies == w->cap_copies) {
        w->cap_copies = w->cap_copies ? w->cap_copies * 2 : 16;
        w->copies = mem_resize(w->copies, (size_t)w->cap_copies, sizeof *w->copies);
    }
    w->copies[w->n_copies++] = m;
    return m;
}

/* Of a request. */
static struct kv_copy *add_copy(struct world *w, struct request *r, int from_place, int n_from)
{
    struct kv_copy *m = world_add_copy(w, from_place, n_from);
    m->id = r->id;
    w->n_copying++;
    r->n_moving++;
    r->moving_from |= kv_place(&w->kv, from_place)->mask;
    return m;
}

/* All of its KV is to go to another placement: the copy holds its blocks from now on. */
static struct kv_copy *leave(struct world *w, struct request *r, int to_place)
{
    struct kv_copy *m = add_copy(w, r, r->place, r->n_blocks);
    memcpy(m->from, r->blocks, (size_t)r->n_blocks * sizeof *m->from);
    m->n_tokens = r->n_computed;
    r->n_moves++;
    r->n_blocks = r->n_published = 0;
    r->place = to_place;
    return m;
}

void world_aim_copy(struct world *w, struct kv_copy *m, struct request *r)
{
    m->to_place = r->place;
    m->n_to = r->n_blocks;
    m->to = mem_new_array((size_t)r->n_blocks, sizeof *m->to);
    memcpy(m->to, r->blocks, (size_t)r->n_blocks * sizeof *m->to);
    for (int i = 0; i < m->n_to; i++)
        kv_hold(&w->kv, m->to_place, m->to[i]);
}

struct kv_copy *world_hold_prefix(struct world *w, struct request *r, int place, int n_blocks)
{
    struct kv_copy *m = add_copy(w, r, place, n_blocks);
    int first = r->n_computed / kv_place(&w->kv, place)->tokens_per_block;
    for (int i = 0; i < n_blocks; i++) {
        m->from[i] = -1;
        if (i < first)
            continue; /* not read, and perhaps not there */
        m->from[i] = kv_lookup(&w->kv, place, block_key(w, r, place, i));
        kv_hold(&w->kv, place, m->from[i]);
    }
    m->first_token = r->n_computed;
    m->n_tokens = n_blocks * kv_place(&w->kv, place)->tokens_per_block;
    metrics_add(w->metrics, C_PREFIX_HITS, r->parent ? 0 : (uint64_t)(m->n_tokens - r->n_prefix));
    if (place == w->kv.host_place && !r->parent)
        metrics_add(w->metrics, C_HOST_HITS, (uint64_t)(m->n_tokens - r->n_prefix));
    if (!r->n_preempted && !r->parent) { /* its first admission: what usage reports */
        metrics_add(w->metrics, C_PROMPT_CACHED, (uint64_t)(m->n_tokens - r->n_prefix_first));
        r->n_prefix_first = m->n_tokens;
    }
    r->n_computed = r->n_prefix = m->n_tokens;
    return m;
}

bool world_migrate(struct world *w, struct request *r, struct group *g, uint64_t event)
{
    ASSERT(!r->busy && !r->n_moving && r->n_blocks);
    int n = kv_blocks_for(&w->kv, g->place, r->n_computed);
    if (kv_available(&w->kv, g->place) < n)
        return false;
    struct kv_copy *m = leave(w, r, g->place);
    m->event = event;
    bool room = world_reserve(w, r, r->n_computed);
    ASSERT(room);
    world_aim_copy(w, m, r);
    m->beside = m->from_place == w->kv.host_place && r->state == REQ_WAITING;
    if (r->state == REQ_RUNNING) {
        leave_group(w, r);
        join_group(r, g);
    }
    return true;
}

/* ---- host memory */

static void count_leaving(struct world *w, const struct kv_copy *m, int by)
{
    const struct kv_place *l = kv_place(&w->kv, m->from_place);
    for (int i = 0; i < l->n; i++)
        w->n_leaving[l->ranks[i]] += by;
}

bool world_swap_out(struct world *w, struct request *r, uint64_t event, int64_t now_ns)
{
    int host = w->kv.host_place;
    ASSERT(!r->busy && !r->n_moving && r->n_blocks && r->place != host);
    if (host < 0 || !r->n_computed || kv_available(&w->kv, host) < kv_blocks_for(&w->kv, host, r->n_computed))
        return false;
    struct kv_copy *m = leave(w, r, host);
    m->event = event;
    m->out = true;
    count_leaving(w, m, 1);
    bool room = world_reserve(w, r, r->n_computed);
    ASSERT(room);
    world_aim_copy(w, m, r);
    m->beside = true;
    world_preempt(w, r, true, now_ns);
    return true;
}

struct kv_copy *world_swap_in(struct world *w, struct request *r, const struct group *g)
{
    ASSERT(world_in_host(w, r) && !r->n_moving);
    return leave(w, r, g->place);
}

void world_regroup(struct world *w, struct request *r, struct group *g)
{
    if (r->place != g->place || !r->n_blocks) {
        bool moved = r->n_blocks && world_migrate(w, r, g, 0);
        ASSERT(moved || !r->n_blocks);
        if (moved)
            return;
    }
    if (r->state == REQ_RUNNING) {
        leave_group(w, r);
        join_group(r, g);
    }
}

void world_copy_done(struct world *w, struct kv_copy *m, int64_t now_ns)
{
    struct request *r = request_find(&w->requests, m->id);
    if (m->keys) {
        world_saved(w, m);
        w->n_copying -= m->id != 0;
        if (r && m->id)
            r->n_moving--;
        free_copy(m);
        return;
    }
    for (int i = m->n_from - 1; i >= 0; i--)
        if (m->from[i] >= 0)
            kv_drop(&w->kv, m->from_place, m->from[i]);
    w->n_copying--;
    if (m->out)
        count_leaving(w, m, -1);
    if (m->out && r && world_in_host(w, r) && w->limits.prefix_caching)
        world_commit(w, r, r->n_computed);
    for (int i = m->n_to - 1; i >= 0; i--)
        kv_drop(&w->kv, m->to_place, m->to[i]);
    if (r && m->from_place == w->kv.host_place)
        r->parked_ns = now_ns; /* it is back, and has its time to start */
    if (r && --r->n_moving == 0)
        r->moving_from = 0;
    free_copy(m);
}

/* ---- giving way */

/* Everything is to be recomputed. */
static void forget_kv(struct world *w, struct request *r)
{
    drop_blocks(w, r, 0);
    r->n_recomputed += r->n_computed;
    metrics_add(w->metrics, C_RECOMPUTED, (uint64_t)r->n_computed);
    r->n_computed = r->n_prefix = r->n_published = 0;
}

void world_preempt(struct world *w, struct request *r, bool keep_kv, int64_t now_ns)
{
    ASSERT(!r->busy && (r->state == REQ_RUNNING || r->parked));
    if (r->state == REQ_RUNNING) {
        leave_group(w, r);
        queue_delete(&w->running, r);
        r->state = REQ_WAITING;
        r->waiting_since_ns = r->parked_ns = now_ns;
        world_count_running(w, r, -1);
        world_count_waiting(w, r, 1);
        queue_insert(&w->waiting, r);
        r->n_preempted++;
        r->n_stops++;
        if (!r->parent)
            metrics_add(w->metrics, C_PREEMPTIONS, 1);
    }
    set_parked(w, r, keep_kv && r->n_blocks > 0);
    if (!r->parked)
        forget_kv(w, r);
}

bool world_strands(const struct world *w, const struct request *r)
{
    const struct partition *p = &w->partition;
    for (int i = 0; i < p->n_groups && r->parked; i++)
        if (p->groups[p->order[i]].place == r->place)
            return false;
    return r->parked && !world_in_host(w, r);
}

void world_leave_behind(struct world *w)
{
    for (int i = 0; i < w->waiting.n; i++)
        w->waiting.items[i]->left_behind = w->waiting.items[i]->parked;
}

int world_unpark(struct world *w, int64_t now_ns, int64_t *next_ns)
{
    int n = 0;
    *next_ns = INT64_MAX;
    for (int i = 0; i < w->waiting.n && w->n_parked; i++) {
        struct request *r = w->waiting.items[i];
        if (!r->parked || r->n_moving || world_in_host(w, r))
            continue;
        int64_t due = w->limits.park_ns ? r->parked_ns + w->limits.park_ns : INT64_MAX;
        bool alone = r->left_behind && world_strands(w, r);
        if (due > now_ns && !alone) {
            *next_ns = due < *next_ns ? due : *next_ns;
            continue;
        }
        world_preempt(w, r, false, now_ns);
        n++;
        if (due > now_ns)
            continue;
        metrics_add(w->metrics, C_UNPARKED, 1);
        world_rekey(w, r, -1e300); /* moves it to the front: i sees whoever takes its place again, harmlessly */
    }
    return n;
}

void world_commit(struct world *w, struct request *r, int n_computed)
{
    ASSERT(n_computed >= r->n_computed && n_computed <= r->n_tokens &&
           kv_blocks_for(&w->kv, r->place, n_computed) <= r->n_blocks);
    r->n_computed = n_computed;
    if (!w->limits.prefix_caching || r->parent) /* nobody will ask for what a probe says */
        return;
    for (int full = n_computed / kv_place(&w->kv, r->place)->tokens_per_block; r->n_published < full; r->n_published++)
        kv_publish_units(&w->kv, r->place, r->blocks[r->n_published], block_units(w, r, r->place, r->n_published));
}

void world_note_progress(struct world *w, struct request *r, int64_t now_ns)
{
    if (r->n_computed <= r->n_furthest)
        return;
    r->n_furthest = r->n_computed;
    r->n_moves = r->n_stops = 0;
    r->progress_ns = now_ns;
    if (!r->parent) /* a probe gets nobody further */
        w->progress_ns[r->canary] = now_ns;
}

void world_evict_drafts(struct world *w, enum draft_evict rule)
{
    if (w->evict != rule)
        draft_set_evict(w->drafts, rule);
    w->evict = rule;
}

void world_end(struct world *w, struct request *r, enum ending how)
{
    static const enum counter counters[] = {[END_STOP] = C_STOP,
                                            [END_LENGTH] = C_LENGTH,
                                            [END_ABORT] = C_ABORT,
                                            [END_ERROR] = C_ERROR,
                                            [END_REFUSED] = C_REFUSED_POLICY};
    ASSERT(!r->busy && r->state != REQ_FREE && how != END_NONE);
    queue_delete(queue_of(w, r), r);
    if (r->state == REQ_WAITING)
        world_count_waiting(w, r, -1);
    else
        world_count_running(w, r, -1);
    if (r->parent)
        probe_end(w, r, how == END_STOP || how == END_LENGTH);
    else
        tenants_leave(&w->tenants, r->tenant);
    world_forget_hold(w, r);
    set_parked(w, r, false);
    leave_group(w, r);
    partition_note_token(&w->partition, r, 0);
    if (!r->parent)
        draft_end(w->drafts, r);
    r->state = REQ_FREE;
    drop_blocks(w, r, 0);
    if (!r->parent)
        metrics_add(w->metrics, counters[how], 1);
    w->n_ended++;
    request_remove(&w->requests, r);
}

bool world_eligible(const struct world *w, const struct request *r)
{
    if (r->held_until_ns)
        return false;
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
