"""python3 tests/bench/tiers_bench.py: what a cached beginning of 4,000 tokens costs a live server, by where it lies:
nowhere (it is computed), in host memory, on disk (after a restart, read from the page cache and, where that may be
dropped, from the device). One rank, the demo model; the time to the first token of a request over HTTP, medians. Then
how fast prompts are computed in pipeline stages of as many ranks as one rank with the same cores computes them."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "tests/rig")
import file_site
from file_site import Site

MODEL = subprocess.run(["models/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
file_site.DUMMY[:] = [MODEL, "--served-model-name", "m", "--port", "0", "--admin-listen", "off"]
WORDS = ["the", "of", "and", "to", "in", "is", "was", "he", "for", "it", "with", "as", "his", "on"]
N, TOKENS = 5, 4000


def prompt(seed, n=TOKENS - 40):
    r = random.Random(seed)
    return f"{seed} " + " ".join(r.choice(WORDS) for _ in range(n))


def first_token_ms(s, text):
    body = {"model": "m", "prompt": text, "max_tokens": 1, "temperature": 0}
    t0 = time.perf_counter()
    status, r = s.json("POST", "/v1/completions", json.dumps(body))
    ms = (time.perf_counter() - t0) * 1e3
    assert status == 200, r
    return ms, r["usage"]["prompt_tokens"], (r["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def row(name, results, base=None):
    ms = statistics.median(x[0] for x in results)
    tokens, cached = results[0][1:]
    ratio = f"   {base / ms:7.1f} times as fast as computing" if base else ""
    print(
        f"{name:34} {ms:9.1f} ms   ({tokens} tokens, {cached} cached; {min(x[0] for x in results):.1f} to "
        f"{max(x[0] for x in results):.1f}){ratio}",
        flush=True,
    )
    return ms


def counter(s, name):
    text = s.ask("GET", "/metrics")[1].decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))


def tiers():
    with tempfile.TemporaryDirectory() as folder:
        # Ranks have room for one prompt: the next one evicts it.
        args = ["--kv-cache-memory-bytes", "110MiB", "--host-kv-memory", "2GiB", "--disk-kv", f"{folder}/kv:4GiB"]
        with Site(None, *args) as s:
            first_token_ms(s, prompt("warm", 100))
            computed = [first_token_ms(s, prompt(i)) for i in range(N)]
            base = row("computed", computed)
            while counter(s, "moonshift:kv_disk_written_tokens_total") < N * (TOKENS - 100):
                time.sleep(0.1)
            row("in host memory", [first_token_ms(s, prompt(i)) for i in range(N)], base)
            s.end(signal.SIGTERM)
        with Site(None, *args) as s:
            first_token_ms(s, prompt("warm", 100))
            row("on disk, in the page cache", [first_token_ms(s, prompt(i)) for i in range(N)], base)
            s.end(signal.SIGTERM)
        try:
            subprocess.run(["sync"], check=True)
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("1\n")
        except OSError as e:
            print(f"on disk, not in the page cache: not measured ({e})")
            return
        with Site(None, *args) as s:
            first_token_ms(s, prompt("warm", 100))
            row("on disk, not in the page cache", [first_token_ms(s, prompt(i)) for i in range(N)], base)


def prefill_rate(*args):
    with Site(None, "--kv-cache-memory-bytes", "512MiB", "--no-enable-prefix-caching", *args) as s:
        first_token_ms(s, prompt("warm", 100))
        rates = [(lambda r: r[1] / r[0] * 1e3)(first_token_ms(s, prompt(i, 1900))) for i in range(N)]
    return statistics.median(rates)


def stages():
    cores = os.cpu_count()
    one = prefill_rate("-t", str(cores))
    print(f"one rank, {cores} threads: {one:.0f} prompt tokens/s", flush=True)
    for pp, micro in ((2, 0), (2, 16), (4, 0), (4, 16), (4, 32)):
        policy = ["--policy", "static", "--policy-param", f"pp={pp}", "--policy-param", f"micro={micro}"]
        rate = prefill_rate("-pp", str(pp), "-t", str(cores), *policy)
        print(
            f"{pp} stages, {micro or pp:2} micro-batches: {rate:.0f} prompt tokens/s, {rate / one:.2f} of it",
            flush=True,
        )


tiers()
stages()
