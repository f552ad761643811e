/* What a way to use the node would give in a steady state, by the cost of two kinds of steps: those that take prompts
 * in beside the answers under way, and those that do not. */
#include <math.h>
#include <string.h>

#include "engine/lab/search/advise_inner.h"

enum { SHIFT_ROWS = 512, ROUNDS = 24 };

struct pricing {
    const struct advise *a;
    const struct candidate *c;
    struct ffn_setup pool;
    struct sim_weights weights;
    double context; /* of an answer under way, the mean */
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds of a step of n answers under way and `rows` of prompts. */
static double step_s(const struct pricing *p, double n, double rows)
{
    const struct advise_load *l = &p->a->load;
    struct sim_step s = {.layout = p->c->layout, .weights = p->weights};
    struct err e;
    int decodes = (int)(n + 0.5), chunk = (int)(rows + 0.5);
    double ns = 0;
    if (decodes + chunk < 1)
        decodes = 1;
    s.size = (struct step_size){.rows = decodes + chunk, .chunk_rows = chunk, .n_logits = decodes};
    if (chunk) {
        s.size.n_chunks = (int)ceil(chunk / l->input);
        s.size.n_logits += (int)(chunk / l->input);
        s.size.chunk_looked_at = chunk * (l->input + 1) / 2;
    }
    s.size.n_seqs = decodes + s.size.n_chunks;
    s.size.looked_at = s.size.chunk_looked_at + decodes * p->context;
    s.size.pool_ranks = p->weights.pool ? p->a->n_ranks : 0;
    bool small = p->c->policy == POLICY_SHIFT && s.size.rows <= SHIFT_ROWS;
    if (small)
        s.layout = (struct layout){1, p->a->n_ranks, 1};
    if (sim_machine_step(p->a->ask->machine, &s, "total", &ns, &e))
        return INFINITY;
    return ns * 1e-9;
}

/* Of a step on average, while n answers are under way and each of them that ends makes room for a prompt. */
static double mean_step_s(const struct pricing *p, double n)
{
    const struct advise_load *l = &p->a->load;
    double each = n * l->input / l->output, room = most(p->c->chunk - n, 1);
    double chunk = least(room, most(l->input, each)), share = least(each / chunk, 1);
    return share * step_s(p, n, chunk) + (1 - share) * step_s(p, n, 0);
}

/* Bytes of the layers that the rank holds which has most of them; a hundredth for what is not even. */
static double shard(const struct advise *a, struct layout l)
{
    const struct heads *h = &a->facts.heads;
    double stage = stage_layers(a->facts.n_layers, l.pp, 0).n / (double)a->facts.n_layers;
    double share = head_span(h, l.tp * l.sp, 0, l.sp).n_q / (double)h->n_q;
    bool even = h->n_kv % l.tp == 0;
    return ceil(a->facts.layers * stage * share * (even ? 1.01 : 1.15));
}

/* KV is what the weights and the reserve leave of the memory. */
static bool fits(struct pricing *p, struct candidate *c)
{
    const struct advise *a = p->a;
    struct err e;
    p->weights = (struct sim_weights){.shares = 1, .stages = 1};
    c->shard = c->sharded ? shard(a, c->layout) : 0;
    if (c->sharded && c->policy == POLICY_SEESAW)
        c->shard = most(c->shard, shard(a, c->second));
    if (c->slots) {
        p->pool = (struct ffn_setup){.n_ranks = a->n_ranks,
                                     .n_layers = a->facts.n_layers,
                                     .n_slots = c->slots,
                                     .order = c->slots >= a->n_ranks ? FFN_SHIFTED : FFN_SLICED};
        if (a->facts.n_layers > FFN_MAX_LAYERS || ffn_parse_owners(&p->pool, "layer-mod", &e))
            return false;
        p->weights.pool = &p->pool;
    }
    c->weights = sim_machine_weight_bytes(a->ask->machine, p->weights);
    if (c->sharded)
        c->weights += c->shard - a->facts.layers;
    c->kv = a->facts.memory * a->ask->memory_share - a->facts.reserve - c->weights;
    c->tokens = c->kv / sim_machine_token_bytes(a->ask->machine, c->layout);
    return c->tokens >= a->load.longest;
}

/* All requests are there at once: they are worked off at `rate`. Else answers under way follow from how long they take,
 * and waiting from how near the rate is to what the node can do at most. */
static void price_latency(const struct pricing *p, struct candidate *c, double n, double rate)
{
    const struct advise_load *l = &p->a->load;
    double step = mean_step_s(p, n), offered = l->rate / c->groups;
    if (l->rate > 0 && l->rate < 0.98 * rate) {
        double under_way = 1;
        for (int i = 0; i < ROUNDS; i++)
            under_way = least(n, 0.5 * under_way + 0.5 * offered * l->output * mean_step_s(p, under_way));
        step = mean_step_s(p, under_way);
        double load = l->rate / rate, steps = ceil(l->input / most(c->chunk - under_way, 1));
        c->price[GOAL_TTFT] = steps * step_s(p, under_way, least(l->input, c->chunk)) * (1 + load / (2 * (1 - load)));
    } else {
        double behind = l->rate > 0 ? 1 / rate - 1 / l->rate : 1 / rate;
        c->price[GOAL_TTFT] = most(behind, 0) * (double)l->n_simulated / 2 + step;
    }
    c->price[GOAL_TPOT] = step;
}

/* Prompts by themselves in one layout, then tokens in the other, with as many answers at once as have room. */
static double seesaw_rate(const struct pricing *p, struct candidate *c)
{
    const struct advise_load *l = &p->a->load;
    double prompts = step_s(p, 0, c->chunk) * l->input / c->chunk;
    struct layout first = c->layout;
    c->layout = c->second;
    c->tokens = c->kv / sim_machine_token_bytes(p->a->ask->machine, c->layout);
    double n = most(1, least(c->tokens / p->context, (double)l->n_simulated / c->groups));
    double tokens = step_s(p, n, 0) * l->output / n;
    c->layout = first;
    return c->groups / (prompts + tokens);
}

int advise_price(const struct advise *a, struct candidate *c)
{
    const struct advise_load *l = &a->load;
    struct pricing p = {.a = a, .c = c, .context = l->input + l->output / 2};
    if (!fits(&p, c))
        return E_UNSUPPORTED;
    double seqs = (double)(a->ask->max_num_seqs ? a->ask->max_num_seqs : ADVISE_SEQS);
    double n = least(c->tokens / p.context, least(seqs, (double)l->n_simulated) / c->groups);
    n = most(1, least(n, c->chunk / (1 + l->input / l->output)));
    double rate = c->groups * n / (l->output * mean_step_s(&p, n));
    if (c->policy == POLICY_SEESAW)
        rate = seesaw_rate(&p, c);
    if (!isfinite(rate))
        return E_UNSUPPORTED;
    c->price[GOAL_THROUGHPUT] = rate;
    price_latency(&p, c, n, rate);
    if (c->policy == POLICY_FLYING) { /* light loads run in one group */
        struct candidate wide = *c;
        wide.policy = POLICY_STATIC;
        wide.layout.tp = a->n_ranks;
        wide.groups = 1;
        if (!advise_price(a, &wide))
            for (int g = GOAL_TTFT; g < GOAL_COUNT; g++)
                c->price[g] = least(c->price[g], wide.price[g]);
    }
    return 0;
}
