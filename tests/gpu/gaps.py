#!/usr/bin/env python3
"""What of a decode step is no kernel's time: one step of the first model under Nsight Compute, which runs its kernels
one by one, beside the step that models_bench measured. Prints the goal G10, and the longest kernels.
usage: gaps.py NCU MODELS_BENCH MEASURED   (MEASURED: what models_bench printed)"""

import collections
import csv
import io
import os
import re
import subprocess
import sys

MS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1, "ms": 1, "second": 1e3, "s": 1e3}
STEP = r"decode +Llama-3\.1-8B +batch +1 context 1024 +([\d.]+) ms"


def kernels(text):
    """Name and milliseconds of each."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            yield row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * MS[row["Metric Unit"]]


def main():
    ncu, bench, measured = sys.argv[1:]
    if not os.path.exists(measured):
        print("G10 not measured: models_bench measured no step to compare with")
        return 77
    command = [ncu, "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    command += ["--metrics", "gpu__time_duration.sum", "--csv", bench, "--profile", "--seconds", "40"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    found = list(kernels(done.stdout))
    with open(measured, encoding="utf-8") as f:
        step = re.search(STEP, f.read())
    if not found or not step:
        print((done.stdout + done.stderr)[-2000:])
        print("G10 not measured: the profiler named no kernel, or there is no step to compare with")
        return 1
    took, of = float(step[1]), collections.Counter()
    for name, ms in found:
        of[name.split("(")[0]] += ms
    for name, ms in of.most_common(12):
        print(f"{ms:8.3f} ms  {sum(n.split('(')[0] == name for n, _ in found):5d} times  {name}")
    alone = sum(of.values())
    print(
        f"G10 {(took - alone) / took:.2f} (goal at most 0.05) gaps: a step of {took:.3f} ms, {len(found)} kernels "
        f"({len(found) / 32:.1f} a layer) of {alone:.3f} ms when each runs alone"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
