"""python3 tests/bench/swap_bench.py: how much of the time that KV is on its way to host memory and back a batch under
seesaw does not notice. Virtual time: a batch of 500 prompts on A10s over PCIe, as their description says, with half and
a quarter of that link, and with a link that takes no time. Hidden is the part of the copies' time on the links by which
the batch did not last longer than with the last."""

import json
import os
import re
import subprocess
import sys
import tempfile

MACHINE = "models/hardware/a10x8.json"
LIMITS = "--max-num-seqs 512 --max-num-batched-tokens 8192 --max-model-len 4096 --starvation-seconds 0"
TRACE = "batch:requests=500,input=2000-3300,output=60-320"
RUNS = {  # model: flags, ranks that share a link's work, KV bytes of a token
    "llama-3-15b": ("--ranks 4 -pp 4 --host-kv-memory 320GiB", 4, 64 * 2 * 8 * 128 * 2),
    "llama-2-70b": ("--ranks 8 -pp 8 --shard-memory 17500MB --host-kv-memory 640GiB", 8, 80 * 2 * 8 * 128 * 2),
}
TOKENS = 2650 + 190 / 2  # of a sequence that is on its way, about


def simulate(folder, model, flags, share):
    with open(MACHINE) as f:
        machine = json.load(f)
    machine["host_link_bytes_per_s"]["v"] *= share
    path = os.path.join(folder, "machine.json")
    with open(path, "w") as f:
        json.dump(machine, f)
    args = f"simulate --hardware {path} --model {model} --weights sharded {LIMITS} {flags} --policy seesaw:turn_s=3600"
    out = subprocess.run(["build/moonshift", *args.split(), "--trace", TRACE], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    seconds = float(re.search(r"duration \(s\) +([\d.]+)", out.stdout)[1])
    swaps = int(re.search(r"preemptions +(\d+)", out.stdout)[1])
    return seconds, swaps, machine["host_link_bytes_per_s"]["v"] * machine["link_share"]["v"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        for model, (flags, ranks, token_bytes) in RUNS.items():
            free, _, _ = simulate(folder, model, flags, 100)
            print(f"{model}: {free:.1f} s with a link that takes no time")
            for share in (1, 0.5, 0.25):
                seconds, swaps, rate = simulate(folder, model, flags, share)
                copies = 2 * swaps * TOKENS * token_bytes / ranks / rate
                hidden = 1 - (seconds - free) / copies
                print(f"  {rate / 1e9:5.1f} GB/s: {seconds:.1f} s, {swaps} out and in, ", end="")
                print(f"{copies:.1f} s of copies, {hidden:.0%} hidden")
    return 0


sys.exit(main())
