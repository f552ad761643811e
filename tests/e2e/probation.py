"""A live server on the simulated device: a policy that makes everybody wait is sent back by itself while clients are
served, and the state, the metrics and the log say why; one that does no harm is kept; an operator's rollback ends a
probation, too; with 0 seconds there is none."""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
MODEL = [
    *["--load-format", "dummy", "--hf-config", "tests/data/sim_model.json", "--device", "sim"],
    *["--served-model-name", "m", "--policy", "fcfs", "--kv-cache-memory-bytes", "4MiB", "--max-model-len", "512"],
]
WAIT_S, GAP_S = 120, 0.04
FCFS = open("policies/fcfs.lua").read()
SLOW = (FCFS[: FCFS.index("  tests = {")] + "}\n").replace(
    "  step = function",
    "  admit = function(r, view, act) if not r.again then act.hold(r, 'why not', view.now + 2) end end,\n\n"
    "  step = function",
)
assert SLOW != FCFS


class Server:
    def __init__(self, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([BINARY, "serve", *MODEL, "--port", "0", *args], stderr=self.log, env=ENV)
        self.until(lambda: "Admin routes on port" in self.said(), "it starts")
        self.url = re.search(r"on (http://\S+)", self.said()).group(1)
        self.admin = re.sub(r":\d+$", ":" + re.search(r"Admin routes on port (\d+)", self.said()).group(1), self.url)
        atexit.register(self.p.kill)
        self.more, self.texts, self.errors, self.threads = True, [], [], []

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def until(self, true, what):
        end = time.monotonic() + WAIT_S
        while not true():
            assert self.p.poll() is None and time.monotonic() < end, (what, self.said())
            time.sleep(0.02)

    def order(self, method, path, body=""):
        r = urllib.request.Request(self.admin + path, body.encode(), method=method)
        try:
            with urllib.request.urlopen(r, timeout=WAIT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            raise AssertionError(e.read()) from e

    def refused(self, method, path, body):
        try:
            self.order(method, path, body)
        except AssertionError as e:
            return e.__cause__.code, e.args[0].decode()
        raise AssertionError(f"{method} {path} was not refused")

    def states(self, name):
        return [s for v in self.order("GET", "/admin/policies")["versions"] if v["name"] == name for s in v["state"]]

    def audit(self):
        with urllib.request.urlopen(self.admin + "/admin/audit", timeout=WAIT_S) as r:
            return [json.loads(line) for line in r]

    def policy(self):
        return self.order("GET", "/admin/policy")

    def metric(self, line):
        with urllib.request.urlopen(self.url + "/metrics", timeout=WAIT_S) as r:
            return float(re.search("^" + re.escape(line) + r" (\S+)$", r.read().decode(), re.M)[1])

    def ask(self):
        body = {"model": "m", "prompt": "one two three", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as r:
                self.texts.append(json.load(r)["choices"][0]["text"])
        except OSError as e:
            self.errors.append(e)

    def send(self):
        """A request at a time, whatever becomes of those before."""
        while self.more:
            self.threads.append(threading.Thread(target=self.ask, daemon=True))
            self.threads[-1].start()
            time.sleep(GAP_S)

    def load(self):
        self.sender = threading.Thread(target=self.send, daemon=True)
        self.sender.start()

    def close(self):
        self.more = False
        self.sender.join()
        for t in self.threads:
            t.join()
        self.p.terminate()
        assert self.p.wait(WAIT_S) == 0
        assert not self.errors, self.errors[:3]
        assert len(set(self.texts)) == 1, set(self.texts)  # nobody has lost a token


def has_ended(server, generation):
    last = server.policy()["last_probation"]
    return last is not None and last["generation"] >= generation


def harm_is_sent_back_and_named():
    server = Server("--policy-probation-seconds", "4")
    server.load()
    p = server.policy()
    assert p["probation"] == {"state": "off"} and p["last_probation"] is None, p
    for _ in range(5):  # on a machine that stands still at times there may be too little to compare with
        time.sleep(4.5)  # traffic to compare with
        p = server.order("PUT", "/admin/policies/slow", SLOW)
        assert p["active"]["name"] == "slow" and p["probation"]["state"] == "on", p
        names = [g["name"] for g in p["probation"]["guards"]]
        assert names == ["starvation", "throughput", "preemptions", "refusals", "ttft", "tpot"], names
        server.until(lambda: has_ended(server, p["active"]["generation"]), "the probation ends")
        last = server.policy()["last_probation"]
        if last["outcome"] == "rolled_back":
            break
        assert last["outcome"] == "committed", last
        server.order("POST", "/admin/policy/rollback")
    p = server.policy()
    assert last["outcome"] == "rolled_back" and last["name"] == "slow", last
    assert re.match(r"TTFT of all requests: \d+% of \d+ took longer than [\d.]+ s, ", last["reason"]), last
    assert p["active"]["name"] == "fcfs" and p["probation"] == {"state": "off"} and p["previous"] is None, p
    assert "slow is rolled back: TTFT of all requests" in p["last_error"], p
    assert server.metric('policy_probations_total{result="rolled_back"}') == 1
    # what was sent back is in quarantine, and on record with the reason
    server.until(lambda: "quarantined" in server.states("slow"), "it is in quarantine")
    status, text = server.refused("PUT", "/admin/policies/slow", SLOW)
    assert status == 409 and "is in quarantine: TTFT of all requests" in text, (status, text)
    line = [x for x in server.audit() if x["event"] == "withdraw"][-1]
    assert line["actor"] == "engine" and line["policy"] == "slow" and line["result"] == "quarantined", line
    assert line["reason"] == last["reason"], (line, last)
    p = server.order("PUT", "/admin/policies/slow?force=1", SLOW)
    assert p["active"]["name"] == "slow", p
    assert re.search(r"slow \(\w+\) is rolled back: TTFT of all requests: .*; fcfs \(\w+\) decides", server.said())
    server.close()


def the_harmless_are_kept_and_operators_come_first():
    server = Server("--policy-probation-seconds", "1.5")
    server.load()
    time.sleep(2)
    p = server.order("PUT", "/admin/policies/same", FCFS)
    server.until(lambda: has_ended(server, p["active"]["generation"]), "the probation ends")
    p = server.policy()
    assert p["last_probation"]["outcome"] == "committed" and p["active"]["name"] == "same", p
    assert p["last_probation"]["reason"].startswith("kept after "), p
    server.until(lambda: "last-good" in server.states("same"), "it is the last good one")
    line = [x for x in server.audit() if x["event"] == "commit"][-1]
    assert line["policy"] == "same" and line["reason"] == p["last_probation"]["reason"], (line, p)
    server.order("PUT", "/admin/policies/other", FCFS)
    assert server.metric("policy_probation") == 1
    p = server.order("POST", "/admin/policy/rollback")
    assert p["active"]["name"] == "same" and p["probation"]["state"] == "off", p
    assert p["last_probation"]["outcome"] == "recalled" and p["last_probation"]["name"] == "other", p
    server.close()


def with_no_seconds_there_is_none():
    server = Server("--policy-probation-seconds", "0")
    server.load()
    p = server.order("PUT", "/admin/policies/same", FCFS)
    assert p["probation"] == {"state": "disabled"} and p["last_probation"] is None, p
    assert server.metric("policy_probation") == 0
    server.close()


cases.run([harm_is_sent_back_and_named, the_harmless_are_kept_and_operators_come_first, with_no_seconds_there_is_none])
