#include "kernels/sim/pool.h"

static double most(double a, double b)
{
    return a > b ? a : b;
}

static int shares_of(const struct sim_weights *w)
{
    return w->shares > 1 ? w->shares : 1;
}

/* Layers of an owner. */
static int held(const struct ffn_setup *s, int shares, int owner)
{
    int n = 0;
    for (int i = 0; i < shares; i++)
        n += ffn_owned(s, owner * shares + i);
    return n;
}

struct pool_sight pool_look(const struct sim_weights *w, int ranks)
{
    struct pool_sight p = {.setup = w->pool, .shares = shares_of(w)};
    p.n_owners = w->pool ? w->pool->n_ranks / p.shares : 0;
    if (p.n_owners < 2 || ranks < 1)
        return (struct pool_sight){.shares = p.shares};
    p.busy = (ranks + p.shares - 1) / p.shares;
    p.busy = p.busy < p.n_owners ? p.busy : p.n_owners;
    int least = held(w->pool, p.shares, 0);
    for (int i = 1; i < p.n_owners; i++) {
        int n = held(w->pool, p.shares, i);
        if (n < least) {
            least = n;
            p.me = i;
        }
    }
    return p;
}

/* Ranks that start together, each fetching layer after layer: an owner skips its own layer and is ahead from then on,
 * so that of d ranks d - 1 read the first owner of a cycle and one the last, d / 2 on average. Tiles of n layers in
 * turn spread over n owners. With a slot for each rank, shifted fetches never meet. */
double pool_readers(const struct pool_sight *p)
{
    const struct ffn_setup *s = p->setup;
    if (s->order == FFN_SHIFTED && s->n_slots >= p->n_owners)
        return 1;
    return most(1, (double)p->busy / (s->order == FFN_PLAIN ? 2 : s->n_slots + 1));
}

/* Rows go to the owner of the layer that is computed: those of every busy rank but the owner's own, which is one of
 * them by chance. */
double pool_senders(const struct pool_sight *p)
{
    return 1 + (p->busy - 1) * (1 - 1.0 / (p->n_owners - 1));
}

int pool_own_layers(const struct pool_sight *p)
{
    return held(p->setup, p->shares, p->me);
}

int pool_cas_layers(const struct pool_sight *p, int cas_layers, bool here)
{
    int n = 0;
    for (int l = p->setup->n_layers - cas_layers; l < p->setup->n_layers; l++)
        n += pool_is_own(p, l) == here;
    return n;
}

/* One fetch after the other. Fetch k takes the slot that fetch k - n_slots left when its product ended. */
double pool_wait(const struct pool_sight *p, const struct pool_pace *t, struct sim_pool_layer *layers)
{
    enum { STEPS = 3 }; /* the first begins with all slots empty */
    const struct ffn_setup *s = p->setup;
    double released[FFN_MAX_LAYERS] = {0}, now = 0, link_free = 0, waited = 0;
    int slots = s->n_slots < FFN_MAX_LAYERS ? s->n_slots : FFN_MAX_LAYERS, slot = 0;
    for (int step = 0; step < STEPS; step++) {
        double begun = now;
        waited = 0;
        for (int l = 0; l < s->n_layers; l++) {
            bool cas = l >= s->n_layers - t->cas_layers, own = pool_is_own(p, l) || (!cas && l < t->replica_layers);
            struct sim_pool_layer x = {.mode = own ? FFN_LOCAL : cas ? FFN_CAS : FFN_WAS, .begin = now - begun};
            now += t->before;
            x.ready = now - begun;
            if (x.mode == FFN_WAS) {
                x.fetch_begin = most(link_free, released[slot]) - begun;
                link_free = most(link_free, released[slot]) + t->fetch;
                x.fetch_end = link_free - begun;
                waited += most(0, link_free - now);
                now += most(0, link_free - now);
            }
            x.ffn = now - begun;
            now += !cas ? t->ffn : own ? t->served_here : t->served;
            x.end = now - begun;
            if (x.mode == FFN_WAS) {
                released[slot] = now;
                slot = (slot + 1) % slots;
            }
            if (layers)
                layers[l] = x;
        }
        now += t->between;
    }
    return waited;
}

double pool_saved_bytes(const struct sim_weights *w, double ffn_bytes)
{
    struct pool_sight p = pool_look(w, 1);
    if (!p.setup)
        return 0;
    int top = 0;
    for (int i = 0; i < p.n_owners; i++) {
        int n = held(w->pool, p.shares, i);
        top = n > top ? n : top;
    }
    return ffn_bytes * (p.setup->n_layers - top - p.setup->n_slots);
}
