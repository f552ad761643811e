/* A recording as what `moonshift simulate` runs on: the machine that it describes, its live policy's decisions to
 * compare with, and the step times that are fitted to it for any other policy. Owned by whoever opened it,
 * main thread. Invariant: a decision is reported as equal only after it was compared. */
#ifndef LAB_SIMULATE_RECORDED_H
#define LAB_SIMULATE_RECORDED_H

#include "engine/lab/reenact.h"
#include "engine/lab/what_if.h"

struct recorded_machine {
    const char *path;
    struct recording *recording; /* for its head */
    const struct recording_head *head;
    struct recording_digest digest;
    struct step_fit *fit;
    struct model *model;
    struct engine_play exact, modelled;
    struct engine_setup exact_setup, modelled_setup; /* without policies */
    bool may_compare;                                /* nothing was asked for that is not as recorded */
    bool compare_any;                                /* --compare */
    bool strict;                                     /* --strict */
    char words[200];                                 /* the machine, in words */
};

/* What a replay of a recording came to, beside what any replay does. */
struct recorded_result {
    bool compared;   /* with the recording's decisions; else step times were modelled */
    const char *why; /* not compared, in words */
    struct reenactment exact;
    struct what_if what_if; /* not compared */
};

/* What was asked of a recording. */
struct recorded_ask {
    const char *path;
    bool what_if; /* also where something was asked for that is not as recorded */
    bool compare; /* modelled step times; recorded decisions to compare with, whatever the policy */
    bool part;    /* not all of it is replayed */
    bool strict;  /* what the recording never shows is refused where it would be guessed */
    void (*set_limits)(void *ctx,
                       struct limits *l); /* limits in the place of the recorded ones; then nothing is compared */
    void *ctx;
};

/* out: the node and its limits, as exact_setup. E_INPUT: it cannot be compared as asked. m must be closed in every
 * case. */
int recorded_machine_open(struct recorded_machine *m, const struct recorded_ask *ask, struct engine_setup *out,
                          struct err *e);
const char *recorded_policy(const struct recorded_machine *m); /* who was live at the start: a name, or "native" */
void recorded_machine_close(struct recorded_machine *m);
/* Is this policy, with these params, the one that was live at the start, and is nothing else asked for? Gives it the
 * recorded params unless it was given others. */
int recorded_choose(const struct recorded_machine *m, struct policy *p, bool has_params, struct recorded_result *out,
                    struct err *e);
/* One replay, not compared, from so many seconds of the recording on: what plays its machine. out and play stay where
 * they are. */
void recorded_what_if(const struct recorded_machine *m, struct recorded_result *out, struct engine_play *play,
                      uint64_t seed, double from_s);
/* E_INPUT: what was replayed so rests on guesses, and none were wanted. */
int recorded_check_guesses(const struct recorded_machine *m, const struct recorded_result *r, struct err *e);
/* A line or two about it. */
void recorded_words(const struct recorded_machine *m, const struct recorded_result *r, const char *label,
                    struct buf *out);
void recorded_json(const struct recorded_machine *m, const struct recorded_result *r, struct buf *out);

#endif
