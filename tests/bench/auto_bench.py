#!/usr/bin/env python3
"""auto against every other policy for the same node, in virtual time: for each workload its mean and p90 TTFT, mean
TPOT, mean and p50 completion and throughput, and the ratio to the best of the others by that metric (throughput: of
its inverse, so that below 1 is better everywhere). Default parameters throughout.

usage: auto_bench.py [--binary build/moonshift] [--hardware NAME,...] [--models NAME,...] [--only WORKLOAD,...]
                     [--trace NAME=FILE ...] [--flags "..."] [--out FILE]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OTHERS = ["static:dp=8", "static:tp=8", "static:sp=8", "shift", "flying", "fcfs"]
WORKLOADS = {
    "azure-code": "models/papers/azure2023_code_15min.csv",
    "mooncake": "models/papers/mooncake_conversation_15min.csv",
    "shift-bursty": "shift-bursty",
    "flying-bursty": "flying-bursty",
    "flying-table1": "flying-table1",
    "batch-60": "batch:requests=60,batches=5,every=60,input=3000,output=100",
    "batch-500": "batch:requests=500,input=2048,output=250",
    "poisson-2": "poisson:rate=2,seconds=300,input=500-4000,output=50-400",
    "poisson-6": "poisson:rate=6,seconds=300,input=500-6000,output=50-400",
    "gamma-4": "gamma:rate=4,burstiness=6,seconds=300,input=1000-6000,output=20-300",
}
METRICS = ["TTFT mean", "TTFT p90", "TPOT mean", "compl mean", "compl p50", "throughput"]


def metrics(run):
    """What is compared: lower is better."""
    by = [
        ("ttft_ms", "mean"),
        ("ttft_ms", "p90"),
        ("tpot_ms", "mean"),
        ("completion_ms", "mean"),
        ("completion_ms", "p50"),
    ]
    return [run[k][q] for k, q in by] + [1 / run["throughput"]]


def simulate(args, hardware, model, trace):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [args.binary, "simulate", "--hardware", hardware, "--model", model, "--trace", trace]
        command += ["--seed", str(args.seed), "--json", out.name, *args.flags.split()]
        for policy in [*OTHERS, "auto"]:
            command += ["--policy", policy]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(out.name))["runs"]


def line(name, runs):
    auto, others = metrics(runs[-1]), [metrics(r) for r in runs[:-1]]
    cells = [f"{name:<14}"]
    for i, value in enumerate(auto):
        shown = runs[-1]["throughput"] if METRICS[i] == "throughput" else value
        cells.append(f"{shown:>10.1f} {value / min(o[i] for o in others):5.3f}")
    best = min(range(len(others)), key=lambda i: others[i][3])
    return " ".join(cells) + f"  {len(runs[-1]['switches']):>4} switches; next in completion: {OTHERS[best]}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", default="build/moonshift")
    p.add_argument("--hardware", default="h200x8,h200x8-fitted")
    p.add_argument("--models", default="llama-3.3-70b-fp8,qwen3-32b-fp8")
    p.add_argument("--only", default="")
    p.add_argument("--trace", action="append", default=[], metavar="NAME=FILE", help="one more workload")
    p.add_argument("--flags", default="", help="more flags of moonshift simulate")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out")
    args = p.parse_args()
    workloads = WORKLOADS | dict(t.split("=", 1) for t in args.trace)
    names = args.only.split(",") if args.only else list(workloads)
    out = open(args.out, "w") if args.out else sys.stdout
    print(f"auto against the others, predicted; {datetime.date.today()}; {' '.join(sys.argv)}", file=out)
    for hardware in args.hardware.split(","):
        for model in args.models.split(","):
            print(f"\n{hardware}, {model}: auto, and its ratio to the best other by that metric", file=out)
            print(f"{'':<14} " + " ".join(f"{m:>16}" for m in METRICS), file=out)
            for name in names:
                print(line(name, simulate(args, hardware, model, workloads[name])), file=out, flush=True)


if __name__ == "__main__":
    main()
