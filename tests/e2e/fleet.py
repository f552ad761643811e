"""Several nodes behind a router, from outside: moonshift simulate --nodes, and how many devices moonshift plan says
keep the objectives: against a sweep of every way to use every size of a server, on five kinds of traffic; the flags
that it shows, with so many nodes, give the numbers that it shows; what it refuses."""

import csv
import json
import os
import sys
import tempfile

sys.path.insert(0, "tests/rig")
from planning import H200, call, plan

# Traffic, and objectives that some way to use a few devices keeps. One size of a step each: a sweep is long.
STEP = ["--max-devices", "16", "--max-num-batched-tokens", "2048"]
CASES = {
    "bursts": [
        *["--model", "llama-3.3-70b-fp8", "--rate", "20", "--trace"],
        *["gamma:rate=10,burstiness=0.2,requests=100,input=1000,output=40"],
        *["--slo-ttft-ms", "2500", "--slo-tpot-ms", "60", *STEP[:3], "512"],
    ],
    "chat": [
        *["--model", "llama-3.3-70b-fp8", "--shape", "in=200-2000,out=50-150", "--rate", "30", "--requests", "100"],
        *["--slo-ttft-ms", "1000", "--slo-tpot-ms", "40", *STEP],
    ],
    "long prompts": [
        *["--model", "qwen3-32b-fp8", "--shape", "in=12000,out=40", "--rate", "4", "--requests", "40"],
        *["--slo-ttft-ms", "4000", *STEP],
    ],
    "quick tokens": [
        *["--model", "qwen3-32b-fp8", "--shape", "in=500,out=60", "--rate", "40", "--requests", "80"],
        *["--slo-tpot-ms", "14", *STEP],
    ],
    "large model": [
        *["--model", "llama-3-70b", "--shape", "in=1000,out=40", "--rate", "20", "--requests", "80"],
        *["--slo-ttft-ms", "2000", "--slo-tpot-ms", "50", *STEP],
    ],
}
WIDE, SLOW = (name in os.environ for name in ("MOONSHIFT_WIDE", "MOONSHIFT_SLOW"))


def simulate(folder, *args):
    out = os.path.join(folder, "run.json")
    r = call("simulate", *args, "--json", out)
    assert r.returncode == 0, r.stderr
    return json.load(open(out)), r.stdout


def a_sweep_finds_no_fewer_devices():
    with tempfile.TemporaryDirectory() as folder:
        for name, args in CASES.items() if WIDE else [("chat", CASES["chat"])]:
            few, _ = plan(folder, *args, "--price", "2")
            every, _ = plan(folder, *args, "--budget", "5000")
            assert every["fleets"]["simulated"] > 1.5 * few["fleets"]["simulated"]
            mine, best = (x["fleets"]["best"][0]["devices"] for x in (few, every))
            print(f"  {name:14} {mine} devices, of a sweep {best}")
            assert 2 <= best < 16, best  # neither trivial nor at the bound
            assert mine <= 1.05 * best, (name, mine, best)


def flags_give_the_numbers():
    """The second witness: moonshift simulate, with the flags as they are printed and so many nodes; with one node fewer
    the objectives are missed."""
    with tempfile.TemporaryDirectory() as folder:
        args = CASES["chat"]
        found, text = plan(folder, *args, "--price", "3.6", "--router", "round-robin")
        again, text2 = plan(folder, *args, "--price", "3.6", "--router", "round-robin", "-j", "1")
        assert found == again and text == text2
        assert len(found["fleets"]["best"]) >= 3
        devices = [x["devices"] for x in found["fleets"]["best"]]
        assert devices == sorted(devices)
        for best in found["fleets"]["best"][:2]:
            way, n = best["plan"], best["servers"]
            assert best["devices"] == n * best["ranks"] and " ".join(way["flags"]) in text
            common = [*H200, "--model", found["model"], "--trace", found["fleets"]["trace"]]
            common += ["--requests", str(found["fleets"]["requests"]), "--router", "round-robin", *way["flags"]]
            whole, table = simulate(folder, *common, "--nodes", str(n))
            run = whole["runs"][0]
            assert n == 1 or (whole["nodes"] == n and f"{n} nodes behind a router, round-robin" in table)
            assert run["throughput"] == way["throughput"], (run["throughput"], way["throughput"])
            assert run["ttft_ms"]["p95"] == way["p95_ttft_ms"] <= 1000
            assert run["tpot_ms"]["p95"] == way["p95_tpot_ms"] <= 40
            cost = best["devices"] * 3.6 / 3600 / run["throughput"] * 1e6
            assert abs(best["million_tokens"] - cost) < 1e-9 * cost
            if n > 1:
                less = simulate(folder, *common, "--nodes", str(n - 1))[0]["runs"][0]
                assert less["ttft_ms"]["p95"] > 1000 or less["tpot_ms"]["p95"] > 40


def bands_of_a_plan():
    with tempfile.TemporaryDirectory() as folder:
        found, text = plan(folder, *CASES["chat"], "--samples", "6", "--budget", "12")
        for best in found["fleets"]["best"]:
            assert best["samples"] == 6 and 0 <= best["kept"] <= 6
            for key in ("p95_ttft_ms", "p95_tpot_ms", "throughput"):
                low, high = best["bands"][key]
                assert 0 < low < high < 10 * low, (key, low, high)
            assert f"kept in {best['kept']} of 6 samples" in text


def what_nothing_keeps():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "plan.json")
        args = [*H200, *CASES["chat"][:-8], "--slo-ttft-ms", "1", "--budget", "8", "--json", out]
        r = call("plan", *args, "--max-devices", "16")
        assert r.returncode == 1 and "no plan keeps the objectives" in r.stderr
        assert "no 16 devices keep that" in r.stdout and json.load(open(out))["fleets"]["best"] == []


def a_rate_of_its_own():
    """The same requests, closer together: 8 a second on average, whatever the trace says."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.csv")
        with open(path, "w") as f:
            f.write("arrival_s,input_tokens,output_tokens\n")
            f.writelines(f"{i * i / 100},100,5\n" for i in range(101))
        log = os.path.join(folder, "log.csv")
        base = [*H200, "--model", "qwen3-32b-fp8", "--trace", path, "--request-log", log]
        simulate(folder, *base, "--rate", "8")
        rows = [line.split(",") for line in open(log).read().splitlines()[1:]]
        at = [float(r[2]) for r in rows]
        assert len(at) == 101 and abs(at[-1] - 12.5) < 1e-6
        assert all(abs(t - i * i / 10000 * 12.5) < 1e-6 for i, t in enumerate(at))
        simulate(folder, *base, "--rate", "8", "--requests", "10")  # the first ten, when they came before
        rows = [line.split(",") for line in open(log).read().splitlines()[1:]]
        assert [float(r[2]) for r in rows] == at[:10]
        r = call("simulate", *H200, "--model", "qwen3-32b-fp8", "--trace", "batch:requests=4", "--rate", "2")
        assert r.returncode == 1 and "come at once" in r.stderr


def rows_of(log):
    with open(log) as f:
        return list(csv.DictReader(f))


def clients_leave_whichever_node_they_are_on():
    """A recording in which every fourth client leaves at once, on other machines than its own."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = os.path.join(folder, "left.rec"), os.path.join(folder, "log.csv")
        with open("tests/data/server.rec") as f, open(path, "w") as out:
            for line in f:
                word = line.split()
                if word[0] == "e" and int(word[2]) % 4 == 0:
                    line = f"e {word[1]} {word[2]} abort 0 0\n"
                out.write(line)
                if word[0] == "a" and int(word[2]) % 4 == 0:
                    out.write(f"c {word[1]} {word[2]} abort\n")
        for n in ("1", "3"):
            simulate(folder, *H200, "--model", "llama-3.1-8b", "--trace", path, "--nodes", n, "--request-log", log)
            rows = rows_of(log)
            assert len(rows) == 40 and {r["node"] for r in rows} == {str(i) for i in range(int(n))}
            assert sum(r["ending"] == "abort" for r in rows) == 10, [r["ending"] for r in rows]
            assert sum(r["ending"] == "length" for r in rows) == 30
            assert n == "1" or len({r["node"] for r in rows if r["ending"] == "abort"}) > 1


def a_policy_that_fails_on_its_node():
    """Each node has a policy of its own: one that gives up after a while is withdrawn there, and nobody is lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tired.lua")
        with open("policies/fcfs.lua") as f, open(path, "w") as out:
            out.write(
                "local inner = (function()\n" + f.read() + "\nend)()\nlocal step, n = inner.step, 0\n"
                "inner.step = function(...) n = n + 1 if n > 300 then error('tired') end return step(...) end\n"
                "return inner\n"
            )
        base = [*H200, "--model", "llama-3.1-8b", "--ranks", "1", "--nodes", "3", "--policy", path]
        found, table = simulate(folder, *base, "--trace", "poisson:rate=20,requests=200,input=100,output=20")
        run = found["runs"][0]
        assert run["finished"] == run["requests"] == 200 and run["conserved"]
        for node in range(3):
            assert f"tired, node {node}: " in table, table


def refusals():
    chat = CASES["chat"]
    for args, words in [
        (["plan", *H200, *chat, "--nodes", "2"], "a plan chooses that"),
        (["plan", *H200, *chat, "--router", "random"], "must be one of round-robin"),
        (["plan", *H200, *chat[:4], "--rate", "3", "--max-devices", "4"], "needs an objective"),
        (["plan", *H200, "--model", "qwen3-32b", "--shape", "in=9,out=9,rate=2", "--rate", "3"], "both say how often"),
        (["simulate", *H200, "--model", "qwen3-32b", "--trace", "poisson:rate=1", "--nodes", "65"], "between 1 and 64"),
        (["simulate", *H200, "--model", "qwen3-32b", "--trace", "poisson:rate=1", "--rate", "-1"], "between 0"),
    ]:
        r = call(*args)
        assert r.returncode in (1, 2) and words in r.stderr, (args, r.returncode, r.stderr)


if __name__ == "__main__":
    failed = 0
    tests = [
        bands_of_a_plan,
        what_nothing_keeps,
        a_rate_of_its_own,
        clients_leave_whichever_node_they_are_on,
        a_policy_that_fails_on_its_node,
        refusals,
    ]
    if not SLOW:  # the same searches, with other flags
        tests += [a_sweep_finds_no_fewer_devices, flags_give_the_numbers]
    for test in tests:
        try:
            test()
        except AssertionError as error:
            failed += 1
            print(f"{test.__name__}: AssertionError: {error}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    raise SystemExit(failed > 0)
