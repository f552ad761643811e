"""The pictures and the tables of docs/virtual-time.md are those of the data: the descriptions of machines, measured
rows of kernels, models/papers/RESULTS.md, the results of what-ifs. --update makes them anew."""

import json
import math
import os
import re
import statistics
import sys

sys.path.insert(0, "tests/lint")
sys.path.insert(0, "tests/rig")
import kernel_rows
from drawing import Picture
from source import Rules, read

PAGE = "docs/virtual-time.md"
RESULTS = "models/papers/RESULTS.md"
LIVE = "tests/bench/results/2026-11-24-whatif.txt"
WIDTH = 880

# ---- what is real, what is modelled

EVIDENCE = {  # by how the origin of a constant begins: what to call it, and its colour
    "h200-kernels": "measured",
    "vidur H100 tables": "measured",
    "fitted": "fitted",
    "data sheet": "data sheet or published",
    "Flying Serving": "data sheet or published",
    "Shift Parallelism": "data sheet or published",
    "vLLM": "data sheet or published",
    "139.8 GiB": "data sheet or published",
    "prior by hand": "by hand",
    "as for large ones": "fitted",
    "within all_to_all": "fitted",
}
CLASSES = {"measured": "green", "fitted": "orange", "data sheet or published": "purple", "by hand": "soft"}
REAL = (
    ("Engine", "the loop: view, decide, check, post, absorb"),
    ("Policy", "the same file, in the same sandbox"),
    ("Queue and batches", "admission, priorities, chunks, preemption"),
    ("KV cache", "blocks, prefixes, placements; no bytes in them"),
    ("Partition", "orders, drains, who moves, what is parked"),
    ("Books", "metrics, latencies, verdicts on the policy"),
)
MODELLED = (  # name, words, and the constants of h200x8 that it takes
    ("Front", "HTTP, template, tokenizer: so long a request", "front_ns"),
    (
        "Kernels",
        "GEMM, attention, collectives: tables, or formulas",
        (
            "memory_bytes_per_s bf16_flop_per_s bf16_share fp8_flop_per_s fp8_share gemm_memory_share gemm_fixed_ns "
            "prefill_attention_share kv_read_share attention_fixed_ns all_reduce_fixed_ns all_reduce_bytes_per_s "
            "small_all_reduce_bytes small_all_reduce_fixed_ns small_all_reduce_bytes_per_s all_to_all_fixed_ns "
            "all_to_all_bytes_per_s"
        ),
    ),
    (
        "Rest of a step",
        "small kernels, launches, sampling, the head",
        (
            "elementwise_share elementwise_fixed_ns sampler_fixed_ns graph_rows eager_layer_ns eager_exchange_ns "
            "head_on_base"
        ),
    ),
    (
        "Host's part",
        "what the CPU takes for a step",
        "host_step_ns host_ranks_ns host_sequence_ns host_prefill_row_ns host_overlaps",
    ),
    ("Switch", "so long for each rank", "switch_ns"),
    ("Copies and loading", "KV and weights over links", "link_bytes_per_s link_share host_link_bytes_per_s"),
    ("Memory", "how much KV has room", "devices memory_bytes reserve_bytes"),
)


def constants(name):
    """The origin of each constant of a description."""
    found = json.loads(read(f"models/hardware/{name}.json"))
    return {k: v["origin"] for k, v in found.items() if isinstance(v, dict) and "v" in v}


def evidence(origin):
    if "; 8: fitted" in origin:  # a value for groups of 2, 4 and 8
        return "fitted"
    return next((what for begin, what in EVIDENCE.items() if origin.startswith(begin)), None)


def counted(origins):
    found = [evidence(o) for o in origins]
    return [(c, found.count(c)) for c in CLASSES]


def unknown_constants():
    drawn = [k for _, _, names in MODELLED for k in names.split()]
    for name in ("h200x8", "h200x8-fitted"):
        for k, origin in constants(name).items():
            if drawn.count(k) != 1:
                yield f"{name}: {k} is in {drawn.count(k)} boxes of MODELLED"
            if not evidence(origin):
                yield f"{name}: EVIDENCE knows no '{origin}'"
    yield from (f"MODELLED: no description has {k}" for k in set(drawn) - set(constants("h200x8")))


def box(p, x, y, w, h, fill, edge, name, words):
    p.rect(x, y, w, h, fill, edge, 5)
    p.text(x + 12, y + 18, name, 13, bold=True)
    p.text(x + 12, y + 35, words, 12, "soft")


def chips(p, x, y, counts):
    """From the right: how many constants of each kind of evidence."""
    for what, n in reversed(counts):
        if n:
            p.text(x, y, str(n), 12, anchor="end", bold=True)
            p.dot(x - 17 - 7 * (n > 9), y - 4, 5, CLASSES[what])
            x -= 38 + 7 * (n > 9)


def draw_real():
    told = (
        "On the left what runs as in a server: the engine, the policy, the queue, the KV cache, the partition, the "
        "books. On the right what a description of the machine stands for: the front, kernels, the rest of a step, the "
        "host's part, switches, copies, memory. A step goes to the right, the time that it takes comes back."
    )
    p = Picture(WIDTH, 612, "What is real, and what is modelled", told)
    p.text(
        16, 50, "moonshift simulate --hardware h200x8; in plan, tune, regret and reproduce it is the same", 13, "soft"
    )
    p.rect(16, 66, WIDTH - 32, 44, "pale", "line", 5)
    p.text(WIDTH / 2, 84, "Traffic: given", 13, anchor="middle", bold=True)
    p.text(WIDTH / 2, 101, "arrivals and lengths, of a trace, a recording or a generator", 12, "soft", "middle")
    top, high, gap, wide = 156, 46, 6, 350
    right = WIDTH - 16 - wide
    p.text(16, 142, "Runs: the code of a server", 14, "blue", bold=True)
    p.text(right, 142, "Modelled: times from a description", 14, "orange", bold=True)
    n = len(MODELLED)
    tall = (n * (high + gap) - gap - gap * (len(REAL) - 1)) / len(REAL)
    for i, (name, words) in enumerate(REAL):
        box(p, 16, top + i * (tall + gap), wide, tall, "pale-blue", "blue", name, words)
    origins = constants("h200x8")
    for i, (name, words, names) in enumerate(MODELLED):
        y = top + i * (high + gap)
        box(p, right, y, wide, high, "ground", "orange", name, words)
        chips(p, right + wide - 10, y + 19, counted(origins[k] for k in names.split()))
    low, middle, left = top + n * (high + gap) - gap, WIDTH / 2, 16 + wide
    p.text(middle, top + 44, "a step: layout, rows,", 12, anchor="middle")
    p.text(middle, top + 60, "what they look at", 12, anchor="middle")
    p.arrow(left + 8, top + 76, right - 8, top + 76)
    p.arrow(right - 8, top + 120, left + 8, top + 120)
    p.text(middle, top + 140, "nanoseconds", 12, anchor="middle")
    p.rect(left + 14, top + 176, right - left - 28, 134, "pale", "line", 5)
    p.text(middle, top + 197, "Virtual clock", 13, anchor="middle", bold=True)
    clock = ("stands still while", "code runs, then", "jumps to the next", "arrival, or the", "end of a step")
    for i, words in enumerate(clock):
        p.text(middle, top + 217 + 18 * i, words, 12, "soft", "middle")
    y = low + 26
    p.text(16, y, "Constants of h200x8, by where they come from:", 12, "soft")
    x = 322
    for what, all_of in counted(origins.values()):
        p.dot(x, y - 4, 5, CLASSES[what])
        p.text(x + 10, y, f"{what} ({all_of})", 12)
        x += 30 + 6.6 * len(f"{what} ({all_of})")
    for i, words in enumerate(
        (
            f"Kernels: {tables_of('h200x8')} tables besides, all measured. Where there is none, a formula is taken.",
            "Tokens are made up; answers are as long as the trace says.",
            "Not there at all: texts, weights, the machine's noise and failures, the way back to the client.",
        )
    ):
        p.text(16, y + 22 + 19 * i, words)
    return p.svg()


def tables_of(name):
    """How many kinds of kernels have a table in it."""
    tables = json.loads(read(f"models/hardware/{name}.json")).get("tables")
    return len(json.loads(read("models/hardware/" + tables))) if tables else 0


def constants_table():
    yield "| description | constants | " + " | ".join(CLASSES) + " | tables of kernels |"
    yield "|---" * (len(CLASSES) + 3) + "|"
    for name in ("h200x8", "h200x8-fitted"):
        found = constants(name)
        cells = [str(n) for _, n in counted(found.values())]
        yield f"| `{name}` | {len(found)} | " + " | ".join(cells) + f" | {tables_of(name) or 'none'} |"


# ---- kernels

NAMES = {
    "gemm bfloat16": "GEMM, BF16",
    "gemm fp8": "GEMM, FP8",
    "prefill attention bfloat16": "Prefill attention, BF16",
    "prefill attention fp8": "Prefill attention, FP8",
    "decode attention bfloat16": "Decode attention, BF16",
    "decode attention fp8": "Decode attention, FP8",
    "collectives": "Collectives",
}
LOW, HIGH, BIN = 0.75, 1.35, 0.02


def bars(rows):
    """By bin: how many rows are inside of their band, and how many outside."""
    n = round((HIGH - LOW) / BIN)
    found = [[0, 0] for _ in range(n)]
    for r in rows:
        ratio = r.measured / r.priced
        found[min(max(int((ratio - LOW) / BIN + 1e-9), 0), n - 1)][not kernel_rows.is_inside(r)] += 1
    return found


def draw_panel(p, x, y, name, rows):
    wide, high = 262, 84
    found = bars(rows)
    unit, each = high / max(map(sum, found)), wide / len(found)
    p.text(x, y, name, 13, bold=True)
    p.text(x, y + 17, f"{len(rows)} rows, {100 * kernel_rows.inside(rows):.1f}% inside of their bands", 12, "soft")
    base = y + 28 + high
    for tick in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3):
        at = x + (tick - LOW) / (HIGH - LOW) * wide
        p.line(at, base, at, y + 28)
        p.text(at, base + 15, f"{tick:.1f}", 11, "soft", "middle")
    for i, (inside, outside) in enumerate(found):
        if inside:
            p.rect(x + i * each + 0.5, base - inside * unit, each - 1, inside * unit, "blue")
        if outside:
            p.rect(x + i * each + 0.5, base - (inside + outside) * unit, each - 1, outside * unit, "orange")
    p.line(x, base, x + wide, base, "line")


def draw_kernels():
    kinds = list(kernel_rows.kept_out().items())
    shares = "; ".join(f"{NAMES[k]} {100 * kernel_rows.inside(rows):.1f}%" for k, rows in kinds)
    told = (
        "A histogram for each kind of kernel: measured over priced time of rows that were kept out of the tables. Most "
        f"lie within a tenth of 1. Inside of the 90% band: {shares}."
    )
    p = Picture(WIDTH, 560, "Kernels of an H200: measured over priced time, rows that were kept out", told)
    p.text(16, 50, "1.0: as priced; 1.1: the kernel takes a tenth longer than its price", 13, "soft")
    for i, (kind, rows) in enumerate(kinds):
        draw_panel(p, 24 + i % 3 * 284, 88 + i // 3 * 160, NAMES[kind], rows)
    x, y = 24 + 284, 88 + 2 * 160
    p.rect(x, y + 10, 26, 12, "blue")
    p.text(x + 36, y + 20, "rows inside of the 90% band at their place", 12)
    p.rect(x, y + 34, 26, 12, "orange")
    p.text(x + 36, y + 44, "rows outside of it", 12)
    for i, words in enumerate(
        (
            "The band comes from other rows, and depends on the shape: it is wider for",
            "short contexts and few heads. The first and the last bar have all that lies",
            "beyond. Collectives: each size is priced by its neighbours alone.",
        )
    ):
        p.text(x, y + 72 + 18 * i, words, 12, "soft")
    return p.svg()


def kernels_table():
    yield "| kernel | rows kept out | mean error | lean | inside of the 90% band |"
    yield "|---|---|---|---|---|"
    for kind, rows in kernel_rows.kept_out().items():
        if kind != "collectives":
            error, lean = 100 * kernel_rows.mean_error(rows), 100 * kernel_rows.mean_lean(rows)
            inside = 100 * kernel_rows.inside(rows)
            yield f"| {kind} | {len(rows)} | {error:.2f}% | {lean:+.2f}% | {inside:.1f}% |"
        else:
            for name, held in kernel_rows.kept_out_collectives().items():
                error, lean = 100 * kernel_rows.mean_error(held), 100 * kernel_rows.mean_lean(held)
                yield f"| {name} | {len(held)} | {error:.2f}% | {lean:+.2f}% | |"
            yield f"| {kind}, each size left out | {len(rows)} | | | {100 * kernel_rows.inside(rows):.1f}% |"


# ---- papers

KINDS = {"free": "nothing was fitted to it", "fitted": "a constant was fitted to it", "given": "the trace says it"}


class Value:
    def __init__(self, paper, kind, unit, error):
        self.paper, self.kind, self.unit, self.error = paper, kind, unit, error


def values():
    """Every number of the papers that was answered by a number."""
    paper = ""
    for line in read(RESULTS).split("\n"):
        if line.startswith("## "):
            paper = line[3:]
        cells = [c.strip() for c in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) < 6:
            continue
        what, error, note = cells[2], cells[5], cells[-1]
        kind = next((k for k in ("fitted", "given") if note.startswith(f"**{k}**")), "free")
        for e in re.findall(r"([+-][\d.]+)%", error):
            yield Value(paper, kind, what.rsplit(", ", 1)[-1], float(e))


def median_error(some):
    return statistics.median(abs(v.error) for v in some)


def near(some):
    return sum(abs(v.error) <= 10 for v in some)


def summary():
    """What RESULTS.md says of each kind: values, median, mean, within 10%."""
    said = re.findall(r"(\d+) values .*?: error ([\d.]+)% \(median; mean ([\d.]+)%\), (\d+) of", read(RESULTS))
    return {kind: (int(n), float(m), float(mean), int(w)) for kind, (n, m, mean, w) in zip(KINDS, said)}


def wrong_summary():
    """The rows of RESULTS.md, read one by one, give its own summary; they are rounded to a tenth of a percent."""
    found = list(values())
    for kind, (n, median, mean, within) in summary().items():
        some = [v for v in found if v.kind == kind]
        is_mean = statistics.mean(abs(v.error) for v in some)
        if (len(some), near(some)) != (n, within) or abs(median_error(some) - median) > 0.11:
            yield f"{RESULTS}: {kind}: {len(some)} rows, {near(some)} within 10%, median {median_error(some):.1f}%"
        elif abs(is_mean - mean) > 0.11:
            yield f"{RESULTS}: {kind}: mean {is_mean:.1f}%"


LEAST, MOST = 0.18, 6.0  # ratios that are shown


def draw_papers():
    found = list(values())
    said = summary()
    told = (
        "For each paper a line of dots, one for each number: predicted over published, on a logarithmic scale. "
        + " ".join(f"{KINDS[k]}: {n} numbers, median error {m}%, {w} within 10%." for k, (n, m, _, w) in said.items())
    )
    left, right, r = 210, 700, 3.2
    colours = {"free": "blue", "fitted": "orange", "given": "soft"}
    at = lambda ratio: left + math.log(ratio / LEAST) / math.log(MOST / LEAST) * (right - left)
    rows, y = [], 112
    for paper in dict.fromkeys(v.paper for v in found):
        for kind in KINDS:
            some = [v for v in found if v.paper == paper and v.kind == kind]
            stacks = {}
            for v in some:
                x = min(max(at(max(1 + v.error / 100, LEAST)), left), right)
                stacks.setdefault(round((x - left) / (2 * r + 0.6)), []).append(v)
            if some:
                tall = max(map(len, stacks.values())) * (2 * r + 0.6)
                rows.append((paper, kind, some, stacks, y + tall))
                y += tall + 26
    p = Picture(WIDTH, round(y + 74), "Five papers: predicted over published", told)
    p.text(16, 50, "each dot is a number of models/papers/RESULTS.md; grey ground: within 10%", 13, "soft")
    p.rect(at(0.9), 70, at(1.1) - at(0.9), y - 74, "pale")
    for tick in (0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5):
        p.line(at(tick), 70, at(tick), y - 4, "line" if tick == 1 else "grid")
        p.text(at(tick), y + 12, f"{tick:g}", 11, "soft", "middle")
    p.text((left + right) / 2, y + 30, "predicted / published", 12, "soft", "middle")
    last = ""
    for paper, kind, some, stacks, base in rows:
        if paper != last:
            p.text(16, base - 2, paper, 13, bold=True)
        last = paper
        for place, items in stacks.items():
            for i, v in enumerate(items):
                x, up = left + place * (2 * r + 0.6), base - r - i * (2 * r + 0.6)
                if 1 + v.error / 100 < LEAST:
                    p.text(x - 5, up + 4, "<", 13, colours[kind], "end", bold=True)
                p.dot(x, up, r - 0.8 * (kind == "fitted"), colours[kind], kind == "fitted")
        p.text(right + 16, base - 2, f"{len(some)}, median {median_error(some):.1f}%", 12, colours[kind])
    p.text(right + 16, 88, "values, error", 12, "soft")
    for i, (kind, words) in enumerate(KINDS.items()):
        x = 16 + (0, 190, 400)[i]
        p.dot(x + 6, y + 54, r + 1, colours[kind], kind == "fitted")
        p.text(x + 18, y + 58, words, 12)
    return p.svg()


def papers_table():
    yield "| | values | median error | mean error | within 10% |"
    yield "|---|---|---|---|---|"
    for kind, (n, median, mean, within) in summary().items():
        yield f"| {KINDS[kind]} | {n} | {median:.1f}% | {mean:.1f}% | {within} |"


def by_paper_table():
    """Of those to which nothing was fitted."""
    yield "| paper | values | median error | within 10% | from |"
    yield "|---|---|---|---|---|"
    found = [v for v in values() if v.kind == "free"]
    for paper in dict.fromkeys(v.paper for v in found):
        some = [v for v in found if v.paper == paper]
        least, most = min(v.error for v in some), max(v.error for v in some)
        yield f"| {paper} | {len(some)} | {median_error(some):.1f}% | {near(some)} | {least:+.1f}% to {most:+.1f}% |"
    for name, some in (
        ("all: ratios of two runs", [v for v in found if v.unit == "x"]),
        ("all: others (ms, tokens/s, ...)", [v for v in found if v.unit != "x"]),
    ):
        least, most = min(v.error for v in some), max(v.error for v in some)
        yield f"| {name} | {len(some)} | {median_error(some):.1f}% | {near(some)} | {least:+.1f}% to {most:+.1f}% |"


# ---- recordings

SITES = {  # by the words that head them in LIVE
    "the simulated device in real time": ("sim device in real time", "20 ms a step"),
    "the same with longer prompts": ("the same, near saturation", "24 tokens a step"),
    "one rank on one core": ("CPU, one rank", "another limit of a step"),
    "two ranks on two cores": ("CPU, two groups", "another limit of a step"),
    "what was never recorded": ("CPU, never recorded", "all marked ~; --strict refuses"),
}
MEANS = ("ttft", "tpot", "completion")


def lives():
    """(site, {latency: {floor, own, other: (median, least, most)}}) of each table, the means only."""
    for part in re.split(r"^# --- ", read(LIVE), flags=re.M)[1:]:
        site = next((names for head, names in SITES.items() if part.startswith(head)), None)
        found = {}
        for name, rest in re.findall(r"^(\w+) +mean +(.*)$", part, re.M):
            cells = re.findall(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)", rest)
            if len(cells) >= 3:
                found[name] = dict(zip(("floor", "own", "other"), ([float(x) for x in c] for c in cells)))
        if site and found:
            yield site, found


def draw_live():
    found = list(lives())
    told = (
        "Errors of mean latencies, in percent, that recordings predicted beside what live runs then did. "
        + " ".join(
            f"{name}, mean completion: own traffic {of['completion']['own'][0]:+g}%, "
            f"another policy {of['completion']['other'][0]:+g}%, "
            f"the same live twice {of['completion']['floor'][0]:g}% apart."
            for (name, _), of in found
        )
    )
    left, right, row, between = 290, 850, 30, 14
    tall = len(found) * (len(MEANS) * row + between)
    p = Picture(WIDTH, 112 + tall + 52, "Recordings: predicted against live", told)
    p.text(
        16,
        50,
        "error of mean latencies; dots are medians of three or five rounds, lines the least and the most",
        13,
        "soft",
    )
    at = lambda percent: left + (percent + 100) / 260 * (right - left)
    top, low = 70, 78 + tall
    for tick in range(-100, 161, 50):
        p.line(at(tick), top, at(tick), low, "line" if tick == 0 else "grid")
        p.text(at(tick), low + 16, f"{tick:+d}%" if tick else "0", 11, "soft", "middle")
    y = 78
    for (name, words), of in found:
        p.text(16, y + 16, name, 13, bold=True)
        p.text(16, y + 33, words, 12, "soft")
        for latency in MEANS:
            p.text(left - 12, y + row / 2 + 4, {"ttft": "TTFT", "tpot": "TPOT"}.get(latency, latency), 12, "ink", "end")
            floor = of[latency]["floor"][0]
            begin, end = max(at(-floor), left), at(floor)
            p.rect(begin, y + 3, max(end - begin, 1), row - 6, "pale")
            for what, colour, up in (("own", "blue", 10), ("other", "orange", 20)):
                median, least, most = of[latency][what]
                p.line(at(least), y + up, at(most), y + up, colour, 1.6)
                if what == "own":
                    p.dot(at(median), y + up, 4, colour)
                else:
                    p.diamond(at(median), y + up, 5, colour)
            y += row
        p.line(16, y + between / 2, right, y + between / 2)
        y += between
    y = low + 44
    p.dot(22, y - 4, 4, "blue")
    p.text(34, y, "the recording's own traffic, with modelled times", 12)
    p.diamond(342, y - 4, 5, "orange")
    p.text(354, y, "another policy, beside the mean of its two lives", 12)
    p.rect(16, y + 12, 26, 12, "pale", "line")
    p.text(
        52, y + 22, "how far apart two lives of that other policy were (median): less than that nothing can be told", 12
    )
    return p.svg()


def live_table():
    yield "| where | own traffic | another policy | the same live twice |"
    yield "|---|---|---|---|"
    for (name, words), of in lives():
        own, other, floor = (of["completion"][k] for k in ("own", "other", "floor"))
        cell = lambda c: f"{c[0]:+.1f}% ({c[1]:+.1f} to {c[2]:+.1f})"
        yield f"| {name}; {words} | {cell(own)} | {cell(other)} | {floor[0]:.1f}% ({floor[1]:.1f} to {floor[2]:.1f}) |"


def beyond_noise():
    """The page says that mean latencies are within the noise of their machine, but for what was never recorded."""
    for (name, _), of in lives():
        for latency, x in of.items():
            for what in ("own", "other"):
                within = abs(x[what][0]) <= x["floor"][2]
                if within == (what == "other" and "never recorded" in name):
                    yield f"{LIVE}: {name}, {latency}, {what}: {x[what][0]:+.1f}%, lives {x['floor'][2]:.1f}% apart"


# ---- all of it


def prose():
    """What pages say in words of these numbers."""
    shares = [100 * kernel_rows.inside(rows) for rows in kernel_rows.kept_out().values()]
    some = {k: rows for k, rows in kernel_rows.kept_out().items() if k != "collectives"}
    errors = [100 * kernel_rows.mean_error(rows) for rows in (some | kernel_rows.kept_out_collectives()).values()]
    inside, error = f"{min(shares):.0f} to {max(shares):.0f}%", f"{min(errors):.1f}% to {max(errors):.1f}%"
    for path, words in (
        (PAGE, f"hold {inside} of the rows"),
        ("models/hardware/README.md", f"{inside} are inside"),
        ("models/hardware/README.md", f"{error} in the mean"),
        ("docs/numbers.md", f"{error} mean absolute error"),
    ):
        if words not in " ".join(read(path).split()):
            yield f"{path}: no '{words}'"
    median = summary()["free"][1]
    if not 100 / 7 < median <= 100 / 6:
        yield f"{PAGE}: says that half of the runs are within a sixth; the median error is {median}%"


PICTURES = {
    "virtual-time.svg": draw_real,
    "kernel-errors.svg": draw_kernels,
    "paper-errors.svg": draw_papers,
    "what-if-errors.svg": draw_live,
}
TABLES = {
    "constants": constants_table,
    "kernels": kernels_table,
    "papers": papers_table,
    "each paper": by_paper_table,
    "live": live_table,
}


def page_made(text):
    for name, table in TABLES.items():
        made = "\n".join(table())
        text = re.sub(rf"(?<=<!-- made: {name} -->\n\n)[^<]*(?=\n\n<!-- -->)", lambda m: made, text)
    return text


def stale():
    how = "is not what the data give: python3 tests/lint/virtual_time.py --update"
    for name, draw in PICTURES.items():
        path = "docs/pictures/" + name
        if not os.path.exists(path) or read(path) != draw():
            yield f"{path} {how}"
    page = read(PAGE)
    for name in TABLES:
        if page.count(f"<!-- made: {name} -->\n") != 1:
            yield f"{PAGE} has no table '{name}'"
    if page_made(page) != page:
        yield f"{PAGE} {how}"


def update():
    for name, draw in PICTURES.items():
        with open("docs/pictures/" + name, "w", encoding="utf-8") as f:
            f.write(draw())
    made = page_made(read(PAGE))
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(made)


if "--update" in sys.argv:
    update()
rules = Rules()
rules.check("every constant is in the picture", unknown_constants())
rules.check("the rows of the papers give their summary", wrong_summary())
rules.check("recordings predict within the noise of their machine", beyond_noise())
rules.check("pages say in words what the data give", prose())
rules.check("pictures and tables are those of the data", stale())
rules.close()
