/* The router in front of several nodes of one kind, in virtual time: which of them a request goes to when it arrives,
 * and stays at until its end. It knows what routers outside of the nodes know: which requests it sent where and which
 * of them have ended, and for affinity the prefix hashes of the rows. Owned by a replay, one thread. Invariants: the
 * same calls give the same answers; memory for prefixes is bounded. */
#ifndef LAB_ROUTER_H
#define LAB_ROUTER_H

#include "engine/lab/trace/trace.h"

enum { ROUTER_MAX_NODES = 64 };

/* Round robin: one after the other. Least loaded: the fewest requests under way; of equals, whoever was chosen longest
 * ago. Prefix affinity: who got the longest of the request's prefixes last, unless it has more than twice the requests
 * of the least loaded and eight more; without a known prefix, the least loaded. */
enum router_kind { ROUTER_ROUND_ROBIN, ROUTER_LEAST_LOADED, ROUTER_PREFIX_AFFINITY };

struct router;

struct router *router_new(enum router_kind kind, int n_nodes); /* 1 <= n_nodes <= ROUTER_MAX_NODES */
void router_free(struct router *r);                            /* NULL is fine */
/* The node of a request; it counts as under way there. */
int router_choose(struct router *r, const struct trace_row *row);
void router_ended(struct router *r, int node);  /* one of its requests */
const char *router_word(enum router_kind kind); /* "round-robin", ... */
/* E_INPUT: no such word. */
int router_parse(const char *word, enum router_kind *out, struct err *e);

#endif
