# How the models of tests/formal are searched: read by switch.sh, pool.sh, reshard.sh, tiers.sh and
# items.sh, from the repository's root. With MOONSHIFT_WIDE the budgets are larger.
# shellcheck shell=bash

for tool in spin gcc; do
    if ! command -v "$tool" >/dev/null; then
        echo "formal: $tool is not here, and nothing is verified without it" \
            "(./test installs it; on Debian: apt-get install $tool)" >&2
        exit 1
    fi
done

models=$PWD/tests/formal
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0

# search MODEL SWITCHES KIND: what pan says, in $dir/out. KIND safety: assertions and end states; deadlocks: end states
# only; cycles: assertions, end states, and no run goes on for ever. False when there is no verifier.
search() {
    local model=$1 switches=$2 kind=$3 flags=(-DSAFETY) pan=(-m500000 -w21)
    case $kind in
    deadlocks) flags=(-DSAFETY) pan+=(-A) ;;
    cycles) flags=(-DNP) pan+=(-l) ;;
    esac
    (
        cd "$dir" || exit 1
        rm -f pan pan.* ./*.trail
        # shellcheck disable=SC2086
        spin $switches -a "$models/$model.pml" &&
            gcc -w "-O${optimise:-0}" "${flags[@]}" -DMEMLIM="${memory:-1800}" -o pan pan.c
    ) >"$dir/build" 2>&1 || return 1
    if ! [ -x "$dir/pan" ] || grep -q Error "$dir/build"; then
        return 1
    fi
    (cd "$dir" && timeout "${limit:-240}" ./pan "${pan[@]}") >"$dir/out" 2>&1
}

errors() {
    sed -n 's/.*errors: \([0-9]*\).*/\1/p' "$dir/out"
}

report() {
    if [ "$1" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-6s %s\n' "$1" "$2"
}

# verify NAME MODEL SWITCHES [KIND]: the whole search, and nothing found.
verify() {
    local name=$1 switches=$3 kind=${4:-safety} numbers
    optimise=g search "$2" "$switches" "$kind" # more of it takes the compiler longer than the search
    local rc=$?
    numbers="$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1 states/p' "$dir/out" 2>/dev/null), $(
        sed -n 's/^ *\([0-9]*\)\.[0-9]*[[:space:]]*total actual memory.*/\1 MiB/p' "$dir/out" 2>/dev/null), $(
        sed -n 's/.*elapsed time \([0-9.e+-]*\) seconds.*/\1 s/p' "$dir/out" 2>/dev/null)"
    local unfinished='Search not completed|max search depth too small|reached -DMEMLIM|out of memory|hash table full'
    if [ $rc = 0 ] && [ "$(errors)" = 0 ] && ! grep -qE "$unfinished" "$dir/out"; then
        report ok "$name: $numbers"
    else
        report FAILED "$name ($2 $switches, $kind): rc $rc"
        cat "$dir/build" >&2
        [ ! -f "$dir/out" ] || grep -vE 'unreached|^[[:space:]]*$' "$dir/out" | head -n 30 >&2
        if ls "$dir"/*.trail >/dev/null 2>&1; then # the last steps that lead there
            # shellcheck disable=SC2086
            (cd "$dir" && cp "$models/$2.pml" . && spin $switches -t -p "$2.pml") |
                grep -vE 'DO\]|IF\]|goto|\[else\]' | tail -n 60 >&2
        fi
    fi
    rm -f "$dir/out"
}

# mutant NAME WANTED MODEL SWITCHES [KIND]: the search finds an error of the kind that is wanted (a text in pan's
# report).
mutant() {
    local name=$1 wanted=$2
    search "$3" "$4" "${5:-safety}"
    if [ -f "$dir/out" ] && [ "$(errors)" = 1 ] && grep -q "^pan:1: $wanted" "$dir/out"; then
        report ok "mutant $name: $(sed -n 's/^pan:1: \(.\{1,70\}\).*/\1/p' "$dir/out")"
    else
        report FAILED "mutant $name ($3 $4): the search finds no '$wanted'"
        cat "$dir/build" >&2
        [ ! -f "$dir/out" ] || head -n 12 "$dir/out" >&2
    fi
    rm -f "$dir/out"
}

# n WIDE USUAL: the one that this run takes.
n() {
    if [ -n "${MOONSHIFT_WIDE:-}" ]; then echo "$1"; else echo "$2"; fi
}

# take PARTS PART...: carries out the parts that are named, of those that there are; none is named: all. Then what came
# of it.
take() {
    local all=$1 part
    shift
    # shellcheck disable=SC2086
    [ $# -gt 0 ] || set -- $all
    for part; do
        case " $all " in
        *" $part "*) "$part" ;;
        *) report FAILED "there is no part '$part'" ;;
        esac
    done
    printf '%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
