#include "lua/queries.h"

#include <lauxlib.h>

#include "lua/columns.h"
#include "lua/script.h"
#include "lua/verbs.h"

static enum side side_of(lua_State *L)
{
    return bind_of(L)->facts->side;
}

static const struct world *world_of(lua_State *L, const char *what)
{
    const struct view *v = bind_of(L)->facts;
    if (!v)
        luaL_error(L, "%s is for hooks that have a view", what);
    return v->world;
}

/* The k-th of a side, from 1 on; NULL: there are not so many. */
static const struct request *kth(const struct req_queue *q, enum side s, int k)
{
    if (s == SIDE_ALL)
        return k <= q->n ? q->items[k - 1] : NULL;
    for (int i = 0; i < q->n; i++)
        if (side_has(s, q->items[i]->canary) && --k == 0)
            return q->items[i];
    return NULL;
}

/* view.row(view.waiting or view.running, k): the row of the k-th request in the queue's order; nil: there are not so
 * many, or (in admit and finish) it came since the last step. */
static int view_row(lua_State *L)
{
    struct bind *b = bind_of(L);
    const struct world *w = world_of(L, "view.row");
    lua_settop(L, 2);
    const void *table = lua_type(L, 1) == LUA_TTABLE ? lua_topointer(L, 1) : NULL;
    bool waiting = table == b->waiting.view_pointer;
    if (!table || (!waiting && table != b->running.view_pointer))
        return luaL_error(L, "view.row(queue, k): the queue is view.waiting or view.running, not a %s",
                          luaL_typename(L, 1));
    double k = verb_whole_number(L, 2, "view.row(queue, k): k", 1, 1 << 30);
    const struct columns *c = waiting ? &b->waiting : &b->running;
    const struct req_queue *q = waiting ? &w->waiting : &w->running;
    if (!c->mask)
        return luaL_error(L, "view.row: view.%s has no rows: add what you read of them to needs",
                          waiting ? "waiting" : "running");
    const struct request *r = kth(q, side_of(L), (int)k);
    int row = r ? columns_row(c, r->id) : 0;
    if (row)
        lua_pushnumber(L, row);
    else
        lua_pushnil(L);
    return 1;
}

struct tenant_share {
    int n_waiting, n_running;
    int64_t waiting_tokens;
};

/* What a side has of it; t NULL: nothing. */
static struct tenant_share counts_of(const struct tenant *t, enum side s)
{
    if (!t)
        return (struct tenant_share){0};
    struct tenant_share c = {t->n_waiting, t->n_running, t->waiting_tokens};
    if (s == SIDE_CANARY)
        return (struct tenant_share){t->canary.n_waiting, t->canary.n_running, t->canary.waiting_tokens};
    if (s == SIDE_LIVE) {
        c.n_waiting -= t->canary.n_waiting;
        c.n_running -= t->canary.n_running;
        c.waiting_tokens -= t->canary.waiting_tokens;
    }
    return c;
}

/* view.tenant(name): how many of its requests wait and run, and the prompt tokens of those that wait. */
static int view_tenant(lua_State *L)
{
    const struct world *w = world_of(L, "view.tenant");
    if (lua_type(L, 1) != LUA_TSTRING)
        return luaL_error(L, "view.tenant(name): the name is a text, not a %s", luaL_typename(L, 1));
    const struct tenant *t = tenants_find(&w->tenants, lua_tostring(L, 1));
    struct tenant_share c = counts_of(t, side_of(L));
    lua_pushnumber(L, c.n_waiting);
    lua_pushnumber(L, c.n_running);
    lua_pushnumber(L, (double)c.waiting_tokens);
    return 3;
}

/* view.tenants(): the names of the tenants that have a request in the server, in order. */
static int view_tenants(lua_State *L)
{
    const struct world *w = world_of(L, "view.tenants");
    lua_createtable(L, w->tenants.n, 0);
    for (int i = 0, n = 0; i < w->tenants.n; i++) {
        struct tenant_share c = counts_of(w->tenants.items[i], side_of(L));
        if (!c.n_waiting && !c.n_running)
            continue;
        lua_pushstring(L, w->tenants.items[i]->name);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

/* Cached tokens of r in one place. Keys are made as they are asked for, so it is no read. */
static int cached_in(lua_State *L, const struct request *r, const struct group *g)
{
    struct verb_result found;
    verb_do(L, &(struct verb_call){.kind = CALL_CACHED, .id = r->id, .group = g->id}, &found);
    return found.n;
}

/* view.cached(id [, group]): how many tokens of a waiting request the prefix cache has there, or in the group that has
 * the most; 0 when it holds KV of its own. */
static int view_cached(lua_State *L)
{
    const struct world *w = world_of(L, "view.cached");
    const struct request *r = request_find(&w->requests, verb_request(L, 1));
    const struct group *g = lua_isnoneornil(L, 2) ? NULL : view_group(bind_of(L)->facts, verb_group(L, 2));
    int most = 0;
    if (!r)
        return verb_refused(L, "the request has ended");
    if (!side_has(side_of(L), r->canary))
        return verb_refused(L, verb_others_request);
    if (!g && !lua_isnoneornil(L, 2))
        return verb_refused(L, "no such group (any more)");
    for (int i = 0; r->state == REQ_WAITING && i < w->partition.n_groups; i++) {
        const struct group *at = partition_group(&w->partition, i);
        int n = (g && g != at) || at->canary != r->canary ? 0 : cached_in(L, r, at);
        most = n > most ? n : most;
    }
    lua_pushnumber(L, most);
    return 1;
}

/* ---- who gives way */

/* Blocks that have to be free in a group before a waiting request starts there. */
static int blocks_to_start(const struct world *w, const struct group *g, const struct request *r)
{
    return kv_blocks_for(&w->kv, g->place, r->n_tokens) + kv_reserve(&w->kv);
}

static bool admits(const struct group *g)
{
    return !g->closed && !g->shut;
}

static int seats(const struct world *w, enum side s)
{
    return side_seats(w, s) - side_running(w, s);
}

/* In a group of its side. */
static bool finds_room(const struct world *w, const struct request *r, enum side s)
{
    for (int i = 0; i < w->partition.n_groups; i++) {
        const struct group *g = partition_group(&w->partition, i);
        if (admits(g) && g->canary == r->canary && kv_available(&w->kv, g->place) >= blocks_to_start(w, g, r))
            return seats(w, s) > 0;
    }
    return false;
}

/* Those of g who rank lowest and below the head, until it has room; 0: nobody has to, or too few are there. */
static int find_victims(const struct view *v, const struct group *g, const struct request *head, req_id *out)
{
    const struct world *w = v->world;
    int n = 0, lacking = blocks_to_start(w, g, head) - kv_available(&w->kv, g->place);
    int room = seats(w, v->side), looked = 0;
    for (int i = w->running.n - 1; i >= 0 && looked < COLUMN_ENDS && (lacking > 0 || room <= 0); i--) {
        const struct request *r = w->running.items[i];
        if (!side_has(v->side, r->canary))
            continue;
        looked++;
        if (r->spec->priority <= head->spec->priority || r->key <= head->key)
            break;
        if (r->group == g->id) {
            out[n++] = r->id;
            lacking -= r->n_blocks;
            room++;
        }
    }
    return lacking <= 0 && room > 0 ? n : 0;
}

/* view.victims(group): the ids of those who have to leave this group so that the first of the waiting can start in it.
 * An empty list: some group has room for it, or too few of lower rank run here. */
static int view_victims(lua_State *L)
{
    const struct world *w = world_of(L, "view.victims");
    const struct group *g = view_group(bind_of(L)->facts, verb_group(L, 1));
    const struct request *head = world_head_of(w, side_of(L));
    req_id ids[COLUMN_ENDS];
    if (!g)
        return verb_refused(L, "no such group (any more)");
    const struct view *v = bind_of(L)->facts;
    int n = head && admits(g) && !finds_room(w, head, v->side) ? find_victims(v, g, head, ids) : 0;
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushnumber(L, lua_req_id(ids[i]));
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

void queries_add(lua_State *L)
{
    static const luaL_Reg questions[] = {{"row", view_row},
                                         {"tenant", view_tenant},
                                         {"tenants", view_tenants},
                                         {"victims", view_victims},
                                         {"cached", view_cached}};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        lua_pushcfunction(L, questions[i].func);
        lua_setfield(L, -2, questions[i].name);
    }
}
