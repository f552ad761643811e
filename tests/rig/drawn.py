"""Whatever may meet in one server, drawn at random: what answers depend on, the flags beside that, policies and their
params, requests, and what an operator orders. Each draw is by the generator that is given, so a seed says all. Tests
only."""

import glob
import json
import os
import re
import subprocess

from file_site import BINARY, ENV

ENCODER = "models/weights/all-MiniLM-L6-v2"
SHAPES = ["gqa", "mha", "mqa", "narrow", "wide", "deep", "9_3", "swiftkv", "swiftkv_deep", "28_4"]
SHIPPED = sorted(os.path.basename(f)[:-4] for f in glob.glob("policies/*.lua"))
TEXTS = ["a", "what a day", "rain and sun " * 20, "größe", "x" * 300]


def maybe(rng, share, *flags):
    return list(flags) if rng.random() < share else []


# ---- what answers depend on


def numerics(rng, folder):
    """A shape, with tokens enough for a tokenizer of bytes, its weights, and what is rounded: shape, config, flags."""
    shape = rng.choice(SHAPES)
    dtypes = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"]
    dtypes += [] if shape == "mqa" else ["fp8_e4m3"]
    dtypes += ["q2_k", "q3_k", "q4_k", "q6_k", "iq4_xs"] if shape == "wide" else []
    with open(f"tests/data/layout_{shape}.json") as f:
        config = json.load(f)
    config["vocab_size"] = max(300, config["vocab_size"])
    config["intermediate_size"] = (config["intermediate_size"] + 31) // 32 * 32  # blocks of quantised weights
    path = os.path.join(folder, "config.json")
    with open(path, "w") as out:
        json.dump(config, out)
    flags = ["--load-format", "dummy", "--hf-config", path, "--served-model-name", "m"]
    flags += ["--dummy-dtype", rng.choice(dtypes), "--seed", str(rng.randrange(9)), "-t", "2"]
    flags += ["--cpu-precision", rng.choice(["high", "fast"])]
    flags += ["--kv-cache-dtype", rng.choice(["auto", "auto", "f16", "bf16", "f32", "fp8", "int8"])]
    return shape, config, [*flags, "--port", "0", "--disable-log-stats"]


def of_any_isa(numbers, flags):
    """Those flags, without an instruction set where not all of them give the same bits: 16-bit weights of fast inputs,
    whose products tiles add in an order of their own."""
    halves = numbers[numbers.index("--dummy-dtype") + 1] in ("f16", "bf16")
    if not halves or numbers[numbers.index("--cpu-precision") + 1] != "fast" or "--isa" not in flags:
        return flags
    at = flags.index("--isa")
    return flags[:at] + flags[at + 2 :]


# ---- what they do not


def layout(rng, shape):
    if shape == "9_3" and rng.random() < 0.7:
        return ["--ranks", rng.choice(["1", "3"])]
    if rng.random() < 0.5:
        return ["--ranks", rng.choice(["1", "2", "4", "8"])]
    sizes = {x: rng.choice([1, 1, 1, 2, 2, 4]) for x in ("tp", "sp", "pp", "dp")}
    while sizes["tp"] * sizes["sp"] * sizes["pp"] * sizes["dp"] > 8 and rng.random() < 0.9:
        sizes[rng.choice(list(sizes))] = 1
    return [x for k, v in sizes.items() if v > 1 for x in (f"--{k}", str(v))] + maybe(rng, 0.3, "--ranks", "4")


def weights(rng, f):
    """Seldom what cannot be: that it is refused is looked at, too."""
    ways = ["replicated", "replicated", "pooled", "sharded"] if f and f[-1] != "1" else ["replicated"]
    way = rng.choice(ways if "--pp" not in f or rng.random() < 0.1 else [w for w in ways if w != "pooled"])
    out = maybe(rng, 0.9, "--weights", way) + maybe(
        rng, 0.2 if way == "replicated" else 0.02, "--shift-weights", "copy"
    )
    if way == "pooled":
        out += maybe(rng, 0.5, "--pool-slots", str(rng.randrange(2, 5)))
        out += maybe(rng, 0.5, "--pool-order", rng.choice(["shifted", "sliced", "plain"]))
        out += maybe(rng, 0.5, "--pool-owner", rng.choice(["layer-mod", "contiguous", "layer-mod:2", "contiguous:2"]))
        out += maybe(rng, 0.3, "--pool-tile", rng.choice(["4KiB", "64KiB"]))
    return out


def memory(rng, folder):
    f = maybe(rng, 0.5, "--kv-cache-memory-bytes", rng.choice(["2MiB", "4MiB", "16MiB", "64MiB"]))
    f += maybe(rng, 0.2, "--rank-memory", "256MiB")
    if rng.random() < 0.5:
        f += ["--host-kv-memory", rng.choice(["1MiB", "8MiB", "64MiB"])]
        f += maybe(rng, 0.4, "--disk-kv", os.path.join(folder, "kv") + rng.choice(["", ":4MiB"]))
    f += maybe(rng, 0.2, "--no-enable-prefix-caching")
    f += maybe(rng, 0.3, "--block-size", rng.choice(["16", "32", "64"]))
    f += ["--max-park-seconds", rng.choice(["0.05", "1"])]  # habits park for ever; ten seconds each time take long
    return f


def drafts(rng, folder):
    f = maybe(rng, 0.2, "--draft-memory", rng.choice(["0", "64KiB", "64MiB"]))
    f += maybe(rng, 0.2, "--draft-from", rng.choice(["both", "prompts"]))
    f += maybe(rng, 0.2, "--draft-file", os.path.join(folder, "drafts"))
    if rng.random() < 0.3:
        f += ["--draft-model", os.path.join(folder, rng.choice(["heads", "small"]))]
        f += maybe(rng, 0.3, "--draft-kv-memory", "64KiB")
    return f


def service(rng, folder):
    f = maybe(rng, 0.3, "--max-num-seqs", rng.choice(["1", "2", "7", "32"]))
    f += maybe(rng, 0.3, "--max-num-batched-tokens", rng.choice(["1", "16", "100", "512"]))
    f += maybe(rng, 0.1, "--max-num-queued-reqs", "4")
    f += maybe(rng, 0.2, "--starvation-seconds", rng.choice(["0.3", "2"]))
    f += maybe(rng, 0.2, "--policy-probation-seconds", rng.choice(["0", "1"]))
    f += maybe(rng, 0.25, "--policy-isolation", "process")
    f += maybe(rng, 0.3, "--state-dir", os.path.join(folder, "state"))
    f += maybe(rng, 0.2, "--record", os.path.join(folder, f"recording {rng.random()}"))
    f += maybe(rng, 0.2, "--isa", rng.choice(["portable", "avx2"]))
    f += maybe(rng, 0.1, "--profile")
    f += maybe(rng, 0.2, "--request-history", "0")
    f += maybe(rng, 0.2, "--decision-log-memory", "0")
    f += maybe(rng, 0.2, "--what-if-memory", rng.choice(["0", "1MiB"]))
    f += maybe(rng, 0.2, "--comm-sets", "0-2")
    f += maybe(rng, 0.4, "--batch-dir", os.path.join(folder, "batches"))
    if os.path.isdir(ENCODER):
        f += maybe(rng, 0.2, "--embedding-model", ENCODER, "--embedding-replicas", rng.choice(["1", "2"]))
    return f


def flags(rng, shape, folder):
    f = layout(rng, shape)
    f += weights(rng, f) + memory(rng, folder) + drafts(rng, folder) + service(rng, folder)
    policy = rng.choice([*SHIPPED, "native", *["habits"] * 6, *["arctic"] * (4 if "--draft-model" in f else 1)])
    if policy == "habits":
        path = os.path.join(folder, f"habit{rng.random()}.lua")
        with open(path, "w") as out:
            out.write(habits(rng))
        return [*f, "--policy", path]
    f += ["--policy", policy]
    for k, v in params(rng, policy).items():
        f += ["--policy-param", f"{k}={v if isinstance(v, str) else json.dumps(v)}"]
    return f


# ---- policies

DECLARED = {"native": {}}


def declared(name):
    if name not in DECLARED:
        check = [BINARY, "policy", "check", f"policies/{name}.lua"]
        said = subprocess.run(check, capture_output=True, text=True, check=True, env=ENV).stdout
        found = re.search(r"^params: (.*)$", said, re.M)
        DECLARED[name] = json.loads(found[1]) if found else {}
    return DECLARED[name]


def param(rng, p):
    if "choices" in p:
        return rng.choice(p["choices"])
    if p["type"] == "boolean":
        return rng.random() < 0.5
    if p["type"] not in ("integer", "number"):
        return p["default"]
    low, high, usual = p.get("min", -10), p.get("max", 10000), p["default"]
    v = rng.choice([low, usual, usual * 2, usual / 2, usual + 1, low + rng.random() * min(high - low, 100)])
    v = min(max(v, low), high)
    return int(v) if p["type"] == "integer" else v


def params(rng, name):
    return {k: param(rng, p) for k, p in declared(name).items() if rng.random() < 0.3}


DEEDS = "remap cover bind release preempt close open out into hold sleep wake pool unpark shard layout draft probe"


def habits(rng):
    """A policy that does the same few things again and again, as those of tests/policy/habits.c."""
    with open("tests/rig/habitual.lua") as f:
        rest = f.read()
    serve = rng.randrange(1, 10) if rng.random() < 0.3 else 1
    head = f"local serve, habits = {serve}, {{\n"
    for _ in range(rng.randrange(1, 5)):
        words = {
            "deed": rng.choice(DEEDS.split()),
            "whom": rng.choice(["all", "any", "old", "new"]),
            "kv": rng.choice(["migrate", "park", "recompute", "keep"]),
            "when": rng.choice(["hard", "drain", "soft"]),
            "way": rng.choice(["hard", "recompute"]),
        }
        plain = {
            "every": rng.choice([1, 1, 2, 3, 7, 20]),
            "at": rng.randrange(7),
            "n": rng.randrange(1, 5),
            "m": rng.randrange(1, 5),
            "ms": rng.choice([1, 20, 100]),
            "fixed": rng.choice(["true", "false"]),
            "base": rng.choice(["true", "false", "false"]),
        }
        fields = [f"{k} = '{v}'" for k, v in words.items()] + [f"{k} = {v}" for k, v in plain.items()]
        head += "  { " + ", ".join(fields) + " },\n"
    return head + "}\n" + rest


# ---- requests

FIELDS = {
    "top_k": [1, 5, 20],
    "top_p": [0.3, 0.9],
    "min_p": [0.05],
    "presence_penalty": [0.5, -0.5],
    "frequency_penalty": [0.7],
    "repetition_penalty": [1.3],
    "logit_bias": [{"7": 5, "9": -100}],
    "stop_token_ids": [[7, 8, 9, 10, 11]],
    "stop": ["a", ["b", "\n", "é"]],
    "min_tokens": [1, 3],
    "allowed_token_ids": [list(range(20, 60))],
    "logprobs": [0, 1, 5],
    "prompt_logprobs": [0, 2],
    "echo": [True],
    "n": [2, 3],
    "truncate_prompt_tokens": [1, 20],
    "cache_salt": ["a", "b"],
    "priority": [-5, 0, 3],
    "user": ["u"],
}

WORD = {"type": "string", "minLength": 1, "maxLength": 6}
TREE = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"enum": ["a", 1, None]}]}, "maxItems": 3}
ROW = {"type": "object", "properties": {"word": WORD, "n": {"type": "integer", "minimum": -3, "maximum": 40}}}
GUIDES = [
    {"structured_outputs": {"regex": "[a-f]{3,9}(-[0-9]{2,4})*"}},
    {"structured_outputs": {"choice": ["yes", "no", "not sure"]}},
    {"response_format": {"type": "json_object"}},
    {"guided_json": TREE},
    {"grammar": 'root ::= "line " [^\\n]{3,} "\\n" root | "the end, " ("once" | "twice")'},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "row", "schema": ROW}}},
]
UNGUIDED = ("ignore_eos", "min_tokens", "allowed_token_ids")


def prompts(rng, vocab):
    """How prompts begin."""
    return [[rng.randrange(3, vocab) for _ in range(k)] for k in (3, 40, 130, 250)]


def prompt(rng, stems, vocab):
    if rng.random() < 0.2:
        return rng.choice(TEXTS)
    stem = rng.choice(stems)
    tail = [rng.randrange(3, vocab) for _ in range(rng.choice([0, 1, 5, 20, 60]))]
    return stem[: rng.choice([len(stem), len(stem), 16, 33])] + tail or [5]


def request(rng, stems, vocab):
    b = {"model": "m", "prompt": prompt(rng, stems, vocab), "max_tokens": rng.choice([1, 2, 8, 20, 40])}
    b["return_token_ids"] = True
    b["temperature"] = 0
    if rng.random() < 0.5:
        b["ignore_eos"] = True
    if rng.random() < 0.5:
        b.update(temperature=rng.choice([0.5, 1.0, 1.5]), seed=rng.randrange(1000))
    b.update({k: rng.choice(v) for k, v in FIELDS.items() if rng.random() < 0.12})
    if rng.random() < 0.15:
        b = {k: v for k, v in b.items() if k not in UNGUIDED} | rng.choice(GUIDES)
    if "prompt_logprobs" not in b and rng.random() < 0.4:
        b.update(stream=True, stream_options={"include_usage": True})
    return b


# ---- what an operator orders

PUBLIC = ("/metrics", "/health", "/v1/models")
STATE = ["state", "requests?slowest=5", "decisions?n=20", "policy", "policies", "shadow", "canary", "what-if", "limits"]
GETS = [*PUBLIC, *(f"/admin/{x}" for x in (*STATE, "audit?n=5", "profile"))]
LIMITS = {"max_num_seqs": [1, 3, 16], "max_num_batched_tokens": [1, 16, 64, 512], "max_num_queued_reqs": [0, 50]}


def order(rng, groups):
    """Method, path and body. groups: ids that a canary may be for."""
    if rng.random() < 0.5:
        name, source = "habit", habits(rng)
    else:
        name = rng.choice(SHIPPED)
        with open(f"policies/{name}.lua") as f:
            source = f.read()
    limit = rng.choice(list(LIMITS))
    policy, some = f"/admin/policies/{name}", f"&groups={rng.choice(groups)}" if groups else ""
    what = rng.choice(["put", "put", "beside", "active", "limit", "other", "look", "look"])
    return rng.choice(
        {
            "put": [("PUT", policy, source), ("PUT", policy + "?activate=0", source)],
            "beside": [
                ("POST", policy + "/check", source),
                ("POST", policy + "/canary?seconds=1" + some, source),
                ("POST", policy + "/shadow?seconds=1", source),
                ("POST", f"/admin/what-if?name={name}&seconds=2", source),
            ],
            "active": [
                ("POST", policy + "/activate", None),
                ("POST", "/admin/policy/rollback", None),
                ("DELETE", "/admin/canary", None),
                ("DELETE", "/admin/shadow", None),
                ("PATCH", "/admin/policy/params", json.dumps(params(rng, rng.choice(SHIPPED)))),
            ],
            "limit": [("PATCH", "/admin/limits", json.dumps({limit: rng.choice(LIMITS[limit])}))],
            "other": [("POST", f"/admin/{x}", None) for x in ("reset_prefix_cache", "drafts/save", "drafts/load")],
            "look": [("GET", rng.choice(GETS), None)],
        }[what]
    )
