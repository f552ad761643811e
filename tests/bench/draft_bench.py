"""python3 tests/bench/draft_bench.py: tokens a second with draft tokens (the policy arctic) beside those without
(fcfs). Two servers with the demo model, asked in turn, in rounds that change who goes first; the number that counts
is the median of the ratios of single rounds. Code: files of this repository that the prompt asks to repeat; prose:
three beginnings. One stream, and many. Texts must be the same. What a request says is greedy, and a small model
repeats itself more than a large one: a bound from above for prose. "again": each round asks what the rounds before have
asked, as agents do; "new": no round does, so there is only the request's own text to guess from. Of one stream also the
speed of generation alone, from the first token on: prompts are not drafted for. Further arguments are the servers',
like --cpu-precision fast."""

import http.client
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
file_site.DUMMY[:] = [MODEL, "--served-model-name", "m", "--port", "0", "--admin-listen", "off", *sys.argv[1:]]
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
    """The text, and the seconds from the first piece of it to the last."""
    body = {"model": "m", "prompt": text, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=600)
    said, times = "", []
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    for line in r:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
            said += json.loads(line[6:])["choices"][0]["text"]
    c.close()
    return said, times[-1] - times[0]


def run(s, texts, n, streams):
    """Tokens a second of all, tokens a second behind first ones, and the texts."""
    said = [None] * max(streams, len(texts))
    seconds = [0.0] * len(said)

    def one(i):
        said[i], seconds[i] = ask(s, texts[i % len(texts)] + " " * (i // len(texts)), n)

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
    return len(said) * n / (time.perf_counter() - t0), len(said) * (n - 1) / sum(seconds), said


def compare(plain, drafting, name, streams, n, new):
    rates = []  # of each round: (all, behind first tokens), without drafts and with
    for i in range(ROUNDS):
        results = {}
        texts = [f"{streams}.{i}: {t}" for t in TEXTS[name]] if new else TEXTS[name]
        for s in (plain, drafting) if i % 2 else (drafting, plain):
            results[s] = run(s, texts, n, streams)
        assert results[plain][2] == results[drafting][2], "the texts differ"
        rates.append([results[s][:2] for s in (plain, drafting)])
    print(f"{name:6} {'new' if new else 'again':5} {streams:3} streams:", end="")
    for k, what in enumerate(("", "; generation alone")[: 2 if streams == 1 else 1]):
        ratios = [now[k] / was[k] for was, now in rates]
        was, now = (statistics.median(x) for x in zip(*((a[k], b[k]) for a, b in rates)))
        print(f"{what} {was:7.1f} tokens/s, with drafts {now:7.1f}", end="")
        print(f" ({statistics.median(ratios):.2f}; {min(ratios):.2f} to {max(ratios):.2f})", end="")
    print(flush=True)


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
