#!/usr/bin/env bash
# The switch protocol, verified by spin: every configuration of tests/formal is searched to its end without an error,
# and in every mutant (a way in which such protocols were broken) an error is found. `tests/formal/switch.sh PART...`
# takes some of it (orders failures endings mutants: ctest runs them side by side), `--large` the large configuration
# instead (minutes, 4 GiB). What is claimed: tests/formal/README.md. The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

. tests/formal/spin.sh || exit 1

everything() {
    memory=4000 limit=1800
    verify "everything at once" switch "-DORDERS=2 -DVERBS=1 -DCANCELS=1 -DFAILURES=1"
}

if [ "${1:-}" = --large ]; then
    take everything
    exit
fi

orders() {
    verify "orders" switch "-DORDERS=$(n 3 2)"
    verify "orders, preempt, migrate, cancel" switch "-DORDERS=$(n 2 1) -DVERBS=1 -DCANCELS=1"
}

failures() {
    verify "a rank fails between orders" switch "-DORDERS=$(n 2 1) -DFAILURES=1"
    verify "a rank fails, preempt, migrate, cancel" switch "-DORDERS=$(n 1 0) -DVERBS=1 -DCANCELS=1 -DFAILURES=1"
    verify "a rank of one of two groups fails" switch "-DSTART=48 -DORDERS=$(n 1 0) -DVERBS=1 -DFAILURES=1"
    verify "three ranks fail" switch "-DORDERS=$(n 1 0) -DFAILURES=3"
}

endings() {
    verify "every run ends" switch "-DTERMINATION -DORDERS=$(n 2 1) -DVERBS=1" cycles
    verify "every run ends, with a failure" switch "-DTERMINATION -DORDERS=$(n 1 0) -DFAILURES=1" cycles
    verify "the barrier" meet ""
}

mutants() {
    local deadlock="invalid end state" assertion="assertion violated"
    mutant "a step is posted to one member at a time" "$deadlock" switch "-DORDERS=1 -DMUTANT_POST_APART" deadlocks
    mutant "an order is carried out while a member is in a step" "$assertion" switch "-DMUTANT_EARLY_ORDER"
    mutant "an order is carried out while KV is being copied" "$assertion" switch "-DMUTANT_MOVING"
    mutant "a failing rank tells nobody" "$deadlock" switch "-DFAILURES=1 -DMUTANT_NO_ABORT"
    mutant "a member decides by itself to leave a step" "$deadlock" switch "-DORDERS=0 -DCANCELS=1 -DMUTANT_LOCAL_EXIT"
    mutant "a source is freed before all have copied" "$assertion" switch "-DMUTANT_FREE_EARLY"
    mutant "the engine does not look again after a step" "$deadlock" switch "-DMUTANT_SLEEPS"
    mutant "the engine does not look again when a parked request is due" "$deadlock" switch \
        "-DVERBS=1 -DMUTANT_UNPARK_SLEEPS"
    mutant "the requests of a lost group are forgotten" "$deadlock" switch "-DFAILURES=1 -DMUTANT_NO_REQUEUE"
    mutant "a busy request ends at once when it is cancelled" "$assertion" switch \
        "-DORDERS=0 -DCANCELS=1 -DMUTANT_TWO_ENDINGS"
    mutant "an abort changes the phase before it sets the flag" "$deadlock" meet "-DMUTANT_FLAG_LAST"
    mutant "a member that was told passes nothing on" "$deadlock" meet "-DMUTANT_KEPT_TO_ITSELF"
    mutant "a comm is used again without a reset" "$assertion" meet "-DMUTANT_NO_RESET"
}

take "orders failures endings mutants" "$@"
