#!/usr/bin/env python3
"""Guides against jsonschema and Python's re: what random walks through random schemas say is valid, values that are
valid in the form in which models write JSON are taken, byte by byte and token by token, and invalid ones are not;
expressions match as re.fullmatch does, grammars as they do here; what has to come is spelt as the tokenizer spells it.

    python tests/oracle/guide_oracle.py --binary build/tests/guide_say --model FILE.gguf [--cases 400] [--seed 1]

Prints `N passed, N failed`; exit status 1 when anything failed."""

import argparse
import glob
import json
import random
import re
import string
import subprocess
import sys

import jsonschema

VOCABS = "build/tests/data/vocab"  # of many families; the build unpacks it
LETTERS = 'ab "\\é\n{}1'


class Guide:
    def __init__(self, binary, model):
        self.process = subprocess.Popen([binary, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **line):
        print(json.dumps(line), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


# ---- schemas, each with what makes a valid value of it


def text_schema(r):
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "string"}, lambda: "".join(r.choices(LETTERS, k=r.randrange(6)))
    if kind == 1:
        least = r.randrange(4)
        most = least + r.randrange(5)
        schema = {"type": "string", "minLength": least, "maxLength": most}
        return schema, lambda: "".join(r.choices(LETTERS, k=r.randint(least, most)))
    if kind == 2:
        return {"type": "string", "pattern": "^[a-c]{1,3}-\\d+$"}, lambda: f"{r.choice('abc')}-{r.randrange(1000)}"
    day = lambda: f"{r.randint(1, 9999):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
    return {"type": "string", "format": "date"}, day


def number_schema(r):
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "integer"}, lambda: r.randint(-(10**6), 10**6)
    if kind == 1:
        return {"type": "number"}, lambda: r.choice([0, -1.5, 2e-7, 1e5, 123.25, r.randint(-99, 99)])
    low = r.randint(-200, 200)
    high = low + r.randint(1, 300)
    if kind == 2:
        return {"type": "integer", "minimum": low, "exclusiveMaximum": high}, lambda: r.randint(low, high - 1)
    return {"type": "number", "exclusiveMinimum": low, "maximum": high}, lambda: r.choice(
        [high, low + 0.5, high - 0.25]
    )


def word_schema(r):
    kind = r.randrange(4)
    if kind == 0:
        return {"type": "boolean"}, lambda: r.random() < 0.5
    if kind == 1:
        return {"type": ["null", "boolean"]}, lambda: r.choice([None, True])
    values = r.sample(["a", "b c", 1, 2.5, None, True, {"x": [1]}, 'q"'], k=r.randint(1, 4))
    if kind == 2:
        return {"enum": values}, lambda: r.choice(values)
    return {"const": values[0]}, lambda: values[0]


def array_schema(r, depth):
    items, one = any_schema(r, depth - 1)
    kind = r.randrange(3)
    if kind == 0:
        return {"type": "array", "items": items}, lambda: [one() for _ in range(r.randrange(4))]
    if kind == 1:
        least = r.randrange(3)
        most = least + r.randrange(3)
        schema = {"type": "array", "items": items, "minItems": least, "maxItems": most}
        return schema, lambda: [one() for _ in range(r.randint(least, most))]
    first, other = any_schema(r, depth - 1)
    schema = {"type": "array", "prefixItems": [first, items], "items": False, "minItems": 2}
    return schema, lambda: [other(), one()]


def object_schema(r, depth):
    if r.randrange(5) == 0:
        values, one = any_schema(r, depth - 1)
        schema = {"type": "object", "additionalProperties": values}
        return schema, lambda: {k: one() for k in r.sample(["a", "é", 'x"', "long name"], k=r.randrange(3))}
    names = r.sample(["a", "b", "name", 'q"uote', "é", "tags", "a b"], k=r.randint(1, 4))
    parts = {name: any_schema(r, depth - 1) for name in names}
    required = [n for n in names if r.random() < 0.5]
    schema = {"type": "object", "properties": {n: s for n, (s, _) in parts.items()}, "required": required}
    if r.random() < 0.7:
        schema["additionalProperties"] = False
    return schema, lambda: {n: make() for n, (_, make) in parts.items() if n in required or r.random() < 0.5}


def union_schema(r, depth):
    parts = [any_schema(r, depth - 1) for _ in range(r.randint(1, 3))]

    def make():
        return r.choice(parts)[1]()

    return {"anyOf": [s for s, _ in parts]}, make


def any_schema(r, depth):
    leaves = [text_schema, number_schema, word_schema]
    if depth <= 0 or r.random() < 0.3:
        return r.choice(leaves)(r)
    return r.choice([array_schema, object_schema, object_schema, union_schema])(r, depth)


def whole_schema(r):
    """Now and then with parts that are referred to, or that refer to the whole."""
    schema, make = any_schema(r, 3)
    kind = r.randrange(4)
    if kind == 0:
        return {"$defs": {"x/y": schema}, "$ref": "#/$defs/x~1y"}, make
    if kind == 1:
        node = {"type": "object", "properties": {"value": schema, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
        node |= {"required": ["value", "next"], "additionalProperties": False}

        def chain():
            return {"value": make(), "next": chain() if r.random() < 0.4 else None}

        return node, chain
    return schema, make


def written(value, r):
    """As models write JSON."""
    how = r.randrange(3)
    if how == 0:
        return json.dumps(value, ensure_ascii=False)
    if how == 1:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(value, indent=2, ensure_ascii=False)


def spoilt(value, r):
    """Something else in its place, valid or not."""
    if isinstance(value, dict) and value and r.random() < 0.7:
        out = dict(value)
        key = r.choice(list(out))
        if r.random() < 0.3:
            del out[key]
        else:
            out[key] = spoilt(out[key], r)
        return out
    if isinstance(value, list) and value and r.random() < 0.7:
        at = r.randrange(len(value))
        return [*value[:at], spoilt(value[at], r), *value[at + 1 :]]
    return r.choice([None, True, "x", "", -(10**9), 0.5, [], [[]], {}, {"zz": 1}])


def check_schema(guide, r, counts):
    schema, make = whole_schema(r)
    valid = jsonschema.Draft202012Validator(schema)
    values = [make() for _ in range(6)]
    assert all(valid.is_valid(v) for v in values), (schema, values)
    texts = [written(v, r) for v in values]
    bad = [v for v in (spoilt(r.choice(values), r) for _ in range(20)) if not valid.is_valid(v)]
    texts += [written(v, r) for v in bad]
    got = guide.ask(schema=schema, seed=r.randrange(2**31), walks=8, texts=texts)
    assert "error" not in got, (schema, got)
    for text in got["said"]:
        counts["ended" if text is not None else "endless"] += 1
        if text is not None:
            assert valid.is_valid(json.loads(text)), (schema, text)
    for i, (text, taken) in enumerate(zip(texts, got["takes"])):
        if i >= len(values):
            counts["invalid"] += 1
            assert not taken, ("taken", schema, text)
        elif "enum" not in json.dumps(schema) and "const" not in json.dumps(schema):
            counts["valid"] += 1
            assert taken is True, ("not taken", schema, text, taken)


# ---- regular expressions


def regex(r, depth):
    kind = r.randrange(8 if depth > 0 else 3)
    if kind == 0:
        return r.choice(["a", "b", "é", r"\d", r"\w", r"\s", ".", r"\.", "0", "-", r"\n"])
    if kind == 1:
        return r.choice(
            ["[abc]", "[^a]", "[é-ü_]", "[^b-é]", "[a-f0-9]", r"[\d_]", r"[^\s]", "[]x]", r"[\]\-]", "[-a]"]
        )
    if kind == 2:
        return r.choice(string.ascii_lowercase[:3]) * r.randint(1, 3)
    if kind == 3:
        return "(" + "|".join(regex(r, depth - 1) for _ in range(r.randint(1, 3))) + ")"
    if kind == 4:
        return "(?:" + regex(r, depth - 1) + ")" + r.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
    return "".join(regex(r, depth - 1) for _ in range(r.randint(1, 3)))


def check_regex(guide, r, counts):
    pattern = regex(r, 3)
    texts = ["".join(r.choices("abcé0_-. \n]", k=r.randrange(7))) for _ in range(40)]
    got = guide.ask(regex=pattern, seed=r.randrange(2**31), walks=6, texts=texts)
    assert "error" not in got, (pattern, got)
    compiled = re.compile(pattern, re.ASCII)
    for text in got["said"]:
        counts["ended" if text is not None else "endless"] += 1
        assert text is None or compiled.fullmatch(text), (pattern, text)
    for text, taken in zip(texts, got["takes"]):
        counts["matches"] += 1
        assert taken == bool(compiled.fullmatch(text)), (pattern, text, taken)


# ---- grammars, as trees: written in GBNF, and matched here


def tree(r, depth, rules, own, taken):
    """Rules before `own`, and itself, may be called only behind what takes a character: else it would call itself."""
    kind = r.randrange(8 if depth > 0 else 3)
    if kind == 0:
        return ("class", r.random() < 0.3, r.sample(["ab", "ce", "00", "é€", "  "], k=r.randint(1, 2)))
    if kind == 1 and (taken or own + 1 < rules):
        return ("call", r.randrange(0 if taken else own + 1, rules))
    if kind < 4:
        return ("text", "".join(r.choices('ab0é "\\\n', k=r.randint(1, 3))))
    if kind == 4:
        return ("any", [tree(r, depth - 1, rules, own, taken) for _ in range(r.randint(1, 3))])
    if kind == 5:
        return (
            "times",
            tree(r, depth - 1, rules, own, taken),
            *r.choice([(0, None), (1, None), (0, 1), (1, 3), (2, 2)]),
        )
    parts = []
    for _ in range(r.randint(0, 3)):
        parts.append(tree(r, depth - 1, rules, own, taken or any(p[0] in ("text", "class") for p in parts)))
    return ("all", parts)


def quoted(text, inside):
    named = {"\n": "\\n", "\\": "\\\\", '"': '\\"', "]": "\\]", "[": "\\["}
    return "".join(named.get(c, c) if inside or c not in "[]" else c for c in text)


def gbnf(node, r):
    kind, blank = node[0], r.choice([" ", "\n  ", " # and then\n", "\t"])
    if kind == "class":
        return "[" + "^" * node[1] + "".join(f"{quoted(a, True)}-{quoted(b, True)}" for a, b in node[2]) + "]"
    if kind == "call":
        return "root" if node[1] == 0 else f"rule-{node[1]}"
    if kind == "text":
        return '"' + quoted(node[1], False) + '"'
    if kind == "any":
        return "(" + (blank + "| ").join(gbnf(x, r) for x in node[1]) + ")"
    if kind == "times":
        least, most = node[2:]
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        return f"({gbnf(node[1], r)})" + sign.get((least, most), f"{{{least},{most}}}")
    return "(" + blank.join(gbnf(x, r) for x in node[1]) + ")"


def ends(node, rules, text, at, known):
    """Where a match that begins at `at` may end."""
    kind = node[0]
    if kind == "class":
        return {at + 1} if at < len(text) and any(a <= text[at] <= b for a, b in node[2]) != node[1] else set()
    if kind == "text":
        return {at + len(node[1])} if text.startswith(node[1], at) else set()
    if kind == "call":
        key = (node[1], at)
        if key not in known:
            known[key] = ends(rules[node[1]], rules, text, at, known)
        return known[key]
    if kind == "any":
        return set().union(*(ends(x, rules, text, at, known) for x in node[1]))
    here = {at}
    if kind == "all":
        for x in node[1]:
            here = set().union(*(ends(x, rules, text, i, known) for i in here))
        return here
    least, most = node[2:]
    found, seen = here if least == 0 else set(), 0
    while here and seen < (len(text) + 3 if most is None else most):
        here, seen = set().union(*(ends(node[1], rules, text, i, known) for i in here)), seen + 1
        found = found | here if seen >= least else found
    return found


def check_grammar(guide, r, counts):
    n = r.randint(1, 4)
    rules = [tree(r, 3, n, i, False) for i in range(n)]
    written = [f"{'root' if i == 0 else f'rule-{i}'} ::= {gbnf(x, r)}" for i, x in enumerate(rules)]
    r.shuffle(written)
    texts = ["".join(r.choices('ab0é "\\\nc', k=r.randrange(7))) for _ in range(30)]
    got = guide.ask(gbnf="\n".join(written), seed=r.randrange(2**31), walks=6, texts=texts)
    assert "error" not in got, (written, got)
    said = [t for t in got["said"] if t is not None and len(t) < 60]
    counts["ended"] += len(said)
    for text, taken in [*zip(texts, got["takes"]), *((t, True) for t in said)]:
        counts["matches"] += 1
        assert taken == (len(text) in ends(rules[0], rules, text, 0, {})), (written, text, taken)


# ---- what has to come

WORDS = ["customer_identifier", "maximumLength", "preferred", "contact", "is_active", "uuid-4", '"name":', "2024,"]
WORDS += ["[true]", "München", "bodies", "€"]


def check_spelling(guide, r, counts):
    """A text without a choice has one spelling, the tokenizer's."""
    text = r.choice([" ", ", ", "\n "]).join(r.choices(WORDS, k=r.randint(1, 6)))
    got = guide.ask(regex=re.sub(r"([\[\]])", r"\\\1", text), seed=1, walks=1, texts=[text], whole=text)
    counts["spelt"] += 1
    assert got["spelt"] and got["said"] == [text] and got["takes"] == [True], (text, got)


def check_model(a, model, cases, counts):
    """Returns how many failed."""
    guide = Guide(a.binary, model)
    failed = 0
    for i in range(cases):
        for check in (check_schema, check_regex, check_grammar, check_spelling):
            try:
                check(guide, random.Random(a.seed * 1000003 + i), counts)
            except AssertionError as e:
                failed += 1
                print("FAIL", model, check.__name__, str(e)[:600], flush=True)
    return failed


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--cases", type=int, default=400)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    counts = dict.fromkeys(["ended", "endless", "valid", "invalid", "matches", "spelt"], 0)
    vocabularies = sorted(glob.glob(f"{VOCABS}/*.gguf"))
    failed = check_model(a, a.model, a.cases, counts) + (not vocabularies)
    failed += sum(check_model(a, v, a.cases // 6, counts) for v in vocabularies)
    print(counts)
    if counts["ended"] < 5 * counts["endless"] or min(counts["valid"], counts["invalid"], counts["matches"]) < a.cases:
        failed += 1
        print("FAIL hardly anything was compared")
    print(f"{sum(counts.values()) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
