"""What the shipped policies execute: bytecodes of each hook at 8, 64 and 512 requests, as `policy check` counts them
(the same on any machine), are at most a fifth above tests/data/policy_costs.txt. --update makes that file anew."""

import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/rig")
import cases
from file_site import BINARY, ENV

FILE, SIZES, SHARE = "tests/data/policy_costs.txt", (8, 64, 512), 1.2
RENEW = "python3 tests/e2e/costs.py --update && python3 tests/lint/costs.py --update"
HEAD = f"""# Bytecodes that one call of each hook of the shipped policies executes, by the number of requests that
# are here, half of which run: `moonshift policy check` counts them. Made by
# {RENEW}
"""


def counted(report):
    """By hook: the counts at each size."""
    hooks = re.search(r"^hooks:(.*)$", report, re.M)[1].split()
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+)$", report[report.index("cost in bytecodes:") :], re.M)
    assert tuple(int(row[0]) for row in rows) == SIZES, report
    columns = {"step": 1, "admit": 2, "finish": 3}
    return {hook: [int(row[at]) for row in rows] for hook, at in columns.items() if hook in hooks}


def measured():
    found = {}
    for path in sorted(glob.glob("policies/*.lua")):
        p = subprocess.run([BINARY, "policy", "check", path], capture_output=True, text=True, timeout=300, env=ENV)
        assert p.returncode == 0, (path, p.stderr)
        for hook, counts in counted(p.stdout).items():
            found[os.path.basename(path)[:-4], hook] = counts
    return found


def kept(text):
    rows = [line.split() for line in text.split("\n") if line and line[0] != "#"]
    return {(row[0], row[1]): [int(n) for n in row[2:]] for row in rows[1:]}


def table(found):
    rows = [("policy", "hook", *SIZES)] + [(*key, *counts) for key, counts in sorted(found.items())]
    return HEAD + "".join(f"{r[0]:<12} {r[1]:<7} {r[2]:>6} {r[3]:>6} {r[4]:>6}\n" for r in rows)


def worse(found, before):
    """What is dearer than it may be, or is not in both."""
    for name, hook in sorted(set(found) ^ set(before)):
        yield f"{name}.lua: {hook} is " + ("not in the table" if (name, hook) in found else "only in the table")
    for key in sorted(set(found) & set(before)):
        for size, now, was in zip(SIZES, found[key], before[key], strict=True):
            if now > was * SHARE:
                yield f"{key[0]}.lua: {key[1]} executes {now} bytecodes at {size} requests, {was} by the table"


def none_is_dearer():
    before = kept(open(FILE).read())
    said = list(worse(measured(), before))
    assert not said, "\n".join([*said, f"If it is worth that, renew the table: {RENEW}"])


def dearer_is_told():
    """The comparison itself: of one number, of a policy that is new, of one that has gone."""
    before = {("a", "step"): [10, 20, 30], ("a", "admit"): [5, 5, 5]}
    assert not list(worse(before, before)) and kept(table(before)) == before
    assert not list(worse({**before, ("a", "step"): [12, 24, 36]}, before))
    assert len(list(worse({**before, ("a", "step"): [12, 24, 37]}, before))) == 1
    assert "not in the table" in next(worse({**before, ("b", "step"): [1, 1, 1]}, before))
    assert "only in the table" in next(worse({("a", "step"): [10, 20, 30]}, before))


if "--update" in sys.argv:
    with open(FILE, "w") as f:
        f.write(table(measured()))
    sys.exit()
cases.run([none_is_dearer, dearer_is_told])
