#!/usr/bin/env python3
"""Tokens per second of the model itself, ours and llama.cpp's on the same file, in alternation.

Each side is a process of its own that obeys one command at a time; the other is stopped meanwhile (SIGSTOP), so
neither's waiting threads cost the other anything. A round is: memory bandwidth, ours, theirs; then theirs, ours. The
reported ratio is the median over rounds of (ours / theirs) of the same round. A round whose bandwidth is more than 10 %
off the median is marked.

usage: bench_model.py MODEL [--bench build/tests/model_bench] [--python PYTHON-WITH-llama_cpp] [--threads 2]
                      [--rounds 7] [--isa auto] [--precision high|fast] [--against high|fast]
                      [--only NAME ...] [--out FILE]
"""

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {  # name: (command, tokens)
    "prefill 512": ("prefill 512", 512),
    "decode, 1 sequence": ("decode 1 0 128", 128),
    "decode, 16 sequences": ("decode 16 0 32", 16 * 32),
    "decode at depth 1024": ("decode 1 1024 64", 64),
}


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
        self.p.send_signal(signal.SIGCONT)
        self.p.stdin.write(line + "\n")
        answer = self.p.stdout.readline()
        self.p.send_signal(signal.SIGSTOP)
        if not answer:
            raise SystemExit(f"{self.name} died at '{line}'")
        return float(answer)

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
    ratios = [a / b for a, b in zip(rates[0], rates[1])]
    middle = statistics.median(width)
    odd = sum(abs(w - middle) > 0.1 * middle for w in width)
    out.append(
        f"{name:24} {statistics.median(rates[0]):9.1f} [{spread(rates[0])}]  "
        f"{statistics.median(rates[1]):9.1f} [{spread(rates[1])}]"
        f"  ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"
        f"  read {middle / 1e9:.1f} GB/s{f', {odd} odd rounds' if odd else ''}"
    )
    print(out[-1], flush=True)


def busy():
    """A process that never rests, on one core of those we may use."""
    core = max(os.sched_getaffinity(0))
    p = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(p.pid, {core})
    return p


def stolen_core(out, args, ours, theirs, rounds):
    """Two threads with one core taken, beside the own one-thread speed without."""
    alone = Side("ours, 1 thread", [args.bench, args.model, "1", args.isa])
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
            line += f"  (llama.cpp with a core taken: {statistics.median(their):.1f})"
        out.append(line)
        print(line, flush=True)
    alone.close()


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--bench", default="build/tests/model_bench")
    a.add_argument("--python", default=sys.executable)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--isa", default="auto")
    a.add_argument("--precision", choices=("high", "fast"), default="fast")
    a.add_argument("--against", choices=("high", "fast"), help="ourselves with this precision, not llama.cpp")
    a.add_argument("--only", nargs="*", default=None)
    a.add_argument("--no-thief", action="store_true")
    a.add_argument("--out")
    args = a.parse_args()
    ours = Side("ours", [args.bench, args.model, str(args.threads), args.isa, args.precision])
    if args.against:
        theirs = Side(args.against, [args.bench, args.model, str(args.threads), args.isa, args.against])
    else:
        theirs = Side("llama.cpp", [args.python, os.path.join(HERE, "llama_side.py"), args.model, str(args.threads)])
    out = [
        f"{time.strftime('%Y-%m-%d %H:%M')}  {os.path.basename(args.model)}, {args.threads} threads, "
        f"{args.rounds} rounds",
        f"machine: {cpu_name()}, {os.cpu_count()} cores",
        f"ours: {ours.what[6:]}",
        f"theirs: {theirs.what[6:]}",
        f"tokens/s: ours (median [range]), {args.against or 'llama.cpp'} (the same), ratio by round (median [range])",
    ]
    print("\n".join(out), flush=True)
    for name, (command, tokens) in CASES.items():
        if args.only is None or name in args.only:
            rates, width = paired((ours, theirs), ours, command, tokens, args.rounds)
            report(out, name, (ours, theirs), rates, width)
    if not args.no_thief:
        stolen_core(out, args, ours, theirs, max(3, args.rounds // 2))
    for s in (ours, theirs):
        s.close()
    if args.out:
        with open(args.out, "a") as f:
            f.write("\n".join(out) + "\n\n")


main()
