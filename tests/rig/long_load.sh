# shellcheck shell=bash
# What tests/soak.sh and tests/steady.sh take and need. Sourced as: . tests/rig/long_load.sh UNIT DEFAULT "$@"
# Sets length (in the unit) and ranks from the arguments, binary and model.
unit=$1 length=${3:-$2} ranks=${4:-1,2,4,8}
[[ $length =~ ^[0-9]+(\.[0-9]+)?$ && $ranks =~ ^[0-9]+(,[0-9]+)*$ ]] || {
    echo "usage: $0 [$unit] [RANKS], for example $0 5 1,4" >&2
    exit 2
}
binary=${MOONSHIFT_BUILD:-build}/moonshift
[ -x "$binary" ] || {
    echo "there is no $binary: build it first (./run)" >&2
    exit 1
}
# shellcheck disable=SC2034 # for whoever sources this
model=$(models/fetch.sh)
