#include "engine/base/mem.h"
#include "models/guide/guide_inner.h"

enum { MOST_RUN = 256, FEW_BYTES = 48, FEW_ALIVE = 64 };

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
        if (alive < len && after[alive + 1] == STATE_OVER)
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
    guide_count(g, (want + 1) * sizeof *s->list_ids);
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
