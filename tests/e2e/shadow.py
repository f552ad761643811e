"""A policy beside the live one, from outside: the command that begins, shows and ends it, the routes, the record, the
events and the metrics; what is sent is kept and can go live; what cannot be is refused; clients notice nothing."""

import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, "tests/rig")
import cases
from state_site import BINARY, ENV, FCFS, WAIT_S, Site, read_log, sha, variant, wait_for

HOME = {**ENV, "HOME": "/nonexistent", "XDG_CONFIG_HOME": ""}
# It would run nothing while several wait, and refuses whoever asks for priority 7.
LAZY = """return { api = 1, doc = "lazy",
  admit = function(r, view, act) if r.priority == 7 then act.refuse(r.id, 429, 1, "no") end end,
  step = function(view, act)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      if view.waiting.n < 2 then b:prefill(view.waiting) end
      if b.tokens > 0 then act.forward(g, b) end
    end
    act.wake(20)
  end }
"""


def run(site, *words):
    r = subprocess.run(
        [BINARY, "policy", "shadow", *words, "--server", f"http://127.0.0.1:{site.port}"],
        capture_output=True,
        text=True,
        env=HOME,
        timeout=WAIT_S,
    )
    return r.returncode, r.stdout, r.stderr


def report(site):
    status, text = site.ask("GET", "/admin/shadow")
    assert status == 200, text
    return json.loads(text)


def traffic(site, n=24, **more):
    """n requests at once, most of which have to wait; all are answered whole."""
    wrong = []

    def one(i):
        body = {"model": "m", "prompt": [5 + i] * 40, "max_tokens": 12, "ignore_eos": True, **more}
        status, text = site.ask("POST", "/v1/completions", json.dumps(body), port=site.public)
        if status != 200 or json.loads(text)["usage"]["completion_tokens"] != 12:
            wrong.append((status, text))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def it_is_begun_shown_and_ended(folder):
    lazy = write(folder, "lazy.lua", LAZY)
    with Site(os.path.join(folder, "state"), "--max-num-seqs", "4") as s:
        assert run(s) == (0, "no policy was asked beside the live one\n", "")
        code, _, err = run(s, "--end")
        assert code == 1 and "no policy decides beside the live one" in err, err
        code, out, err = run(s, lazy, "--for", "3600")
        assert code == 0 and out.startswith(f"lazy ({sha(LAZY)[:12]}) beside fcfs, for 0 s\n"), (out, err)
        traffic(s)
        traffic(s, 4, priority=7)
        code, out, _ = run(s)
        assert code == 0 and "another request first in the queue at 0" in out, out
        assert "\n  shadow: group 1: " in out and " passed over; " in out, out
        r = json.loads(run(s, "--json")[1])
        assert r == {**report(s), "ran_s": r["ran_s"], "left_s": r["left_s"], "share": r["share"]}, r
        d, b, a = r["decisions"], r["batches"], r["arrivals"]
        assert d["compared"] > 20 and 0 < d["equal"] < d["compared"], d
        assert b["other_requests"] + b["live"] > 0 and b["equal"] > 0, b
        assert a["n"] == 28 and a["alike"] == 24 and a["refused"] == {"both": 0, "live": 0, "shadow": 4}, a
        assert r["verbs"]["start"]["live"] >= 5 and r["calls"].keys() <= {"ok", "slow"}, r
        assert s.live() == ("fcfs", sha(FCFS))
        metrics = s.ask("GET", "/metrics", port=s.public)[1]
        assert "\npolicy_shadow 1\n" in metrics and '\npolicy_shadow_decisions{outcome="equal"} ' in metrics
        code, out, _ = run(s, "--end")
        assert code == 0 and ": an operator has ended it\n" in out, out
        assert report(s)["state"] == "ended"
        wait_for(lambda: read_log(os.path.join(folder, "state"))[-1]["event"] == "shadow-end")
        s.end()
    log = read_log(os.path.join(folder, "state"))
    kinds = [(e["event"], e["actor"], e["policy"], e["to"]) for e in log]
    mine = ("lazy", sha(LAZY))
    assert kinds[-3:] == [("load", "open", *mine), ("shadow", "open", *mine), ("shadow-end", "engine", *mine)], kinds
    assert "an operator has ended it; of " in log[-1]["reason"] and log[-2]["from"] == sha(FCFS), log[-2:]


def a_recording_is_what_it_is_without(folder):
    """What is recorded beside a policy that would do other things is decided again without it."""
    path = os.path.join(folder, "it.rec")
    with Site(None, "--max-num-seqs", "4", "--record", path) as s:
        traffic(s)
        assert s.ask("POST", "/admin/policies/lazy/shadow", LAZY)[0] == 200
        traffic(s)
        traffic(s, 4, priority=7)
        assert report(s)["decisions"]["compared"] > 20
        s.end()
    r = subprocess.run([BINARY, "simulate", "--trace", path], capture_output=True, text=True, env=HOME, timeout=WAIT_S)
    assert r.returncode == 0 and ", all equal to the recording\n" in r.stdout, (r.stdout, r.stderr)


def what_was_beside_can_go_live(folder):
    with Site(os.path.join(folder, "state")) as s:
        assert s.ask("PUT", "/admin/policies/mine?activate=0", variant(1))[0] == 200
        assert run(s, "mine", "--sha", sha(variant(1))[:8])[0] == 0
        traffic(s)
        r = report(s)
        assert r["decisions"]["equal"] == r["decisions"]["compared"] > 5, r
        assert s.ask("PUT", "/admin/policies/third", variant(3))[0] == 200  # it goes on beside another one
        traffic(s)
        assert report(s)["state"] == "on"
        assert s.ask("POST", "/admin/policies/mine/activate")[0] == 200
        wait_for(lambda: report(s)["why_ended"] == "it is the live policy now")
        assert s.live() == ("mine", sha(variant(1)))
        s.end()


def what_cannot_be_is_refused(folder):
    bad = write(folder, "bad.lua", "return {")
    with Site(None) as s:
        for words, status, says in (
            ((bad,), 1, "bad.lua:1:"),
            (("nothing",), 1, "no version of"),
            ((bad, "--sha", "0" * 8), 2, "not of a file"),
            ((bad, "--end"), 2, "which of them?"),
            (("./none.lua",), 2, "none.lua"),
            (("fcfs", "--for", "0"), 2, "--for"),
        ):
            code, _, err = run(s, *words)
            assert code == status and says in err, (words, code, err)
        for path, body, status, code in (
            ("/admin/policies/a/shadow?seconds=0", FCFS, 400, "invalid_value"),
            ("/admin/policies/a/shadow?seconds=x", FCFS, 400, "invalid_value"),
            ("/admin/policies/a/shadow?seconds=1e9", FCFS, 400, "invalid_value"),
            ("/admin/policies/a/shadow?sha=00000000", FCFS, 400, "invalid_sha"),
            ("/admin/policies/a/shadow", "return { api = 1, step = function() x() end }", 400, "policy_refused"),
            ("/admin/policies/../shadow", FCFS, 400, "invalid_name"),
        ):
            got, text = s.ask("POST", path, body)
            assert got == status and json.loads(text)["error"]["code"] == code, (path, got, text)
        assert report(s) == {"state": "none"}
        s.end()


def one_whose_calls_fail_ends(folder):
    fails = LAZY.replace('act.refuse(r.id, 429, 1, "no")', 'error("no")')
    with Site(os.path.join(folder, "state")) as s:
        status, text = s.ask("POST", "/admin/policies/fails/shadow", fails)
        assert status == 200, text
        traffic(s, 4, priority=7)
        wait_for(lambda: report(s)["state"] == "ended")
        assert report(s)["why_ended"].startswith("its calls fail: admit: error: fails.lua:2: no"), report(s)
        assert s.live()[0] == "fcfs"
        status, text = s.ask("PUT", "/admin/policies/fails", fails)  # a shadow's failures put nothing into quarantine
        assert status in (200, 400) and "quarantine" not in text, text
        s.end()


if __name__ == "__main__":
    cases.run(
        [
            it_is_begun_shown_and_ended,
            a_recording_is_what_it_is_without,
            what_was_beside_can_go_live,
            what_cannot_be_is_refused,
            one_whose_calls_fail_ends,
        ],
        in_folder=True,
    )
