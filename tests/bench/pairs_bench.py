"""python3 tests/bench/pairs_bench.py FILE.gguf COMMAND BENCH BENCH ... [--rounds N] [--threads N] [--isa ISA]: several
builds of model_bench (build/tests/model_bench), all loaded at once and asked for the same in turn: COMMAND is one of
its lines, such as "decode 1 0 128". Medians in seconds, and of the ratios to the first build's in the same round; the
reading probe of each round beside. For machines whose speed changes by itself: a change hits all builds alike. With
--lines build/tests/lines_bench rounds count apart in which lines that another core has read are dear to write (15 ns
and more), and not at all if that changed meanwhile."""

import argparse
import statistics
import subprocess

DEAR_NS = 15


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


def is_dear(lines):
    """Whether a line that another core has read takes long to write."""
    if not lines:
        return False
    out = subprocess.run([lines, "1"], capture_output=True, text=True, check=True).stdout
    return float(out.splitlines()[1].split()[3]) >= DEAR_NS


def tell(args, took, kind):
    print(f"  {kind}{len(took)} rounds")
    for i, path in enumerate(args.builds):
        ratio = statistics.median(t[i] / t[0] for t in took)
        print(f"  {path:40} {statistics.median(t[i] for t in took):8.4f} s  {ratio:.3f}")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("command")
    a.add_argument("builds", nargs="+")
    a.add_argument("--rounds", type=int, default=15)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--isa", default="auto")
    a.add_argument("--precision", default="fast")
    a.add_argument("--lines")
    args = a.parse_args()
    benches = [Bench(path, args) for path in args.builds]
    try:
        for _ in range(2):
            for b in benches:
                b.ask(args.command)
        reads, took = [], {False: [], True: []}
        for k in range(args.rounds):
            dear = is_dear(args.lines)
            reads.append(benches[0].ask("bandwidth") * 1e-9)
            t = [0.0] * len(benches)
            for i in range(len(benches)):
                i = (i + k) % len(benches)
                t[i] = benches[i].ask(args.command)
            if is_dear(args.lines) == dear:
                took[dear].append(t)
    finally:
        for b in benches:
            b.p.kill()
    print(f"{args.model}: {args.command}, read {min(reads):.0f} to {max(reads):.0f} GB/s")
    for dear in (False, True):
        if took[dear]:
            tell(args, took[dear], "" if not args.lines else "lines dear, " if dear else "lines cheap, ")


if __name__ == "__main__":
    main()
