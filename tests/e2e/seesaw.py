"""Seesaw live, as its paper has it: prompts in four stages, tokens in tensor parallelism over four ranks, weights
re-sharded at each transition, KV through host memory that holds a tenth of what all requests need. Every text is that
of one rank, the books of ranks and host memory balance, and nothing was decided by the fallback. Uses made-up
weights."""

import concurrent.futures
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
FOLDER = tempfile.TemporaryDirectory()
MODEL = ["--load-format", "dummy", "--hf-config", os.path.join(FOLDER.name, "config.json"), "--served-model-name", "m"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
N = 60 if os.environ.get("MOONSHIFT_SLOW") else 300
PROMPT, OUTPUT = (20, 120), (2, 24)


class Site:
    def __init__(self, *flags):
        command = [BINARY, "serve", *MODEL, "--port", "0", "--admin-listen", "127.0.0.1:0", *flags]
        self.p = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENV)
        said, self.ports = "", {}
        for text in self.p.stderr:
            said += text
            if found := re.search(r" on http://127.0.0.1:(\d+)", text):
                self.ports["api"] = int(found.group(1))
            if found := re.search(r"Admin routes on port (\d+)", text):
                self.ports["admin"] = int(found.group(1))
                break
        else:
            raise AssertionError(said)
        self.rest = threading.Thread(target=self.p.stderr.read, daemon=True)
        self.rest.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)
        self.rest.join()
        self.p.stderr.close()

    def ask(self, method, where, body=None, port="api"):
        c = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=300)
        try:
            c.request(method, where, body, {"Content-Type": "application/json"} if body else {})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def state(self):
        return json.loads(self.ask("GET", "/admin/state", port="admin")[1])["engine"]

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.ask("GET", "/metrics")[1], re.M)
        return float(found.group(1))


def requests():
    r = random.Random(3)
    for i in range(N):
        ids = [r.randrange(200) for _ in range(r.randint(*PROMPT))]
        yield {
            "prompt": ids,
            "max_tokens": r.randint(*OUTPUT),
            "temperature": 0 if i % 3 else 0.8,
            "seed": i,
            "ignore_eos": True,
            "logprobs": 0,
        }


def texts(site):
    def one(body):
        status, text = site.ask("POST", "/v1/completions", json.dumps(body))
        assert status == 200, text
        choice = json.loads(text)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    with concurrent.futures.ThreadPoolExecutor(N) as pool:
        return list(pool.map(one, requests()))


def make_model():
    """Layers for four stages, and a byte vocabulary."""
    with open("tests/data/layout_deep.json") as f:
        config = {**json.load(f), "vocab_size": 300}
    with open(os.path.join(FOLDER.name, "config.json"), "w") as f:
        json.dump(config, f)


def prefill_in_stages_and_decode_in_tensor_parallelism():
    make_model()
    with Site("-t", "1") as quiet:
        should = texts(quiet)
        block = quiet.state()["kv"]["block_bytes"]
        per_block = quiet.state()["kv"]["tokens_per_block"]
    need = sum(-(-(len(b["prompt"]) + b["max_tokens"]) // per_block) for b in requests()) * block
    flags = ["--ranks", "4", "-pp", "4", "-t", "4", "--weights", "sharded", "--policy", "seesaw"]
    flags += ["--policy-param", "turn_s=0.3", "--policy-param", "least_s=0.05", "--max-num-seqs", "256"]
    flags += ["--host-kv-memory", str(need // 10), "--kv-cache-memory-bytes", str(need // 40)]
    with Site(*flags) as site:
        assert texts(site) == should
        state = site.state()
        end = time.time() + 30
        while state["sharded"]["coming"] and time.time() < end:
            state = site.state()
        assert state["conserved"] and state["requests"]["live"] == 0, state
        assert state["host_kv"]["held"] == 0 and all(r["kv"]["held"] == 0 for r in state["ranks"]), state
        assert site.metric("moonshift:weights_resharded_bytes_total") > 0
        assert site.metric("moonshift:kv_swapped_out_bytes_total") > 0
        assert site.metric("moonshift:kv_swapped_in_bytes_total") > 0
        policy = json.loads(site.ask("GET", "/admin/policy", port="admin")[1])
        assert policy["active"]["name"] == "seesaw" and not any(policy["fallback_steps"].values()), policy
        seen = [s for s in state["switches"] if s["outcome"] == "done" and "seesaw" in s["reason"]]
        assert len(seen) >= 2, state["switches"]
        print(f"  {len(seen)} of the last switches were Seesaw's; {N} texts equal")


cases.run([prefill_in_stages_and_decode_in_tensor_parallelism])
