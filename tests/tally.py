"""Counts test cases in what the runners left behind, shows the output of what failed, prints "PASSED FAILED".

tally.py junit FILE [TOOK PREFIX]   ctest --output-junit: counted by cmocka case, or by "N passed, N failed" lines, else
                             by program; appends "SECONDS<tab>PREFIX NAME" of each to TOOK
tally.py log FILE RC NAME    one program's output: busted's summary or its last "N passed, N failed" line
tally.py slowest TOOK        the table of what took longest
A program that died, or that passed nothing at all, counts as one failure more.
"""

import re
import sys
import xml.etree.ElementTree as ET

CMOCKA_RAN = re.compile(r"^\[==========\] (\d+) test\(s\) run\.", re.M)
CMOCKA_PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.", re.M)
BUSTED = re.compile(r"^(\d+) success(?:es)? / (\d+) failures? / (\d+) errors? / (\d+) pending", re.M)
PLAIN = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed", re.M)
MAX_SHOWN = 8000
SLOWEST = 20


def cases(text):
    """(passed, failed) as the output itself says, or None."""
    ran = [int(m) for m in CMOCKA_RAN.findall(text)]
    if ran:
        passed = sum(int(m) for m in CMOCKA_PASSED.findall(text))
        return passed, sum(ran) - passed
    busted = BUSTED.findall(text)
    if busted:
        ok, bad, errors, _ = (int(x) for x in busted[-1])
        return ok, bad + errors
    plain = PLAIN.findall(text)
    return tuple(int(x) for x in plain[-1]) if plain else None


def show(name, text):
    text = re.sub(r"^\[ +(?:RUN|OK) +\].*\n", "", text, flags=re.M)
    cut = text if len(text) <= MAX_SHOWN else "...\n" + text[-MAX_SHOWN:]
    print(f"--- {name} failed:\n{cut.rstrip()}\n---", file=sys.stderr)


def count(name, text, good, must_count):
    found = cases(text)
    passed, failed = found or (int(good and not must_count), 0)
    if not good and not failed:
        failed = 1
    if good and not passed and not failed:
        failed = 1
        text += "\n(no test ran)"
    if good and failed:
        text += "\n(exit code 0 with failures)"
    if failed:
        show(name, text)
    return passed, failed


def junit(path):
    passed = failed = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        if status in ("disabled", "notrun") and case.find("skipped") is not None:
            show(case.get("name"), "it was not run")
            failed += 1
            continue
        text = "".join(e.text or "" for e in case.iter("system-out"))
        p, f = count(case.get("name"), text, status == "run", False)
        passed, failed = passed + p, failed + f
    if not passed:
        failed += not failed
    return passed, failed


def note_times(path, took, prefix):
    cases = ET.parse(path).getroot().iter("testcase")
    with open(took, "a") as f:
        f.writelines(f"{float(case.get('time') or 0):.1f}\t{prefix}{case.get('name')}\n" for case in cases)


def slowest(path):
    with open(path) as f:
        rows = sorted(((float(s), name) for s, name in (line.rstrip("\n").split("\t") for line in f)), reverse=True)
    print(f"The slowest of {len(rows)}, in seconds:")
    for seconds, name in rows[:SLOWEST]:
        print(f"{seconds:7.1f}  {name}")


def main():
    if sys.argv[1] == "slowest":
        return slowest(sys.argv[2])
    if sys.argv[1] == "junit":
        result = junit(sys.argv[2])
        if len(sys.argv) > 3:
            note_times(*sys.argv[2:])
    else:
        _, _, path, rc, name = sys.argv
        with open(path, errors="replace") as f:
            result = count(name, f.read(), rc == "0", True)
    print(*result)


main()
