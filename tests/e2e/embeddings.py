"""An encoder beside a model, from outside: metrics, keys, a machine under load from both sides, clients that leave, the
end, and what serve refuses at its start. Simulated devices."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
WAIT_S = 120
SERVE = ["serve", "--load-format", "dummy", "--hf-config", "tests/data/sim_model.json", "--device", "sim",
         "--kv-cache-memory-bytes", "16MiB", "--port", "0"]  # fmt: skip
SLOW = 4 if os.environ.get("MOONSHIFT_SLOW") else 1


class Server:
    def __init__(self, *more, encoder="tests/data/encoder_sim", words=None):
        self.p = subprocess.Popen(
            [BINARY, *(words or [*SERVE, "--embedding-model", encoder]), *more],
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        self.log, self.port, self.admin = [], None, None
        while not self.port or ("--admin-listen" not in more and not self.admin):
            line = self.p.stderr.readline()
            self.log.append(line)
            assert line, "".join(self.log)
            if m := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(m.group(1))
            if m := re.search(r"Admin routes on port (\d+)", line):
                self.admin = int(m.group(1))
        threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()

    def ask(self, path, body=None, key=None, method=None):
        port = self.admin if path.startswith("/admin") else self.port
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        method = method or ("POST" if body is not None else "GET")
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def embed(self, texts, **more):
        status, text = self.ask("/v1/embeddings", {"input": texts, "encoding_format": "base64", **more})
        assert status == 200, text
        data = json.loads(text)["data"]
        assert [d["index"] for d in data] == list(range(len(data)))
        return [base64.b64decode(d["embedding"]) for d in data]

    def metric(self, name):
        return sum(
            float(x.rsplit(" ", 1)[1]) for x in self.ask("/metrics")[1].splitlines() if re.match(name + "[ {]", x)
        )

    def drain(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait(WAIT_S) == 0, "".join(self.log)


def texts(n, i=0):
    return [f"the dog {i} sees river {k} " * (1 + k % 20) for k in range(n)]


def every_metric_moves():
    with Server("--embedding-batch-tokens", "512") as s:
        moved = [
            'moonshift:embedding_requests_total{route="embeddings",result="answer"}',
            'moonshift:embedding_requests_total{route="rerank",result="answer"}',
            'moonshift:embedding_requests_total{route="score",result="answer"}',
            'moonshift:embedding_requests_total{route="embeddings",result="error"}',
            "moonshift:embedding_request_seconds_count",
            "moonshift:embedding_inputs_total",
            "moonshift:embedding_tokens_total",
            "moonshift:embedding_batches_total",
            "moonshift:embedding_batch_tokens_total",
        ]
        before = s.ask("/metrics")[1]
        assert all(f"{m} 0\n" in before for m in moved), before
        assert s.metric("moonshift:embedding_replicas_alive") == 1
        assert s.metric("moonshift:embedding_replicas_allowed") == 1
        s.embed(texts(50))
        assert s.ask("/rerank", {"query": "dog", "documents": ["a", "b"]})[0] == 200
        assert s.ask("/score", {"text_1": "dog", "text_2": "cat"})[0] == 200
        assert s.ask("/v1/embeddings", {"input": []})[0] == 400
        after = s.ask("/metrics")[1]
        assert not any(f"{m} 0\n" in after for m in moved), after
        assert s.metric("moonshift:embedding_inputs_total") == 50 + 3 + 2
        assert s.metric("moonshift:embedding_batches_total") > 3
        gauges = {"moonshift:embedding_inputs_waiting", "moonshift:embedding_inputs_running",
                  "moonshift:embedding_tokens_waiting"}  # fmt: skip
        body = {"input": texts(2048), "encoding_format": "base64"}
        threads = [threading.Thread(target=s.ask, args=("/v1/embeddings", body)) for _ in range(8)]
        for t in threads:
            t.start()
        seen = set()
        while any(t.is_alive() for t in threads):
            seen |= {g for g in gauges if s.metric(g) > 0}
        assert seen == gauges, seen
        assert all(s.metric(g) == 0 for g in gauges)
        assert s.metric("moonshift:embedding_failed_batches_total") == 0  # tests/unit/embedder.c fails some
        s.drain()


BESIDE = """
local said
return { api = 1, doc = "few replicas beside answers",
  params = { few = { default = 1, min = 1, max = 64, type = "integer" } },
  start = function() said = nil end,
  step = function(view, act, p)
    local e = view.embed()
    if e then
      local n = view.n_running + view.n_waiting > 0 and math.min(p.few, e.replicas) or e.replicas
      if n ~= said and act.embed { replicas = n } then said = n end
    end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g) b:decodes() b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }"""


def until(holds, what):
    end = time.time() + WAIT_S
    while not holds():
        assert time.time() < end, what
        time.sleep(0.01)


def a_policy_says_how_many_replicas_run():
    with Server("--embedding-replicas", "3", "--embedding-batch-tokens", "512", "--sim-step-us", "2000") as s:

        def encoder():
            return json.loads(s.ask("/admin/state")[1])["encoder"]

        def put(name, source):
            c = http.client.HTTPConnection("127.0.0.1", s.admin, timeout=WAIT_S)
            c.request("PUT", f"/admin/policies/{name}", source)
            r = c.getresponse()
            assert r.status == 200, r.read()
            c.close()

        assert encoder()["allowed"] == 3 and encoder()["route"] == "least_loaded"
        want = s.embed(texts(300))
        put("beside", BESIDE)
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
        writers = [threading.Thread(target=s.ask, args=("/v1/completions", body)) for _ in range(2)]
        for t in writers:
            t.start()
        until(lambda: encoder()["allowed"] == 1, "the encoder steps back")
        assert s.metric("moonshift:embedding_replicas_allowed") == 1
        vectors = []
        readers = [threading.Thread(target=lambda: vectors.append(s.embed(texts(300)))) for _ in range(4)]
        for t in readers:
            t.start()
        while any(t.is_alive() for t in readers) and any(t.is_alive() for t in writers):
            assert encoder()["allowed"] == 1
        for t in readers + writers:
            t.join(WAIT_S)
        assert vectors == [want] * 4, "a vector depends on the rule"
        until(lambda: encoder()["allowed"] == 3, "all run when nobody writes")
        assert s.ask("/admin/policy", method="GET")[0] == 200
        strikes = json.loads(s.ask("/admin/policy", method="GET")[1])["strikes"]
        assert strikes == 0, strikes
        put("lengths", BESIDE.replace("{ replicas = n }", "{ route = 'by_length', short = 64, short_replicas = 1 }"))
        assert s.ask("/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 200
        until(lambda: encoder()["route"] == "by_length", "a rule by length")
        assert encoder()["for_short"] == 1 and encoder()["allowed"] == 3
        assert s.embed(texts(300)) == want
        assert s.ask("/admin/policy/rollback", {})[0] == 200
        until(lambda: encoder()["route"] == "least_loaded", "its word ends with it")
        s.drain()


def keys_are_wanted():
    with Server("--api-key", "sk-one=blue") as s:
        for path in ("/v1/embeddings", "/rerank", "/v1/score"):
            assert s.ask(path, {"input": "a"})[0] == 401
        assert s.ask("/v1/embeddings", {"input": "a"}, "sk-one")[0] == 200
        s.drain()


def a_loaded_machine_loses_no_answer_of_either_kind():
    """Generation beside embeddings, large requests beside small ones, over more replicas than cores."""
    with Server("--embedding-replicas", "3", "--embedding-batch-tokens", "600", "--sim-step-us", "200") as s:
        want = {i: s.embed(texts(1 + 37 * i % 150, i)) for i in range(12)}
        wrong, n = [], [0, 0]

        def vectors(me):
            for k in range(20 // SLOW):
                i = (me + k) % 12
                if s.embed(texts(1 + 37 * i % 150, i)) != want[i]:
                    wrong.append(f"vectors of {i}")
                n[0] += 1

        def words(me):
            for k in range(20 // SLOW):
                status, text = s.ask("/v1/completions", {"prompt": f"{me} {k}", "max_tokens": 20, "ignore_eos": True})
                if status != 200 or json.loads(text)["usage"]["completion_tokens"] != 20:
                    wrong.append(text)
                n[1] += 1

        threads = [threading.Thread(target=f, args=(i,)) for i in range(8) for f in (vectors, words)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(WAIT_S)
        assert not wrong, wrong[:3]
        assert n == [8 * (20 // SLOW)] * 2, n
        s.drain()


def a_full_queue_says_when_to_come_again():
    with Server("--embedding-queued-tokens", "2000", "--embedding-batch-tokens", "512") as s:
        statuses, waits = [], []

        def ask():
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
            c.request("POST", "/v1/embeddings", json.dumps({"input": texts(1000), "encoding_format": "base64"}))
            r = c.getresponse()
            r.read()
            statuses.append(r.status)
            if r.status == 503:
                waits.append(r.getheader("Retry-After"))

        for _ in range(20):
            threads = [threading.Thread(target=ask) for _ in range(12)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(WAIT_S)
            if 503 in statuses:
                break
        assert set(statuses) == {200, 503}, statuses
        assert set(waits) == {"1"}, waits
        s.embed(["still here"])
        s.drain()


def who_leaves_is_not_computed():
    with Server() as s:
        body = json.dumps({"input": texts(2048)}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        gone = 'moonshift:embedding_requests_total{route="embeddings",result="gone"}'
        for i in range(20):
            c = socket.create_connection(("127.0.0.1", s.port))
            c.sendall(head + body)
            time.sleep(0.002 * i)
            c.close()
        end = time.monotonic() + 60
        while s.metric("http_requests_in_progress") > 1 and time.monotonic() < end:
            time.sleep(0.02)
        left = s.metric(re.escape(gone))
        assert left > 0, s.ask("/metrics")[1]
        assert s.metric("moonshift:embedding_inputs_waiting") == 0
        assert len(s.embed(["still here"])) == 1
        s.drain()


def end_while_it_answers(s):
    body = {"input": texts(1500), "encoding_format": "base64"}
    statuses = []

    def ask():
        try:
            statuses.append(s.ask("/v1/embeddings", body)[0])
        except ConnectionError:
            statuses.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for t in threads:
        t.start()
    while not s.metric("moonshift:embedding_inputs_running") and any(t.is_alive() for t in threads):
        time.sleep(0.001)
    assert json.loads(s.ask("/load")[1])["server_load"] > 0 or 200 in statuses
    s.drain()
    for t in threads:
        t.join(WAIT_S)
    # who came before the signal is answered; a connection that was opened after it is refused
    assert 200 in statuses and set(statuses) <= {200, 503, "refused"} and len(statuses) == 6, statuses


def the_end_answers_who_is_here():
    with Server() as s:
        end_while_it_answers(s)


def pairs_are_scored():
    with Server("--embedding-name", "judge", encoder="tests/data/encoder_pairs") as s:
        status, text = s.ask("/rerank", {"model": "judge", "query": "who", "documents": ["a", "b", "c"], "top_n": 2})
        results = json.loads(text)["results"]
        assert status == 200 and len(results) == 2, text
        assert 1 >= results[0]["relevance_score"] >= results[1]["relevance_score"] >= 0, text
        status, text = s.ask("/v1/embeddings", {"input": "a"})
        assert status == 400 and "cross-encoder" in text, text
        assert '"judge"' in s.ask("/v1/models")[1]
        s.drain()


def floats_are_the_bytes():
    with Server() as s:
        status, text = s.ask("/v1/embeddings", {"input": "the red river"})
        floats = json.loads(text)["data"][0]["embedding"]
        assert status == 200 and struct.pack(f"<{len(floats)}f", *floats) == s.embed(["the red river"])[0]
        s.drain()


ALONE = ["serve", "--device", "sim", "--port", "0"]


def an_encoder_alone_is_a_server():
    """The same vectors as beside a model; no policy, no engine; what wants text is told which model there is."""
    with Server() as s:
        want = s.embed(texts(20))
        s.drain()
    for words in ([*ALONE, "--embedding-model", "tests/data/encoder_sim"], [*ALONE, "tests/data/encoder_sim"]):
        with Server("--api-key", "k=blue", words=words) as s:
            status, text = s.ask("/v1/embeddings", {"input": texts(20), "encoding_format": "base64"}, "k")
            assert status == 200, text
            assert [base64.b64decode(d["embedding"]) for d in json.loads(text)["data"]] == want
            for body in ({"query": "dog", "documents": ["a", "b"]}, {"text_1": "dog", "text_2": "cat"}):
                assert s.ask("/rerank" if "query" in body else "/score", body, "k")[0] == 200
            models = json.loads(s.ask("/v1/models", key="k")[1])["data"]
            assert [m["id"] for m in models] == ["encoder_sim"] and models[0]["max_model_len"] == 512, models
            assert s.ask("/v1/models/encoder_sim", key="k")[0] == 200
            assert s.ask("/health")[0] == 200 and json.loads(s.ask("/load")[1]) == {"server_load": 0}
            assert s.metric("moonshift:embedding_inputs_total") == 20 + 3 + 2
            assert 'handler="/v1/embeddings"' in s.ask("/metrics")[1]
            writes = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
            writes += ["/v1/messages/count_tokens", "/tokenize", "/detokenize", "/tokenizer_info"]
            for path in writes:
                assert s.ask(path, None if path == "/tokenizer_info" else {})[0] == 401
                status, text = s.ask(path, None if path == "/tokenizer_info" else {}, "k")
                said = json.loads(text)["error"]["message"]
                assert status == 404 and f"does not support {path}:" in said and "'encoder_sim'" in said, text
            status, text = s.ask("/v1/audio/speech", {}, "k")
            assert status == 501 and "/v1/embeddings" in text and "completions" not in text, text
            state = json.loads(s.ask("/admin/state")[1])
            assert state["engine"] is None and state["front"]["exchanges"] == 1, state
            for method, path in (
                ("GET", "/admin/policy"),
                ("GET", "/admin/policies"),
                ("PUT", "/admin/policies/x"),
                ("POST", "/admin/policy/check"),
                ("PATCH", "/admin/policy/params"),
                ("POST", "/admin/policy/rollback"),
                ("POST", "/admin/reset_prefix_cache"),
                ("POST", "/admin/drafts/save"),
                ("POST", "/admin/drafts/load"),
            ):
                status, text = s.ask(path, {} if method != "GET" else None, method=method)
                assert status == 404 and "is an encoder" in text, (path, text)
            assert s.ask("/admin/nothing")[0] == 404 and s.ask("/admin/policy", {})[0] == 405
            assert s.ask("/admin/drain", {})[0] == 200
            assert s.p.wait(WAIT_S) == 0, "".join(s.log)
    with Server(words=[*ALONE, "tests/data/encoder_sim", "--served-model-name", "mini"]) as s:
        assert json.loads(s.ask("/v1/embeddings", {"input": "a", "model": "mini"})[1])["model"] == "mini"
        assert s.ask("/v1/embeddings", {"input": "a", "model": "encoder_sim"})[0] == 404
        end_while_it_answers(s)


def what_serve_refuses():
    def refused(words, *args):
        r = subprocess.run([BINARY, *args], capture_output=True, text=True, env=ENV, timeout=WAIT_S, check=False)
        assert r.returncode != 0 and words in r.stderr, r.stderr

    with tempfile.TemporaryDirectory() as decoder:
        for name, text in (("config.json", '{"architectures":["Gemma3ForCausalLM"]}'), ("modules.json", "[]")):
            with open(os.path.join(decoder, name), "w", encoding="utf-8") as f:
                f.write(text)
        for command in (["serve", decoder], ["run", decoder, "hello"], [*ALONE, "--embedding-model", decoder]):
            refused("Gemma3ForCausalLM is no encoder that is run here", *command)
    refused("there is one", *ALONE, "tests/data/encoder_sim", "--embedding-model", "tests/data/encoder_pairs")
    refused("--max-num-seqs is for a model that writes", *ALONE, "tests/data/encoder_sim", "--max-num-seqs", "4")
    refused("no/such/folder", *ALONE, "--embedding-model", "no/such/folder")
    refused("writes no text", "run", "tests/data/encoder_sim", "hello")
    refused("--embedding-model", *SERVE, "--embedding-model", "no/such/folder")
    refused("--embedding-name", *SERVE, "--embedding-replicas", "2", "--embedding-name", "x")
    refused("both called 'same'", *SERVE, "--embedding-model", "tests/data/encoder_sim", "--embedding-name", "same",
            "--served-model-name", "same")  # fmt: skip


cases.run([every_metric_moves, a_policy_says_how_many_replicas_run, keys_are_wanted,
           a_loaded_machine_loses_no_answer_of_either_kind,
           a_full_queue_says_when_to_come_again, who_leaves_is_not_computed, the_end_answers_who_is_here,
           pairs_are_scored, floats_are_the_bytes, an_encoder_alone_is_a_server, what_serve_refuses])  # fmt: skip
