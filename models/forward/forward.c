#include "models/forward/forward.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/forward/dummy_step.h"
#include "models/forward/run.h"

int forward_init(struct forward *f, int max_rows, int max_logits, int n_ranks, struct err *e)
{
    const struct model_config *c = f->config;
    struct device_facts facts;
    ASSERT(max_rows > 0 && max_logits > 0 && n_ranks > 0 && n_ranks <= MAX_RANKS);
    f->ops->facts(f->device, &facts);
    f->act_bytes = facts.act_bytes;
    f->max_rows = max_rows;
    f->max_logits = max_logits;
    f->slab = NULL;
    f->kv_head = mem_new_array((size_t)c->n_heads, sizeof *f->kv_head);
    f->part_positions = NULL;
    f->part_seqs = NULL;
    if (c->kv_layers) {
        size_t chunk = (size_t)scratch_chunk(max_rows, max_logits);
        f->part_positions = mem_new_array(chunk, sizeof *f->part_positions);
        f->part_seqs = mem_new_array(chunk, sizeof *f->part_seqs);
    }
    if (!f->ops->computes)
        return 0;
    size_t bytes = forward_scratch_bytes(c, max_rows, max_logits, n_ranks, f->act_bytes);
    f->slab = f->ops->alloc(f->device, bytes);
    if (f->slab)
        return 0;
    forward_free(f);
    return err_set(e, E_FULL,
                   "no memory for the activations of a step (%.1f MiB in all); lower --max-num-batched-tokens",
                   (double)bytes / (1 << 20));
}

void forward_free(struct forward *f)
{
    if (f->slab)
        f->ops->release(f->device, f->slab);
    mem_free(f->kv_head);
    mem_free(f->part_positions);
    mem_free(f->part_seqs);
    f->slab = NULL;
    f->kv_head = NULL;
    f->part_positions = NULL;
    f->part_seqs = NULL;
}

/* ---- stages */

static int stages_of(const struct forward_member *m)
{
    return m->n_stages > 1 ? m->n_stages : 1;
}

/* The second meeting is what the giver waits for. */
void run_pass_rows(struct run *r, struct comm *link, int me, struct act x, int rows)
{
    struct comm_rect all = {.peer = 0, .rows = rows, .cols = x.cols};
    struct exchange_args a = {.comm = link, .me = me, .src = {x}, .dst = {x}, .rects = &all};
    a.n_rects = me == 1 && rows > 0;
    r->f->ops->exchange(r->f->device, &a);
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = link, .me = me});
}

static void compute(struct run *r)
{
    int end = r->layers.first + r->layers.n, kv_layers = r->f->config->kv_layers;
    bool last = end == r->f->config->n_layers, swiftkv = kv_layers && kv_layers < end;
    int whole = swiftkv ? kv_layers : end - last; /* before it, layers that all rows go through */
    if (r->layers.first == 0)
        r->f->ops->embed(r->f->device, r->w->embed, r->s.x, r->row0, r->rows);
    else
        run_pass_rows(r, r->m->from, 1, r->s.x, r->rows);
    for (int l = r->layers.first; l < whole && !r->err.code; l++)
        run_layer(r, l);
    if (r->err.code) /* its group meets no more: what it wrote now, others might still be reading */
        return;
    if (swiftkv)
        run_swiftkv(r);
    else if (last)
        run_last_layer(r);
    else
        run_pass_rows(r, r->m->to, 0, r->s.x, r->rows);
}

/* The last stage makes the guesses, behind all that others wait for. */
static void guess_on(struct run *r)
{
    bool last = r->layers.first + r->layers.n == r->f->config->n_layers;
    if (r->m->asks && last && !r->err.code)
        heads_guess(r->f->heads, r->m->asks, r->sh->share, r->sh->n);
}

static void run_init(struct run *r)
{
    const struct shard *sh = r->sh;
    int per_kv = sh->heads.n_q / sh->heads.n_kv;
    scratch_lay_out(&r->s, r->f, sh);
    r->layers = stage_layers(r->f->config->n_layers, stages_of(r->m), r->m->stage);
    row_slice(r->b->n_rows, sh->layout.sp, sh->s, &r->row0, &r->rows);
    for (int h = 0; h < sh->own.n_q; h++)
        r->f->kv_head[h] = (sh->own.q0 + h) / per_kv - sh->own.kv0;
    if (sh->layout.sp > 1)
        run_plan_all_to_alls(r);
}

void forward_abort(const struct backend_ops *ops, const struct forward_member *m)
{
    if (m->from)
        ops->comm_abort(m->from);
    if (m->to)
        ops->comm_abort(m->to);
    if (m->weights->shard.n == 1)
        return;
    ops->comm_abort(m->sp);
    ops->comm_abort(m->tp);
    ops->comm_abort(m->all);
}

static struct graph_key graph_key_of(const struct forward_member *m)
{
    return (struct graph_key){.weights = m->weights,
                              .all = m->all,
                              .me = m->weights->shard.share,
                              .group = m->group,
                              .tokens_per_block = m->tokens_per_block,
                              .twoshot_bytes = m->twoshot_bytes};
}

static struct rope rope_of(const struct model_config *c)
{
    return (struct rope){c->rope_halves, c->rope_dim, c->inv_freq, c->rope_scale};
}

static void compute_step(struct forward *f, const struct forward_member *m, const struct batch *b, struct err *failed)
{
    struct run r = {.f = f, .m = m, .w = m->weights, .sh = &m->weights->shard, .b = b};
    run_init(&r);
    compute(&r);
    guess_on(&r);
    *failed = r.err;
}

static int run_ops(struct forward *f, const struct forward_member *m, const struct batch *b, struct step_time *t,
                   struct err *e)
{
    const struct shard *sh = &m->weights->shard;
    struct rope rope = rope_of(f->config);
    struct err failed = {0};
    TRY(f->ops->begin(f->device, b, &rope, e));
    if (f->ops->computes)
        compute_step(f, m, b, &failed);
    else
        f->ops->whole_step(f->device, f->config->vocab, (struct layout){sh->layout.sp, sh->layout.tp, stages_of(m)},
                           m->stage * sh->n + sh->share);
    int rc = f->ops->finish(f->device, t, e);
    return rc || !failed.code ? rc : err_set(e, failed.code, "%s", failed.text);
}

int forward_post(struct forward *f, const struct forward_member *m, const struct batch *b, bool *posted, struct err *e)
{
    struct graph_key key = graph_key_of(m);
    *posted = false;
    if (!f->ops->graph_post || stages_of(m) > 1)
        return 0;
    int rc = f->ops->graph_post(f->device, &(struct graph_call){&key, b}, posted, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

bool forward_ended(struct forward *f)
{
    return f->ops->graph_ended(f->device);
}

int forward_wait(struct forward *f, const struct forward_member *m, struct step_time *t, struct err *e)
{
    int rc = f->ops->graph_wait(f->device, t, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

int forward_run(struct forward *f, const struct forward_member *m, const struct batch *b, struct step_time *t,
                struct err *e)
{
    bool posted;
    ASSERT(b->n_rows > 0 && b->n_rows <= f->max_rows && !b->fed);
    TRY(forward_post(f, m, b, &posted, e));
    if (posted)
        return forward_wait(f, m, t, e);
    int rc = run_ops(f, m, b, t, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

void forward_pack(struct forward *f, const struct forward_member *m, const struct kv_pack *moves)
{
    const struct shard *sh = &m->weights->shard;
    struct kv_pack p = *moves;
    p.at.space = m->kv ? m->kv : f->kv;
    p.at.tokens_per_block = m->tokens_per_block;
    p.n_layers = stage_layers(f->config->n_layers, stages_of(m), m->stage).n;
    p.n_heads = sh->own.n_kv;
    p.head_dim = sh->heads.head_dim;
    f->ops->kv_pack(f->device, &p);
}

/* ---- warm-up and graph capture, before anything is served */

int forward_warm_up(struct forward *f, const struct forward_member *m, int rows, struct err *e)
{
    static const struct sampling usual = {.temperature = 1, .top_p = 0.9f, .top_k = 50, .repetition_penalty = 1};
    struct dummy_step s;
    ASSERT(rows > 0 && rows <= f->max_rows);
    dummy_step_init(&s, &usual, rows);
    dummy_step_to_prompt(&s, f->max_logits);
    int rc = run_ops(f, m, &s.batch, NULL, e);
    mem_free(s.batch.results);
    dummy_step_free(&s);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

static int capture(struct forward *f, const struct forward_member *m, const struct batch *b, struct err *e)
{
    struct rope rope = rope_of(f->config);
    struct graph_key key = graph_key_of(m);
    struct run r = {.f = f, .m = m, .w = m->weights, .sh = &m->weights->shard, .b = b};
    TRY(f->ops->graph_begin(f->device, &(struct graph_call){&key, b}, &rope, e));
    run_init(&r);
    compute(&r);
    return f->ops->graph_end(f->device, e);
}

int forward_capture(struct forward *f, const struct forward_member *m, int rows, struct err *e)
{
    static const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct dummy_step s;
    ASSERT(rows > 0);
    if (!f->ops->graph_begin)
        return err_set(e, E_UNSUPPORTED, "--device %s has no graphs", f->ops->name);
    if (rows > f->max_rows)
        return err_set(e, E_UNSUPPORTED, "a graph of %d rows where steps have at most %d", rows, f->max_rows);
    dummy_step_init(&s, &greedy, rows);
    int rc = capture(f, m, &s.batch, e);
    dummy_step_free(&s);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}
