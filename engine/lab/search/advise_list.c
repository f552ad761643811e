#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/lab/search/advise_inner.h"

static const int chunks[] = {ADVISE_LARGE, 2048, 16384, ADVISE_SMALL};
enum { N_CHUNKS = sizeof chunks / sizeof *chunks };

/* Groups that have communicators without further flags: aligned powers of two, and the whole node. */
static bool is_group(int n_ranks, int size)
{
    return n_ranks % size == 0 && (size == n_ranks || (size & (size - 1)) == 0);
}

static void put(struct advise *a, struct candidate c)
{
    if (advise_price(a, &c)) {
        a->n_refused++;
        return;
    }
    a->items = mem_resize(a->items, (size_t)a->n + 1, sizeof *a->items);
    a->items[a->n++] = c;
}

/* With all sizes of a step, or the one that was asked for. */
static void put_chunks(struct advise *a, struct candidate c)
{
    for (int i = 0; i < N_CHUNKS; i++) {
        c.chunk = a->ask->chunk ? (int)a->ask->chunk : chunks[i];
        if (i == 0 || !a->ask->chunk)
            put(a, c);
    }
}

/* Slots for few layers under way, some, and one for each owner. */
static void put_pools(struct advise *a, struct candidate c)
{
    const int slots[] = {2, 4, a->n_ranks};
    for (int i = 0; i < 3; i++) {
        c.slots = slots[i];
        if (c.slots < a->facts.n_layers && (i == 0 || c.slots > slots[i - 1]))
            put_chunks(a, c);
    }
}

/* Prompts in stages, tokens in tensor parallelism as wide as the group. */
static void put_seesaw(struct advise *a, struct candidate c)
{
    int size = layout_size(c.layout);
    c.policy = POLICY_SEESAW;
    c.sharded = true;
    c.second = (struct layout){1, size, 1};
    if (!layout_refusal(&a->facts.heads, c.second))
        put_chunks(a, c);
}

/* One layout: its weights whole, in shares, pooled; with the policies that make something of it. A static layout with
 * shares has more room for KV than with whole weights, and is as fast. */
static void put_layout(struct advise *a, struct layout l)
{
    int size = layout_size(l);
    struct candidate c = {.layout = l, .groups = a->n_ranks / size, .sharded = l.tp > 1 || l.pp > 1};
    bool plain = l.sp == 1 && l.pp == 1;
    put_chunks(a, c);
    c.sharded = false;
    if (a->ask->host_kv && l.sp == 1 && l.pp > 1 && l.tp == 1)
        put_seesaw(a, c);
    if (c.groups == 1 && l.sp > 1 && l.pp == 1) {
        c.policy = POLICY_SHIFT;
        put_chunks(a, c);
    }
    if (c.groups > 1 && plain) {
        c.policy = POLICY_FLYING;
        put_chunks(a, c);
        c.policy = POLICY_STATIC;
        put_pools(a, c);
    }
    if (size == 1 && c.groups > 1) {
        c.policy = POLICY_SIDP;
        put_pools(a, c);
    }
}

void advise_list(struct advise *a)
{
    for (int size = 1; size <= a->n_ranks; size++)
        for (int pp = 1; pp <= size && is_group(a->n_ranks, size); pp++)
            for (int sp = 1; sp <= size / pp; sp++) {
                struct layout l = {sp, size / pp / sp, pp};
                if (layout_size(l) == size && !layout_refusal(&a->facts.heads, l) && pp <= a->facts.n_layers)
                    put_layout(a, l);
            }
}

void advise_policy_words(const struct candidate *c, struct buf *out)
{
    struct layout l = c->layout;
    if (c->policy == POLICY_STATIC) {
        buf_printf(out, "static:dp=%d,sp=%d,tp=%d", c->groups, l.sp, l.tp);
        if (l.pp > 1)
            buf_printf(out, ",pp=%d", l.pp);
    } else if (c->policy == POLICY_SHIFT) {
        buf_printf(out, "shift:base_sp=%d,base_tp=%d", l.sp, l.tp);
    } else if (c->policy == POLICY_FLYING) {
        buf_printf(out, "flying:narrow=%d", l.tp);
    } else if (c->policy == POLICY_SEESAW) {
        buf_printf(out, "seesaw:pp=%d", l.pp);
    } else {
        buf_puts(out, "sidp:");
    }
    buf_printf(out, "%sbudget=%d", c->policy == POLICY_SIDP ? "" : ",", c->chunk);
}

static void add(struct strings *out, struct buf *word)
{
    out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
    out->items[out->n++] = buf_take(word);
}

static void add_number(struct strings *out, const char *flag, int64_t v)
{
    struct buf b = {0};
    buf_puts(&b, flag);
    add(out, &b);
    buf_printf(&b, "%lld", (long long)v);
    add(out, &b);
}

void advise_flags(const struct advise *a, const struct candidate *c, struct strings *out)
{
    struct buf b = {0};
    add_number(out, "--ranks", a->n_ranks);
    buf_puts(&b, "--policy");
    add(out, &b);
    advise_policy_words(c, &b);
    add(out, &b);
    add_number(out, "--max-num-batched-tokens", c->chunk);
    if (!a->ask->max_num_seqs)
        add_number(out, "--max-num-seqs", ADVISE_SEQS);
    if (!a->ask->max_model_len)
        add_number(out, "--max-model-len", (a->load.longest + 1023) / 1024 * 1024);
    if (c->layout.pp > 1 || c->sharded) { /* from the start: the weights lie so */
        add_number(out, "--pipeline-parallel-size", c->layout.pp);
        add_number(out, "--tensor-parallel-size", c->layout.tp);
        add_number(out, "--ulysses-sequence-parallel-size", c->layout.sp);
    }
    if (c->slots) {
        buf_puts(&b, "--weights");
        add(out, &b);
        buf_puts(&b, "pooled");
        add(out, &b);
        add_number(out, "--pool-slots", c->slots);
    }
    if (c->sharded) {
        buf_puts(&b, "--weights");
        add(out, &b);
        buf_puts(&b, "sharded");
        add(out, &b);
        add_number(out, "--shard-memory", (int64_t)c->shard);
    }
    if (c->policy == POLICY_SEESAW && a->load.rate <= 0) { /* nobody waits for a first token */
        buf_puts(&b, "--policy-param");
        add(out, &b);
        buf_puts(&b, "turn_s=3600");
        add(out, &b);
        add_number(out, "--starvation-seconds", 0);
    }
}
