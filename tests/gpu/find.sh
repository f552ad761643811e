# shellcheck shell=bash
# Sourced by tests/gpu.sh, whose dry and python it uses: where this machine has things, and what it is. Only bash and
# coreutils.
# shellcheck disable=SC2154
shopt -s nullglob
added=/opt # where vendors put what is not the system's

# Programs over the emulator have other names.
program() {
    case $dry$1 in
    1moonshift) echo built/tests/moonshift_emulated ;;
    moonshift) echo built/moonshift ;;
    1test_gpu_layout_switch | 1test_gpu_layout_drafts) echo "built/tests/test_cuda_as_${1#test_gpu_}" ;;
    1test_gpu_*) echo "built/tests/test_${1#test_gpu_}" ;;
    1*) echo "built/tests/$1_dry" ;;
    *) echo "built/tests/$1" ;;
    esac
}

# The C library here, as "2.39".
libc_here() {
    local line
    line=$(getconf GNU_LIBC_VERSION 2>/dev/null) || line=$(ldd --version 2>&1)
    line=${line%%$'\n'*}
    echo "${line##* }"
}

libc_suffices() {
    local need here
    need=$(cat built/glibc) here=$(libc_here)
    echo "glibc $here here, $need needed; with an older one programs may not start"
    [ "$(printf '%s\n' "$need" "$here" | sort -V | head -n 1)" = "$need" ]
}

machine() {
    local line cpu=
    echo "$(uname -srm), $(nproc) cores, glibc $(libc_here), bash $BASH_VERSION"
    while IFS= read -r line; do
        [[ $line != "model name"* ]] || cpu=${line#*: }
    done </proc/cpuinfo
    echo "processor: ${cpu:-?}"
    while IFS= read -r line; do
        [[ $line != Mem[TA]* ]] || echo "${line//  / }"
    done </proc/meminfo
    for line in nvcc ncu compute-sanitizer nvidia-smi "$python"; do
        echo "$line: $(find_tool "$line" || echo "not here")"
    done
} 2>/dev/null

# find_tool NAME: its path; 1: it is nowhere.
find_tool() {
    local path
    command -v "$1" && return
    for path in "${CUDA_HOME:-/usr/local/cuda}/bin/$1" /usr/local/cuda*/bin/"$1" "$added"/cuda*/bin/"$1" \
        "$added"/nvidia/nsight-compute/*/"$1" "$added"/nvidia/*/bin/"$1" /usr/local/nvidia/bin/"$1"; do
        [ ! -x "$path" ] || { echo "$path" && return; }
    done
    return 1
}

# Folders that may hold CUDA's libraries: toolkits, and the packages of Python. Last, wherever a search finds one.
library_folders() {
    local prefix its
    its=$(dirname "$(dirname "$(find_tool "$python")")")
    for prefix in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda{,-*} "$added"/cuda* "$added"/nvidia/*; do
        [ ! "$prefix" ] || printf '%s\n' "$prefix"/{lib64,lib,targets/x86_64-linux/lib}
    done
    printf '%s\n' /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/lib /usr/local/nvidia/lib64
    for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}" "$its" "$added"/*/.venv "$added"/*/venv "$added"/venv \
        "$added"/conda "${HOME:-}/.local" "${HOME:-}/.venv" /usr /usr/local; do
        [ ! "$prefix" ] || printf '%s\n' "$prefix"/lib/python3*/{site,dist}-packages/nvidia/*/lib "$prefix/lib"
    done
    ! have find || timeout 15 find / -xdev -name 'libcublasLt.so*' -printf '%h\n' 2>/dev/null | sort -u
}

loads() {
    timeout 20 "$(program gpu_facts)" --libraries >/dev/null 2>&1
}

# folder_that_loads: prints the first one from which cuBLASLt loads. One of another major version than the programs were
# built for loads by its bare name alone: it gets that in a folder of its own.
folder_that_loads() {
    local folder files other=
    while IFS= read -r folder; do
        files=("$folder"/libcublasLt.so.[0-9]*)
        [ ${#files[@]} -gt 0 ] || continue
        LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-} loads && echo "$folder" && return
        other=${files[0]}
        [ $SECONDS -lt 90 ] || break # libraries that hang are none
    done < <(library_folders)
    [ "$other" ] || return 1
    folder=$(mktemp -d) && ln -s "$other" "$folder/libcublasLt.so" || return 1
    folder+=:$(dirname "$other")
    LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-} loads && echo "$folder"
}

# Makes cuBLASLt loadable by LD_LIBRARY_PATH, if it is not, and NCCL, where Python's packages have it beside.
find_libraries() {
    local folder
    [ ! "$listing" ] || return 0
    if loads; then
        say "        cuBLASLt is where the loader looks"
    elif folder=$(folder_that_loads); then
        [ ! -d "${folder%/*/lib}/nccl/lib" ] || folder+=:${folder%/*/lib}/nccl/lib
        export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
        say "        cuBLASLt is in $folder"
    else
        say "        no cuBLASLt was found that loads"
    fi
}
