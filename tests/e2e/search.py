"""moonshift reproduce and moonshift tune from outside: a list is run and answered, a known optimum is found, the same
seed gives the same bytes on any number of cores, what is wrong is told, Ctrl-C shows what is there."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
NODE = [
    "--hf-config",
    "tests/data/sim_model.json",
    "--sim-step-us",
    "10000",
    "--sim-row-us",
    "1",
    "--kv-cache-memory-bytes",
    "64MiB",
    "--max-num-batched-tokens",
    "4096",
    "--max-model-len",
    "4096",
]
LOAD = ["--trace", "poisson:rate=8,requests=80,input=2000,output=4"]
WAIT_S = 300
HILL = """
return { api = 1, doc = "Prompts go fastest at x = 37.",
  params = {
    x = { default = 5, min = 0, max = 100 },
    how = { default = "slow", choices = { "slow", "fast" } },
    free = { default = 3, doc = "no bounds" },
  },
  step = function(view, act, p)
    local off = (p.x - 37) / 10
    local budget = math.floor((20 + 2000 / (1 + off * off)) / (p.how == "fast" and 1 or 2))
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, budget)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def call(*args):
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=WAIT_S, env=ENV)


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def optimum(folder):
    hill = write(folder, "hill.lua", HILL)
    args = ["tune", "--policy", hill, *NODE, *LOAD, "--objective", "p50 TTFT", "--budget", "30"]
    found = []
    for seed, jobs in (("1", "1"), ("1", "3"), ("2", "2")):
        out = [os.path.join(folder, f"{len(found)}.{x}") for x in ("params", "json")]
        r = call(*args, "--seed", seed, "-j", jobs, "--params-out", out[0], "--json", out[1])
        assert r.returncode == 0, r.stderr
        params, data = json.load(open(out[0])), json.load(open(out[1]))
        assert abs(params["x"] - 37) < 4 and params["how"] == "fast" and "free" not in params, r.stdout
        assert data["points"][0]["params"]["x"] == 5 and data["points"][data["best"]]["params"] == params
        assert "for want of bounds (--param NAME=LOW..HIGH): free" in r.stdout and "never measurements" in r.stdout
        # and on traffic that it was not found on, by far
        assert len(data["elsewhere"]) == 4 and "Elsewhere (other seeds)" in r.stdout, r.stdout
        for other in data["elsewhere"]:
            assert other["best"]["p50 TTFT"] < 0.5 * other["default"]["p50 TTFT"], other
        found.append((r.stdout, open(out[1]).read()))
    assert found[0] == found[1] and found[0][0] != found[2][0]
    # what was found holds outside: the file, alone and with a pair that wins over it
    file = os.path.join(folder, "0.params")
    values = re.search(r"best +([\d.]+)", found[0][0])
    r = call("simulate", "--policy", hill, *NODE, *LOAD, "--seed", "1", "--policy-params-file", file)
    assert (
        r.returncode == 0 and abs(float(re.search(r"TTFT p50 \(ms\) +([\d.]+)", r.stdout)[1]) - float(values[1])) < 0.01
    ), r.stdout
    other = call(
        "simulate", "--policy", hill, *NODE, *LOAD, "--seed", "1", "--policy-params-file", file, "--policy-param", "x=5"
    )
    assert float(re.search(r"TTFT p50 \(ms\) +([\d.]+)", other.stdout)[1]) > 2 * float(values[1])


BURST = """
local long = true -- is the newest prompt
return { api = 1, doc = "Long prompts go fastest at x = 20, short ones at x = 80.",
  needs = { "waiting.prompt", "waiting.first" },
  params = { x = { default = 50, min = 0, max = 100 } },
  step = function(view, act, p)
    local first = view.waiting.first[1]
    if first then long = view.waiting.prompt[first] > 1000 end
    local off = (p.x - (long and 20 or 80)) / 10
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, math.floor(20 + 2000 / (1 + off * off)))
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def windows(folder):
    """The wide look is at the busiest quarter, and a fit to it shows in the others."""
    rows = ["arrival_s,input_tokens,output_tokens"]
    rows += [f"{i * 0.5:.3f},1500,2" for i in range(120)]
    rows += [f"{60 + i * 0.02:.3f},700,2" for i in range(1001)]
    trace = write(folder, "burst.csv", "\n".join(rows) + "\n")
    burst = write(folder, "burst.lua", BURST)
    out = os.path.join(folder, "burst.json")
    args = ["tune", "--policy", burst, *NODE, "--trace", trace, "--objective", "mean TTFT", "--budget", "24"]
    r = call(*args, "--json", out)
    assert r.returncode == 0, r.stderr
    data = json.load(open(out))
    assert data["points"][data["best"]]["params"]["x"] > 55, r.stdout
    gains = [1 - q["best"]["mean TTFT"] / q["default"]["mean TTFT"] for q in data["elsewhere"]]
    assert len(gains) == 4 and gains[3] > 0.3 and max(gains[:3]) < 0, (gains, r.stdout)
    assert "Elsewhere (each quarter of the trace by itself)" in r.stdout
    # a quarter is a part of the trace that anybody can ask for
    part = os.path.join(folder, "part.json")
    where = ["--trace", trace, "--from", "60", "--seconds", "20", "--json", part]
    assert call("simulate", "--policy", burst, *NODE, *where).returncode == 0
    assert json.load(open(part))["runs"][0]["requests"] == 1000
    mean = json.load(open(part))["runs"][0]["ttft_ms"]["mean"]
    last = data["elsewhere"][3]
    assert last["from"] == 60 and abs(last["default"]["mean TTFT"] / mean - 1) < 0.01, (mean, last)


def fronts(folder):
    """Two objectives that pull apart: no point of the front is worse than another in both; and a bound is kept."""
    args = [
        "tune",
        "--policy",
        "fcfs",
        *NODE[:2],
        "--sim-step-us",
        "2000",
        "--sim-row-us",
        "150",
        *NODE[6:],
        "--trace",
        "poisson:rate=6,requests=100,input=100-1500,output=40",
        "--seed",
        "4",
        "--param",
        "budget=16..4096",
        "--budget",
        "24",
    ]
    out = os.path.join(folder, "front.json")
    r = call(*args, "--objective", "p99 TTFT", "--objective", "p99 TPOT", "--json", out)
    assert r.returncode == 0, r.stderr
    points = [(p["values"]["p99 TTFT"], p["values"]["p99 TPOT"]) for p in json.load(open(out))["points"] if p["front"]]
    assert len(points) >= 3, r.stdout
    assert not any(a[0] <= b[0] and a[1] <= b[1] for a in points for b in points if a is not b), points
    limit = (min(p[1] for p in points) + max(p[1] for p in points)) / 2
    r = call(*args, "--objective", "p99 TTFT", "--subject-to", f"p99 TPOT <= {limit / 1000}s", "--json", out)
    assert r.returncode == 0, r.stderr
    data = json.load(open(out))
    assert (
        data["points"][data["best"]]["feasible"]
        and data["points"][data["best"]]["values"]["p99 TPOT"] <= limit * 1.000001
    )
    r = call(*args, "--objective", "p99 TTFT", "--subject-to", "p99 TPOT <= 1us")
    assert (
        r.returncode == 1 and "nothing that was tried keeps the bounds" in r.stderr and "(past a bound)" in r.stdout
    ), r.stderr


def tune_mistakes(folder):
    hill = write(folder, "hill.lua", HILL)
    bare = write(
        folder,
        "bare.lua",
        re.sub(r"  params = \{.*?\n  \},\n", "", HILL, flags=re.S)
        .replace("p.x", "37")
        .replace('p.how == "fast"', "true"),
    )
    loop = write(
        folder,
        "loop.lua",
        "return { api = 1, doc = 'Never ends.', params = { x = { default = 1, min = 0, max = 1 } }, step = function() "
        "while true do end end }\n",
    )
    base, goal = [*NODE, *LOAD], ["--objective", "p50 TTFT"]
    raises = write(
        folder, "raises.lua", HILL.replace("    local off", "    if view.step > 20 then error('no') end local off")
    )
    for args, code, says in (
        ([*base, "--policy", hill], 2, "what should be optimised?"),
        (
            [*base, "--policy", hill, "--objective", "speed"],
            1,
            "there is no metric 'speed' (there are: p1 to p100 or mean of TTFT",
        ),
        ([*base, "--policy", hill, "--objective", "p101 TTFT"], 1, "there is no metric"),
        ([*base, "--policy", hill, "--objective", "TTFT"], 1, "there is no metric"),
        ([*base, "--policy", hill, *goal, "--subject-to", "p99 TPOT 50"], 1, "METRIC <= VALUE"),
        ([*base, "--policy", hill, *goal, "--subject-to", "p99 TPOT <= 50 miles"], 1, "like 50ms"),
        ([*base, "--policy", hill, *goal, "--subject-to", "throughput >= 50ms"], 1, "no value for throughput"),
        ([*base, "--policy", hill, *goal, "--param", "y"], 1, "declares no such param"),
        ([*base, "--policy", hill, *goal, "--param", "free"], 1, "give --param free=LOW..HIGH"),
        ([*base, "--policy", hill, *goal, "--param", "x=5..2"], 1, "bounds are LOW..HIGH"),
        ([*base, "--policy", hill, *goal, "--param", "x=-5..2"], 1, "the policy allows 0 to 100"),
        ([*base, "--policy", bare, *goal], 1, "declares no params"),
        ([*base, "--policy", "native", *goal], 1, "declares no params"),
        ([*base, "--policy", hill, "--policy", "fcfs", *goal], 2, "one --policy"),
        ([*base, "--policy", "no-such", *goal], 1, "no-such"),
        ([*base, "--policy", loop, *goal], 1, "loop.lua"),
        ([*base, "--policy", raises, *goal], 1, "is withdrawn for its strikes"),
        ([*NODE, "--policy", hill, *goal], 2, "which traffic?"),
        ([*NODE, "--trace", "no/such.csv", "--policy", hill, *goal], 1, "no/such.csv"),
        ([*base, "--policy", hill, *goal, "--plots", folder], 2, "belongs to one run"),
        ([*base, "--policy", hill, *goal, "--budget", "1"], 2, "--budget"),
        ([*base, "--policy", hill, *goal, "--port", "1"], 2, "belongs to moonshift serve"),
    ):
        r = call("tune", *args)
        assert r.returncode == code and says in r.stderr, (args, r.returncode, r.stderr)
        assert r.stderr.count("moonshift: ") == 1, r.stderr
    assert "--objective METRIC" in call("tune", "--help").stdout and "--bars" in call("help", "reproduce").stdout
    bad = write(folder, "bad.json", "[1]")
    r = call("simulate", *base, "--policy", hill, "--policy-params-file", bad)
    assert r.returncode == 1 and "must be an object of params" in r.stderr
    r = call("simulate", *base, "--policy", hill, "--policy-params-file", write(folder, "more.json", '{"x": 101}'))
    assert r.returncode == 1 and "at most 100" in r.stderr, r.stderr


SHAPE = """
return { api = 1, doc = "Some params do nothing, one does nothing past the step's limit, one cannot be everything.",
  params = {
    budget = { default = 256, min = 1, type = "integer" }, idle = { default = 4, min = 0, max = 9 },
    cat = { default = "tom", choices = { "tom", "kitty" } },
    width = { default = 1, min = 1, max = 8, type = "integer" },
  },
  fits = function(node, p) return p.width % 2 == 1, "the width has to be odd, not " .. string.format("%d", p.width) end,
  step = function(view, act, p)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, p.budget)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def no_difference(folder):
    """What changes nothing is told, and stays at its default; what cannot be is no point at all."""
    shape, out = write(folder, "shape.lua", SHAPE), os.path.join(folder, "shape.json")
    r = call(
        "tune",
        "--policy",
        shape,
        *NODE,
        *LOAD,
        "--objective",
        "p50 TTFT",
        "--param",
        "budget=64..65536",
        "--param",
        "idle",
        "--param",
        "cat",
        "--param",
        "width",
        "--budget",
        "16",
        "--json",
        out,
    )
    assert r.returncode == 0, r.stderr
    data = json.load(open(out))
    best = data["points"][data["best"]]["params"]
    assert (
        best["idle"] == 4 and best["cat"] == "tom" and best["width"] == 1 and data["no_difference"] == ["cat", "idle"]
    ), r.stdout
    assert (
        "No difference: cat, wherever it was tried" in r.stdout
        and "No difference: idle, wherever it was tried" in r.stdout
    ), r.stdout
    edge = int(re.search(r"No difference: budget above (\d+)$", r.stdout, re.M).group(1))
    assert 256 < edge <= 6000 and best["budget"] >= edge, r.stdout  # a step takes 4096 tokens
    refused = [p for p in data["points"] if "refused" in p]
    told = re.search(r"Refused +(\d+) points more, .*the first: shape.lua: the width has to be odd, not \d", r.stdout)
    assert (
        told
        and int(told.group(1)) == len(refused) > 0
        and not any(p["feasible"] or p["front"] or p["values"] for p in refused)
    ), r.stdout
    assert all(p["params"]["width"] % 2 for p in data["points"] if p not in refused)
    assert len([p for p in data["points"] if p not in refused]) >= 6, "refused points have taken the places of others"
    r = call(
        "tune",
        "--policy",
        shape,
        *NODE,
        *LOAD,
        "--objective",
        "p50 TTFT",
        "--param",
        "idle",
        "--policy-param",
        "width=2",
    )
    assert r.returncode == 1 and "the width has to be odd, not 2" in r.stderr, r.stderr


UNITS = """
return { api = 1, doc = "Params whose ends follow from their units.",
  params = {
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step" },
    calm_ms = { default = 5, min = 1, max = 3600000, unit = "ms" },
    many = { default = 4, min = 1, type = "integer", unit = "requests" },
    weight = { default = 1, min = 0, unit = "ratio" },
  },
  step = function(view, act, p)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, p.budget)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def units(folder):
    """What no run can reach is not searched, and that is told; what only a unit bounds is searched."""
    policy, out, goal = (
        write(folder, "units.lua", UNITS),
        os.path.join(folder, "units.json"),
        ["--objective", "p50 TTFT"],
    )
    r = call("tune", "--policy", policy, *NODE, *LOAD, *goal, "--budget", "4", "--json", out)
    assert r.returncode == 0, r.stderr
    data = json.load(open(out))
    cuts = {c["param"]: c for c in data["cut"]}
    assert set(cuts) == {"budget", "calm_ms", "many"}, cuts
    assert cuts["budget"] == {
        "param": "budget",
        "unit": "tokens/step",
        "declared": None,
        "to": 4096,
        "why": "--max-num-batched-tokens",
    }, cuts
    assert cuts["many"]["to"] == 80 and 10000 <= cuts["calm_ms"]["to"] < 60000, cuts
    assert cuts["calm_ms"]["declared"] == 3600000 and cuts["calm_ms"]["unit"] == "ms", cuts
    for p in data["points"]:
        assert p["params"]["budget"] <= 4096 and p["params"]["many"] <= 80 and "weight" not in p["params"], p
    assert "Cut      budget to 4096 tokens/step (--max-num-batched-tokens), calm_ms to " in r.stdout, r.stdout
    assert "(--param NAME=LOW..HIGH): weight\n" in r.stdout, r.stdout
    # the default is the policy's own, although a step has less: it is run as it is, and is as good as what it is cut to
    simulated = call("simulate", "--policy", policy, *NODE, *LOAD, "--json", out)
    assert simulated.returncode == 0, simulated.stderr
    own = json.load(open(out))["runs"][0]["ttft_ms"]["p50"]
    assert abs(data["points"][0]["values"]["p50 TTFT"] / own - 1) < 1e-9, (data["points"][0], own)
    r = call("tune", "--policy", policy, *NODE, *LOAD, *goal, "--param", "budget=5000..8000")
    assert r.returncode == 1 and "from 4096 tokens/step on (--max-num-batched-tokens)" in r.stderr, r.stderr


def interrupts(folder):
    hill = write(folder, "hill.lua", HILL)
    p = subprocess.Popen(
        [BINARY, "tune", "--policy", hill, *NODE, *LOAD, "--objective", "p50 TTFT", "--budget", "10000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    while p.poll() is None and not open(f"/proc/{p.pid}/task/{p.pid}/children").read():
        time.sleep(0.05)  # until it runs its first simulation
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 1 and "interrupted" in err, (p.returncode, err)
    # as far as it came: nothing, before the first simulation was done, else at least the policy's own params
    assert not out or re.search(r"^default +[\d.]+ +.*x=5", out, re.M), out


def numbers(folder):
    """A list of our own: values, ranges, claims, bars, reasons; and what is wrong in one."""
    runs = {
        "a": {
            "args": "--hf-config tests/data/sim_model.json --sim-step-us 1000 --sim-row-us 10 "
            "--trace batch:requests=1,input=100,output=11",
            "policies": {"one": "fcfs", "slow": "fcfs --sim-step-us 2000"},
        }
    }
    ok = [
        {
            "id": "1",
            "paper": "P",
            "where": "T 1",
            "what": "ratio",
            "published": 1.5,
            "is": "a.slow.tpot_ms.p50 / a.one.tpot_ms.p50",
            "bar": [1, 2],
        },
        {
            "id": "2",
            "paper": "P",
            "where": "T 1",
            "what": "ends",
            "published": [1, 2],
            "is": ["a.one.tpot_ms.p50", "a.slow.tpot_ms.p50"],
            "unit": "ms",
        },
        {
            "id": "3",
            "paper": "P",
            "where": "T 2",
            "what": "claim",
            "published": "slower",
            "is": "a.slow.seconds > a.one.seconds",
            "bar": True,
        },
        {"id": "4", "paper": "Q", "where": "T 2", "what": "other", "published": 3, "why": "no cats are simulated"},
    ]

    def listed(numbers, **more):
        return write(folder, "list.json", json.dumps({"settings": "", "runs": runs, "numbers": numbers, **more}))

    out = os.path.join(folder, "table.md")
    r = call("reproduce", "--list", listed(ok), "--markdown", out)
    assert r.returncode == 0, r.stderr
    # a decode step of one row: 1010 us and 2010 us
    assert re.search(r"T 1 +ratio +1\.500 +1\.990 +\+32\.7%  bar 1 to 2$", r.stdout, re.M), r.stdout
    assert re.search(r"ends, ms +1\.000 to 2\.000 +1\.010 to 2\.010 +\+1\.0%, \+0\.5%$", r.stdout, re.M), r.stdout
    assert (
        re.search(r"claim +slower +yes +holds  must hold$", r.stdout, re.M)
        and "Q (1: 4)\n      no cats are simulated" in r.stdout
    )
    assert (
        "3 answered. 3 values to which nothing was fitted: error 1.0% (median; mean 11.4%), 2 of them within 10%."
        in r.stdout
        and "1 claims in words, 1 hold. 1 not covered. 2 bars, 0 missed." in r.stdout
    ), r.stdout
    text = open(out).read()
    # what was fitted, or given, is counted apart and marked
    kinds = [{**ok[0], "fitted": "a constant"}, {**ok[1], "given": "the trace"}, *ok[2:]]
    r = call("reproduce", "--list", listed(kinds), "--markdown", os.path.join(folder, "kinds.md"))
    assert "nothing was fitted" not in r.stdout and r.returncode == 0, r.stdout
    assert "1 values to which, or to others of whose figure, a constant was fitted: error 32.7%" in r.stdout, r.stdout
    assert re.search(r"2 values that repeat what the trace says: error 0\.[78]%", r.stdout), r.stdout
    marked = open(os.path.join(folder, "kinds.md")).read()
    assert "| **fitted**: a constant |" in marked and "| **given**: the trace |" in marked
    assert "| 1 | T 1 | ratio | 1.500 | 1.990 | +32.7% |" in text and "no cats" in text and "never measurements" in text
    assert call("reproduce", "--list", listed(ok), "--only", "claim").stdout.count("T 1") == 0
    assert "no number" in call("reproduce", "--list", listed(ok), "--only", "dogs").stderr
    missed = [dict(ok[0], bar=[1, 1.1])]
    r = call("reproduce", "--list", listed(missed))
    assert r.returncode == 0 and "bar 1 to 1.1: MISSED" in r.stdout
    r = call("reproduce", "--list", listed(missed), "--bars")
    assert r.returncode == 1 and "1 of 1 bars are missed" in r.stderr
    for wrong, says in (
        (dict(ok[0], **{"is": "a.none.seconds"}), "not RUN.POLICY.METRIC"),
        (dict(ok[0], **{"is": "a.one.seconds +"}), "is missing"),
        (dict(ok[0], **{"is": "a.one.cats"}), "has no 'cats'"),
        (dict(ok[0], why="both"), 'must have "is"'),
        (dict(ok[3], why=None), 'must have "is"'),
        (dict(ok[0], bar=5), '"bar" must be'),
        (dict(ok[0], published="word", bar=[1]), '"bar" must be'),
        (dict(ok[0], paper=4), "must be strings"),
    ):
        r = call("reproduce", "--list", listed([wrong]))
        assert r.returncode == 1 and says in r.stderr + r.stdout, (wrong, r.stderr, r.stdout)
    runs["a"]["args"] += " --trace nothing"
    r = call("reproduce", "--list", listed(ok))
    assert r.returncode == 1 and "could not be run" in r.stderr and "nothing" in r.stdout, r.stderr
    assert call("reproduce", "--list", write(folder, "list.json", "{")).returncode == 1
    assert call("reproduce", "--list", "no/such.json").returncode == 1 and call("reproduce", "cats").returncode == 2


def complete():
    """All 287 published numbers are there, each covered or with a reason."""
    numbers = json.load(open("models/papers/reproduce.json"))["numbers"]
    assert {n["id"] for n in numbers} - {""} == {str(i) for i in range(287)}
    assert all(("is" in n) != bool(n.get("why")) for n in numbers)


with tempfile.TemporaryDirectory() as where:
    for check in (
        (tune_mistakes, numbers)
        if "ASAN_OPTIONS" in os.environ
        else (optimum, windows, fronts, no_difference, units, tune_mistakes, interrupts, numbers)
    ):
        check(where)
        print("ok", check.__name__)
complete()
print("ok complete")
