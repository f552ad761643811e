#!/usr/bin/env bash
# tests/gpu/pack.sh [FOLDER]: makes FOLDER/gpu.tar.gz (default: build-gpu), which has all that tests/gpu.sh needs on a
# machine with a GPU and nothing but its driver, glibc, bash, coreutils, tar and gzip: the program, tests and benches
# with the libraries that they need, the same over the emulator, a small model of trained weights, scripts. Installs
# what is missing to build (Debian, Ubuntu), but for nvcc. There:
#   tar xzf gpu.tar.gz && moonshift-gpu/tests/gpu.sh
#   GPU_ARCH=90a-real  the GPUs that it is for: compute capability 9.0 (H100, H200)
#   GPU_DRY=1          only what runs over the emulator: no nvcc is needed
#   GPU_FROM=BUILD     the same of a folder where it is built already (./test does): nothing is installed or built
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/setup.sh

folder=${1:-build-gpu} dry=${GPU_DRY:-${GPU_FROM:+1}} arch=${GPU_ARCH:-90a-real}
work=$(realpath -m "${GPU_FROM:-build-gpu/work}")
root=$folder/moonshift-gpu with_gpu=
[ "$dry" ] || with_gpu=1
MOST=$((60 << 20)) MODEL_MOST=$((40 << 20))
# Of the demo model's 30 layers and 49,152 tokens: the likeliest text of what was tried, at this size.
LAYERS=0,1,4,14,18,23,27,29 TOKENS=16384

programs() {
    local program
    [ "$dry" ] || echo moonshift tests/{gpu_facts,nll_layouts,gpu_bench,models_bench}
    for program in hopper flash products halves graphs ops f8 modes forward; do
        [ "$dry" ] || echo "tests/test_gpu_cuda_$program"
    done
    [ "$dry" ] || echo tests/test_gpu_layout_{switch,drafts,pool_switch}
    echo tests/{moonshift_emulated,gpu_facts_dry,nll_layouts_dry,gpu_bench_dry,models_bench_dry}
    echo tests/test_cuda_{hopper,flash,products,halves,graphs,ops,f8,modes,forward,as_layout_switch,as_layout_drafts}
}

build_all() {
    local targets=(gpu_dry) program # those of gpu and gpu_dry, and tests that run over the emulator anyway
    for program in $(programs); do
        [[ $program != tests/test_cuda* ]] || targets+=("${program#tests/}")
    done
    setup pack
    if [ ! "$dry" ]; then
        command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] ||
            die "pack.sh: no nvcc here (CUDA_HOME); GPU_DRY=1 packs what runs over the emulator"
        targets+=(moonshift gpu)
    fi
    if command -v ccache >/dev/null; then
        export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    fi
    # shellcheck disable=SC2016
    cmake -S . -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DMOONSHIFT_CUDA="$([ "$with_gpu" ] && echo on || echo off)" \
        -DCMAKE_CUDA_ARCHITECTURES="$arch" '-DCMAKE_BUILD_RPATH=$ORIGIN/lib' \
        -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null
    cmake --build "$work" --target "${targets[@]}" >&2
}

# The libraries of programs but for those of glibc, which a driver needs in that machine's own version.
libraries_of() {
    ldd "$@" | awk '$3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(lib(c|m|dl|pthread|rt|resolv|util|nsl|anl)|ld-linux[^/]*)\.so'
}

copy_programs() {
    local list
    mkdir -p "$root/built/tests" "$root/built/lib"
    for list in $(programs); do
        cp "$work/$list" "$root/built/$list"
    done
    # shellcheck disable=SC2046
    cp -L $(cd "$work" && libraries_of $(programs)) "$root/built/lib/"
    strip --strip-unneeded "$root"/built/tests/* "$root"/built/lib/* "$root"/built/moonshift* 2>/dev/null || true
    newest_glibc "$root"/built/{tests,lib}/* ${with_gpu:+"$root/built/moonshift"} >"$root/built/glibc"
}

newest_glibc() {
    local found
    found=$(readelf -V "$@" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    echo "${found#GLIBC_}"
}

copy_scripts() {
    mkdir -p "$root"/tests/{gpu,oracle,bench/gpu,data} "$root/models/weights"
    cp tests/gpu.sh "$root/tests/"
    cp tests/gpu/{check.sh,find.sh,answer.sh,requests.py,starting.py,gaps.py} "$root/tests/gpu/"
    cp tests/oracle/own_server.py "$root/tests/oracle/"
    cp tests/bench/gpu/peer.py "$root/tests/bench/gpu/"
    cp tests/data/{layout_,gold_,nll_tokens}*.json "$root/tests/data/"
    cp -r policies "$root/"
    cp docs/gpu-results.md "$root/README.md"
    cp LICENSE NOTICE "$root/"
}

# What was packed already is not fetched for a test of this script.
copy_model() {
    local from=models/weights/SmolLM2-135M-Instruct.Q4_1.gguf to=$root/models/weights/small
    [ "${GPU_FROM:-}" ] || models/fetch.sh >/dev/null
    if [ ! -f "$from" ]; then
        say "pack.sh: no demo model here; dummy weights there"
        return
    fi
    python3 tests/gpu/cut.py "$from" "$to.gguf" "$LAYERS" "$TOKENS"
    [ "$(stat -c %s "$to.gguf")" -le "$MODEL_MOST" ] || die "pack.sh: $to.gguf is larger than 40 MiB"
    said "$root/built/tests/nll_layouts_dry" "$to.gguf" >"$to.nll.dry"
    [ "$dry" ] || said "$root/built/tests/nll_layouts" "$to.gguf" >"$to.nll"
}

# What the CPU says of it, whose bits are the same on every machine.
said() {
    "$1" --cpu "$2" | awk '{ print $NF }'
}

describe() {
    local state="as committed" arches=$PWD/tests/gpu/arches.py
    git diff --quiet HEAD 2>/dev/null || state="with changes"
    echo "packed from $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $state, on $(uname -sm)"
    echo "needs glibc $(cat "$root/built/glibc") or newer (packed beside $(ldd --version 2>&1 | sed -n '1s/.* //p'))"
    [ "$with_gpu" ] || return 0
    "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" --version | tail -n 1 || true
    (cd "$root" && python3 "$arches" "${arch%%[!0-9]*}" built/moonshift built/lib/libgpu_parts.so built/tests/*)
}

[ "${GPU_FROM:-}" ] || build_all
rm -rf "$root"
mkdir -p "$root"
copy_programs
copy_scripts
copy_model
describe >"$root/built/packed.txt" || die "pack.sh: no machine code for $arch" "$(cat "$root/built/packed.txt")"
tar czf "$folder/gpu.tar.gz" -C "$folder" moonshift-gpu
rm -rf "$root"
bytes=$(stat -c %s "$folder/gpu.tar.gz")
[ "$bytes" -le "$MOST" ] || die "pack.sh: $folder/gpu.tar.gz has $bytes bytes, more than 60 MiB"
echo "$folder/gpu.tar.gz: $((bytes >> 10)) KiB"
