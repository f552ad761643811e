"""The bars of the cost model: what Shift Parallelism and Flying Serving published, within the model's own tolerance, by
whole runs of the engine (models/papers/reproduce.json)."""

import os
import re
import subprocess

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
# Under a sanitizer whole traces take minutes and say nothing new: the capacities then stand for all.
CHOICE = ["--only", "max context", "--only", "KV capacity"] if "ASAN_OPTIONS" in os.environ else []

r = subprocess.run([BINARY, "reproduce", "--bars", *CHOICE], capture_output=True, text=True, timeout=550, env=ENV)
print(r.stdout)
held = len(re.findall(r"  (bar \S+ to \S+|must hold)$", r.stdout, re.M))
missed = r.stdout.count(": MISSED")
said = re.search(r"(\d+) bars, (\d+) missed", r.stdout)
assert said and (int(said[1]), int(said[2])) == (held + missed, missed), r.stdout + r.stderr
assert r.returncode == (1 if missed else 0), r.stderr
assert held + missed >= (5 if CHOICE else 24), r.stdout
print(f"{held} passed, {missed} failed")
assert not missed
