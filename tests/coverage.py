"""How much of the product the C tests reach, room by room: builds the preset "coverage", runs them, and prints what
gcovr says. Less than LEAST of a room's lines is a failure; so is a test that fails. Arguments go to ctest
(-R unit_, ...): then only the tests count."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, "tests/lint")
from tools import tool

BUILD = "build-coverage"
LEAST = 80  # per cent of the lines of each room; with the long tests it was 91.7 to 99.3 on 2026-11-22
# Each instruction set's twin runs the same lines, and so do more cases of one test; lints and formal models run none.
# The longest are left out: what they reach, shorter ones of their kind reach, too.
LONG = "sim_golden|sim_bars|layout_bits|layout_switch|layout_pool$|wall_slow"
TESTS = ["-LE", "^(lint|formal|emulated|long)$", "-E", rf"\.(portable|avx2)$|^({LONG})$"]
TOP = ["engine/", "kernels/", "lua/", "models/"]


def run(*words, **more):
    return subprocess.run(words, text=True, **more)


def built():
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    for command in (["cmake", "--preset", "coverage"], ["cmake", "--build", BUILD]):
        r = run(*command, **quiet)
        if r.returncode:
            print(r.stdout[-4000:])
            return False
    return True


def clean():
    """Counts of earlier runs would add up."""
    for folder, _, names in os.walk(BUILD):
        for name in names:
            if name.endswith(".gcda"):
                os.remove(os.path.join(folder, name))


def tested(extra):
    junit = os.path.join(BUILD, "junit.xml")
    jobs = str(min(8, os.cpu_count() or 1))
    words = ["ctest", "--test-dir", BUILD, "-j", jobs, "--timeout", "400", "--output-junit", os.path.abspath(junit)]
    narrow = os.environ | {"MOONSHIFT_QUICK": "1"}
    run(*words, *TESTS, *extra, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=narrow)
    failed = []
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    for case in cases:
        if case.get("status") == "fail":
            failed.append(case.get("name"))
    return len(cases) - len(failed), failed


def reached():
    """Room: [lines reached, lines, branches reached, branches]."""
    out = os.path.join(BUILD, "coverage.json")
    words = [tool("gcovr"), "--root", ".", "--object-directory", BUILD, "-j", str(os.cpu_count() or 1)]
    for top in TOP:
        words += ["--filter", top]
    words += ["--exclude", "kernels/cuda/", "--gcov-ignore-errors", "all", "--json-summary", out]
    words += ["--gcov-suspicious-hits-threshold", "0"]  # inner loops of kernels do run more than 2^32 times
    r = run(*words, BUILD, capture_output=True)
    if r.returncode:
        sys.exit(r.stderr[-4000:])
    rooms = {}
    with open(out, encoding="utf-8") as f:
        for file in json.load(f)["files"]:
            sums = rooms.setdefault(os.path.dirname(file["filename"]), [0, 0, 0, 0])
            for i, key in enumerate(("line_covered", "line_total", "branch_covered", "branch_total")):
                sums[i] += file[key]
    return rooms


def share(part, whole):
    return 100 * part / whole if whole else 100


def main():
    if not built():
        print("0 passed, 1 failed")
        return 1
    clean()
    passed, failed = tested(sys.argv[1:])
    for name in failed:
        print(f"{name} failed")
    rooms = reached()
    total = [sum(column) for column in zip(*rooms.values())]
    print(f"{'room':<28} {'lines':>7} {'reached':>8} {'branches':>9}")
    for name, sums in [*sorted(rooms.items()), ("all", total)]:
        print(f"{name:<28} {sums[1]:>7} {share(sums[0], sums[1]):>7.1f}% {share(sums[2], sums[3]):>8.1f}%")
    if not sys.argv[1:]:
        for name, sums in sorted(rooms.items()):
            if share(sums[0], sums[1]) < LEAST:
                print(f"{name}: less than {LEAST}% of the lines are reached")
                failed.append(name)
            else:
                passed += 1
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
