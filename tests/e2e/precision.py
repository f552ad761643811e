"""serve --cpu-precision: fast answers are the same numbers on one rank and on several in any layout, alone and in a
batch; they are others than high ones; where there is no such choice it is refused."""

import concurrent.futures
import json
import subprocess
import sys

sys.path.insert(0, "tests/rig")
from file_site import ENV, Site, command

PROMPTS = ["The tide turned. " * n for n in (1, 3, 8, 20)]


def answer(site, prompt):
    body = {"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    status, it = site.json("POST", "/v1/completions", json.dumps(body), **{"Content-Type": "application/json"})
    assert status == 200, it
    return it["choices"][0]["text"], it["choices"][0]["logprobs"]["token_logprobs"]


def answers(*flags):
    """Of each prompt: alone, then all at once; the same."""
    with Site(None, *flags) as site:
        alone = [answer(site, p) for p in PROMPTS]
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(lambda p: answer(site, p), PROMPTS)) == alone, flags
    return alone


high, fast = answers("--cpu-precision", "high"), answers("--cpu-precision", "fast")
assert answers() == fast, "fast is the default"
assert fast != high
print("ok eight bits are other numbers than sixteen, alone and in a batch the same")
for layout in (["-tp", "2"], ["-sp", "2"], ["-tp", "2", "-pp", "2"]):
    assert answers("--cpu-precision", "fast", *layout) == fast, layout
print("ok no layout shows")
for word in ("high", "fast"):
    p = subprocess.run(
        command(None, "--device", "sim", "--cpu-precision", word), capture_output=True, text=True, timeout=60, env=ENV
    )
    assert p.returncode and "--device sim has no such choice; it is for --device cpu" in p.stderr, p.stderr
print("ok it is refused where there is none")
print("3 passed, 0 failed")
