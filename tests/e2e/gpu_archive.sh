#!/usr/bin/env bash
# tests/e2e/gpu_archive.sh [all]: what tests/gpu/pack.sh packs runs where nothing else is: in a root folder with bash,
# coreutils and glibc alone, over the emulator, from the archive. The quick part of the first call; all: both calls as a
# whole, in minutes; GPU_ARCHIVE: this one, and none is packed. Ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${MOONSHIFT_BUILD:-build} all=${1:-}
place=$(mktemp -d) root=
trap 'rm -rf "$place"' EXIT
root=$place/root
passed=0 failed=0

check() {
    if "${@:2}"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
    fi
}

# copy_in FILE...: into the root, with the libraries that it needs, all of glibc's or bash's.
copy_in() {
    local f
    for f in "$@" $(ldd "$@" 2>/dev/null | grep -oE '/[^ :]+\.so[^ :]*' | sort -u); do
        [ -e "$root$f" ] || install -D "$(realpath "$f")" "$root$f"
    done
}

# Of glibc also what its programs and the CUDA runtime ask for by name.
make_root() {
    local name
    mkdir -p "$root"/{tmp,dev,out,proc} && : >"$root/dev/null"
    for name in bash basename cat date dirname env head kill ln ls mkdir mktemp nproc printf rm sleep sort stat \
        tail tee timeout tr uname getconf; do
        copy_in "$(type -P "$name")"
    done
    for name in m dl pthread rt; do
        copy_in "$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p |
            awk -v n="lib$name.so." 'index($1, n) == 1 && /x86-64/ { print $NF; exit }')"
    done
    tar xzf "$place/gpu.tar.gz" -C "$root"
}

# inside COMMAND...: in that root, with /proc, in a namespace of its own. Where nobody may have one (some containers) it
# is the machine's root, with only those programs in the path, which proves less.
inside() {
    local own=(-m)
    [ "$(id -u)" = 0 ] || own+=(-r)
    # shellcheck disable=SC2016
    if [ "$alone" ]; then
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin unshare "${own[@]}" bash -c 'mount --rbind /proc "$1/proc" &&
            exec chroot "$1" /usr/bin/env -i PATH=/usr/bin "${@:2}"' - "$root" "${settings[@]}" OUT=/out "$@"
    else
        env -i PATH="$root/usr/bin" "${settings[@]}" OUT="$root/out" "$1" "${@:2}"
    fi
}

# call WHICH
call() {
    inside "${alone:-$root/}moonshift-gpu/tests/gpu.sh" "$1" | tee "$place/said"
    [[ $(tail -n 1 "$place/said") =~ ^[1-9][0-9]*\ passed,\ 0\ failed,\ [0-9]+\ left$ ]] &&
        cmp -s <(tail -n 1 "$place/said") <(tail -n 1 "$root/out/gpu-$1.txt")
}

needs_no_other_library() {
    local lacking
    # shellcheck disable=SC2016
    lacking=$(inside bash -c 'for f in "$1"moonshift-gpu/built/{moonshift,tests/*}; do
        [ ! -f "$f" ] || LD_TRACE_LOADED_OBJECTS=1 LD_WARN=1 LD_BIND_NOW=1 "$f"; done' - "${alone:-$root/}" 2>&1 |
        grep -E 'not found|undefined')
    [ -z "$lacking" ] || { echo "$lacking" && false; }
}

settings=(GPU_DRY=1)
quick="C library|starts|runs a kernel|cuBLASLt|warp groups|attention|products, tiles|every op"
[ "$all" ] || settings+=("GPU_ONLY=$quick")
if [ "${GPU_ARCHIVE:-}" ]; then
    cp "$GPU_ARCHIVE" "$place/gpu.tar.gz"
else
    GPU_FROM=$build tests/gpu/pack.sh "$place"
fi
make_root || exit 1
alone=/ # how the root is named inside
inside uname >/dev/null 2>&1 || { alone='' && echo "no root folder of its own here"; }
check "programs find all their libraries there" needs_no_other_library
check "the first call" call first
[ ! "$all" ] || check "the second call" call second
echo "$passed passed, $failed failed"
[ $failed = 0 ]
