#!/usr/bin/env bash
# KV over three tiers, verified by spin as switch.sh does it with the switch protocol.
# `tests/formal/tiers.sh PART...` takes some of it (runs mutants). What is claimed: tests/formal/README.md. The last
# line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/formal/spin.sh || exit 1

runs() {
    verify "swapped out and back, saved, cancelled" tiers "-DSAVES=$(n 2 1)"
    verify "what a disk has from before, and reads that fail" tiers "-DRESTARTED -DBAD=1 -DSAVES=$(n 2 1)"
    verify "little of everything, and a reset" tiers \
        "-DRANK=1 -DHOST=1 -DRESTARTED -DBAD=1 -DRESETS=1 -DSWAPS=2 -DCANCELS=$(n 2 1)"
    verify "three requests, a block of each tier" tiers "-DREQUESTS=3 -DRANK=1 -DHOST=1 -DSAVES=1 -DCANCELS=$(n 1 0)"
}

mutants() {
    local assertion="assertion violated"
    mutant "the end of a copy beside the steps is not held" "$assertion" tiers "-DMUTANT_END_NOT_HELD"
    mutant "nor that of a copy in an inbox" "$assertion" tiers "-DRESTARTED -DSAVES=1 -DMUTANT_INBOX_END_NOT_HELD"
    mutant "blocks that are being copied away are free" "$assertion" tiers "-DMUTANT_FREES_TOO_EARLY"
    mutant "a read that failed is found" "$assertion" tiers "-DRESTARTED -DBAD=1 -DMUTANT_BAD_IS_FOUND"
    mutant "what was under way at a reset is found" "$assertion" tiers "-DRESETS=1 -DMUTANT_RESET_FORGOTTEN"
}

take "runs mutants" "$@"
