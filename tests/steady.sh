#!/usr/bin/env bash
# tests/steady.sh [SECONDS] [RANKS]: tests/oracle/steady.py on the demo model and on the simulated device, each policy
# for SECONDS (300) under light and under heavy load on each of RANKS (1,2,4,8), beside two busy processes. Needs a
# built program (./run or ./test). Each part closes with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/rig/long_load.sh SECONDS 300 "$@"
try() { python3 tests/oracle/steady.py --binary "$binary" --ranks "$ranks" --seconds "$length" -- "$@"; }
try "$model" --max-model-len 1024 --kv-cache-memory-bytes 24MiB
try --device sim --load-format dummy --hf-config tests/data/sim_ranks.json --kv-cache-memory-bytes 8MiB
