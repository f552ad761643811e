"""Early stops in a live server: probes never show in a text and are seen by no client; answers that agree close the
thinking, in whole answers and streams, and count as tokens; what cannot be asked for is refused."""

import concurrent.futures
import json
import os
import re
import socket
import sys
import time

sys.path.insert(0, "tests/rig")
from file_site import FOLDER, Site

END = "\n</think>\n\nThe final answer is \\boxed{"
N = 160  # room for the words twice
# Made-up weights never agree with themselves: two answers are enough here, whatever they are.
ALWAYS = """
return {
  api = 1,
  doc = "two answers of any kind close the thinking",
  needs = { "running.id", "running.output", "running.probe_every", "running.probed_at", "running.answers" },
  step = function(view, act)
    local r = view.running
    for i = 1, r.n do
      local every, id = r.probe_every[i], r.id[i]
      if every > 0 and r.answers[i] >= 2 then
        assert(select("#", view.early_stop(id)) == 2 and view.probe(id, 1) and view.says(id, 1, "no") ~= nil)
        act.conclude(id)
      elseif every > 0 and r.output[i] - r.probed_at[i] >= every then
        act.probe(id)
      end
    end
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
}
"""


def body(prompt, **more):
    asked = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": N, "ignore_eos": True}
    return json.dumps({**asked, "temperature": 0, "separate_reasoning": False, **more})


def ask(s, prompt, **more):
    status, r = s.json("POST", "/v1/chat/completions", body(prompt, **more))
    assert status == 200, r
    assert r["usage"]["completion_tokens"] == N, r["usage"]
    return r["choices"][0]["message"]["content"]


def stream(s, prompt, **more):
    status, text = s.ask("POST", "/v1/chat/completions", body(prompt, stream=True, **more))
    assert status == 200, text
    frames = [json.loads(f) for f in re.findall(r"^data: (\{.*)$", text.decode(), re.M)]
    return "".join(f["choices"][0]["delta"].get("content") or "" for f in frames if f["choices"])


def counters(s):
    text = s.ask("GET", "/metrics")[1].decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(\S+?)(?:\{[^}]*\})? (\S+)$", text, re.M)}


EARLY = {"interval": 8, "window": 2}


def probes_never_show(plain, s, _):
    for how in ({}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "seed": 4, "repetition_penalty": 1.3}):
        before = counters(s)
        text = ask(plain, "think", **how)
        assert text == ask(plain, "think", early_stop=EARLY, **how) == ask(s, "think", **how)
        assert counters(s)["moonshift:probes_total"] == before["moonshift:probes_total"]
        assert text == ask(s, "think", early_stop=EARLY, **how)
        assert counters(s)["moonshift:probes_total"] > before["moonshift:probes_total"]
    assert counters(plain)["moonshift:probes_total"] == 0


def probes_count_as_no_request(plain, s, _):
    before = counters(s)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda i: ask(s, f"{i % 4} of several", early_stop=EARLY), range(16)))
    for i in range(4):
        assert set(texts[i::4]) == {ask(plain, f"{i} of several")}
    after = counters(s)
    for name, n in (
        ("moonshift:requests_submitted_total", 16),
        ("vllm:generation_tokens_total", 16 * N),
        ("vllm:e2e_request_latency_seconds_count", 16),
    ):
        assert after[name] - before[name] == n, (name, before[name], after[name])
    assert after["moonshift:probe_tokens_total"] > after["moonshift:probes_total"]
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


def agreement_closes_the_thinking(plain, _, stops):
    for how in ({}, {"temperature": 0.8, "seed": 3}):
        whole = ask(plain, "stop", **how)
        text = ask(stops, "stop", early_stop=EARLY, **how)
        said, closed, _ = text.partition(END)
        assert closed and text.count(END) == 1, text
        assert text == ask(stops, "stop", early_stop=EARLY, **how) == stream(stops, "stop", early_stop=EARLY, **how)
        assert whole.startswith(said.rstrip("\ufffd")) and ask(stops, "stop", **how) == whole
        apart = ask(stops, "stop", early_stop=EARLY, separate_reasoning=True, **how)
        assert apart == text.partition("</think>")[2].lstrip(), apart
    assert counters(stops)["moonshift:early_stops_total"] == 8


def who_leaves_takes_its_probe_along(_, s, __):
    before = counters(s)
    for i in range(6):
        asked = body(f"leave {i}", max_tokens=400, stream=True, early_stop=EARLY).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n" % len(asked) + asked
            )
            c.recv(200)
    for _ in range(600):
        now = counters(s)
        came = now["moonshift:requests_submitted_total"] - before["moonshift:requests_submitted_total"]
        if now["vllm:num_requests_running"] == 0 and came == 6:
            break
        time.sleep(0.05)
    assert now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0, now
    assert came == 6
    assert s.ask("GET", "/health")[0] == 200


def what_cannot_be_is_refused(_, s, stops):
    for more in ({"early_stop": 1}, {"early_stop": {"interval": 1}}, {"early_stop": EARLY, "logprobs": True}):
        status, r = s.json("POST", "/v1/chat/completions", body("no", **more))
        assert status == 400 and r["error"]["param"] == "early_stop", r
    status, r = s.json("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "a", "early_stop": EARLY}))
    assert status == 400 and "/v1/chat/completions" in r["error"]["message"], r
    with Site(None, "--chat-template", "chatml") as unthinking:
        status, r = unthinking.json("POST", "/v1/chat/completions", body("no", early_stop=EARLY))
        assert status == 400 and "not offered here" in r["error"]["message"], r


def main():
    policy, template = (os.path.join(FOLDER.name, name) for name in ("always.lua", "thinks.jinja"))
    with open(policy, "w") as f:
        f.write(ALWAYS)
    with open(template, "w") as f:
        f.write("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>")
    flags = ["--chat-template", template]
    tests = [
        probes_never_show,
        probes_count_as_no_request,
        agreement_closes_the_thinking,
        who_leaves_takes_its_probe_along,
        what_cannot_be_is_refused,
    ]
    with (
        Site(None, *flags) as plain,
        Site(None, "--policy", "earlystop", *flags) as s,
        Site(None, "--policy", policy, *flags) as stops,
    ):
        for test in tests:
            test(plain, s, stops)
    print(f"{len(tests)} passed, 0 failed")
    return 0


sys.exit(main())
