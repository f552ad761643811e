"""python3 tests/bench/pairs_bench.py FILE.gguf COMMAND BENCH BENCH ... [--rounds N] [--threads N] [--isa ISA]: several
builds of model_bench (build/tests/model_bench), all loaded at once and asked for the same in turn: COMMAND is one of
its lines, such as "decode 1 0 128". Medians in seconds, and of the ratios to the first build's in the same round; the
reading probe of each round beside. For machines whose speed changes by itself: a change hits all builds alike."""

import argparse
import statistics
import subprocess


class Bench:
    def __init__(self, path, args):
        self.p = subprocess.Popen(
            [path, args.model, str(args.threads), args.isa, args.precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.p.stdout.readline().startswith("ready"), path

    def ask(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        return float(self.p.stdout.readline())


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("command")
    a.add_argument("builds", nargs="+")
    a.add_argument("--rounds", type=int, default=15)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--isa", default="auto")
    a.add_argument("--precision", default="fast")
    args = a.parse_args()
    benches = [Bench(path, args) for path in args.builds]
    try:
        for _ in range(2):
            for b in benches:
                b.ask(args.command)
        reads, took = [], [[] for _ in benches]
        for k in range(args.rounds):
            reads.append(benches[0].ask("bandwidth") * 1e-9)
            for i in range(len(benches)):
                i = (i + k) % len(benches)
                took[i].append(benches[i].ask(args.command))
    finally:
        for b in benches:
            b.p.kill()
    print(f"{args.model}: {args.command}, {args.rounds} rounds, read {min(reads):.0f} to {max(reads):.0f} GB/s")
    for path, t in zip(args.builds, took, strict=True):
        ratio = statistics.median(x / y for x, y in zip(t, took[0], strict=True))
        print(f"  {path:40} {statistics.median(t):8.4f} s  {ratio:.3f}")


if __name__ == "__main__":
    main()
