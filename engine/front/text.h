/* The text workers: what takes long and needs no connection (parsing bodies, rendering templates, tokenising,
 * loading policies) runs here, so that no stream waits for it. Three lanes, a thread each: short work never
 * queues behind a 100,000-token prompt, and a policy never behind either. A job is handed over whole, runs on
 * its lane, and comes back to the front thread. Bounded: a full lane refuses. Never true: a job touched by
 * two threads. */
#ifndef FRONT_TEXT_H
#define FRONT_TEXT_H

#include "engine/base/err.h"
#include "engine/base/queue.h"

enum text_lane { TEXT_SHORT, TEXT_LONG, TEXT_POLICY, TEXT_LANES };
enum {
    TEXT_LONG_BYTES = 65536,    /* bodies from here on go the long way */
    TEXT_MAX_BYTES = 512 << 20, /* bodies in the lanes together; a single one is always taken */
};

struct text_job {
    void (*run)(struct text_job *job);  /* on the lane */
    void (*done)(struct text_job *job); /* on the front thread; frees the job */
    size_t bytes;                       /* of the body it carries */
};

struct text;

int text_create(struct text **out, int max_jobs, struct err *e); /* max_jobs: per lane */
/* Stops the lanes after the job at hand; the rest run nowhere, but are handed to done() like all others. */
void text_destroy(struct text *t);
int text_post(struct text *t, enum text_lane lane,
              struct text_job *job);    /* E_FULL: the job is still the caller's */
int text_fd(const struct text *t);      /* readable when jobs came back */
void text_collect(struct text *t);      /* front thread: done() for each job that came back */
int text_pending(const struct text *t); /* jobs handed over and not collected; 0 for NULL */

#endif
