"""docs/pictures/architecture.svg shows the floors and rooms that the tree has; --update draws it anew."""

import html
import os
import re
import sys

sys.path.insert(0, "tests/lint")
from floors import ORDER, floor, sources
from source import Rules, read

PICTURE = "docs/pictures/architecture.svg"
ROOMS = {
    "engine/main.c": "main()",
    "engine/command": "serve, run, simulate, ...",
    "lua/module": "for specs in Lua",
    "engine/serve": "routes",
    "engine/serve/http": "connections",
    "engine/serve/openai": "OpenAI API",
    "engine/serve/responses": "/v1/responses",
    "engine/serve/messages": "/v1/messages",
    "engine/serve/front": "keys, text",
    "engine/serve/embed": "vectors",
    "engine/serve/batch": "offline jobs",
    "engine/serve/terminal": "chat",
    "engine/serve/room": "control room",
    "engine/serve/versions": "policies kept",
    "engine/serve/whatif": "policies tried",
    "engine/lab": "simulate",
    "engine/lab/fit": "step times",
    "engine/lab/trace": "traffic",
    "engine/lab/recording": "record",
    "engine/lab/search": "tune, plan",
    "engine/cli": "flags, help",
    "engine/remote": "HTTP client",
    "lua": "runs policies: sandbox, watchdog, view and verbs",
    "engine": "the loop: view, decide, check, post, absorb",
    "engine/embed": "replicas of an encoder",
    "engine/exec": "ranks, steps, moves, weights",
    "models/load": "model files",
    "models/forward": "the layers",
    "models/encode": "vectors",
    "models/tokenizer": "text, tokens",
    "models/template": "chat, tools",
    "models/guide": "answer forms",
    "kernels": "operations table",
    "kernels/cpu": "vector code",
    "kernels/cuda": "NVIDIA GPUs",
    "kernels/sim": "only counts time",
    "engine/draft": "draft tokens: suffix trees, made beside the steps",
    "engine/world": "requests, KV blocks, groups, plans: pure state",
    "engine/base": "errors, memory, queues, threads, files, logs",
}
WIDTH, GUTTER, LEFT, RIGHT, TOP, BAND, GAP, PAD = 880, 16, 88, 620, 66, 54, 8, 8
BESIDE, MOST = ("serve", "lab", "cli", "remote"), 5  # floors beside one another; rooms of a line
SIDE, END = 652, WIDTH - 16  # of the run-time sketch
DARK, GREY, HOUSE, THREAD, POLICY, DEVICE = "#1f2933", "#52606d", "#7b8794", "#0072b2", "#d55e00", "#00785a"


def rooms():
    """The rooms of each floor, in the order of the table; those that it does not have come last."""
    found = {}
    for path in sources():
        name = path if path == "engine/main.c" else os.path.dirname(path)
        if floor(path):
            found.setdefault(floor(path), set()).add(name)
    order = list(ROOMS)
    return {f: sorted(names, key=lambda n: (order.index(n) if n in ROOMS else 99, n)) for f, names in found.items()}


def text(x, y, words, size=12, colour=DARK, anchor="middle", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{html.escape(words)}</text>"
    )


def box(x, y, w, h, fill, stroke):
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5" fill="{fill}" stroke="{stroke}" '
        'stroke-width="1.3"/>'
    )


def titled(x, y, w, h, fill, stroke, name, what=""):
    """A box with its name and, below it, what it is."""
    middle = y + h / 2
    yield box(x, y, w, h, fill, stroke)
    yield text(x + w / 2, middle - 3 if what else middle + 4.5, name, 13, bold=True)
    if what:
        yield text(x + w / 2, middle + 13, what, 12, GREY)


def arrow(x, y0, y1):
    head = 7 if y1 > y0 else -7
    yield f'<path d="M{x:g} {y0:g}V{y1 - head:g}" stroke="{DARK}" stroke-width="1.6" fill="none"/>'
    yield f'<path d="M{x:g} {y1:g}l-4.5 {-head}h9z" fill="{DARK}"/>'


def row(names, x, y, w, h, short):
    wide = (w - PAD * (len(names) - 1)) / len(names)
    for i, name in enumerate(names):
        label = os.path.basename(name) if short else name
        yield from titled(x + i * (wide + PAD), y, wide, h, "#ffffff", HOUSE, label, ROOMS.get(name, ""))


def lines(names, here):
    """Floors beside one another, line by line: (its floors, its rooms). Rooms of one floor take as many lines as they
    need; floors of one room share one."""
    single = [n for n in BESIDE if n in names and len(here[n]) == 1]
    for name in BESIDE:
        if name in names and name not in single:
            for at in range(0, len(here[name]), MOST):
                yield [name] if at == 0 else [], here[name][at : at + MOST]
    if single:
        yield single, [here[n][0] for n in single]


def height(names, here):
    return BAND if len(names) == 1 else PAD + (BAND - PAD) * len(list(lines(names, here)))


def bands(here, tops):
    for names in ORDER:
        y, h = tops[min(names)]
        yield f'<rect x="{GUTTER}" y="{y}" width="{RIGHT - GUTTER}" height="{h}" rx="7" fill="#e8edf2"/>'
        parts = list(lines(names, here)) if len(names) > 1 else [(sorted(names), here[min(names)])]
        short = len(names) > 1 or min(names) in ("models", "kernels")
        for i, (floors_of, part) in enumerate(parts):
            at = y + PAD + i * (BAND - PAD)
            for k, name in enumerate(floors_of):
                middle = at + (BAND - 2 * PAD) / 2 + 5 + 17 * (k - (len(floors_of) - 1) / 2)
                yield text(GUTTER + 12, middle, name, 14, anchor="start", bold=True)
            yield from row(part, LEFT + PAD, at, RIGHT - LEFT - 2 * PAD, BAND - 2 * PAD, short)


def run_time(tops):
    """Who talks to whom, each beside the floor that has its code."""
    y = {name: top + PAD for name, (top, _) in tops.items()}
    high, wide, middle = BAND - 2 * PAD, END - SIDE, (SIDE + END) / 2
    yield from titled(SIDE, y["main"], wide, high, "#ffffff", HOUSE, "HTTP clients")
    yield from arrow(middle - 40, y["main"] + high + 2, y["serve"] + 20)
    yield from arrow(middle + 40, y["serve"] + 20, y["main"] + high + 2)
    front, tall = y["serve"] + 22, 56
    yield from titled(SIDE, front, wide, tall, "#d9ebf7", THREAD, "front thread", "sockets, keys, answers")
    top = tops["lua"][0] - 4
    yield from arrow(SIDE + 30, front + tall + 2, top - 2)
    yield from arrow(END - 30, top - 2, front + tall + 2)
    yield text(SIDE + 40, (front + tall + top) / 2 + 4, "requests", anchor="start")
    yield text(END - 40, (front + tall + top) / 2 + 4, "tokens", anchor="end")
    low = sum(tops["core"]) - 2
    yield box(SIDE, top, wide, low - top, "#d9ebf7", THREAD)
    yield text(SIDE + 12, y["lua"] + 16, "engine", 13, anchor="start", bold=True)
    yield text(SIDE + 12, y["lua"] + 32, "thread", 13, anchor="start", bold=True)
    yield from titled(SIDE + 72, y["lua"], wide - 82, high, "#fde3d0", POLICY, "Lua policy", "decides")
    yield from arrow(SIDE + 120, y["core"] - 2, y["lua"] + high + 2)
    yield from arrow(END - 60, y["lua"] + high + 2, y["core"] - 2)
    between = (y["lua"] + high + y["core"]) / 2 + 4
    yield text(SIDE + 112, between, "view", anchor="end")
    yield text(END - 52, between, "plan", anchor="start")
    yield from titled(SIDE + 10, y["core"], wide - 20, high, "#ffffff", THREAD, "loop", "checks the plan, posts steps")
    yield from arrow(middle - 40, low + 2, y["exec"] + 6)
    yield from arrow(middle + 40, y["exec"] + 6, low + 2)
    yield text(middle - 48, low + 18, "steps", anchor="end")
    yield text(middle + 48, low + 18, "tokens", anchor="start")
    third = (wide - 2 * PAD) / 3
    for i, (rank, device) in enumerate((("rank 0", "CPU"), ("rank 1", "CUDA"), ("rank n", "sim"))):
        x = SIDE + i * (third + PAD)
        yield from titled(x, y["exec"] + 8, third, high - 8, "#d9ebf7", THREAD, rank)
        yield from titled(x, y["kernels"], third, high, "#d3efe6", DEVICE, device)
    yield from titled(SIDE, y["models"], wide, high, "#ffffff", HOUSE, "forward pass", "for every layout and device")
    for above, below in (("exec", "models"), ("models", "kernels")):
        yield from arrow(middle, y[above] + high + 2, y[below] - 2)
    for i, words in enumerate(("Blue: threads that send messages.", "All ranks use the same backend.")):
        yield text(SIDE, y["world"] + 16 + 18 * i, words, 12, GREY, "start")


def picture():
    here, tops, y = rooms(), {}, TOP
    for names in reversed(ORDER):
        h = height(names, here)
        tops |= dict.fromkeys(names, (y, h))
        y += h + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8}" viewBox="0 0 {WIDTH} {y + 8}" '
        'font-family="sans-serif">',
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
        text(GUTTER, 28, "The floors of the code", 17, anchor="start", bold=True),
        text(GUTTER, 50, "A file includes only its own floor and those below it.", 13, GREY, "start"),
        text(SIDE, 28, "At run time", 17, anchor="start", bold=True),
        text(SIDE, 50, "who talks to whom", 13, GREY, "start"),
        *bands(here, tops),
        *run_time(tops),
    ]
    return "\n".join(parts) + "\n</svg>\n"


def known():
    there = {name for names in rooms().values() for name in names}
    for name in sorted(there ^ set(ROOMS)):
        yield f"{name}: {'no line in ROOMS' if name in there else 'ROOMS has it, the tree does not'}"


def stale():
    if not os.path.exists(PICTURE) or read(PICTURE) != picture():
        yield f"{PICTURE} is not what the tree gives: python3 tests/lint/architecture.py --update"


def too_wide():
    """Words in the middle of a box, by what their letters take at least."""
    boxes, drawn = [], picture()
    for kind in re.finditer(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', drawn):
        boxes.append([float(v) for v in kind.groups()])
    for m in re.finditer(r'<text x="(\S+)" y="(\S+)" font-size="(\d+)"[^>]*"middle"([^>]*)>([^<]*)<', drawn):
        x, y, wide = float(m[1]), float(m[2]), len(html.unescape(m[5])) * int(m[3]) * (0.58 if m[4] else 0.52)
        inside = [b for b in boxes if abs(b[0] + b[2] / 2 - x) < 0.01 and b[1] < y < b[1] + b[3]]
        if inside and min(b[2] for b in inside) < wide + 4:
            yield f"{m[5]}: some {wide:.0f} wide, in a box of {min(b[2] for b in inside):.0f}"


if "--update" in sys.argv:
    open(PICTURE, "w", encoding="utf-8").write(picture())
rules = Rules()
rules.check("every room has its words", known())
rules.check("the picture shows the tree", stale())
rules.check("words fit into their boxes", too_wide())
rules.close()
