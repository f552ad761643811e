"""python3 tests/bench/live_bench.py FILE.gguf BINARY ... [--lives N] [--busy N] [--flags "..."]: live servers of
several builds, in turn: what one client that streams waits for the first token, and for each token after it, in ms,
behind 100, 1,000 and 10 words that no cache has seen. Medians over all lives, and their ratios to the first build's.
--busy: beside so many processes that compute."""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, "tests/rig")
import file_site

WORDS = ["dog", "house", "runs", "fast", "blue", "tree", "river", "stone", "light", "small", "water", "fire", "moon"]
# Name, requests in each life, words of a prompt, tokens of an answer.
PARTS = [("first", 1, 100, 4), ("next", 5, 100, 4), ("long", 4, 1000, 160), ("short", 3, 10, 200)]


def stream(port, prompt, tokens):
    """ms until the first token, and of each one after it."""
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began, came = time.perf_counter(), []
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in c.getresponse():
        if line.startswith(b"data: {"):
            came.append(time.perf_counter())
    c.close()
    assert came, "no answer"
    return (came[0] - began) * 1e3, (came[-1] - came[0]) / (tokens - 1) * 1e3


def life(binary, flags, seed, seen):
    file_site.BINARY = binary
    draw = random.Random(seed)
    with file_site.Site(None, flags=flags) as s:
        time.sleep(1)
        for name, n, words, tokens in PARTS:
            for _ in range(n):
                first, each = stream(s.port, " ".join(draw.choices(WORDS, k=words)), tokens)
                seen.setdefault((name, "first token"), []).append(first)
                seen.setdefault((name, "each after it"), []).append(each)


def table(builds, seen):
    print("builds: " + ", ".join(builds))
    for name, _, words, tokens in PARTS:
        for what in ("first token", "each after it") if tokens > 100 else ("first token",):
            medians = [statistics.median(x[name, what]) for x in seen]
            ratios = " ".join(f"{m / medians[0]:.3f}" for m in medians[1:])
            print(f"{name:5} {words:4} words, {what:13}", " ".join(f"{m:8.2f}" for m in medians), " ", ratios)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("builds", nargs="+")
    a.add_argument("--lives", type=int, default=6)
    a.add_argument("--busy", type=int, default=0)
    a.add_argument("--flags", default="")
    args = a.parse_args()
    flags = [args.model, "--port", "0", "--admin-listen", "off", *args.flags.split()]
    seen = [{} for _ in args.builds]
    with contextlib.ExitStack() as stack:
        for _ in range(args.busy):
            stack.callback(subprocess.Popen(["sh", "-c", "while :; do :; done"]).kill)
        for k in range(args.lives):
            for i in sorted(range(len(args.builds)), reverse=k % 2 == 1):
                life(args.builds[i], flags, k, seen[i])
    table(args.builds, seen)


if __name__ == "__main__":
    main()
