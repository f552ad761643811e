"""What clients can ask for stands on docs/serving.md: every route of the two tables, every field, every header."""

import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, files, read  # noqa: E402

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


rules = Rules()
rules.check("routes are on the page", routes())
rules.check("fields are on the page", fields())
rules.check("headers are on the page", headers())
rules.close()
