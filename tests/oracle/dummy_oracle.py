"""Reference logits of the dummy models tests/data/gold_*.json, one for each family: seeded weights made again in numpy,
then the float64 forward.

    python tests/oracle/dummy_oracle.py [--write]

--write stores tests/data/gold_*.f32, which tests/gold/families.c compares with the engine; without it the stored files
are compared with what is computed now. Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import glob
import json
import math
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
from reference import Reference

SEED, TOKENS, EVERY = 20, 160, 10
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
ONCE = ["token_embd.weight", "output.weight", "output_norm.weight"]
APART = "swiftkv_norm.weight"  # has the last stream
LAYER = [
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
]


def splitmix(state):
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def draws(seed, n):
    return np.array([splitmix((seed + GAMMA * (i + 1)) & MASK) for i in range(n)], dtype=np.uint64)


def stream_at(seed, i):
    return splitmix(((seed ^ ((i + 1) * 0xD1342543DE82EF95 & MASK)) + 2 * GAMMA) & MASK)


def shape_of(cfg, name):
    hidden, ffn, heads = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_attention_heads"]
    dim = cfg.get("head_dim") or hidden // heads
    q, kv = heads * dim, cfg["num_key_value_heads"] * dim
    return {
        "token_embd.weight": (cfg["vocab_size"], hidden),
        "output.weight": (cfg["vocab_size"], hidden),
        "attn_q.weight": (q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_q.bias": (1, q),
        "attn_k.bias": (1, kv),
        "attn_v.bias": (1, kv),
        "attn_q_norm.weight": (1, dim),
        "attn_k_norm.weight": (1, dim),
        "attn_output.weight": (hidden, q),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }.get(name, (1, hidden))


def dummy(cfg, full_name):
    """Uniform values from 16 bits each, four to a draw; a row starts with a fresh draw. In float32, as the engine makes
    them."""
    parts = full_name.split(".", 2)
    layer, name = (int(parts[1]), parts[2]) if parts[0] == "blk" else (0, full_name)
    index = LAYER.index(name) + len(ONCE) if parts[0] == "blk" else MASK if name == APART else ONCE.index(name)
    rows, cols = shape_of(cfg, name)
    f = np.float32
    centre, width = f(0), np.sqrt(f(3) / f(cols))
    if "norm" in name:
        centre, width = f(1), f(0.2)
    elif name.endswith(".bias"):
        width = f(0.2)
    elif name in ("attn_output.weight", "ffn_down.weight"):
        width = width / np.sqrt(f(2) * f(cfg["num_hidden_layers"]))
    per_row = math.ceil(cols / 4)
    stream = stream_at(SEED, layer * (len(ONCE) + len(LAYER)) + index)
    bits = draws(stream, rows * per_row).reshape(rows, per_row, 1)
    units = (bits >> (np.arange(4, dtype=np.uint64) * np.uint64(16))) & np.uint64(0xFFFF)
    units = units.reshape(rows, per_row * 4)[:, :cols].astype(np.int64) - 0x8000
    out = (centre + width * f(2.0**-15) * units.astype(f)).astype(np.float64)
    return out if rows > 1 or name in ("token_embd.weight", "output.weight") else out[0]


def logits_of(path):
    cfg = json.load(open(path))
    scaling = cfg.get("rope_scaling")
    if scaling:
        scaling.setdefault("rope_type", scaling.get("type", "default"))
    if not cfg.get("use_sliding_window", True):
        cfg["sliding_window"] = None
    arch, cache = cfg["architectures"][0], {}

    def get(name):
        if name not in cache:
            cache[name] = dummy(cfg, name)
        return cache[name]

    r = Reference(cfg, get, halves=True, qkv_bias=arch.startswith("Qwen2"), qk_norm=arch.startswith("Qwen3"))
    ids = np.array([(i * i * 7 + i * 3 + 5) % cfg["vocab_size"] for i in range(TOKENS)])
    return r.logits(ids)[EVERY - 1 :: EVERY]


def main():
    failed = 0
    paths = sorted(glob.glob("tests/data/gold_*.json"))
    for path in paths:
        z, stored = logits_of(path), path[:-4] + "f32"
        if "--write" in sys.argv:
            z.astype("<f4").tofile(stored)
        old = np.fromfile(stored, "<f4").reshape(z.shape)
        ok = np.abs(old - z).max() < 1e-6 * np.abs(z).max()
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {path}: logits of size {np.abs(z).max():.2f}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
