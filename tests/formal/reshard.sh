#!/usr/bin/env bash
# Weights that are re-sharded, verified by spin as switch.sh does it with the switch protocol.
# `tests/formal/reshard.sh PART...` takes some of it (runs mutants). What is claimed: tests/formal/README.md. The last
# line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/formal/spin.sh || exit 1

runs() {
    verify "orders, ready and hard, and some taken back" reshard "-DORDERS=$(n 5 3) -DSTEPS=4 -DCANCELS=3 -DLAYERS=3"
    verify "a rank cannot load" reshard "-DORDERS=4 -DSTEPS=4 -DCANCELS=2 -DLAYERS=3 -DFAILURES=1"
    verify "both ranks cannot, one after the other" reshard "-DORDERS=4 -DSTEPS=4 -DCANCELS=2 -DFAILURES=2"
    verify "every run ends" reshard "-DORDERS=3 -DCANCELS=2 -DFAILURES=1" cycles
}

mutants() {
    local deadlock="invalid end state" assertion="assertion violated"
    mutant "a rank takes while its thread still brings" "$assertion" reshard "-DMUTANT_TAKES_BESIDE"
    mutant "what was brought is dropped while more comes" "$assertion" reshard "-DCANCELS=2 -DMUTANT_DROPS_BESIDE"
    mutant "nobody drops what an order had brought that was taken back" "$deadlock" reshard "-DMUTANT_DROPS_NOTHING"
    mutant "a group runs while its weights come" "$assertion" reshard "-DMUTANT_STEPS_WHILE_LOADING"
}

take "runs mutants" "$@"
