"""The order of the floors (a file includes only its own floor and those before it) and the homes of foreign headers."""
import os
import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, files, read  # noqa: E402

ORDER = ["base", "world", "kernels", "models", "exec", "core", "lua", "front", "main"]
MACHINES = ("kernels/cpu/", "kernels/cuda/", "kernels/sim/")
DOORS = {"kernels/sim/machine.h": r"engine/(main\.c|front/.*)"}  # what the composition root opens a machine with

HOMES = {  # header pattern: pattern of the files that may include it
    r"(cjson/)?cJSON\.h": r"engine/base/json\.c",
    r"pthread\.h": r"(engine/base/(queue|thread)|kernels/cpu/pool)\.c",
    r"event2/.*|event\.h": r"engine/front/http(_\w+)?\.[ch]",
    r"(lua|lauxlib|lualib|luajit|luaconf)\.h(pp)?": r"lua/.*",
    r"openssl/.*": r"engine/base/hash\.c",
    r"pcre2\.h": r"models/.*",
    r"histedit\.h": r"engine/front/line_editor\.c",
    r"(\w*mmintrin|immintrin|arm_neon)\.h|simde/.*": r"kernels/cpu/.*",
    r"cuda.*|nccl.*|cublas.*": r"kernels/cuda/.*",
    r"assert\.h|setjmp\.h": r"(?!)",
}


def floor(path):
    if path in ("engine/main.c", "lua/module.c"):  # the module of the specs is a composition root of its own
        return "main"
    for prefix, name in (
        ("engine/base/", "base"), ("engine/world/", "world"), ("kernels/", "kernels"), ("models/", "models"),
        ("engine/exec/", "exec"), ("engine/front/", "front"), ("engine/", "core"), ("lua/", "lua"),
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


def order():
    for path in sources():
        here = ORDER.index(floor(path))
        for n, own, name in includes(path):
            there = floor(name) if own else None
            if there and ORDER.index(there) > here:
                yield f"{path}:{n}: {ORDER[here]} may not include {there} ({name})"


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


rules = Rules()
rules.check("quoted includes are paths from the root", rooted())
rules.check("floors in order", order())
rules.check("a machine's insides stay inside", machines())
rules.check("foreign headers at home", homes())
rules.check("no branch on the backend", backend_forks())
rules.close()
