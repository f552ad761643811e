/* The requests of one queue as Lua tables, one per column that the policy's `needs` names: row i of every column is one
 * request. A request keeps its row while it stays in the queue, except that the last row moves into a gap; the lists
 * `first` and `last` (when needed) name the rows at the ends of the queue's order. Only cells that changed are written.
 * C keeps a copy of every number it wrote, so that a policy that writes into its view is found out. Owned by the bind
 * of one script. Invariant: no decision of the engine rests on what these tables hold. */
#ifndef LUA_COLUMNS_H
#define LUA_COLUMNS_H

#include <lua.h>

#include "engine/base/rng.h"
#include "engine/world/view.h"

enum column {
    COL_ID,
    COL_TENANT,
    COL_PRIORITY,
    COL_ARRIVAL,
    COL_PROMPT,
    COL_MAX_TOKENS,
    COL_SLO_TTFT,
    COL_SLO_TPOT,
    COL_PREEMPTED,
    COL_WAITING_SINCE,
    COL_STARTED,
    COL_OPEN_ENDED,
    COL_OFFLINE,
    COL_KEY /* changes only by leaving and entering the queue */,
    COL_COMPUTED /* from here on at any time */,
    COL_OUTPUT,
    COL_REMAINING,
    COL_BLOCKS,
    COL_GROUP,
    COL_HOME,
    COL_PARKED,
    COL_IN_HOST,
    COL_HELD,
    COL_DRAFTED,
    COL_ACCEPTED,
    COL_REJECTED,
    COL_PROBE,
    COL_PROBE_EVERY,
    COL_PROBED_AT,
    COL_ANSWERS,
    COLUMN_COUNT,
    COL_FIRST = COLUMN_COUNT,
    COL_LAST,
    NEED_COUNT /* the two lists: needed by name like columns */
};

_Static_assert(NEED_COUNT <= 32, "a mask has 32 bits");

enum { COLUMN_ENDS = 16 }; /* rows that `first` and `last` list at most */

extern const char *const column_names[NEED_COUNT];

struct columns {
    unsigned mask; /* 1 << enum column; 0: the policy needs none */
    int view_ref;  /* view.waiting or view.running */
    int refs[COLUMN_COUNT];
    int end_refs[2];          /* first, last */
    const void *view_pointer; /* to know the table again when it comes back as an argument */
    int n, cap, n_shown;
    req_id *ids; /* by row */
    uint32_t *seen;
    double *cells[COLUMN_COUNT]; /* what was written: numbers, or a hash for texts */
    int ends[2][COLUMN_ENDS];
    int32_t *row_of; /* by slot of the request table */
    int n_slots;
    uint32_t epoch;
    uint64_t n_changes; /* of the queue's journal, seen so far */
    uint64_t sides;     /* the epoch of the world's sides then */
    bool stale;         /* the journal does not tell how to get from here to there */
    struct rng rng;
};

/* The mask for needs = { "priority", "waiting.tenant", ... } (a table at index, or nil) for the queue called
 * `queue`. A body: raises on unknown names. */
unsigned columns_needed(lua_State *L, int index, const char *queue);
/* Makes the tables; pushes the view table. A body. */
void columns_create(struct columns *c, lua_State *L, unsigned mask);
void columns_free(struct columns *c);
/* Brings the tables up to date with those of q, a queue of the view's world, that are on the view's side. A body, with
 * the host's reserve open. False: a cell is not what was written (then columns_reset). */
bool columns_sync(struct columns *c, lua_State *L, const struct view *v, const struct req_queue *q);
/* Every cell is what was written there (columns_sync looks at a few). A body. */
bool columns_untouched(struct columns *c, lua_State *L);
/* The row of a request, from 1; 0: it has none. */
int columns_row(const struct columns *c, req_id id);
/* Fresh tables; the next sync fills them. A body. */
void columns_reset(struct columns *c, lua_State *L);
/* Makes room for n rows. Returns the bytes by which the Lua tables may now grow. */
size_t columns_reserve(struct columns *c, int n);

/* A request id as Lua sees it: exact in a double. */
static inline double lua_req_id(req_id id)
{
    return (double)((id >> 32) << 16 | (id & 0xffff));
}
static inline req_id lua_req_id_back(double v) /* 0: not one */
{
    if (!(v >= 65536 && v < 281474976710656.0) || v != (double)(uint64_t)v)
        return 0;
    uint64_t u = (uint64_t)v;
    return (u >> 16) << 32 | (u & 0xffff);
}

#endif
