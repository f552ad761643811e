#!/usr/bin/env bash
# tests/steady.sh [SECONDS] [RANKS]: tests/oracle/steady.py on the demo model and on the simulated device, each policy for SECONDS (300) under light and under heavy load on each
# of RANKS (1,2,4,8), beside two busy processes. Needs a built program (./run or ./test). Each part closes with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-300} ranks=${2:-1,2,4,8}
[[ $seconds =~ ^[0-9]+(\.[0-9]+)?$ && $ranks =~ ^[0-9]+(,[0-9]+)*$ ]] || {
    echo "usage: tests/steady.sh [SECONDS] [RANKS], for example tests/steady.sh 10 1,4" >&2
    exit 2
}
binary=${MOONSHIFT_BUILD:-build}/moonshift
[ -x "$binary" ] || {
    echo "there is no $binary: build it first (./run)" >&2
    exit 1
}
model=$(models/fetch.sh)
try() { python3 tests/oracle/steady.py --binary "$binary" --ranks "$ranks" --seconds "$seconds" -- "$@"; }
try "$model" --max-model-len 1024 --kv-cache-memory-bytes 24MiB
try --device sim --load-format dummy --hf-config tests/data/sim_ranks.json --kv-cache-memory-bytes 8MiB
