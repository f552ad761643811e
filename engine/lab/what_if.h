/* How long things take on a recorded machine where decisions go another way than they did: steps by the fit of the
 * recorded ones, each with a remainder drawn by seed; copies, fetches and reshards at their recorded rates. It also
 * keeps count of the steps that are guesses, as the recording shows no such ones. One replay's, its thread. Invariant:
 * every step is counted, and one that rests on nothing measured is among the guesses. */
#ifndef LAB_WHAT_IF_H
#define LAB_WHAT_IF_H

#include "engine/base/buf.h"
#include "engine/engine.h"
#include "engine/lab/fit/step_fit.h"
#include "engine/lab/recording/recording_digest.h"

enum { WHAT_IF_GUESSES = 24 };

struct what_if_setup {
    const struct step_fit *fit;
    const struct recording_digest *digest;
    const struct recording_head *head;
    uint64_t seed;
    int64_t from_ns; /* what arrived before is left away: the replay begins so much later than the recording did */
};

struct what_if_guess {
    enum fit_basis basis;
    struct layout layout;
    int beside; /* FIT_BESIDE: how many groups there were */
    uint64_t n_steps;
    double ns;
};

struct what_if {
    struct what_if_setup setup;
    struct rng luck;
    uint64_t n_steps;
    double ns, lag_ns;                             /* of all steps: of their ranks, and besides */
    struct what_if_guess guesses[WHAT_IF_GUESSES]; /* past the last one, all are counted as the last one */
    int n_guesses;
};

void what_if_open(struct what_if *w, const struct what_if_setup *s);
/* Takes as long as w says; w must stay where it is. */
void what_if_play(struct what_if *w, struct engine_play *play);
double what_if_guessed_share(const struct what_if *w); /* of the time of steps */
/* The first guess of a layout, or of as many groups at once, that the recording never shows; NULL: there is none. */
const struct what_if_guess *what_if_unseen(const struct what_if *w);
void what_if_guess_words(const struct what_if *w, const struct what_if_guess *g, struct buf *out);
/* A line for each kind of guess; nothing when there is none. */
void what_if_words(const struct what_if *w, const char *label, struct buf *out);
void what_if_json(const struct what_if *w, struct buf *out); /* an array */

#endif
