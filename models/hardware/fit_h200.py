"""Makes h200-kernels.json, the tables of measured H200 kernels, from the public AIConfigurator rows (see "origin" in
the file): python3 fit_h200.py DIR. Needs numpy. Rows for which held() is true are kept out; tests/sim/kernels.c
measures the error on them. The rooflines here are those of kernels/sim/cost.c."""

import collections
import csv
import json
import math
import os
import sys

import numpy as np

DIR = sys.argv[1]
PEAK = {"bfloat16": 989e12, "fp8": 1979e12}
MEMORY, LINK = 4.8e12, 450e9


def rows(name):
    with open(os.path.join(DIR, name)) as f:
        return list(csv.DictReader(f))


def mixed(a, b, c):
    return ((a * 2654435761 + b * 40503 + c * 97) % 2**32) >> 16


def held_gemm(n, k):
    return mixed(n, k, 0) % 10 == 3


def held_attention(q, kv, dim):
    return mixed(q, kv, dim) % 8 == 3


def held_collective(nbytes):
    return nbytes.bit_length() % 4 == 1


def kriged(known, values, wanted, scale, noise):
    """Gaussian process with an exponential kernel: close to the points nearby, their mean far away."""
    x, z, y = np.array(known, float) / scale, np.array(wanted, float) / scale, np.array(values)
    kernel = lambda a, b: np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1) + 1e-12))
    mean = y.mean()
    return mean + kernel(z, x) @ np.linalg.solve(kernel(x, x) + noise * np.eye(len(x)), y - mean)


def table(axes, origin, at):
    """at(point) for every point, the last axis fastest."""
    points = [()]
    for a in axes:
        points = [p + (v,) for p in points for v in a]
    return {"origin": origin, "axes": axes, "thousandths": [max(1, round(math.exp(at[p]) * 1000)) for p in points]}


def gemm(dtype):
    data, w = collections.defaultdict(dict), 2 if dtype == "bfloat16" else 1
    for r in rows("gemm.csv"):
        m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
        if r["dtype"] == dtype and not held_gemm(n, k):
            roof = max(2 * m * n * k / PEAK[dtype], ((n * k + m * k) * w + m * n * 2) / MEMORY) * 1e6
            data[m][n, k] = math.log(float(r["us"]) / (roof + 4))
    side = sorted({n for d in data.values() for n, _ in d} | {k for d in data.values() for _, k in d})
    at, grid = {}, [(n, k) for n in side for k in side]
    for m, known in data.items():
        x = [(math.log2(n), math.log2(k)) for n, k in known]
        z = [(math.log2(n), math.log2(k)) for n, k in grid]
        for (n, k), u in zip(grid, kriged(x, list(known.values()), z, np.array([3.0, 3.0]), 0.005)):
            at[n, k, m] = known.get((n, k), u)
    return table([side, side, sorted(data)], "vLLM 0.24.0 (bf16: cuBLAS, fp8: CUTLASS)", at)


def prefill(dtype):
    data = collections.defaultdict(lambda: ([], []))
    feature = lambda b, q, r: (math.log2(b * q), math.log2(r), math.log2(b))
    for r in rows("prefill_attention_fa3.csv"):
        b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", "seq"))
        if r["kv_dtype"] == dtype and not held_attention(q, kv, dim):
            roof = (
                4 * b * q * dim * s * (s + 1) / 2 / (PEAK["bfloat16"] * 0.65) + b * s * (q + kv) * 2 * dim * 2 / MEMORY
            ) * 1e6
            data[dim, s][0].append(feature(b, q, q / kv))
            data[dim, s][1].append(math.log(float(r["us"]) / (roof + 6)))
    seqs = sorted({s for _, s in data})
    axes = [
        [64, 128],
        [1, 2, 4, 8, 16, 64],
        seqs,
        [1, 2, 4, 8, 16, 32, 64, 128, 256],
        [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96],
    ]
    at, grid = {}, [(g, b, q) for g in axes[1] for b in axes[3] for q in axes[4]]
    for (dim, s), (x, y) in data.items():
        for (g, b, q), u in zip(
            grid, kriged(x, y, [feature(b, q, g) for g, b, q in grid], np.array([2.0, 6.0, 8.0]), 0.02)
        ):
            at[dim, g, s, b, q] = u
    return table(axes, "FlashAttention-3", at)


def decode(dtype):
    data, w = collections.defaultdict(list), 2 if dtype == "bfloat16" else 1
    for r in rows("decode_attention_fa3.csv"):
        b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", "context"))
        if r["kv_dtype"] == dtype and not held_attention(q, kv, dim):
            roof = max(b * s * kv * dim * 2 * w / MEMORY, 4 * b * s * q * dim / PEAK["bfloat16"]) * 1e6
            data[dim, s, b * kv].append(math.log(float(r["us"]) / (roof + 8)))
    axes = [sorted({k[i] for k in data}) for i in range(3)]
    at = {}
    for dim in axes[0]:
        for i, s in enumerate(axes[1]):
            for k, n in enumerate(axes[2]):
                if (dim, s, n) in data:
                    at[dim, s, n] = float(np.mean(data[dim, s, n]))
                else:  # too large to have been measured: as the next smaller one
                    at[dim, s, n] = (
                        at[dim, axes[1][i - 1], n]
                        if (dim, axes[1][i - 1], n) in at and i
                        else at[dim, s, axes[2][k - 1]]
                    )
    return table(axes, "FlashAttention-3", at)


def collective(library, op, dtype, share):
    data = {}
    for r in rows("collectives.csv"):
        g, n = int(r["gpus"]), int(r["bytes"])
        if (r["library"], r["op"], r["dtype"]) == (library, op, dtype) and not held_collective(n):
            data[g, n] = math.log(float(r["us"]) / (share * (g - 1) / g * n / LINK * 1e6 + 5))
    axes = [sorted({k[i] for k in data}) for i in range(2)]
    return table(axes, library, data)


def main():
    out = {}
    for short, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
        out["gemm_" + short] = gemm(dtype)
        out["prefill_" + short] = prefill(dtype)
        out["decode_" + short] = decode(dtype)
    out["all_reduce"] = collective("vllm_0.24.0_graph", "all_reduce", "bfloat16", 2)
    out["all_reduce_eager"] = collective("vllm_0.24.0_eager", "all_reduce", "bfloat16", 2)
    out["all_to_all"] = collective("nccl_2.29.2", "alltoall", "half", 1)
    out["all_gather"] = collective("nccl_2.29.2", "all_gather", "half", 1)
    source = (
        "; H200 SXM, public AIConfigurator data (ai-dynamo/aiconfigurator @095f58a5, Apache-2.0), "
        "systems/data/h200_sxm, by fit_h200.py"
    )
    for t in out.values():
        t["origin"] += source
    with open("h200-kernels.json", "w") as f:
        lines = [json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in out.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


main()
