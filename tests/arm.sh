#!/usr/bin/env bash
# tests/arm.sh: the program for 64-bit ARM, without such a machine: builds it and the tests of its ops with a cross
# compiler, and runs them under QEMU as CPUs that have I8MM, dot products alone, and neither. QEMU shows that the bits
# are right, and nothing about time.
# tests/arm.sh --ready: only finds out whether this machine can, or says why not. What it lacks is installed where that
# is possible: compiler and QEMU as packages, libraries for ARM into build-aarch64/sysroot, by an apt that knows of no
# other architecture and touches no package of this machine.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/setup.sh

sysroot=build-aarch64/sysroot
tools=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
libraries=(libc6-dev libcjson-dev libcmocka-dev libedit-dev libevent-dev libluajit-5.1-dev libpcre2-dev libseccomp-dev
    libssl-dev)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT TERM

have_tools() {
    command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null
}

install_tools() {
    as_root apt-get -qq update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-remove --no-install-recommends \
            "${tools[@]}"
}

# fetch FOLDER: the libraries and what they need, as packages.
fetch() {
    local at=$1
    mkdir -p "$at/lists/partial" "$at/archives/partial"
    : >"$at/status"
    local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$at"
        -o Dir::State::Lists="$at/lists" -o Dir::State::status="$at/status" -o Dir::Cache="$at"
        -o Dir::Cache::archives="$at/archives" -o Debug::NoLocking=1 -o APT::Sandbox::User=)
    "${apt[@]}" update &&
        "${apt[@]}" install -y --download-only --no-install-recommends "${libraries[@]}"
}

make_sysroot() {
    [ "$(cat $sysroot/.ready 2>/dev/null)" != "${libraries[*]}" ] || return 0
    fetch "$out/apt" || return
    rm -rf $sysroot
    mkdir -p $sysroot
    for package in "$out"/apt/archives/*.deb; do
        dpkg-deb -x "$package" $sysroot || return
    done
    echo "${libraries[*]}" >$sysroot/.ready
}

# The reason, if this machine cannot.
ready() {
    [ "$(uname -m)" != aarch64 ] || die "this is a 64-bit ARM machine: the other stages run its kernels"
    if ! have_tools; then
        command -v apt-get >/dev/null || die "there is no aarch64-linux-gnu-gcc or no qemu-aarch64, and no apt-get"
        { install_tools >"$out/log" 2>&1 </dev/null && have_tools; } ||
            die "the cross compiler and QEMU cannot be installed: $(tail -n 1 "$out/log")"
    fi
    make_sysroot >"$out/log" 2>&1 </dev/null || die "no libraries for ARM can be had: $(tail -n 1 "$out/log")"
}

# CPU of QEMU, its best instruction set, program, --cpu-precision, cases; what takes longest first.
programs() {
    cat <<'TABLE'
max         i8mm    attention high *_*_*
max         i8mm    encode    high *
max         i8mm    attention high sliding_windows
max         i8mm    linear    high *
max         i8mm    linear    fast *
neoverse-n1 dotprod linear    high *
neoverse-n1 dotprod linear    fast *
cortex-a53  neon    linear    high *
cortex-a53  neon    linear    fast *
max         i8mm    misc      high *
max         i8mm    kernels   high *
neoverse-n1 dotprod kernels   high *
cortex-a53  neon    kernels   high *
TABLE
}

# one NUMBER CPU BEST PROGRAM PRECISION CASES: what it printed and its status go to files.
one() {
    local environment=(MOONSHIFT_TEST_BEST="$3" MOONSHIFT_TEST_ONLY="$6")
    [ "$5" = high ] || environment+=(MOONSHIFT_TEST_FAST=1)
    env "${environment[@]}" timeout 500 qemu-aarch64 -cpu "$2" -L $sysroot "build-aarch64/tests/test_op_$4" \
        >"$out/log.$1" 2>&1 </dev/null
    echo "$? op_$4 ($5) on $2" >"$out/end.$1"
}

if [ "${1:-}" = --ready ]; then
    ready
    exit
fi
ready
unset LDFLAGS # which may name a linker of this machine's
if ! build aarch64 moonshift tests_arm; then
    echo "0 passed, 1 failed"
    exit 1
fi
n=0 passed=0 failed=0
while read -r cpu best program precision cases <&3; do
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
    one $n "$cpu" "$best" "$program" "$precision" "$cases" &
    n=$((n + 1))
done 3< <(programs)
wait
for i in $(seq 0 $((n - 1))); do
    read -r rc name <"$out/end.$i"
    read -r p f <<<"$(python3 tests/tally.py log "$out/log.$i" "$rc" "$name")"
    passed=$((passed + p)) failed=$((failed + f))
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
