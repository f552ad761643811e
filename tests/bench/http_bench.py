#!/usr/bin/env python3
"""Streamed tokens a second of the front on the simulated device: the whole server on one core, the client on another,
and beside each run what the loopback carries in single writes of a frame's size.
usage: http_bench.py --binary build/moonshift --client build/tests/http_bench [--rounds 3]"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from own_server import Site

TOKENS = 512
DUMMY = [
    "--device",
    "sim",
    "--load-format",
    "dummy",
    "--hf-config",
    "tests/data/sim_model.json",
    "--kv-cache-memory-bytes",
    "256MiB",
    "-t",
    "1",
    "--max-num-seqs",
    "512",
    "--sim-step-us",
    "0",
    "--sim-row-us",
    "0",
    "--max-num-queued-reqs",
    "4096",
]


def run(*words):
    r = subprocess.run(["taskset", "-c", "1", *words], capture_output=True, text=True, timeout=600)
    if r.returncode:
        raise SystemExit(f"{words}: {r.stderr}")
    return json.loads(r.stdout)


def beside(args, c):
    """Tokens a second of llama-server with a model that costs next to nothing (tiny_gguf.py), on one core; the client
    on another."""
    port = 18473
    server = subprocess.Popen(
        [
            "taskset",
            "-c",
            "0",
            args.llama_server,
            "-m",
            args.llama_model,
            "--port",
            str(port),
            "-t",
            "1",
            "-tb",
            "1",
            "--parallel",
            str(c),
            "-c",
            str(c * 1024),
            "--threads-http",
            str(c + 4),
            "--no-webui",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        rates = [
            run(args.client, "stream", str(port), str(c), str(c), str(TOKENS // 2))["tokens_per_s"]
            for _ in range(args.rounds)
        ]
        return statistics.median(rates)
    finally:
        server.kill()
        server.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--client", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--connections", default="1,16,64,256")
    p.add_argument("--llama-server", help="compare with this program ...")
    p.add_argument("--llama-model", help="... serving this model")
    args = p.parse_args()
    site = Site(args.binary, DUMMY)
    try:
        subprocess.run(["taskset", "-a", "-p", "-c", "0", str(site.process.pid)], check=True, capture_output=True)
        for c in map(int, args.connections.split(",")):
            rates, per_cpu, probes, ttfts, size = [], [], [], [], 0
            for _ in range(args.rounds):
                before = site.metric("process_cpu_seconds_total")
                r = run(args.client, "stream", str(site.port), str(c), str(max(16, 2 * c)), str(TOKENS))
                cpu = site.metric("process_cpu_seconds_total") - before
                size = int(r["bytes_per_frame"])
                probe = json.loads(
                    subprocess.run(
                        [args.client, "probe", str(c), str(size), "0.5"], capture_output=True, text=True
                    ).stdout
                )
                rates.append(r["tokens_per_s"])
                per_cpu.append(r["tokens"] / cpu)
                probes.append(probe["sends_per_s"])
                ttfts.append(r["ttft_mean_ms"])
            m = statistics.median
            print(
                f"{c:4d} connections: {m(rates):9,.0f} tokens/s, {m(per_cpu):9,.0f} a second of CPU; "
                f"frames of {size} bytes; first frame after {m(ttfts):.1f} ms; "
                f"loopback writes of that size: {m(probes):9,.0f}/s; ratio {m(rates) / m(probes):.2f}",
                flush=True,
            )
            if args.llama_server:
                other = beside(args, c)
                print(
                    f"     llama-server:  {other:9,.0f} tokens/s; ours is {m(rates) / other:.1f} times that", flush=True
                )
    finally:
        site.kill()


if __name__ == "__main__":
    main()
