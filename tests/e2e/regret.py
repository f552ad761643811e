"""moonshift regret from outside: a trace whose best schedule is known, the bound against a second witness and against
all that was run, the same bytes twice, what it refuses, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
H200 = ["--hardware", "h200x8-fitted", "--model", "llama-3.3-70b-fp8"]
SMALL = ["--hf-config", "tests/data/sim_ranks.json", "--ranks", "4", "--kv-cache-memory-bytes", "16MiB"]
LOAD = ["--trace", "gamma:rate=12,burstiness=0.3,requests=60,input=20-900,output=5-60", "--seed", "7"]
METRIC = "mean completion"
WAIT_S = 600


def call(*args):
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=WAIT_S, env=ENV)


def regret(folder, *args):
    out = os.path.join(folder, "regret.json")
    r = call("regret", *args, "--json", out)
    assert r.returncode == 0, (args, r.stderr)
    with open(out) as f:
        return json.load(f), r.stdout


def value(run, metric=METRIC):
    return run["metrics"][metric]["value"]


def quiet_then_burst(folder):
    """Long answers one at a time, which one wide group makes soonest; then a burst, for which replicas are better."""
    path = os.path.join(folder, "turn.csv")
    with open(path, "w") as f:
        f.write("arrival_s,input_tokens,output_tokens\n")
        f.writelines(f"{i * 6},600,300\n" for i in range(10))
        f.writelines(f"{60 + i * 0.02:.2f},600,60\n" for i in range(200))
    return path


def finds_the_switch(folder):
    trace, policy = quiet_then_burst(folder), os.path.join(folder, "best.lua")
    args = [*H200, "--trace", trace]
    found, text = regret(folder, *args, "--policy", "shift", "--budget", "16", "--bins", "12", "--schedule-out", policy)
    runs = found["runs"]
    bound = runs[found["bound"][METRIC]]
    assert bound["kind"] == "schedule" and bound["metrics"][METRIC]["regret"] == 0, bound
    steps = bound["schedule"]
    assert steps[0]["groups"] == 1 and steps[-1]["groups"] > 1 and len(steps) >= 2, steps
    assert 50 < steps[-1]["at_s"] < 61, steps
    statics = [r for r in runs if r["kind"] == "static" and "metrics" in r]
    layouts = {r["asked"] for r in statics}
    assert layouts >= {f"static:dp={n},sp=1,tp={8 // n}" for n in (1, 2, 4, 8)} | {"static:dp=1,sp=8,tp=1"}, layouts
    assert value(bound) < 0.97 * min(value(r) for r in statics)
    for r in runs:
        if r.get("counts"):
            assert r["metrics"][METRIC]["regret"] >= 0
            assert abs(r["metrics"][METRIC]["regret"] - (value(r) / value(bound) - 1)) < 1e-9
    # replicas alone lose in the quiet minutes, one group alone in the burst
    one = next(r for r in statics if r["asked"] == "static:dp=1,sp=1,tp=8")
    assert one["metrics"][METRIC]["worst"][0]["share"] > 0.9 and one["metrics"][METRIC]["worst"][0]["from_s"] > 50
    assert "best schedule found" in text and "not the best there is: the schedule from 0.00 s 1 x" in text, text
    # the second witness: the schedule is a policy like any other
    out = os.path.join(folder, "again.json")
    r = call("simulate", *args, "--policy", policy, "--json", out)
    assert r.returncode == 0, r.stderr
    with open(out) as f:
        run = json.load(f)["runs"][0]
    assert run["completion_ms"]["mean"] == value(bound) and run["finished"] == 210
    assert {s["at_s"] for s in run["switches"] if s["at_s"] > 1}, "it never switched"
    r = call("simulate", *args, "--policy", "shift", "--json", out)
    with open(out) as f:
        assert json.load(f)["runs"][0]["completion_ms"]["mean"] == value(runs[0])


def same_bytes(folder):
    args = [*SMALL, *LOAD, "--policy", "flying:many=2", "--policy", "fcfs", "--budget", "9", "--bins", "5"]
    args += ["--metric", METRIC, "--metric", "throughput"]
    first = regret(folder, *args, "-j", "1")
    assert first == regret(folder, *args, "-j", "2")
    found, text = first
    assert found["simulations"] == len([r for r in found["runs"] if "metrics" in r])
    assert len([r for r in found["runs"] if r["kind"] == "schedule"]) <= 9
    best = max(value(r, "throughput") for r in found["runs"] if r.get("counts"))
    assert value(found["runs"][found["bound"]["throughput"]], "throughput") == best
    assert re.search(r"^throughput +/ static", text, re.M) and re.search(r"^mean completion, ms", text, re.M), text


def alone(folder):
    """With nothing but fixed partitions and policies, whoever is best has no regret; and beside itself it is 1."""
    found, text = regret(folder, *SMALL, *LOAD, "--policy", "fcfs", "--policy", "./policies/fcfs.lua", "--budget", "0")
    runs = [r for r in found["runs"] if r.get("counts")]
    bound = found["runs"][found["bound"][METRIC]]
    assert value(bound) == min(value(r) for r in runs) and not [r for r in runs if r["kind"] == "schedule"]
    a, b = found["runs"][:2]
    assert value(a) == value(b) and a["metrics"] == b["metrics"]
    row = next(line for line in text.split("\n") if line.startswith(bound["asked"]))
    assert " 1.000 " in row and " 0.0%" in row, row


def all_policies(folder):
    found, text = regret(folder, *SMALL, *LOAD, "--requests", "20", "--budget", "0")
    asked = {r["asked"] for r in found["runs"] if r["kind"] == "policy"}
    assert asked >= {f[:-4] for f in os.listdir("policies") if f.endswith(".lua")}, asked
    for r in found["runs"]:
        assert "metrics" in r or f"Left out {r['asked']}: " in text, r


def mistakes():
    for args, words in (
        ([*SMALL], "which traffic?"),
        ([*LOAD, "--hardware", "h200x8"], "which model?"),
        ([*SMALL, *LOAD, "--metric", "cats"], "there is no metric 'cats'"),
        ([*SMALL, *LOAD, *["--metric", "p50 TTFT"] * 5], "at most 4"),
        ([*SMALL, *LOAD, "--bins", "0"], "--bins must be between 1 and 256"),
        ([*SMALL, *LOAD, "--policy", "no-such"], "no-such"),
        ([*SMALL, *LOAD, "--policy", "static:dp=3"], "static:dp=3"),
        ([*SMALL, *LOAD, "--policy-param", "budget=5"], "behind its name"),
        ([*SMALL, *LOAD, "--plots", "x"], "moonshift simulate --policy"),
        ([*SMALL, *LOAD, "--request-log", "x"], "belongs to one run"),
        ([*SMALL, *LOAD, "--policy-dir", "tests/data/templates"], "no policy"),
        ([*SMALL, *LOAD, "flying"], "a word too many"),
        ([*SMALL, "--trace", "no/such.csv", "--policy", "fcfs"], "no/such.csv"),
    ):
        r = call("regret", *args)
        assert r.returncode in (1, 2) and words in r.stderr and not r.stdout, (args, r.returncode, r.stdout, r.stderr)
    r = call("simulate", *SMALL, *LOAD, "--bins", "4")
    assert r.returncode == 2 and "--bins belongs to moonshift regret" in r.stderr, r.stderr


def interrupts():
    args = [*SMALL, *LOAD, "--policy", "fcfs", "--budget", "100000", "--bins", "200"]
    p = subprocess.Popen([BINARY, "regret", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    time.sleep(4)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 1 and "interrupted" in err, (p.returncode, err)
    # as far as it came: nothing, before the first policy was done, else that at least
    assert not out or re.search(r"^fcfs +~?[\d.]+ ", out, re.M), out


with tempfile.TemporaryDirectory() as where:
    for check in (finds_the_switch, same_bytes, alone, all_policies):
        check(where)
        print("ok", check.__name__)
mistakes()
print("ok mistakes")
interrupts()
print("ok interrupts")
