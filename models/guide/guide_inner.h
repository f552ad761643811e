/* What the two files of guides share: how states and their lists are kept. guide.c walks grammars and finds states,
 * guide_lists.c finds the tokens of one. Owned by a guide. Invariant: a state, once found, does not change, but for its
 * steps and its list, which are found once. */
#ifndef MODELS_GUIDE_GUIDE_INNER_H
#define MODELS_GUIDE_GUIDE_INNER_H

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "models/guide/guide.h"

/* States: nothing is alive; not found yet; more is alive than can be followed. */
enum { STATE_DEAD = -1, STATE_UNKNOWN = -2, STATE_OVER = -3 };

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

static inline void guide_count(struct guide *g, size_t bytes)
{
    g->bytes += bytes;
    *g->total += bytes;
}

#endif
