"""Live servers that record what they do at given times of arrival, and what simulate says of a recording: as it was,
and what if. What clients see of a step is left out on both sides: times are the engine's. Tests and benchmarks only."""

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time

from file_site import BINARY, ENV, Site

LATENCIES = ("ttft", "tpot", "completion")
POINTS = ("p50", "p90", "mean")
WORDS = [f"{a}{b}" for a in ("ba", "lo", "mi", "tu", "re") for b in ("ll", "n", "st", "ve")]


def poisson(seed, n, rate, words, tokens):
    """n of (seconds, prompt, max_tokens), no two prompts alike from the first word on."""
    rnd, at, out = random.Random(seed), 0.0, []
    for i in range(n):
        at += rnd.expovariate(rate)
        text = " ".join([str(i)] + rnd.choices(WORDS, k=rnd.randint(*words)))
        out.append((at, text, rnd.randint(*tokens)))
    return out


def start(path, flags, cores):
    """A server on these cores, or on all; the client is where it was."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        return Site(None, "--record", path, flags=flags)
    finally:
        os.sched_setaffinity(0, before)


def record(path, arrivals, flags, cores=None):
    """Serves with these flags, asks at these times, and ends in good order."""
    with start(path, flags, cores) as s:
        failures, threads, begun = [], [], time.monotonic()

        def ask(text, n):
            body = {"model": "m", "prompt": text, "max_tokens": n, "temperature": 0, "ignore_eos": True}
            status, said = s.ask("POST", "/v1/completions", json.dumps(body), **{"Content-Type": "application/json"})
            if status != 200:
                failures.append(said)

        for at, text, n in arrivals:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            threads.append(threading.Thread(target=ask, args=(text, n)))
            threads[-1].start()
        for t in threads:
            t.join()
        assert not failures, failures[0]
        assert s.end(signal.SIGTERM) == 0


def simulate(path, *args, binary=BINARY):
    """(the first run of --json, what was said)."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "x.json")
        r = subprocess.run(
            [binary, "simulate", "--trace", path, "--json", out, *args], capture_output=True, text=True, env=ENV
        )
        assert r.returncode == 0, r.stdout + r.stderr
        with open(out) as f:
            return json.load(f)["runs"][0], r.stdout


def latencies(run):
    return {(name, point): run[f"{name}_ms"][point] for name in LATENCIES for point in POINTS}


def off(predicted, measured):
    """Of each latency, predicted / measured - 1."""
    return {k: predicted[k] / measured[k] - 1 for k in measured}
