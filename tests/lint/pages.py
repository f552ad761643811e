"""The pages agree with the code: docs/serving.md has every route, field and header; links, files, flags, functions and
metrics that a page names exist; prose is at most 120 columns wide."""

import glob
import os
import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, everything, files, read

PAGE = read("docs/serving.md")
ELSEWHERE = {  # headers of HTTP itself, and of CORS, which browsers see to
    "content-length",
    "transfer-encoding",
    "expect",
    "connection",
    "host",
    "content-type",
    "allow",
    "vary",
    "access-control-request-headers",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
}
PLAIN = {  # OpenAI's own
    "stream",
    "logprobs",
    "n",
    "max_tokens",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "model",
    "prompt",
    "messages",
    "stop",
    "logit_bias",
    "seed",
    "stream_options",
    "response_format",
    "tool_choice",
    "best_of",
}


def table(path, start, row):
    text = read(path)
    m = re.search(start + r".*?\n\};", text, re.S)
    return re.findall(row, m.group()) if m else []


def on_page(name):
    return re.search(r"[`\"/.]" + re.escape(name) + r"(?![\w-])", PAGE, re.I)


def routes():
    found = table("engine/serve/routes.c", r"struct route table\[\]", r'\{"(/[^"]*)"') + table(
        "engine/serve/admin.c", r"\} table\[\]", r'"(/admin[^"]*)"'
    )
    if len(found) < 20:
        yield f"only {len(found)} routes were found: do the tables look different now?"
    for path in found:
        if path + "`" not in PAGE and path + "NAME`" not in PAGE:
            yield f"docs/serving.md: no {path}"


def fields():
    found = table("engine/serve/openai/params.c", r"struct field fields\[\]", r'\{"(\w+)"') + table(
        "engine/serve/openai/offer.c", r"labels\[\]", r'\{"(\w+)"'
    )
    m = re.search(r"others\[\] = \{(.*?)\};", read("engine/serve/openai/params.c"), re.S)
    found += re.findall(r'"(\w+)"', m.group(1)) if m else []
    if len(found) < 40:
        yield f"only {len(found)} fields were found: do the tables look different now?"
    for name in sorted(set(found) - PLAIN):
        if not on_page(name):
            yield f"docs/serving.md: no field {name}"


def embedding_fields():
    code, page = read("engine/serve/embed/ask.c"), read("docs/embeddings.md")
    found = re.findall(r'(?:given|read_flag|read_int|read_side)\(body, "(\w+)"', code) + table(
        "engine/serve/embed/ask.c", r"refused\[\]", r'\{"(\w+)"'
    )
    if len(found) < 15:
        yield f"only {len(found)} fields were found: does the code look different now?"
    for name in sorted(set(found) - {"model"}):
        if not re.search(rf"`{name}\b", page):
            yield f"docs/embeddings.md: no field {name}"


def headers():
    found = set()
    for path in files(".c", top=("engine/serve",)):
        text = read(path)
        found |= {
            m.lower()
            for m in re.findall(r'(?:http_head_find\([^"]*?|http_add_header\(\w+, |header_ms\(\w+, )"([\w-]+)"', text)
        }
    if len(found) < 8:
        yield f"only {len(found)} headers were found"
    for name in sorted(found - ELSEWHERE):
        if not on_page(name):
            yield f"docs/serving.md: no header {name}"


# ---- all pages

WIDE = {"models/papers/RESULTS.md"}  # made by a program
ABROAD = {"tests/data/README.md"}  # names files of other projects
PAGES = sorted(p for p in everything() if p.endswith(".md"))
ROOMS = "engine|kernels|lua|models|policies|tests|docs"
OTHERS = {  # flags of other programs that pages name
    "args", "build", "check", "cmake", "config", "cpath", "data-binary", "ff-only", "fail-with-body", "format",
    "help", "init", "install", "line-length", "lua", "max-time", "memcheck", "no-block", "only-warning", "output",
    "output-on-failure", "prefix", "preset", "python", "quick", "target", "test-dir", "tool", "update", "version",
    "group", "large", "lzma2", "mode", "mtime", "now", "numeric-owner", "owner",
}  # fmt: skip


def prose(text):
    """Lines with their numbers; those of code blocks and tables are left out."""
    fenced = False
    for n, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "    ")):
            yield n, line


def width():
    for path in PAGES:
        for n, line in prose(read(path)):
            if len(line) > 120 and path not in WIDE:
                yield f"{path}:{n}: {len(line)} columns"


def unfilled():
    for path in PAGES:
        for n, line in enumerate(read(path).split("\n"), 1):
            if re.search(r"@[A-Z_]{3,}@|\b(T[O]DO|T[B]D|F[I]XME)\b", line):
                yield f"{path}:{n}: {line.strip()}"


def slugs(text):
    """The anchors of a page's headings, as they are made where pages are shown."""
    found, fenced = set(), False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        m = None if fenced else re.match(r"#+ +(.*)", line)
        if m:
            plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", m.group(1)).strip().lower()
            found.add(re.sub(r"[^\w -]", "", plain).replace(" ", "-"))
    return found


def links():
    for path in PAGES:
        for n, line in enumerate(read(path).split("\n"), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                file, _, anchor = target.partition("#")
                if re.match(r"\w+:", file):
                    continue
                there = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                if not os.path.exists(there):
                    yield f"{path}:{n}: there is no {target}"
                elif anchor and anchor not in slugs(read(there)):
                    yield f"{path}:{n}: {there} has no heading #{anchor}"


def quoted(path):
    """What a page says in code: spans and blocks."""
    fenced = False
    for n, line in enumerate(read(path).split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield n, line
        else:
            yield from ((n, span) for span in re.findall(r"`([^`]+)`", line))


def named_files():
    for path in PAGES:
        for n, text in quoted(path) if path not in ABROAD else ():
            for name in re.findall(rf"(?<![\w/.-])((?:{ROOMS})/[\w./*{{}},-]*)", text):
                name = name.rstrip(".,")
                if re.search(r"[A-Z]{3,}", re.sub(r"README|TESTING|RESULTS", "", name)) or "{" in name:
                    continue  # a place for a name
                if name.startswith("models/weights") or os.path.exists(os.path.join(os.path.dirname(path), name)):
                    continue
                if not glob.glob(name) and not glob.glob(name + ".*"):
                    yield f"{path}:{n}: there is no {name}"


def flags():
    table = read("engine/cli/opts_table.c")
    known = set(OTHERS)
    for names in re.findall(r'^ *\{"([a-z][\w|-]+)", (?:NULL|"([\w-]+)"|true|false)', table, re.M):
        for name in "|".join(names).split("|"):
            known |= {name, "no-" + name}
    for path in files(".py", ".sh", ".c", top=("tests",)) + ["tests/gpu.sh"]:
        known |= set(re.findall(r"[\"']--([a-z][\w-]+)[\"']", read(path)))  # of the tests' own programs
    for path in PAGES:
        for n, text in quoted(path):
            for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text):
                if name not in known and not name.endswith("-"):
                    yield f"{path}:{n}: there is no flag --{name}"


def functions():
    code = "\n".join(read(f) for f in files(".c", ".h", ".cu", ".py"))
    for path in PAGES:
        for n, text in quoted(path):
            if not path.startswith("docs/"):
                continue
            for name in re.findall(r"(?<![.\w])([a-z]\w*_\w+)\(\)", text):
                if not re.search(rf"\b{name}\(", code):
                    yield f"{path}:{n}: there is no function {name}"


def policies():
    """policies/README.md has a line for each policy, with its params."""
    rows = dict(re.findall(r"^\| `(\w+)`.*?\|.*\|(.*)\|$", read("policies/README.md"), re.M))
    for path in sorted(glob.glob("policies/*.lua")):
        name, text = os.path.basename(path)[: -len(".lua")], read(path)
        declared = re.search(r"^  params = \{(.*?)^  \},", text, re.S | re.M)
        params = re.findall(r"^    (\w+) = \{\s*default", declared.group(1), re.M) if declared else []
        if name not in rows:
            yield f"policies/README.md: no {name}"
        elif sorted(params) != sorted(re.findall(r"`(\w+)`", rows[name])):
            yield f"policies/README.md: {name} declares {', '.join(params)}"


def numbers():
    """The simulator's errors on docs/numbers.md are those of the table that was made last."""
    made, page = read("models/papers/RESULTS.md"), " ".join(read("docs/numbers.md").split())
    m = re.search(r"(\d+) values.*?([\d.]+%) \(median; mean ([\d.]+%)\), (\d+) of.*?(\d+) claims in words", made)
    for text in (f"{m[1]} values", f"median {m[2]}, mean {m[3]}; {m[4]} of them", f"{m[5]} claims in words"):
        if text not in page:
            yield f"docs/numbers.md: no '{text}', as models/papers/RESULTS.md says"


def metrics():
    code = "\n".join(read(f) for f in files(".c", top=("engine", "lua")))
    code = re.sub(r'"\s*\n\s*"', "", code)
    for path in PAGES:
        for n, text in quoted(path):
            for name in re.findall(r"\b((?:vllm|moonshift):[a-z_]+|(?:policy|http|front|process)_[a-z_]+)\b", text):
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                if glob.glob("tests/" + name.replace("_", "/", 1) + ".*") or glob.glob(f"tests/*/{name}.*"):
                    continue  # a test
                if path.startswith("docs/") and base not in code and name not in code:
                    yield f"{path}:{n}: there is no metric {name}"


rules = Rules()
rules.check("routes are on the page", routes())
rules.check("fields are on the page", fields())
rules.check("fields of embeddings are on their page", embedding_fields())
rules.check("headers are on the page", headers())
rules.check("pages are at most 120 columns wide", width())
rules.check("nothing is left to be filled in", unfilled())
rules.check("links lead somewhere", links())
rules.check("files that pages name exist", named_files())
rules.check("flags that pages name exist", flags())
rules.check("functions that pages name exist", functions())
rules.check("policies are on their page", policies())
rules.check("the simulator's errors are up to date", numbers())
rules.check("metrics that pages name exist", metrics())
rules.close()
