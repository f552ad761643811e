#!/usr/bin/env bash
# tests/soak.sh [MINUTES] [RANKS]: the mixed load of tests/oracle/soak.py on the demo model for MINUTES (20) on each of RANKS (1,2,4,8): three tenants, clients that leave,
# a swap each second among all policies, two busy neighbours. Needs a built program (./run or ./test). Closes with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
minutes=${1:-20} ranks=${2:-1,2,4,8}
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ && $ranks =~ ^[0-9]+(,[0-9]+)*$ ]] || {
    echo "usage: tests/soak.sh [MINUTES] [RANKS], for example tests/soak.sh 5 1,4" >&2
    exit 2
}
binary=${MOONSHIFT_BUILD:-build}/moonshift
[ -x "$binary" ] || {
    echo "there is no $binary: build it first (./run)" >&2
    exit 1
}
model=$(models/fetch.sh)
exec python3 tests/oracle/soak.py --binary "$binary" --ranks "$ranks" --seconds "$(python3 -c "print($minutes * 60)")" -- \
    "$model" --chat-template chatml --max-model-len 1024 --kv-cache-memory-bytes 24MiB
