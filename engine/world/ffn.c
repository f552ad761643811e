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

void ffn_give(struct ffn_setup *s, int layer, int share, int rank)
{
    *(share ? &s->more[layer][share - 1] : &s->owner[layer]) = (uint8_t)rank;
}

/* "0", or "0+1": the ranks that have the shares of the layer. Returns where the text goes on, NULL if it is no owner.
 */
static const char *parse_owner(struct ffn_setup *s, int layer, const char *at)
{
    uint64_t taken = 0;
    for (int n = 0; n < FFN_MAX_SHARES; n++, at++) {
        char *end;
        long rank = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (rank < 0 || rank >= s->n_ranks || taken >> rank & 1)
            return NULL;
        taken |= 1ull << rank;
        s->n_more[layer] = (uint8_t)n;
        ffn_give(s, layer, n, (int)rank);
        at = end;
        if (*at != '+')
            return *at && *at != ',' ? NULL : at;
    }
    return NULL;
}

static int parse_list(struct ffn_setup *s, const char *text, struct err *e)
{
    const char *at = text;
    for (int l = 0; l < s->n_layers; l++) {
        const char *end = parse_owner(s, l, at);
        if (!end)
            return err_set(
                e, E_INPUT,
                "--pool-owner: layer %d needs a rank from 0 to %d, or up to %d different ones for its shares "
                "(0+1); give layer-mod, contiguous, or the owner of each of the %d layers (0,0,1,1,...)",
                l, s->n_ranks - 1, FFN_MAX_SHARES, s->n_layers);
        if (!*end && l + 1 < s->n_layers)
            return err_set(e, E_INPUT, "--pool-owner names the owners of %d layers, and the model has %d", l + 1,
                           s->n_layers);
        at = *end ? end + 1 : end;
    }
    if (at[0] || at[-1] == ',')
        return err_set(e, E_INPUT, "--pool-owner names the owners of more layers than the model has (%d)", s->n_layers);
    return 0;
}

/* Ranks of an owner in "NAME" or "NAME:N"; 0: it is another text, -1: no such N. */
static int group_size(const struct ffn_setup *s, const char *text, const char *name)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(text, name, n) != 0 || (text[n] && text[n] != ':'))
        return 0;
    if (!text[n])
        return 1;
    long size = strtol(text + n + 1, &end, 10);
    return text[n + 1] && !*end && size >= 1 && size <= FFN_MAX_SHARES && s->n_ranks % size == 0 ? (int)size : -1;
}

int ffn_parse_owners(struct ffn_setup *s, const char *text, struct err *e)
{
    int mod = group_size(s, text, "layer-mod"), range = group_size(s, text, "contiguous"), size = mod ? mod : range;
    if (size == 0)
        return parse_list(s, text, e);
    if (size < 0)
        return err_set(
            e, E_INPUT,
            "--pool-owner %s: owners are groups of 1 to %d ranks, and the %d ranks have to be so many groups", text,
            FFN_MAX_SHARES, s->n_ranks);
    int groups = s->n_ranks / size;
    for (int l = 0; l < s->n_layers; l++) {
        int group = range ? l * groups / s->n_layers : l % groups;
        s->n_more[l] = (uint8_t)(size - 1);
        for (int i = 0; i < size; i++)
            ffn_give(s, l, i, group * size + i);
    }
    return 0;
}

void ffn_put_owners(const struct ffn_setup *s, struct buf *out)
{
    for (int l = 0; l < s->n_layers; l++) {
        buf_puts(out, l ? "," : "[");
        for (int i = 0; i < ffn_shares(s, l); i++)
            buf_printf(out, "%s%d", i ? "," : s->n_more[l] ? "[" : "", ffn_owner(s, l, i));
        buf_puts(out, s->n_more[l] ? "]" : "");
    }
    buf_putc(out, ']');
}

bool ffn_any_shares(const struct ffn_setup *s)
{
    for (int l = 0; l < s->n_layers; l++)
        if (s->n_more[l])
            return true;
    return false;
}

int ffn_owned(const struct ffn_setup *s, int rank)
{
    int n = 0;
    for (int l = 0; l < s->n_layers; l++)
        for (int i = 0; i < ffn_shares(s, l); i++)
            n += ffn_owner(s, l, i) == rank;
    return n;
}

static bool is_wanted(const struct ffn_setup *s, const struct ffn_need *n, int layer)
{
    return !ffn_is_local(s, layer, n->rank, n->tp, n->t) && !ffn_is_cas(n->modes, layer) &&
           !ffn_is_here(n->modes, layer) && (n->goes_on || layer > n->at);
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
