#!/usr/bin/env python3
"""Vectors a second of the front: a server on the device sim, whose encoder costs next to nothing, and a client in C on
the same machine. Single texts over many connections, and many texts a request as Arctic's clients send them; 384 floats
a vector, texts of about 50 tokens. Beside each rate: what it took of the server's CPU time.
usage: embed_bench.py --binary build/moonshift --client build/tests/embed_bench [--encoder FOLDER] [--rounds 5]"""

import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from own_server import Site

SERVE = (  # noqa: SIM905 (a command line)
    "--device sim --load-format dummy --hf-config tests/data/sim_model.json --kv-cache-memory-bytes 16MiB "
    "--embedding-name encoder --embedding-threads 1"
).split()
SHAPES = [(1, 1), (16, 1), (64, 1), (256, 1), (8, 16), (4, 64), (2, 1000)]  # connections, texts a request


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--client", required=True)
    p.add_argument("--encoder", default="tests/data/encoder_sim")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--words", type=int, default=40)
    p.add_argument("--server-cores", help="cores of the server, as taskset takes them; the client has the others")
    p.add_argument("--client-cores")
    args = p.parse_args()
    site = Site(args.binary, [*SERVE, "--embedding-model", args.encoder])
    if args.server_cores:
        subprocess.run(["taskset", "-a", "-p", "-c", args.server_cores, str(site.process.pid)], check=True,
                       capture_output=True)  # fmt: skip
    pin = ["taskset", "-c", args.client_cores] if args.client_cores else []
    try:
        for form in ("base64", "float"):
            for connections, texts in SHAPES:
                rates, cpu, waits = [], [], []
                for _ in range(args.rounds):
                    before = site.metric("process_cpu_seconds_total")
                    r = subprocess.run(
                        [*pin, args.client, str(site.port), str(connections), str(args.seconds), str(texts),
                         str(args.words), form], capture_output=True, text=True, check=False)  # fmt: skip
                    if r.returncode:
                        raise SystemExit(r.stderr)
                    one = json.loads(r.stdout)
                    spent = site.metric("process_cpu_seconds_total") - before
                    rates.append(one["vectors_per_s"])
                    cpu.append(one["requests"] * texts / spent)
                    waits.append(one["mean_ms"])
                m = statistics.median
                print(
                    f"{form:6s} {connections:4d} connections, {texts:4d} texts a request: {m(rates):8,.0f} vectors/s "
                    f"({min(rates):,.0f} to {max(rates):,.0f}), {m(cpu):8,.0f} a second of the server's CPU; "
                    f"an answer took {m(waits):.2f} ms",
                    flush=True,
                )
        tokens = site.metric("moonshift:embedding_tokens_total") / site.metric("moonshift:embedding_inputs_total")
        print(f"{tokens:.1f} tokens a text")
    finally:
        site.kill()


if __name__ == "__main__":
    main()
