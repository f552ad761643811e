/* The text workers: what takes long and needs no connection (parsing bodies, rendering templates, tokenising, loading
 * policies) runs here, so that no stream waits for it. Three lanes, a thread each: short work never queues behind a
 * 100,000-token prompt, and a policy never behind either. A job is handed over whole, runs on its lane, and comes back
 * to the front thread. Bounded: a full lane refuses; a job has so much CPU time, and less on the short lane, so that no
 * job waits long there; one whose client left is given up at its next check point, or never begun. Invariant: one
 * thread at a time touches a job (except its cancel). */
#ifndef SERVE_FRONT_TEXT_H
#define SERVE_FRONT_TEXT_H

#include "engine/base/cancel.h"
#include "engine/base/list.h"
#include "engine/base/queue.h"

enum text_lane { TEXT_SHORT, TEXT_LONG, TEXT_POLICY, TEXT_LANES };
enum {
    TEXT_LONG_BYTES = 65536,    /* bodies from here on go the long way */
    TEXT_MAX_BYTES = 512 << 20, /* bodies in one lane together, so that large ones never keep a small one out; a single
                                   one is always taken */
};

struct text_job {
    void (*run)(struct text_job *job);  /* on the lane, unless it was cancelled before */
    void (*done)(struct text_job *job); /* on the front thread; frees the job */
    size_t bytes;                       /* of the body it carries */
    struct cancel cancel;               /* run() looks at it; cancel_ask() from the front thread */
    struct list under_way;              /* in text's; its own */
};

struct text;

struct text_limits {
    int jobs;       /* per lane */
    double long_s;  /* CPU seconds of a job on the long lane; 0: no bound */
    double short_s; /* on the short one */
};
int text_create(struct text **out, const struct text_limits *l, struct err *e);
/* Stops the lanes: the job at hand is cancelled, the rest run nowhere; all are handed to done(). */
void text_destroy(struct text *t);
int text_post(struct text *t, enum text_lane lane, struct text_job *job); /* E_FULL: the job is still the caller's */
int text_fd(const struct text *t);                                        /* readable when jobs came back */
void text_collect(struct text *t);      /* front thread: done() for each job that came back */
int text_pending(const struct text *t); /* jobs handed over and not collected; 0 for NULL */

#endif
