#!/usr/bin/env bash
# tests/gpu.sh [first|second]: proves and measures the CUDA backend on this machine's GPU, from the archive that
# tests/gpu/pack.sh packed (build-gpu/gpu.tar.gz; where there is none, it is packed first). What it needs is in that
# archive; the machine has a driver, glibc, bash and coreutils. At most 550 s a call.
#   first   (default) facts; single kernels, graphs and trained weights beside the CPU and float64; speed of models and
#           operations; whole models on several ranks; a start; what ncu and compute-sanitizer see
#   second  every layout, hundreds of requests while layouts and partition change, the peer (torch), racecheck
# By importance: what does not fit the time, and what cannot work here, is named and counted as left. Everything is
# written as it comes to gpu-first.txt or gpu-second.txt in the folder OUT (default: where the archive was unpacked, or
# build-gpu), which ends with the goals and "N passed, N failed, N left", also when it is interrupted.
# docs/gpu-results.md explains how to read it.
#   GPU_SECONDS=540    when the last check begins to end: 10 s before all is over
#   GPU_ONLY=REGEX     only checks with such names
#   GPU_LIMIT=SECONDS  at most so many for each check
#   GPU_LIST=1         only says what would run, and each limit
#   GPU_MODEL=FILE     another model than the one in the archive
#   GPU_PYTHON=python3 for the peer: one that has torch
#   GPU_DRY=1          over tests/emulator, with small sizes: proves this script and what it runs, without a GPU;
#                      measures nothing
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
which=${1:-first} dry=${GPU_DRY:-}
case $which in first | second) ;; *) echo "usage: tests/gpu.sh [first|second]" >&2 && exit 2 ;; esac

# In a checkout: from the archive, in a folder of its own.
if [ ! -d built ]; then
    archive=${GPU_ARCHIVE:-build-gpu/gpu.tar.gz}
    [ -f "$archive" ] || tests/gpu/pack.sh || exit 1
    place=$(mktemp -d) && tar xzf "$archive" -C "$place" || exit 1
    OUT=${OUT:-$PWD/build-gpu} "$place/moonshift-gpu/tests/gpu.sh" "$which"
    status=$?
    rm -rf "$place"
    exit $status
fi

. tests/gpu/check.sh
. tests/gpu/find.sh

moonshift=$(program moonshift) ours=$results_dir/.ours
small=(${dry:+--dry}) few=(--requests 200)
[ ! "$dry" ] || few=(--small --requests 10)
model=${GPU_MODEL:-models/weights/small.gguf}
[ -f "$model" ] || model=
serve=(--device cuda --load-format dummy --hf-config tests/data/layout_gqa.json --dummy-dtype q8_0 --max-model-len 512
    --kv-cache-memory-bytes 16MiB)
[ ! "$model" ] || serve=("$model" --device cuda --max-model-len 1024 --kv-cache-memory-bytes 256MiB)

# ---- facts

facts() {
    local packed=built/packed.txt
    [ "$dry" ] && say "dry run over the emulator: no number here is a measurement"
    [ ! -f "$packed" ] || note <"$packed"
    machine | note
    check "this machine's C library is new enough" 5 libc_suffices
    [ "$dry" ] || ! have nvidia-smi || check "nvidia-smi" 15 nvidia-smi
    must "the program starts" 15 "$moonshift" --version
    must "a GPU runs a kernel" 15 "$(program gpu_facts)"
    [ "$gone" ] || find_libraries
    check "cuBLASLt loads" 15 "$(program gpu_facts)" --libraries
}

# ---- right?

nll() {
    local said
    if [ ! "$model" ]; then
        check "$1, dummy weights" "$2" "$(program nll_layouts)" --ranks "$3"
        return
    fi
    said=$(cat "models/weights/small.nll${dry:+.dry}" 2>/dev/null)
    [ ! "${GPU_MODEL:-}" ] || said=
    check "$1" "$2" "$(program nll_layouts)" --ranks "$3" ${said:+--cpu-said "$said"} "$model"
}

answer() {
    local tokens=48 less=()
    [ ! "$dry" ] || tokens=2 less=(--no-warmup --kv-cache-memory-bytes 4MiB --max-num-batched-tokens 64)
    [ ! "$model" ] || check "the CPU's answer, $*" 20 bash tests/gpu/answer.sh "$moonshift" "$model" "$tokens" "$@" \
        "${less[@]}"
}

correct_kernels() {
    check "warp groups' products beside plain ones" 15 "$(program test_gpu_cuda_hopper)"
    check "attention beside float64" 35 "$(program test_gpu_cuda_flash)"
    check "few-row products, tiles, inputs beside float64" 30 "$(program test_gpu_cuda_products)"
    check "graphs beside single launches" 40 "$(program test_gpu_cuda_graphs)"
    nll "likelihood of a text, trained weights, default mode" 25 1
    answer --devices 0
    check "every op beside the CPU" 35 "$(program test_gpu_cuda_ops)"
    check "products of two fp8 factors beside float64" 30 "$(program test_gpu_cuda_f8)"
    check "bf16 between ops beside f32" 15 "$(program test_gpu_cuda_halves)"
    check "likelihoods of the default mode beside the CPU" 35 "$(program test_gpu_cuda_modes)"
}

# ---- how fast?

speed() {
    check "whole models" 85 "$(program models_bench)" --seconds 70 "${small[@]}" && last_output >"$ours"
    check "single operations" 50 "$(program gpu_bench)" --seconds 38 "${small[@]}"
}

start() {
    local args=("${serve[@]}")
    [ ! "$dry" ] || args+=(--max-num-batched-tokens 64)
    with_python "starting" 30 tests/gpu/starting.py --binary "$moonshift" -- "${args[@]}"
}

# ---- what only other tools can see: each is tried on a small program that is known to be right

tools_of_first() {
    local memcheck=(compute-sanitizer --tool memcheck --error-exitcode 9)
    spare=1
    if works "compute-sanitizer" "${memcheck[@]}" "$(program gpu_facts)"; then
        tool "compute-sanitizer memcheck, attention" 60 "${memcheck[@]}" "$(program test_gpu_cuda_flash)"
        tool "compute-sanitizer memcheck, every op" 100 "${memcheck[@]}" "$(program test_gpu_cuda_ops)"
    fi
    if works "ncu" ncu --clock-control none --metrics gpu__time_duration.sum "$(program gpu_facts)"; then
        with_python "kernels of a step (ncu)" 60 tests/gpu/gaps.py "$(find_tool ncu)" "$(program models_bench)" "$ours"
    fi
}

tools_of_second() {
    local racecheck=(compute-sanitizer --tool racecheck --error-exitcode 9)
    spare=1
    if works "compute-sanitizer" "${racecheck[@]}" "$(program gpu_facts)"; then
        tool "compute-sanitizer racecheck, attention" 100 "${racecheck[@]}" "$(program test_gpu_cuda_flash)" --plain
    fi
}

# ---- right with all ranks and in the whole program?

requests() {
    local name=$1 policy=$2 ranks=$3
    with_python "$name" 60 tests/gpu/requests.py --binary "$moonshift" --policy "$policy" --ranks-arg "$ranks" \
        "${few[@]}" -- "${serve[@]}" --invariant --max-num-batched-tokens 512 ${dry:+--no-warmup}
}

layouts() {
    nll "likelihood of a text in every layout of 1 to 8 ranks, default mode" 45 8
    requests "requests while shift changes layouts" shift "--devices 0,0,0,0"
    requests "requests while flying changes the partition" flying "--devices 0,0,0,0"
    requests "requests to pooled weights under sidp" sidp "--devices 0,0,0,0 -dp 4 --weights pooled"
    check "switching never shows, every way to interrupt, ranks that fail" 50 "$(program test_gpu_layout_switch)"
    check "drafts never show, right ones and wrong ones, ranks that fail" 50 "$(program test_gpu_layout_drafts)"
    [ "$dry" ] || check "pooled weights never show, ranks that fail" 45 "$(program test_gpu_layout_pool_switch)"
    answer --devices 0,0 -tp 2
    answer --devices 0,0 -sp 2
    answer --devices 0,0,0,0 --policy shift
}

peers() {
    check "whole models, for the peer" 45 "$(program models_bench)" --seconds 35 "${small[@]}" && last_output >"$ours"
    with_python "torch, the same models" 70 tests/bench/gpu/peer.py --seconds 50 --ours "$ours" "${small[@]}"
    leave "llama.cpp" "no build of it with CUDA fits the archive"
}

facts
if [ "$which" = first ]; then
    correct_kernels
    speed
    check "whole models, 1 to 8 ranks on one device" 45 "$(program test_gpu_cuda_forward)"
    start
    tools_of_first
else
    layouts
    peers
    tools_of_second
fi
