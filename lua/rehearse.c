#include "lua/rehearse.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/draft.h"

/* ---- a world */

/* No heads of a real model: any width of up to 16 ranks runs. */
enum { MADE_LAYERS = 32 };
static const struct heads made_heads = {.n_q = 16, .n_kv = 8, .head_dim = 64};

static void form_groups(struct rehearsal *r, const struct rehearsal_size *size)
{
    struct world *w = &r->world;
    const uint64_t one[] = {rank_range(0, w->shape.n_ranks) & ~size->no_group};
    const uint64_t *sets = size->groups[0] ? size->groups : one;
    int64_t then_ns = r->now_ns - 10000000000;
    for (int i = 0; i < (size->groups[0] ? MAX_MADE_GROUPS : 1); i++) {
        struct switch_order o = {.mask = sets[i], .base = {__builtin_popcountll(sets[i]), 1, 1}, .reason = "rehearsal"};
        if (!partition_refusal(w, &o))
            partition_ask(w, &o, then_ns);
    }
    partition_advance(w, then_ns);
    for (int i = 0; i < w->partition.n_groups; i++) {
        struct group *g = partition_slot(&w->partition, i);
        g->last_step_ns = 20000000;
        g->last_step_tokens = 64;
    }
}

enum { PER_COPY = 8 }; /* KV blocks */

static void pool(struct rehearsal *r, const struct rehearsal_size *size)
{
    if (!size->n_pooled)
        return;
    r->ffn = (struct ffn_setup){.n_ranks = r->world.shape.n_ranks,
                                .n_layers = size->n_pooled,
                                .n_slots = r->world.shape.n_ranks,
                                .tile_bytes = 1 << 20};
    int rc = ffn_parse_owners(&r->ffn, "layer-mod", NULL);
    ASSERT(!rc);
    r->world.ffn = &r->ffn;
    r->world.replicas.blocks = PER_COPY;
}

/* Nothing is kept, but a policy may say what of it goes first, as in a server. */
static void take_rule(void *ctx, enum draft_evict rule)
{
    (void)ctx;
    (void)rule;
}

static void no_guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    (void)r;
    (void)note;
    (void)most;
    g->n = 0;
}

static void not_heard(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    (void)ctx;
    (void)r;
    (void)note;
    (void)m;
}

/* All that anybody says here is "7", so every answer is. */
static void put_said(const void *ctx, int32_t token, struct buf *text)
{
    (void)ctx;
    (void)token;
    buf_putc(text, '7');
}

/* An encoder is served beside, and some texts wait for it. */
static void serve_encoder(struct rehearsal *r, int n_replicas)
{
    struct embed_facts f = {.n_alive = n_replicas, .waiting_texts = 12, .waiting_tokens = 3000};
    embed_link_init(&r->embed, n_replicas);
    embed_link_put(&r->embed, &f);
    r->world.embed = &r->embed;
}

static void think(struct rehearsal *r)
{
    static const int32_t suffix[] = {1, 2};
    r->thinking.piece = put_said;
    thinking_set(&r->thinking, "</think>", "The answer is {", suffix, 2);
    r->world.thinking = &r->thinking;
}

void rehearsal_init(struct rehearsal *r, struct rehearsal_size size, double now_s)
{
    memset(r, 0, sizeof *r);
    struct node_shape shape;
    node_shape_uniform(&shape, size.n_ranks ? size.n_ranks : 1, &made_heads, MADE_LAYERS, size.tokens_per_block);
    struct limits l = {
        .max_num_seqs = size.max_num_seqs, .max_num_batched_tokens = size.max_num_batched_tokens, .park_ns = 100000000};
    r->metrics = mem_new(sizeof *r->metrics);
    metrics_init(r->metrics);
    world_init(&r->world, &l, &shape, size.kv_blocks, r->metrics);
    draft_lookup_source(&r->drafts.items[0]);
    r->drafts.items[0].evict = take_rule;
    r->drafts.n = 1;
    if (size.drafter)
        r->drafts.items[r->drafts.n++] =
            (struct draft_source){.name = "model", .guess = no_guess, .made = not_heard, .timed = true};
    r->world.drafts = &r->drafts;
    r->world.draft_trees = true;
    think(r);
    if (size.n_embed >= 0)
        serve_encoder(r, size.n_embed ? size.n_embed : 3);
    if (size.n_host)
        kv_open_host(&r->world.kv, size.n_host, size.tokens_per_block);
    int64_t most = world_capacity(&r->world);
    r->world.limits.max_model_len = most < INT_MAX ? (int)most : INT_MAX;
    r->world.step = 1;
    r->now_ns = (int64_t)(now_s * 1e9);
    pool(r, &size);
    form_groups(r, &size);
    plan_init(&r->plan, &r->world);
}

void rehearsal_free(struct rehearsal *r)
{
    if (!r->metrics)
        return;
    for (int i = 0; i < r->world.requests.n_slots; i++)
        if (r->world.requests.slots[i])
            world_end(&r->world, r->world.requests.slots[i], END_ABORT);
    plan_free(&r->plan);
    world_free(&r->world);
    mem_free(r->metrics);
    memset(r, 0, sizeof *r);
}

struct view rehearsal_view(const struct rehearsal *r)
{
    struct view v;
    view_init(&v, &r->world, r->now_ns);
    return v;
}

struct node_facts rehearsal_node(const struct rehearsal *r)
{
    int host = r->world.kv.host_place;
    struct node_facts n = {.n_ranks = r->world.shape.n_ranks,
                           .memory_bytes = (size_t)16 << 30,
                           .weight_bytes = (size_t)1 << 30,
                           .kv_bytes = (size_t)8 << 30,
                           .kv_blocks = r->world.kv.n_blocks,
                           .tokens_per_block = r->world.shape.tokens_per_block[1],
                           .host_kv_blocks = host < 0 ? 0 : kv_place(&r->world.kv, host)->n_blocks,
                           .shape = &r->world.shape,
                           .heads = made_heads,
                           .ffn = r->world.ffn,
                           .ffn_layer_bytes = r->world.ffn ? 16 << 20 : 0,
                           .ffn_freed_bytes = r->world.ffn ? (size_t)64 << 20 : 0,
                           .ffn_replica_blocks = r->world.replicas.blocks,
                           .limits = r->world.limits};
    snprintf(n.model, sizeof n.model, "rehearsal");
    snprintf(n.device, sizeof n.device, "rehearsal");
    return n;
}

/* Copies between placements are done at once. */
static void land_moves(struct world *w, int64_t now_ns)
{
    int n = w->n_copies;
    w->n_copies = 0;
    for (int i = 0; i < n; i++)
        world_copy_done(w, w->copies[i], now_ns);
}

void rehearsal_order(struct rehearsal *r, const struct switch_order *o)
{
    if (partition_refusal(&r->world, o))
        return;
    partition_ask(&r->world, o, r->now_ns);
    partition_advance(&r->world, r->now_ns);
    land_moves(&r->world, r->now_ns);
}

void rehearsal_lose(struct rehearsal *r, int rank)
{
    partition_lose(&r->world, rank, r->now_ns);
    land_moves(&r->world, r->now_ns);
}

bool rehearsal_swap_out(struct rehearsal *r, struct request *q)
{
    bool out = world_swap_out(&r->world, q, 0, r->now_ns);
    land_moves(&r->world, r->now_ns);
    return out;
}

/* The n-th group, or the one with the fewest requests. */
static struct group *pick_group(struct partition *p, int nth)
{
    struct group *best = nth > 0 && nth <= p->n_groups ? partition_slot(p, nth - 1) : NULL;
    for (int i = 0; i < p->n_groups && nth <= 0; i++)
        if (!best || partition_slot(p, i)->n_running < best->n_running)
            best = partition_slot(p, i);
    return best;
}

/* Its prompt and output so far are computed. Stays waiting when there is no room. */
static void start_running(struct rehearsal *r, struct request *q, const struct made_request *m)
{
    struct world *w = &r->world;
    struct group *g = pick_group(&w->partition, m->group);
    if (!g || w->running.n >= w->limits.max_num_seqs ||
        kv_blocks_for(&w->kv, g->place, q->n_tokens + m->n_output) > kv_available(&w->kv, g->place))
        return;
    world_start(w, q, g, r->now_ns);
    for (int i = 0; i < m->n_output; i++)
        request_append(q, 7);
    bool ok = world_reserve(w, q, q->n_tokens);
    ASSERT(ok);
    world_commit(w, q, m->n_output ? q->n_tokens - 1 : q->n_tokens / 2);
    if (m->in_host)
        rehearsal_swap_out(r, q);
    else if (m->parked)
        world_preempt(w, q, true, r->now_ns);
}

struct request *rehearsal_add(struct rehearsal *r, const struct made_request *m)
{
    struct request_spec *s = request_spec_new();
    s->tag = ++r->next_tag;
    snprintf(s->name, sizeof s->name, "%s", m->name ? m->name : "");
    snprintf(s->tenant, sizeof s->tenant, "%s", m->tenant ? m->tenant : "");
    s->priority = m->priority;
    s->n_prompt = m->n_prompt > 0 ? m->n_prompt : 16;
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof *s->prompt);
    s->max_tokens = m->max_tokens > 0 ? m->max_tokens : 16;
    s->open_ended = m->open_ended;
    s->offline = m->offline;
    s->probe_every = m->probe_every;
    s->probe_window = m->probe_window;
    s->arrival_ns = (int64_t)(m->arrival_s * 1e9);
    s->slo_ttft_ms = m->slo_ttft_ms;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    struct request *q;
    if (world_submit(&r->world, s, s->arrival_ns, &q, NULL)) {
        request_spec_free(s);
        return NULL;
    }
    if (m->running || m->parked || m->in_host)
        start_running(r, q, m);
    return q;
}

void rehearsal_crowd(struct rehearsal *r, int n, uint64_t seed)
{
    static const char *const tenants[] = {"", "blue", "green", "red"};
    struct rng g;
    rng_init(&g, seed);
    for (int i = 0; i < n; i++) {
        struct made_request m = {.tenant = tenants[rng_below(&g, 4)],
                                 .priority = (int)rng_below(&g, 5) - 2,
                                 .n_prompt = 1 + (int)rng_below(&g, 200),
                                 .max_tokens = 1 + (int)rng_below(&g, 200),
                                 .n_output = (int)rng_below(&g, 40),
                                 .running = i % 2 == 0,
                                 .probe_every = i % 4 == 0 ? 4 : 0,
                                 .probe_window = i % 4 == 0 ? 2 : 0,
                                 .arrival_s = (double)r->now_ns * 1e-9 - 2 + (double)i * 0.001};
        char name[32];
        snprintf(name, sizeof name, "r%d", i);
        m.name = name;
        rehearsal_add(r, &m);
    }
}

/* ---- a step */

enum { SAID = 7 }; /* what every request says */

static void advance_item(struct world *w, const struct plan_item *it)
{
    struct request *q = it->request;
    int right = 0;
    world_commit(w, q, q->n_computed + it->n_tokens);
    if (q->n_computed != q->n_tokens)
        return;
    for (request_append(q, SAID); right < it->drafts.n && it->drafts.tokens[right] == SAID; right++) {
        world_commit(w, q, q->n_computed + 1);
        request_append(q, SAID);
    }
    if (it->drafts.n)
        draft_count(q, it->source, it->drafts.n, right, right < it->drafts.n);
}

/* A made-up duration: rows are shared by all ranks, and sequence parallel steps begin slower. Where FFN layers are
 * pooled, those that are fetched take 50 us each at least, and those whose rows are sent 10 us more. */
static void time_step(struct world *w, const struct plan_batch *b, const struct step_size *size)
{
    struct group *g = b->group;
    g->layout = b->layout;
    int64_t ns =
        2000000 + 1000000 * (b->layout.sp - 1) + (int64_t)20000 * (b->n_tokens + 4 * b->layout.tp) / g->n_ranks;
    int64_t fetch_ns = w->ffn ? (int64_t)50000 * (w->ffn->n_layers - size->cas_layers - size->replica_layers) : 0;
    int64_t wait_ns = fetch_ns > ns ? fetch_ns - ns : 0;
    if (w->ffn && !size->cas_layers)
        ffn_measure(&w->ffn_measured, (double)fetch_ns, (double)wait_ns);
    group_note_step(g, b->n_tokens, ns + wait_ns + 10000 * size->cas_layers);
    estimator_learn(&w->estimate, b->layout, *size, (double)g->last_step_ns);
}

struct steps {
    int end_every, n;
    rehearsal_ended ended;
    void *ctx;
    struct view view;
};

static void finish_batch(struct world *w, const struct plan_batch *b, struct steps *s)
{
    struct step_size size = plan_size(b);
    time_step(w, b, &size);
    for (int i = 0; i < b->n_items; i++) {
        struct request *q = b->items[i].request;
        advance_item(w, &b->items[i]);
        bool full = request_output(q) >= q->spec->max_tokens || q->n_tokens >= w->limits.max_model_len;
        if (!full && !(s->end_every && request_decoding(q) && ++s->n % s->end_every == 0))
            continue;
        if (s->ended)
            s->ended(s->ctx, q, &s->view);
        world_end(w, q, END_LENGTH);
    }
}

/* Copies of FFN layers are made, and given up, at once. */
static void land_replicas(struct world *w)
{
    for (int l = 0; w->ffn && l < w->ffn->n_layers; l++)
        if (world_replica_due(w, l)) {
            w->replicas.layers[l].posted = true;
            world_replica_done(w, l, true);
        }
}

void rehearsal_answer(struct rehearsal *r, struct request *q, const char *said)
{
    struct probe_book *b = q->probes;
    struct probe_said *s = &b->said[b->n_said++ % PROBE_WINDOW];
    *s = (struct probe_said){.depth = r->thinking.depth};
    probe_say(&r->thinking, s, said, strlen(said));
}

/* Probes come to their end at once. */
static void obey_thinking(struct rehearsal *r, const struct plan_verb *v)
{
    if (v->kind == PLAN_PROBE && !probe_refusal(&r->world, v->request)) {
        v->request->probes->asked_at = request_output(v->request);
        rehearsal_answer(r, v->request, "7}");
    }
    if (v->kind != PLAN_CONCLUDE)
        return;
    v->request->probes->closed = true;
    for (int i = 0; i < r->thinking.n_suffix; i++)
        request_append(v->request, r->thinking.suffix[i]);
}

void rehearsal_advance(struct rehearsal *r, int end_every, rehearsal_ended ended, void *ctx)
{
    struct plan *p = &r->plan;
    struct world *w = &r->world;
    plan_apply(p);
    land_moves(w, r->now_ns);
    r->now_ns += 20000000;
    w->step++;
    struct steps s = {.end_every = end_every, .ended = ended, .ctx = ctx, .view = rehearsal_view(r)};
    for (int i = 0; i < p->n_verbs; i++)
        obey_thinking(r, &p->verbs[i]);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_REFUSE)
            world_end(w, p->verbs[i].request, END_REFUSED);
    for (int b = 0; b < p->n_batches; b++)
        if (p->batches[b]->forwarded)
            finish_batch(w, p->batches[b], &s);
    partition_advance(w, r->now_ns);
    land_moves(w, r->now_ns);
    land_replicas(w);
    int64_t next;
    world_unpark(w, r->now_ns, &next);
    world_let_go(w, r->now_ns, false, &next);
}

static void transcribe_verb(const struct plan_verb *v, struct buf *out)
{
    const struct switch_order *o = v->order;
    unsigned long long order = v->request ? v->request->order : 0;
    switch (v->kind) {
    case PLAN_LOG:
        buf_printf(out, "log %s\n", v->text);
        break;
    case PLAN_EVICT:
        buf_printf(out, "evict %d\n", (int)v->evict);
        break;
    case PLAN_EMBED:
        buf_printf(out, "embed %s %d, %d of up to %d tokens\n", embed_way_name(v->embed.way), v->embed.replicas,
                   v->embed.n_short, v->embed.short_tokens);
        break;
    case PLAN_PROBE:
        buf_printf(out, "probe %llu\n", order);
        break;
    case PLAN_CONCLUDE:
        buf_printf(out, "conclude %llu\n", order);
        break;
    case PLAN_PREEMPT:
        buf_printf(out, "preempt %llu %d\n", order, (int)v->how);
        break;
    case PLAN_REFUSE:
        buf_printf(out, "refuse %llu %d %d\n", order, v->code, v->retry_after_s);
        break;
    case PLAN_HOLD:
        buf_printf(out, "hold %llu %lld %s\n", order, (long long)v->until_ns, v->text);
        break;
    case PLAN_REMAP:
        buf_printf(out, "remap %llu to %d %s\n", order, v->group, kv_fate_name(v->fate));
        break;
    case PLAN_CLOSE:
        buf_printf(out, "%s %d\n", v->closed ? "close" : "open", v->group);
        break;
    case PLAN_COMM:
        buf_printf(out, "comm %llx %d\n", (unsigned long long)v->ranks, v->algorithm);
        break;
    case PLAN_FFN:
        buf_printf(out, "ffn of %d layers %d to %d %s\n", v->group, v->from, v->to - 1, ffn_mode_name(v->mode));
        break;
    case PLAN_WEIGHTS:
        buf_printf(out, "layers %d to %d %s\n", v->from, v->to - 1, v->replicated ? "replicated" : "pooled");
        break;
    case PLAN_SWITCH:
        buf_printf(out, "%s %llx %d.%d %s %s %lld %s\n", o->release ? "release" : "bind", (unsigned long long)o->mask,
                   o->base.sp, o->base.tp, switch_when_name(o->when), kv_fate_name(o->fate), (long long)o->max_wait_ns,
                   o->reason);
        for (int i = 0; i < o->n_named; i++)
            buf_printf(out, "  for %llx\n", (unsigned long long)o->named[i]);
    }
}

void rehearsal_transcribe(const struct rehearsal *r, struct buf *out)
{
    const struct plan *p = &r->plan;
    for (int b = 0; b < p->n_batches; b++) {
        const struct plan_batch *batch = p->batches[b];
        if (!batch->forwarded)
            continue;
        buf_printf(out, "forward group %d sp %d tp %d:", batch->group_id, batch->layout.sp, batch->layout.tp);
        for (int i = 0; i < batch->n_items; i++)
            buf_printf(out, " %llu+%d", (unsigned long long)batch->items[i].request->order, batch->items[i].n_tokens);
        buf_putc(out, '\n');
    }
    for (int i = 0; i < p->n_verbs; i++)
        transcribe_verb(&p->verbs[i], out);
    if (p->wake_ns)
        buf_printf(out, "wake in %.3f ms\n", (double)(p->wake_ns - r->now_ns) * 1e-6);
}
