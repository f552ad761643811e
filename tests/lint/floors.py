"""The order of the floors (a file includes only its own floor and those before it) and the homes of foreign headers."""

import itertools
import os
import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, files, read

ORDER = [
    {"base"},
    {"world"},
    {"draft"},
    {"kernels"},
    {"models"},
    {"exec"},
    {"core"},
    {"lua"},
    {"serve", "lab", "cli", "remote"},
    {"main"},
]  # siblings do not know each other
MACHINES = ("kernels/cpu/", "kernels/cuda/", "kernels/sim/")
# What a composition root opens a machine with: that of the program, and that of the module for specs.
DOORS = {
    "kernels/sim/machine.h": r"engine/(command|lab)/.*|lua/module/module\.c",
    "kernels/sim/token.h": r"engine/lab/drafts\.c",
}

HOMES = {  # header pattern: pattern of the files that may include it
    r"(cjson/)?cJSON\.h": r"engine/base/json\.c",
    r"pthread\.h": r"(engine/base/(monitor|queue|thread)|kernels/cpu/pool)\.c",
    r"event2/.*|event\.h": r"engine/(serve/http|remote)/\w+\.[ch]",
    r"(lua|lauxlib|lualib|luajit|luaconf)\.h(pp)?": r"lua/.*",
    r"openssl/.*": r"engine/base/hash\.c",
    r"pcre2\.h": r"models/.*",
    r"histedit\.h": r"engine/serve/terminal/line_editor\.c",
    r"(\w*mmintrin|immintrin|arm_neon)\.h|simde/.*": r"kernels/cpu/.*",
    r"cuda.*|nccl.*|cublas.*": r"kernels/cuda/.*",
    r"assert\.h|setjmp\.h": r"(?!)",
}


def floor(path):
    for prefix, name in (
        ("engine/main.c", "main"),
        ("engine/command/", "main"),
        ("engine/base/", "base"),
        ("engine/world/", "world"),
        ("engine/draft/", "draft"),
        ("kernels/", "kernels"),
        ("models/", "models"),
        ("engine/embed/", "exec"),
        ("engine/exec/", "exec"),
        ("engine/serve/", "serve"),
        ("engine/lab/", "lab"),
        ("engine/cli/", "cli"),
        ("engine/remote/", "remote"),
        ("engine/", "core"),
        ("lua/module/", "main"),
        ("lua/", "lua"),
    ):
        if path.startswith(prefix):
            return name
    return None


def includes(path):
    for n, line in enumerate(read(path).split("\n"), 1):
        m = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if m:
            yield n, m.group(1) == '"', m.group(2)


def sources():
    return [f for f in files(".c", ".h", ".cu") if not f.startswith("tests/")]


def rooted():
    for path in files(".c", ".h", ".cu"):
        for n, own, name in includes(path):
            if own and not os.path.exists(name):
                yield f'{path}:{n}: "{name}" is not a path from the root of the tree'


def height(name):
    return next(i for i, names in enumerate(ORDER) if name in names)


def order():
    for path in sources():
        here = floor(path)
        for n, own, name in includes(path):
            there = floor(name) if own else None
            if there and there != here and height(there) >= height(here):
                yield f"{path}:{n}: {here} may not include {there} ({name})"


def room(path):
    """A folder is a room; who only puts things together is one of his own."""
    return path if floor(path) == "main" else os.path.dirname(path)


def circles():
    """No two rooms include each other, over whatever others."""
    edges = {}
    for path in sources():
        for _, own, name in includes(path):
            if own and room(name) != room(path):
                edges.setdefault(room(path), {}).setdefault(room(name), f"{path} ({name})")
    done = set()

    def walk(at, trail):
        if at in trail:
            circle = trail[trail.index(at) :] + [at]
            yield " -> ".join(circle) + ": " + ", ".join(edges[a][b] for a, b in itertools.pairwise(circle))
        elif at not in done:
            for there in sorted(edges.get(at, {})):
                yield from walk(there, trail + [at])
            done.add(at)

    for start in sorted(edges):
        yield from walk(start, [])
    print(
        f"{len({room(p) for p in sources()})} rooms, {sum(map(len, edges.values()))} "
        f"pairs of which one includes the other"
    )


def large_rooms():
    lines = {}
    for path in sources():
        lines[room(path)] = lines.get(room(path), 0) + read(path).count("\n")
    whole = sum(lines.values())
    largest = max(lines, key=lines.get)
    print(f"{whole} lines; the largest room is {largest} with {lines[largest]}")
    for name, n in lines.items():
        if n > whole / 4:
            yield f"{name} has {n} of {whole} lines: more than a quarter"


def machines():
    for path in sources():
        for n, own, name in includes(path):
            for m in MACHINES:
                door = re.fullmatch(DOORS.get(name, r"(?!)"), path)
                if own and name.startswith(m) and not path.startswith(m) and not door:
                    yield f"{path}:{n}: {name} is the business of {m} alone; others use kernels/backend.h"


def homes():
    for path in sources():
        for n, own, name in includes(path):
            for header, home in HOMES.items():
                if not own and re.fullmatch(header, name) and not re.fullmatch(home, path):
                    yield f"{path}:{n}: <{name}> has its home elsewhere ({home})"


def backend_forks():
    for path in sources():
        if path.startswith(("models/", "engine/")):
            for n, line in enumerate(read(path).split("\n"), 1):
                if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b.*(?<![A-Z])(CUDA|AVX|CPU|SIM)(?![A-Z])", line):
                    yield f"{path}:{n}: no preprocessor branch on a machine above kernels/"


if __name__ == "__main__":
    rules = Rules()
    rules.check("quoted includes are paths from the root", rooted())
    rules.check("floors in order", order())
    rules.check("rooms without circles", circles())
    rules.check("no room above a quarter", large_rooms())
    rules.check("a machine's insides stay inside", machines())
    rules.check("foreign headers at home", homes())
    rules.check("no branch on the backend", backend_forks())
    rules.close()
