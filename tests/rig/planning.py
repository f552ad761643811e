"""moonshift plan from outside, for the tests of what it says: the program without settings of the environment, and a
plan as JSON beside what was printed."""

import json
import os
import subprocess

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
H200 = ["--hardware", "h200x8-fitted"]


def call(*args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
    return subprocess.run([BINARY, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)


def plan(folder, *args):
    out = os.path.join(folder, "plan.json")
    r = call("plan", *H200, *args, "--json", out)
    assert r.returncode == 0, r.stderr
    return json.load(open(out)), r.stdout
