"""serve --record and simulate on what it wrote, from outside: a live server under mixed traffic, several policies,
cancels, switches and orders of an operator decides the same again in a replay, every time; nothing of the text is in
the file; a changed plan, a file that was cut off, another policy and wrong flags are told."""

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
import urllib.error
import urllib.request
import xml.dom.minidom

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
MODEL = [
    "--load-format",
    "dummy",
    "--hf-config",
    "tests/data/layout_40_8.json",
    "--kv-cache-memory-bytes",
    "1MiB",
    "--max-num-seqs",
    "20",
    "--served-model-name",
    "m",
]
SECRET = "marmalade"
REQUESTS, CLIENTS, WAIT_S = 200, 12, 400


class Server:
    def __init__(self, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([BINARY, "serve", *MODEL, "--port", "0", *args], stderr=self.log, env=ENV)
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

    def order(self, method, path, body=None):
        data = body.encode() if body is not None else b""
        with urllib.request.urlopen(
            urllib.request.Request(self.admin + path, data, method=method), timeout=WAIT_S
        ) as r:
            return r.read()

    def ask(self, body, lines):
        """Reads so many lines of the answer, or all of it, and hangs up."""
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as r:
                n = 0
                while r.readline():
                    n += 1
                    if n == lines:
                        return "left"
            return "done"
        except urllib.error.HTTPError as e:
            e.close()
            return str(e.code)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        code = self.p.wait(WAIT_S)
        text = self.said()
        self.log.close()
        return code, text


def body_of(rnd, i):
    body = {
        "model": "m",
        "prompt": SECRET + " " + "the same words again. " * rnd.choice([0, 1, 2, 5, 12]) + str(rnd.choice([i, 1, 2])),
        "max_tokens": rnd.choice([1, 2, 5, 12, 30, 60]),
        "priority": rnd.choice([0, 0, 1, 4, -2]),
        "stream": True,
        "temperature": rnd.choice([0, 1.0]),
        "seed": i,
        "ignore_eos": rnd.random() < 0.5,
    }
    if rnd.random() < 0.1:
        body["n"] = 2
    if rnd.random() < 0.1:
        body["stop"] = ["e", "A"]
    return body, rnd.randint(1, 8) if rnd.random() < 0.2 else None


def load(server, seed):
    rnd = random.Random(seed)
    todo = [body_of(rnd, i) for i in range(REQUESTS)]
    lock, outcomes = threading.Lock(), []

    def client():
        while True:
            with lock:
                if not todo:
                    return
                body, lines = todo.pop()
            outcome = server.ask(body, lines)
            with lock:
                outcomes.append(outcome)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for t in threads:
        t.start()
    return threads, outcomes


def recorded(path, seed, *args, orders=()):
    s = Server("--record", path, *args)
    threads, outcomes = load(s, seed)
    for method, where, body in orders:
        time.sleep(0.15)
        s.order(method, where, body)
    for t in threads:
        t.join(WAIT_S)
    code, text = s.stop()
    assert code == 0 and len(outcomes) == REQUESTS and outcomes.count("done") > REQUESTS // 2, (
        code,
        outcomes,
        text[-2000:],
    )
    assert "Traceback" not in text and "recording" not in text, text
    return text


def simulate(*args):
    return subprocess.run([BINARY, "simulate", *args], capture_output=True, text=True, timeout=WAIT_S, env=ENV)


def same_again(path, policy):
    r = simulate("--trace", path, "--policy", policy)
    m = re.search(r"decisions: (\d+), all equal to the recording\n", r.stdout)
    assert r.returncode == 0 and m, (path, r.stdout[-1500:], r.stderr)
    assert int(m.group(1)) == sum(1 for line in open(path) if line.startswith("q "))
    assert int(m.group(1)) > 30
    return r.stdout


def one_group_first_come(folder):
    path = f"{folder}/fcfs.rec"
    recorded(path, 1)
    first = same_again(path, "fcfs")
    assert first == same_again(path, "fcfs") == simulate("--trace", path).stdout  # the live policy is the default
    text = open(path).read()
    assert SECRET not in text and "again" not in text
    lines = text.split("\n")
    kinds = {line[:1] for line in lines if line}
    assert kinds >= set("{acsqez"), kinds
    assert sum(line.startswith("a ") for line in lines) > REQUESTS // 2
    changes_are_told(folder, lines)
    cut_off(folder, text)
    other_ways(path)


def changes_are_told(folder, lines):
    path = f"{folder}/changed.rec"
    at = [i for i, line in enumerate(lines) if line.startswith("q ") and " B" in line][40]
    before = sum(line.startswith("q ") for line in lines[:at])
    changed = lines[:]
    changed[at] = re.sub(r" B(\d+):", lambda m: f" B{int(m.group(1)) + 7}:", lines[at], count=1)
    open(path, "w").write("\n".join(changed))
    r = simulate("--trace", path)
    assert r.returncode == 1 and f"decisions: {before} equal to the recording, then they differ" in r.stdout, (
        r.stdout,
        r.stderr,
    )
    assert f"(line {at + 1})" in r.stdout and "recorded: group" in r.stdout and "came out: group" in r.stdout, r.stdout
    assert "did not decide as the recording says" in r.stderr
    changed[at] = lines[at].replace(" ", " x", 1)
    open(path, "w").write("\n".join(changed))
    r = simulate("--trace", path)
    assert r.returncode == 1 and f"changed.rec:{at + 1}: time must be" in r.stderr, r.stderr


def cut_off(folder, text):
    path = f"{folder}/cut.rec"
    open(path, "w").write(text[: len(text) * 2 // 3])
    r = simulate("--trace", path)
    assert r.returncode == 0 and "all equal to the recording (which was cut off" in r.stdout, (r.stdout, r.stderr)


def other_ways(path):
    with tempfile.TemporaryDirectory() as folder:
        r = simulate(
            "--trace",
            path,
            "--policy",
            "priority",
            "--policy",
            "fcfs",
            "--policy",
            "fcfs:budget=64",
            "--json",
            f"{folder}/a.json",
            "--plots",
            f"{folder}/p",
        )
        assert r.returncode == 0, r.stderr
        runs = json.load(open(f"{folder}/a.json"))["runs"]
        assert [x["recording"]["compared"] for x in runs] == [False, True, False]
        assert runs[1]["recording"]["equal"] and runs[0]["requests"] == runs[1]["requests"]
        assert all(x["finished"] > REQUESTS // 2 and x["recording"]["recorded"]["model_error"] > 0 for x in runs)
        assert os.listdir(f"{folder}/p")
    for words in ("priority: another policy than the live one", "fcfs:budget=64: other params", "fcfs: decisions: "):
        assert words in r.stdout, r.stdout
    r = simulate("--trace", path, "--what-if")
    assert r.returncode == 0 and "fcfs: asked for: step times from the model fitted to the" in r.stdout, r.stdout
    assert r.stdout == simulate("--trace", path, "--what-if").stdout
    r = simulate("--trace", path, "--hardware", "h200x8", "--model", "llama-3.3-70b-fp8", "--policy", "shift")
    assert r.returncode == 0 and "h200x8" in r.stdout, r.stderr
    r = simulate("--trace", path, "--policy", "policies/priority.lua", "--compare")
    assert r.returncode == 1 and re.search(
        r"priority: decisions: \d+ equal to the recording, then they differ", r.stdout
    ), (r.stdout, r.stderr)
    r = simulate("--trace", path, "--compare", "--max-num-seqs", "3")
    assert r.returncode == 1 and "nothing can be compared" in r.stderr, r.stderr
    r = simulate("--trace", path, "--ranks", "2")
    assert r.returncode == 1 and "--hardware" in r.stderr, r.stderr
    r = simulate("--trace", "poisson:rate=1", "--what-if", "--hf-config", "tests/data/sim_model.json")
    assert r.returncode == 1 and "for a recording" in r.stderr, r.stderr


def by_priority(folder):
    path = f"{folder}/priority.rec"
    recorded(path, 2, "--policy", "priority", "--policy-param", "preempt=true")
    same_again(path, "priority")


def four_ranks(folder):
    path = f"{folder}/shift.rec"
    recorded(path, 3, "--policy", "shift", "--ranks", "4", "--policy-param", "threshold=24")
    same_again(path, "shift")


def switches_and_orders(folder):
    path = f"{folder}/flying.rec"
    orders = [
        ("PUT", "/admin/policies/static?from=folder", None),
        ("POST", "/admin/policy/rollback", None),
        ("PATCH", "/admin/limits", '{"max_num_seqs": 5, "max_num_batched_tokens": 100, "max_park_seconds": 0.05}'),
        ("PUT", "/admin/policies/priority?from=folder", None),
        ("PATCH", "/admin/limits", '{"max_num_seqs": 60, "starvation_seconds": 1, "max_num_queued_reqs": 30}'),
    ]
    recorded(
        path,
        4,
        "--policy",
        "flying",
        "--ranks",
        "4",
        "--policy-param",
        "many=3",
        "--max-park-seconds",
        "0.2",
        "--policy-probation-seconds",  # on a busy machine a policy may go back by itself before it is told to
        "0",
        orders=orders,
    )
    text = open(path).read()
    assert text.count("\ng ") == 2 and text.count("\nb ") == 1 and text.count("\nl ") == 2
    same_again(path, "flying")
    with tempfile.TemporaryDirectory() as empty:
        r = simulate("--trace", path, "--policy", "policies/flying.lua", "--policy-dir", empty)
        assert r.returncode == 1 and "from here on the policy static" in r.stdout, (r.stdout, r.stderr)
    r = simulate("--trace", path, "--what-if")
    assert "flying: an operator set limits 2 times while this was recorded; here they stay" in r.stdout, r.stdout


def known_costs(folder):
    """Where the machine's cost is known and linear, the model learns it, and a replay's step times are the recorded
    ones."""
    path = f"{folder}/sim.rec"
    recorded(path, 5, "--device", "sim", "--sim-step-us", "500", "--sim-row-us", "5")
    same_again(path, "fcfs")
    r = simulate("--trace", path, "--what-if", "--json", f"{folder}/sim.json")
    assert r.returncode == 0, r.stderr
    x = json.load(open(f"{folder}/sim.json"))["runs"][0]["recording"]["recorded"]
    assert x["model_error"] < 1e-3, x
    assert abs(x["modelled_step_ms"] - x["mean_step_ms"]) <= 1e-3 * x["mean_step_ms"], x


ALWAYS = """
return {
  api = 1,
  doc = "draft tokens for everybody, of which some are taken back",
  needs = { "running.group", "running.output" },
  step = function(view, act)
    local running = view.running
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      for i = 1, running.n do
        if running.group[i] == group.id and running.output[i] > 0 then
          local n = act.draft(running.id[i], 12, i % 3 == 0 and "lookup" or nil)
          if n and n > 3 and running.output[i] % 2 == 0 then act.draft(running.id[i], n - 2) end
          local drafted, right = view.drafted(running.id[i], "suffix")
          if drafted and drafted > 40 and right == 0 then act.evict_drafts("unused") end
        end
      end
      batch:prefill(view.waiting, 256)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
}
"""


def counted(path):
    """Of each source: tokens that were right, times that one was wrong, guesses."""
    right, wrong, guesses, names = {}, {}, {}, {}
    for line in open(path):
        f = line.split()
        if line.startswith("{"):
            names = {i: x["name"] for i, x in enumerate(json.loads(line)["drafts"])}
        elif f[0] == "p":
            assert len(f) == 8, line
            guesses[names[int(f[2])]] = guesses.get(names[int(f[2])], 0) + (f[5] != "0")
        elif f[0] == "s":
            at = 12 + int(f[11])
            at += 1 + 2 * int(f[at])
            for k in range(int(f[at])):
                source, n, good, ended = map(int, f[at + 2 + 5 * k : at + 6 + 5 * k])
                name = names[source]
                right[name] = right.get(name, 0) + good
                wrong[name] = wrong.get(name, 0) + (not ended and good < n)
    return right, wrong, guesses


def draft_tokens(folder):
    """What was guessed, and how much of it was right, is recorded, without any text: all decisions come out again.
    Another policy, and another machine, have drafts that are right as often."""
    path, policy = f"{folder}/drafts.rec", f"{folder}/always.lua"
    open(policy, "w").write(ALWAYS)
    recorded(path, 7, "--policy", policy)
    right, wrong, guesses = counted(path)
    assert right["suffix"] > 100 and wrong["suffix"] > 20 and "lookup" in guesses, (right, wrong, guesses)
    text = open(path).read()
    assert SECRET not in text and re.search(r"^q .*\+1~0x\d", text, re.M) and re.search(r"^q .* B.*~1x", text, re.M)
    assert "\nDrafts   as recorded\n" in same_again(path, policy)
    share = right["suffix"] / (right["suffix"] + wrong["suffix"])
    for args in (["--what-if", "--policy", policy], ["--policy", policy, "--draft-acceptance", "0.9"]):
        r = simulate("--trace", path, *args, "--json", f"{folder}/d.json")
        assert r.returncode == 0, r.stderr
        out = json.load(open(f"{folder}/d.json"))
        run = out["runs"][0]
        assert 0 < run["accepted_tokens"] < run["draft_tokens"] and not run["recording"]["compared"], run
        assert (f"suffix right with a chance of {share:.3f}" in out["drafts"]) == ("--what-if" in args), out
        assert ("0.9, as asked for" in out["drafts"]) == ("0.9" in args) == ("as recorded" not in out["drafts"]), out
    again = simulate("--trace", path, "--policy", policy, "--draft-acceptance", "0.9")
    assert again.stdout == r.stdout
    r = simulate("--trace", path, "--policy", policy, "--draft-acceptance", "0.9", "--compare")
    assert r.returncode == 1 and "nothing can be compared" in r.stderr, r.stderr
    r = simulate("--trace", path, "--hardware", "h200x8", "--model", "llama-3.3-70b-fp8", "--policy", policy)
    assert r.returncode == 0 and f"suffix right with a chance of {share:.3f}" in r.stdout, (r.stdout, r.stderr)
    assert re.search(r"of them right +[1-9]", r.stdout), r.stdout


def drafts_of_arctic(folder):
    path = f"{folder}/arctic.rec"
    recorded(path, 8, "--policy", "arctic")
    same_again(path, "arctic")


def pooled(folder):
    """Of a few steps with pooled weights it says when layers were fetched and multiplied, and that can be drawn."""
    path = f"{folder}/pooled.rec"
    recorded(path, 6, "--ranks", "4", "--weights", "pooled", "--policy", "sidp")
    same_again(path, "sidp")
    lines = [line.split() for line in open(path)]
    told = [x for x in lines if x[0] == "f"]
    assert 0 < len(told) < sum(x[0] == "s" for x in lines) / 2, len(told)
    assert {x[3] for x in told} == set("0123") and {x[7] for x in told} == {"2"}, told  # ranks; layers
    assert any("w" in x for x in told) and any("l" in x for x in told), told
    assert max(len(" ".join(x)) for x in told) < 4096
    r = simulate("--trace", path, "--plots", f"{folder}/pool")
    assert r.returncode == 0, r.stderr
    picture = xml.dom.minidom.parse(f"{folder}/pool/pool.svg")
    texts = picture.getElementsByTagName("text")
    labels = [x.firstChild.data for x in texts if x.getAttribute("class") == "label"]
    ranks = [re.fullmatch(r"rank (\d), group \d+: rows (\d+)", x) for x in labels[1::2]]
    assert ranks and all(ranks) and set(labels[::2]) == {"the most rows", "the last step"}, labels
    assert max(int(x[2]) for x in ranks) == max(int(x[4]) for x in told), labels
    cut = [x for x in lines if x[0] != "f"]
    open(path, "w").write("\n".join(" ".join(x) for x in cut) + "\n")  # an older one: nothing to draw
    r = simulate("--trace", path, "--plots", f"{folder}/none")
    assert r.returncode == 0 and "pool.svg" not in os.listdir(f"{folder}/none"), r.stderr


def not_written_over(folder):
    path = f"{folder}/there.rec"
    open(path, "w").write("mine\n")
    r = subprocess.run(
        [BINARY, "serve", *MODEL, "--port", "0", "--record", path],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=ENV,
    )
    assert r.returncode == 1 and "is there already" in r.stderr and open(path).read() == "mine\n", r.stderr


CASES = [
    one_group_first_come,
    by_priority,
    four_ranks,
    switches_and_orders,
    known_costs,
    draft_tokens,
    drafts_of_arctic,
    pooled,
    not_written_over,
]
if "ASAN_OPTIONS" in os.environ:  # slow there: one server that switches, and the front's part
    CASES = [switches_and_orders, pooled, not_written_over]

cases.run(CASES, in_folder=True)
