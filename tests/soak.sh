#!/usr/bin/env bash
# tests/soak.sh [MINUTES] [RANKS]: the mixed load of tests/oracle/soak.py on the demo model for MINUTES (20) on each of
# RANKS (1,2,4,8): three tenants, clients that leave, a swap each second among all policies, two busy neighbours. Needs
# a built program (./run or ./test). Closes with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/rig/long_load.sh MINUTES 20 "$@"
exec python3 tests/oracle/soak.py --binary "$binary" --ranks "$ranks" --seconds "$(python3 -c "print($length * 60)")" \
    -- "$model" --chat-template chatml --max-model-len 1024 --kv-cache-memory-bytes 24MiB
