#!/usr/bin/env bash
# simulate_bench.sh [BINARY]: processor time and memory of moonshift simulate on one core, medians of three runs each:
# the slices of 15 minutes of models/papers and an hour of 100 requests/s over 8 groups. Prints simulated seconds per
# second of processor time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=${1:-build/moonshift} traces=models/papers

# run NAME FLAGS...
run() {
    local name=$1
    shift
    for _ in 1 2 3; do
        timeout 300 taskset -c 0 /usr/bin/time -f '%U %M' -o "$out/time" \
            "$binary" simulate --hardware h200x8 "$@" >"$out/table"
        echo "$(cat "$out/time") $(awk '/^duration/ {d = $3} /^steps/ {s = $2} END {print d, s}' "$out/table")"
    done | sort -n | awk -v name="$name" 'NR == 2 {
        printf "%-44s %7.2f s  %4d MiB  %8.0f simulated s/s  %6.1f us a step\n",
            name, $1, $2 / 1024, $3 / $1, $1 * 1e6 / $4
    }'
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for policy in static:dp=8 static:tp=8 shift flying; do
    run "Azure code, 15 min, $policy" --model llama-3.3-70b-fp8 --trace "$traces/azure2023_code_15min.csv" \
        --max-num-batched-tokens 131072 --policy "$policy"
done
for policy in static:dp=8 static:sp=8,tp=1 shift; do
    run "Mooncake, 15 min, $policy" --model qwen3-32b-fp8-kv8 --trace "$traces/mooncake_conversation_15min.csv" \
        --max-num-batched-tokens 131072 --no-enable-prefix-caching --policy "$policy"
done
for policy in static:dp=8 fcfs; do
    run "100 requests/s for an hour, $policy" --model llama-3.1-8b \
        --trace poisson:rate=100,seconds=3600,input=512,output=128 --policy "$policy"
done
