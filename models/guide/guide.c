#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/shared.h"
#include "models/guide/guide_inner.h"

/* ---- states */

/* Of the step that is being found. */
enum { SEEN = 4 * GUIDE_MOST_ALIVE };
struct scratch_pad {
    struct alive now[GUIDE_MOST_ALIVE], todo[GUIDE_MOST_ALIVE];
    int n_now, n_todo, n_seen;
    bool may_end, over;
    struct alive seen[SEEN];      /* open addressing */
    uint32_t stamps[SEEN], stamp; /* an entry counts if its stamp is the present one */
};

struct guides {
    const struct guide_tokens *tokens;
    struct list used; /* the newest last */
    struct map by_grammar;
    size_t bytes, most;
    uint64_t serial;
    struct scratch_pad pad;
};

enum { MAP_ENTRY = 40 /* bytes, about */ };

static void *grow(struct guide *g, void *p, int *cap, int n, size_t size)
{
    if (n < *cap)
        return p;
    int before = *cap;
    *cap = before ? 2 * before : 64;
    guide_count(g, (size_t)(*cap - before) * size);
    return mem_resize(p, (size_t)*cap, size);
}

/* STATE_DEAD: too deep. */
static int32_t push(struct guide *g, int32_t back, int32_t under)
{
    uint64_t key = (uint64_t)(uint32_t)back << 32 | (uint32_t)under, found;
    if (map_find(&g->by_frame, key, &found))
        return (int32_t)found;
    int32_t depth = under ? g->frames[under].depth + 1 : 1;
    if (depth > GUIDE_MOST_DEPTH)
        return STATE_DEAD;
    g->frames = grow(g, g->frames, &g->cap_frames, g->n_frames, sizeof *g->frames);
    g->frames[g->n_frames] = (struct frame){back, under, depth};
    map_set(&g->by_frame, key, (uint64_t)g->n_frames);
    guide_count(g, MAP_ENTRY);
    return g->n_frames++;
}

/* Is it seen the first time in this step? */
static bool is_new(struct scratch_pad *p, struct alive a)
{
    uint64_t at = map_hash((uint64_t)(uint32_t)a.node << 32 | (uint32_t)a.stack);
    for (;; at++) {
        uint64_t i = at % SEEN;
        if (p->stamps[i] != p->stamp) {
            p->stamps[i] = p->stamp;
            p->seen[i] = a;
            p->n_seen++;
            return true;
        }
        if (p->seen[i].node == a.node && p->seen[i].stack == a.stack)
            return false;
    }
}

static void reach(struct guide *g, int32_t node, int32_t stack)
{
    struct scratch_pad *p = g->pad;
    struct alive a = {node, stack};
    if (stack == STATE_DEAD)
        return;
    if (p->n_todo == GUIDE_MOST_ALIVE || p->n_seen == SEEN / 2)
        p->over = true;
    else if (is_new(p, a))
        p->todo[p->n_todo++] = a;
}

/* All that can be reached from what is to do without a byte. */
static void close_over(struct guide *g)
{
    struct scratch_pad *p = g->pad;
    for (; p->n_todo && !p->over; g->work++) {
        struct alive a = p->todo[--p->n_todo];
        const struct grammar_node *x = &g->grammar->nodes[a.node];
        switch (x->kind) {
        case GRAMMAR_BYTE:
        case GRAMMAR_SET:
            p->over = p->over || p->n_now == GUIDE_MOST_ALIVE;
            if (!p->over)
                p->now[p->n_now++] = a;
            break;
        case GRAMMAR_SPLIT:
            reach(g, x->a, a.stack);
            reach(g, x->b, a.stack);
            break;
        case GRAMMAR_CALL: /* the last of its rule: a list that calls itself for its rest does not nest */
            reach(g, g->grammar->rules[x->a],
                  g->grammar->nodes[x->b].kind == GRAMMAR_END ? a.stack : push(g, x->b, a.stack));
            break;
        case GRAMMAR_END:
            if (a.stack)
                reach(g, g->frames[a.stack].back, g->frames[a.stack].under);
            else
                p->may_end = true;
            break;
        }
    }
}

static int by_node(const void *a, const void *b)
{
    const struct alive *x = a, *y = b;
    return x->node != y->node ? (x->node < y->node ? -1 : 1) : x->stack < y->stack ? -1 : x->stack > y->stack;
}

/* The state of what is alive now. */
static int32_t intern(struct guide *g)
{
    struct scratch_pad *p = g->pad;
    if (p->over)
        return STATE_OVER;
    if (!p->n_now && !p->may_end)
        return STATE_DEAD;
    g->work += 4 * p->n_now; /* about what it takes to sort them */
    if (p->n_now)
        qsort(p->now, (size_t)p->n_now, sizeof *p->now, by_node);
    size_t bytes = (size_t)p->n_now * sizeof *p->now;
    uint64_t hash = map_hash_bytes(p->now, bytes) ^ p->may_end, found;
    int32_t same = map_find(&g->by_hash, hash, &found) ? (int32_t)found : -1;
    for (int32_t s = same; s >= 0; s = g->states[s].same)
        if (g->states[s].n == p->n_now && g->states[s].may_end == p->may_end &&
            (!bytes || memcmp(&g->alive[g->states[s].first], p->now, bytes) == 0))
            return s;
    g->states = grow(g, g->states, &g->cap_states, g->n_states, sizeof *g->states);
    g->states[g->n_states] = (struct state){.first = g->n_alive, .n = p->n_now, .may_end = p->may_end, .same = same};
    for (int i = 0; i < p->n_now; i++) {
        g->alive = grow(g, g->alive, &g->cap_alive, g->n_alive, sizeof *g->alive);
        g->alive[g->n_alive++] = p->now[i];
    }
    map_set(&g->by_hash, hash, (uint64_t)g->n_states);
    guide_count(g, MAP_ENTRY);
    return g->n_states++;
}

static void begin(struct guide *g)
{
    struct scratch_pad *p = g->pad;
    p->n_now = p->n_todo = p->n_seen = 0;
    p->may_end = p->over = false;
    if (!++p->stamp) { /* it is round */
        memset(p->stamps, 0, sizeof p->stamps);
        p->stamp = 1;
    }
}

static bool takes(const struct guide *g, const struct grammar_node *x, unsigned char b)
{
    return x->kind == GRAMMAR_BYTE ? x->a == b : grammar_set_has(&g->grammar->sets[x->a], b);
}

static int32_t find_step(struct guide *g, int32_t from, unsigned char b)
{
    begin(g);
    for (int i = 0; i < g->states[from].n; i++, g->work++) {
        struct alive a = g->alive[g->states[from].first + i];
        const struct grammar_node *x = &g->grammar->nodes[a.node];
        if (takes(g, x, b))
            reach(g, x->b, a.stack);
    }
    close_over(g);
    return intern(g);
}

int32_t guide_step(struct guide *g, int32_t from, unsigned char b)
{
    if (from < 0)
        return from;
    int32_t *next = g->states[from].next;
    if (!next) {
        next = mem_new_array(256, sizeof *next);
        guide_count(g, 256 * sizeof *next);
        for (int i = 0; i < 256; i++)
            next[i] = STATE_UNKNOWN;
        g->states[from].next = next;
    }
    if (next[b] == STATE_UNKNOWN)
        next[b] = find_step(g, from, b);
    return next[b];
}

static void start(struct guide *g)
{
    begin(g);
    reach(g, g->grammar->rules[0], 0);
    close_over(g);
    g->first = intern(g);
}

static void forget(struct guide *g)
{
    for (int i = 0; i < g->n_states; i++) {
        mem_free(g->states[i].next);
        mem_free(g->states[i].list_ids);
    }
    mem_free(g->states);
    mem_free(g->alive);
    mem_free(g->frames);
    map_free(&g->by_hash);
    map_free(&g->by_frame);
    *g->total -= g->bytes;
}

/* ---- guides */

static struct guide *guide_new(struct guides *all, struct grammar *grammar)
{
    struct guide *g = mem_new(sizeof *g);
    *g = (struct guide){.grammar = grammar,
                        .tokens = all->tokens,
                        .total = &all->bytes,
                        .serial = ++all->serial,
                        .n_frames = 1,
                        .pad = &all->pad};
    g->frames = grow(g, NULL, &g->cap_frames, 0, sizeof *g->frames);
    guide_count(g, sizeof *g + grammar_bytes(grammar));
    map_init(&g->by_hash);
    map_init(&g->by_frame);
    start(g);
    return g;
}

static void drop(struct guides *all, struct guide *g)
{
    map_remove(&all->by_grammar, (uintptr_t)g->grammar);
    list_remove(&g->link);
    shared_drop(g->grammar);
    forget(g);
    mem_free(g);
}

struct guides *guides_new(const struct guide_tokens *tokens, size_t most_bytes)
{
    struct guides *g = mem_new(sizeof *g);
    *g = (struct guides){.tokens = tokens, .most = most_bytes};
    list_init(&g->used);
    map_init(&g->by_grammar);
    return g;
}

void guides_free(struct guides *g)
{
    if (!g)
        return;
    while (!list_empty(&g->used))
        drop(g, LIST_ENTRY(g->used.next, struct guide, link));
    map_free(&g->by_grammar);
    mem_free(g);
}

struct guide *guides_of(struct guides *all, struct grammar *grammar)
{
    uint64_t found;
    struct guide *g;
    while (all->bytes > all->most && !list_empty(&all->used))
        drop(all, LIST_ENTRY(all->used.next, struct guide, link));
    if (map_find(&all->by_grammar, (uintptr_t)grammar, &found)) {
        g = (struct guide *)(uintptr_t)found;
        list_remove(&g->link);
    } else {
        g = guide_new(all, shared_hold(grammar));
        map_set(&all->by_grammar, (uintptr_t)grammar, (uintptr_t)g);
    }
    list_push_back(&all->used, &g->link);
    return g;
}

static int32_t read_token(struct guide *g, int32_t state, int32_t id)
{
    const struct guide_tokens *t = g->tokens;
    int32_t at = id >= 0 && id < t->n_vocab ? t->where[id] : -1;
    if (at < 0)
        return guide_tokens_end(t, id) ? state : STATE_DEAD;
    for (uint32_t i = t->at[at]; i < t->at[at + 1]; i++)
        state = guide_step(g, state, (unsigned char)t->bytes.data[i]);
    return state;
}

int32_t guide_state(struct guide *g, struct guided *at, const int32_t *output, int n)
{
    if (at->serial != g->serial)
        *at = (struct guided){.serial = g->serial, .state = g->first};
    for (; at->n < n; at->n++)
        at->state = read_token(g, at->state, output[at->n]);
    return at->state;
}

int32_t guide_behind(struct guide *g, int32_t state, int32_t token)
{
    return state < 0 || guide_tokens_end(g->tokens, token) ? STATE_DEAD : read_token(g, state, token);
}

int32_t guide_known(const struct guide *g, int32_t state, int32_t token)
{
    const struct guide_tokens *t = g->tokens;
    int32_t at = token >= 0 && token < t->n_vocab ? t->where[token] : -1;
    for (uint32_t i = at < 0 ? 0 : t->at[at]; at >= 0 && i < t->at[at + 1] && state >= 0; i++) {
        const int32_t *next = g->states[state].next;
        state = next ? next[(unsigned char)t->bytes.data[i]] : STATE_UNKNOWN;
    }
    return at < 0 ? STATE_DEAD : state;
}

int32_t guide_read_to(const struct guide *g, const struct guided *at, int n)
{
    return at->serial == g->serial && at->n == n ? at->state : STATE_UNKNOWN;
}

const struct guide_tokens *guide_tokens_of(const struct guide *g)
{
    return g->tokens;
}

int64_t guide_work(const struct guide *g)
{
    return g->work;
}

int32_t guide_read(struct guide *g, const char *text, size_t n)
{
    int32_t state = g->first;
    for (size_t i = 0; i < n; i++)
        state = guide_step(g, state, (unsigned char)text[i]);
    return state;
}

bool guide_may_end(const struct guide *g, int32_t state)
{
    return state >= 0 && g->states[state].may_end;
}

size_t guides_bytes(const struct guides *g)
{
    return g->bytes;
}
