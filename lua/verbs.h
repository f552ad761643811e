/* The verbs that a policy calls, by noun: verbs.c has requests, time and the table of all; verbs_batch.c batches,
 * forward and what a step would take; verbs_partition.c groups and orders; verbs_forecast.c what other ones would
 * bring; verbs_ffn.c the ways of pooled FFN layers; verbs_probe.c early stopping; verbs_embed.c the encoder beside the
 * model. Each reads its arguments (a wrong type raises), asks the plan by verb_do (it refuses what is not lawful) and
 * answers true or what it says, or nil and a reason. Lua functions, called by policies inside vm bodies. Invariant:
 * verbs act only through the plan. */
#ifndef LUA_VERBS_H
#define LUA_VERBS_H

#include "lua/bind.h"
#include "lua/verb_call.h"

/* Sets act_ref and the metatable of batches; the global log. */
void verbs_create(struct bind *b, lua_State *L);
/* Puts the questions of view (estimate, narrowest, cover and others) into the view table on top of the stack. */
void verbs_add_queries(lua_State *L);

/* ---- what the verbs share */

/* nil and the reason. */
int verb_refused(lua_State *L, const char *why);
extern const char verb_others_request[]; /* why: the policy of the other side decides for it (engine/world/side.h) */
int verb_not_now(lua_State *L, const char *verb);
/* The plan of the step under way; NULL outside of one. */
const struct plan *verb_plan(lua_State *L);
/* The same, or that of start, which may give orders and nothing else. */
const struct plan *verb_orders(lua_State *L);
double verb_whole_number(lua_State *L, int arg, const char *what, double low, double high);
req_id verb_request(lua_State *L, int arg);
/* The ids of a Lua list; valid until the next one is read. */
const req_id *verb_request_list(lua_State *L, int arg, int *n);
int verb_group(lua_State *L, int arg); /* a table of view.groups, or its id */
/* A layout like { sp = 2, tp = 2 }; *given false: nil, the caller's default. */
struct layout verb_layout(lua_State *L, int arg, bool *given);
/* Raises on a field of the table that is not among the names. */
void verb_check_fields(lua_State *L, int table, const char *what, const char *const *names, int n);
/* The layout after a group, by argument, or the group's default one; NULL, or why it cannot be. */
const char *verb_layout_of_group(lua_State *L, int arg, struct layout *out);
/* The widest tensor parallel layout that runs on a stage of the group. */

/* The place of a text in a list of choices. Raises when it is not a text or none of them. */
int verb_choice(lua_State *L, int arg, const char *what, const char *const *choices, int n);

/* nil, and which sources of draft tokens there are: not this one. */
int verb_no_source(lua_State *L, const struct world *w, const char *name);

/* verbs_probe.c */
int act_probe(lua_State *L);
int act_conclude(lua_State *L);
void probes_add(lua_State *L); /* its questions, into the view table on top of the stack */

/* verbs_embed.c */
int act_embed(lua_State *L);
int view_embed(lua_State *L);

/* verbs_ffn.c */
int act_ffn(lua_State *L);
int verb_residency(lua_State *L); /* act.weights of all ranks */
const char *verb_ffn_option(lua_State *L, int opts, const struct world *w, struct step_size *size);

/* verbs_batch.c */
void verbs_make_batches(struct bind *b, lua_State *L);
int act_batch(lua_State *L);
int act_forward(lua_State *L);
int view_estimate(lua_State *L);
int view_estimate_draft(lua_State *L);

/* verbs_partition.c */
int act_bind(lua_State *L);
int act_widen(lua_State *L);
int act_release(lua_State *L);
int act_remap(lua_State *L);
int act_swap_out(lua_State *L);
int act_swap_in(lua_State *L);
int act_reshard(lua_State *L);
int act_open(lua_State *L);
int act_comm(lua_State *L);
int act_weights(lua_State *L);
int act_preempt_group(lua_State *L);
int view_narrowest(lua_State *L);
int view_cover(lua_State *L);
int view_estimate_reshard(lua_State *L);
int view_estimate_move(lua_State *L);
/* A partition of the living ranks of the view's side, as view.cover says. Returns how many groups. */
int verb_cover(const struct view *v, int wide, int narrow, uint64_t sets[MAX_RANKS]);

/* verbs_forecast.c */
int view_forecast(lua_State *L);

#endif
