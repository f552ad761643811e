"""What the files say: headers open with a paragraph, nothing is left for later, nothing names a machine or a
registry."""

import re
import subprocess
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, everything, files, read

EVERYTHING = files(
    ".c",
    ".h",
    ".cu",
    ".lua",
    ".py",
    ".sh",
    ".md",
    ".txt",
    top=("docs", "engine", "kernels", "lua", "models", "policies", "tests"),
)
TOP = ["README.md", "CMakeLists.txt", "CMakePresets.json", "run", "test", ".ci/run"]
SELF = "tests/lint/text.py"


def opening(path):
    m = re.match(r"\s*/\*(.*?)\*/", read(path), re.S)
    return re.sub(r"\s+\*?\s*", " ", m.group(1)).strip() if m else ""


def header_paragraphs():
    for path in files(".h"):
        if len(opening(path)) < 60:
            yield f"{path}: opens with no paragraph (what it is, who owns it, which thread, its invariant)"


def invariants():
    """An invariant is a positive sentence after the word Invariant, what holds and not what does not."""
    for path in files(".h"):
        text = opening(path)
        if re.search(r"\b(Never|Always) true\b", text):
            yield f'{path}: says what is never true: say what holds, as "Invariant: ..."'


def guards():
    for path in files(".h"):
        text = read(path)
        if "_body.h" in path:
            continue  # included several times on purpose
        m = re.search(r"#ifndef (\w+)\n#define (\w+)\n", text)
        if not m or m.group(1) != m.group(2):
            yield f"{path}: no include guard"


def matches(pattern, paths, flags=0):
    for path in paths:
        if path == SELF:
            continue
        for n, line in enumerate(read(path).split("\n"), 1):
            if re.search(pattern, line, flags):
                yield f"{path}:{n}: {line.strip()[:100]}"


def shell():
    for path in files(".sh", top=("models", "tests")) + ["run", "test", ".ci/run"]:
        r = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
        if r.returncode:
            yield f"{path}: {r.stderr.strip()}"


def beside():
    """What lies beside the repository is nobody else's: tests/data or a package has what the tests need."""
    for path in everything():
        for n, line in enumerate(open(path, "rb"), 1):
            if re.search(rb"\.\./shared\b", line) and path != SELF:
                yield f"{path}:{n}: {line.strip()[:100].decode(errors='replace')}"


def umbrella():
    for path in files(".h"):
        text = re.sub(r"/\*.*?\*/", "", read(path), flags=re.S)
        rest = [
            s for s in text.split("\n") if s.strip() and not re.match(r"#\s*(include|ifndef|endif|define \w+_H$)", s)
        ]
        if not rest:
            yield f"{path}: holds nothing but includes"


rules = Rules()
rules.check("headers open with a paragraph", header_paragraphs())
rules.check("invariants are positive sentences", invariants())
rules.check("headers have guards", guards())
rules.check("no umbrella headers", umbrella())
rules.check("nothing left for later", matches(r"\b(TODO|FIXME|XXX|HACK|TBD)\b", EVERYTHING + TOP))
rules.check("no path of one machine", matches(r"(?<![\w.])/(home|root|Users|work|mnt|opt)/", EVERYTHING + TOP))
PRODUCT = [f for f in EVERYTHING if not f.startswith("tests/")] + TOP
rules.check("no file from beside the repository", beside())
rules.check("no host", matches(r"https?://(?!127\.0\.0\.1)[A-Za-z0-9-]+\.[A-Za-z0-9]", PRODUCT))
rules.check("no registry", matches(r"pythonhosted|pypi\.org|debian\.org|huggingface\.co", EVERYTHING + TOP))
rules.check("shell scripts parse", shell())
rules.close()
