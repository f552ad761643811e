#include "engine/world/lookup.h"

#include "engine/base/mem.h"

enum { GRAM = 3, CANDIDATES = 16, FIRST_CAP = 1024 };

struct lookup {
    int32_t *heads; /* [cap] by hash of three tokens: the latest place behind them; 0: none */
    int32_t *older; /* [cap / 2] by place: the one before it with the same hash */
    int cap;        /* a power of two */
    int n;          /* places so far: all up to this one are in the index */
};

struct lookup *lookup_new(void)
{
    struct lookup *l = mem_new(sizeof *l);
    l->n = GRAM - 1;
    return l;
}

void lookup_free(struct lookup *l)
{
    if (!l)
        return;
    mem_free(l->heads);
    mem_free(l->older);
    mem_free(l);
}

static uint32_t slot_of(const struct lookup *l, const int32_t *behind)
{
    uint64_t h = 0;
    for (int i = 1; i <= GRAM; i++)
        h = (h ^ (uint32_t)behind[-i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 33) & (uint32_t)(l->cap - 1);
}

static void add(struct lookup *l, const int32_t *tokens, int place)
{
    uint32_t slot = slot_of(l, tokens + place);
    l->older[place] = l->heads[slot];
    l->heads[slot] = place;
}

/* Twice as many places, all entered anew. */
static void grow(struct lookup *l, const int32_t *tokens, int n)
{
    int cap = l->cap ? l->cap : FIRST_CAP;
    while (cap / 2 < n)
        cap *= 2;
    mem_free(l->heads);
    l->heads = mem_new_array((size_t)cap, sizeof *l->heads);
    l->older = mem_resize(l->older, (size_t)cap / 2, sizeof *l->older);
    l->cap = cap;
    for (int i = GRAM; i <= l->n; i++)
        add(l, tokens, i);
}

/* How many tokens before both places are the same. */
static int match_at(const int32_t *tokens, int place, int n)
{
    int most = place < LOOKUP_MATCH ? place : LOOKUP_MATCH, same = 0;
    while (same < most && tokens[place - 1 - same] == tokens[n - 1 - same])
        same++;
    return same;
}

int lookup_propose(struct lookup *l, const int32_t *tokens, int n, int most, int32_t *out, int *match)
{
    int best = 0, place = 0;
    *match = 0;
    if (l->cap / 2 < n)
        grow(l, tokens, n);
    while (l->n < n - 1) /* behind the last token nothing stands yet */
        add(l, tokens, ++l->n);
    if (n < GRAM + 1 || most <= 0)
        return 0;
    place = l->heads[slot_of(l, tokens + n)];
    for (int i = 0; place && i < CANDIDATES; i++, place = l->older[place]) {
        int same = match_at(tokens, place, n);
        if (same >= GRAM && same > *match) {
            *match = same;
            best = place;
        }
    }
    for (int i = 0; i < most && best; i++) /* past the end it goes on with itself: what repeats is found whole */
        out[i] = best + i < n ? tokens[best + i] : out[best + i - n];
    return best ? most : 0;
}
