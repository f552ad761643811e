"""python3 tests/bench/draft_bench.py: tokens a second with draft tokens (the policy arctic) beside those without
(fcfs). Two servers with the demo model, asked in turn, in rounds that change who goes first; the number that counts
is the median of the ratios of single rounds. Code: files of this repository that the prompt asks to repeat; prose:
three beginnings. One stream, and many. Texts must be the same. What a request says is greedy, and a small model
repeats itself more than a large one: a bound from above for prose. "again": each round asks what the rounds before have
asked, as agents do; "new": no round does, so there is only the request's own text to guess from."""

import json
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
import file_site
from file_site import Site

MODEL = subprocess.run(["models/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
file_site.DUMMY[:] = [MODEL, "--served-model-name", "m", "--port", "0", "--admin-listen", "off"]
ROUNDS = 7


def code():
    for name in ("engine/base/list.h", "engine/base/err.h", "engine/base/rng.h"):
        with open(name) as f:
            text = f.read()[:2400]
        yield f"Here is a file:\n{text}\nThe same file once more:\n{text[:500]}"


TEXTS = {
    "code": list(code()),
    "prose": [
        "The history of the city of Rome begins",
        "When she opened the door of the old house",
        "A good engineer knows that",
    ],
}


def ask(s, text, n):
    body = {"model": "m", "prompt": text, "max_tokens": n, "temperature": 0, "ignore_eos": True}
    status, r = s.json("POST", "/v1/completions", json.dumps(body))
    assert status == 200, r
    return r["choices"][0]["text"]


def run(s, texts, n, streams):
    said = [None] * max(streams, len(texts))

    def one(i):
        said[i] = ask(s, texts[i % len(texts)] + " " * (i // len(texts)), n)

    t0 = time.perf_counter()
    if streams == 1:
        for i in range(len(said)):
            one(i)
    else:
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(said))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return len(said) * n / (time.perf_counter() - t0), said


def compare(plain, drafting, name, streams, n, new):
    ratios, rates = [], []
    for i in range(ROUNDS):
        results = {}
        texts = [f"{streams}.{i}: {t}" for t in TEXTS[name]] if new else TEXTS[name]
        for s in (plain, drafting) if i % 2 else (drafting, plain):
            results[s] = run(s, texts, n, streams)
        assert results[plain][1] == results[drafting][1], "the texts differ"
        ratios.append(results[drafting][0] / results[plain][0])
        rates.append((results[plain][0], results[drafting][0]))
    was, now = (statistics.median(x) for x in zip(*rates))
    print(
        f"{name:6} {'new' if new else 'again':5} {streams:3} streams: {was:7.1f} tokens/s, with drafts {now:7.1f}",
        end="",
    )
    print(f" ({statistics.median(ratios):.2f}; {min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    with Site(None, "--policy", "fcfs") as plain, Site(None, "--policy", "arctic") as drafting:
        for s in (plain, drafting):
            run(s, TEXTS["prose"], 16, 1)
        for streams, n in ((1, 200), (8, 100), (64, 60)):
            for name in TEXTS:
                for new in (True, False):
                    compare(plain, drafting, name, streams, n, new)
        text = drafting.ask("GET", "/metrics")[1].decode()
        for line in text.splitlines():
            if line.startswith("vllm:spec_decode"):
                print(line)
    return 0


sys.exit(main())
