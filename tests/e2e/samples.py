"""moonshift simulate --samples: bands and comparisons are what the samples say, a sample is the same alone and among
others, and the same bytes come out however many run at once."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rig"))
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
WAIT_S = 400
MODEL = ["--model", "llama-3.3-70b-fp8"]
H200 = ["--hardware", "h200x8", *MODEL]
FIXED = ["--hf-config", "tests/data/sim_ranks.json", "--ranks", "4", "--kv-cache-memory-bytes", "16MiB"]
GENERATED = ["--trace", "poisson:rate=6,requests=20,input=100-3000,output=5-40"]


def simulate(*args):
    return subprocess.run([BINARY, "simulate", *args], capture_output=True, text=True, timeout=WAIT_S, env=ENV)


def bands(folder, *args):
    """(what is printed, the JSON)"""
    path = os.path.join(folder, "out.json")
    r = simulate(*args, "--json", path)
    assert r.returncode == 0, (args, r.stderr)
    with open(path) as f:
        return r.stdout, json.load(f)


def refused(words, *args):
    r = simulate(*args)
    assert r.returncode in (1, 2) and words in r.stderr and not r.stdout, (args, r.returncode, r.stderr, r.stdout)


def recorded(folder):
    """A trace that is the same in every sample."""
    path = os.path.join(folder, "trace.csv")
    with open(path, "w") as f:
        f.write("arrival_s,input_tokens,output_tokens\n0.0,1200,30\n0.4,300,20\n0.5,9000,40\n1.1,700,25\n")
    return ["--trace", path]


def description(folder, name, **changes):
    """A copy of a shipped description, its tables beside it; None takes a field away."""
    with open(f"models/hardware/{name}.json") as f:
        d = {**json.load(f), **changes}
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as f:
        json.dump({k: v for k, v in d.items() if v is not None}, f)
    shutil.copy("models/hardware/h200-kernels.json", folder)
    return ["--hardware", path, *MODEL]


def band(samples):
    """As the page says: 5% at most are left out on either side."""
    s, out = sorted(samples), 5 * len(samples) // 100
    return s[out], (s[(len(s) - 1) // 2] + s[len(s) // 2]) / 2, s[-1 - out]


def the_same_bytes_however_many_at_once(folder):
    args = [*H200, *GENERATED, "--policy", "shift", "--policy", "static:dp=8", "--samples", "5", "--seed", "4"]
    first = bands(folder, *args)
    assert first == bands(folder, *args)
    assert first == bands(folder, *args, "-j", "1")
    assert first == bands(folder, *args, "-j", "2")
    args[-1] = "5"
    other = bands(folder, *args)[1]["bands"]
    assert other["policies"] != first[1]["bands"]["policies"]


def numbers_are_what_the_samples_say(folder):
    n = 24
    out, result = bands(
        folder, *H200, *GENERATED, "--policy", "shift", "--policy", "static:dp=8", "--samples", str(n), "--seed", "9"
    )
    b = result["bands"]
    assert b["samples"] == n and b["twin"] == "h200x8-fitted" and len(result["runs"]) == 2
    one, two = (p["metrics"] for p in b["policies"])
    assert set(one) == set(two) and len(one) > 25
    wide = 0
    for m in (*one.values(), *two.values()):
        low, middle, high = band(m["samples"])
        q = m["quantiles"]
        assert (q["n"], q["p5"], q["p50"], q["p95"]) == (n, low, middle, high), m
        assert (q["p0"], q["p100"]) == (min(m["samples"]), max(m["samples"])), m
        wide += high > low
    assert wide > 30, wide
    (pair,) = b["pairs"]
    assert (pair["first"], pair["second"]) == ("shift", "static:dp=8")
    for key, p in pair["metrics"].items():
        less = [y - x for x, y in zip(one[key]["samples"], two[key]["samples"])]
        low, middle, high = band(less)
        assert (p["difference"]["p5"], p["difference"]["p50"], p["difference"]["p95"]) == (low, middle, high), key
        more = any(w in key for w in ("per_s", "throughput", "goodput"))
        better = low > 0 if more else high < 0
        tie = low <= 0 <= high
        assert p["second_is"] == ("tie" if tie else "better" if better else "worse"), (key, p)
        # both orders are seen in more than one sample of twenty, or in none at all
        assert tie == (5 * n < 100 * min(sum(d <= 0 for d in less), sum(d >= 0 for d in less))), (key, less)
    low, middle, high = band(one["ttft_ms.p50"]["samples"])
    shown = re.search(r"^TTFT p50 \(ms\) +~([\d.]+) \(([\d.]+)\.\.([\d.]+)\)", out, re.M)
    for text, v in zip(shown.groups(), (middle, low, high)):
        assert abs(float(text) - v) <= 0.001 * high, (shown[0], v)
    assert "Samples  24 of each policy: kernels by the residuals of h200x8" in out, out
    assert "other traffic of the generator" in out and "fewer than" not in out


def crowded(folder):
    """A trace of tenant b, who asks now and then, beside a crowd of tenant a's; of more tenants than are shown."""
    path = os.path.join(folder, "tenants.csv")
    with open(path, "w") as f:
        f.write("arrival_s,input_tokens,output_tokens,tenant\n")
        for i in range(48):
            f.write(f"{i * 0.01},2000,20,a\n")
            if i % 8 == 4:
                f.write(f"{i * 0.01},900,10,b\n")
        for i in range(8):
            f.write(f"{1 + i},{100 + i},2,other-{i}\n")
    return ["--trace", path]


def tenants_have_bands_too(folder):
    n = 20
    small = ["--ranks", "8", "--max-num-seqs", "4"]
    args = [*H200, *crowded(folder), *small, "--policy", "fcfs", "--policy", "fair", "--policy", "fcfs"]
    out, result = bands(folder, *args, "--samples", str(n))
    tenants = {t["tenant"]: t for t in result["bands"]["tenants"]}
    assert list(tenants) == [t["tenant"] for t in result["runs"][0]["tenants"]], list(tenants)
    assert len(tenants) == 10 and "2 more tenants with fewer tokens" in out
    for t in tenants.values():
        one, two, _ = (p["metrics"] for p in t["policies"])
        for m in (*one.values(), *two.values()):
            q, known = m["quantiles"], [v for v in m["samples"] if v is not None]
            assert q["n"] == len(known) and (not known or (q["p5"], q["p50"], q["p95"]) == band(known)), (
                t["tenant"],
                m,
            )
        assert one["finished"]["samples"] == [one["requests"]["samples"][0]] * n, one["finished"]
        other, same, _ = t["pairs"]
        assert (same["first"], same["second"]) == ("fcfs", "fcfs")
        assert same["metrics"] and all(p["second_is"] == "tie" for p in same["metrics"].values()), same
        for key, p in other["metrics"].items():
            less = [y - x for x, y in zip(one[key]["samples"], two[key]["samples"]) if None not in (x, y)]
            low, middle, high = band(less)
            assert (p["difference"]["p5"], p["difference"]["p50"], p["difference"]["p95"]) == (low, middle, high), key
            assert p["second_is"] == ("tie" if low <= 0 <= high else "better" if high < 0 else "worse"), (key, p)
    # the tokens of all are those of its tenants
    for p in range(3):
        parts = [t["policies"][p]["metrics"]["output_tokens"]["samples"] for t in tenants.values()]
        assert {sum(each) for each in zip(*parts)} == {48 * 20 + 6 * 10 + 8 * 2}
    assert tenants["b"]["pairs"][0]["metrics"]["ttft_ms.p50"]["second_is"] == "better", tenants["b"]["pairs"][0]
    # both tables: the medians of b, and by how much it fares better
    blocks = re.findall(r"^tenant b\n((?:  .*\n)+)", out, re.M)
    assert len(blocks) == 2, out
    q = tenants["b"]["policies"][0]["metrics"]["ttft_ms.p50"]["quantiles"]
    shown = re.match(r"  finished +6 +6 +6\n  TTFT p50 \(ms\) +~?([\d.]+) \(([\d.]+)\.\.([\d.]+)\)", blocks[0])
    assert shown, blocks[0]
    for text, v in zip(shown.groups(), (q["p50"], q["p5"], q["p95"])):
        assert abs(float(text) - v) <= 0.001 * q["p95"], (shown[0], v)
    assert re.match(r"  TTFT p50 \(ms\) +-[\d.]+% \(-[\d.]+\.\.-[\d.]+\) better +\+0.0% \S+ +tie\n", blocks[1]), blocks[
        1
    ]


def a_policy_ties_with_itself(folder):
    out, result = bands(folder, *H200, *GENERATED, "--policy", "shift", "--policy", "shift", "--samples", "6")
    (pair,) = result["bands"]["pairs"]
    assert len(pair["metrics"]) > 15
    for key, p in pair["metrics"].items():
        assert p["second_is"] == "tie" and p["difference"]["p0"] == p["difference"]["p100"] == 0, (key, p)
    assert "better" not in out and "worse" not in out
    assert "fewer than 20 samples" in out


def a_slower_policy_does_not(folder):
    args = [*H200, *recorded(folder), "--policy", "static:sp=8", "--policy", "static:dp=8", "--samples", "20"]
    out, result = bands(folder, *args)
    (pair,) = result["bands"]["pairs"]
    for key in ("ttft_ms.p99", "completion_ms.p99", "seconds", "throughput"):
        assert pair["metrics"][key]["second_is"] == "worse", (key, pair["metrics"][key])
    assert re.search(r"^TTFT p99 \(ms\) +\+[\d.]+% \(\+[\d.]+\.\.\+[\d.]+\) +worse$", out, re.M), out


def without_errors_a_band_has_no_width(folder):
    with open("models/hardware/h200x8-fitted.json") as f:
        residuals = json.load(f)["residuals"]
    for kind in residuals.values():
        if isinstance(kind, dict):
            kind["quantiles"] = [[1] * len(q) for q in kind["quantiles"]]
    exact = description(folder, "h200x8-fitted", residuals=residuals, twin=None)
    out, result = bands(folder, *exact, *recorded(folder), "--policy", "shift", "--samples", "4")
    plain = result["runs"][0]
    for key, m in result["bands"]["policies"][0]["metrics"].items():
        assert len(set(m["samples"])) == 1, (key, m)
        name, _, inner = key.partition(".")
        value = plain[name][inner] if inner else plain[name]
        assert abs(m["samples"][0] - value * (100 if key in ("kv_high_water", "outside.share") else 1)) < 1e-9, key
    assert "the same trace" in out
    # the same errors at all shapes, and nothing but kernels differs: they are seen
    for kind in residuals.values():
        if isinstance(kind, dict):
            kind["quantiles"] = [[1.25] * len(q) for q in kind["quantiles"]]
    slower = description(folder, "h200x8-fitted", residuals=residuals, twin=None)
    m = bands(folder, *slower, *recorded(folder), "--policy", "shift", "--samples", "2")[1]
    ratio = m["bands"]["policies"][0]["metrics"]["ttft_ms.p99"]["quantiles"]["p50"] / plain["ttft_ms"]["p99"]
    assert 1.05 < ratio < 1.25, ratio


def what_is_not_known_is_said(folder):
    without = description(folder, "h200x8-fitted", residuals=None, twin=None)
    out, result = bands(folder, *without, *recorded(folder), "--policy", "shift", "--samples", "3")
    assert "no band of kernels, as h200x8-fitted has no residuals; the same trace" in out, out
    assert all(len(set(m["samples"])) == 1 for m in result["bands"]["policies"][0]["metrics"].values())
    with open("models/hardware/h200x8.json") as f:
        residuals = json.load(f)["residuals"]
    del residuals["prefill_fp8"]
    some = description(folder, "h200x8", residuals=residuals, twin=None)
    out, _ = bands(folder, *some, *recorded(folder), "--policy", "shift", "--samples", "2")
    assert "by the residuals of h200x8 (none of prefill_fp8)" in out, out
    out, result = bands(folder, *FIXED, *GENERATED, "--policy", "fcfs", "--samples", "4")
    assert "no band of kernels, as a step costs what was given; other traffic of the generator" in out, out
    assert len(set(result["bands"]["policies"][0]["metrics"]["ttft_ms.mean"]["samples"])) > 1


def a_sample_is_the_same_alone(folder):
    args = [*recorded(folder), "--policy", "shift", "--seed", "3"]
    metrics = bands(folder, *H200, *args, "--samples", "4")[1]["bands"]["policies"][0]["metrics"]
    for i in range(4):
        run = bands(folder, *H200, *args, "--sample", str(i + 1))[1]["runs"][0]
        assert run["completion_ms"]["mean"] == metrics["completion_ms.mean"]["samples"][i]
    # every second one is the twin's, with the same draws
    for name, of in (("h200x8", (1, 3)), ("h200x8-fitted", (2, 4))):
        alone = description(folder, name, twin=None)
        for i in of:
            run = bands(folder, *alone, *args, "--sample", str(i))[1]["runs"][0]
            assert run["completion_ms"]["mean"] == metrics["completion_ms.mean"]["samples"][i - 1], (name, i)


def mistakes(folder):
    trace = recorded(folder)
    refused("--samples 1 has no band", *H200, *trace, "--samples", "1")
    for bad in ("-1", "1001", "many"):
        refused("--samples", *H200, *trace, "--samples", bad)
    refused("--sample is one of --samples", *H200, *trace, "--samples", "3", "--sample", "1")
    other = description(folder, "h200x8", twin="none-such")
    refused("none-such", *other, *trace, "--samples", "2")
    with open("models/hardware/h200x8-fitted.json") as f:
        devices = {**json.load(f)["devices"], "v": 16}
    wider = description(folder, "h200x8", devices=devices)
    refused("h200x8-fitted is no twin of h200x8", *wider, *trace, "--samples", "2")
    assert simulate(*wider, *trace, "--policy", "shift").returncode == 0  # without samples it is not looked at
    refused("nosuch", *H200, *trace, "--policy", "nosuch", "--samples", "2")
    tune = subprocess.run([BINARY, "tune", "--samples", "3"], capture_output=True, text=True, env=ENV)
    assert tune.returncode and "--samples" in tune.stderr, tune.stderr


def ctrl_c_shows_the_plain_run(folder):
    args = [BINARY, "simulate", *H200, *recorded(folder), "--policy", "shift", "--samples", "1000", "-j", "1"]
    p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    assert "simulated in" in p.stderr.readline()  # from here on samples run
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 1 and "interrupted" in err, (p.returncode, err)
    assert re.search(r"^requests +4$", out, re.M) and "band" not in out, out


cases.run(
    [
        the_same_bytes_however_many_at_once,
        numbers_are_what_the_samples_say,
        tenants_have_bands_too,
        a_policy_ties_with_itself,
        a_slower_policy_does_not,
        without_errors_a_band_has_no_width,
        what_is_not_known_is_said,
        a_sample_is_the_same_alone,
        mistakes,
        ctrl_c_shows_the_plain_run,
    ],
    in_folder=True,
)
