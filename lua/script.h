/* One policy source, compiled and checked in a machine of its own: its hooks, params and needs. Made on any thread,
 * then owned by one thread at a time. Invariant: a script's table has been checked. */
#ifndef LUA_SCRIPT_H
#define LUA_SCRIPT_H

#include "lua/bind.h"
#include "lua/host.h"
#include "lua/libs.h"
#include "lua/params.h"

enum { SCRIPT_API = 1, WHERE_BYTES = 96 };
static const char script_writes[] = "the policy writes into its view, which is read only";

struct script {
    struct vm vm;
    char name[NAME_BYTES], doc[200];
    struct lua_opts opts; /* with the defaults filled in */
    struct params params;
    int hooks[HOOK_COUNT]; /* registry references; LUA_NOREF: the policy has no such hook */
    int tests_ref, n_tests;
    int fits_ref;           /* LUA_NOREF: it fits every node */
    struct node_facts node; /* where it was started; valid as long as that node is */
    bool started;
    struct bind bind;
    uint64_t n_calls,
        written_by;      /* of hooks; the call that is known to have written into the view, 0: none (bind.watched) */
    uint64_t spied_call; /* this call is followed line by line, to see where it writes into the view; 0: none */
    char spied_at[WHERE_BYTES]; /* the last place, "file:line", before the view was found written */
    struct follow *follow;      /* the next call of step is followed; NULL: it is not (lua/follow.h) */
    struct lib_names libs;      /* that its table names */
    int lib_ref;                /* the global `lib` */
};

/* What the opts leave open. E_INPUT when out of range. */
int script_opts(struct lua_opts *out, const struct lua_opts *in, struct err *e);
/* Copies a policy's name without ".lua"; E_INPUT when it is not one. */
int script_name(char out[NAME_BYTES], const char *name, struct err *e);
/* source must have passed scan_source. Libraries come from o->libs, or are read into it. E_POLICY/E_INPUT with
 * "name.lua:12: reason", and that of a library where it is one's. */
int script_open(struct script **out, const char *name, const char *source, size_t n, const struct lua_opts *o,
                struct err *e);
void script_close(struct script *s); /* NULL is fine */

/* May its params be, on this node? E_INPUT: no, with the policy's own words; E_POLICY: the call did not stand. */
int script_fits(struct script *s, const struct node_facts *node, struct err *e);
/* The hooks, as verdicts (engine/policy.h says what each means). */
/* start: an error whose code is E_INPUT when its params do not fit the node. */
enum verdict script_start(struct script *s, const struct node_facts *node, const struct view *v, struct plan *p,
                          struct err *e);
enum verdict script_admit(struct script *s, const struct request *r, const struct view *v, struct admission *a,
                          struct err *e);
enum verdict script_step(struct script *s, const struct view *v, struct plan *p, struct err *e);
enum verdict script_finish(struct script *s, const struct request *r, enum ending how, const struct view *v,
                           struct err *e);
enum verdict script_export(struct script *s, struct buf *out, struct err *e);
enum verdict script_import(struct script *s, const char *json, size_t n, struct err *e);
/* All or nothing: where the policy runs already, the values also have to fit its node. */
int script_params_set(struct script *s, const char *json, size_t n, struct err *e);
/* The params of another script of the same source. */
int script_params_copy(struct script *s, const struct script *from, struct err *e);
/* The next view is of another world (dry runs). If watched, a view that the last call has written into is noted first.
 */
void script_forget(struct script *s);
/* Time for what runs once, off the engine's path or at a swap. */
struct vm_budget script_generous(const struct script *s);
static inline struct script *script_of(lua_State *L)
{
    return vm_of(L)->owner;
}

#endif
