# shellcheck shell=bash
# Sourced by ./run and ./test: finds out what this machine lacks and installs it (Debian and Ubuntu), or names it
# (others). A probe looks for the thing itself, not for a package, so hand-made installations count.

say() { printf '%s\n' "$*" >&2; }
die() {
    printf '%s\n' "$@" >&2
    exit 1
}

# probe | who needs it | Debian, Ubuntu | Fedora | Arch
requirements() {
    cat <<'TABLE'
cmd:gcc                   | run  | gcc              | gcc                 | gcc
hdr:stdio.h               | run  | libc6-dev        | glibc-devel         | glibc
cmd:cmake                 | run  | cmake            | cmake               | cmake
cmd:ninja                 | run  | ninja-build      | ninja-build         | ninja
cmd:pkg-config            | run  | pkg-config       | pkgconf-pkg-config  | pkgconf
pc:libcjson               | run  | libcjson-dev     | cjson-devel         | cjson
pc:libevent_pthreads      | run  | libevent-dev     | libevent-devel      | libevent
pc:luajit                 | run  | libluajit-5.1-dev| luajit-devel        | luajit
pc:libpcre2-8             | run  | libpcre2-dev     | pcre2-devel         | pcre2
pc:libedit                | run  | libedit-dev      | libedit-devel       | libedit
pc:libcrypto              | run  | libssl-dev       | openssl-devel       | openssl
pc:libseccomp             | run  | libseccomp-dev   | libseccomp-devel    | libseccomp
cmd:python3               | run  | python3          | python3             | python
py:pip                    | run  | python3-pip      | python3-pip         | python-pip
pc:cmocka                 | pack | libcmocka-dev    | libcmocka-devel     | cmocka
cmd:luajit                | test | luajit           | luajit              | luajit
cmd:busted                | test | lua-busted       | lua-busted          | busted
py:ensurepip              | test | python3-venv     | python3             | python
cmd:g++                   | pack | g++              | gcc-c++             | gcc
cmd:clang                 | test | clang            | clang               | clang
rt:fuzzer                 | test | libclang-rt-dev  | compiler-rt         | compiler-rt
san:address               | test | gcc              | libasan             | gcc-libs
san:undefined             | test | gcc              | libubsan            | gcc-libs
san:thread                | test | gcc              | libtsan             | gcc-libs
hdr:simde/x86/f16c.h      | test | libsimde-dev     | simde-devel         | simde
cmd:mold                  | test | mold             | mold                | mold
cmd:curl                  | test | curl             | curl                | curl
cmd:spin                  | test | spin             | spin                | spin
cmd:chromium              | all  | chromium         | chromium            | chromium
cmd:chromedriver          | all  | chromium-driver  | chromedriver        | chromium
TABLE
}

present() {
    local kind=${1%%:*} what=${1#*:}
    case $kind in
    cmd) command -v "$what" >/dev/null ;;
    hdr) echo "#include <$what>" | gcc -E -xc - >/dev/null 2>&1 ;;
    pc) pkg-config --exists "$what" 2>/dev/null ;;
    py) python3 -c "import $what" 2>/dev/null ;;
    san) [ "$(gcc -print-file-name="lib${san_names[$what]}.so")" != "lib${san_names[$what]}.so" ] ;;
    rt) ls "$(clang -print-resource-dir 2>/dev/null)"/lib/*/libclang_rt."$what"*.a >/dev/null 2>&1 ;;
    esac
}
declare -A san_names=([address]=asan [undefined]=ubsan [thread]=tsan)

# missing WHO COLUMN: the packages of that column whose probe fails; WHO is run, pack (tests/gpu/pack.sh), test or all
# (each includes those before).
missing() {
    requirements | while IFS='|' read -r probe who names; do
        probe=${probe// /} who=${who// /}
        if [[ "$1 $who" =~ ^(all .*|test (test|pack|run)|pack (pack|run)|run run)$ ]] && ! present "$probe"; then
            cut -d'|' -f"$2" <<<"$names" | tr -d ' '
        fi
    done | sort -u | tr '\n' ' '
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# setup WHO: returns only when everything is there.
setup() {
    local lacking family
    lacking=$(missing "$1" 1)
    [ -n "$lacking" ] || return 0
    if ! command -v apt-get >/dev/null; then
        family=2
        command -v pacman >/dev/null && family=3
        die "Missing on this system; please install, then run this again:" \
            "  $(missing "$1" $family)" \
            "(names as Fedora or Arch has them; on Debian they are: $lacking)"
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "Missing packages, and this is neither root nor has sudo. As root:" "  apt-get install $lacking"
    fi
    say "Installing (apt-get): $lacking"
    local log
    log=$(mktemp)
    # A package list may be absent or too old to be of use, so it is fetched once before an installation.
    # shellcheck disable=SC2086
    if ! { as_root apt-get -qq update && DEBIAN_FRONTEND=noninteractive as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends $lacking; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "The installation failed (above). Needed: $lacking"
    fi
    rm -f "$log"
    hash -r
    lacking=$(missing "$1" 1)
    [ -z "$lacking" ] || die "Installed, and still not found: $lacking"
}

CONFIGURE=() # flags of a first configuration
# build PRESET [TARGET...]: configures and builds quietly; the log is shown when it fails. What is configured already is
# only built (ninja configures anew when a CMake file changed), unless RECONFIGURE is set: something may have been
# installed since.
build() {
    local preset=$1 dir=build log failed_at=
    [ "$1" = release ] || dir=build-$1
    shift
    log=$(mktemp)
    local parallel=()
    [ -z "${JOBS:-}" ] || parallel=(-j "$JOBS")
    if [ -n "${RECONFIGURE:-}" ] || [ ! -f "$dir/build.ninja" ]; then
        cmake --preset "$preset" "${CONFIGURE[@]}" >"$log" 2>&1 || failed_at=configure
    fi
    if [ -n "$failed_at" ] ||
        ! cmake --build --preset "$preset" "${parallel[@]}" ${1:+--target "$@"} >>"$log" 2>&1; then
        grep -nE 'error|Error|warning:|undefined|FAILED' "$log" | head -n 40 >&2
        tail -n 15 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
