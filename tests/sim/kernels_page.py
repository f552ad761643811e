"""docs/virtual-time.md says of the kernels what the test of them (tests/sim/kernels.c) prints."""

import os
import re
import subprocess

BUILD = os.environ.get("MOONSHIFT_BUILD", "build")
r = subprocess.run([os.path.join(BUILD, "tests", "test_sim_kernels")], capture_output=True, text=True, timeout=500)
assert r.returncode == 0, r.stdout + r.stderr
page = open("docs/virtual-time.md", encoding="utf-8").read()
rows = re.findall(
    r"^  (\w.*?) +held +(\d+) rows +mean \|error\| +([\d.]+%) +mean error +([+-][\d.]+%)$", r.stdout, re.M
)
bands = dict(re.findall(r"^  (\w.*?) +90% band +\d+ rows +([\d.]+%) inside$", r.stdout, re.M))
wanted = [
    f"| {name} | {n} | {error} | {lean} | {bands.pop(name, '')} |".replace("|  |", "| |")
    for name, n, error, lean in rows
]
wanted += [f" | {share} |" for share in bands.values()]  # of all collectives
assert len(rows) == 10 and len(wanted) == 11, r.stdout
missing = [line for line in wanted if line not in page]
print(f"{len(wanted) - len(missing)} passed, {len(missing)} failed")
assert not missing, "docs/virtual-time.md: no " + "; ".join(missing)
