"""python3 tests/bench/steady_bench.py [POLICY ...]: tokens a second of live servers under a steady load of sampled
prose, which draft tokens have least to guess from: so many clients ask again and again, and windows of a few seconds
are counted, in turn. Each policy (fcfs and arctic, unless others are named) has several servers, as lives of one
differ. Ratios are those of medians, to the first policy. MOONSHIFT_BUILD: another build."""

import contextlib
import http.client
import itertools
import json
import re
import statistics
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
from file_site import Site

MODEL = "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"
FLAGS = [MODEL, "--port", "0", "--admin-listen", "off", "--max-model-len", "2048", "--kv-cache-memory-bytes", "512MiB"]
CLIENTS, LIVES, ROUNDS, SECONDS = (1, 2, 4, 8), 3, 3, 1.5
COUNTS = {
    "tokens": "vllm:generation_tokens_total",
    "steps": "moonshift:steps_total",
    "drafts": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
seeds = itertools.count()


def post(s, body):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=100)
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    r.read()
    c.close()


def client(s, stop):
    body = {"messages": [{"role": "user", "content": "A long story about a dog."}], "max_tokens": 200}
    while not stop.is_set():
        post(s, {**body, "ignore_eos": True, "temperature": 0.8, "seed": next(seeds)})


def counts(s):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=100)
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    c.close()
    found = {k: re.search(rf"^{name}\{{.*?\}} (\S+)$", text, re.M) for k, name in COUNTS.items()}
    return {k: float(m.group(1)) if m else 0.0 for k, m in found.items()}


def window(s, n):
    """What n clients got in so many seconds."""
    stop = threading.Event()
    clients = [threading.Thread(target=client, args=(s, stop)) for _ in range(n)]
    for t in clients:
        t.start()
    time.sleep(0.7)
    before, began = counts(s), time.perf_counter()
    time.sleep(SECONDS)
    after, took = counts(s), time.perf_counter() - began
    stop.set()
    for t in clients:
        t.join()
    return {k: (after[k] - before[k]) / took for k in COUNTS}


def main():
    policies = sys.argv[1:] or ["fcfs", "arctic"]
    print("clients  policy   tokens/s  ratio  tokens/step  drafts/step  accepted")
    with contextlib.ExitStack() as stack:
        lives = [
            (p, stack.enter_context(Site(None, flags=[*FLAGS, "--policy", p]))) for _ in range(LIVES) for p in policies
        ]
        for n in CLIENTS:
            seen = {p: [] for p in policies}
            for k in range(ROUNDS):
                for p, s in lives if k % 2 else lives[::-1]:
                    seen[p].append(window(s, n))
            rate = {p: statistics.median(w["tokens"] for w in seen[p]) for p in policies}
            for p in policies:
                total = {k: sum(w[k] for w in seen[p]) for k in COUNTS}
                print(
                    f"{n:7}  {p:7}  {rate[p]:8.0f}  {rate[p] / rate[policies[0]]:5.2f}  "
                    f"{total['tokens'] / total['steps']:11.2f}  {total['drafts'] / total['steps']:11.2f}  "
                    f"{total['accepted'] / max(total['drafts'], 1e-9):8.2f}",
                    flush=True,
                )


main()
