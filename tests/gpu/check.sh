# shellcheck shell=bash
# Sourced by tests/gpu.sh: how a check runs and is counted, and what is written of it. Only bash and coreutils: the
# machine may have no grep.

# shellcheck disable=SC2154 # which and dry are tests/gpu.sh's
results_dir=${OUT:-$(cd .. && pwd)}
results=$results_dir/gpu-$which.txt
seconds=${GPU_SECONDS:-$([ "$dry" ] && echo 1800 || echo 540)} # and 10 in which what is over dies
python=${GPU_PYTHON:-python3} listing=${GPU_LIST:-}
passed=0 failed=0 left=0 planned=0 from=0 running=''
gone=''  # set: why nothing more can be run
spare='' # set: what begins now is not promised any time
SECONDS=0
[ "$listing" ] || { mkdir -p "$results_dir" && : >"$results" || exit 1; }

say() {
    printf '%s\n' "$*"
    [ "$listing" ] || printf '%s\n' "$*" >>"$results"
}

# What is read goes to the results alone.
note() {
    [ "$listing" ] || cat >>"$results"
}

goals() {
    local line
    while IFS= read -r line; do
        ! [[ $line =~ ^G[0-9]+[a-z]?\  ]] || printf '%s\n' "$line"
    done <"$results"
}

# The last lines, however it ends.
finish() {
    local line found
    trap - EXIT INT TERM
    rm -f "$results_dir/.ours"
    if [ "$listing" ]; then
        echo "$planned s in all before tools, of $seconds"
        exit 0
    fi
    [ -z "$running" ] || kill "$running" 2>/dev/null
    found=$(goals)
    say ""
    say "goals of this run:"
    say "${found:-none was measured}"
    say "$SECONDS s"
    say "$passed passed, $failed failed, $left left"
    [ $failed = 0 ] && [ $passed -gt 0 ] && exit 0
    exit 1
}
trap finish EXIT
trap 'say "interrupted"; failed=$((failed + 1)); exit' INT TERM

# leave NAME WHY: what was not run, or cannot be here.
leave() {
    [ "$listing" ] && return
    left=$((left + 1))
    say "left    $1: $2"
}

# What the last check printed.
last_output() {
    tail -c +$((from + 1)) "$results"
}

printed() {
    [[ $(last_output) == *"$1"* ]]
}

# bounded LIMIT COMMAND: runs it, its output in the results as it comes; the status, or 124 after the limit. What does
# not even die (its calls hang in the driver) is left behind.
bounded() {
    local rc over=$((SECONDS + $1 + 10)) n=0
    if declare -F "$2" >/dev/null; then
        "${@:2}" >>"$results" 2>&1 </dev/null &
    else
        timeout -k 5 "$@" >>"$results" 2>&1 </dev/null &
    fi
    running=$!
    while kill -0 "$running" 2>/dev/null && [ $SECONDS -lt $over ]; do
        sleep $((n++ < 20 ? 0 : 1)).02
    done
    if kill -9 "$running" 2>/dev/null; then
        say "        it did not end when it was killed"
        rc=124
    else
        { wait "$running"; } 2>/dev/null
        rc=$?
    fi
    running=
    return $rc
}

# A GPU that hangs or is lost fails everything after it: then that is said once, and the rest is left.
answers() {
    [ "$dry" ] || [ $((seconds - SECONDS)) -lt 25 ] || bounded 15 "$(program gpu_facts)"
}

# allowed SECONDS: what a check has; the emulator takes its time.
allowed() {
    local limit=$(($1 * (${dry:-0} * 5 + 1)))
    echo $((limit > ${GPU_LIMIT:-limit} ? GPU_LIMIT : limit))
}

# check NAME LIMIT COMMAND...: one line that says how it went. LIMIT: seconds, less when less is left.
check() {
    local name=$1 t=$SECONDS rc rest=$((seconds - SECONDS)) limit
    limit=$(allowed "$2")
    shift 2
    if [ "$listing" ]; then
        [ "$spare" ] || planned=$((planned + limit))
        printf '%4d s  %s\n' "$limit" "$name"
        return 1
    fi
    if ! [[ $name =~ ${GPU_ONLY:-.} ]]; then
        leave "$name" "not asked for"
    elif [ "$gone" ]; then
        leave "$name" "$gone"
    elif [ $rest -lt 5 ]; then
        leave "$name" "the time is over"
    else
        [ "$limit" -le $rest ] || limit=$rest
        printf '\n== %s (at %d s, at most %d s)\n' "$name" "$SECONDS" "$limit" >>"$results"
        from=$(stat -c %s "$results")
        bounded "$limit" "$@"
        judge "$name" $? "$limit" "$rest" "$t"
        return
    fi
    return 1
}

# judge NAME STATUS LIMIT REST BEGUN
judge() {
    if [ "$2" = 0 ] && ! printed SKIPPED && ! printed "no GPU here"; then
        passed=$((passed + 1))
        say "ok      $1 ($((SECONDS - $5)) s)"
        return 0
    fi
    if [ "$2" = 77 ]; then # what scripts of tests/gpu end with where they cannot do their work
        leave "$1" "it cannot work here, as it says"
        return 1
    fi
    if [ "$2" = 124 ] && [ "$3" = "$4" ]; then
        leave "$1" "cut, the time is over"
        return 1
    fi
    failed=$((failed + 1))
    say "FAILED  $1 ($(meaning "$2"), $((SECONDS - $5)) s)"
    [ "$gone" ] || answers >/dev/null || gone="the GPU does not answer any more"
    return 1
}

meaning() {
    case $1 in
    124 | 137) echo "stopped after its limit" ;;
    126 | 127) echo "status $1: it does not start" ;;
    134) echo "aborted" ;;
    139) echo "segmentation fault" ;;
    *) echo "status $1" ;;
    esac
}

# must ...: as check; without it nothing else makes sense.
must() {
    check "$@" || [ "$listing" ] || [[ ! $1 =~ ${GPU_ONLY:-.} ]] || gone="not without: $1"
}

have() {
    command -v "$1" >/dev/null
}

# with_python NAME LIMIT SCRIPT...: left where there is no Python.
with_python() {
    local name=$1 limit=$2
    shift 2
    if [ ! "$listing" ] && ! have "$python"; then
        leave "$name" "no Python here"
        return 1
    fi
    check "$name" "$limit" "$python" -B "$@" || return 1
}

# works NAME TOOL...: whether a tool is here and does its work on a small program.
works() {
    local name=$1 path rest=$((seconds - SECONDS))
    shift
    [ ! "$listing" ] || return 0
    [[ $name =~ ${GPU_ONLY:-.} ]] || return 1
    path=$(find_tool "$1")
    if [ "$dry" ]; then
        leave "$name" "there is no GPU that it could look into"
    elif [ -z "$path" ]; then
        leave "$name" "not here"
    elif [ $rest -lt 15 ] || [ "$gone" ]; then
        leave "$name" "${gone:-the time is over}"
    else
        printf '\n== does %s work here?\n' "$name" >>"$results"
        shift
        bounded $((rest < 40 ? rest : 40)) "$path" "$@" && return 0
        leave "$name" "it does not work on this machine (status $?)"
    fi
    return 1
}

# tool NAME LIMIT TOOL...: a check by a tool that works here; what it is too slow for is left.
tool() {
    local name=$1 t=$SECONDS rest=$((seconds - SECONDS)) limit rc path
    limit=$(allowed "$2")
    path=$(find_tool "$3")
    shift 3
    if [ "$listing" ]; then
        printf '%4d s  %s\n' "$limit" "$name"
        return
    elif [ $rest -lt 15 ]; then
        leave "$name" "the time is over"
        return
    fi
    printf '\n== %s\n' "$name" >>"$results"
    from=$(stat -c %s "$results")
    bounded $((limit < rest ? limit : rest)) "$path" "$@"
    rc=$?
    case $rc in
    124 | 137) leave "$name" "it did not end in time" ;;
    *) judge "$name" $rc "$limit" "$rest" "$t" ;;
    esac
}
