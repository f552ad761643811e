"""python3 tests/bench/guided_bench.py [FILE.gguf]: tokens a second of a live server, free and guided, one client and
eight at a time, in turn; medians of the rounds. `string` leaves nearly every token open, each time in another place;
`rows` has little open, in places that come again; `first` is a form that was never asked for."""

import concurrent.futures
import http.client
import itertools
import json
import statistics
import sys
import time

sys.path.insert(0, "tests/rig")
from file_site import Site

MODEL = sys.argv[1] if len(sys.argv) > 1 else "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"
ROUNDS, TOKENS = 5, 200
fresh = itertools.count()


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def story(least):
    return form({"type": "object", "properties": {"story": {"type": "string", "minLength": least}}})


ROW = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
ROW["required"] = ["name", "age"]
CASES = {
    "free": lambda: {"ignore_eos": True},
    "string": lambda: story(5000),
    "rows": lambda: form({"type": "array", "items": ROW, "minItems": 50}),
    "first": lambda: story(5001 + next(fresh)),
}


def ask(s, seed, more):
    body = {"messages": [{"role": "user", "content": "A long story about a dog, as JSON."}], "max_tokens": TOKENS}
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    text = json.dumps({**body, "temperature": 0.8, "seed": seed, **more})
    c.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
    return json.loads(c.getresponse().read())["usage"]["completion_tokens"]


def rate(s, n, first, more):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        tokens = sum(pool.map(lambda i: ask(s, first + i, more), range(n)))
    return tokens / (time.monotonic() - began)


def main():
    with Site(None, flags=[MODEL, "--port", "0", "--admin-listen", "off"]) as s:
        for make in CASES.values():
            ask(s, 1, make())
        print("clients" + "".join(f"{name:>9}" for name in CASES))
        for n in (1, 8):
            found = {name: [] for name in CASES}
            for r in range(ROUNDS):
                for name, make in CASES.items():
                    found[name].append(rate(s, n, 100 * r, make()))
            print(f"{n:7}" + "".join(f"{statistics.median(found[name]):9.0f}" for name in CASES), flush=True)


main()
