/* The KV blocks of a node: which are free, which a sequence holds, which only the prefix cache remembers. Bookkeeping
 * only: the bytes live on the ranks. Every rank has the same number of physical blocks of constant bytes. A place is a
 * KV placement: an ordered set of ranks (by share) that hold a sequence's heads between them; one block of a placement
 * is one physical block on each of its ranks, and holds more tokens the fewer heads and layers a rank stores. Blocks of
 * different placements live side by side. A block is held (refs > 0) or cached (refs == 0, found by its key, evicted
 * oldest first, whatever its placement). A rank may lend blocks, whose memory serves something else meanwhile
 * (world/replica.h). Host memory, where there is a tier of it, counts as one more store behind the ranks, with one
 * placement of its own that has all heads of all layers: so cached blocks are found there too; a disk, where there is
 * one, is a store behind that, of the same blocks. A cached block whose tokens do not lie in the tier below it yet is
 * unsaved: evicting it would lose them. Engine thread only.
 * Invariant, in each store: free + held + cached + lent == total (kv_check recounts). */
#ifndef WORLD_KV_H
#define WORLD_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "engine/world/ids.h"

/* KV_UNIT: tokens that one prefix key covers; every block holds a multiple of it. KV_RESERVE_SHARE: one block in so
 * many is kept for those that run (kv_reserve). */
enum { KV_UNIT = 16, MAX_PLACES = 256, KV_RESERVE_SHARE = 100 };

/* Blocks that kv_check_part looks at. */
enum { KV_CHECK_PART = 1 << 14 };

struct kv_cursor {
    int place, block;
};

struct kv_key {
    uint64_t h[2]; /* both 0: no key */
};

struct kv_block {
    int32_t refs;
    struct kv_key key;
    struct list lru;    /* in place.cached or place.saved while refs == 0 and keyed */
    struct list loss;   /* in place.unsaved, of those that are */
    uint64_t cached_at; /* order of the drop that cached it, over all places */
};

struct kv_place {
    int n, tokens_per_block;
    int n_blocks; /* of each of its stores */
    int stages;   /* shares of one stage hold its layers only (headmap.h) */
    int pieces; /* of a block, each of tokens_per_block / pieces tokens: a rank of one stage has the room of all layers
                 */
    int ranks[MAX_RANKS]; /* by share */
    uint64_t mask;
    struct kv_block *blocks; /* [n_blocks of a rank] */
    int32_t *phys;           /* [n_blocks][n] the physical block on each rank of a block in use */
    int32_t *unused;         /* block numbers that stand for nothing now */
    int n_unused, n_cached;
    struct list cached;         /* oldest first, but for those in `saved` */
    struct list saved;          /* held last by a copy to host memory, which is no use of them: oldest first */
    struct map index;           /* key.h[0] -> block; the whole key is compared on a hit */
    uint64_t n_entered, n_left; /* keys that ever came into the index, or out of it */
    int below;   /* the place of the next tier, host memory or the disk, if a block here is n_below whole ones of it */
    int n_below; /* 0: it is not, or there is none, and nothing is ever unsaved */
    struct kv_key *below_keys; /* [n_blocks][n_below] what they would be found by there */
    struct list unsaved;       /* oldest first */
};

struct kv_rank { /* or the host's memory, or the disk */
    int n_blocks;
    int32_t *free_list;   /* physical blocks */
    int n_free, n_cached; /* n_cached: of cached blocks of any place */
    int n_unsaved;        /* of those */
    int n_lent;           /* in nobody's hands here */
};

struct kv_pool {
    struct kv_rank *ranks; /* [n_stores] the ranks, and behind them the host's memory and the disk */
    struct kv_place *places[MAX_PLACES];
    int n_ranks, n_stores, n_places;
    int host_place, disk_place; /* -1: there is no such tier */
    int n_blocks;               /* physical blocks of each rank */
    uint64_t clock, n_evicted;
    uint64_t n_resets;     /* times that all cached blocks were forgotten */
    struct hasher *hasher; /* of the prefix keys */
    bool trusted;          /* nobody has chosen the texts, as in virtual time: a quick hash tells them apart */
};

void kv_init(struct kv_pool *p, int n_ranks, int n_blocks);
void kv_free(struct kv_pool *p);
/* Host memory of so many blocks, for good; before any place is opened. At most MAX_RANKS - 1 ranks then. */
void kv_open_host(struct kv_pool *p, int n_blocks, int tokens_per_block);
/* And a disk below it, of so many of its blocks; right afterwards. At most MAX_RANKS - 2 ranks then. */
void kv_open_disk(struct kv_pool *p, int n_blocks);
/* What a disk had before: physical block phys[i] is a cached one with keys[i], [0] being the oldest. All are different,
 * and nobody has used the disk yet. */
void kv_adopt_disk(struct kv_pool *p, const int32_t *phys, const struct kv_key *keys, int n);
struct kv_place_setup {
    const int *ranks; /* [n] by share */
    int n, stages, pieces, tokens_per_block;
};
/* The place of these ranks in this order, made when it is new. tokens_per_block: a multiple of KV_UNIT. -1: MAX_PLACES
 * reached. */
int kv_place_open(struct kv_pool *p, const struct kv_place_setup *s);
int kv_place_find(const struct kv_pool *p, const int *ranks, int n, int stages); /* -1: never opened */
static inline const struct kv_place *kv_place(const struct kv_pool *p, int place)
{
    return p->places[place];
}
int kv_available(const struct kv_pool *p, int place); /* blocks of that place to be had: free now, or by eviction */
static inline int kv_blocks_for(const struct kv_pool *p, int place, int n_tokens)
{
    int tpb = p->places[place]->tokens_per_block;
    return (n_tokens + tpb - 1) / tpb;
}
/* Blocks of each rank that a newcomer leaves to those that run: they grow while it computes its prompt, and would
 * otherwise have to give way again soon. */
static inline int kv_reserve(const struct kv_pool *p)
{
    return p->n_blocks / KV_RESERVE_SHARE;
}
static inline int32_t kv_phys(const struct kv_pool *p, int place, int32_t block, int share)
{
    return p->places[place]->phys[(int64_t)block * p->places[place]->n + share];
}
/* The pieces of these n blocks on a share's rank, in order of their tokens: blocks of a kv_space of its stage's layers,
 * n * pieces of them. */
void kv_fill_pieces(const struct kv_pool *p, int place, int share, const int32_t *blocks, int n, int32_t *out);
/* A block with refs 1 and no key; evicts the oldest cached ones where a rank has none free. -1: all are held. */
int32_t kv_take(struct kv_pool *p, int place);
void kv_hold(struct kv_pool *p, int place, int32_t block); /* refs + 1; a cached block becomes held */
void kv_drop(struct kv_pool *p, int place, int32_t block); /* refs - 1; at 0: cached when keyed, else free */
void kv_drop_unused(struct kv_pool *p, int place,
                    int32_t block); /* the same, and it is cached as old as it was before it was held */
/* Gives a held, full block its key, so that others find it. If another block of the place has the key already, this one
 * stays keyless. With the keys of all its units, the last of which is its own, it can be saved, too. */
void kv_publish(struct kv_pool *p, int place, int32_t block, struct kv_key key);
void kv_publish_units(struct kv_pool *p, int place, int32_t block, const struct kv_key *units);
void kv_unpublish(struct kv_pool *p, int place, int32_t block); /* a held one is found no more */
bool kv_is_keyed(const struct kv_pool *p, int place, int32_t block);
int32_t kv_lookup(const struct kv_pool *p, int place,
                  struct kv_key key); /* -1: none. Held or cached; refs are not touched */
/* The oldest unsaved block that would go down to the place `below`, of a place of which some store has fewer than
 * `safe` blocks left that may be had without loss; -1: there is none, in *place too. */
int32_t kv_next_unsaved(const struct kv_pool *p, int below, int safe, int *place);
/* What its blocks of the tier below are found by. */
static inline const struct kv_key *kv_below_keys(const struct kv_pool *p, int place, int32_t block)
{
    const struct kv_place *l = p->places[place];
    return l->below_keys + (int64_t)block * l->n_below;
}
/* The rank gives up n blocks, evicting cached ones where too few are free; blocks[0 .. n) says which. False: too many
 * are held (nothing changed). */
bool kv_lend(struct kv_pool *p, int rank, int n, int32_t *blocks);
void kv_take_back(struct kv_pool *p, int rank, int n, const int32_t *blocks); /* lent ones are free again */
void kv_forget_cached(struct kv_pool *p);                                     /* every cached block becomes free */
void kv_forget_rank(struct kv_pool *p,
                    int rank); /* its bytes are lost: cached blocks that lie on it become free, held ones keyless */
bool kv_check(const struct kv_pool *p); /* full recount; false = a bug. For millions of blocks it takes seconds */
/* A few milliseconds of it: the sums, and the next KV_CHECK_PART blocks by themselves, from *at on (at first zero), in
 * turns through all places; where there are no more than that, all of kv_check. */
bool kv_check_part(const struct kv_pool *p, struct kv_cursor *at);

/* Prefix keys: a SHA-256 chain over units of KV_UNIT tokens, begun with the tenant's salt, so tenants never share and
 * equal keys mean equal text. A block of u units has the key of its last unit: so the same chain serves every place.
 * Where texts are trusted the chain goes on with 128 bits that are mixed, not hashed: who chose the text could make two
 * the same. */
struct kv_key kv_key_root(const struct kv_pool *p, const char *salt);
struct kv_key kv_key_next(const struct kv_pool *p, struct kv_key parent, const int32_t *tokens);

#endif
