"""What if another policy had been live, from a live server's recording to the prediction, on the simulated device in
real time: totals of step times stay, those of another policy are predicted, what was never recorded is told, or
refused. Nothing here depends on how fast this machine is: what is compared is modelled time."""

import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/rig")
import cases
import replayed

NODE = ["--load-format", "dummy", "--hf-config", "tests/data/sim_ranks.json", "--device", "sim", "--port", "0"]
NODE += ["--served-model-name", "m", "--admin-listen", "off", "--max-num-seqs", "6", "--sim-step-us", "8000"]
NODE += ["--sim-row-us", "80"]


def burst(n):
    """All at once, so that the policy alone decides who is in which step."""
    return [(0.0, text, 20 + tokens) for _, text, tokens in replayed.poisson(7, n, 1, (10, 60), (1, 20))]


def told(path, *args):
    run, said = replayed.simulate(path, *args)
    return run, run["recording"], said


def step_seconds(run, recording):
    """Of all steps, without what goes by around them."""
    steps = recording["recorded"] if recording["compared"] else recording
    return run["steps"] * steps["mean_step_ms"] * 1e-3


def totals_stay_and_another_budget_is_predicted(folder):
    paths = {budget: f"{folder}/{budget}.rec" for budget in (512, 24)}
    for budget, path in paths.items():
        replayed.record(path, burst(24), [*NODE, "--policy", "fcfs", "--policy-param", f"budget={budget}"])
    live = {budget: told(path) for budget, path in paths.items()}
    for run, recording, _ in live.values():
        assert recording["compared"] and recording["equal"] and run["finished"] == 24, recording
    own, recording, said = told(paths[512], "--what-if")
    fit = recording["recorded"]
    assert abs(fit["modelled_step_ms"] / fit["mean_step_ms"] - 1) < 1e-9, fit
    assert fit["mean_lag_ms"] > 0 and recording["mean_lag_ms"] > 0 and not recording["compared"], recording
    # who was in which step of a live run depends on when its requests were read: tests/sim/what_if.c has the 6 %
    assert abs(step_seconds(own, recording) / step_seconds(*live[512][:2]) - 1) < 0.15, (own["steps"], recording)
    assert said == told(paths[512], "--what-if")[2] != told(paths[512], "--what-if", "--seed", "2")[2]
    other, recording, _ = told(paths[512], "--policy", "fcfs:budget=24")
    apart = step_seconds(*live[24][:2]) / step_seconds(*live[512][:2])
    assert apart > 1.05, apart  # else nothing is predicted
    assert abs(step_seconds(other, recording) / step_seconds(*live[24][:2]) - 1) < 0.3, (other["steps"], recording)
    assert other["finished"] == own["finished"] == 24 and not recording["guesses"], recording


def what_never_ran_is_told(folder):
    path = f"{folder}/one.rec"
    replayed.record(path, burst(8), [*NODE, "--ranks", "4", "--policy", "static"])
    run, recording, said = told(path, "--policy", "static:dp=4")
    assert [(g["unseen"], g["sp"], g["tp"]) for g in recording["guesses"]] == [("layout", 1, 1)], recording
    assert recording["guesses"][0]["time"] > 0.999 and recording["guesses"][0]["steps"] > 0.999, recording
    assert re.search(r"static:dp=4: ~ guessed: 100.0% .* the layout sp 1, tp 1, which the recording never shows", said)
    assert re.search(r"TTFT p50 \(ms\) +~\d", said), said
    seen, recording, said = told(path, "--what-if", "--strict")
    assert recording["guesses"] == [] and "~" not in said and seen["finished"] == run["finished"] == 8, said
    args = [replayed.BINARY, "simulate", "--trace", path, "--policy", "static:dp=4", "--strict"]
    r = subprocess.run(args, capture_output=True, text=True, env=replayed.ENV)
    assert r.returncode == 1 and "--strict: it would run the layout sp 1, tp 1" in r.stderr, (r.stdout, r.stderr)
    args = [replayed.BINARY, "simulate", "--trace", "poisson:rate=1", "--strict", "--hf-config", NODE[3]]
    r = subprocess.run(args, capture_output=True, text=True, env=replayed.ENV)
    assert r.returncode == 1 and "for a recording" in r.stderr, r.stderr


CASES = [totals_stay_and_another_budget_is_predicted, what_never_ran_is_told]
if "ASAN_OPTIONS" in os.environ:  # slow there
    CASES = [what_never_ran_is_told]

cases.run(CASES, in_folder=True)
