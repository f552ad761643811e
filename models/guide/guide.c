#include "models/guide/guide.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/shared.h"

/* ---- states */

/* States: nothing is alive; not found yet; more is alive than can be followed. */
enum { DEAD = -1, UNKNOWN = -2, OVER = -3 };

/* A node that takes a byte, and the calls that it stands in. */
struct alive {
    int32_t node, stack;
};

/* The innermost call that is under way: where it returns to; those around it. 0: none. */
struct frame {
    int32_t back, under, depth;
};

struct state {
    int first, n; /* of alive */
    bool may_end;
    int look;              /* tokens to look at for its list; 0: not counted */
    int32_t same;          /* the next state whose hash is the same; -1: none */
    int32_t *next;         /* [256], or NULL as long as nobody went on from here */
    struct guide_ids list; /* ids NULL: not made */
    int32_t *list_ids;
};

struct guide {
    struct list link; /* of guides, by last use */
    struct grammar *grammar;
    const struct guide_tokens *tokens;
    size_t *total, bytes; /* of all guides; of this one */
    uint64_t serial;
    struct state *states;
    int n_states, cap_states;
    struct alive *alive;
    int n_alive, cap_alive;
    struct frame *frames;
    int n_frames, cap_frames;
    struct map by_hash, by_frame;
    struct scratch_pad *pad; /* of all guides */
    int64_t work;
    int32_t first; /* the state before any byte */
};

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

enum { MAP_ENTRY = 40 /* bytes, about */, MOST_RUN = 256, FEW_BYTES = 48, FEW_ALIVE = 64 };

static void count(struct guide *g, size_t bytes)
{
    g->bytes += bytes;
    *g->total += bytes;
}

static void *grow(struct guide *g, void *p, int *cap, int n, size_t size)
{
    if (n < *cap)
        return p;
    int before = *cap;
    *cap = before ? 2 * before : 64;
    count(g, (size_t)(*cap - before) * size);
    return mem_resize(p, (size_t)*cap, size);
}

/* DEAD: too deep. */
static int32_t push(struct guide *g, int32_t back, int32_t under)
{
    uint64_t key = (uint64_t)(uint32_t)back << 32 | (uint32_t)under, found;
    if (map_find(&g->by_frame, key, &found))
        return (int32_t)found;
    int32_t depth = under ? g->frames[under].depth + 1 : 1;
    if (depth > GUIDE_MOST_DEPTH)
        return DEAD;
    g->frames = grow(g, g->frames, &g->cap_frames, g->n_frames, sizeof *g->frames);
    g->frames[g->n_frames] = (struct frame){back, under, depth};
    map_set(&g->by_frame, key, (uint64_t)g->n_frames);
    count(g, MAP_ENTRY);
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
    if (stack == DEAD)
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
        return OVER;
    if (!p->n_now && !p->may_end)
        return DEAD;
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
    count(g, MAP_ENTRY);
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
        count(g, 256 * sizeof *next);
        for (int i = 0; i < 256; i++)
            next[i] = UNKNOWN;
        g->states[from].next = next;
    }
    if (next[b] == UNKNOWN)
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

/* ---- tokens of a state */

static void set_bit(uint64_t *bits, int32_t id)
{
    bits[id >> 6] |= (uint64_t)1 << (id & 63);
}

static int count_bits(const uint64_t *bits, int n_vocab)
{
    int n = 0;
    for (int i = 0; i <= n_vocab / 64; i++)
        n += __builtin_popcountll(bits[i]);
    return n;
}

/* Of all tokens those that begin with `bytes` bytes, behind which the state is `from`. */
struct span {
    int lo, hi;
    uint32_t bytes;
    int32_t from;
};

/* Sets the bits of those that are longer and leave something alive. false: the work done is more than `most`. */
static bool find_allowed(struct guide *g, const struct span *span, int64_t most, uint64_t *bits)
{
    const struct guide_tokens *t = g->tokens;
    int32_t after[GUIDE_TOKEN_BYTES + 1]; /* behind so many bytes of the token */
    uint32_t alive = span->bytes; /* of the last token that left something alive, as far as they were looked at */
    after[span->bytes] = span->from;
    for (int i = span->lo; i < span->hi; i++) {
        const char *s = t->bytes.data + t->at[i];
        uint32_t len = t->at[i + 1] - t->at[i], k = i > span->lo ? t->alike[i] : span->bytes;
        if (k > alive || len == span->bytes)
            continue; /* it begins with what has died */
        for (alive = k; alive < len; alive++)
            if ((after[alive + 1] = guide_step(g, after[alive], (unsigned char)s[alive])) < 0)
                break;
        if (alive < len && after[alive + 1] == OVER)
            return false;
        if (alive == len)
            set_bit(bits, t->ids[i]);
        if (g->work > most)
            return false;
    }
    return true;
}

static void keep_list(struct guide *g, int32_t state, const uint64_t *bits, int n)
{
    struct state *s = &g->states[state];
    int n_vocab = g->tokens->n_vocab, k = 0;
    bool allowed = 2 * n <= n_vocab;
    size_t want = (size_t)(allowed ? n : n_vocab - n);
    s->list_ids = mem_new_array(want + 1, sizeof *s->list_ids);
    count(g, (want + 1) * sizeof *s->list_ids);
    for (int i = 0; i < n_vocab; i += 64)
        for (uint64_t left = allowed ? bits[i / 64] : ~bits[i / 64]; left; left &= left - 1) {
            int32_t id = i + __builtin_ctzll(left);
            if (id < n_vocab)
                s->list_ids[k++] = id;
        }
    s->list = (struct guide_ids){s->list_ids, k, allowed};
}

/* The only byte that may come; -1: there is a choice, or much to look at. */
static int only_byte(const struct guide *g, int32_t state)
{
    const struct state *s = &g->states[state];
    int found = -1;
    if (s->n > FEW_ALIVE)
        return -1;
    for (int i = 0; i < s->n; i++) {
        const struct grammar_node *x = &g->grammar->nodes[g->alive[s->first + i].node];
        if (x->kind != GRAMMAR_BYTE || (i && x->a != found))
            return -1;
        found = x->a;
    }
    return s->may_end ? -1 : found;
}

/* What has to come up to the next choice: its bytes. span: the tokens that go on behind it. */
static size_t find_run(struct guide *g, struct span *span, char run[MOST_RUN])
{
    int32_t next;
    int b;
    while (span->bytes < MOST_RUN && (b = only_byte(g, span->from)) >= 0 &&
           (next = guide_step(g, span->from, (unsigned char)b)) >= 0) {
        guide_tokens_narrow(g->tokens, &span->lo, &span->hi, span->bytes, (unsigned char)b);
        run[span->bytes++] = (char)b;
        span->from = next;
    }
    return span->bytes;
}

struct grammar_set guide_bytes(const struct guide *g, int32_t state)
{
    struct grammar_set all = {{0}};
    for (int i = 0; state >= 0 && i < g->states[state].n; i++) {
        const struct grammar_node *x = &g->grammar->nodes[g->alive[g->states[state].first + i].node];
        if (x->kind == GRAMMAR_BYTE)
            set_bit(all.bits, x->a);
        for (int k = 0; x->kind == GRAMMAR_SET && k < 4; k++)
            all.bits[k] |= g->grammar->sets[x->a].bits[k];
    }
    return all;
}

/* The tokens that are looked at for a state's list: of those behind what has to come, or of those that begin with a
 * byte that may come. */
struct look {
    char run[MOST_RUN];
    int32_t id; /* how what has to come is spelt; -1: there is a choice */
    struct span spans[FEW_BYTES];
    int n;
};

static void plan_look(struct guide *g, int32_t state, struct look *l)
{
    struct span all = {0, g->tokens->n, 0, state};
    l->spans[0] = all;
    l->n = 1;
    if (find_run(g, &l->spans[0], l->run) && guide_tokens_spell(g->tokens, l->run, l->spans[0].bytes, &l->id, 1))
        return;
    struct grammar_set may = guide_bytes(g, state);
    l->id = -1;
    l->spans[0] = all;
    if (count_bits(may.bits, 255) > FEW_BYTES)
        return;
    l->n = 0;
    for (int b = 0; b < 256; b++)
        if (grammar_set_has(&may, (unsigned char)b)) {
            l->spans[l->n] = all;
            guide_tokens_narrow(g->tokens, &l->spans[l->n].lo, &l->spans[l->n].hi, 0, (unsigned char)b);
            l->n++;
        }
}

/* What has to come is spelt as the tokenizer has it, which is how the model knows it; a token that goes on behind it
 * may come as well. */
static bool find_tokens(struct guide *g, int32_t state, uint64_t *bits)
{
    struct look l;
    int64_t most = g->work + GUIDE_MOST_WORK;
    bool good = true;
    plan_look(g, state, &l);
    if (l.id >= 0)
        set_bit(bits, l.id);
    for (int i = 0; i < l.n && good; i++)
        good = find_allowed(g, &l.spans[i], most, bits);
    return good;
}

/* Where nothing else is left to say, as where the nesting is at its end, the answer may end. */
static bool list_of(struct guide *g, int32_t state)
{
    const struct guide_tokens *t = g->tokens;
    if (g->states[state].list.ids)
        return true;
    uint64_t *bits = mem_new_array((size_t)t->n_vocab / 64 + 1, sizeof *bits);
    bool good = find_tokens(g, state, bits), ends = g->states[state].may_end || !count_bits(bits, t->n_vocab);
    for (size_t i = 0; ends && i < t->n_ends; i++)
        set_bit(bits, t->ends[i]);
    if (good)
        keep_list(g, state, bits, count_bits(bits, t->n_vocab));
    mem_free(bits);
    return good;
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
    count(g, sizeof *g + grammar_bytes(grammar));
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
        return guide_tokens_end(t, id) ? state : DEAD;
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
    return state < 0 || guide_tokens_end(g->tokens, token) ? DEAD : read_token(g, state, token);
}

int32_t guide_known(const struct guide *g, int32_t state, int32_t token)
{
    const struct guide_tokens *t = g->tokens;
    int32_t at = token >= 0 && token < t->n_vocab ? t->where[token] : -1;
    for (uint32_t i = at < 0 ? 0 : t->at[at]; at >= 0 && i < t->at[at + 1] && state >= 0; i++) {
        const int32_t *next = g->states[state].next;
        state = next ? next[(unsigned char)t->bytes.data[i]] : UNKNOWN;
    }
    return at < 0 ? DEAD : state;
}

int32_t guide_read_to(const struct guide *g, const struct guided *at, int n)
{
    return at->serial == g->serial && at->n == n ? at->state : UNKNOWN;
}

bool guide_soon(const struct guide *g, int32_t state, int most)
{
    const struct state *s = &g->states[state];
    return s->list.ids || (s->look && s->look <= most);
}

int guide_look(struct guide *g, int32_t state)
{
    struct look l;
    if (state < 0 || g->states[state].list.ids)
        return 0;
    if (!g->states[state].look) {
        int n = 1;
        plan_look(g, state, &l);
        for (int i = 0; i < l.n; i++)
            n += l.spans[i].hi - l.spans[i].lo;
        g->states[state].look = n;
    }
    return g->states[state].look;
}

const struct guide_ids *guide_ids(struct guide *g, int32_t state)
{
    return state >= 0 && list_of(g, state) ? &g->states[state].list : NULL;
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
