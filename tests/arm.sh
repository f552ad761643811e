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
        install_tools >"$out/log" 2>&1 </dev/null && have_tools ||
            die "the cross compiler and QEMU cannot be installed: $(tail -n 1 "$out/log")"
    fi
    make_sysroot >"$out/log" 2>&1 </dev/null || die "no libraries for ARM can be had: $(tail -n 1 "$out/log")"
}

passed=0 failed=0
count() {
    passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
}

# on CPU BEST TESTS: tests of this pattern on a CPU of QEMU whose best instruction set is BEST.
on() {
    QEMU_CPU=$1 MOONSHIFT_TEST_BEST=$2 ctest --test-dir build-aarch64 -j "$(nproc)" -R "$3" \
        --output-junit "$out/junit.xml" --test-output-size-passed 4000000 --test-output-size-failed 4000000 \
        >"$out/log" 2>&1 </dev/null
    # shellcheck disable=SC2046 # two numbers
    count $(python3 tests/tally.py junit "$out/junit.xml" "$out/took" "$1: ")
    rm -f "$out/junit.xml"
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
on max i8mm '^op_(kernels|linear|linear\.fast|attention|encode|misc)$'
on neoverse-n1 dotprod '^op_(kernels|linear|linear\.fast)$'
on cortex-a53 neon '^op_(kernels|linear|linear\.fast)$'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
