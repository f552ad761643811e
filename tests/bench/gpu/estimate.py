"""What a decode should take on an H100, by a small model: an estimate, no measurement. Of each product the bytes of its
weights, its inputs as all CTAs read them from L2, the instructions of its inner loop (counted in the machine code, as
nvcc makes it), CTAs beside places on SMs, and bytes on their way; a step is its products, attention, and what a launch
costs. Printed beside the goals of gpu_bench and models_bench: as it is, and as it was before slim.cu (740b5db7), when
8 to 16 rows went through skinny.cu and 17 to 64 through cuBLASLt with inputs rounded by kernels of their own. Prompts:
products at the library's share of the roof, what lies between ops, and attention by the instructions of a round of
flash_hopper.cu; before and after q, k, v, gate and up were bf16 (f15a2f08), and a CTA took one tile after the other.

python3 tests/bench/gpu/estimate.py NVCC CUOBJDUMP
"""

import math
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

SMS, GHZ, HBM, L2 = 132, 1.7, 3350 * 0.92, 5500  # bytes per ns; 0.92: what a probe reads of the data sheet
LATENCY = 750  # ns, of a load from memory under load
LAUNCH, FIRST, LAST = 600, 500, 700  # ns: to the next kernel (early launch); until weights flow; the sum and the end
LIBRARY = 0.75  # of the roof, products by the library, as published for such shapes
PEAK = {"bf16": 989e3, "fp8": 1979e3}  # operations a ns, of the data sheet, at 1.83 GHz
KEYS, ROUND, COPYING = (
    128,
    2 * 16 * 64,
    170,
)  # of a Hopper tile: positions a round; cycles of its products; instructions
FAMILY = {"bf16": 2, "fp8": 3}
BYTES = {"bf16": 2.0, "fp8": 1.03}

# Instructions of an inner loop (a slab of 16 T outputs, N eights of rows) in the machine code of 740b5db7.
SKINNY_BEFORE = {
    "bf16": {(1, 1): 546, (2, 1): 748, (1, 2): 873, (2, 2): 1088},
    "fp8": {(1, 1): 725, (2, 1): 1062, (1, 2): 1051, (2, 2): 1412},
}


def machine_code(nvcc, cuobjdump, path):
    """Of each kernel its name, and [(address, instruction)]."""
    with tempfile.NamedTemporaryFile(suffix=".o") as made:
        options = ["-std=c++17", "-O3", "--fmad=false", "-I.", "-arch=sm_90a", "-c", "-o", made.name, path]
        subprocess.run([nvcc, *options], check=True, capture_output=True)
        sass = subprocess.run([cuobjdump, "-sass", made.name], check=True, capture_output=True, text=True).stdout
    for part in re.split(r"\n\s*Function : ", sass)[1:]:
        yield (
            part.split()[0],
            [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+([^;]+);", part)],
        )


def loops_of(code, products):
    """Of each loop its products of this name, and its instructions."""
    for at, text in code:
        to = re.search(r"BRA.*0x([0-9a-f]+)", text)
        if to and int(to[1], 16) < at:
            body = [t for place, t in code if int(to[1], 16) <= place <= at]
            yield sum(products in t for t in body), len(body)


def largest_loop(code, products):
    """Instructions of the loop that has most products, and is the shortest of those."""
    return -max((n, -length) for n, length in loops_of(code, products))[1]


def round_loop(code, products, most):
    """Instructions of the shortest loop that has so many products: a round, in a loop over tiles."""
    return min(length for n, length in loops_of(code, products) if n >= most)


def inner_loops(nvcc, cuobjdump, path):
    """Instructions of the loop with most tensor core products, by (family, template numbers...)."""
    found = {}
    for name, code in machine_code(nvcc, cuobjdump, path):
        numbers = re.match(r"\S*?family(\d+)ELS0_(\d+)((?:ELi\d+)+)", name)
        if numbers[1] != numbers[2]:  # outputs of two families
            continue
        found[(int(numbers[1]), *map(int, re.findall(r"Li(\d+)", numbers[3])))] = largest_loop(code, "HMMA")
    return found


@dataclass
class Launch:
    """Of a kernel of one product: CTAs, places for them, instructions and bytes."""

    ctas: int
    places: int
    instructions: float  # of warps, in all
    weights: float
    inputs: float  # read from L2 by all CTAs
    flight: float  # bytes of weights on their way in a CTA
    extra: float = 0  # ns

    def ns(self):
        waves = math.ceil(self.ctas / self.places)
        full = self.ctas / (waves * self.places)
        rate = min(HBM, self.flight * min(self.ctas, self.places) / LATENCY)
        issue = self.instructions / (SMS * 4 * GHZ)
        return max(self.weights / rate, (self.weights + self.inputs) / L2, issue) / full + FIRST + LAST + self.extra


def skinny(kind, counts, outs, cols, rows):
    n = 1 if rows <= 8 else 2
    t = 2 if outs >= 8192 and rows > 2 else 1
    tiles = math.ceil(outs / (16 * t))
    each = 16 * t * 128 * BYTES[kind] * 8
    slabs = tiles * math.ceil(cols / 128)
    places = SMS * (2 if t == 1 else 1)
    return Launch(tiles, places, slabs * counts[(t, n)], outs * cols * BYTES[kind], tiles * rows * cols * 4, each).ns()


def slim(kind, counts, outs, cols, rows, gated=False):
    n = 1 if rows <= 8 else 2 if rows <= 16 else 4 if rows <= 32 else 8
    tiles, slabs = math.ceil(outs / 128), math.ceil(cols / 128)
    places = SMS * (2 if n <= 4 else 1)
    parts = max(1, min(places // tiles, slabs // 4))
    parts = math.ceil(slabs / math.ceil(slabs / parts))
    each = 128 * 128 * BYTES[kind] * (2 if n <= 2 and kind == "fp8" else 1)
    left = tiles * parts * 128 * n * 8 * 4 * 2 if parts > 1 else 0
    issue = tiles * 8 * slabs * counts[n]
    weights = outs * cols * BYTES[kind]
    return Launch(tiles * parts, places, issue, weights, tiles * rows * cols * 4 + left, each, left and 800).ns()


def library(kind, outs, cols, rows):
    return outs * cols * BYTES[kind] / (HBM * LIBRARY) + FIRST + LAST


@dataclass
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    kv: int
    ffn: int
    vocab: int
    kind: str

    def products(self):
        return (
            ((self.heads + 2 * self.kv) * 128, self.hidden),
            (self.hidden, self.heads * 128),
            (2 * self.ffn, self.hidden),
            (self.hidden, self.ffn),
        )

    def bytes(self):
        return self.layers * sum(o * c for o, c in self.products()) * BYTES[self.kind] + self.vocab * self.hidden * 2


def attention_ns(m, rows, context):
    return rows * context * m.kv * 128 * 2 * 2 / (HBM * 0.85) + 4500


def step_ns(m, rows, context, now):
    """A decode step, and its kernels a layer. now: counts of (skinny, slim); None: as it was."""
    if now and rows > (8 if m.kind == "bf16" else 4):
        layer, kernels = sum(slim(m.kind, now[1], o, c, rows) for o, c in m.products()), 5
    elif now or rows <= 16:
        counts = now[0] if now else SKINNY_BEFORE[m.kind]
        swiglu = not now and rows > 4
        layer, kernels = sum(skinny(m.kind, counts, o, c, rows) for o, c in m.products()), 5 + swiglu
        layer += 2000 if swiglu else 0
    else:  # four roundings; q, k, v, o, gate, up, down
        layer, kernels = sum(library(m.kind, o, c, rows) for o, c in m.products()) + 3 * (FIRST + LAST) + 4 * 1800, 12
    layer += attention_ns(m, rows, context) + kernels * LAUNCH
    head = m.vocab * m.hidden * 2 / HBM + 10000
    return m.layers * layer + head + 4000, kernels


SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # of an 8B model


def prompt_ns(m, half):
    """A token of a long prompt in one layer: products at the library's share of the roof, and what is written and read
    between ops, attention itself left out. half: q, k, v, attention's output, gate and up in bf16."""
    flops = 2 * sum(o * c for o, c in m.products())
    q, kv, size = m.heads * 128, m.kv * 128, 2 if half else 4
    code = 1 if m.kind == "fp8" else 2
    norms = 2 * (4 + 2 * code) * m.hidden  # the residual, read; the input, written and read
    qkv = (3 * q + 2 * kv) * size + (
        q + 2 * kv
    ) * size  # written, turned, read by attention and on the way to the cache
    out = (2 * size + (0 if half and code == 2 else 2 * code)) * q  # rounded by a kernel of its own unless it is bf16
    ffn = 2 * 2 * size * m.ffn + 2 * code * m.ffn
    sums = 2 * 2 * 4 * m.hidden
    return flops / (PEAK[m.kind] * LIBRARY), (norms + qkv + out + ffn + sums) / HBM


def tile_ns(instructions, tokens, exposed):
    """A Hopper tile of a prompt of so many tokens, on average: half of them before it, and a round of the diagonal. The
    groups' softmax and the copies are issued beside the products of the other group. exposed: ns before the first."""
    return (tokens / 2 / KEYS + 0.5) * max(ROUND, 2 * instructions + COPYING) / GHZ + exposed


def attention_share(instructions, tokens, exposed):
    """Of the data sheet: what half of all pairs need, over tiles that leave no multiprocessor without work."""
    return tokens / 2 / KEYS * ROUND / GHZ / tile_ns(instructions, tokens, exposed) * (SMS * 4096 * GHZ / PEAK["bf16"])


def prefill_share(m, instructions, tokens, now):
    """Of the data sheet: a prompt's products and attention over what they, and what lies between, take."""
    products, between = prompt_ns(m, now)
    attention = 2 * 2 * m.heads * 128 * tokens / 2
    took = attention / (PEAK["bf16"] * attention_share(instructions, tokens, LATENCY if now else 3 * LATENCY))
    return (products * LIBRARY + attention / PEAK[m.kind]) / (products + between + took)


def decode_attention_share(n_bytes, instructions):
    """Of the reading probe: narrow tiles, 3 CTAs of 4 warps to a multiprocessor; a round is 64 positions of keys and
    values of 128 elements in 16 bits."""
    rate = min(HBM, SMS * GHZ * 64 * 128 * 2 * 2 / instructions)
    return n_bytes / HBM / (n_bytes / rate + FIRST + LAST)


def beside_library(kind, now, all_rows):
    """Times the library's product of the same shape: the worst of an 8B model's, its rows and its shape."""
    found = []
    for rows in all_rows:
        for outs, cols in SHAPES:
            by_slim = rows > (8 if kind == "bf16" else 4)
            ours = (slim if by_slim else skinny)(kind, now[kind][by_slim], outs, cols, rows)
            found.append((library(kind, outs, cols, rows) / ours, f"{outs} x {cols}, {rows} rows"))
    return min(found)


def print_prompts(loops, models, now):
    flash, hopper = loops
    print(f"\nattention and prompts: estimated shares; {flash} and {hopper} instructions a warp and round")
    for goal, wanted, text, n_bytes in (
        ("G5", 0.90, "decode attention, 1 GB of cache, of reading", 1e9),
        ("G5b", 0.60, "one sequence at 32k, of reading", 32768 * 8 * 128 * 2 * 2),
    ):
        print(f"{goal:<3} {text:<58}             now {decode_attention_share(n_bytes, flash):.2f}  goal {wanted}")
    for goal, wanted, rows in (("G7", 1.15, (1, 2, 4, 8, 16)), ("G7b", 1.0, (17, 32, 64))):
        least, where = beside_library("bf16", now, rows)
        text = f"bf16, {rows[0]} to {rows[-1]} rows, times the library"
        print(f"{goal:<3} {text:<58}             now {least:.2f}  goal {wanted} ({where})")
    for goal, tokens in (("-", 2048), ("G9", 16384)):
        was, is_now = (attention_share(hopper, tokens, n * LATENCY) for n in (3, 1))
        text = f"causal attention over {tokens} tokens, of 989 TFLOPS"
        print(f"{goal:<3} {text:<58} before {was:.2f} now {is_now:.2f}" + ("  goal 0.6" if goal == "G9" else ""))
    for goal, wanted, m, tokens in (
        ("G8", 0.70, models[0], 2048),
        ("G8", 0.70, models[0], 8192),
        ("G8c", 0.55, models[1], 2048),
    ):
        text = f"prefill of {tokens} tokens, {m.name}, of {PEAK[m.kind] / 1e3:.0f} TFLOPS"
        was, is_now = (prefill_share(m, hopper, tokens, x) for x in (False, True))
        print(f"{goal:<3} {text:<58} before {was:.2f} now {is_now:.2f}  goal {wanted}")


def main():
    loops = {f: inner_loops(sys.argv[1], sys.argv[2], f"kernels/cuda/{f}.cu") for f in ("skinny", "slim")}
    now = {}
    for kind, family in FAMILY.items():
        few = {(t, 1): loops["skinny"][(family, t)] for t in (1, 2)}
        now[kind] = few, {n: loops["slim"][(family, n)] for n in (1, 2, 4, 8)}
    llama = [32, 4096, 32, 8, 14336, 128256]
    bf16, fp8 = Model("8B", *llama, "bf16"), Model("8B, fp8 layers", *llama, "fp8")
    small = Model("0.6B", 28, 1024, 16, 8, 3072, 151936, "bf16")
    print(__doc__.split("\n\n")[0])
    print(f"\nproducts of 4096 x 4096 and 28672 x 4096: us before, now; of reading the weights at {HBM:.0f} GB/s")
    for kind in FAMILY:
        for rows in (1, 4, 8, 16, 32, 64):
            line = f"{kind:<5} rows {rows:>2} "
            for o, c in ((4096, 4096), (28672, 4096)):
                old = skinny(kind, SKINNY_BEFORE[kind], o, c, rows) if rows <= 16 else library(kind, o, c, rows) + 1800
                by_slim = rows > (8 if kind == "bf16" else 4)
                new = slim(kind, now[kind][1], o, c, rows) if by_slim else skinny(kind, now[kind][0], o, c, rows)
                best = o * c * BYTES[kind] / HBM
                line += f"   {old / 1e3:6.1f} {new / 1e3:6.1f}  {best / old:.2f} {best / new:.2f}"
            print(line)
    print("\ndecode steps with 1,024 tokens of context: estimated share of reading weights and cache; kernels a layer")
    for goal, wanted, model, rows in (
        ("G1", 0.80, bf16, 1),
        ("G2", 0.65, fp8, 1),
        ("G3", 0.60, small, 1),
        ("-", None, bf16, 8),
        ("-", None, bf16, 16),
        ("-", None, fp8, 16),
        ("G4", 0.78, bf16, 32),
        ("G4", 0.78, bf16, 64),
        ("-", None, fp8, 64),
    ):
        read = (model.bytes() + rows * 1024 * model.kv * 128 * 4 * model.layers) / HBM
        old, before = step_ns(model, rows, 1024, None)
        new, after = step_ns(model, rows, 1024, now[model.kind])
        print(
            f"{goal:<2} {model.name:<15} rows {rows:>2}  before {read / old:.2f} ({old / 1e6:5.2f} ms, {before:>2})"
            f"  now {read / new:.2f} ({new / 1e6:5.2f} ms, {after})" + (f"  goal {wanted}" if wanted else "")
        )
    large = Model("70B, fp8 layers", 80, 8192, 64, 8, 28672, 128256, "fp8")
    print(
        "\nprompts, a token and layer without attention: ns of products, between ops before, now; all of it before/now"
    )
    for model in (small, bf16, fp8, large):
        (products, old), (_, new) = prompt_ns(model, False), prompt_ns(model, True)
        print(f"{model.name:<15} {products:6.1f}  {old:6.1f} {new:6.1f}  {(products + old) / (products + new):.3f}")
    hopper = next(
        round_loop(code, "HGMMA", 2 * 128 // 16)
        for name, code in machine_code(sys.argv[1], sys.argv[2], "kernels/cuda/flash_hopper.cu")
        if "half_type1ELi128" in name
    )
    flash = next(
        largest_loop(code, "HMMA")
        for name, code in machine_code(sys.argv[1], sys.argv[2], "kernels/cuda/flash.cu")
        if "cached1ELi128ELb0" in name
    )
    print_prompts((flash, hopper), (bf16, fp8), now)
    print(
        "\nNo estimate: G6 (the library's own products), G11 (start, loading), G12 (torch). G10 (gaps) is LAUNCH by "
        "assumption."
    )


if __name__ == "__main__":
    main()
