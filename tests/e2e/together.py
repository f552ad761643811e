"""Everything together, at random by seed: flags, policies and their params, clients of any kind, lines of batches, and
an operator who swaps policies, changes limits and asks for canaries meet in one server on real ranks. Each answer has
to be the one that the request gets alone on a single rank, bit for bit; what is refused is refused in words; nothing is
left of who has gone; and the server ends when told to, or begins again where it was killed.

MOONSHIFT_TEST_SEED=N MOONSHIFT_TEST_ROUNDS=M: those seeds, and what they are."""

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, "tests/rig")
import cases
import drawn
from drafters import echo_heads, small_model
from file_site import BINARY, ENV, TYPE, form

WAIT_S = 240 if os.environ.get("MOONSHIFT_SLOW") else 120
LOUD = os.environ.get("MOONSHIFT_TEST_SEED")
ENDED = ("completed", "failed", "expired", "cancelled")
# A turn of seesaw may take longer than --starvation-seconds is here; the last one on a busy machine.
LAWFUL = r"\[policy\] (habit\S*|seesaw) .* is (withdrawn|rolled back)|more time than they are worth"
if os.environ.get("MOONSHIFT_SLOW"):
    LAWFUL += "|its call was cut off"


def say(*what, sep=" "):
    if LOUD:
        print(*what, sep=sep, flush=True)


class Server:
    """serve with these flags; port None: it refused them, and said why."""

    def __init__(self, flags):
        self.p = subprocess.Popen([BINARY, "serve", *flags], stderr=subprocess.PIPE, text=True, env=ENV)
        self.said, self.port, self.admin, self.flags, self.ending = "", None, None, flags, False
        for line in self.p.stderr:
            self.said += line
            if found := re.search(r" on http://127.0.0.1:(\d+)", line):
                self.port = int(found.group(1))
            if found := re.search(r"Admin routes on port (\d+)", line):
                self.admin = int(found.group(1))
                break
        self.rest = threading.Thread(target=self._read, daemon=True)
        self.rest.start()

    def _read(self):
        for line in self.p.stderr:
            self.said += line

    def signal(self, how):
        self.ending = True
        if self.p.poll() is None:
            self.p.send_signal(how)

    def wait(self):
        code = self.p.wait(WAIT_S)
        self.rest.join()
        self.p.stderr.close()
        return code

    def ask(self, method, where, body=None, port=None, **head):
        c = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=WAIT_S)
        try:
            c.request(method, where, body, {"Content-Type": "application/json", **head} if body else {})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def json(self, *what, **more):
        status, text = self.ask(*what, **more)
        return status, json.loads(text)

    def metric(self, name):
        return sum(
            float(x) for x in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.ask("GET", "/metrics")[1], re.M)
        )


# ---- answers


def unstreamed(body):
    return {k: v for k, v in body.items() if k not in ("stream", "stream_options")}


def answer(text, streamed):
    """What was answered, in a form that does not depend on how it was sent."""
    frames = (
        [json.loads(x[6:]) for x in text.split("\n") if x.startswith("data: {")] if streamed else [json.loads(text)]
    )
    out, usage = {}, None
    for f in frames:
        if "error" in f:
            return {"error": f["error"]}
        usage = f.get("usage") or usage
        for c in f["choices"]:
            fresh = {"text": "", "ids": [], "finish": None, "logprobs": [], "top": [], "prompt": None}
            o = out.setdefault(c["index"], fresh)
            o["text"] += c["text"]
            o["ids"] += c.get("token_ids") or []
            o["finish"] = c.get("finish_reason") or o["finish"]
            o["prompt"] = c.get("prompt_logprobs") or o["prompt"]
            if c.get("logprobs"):
                o["logprobs"] += [list(x) for x in zip(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"])]
                o["top"] += c["logprobs"].get("top_logprobs") or []
    if streamed and "[DONE]" not in text:
        return {"error": "it has no end"}
    return {"choices": [out[k] for k in sorted(out)], "usage": [usage["prompt_tokens"], usage["completion_tokens"]]}


def complete(server, body):
    status, text = server.ask("POST", "/v1/completions", json.dumps(body))
    return status, answer(text, body.get("stream")) if status == 200 else text


def give_up(server, body, rng):
    """A client that leaves at some time."""
    text = json.dumps(body if "prompt_logprobs" in body else {**body, "stream": True})
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as s:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        s.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        time.sleep(rng.random() * rng.choice([0, 0.01, 0.1]))
        if rng.random() < 0.5:
            s.recv(rng.choice([1, 200, 2000]))


# ---- one round


class Round:
    def __init__(self, seed, folder):
        self.seed, self.folder, self.wrong, self.n = seed, folder, [], {}
        rng = random.Random(seed)
        self.shape, config, self.flags = drawn.numerics(rng, folder)
        vocab = config["vocab_size"]
        echo_heads(os.path.join(folder, "heads"), config["hidden_size"], vocab)
        small_model(os.path.join(folder, "small"), vocab)
        stems = drawn.prompts(rng, vocab)
        self.requests = [drawn.request(rng, stems, vocab) for _ in range(rng.choice([10, 30, 50]))]
        self.expected, self.vectors, self.lock = [], {}, threading.Lock()

    def note(self, what):
        with self.lock:
            self.n[what] = self.n.get(what, 0) + 1

    def alone(self):
        """The answers of a single rank, one after the other."""
        s = Server([*self.flags, "--policy", "native", "--ranks", "1", "--kv-cache-memory-bytes", "64MiB"])
        assert s.port, (s.wait(), s.said)
        self.expected = [complete(s, unstreamed(b)) for b in self.requests]
        s.signal(signal.SIGTERM)
        assert s.wait() == 0, s.said

    def may_refuse(self, server, got):
        """Where there is no room, the policy says so, or the server ends."""
        if got[0] == 400:
            return "context" in got[1] and "--kv-cache-memory-bytes" in server.flags
        return got[0] in (429, 503) or (server.ending and "error" in got[1])

    def compare(self, server, i, got, how):
        if got == self.expected[i]:
            self.note(f"{how}: {'same' if got[0] == 200 else 'refused alike'}")
        elif self.may_refuse(server, got):
            self.note(f"{how}: refused: {got[1]}"[:150])
        else:
            self.wrong.append((i, self.requests[i], self.expected[i], got))

    def batch(self, server, rng):
        """Some of the requests as lines of a file."""
        mine = [i for i in rng.sample(range(len(self.requests)), 5) if self.expected[i][0] == 200]
        url = "/v1/completions"
        lines = [
            {"custom_id": str(i), "method": "POST", "url": url, "body": unstreamed(self.requests[i])} for i in mine
        ]
        data = "".join(json.dumps(x) + "\n" for x in lines).encode()
        status, file = server.json("POST", "/v1/files", form(data), **{"Content-Type": TYPE})
        if status != 200 or not lines:
            return self.note(f"no batch: {status}")
        order = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        status, b = server.json("POST", "/v1/batches", json.dumps(order))
        if server.ending:
            return self.note("the end came before a batch")
        assert status == 200, b
        cancelled = rng.random() < 0.2
        if cancelled:
            status, r = server.json("POST", f"/v1/batches/{b['id']}/cancel", "{}")
            assert status in (200, 409), (status, r)
        end = time.monotonic() + WAIT_S
        while b["status"] not in ENDED:
            assert time.monotonic() < end, b
            time.sleep(0.05)
            status, b = server.json("GET", "/v1/batches/" + b["id"])
            if server.ending:
                return self.note("the end came before that of a batch")
            assert status == 200, (status, b)
        assert b["status"] == "completed" or (cancelled and b["status"] == "cancelled"), b
        return self.compare_lines(server, b, None if cancelled else len(lines))

    def compare_lines(self, server, b, n):
        files = [b[x] for x in ("output_file_id", "error_file_id") if b[x]]
        out = [json.loads(x) for f in files for x in server.ask("GET", f"/v1/files/{f}/content")[1].splitlines()]
        assert n is None or len(out) == n, (len(out), b)
        for x in out:
            r = x["response"] or {"status_code": 400, "body": x["error"]}
            good = r["status_code"] == 200
            got = answer(json.dumps(r["body"]), False) if good else json.dumps(r["body"])
            self.compare(server, int(x["custom_id"]), (r["status_code"], got), "line")

    def embed(self, server, rng):
        text = rng.choice(drawn.TEXTS)
        status, r = server.json("POST", "/v1/embeddings", json.dumps({"input": [text, "b"]}))
        if status != 200:
            return self.note(f"not embedded: {r}"[:150])
        vector = r["data"][0]["embedding"]
        if self.vectors.setdefault(text, vector) != vector:
            self.wrong.append((text, "another vector"))
        return self.note("embedded")

    def one(self, server, i, rng):
        what = rng.random()
        if what < 0.03 and "--batch-dir" in server.flags:
            self.batch(server, rng)
        elif what < 0.06 and "--embedding-model" in server.flags:
            self.embed(server, rng)
        elif what < 0.2:
            give_up(server, self.requests[i], rng)
            self.note("left")
        else:
            self.compare(server, i, complete(server, self.requests[i]), "one")

    def client(self, server, left, rng):
        while True:
            with self.lock:
                if not left:
                    return
                i = left.pop()
            try:
                self.one(server, i, rng)
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as e:
                if not server.ending:
                    self.wrong.append((i, self.requests[i], repr(e)))
            except Exception as e:
                self.wrong.append((i, self.requests[i], repr(e)))

    def clients(self, server, rng):
        left = list(range(len(self.requests))) * 2
        rng.shuffle(left)
        n = rng.choice([1, 4, 16, 40])
        threads = [
            threading.Thread(target=self.client, args=(server, left, random.Random(f"{self.seed} {k}")))
            for k in range(n)
        ]
        for t in threads:
            t.start()
        return threads

    def meddle(self, server, rng):
        state = server.json("GET", "/admin/state", port=server.admin)[1]
        groups = [g["id"] for g in state["engine"]["groups"]]
        method, where, body = drawn.order(rng, groups)
        port = server.port if where in drawn.PUBLIC else server.admin
        status, text = server.ask(method, where, body, port=port)
        say(f"  {method} {where}: {status} {text[:150] if status != 200 else ''}")
        assert status in (200, 204, 400, 404, 409, 501, 503), (method, where, status, text)
        assert status in (200, 204) or where == "/health" or "error" in json.loads(text), (method, where, status, text)

    def serve(self, k):
        rng = random.Random(f"{self.seed} {k}")  # how long the one before took has no part in what this one is
        flags = drawn.of_any_isa(self.flags, drawn.flags(rng, self.shape, self.folder))
        server = Server([*self.flags, *flags, "--admin-listen", "127.0.0.1:0"])
        say(" ".join(server.flags))
        try:
            if server.port:
                self.live(server, rng)
            else:
                code, last = server.wait(), server.said.strip().split("\n")[-1]
                assert code in (1, 2) and last.startswith("moonshift: ") and len(last) > 30, (code, server.said)
                say(f"refused with {code}: {last}")
                self.note("not started")
        finally:
            if server.p.poll() is None:
                server.signal(signal.SIGKILL)
                server.wait()

    def live(self, server, rng):
        quiet = rng.random() < 0.3
        how = rng.choice(["after", "after", "after", "amid", "kill"])
        until = time.monotonic() + (rng.random() if how != "after" else 2 * WAIT_S)
        say(f"{how}{', quiet' if quiet else ''}")
        threads = self.clients(server, rng)
        while any(t.is_alive() for t in threads) and time.monotonic() < until:
            if not quiet:
                self.meddle(server, rng)
            time.sleep(rng.random() * 0.03)
        if how == "after":
            assert not any(t.is_alive() for t in threads), "clients wait for ever"
            self.idle(server)
        server.signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        code = server.wait()
        for t in threads:
            t.join(WAIT_S)
        self.judge(server, code, how)

    def judge(self, server, code, how):
        said = [x for x in server.said.split("\n") if re.match("WARN|ERROR|moonshift:|==|.*runtime error", x)]
        say(*said, sep="\n")
        bad = [x for x in said if not x.startswith("WARN") and not re.search(LAWFUL, x)]
        assert not bad and (code == 0 or how == "kill"), (code, bad)

    def idle(self, server):
        """Nothing is left of what clients began."""
        self.wait_for(server, "vllm:num_requests_(?:running|waiting)", "requests are live though all clients have gone")
        server.ask("POST", "/admin/reset_prefix_cache", port=server.admin)
        self.wait_for(server, "vllm:kv_cache_usage_perc", "KV blocks are held by nobody")

    def wait_for(self, server, name, why):
        end = time.monotonic() + WAIT_S / 6
        while server.metric(name):
            assert time.monotonic() < end, (why, server.ask("GET", "/admin/state", port=server.admin)[1])
            time.sleep(0.02)

    def run(self):
        self.alone()
        for k in range(2):
            self.serve(k)
        say(self.n)
        for w in self.wrong[:3]:
            say(*w, sep="\n    ")
        assert not self.wrong, json.dumps(self.wrong[:1])[:3000]
        return self.n.get("one: same", 0)


def answers_are_the_same_whatever_meets():
    few = 2 if os.environ.get("MOONSHIFT_QUICK") or os.environ.get("MOONSHIFT_SLOW") else 6
    first, rounds = int(LOUD or 1), int(os.environ.get("MOONSHIFT_TEST_ROUNDS") or few)
    n_same = 0
    for seed in range(first, first + rounds):
        with tempfile.TemporaryDirectory() as folder:
            say(f"seed {seed}")
            try:
                n_same += Round(seed, folder).run()
            except Exception:
                print(f"seed {seed}:", traceback.format_exc()[-3000:], flush=True)
                raise
    assert rounds == 1 or n_same >= 10 * rounds, n_same  # else it has looked at hardly anything


if __name__ == "__main__":
    cases.run([answers_are_the_same_whatever_meets])
