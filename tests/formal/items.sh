#!/usr/bin/env bash
# How threads take the items of a job, verified by spin as switch.sh does it with the switch protocol.
# `tests/formal/items.sh PART...` takes some of it (runs mutants). What is claimed: tests/formal/README.md. The last
# line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/formal/spin.sh || exit 1

runs() {
    verify "a helper, jobs of many and of few items" items "-DHELPERS=1 -DJOBS=$(n 6 5)"
    verify "two helpers" items "-DJOBS=$(n 3 2)"
    verify "as many items as threads, then fewer" items "-DSMALL=3 -DBIG=2 -DJOBS=$(n 3 2)"
}

mutants() {
    local assertion="assertion violated"
    mutant "an end changes while its lane is open" "$assertion" items "-DHELPERS=1 -DMUTANT_NOT_CLOSED"
    mutant "items do not tell their job" "$assertion" items "-DHELPERS=1 -DMUTANT_NO_NUMBER"
    mutant "a lane is said to be empty after its items are done" "$assertion" items "-DMUTANT_SAYS_LATE"
}

take "runs mutants" "$@"
