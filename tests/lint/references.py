"""Comments and pages name only files of the repository: every NAME.c, .h, .cu, .lua, .md or .py that they mention
exists, by its path, the end of its path, or its name alone; so does every path that begins with a folder of the
repository. Names in capitals (FILE.lua) are placeholders, and in pages a bare NAME.lua is a file of the reader's."""

import io
import re
import sys
import tokenize

sys.path.insert(0, "tests/lint")
from source import SKIP, Rules, everything, exceptions, read

MENTION = re.compile(
    r"(?<![\w./~$<>{}*-])((?:\.{0,2}/)?[A-Za-z_][\w/+-]*\.(?:c|cc|h|cu|cuh|lua|md|py))(?![\w(/[-]|\.\w)"
)
PLACE = re.compile(
    r"(?<![\w./~$<>{}*-])(?:\./)?((?:docs|engine|kernels|lua|models|policies|tests)/[\w./+-]*[\w/])(?![\w*<{(?\[])"
)
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(//[^\n]*|/\*.*?\*/)', re.S)
LUA_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(--\[\[.*?\]\]|--[^\n]*)', re.S)
PLACEHOLDER = re.compile(r"[A-Z]{2,}(_spec)?(\.|$)")
HASH_COMMENT = re.compile(r"(?m)(?:^|\s)#(.*)$")
READ = (".c", ".cc", ".h", ".cu", ".cuh", ".lua", ".md", ".py", ".sh", ".cmake", "CMakeLists.txt")
C_ENDINGS = (".c", ".cc", ".h", ".cu", ".cuh")


def python_comments(text):
    """Comments, and strings that are statements of their own (docstrings)."""
    begins = True
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type == tokenize.COMMENT or (t.type == tokenize.STRING and begins):
            yield t.start[0], t.string
        if t.type not in (tokenize.COMMENT, tokenize.NL):
            begins = t.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def comments(path, text):
    """(line, text) of everything in a file that is written for people."""
    if path.endswith(".md"):
        yield 1, text
    elif path.endswith(".py"):
        yield from python_comments(text)
    elif path.endswith(C_ENDINGS + (".lua",)):
        for m in (LUA_COMMENT if path.endswith(".lua") else C_COMMENT).finditer(text):
            if m.group(1):
                yield text.count("\n", 0, m.start()) + 1, m.group(1)
    else:
        for m in HASH_COMMENT.finditer(text):
            yield text.count("\n", 0, m.start(1)) + 1, m.group(1)


def is_read(path):
    if SKIP.intersection(path.split("/")):
        return False
    return path.endswith(READ) or path in ("run", "test", ".ci/run")


def known_names(paths):
    """Every end of a path, and the headers of libraries that the sources include."""
    known = set()
    for path in paths:
        parts = path.split("/")
        known.update("/".join(parts[i:]) for i in range(len(parts)))
        known.update("/".join(parts[:i]) for i in range(1, len(parts)))
        if path.endswith(C_ENDINGS):
            known.update(re.findall(r"#\s*include\s*<([^>]+)>", read(path)))
    return known


def dangling(paths):
    known = known_names(paths)
    elsewhere = exceptions("reference")
    used = set()
    for path in paths:
        if not is_read(path):
            continue
        for first, comment in comments(path, read(path)):
            for m in [*MENTION.finditer(comment), *PLACE.finditer(comment)]:
                name = re.sub(r"^(\.{1,2}/)+", "", m.group(1)).rstrip("/")
                if name in known or PLACEHOLDER.match(name.rsplit("/", 1)[-1]):
                    continue
                if path.endswith(".md") and name.endswith(".lua") and "/" not in name:
                    continue
                excepted = [e for e in elsewhere if name == e or name.startswith(e + "/")]
                if excepted:
                    used.update(excepted)
                    continue
                line = first + comment.count("\n", 0, m.start())
                yield f"{path}:{line}: {m.group(1)} is not in the repository"
    for name in sorted(set(elsewhere) - used):
        yield f"tests/lint/exceptions: {name}: nothing mentions it any more"


rules = Rules()
rules.check("files that comments and pages mention exist", dangling(list(everything())))
rules.close()
