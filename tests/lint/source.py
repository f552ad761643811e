"""What the lint tests share: the tree's files, C without comments and strings, its functions; and how a rule
reports."""

import os
import re
import sys

FLOORS = ("engine", "kernels", "lua", "models", "tests")
SKIP = {"weights", ".venv", "__pycache__", "corpus", "results"}


def files(*endings, top=FLOORS):
    """Paths below the top folders with one of the endings, sorted."""
    found = []
    for folder in top:
        for where, folders, names in os.walk(folder):
            folders[:] = [f for f in folders if f not in SKIP]
            found += [os.path.join(where, n) for n in names if n.endswith(endings)]
    return sorted(found)


def everything():
    """Every file of the repository, whatever it is."""
    for where, folders, names in os.walk("."):
        folders[:] = [
            f for f in folders if f not in (".git", "weights", ".venv", "__pycache__") and not f.startswith("build")
        ]
        yield from (os.path.relpath(os.path.join(where, n)) for n in sorted(names))


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def bare(text):
    """C source with comments and the insides of strings blanked; every line stays where it is."""

    def blank(m):
        s = m.group()
        if s[0] in "\"'":
            return s[0] + " " * (len(s) - 2) + s[0]
        return re.sub(r"[^\n]", " ", s)

    # an include's file name looks like a string and is wanted
    return "\n".join(
        raw if raw.lstrip().startswith("#include") else line
        for raw, line in zip(text.split("\n"), _TOKEN.sub(blank, text).split("\n"))
    )


class Function:
    def __init__(self, name, line, lines, params):
        self.name, self.line, self.lines, self.params = name, line, lines, params


def functions(text):
    """The function definitions of a bare source in the house style: the body's braces stand in the first column."""
    lines = bare(text).split("\n")
    found, i = [], 0
    while i < len(lines):
        if lines[i].rstrip(" \\") != "{":
            i += 1
            continue
        first = i
        while (
            first > 0
            and lines[first - 1].strip()
            and lines[first - 1][0] not in "#}"
            and not lines[first - 1].rstrip().endswith(";")
        ):
            first -= 1
        last = i
        while last < len(lines) and lines[last].rstrip(" \\") != "}":
            last += 1
        signature = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", " ".join(lines[first:i]).replace("\\", " "))
        m = re.search(r"(\w+)\s*\((.*)\)\s*$", signature)
        if m:
            found.append(Function(m.group(1), first + 1, last - first + 1, _count(m.group(2))))
        i = last + 1
    return found


def _count(params):
    depth = commas = 0
    for c in params:
        depth += c in "([{"
        depth -= c in ")]}"
        commas += c == "," and depth == 0
    return 0 if params.strip() in ("", "void") else commas + 1


def exceptions(rule):
    """Names excepted from a rule by tests/lint/exceptions: "rule | name | why", one a line."""
    named = {}
    for line in read("tests/lint/exceptions").split("\n"):
        if line.strip() and not line.startswith("#"):
            which, name, why = (part.strip() for part in line.split("|"))
            if not why:
                sys.exit(f"tests/lint/exceptions: {name}: an exception needs a reason")
            if which == rule:
                named[name] = why
    return named


class Rules:
    """Collects rules; each is one test case, failed when it yields any complaint."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, complaints):
        complaints = list(complaints)
        if complaints:
            self.failed += 1
            print(f"{name}:")
            for c in complaints[:60]:
                print("  " + c)
            if len(complaints) > 60:
                print(f"  ... and {len(complaints) - 60} more")
        else:
            self.passed += 1

    def close(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
