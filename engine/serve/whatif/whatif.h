/* "What if": a policy on the last of this server's own traffic, before it goes live. The window of what was recorded
 * (kept by whoever made the server, reached through struct what_if_window_ops) is written to a folder of its own in
 * /tmp, with the live policy and the other one, and a child process of this very program simulates both on it
 * (`simulate --what-if`), beside the serving: at the lowest priority, bounded in time and memory. One at a time. The
 * engine hears nothing of it. The steps: the policy lane loads and tries the policy and writes the files; the front
 * starts the child and looks at it many times a second; the policy lane reads what it wrote and makes the answer.
 * Whoever asked may leave, and the server may end: then the child is killed. Front thread, except the jobs' run.
 * Invariants: no child outlives its asker by more than its kill takes; the folder is gone when the answer is sent. */
#ifndef SERVE_WHATIF_WHATIF_H
#define SERVE_WHATIF_WHATIF_H

#include <stdio.h>

#include "engine/serve/front/front.h"
#include "engine/serve/http/loop.h"
#include "lua/host.h"

enum { WHAT_IF_SECONDS = 60, WHAT_IF_NAME = 64 };

/* A window, as it is kept or as it was written. */
struct what_if_window {
    double seconds;
    uint64_t n_requests, n_ended;
    uint64_t n_before; /* written: requests from before it that ended in it; they are left away */
    uint64_t n_steps;  /* written, as n_ended */
    size_t bytes, most;
};

struct what_if_part {
    double seconds;                       /* the last so many; 0: all */
    const char *policy, *sha256, *params; /* of the live one; params: JSON, NULL: none were set */
};

/* Where windows come from. Any thread. */
struct what_if_window_ops {
    void (*look)(void *ctx, struct what_if_window *out);
    int (*write)(void *ctx, const struct what_if_part *part, FILE *to, struct what_if_window *out,
                 struct err *e); /* E_NOTFOUND: nothing has come in that time; E_SYS. NULL: nothing is kept */
    void *ctx;
};

struct what_if_policy {
    char name[WHAT_IF_NAME], sha256[65];
    struct buf source; /* empty: the native one, or not known */
    char *params;      /* JSON, NULL: none */
};

/* All of it moves, but for what lua points to. */
struct what_if_ask {
    struct what_if_policy live, other; /* other: sha256 is found out */
    bool is_known;                     /* the other passed before: loading it may take longer */
    double seconds;
    struct lua_opts lua;
};

enum what_if_result {
    WHAT_IF_OK,
    WHAT_IF_REFUSED, /* the policy does not load: "name.lua:12: reason" */
    WHAT_IF_EMPTY,   /* there is no traffic to try it on */
    WHAT_IF_LATE,
    WHAT_IF_FAILED,
    WHAT_IF_STOPPED /* the server ends */
};

struct what_if_outcome {
    enum what_if_result result;
    const char *text; /* OK: JSON (report.h); else why */
};
typedef void (*what_if_fn)(void *ctx, const struct what_if_outcome *o);

struct trial;

struct what_if {
    struct front *front;
    struct loop *loop;
    struct what_if_window_ops window;
    struct trial *now; /* NULL: none is under way */
};

/* fn is called once, later, unless it is forgotten. E_FULL: one is under way, or the lane is full, and ask is still the
 * caller's. */
int what_if_begin(struct what_if *w, struct what_if_ask *ask, what_if_fn fn, void *ctx);
void what_if_forget(struct what_if *w, void *ctx); /* who asked is gone: it ends, and fn is not called */
void what_if_interrupt(struct what_if *w);         /* the server ends: whoever asked hears so */
void what_if_free(struct what_if *w);              /* after the text workers; nobody is told any more */
void what_if_ask_free(struct what_if_ask *a);

#endif
