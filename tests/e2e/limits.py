"""Limits of a running server: shown, set and refused by HTTP and by `moonshift limits`; what follows from them at the
front and in the engine; who set them is on the record."""

import http.client
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, "tests/rig")
import cases
import file_site
from serving import Server

HOME = {**file_site.ENV, "HOME": "/nonexistent", "XDG_CONFIG_HOME": ""}
WAIT_S = 60
SLOW = ["--sim-step-us", "20000"]
JSON = {"Content-Type": "application/json"}


def limits(s, *words):
    at = ["--server", f"http://127.0.0.1:{s.admin}"]
    r = subprocess.run(
        [file_site.BINARY, "limits", *at, *words], capture_output=True, text=True, env=HOME, timeout=WAIT_S
    )
    return r.returncode, r.stdout, r.stderr


def patch(s, body, **more):
    r, text = s.ask("PATCH", "/admin/limits", body if isinstance(body, str) else json.dumps(body), **more)
    return r.status, json.loads(text)


def shown(s):
    return json.loads(s.ask("GET", "/admin/limits")[1])


def state(s):
    return json.loads(s.ask("GET", "/admin/state")[1])["engine"]


def wait(ready):
    end = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def post(s):
    body = json.dumps({"model": "m", "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True})
    return s.ask("POST", "/v1/completions", body, port=s.port, **JSON)[0].status


def start(s):
    """A request that goes on until its connection is closed, more or less."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True, "stream": True}
    c.request("POST", "/v1/completions", json.dumps(body), JSON)
    return c


def they_are_shown_set_and_refused(folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f:
        f.write("sesame alice\n")
    with Server("--admin-key-file", keys, "--max-num-seqs", "8", policy="fcfs") as s:
        before = shown(s)
        assert before["limits"] == before["start"] and before["limits"]["max_num_seqs"] == 8, before
        assert before["ranges"]["max_num_batched_tokens"] == {"least": 1, "most": 2048}, before
        assert s.ask("PATCH", "/admin/limits", '{"max_num_seqs": 4}', key="wrong")[0].status == 401
        status, answer = patch(s, {"max_num_seqs": 4, "max_park_seconds": 2.5})
        assert status == 200 and answer["changed"] == "max_num_seqs 8 -> 4, max_park_seconds 10 -> 2.5", answer
        assert answer["limits"] == {**before["limits"], "max_num_seqs": 4, "max_park_seconds": 2.5}
        for body, says in (
            ("", "where a value should be"),
            ("[]", "must be an object"),
            ({}, "must be an object"),
            ({"max_num_seqs": 0}, "max_num_seqs: a whole number from 1 to 4096"),
            ({"max_num_seqs": 2, "max_num_batched_tokens": 4096}, "restart it with --max-num-batched-tokens 4096"),
            ({"max_num_seqs": 2, "max_model_len": 5}, "there is no limit 'max_model_len'"),
            ({"starvation_seconds": -1}, "starvation_seconds: seconds from 0"),
        ):
            status, e = patch(s, body)
            assert status == 400 and says in e["error"]["message"], (body, e)
        assert shown(s)["limits"] == answer["limits"]
        at = ("--admin-key-file", keys)
        assert limits(s, *at, "--set", "max-num-queued-reqs=2k", "--set", "starvation-seconds=0.5") == (
            0,
            "max_num_queued_reqs 1024 -> 2000, starvation_seconds 30 -> 0.5\n",
            "",
        )
        code, out, _ = limits(s, *at)
        assert code == 0 and "max_num_queued_reqs               2000          1024  0 .. 65536\n" in out, out
        code, out, _ = limits(s, *at, "--json")
        assert code == 0 and json.loads(out) == shown(s)
        for words, status, says in (
            (("--set", "max-num-batched-tokens=4096", *at), 1, "--max-num-batched-tokens 4096"),
            (("--set", "max-num-seqs", *at), 2, "NAME=VALUE"),
            (("--set", "max-num-seqs=many", *at), 2, "a whole number, like 64 or 2k"),
            (("--set", "park=1", *at), 1, "there is no limit 'park'"),
            (("--set", "starvation-seconds=x", *at), 2, "seconds, like 2.5"),
            (("8", *at), 2, "a word too many"),
            ((), 1, "admin key"),
        ):
            code, out, err = limits(s, *words)
            assert code == status and says in err and not out, (words, code, out, err)
        lines = [json.loads(x) for x in s.ask("GET", "/admin/audit")[1].decode().splitlines()]
        mine = [(x["actor"], x["result"], x["reason"]) for x in lines if x["event"] == "limits"]
        assert mine[0] == ("key:alice", "ok", "max_num_seqs 8 -> 4, max_park_seconds 10 -> 2.5"), mine
        assert [x[1] for x in mine] == ["ok", "refused", "ok", "refused"], mine


def they_are_the_engines_and_the_fronts(_):
    with Server(*SLOW, "--max-num-seqs", "4", "--max-num-queued-reqs", "50", policy="fcfs") as s:
        assert patch(s, {"max_num_seqs": 1, "max_num_queued_reqs": 2})[0] == 200
        open_ones = [start(s)]
        wait(lambda: state(s)["n_running"] == 1)
        open_ones += [start(s) for _ in range(2)]
        wait(lambda: (state(s)["n_running"], state(s)["n_waiting"]) == (1, 2))
        assert post(s) == 503  # one runs and two wait: that is all there may be
        assert patch(s, {"max_num_seqs": 3, "max_num_queued_reqs": 3})[0] == 200
        wait(lambda: state(s)["n_running"] == 3)
        open_ones += [start(s) for _ in range(2)]
        wait(lambda: state(s)["n_waiting"] == 2)
        assert patch(s, {"max_num_seqs": 1, "max_num_batched_tokens": 2})[0] == 200
        wait(lambda: sum(r["output"] > 5 for r in state(s)["running"]) >= 2)
        assert (state(s)["n_running"], state(s)["n_waiting"]) == (3, 2)  # nobody is thrown out, and nobody begins
        for c in open_ones[:3]:
            c.close()
        wait(lambda: (state(s)["n_running"], state(s)["n_waiting"]) == (1, 1))
        for c in open_ones[3:]:
            c.close()
        wait(lambda: state(s)["requests"]["live"] == 0)
        assert patch(s, {"max_num_queued_reqs": 0})[0] == 200 and post(s) == 200
        e = state(s)
        assert e["conserved"] and e["totals"]["preemptions"] == 0, e
        assert e["limits"]["max_num_seqs"] == 1 and e["limits_at_start"]["max_num_seqs"] == 4


cases.run([they_are_shown_set_and_refused, they_are_the_engines_and_the_fronts], in_folder=True)
