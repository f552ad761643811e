"""--profile: a table of the steps by op whose rows add up, at the end of run, batch and serve; the same as JSON on the
admin listener; the same answers with it and without, in any layout; machines without it refuse by name."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, "tests/rig")
import cases
import file_site

MODEL = ["--load-format", "dummy", "--hf-config", "tests/data/layout_gqa.json", "--kv-cache-memory-bytes", "64MiB"]
with open("tests/data/layout_gqa.json", encoding="utf-8") as f:
    LAYERS = json.load(f)["num_hidden_layers"]
LAYER = {"qkv", "attention output", "gate|up", "down", "rope", "kv write", "attention"}
OPS = LAYER | {"prepare", "embed", "head", "gather", "sample", "rest", "total"}


def tables(text):
    """By kind of steps: how many steps and rows there were, and by op: calls, ms."""
    found, kind = {}, None
    for line in text.splitlines():
        line = line.split("[profile] ")[-1]  # of a log
        if m := re.match(r"Steps of (\S+) rows?: (\d+) \((\d+) rows\), [\d.]+ ms, and [\d.]+ ms before them$", line):
            kind = found[m[1]] = (int(m[2]), int(m[3]), {})
        elif kind and (m := re.match(r"([a-z| ]+?) +(\d+) +([\d.]+) +[\d.]+% ", line)):
            kind[2][m[1]] = (int(m[2]), float(m[3]))
    return found


def adds_up(kind, steps):
    n, _, rows = kind
    assert n == steps and set(rows) == OPS, (n, sorted(rows))
    assert all(rows[op][0] == LAYERS * steps for op in LAYER), rows
    assert all(rows[op][0] == steps for op in ("prepare", "embed", "head", "sample", "rest")), rows
    parts = sum(ms for op, (_, ms) in rows.items() if op != "total")
    assert abs(parts - rows["total"][1]) <= 0.01 * len(rows), (parts, rows)  # as they are rounded


def call(command, *more):
    p = subprocess.run(
        [file_site.BINARY, command, *MODEL, *more], capture_output=True, text=True, timeout=60, env=file_site.ENV
    )
    return p.returncode, p.stdout, p.stderr


def ask(port, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST" if body else "GET", path, body and json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, json.loads(r.read())


def answer(port, prompt):
    body = {"model": "m", "prompt": prompt, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    status, it = ask(port, "/v1/completions", body)
    assert status == 200, it
    return it["choices"][0]["text"], it["choices"][0]["logprobs"]["token_logprobs"]


def serve(*flags):
    """Some answers, what the admin route said then, and the whole log."""
    command = file_site.command(None, "--admin-listen", "127.0.0.1:0", *flags)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=file_site.ENV) as p:
        try:
            log, doors = "", {}
            while len(doors) < 2:
                line = p.stderr.readline()
                assert line, log
                log += line
                if m := re.search(r"(on http|Admin routes on port).*\b(\d+)$", line):
                    doors[m[1]] = int(m[2])
            front, admin = doors["on http"], doors["Admin routes on port"]
            said = [answer(front, "The tide turned. " * n) for n in (1, 3, 1)]
            told = ask(admin, "/admin/profile")
            p.send_signal(signal.SIGTERM)
            log += p.stderr.read()
            assert p.wait(60) == 0, log
        finally:
            p.kill()
    return said, told, log


def run_prints_a_table_that_adds_up(_):
    words = ["--raw", "-t", "2", "--max-tokens", "6", "--temperature", "0", "The tide turned, and turned again."]
    plain, watched = call("run", *words), call("run", *words, "--profile")
    assert plain[0] == watched[0] == 0 and plain[1] == watched[1], (plain, watched)
    assert "Profile by op" not in plain[2], plain[2]
    assert "Profile by op; ranks: 1, threads: 2; peaks of a rank: " in watched[2], watched[2]
    kinds = tables(watched[2])
    assert set(kinds) == {"1", "17+"}, watched[2]
    adds_up(kinds["17+"], 1)
    adds_up(kinds["1"], 5)


def batch_prints_it_too(folder):
    lines, out = os.path.join(folder, "lines"), os.path.join(folder, "out")
    body = {"model": "m", "prompt": "The tide turned, and turned again.", "max_tokens": 4, "ignore_eos": True}
    with open(lines, "w", encoding="utf-8") as f:
        f.write(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
    code, _, err = call("batch", "--served-model-name", "m", "-i", lines, "-o", out, "--profile")
    assert code == 0, err
    adds_up(tables(err)["1"], 3)


def a_server_tells_it_and_answers_the_same(_):
    plain, told, log = serve()
    assert told[0] == 400 and "start the server with --profile" in told[1]["error"]["message"], told
    assert "[profile]" not in log, log
    said, (status, it), log = serve("--profile")
    assert said == plain and status == 200, (said, plain, it)
    kinds = tables(log)
    for s in it["steps"]:
        rows = {r["op"]: r for r in s["ops"]}
        assert s["ns"] == rows["total"]["ns"] == sum(r["ns"] for op, r in rows.items() if op != "total"), s
        assert rows["rest"]["ns"] >= 0 and all(r["wait_ns"] <= r["pool_ns"] <= r["ns"] for r in rows.values()), s
        if s["steps"]:
            assert kinds[s["rows_a_step"]][0] == s["steps"], (s, log)
            adds_up(kinds[s["rows_a_step"]], s["steps"])
    assert it["ranks"] == 1 and it["peaks"]["bytes_s"] > 0, it


def layouts_and_their_meetings(_):
    plain = serve()[0]
    for layout in (["-tp", "2"], ["-sp", "2"], ["-pp", "2"]):
        said, (_, it), log = serve("--profile", *layout)
        assert said == plain, (layout, said, plain)
        assert it["ranks"] == 2, it
        ops = set(tables(log)["1"][2])
        assert ("reduce" in ops) == (layout[0] != "-pp") and "exchange" in ops, (layout, ops)


def who_cannot_says_so(_):
    for command, more in (("run", ["words"]), ("serve", ["--port", "0"])):
        code, out, err = call(command, "--device", "sim", "--profile", *more)
        says = "--profile: --device sim keeps no profile of its ops; it is for --device cpu"
        assert code and says in err and not out, (code, out, err)


cases.run(
    [
        run_prints_a_table_that_adds_up,
        batch_prints_it_too,
        a_server_tells_it_and_answers_the_same,
        layouts_and_their_meetings,
        who_cannot_says_so,
    ],
    in_folder=True,
)
