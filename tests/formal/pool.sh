#!/usr/bin/env bash
# The protocol of pooled FFN weights, verified by spin as switch.sh does it with the switch protocol.
# `tests/formal/pool.sh PART...` takes some of it (runs failures mutants: ctest runs them side by side). What is
# claimed: tests/formal/README.md. The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/formal/spin.sh || exit 1

runs() {
    verify "fetches in any order, several at a time" pool \
        "-DREQUESTS=1 -DSTEPS=2 -DLAYERS=4 -DSLOTS=2 -DANY_ORDER -DSLICED -DCAS=$(n 5 0)"
    verify "fetches of two ranks" pool "-DLAYERS=3 -DSLOTS=2 -DSTART=$(n 15 3) -DSLICED"
    verify "modes of groups" pool "-DPARTS=1 -DREQUESTS=$(n 3 2) -DCAS=3 -DSTART=7"
    verify "modes of layers" pool "-DLAYERS=3 -DCAS=$(n 7 5) -DSTART=$(n 7 3)"
    verify "the partition changes, a request leaves" pool "-DPARTS=1 -DORDERS=1 -DCANCELS=1 -DCAS=$(n 1 0)"
    verify "pairs come and go" pool "-DPARTS=1 -DSTART=28 -DORDERS=$(n 2 1) -DCANCELS=1"
    verify "every run ends" pool "-DCAS=3 -DSTART=$(n 7 3)" cycles
}

failures() {
    verify "a rank fails" pool "-DREQUESTS=1 -DSTEPS=2 -DLAYERS=3 -DCAS=$(n 5 1) -DFAILURES=1"
    verify "one of several fails" pool "-DPARTS=1 -DCAS=$(n 3 1) -DFAILURES=1 -DSTART=7"
    verify "one of several fails between products of a layer" pool "-DFAILURES=1 -DSTART=$(n 7 3)"
    verify "a rank of a pair fails" pool "-DREQUESTS=1 -DSTEPS=2 -DCAS=3 -DFAILURES=1 -DSTART=28 -DCANCELS=$(n 1 0)"
    verify "a pair and others, one fails" pool "-DPARTS=1 -DFAILURES=1 -DSTART=$(n 28 20)"
    verify "a rank fails between orders" pool "-DREQUESTS=1 -DSTEPS=$(n 2 1) -DORDERS=1 -DFAILURES=1 -DSTART=28"
    verify "all ranks fail, one after the other" pool "-DREQUESTS=1 -DSTEPS=2 -DCAS=$(n 3 1) -DFAILURES=4"
    verify "every run ends, with a failure" pool "-DPARTS=1 -DCAS=1 -DFAILURES=1 -DSTART=$(n 7 3)" cycles
    verify "every run of a pair ends, with a failure" pool \
        "-DREQUESTS=1 -DSTEPS=$(n 2 1) -DCAS=3 -DFAILURES=1 -DSTART=28" cycles
}

mutants() {
    local deadlock="invalid end state" assertion="assertion violated" cycle="non-progress cycle"
    mutant "a product reads a slot before its layer has come" "$assertion" pool "-DMUTANT_EARLY"
    mutant "a product looks at what has come into a slot, not at its layer" "$assertion" pool \
        "-DREQUESTS=1 -DSTEPS=2 -DMUTANT_ANY_NUMBER"
    mutant "slots are a ring: the one in use is next" "$assertion" pool "-DREQUESTS=1 -DMUTANT_RING"
    mutant "nobody tells the fetches that a product has ended" "$deadlock" pool \
        "-DREQUESTS=1 -DLAYERS=3 -DMUTANT_FETCHES_SLEEP"
    mutant "a rank without a step fetches" "$assertion" pool "-DREQUESTS=1 -DMUTANT_IDLE_FETCHES"
    mutant "an owner serves only in its own step" "$deadlock" pool "-DREQUESTS=1 -DCAS=3 -DMUTANT_IDLE_OWNER"
    mutant "a server waits for all ranks that have such layers" "$deadlock" pool "-DCAS=3 -DMUTANT_WAITS_FOR_ALL"
    mutant "a cancelled request's step leaves while its rows are away" "$assertion" pool \
        "-DREQUESTS=1 -DCAS=3 -DCANCELS=1 -DMUTANT_LEAVES"
    mutant "a failing rank wakes nobody" "$deadlock" pool "-DFAILURES=1 -DMUTANT_NO_WAKE"
    mutant "the server of a rank that has failed ends" "$deadlock" pool \
        "-DCAS=3 -DFAILURES=1 -DSTART=7 -DMUTANT_SERVER_ENDS"
    mutant "what is given up frees a slot that a product reads" "$assertion" pool \
        "-DLAYERS=3 -DFAILURES=1 -DSTART=7 -DMUTANT_DROP_FREES"
    mutant "who cannot have a layer does not tell its group" "$deadlock" pool \
        "-DREQUESTS=1 -DFAILURES=1 -DSTART=28 -DMUTANT_NO_ABORT"
    mutant "an owner that failed while it had no step is never dropped" "$deadlock" pool \
        "-DREQUESTS=1 -DCAS=3 -DFAILURES=1 -DMUTANT_FORGETS_IDLE"
    mutant "a rank whose step failed for want of another's layer is dropped" "$assertion" pool \
        "-DFAILURES=1 -DSTART=7 -DMUTANT_DROPS_PEER"
    mutant "the new owner is published before the bytes are there" "$assertion" pool \
        "-DREQUESTS=1 -DFAILURES=1 -DMUTANT_EARLY_OWNER"
    mutant "the owner changes while a step waits for the layer" "$deadlock" pool "-DFAILURES=1 -DMUTANT_LOADS_IN_STEP"
    mutant "steps are posted while a layer is lost" "$cycle" pool "-DREQUESTS=1 -DFAILURES=1 -DMUTANT_POSTS_LOST" cycles
}

take "runs failures mutants" "$@"
