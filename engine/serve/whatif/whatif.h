/* "What if": a policy on the last of this server's own traffic, before it goes live. The window of what was recorded
 * (kept by whoever made the server, reached through struct whatif_window_ops) is written to a folder of its own in
 * /tmp, with the live policy and the other one, and a child process of this very program simulates both on it
 * (`simulate --what-if`), beside the serving: at the lowest priority, bounded in time and memory. One at a time. The
 * engine hears nothing of it. The steps: the policy lane loads and tries the policy and writes the files; the front
 * starts the child and looks at it many times a second; the policy lane reads what it wrote and makes the answer.
 * Whoever asked may leave, and the server may end: then the child is killed. Front thread, except the jobs' run.
 * Invariants: no child outlives its asker by more than its kill takes; the folder is gone when the answer is sent. */
#ifndef SERVE_WHATIF_WHATIF_H
#define SERVE_WHATIF_WHATIF_H

#include <stdio.h>

#include "engine/prediction.h"
#include "engine/serve/front/front.h"
#include "engine/serve/http/loop.h"
#include "lua/host.h"

enum { WHATIF_SECONDS = 60, WHATIF_NAME = 64 };

/* A window, as it is kept or as it was written. */
struct whatif_window {
    double seconds;
    uint64_t n_requests, n_ended;
    uint64_t n_before; /* written: requests from before it that ended in it; they are left away */
    uint64_t n_steps;  /* written, as n_ended */
    size_t bytes, most;
};

struct whatif_part {
    double seconds;                       /* the last so many; 0: all */
    const char *policy, *sha256, *params; /* of the live one; params: JSON, NULL: none were set */
};

/* Where windows come from. Any thread. */
struct whatif_window_ops {
    void (*look)(void *ctx, struct whatif_window *out);
    int (*write)(void *ctx, const struct whatif_part *part, FILE *to, struct whatif_window *out,
                 struct err *e); /* E_NOTFOUND: nothing has come in that time; E_SYS. NULL: nothing is kept */
    void *ctx;
};

struct whatif_policy {
    char name[WHATIF_NAME], sha256[65];
    struct buf source; /* empty: the native one, or not known */
    char *params;      /* JSON, NULL: none */
};

/* All of it moves, but for what lua points to. */
struct whatif_ask {
    struct whatif_policy live, other; /* other: sha256 is found out */
    bool is_known;                    /* the other passed before: loading it may take longer */
    double seconds;
    struct lua_opts lua;
};

enum whatif_result {
    WHATIF_OK,
    WHATIF_REFUSED, /* the policy does not load, or not start on these ranks: "name.lua:12: reason" */
    WHATIF_EMPTY,   /* there is no traffic to try it on */
    WHATIF_LATE,
    WHATIF_FAILED,
    WHATIF_STOPPED /* the server ends */
};

struct whatif_outcome {
    enum whatif_result result;
    const char *text; /* OK: JSON (report.h); else why */
    const struct whatif_policy *live, *other;
    const struct prediction *predicted; /* of a swap from live to other; is_made false: nothing is */
};
typedef void (*whatif_fn)(void *ctx, const struct whatif_outcome *o);

struct trial;

struct whatif {
    struct front *front;
    struct loop *loop;
    struct whatif_window_ops window;
    double stretch_s;  /* how long a policy will be watched: predictions are for stretches of that time */
    struct trial *now; /* NULL: none is under way */
};

/* fn is called once, later, unless it is forgotten. E_FULL: one is under way, or the lane is full, and ask is still the
 * caller's. */
int whatif_begin(struct whatif *w, struct whatif_ask *ask, whatif_fn fn, void *ctx);
void whatif_forget(struct whatif *w, void *ctx); /* who asked is gone: it ends, and fn is not called */
void whatif_interrupt(struct whatif *w);         /* the server ends: whoever asked hears so */
void whatif_free(struct whatif *w);              /* after the text workers; nobody is told any more */
void whatif_ask_free(struct whatif_ask *a);

#endif
