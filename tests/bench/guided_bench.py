"""python3 tests/bench/guided_bench.py [FILE.gguf]: tokens a second of live servers, of one that drafts nothing and of
one that drafts, free and guided, one client and eight at a time, in turn; medians of the rounds. `string` leaves nearly
every token open, each time in another place; `rows` has little open, in places that come again; `first` is a form that
was never asked for; `records` have long names and short values, as calls of tools have. `record/s` is one of these,
of a form that was never asked for: whole answers a second."""

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
TURNS = {1: 1, 8: 16}  # answers of a round, by clients: so many that it hardly matters how the last ones end
fresh = itertools.count()


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def story(least):
    return form({"type": "object", "properties": {"story": {"type": "string", "minLength": least}}})


ROW = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
ROW["required"] = ["name", "age"]
RECORD = {
    "customer_identifier": {"type": "integer", "minimum": 1, "maximum": 99999},
    "delivery_address": {"type": "string", "maxLength": 40},
    "preferred_contact_method": {"enum": ["telephone", "electronic mail", "letter"]},
    "subscription_is_active": {"type": "boolean"},
    "number_of_open_orders": {"type": "integer", "minimum": 0, "maximum": 20},
    "last_order_date": {"type": "string", "format": "date"},
}


def record(most):
    members = {**RECORD, "remaining_balance_cents": {"type": "integer", "minimum": 0, "maximum": most}}
    return {"type": "object", "properties": members, "required": list(members)}


CASES = {
    "free": lambda: {"ignore_eos": True},
    "string": lambda: story(5000),
    "rows": lambda: form({"type": "array", "items": ROW, "minItems": 50}),
    "first": lambda: story(5001 + next(fresh)),
    "records": lambda: form({"type": "array", "items": record(99999), "minItems": 50}),
    "record/s": lambda: form(record(100000 + next(fresh))),
}


def ask(s, seed, more):
    body = {"messages": [{"role": "user", "content": "A long story about a dog, as JSON."}], "max_tokens": TOKENS}
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    text = json.dumps({**body, "temperature": 0.8, "seed": seed, **more})
    c.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
    return json.loads(c.getresponse().read())["usage"]["completion_tokens"]


def rate(s, n, case, first):
    """Tokens a second, or answers."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        tokens = list(pool.map(lambda i: ask(s, first + i, CASES[case]()), range(TURNS[n])))
    return (len(tokens) if case == "record/s" else sum(tokens)) / (time.monotonic() - began)


def main():
    flags = [MODEL, "--port", "0", "--admin-listen", "off"]
    with Site(None, flags=flags) as plain, Site(None, flags=[*flags, "--policy", "arctic"]) as drafting:
        sites = {"none": plain, "arctic": drafting}
        for s, make in itertools.product(sites.values(), CASES.values()):
            ask(s, 1, make())
        print("clients  drafts" + "".join(f"{name:>9}" for name in CASES))
        for n in TURNS:
            found = {key: [] for key in itertools.product(sites, CASES)}
            for r in range(ROUNDS):
                for name, case in found:
                    found[name, case].append(rate(sites[name], n, case, 100 * r))
            for name in sites:
                row = (statistics.median(found[name, case]) for case in CASES)
                print(f"{n:7}{name:>8}" + "".join(f"{x:9.{1 if x < 100 else 0}f}" for x in row), flush=True)


main()
