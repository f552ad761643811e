#include "engine/exec/step.h"

#include "engine/base/check.h"

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

static void fill_sample(struct sample_row *s, const struct request *r)
{
    const struct sampling *how = &r->spec->sampling;
    bool penalties = how->repetition_penalty != 1.0f || how->frequency_penalty != 0.0f || how->presence_penalty != 0.0f;
    *s = (struct sample_row){.how = how, .given = -1, .position = (uint64_t)request_output(r), .n_top = how->n_logprobs};
    if (penalties) {
        s->prompt = r->tokens;
        s->n_prompt = r->spec->n_prompt;
        s->output = r->tokens + r->spec->n_prompt;
        s->n_output = request_output(r);
    }
    if (request_output(r) < r->spec->min_tokens) {
        s->banned = r->spec->stop_ids;
        s->n_banned = r->spec->n_stop_ids;
    }
}

/* Where the arrays of the batch are filled up to. */
struct cursor {
    int32_t *ids, *positions, *logit_rows;
    struct batch_seq *seqs;
    struct sample_row *samples;
    int row, seq, logit;
};

static void add_item(struct step *s, struct cursor *c, const struct plan_item *it)
{
    const struct request *r = it->request;
    struct step_item *out = &s->items[s->n_items++];
    int given = count_given(r, it->n_tokens);
    *out = (struct step_item){.id = r->id, .n_tokens = it->n_tokens, .first_result = c->logit, .n_given = given,
                              .given_at = r->n_computed + 1, .samples = samples(r, it->n_tokens)};
    c->seqs[c->seq++] = (struct batch_seq){.row0 = c->row, .n_rows = it->n_tokens, .pos0 = r->n_computed, .blocks = r->blocks};
    for (int i = 0; i < it->n_tokens; i++) {
        c->ids[c->row + i] = r->tokens[r->n_computed + i];
        c->positions[c->row + i] = r->n_computed + i;
    }
    for (int i = 0; i < given; i++) {
        c->logit_rows[c->logit] = c->row + i;
        c->samples[c->logit++] = (struct sample_row){.how = &r->spec->sampling, .given = r->tokens[r->n_computed + i + 1],
                                                     .n_top = r->spec->sampling.n_prompt_logprobs};
    }
    if (out->samples) {
        c->logit_rows[c->logit] = c->row + it->n_tokens - 1;
        fill_sample(&c->samples[c->logit++], r);
    }
    c->row += it->n_tokens;
}

/* The arrays of a batch, for n_logits rows of logits. */
static struct cursor begin_arrays(struct step *s, const struct plan_batch *b, int n_logits)
{
    size_t rows = (size_t)b->n_tokens, logits = (size_t)n_logits, seqs = (size_t)b->n_items;
    return (struct cursor){.ids = arena_new(&s->arena, rows * sizeof(int32_t)),
                           .positions = arena_new(&s->arena, rows * sizeof(int32_t)),
                           .logit_rows = arena_new(&s->arena, logits * sizeof(int32_t)),
                           .seqs = arena_new(&s->arena, seqs * sizeof(struct batch_seq)),
                           .samples = arena_new(&s->arena, logits * sizeof(struct sample_row))};
}

struct step *step_build(const struct plan_batch *b, const struct step_site *at)
{
    struct step *s = mem_new(sizeof *s);
    int n_logits = 0;
    ASSERT(at->group->n_ranks == 1);
    arena_init(&s->arena);
    s->group = b->group;
    s->layout = b->layout;
    s->n_ranks = 1;
    s->ranks[0] = at->group->ranks[0];
    s->tokens_per_block = at->tokens_per_block;
    s->comms = at->comms;
    s->parts = arena_new(&s->arena, sizeof *s->parts);
    atomic_init(&s->left, s->n_ranks);
    for (int i = 0; i < b->n_items; i++)
        n_logits += count_given(b->items[i].request, b->items[i].n_tokens) + samples(b->items[i].request, b->items[i].n_tokens);
    struct cursor c = begin_arrays(s, b, n_logits);
    s->items = arena_new(&s->arena, (size_t)b->n_items * sizeof *s->items);
    s->results = arena_new(&s->arena, (size_t)n_logits * sizeof *s->results);
    for (int i = 0; i < b->n_items; i++)
        add_item(s, &c, &b->items[i]);
    ASSERT(c.row == b->n_tokens && c.logit == n_logits);
    s->n_rows = c.row;
    s->parts[0].batch = (struct batch){.n_rows = c.row, .ids = c.ids, .positions = c.positions, .n_seqs = c.seq, .seqs = c.seqs,
                                       .n_logits = n_logits, .logit_rows = c.logit_rows, .samples = c.samples, .results = s->results};
    return s;
}

int64_t step_ns(const struct step *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->n_ranks; i++)
        most = s->parts[i].time.ns > most ? s->parts[i].time.ns : most;
    return most;
}

const struct step_part *step_failure(const struct step *s, int *rank)
{
    int found = -1;
    for (int i = 0; i < s->n_ranks; i++)
        if (s->parts[i].rc && (found < 0 || (s->parts[found].rc == E_PEER && s->parts[i].rc != E_PEER)))
            found = i;
    if (found < 0)
        return NULL;
    if (rank)
        *rank = s->ranks[found];
    return &s->parts[found];
}

void step_free(struct step *s)
{
    if (!s)
        return;
    arena_free(&s->arena);
    mem_free(s);
}
