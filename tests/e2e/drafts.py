"""Suffix decoding in a live server: what a tenant was told once is guessed when it asks again, another tenant's steps
are those of one that never drafts, and texts are always the same."""

import concurrent.futures
import json
import os
import re
import sys
import time

sys.path.insert(0, "tests/rig")
from file_site import FOLDER, Site

KEYS = ["--api-key", "one=anna", "--api-key", "two=bert"]
N = 120
ALWAYS = """
return {
  api = 1,
  doc = "twelve draft tokens for everybody, in a chain or a tree",
  needs = { "running.id", "running.group", "running.output" },
  step = function(view, act)
    local running = view.running
    assert(act.evict_drafts("unused"))
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      for i = 1, running.n do
        if running.group[i] == group.id and running.output[i] > 0 then
          act.draft(running.id[i], 12, "suffix", running.output[i] % 2 == 0 and "tree" or "chain")
        end
      end
      batch:prefill(view.waiting)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
}
"""


def ask(s, prompt, key="one", **more):
    body = {"model": "m", "prompt": prompt, "max_tokens": N, "temperature": 0, "ignore_eos": True, **more}
    status, r = s.json("POST", "/v1/completions", json.dumps(body), key)
    assert status == 200, r
    return r["choices"][0]["text"]


def counters(s):
    text = s.ask("GET", "/metrics")[1].decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(\S+?)(?:\{[^}]*\})? (\S+)$", text, re.M)}


def steps_of(s, *request, **more):
    before = counters(s)["moonshift:steps_total"]
    text = ask(s, *request, **more)
    return text, counters(s)["moonshift:steps_total"] - before


def until_learnt():
    time.sleep(0.5)  # answers go into the trees beside the steps


def what_a_tenant_was_told_is_guessed(plain, s):
    ask(s, "a policy that drafts has to ask once")
    first, many = steps_of(s, "the first time")
    until_learnt()
    again, few = steps_of(s, "the first time")
    other, as_many = steps_of(s, "the first time", "two")
    assert first == again == other == ask(plain, "the first time")
    assert few < many / 2, (few, many)
    assert as_many > 1.5 * few, (as_many, few)  # bert does not profit from what anna was told


def seeded_requests_say_the_same(plain, s):
    for seed in range(4):
        said = {ask(x, f"seeded {seed}", temperature=0.8, seed=seed) for x in (plain, s, s)}
        assert len(said) == 1, said


def many_at_once_say_the_same(plain, s):
    prompts = [f"{i % 7} of several" for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda i: ask(s, prompts[i], "one" if i % 2 else "two"), range(40)))
    for i in range(7):
        assert {t for p, t in zip(prompts, texts) if p == prompts[i]} == {ask(plain, prompts[i])}
    assert counters(s)["vllm:spec_decode_num_accepted_tokens_total"] > 200


def nothing_is_kept_where_nobody_drafts(plain):
    _, many = steps_of(plain, "the first time")
    until_learnt()
    assert steps_of(plain, "the first time")[1] == many


def main():
    policy = os.path.join(FOLDER.name, "always.lua")  # arctic would look at what a row costs on a busy machine
    with open(policy, "w") as f:
        f.write(ALWAYS)
    flags = ["--policy", policy, *KEYS]
    n = 0
    with Site(None, *KEYS) as plain, Site(None, *flags) as s:
        for test in (what_a_tenant_was_told_is_guessed, seeded_requests_say_the_same, many_at_once_say_the_same):
            test(plain, s)
            n += 1
        nothing_is_kept_where_nobody_drafts(plain)
    print(f"{n + 1} passed, 0 failed")
    return 0


sys.exit(main())
