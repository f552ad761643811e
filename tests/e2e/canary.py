"""A policy that decides for some groups beside the live one, from outside: the command that begins, shows and ends it,
the routes, the record and the metrics; what cannot be is refused; a failing rank; a recording is replayed exactly."""

import json
import os
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, "tests/rig")
import cases
from state_site import BINARY, ENV, FCFS, WAIT_S, Site, read_log, sha, variant, wait_for

HOME = {**ENV, "HOME": "/nonexistent", "XDG_CONFIG_HOME": ""}
RANKS = ("--hf-config", "tests/data/sim_ranks.json", "--ranks", "4", "--policy", "static:dp=4")
# It refuses whoever asks for priority 7; one of priority 4321 changes it.
PICKY = """local changed = false
return { api = 1, doc = "picky",
  admit = function(r, view, act)
    if r.priority == 7 then act.refuse(r.id, 429, 1, "no") end
    changed = changed or r.priority == 4321
  end,
  step = function(view, act)
    if changed then end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def run(site, *words):
    r = subprocess.run(
        [BINARY, "policy", "canary", *words, "--server", f"http://127.0.0.1:{site.port}"],
        capture_output=True,
        text=True,
        env=HOME,
        timeout=WAIT_S,
    )
    return r.returncode, r.stdout, r.stderr


def report(site):
    status, text = site.ask("GET", "/admin/canary")
    assert status == 200, text
    return json.loads(text)


def groups(site):
    """Their ids, once what the policy's start has ordered is carried out."""

    def four():
        status, text = site.ask("GET", "/admin/state")
        assert status == 200, text
        ids = [g["id"] for g in json.loads(text)["engine"]["groups"]]
        return ids if len(ids) == 4 else None

    return wait_for(four)


def traffic(site, n=24, **more):
    """n requests at once. How each ended: its status."""
    statuses = []

    def one(i):
        body = {"model": "m", "prompt": [5 + i] * 40, "max_tokens": 12, "ignore_eos": True, **more}
        status, text = site.ask("POST", "/v1/completions", json.dumps(body), port=site.public)
        assert status != 200 or json.loads(text)["usage"]["completion_tokens"] == 12, text
        statuses.append(status)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(statuses) == n, statuses
    return statuses


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def it_is_begun_shown_and_ended(folder):
    picky = write(folder, "picky.lua", PICKY)
    with Site(os.path.join(folder, "state"), *RANKS) as s:
        assert run(s) == (0, "no policy has been a canary since the start\n", "")
        code, _, err = run(s, "--end")
        assert code == 1 and "no canary runs" in err, err
        ids = groups(s)
        code, out, err = run(s, picky, "--groups", f"{ids[1]},{ids[3]}", "--for", "3600")
        begins = f"picky ({sha(PICKY)[:12]}) beside static, on groups {ids[1]}, {ids[3]} (50% of the ranks), for 0 s\n"
        assert code == 0 and out.startswith(begins), (out, err)
        page = subprocess.run(
            [BINARY, "state", "--server", f"http://127.0.0.1:{s.port}"], capture_output=True, text=True, env=HOME
        )
        assert page.stdout.count(", of the canary\n") == 2, page
        assert set(traffic(s, 8)) == {200} and "  too few to tell\n" in run(s)[1]
        assert set(traffic(s, 32)) == {200}
        statuses = traffic(s, 40, priority=7)
        refused = statuses.count(429)
        assert 15 < refused < 25 and statuses.count(200) == 40 - refused, statuses
        code, out, _ = run(s)
        assert code == 0 and "\nTTFT mean " in out and "\nrefused " in out, out
        assert "more than chance (p " in out[out.index("\nrefused") :].split("\n")[1], out
        r = json.loads(run(s, "--json")[1])
        assert set(r) == set(report(s)), r
        live, canary = r["sides"]["live"], r["sides"]["canary"]
        assert live["came"] == live["done"] == live["ended"] == 80 - canary["came"] and live["refused"] == 0, live
        assert 36 < canary["came"] == canary["ended"] < 44 and canary["refused"] == refused, canary
        assert live["output_tokens"] == 12 * live["done"] and canary["done"] == canary["came"] - refused, r["sides"]
        assert canary["output_tokens"] == 12 * canary["done"] and canary["ttft_ms"]["n"] == canary["done"], canary
        assert r["compared"]["refused"]["p"] < 0.001 and r["compared"]["errors"]["p"] == 1, r["compared"]
        assert r["calls"].keys() <= {"ok", "slow"} and r["fallbacks"] == 0, r
        assert s.live()[0] == "static"
        metrics = s.ask("GET", "/metrics", port=s.public)[1]
        assert "\npolicy_canary 1\n" in metrics, metrics
        assert f'\npolicy_canary_requests{{side="canary",ending="refused"}} {refused}\n' in metrics
        done, tokens = canary["done"], canary["output_tokens"]
        for line in (
            f'policy_canary_tokens{{side="canary"}} {tokens}',
            f'policy_canary_ttft_seconds_count{{side="canary"}} {done}',
            f'policy_canary_tpot_seconds_count{{side="canary"}} {done}',
            f'policy_canary_queue_seconds_count{{side="canary"}} {done}',
            'policy_canary_ttft_seconds{side="live",quantile="0.9"} 0.',
        ):
            assert "\n" + line in metrics, line
        code, out, _ = run(s, "--end")
        assert code == 0 and ": an operator has ended it\n" in out, out
        assert report(s)["state"] == "ended"
        assert set(traffic(s, 8, priority=7)) == {200}
        wait_for(lambda: read_log(os.path.join(folder, "state"))[-1]["event"] == "canary-end")
        s.end()
    log = read_log(os.path.join(folder, "state"))
    kinds = [(e["event"], e["actor"], e["policy"], e["to"]) for e in log]
    mine = ("picky", sha(PICKY))
    assert kinds[-3:] == [("load", "open", *mine), ("canary", "open", *mine), ("canary-end", "engine", *mine)], kinds
    assert log[-2]["reason"] == f"groups {ids[1]},{ids[3]}", log[-2]
    assert f"ended, {refused} of them with an error or refused; of the live policy's" in log[-1]["reason"], log[-1]


def what_was_a_canary_can_go_live(folder):
    with Site(os.path.join(folder, "state"), *RANKS) as s:
        assert s.ask("PUT", "/admin/policies/mine?activate=0", variant(1))[0] == 200
        assert run(s, "mine", "--sha", sha(variant(1))[:8], "--groups", str(groups(s)[0]))[0] == 0
        assert set(traffic(s)) == {200}
        assert s.ask("POST", "/admin/policies/mine/activate")[0] == 200
        assert report(s)["why_ended"] == "it goes live for all groups", report(s)
        assert s.live() == ("mine", sha(variant(1)))
        assert set(traffic(s)) == {200}
        s.end()


def what_cannot_be_is_refused(folder):
    bad = write(folder, "bad.lua", "return {")
    with Site(None, *RANKS) as s:
        ids = groups(s)
        for words, status, says in (
            ((bad, "--groups", str(ids[0])), 1, "bad.lua:1:"),
            (("nothing", "--groups", str(ids[0])), 1, "no version of"),
            ((bad,), 2, "--groups ID,ID"),
            (("--groups", str(ids[0])), 2, "goes with a policy"),
            ((bad, "--end"), 2, "which of them?"),
        ):
            code, _, err = run(s, *words)
            assert code == status and says in err, (words, code, err)
        for query, status, code, says in (
            ("", 400, "invalid_value", "the ids of the groups"),
            ("?groups=", 400, "invalid_value", "the ids of the groups"),
            ("?groups=1,", 400, "invalid_value", "the ids of the groups"),
            ("?groups=1,x", 400, "invalid_value", "the ids of the groups"),
            (f"?groups={ids[0]}&seconds=0", 400, "invalid_value", "seconds"),
            ("?groups=2", 400, "policy_start_failed", "there is no group 2"),
            (f"?groups={ids[0]},{ids[0]}", 400, "policy_start_failed", "is named twice"),
            ("?groups=" + ",".join(map(str, ids)), 400, "policy_start_failed", "keeps a group at least"),
        ):
            got, text = s.ask("POST", "/admin/policies/a/canary" + query, FCFS)
            error = json.loads(text)["error"]
            assert got == status and error["code"] == code and says in text, (query, got, text)
            assert ".lua:" not in error["message"], error  # it is no line of the policy that is wrong
        assert report(s) == {"state": "none"}
        s.end()


def one_that_loops_ends_and_nobody_notices(folder):
    loops = PICKY.replace("if changed then end", "while changed do end")
    with Site(os.path.join(folder, "state"), *RANKS) as s:
        status, text = s.ask("POST", f"/admin/policies/loops/canary?groups={groups(s)[2]},{groups(s)[3]}", loops)
        assert status == 200, text
        assert set(traffic(s)) == {200} and report(s)["state"] == "on"
        assert set(traffic(s, 8, priority=4321)) == {200}
        wait_for(lambda: report(s)["state"] == "ended")
        assert report(s)["why_ended"].startswith("its call was cut off"), report(s)
        assert s.live()[0] == "static" and set(traffic(s)) == {200}
        s.end()


def a_recording_is_replayed_exactly(folder):
    """The order, the policy, what both decided, and each way to end: by an order, by errors, by its time."""
    path, here = os.path.join(folder, "it.rec"), os.path.join(folder, "policies")
    shutil.copytree("policies", here)
    policies = {"picky": PICKY, "fails": PICKY.replace("if changed then end", "if changed then error('no') end")}
    with Site(None, *RANKS, "--record", path) as s:
        ids = groups(s)
        for i, (name, text) in enumerate(policies.items()):
            write(here, f"{name}.lua", text)
            status, told = s.ask("POST", f"/admin/policies/{name}/canary?groups={ids[i]},{ids[3]}", text)
            assert status == 200, told
            traffic(s, 60)
            traffic(s, 8, priority=7)
            traffic(s, 8, priority=4321)
            if name == "picky":
                assert s.ask("DELETE", "/admin/canary")[0] == 200
            else:
                wait_for(lambda: report(s)["state"] == "ended")
                assert report(s)["why_ended"].startswith("too many strikes"), report(s)
            traffic(s, 8)
        assert s.ask("POST", f"/admin/policies/picky/canary?groups={ids[2]}&seconds=1", PICKY)[0] == 200
        traffic(s, 8)
        wait_for(lambda: report(s)["why_ended"] == "its time is up")
        assert s.ask("POST", f"/admin/policies/picky/canary?groups={ids[2]}", PICKY)[0] == 200
        traffic(s, 8, priority=7)
        s.end()
    words = [BINARY, "simulate", "--trace", path, "--policy-dir", here]
    r = subprocess.run(words, capture_output=True, text=True, env=HOME, timeout=WAIT_S)
    assert r.returncode == 0 and ", all equal to the recording\n" in r.stdout, (r.stdout, r.stderr)
    lines = open(path).read().split("\n")
    kinds = [x[0] for x in lines if x]
    assert kinds.count("y") == 4 and kinds.count("u") == 1, kinds
    at = next(i for i, x in enumerate(lines) if x.startswith("y "))
    changed = os.path.join(folder, "changed.rec")
    with open(changed, "w") as f:
        f.write("\n".join([*lines[:at], *lines[at + 1 :]]))  # without it other things would have been decided
    r = subprocess.run([*words[:3], changed, *words[4:]], capture_output=True, text=True, env=HOME, timeout=WAIT_S)
    assert r.returncode != 0 and "decision " in r.stdout + r.stderr, (r.stdout, r.stderr)


if __name__ == "__main__":
    cases.run(
        [
            it_is_begun_shown_and_ended,
            what_was_a_canary_can_go_live,
            what_cannot_be_is_refused,
            one_that_loops_ends_and_nobody_notices,
            a_recording_is_replayed_exactly,
        ],
        in_folder=True,
    )
