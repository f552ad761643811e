"""Where the time of requests went, from outside: a server on the simulated device under more load than it can take at
once tells of every request why it waited, the parts of its time to first token add up to it, and `policy why` prints
them. Clients measure the time themselves: a story is never longer than what its client saw."""

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

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
ARGS = [
    "--load-format",
    "dummy",
    "--hf-config",
    "tests/data/sim_model.json",
    "--device",
    "sim",
    "--sim-step-us",
    "500",
    "--port",
    "0",
]
SMALL = [
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "256",
    "--request-history",
    "30",
    "--served-model-name",
    "m",
]
REQUESTS, CLIENTS, WAIT_S = 24, 12, 120
HOLDS = """
return { api = 1, doc = 'holds reds', needs = { 'priority' },
admit = function(r, view, act)
  if r.priority == 7 and not r.again then act.hold(r, 'reds wait a bit', view.now + 0.05) end
end,
step = function(view, act) for _, g in ipairs(view.idle) do
  local b = act.batch(g) b:decodes() b:prefill(view.waiting)
  if b.tokens > 0 then act.forward(g, b) end end end }
"""


class Server:
    def __init__(self, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([BINARY, "serve", *ARGS, *SMALL, *args], stderr=self.log, env=ENV)
        end = time.monotonic() + WAIT_S
        while "Admin routes on port" not in self.said():
            assert self.p.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.02)
        time.sleep(0.05)
        self.url = re.search(r"on (http://\S+)", self.said()).group(1)
        self.admin = re.sub(r":\d+$", ":" + re.search(r"Admin routes on port (\d+)", self.said()).group(1), self.url)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def complete(self, name, tokens, n=1, priority=0):
        body = {"prompt": "x" * tokens, "max_tokens": 8, "n": n, "ignore_eos": True, "priority": priority}
        r = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        r.add_header("Content-Type", "application/json")
        if name:
            r.add_header("X-Request-Id", name)
        with urllib.request.urlopen(r, timeout=WAIT_S) as answer:
            return json.load(answer)["id"], answer.headers["X-Request-Id"]

    def get(self, path, key=None):
        r = urllib.request.Request(self.admin + path)
        if key:
            r.add_header("Authorization", "Bearer " + key)
        try:
            with urllib.request.urlopen(r, timeout=WAIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)

    def stop(self):
        self.p.terminate()
        assert self.p.wait(WAIT_S) == 0, self.said()


def check(story, seen_ns):
    """Exclusive, gapless, adding up, and no longer than the client waited."""
    at = 0
    for span in story["spans"]:
        assert span["from_ns"] == at and span["to_ns"] >= at, story
        at = span["to_ns"]
    assert at == story["age_ns"] <= seen_ns, (story, seen_ns)
    assert sum(story["ttft"].values()) == story["ttft_ns"], story
    assert sum(story["after"].values()) == story["age_ns"] - story["ttft_ns"], story
    assert story["state"] == "ended" and story["ending"] == "length" and story["output_tokens"] == 8, story


def crowd(server):
    """Many at once: (id, X-Request-Id, what the client waited)."""
    seen, lock, numbers = [], threading.Lock(), iter(range(REQUESTS))

    def client():
        while True:
            with lock:
                i = next(numbers, None)
            if i is None:
                return
            began = time.monotonic_ns()
            name, back = server.complete(f"load-{i}", 20 + 37 * i % 400)
            with lock:
                seen.append((name, back, time.monotonic_ns() - began))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return seen


def under_load(server):
    parts = {}
    seen = crowd(server)
    assert len(seen) == REQUESTS
    for name, back, waited in seen:
        status, reply = server.get("/admin/requests/" + name)
        assert status == 200 and len(reply["requests"]) == 1, (name, reply)
        check(reply["requests"][0], waited)
        assert server.get("/admin/requests/" + back)[1]["requests"][0]["id"] == reply["requests"][0]["id"]
        for part, ns in reply["requests"][0]["ttft"].items():
            parts[part] = parts.get(part, 0) + ns
    whole = sum(parts.values())
    print({k: f"{v / whole:.3f}" for k, v in parts.items()})
    assert parts.get("unexplained", 0) <= 0.001 * whole, parts
    assert parts["prefill"] > 0 and parts["front"] > 0, parts
    slowest = server.get("/admin/requests?slowest=5")[1]["requests"]
    times = [r["ttft_ns"] for r in slowest]
    assert len(times) == 5 and times == sorted(times, reverse=True), times
    every = server.get("/admin/requests?slowest=100")[1]["requests"]
    assert len(every) == REQUESTS and times == [r["ttft_ns"] for r in every[:5]]


def choices(server):
    name, _ = server.complete("twins", 30, n=2)
    status, reply = server.get("/admin/requests/" + name)
    assert status == 200 and sorted(r["choice"] for r in reply["requests"]) == [0, 1], reply
    second = server.get(f"/admin/requests/{name}-1")[1]["requests"]
    assert [r["choice"] for r in second] == [1], second


def holds(server):
    r = urllib.request.Request(server.admin + "/admin/policies/holds", HOLDS.encode(), method="PUT")
    with urllib.request.urlopen(r, timeout=WAIT_S):
        pass
    name, _ = server.complete(None, 30, priority=7)
    story = server.get("/admin/requests/" + name)[1]["requests"][0]
    held = [s for s in story["spans"] if s["part"] == "held"]
    assert held and held[0]["words"] == "reds wait a bit" and story["ttft"]["held"] >= 40_000_000, story


def decisions(server):
    """The chunks of a prompt in the log are its tokens, and each step has been measured."""
    name, _ = server.complete("long", 700)
    story = server.get("/admin/requests/" + name)[1]["requests"][0]
    status, reply = server.get(f"/admin/decisions?n=200&from={story['spans'][-1]['step'] - 20}")
    mine = [c for d in reply["decisions"] for c in d["chunks"] if c["request"] == story["id"]]
    assert status == 200 and sum(c["tokens"] for c in mine) + story["cached_tokens"] == 700 and mine[0]["starts"], mine
    steps = [d["step"] for d in reply["decisions"]]
    assert steps == sorted(steps) and steps[-1] == reply["newest"], steps
    assert all(g["measured_ns"] > 0 for d in reply["decisions"][:-1] for g in d["groups"]), reply
    assert len(server.get("/admin/decisions")[1]["decisions"]) == 20
    for wrong in ("n=0", "n=201", "from=x", "from=-1"):
        assert server.get("/admin/decisions?" + wrong)[0] == 400, wrong


def refusals(server):
    status, reply = server.get("/admin/requests/cmpl-nobody")
    assert status == 404 and "the last 30" in reply["error"]["message"], reply
    for wrong in ("0", "101", "x", "-1", "1e1", ""):
        assert server.get("/admin/requests?slowest=" + wrong)[0] == 400, wrong
    assert server.get("/admin/requests/")[0] == 404
    for _ in range(32):  # more than are kept
        server.complete("flood", 20)
    assert server.get("/admin/requests/load-1")[0] == 404
    assert len(server.get("/admin/requests?slowest=100")[1]["requests"]) == 30


def why(words, text, status=0):
    p = subprocess.run([BINARY, "policy", "why", *words], input=text, capture_output=True, text=True, env=ENV)
    assert p.returncode == status, p
    return p.stdout if status == 0 else p.stderr


def printed(server):
    name, _ = server.complete("shown", 300)
    reply = server.get("/admin/requests/" + name)[1]
    text = why(["--file", "-"], json.dumps(reply))
    story = reply["requests"][0]
    assert story["id"] in text and f"first token after {story['ttft_ns'] / 1e6:.3f} ms" in text, text
    assert "in steps that compute its prompt" in text and "####" in text, text
    assert "300 prompt tokens" in text or "301 prompt tokens" in text, text
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(reply, f)
        f.flush()
        assert why([story["id"], "--file", f.name], "") == text
    assert "no request in it" in why(["cmpl-x", "--file", "-"], json.dumps(reply), 1)
    assert "not what" in why(["--file", "-"], "{}", 1)
    assert "line 1" in why(["--file", "-"], "{", 1)
    asked = ["--server", server.admin]
    assert why([story["id"], *asked], "") == text
    assert json.loads(why([story["id"], *asked, "--json"], "")) == reply
    assert len(re.findall(r"first token after", why(asked, ""))) == 5  # the slowest
    assert "no request is known" in why(["cmpl-x", *asked], "", 1)
    assert "letters, digits" in why(["a/../b", *asked], "", 2)
    assert "no answer" in why(["--server", "http://127.0.0.1:9"], "", 3)


def closed_doors():
    server = Server("--request-history", "0", "--decision-log-memory", "0", "--admin-key", "sk-admin")
    name, _ = server.complete(None, 20)
    assert server.get("/admin/requests/" + name)[0] == 401
    status, reply = server.get("/admin/requests/" + name, "sk-admin")
    assert status == 400 and "--request-history is 0" in reply["error"]["message"], reply
    status, reply = server.get("/admin/decisions", "sk-admin")
    assert status == 400 and "--decision-log-memory is 0" in reply["error"]["message"], reply
    server.stop()


def main():
    server = Server()
    for part in (under_load, choices, printed, decisions, holds, refusals):
        part(server)
        print("ok", part.__name__)
    server.stop()
    closed_doors()
    print("ok closed_doors")


sys.exit(main())
