"""python3 tests/bench/whatif_bench.py [FILE.gguf | --sim] [--ranks 2] [--rounds 6] [--requests 30] [--rate 0.6]
[--before OTHER_MOONSHIFT] [--keep FOLDER]: how well a recording under one policy predicts another one. In each
round a server records under the first policy once and under the second twice, with the same arrivals; the first
one's life comes first in odd rounds and between the other two in even ones, as lives differ by where they come.
Printed: by how much the recording's own replay with modelled step times is off ("own"); by how much the prediction
of the second policy is off from the mean of its two lives ("other"); and how far these two lives are apart (the
noise floor). Medians of the rounds with the least and the most. A prediction is as good as can be told when its
median is within the floor's. Latencies are those of the engine, from arrival on. --before: another build reads the
same recordings, for comparison. --sim: the simulated device, 20 ms a step and 0.2 ms a row, in real time. --ranks
2: two ranks that share the server's cores, a group of each (`static:dp=2`), else one rank (`fcfs`); the second
policy is the first with a budget of 24 tokens a step. The server runs on the first half of the cores (--all-cores:
on all). --keep: recordings that are in that folder are read again, not made again."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "tests/rig")
import replayed

COMMON = ["--served-model-name", "m", "--port", "0", "--admin-listen", "off"]
SIM = ["--load-format", "dummy", "--hf-config", "tests/data/sim_ranks.json", "--device", "sim"]
SIM += ["--sim-step-us", "20000", "--sim-row-us", "200"]
PAIRS = {1: ("fcfs", "fcfs:budget=24"), 2: ("static:dp=2", "static:dp=2,budget=24")}


def flags_of(policy):
    name, _, params = policy.partition(":")
    out = ["--policy", name]
    for param in filter(None, params.split(",")):
        out += ["--policy-param", param]
    return out


class Busy:
    """How much of the machine others took meanwhile, in cores."""

    def __init__(self):
        self.at, self.all, self.own = time.monotonic(), self.used(), self.mine()

    @staticmethod
    def used():
        with open("/proc/stat") as f:
            user, nice, system, _, _, irq, soft, steal = map(int, f.readline().split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def mine():
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(r.ru_utime + r.ru_stime for r in both)

    def words(self):
        seconds = time.monotonic() - self.at
        others = (self.used() - self.all - self.mine() + self.own) / seconds
        return f"others used {others:.2f} of {os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f}"


def read_args():
    p = argparse.ArgumentParser(description=__doc__.split(":")[0])
    p.add_argument("model", nargs="?")
    p.add_argument("--sim", action="store_true")
    p.add_argument("--all-cores", action="store_true")
    p.add_argument("--ranks", type=int, default=1, choices=sorted(PAIRS))
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--requests", type=int, default=30)
    p.add_argument("--rate", type=float, default=0.6)
    p.add_argument("--words", type=int, default=60)
    p.add_argument("--tokens", type=int, default=25)
    p.add_argument("--before")
    p.add_argument("--keep")
    return p.parse_args()


def machine_of(a):
    if a.sim:
        return SIM
    model = a.model or subprocess.run(["models/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
    return [model, "-t", "1"]


def one_round(a, i, folder):
    """Of each build: (own, other), and the floor."""
    first, second = PAIRS[a.ranks]
    arrivals = replayed.poisson(i, a.requests, a.rate, (5, a.words), (5, a.tokens))
    flags = [*machine_of(a), *COMMON, "--ranks", str(a.ranks)]
    every = sorted(os.sched_getaffinity(0))
    cores = None if a.all_cores or a.sim else set(every[: (len(every) + 1) // 2])
    paths = [os.path.join(folder, f"{i}.{name}.rec") for name in ("first", "second", "again")]
    for k in (0, 1, 2) if i % 2 else (1, 0, 2):
        if not os.path.exists(paths[k]):
            replayed.record(paths[k], arrivals, flags + flags_of(second if k else first), cores)
    was, now, again = (replayed.latencies(replayed.simulate(path)[0]) for path in paths)
    mean = {k: (now[k] + again[k]) / 2 for k in now}
    out = {"floor": {k: 2 * abs(now[k] - again[k]) / (now[k] + again[k]) for k in now}}
    for build, binary in (("", replayed.BINARY), ("before: ", a.before)):
        if not binary:
            continue
        own, _ = replayed.simulate(paths[0], "--what-if", binary=binary)
        other, said = replayed.simulate(paths[0], "--policy", second, binary=binary)
        out[build + "own"] = replayed.off(replayed.latencies(own), was)
        out[build + "other"] = replayed.off(replayed.latencies(other), mean)
        print("  " + "\n  ".join(x for x in said.split("\n") if x.startswith(second)), flush=True)
    return out


def show(rounds):
    print(f"\n{'percent':18}" + "".join(f"{name:>26}" for name in rounds[0]))
    for k in rounds[0]["floor"]:
        print(f"{k[0]:12}{k[1]:6}", end="")
        for name in rounds[0]:
            x = [100 * r[name][k] for r in rounds]
            print(f"{statistics.median(x):+9.1f} ({min(x):+.1f} to {max(x):+.1f})".rjust(26), end="")
        other, floor = (abs(statistics.median(r[name][k] for r in rounds)) for name in ("other", "floor"))
        inside = other <= floor
        print("  within the floor" if inside else "  outside of the floor")


def main():
    a = read_args()
    rounds, busy = [], Busy()
    with tempfile.TemporaryDirectory() as scratch:
        folder = a.keep or scratch
        os.makedirs(folder, exist_ok=True)
        for i in range(a.rounds):
            meanwhile = Busy()
            rounds.append(one_round(a, i + 1, folder))
            print(f"round {i + 1}: {meanwhile.words()}", flush=True)
    print(f"{PAIRS[a.ranks][0]} predicts {PAIRS[a.ranks][1]}; all rounds: {busy.words()}")
    show(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
