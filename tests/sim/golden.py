"""The same bytes from every build: short simulations against tests/data/sim_golden.json, which was written down once.
Run by the build under test, under sanitizers, and by `./test builds` with each compiler, with and without
optimisation. After a change that is meant: python3 tests/sim/golden.py --update."""

import os
import re
import subprocess
import sys
import tempfile

BUILD = os.environ.get("MOONSHIFT_BUILD", "build")
EXPECTED = "tests/data/sim_golden.json"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
LIMITS = ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192"]
RUNS = [
    [
        "--hardware",
        "h200x8",
        "--model",
        "llama-3.3-70b-fp8",
        "--trace",
        "shift-bursty:seconds=20",
        "--policy",
        "shift",
        "--policy",
        "static:dp=8",
        "--policy",
        "auto",
    ],
    [
        "--hardware",
        "h200x8-fitted",
        "--model",
        "qwen3-32b-fp8",
        "--trace",
        "gamma:rate=20,burstiness=0.2,requests=80,input=10-9000,output=1-80",
        "--lockstep",
        "--policy",
        "static:dp=4",
    ],
    [
        "--hardware",
        "h200x8-flying",
        "--model",
        "llama-3-70b",
        "--weight-shares",
        "2",
        "--trace",
        "flying-table1:requests=60",
        "--policy",
        "flying:narrow=2,crowd=20,few=10",
    ],
]


def result(binary, folder):
    out = []
    for args in RUNS:
        path = os.path.join(folder, "x.json")
        r = subprocess.run(
            [binary, "simulate", *args, *LIMITS, "--seed", "5", "--json", path],
            capture_output=True,
            text=True,
            timeout=300,
            env=ENV,
        )
        assert r.returncode == 0, r.stderr
        text = open(path).read()
        text = re.sub(r'"sha256":"\w*"', '"sha256":""', text)  # a policy's comments are not its decisions
        text = re.sub(r',"policy":.*?(?=\},\{"label"|\}\]\}$)', "", text)  # nor are its docs
        out.append(text.rstrip("\n"))
    return "[\n" + ",\n".join(out) + "\n]\n"


with tempfile.TemporaryDirectory() as where:
    got = result(os.path.join(BUILD, "moonshift"), where)
    if "--update" in sys.argv:
        open(EXPECTED, "w").write(got)
    expected = open(EXPECTED).read()
    at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
    assert got == expected, f"from byte {at}: {got[at - 60 : at + 60]!r}, written down: {expected[at - 60 : at + 60]!r}"
