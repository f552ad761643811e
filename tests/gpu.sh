#!/usr/bin/env bash
# tests/gpu.sh [RESULTS]: proves and measures the CUDA backend on this machine's GPU, in under ten minutes: builds, compares every op and whole models
# with the CPU, the demo model's NLL against float64, all layouts on shared devices, compute-sanitizer on the small ones, then single operations
# beside a memory copy. Everything goes to one results file (default: gpu-results.txt), which ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

results=${1:-gpu-results.txt}
build=${GPU_BUILD:-build-gpu}
passed=0 failed=0
started=$SECONDS
: >"$results"
say() { printf '%s\n' "$*" | tee -a "$results"; }

# check NAME LIMIT COMMAND...: one line that says how it went; its output goes to the results.
check() {
    local name=$1 limit=$2 t=$SECONDS rc
    shift 2
    printf '\n== %s\n' "$name" >>"$results"
    timeout -k 10 "$limit" "$@" >>"$results" 2>&1 </dev/null
    rc=$?
    if [ $rc = 0 ] && ! tail -n 40 "$results" | sed -n "/^== $name\$/,\$p" | grep -q SKIPPED; then
        passed=$((passed + 1))
        say "ok      $name ($((SECONDS - t)) s)"
    else
        failed=$((failed + 1))
        say "FAILED  $name (status $rc, $((SECONDS - t)) s)"
    fi
}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv >>"$results" 2>&1
say "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
check "configure" 120 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOONSHIFT_CUDA=on ${GPU_ARCH:+"-DCMAKE_CUDA_ARCHITECTURES=$GPU_ARCH"}
check "build" 400 cmake --build "$build" --target moonshift gpu
[ $failed = 0 ] || { say "$passed passed, $failed failed"; exit 1; }

tests=$build/tests
check "every op beside the CPU" 120 "$tests/test_gpu_cuda_ops"
check "few-row products, tiles, inputs beside float64" 120 "$tests/test_gpu_cuda_products"
check "attention beside float64" 120 "$tests/test_gpu_cuda_flash"
check "likelihoods of the default mode beside the CPU" 120 "$tests/test_gpu_cuda_modes"
check "whole models, 1 to 8 ranks on one device" 120 "$tests/test_gpu_cuda_forward"
model=$(ls models/weights/*.gguf 2>/dev/null | head -n 1)
if [ -n "$model" ]; then
    check "NLL of the demo model, invariant mode" 120 "$tests/test_gpu_nll_invariant"
    check "NLL of the demo model, default mode" 60 "$tests/test_gpu_nll_default"
    ask() { timeout 60 "$build/moonshift" run "$model" "$@" --temperature 0 -n 48 "Name three rivers and say where they end." 2>>"$results"; }
    cpu=$(ask --device cpu)
    check "the CPU answers" 10 test -n "$cpu"
    for how in "--devices 0" "--devices 0,0 -tp 2" "--devices 0,0 -sp 2" "--devices 0,0,0,0 -sp 2 -tp 2" "--devices 0,0,0,0 --policy shift"; do
        # shellcheck disable=SC2086
        check "the CPU's answer, $how" 60 test "$(ask --device cuda --invariant $how)" = "$cpu"
    done
else
    say "no demo model here (models/fetch.sh): its NLL and answers were not checked"
fi
if command -v compute-sanitizer >/dev/null; then
    check "compute-sanitizer memcheck" 150 compute-sanitizer --tool memcheck --error-exitcode 9 "$tests/test_gpu_cuda_ops"
    check "compute-sanitizer racecheck" 150 compute-sanitizer --tool racecheck --error-exitcode 9 "$tests/test_gpu_cuda_ops"
else
    say "compute-sanitizer is not here: not run"
fi
check "single operations" 150 "$tests/gpu_bench"
grep -E '^(linear|attention|.*copy of device)' "$results"
say "$((SECONDS - started)) s"
say "$passed passed, $failed failed"
[ $failed = 0 ]
