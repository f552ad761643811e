#include "engine/exec/step.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/exec/guided.h"
#include "engine/exec/micro.h"

/* Does the client want logprobs of the prompt, and have they not been handed out? */
static bool wants_prompt(const struct request *r)
{
    return r->spec->sampling.n_prompt_logprobs >= 0 && !r->prompt_lp_sent;
}

/* Prompt tokens that this item's rows score: row at position p scores token p + 1. */
static int count_given(const struct request *r, int n_tokens)
{
    if (!wants_prompt(r))
        return 0;
    int end = r->n_computed + n_tokens, last = r->spec->n_prompt - 1;
    int n = (end < last ? end : last) - r->n_computed;
    return n > 0 ? n : 0;
}

static bool samples(const struct request *r, int n_tokens)
{
    return r->n_computed + n_tokens == r->n_tokens && r->spec->max_tokens > 0;
}

static bool has_penalties(const struct sampling *how)
{
    return how->repetition_penalty != 1.0f || how->frequency_penalty != 0.0f || how->presence_penalty != 0.0f;
}

/* n_output: tokens put out before this one; output: those, where they are looked at. */
static void fill_sample(struct sample_row *s, const struct request *r, const int32_t *output, int n_output)
{
    const struct sampling *how = &r->spec->sampling;
    *s = (struct sample_row){.how = how, .given = -1, .position = (uint64_t)n_output, .n_top = how->n_logprobs};
    if (has_penalties(how)) {
        s->prompt = r->tokens;
        s->n_prompt = r->spec->n_prompt;
        s->output = output;
        s->n_output = n_output;
    }
    s->allowed = how->allowed;
    s->n_allowed = how->n_allowed;
    if (n_output < r->spec->min_tokens) {
        s->banned = r->spec->stop_ids;
        s->n_banned = r->spec->n_stop_ids;
    }
}

/* Where the arrays of the batch are filled up to. */
struct cursor {
    int32_t *ids, *positions, *logit_rows;
    struct batch_seq *seqs; /* without block lists: each rank has its own */
    struct sample_row *samples;
    int row, seq, logit;
    struct guided_step guided;
};

/* What the request has put out, and then the draft tokens up to this one: the penalties of its row count them. Rows of
 * a chain share one array. */
static const int32_t *output_of(struct step *s, const struct request *r, const struct drafts *d, int at)
{
    const int32_t *output = r->tokens + r->spec->n_prompt;
    size_t n = (size_t)request_output(r), more = (size_t)(d->parents ? drafts_depth(d, at) : d->n);
    if (!more || !has_penalties(&r->spec->sampling))
        return output;
    int32_t *both = arena_new(&s->arena, (n + more) * sizeof *both);
    memcpy(both, output, n * sizeof *both);
    if (!d->parents)
        memcpy(both + n, d->tokens, more * sizeof *both);
    for (; d->parents && at >= 0; at = d->parents[at])
        both[n + --more] = d->tokens[at];
    return both;
}

/* The rows that sample: of its newest token, and of its draft tokens. */
static void add_samples(struct step *s, struct cursor *c, const struct request *r, const struct step_item *it)
{
    const struct drafts *d = &it->drafts;
    const int32_t *output = output_of(s, r, d, -1);
    int last = c->row + it->n_tokens - 1;
    for (int i = 0; i <= d->n; i++) {
        int depth = drafts_depth(d, i - 1);
        if (i) {
            c->ids[last + i] = d->tokens[i - 1];
            c->positions[last + i] = r->n_tokens + depth - 1;
            output = d->parents ? output_of(s, r, d, i - 1) : output;
        }
        c->logit_rows[c->logit] = last + i;
        fill_sample(&c->samples[c->logit++], r, output, request_output(r) + depth);
    }
}

/* Of draft heads, or of a draft model, as far as there is room in its cache. */
static void add_ask(struct step *s, const struct step_context *at, const struct plan_item *from, struct step_item *it)
{
    const struct draft_sources *sources = at->world->drafts;
    int first = it->first_result + it->n_given;
    ASSERT(it->samples && s->asks.n + s->drafting.n < MOST_ASKS);
    if (!sources->items[from->asked].lend) {
        it->ask = s->asks.n++;
        s->asks.items[it->ask] = (struct heads_ask){.first = first, .drafts = it->drafts, .at = -1};
        return;
    }
    struct request *r = from->request;
    struct drafter_ask a = {
        .tokens = r->tokens, .n_tokens = r->n_tokens, .first = first, .drafts = it->drafts, .most = from->asks};
    if (!draft_lend(sources, from->asked, r, it->drafts.n + 1 + from->asks, &a.cache))
        return;
    it->ask = s->drafting.n++;
    s->drafting.items[it->ask] = a;
}

const struct draft_made *step_made(const struct step *s, const struct step_item *it)
{
    return s->drafting.n ? &s->drafting.items[it->ask].made : &s->asks.items[it->ask].made;
}

/* The drafts, in the step's arena; the tree of their rows, NULL where they are a chain. */
static const struct row_tree *take_drafts(struct step *s, const struct request *r, const struct drafts *from,
                                          struct drafts *to)
{
    size_t n = (size_t)from->n;
    *to = (struct drafts){.n = from->n};
    if (!n)
        return NULL;
    to->tokens = arena_copy(&s->arena, from->tokens, n * sizeof *to->tokens);
    if (!from->parents)
        return NULL;
    to->parents = arena_copy(&s->arena, from->parents, n * sizeof *to->parents);
    struct row_tree *t = arena_new(&s->arena, sizeof *t);
    *t = (struct row_tree){.first = r->n_tokens, .n = to->n, .parents = to->parents};
    s->trees = true;
    return t;
}

static void add_item(struct step *s, const struct step_context *at, struct cursor *c, const struct plan_item *it)
{
    const struct request *r = it->request;
    struct step_item *out = &s->items[s->n_items++];
    int given = count_given(r, it->n_tokens);
    *out = (struct step_item){.id = r->id,
                              .n_tokens = it->n_tokens,
                              .source = it->source,
                              .ask = -1,
                              .first_result = c->logit,
                              .n_given = given,
                              .given_at = r->n_computed + 1,
                              .samples = samples(r, it->n_tokens)};
    int rows = it->n_tokens + it->drafts.n;
    const struct row_tree *tree = take_drafts(s, r, &it->drafts, &out->drafts);
    c->seqs[c->seq++] = (struct batch_seq){.row0 = c->row, .n_rows = rows, .pos0 = r->n_computed, .tree = tree};
    int32_t *positions = c->positions + c->row, first = r->n_computed, n = it->n_tokens;
    memcpy(c->ids + c->row, r->tokens + first, (size_t)n * sizeof *c->ids);
    for (int32_t i = 0; i < n; i++)
        positions[i] = first + i;
    for (int i = 0; i < given; i++) {
        c->logit_rows[c->logit] = c->row + i;
        c->samples[c->logit++] = (struct sample_row){.how = &r->spec->sampling,
                                                     .given = r->tokens[r->n_computed + i + 1],
                                                     .n_top = r->spec->sampling.n_prompt_logprobs};
    }
    if (out->samples)
        add_samples(s, c, r, out);
    if (out->samples && r->spec->grammar)
        out->drafts.n = guided_fill(&c->guided, it->request, &out->drafts, &c->samples[c->logit - 1 - out->drafts.n]);
    if (it->asks)
        add_ask(s, at, it, out);
    c->row += rows;
}

/* The rank's own view of the sequences: the physical blocks that hold its heads, piece by piece. */
static const struct batch_seq *seqs_of(struct step *s, const struct step_context *at, const struct batch_seq *all,
                                       int share)
{
    if (at->no_blocks)
        return all;
    struct batch_seq *seqs = arena_new(&s->arena, (size_t)s->n_items * sizeof *seqs);
    const struct kv_pool *kv = &at->world->kv;
    for (int i = 0; i < s->n_items; i++) {
        const struct request *r = request_find(&at->world->requests, s->items[i].id);
        int pieces = kv_place(kv, r->place)->pieces;
        int32_t *blocks = arena_new(&s->arena, (size_t)r->n_blocks * (size_t)pieces * sizeof *blocks);
        kv_fill_pieces(kv, r->place, share, r->blocks, r->n_blocks, blocks);
        seqs[i] = all[i];
        seqs[i].blocks = blocks;
    }
    return seqs;
}

static void fill_group(struct step *s, struct layout layout, const struct step_context *at)
{
    const struct group *g = at->group;
    s->group = g->id;
    s->layout = layout;
    s->n_ranks = g->n_ranks;
    s->ffn = ffn_of_step(at->world, &g->ffn, layout);
    for (int i = 0; i < g->n_ranks; i++)
        s->ranks[i] = g->ranks[i];
    const struct kv_place *place = kv_place(&at->world->kv, g->place);
    s->tokens_per_block = place->tokens_per_block / place->pieces;
    s->comms = at->comms;
    s->algorithm = (enum comm_algorithm)partition_algorithm(at->world, at->group->mask);
    atomic_store(&s->left, g->n_ranks);
    atomic_store(&s->sampling, g->n_ranks / layout.pp);
    s->parts = arena_new(&s->arena, (size_t)g->n_ranks * sizeof *s->parts);
}

static void open_cursor(struct step *s, struct cursor *c, size_t rows, size_t logits, size_t seqs)
{
    *c = (struct cursor){.ids = arena_new(&s->arena, rows * sizeof(int32_t)),
                         .positions = arena_new(&s->arena, rows * sizeof(int32_t)),
                         .logit_rows = arena_new(&s->arena, logits * sizeof(int32_t)),
                         .seqs = arena_new(&s->arena, seqs * sizeof(struct batch_seq)),
                         .samples = arena_new(&s->arena, logits * sizeof(struct sample_row))};
    s->items = arena_new(&s->arena, seqs * sizeof *s->items);
    s->results = arena_new(&s->arena, logits * sizeof(struct sample_result));
}

static void fill_parts(struct step *s, const struct cursor *c, const struct step_context *at)
{
    s->n_rows = c->row;
    for (int i = 0; i < s->n_ranks; i++)
        s->parts[i].batch = (struct batch){.n_rows = c->row,
                                           .ids = c->ids,
                                           .positions = c->positions,
                                           .n_seqs = c->seq,
                                           .seqs = seqs_of(s, at, c->seqs, i),
                                           .n_logits = c->logit,
                                           .logit_rows = c->logit_rows,
                                           .samples = c->samples,
                                           .results = s->results};
}

/* A pipelined group's batch is cut; all its parts have their ids by now. */
static void cut_parts(struct step *s, int n_micro)
{
    s->size.n_micro = n_micro;
    s->n_micro = step_size_micro(&s->size, s->layout);
    for (int i = 0; i < s->n_ranks && s->layout.pp > 1; i++)
        s->parts[i].micro = micro_split(&s->arena, &s->parts[i].batch, s->n_micro);
}

static void open_asks(struct step *s, int n)
{
    s->asks.results = s->drafting.results = s->results;
    if (!n)
        return;
    s->asks.items = arena_new(&s->arena, (size_t)n * sizeof *s->asks.items);
    s->drafting.items = arena_new(&s->arena, (size_t)n * sizeof *s->drafting.items);
}

struct step *step_build(const struct plan_batch *b, const struct step_context *at)
{
    struct step *s = mem_new(sizeof *s);
    struct cursor c;
    int n_logits = 0;
    arena_init(&s->arena);
    fill_group(s, b->layout, at);
    s->size = plan_size(b);
    for (int i = 0; i < b->n_items; i++)
        n_logits += count_given(b->items[i].request, b->items[i].n_tokens) +
                    samples(b->items[i].request, b->items[i].n_tokens) + b->items[i].drafts.n;
    open_cursor(s, &c, (size_t)b->n_tokens, (size_t)n_logits, (size_t)b->n_items);
    c.guided = (struct guided_step){at->world->guides, &s->arena, GUIDED_LOOKS};
    open_asks(s, b->n_asks);
    for (int i = 0; i < b->n_items; i++)
        add_item(s, at, &c, &b->items[i]);
    ASSERT(c.row == b->n_tokens && c.logit == n_logits);
    fill_parts(s, &c, at);
    cut_parts(s, b->n_micro);
    return s;
}

/* ---- a step behind a step */

bool step_can_be_followed(const struct step *s, const struct step_context *at)
{
    const struct world *w = at->world;
    for (int i = 0; i < s->n_items; i++) {
        const struct request *r = request_find(&w->requests, s->items[i].id);
        const struct step_item *it = &s->items[i];
        if (it->n_tokens != 1 || it->drafts.n || it->ask >= 0 || !it->samples || it->n_given || !r || r->finishing ||
            r->lost)
            return false;
        if (has_penalties(&r->spec->sampling) || r->spec->grammar || request_output(r) + 1 >= r->spec->max_tokens ||
            r->n_tokens + 1 >= w->limits.max_model_len)
            return false;
    }
    return true;
}

/* Row i is fed by row i of the step before: one token of each sequence, in the same order. */
static void follow_item(struct step *s, struct cursor *c, const struct request *r)
{
    int at = r->n_computed + 1;
    s->items[s->n_items++] =
        (struct step_item){.id = r->id, .n_tokens = 1, .ask = -1, .first_result = c->logit, .samples = true};
    c->seqs[c->seq++] = (struct batch_seq){.row0 = c->row, .n_rows = 1, .pos0 = at};
    c->positions[c->row] = at;
    c->logit_rows[c->logit] = c->row++;
    fill_sample(&c->samples[c->logit++], r, NULL, request_output(r) + 1); /* it has no penalties */
    step_size_add(&s->size, 1, at);
    s->size.n_logits++;
}

struct step *step_follow(struct step *prev, const struct step_context *at)
{
    struct step *s = mem_new(sizeof *s);
    struct cursor c;
    size_t n = (size_t)prev->n_items;
    arena_init(&s->arena);
    fill_group(s, prev->layout, at);
    open_cursor(s, &c, n, n, n);
    for (int i = 0; i < prev->n_items; i++)
        follow_item(s, &c, request_find(&at->world->requests, prev->items[i].id));
    plan_size_ffn(at->world, NULL, at->group, s->layout, &s->size);
    fill_parts(s, &c, at);
    for (int i = 0; i < s->n_ranks; i++)
        s->parts[i].batch.ids = s->parts[i].ids = arena_new(&s->arena, n * sizeof(int32_t));
    cut_parts(s, prev->n_micro);
    s->prev = prev;
    s->ahead = prev->ahead - 1;
    prev->next = s;
    return s;
}

/* Nothing but its parts is looked at: what was before it may be gone by now. */
static bool has_failed(const struct step *s)
{
    for (int i = 0; i < s->n_ranks; i++)
        if (s->parts[i].rc)
            return true;
    return false;
}

int step_take_tokens(struct step *s, int share, struct err *e)
{
    ASSERT(s->prev && atomic_load(&s->prev->left) == 0);
    if (has_failed(s->prev))
        return err_set(e, E_PEER, "the step before it failed");
    for (int i = 0; i < s->n_rows; i++)
        s->parts[share].ids[i] = s->prev->results[i].token;
    return 0;
}

/* ---- drafts */

int step_path(const struct step *s, const struct step_item *it, int8_t path[MOST_DRAFTS])
{
    const struct sample_result *res = &s->results[it->first_result + it->n_given];
    int n = 0;
    for (int at = -1; it->drafts.n && (at = drafts_next(&it->drafts, at, res[at + 1].token)) >= 0;)
        path[n++] = (int8_t)at;
    return n;
}

int step_packs(const struct step *s, int item, int32_t from[MOST_DRAFTS], int32_t to[MOST_DRAFTS])
{
    const struct step_item *it = &s->items[item];
    const struct row_tree *t = s->parts[0].batch.seqs[item].tree;
    int8_t path[MOST_DRAFTS];
    int right = t ? step_path(s, it, path) : 0, n = 0;
    for (int i = 0; i < right; i++)
        if (path[i] != i) {
            from[n] = t->first + path[i];
            to[n++] = t->first + i;
        }
    return n;
}

bool step_samples(const struct step *s, int share)
{
    return share_stage(s->layout, share) == s->layout.pp - 1;
}

bool step_has_sampled(const struct step *s)
{
    for (int i = 0; i < s->n_ranks; i++)
        if (step_samples(s, i) && s->parts[i].rc)
            return false;
    return true;
}

void step_watch(struct step *s, int n_layers)
{
    for (int i = 0; i < s->n_ranks; i++) {
        struct ffn_timeline *t = arena_new(&s->arena, sizeof *t);
        t->layers = arena_new(&s->arena, (size_t)n_layers * sizeof *t->layers);
        s->parts[i].timeline = t;
    }
}

int64_t step_ns(const struct step *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->n_ranks; i++)
        most = s->parts[i].time.ns > most ? s->parts[i].time.ns : most;
    return most;
}

const struct drafter_time *step_drafting(const struct step *s)
{
    const struct drafter_time *most = &s->parts[0].drafting;
    for (int i = 1; i < s->n_ranks; i++)
        most = s->parts[i].drafting.ns > most->ns ? &s->parts[i].drafting : most;
    return most;
}

void step_part_take_ffn(struct step_part *p, const struct ffn_cost *c)
{
    p->ffn_wait_ns = c->wait_ns;
    p->ffn_fetch_ns = c->fetch_ns;
    p->ffn_bytes = c->was_bytes;
    p->cas_bytes = c->cas_bytes;
    p->cas_rows = (int)c->cas_rows;
}

struct ffn_cost step_ffn(const struct step *s)
{
    struct ffn_cost c = {0};
    for (int i = 0; i < s->n_ranks; i++) {
        const struct step_part *p = &s->parts[i];
        c.wait_ns = p->ffn_wait_ns > c.wait_ns ? p->ffn_wait_ns : c.wait_ns;
        c.fetch_ns = p->ffn_fetch_ns > c.fetch_ns ? p->ffn_fetch_ns : c.fetch_ns;
        c.was_bytes += p->ffn_bytes;
        c.cas_bytes += p->cas_bytes;
        c.cas_rows += (uint64_t)p->cas_rows;
    }
    return c;
}

/* How much a part says about who failed. */
static int blame(const struct step_part *p)
{
    return !p->rc ? 0 : p->rc != E_PEER ? 3 : p->lost_owner ? 2 : 1;
}

const struct step_part *step_failure(const struct step *s, int *rank)
{
    const struct step_part *found = NULL;
    for (int i = 0; i < s->n_ranks; i++) {
        const struct step_part *p = &s->parts[i];
        if (blame(p) > (found ? blame(found) : 0)) {
            found = p;
            *rank = p->rc == E_PEER && p->lost_owner ? p->lost_owner - 1 : s->ranks[i];
        }
    }
    /* Where nobody here knows who, the step before it may have failed, which then says; else a rank has left for the
     * step behind it, where it failed, before the others had come out of their last meeting. */
    const struct step_part *before = found && blame(found) == 1 && s->prev ? step_failure(s->prev, rank) : NULL;
    return before ? before : found;
}

void step_free(struct step *s)
{
    if (!s)
        return;
    step_free(s->prev);
    arena_free(&s->arena);
    mem_free(s);
}
