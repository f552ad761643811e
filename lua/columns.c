#include "lua/columns.h"

#include <lauxlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"

_Static_assert(MAX_REQUESTS <= 65536, "lua_req_id keeps 16 bits of the slot");

enum { FIRST_ROWS = 128 };

const char *const column_names[NEED_COUNT] = {
    "id",        "tenant",        "priority", "arrival",     "prompt",    "max_tokens", "slo_ttft_ms", "slo_tpot_ms",
    "preempted", "waiting_since", "started",  "open_ended",  "offline",   "key",        "computed",    "output",
    "remaining", "blocks",        "group",    "home",        "parked",    "in_host",    "held",        "drafted",
    "accepted",  "rejected",      "probe",    "probe_every", "probed_at", "answers",    "first",       "last",
};

/* ---- needs */

static int find_column(const char *name)
{
    for (int c = 0; c < NEED_COUNT; c++)
        if (strcmp(column_names[c], name) == 0)
            return c;
    return -1;
}

unsigned columns_needed(lua_State *L, int index, const char *queue)
{
    if (lua_isnil(L, index))
        return 0;
    if (lua_type(L, index) != LUA_TTABLE)
        luaL_error(L, "needs must be a list of column names");
    unsigned mask = 0;
    int n = (int)lua_objlen(L, index);
    for (int i = 1; i <= n && i <= 3 * NEED_COUNT; i++) {
        lua_rawgeti(L, index, i);
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "needs must be a list of column names");
        const char *full = lua_tostring(L, -1), *dot = strchr(full, '.'), *name = dot ? dot + 1 : full;
        int c = find_column(name);
        bool known_queue = !dot || strncmp(full, "waiting.", 8) == 0 || strncmp(full, "running.", 8) == 0;
        if (c < 0 || !known_queue) {
            const char *near = nearest_word(name, column_names, NEED_COUNT);
            luaL_error(L, "needs: there is no column '%s'%s%s%s", full, near ? "; did you mean '" : "",
                       near ? near : "", near ? "'?" : "");
        }
        if (!dot || strncmp(full, queue, (size_t)(dot - full)) == 0)
            mask |= 1u << c | 1u << COL_ID;
        lua_pop(L, 1);
    }
    return mask;
}

/* ---- tables */

static int new_table(lua_State *L, int n)
{
    lua_createtable(L, n, 0);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* Makes new tables and hangs them into the view table on top of the stack. */
static void make_tables(struct columns *c, lua_State *L)
{
    for (int k = 0; k < NEED_COUNT; k++)
        if (c->mask & 1u << k) {
            int *ref = k < COLUMN_COUNT ? &c->refs[k] : &c->end_refs[k - COL_FIRST];
            *ref = new_table(L, k < COLUMN_COUNT ? FIRST_ROWS : COLUMN_ENDS);
            lua_rawgeti(L, LUA_REGISTRYINDEX, *ref);
            lua_setfield(L, -2, column_names[k]);
        }
    lua_pushnumber(L, 0);
    lua_setfield(L, -2, "n");
    c->n = c->n_shown = 0;
    c->stale = true;
    memset(c->ends, 0, sizeof c->ends);
    for (int i = 0; i < c->n_slots; i++)
        c->row_of[i] = -1;
}

void columns_create(struct columns *c, lua_State *L, unsigned mask)
{
    *c = (struct columns){.mask = mask};
    rng_init(&c->rng, 1);
    lua_newtable(L);
    c->view_pointer = lua_topointer(L, -1);
    lua_pushvalue(L, -1);
    c->view_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    make_tables(c, L);
}

void columns_free(struct columns *c)
{
    for (int k = 0; k < COLUMN_COUNT; k++)
        mem_free(c->cells[k]);
    mem_free(c->ids);
    mem_free(c->seen);
    mem_free(c->row_of);
    *c = (struct columns){0};
}

void columns_reset(struct columns *c, lua_State *L)
{
    for (int k = 0; k < NEED_COUNT; k++)
        if (c->mask & 1u << k)
            luaL_unref(L, LUA_REGISTRYINDEX, k < COLUMN_COUNT ? c->refs[k] : c->end_refs[k - COL_FIRST]);
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->view_ref);
    make_tables(c, L);
    lua_pop(L, 1);
}

/* ---- cells */

/* The group that has the placement of its KV; 0: it has no KV, or no group has it now. */
static int home_of(const struct world *w, const struct request *r)
{
    if (r->group || !r->n_blocks)
        return r->group;
    for (int i = 0; i < w->partition.n_groups; i++) {
        const struct group *g = &w->partition.groups[w->partition.order[i]];
        if (g->place == r->place)
            return g->id;
    }
    return 0;
}

static double cell_of(const struct world *w, const struct request *r, int column)
{
    switch (column) {
    case COL_ID:
        return lua_req_id(r->id);
    case COL_TENANT:
        return (double)(map_hash_bytes(r->spec->tenant, strlen(r->spec->tenant)) >> 12);
    case COL_PRIORITY:
        return r->spec->priority;
    case COL_ARRIVAL:
        return (double)r->spec->arrival_ns * 1e-9;
    case COL_PROMPT:
        return r->spec->n_prompt;
    case COL_MAX_TOKENS:
        return r->spec->max_tokens;
    case COL_SLO_TTFT:
        return r->spec->slo_ttft_ms;
    case COL_SLO_TPOT:
        return r->spec->slo_tpot_ms;
    case COL_PREEMPTED:
        return r->n_preempted;
    case COL_WAITING_SINCE:
        return (double)r->waiting_since_ns * 1e-9;
    case COL_STARTED:
        return (double)r->first_scheduled_ns * 1e-9;
    case COL_OPEN_ENDED:
        return r->spec->open_ended;
    case COL_OFFLINE:
        return r->spec->offline;
    case COL_KEY:
        return r->key;
    case COL_COMPUTED:
        return r->n_computed;
    case COL_OUTPUT:
        return request_output(r);
    case COL_REMAINING:
        return request_remaining(r);
    case COL_BLOCKS:
        return r->n_blocks;
    case COL_GROUP:
        return r->group;
    case COL_HOME:
        return home_of(w, r);
    case COL_PARKED:
        return r->parked;
    case COL_IN_HOST:
        return world_in_host(w, r);
    case COL_HELD:
        return (double)r->held_until_ns * 1e-9;
    case COL_DRAFTED:
        return (double)draft_total(r).drafted;
    case COL_ACCEPTED:
        return (double)draft_total(r).accepted;
    case COL_REJECTED:
        return (double)draft_total(r).rejected;
    case COL_PROBE:
        return r->parent ? lua_req_id(r->parent) : 0;
    case COL_PROBE_EVERY:
        return r->probes && !r->probes->closed ? r->spec->probe_every : 0;
    case COL_PROBED_AT:
        return r->probes ? r->probes->asked_at : 0;
    case COL_ANSWERS:
        return r->probes ? (double)r->probes->n_said : 0;
    default:
        return 0; /* no column */
    }
    return 0;
}

/* Stack: the tables of the needed columns lie from `base` on, in the order of the columns. */
struct sync {
    lua_State *L;
    struct columns *c;
    const struct world *world;
    enum side side; /* whose requests have rows */
    int n_members;  /* so many of the queue's do */
    int base;
    int n_columns, columns[COLUMN_COUNT]; /* those needed, ascending */
    int n_static; /* of them, those that never change in a row; with the key: those the journal covers */
    int n_journaled;
};

static void push_tables(struct sync *s)
{
    lua_State *L = s->L;
    s->base = lua_gettop(L) + 1;
    for (int k = 0; k < COLUMN_COUNT; k++)
        if (s->c->mask & 1u << k) {
            lua_rawgeti(L, LUA_REGISTRYINDEX, s->c->refs[k]);
            s->columns[s->n_columns++] = k;
            s->n_static += k < COL_KEY;
            s->n_journaled += k <= COL_KEY;
        }
}

static bool is_flag(int column)
{
    return column == COL_PARKED || column == COL_IN_HOST || column == COL_OPEN_ENDED || column == COL_OFFLINE;
}

/* Any cell but a tenant. */
static void push_cell(lua_State *L, int column, double v)
{
    if (is_flag(column))
        lua_pushboolean(L, v != 0);
    else
        lua_pushnumber(L, v);
}

static void put_cell(struct sync *s, int i, int row, const struct request *r)
{
    unsigned k = (unsigned)s->columns[i]; /* gcc 12 at -O3 sees negative ones */
    double v = cell_of(s->world, r, k);
    s->c->cells[k][row] = v;
    if (k == COL_TENANT)
        lua_pushstring(s->L, r->spec->tenant);
    else
        push_cell(s->L, k, v);
    lua_rawseti(s->L, s->base + i, row + 1);
}

static void put_changes(struct sync *s, int row, const struct request *r, int from)
{
    for (int i = from; i < s->n_columns; i++) {
        int k = s->columns[i];
        double v = cell_of(s->world, r, k);
        if (s->c->cells[k][row] == v)
            continue;
        s->c->cells[k][row] = v;
        push_cell(s->L, k, v);
        lua_rawseti(s->L, s->base + i, row + 1);
    }
}

static void grow(struct columns *c)
{
    c->cap = c->cap ? c->cap * 2 : FIRST_ROWS;
    c->ids = mem_resize(c->ids, (size_t)c->cap, sizeof *c->ids);
    c->seen = mem_resize(c->seen, (size_t)c->cap, sizeof *c->seen);
    for (int k = 0; k < COLUMN_COUNT; k++)
        if (c->mask & 1u << k)
            c->cells[k] = mem_resize(c->cells[k], (size_t)c->cap, sizeof *c->cells[k]);
}

/* What the tables of this many rows take beyond the first ones, with which they were made; Lua may keep an old
 * and a new array for a while. */
static size_t table_bytes(const struct columns *c, int rows)
{
    size_t n = 0;
    for (int k = 0; k < COLUMN_COUNT && rows > FIRST_ROWS; k++)
        n += (c->mask >> k & 1) * 2 * sizeof(double) * (size_t)(rows - FIRST_ROWS);
    return n;
}

size_t columns_reserve(struct columns *c, int n)
{
    size_t before = table_bytes(c, c->cap);
    n += QUEUE_JOURNAL; /* following the journal may add rows before it drops others */
    while (c->mask && c->cap < n)
        grow(c);
    return table_bytes(c, c->cap) - before;
}

static void set_row(struct columns *c, req_id id, int row)
{
    int slot = (int)(uint32_t)id;
    if (slot >= c->n_slots) {
        int n = c->n_slots ? c->n_slots : 64;
        while (n <= slot)
            n *= 2;
        c->row_of = mem_resize(c->row_of, (size_t)n, sizeof *c->row_of);
        for (int i = c->n_slots; i < n; i++)
            c->row_of[i] = -1;
        c->n_slots = n;
    }
    c->row_of[slot] = row;
}

static int find_row(const struct columns *c, req_id id)
{
    uint32_t slot = (uint32_t)id;
    int row = slot < (uint32_t)c->n_slots ? c->row_of[slot] : -1;
    return row >= 0 && row < c->n && c->ids[row] == id ? row : -1;
}

int columns_row(const struct columns *c, req_id id)
{
    return find_row(c, id) + 1;
}

static void add_row(struct sync *s, const struct request *r)
{
    struct columns *c = s->c;
    int row = c->n++;
    ASSERT(row < c->cap); /* columns_reserve */
    c->ids[row] = r->id;
    c->seen[row] = c->epoch;
    set_row(c, r->id, row);
    for (int i = 0; i < s->n_columns; i++)
        put_cell(s, i, row, r);
}

/* The last row moves into the gap. */
static void drop_row(struct sync *s, int row)
{
    struct columns *c = s->c;
    int last = --c->n;
    int slot = (int)(uint32_t)c->ids[row];
    if (c->row_of[slot] == row)
        c->row_of[slot] = -1; /* unless a new request has the slot already */
    for (int i = 0; i < s->n_columns; i++) {
        int k = s->columns[i];
        if (row != last) {
            c->cells[k][row] = c->cells[k][last];
            if (k == COL_TENANT)
                lua_rawgeti(s->L, s->base + i, last + 1);
            else
                push_cell(s->L, k, c->cells[k][last]);
            lua_rawseti(s->L, s->base + i, row + 1);
        }
        lua_pushnil(s->L);
        lua_rawseti(s->L, s->base + i, last + 1);
    }
    if (row != last) {
        c->ids[row] = c->ids[last];
        c->seen[row] = c->seen[last];
        set_row(c, c->ids[row], row);
    }
}

/* ---- the ends of the order */

/* which: 0 the first, 1 the last of the queue. */
static void put_end(const struct sync *s, int which, const struct req_queue *q)
{
    struct columns *c = s->c;
    lua_State *L = s->L;
    int at = 0;
    if (!(c->mask & 1u << (COL_FIRST + which)))
        return;
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->end_refs[which]);
    for (int i = 0; i < COLUMN_ENDS; i++, at++) {
        while (at < q->n && !side_has(s->side, q->items[which ? q->n - 1 - at : at]->canary))
            at++;
        int row = at < q->n ? find_row(c, q->items[which ? q->n - 1 - at : at]->id) + 1 : 0;
        if (c->ends[which][i] == row)
            continue;
        c->ends[which][i] = row;
        if (row)
            lua_pushnumber(L, row);
        else
            lua_pushnil(L);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pop(L, 1);
}

/* ---- truth */

/* Is the cell of a row (from 0), in the needed column of this index, still what was written there? */
static bool cell_stands(const struct sync *s, int row, int at)
{
    const struct columns *c = s->c;
    int k = s->columns[at];
    bool good;
    lua_rawgeti(s->L, s->base + at, row + 1);
    if (k == COL_TENANT) {
        size_t n = 0;
        const char *text = lua_type(s->L, -1) == LUA_TSTRING ? lua_tolstring(s->L, -1, &n) : NULL;
        good = text && (double)(map_hash_bytes(text, n) >> 12) == c->cells[k][row];
    } else if (is_flag(k))
        good = lua_type(s->L, -1) == LUA_TBOOLEAN && lua_toboolean(s->L, -1) == (c->cells[k][row] != 0);
    else
        good = lua_type(s->L, -1) == LUA_TNUMBER && lua_tonumber(s->L, -1) == c->cells[k][row];
    lua_pop(s->L, 1);
    return good;
}

/* Two cells drawn at random. */
static bool spot_check(struct sync *s)
{
    struct columns *c = s->c;
    bool good = true;
    for (int i = 0; i < 2 && c->n && good; i++) {
        int row = (int)rng_below(&c->rng, (uint64_t)c->n);
        good = cell_stands(s, row, (int)rng_below(&c->rng, (uint64_t)s->n_columns));
    }
    return good;
}

bool columns_untouched(struct columns *c, lua_State *L)
{
    struct sync s = {.L = L, .c = c};
    bool good = true;
    if (!c->mask)
        return true;
    luaL_checkstack(L, COLUMN_COUNT + 8, NULL);
    push_tables(&s);
    for (int row = 0; row < c->n && good; row++)
        for (int i = 0; i < s.n_columns && good; i++)
            good = cell_stands(&s, row, i);
    lua_settop(L, s.base - 1);
    return good;
}

static void show_count(struct columns *c, lua_State *L, int n)
{
    if (c->n_shown == n)
        return;
    c->n_shown = n;
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->view_ref);
    lua_pushnumber(L, n);
    lua_setfield(L, -2, "n");
    lua_pop(L, 1);
}

/* Compares everything. Requests of q that have a row are marked and patched first, so that a row not marked
 * is one to drop. */
static void sync_all(struct sync *s, const struct req_queue *q)
{
    struct columns *c = s->c;
    int n_seen = 0;
    c->epoch++;
    for (int i = 0; i < q->n; i++) {
        int row = side_has(s->side, q->items[i]->canary) ? find_row(c, q->items[i]->id) : -1;
        if (row < 0)
            continue;
        c->seen[row] = c->epoch;
        n_seen++;
        put_changes(s, row, q->items[i], s->n_static);
    }
    for (int row = c->n - 1; row >= 0 && n_seen < c->n; row--)
        if (c->seen[row] != c->epoch)
            drop_row(s, row);
    for (int i = 0; i < q->n && c->n < s->n_members; i++)
        if (side_has(s->side, q->items[i]->canary) && find_row(c, q->items[i]->id) < 0)
            add_row(s, q->items[i]);
}

/* Follows the queue's journal. A request that has entered and left again since is gone, or in the other
 * queue, by now. */
static void sync_journal(struct sync *s, const struct world *w, const struct req_queue *q)
{
    struct columns *c = s->c;
    enum req_state here = q == &w->waiting ? REQ_WAITING : REQ_RUNNING;
    for (uint64_t i = c->n_changes; i < q->n_changes; i++) {
        const struct queue_change *change = &q->journal[i % QUEUE_JOURNAL];
        int row = find_row(c, change->id);
        if (!change->entered && row >= 0)
            drop_row(s, row);
        const struct request *r = change->entered && row < 0 ? request_find(&w->requests, change->id) : NULL;
        if (r && r->state == here && side_has(s->side, r->canary))
            add_row(s, r);
    }
    for (int i = 0; s->n_journaled < s->n_columns && i < q->n; i++) {
        int row = find_row(c, q->items[i]->id);
        if (row >= 0)
            put_changes(s, row, q->items[i], s->n_journaled);
    }
}

static bool same_members(const struct sync *s, const struct req_queue *q)
{
    struct columns *c = s->c;
    const struct request *any = q->n ? q->items[rng_below(&c->rng, (uint64_t)q->n)] : NULL;
    return c->n == s->n_members && (!any || (find_row(c, any->id) >= 0) == side_has(s->side, any->canary));
}

static void sync_rows(struct sync *s, const struct world *w, const struct req_queue *q)
{
    struct columns *c = s->c;
    bool told = !c->stale && c->sides == w->sides.epoch && q->n_changes - c->n_changes <= QUEUE_JOURNAL;
    if (told)
        sync_journal(s, w, q);
    if (!told || !same_members(s, q))
        sync_all(s, q);
    c->n_changes = q->n_changes;
    c->sides = w->sides.epoch;
    c->stale = false;
}

bool columns_sync(struct columns *c, lua_State *L, const struct view *v, const struct req_queue *q)
{
    const struct world *w = v->world;
    int n = q == &w->waiting ? side_waiting(w, v->side) : side_running(w, v->side);
    if (c->mask) {
        struct sync s = {.L = L, .c = c, .world = w, .side = v->side, .n_members = n};
        luaL_checkstack(L, COLUMN_COUNT + 8, NULL);
        push_tables(&s);
        if (!spot_check(&s))
            return false;
        sync_rows(&s, w, q);
        lua_settop(L, s.base - 1);
        put_end(&s, 0, q);
        put_end(&s, 1, q);
    }
    show_count(c, L, n);
    return true;
}
