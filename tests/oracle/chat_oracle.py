"""Compares the chat template interpreter with jinja2, byte for byte, errors included.

python3 tests/oracle/chat_oracle.py --binary build/chat_render [--templates DIR] [--random N] [--seed N] [--gguf FILE]

Three parts: published templates over many conversations, a table of snippets (chat_snippets.py), and random templates
(chat_random.py). Prints what differs and a last line "N passed, N failed".
"""

import argparse
import datetime
import functools
import json
import pathlib
import re
import subprocess
import sys
import time
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chat_cases
import chat_random
import chat_snippets
import gguf_fields

NOW = 1753000000
SKIP = re.compile(r" at 0x[0-9a-f]+>|x0 ta |'x', '0'|'0', 'x'|^<class |<class '", re.I)  # what Python prints of objects

# What random templates may meet that is refused here: integers past 64 bits, complex numbers, sets made of dict views,
# deep recursion, unknown
# filters in code that never runs; and slices of constants that cannot be sliced, which jinja2 finds undefined when it
# folds them.
REFUSED_HERE = re.compile("past 64 bits|complex number|'dict view'|recurses too deeply|too many steps|cannot be sliced")


class Generation(jinja2.ext.Extension):
    """transformers' AssistantTracker, as far as the text goes."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def make_environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    return env


ENV = make_environment()


@functools.lru_cache(maxsize=64)
def compiled(template):
    return ENV.from_string(template)


def expected(template, context):
    """("text", str) or ("error", str)."""
    try:
        text = compiled(template).render(**context)
        text.encode()
        return "text", text
    except Exception as e:  # whatever Python raises is an error of the template
        return "error", f"{type(e).__name__}: {e}"


class Binary:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, context, **limits):
        job = json.dumps({"template": template, "context": context, "now": NOW, **limits})
        self.process.stdin.write(job.encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the binary died on {template!r} with {json.dumps(context)}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise SystemExit(f"the binary ended with {self.process.returncode}")


class Score:
    def __init__(self, binary, verbose):
        self.binary, self.verbose = binary, verbose
        self.passed = self.failed = self.skipped = self.errors = 0

    def note(self, ok, label, detail):
        if ok:
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= 40 or self.verbose:
            print(f"FAIL {label}\n{detail}")

    def compare(self, label, template, context, refused_is_fine=False):
        kind, want = expected(template, context)
        got = self.binary.render(template, context)
        if kind == "text" and SKIP.search(want):
            self.skipped += 1
            return
        if kind == "error":
            self.errors += 1
            ok = "error" in got
        else:
            ok = got.get("text") == want
        refused = got.get("code") == "unsupported" or REFUSED_HERE.search(got.get("error", ""))
        if not ok and refused_is_fine and refused:
            self.skipped += 1
            return
        self.note(
            ok,
            label,
            f"  template: {template if len(template) < 600 else template[:80] + '...'!r}\n"
            f"  context:  {json.dumps(context)[:300]}\n  jinja2:   {kind} {want!r}\n  here:     {got!r}",
        )

    def refuse(self, template, line, code=None):
        """Must fail at compile time, naming the line."""
        got = self.binary.render(template, {})
        at_line = re.match(r"line (\d+): .", got.get("error", ""))
        ok = got.get("at") == "compile" and at_line and line in (None, int(at_line[1])) and code in (None, got["code"])
        self.note(ok, "refusal", f"  template: {template!r} (line {line}, {code})\n  here:     {got!r}")


def published(score, folder):
    files = sorted(pathlib.Path(folder).glob("*.jinja"))
    if not files:
        raise SystemExit(f"no templates in {folder}")
    for file in files:
        source = file.read_text()
        for label, context in chat_cases.contexts():
            score.compare(f"{file.name} {label}", source, context)


def write_cases(path):
    """The snippets with what jinja2 makes of them, for the test that runs without Python."""
    cases = []
    for template in chat_snippets.written():
        kind, text = expected(template, chat_snippets.CTX)
        if kind == "error":
            cases.append({"template": template, "error": True})
        elif not SKIP.search(text) and "strftime" not in template:
            cases.append({"template": template, "text": text})
    refused = [{"template": t, "line": line, "code": code} for t, line, code in chat_snippets.REFUSED]
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"context":\n' + json.dumps(chat_snippets.CTX) + ',\n"cases":[\n')
        f.write(",\n".join(json.dumps(c) for c in cases))
        f.write('\n],\n"refused":[\n' + ",\n".join(json.dumps(c) for c in refused) + "\n]}\n")


def demo_template(path):
    return gguf_fields.fields(path)["tokenizer.chat_template"]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--binary", help="the program chat_render")
    p.add_argument("--write", help="only write the snippets and what jinja2 makes of them to this file")
    p.add_argument("--templates", default="tests/data/templates")
    p.add_argument("--gguf", help="also the template of this model file")
    p.add_argument("--random", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--seconds", type=float, help="random templates for so long instead of --random")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    warnings.simplefilter("ignore")  # Python's opinion of the code jinja2 makes
    if a.write:
        return write_cases(a.write)
    if not a.binary:
        p.error("--binary is needed")
    score = Score(Binary(a.binary), a.verbose)
    if a.templates:
        published(score, a.templates)
    if a.gguf:
        source = demo_template(a.gguf)
        for label, context in chat_cases.contexts():
            score.compare(f"{a.gguf} {label}", source, context)
    for template, context in chat_snippets.snippets():
        score.compare("snippet", template, context)
    for template, line, code in chat_snippets.REFUSED:
        score.refuse(template, line, code)
    start, i = time.monotonic(), 0
    while i < a.random if a.seconds is None else time.monotonic() - start < a.seconds:
        template, context = chat_random.make(a.seed * 1000003 + i)
        score.compare(f"random {a.seed}/{i}", template, context, refused_is_fine=True)
        i += 1
    score.binary.close()
    print(f"{score.errors} of them errors on both sides, {score.skipped} skipped (addresses, or refused here)")
    print(f"{score.passed} passed, {score.failed} failed")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
