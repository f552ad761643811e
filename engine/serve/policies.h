/* Policies that go live while the server runs. An order (a source that was sent or lies in the folder, a version by its
 * hash, a rollback, a removal) waits its turn, is loaded and tried on the policy lane, recorded, handed to the engine,
 * and becomes the live one at a step boundary, or is refused and the old one goes on. One order at a time: who asks
 * later sees what came before. Follows the files of the live policy (its own and its libraries'): an edit (stable for
 * two looks) takes the same way. A version that stays live for the time of its probation is the last good one, with
 * which the next start begins. What came and how it went is in the ledger. Front thread, except the jobs' run.
 * Invariants: a policy is loaded from a complete file; a source in quarantine does not go live unless it is forced. */
#ifndef SERVE_POLICIES_H
#define SERVE_POLICIES_H

#include "engine/serve/followed.h"
#include "engine/serve/front/front.h"
#include "engine/serve/predictions.h"
#include "engine/serve/versions/ledger.h"
#include "lua/host.h"

enum { POLICY_NAME_MAX = VERSION_NAME_MAX, POLICY_PATH = FOLLOWED_PATH, POLICY_ORDERS = 64 };

enum order_kind {
    ORDER_LOAD,     /* goes live */
    ORDER_KEEP,     /* loaded, tried and kept; the live one stays */
    ORDER_ACTIVATE, /* a version that is kept goes live */
    ORDER_ROLLBACK, /* the same, of one that was live; no name, no sha: the one before the live one */
    ORDER_DELETE,   /* a version is forgotten */
    ORDER_SHADOW,   /* loaded, tried, kept, and asked beside the live one from then on */
    ORDER_CANARY    /* the same, and it decides for some groups */
};
enum order_result {
    ORDER_OK,
    ORDER_REFUSED, /* these four count as enum reload_result does */
    ORDER_INIT_ERROR,
    ORDER_UNREADABLE,
    ORDER_QUARANTINED,
    ORDER_UNRECORDED,  /* its record cannot be written */
    ORDER_UNKNOWN,     /* no such version */
    ORDER_UNCLEAR,     /* sha is none, or the beginning of several */
    ORDER_UNPREDICTED, /* strict, and nothing was predicted, or nobody would look */
    ORDER_IN_USE,      /* live, previous or last good: it stays */
    ORDER_BUSY
};

struct policy_outcome {
    enum order_result result;
    const char *text; /* OK: the engine's policy state, an object about the version (KEEP, DELETE) or what is known of
                         the shadow or the canary, JSON; else why; of a source "name.lua:12: reason" */
};
typedef void (*policy_fn)(void *ctx, const struct policy_outcome *o);

struct policy_order {
    enum order_kind kind;
    const char *name;   /* NULL: of any (ROLLBACK) */
    const char *sha;    /* a prefix; "" or NULL: the newest of that name */
    const char *actor;  /* for the record, engine/serve/versions/audit.h */
    bool force;         /* quarantine does not count */
    bool strict;        /* LOAD, ACTIVATE: held to what was predicted of it (engine/prediction.h) */
    struct buf *source; /* LOAD, KEEP, SHADOW, CANARY: moves; empty: the file of that name is read; SHADOW, CANARY:
                           `sha` is meant */
    double seconds;     /* SHADOW, CANARY: for so long */
    int groups[MAX_RANKS], n_groups; /* CANARY: ids */
};

struct policies {
    struct front *front;
    const struct lua_opts *lua;
    const char *dir; /* NULL: none */
    struct ledger *ledger;
    struct ledger *own_ledger; /* the same where nobody gave one; else NULL */
    struct loop_event *tick;
    bool watches;
    struct followed watched;
    char watched_name[POLICY_NAME_MAX + 1];
    const char *watched_dir; /* which it may not lead out of; NULL: anywhere */
    bool loading;            /* a load from the file is under way */
    struct predictions predictions;
    struct list orders; /* the first is being carried out */
    int n_orders;
    char *params;    /* of the live one, those that were set: a JSON object; NULL: none */
    int64_t live_ns; /* since when it is live */
    int64_t probation_ns;
    bool judged;              /* the engine has it on probation, and has not said yet that it keeps it */
    char proof[AUDIT_REASON]; /* why it did; "": it has not */
    bool settled;             /* the live one is the last good one, or cannot be */
};

struct policies_setup {
    struct front *front;
    struct loop *loop;
    const struct lua_opts *lua;
    const char *dir, *name, *path, *libs; /* libs: of the policy at path, as in struct policy */
    bool no_watch;
    struct ledger *ledger;    /* borrowed; NULL: in memory */
    const struct buf *source; /* of the live one, `name`; NULL or empty: the native policy, or not known */
    const char *params;       /* that were set, JSON; NULL: none */
    const char *why;          /* it is live, for the record; NULL: nothing is recorded */
    double probation_s;
};
int policies_init(struct policies *p, const struct policies_setup *s, struct err *e);
void policies_lane_ends(struct policies *p); /* before the text workers are stopped */
void policies_free(struct policies *p);
bool policies_name_ok(const char *name);
/* dir/name.lua; false: no directory. */
bool policies_path(const struct policies *p, const char *name, char out[POLICY_PATH]);
/* fn is called once, later. E_FULL: too many at once, and the source is still the caller's. */
int policies_order(struct policies *p, const struct policy_order *o, policy_fn fn, void *ctx);
void policies_forget(struct policies *p, void *ctx); /* the asker is gone: its fn is not called */
/* The live policy's file is loaded now, as after an edit; false: none is watched, or it is being loaded. */
bool policies_reload(struct policies *p, const char *actor);
/* Params were asked for: refused (why), or set (state: the engine's policy state). */
void policies_params(struct policies *p, const char *actor, const char *given, const char *why, const char *state);
/* The engine's own change, or the end of a shadow or a canary: JSON of an EV_POLICY. */
void policies_event(struct policies *p, const char *text, size_t n);
void policies_list(const struct policies *p, struct buf *json);

/* ---- between policies.c and orders.c */

/* The live policy is another one now: state is the engine's policy state. Its file is watched from here on, and its
 * probation begins. */
void policies_now_live(struct policies *p, const char *state, size_t n);
void policies_end_orders(struct policies *p);
int policies_order_file(struct policies *p, const char *actor);

#endif
