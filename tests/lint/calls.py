"""Calls that are banned, or that have one home."""

import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, bare, exceptions, files, read

NEVER = r"strcpy strcat sprintf vsprintf gets strtok rand srand random alloca setenv putenv popen system"
ENDERS = r"exit _exit _Exit quick_exit abort assert longjmp setjmp"
HOMES = {  # calls: files that may make them
    ENDERS: r"engine/base/check\.c|engine/main\.c",
    "malloc calloc realloc free aligned_alloc posix_memalign strdup strndup": r"engine/base/mem\.c",
    "clock_gettime gettimeofday time": r"engine/base/(clock|log|queue)\.c",
    "fork execv execve execvp": r"(?!)",
    "posix_spawn posix_spawnp": r"engine/(lab/search/jobs|cli/policy_test|command/remote|serve/whatif/child)\.c",
    "signal sigaction": r"engine/(serve|lab|cli)/.*",
    "getenv secure_getenv": r"engine/cli/opts\.c|engine/command/.*",
}


def calls(path):
    for n, line in enumerate(bare(read(path)).split("\n"), 1):
        if not line.lstrip().startswith("#include"):
            for m in re.finditer(r"(?<![\w.>])(\w+)\s*\(", line):
                yield n, m.group(1), line


def product():
    return [f for f in files(".c", ".h", ".cu") if not f.startswith("tests/")]


def banned():
    never = set(NEVER.split())
    for path in product():
        for n, name, _ in calls(path):
            if name in never:
                yield f"{path}:{n}: {name} is banned"


def homeless():
    excepted = exceptions("call")
    for path in product():
        for n, name, line in calls(path):
            for names, home in HOMES.items():
                if name in names.split() and not re.fullmatch(home, path) and f"{path}:{name}" not in excepted:
                    if not re.search(r"\(\*" + name + r"\)|->" + name, line):
                        yield f"{path}:{n}: {name} has its home elsewhere"


def unbounded_text():
    for path in product():
        for n, line in enumerate(bare(read(path)).split("\n"), 1):
            if re.search(r"\bs?scanf\s*\(", line):
                yield f"{path}:{n}: scanf reads what it does not check; use strtol and its kin"


rules = Rules()
rules.check("banned calls", banned())
rules.check("calls at home", homeless())
rules.check("no scanf", unbounded_text())
rules.close()
