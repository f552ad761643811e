#include "engine/world/ffn.h"

#include <stdlib.h>
#include <string.h>

const char *ffn_mode_name(enum ffn_mode m)
{
    static const char *const names[] = {"local", "was", "cas"};
    return names[m];
}

void ffn_set(struct ffn_modes *m, int from, int to, enum ffn_mode mode)
{
    for (int l = from; l < to; l++) {
        uint64_t bit = 1ull << (l % 64);
        m->cas[l / 64] = mode == FFN_CAS ? m->cas[l / 64] | bit : m->cas[l / 64] & ~bit;
    }
}

int ffn_count_cas(const struct ffn_modes *m, int n_layers)
{
    int n = 0;
    for (int l = 0; l < n_layers; l++)
        n += ffn_is_cas(m, l);
    return n;
}

int ffn_count_here(const struct ffn_modes *m, int n_layers)
{
    int n = 0;
    for (int l = 0; l < n_layers; l++)
        n += ffn_is_here(m, l);
    return n;
}

static int parse_list(struct ffn_setup *s, const char *text, struct err *e)
{
    const char *at = text;
    for (int l = 0; l < s->n_layers; l++) {
        char *end;
        long rank = strtol(at, &end, 10);
        if (end == at || rank < 0 || rank >= s->n_ranks || (*end && *end != ','))
            return err_set(e, E_INPUT,
                           "--pool-owner: layer %d needs a rank from 0 to %d; give layer-mod, contiguous, or the owner "
                           "of each of the %d layers (0,0,1,1,...)",
                           l, s->n_ranks - 1, s->n_layers);
        if (!*end && l + 1 < s->n_layers)
            return err_set(e, E_INPUT, "--pool-owner names the owners of %d layers, and the model has %d", l + 1,
                           s->n_layers);
        s->owner[l] = (uint8_t)rank;
        at = *end ? end + 1 : end;
    }
    if (at[0] || at[-1] == ',')
        return err_set(e, E_INPUT, "--pool-owner names the owners of more layers than the model has (%d)", s->n_layers);
    return 0;
}

int ffn_parse_owners(struct ffn_setup *s, const char *text, struct err *e)
{
    bool contiguous = strcmp(text, "contiguous") == 0;
    if (!contiguous && strcmp(text, "layer-mod") != 0)
        return parse_list(s, text, e);
    for (int l = 0; l < s->n_layers; l++)
        s->owner[l] = (uint8_t)(contiguous ? l * s->n_ranks / s->n_layers : l % s->n_ranks);
    return 0;
}

int ffn_owned(const struct ffn_setup *s, int rank)
{
    int n = 0;
    for (int l = 0; l < s->n_layers; l++)
        n += s->owner[l] == rank;
    return n;
}

static bool is_wanted(const struct ffn_setup *s, const struct ffn_need *n, int layer)
{
    return s->owner[layer] != n->rank && !ffn_is_cas(n->modes, layer) && !ffn_is_here(n->modes, layer) &&
           (n->goes_on || layer > n->at);
}

static bool is_here(const struct ffn_setup *s, const struct ffn_need *n, int layer)
{
    for (int i = 0; i < s->n_slots; i++)
        if (n->slots[i] == layer)
            return true;
    return false;
}

/* The slot whose contents are needed last, if that is after the layer; -1: none. */
static int slot_for(const struct ffn_setup *s, const struct ffn_need *n, int layer)
{
    int found = -1, furthest = ffn_distance(s->n_layers, n->at, layer);
    for (int i = 0; i < s->n_slots; i++) {
        int holds = n->slots[i];
        if (n->kept[i])
            continue;
        if (holds < 0 || !is_wanted(s, n, holds))
            return i;
        int distance = ffn_distance(s->n_layers, n->at, holds);
        if (distance > furthest) {
            furthest = distance;
            found = i;
        }
    }
    return found;
}

static bool take(const struct ffn_setup *s, const struct ffn_need *n, int candidate, int *layer, int *slot)
{
    if (!is_wanted(s, n, candidate) || is_here(s, n, candidate))
        return false;
    *layer = candidate;
    *slot = slot_for(s, n, candidate);
    return *slot >= 0;
}

/* Of the layers [from, to) the first that may be fetched. */
static bool take_nearest(const struct ffn_setup *s, const struct ffn_need *n, int from, int to, int *layer, int *slot)
{
    for (int l = from; l < to; l++)
        if (take(s, n, l, layer, slot))
            return true;
    return false;
}

/* While layer i of a cycle is computed, i layers of the next one may have been begun, from layer r + 1 on: at any time
 * every rank reads another owner. */
static bool take_shifted(const struct ffn_setup *s, const struct ffn_need *n, int *layer, int *slot)
{
    int d = s->n_ranks, now = (n->at + 1) % s->n_layers, cycle = now / d * d, next = cycle + d;
    int spare = next > s->n_layers ? next - s->n_layers : 0; /* the last cycle may be shorter */
    next = next < s->n_layers ? next : 0;
    for (int i = 0; i < now - cycle + spare && i < d - 1; i++) {
        int l = next + (n->rank + 1 + i) % d;
        if (l < s->n_layers && take(s, n, l, layer, slot))
            return true;
    }
    return false;
}

/* The nearest layer whose owner nobody reads now: ranks do not always advance equally, and after a wait what the shift
 * would give them may be an owner that another one has come to. No further ahead than there are slots: those of nearer
 * layers are kept for them. */
static bool take_free(const struct ffn_setup *s, const struct ffn_need *n, int *layer, int *slot)
{
    int now = (n->at + 1) % s->n_layers;
    for (int k = 0, ahead = 0; k < s->n_layers && ahead < s->n_slots - 1; k++) {
        int l = (now + k) % s->n_layers;
        ahead += is_wanted(s, n, l);
        if (!(n->read >> s->owner[l] & 1) && take(s, n, l, layer, slot))
            return true;
    }
    return false;
}

static bool next_shifted(const struct ffn_setup *s, const struct ffn_need *n, int *layer, int *slot)
{
    int d = s->n_ranks, now = (n->at + 1) % s->n_layers, end = (now / d + 1) * d, other, there;
    if (!take_nearest(s, n, now, end < s->n_layers ? end : s->n_layers, layer, slot) &&
        !take_shifted(s, n, layer, slot))
        return false;
    if ((n->read >> s->owner[*layer] & 1) && take_free(s, n, &other, &there)) {
        *layer = other;
        *slot = there;
    }
    return true;
}

bool ffn_next_fetch(const struct ffn_setup *s, const struct ffn_need *n, int *layer, int *slot)
{
    int now = (n->at + 1) % s->n_layers;
    if (s->order == FFN_SHIFTED)
        return next_shifted(s, n, layer, slot);
    return take_nearest(s, n, now, s->n_layers, layer, slot) || take_nearest(s, n, 0, now, layer, slot);
}
