"""Looking back into recordings: `policy step` shows a decision with the facts, the log and the lines that ran as the
policy itself says they were, and `policy why --recording` answers what the live server did, for every request. A policy
that is not here, a decision that there is not, one of the native policy and a recording that was changed are told."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, "tests/rig")
import cases
from file_site import BINARY, ENV
from serving import Server

CLIENTS, EACH = 6, 4
FEW = ["--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--sim-step-us", "500"]
# It says itself what it sees and how often its lines run. Every fifth call fails.
TELLS = """return {
  api = 1,
  lib = { "count" },
  needs = { "waiting.prompt", "running.output" },
  params = { fail = { default = 1e6, min = 1, type = "integer" } },
  step = function(view, act, p)
    local rounds, odd = 0, 0
    for i = 1, view.waiting.n do
      rounds = rounds + lib.count.one(i) -- each
      if i % 2 == 1 then
        odd = odd + 1 -- odd
      end
    end
    log(string.format("%.9f %d %d %d", view.now, view.step, rounds, odd))
    if view.waiting.n > 0 then log(string.format("first %d", view.waiting.prompt[view.row(view.waiting, 1)])) end
    for i = 1, view.running.n do log(string.format("output %d", view.running.output[i])) end
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting)
      if view.step % p.fail == 0 then error("every fifth") end
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
  finish = function()
    return 1 -- no line of step
  end,
}
"""
COUNT = """local count = {}
function count.one(i)
  return 1 -- of a library
end
function count.never()
  return 0
end
return count
"""


class Recorded:
    """A server was recorded in this folder, and asked about its requests while it lived."""

    def __init__(self, folder, policy, *more, params=None):
        self.path, self.answers, names = f"{folder}/{os.path.basename(policy)}.rec", {}, []
        with Server("--record", self.path, *FEW, *more, policy=policy) as server:
            if params:
                assert server.ask("PATCH", "/admin/policy/params", json.dumps(params))[0].status == 200

            def client(k):
                for i in range(EACH):
                    body = {"model": "m", "prompt": [5] * (20 + 37 * (i * 7 + k) % 200), "max_tokens": 6}
                    body |= {"ignore_eos": True, "n": 2 if i == 1 else 1}
                    headers = {"Content-Type": "application/json", "X-Request-Id": f"load-{k}-{i}"}
                    r, text = server.ask("POST", "/v1/completions", json.dumps(body), port=server.port, **headers)
                    assert r.status == 200, text
                    names.append(f"load-{k}-{i}")

            threads = [threading.Thread(target=client, args=(k,)) for k in range(CLIENTS)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for name in names:
                self.answers[name] = json.loads(server.ask("GET", "/admin/requests/" + name)[1])
            self.slowest = json.loads(server.ask("GET", "/admin/requests?slowest=7")[1])
            server.p.terminate()
            assert server.p.wait(60) == 0
        self.decisions = sum(line.startswith("q ") for line in open(self.path))
        assert len(names) == CLIENTS * EACH and self.decisions > 20


def run(*words, status=0):
    p = subprocess.run([BINARY, "policy", *words], capture_output=True, text=True, timeout=300, env=ENV)
    assert p.returncode == status, (words, p.returncode, p.stdout, p.stderr)
    return p.stdout if status == 0 else p.stderr


def step(rec, n, *more):
    """n: a number, or None: it is chosen by what follows."""
    return json.loads(run("step", *([str(n)] if n else []), "--recording", rec.path, "--json", *more))


def telling(folder):
    os.makedirs(f"{folder}/lib", exist_ok=True)
    for path, text in ((f"{folder}/tells.lua", TELLS), (f"{folder}/lib/count.lua", COUNT)):
        with open(path, "w") as f:
            f.write(text)
    return f"{folder}/tells.lua"


def counts(source):
    """By the comment behind a line: how often it ran; None: nothing is said of it."""
    lines = [(line["text"], line.get("count")) for line in source["lines"]]
    return {text.split("-- ")[1]: n for text, n in lines if "-- " in text}


def check_step(found, n):
    """What is shown is what the policy has logged of itself."""
    call, view, plan = found["call"], found["call"]["view"], found["plan"]
    now, number, rounds, odd = call["log"][0].split()
    assert found["decision"] == n == view["step"] == int(number) == found["decided"]["step"], found
    assert abs(view["now"] - float(now)) < 1e-6, (view, now)
    waiting, running = view["waiting"], view["running"]
    assert waiting["n"] == view["n_waiting"] == int(rounds) == len(waiting["rows"]), (view, call["log"])
    firsts = [f"first {row['prompt']}" for row in waiting["rows"][:1]]
    by_row = sorted(running["rows"], key=lambda r: r["row"])
    assert call["log"][1:] == (firsts + [f"output {row['output']}" for row in by_row])[:7], call  # 8 lines are kept
    policy, lib = (call["sources"] + [None])[:2]
    ran = counts(policy)
    assert policy["file"] == "tells.lua" and "\n".join(x["text"] for x in policy["lines"]) + "\n" == TELLS
    assert (ran["each"], ran["odd"], ran["no line of step"]) == (int(rounds), int(odd), None), (ran, call["log"])
    if int(rounds):
        assert lib["file"] == "lib/count.lua" and counts(lib) == {"of a library": int(rounds)}, lib
    assert call["bytecodes"] > 5 * int(rounds) and call["params"]["fail"]["value"] == 5, call
    assert plan["equal"] and plan["words"] == plan["recorded"], plan
    fails = n % 5 == 0 and found["decided"]["policy"]["native"]
    raises = 1 + TELLS.split("error(")[0].count("\n")
    assert (f"tells.lua:{raises}: every fifth" in (call["error"] or "")) == fails == (call["verdict"] != "ok"), found
    assert ("every fifth" in (found["error"] or "")) == fails, found


def decisions(folder):
    rec = Recorded(folder, telling(folder), "--policy-probation-seconds", "0", params={"fail": 5})
    where = ["--policy", f"{folder}/tells.lua"]
    for n in (1, 2, 3, 4, 6, 8, 11):
        found = step(rec, n, *where)
        if found["policy"]["name"] == "tells":
            check_step(found, n)
    failed = step(rec, 5, *where)
    check_step(failed, 5)
    text = run("step", "5", "--recording", rec.path, *where)
    assert "every fifth" in text and "made by the native policy" in text and "its call: error" in text, text
    shown = step(rec, 4, *where)
    text = run("step", "4", "--recording", rec.path, *where)
    head = f"decision 4, {shown['t_ns'] / 1e9:.6f} s after the start (line {shown['line']} of {rec.path}), by tells"
    assert text.startswith(head) and "as recorded" in text and "n_waiting" in text, text
    for line in shown["call"]["sources"][0]["lines"]:
        mark = {None: "", 0: "-"}.get(line.get("count"), f"{line.get('count')}x")
        assert f"\n{mark:>8} {line['line']:5} | {line['text']}\n" in text, line
    assert run("step", "--at", f"{shown['t_ns'] / 1e9:.6f}", "--recording", rec.path, *where) == text
    third = step(rec, 3, *where)
    between = f"{(shown['t_ns'] + third['t_ns']) / 2e9:.6f}"
    assert step(rec, None, "--at", between, *where)["decision"] in (3, 4)
    refused(folder, rec, where)


def refused(folder, rec, where):
    last = step(rec, rec.decisions, *where)
    assert last["decision"] == rec.decisions
    said = run("step", str(rec.decisions + 1), "--recording", rec.path, *where, status=1)
    assert f"the recording has {rec.decisions} decisions" in said, said
    said = run("step", "--at", "1e6", "--recording", rec.path, *where, status=1)
    assert f"the last of the recording's {rec.decisions} decisions was taken" in said, said
    for words in (["step", "3", "--recording", rec.path], ["why", "load-0-0", "--recording", rec.path]):
        said = run(*words, status=1)
        assert "at its start the policy tells (" in said and "--policy-dir or --policy" in said, said
    shutil.copytree(folder, f"{folder}/other", ignore=shutil.ignore_patterns("*.rec", "other"))
    assert step(rec, 3, "--policy-dir", f"{folder}/other") == step(rec, 3, *where)
    with open(f"{folder}/other/tells.lua", "a") as f:
        f.write("-- another\n")
    said = run("step", "3", "--recording", rec.path, "--policy-dir", f"{folder}/other", status=1)
    assert "at its start" in said and "(that of its name has " in said, said
    with open(f"{folder}/other/tells.lua", "w") as f:
        f.write("return {")
    said = run("step", "3", "--recording", rec.path, "--policy-dir", f"{folder}/other", status=1)
    assert "does not load: " in said and "tells.lua:1:" in said and "--policy finds it" in said, said
    lines = open(rec.path).read().split("\n")
    at = [i for i, line in enumerate(lines) if line.startswith("q ") and " B" in line][3]
    lines[at] = re.sub(r" B(\d+):", lambda m: f" B{int(m[1]) + 7}:", lines[at], count=1)
    with open(f"{folder}/changed.rec", "w") as f:
        f.write("\n".join(lines))
    n = sum(line.startswith("q ") for line in lines[: at + 1])
    found = json.loads(run("step", str(n), "--recording", f"{folder}/changed.rec", "--json", *where))
    assert not found["plan"]["equal"] and found["plan"]["words"] != found["plan"]["recorded"], found
    for words in (["step", str(n + 1)], ["why", "load-0-0"]):
        said = run(*words, "--recording", f"{folder}/changed.rec", *where, status=1)
        assert f"leaves the recording before that: decision {n}," in said, said
    for words, text in (
        (["step", "3"], "which recording"),
        (["step", "0", "--recording", rec.path], "1 or more"),
        (["step", "--recording", rec.path], "which decision"),
        (["step", "3", "--at", "2", "--recording", rec.path], "which decision"),
        (["why", "x", "--slowest", "3"], "--slowest"),
        (["why", "x", "--recording", rec.path, "--file", "-"], "not both"),
    ):
        assert text in run(*words, status=2), words


def requests(folder):
    """The live answer, again: every span and cause, of requests that give way, wait, and share a prompt."""
    rec = Recorded(folder, "priority")
    parts = set()
    for name, live in rec.answers.items():
        again = json.loads(run("why", name, "--recording", rec.path, "--json"))
        assert again == live, (again, live)
        parts |= {span["part"] for r in live["requests"] for span in r["spans"]}
    assert parts >= {"front", "prefill", "decode"} and len(parts) > 3, parts
    twins = rec.answers["load-0-1"]["requests"]
    assert sorted(r["choice"] for r in twins) == [0, 1], twins
    again = json.loads(run("why", "--slowest", "7", "--recording", rec.path, "--json"))
    assert again["requests"] == rec.slowest["requests"] and len(again["requests"]) == 7, again
    text = run("why", "load-0-0", "--recording", rec.path)
    assert text.startswith(rec.answers["load-0-0"]["requests"][0]["id"]) and "first token after" in text, text
    third = [line.split() for line in open(rec.path) if line.startswith("a ")][3]  # by its order
    assert third[2] == "3" and run("why", "3", "--recording", rec.path).startswith(third[11]), third
    assert "goes by 'cmpl-nobody'" in run("why", "cmpl-nobody", "--recording", rec.path, status=1)


def natively(folder):
    rec = Recorded(folder, "native")
    found = step(rec, 3)
    assert found["call"] is None and found["policy"]["sha256"] == "native" and found["plan"]["equal"], found
    assert "The native policy decided" in run("step", "3", "--recording", rec.path)
    assert json.loads(run("why", "load-0-0", "--recording", rec.path, "--json")) == rec.answers["load-0-0"]


LOOPS = """return {
  api = 1, params = { loop = { default = false } },
  step = function(view, act, p)
    while p.loop do end
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
}
"""


def cut_off(folder):
    """A policy goes live that was not at the start; a call that was stopped is not made again; then the one before
    decides."""
    loops, path = f"{folder}/loops.lua", f"{folder}/loops.rec"
    with open(loops, "w") as f:
        f.write(LOOPS)
    with Server("--record", path, "--policy-probation-seconds", "0", policy="fcfs") as server:
        server.complete()
        assert server.ask("PUT", "/admin/policies/loops", LOOPS)[0].status == 200
        server.complete()
        assert server.ask("PATCH", "/admin/policy/params", '{"loop": true}')[0].status == 200
        server.complete()
        server.p.terminate()
        assert server.p.wait(60) == 0
    lines = [line.split() for line in open(path)]
    stopped = next(i for i, x in enumerate(lines) if x[0] == "v" and x[2:] == ["step", "timeout"])
    n = sum(x[0] == "q" for x in lines[:stopped]) + 1
    named = ["--recording", path, "--policy", loops]
    found = json.loads(run("step", str(n), "--json", *named))
    decided = found["decided"]["policy"]
    assert (decided["verdict"], decided["native"], found["call"]) == ("timeout", True, None), found
    assert "cut off" in run("step", str(n), *named)
    by = [json.loads(run("step", str(k), "--json", *named)) for k in (1, n - 1, n + 1)]
    assert [x["policy"]["name"] for x in by] == ["fcfs", "loops", "fcfs"] and all(x["plan"]["equal"] for x in by), by
    assert [x["call"]["sources"][0]["file"] for x in by] == ["fcfs.lua", "loops.lua", "fcfs.lua"], by
    said = run("step", str(n), "--recording", path, status=1)
    assert "leaves the recording" in said and "from here on the policy loops" in said, said


cases.run([decisions, requests, natively, cut_off], in_folder=True)
