"""Measured rows of an H200 (tests/data/h200.tar.xz) beside what the description h200x8 prices them at. The arithmetic
is that of kernels/sim/kernel_cost.c, kernels/sim/table.c and kernels/sim/residual.c, and which rows were kept out of
the tables is the rule of models/hardware/fit_h200.py: what comes out is what tests/sim/kernels.c prints."""

import collections
import csv
import functools
import io
import json
import math
import tarfile

FOLDER = "models/hardware/"
ROWS = "tests/data/h200.tar.xz"
HELD = 3  # the fold that was kept out
LINK = 450e9
COLLECTIVES = (  # table, library, operation, how often a byte crosses
    ("all_reduce", "vllm_0.24.0_graph", "all_reduce", 2),
    ("all_reduce_eager", "vllm_0.24.0_eager", "all_reduce", 2),
    ("all_to_all", "nccl_2.29.2", "alltoall", 1),
    ("all_gather", "nccl_2.29.2", "all_gather", 1),
)
AXES = {  # of tables
    "gemm": ("outputs", "columns", "rows"),
    "prefill": ("head size", "q heads per kv head", "new tokens", "sequences", "q heads"),
    "decode": ("head size", "cached tokens", "sequences times kv heads"),
    "all": ("devices", "bytes"),
}
# measured and priced in us; low and high: the 90% band of measured over priced time
Row = collections.namedtuple("Row", "measured priced low high")


def scale(x):
    """The logarithm of base 2, straight between powers of two."""
    m, e = math.frexp(x)
    return e + 2 * m


class Table:
    def __init__(self, axes, values):
        self.axes, self.values = axes, values

    def place(self, axis, x):
        """The point at or below x, and how far x is towards the next."""
        n = len(axis)
        if x <= axis[0]:
            return 0, 0.0
        i = max(k for k in range(n - 1) if k == 0 or axis[k] <= x)
        if x >= axis[i + 1]:
            return i, 1.0
        return i, (scale(x) - scale(axis[i])) / (scale(axis[i + 1]) - scale(axis[i]))

    def at(self, point):
        corners = [(0, 1.0)]
        for axis, x in zip(self.axes, point):
            i, w = self.place(axis, x)
            sides = [(i, 1 - w), (i + 1, w)] if w else [(i, 1.0)]
            corners = [(k * len(axis) + j, part * share) for k, part in corners for j, share in sides]
        return sum(part * self.values[k] for k, part in corners)


class Machine:
    """What h200x8.json and its tables say."""

    def __init__(self):
        with open(FOLDER + "h200x8.json", encoding="utf-8") as f:
            self.description = json.load(f)
        with open(FOLDER + self.description["tables"], encoding="utf-8") as f:
            self.tables = {
                name: Table(t["axes"], [v / 1000 for v in t["thousandths"]]) for name, t in json.load(f).items()
            }
        self.memory = self.description["memory_bytes_per_s"]["v"]
        self.peak = {bits: self.description[f"{bits}_flop_per_s"]["v"] for bits in ("bf16", "fp8")}

    def band(self, table, point):
        """The 5% and the 95% quantile of measured over priced time there."""
        r = self.description["residuals"][table]
        at, x = r["at"], point[AXES[table.split("_")[0]].index(r["along"])]
        i = max([k for k in range(len(at)) if at[k] <= x], default=0)
        w = 0.0
        if i + 1 < len(at) and x > at[i]:
            w = (scale(x) - scale(at[i])) / (scale(at[i + 1]) - scale(at[i]))
        low, high = ([q[level] for q in r["quantiles"]] for level in (2, 8))
        return tuple((1 - w) * q[i] + w * q[min(i + 1, len(at) - 1)] for q in (low, high))

    def row(self, table, point, measured, roof):
        return Row(measured, roof * self.tables[table].at(point), *self.band(table, point))


def csv_rows(name):
    with tarfile.open(ROWS) as tar:
        return list(csv.DictReader(io.TextIOWrapper(tar.extractfile(name + ".csv"), encoding="utf-8")))


def mixed(a, b, c):
    return ((a * 2654435761 + b * 40503 + c * 97) % 2**32) >> 16


def gemms(m, dtype, bits):
    w = 2 if bits == "bf16" else 1
    for r in csv_rows("gemm"):
        rows, n, k = (int(r[x]) for x in "mnk")
        if r["dtype"] == dtype and mixed(n, k, 0) % 10 == HELD:
            roof = max(2 * rows * n * k / m.peak[bits], ((n * k + rows * k) * w + rows * n * 2) / m.memory) * 1e6 + 4
            yield m.row(f"gemm_{bits}", (n, k, rows), float(r["us"]), roof)


def attention(m, kind, dtype, bits):
    w, length = 2 if bits == "bf16" else 1, "seq" if kind == "prefill" else "context"
    for r in csv_rows(kind + "_attention_fa3"):
        b, q, kv, dim, s = (int(r[x]) for x in ("batch", "q_heads", "kv_heads", "head_dim", length))
        if r["kv_dtype"] != dtype or mixed(q, kv, dim) % 8 != HELD:
            continue
        if kind == "prefill":
            flop = 4 * b * s * (s + 1) / 2 * q * dim
            roof = (flop / (m.peak["bf16"] * 0.65) + b * s * (q + kv) * 2 * dim * 2 / m.memory) * 1e6 + 6
            point = (dim, q / kv, math.sqrt(s * (s + 1.0)), b, q)
        else:
            roof = max(b * s * kv * dim * 2 * w / m.memory, 4 * b * s * q * dim / m.peak["bf16"]) * 1e6 + 8
            point = (dim, s, b * kv)
        yield m.row(f"{kind}_{bits}", point, float(r["us"]), roof)


def measured_collectives(library, op, share):
    """us and roofline by devices and bytes."""
    found = {}
    for r in csv_rows("collectives"):
        if (r["library"], r["op"]) == (library, op) and r["dtype"] != "int8":
            g, n = int(r["gpus"]), int(r["bytes"])
            found[g, n] = float(r["us"]), share * (g - 1) / g * n / LINK * 1e6 + 5
    return found


def held_collectives(m, table, library, op, share):
    for (g, n), (us, roof) in measured_collectives(library, op, share).items():
        if n.bit_length() % 4 == 1:
            yield m.row(table, (g, n), us, roof)


def collectives_without_each_size(m):
    """Sizes are few: each but the ends is priced by its two neighbours alone."""
    for table, library, op, share in COLLECTIVES:
        found = measured_collectives(library, op, share)
        for g in sorted({g for g, _ in found}):
            sizes = sorted(n for h, n in found if h == g)
            for a, n, b in zip(sizes, sizes[1:], sizes[2:]):
                ends = Table([[a, b]], [found[g, x][0] / found[g, x][1] for x in (a, b)])
                us, roof = found[g, n]
                yield Row(us, roof * ends.at((n,)), *m.band(table, (g, n)))


@functools.cache
def kept_out():
    """The rows of each kind of kernel, by its name."""
    m, found = Machine(), {}
    for bits, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
        found[f"gemm {dtype}"] = list(gemms(m, dtype, bits))
    for kind in ("prefill", "decode"):
        for bits, dtype in (("bf16", "bfloat16"), ("fp8", "fp8")):
            found[f"{kind} attention {dtype}"] = list(attention(m, kind, dtype, bits))
    return found | {"collectives": list(collectives_without_each_size(m))}


@functools.cache
def kept_out_collectives():
    """By table, as few as they are."""
    m = Machine()
    return {
        f"{op} {library}": list(held_collectives(m, t, library, op, share)) for t, library, op, share in COLLECTIVES
    }


def mean_error(rows):
    return sum(abs(r.priced / r.measured - 1) for r in rows) / len(rows)


def mean_lean(rows):
    return sum(r.priced / r.measured - 1 for r in rows) / len(rows)


def is_inside(row):
    return row.low <= row.measured / row.priced <= row.high


def inside(rows):
    return sum(map(is_inside, rows)) / len(rows)
