"""What clang-tidy finds in the product: bugs that compilers do not warn of. Needs a configured build folder
(compile_commands.json). A file whose text, headers and rules are those of a run without findings is not looked at
again."""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/lint")
from source import read
from tools import tool

BUILD = os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build"))
SEEN = os.path.join(BUILD, "lint-tools", "clean")
ROOT = os.getcwd() + "/"
OFF = {
    "bugprone-easily-swappable-parameters": "two ints side by side are no bug; names and structs tell them apart",
    "bugprone-narrowing-conversions": "char arithmetic of parsers; what narrows a size is checked where it comes in",
    "bugprone-implicit-widening-of-multiplication-result": "sizes are bounded at load, and the stage asan checks int",
    "bugprone-misplaced-widening-cast": "sums of two counts that are bounded far below int",
    "bugprone-sizeof-expression": "arrays of pointers are allocated by the size of a pointer",
    "bugprone-integer-division": "whole tiles, waves and blocks are what a cost or a bound counts",
    "bugprone-branch-clone": "a table written as a switch may have equal rows",
    "bugprone-not-null-terminated-result": "the moved bytes include the terminator",
    "bugprone-suspicious-memory-comparison": "equal as bits is what is meant",
    "bugprone-signed-char-misuse": "letters are compared with letters; other bytes may be negative",
    "bugprone-assignment-in-if-condition": "if ((rc = f())) is the house's way",
}
CHECKS = ",".join(["-*", "bugprone-*", *(f"-{name}" for name in OFF)])


def text_with_headers(path, seen):
    if path in seen or not os.path.exists(path):
        return
    seen[path] = text = read(path)
    for name in re.findall(r'#include "([^"]+)"', text):
        text_with_headers(name, seen)


def mark(path):
    seen = {}
    text_with_headers(path, seen)
    whole = CHECKS + "".join(name + "\0" + seen[name] for name in sorted(seen))
    return os.path.join(SEEN, hashlib.sha256(whole.encode()).hexdigest())


def commands():
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as f:
        files = {os.path.realpath(c["file"]) for c in json.load(f)}
    mine = (f[len(ROOT) :] for f in files if f.startswith(ROOT) and f.endswith(".c"))
    # what is built for one instruction set alone is left out: its intrinsics belong to the compiler
    return sorted(f for f in mine if re.match(r"(engine|kernels|lua|models)/", f) and "_avx" not in f)


def look(path, program, extra):
    done = mark(path)
    if os.path.exists(done):
        return []
    r = subprocess.run(
        [program, "-p", BUILD, "--quiet", f"--checks={CHECKS}", *extra, path], capture_output=True, text=True
    )
    found = [line.replace(ROOT, "") for line in r.stdout.splitlines() if re.search(r": (warning|error): ", line)]
    if not found and r.returncode == 0:
        open(done, "w").close()
    return found or ([f"{path}: {r.stderr[-500:]}"] if r.returncode else [])


def main():
    program, files = tool("clang-tidy"), commands()
    os.makedirs(SEEN, exist_ok=True)
    headers = subprocess.run(["clang", "-print-resource-dir"], capture_output=True, text=True).stdout.strip()
    extra = [f"--extra-arg=-resource-dir={headers}"] if headers else []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = sorted({line for some in pool.map(lambda f: look(f, program, extra), files) for line in some})
    print("\n".join(found))
    bad = {line.split(":")[0] for line in found}
    print(f"{len(files) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad or not files else 0


sys.exit(main())
