#!/usr/bin/env python3
"""How the program starts: seconds until its server is ready and until the first token of its first request, what
loading and the recording of graphs took of that. Prints the goals G11 (graphs) and G11c (the first token). A start
before that tries the ways of products, whose choices are printed, too.
usage: starting.py --binary build/moonshift -- SERVE_ARGUMENTS"""

import argparse
import asyncio
import glob
import re
import sys
import tempfile
import time

sys.path.insert(0, "tests/oracle")
from own_server import Site, frames, post


async def first_token(site):
    reader, writer, status = await post(
        site.port,
        "/v1/completions",
        {"prompt": "The", "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True},
    )
    assert status == 200, (status, await reader.read(300))
    async for f in frames(reader):
        assert "error" not in f, f
    writer.close()


def found(lines, pattern):
    for line in lines:
        if m := re.search(pattern, line):
            return m
    return None


def tune(args, folder):
    """The first start on a machine: what is tried, and what was chosen."""
    began = time.time()
    site = Site(args.binary, [*args.serve, "--gpu-tuning", folder])
    ready = time.time() - began
    site.kill()
    print("\n".join(line.strip() for line in site.lines if "Products:" in line))
    for path in glob.glob(folder + "/*"):
        with open(path) as f:
            print("".join(line for line in f if "rule" not in line).strip())
    print(f"the first start was ready after {ready:.2f} s")


def measure(args, folder):
    began = time.time()
    site = Site(args.binary, [*args.serve, "--gpu-tuning", folder])
    try:
        ready = time.time() - began
        asyncio.run(first_token(site))
        first = time.time() - began
        lines = list(site.lines)
    finally:
        site.kill()
    loading = found(lines, r"Loading weights: 100% .* in ([\d.]+) s, ([\d.e+-]+) GiB/s")
    graphs = found(lines, r"Recorded .*?([\d.]+) (ms|s)\b")
    print("\n".join(line.strip() for line in lines if "Recorded" in line or "Loading weights" in line))
    if graphs:
        print(f"G11 {float(graphs[1]) * (0.001 if graphs[2] == 'ms' else 1):.2f} s (goal at most 2 s) {graphs[0]}")
    else:
        print("G11 not measured: the program did not say that it recorded graphs")
    after = f"{first - float(loading[1]):.2f}" if loading else "?"
    print(
        f"G11c {after} s (goal at most 3 s) from loaded weights to the end of the first token; "
        f"ready after {ready:.2f} s, first token after {first:.2f} s"
    )
    return 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("serve", nargs="+")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tune(args, folder)
        measure(args, folder)


if __name__ == "__main__":
    sys.exit(main())
