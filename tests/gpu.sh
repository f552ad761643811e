#!/usr/bin/env bash
# tests/gpu.sh [RESULTS]: proves and measures the CUDA backend on this machine's GPU, in under ten minutes: builds,
# compares every op and whole models with the CPU, measures whole models and single operations beside probes and a peer
# (torch, where it is), then the demo model's NLL in every layout, hundreds of requests through the real program while
# layouts and partition change, compute-sanitizer, the gaps between kernels. By importance; when the time is over the
# rest is named and left out. Everything goes to one results file (default: gpu-results.txt) as it comes, which ends
# with the goals and "N passed, N failed", also when it is interrupted.
#   GPU_SECONDS=570     all the time there is
#   GPU_BUILD=build-gpu where to build
#   GPU_ARCH=90a-real   (default: what nvidia-smi says)
#   GPU_MODEL=FILE      the demo model (default: models/weights/*.gguf; what needs it is left out without it)
#   GPU_PYTHON=python3  for the peer: one that has torch
#   GPU_BUILT=FOLDER    what tests/gpu/pack.sh packed elsewhere: nothing is built
#   GPU_DRY=1           over tests/emulator, with small sizes: proves this script and what it runs, on a machine without
#                       a GPU; measures nothing
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

results=${1:-gpu-results.txt} dry=${GPU_DRY:-}
seconds=${GPU_SECONDS:-$([ "$dry" ] && echo 1800 || echo 570)}
build=${GPU_BUILT:-${GPU_BUILD:-build-gpu}} python=${GPU_PYTHON:-python3}
tests=$build/tests
passed=0 failed=0 left=0 limit=0 running=
SECONDS=0
: >"$results"
scratch=$(mktemp -d) || exit 1
say() { printf '%s\n' "$*" | tee -a "$results"; }

# The last lines, however it ends.
finish() {
    trap - EXIT
    rm -rf "$scratch"
    printf '\n' >>"$results"
    say "goals of this run:"
    grep -hE '^G[0-9]+[a-z]? ' "$results" | tee "$results.goals"
    cat "$results.goals" >>"$results" && rm -f "$results.goals"
    [ $left = 0 ] || say "$left not run: the time was over"
    say "$SECONDS s"
    say "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed -gt 0 ]
    exit
}
trap finish EXIT
trap 'say "interrupted"; failed=$((failed + 1)); [ -z "$running" ] || kill "$running"; exit 130' INT TERM

# check NAME LIMIT COMMAND...: one line that says how it went; its output goes to the results. LIMIT: seconds, less when
# less is left.
check() {
    local name=$1 t=$SECONDS rc rest=$((seconds - SECONDS))
    limit=$(($2 * (${dry:-0} * 5 + 1))) # the emulator takes its time
    shift 2
    if [ $rest -lt 5 ]; then
        left=$((left + 1))
        say "left    $name"
        return 1
    fi
    [ "$limit" -le $rest ] || limit=$rest
    printf '\n== %s\n' "$name" >>"$results"
    if declare -F "$1" >/dev/null; then
        "$@" >"$scratch/out" 2>&1 </dev/null & # it heeds $limit itself
    else
        timeout -k 10 "$limit" "$@" >"$scratch/out" 2>&1 </dev/null &
    fi
    running=$!
    wait $running
    rc=$?
    running=
    cat "$scratch/out" >>"$results"
    if [ $rc = 0 ] && ! grep -qE 'SKIPPED|no GPU here' "$scratch/out"; then
        passed=$((passed + 1))
        say "ok      $name ($((SECONDS - t)) s)"
        return 0
    fi
    if [ $rc = 124 ] && [ "$limit" = $rest ]; then
        left=$((left + 1))
        say "left    $name: cut, the time is over"
        return 1
    fi
    failed=$((failed + 1))
    say "FAILED  $name (status $rc, $((SECONDS - t)) s)"
    return 1
}

# Programs over the emulator have other names.
program() {
    case $dry$1 in
    1moonshift) echo "$tests/moonshift_emulated" ;;
    moonshift) echo "$build/moonshift" ;;
    1test_gpu_layout_switch | 1test_gpu_layout_drafts) echo "$tests/test_cuda_as_${1#test_gpu_}" ;;
    1test_gpu_*) echo "$tests/test_${1#test_gpu_}" ;;
    1*) echo "$tests/$1_dry" ;;
    *) echo "$tests/$1" ;;
    esac
}
small=(${dry:+--dry}) few=(${dry:+--small --requests 10})

# ---- the machine and the build

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
say "commit $commit${dry:+, dry run over the emulator: no number here is a measurement}"
if [ ! "$dry" ] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv >>"$results" 2>&1
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    [ "$capability" = 90 ] && capability=90a
    GPU_ARCH=${GPU_ARCH:-${capability:+$capability-real}}
fi
if [ -n "${GPU_BUILT:-}" ]; then
    check "the programs start" 20 "$build/moonshift" --version || exit 1
else
    targets=(moonshift gpu)
    [ "$dry" ] && targets=(gpu_dry test_cuda_ops test_cuda_products test_cuda_f8 test_cuda_flash test_cuda_hopper
        test_cuda_modes test_cuda_forward test_cuda_graphs test_cuda_as_layout_switch
        test_cuda_as_layout_drafts)
    check "configure" 60 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DMOONSHIFT_CUDA="$([ "$dry" ] && echo off || echo on)" \
        ${GPU_ARCH:+"-DCMAKE_CUDA_ARCHITECTURES=$GPU_ARCH"} || exit 1
    check "build" 400 cmake --build "$build" --target "${targets[@]}" || exit 1
fi
moonshift=$(program moonshift)

# ---- right?

check "every op beside the CPU" 100 "$(program test_gpu_cuda_ops)"
check "few-row products, tiles, inputs beside float64" 60 "$(program test_gpu_cuda_products)"
check "products of two fp8 factors beside float64" 60 "$(program test_gpu_cuda_f8)"
[ "$dry" ] || [ "${capability:-}" = 90a ] &&
    check "warp groups' products beside plain ones" 30 "$(program test_gpu_cuda_hopper)"
check "attention beside float64" 60 "$(program test_gpu_cuda_flash)"
check "likelihoods of the default mode beside the CPU" 60 "$(program test_gpu_cuda_modes)"

# ---- how fast?

check "whole models" 130 "$(program models_bench)" --seconds 100 "${small[@]}" && cp "$scratch/out" "$scratch/ours"
check "single operations" 90 "$(program gpu_bench)" --seconds 70 "${small[@]}"
check "the peer" 70 "$python" -B tests/bench/gpu/peer.py --seconds 50 "${small[@]}" && cp "$scratch/out" "$scratch/peer"

# Lines of both that begin with the same case: milliseconds of the peer over ours.
compare() {
    awk -v dry="${dry:+[dry run: means nothing]}" '
        function key(from,   i, k) {
            k = ""
            for (i = from; i <= NF && $(i + 1) != "ms"; i++) k = k $i " "
            value = $i
            return k
        }
        FNR == NR { if ($1 == "decode" || $1 == "prefill") ours[key(1)] = value; next }
        ($1 == "torch" || $1 == "transformers") && ($2 == "decode" || $2 == "prefill") {
            k = key(2)
            if (!(k in ours) || ours[k] <= 0) next
            ratio = value / ours[k]
            printf "%-12s %s ours %s ms, theirs %s ms: %.2f times as fast\n", $1, k, ours[k], value, ratio
            if ($1 == "torch" && (!worst || ratio < worst)) { worst = ratio; where = k }
        }
        END { if (worst) printf "G12 %.2f (goal 0.95) times torch of this run; the worst: %s%s\n", worst, where, dry
              else print "G12 not measured: no peer ran the same case" }' "$scratch/ours" "$scratch/peer" |
                  tee -a "$results"
}
if [ -f "$scratch/ours" ] && [ -f "$scratch/peer" ]; then
    compare
else
    say "G12 not measured: ours or the peer was not run"
fi
say "G12b not measured: llama.cpp is not built here"

# ---- right with all ranks and in the whole program?

check "graphs beside single launches" 60 "$(program test_gpu_cuda_graphs)"
check "whole models, 1 to 8 ranks on one device" 90 "$(program test_gpu_cuda_forward)"
model=${GPU_MODEL:-$(find models/weights -name '*.gguf' 2>/dev/null | sort | head -n 1)}
[ "$dry" ] && model=
serve=(--device cuda --invariant --load-format dummy --hf-config tests/data/layout_gqa.json --dummy-dtype q8_0
    --max-model-len 512 --kv-cache-memory-bytes 16MiB)
if [ -n "$model" ]; then
    check "NLL in every layout of 1, 2, 4 and 8 ranks, default mode" 60 "$(program nll_layouts)" "$model"
    if [ "$model" = models/weights/SmolLM2-135M-Instruct.Q4_1.gguf ]; then
        check "NLL beside float64, default mode" 30 "$(program test_gpu_nll_default)"
        check "NLL beside float64, invariant mode" 60 "$(program test_gpu_nll_invariant)"
    fi
    serve=("$model" --device cuda --invariant --max-model-len 1024 --kv-cache-memory-bytes 256MiB)
else
    say "no demo model here (GPU_MODEL): its NLL and answers are not checked; requests go to a dummy model"
    check "NLL of a dummy model in every layout, default mode" 90 "$(program nll_layouts)"
fi
for policy in shift flying; do
    check "500 requests while $policy switches" 75 "$python" -B tests/gpu/requests.py --binary "$moonshift" \
        --policy $policy "${few[@]}" -- "${serve[@]}" --max-num-batched-tokens 512 ${dry:+--no-warmup}
done
check "500 requests to pooled weights under sidp" 75 "$python" -B tests/gpu/requests.py --binary "$moonshift" \
    --policy sidp --ranks-arg "--devices 0,0,0,0 -dp 4 --weights pooled" "${few[@]}" -- "${serve[@]}" \
    --max-num-batched-tokens 512 ${dry:+--no-warmup}
[ "$dry" ] ||
    check "pooled weights never show, fetched and sent, ranks that fail" 75 "$(program test_gpu_layout_pool_switch)"
check "switching never shows, every way to interrupt, ranks that fail" 75 "$(program test_gpu_layout_switch)"
check "drafts never show, right ones and wrong ones, ranks that fail" 75 "$(program test_gpu_layout_drafts)"
if [ -n "$model" ]; then
    ask() {
        timeout 60 "$moonshift" run "$model" "$@" --temperature 0 -n 48 \
            "Name three rivers and say where they end." 2>>"$results"
    }
    cpu=$(ask --device cpu)
    check "the CPU answers" 10 test -n "$cpu"
    for how in "--devices 0" "--devices 0,0 -tp 2" "--devices 0,0 -sp 2" "--devices 0,0,0,0 -sp 2 -tp 2" \
        "--devices 0,0,0,0 --policy shift"; do
        # shellcheck disable=SC2086
        check "the CPU's answer, $how" 60 test "$(ask --device cuda --invariant $how)" = "$cpu"
    done
fi

# ---- starting: what is recorded, and when the first token comes

start=()
for word in "${serve[@]}"; do [ "$word" = --invariant ] || start+=("$word"); done
[ "$dry" ] && start+=(--max-num-batched-tokens 64)
check "starting" 60 "$python" -B tests/gpu/starting.py --binary "$moonshift" -- "${start[@]}"

# ---- what only other tools can see

gaps() {
    timeout "$limit" ncu --clock-control none --cache-control none --profile-from-start off \
        --metrics gpu__time_duration.sum --csv "$(program models_bench)" --profile --seconds 60 >"$scratch/ncu" ||
        return 1
    local step
    step=$(awk '$1 == "decode" && $2 == "Llama-3.1-8B" && $4 == 1 && $6 == 1024 { print $7; exit }' "$scratch/ours")
    grep '"gpu__time_duration.sum"' "$scratch/ncu" | awk -F'","' -v step="$step" '
        { v = $NF; gsub(/[",]/, "", v)
          unit = $(NF - 1)
          ns = v * (unit == "us" || unit == "usecond" ? 1000 : unit == "ms" || unit == "msecond" ? 1e6 : 1)
          sum += ns; n++ }
        END { if (!n || !step) {
                  print "G10 not measured: the profiler named no kernel, or there is no step to compare with"
                  exit 1
              }
              printf "G10 %.2f (goal at most 0.05) gaps: a step of %.3f ms, ", (step - sum / 1e6) / step, step
              printf "%d kernels (%.1f a layer) of %.3f ms when each runs alone\n", n, n / 32, sum / 1e6 }'
}
if command -v ncu >/dev/null && [ -f "$scratch/ours" ] && [ ! "$dry" ]; then
    check "kernels of a step" 90 gaps
else
    say "G10 not measured: no ncu here"
fi
if command -v compute-sanitizer >/dev/null && [ ! "$dry" ]; then
    check "compute-sanitizer memcheck" 100 \
        compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/test_gpu_cuda_ops"
    check "compute-sanitizer memcheck, attention" 60 \
        compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/test_gpu_cuda_flash"
    check "compute-sanitizer racecheck" 100 \
        compute-sanitizer --tool racecheck --error-exitcode 9 "$tests/test_gpu_cuda_flash" --plain
else
    say "compute-sanitizer is not here: not run"
fi
