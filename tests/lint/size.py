"""Functions fit on a screen, files have one subject, parameters can be counted at a glance."""

import fnmatch
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, exceptions, files, functions, read

FUNCTION_LINES, FILE_LINES, PARAMETERS, COLUMNS = 80, 640, 6, 120
TEST_LINES = 1000  # a table of cases is long and plain


def is_excepted(name, excepted):
    return any(fnmatch.fnmatch(name, pattern) for pattern in excepted)


def all_functions():
    for path in files(".c", ".h", ".cu"):
        for f in functions(read(path)):
            yield path, f


def found_any():
    n = sum(1 for _ in all_functions())
    if n < 100:
        yield f"only {n} functions were found: is the style another one than this test expects?"


def long_functions():
    excepted = exceptions("function")
    for path, f in all_functions():
        if f.lines > FUNCTION_LINES and not is_excepted(f"{path}:{f.name}", excepted):
            yield f"{path}:{f.line}: {f.name} has {f.lines} lines; {FUNCTION_LINES} are the most"


def long_files():
    excepted = exceptions("file")
    for path in files(".c", ".h", ".cu", ".py", ".lua"):
        n = read(path).count("\n")
        most = TEST_LINES if path.startswith("tests/") else FILE_LINES
        if n > most and path not in excepted:
            yield f"{path} has {n} lines; {most} are the most"


def many_parameters():
    excepted = exceptions("parameters")
    for path, f in all_functions():
        if f.params > PARAMETERS and not is_excepted(f"{path}:{f.name}", excepted):
            yield f"{path}:{f.line}: {f.name} has {f.params} parameters; {PARAMETERS} are the most (else a struct)"


def by_hand():
    """What people write, by its name: C, Lua, Python, shell and CMake."""
    kinds = (".c", ".h", ".cu", ".lua", ".py", ".sh", ".cmake", "CMakeLists.txt")
    return files(*kinds) + files(*kinds, top=("policies",)) + ["CMakeLists.txt", "run", "test", ".ci/run"]


def wide(path):
    return any(len(line) > COLUMNS for line in read(path).split("\n"))


def wide_lines():
    excepted = exceptions("width")
    for path in by_hand():
        if path in excepted:
            continue
        for n, line in enumerate(read(path).split("\n"), 1):
            if len(line) > COLUMNS:
                yield f"{path}:{n}: {len(line)} columns; {COLUMNS} are the most"


def white_space():
    for path in files(".c", ".h", ".cu", ".py", ".lua", ".sh"):
        text = read(path)
        if text and not text.endswith("\n"):
            yield f"{path}: no newline at the end"
        for n, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                yield f"{path}:{n}: blanks at the end of the line"
            if "\t" in line and path.endswith((".c", ".h", ".cu")):
                yield f"{path}:{n}: a tab"


def stale_exceptions():
    here = {f"{p}:{f.name}" for p, f in all_functions()} | set(files(".c", ".h", ".cu", ".py", ".lua"))
    for rule in ("function", "file", "parameters"):
        for name in exceptions(rule):
            if not fnmatch.filter(here, name):
                yield f"tests/lint/exceptions: {rule} {name} is no more"
    for name in exceptions("width"):
        if name not in by_hand():
            yield f"tests/lint/exceptions: width {name} is no more"
        elif not wide(name):
            yield f"tests/lint/exceptions: width {name} has no wide line"


rules = Rules()
rules.check("functions are found", found_any())
rules.check("function length", long_functions())
rules.check("file length", long_files())
rules.check("number of parameters", many_parameters())
rules.check("line width", wide_lines())
rules.check("white space", white_space())
rules.check("exceptions are in use", stale_exceptions())
rules.close()
