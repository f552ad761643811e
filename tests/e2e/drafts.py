"""Drafts in a live server. Suffix decoding: what a tenant was told once is guessed when it asks again, another tenant's
steps are those of one that never drafts. Draft heads: those that are right save steps, those of another model are
refused. A draft model: it drafts beside the others, and what cannot be is refused. Texts are always the same."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, "tests/rig")
from drafters import echo_heads, small_model
from file_site import BINARY, ENV, FOLDER, Site, command

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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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


def move_texts(s, port, what):
    public, s.port = s.port, port
    status, reply = s.json("POST", f"/admin/drafts/{what}", "", "boss")
    s.port = public
    return status, reply


def a_next_process_knows_what_was_said(plain, policy):
    said, port = os.path.join(FOLDER.name, "said"), free_port()
    admin = ["--admin-listen", f"127.0.0.1:{port}", "--admin-key", "boss"]
    flags = ["--policy", policy, *KEYS, *admin, "--draft-file", said]
    with Site(None, *flags) as s:
        ask(s, "a policy that drafts has to ask once")
        text, many = steps_of(s, "kept in a file")
        status, saved = move_texts(s, port, "save")
        assert status == 200 and saved["sequences"] == 2 and saved["tokens"] == 2 * N, saved
        assert steps_of(s, "kept in a file")[1] < many / 2
        s.end(signal.SIGTERM)
    with Site(None, *flags) as s:
        ask(s, "a policy that drafts has to ask once")
        until_learnt()
        again, few = steps_of(s, "kept in a file")
        assert again == text == ask(plain, "kept in a file") and few < many / 2, (few, many)
        with open(said, "r+b") as f:
            f.seek(200)
            f.write(b"changed")
        status, why = move_texts(s, port, "load")
        assert status == 400 and "damaged" in json.dumps(why), why
        assert steps_of(s, "kept in a file") == (text, few)
    with Site(None, *KEYS, *admin) as s:
        status, why = move_texts(s, port, "save")
        assert status == 400 and "--draft-file" in json.dumps(why), why


def heads_that_are_right_save_steps(plain, s):
    once = {"allowed_token_ids": [77]}
    (first, many), (text, few) = steps_of(plain, "again and again", **once), steps_of(s, "again and again", **once)
    assert text == first and few < many / 3, (few, many)
    for seed in range(3):
        assert ask(s, "once", temperature=0.9, seed=seed) == ask(plain, "once", temperature=0.9, seed=seed)


def heads_of_another_model_are_refused(heads):
    other = echo_heads(os.path.join(FOLDER.name, "other"), 64)
    for flags, why in (
        (["--draft-model", other], "hidden states of 64 elements, and those of the model have 128"),
        (["--draft-model", FOLDER.name], "config.json"),
        (["--draft-model", heads, "--device", "sim"], "--draft-model is for --device cpu"),
        (["-sc", json.dumps({"method": "arctic", "model": heads, "num_speculative_tokens": 4})], "guesses 3"),
    ):
        r = subprocess.run(command(None, *flags), capture_output=True, text=True, timeout=60, env=ENV)
        assert r.returncode and why in r.stderr, r.stderr


def draft_heads(plain, folder):
    heads = echo_heads(os.path.join(FOLDER.name, "heads"), 128)
    policy = os.path.join(folder, "heads.lua")
    with open(policy, "w") as f:
        f.write(ALWAYS.replace("suffix", "heads"))
    with Site(None, "--policy", policy, "--draft-model", heads, *KEYS) as s:
        heads_that_are_right_save_steps(plain, s)
    config = {"method": "mlp_speculator", "model": heads, "num_speculative_tokens": 2}
    with Site(None, "--speculative-config", json.dumps(config), *KEYS) as s:
        assert ask(s, "as vLLM has it") == ask(plain, "as vLLM has it")
    heads_of_another_model_are_refused(heads)


def draft_models_that_cannot_be_are_refused(model, heads):
    other = small_model(os.path.join(FOLDER.name, "smaller"), 400)
    config = {"method": "draft_model", "model": model, "num_speculative_tokens": 4}
    for flags, why in (
        (["--draft-model", other], "a vocabulary of 400 tokens, and the model one of 500"),
        (["--draft-model", model, "--device", "sim"], "a draft model is for --device cpu"),
        (["--draft-model", model, "--draft-kv-memory", "100"], "16 tokens of the draft model take"),
        (["--draft-model", model, "--rank-memory", "8MiB", "--draft-kv-memory", "16MiB"], "lower --draft-kv-memory"),
        (["-sc", json.dumps({**config, "num_speculative_tokens": 17})], "guesses at most 16"),
        (["-sc", json.dumps({**config, "method": "mlp_speculator"})], "the method draft_model takes a model"),
        (["-sc", json.dumps({**config, "model": heads})], "is no model that generates text"),
        (["-sc", json.dumps({**config, "method": "eagle"})], '"eagle" is not offered'),
    ):
        r = subprocess.run(command(None, *flags), capture_output=True, text=True, timeout=60, env=ENV)
        assert r.returncode and why in r.stderr, r.stderr


def what_it_takes_is_recorded(plain, model, folder):
    """By a policy whose decisions hang on every digit of it."""
    policy, recording = os.path.join(folder, "digits.lua"), os.path.join(folder, "digits.rec")
    n = '1 + math.floor((view.estimate_draft(batch, "model", 3) or 0) * 1e6) % 7'  # dry runs have no such source
    with open(policy, "w") as f:
        f.write(ALWAYS.replace('12, "suffix", running.output[i] % 2 == 0 and "tree" or "chain"', f'{n}, "model"'))
    with Site(None, "--policy", policy, "--draft-model", model, "--record", recording, *KEYS) as s:
        for prompt in ("recorded", "recorded, too"):
            assert ask(s, prompt) == ask(plain, prompt)
        assert counters(s)["moonshift:draft_model_seconds_total"] > 0
        s.end(signal.SIGTERM)
    flags = ["--trace", recording, "--policy", policy]
    r = subprocess.run([BINARY, "simulate", *flags], capture_output=True, text=True, timeout=60, env=ENV)
    assert r.returncode == 0 and "all equal to the recording" in r.stdout + r.stderr, r.stdout + r.stderr


def a_draft_model(plain, folder):
    model = small_model(os.path.join(FOLDER.name, "small"), 500)
    policy = os.path.join(folder, "model.lua")
    with open(policy, "w") as f:
        f.write(ALWAYS.replace("suffix", "model"))
    with Site(None, "--policy", policy, "--draft-model", model, "--draft-kv-memory", "1MiB", *KEYS) as s:
        many_at_once = [f"{i % 5} of several, drafted by a model" for i in range(20)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda p: ask(s, p, temperature=0.7, seed=5), many_at_once))
        for i in range(5):
            assert set(texts[i::5]) == {ask(plain, many_at_once[i], temperature=0.7, seed=5)}
        said = counters(s)
        assert said["vllm:spec_decode_num_draft_tokens_total"] > 100 and said["moonshift:draft_model_seconds_total"] > 0
    for config in ({"method": "draft_model", "enable_suffix_decoding": True}, {}):
        config = {**config, "model": model, "num_speculative_tokens": 3}
        with Site(None, "--speculative-config", json.dumps(config), *KEYS) as s:
            assert ask(s, "as vLLM has it") == ask(plain, "as vLLM has it")
    what_it_takes_is_recorded(plain, model, folder)
    draft_models_that_cannot_be_are_refused(model, os.path.join(folder, "heads"))


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
        a_next_process_knows_what_was_said(plain, policy)
        draft_heads(plain, FOLDER.name)
        a_draft_model(plain, FOLDER.name)
    print(f"{n + 4} passed, 0 failed")
    return 0


sys.exit(main())
