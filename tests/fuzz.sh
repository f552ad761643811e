#!/usr/bin/env bash
# tests/fuzz.sh MINUTES [TARGET...]: builds the fuzz targets with clang and runs each for so long, two at a time.
# tests/fuzz.sh --built SECONDS [TARGET...]: the same without building (./test). What a run finds is left in
# build-fuzz/findings/TARGET/; an input that crashes is worth adding to tests/fuzz/corpus/TARGET/ with its fix.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/setup.sh

if [ "${1:-}" = --built ]; then
    seconds=${2:?seconds}
    shift 2
else
    [[ ${1:-} =~ ^[0-9]+$ ]] || die "usage: tests/fuzz.sh MINUTES [TARGET...]"
    seconds=$(($1 * 60))
    shift
    setup test
    build fuzz fuzzers || die "The build failed (above)."
fi

export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    for f in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$f" .c)"); done
fi

# What a target discovers goes to the first folder; the tree's own corpus is only read.
fuzz_one() {
    local name=$1 home=build-fuzz/findings/$1
    mkdir -p "$home/corpus"
    timeout -k 10 $((seconds + 120)) "build-fuzz/tests/$name" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=3000 -print_final_stats=0 -verbosity=1 -artifact_prefix="$home/" \
        "$home/corpus" "tests/fuzz/corpus/$name" >"$home/log" 2>&1
}

passed=0 failed=0
running=()
finish() {
    local name=$1 pid=$2
    if wait "$pid"; then
        passed=$((passed + 1))
        say "$name: clean, $(grep -oE '^Done [0-9]+ runs' "build-fuzz/findings/$name/log" | tail -n 1)"
    else
        failed=$((failed + 1))
        say "$name FAILED; its input is in build-fuzz/findings/$name/"
        grep -nE 'ERROR|SUMMARY|runtime error|BUG|^ +#[0-9] ' "build-fuzz/findings/$name/log" | head -n 25 >&2
    fi
}
for name in "${targets[@]}"; do
    [ -x "build-fuzz/tests/$name" ] || die "No fuzz target build-fuzz/tests/$name."
    fuzz_one "$name" &
    running+=("$name:$!")
    if [ ${#running[@]} -ge 2 ]; then
        finish "${running[0]%%:*}" "${running[0]#*:}"
        running=("${running[@]:1}")
    fi
done
for r in "${running[@]}"; do finish "${r%%:*}" "${r#*:}"; done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
