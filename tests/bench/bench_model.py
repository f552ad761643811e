#!/usr/bin/env python3
"""Tokens per second of the model itself, ours and peers' on the same file, in alternation.

Each side is a process of its own that obeys one command at a time; the others are stopped meanwhile (SIGSTOP), so
nobody's waiting threads cost another anything. A round is: memory bandwidth, ours, theirs; then theirs, ours. The
reported ratio is the median over rounds of (ours / theirs) of the same round. A round whose bandwidth is more than 10 %
off the median is marked. A peer is named with the Python that has it: --peer llama.cpp=PYTHON --peer ik=PYTHON; what it
cannot do is left out. --nll: nats a token of tests/data/nll_tokens.json and next tokens that are float64's, which is of
the demo model.

usage: bench_model.py MODEL [--bench build/tests/model_bench] [--peer NAME=PYTHON ...] [--threads 2] [--rounds 7]
                      [--isa auto] [--precision high|fast] [--against high|fast] [--only NAME ...] [--nll] [--markdown]
                      [--no-thief] [--out FILE]
"""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {  # name: (command, tokens)
    "prefill 512": ("prefill 512", 512),
    "prefill 4096": ("prefill 4096", 4096),
    "decode, 1 sequence": ("decode 1 0 128", 128),
    "decode, 16 sequences": ("decode 16 0 32", 16 * 32),
    "decode at depth 1024": ("decode 1 1024 64", 64),
}
PEERS = {"llama.cpp": "llama_side.py", "ik": "ik_side.py", "openvino": "openvino_side.py"}
IDS, REFERENCE = "tests/data/nll_tokens.json", "tests/data/nll_reference.bin"


class Side:
    def __init__(self, name, command):
        self.name = name
        self.p = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        self.what = self.p.stdout.readline().strip()
        if not self.what.startswith("ready"):
            raise SystemExit(f"{name} did not start: {' '.join(command)}")
        self.p.send_signal(signal.SIGSTOP)

    def ask(self, line):
        return float(self.answer(line))

    def answer(self, line):
        self.p.send_signal(signal.SIGCONT)
        self.p.stdin.write(line + "\n")
        answer = self.p.stdout.readline()
        self.p.send_signal(signal.SIGSTOP)
        if not answer:
            raise SystemExit(f"{self.name} died at '{line}'")
        return answer

    def close(self):
        self.p.send_signal(signal.SIGCONT)
        self.p.stdin.close()
        self.p.wait()


def paired(sides, probe, command, tokens, rounds):
    """Rates of each side by round, and the probe's bandwidth."""
    rates, width = [[] for _ in sides], []
    for s in sides:
        s.ask(command)  # warm: caches, pages, the depth's prefill
    for r in range(rounds):
        width.append(probe.ask("bandwidth"))
        order = list(enumerate(sides))
        for i, s in order if r % 2 == 0 else reversed(order):
            rates[i].append(tokens / s.ask(command))
    return rates, width


def spread(values):
    return f"{min(values):.1f}..{max(values):.1f}"


def report(out, name, sides, rates, width):
    """A line of text for each peer; returns the cells of a row of Markdown."""
    middle = statistics.median(width)
    odd = sum(abs(w - middle) > 0.1 * middle for w in width)
    out.append(
        f"{name:24} {statistics.median(rates[0]):9.1f} [{spread(rates[0])}]"
        f"  read {middle / 1e9:.1f} GB/s{f', {odd} odd rounds' if odd else ''}"
    )
    cells = [name, f"{statistics.median(rates[0]):.0f}"]
    for side, theirs in zip(sides[1:], rates[1:]):
        if any(math.isnan(r) for r in theirs):
            cells.append("-")
            continue
        ratios = [a / b for a, b in zip(rates[0], theirs)]
        out[-1] += (
            f"\n    {side.name:20} {statistics.median(theirs):9.1f} [{spread(theirs)}]"
            f"  ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"
        )
        cells.append(
            f"{statistics.median(theirs):.0f}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(out[-1], flush=True)
    return cells


def reference():
    """Nats a token and the likeliest tokens, in float64: all logprobs as doubles, then all tokens as integers."""
    with open(REFERENCE, "rb") as f:
        data = f.read()
    n = len(data) // 12
    return -sum(struct.unpack(f"<{n}d", data[: 8 * n])) / n, list(struct.unpack(f"<{n}i", data[8 * n :]))


def our_nll(args, precision):
    command = [args.nll_bench, args.model, IDS, "256", str(args.threads), "f16", precision]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    pairs = [line.split() for line in lines if line]
    return -sum(float(p[0]) for p in pairs) / len(pairs), [int(p[1]) for p in pairs]


def losses(out, args, sides):
    """What each side loses of the truth on a text."""
    truth, best = reference()
    found = [(f"ours, {how}", *our_nll(args, how)) for how in ("high", "fast")]
    found += [(s.name, *json.loads(s.answer(f"nll {IDS}"))) for s in sides[1:] if s.name in args.peers]
    out.append(f"nats a token; float64: {truth:.5f}")
    for name, nll, says in found:
        same = sum(a == b for a, b in zip(says, best)) / len(best)
        out[-1] += f"\n    {name:20} {nll:.5f} ({nll - truth:+.5f}), next tokens agree in {100 * same:.2f} %"
    print(out[-1], flush=True)


def busy():
    """A process that never rests, on one core of those we may use."""
    core = max(os.sched_getaffinity(0))
    p = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(p.pid, {core})
    return p


def stolen_core(out, args, sides, rounds):
    """Two threads with one core taken, beside the own one-thread speed without."""
    ours, theirs = sides[0], sides[1] if len(sides) > 1 else None
    alone = Side("ours, 1 thread", [args.bench, args.model, "1", args.isa, args.precision])
    for name in ("decode, 1 sequence", "prefill 512"):
        command, tokens = CASES[name]
        one, with_thief, their = [], [], []
        for s in (alone, ours):
            s.ask(command)
        for _ in range(rounds):
            one.append(tokens / alone.ask(command))
            thief = busy()
            time.sleep(0.2)
            with_thief.append(tokens / ours.ask(command))
            if theirs:
                their.append(tokens / theirs.ask(command))
            thief.kill()
            thief.wait()
        ratio = statistics.median(a / b for a, b in zip(with_thief, one))
        line = (
            f"core taken, {name:20} {statistics.median(with_thief):9.1f} with {args.threads} threads, "
            f"{statistics.median(one):9.1f} with 1 alone: {ratio:.2f}"
        )
        if their:
            line += f"  ({theirs.name} with a core taken: {statistics.median(their):.1f})"
        out.append(line)
        print(line, flush=True)
    alone.close()


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def open_sides(args):
    def own(name, precision):
        return Side(name, [args.bench, args.model, str(args.threads), args.isa, precision])

    sides = [own("ours", args.precision)]
    if args.against:
        sides.append(own(args.against, args.against))
    for name, python in args.peers.items():
        sides.append(Side(name, [python, os.path.join(HERE, PEERS[name]), args.model, str(args.threads)]))
    return sides


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--bench", default="build/tests/model_bench")
    a.add_argument("--nll-bench", default="build/tests/nll_logprobs")
    a.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=" or ".join(PEERS))
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--isa", default="auto")
    a.add_argument("--precision", choices=("high", "fast"), default="fast")
    a.add_argument("--against", choices=("high", "fast"), help="ourselves with this precision, as a peer")
    a.add_argument("--only", nargs="*", default=None)
    a.add_argument("--nll", action="store_true")
    a.add_argument("--markdown", action="store_true", help="a table, too")
    a.add_argument("--no-thief", action="store_true")
    a.add_argument("--out")
    args = a.parse_args()
    args.peers = {}
    for word in args.peer:
        name, _, python = word.partition("=")
        if name not in PEERS:
            a.error(f"--peer {word}: peers are {', '.join(PEERS)}")
        args.peers[name] = python or sys.executable
    return args


def main():
    args = arguments()
    sides = open_sides(args)
    out = [
        f"{time.strftime('%Y-%m-%d %H:%M')}  {os.path.basename(args.model)}, {args.threads} threads, "
        f"{args.rounds} rounds",
        f"machine: {cpu_name()}, {os.cpu_count()} cores",
        *(f"{s.name}: {s.what[6:]}" for s in sides),
        "tokens/s: median [range]; below it each peer's, and the ratio by round (median [range])",
    ]
    print("\n".join(out), flush=True)
    table = [["tokens/s", *(s.name for s in sides)], ["---"] * (len(sides) + 1)]
    for name, (command, tokens) in CASES.items():
        if args.only is None or name in args.only:
            rates, width = paired(sides, sides[0], command, tokens, args.rounds)
            table.append(report(out, name, sides, rates, width))
    if args.nll:
        losses(out, args, sides)
    if not args.no_thief:
        stolen_core(out, args, sides, max(3, args.rounds // 2))
    if args.markdown:
        out.append("\n".join(f"| {' | '.join(row)} |" for row in table))
        print(out[-1])
    for s in sides:
        s.close()
    if args.out:
        with open(args.out, "a") as f:
            f.write("\n".join(out) + "\n\n")


main()
