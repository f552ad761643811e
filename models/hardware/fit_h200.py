"""Makes h200-kernels.json, the tables of measured H200 kernels, from the public AIConfigurator rows (see "origin" in
the file), and the "residuals" of h200x8.json and h200x8-fitted.json: python3 fit_h200.py DIR. Needs numpy. Rows of the
fold HELD are kept out of both; tests/sim/kernels.c measures the error on them, and how many are inside of the bands.
The rooflines and formulas here are those of kernels/sim/kernel_cost.c.

Residuals of a table: each other fold of the shapes is left out in turn, too, and priced by the table of the rest. Of
collectives, which have few sizes, each size is left out by itself. Residuals of a formula: of all rows but the held
ones, as nothing was fitted to any; of GEMMs as large as a model's, and of attention that is no mere launch; over their
median, as the formulas stand for the software of another time (README.md)."""

import collections
import csv
import json
import math
import os
import re
import sys

import numpy as np

DIR = sys.argv[1]
PEAK = {"bfloat16": 989e12, "fp8": 1979e12}
MEMORY, LINK = 4.8e12, 450e9
HELD = 3  # the fold that is kept out of everything
FOLDS = {"gemm": 10, "prefill": 8, "decode": 8}


def rows(name):
    with open(os.path.join(DIR, name)) as f:
        return list(csv.DictReader(f))


def mixed(a, b, c):
    return ((a * 2654435761 + b * 40503 + c * 97) % 2**32) >> 16


def gemm_fold(n, k):
    return mixed(n, k, 0) % FOLDS["gemm"]


def attention_fold(q, kv, dim):
    return mixed(q, kv, dim) % FOLDS["prefill"]


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


def gemm(dtype, out):
    data, w = collections.defaultdict(dict), 2 if dtype == "bfloat16" else 1
    for r in rows("gemm.csv"):
        m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
        if r["dtype"] == dtype and gemm_fold(n, k) not in out:
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


def prefill(dtype, out):
    data = collections.defaultdict(lambda: ([], []))
    feature = lambda b, q, r: (math.log2(b * q), math.log2(r), math.log2(b))
    for r in rows("prefill_attention_fa3.csv"):
        b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", "seq"))
        if r["kv_dtype"] == dtype and attention_fold(q, kv, dim) not in out:
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


def decode(dtype, out):
    data, w = collections.defaultdict(list), 2 if dtype == "bfloat16" else 1
    for r in rows("decode_attention_fa3.csv"):
        b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", "context"))
        if r["kv_dtype"] == dtype and attention_fold(q, kv, dim) not in out:
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


# ---- residuals: measured over priced time

LEVELS = [0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.995]  # as in kernels/sim/residual.c
AXES = {
    "gemm": ["outputs", "columns", "rows"],
    "prefill": ["head size", "q heads per kv head", "new tokens", "sequences", "q heads"],
    "decode": ["head size", "cached tokens", "sequences times kv heads"],
    "collective": ["devices", "bytes"],
}
LEAST_SIDE = 1024  # of a GEMM of a model, where formulas are judged
# Doublings between the points of the grid around a row that is left out, on axes along which steps differ.
GAPS = {"rows": 1, "new tokens": 1, "sequences": 1, "cached tokens": 1, "sequences times kv heads": 1, "bytes": 2}
FARTHEST = 8  # doublings over which correlations are looked at
Row = collections.namedtuple("Row", "x us roof fold shape")  # x: on the table's axes; roof: priced at utilisation 1


def scale(x):
    """As kernels/sim/table.c: the logarithm, straight between powers of two."""
    m, e = np.frexp(np.asarray(x, float))
    return e + 2 * m


def at(t, points):
    """As sim_table_at()."""
    axes, v = [np.array(a, float) for a in t["axes"]], np.array(t["thousandths"], float) / 1000
    v, place, sums = v.reshape([len(a) for a in axes]), [], np.zeros(len(points))
    for a, x in zip(axes, np.array(points, float).T):
        x = np.clip(x, a[0], a[-1])
        lo = np.clip(np.searchsorted(a, x, side="right") - 1, 0, len(a) - 2)
        place.append((lo, (scale(x) - scale(a[lo])) / (scale(a[lo + 1]) - scale(a[lo]))))
    for corner in range(1 << len(axes)):
        up = [corner >> i & 1 for i in range(len(axes))]
        part = np.prod([w if u else 1 - w for (_, w), u in zip(place, up)], axis=0)
        sums += part * v[tuple(lo + u for (lo, _), u in zip(place, up))]
    return sums


def gemm_rows(dtype):
    w = 2 if dtype == "bfloat16" else 1
    for r in rows("gemm.csv"):
        if r["dtype"] == dtype:
            m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
            roof = max(2 * m * n * k / PEAK[dtype], ((n * k + m * k) * w + m * n * 2) / MEMORY) * 1e6 + 4
            yield Row((n, k, m), float(r["us"]), roof, gemm_fold(n, k), (m, n, k))


def attention_rows(kind, dtype):
    w, length = 2 if dtype == "bfloat16" else 1, "seq" if kind == "prefill" else "context"
    for r in rows(kind + "_attention_fa3.csv"):
        if r["kv_dtype"] == dtype:
            b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", length))
            if kind == "prefill":
                flop = 4 * b * q * dim * s * (s + 1) / 2
                roof = (flop / (PEAK["bfloat16"] * 0.65) + b * s * (q + kv) * 2 * dim * 2 / MEMORY) * 1e6 + 6
                x = (dim, q / kv, math.sqrt(s * (s + 1)), b, q)
            else:
                roof = max(b * s * kv * dim * 2 * w / MEMORY, 4 * b * s * q * dim / PEAK["bfloat16"]) * 1e6 + 8
                x = (dim, s, b * kv)
            yield Row(x, float(r["us"]), roof, attention_fold(q, kv, dim), (b, s, q, kv, dim))


def collective_rows(library, op, dtype, share):
    for r in rows("collectives.csv"):
        g, n = int(r["gpus"]), int(r["bytes"])
        if (r["library"], r["op"], r["dtype"]) == (library, op, dtype):
            fold = HELD if held_collective(n) else 0
            yield Row((g, n), float(r["us"]), share * (g - 1) / g * n / LINK * 1e6 + 5, fold, (g, n))


def table_residuals(kind, dtype, fit, data):
    """(row, measured over priced) of every fold but the held one."""
    found = []
    for fold in set(range(FOLDS[kind])) - {HELD}:
        some = [r for r in data if r.fold == fold]
        if some:
            priced = at(fit(dtype, {fold, HELD}), [r.x for r in some])
            found += [(r, r.us / r.roof / u) for r, u in zip(some, priced)]
    return found


def collective_residuals(data):
    found, known = [], {r.x: r.us / r.roof for r in data}
    for r in data:
        sizes = sorted(n for g, n in known if g == r.x[0])
        i = sizes.index(r.x[1])
        if 0 < i < len(sizes) - 1:
            a, b = sizes[i - 1], sizes[i + 1]
            w = (scale(r.x[1]) - scale(a)) / (scale(b) - scale(a))
            found.append((r, known[r.x] / ((1 - w) * known[r.x[0], a] + w * known[r.x[0], b])))
    return found


def correlation_length(found, kind, axis):
    """In doublings: the integral of the correlation of two residuals that differ along one axis only, up to where it
    ends. 0: less than one doubling, so each value is by itself; but never on an axis along which steps of one run
    differ, where errors would average out: there the error of a gap between two points of the grid is one error."""
    logs = np.log([u for _, u in found])
    logs, lines, sums = (
        np.clip(logs - np.median(logs), -0.5, 0.5),
        collections.defaultdict(list),
        collections.defaultdict(list),
    )
    for (r, _), y in zip(found, logs):
        lines[r.x[:axis] + r.x[axis + 1 :] + tuple(v for v in r.shape if v not in r.x)].append((r.x[axis], y))
    for line in lines.values():
        line.sort()
        for i, (a, y) in enumerate(line):
            for b, z in line[i + 1 :]:
                sums[round(math.log2(b / a))].append(y * z)
    length = 0.5
    for d in range(1, FARTHEST + 1):
        share = np.mean(sums[d]) / logs.var() if len(sums[d]) >= 20 else 0
        if share < 0.05:
            break
        length += share
    least = GAPS.get(AXES[kind][axis], 0)
    return round(float(max(length, least)), 1) if length >= 1 or least else 0


def residual(kind, found, along, regions, centred=False):
    """What goes into the file. Each row belongs to the nearest region."""
    axis, x = AXES[kind].index(along), {}
    place = np.abs(scale([r.x[axis] for r, _ in found])[:, None] - scale(regions)[None]).argmin(1)
    ratios = np.array([u for _, u in found])
    # (n + 1) p of n values: a further one is below with chance p
    tables = [np.quantile(ratios[place == i], LEVELS, method="weibull") for i in range(len(regions))]
    x["rows"] = len(found)
    x["doublings"] = [correlation_length(found, kind, i) for i in range(len(AXES[kind]))]
    x["along"], x["at"] = along, regions
    if centred:
        x["median"] = [round(float(t[len(LEVELS) // 2]), 3) for t in tables]
        tables = [t / t[len(LEVELS) // 2] for t in tables]
    x["quantiles"] = [[round(float(v), 4) for v in t] for t in tables]
    return x


# ---- the formulas, with the constants of a description


def smooth_max(a, b):
    return (a**3.5 + b**3.5) ** (1 / 3.5)


def by_formula(h, name, r):
    """us of the kernel, and what a step adds to it: its launch, or the conversion of its input."""
    kind, _, dtype = name.partition("_")
    w = 1 if dtype == "fp8" else 2
    if kind == "gemm":
        n, k, m = r.x
        by_memory = n * k * w / (MEMORY * h["gemm_memory_share"])
        by_flop = 2 * m * n * k / (h[dtype + "_flop_per_s"] * h[dtype + "_share"])
        convert = 3 * m * k / (MEMORY * h["elementwise_share"]) * 1e6 + h["elementwise_fixed_ns"] / 1e3
        return smooth_max(by_memory, by_flop) * 1e6 + h["gemm_fixed_ns"] / 1e3, convert if w == 1 else 0
    if kind in ("prefill", "decode"):
        b, s, q, kv, dim = r.shape
        if kind == "prefill":
            t = 4 * b * s * (s + 1) / 2 * q * dim / (h["bf16_flop_per_s"] * h["prefill_attention_share"])
        else:
            t = b * s * kv * dim * 2 * w / (MEMORY * h["kv_read_share"])
        return t * 1e6, h["attention_fixed_ns"] / 1e3
    g, n = r.x
    wire, i = (g - 1) / g * n, [2, 4, 8].index(g)
    if not name.startswith("all_reduce"):
        return h["all_to_all_fixed_ns"] / 1e3 + wire / h["all_to_all_bytes_per_s"] * 1e6, 0
    if n <= h["small_all_reduce_bytes"]:
        return h["small_all_reduce_fixed_ns"][i] / 1e3 + 2 * wire / h["small_all_reduce_bytes_per_s"][i] * 1e6, 0
    return h["all_reduce_fixed_ns"] / 1e3 + 2 * wire / h["all_reduce_bytes_per_s"][i] * 1e6, 0


def formula_residuals(h, name, data, held=False):
    found = []
    for r in data:
        kernel, more = by_formula(h, name, r)
        if (r.fold == HELD) == held and kernel > more and (not name.startswith("gemm") or min(r.x[:2]) >= LEAST_SIDE):
            found.append((r, r.us / (kernel + more)))
    return found


# ---- how many of the held rows are inside of the bands


def inside(kind, x, found):
    """The share of rows whose ratio is between the 5% and the 95% quantile of their place; and how many rows."""
    place = scale([r.x[AXES[kind].index(x["along"])] for r, _ in found])
    value = lambda v: np.interp(place, scale(x["at"]), v)
    ratios = np.array([u for _, u in found]) / value(x.get("median", np.ones(len(x["at"]))))
    low, high = (value([q[LEVELS.index(p)] for q in x["quantiles"]]) for p in (0.05, 0.95))
    return np.mean((ratios >= low) & (ratios <= high)), len(found)


def tell(what, kind, x, found):
    share, n = inside(kind, x, found)
    print(f"  {what:28} {n:5d} held rows  {100 * share:5.1f}% inside of the 90% band")


# ---- all of it

SOURCE = (
    "; H200 SXM, public AIConfigurator data (ai-dynamo/aiconfigurator @095f58a5, Apache-2.0), "
    "systems/data/h200_sxm, by fit_h200.py"
)
COLLECTIVES = {
    "all_reduce": ("vllm_0.24.0_graph", "all_reduce", "bfloat16", 2),
    "all_reduce_eager": ("vllm_0.24.0_eager", "all_reduce", "bfloat16", 2),
    "all_to_all": ("nccl_2.29.2", "alltoall", "half", 1),
    "all_gather": ("nccl_2.29.2", "all_gather", "half", 1),
}
FITS = {"gemm": gemm, "prefill": prefill, "decode": decode}
REGIONS = {
    "gemm": ("rows", [2, 64, 1024, 8192]),
    "prefill": ("q heads", [2, 8, 32]),
    "decode": ("cached tokens", [32, 1024, 8192, 65536]),
    "collective": ("bytes", [262144]),
}
FORMULA_REGIONS = {
    "gemm": ("rows", [2, 64, 512, 4096]),
    "prefill": ("new tokens", [256, 2048, 16384]),
    "decode": ("cached tokens", [1024, 8192, 65536]),
    "collective": ("bytes", [8192, 524288, 33554432]),
}


def write_residuals(name, residuals, origin):
    with open(name) as f:
        text = re.sub(r',\n  "residuals": .*\n  }(?=\n)', "", f.read(), flags=re.S)
    lines = ['    "origin": ' + json.dumps(origin + SOURCE)]
    lines += [f'    "{k}": ' + json.dumps(v) for k, v in residuals.items()]
    text = text.rstrip().removesuffix("}").rstrip() + ',\n  "residuals": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    with open(name, "w") as f:
        f.write(text)


def main():
    out, tables, formulas = {}, {}, {}
    with open("h200x8-fitted.json") as f:
        h = {k: v["v"] for k, v in json.load(f).items() if isinstance(v, dict) and "v" in v}
    for short, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
        for kind, fit in FITS.items():
            name, data = kind + "_" + short, list(gemm_rows(dtype) if kind == "gemm" else attention_rows(kind, dtype))
            out[name] = fit(dtype, {HELD})
            tables[name] = residual(kind, table_residuals(kind, dtype, fit, data), *REGIONS[kind])
            formulas[name] = residual(kind, formula_residuals(h, name, data), *FORMULA_REGIONS[kind], True)
            held = [r for r in data if r.fold == HELD]
            priced = at(out[name], [r.x for r in held])
            tell(name, kind, tables[name], [(r, r.us / r.roof / u) for r, u in zip(held, priced)])
            tell(name + " by formula", kind, formulas[name], formula_residuals(h, name, data, True))
    for name, which in COLLECTIVES.items():
        data = list(collective_rows(*which))
        out[name] = collective(*which)
        tables[name] = residual("collective", collective_residuals(data), *REGIONS["collective"])
        formulas[name] = residual("collective", formula_residuals(h, name, data), *FORMULA_REGIONS["collective"], True)
        tell(name, "collective", tables[name], collective_residuals(data))  # every size, each left out by itself
        tell(name + " by formula", "collective", formulas[name], formula_residuals(h, name, data, True))
    for t in out.values():
        t["origin"] += SOURCE
    with open("h200-kernels.json", "w") as f:
        lines = [json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in out.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    write_residuals("h200x8.json", tables, "measured over priced time of shapes that the tables lack")
    write_residuals(
        "h200x8-fitted.json", formulas, "measured over priced time by the formulas, to which no row was fitted"
    )


main()
