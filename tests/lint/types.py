"""policies/types/moonshift.d.lua, what an editor may know of policies, is what the binding (lua/*.c) offers and what
docs/policies-reference.md says of it. --update makes it anew. What has a type of its own is in the tables below; a name
that the binding has and they lack is told."""

import os
import re
import sys

sys.path.insert(0, "tests/lint")
import source
from source import Rules

FILE = "policies/types/moonshift.d.lua"
REFERENCE = "docs/policies-reference.md"
G, B, R, L = "moonshift.Group", "moonshift.Batch", "moonshift.Request", "moonshift.Layout"
GROUP, REQUEST, DONE = f"{G}|integer", f"number|{R}", "true?, string?"

# ---- types: what is not in these tables is a number

TYPES = {
    "view": {
        "groups": f"{G}[]",
        "idle": f"{G}[]",
        "free_ranks": "integer[]",
        "dead_ranks": "integer[]",
        "pending": "moonshift.Pending[]",
        "waiting": "moonshift.Queue",
        "running": "moonshift.Queue",
    },
    "column": {
        **dict.fromkeys(("open_ended", "offline", "parked", "in_host"), "boolean[]"),
        "tenant": "string[]",
        "first": "integer[]",
        "last": "integer[]",
    },
    "request": {
        **dict.fromkeys(("open_ended", "offline", "again"), "boolean"),
        **dict.fromkeys(("name", "tenant"), "string"),
        "ending": '"stop"|"length"|"abort"|"error"|"refused"',
        "cached": "number?",
        "ttft_ms": "number?",
    },
    "group": {
        **dict.fromkeys(("idle", "held", "closed"), "boolean"),
        "ranks": "integer[]",
        "layout": L,
        "base": L,
        "weights": f"{L}|false",
        "ffn": '"was"|"cas"|"mixed"|"local"',
    },
    "pending": {
        "ranks": "integer[]",
        "when": "string",
        "release": "boolean",
        "weights": f"{L}?",
        "reason": "string",
    },
    "node": {
        "ranks": "integer[]",
        "sets": "integer[][]",
        "layouts": f"table<integer, {L}[]>",
        "tokens_per_block": "table<integer, number>",
        "stages": "table<integer, integer[]>",
        "heads": "{ q: integer, kv: integer, head_dim: integer }",
        "residency": '"replicated"|"pooled"|"sharded"',
        "ffn": "table|false",
        "model": "string",
        "device": "string",
    },
}

# ---- calls: by name their parameters and what they return

QUESTIONS = {
    "estimate": (f"group: {GROUP}, layout: {L}?, what: {B}|number|table, options: table?", "number?, number|string"),
    "forecast": ("wide: integer?, narrow: integer?, options: table?", "number?, number|string, number?, number?"),
    "estimate_reshard": (f"group: {GROUP}, layout: {L}", "table?, string?"),
    "estimate_move": ('tokens: number, where: "host"?', "number"),
    "estimate_draft": (f"batch: {B}, source: string, n: integer, requests: integer?", "number?, number|string"),
    "drafted": ("id: number, source: string, depth: integer?", "number?, number|string, number?"),
    "embed": ("", "table?, string?"),
    "early_stop": ("id: number", "number, number"),
    "probe": ("id: number, k: integer", "string?, string?"),
    "says": ("id: number, k: integer, words: string", "boolean"),
    "narrowest": ("tokens: number", "integer[]?"),
    "cover": ("wide: integer, narrow: integer", "integer[][]"),
    "row": ("queue: moonshift.Queue, k: integer", "integer?"),
    "cached": (f"id: number, group: ({GROUP})?", "number?, string?"),
    "tenant": ("name: string", "number, number, number"),
    "tenants": ("", "string[]"),
    "victims": (f"group: {GROUP}", "number[]"),
}
VERBS = {
    "batch": (f"group: {GROUP}", f"{B}?, string?"),
    "forward": (f"group: {GROUP}, batch: {B}, layout: {L}?, options: {{ ahead: integer?, micro: integer? }}?", DONE),
    "draft": (
        'id: number, n: integer, source: string?, shape: "chain"|"tree"|nil, next: integer?',
        "number?, number|string, number?, string?",
    ),
    "evict_drafts": ('rule: "oldest"|"unused"|"largest"', DONE),
    "embed": ("rule: { route: string?, replicas: integer?, short: number?, short_replicas: integer? }?", DONE),
    "probe": ("id: number", DONE),
    "conclude": ("id: number", DONE),
    "preempt": (f'what: number|{G}, how: "recompute"|"hard"|"drain"|"soft"', DONE),
    "open": (f"group: {GROUP}", DONE),
    "refuse": (f"request: {REQUEST}, code: integer?, retry_after: integer?, why: string?", DONE),
    "hold": (f"request: {REQUEST}, reason: string?, hold_until: number?", DONE),
    "wake": ("ms: number", DONE),
    "log": ("text: string", DONE),
    "bind": ("ranks: integer[], options: moonshift.Order?", DONE),
    "widen": ("", "boolean?, string?"),
    "release": (f"group: {GROUP}, how: string|moonshift.Order|nil", DONE),
    "remap": (f"id: number, group: ({GROUP})?, kv: string?", DONE),
    "swap_out": ("id: number", DONE),
    "swap_in": (f"id: number, group: {GROUP}", DONE),
    "comm": ('ranks: integer[], algorithm: "auto"|"oneshot"|"twoshot"|"library"|nil', "table?, string?"),
    "ffn": (f'group: {GROUP}|"all", way: "local"|"was"|"cas", options: {{ layers: integer[] }}?', DONE),
    "weights": (
        f'group: {GROUP}|"all", what: string|{L}, options: {{ layers: integer[] }}?',
        "true|table|nil, string?",
    ),
    "reshard": (f"group: {GROUP}, layout: {L}, options: moonshift.Order?", DONE),
}
METHODS = {
    "decodes": ("", "integer"),
    "prefill": ('list: moonshift.Queue|number[]|nil, budget: number?, where: "any"?', "integer"),
    "add": ("id: number, n: integer?", "integer?, string?"),
}
NODE, VIEW, ACT, P = "node: moonshift.Node", "view: moonshift.View", "act: moonshift.Act", "p: table<string, any>"
HOOKS = {
    "api": "1",
    "doc": "string?",
    "params": "table<string, moonshift.Param>?",
    "needs": "string[]?",
    "lib": "string[]?",
    "start": f"fun({NODE}, {ACT}, {P}, {VIEW})?",
    "step": f"fun({VIEW}, {ACT}, {P})",
    "admit": f"(fun(request: {R}, {VIEW}, {ACT}, {P}): number?)?",
    "finish": f"fun(request: {R}, {VIEW}, {P})?",
    "export": "(fun(): any)?",
    "import": "fun(state: any)?",
    "tests": "table<string, fun(t: moonshift.Test)>?",
    "fits": f"(fun({NODE}, {P}): boolean, string?)?",
}
ORDER = {
    "when": '"hard"|"drain"|"soft"|"ready"|nil',
    "kv": '"migrate"|"park"|"host"|"recompute"|"keep"|nil',
    "base": f"{L}?",
    "weights": f"{L}?",
    "max_wait_ms": "number?",
    "requests": "number[]?",
    "reason": "string?",
}
GLOBALS = {
    "sorted_pairs": ("t: table", "fun(): any, any", "Iterates over numbers, then texts, at most 4096 keys."),
    "rng": ("seed: number", "fun(n: integer?): number", "r() is in [0, 1), r(n) in 1..n, the same everywhere."),
    "clamp": ("x: number, low: number, high: number", "number", "x, but at least low and at most high."),
    "log": ("text: string", DONE, "A line of the log: at most 8 a step."),
}

# ---- what the binding has

CHANGED = {}  # path: (what stands there, what is read in its place)


def read(path):
    text = source.read(path)
    if path not in CHANGED:
        return text
    before, after = CHANGED[path]
    assert before in text, f"{path} has no {before!r} any more: change the rule that changes it"
    return text.replace(before, after, 1)


def strings(path, name):
    """The texts of an array of a C file."""
    found = re.search(rf"\b{name}(?:\[\w*\])+ = \{{(.*?)\n?\}};", read(path), re.S)
    return re.findall(r'"([^"]*)"', found[1]) if found else []


def registered(path, prefix):
    """The names that functions of a C file are given in its tables for Lua."""
    text = read(path)
    rows = re.findall(rf'\{{"(\w+)", {prefix}\w+\}}', text)
    return rows + re.findall(rf'lua_pushcfunction\(L, {prefix}\w+\);\n\s*lua_setfield\(L, -2, "(\w+)"\);', text)


def set_fields(path, start, end=""):
    """Fields that are set between two places of a C file, or behind the first one."""
    text = read(path)
    part = text[text.index(start) : text.index(end, text.index(start)) if end else len(text)]
    calls = re.findall(r'(?:lua_setfield\(L, [-\w]+|set_number\(L|put_field\(L), "(\w+)"', part)
    return calls + re.findall(r'^        \{"(\w+)", ', part, re.M)


def binding():
    """By class: the names of its facts."""
    top = [n for n in ("groups", "idle") if f'"{n}"' in read("lua/groups.c")]
    hung = [n for n in ("free_ranks", "dead_ranks", "pending") if f'"{n}"' in read("lua/orders.c")]
    queues = [n for n in ("waiting", "running") if f'"{n}"' in read("lua/bind.c")]
    node = set_fields("lua/bind.c", "/* Which groups there may be", "/* The rank of a layer")
    node += set_fields("lua/bind.c", "void bind_push_node", 'strict_guard(L, "node")')
    varying = re.findall(r'"(\w+)"', re.search(r"\[GROUP_\w+\] = \{(.*?)\};", read("lua/groups.c"), re.S)[1])
    fixed = set_fields("lua/groups.c", 'set_number(L, "id"', "lua_pushliteral")
    return {
        "view": strings("lua/scalars.c", "scalar_names") + top + hung + queues,
        "column": strings("lua/columns.c", "column_names"),
        "request": strings("lua/bind.c", "field_names"),
        "group": [n for n in fixed + varying if n not in ("sp", "tp", "pp")],
        "node": [n for n in node if n not in ("q", "kv", "head_dim")],
        "pending": [n for n in set_fields("lua/orders.c", "#include") if n not in hung],
    }


def units():
    """What a number of a parameter may count."""
    return [u for u in strings("engine/unit.c", "names") if u]


def calls():
    """By table: the names of functions that the binding has, and those that have a signature here."""
    queries = ("queries", "verbs", "verbs_probe", "verbs_embed")
    asked = [n for f in queries for n in registered(f"lua/{f}.c", "view_")]
    return (
        ("view", sorted(set(asked)), QUESTIONS),
        ("act", sorted(set(registered("lua/verbs.c", "act_")) - {"log"} | {"log"}), VERBS),
        ("a batch", sorted(set(registered("lua/verbs_batch.c", "batch_")) - {"__newindex"}), METHODS),
        ("a policy's table", strings("lua/script.c", "fields"), HOOKS),
    )


# ---- what the reference says


def plain(text):
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("\\|", "|")
    text = re.sub(r",? \[?below\]?[.:]?", "", text).strip()
    return re.split(r"(?<=[a-z)\]])\. ", text)[0].rstrip(".:;, ")


def said():
    """By section of the reference: what its tables say of each name in their first column."""
    found, section = {}, ""
    for line in read(REFERENCE).split("\n"):
        if line.startswith("#"):
            section = line.lstrip("# ")
        cells = re.split(r"(?<!\\)\|", line)
        if line.startswith("| `") and len(cells) >= 4:
            names = re.findall(r"`(?:view\.|act\.|batch[:.])?\.?(\w+)", cells[1])
            words = [plain(cells[2])] * len(names)
            if len(words) > 1 and words[0].count(";") == len(names) - 1:
                words = words[0].split("; ")
            for name, of_it in zip(names, words):
                found.setdefault(section, {}).setdefault(name, of_it)
            if section == "act" and len(cells) > 4:
                for name in names if not plain(cells[3]).startswith("the same") else ():
                    found.setdefault("refused", {}).setdefault(name, "Refused when: " + plain(cells[3]))
    return found


# Under which heading of the reference the facts of a class stand.
PLACES = {"view": "view", "column": "Columns", "group": "Groups", "node": "node", "pending": "", "request": ""}

# ---- the file


def note(words):
    return " " + words if words else ""


def facts(kind, name, told):
    """A class of facts."""
    words = told.get(PLACES[kind], {})
    yield f"---@class moonshift.{name}"
    for fact in binding()[kind]:
        of_kind = TYPES.get(kind, {}).get(fact, "number[]" if kind == "column" else "number")
        yield f"---@field {fact} {of_kind}{note(words.get(fact, ''))}"


def functions(table, told, places, this=""):
    for name, (parameters, returns) in sorted(table.items()):
        words = next((told[p][name] for p in places if name in told.get(p, {})), "")
        given = ", ".join(p for p in (this, parameters) if p)
        yield f"---@field {name} fun({given}): {returns}{note(words)}"


def made():
    told = said()
    lines = [
        "---@meta moonshift",
        "-- What an editor may know of policies. Made by tests/lint/types.py of lua/*.c and "
        "docs/policies-reference.md:",
        "-- python3 tests/lint/types.py --update",
        "",
        f"---@class {L}",
        "---@field sp integer?",
        "---@field tp integer?",
        "---@field pp integer?",
        "",
        *facts("pending", "Pending", told),
        "",
        "---@class moonshift.Order",
        *(f"---@field {n} {t}{note(told['Orders for the partition'].get(n, ''))}" for n, t in ORDER.items()),
        "",
        "---@class moonshift.Param",
        "---@field default number|boolean|string|table<string, number>",
        "---@field min number?",
        "---@field max number?",
        '---@field type "integer"?',
        "---@field unit " + "|".join(f'"{u}"' for u in units()) + "|nil",
        "---@field choices string[]?",
        "---@field doc string?",
        "",
        "---@class moonshift.Queue",
        "---@field n integer the rows of each column",
        *list(facts("column", "Queue", told))[1:],
        "",
        *facts("group", "Group", told),
        "",
        *facts("request", "Request", told),
        "",
        *facts("node", "Node", told),
        "",
        f"---@class {B}",
        *(f"---@field {n} number" for n in strings("lua/verbs_batch.c", "facts")),
        *functions(METHODS, told, ("act",), f"self: {B}"),
        "",
        *facts("view", "View", told),
        *functions(QUESTIONS, told, ("view",)),
        "",
        "---@class moonshift.Act",
        *functions(VERBS, told, ("refused",)),
        "",
        "---@class moonshift.Test",
        "---@field step fun(world: table): table a step in a made-up situation: its plan",
        "---@field admit fun(request: table): number?, integer?, integer? the key; or nil, code and retry_after",
        "---@field start fun(world: table): table what is ordered when the policy takes over",
        "",
        "---@class moonshift.Policy",
        *(f"---@field {n} {t}{note(told['The table'].get(n, ''))}" for n, t in HOOKS.items()),
        "",
        "---@type table<string, table> what the files of lib/ return that the policy's table names",
        "lib = {}",
    ]
    for name, (parameters, returns, words) in GLOBALS.items():
        names = [p.split(":")[0].rstrip("?") for p in parameters.split(", ")]
        lines += ["", f"---{words}"]
        lines += [f"---@param {p.replace(':', '', 1)}" for p in parameters.split(", ")]
        lines += [f"---@return {returns}", f"function {name}({', '.join(names)}) end"]
    return "\n".join(lines) + "\n"


# ---- rules


def unknown():
    """What the binding has is typed here, and what is typed here the binding has."""
    for what, has, typed in calls():
        yield from (f"{what} has '{n}' in lua/*.c: give it a signature in {__file__}" for n in set(has) - set(typed))
        yield from (f"{what} has no '{n}' in lua/*.c, and {__file__} has" for n in set(typed) - set(has))
    for kind, names in binding().items():
        if len(names) < 5:
            yield f"{kind}: only {len(names)} names were found in lua/*.c: {', '.join(names)}"
        yield from (f"{kind} has no '{n}' in lua/*.c" for n in set(TYPES.get(kind, ())) - set(names))
    if set(GLOBALS) | {"lib"} - set(strings("lua/sandbox.c", "allowed")) != set(GLOBALS):
        yield "lua/sandbox.c: the globals of ours are others"


def section(heading):
    """From a heading of the reference to the next one."""
    return re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", read(REFERENCE), re.S | re.M)[1]


def firsts(heading, pattern):
    """The names in the first cells of the tables under a heading."""
    cells = re.findall(r"^\| (.*?) (?<!\\)\|", section(heading), re.M)
    return [n for cell in cells for n in re.findall(pattern, cell)]


def names_of():
    """By kind of name: those that the binding has, and those of which the reference says something."""
    has, name = binding(), r"`(\w+)`"
    (_, questions, _), (_, verbs, _), (_, methods, _), (_, fields, _) = calls()
    request = section("request").split("It is one table")[0]
    pending = re.search(r"^\| `pending` \| (.*)$", section("view"), re.M)[1].replace('("hard"', "")
    orders = re.search(r"`act\.bind\(ranks, \{(.*?)\}\)`", section("Orders for the partition"), re.S)[1]
    lua, libraries = section("Lua"), re.search(r"libraries\[\] = \{(.*?)\n\};", read("lua/sandbox.c"), re.S)[1]
    theirs = dict(re.findall(r"^\| `(\w+)\.` \| `([^`]*)`", lua, re.M))
    yield "view", has["view"], firsts("view", name)
    yield "a question of view", questions, firsts("view", r"view\.(\w+)\(")
    yield "a column", has["column"], firsts("Columns", name)
    yield "a request", has["request"], [n for n in re.findall(name, request) if n not in ("admit", "finish")]
    yield "node", has["node"], firsts("node", name)
    yield "a group", has["group"], firsts("Groups", name)
    yield "a pending order", has["pending"], re.findall(name, pending)
    yield "act", verbs, firsts("act", r"act\.(\w+)\(")
    yield "a batch's call", methods, firsts("act", r"batch:(\w+)\(")
    yield "a batch", strings("lua/verbs_batch.c", "facts"), firsts("act", r"`(?:batch)?\.(\w+)`")
    yield "a policy's table", fields, firsts("The table", r"`(\w+)[`(]")
    options = re.search(r'names\[\] = \{([^}]*"max_wait_ms"[^}]*)\}', read("lua/verbs_partition.c"))[1]
    yield "an order", re.findall(r'"(\w+)"', options), re.findall(r"(\w+) =", orders)
    plain = re.search(r"^\| plain \| `([^`]*)`", lua, re.M)[1].split() + re.findall(r"`(\w+)\(\w+(?:, \w+)*\)`", lua)
    ours = [n for n in strings("lua/sandbox.c", "allowed") if n not in ("math", "string", "table", "bit", "lib")]
    yield "the globals", ours, [n for n in plain if n != "r"]
    for library, *fields in re.findall(r'\{"(\w+)", "([^"]*)", "([^"]*)"\}', libraries):
        if library in theirs:
            yield library, " ".join(fields).split(), theirs[library].split()


def unsaid():
    """Whatever the binding has is in its place in the reference, and nothing else is there."""
    told = read(REFERENCE)
    for unit in units():
        if not re.search(rf"^\| .*`{re.escape(unit)}`", told, re.M):
            yield f"{REFERENCE}: nothing of the unit '{unit}'"
    for what, has, told in names_of():
        if len(has) < 2:
            yield f"{what}: hardly a name was found in lua/*.c"
        yield from (f"{REFERENCE}: nothing of '{n}' of {what}" for n in sorted(set(has) - set(told)))
        yield from (f"{REFERENCE}: {what} has no '{n}' in lua/*.c" for n in sorted(set(told) - set(has)))


# ---- arguments


def split(text):
    """The parameters of a call as they are written, at the outermost level: "a, { b, c }" has two."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "{(") - (c in "})")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p for p in map(str.strip, parts) if p]


def written(table, name, text, parameters):
    """How the reference writes the calls of a name: how many arguments it must have, and how many it can."""
    for union in re.findall(r'"\w+"(?:\|"\w+")+', parameters):  # "a", "b" or "c" is one argument
        text = re.sub(rf"(?:(?:{union}), )*(?:{union}) or (?:{union})", "word", text)
    for m in re.finditer(rf"{re.escape(table)}{name}\(", text):
        depth, end = 1, m.end()
        while depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        call = text[m.end() : end - 1]
        must = re.split(r"\[", call, maxsplit=1)[0]
        yield len(split(must)), len(split(re.sub(r"[\[\]]", "", call)))


def arguments():
    """The reference and the signatures for editors say the same of arguments: how many, and which may be left away."""
    for table, heading, typed in (("view.", "view", QUESTIONS), ("act.", "act", VERBS), ("batch:", "act", METHODS)):
        rows = "\n".join(line for line in section(heading).split("\n") if line.startswith("|"))
        for name, (parameters, _) in typed.items():
            of_type = split(parameters)
            must = [i for i, p in enumerate(of_type, 1) if not re.search(r"\?$|\bnil\b", p)]
            calls_of = list(written(table, name, rows, parameters))
            if not calls_of:
                continue  # told above
            fewest, most = min(c[0] for c in calls_of), max(c[1] for c in calls_of)
            if most != len(of_type):
                yield f"{table}{name} has {most} arguments in {REFERENCE}, and {len(of_type)} in {__file__}"
            elif must and must[-1] > fewest:
                yield f"{table}{name} needs {must[-1]} arguments by {__file__}, and {fewest} by {REFERENCE}"


# ---- would they notice?

NEW = "zzz"
ADDED = [  # one name more, in the binding or in the reference
    ("lua/scalars.c", '    "copies",\n', f'    "copies", "{NEW}",\n'),
    ("lua/bind.c", '"ttft_ms",\n', f'"ttft_ms", "{NEW}",\n'),
    ("lua/bind.c", '{"n_ranks", ', f'{{"{NEW}", 1}},\n        {{"n_ranks", '),
    ("lua/columns.c", '"last",\n', f'"last", "{NEW}",\n'),
    ("lua/groups.c", '"closed",', f'"closed", "{NEW}",'),
    ("lua/groups.c", 'set_number(L, "size", ', f'set_number(L, "{NEW}", 1);\n    set_number(L, "size", '),
    (
        "lua/orders.c",
        'lua_setfield(L, -2, "reason");',
        f'lua_setfield(L, -2, "reason");\n    lua_setfield(L, -2, "{NEW}");',
    ),
    ("lua/verbs.c", '{"embed", act_embed}', f'{{"embed", act_embed}}, {{"{NEW}", act_{NEW}}}'),
    (
        "lua/verbs.c",
        "lua_pushcfunction(L, view_drafted);",
        f'lua_pushcfunction(L, view_{NEW});\n    lua_setfield(L, -2, "{NEW}");',
    ),
    ("lua/verbs_batch.c", '{"add", batch_add}', f'{{"add", batch_add}}, {{"{NEW}", batch_{NEW}}}'),
    ("lua/verbs_batch.c", '"n_decodes", "group"}', f'"n_decodes", "group", "{NEW}"}}'),
    ("lua/script.c", '"lib"};', f'"lib", "{NEW}"}};'),
    ("lua/verbs_partition.c", '"base", "weights"};', f'"base", "weights", "{NEW}"}};'),
    ("lua/sandbox.c", '"clamp", ', f'"clamp", "{NEW}", '),
    ("lua/sandbox.c", '"abs ceil', f'"{NEW} abs ceil'),
    (REFERENCE, "| `copies` |", f"| `copies`, `{NEW}` |"),
    (REFERENCE, "| `view.narrowest(tokens)` |", f"| `view.{NEW}()` | |\n| `view.narrowest(tokens)` |"),
    (REFERENCE, "| `key` |", f"| `key`, `{NEW}` |"),
    (REFERENCE, "In `admit` and `finish`: `id`,", f"In `admit` and `finish`: `id`, `{NEW}`,"),
    (REFERENCE, "| `heads` |", f"| `heads`, `{NEW}` |"),
    (REFERENCE, "| `layout`, `base` |", f"| `layout`, `base`, `{NEW}` |"),
    (REFERENCE, "orders that wait: `ranks`,", f"orders that wait: `ranks`, `{NEW}`,"),
    (REFERENCE, "| `act.open(group)` |", f"| `act.{NEW}(group)` |\n| `act.open(group)` |"),
    (REFERENCE, "| `batch:decodes()` |", f"| `batch:{NEW}()` |\n| `batch:decodes()` |"),
    (REFERENCE, "`.n_decodes`,", f"`.n_decodes`, `.{NEW}`,"),
    (REFERENCE, "| `doc` |", f"| `{NEW}` | |\n| `doc` |"),
    (REFERENCE, "max_wait_ms =,", f"max_wait_ms =, {NEW} =,"),
    (REFERENCE, "`abs ceil", f"`{NEW} abs ceil"),
]


def blind():
    for path, before, after in ADDED:
        CHANGED[path] = (before, after)
        if not any(NEW in fault for fault in unsaid()):
            yield f"with {after!r} in {path} nothing is told"
        CHANGED.clear()
    CHANGED[REFERENCE] = ("`act.wake(ms)`", "`act.wake(ms, why)`")
    if not any("act.wake" in fault for fault in arguments()):
        yield "one argument more is not told"
    CHANGED.clear()


def stale():
    if not os.path.exists(FILE) or read(FILE) != made():
        yield f"{FILE} is not what the binding gives: python3 tests/lint/types.py --update"


if "--update" in sys.argv:
    os.makedirs(os.path.dirname(FILE), exist_ok=True)
    with open(FILE, "w", encoding="utf-8") as f:
        f.write(made())
rules = Rules()
rules.check("what the binding offers has a type", unknown())
rules.check("what the binding offers is in the reference, and nothing else", unsaid())
rules.check("the reference has the arguments of the signatures", arguments())
rules.check("one name more on either side would be told", blind())
rules.check("the type file is made of them", stale())
rules.close()
