/* A policy's own tests: functions of its table `tests`, each given a `t` with t.step{...} (one scheduling point in a
 * made-up world, decided by the very policy under test) and t.admit{...}. Used by the loader. One thread. Invariant: a
 * test sees only made-up worlds, not the engine. */
#ifndef LUA_TRIAL_H
#define LUA_TRIAL_H

#include "lua/script.h"

/* Runs the i-th of s->n_tests by name, from 1, in a fresh script: tests leave traces in a policy's state.
 * E_POLICY with the test's name and the cause when it fails. report may be NULL. */
int trial_run(struct script *s, int i, struct buf *report, struct err *e);

#endif
