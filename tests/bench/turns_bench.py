"""python3 tests/bench/turns_bench.py [POLICY ...]: batches in virtual time on machines where prompts want pipeline
stages and tokens tensor parallelism, with and without host memory for KV: seconds until all have ended, and the median
completion, under fcfs, auto, seesaw and seesaw without a limit of its turns."""

import re
import subprocess
import sys

LIMITS = "--max-num-seqs 512 --max-num-batched-tokens 8192 --max-model-len 4096 --starvation-seconds 0"
LONG = "batch:requests=500,input=2000-3300,output=60-320"
RUNS = {  # flags, host memory that is given
    "15B, 4 A10": (f"--hardware a10x8 --model llama-3-15b --ranks 4 -pp 4 --trace {LONG}", "10GiB 320GiB"),
    "70B, 8 A10": (
        f"--hardware a10x8 --model llama-2-70b --ranks 8 -pp 8 --shard-memory 17500MB --trace {LONG}",
        "640GiB",
    ),
    "34B, 8 L4": (f"--hardware l4x8 --model codellama-34b --ranks 8 -pp 8 --trace {LONG}", "320GiB"),
    "15B, 4 L4, long answers": (
        "--hardware l4x8 --model llama-3-15b --ranks 4 -pp 4 --trace batch:requests=800,input=100-900,output=60-620",
        "80GiB",
    ),
}


def simulate(flags, policy):
    args = f"simulate {flags} --weights sharded {LIMITS} --policy {policy}"
    out = subprocess.run(["build/moonshift", *args.split()], capture_output=True, text=True)
    assert out.returncode == 0 and "withdrawn" not in out.stdout, args + out.stdout + out.stderr
    value = {
        k: float(re.search(rf"{k} +([\d.]+)", out.stdout)[1]) for k in (r"duration \(s\)", r"completion p50 \(ms\)")
    }
    return "{:.0f} / {:.0f}".format(value[r"duration \(s\)"], value[r"completion p50 \(ms\)"] / 1000)


def main():
    policies = sys.argv[1:] or ["fcfs", "auto", "seesaw", "seesaw:turn_s=3600"]
    print("| batch | host memory | " + " | ".join(f"`{p}`" for p in policies) + " |")
    print("|---|---|" + "---|" * len(policies))
    for name, (flags, host) in RUNS.items():
        for size in ["0", *host.split()]:
            more = f" --host-kv-memory {size}" if size != "0" else ""
            cells = [simulate(flags + more, p) for p in policies]
            print(f"| {name} | {size} | " + " | ".join(cells) + " |")
    return 0


sys.exit(main())
