#!/usr/bin/env bash
# tests/gpu/pack.sh [FOLDER]: for a machine with a GPU that cannot build: builds here (GPU_ARCH, default 90a-real) what
# tests/gpu.sh runs, and puts the stripped programs with the libraries they need into FOLDER/gpu.tar.xz (default:
# build-gpu). There, in the same tree:
#   tar xf build-gpu/gpu.tar.xz && GPU_BUILT=build-gpu/run tests/gpu.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:-build-gpu}
build=${GPU_BUILD:-build-gpu/work}
# shellcheck disable=SC2016
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOONSHIFT_CUDA=on \
    -DCMAKE_CUDA_ARCHITECTURES="${GPU_ARCH:-90a-real}" \
    '-DCMAKE_BUILD_RPATH=$ORIGIN/lib;$ORIGIN/../lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null
cmake --build "$build" --target moonshift gpu

run=$folder/run
rm -rf "$run"
mkdir -p "$run/tests" "$run/lib"
cp "$build/moonshift" "$run/"
find "$build/tests" -maxdepth 1 -type f -perm -u+x \
    \( -name 'test_gpu_*' -o -name gpu_bench -o -name models_bench -o -name nll_layouts \) -exec cp -t "$run/tests" {} +
strip "$run/moonshift" "$run"/tests/*
# the C and C++ libraries are that machine's own
ldd "$run/moonshift" "$run"/tests/* | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' |
    xargs -I{} cp -L {} "$run/lib/"
tar cJf "$folder/gpu.tar.xz" "$run"
ls -l "$folder/gpu.tar.xz"
