"""What ./test and ./test all run: together every test and every kind, and what ran nothing counts as a failure."""

import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/lint")
from source import Rules, read

BUILD = os.environ.get("MOONSHIFT_BUILD", "build")
KINDS = re.search(r'^KINDS="(.*)"', read("test"), re.M).group(1).split()
NO_KIND = {"threads", "long"}  # labels beside the kind


def listed(*stages):
    r = subprocess.run(["./test", "--list", *stages], capture_output=True, text=True, timeout=60)
    if r.returncode:
        sys.exit(r.stdout + r.stderr)
    return set(r.stdout.split("\n")) - {""}


def tests():
    """The labels of every test, by name."""
    r = subprocess.run(
        ["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True
    )
    labels = {}
    for t in json.loads(r.stdout)["tests"]:
        labels[t["name"]] = next((set(p["value"]) for p in t["properties"] if p["name"] == "LABELS"), set())
    return labels


def tally(kind, text, *after):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        command = [sys.executable, "tests/tally.py", kind, f.name, *after]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def left_out(labels, quick, everything):
    for name, of in labels.items():
        if not of & set(KINDS):
            yield f"{name}: no kind of ./test among its labels {sorted(of)}"
        for label in of - set(KINDS) - NO_KIND:
            yield f"{name}: ./test knows no label '{label}'"
        if f"build: {name}" not in everything:
            yield f"{name}: not in ./test all"
        if ("long" in of) == (f"build: {name}" in quick):
            yield f"{name}: './test' runs what is not labelled long, and nothing else"


def kinds_missing(labels, quick):
    ran = [labels[line.removeprefix("build: ")] for line in quick if line.startswith("build: ")]
    for kind in KINDS:
        if not any(kind in of for of in ran):
            yield f"./test runs no test of the kind {kind}"
    if not any(line.startswith("oracle: ") for line in quick):
        yield "./test runs no oracle"


def stages_missing(everything):
    for stage in ("c", "builds", "oracle", "arm", "asan", "tsan", "fuzz"):
        some = listed(stage)
        if not some or some - everything:
            yield f"./test {stage} is not part of ./test all: {sorted(some - everything)[:3]}"
    names = re.findall(r"^(\w+) \|", read("tests/oracle/manifest"), re.M)
    for name in names:
        if f"oracle: {name}" not in everything:
            yield f"the oracle {name} is not in ./test all"


def wrong_counts():
    empty = '<testsuite tests="0"></testsuite>'
    skipped = '<testsuite><testcase name="a" status="notrun"><skipped/></testcase></testsuite>'
    for what, got, wanted in (
        ("no test at all", tally("junit", empty), "0 1"),
        ("a test that was not run", tally("junit", skipped), "0 1"),
        ("a program that counts nothing", tally("log", "hello\n", "0", "x"), "0 1"),
        ("a program that passed none", tally("log", "0 passed, 0 failed\n", "0", "x"), "0 1"),
        ("a program that died", tally("log", "3 passed, 0 failed\n", "1", "x"), "3 1"),
        ("a program that passed", tally("log", "3 passed, 0 failed\n", "0", "x"), "3 0"),
    ):
        if got != wanted:
            yield f"{what} counts as '{got}', not '{wanted}'"


labels, quick, everything = tests(), listed(), listed("all")
rules = Rules()
rules.check("every test has a kind and is run by ./test or ./test all", left_out(labels, quick, everything))
rules.check("./test runs every kind", kinds_missing(labels, quick))
rules.check("./test all has every stage", stages_missing(everything))
rules.check("what ran nothing failed", wrong_counts())
rules.close()
