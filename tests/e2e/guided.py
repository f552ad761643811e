"""Guided answers in a live server, of a model whose weights are made up and would say anything else: JSON by a schema,
choices, expressions, forced calls, streamed and whole; what is cut off says so; what would be too much work ends in
words and leaves the server as it was."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/rig")
from file_site import BINARY, ENV, FOLDER, Site

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "boss": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "boss"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "greet", "parameters": PERSON}},
    {"type": "function", "function": {"name": "stop"}},
]
SUM = """root ::= number more* " = " digit{1,3} " €"  # in euros
more ::= " + " number
number ::= digit digit?
digit ::= [0-9]"""
# Its states are without number.
HARD = "(.{0,900}){3}x"


def is_person(v):
    return (
        list(v) == ["name", "age", "tags", "boss"]
        and isinstance(v["name"], str)
        and len(v["name"]) <= 12
        and isinstance(v["age"], int)
        and 0 <= v["age"] <= 120
        and len(v["tags"]) <= 3
        and set(v["tags"]) <= {"a", "b"}
        and v["boss"] in (None, True, False)
    )


def asked(prompt, **more):
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 400, **more}


def ask(s, prompt, **more):
    status, r = s.json("POST", "/v1/chat/completions", json.dumps(asked(prompt, **more)))
    assert status == 200, r
    return r["choices"]


def streamed(s, prompt, **more):
    """The content, and the last reason."""
    status, text = s.ask("POST", "/v1/chat/completions", json.dumps(asked(prompt, stream=True, **more)))
    assert status == 200, text
    frames = [json.loads(f) for f in re.findall(r"^data: (\{.*)$", text.decode(), re.M)]
    parts = [f["choices"][0] for f in frames]
    return "".join(p["delta"].get("content") or "" for p in parts), parts[-1]["finish_reason"]


def by_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def answers_are_what_the_schema_says(s):
    for seed in range(6):
        for c in ask(s, f"person {seed}", n=3, temperature=1.5, seed=seed, **by_schema(PERSON)):
            assert c["finish_reason"] == "stop" and is_person(json.loads(c["message"]["content"])), c
    assert is_person(json.loads(ask(s, "person", temperature=0, **by_schema(PERSON))[0]["message"]["content"]))


def a_stream_says_the_same(s):
    for seed in range(3):
        more = {"temperature": 1.2, "seed": seed, **by_schema(PERSON)}
        whole = ask(s, "person", **more)[0]
        assert streamed(s, "person", **more) == (whole["message"]["content"], "stop")


def choices_and_expressions(s):
    for seed in range(6):
        more = {"temperature": 2.0, "seed": seed}
        c = ask(s, "well?", structured_outputs={"choice": ["yes", "no", "not sure"]}, **more)[0]
        assert c["message"]["content"] in ("yes", "no", "not sure") and c["finish_reason"] == "stop", c
        c = ask(s, "how much?", structured_outputs={"grammar": SUM}, **more)[0]
        assert re.fullmatch(r"[0-9]{1,2}( [+] [0-9]{1,2})* = [0-9]{1,3} €", c["message"]["content"]), c
        c = ask(s, "when?", guided_regex=r"\d{4}-\d{2}-\d{2}", **more)[0]
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", c["message"]["content"]), c
    status, r = s.json("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "a", "guided_choice": ["é!"]}))
    assert status == 200 and r["choices"][0]["text"] == "é!", r


def what_is_cut_off_says_so(s):
    c = ask(s, "long", max_tokens=5, temperature=0, **by_schema(PERSON))[0]
    assert c["finish_reason"] == "length" and c["message"]["content"].startswith("{"), c


def calls_can_be_forced(s):
    named = {"type": "function", "function": {"name": "greet"}}
    for seed in range(3):
        more = {"tools": TOOLS, "temperature": 1.5, "seed": seed, "max_tokens": 480}
        c = ask(s, "call", tool_choice=named, **more)[0]
        (call,) = c["message"]["tool_calls"]
        assert call["function"]["name"] == "greet" and is_person(json.loads(call["function"]["arguments"])), c
        assert c["message"]["content"] is None and c["finish_reason"] == "tool_calls", c
        c = ask(s, "call", tool_choice="required", parallel_tool_calls=False, **more)[0]
        (call,) = c["message"]["tool_calls"]
        assert call["function"]["name"] in ("greet", "stop"), c


def too_much_work_ends_in_words(s):
    body = json.dumps(asked("hard", temperature=1.0, seed=1, guided_regex=HARD))
    status, r = s.json("POST", "/v1/chat/completions", body)
    assert status == 400 and "simpler" in r["error"]["message"], r
    assert ask(s, "after", guided_regex="[ab]{4}")[0]["finish_reason"] == "stop"


def a_policy_stays_whatever_forms_cost(s):
    """Its calls find nothing out about forms."""
    hard = [HARD, "(.|a)*a(.|a){400}b(.|a)*(a|b)(.|a){300}", "((a|b|c|d)*(ab|cd)){0,60}(.{0,30}x){0,10}y"]

    def one(i):
        body = {**asked("ab " * (i % 5 + 1), temperature=1.0, seed=i, guided_regex=hard[i % 3]), "max_tokens": 100}
        return s.json("POST", "/v1/chat/completions", json.dumps(body))[0]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(48))) <= {200, 400}
    status, text = s.ask("GET", "/metrics")
    assert status == 200 and re.search(rb'policy_swaps_total\{[^}]*"withdrawn"\} 0', text), text[-3000:]


ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"identifier": {"type": "integer"}, "is_available": {"type": "boolean"}},
        "required": ["identifier", "is_available"],
    },
    "minItems": 4,
    "maxItems": 6,
}
FORMS = [by_schema(ROWS), {"guided_regex": "(spam, (spam, )?eggs and [a-z]{2}; ){3}the end"}]
said, accepted = {}, []


def guesses_change_nothing(s):
    """What a server says that drafts is what one says that does not, guided and free; and guesses are right."""
    again = " ".join(["and on and on"] * 8)
    for seed in range(3):
        asks = [{**f, "n": 2} for f in FORMS] + [{"max_tokens": 60, "ignore_eos": True}]
        for k, more in enumerate(asks):
            text = [c["message"]["content"] for c in ask(s, again, temperature=seed / 2, seed=seed, **more)]
            assert said.setdefault((seed, k), text) == text, more
    status, text = s.ask("GET", "/metrics")
    assert status == 200
    accepted.append(float(re.search(rb"^vllm:spec_decode_num_accepted_tokens_total\S* (\S+)$", text, re.M)[1]))


def is_replayed(recording):
    """By who has no grammars: decision for decision, with the same draft tokens right, and the same ends."""
    r = subprocess.run([BINARY, "simulate", "--trace", recording], capture_output=True, text=True, timeout=60, env=ENV)
    assert r.returncode == 0 and "all equal to the recording" in r.stdout + r.stderr, r


def main():
    template = os.path.join(FOLDER.name, "tools.jinja")
    with open(template, "w") as f:
        f.write("{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}")
    flags = ["--chat-template", template]
    tests = [
        answers_are_what_the_schema_says,
        a_stream_says_the_same,
        choices_and_expressions,
        what_is_cut_off_says_so,
        calls_can_be_forced,
        too_much_work_ends_in_words,
        guesses_change_nothing,
        a_policy_stays_whatever_forms_cost,
    ]
    for more in ([], ["--ranks", "2", "--policy", "arctic", "--tool-call-parser", "llama3_json"]):
        recording = os.path.join(FOLDER.name, f"{len(more)}.rec")
        with Site(None, *flags, *more, "--record", recording) as s:
            for test in tests:
                test(s)
        is_replayed(recording)
    assert accepted[0] == 0 and accepted[1] > 200, accepted
    print(f"{2 * len(tests) + 2} passed, 0 failed")
    return 0


sys.exit(main())
