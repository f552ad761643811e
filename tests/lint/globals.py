"""No mutable globals: what the compiler put into writable sections of the product's objects, against a named list."""

import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, exceptions

BUILD = os.environ.get("MOONSHIFT_BUILD", "build")


def objects():
    for where, _, names in os.walk(os.path.join(BUILD, "CMakeFiles")):
        for name in names:
            if name.endswith(".c.o"):
                yield os.path.join(where, name)


def source_of(path):
    return path.split(".dir/", 1)[1][: -len(".o")]


def writable(path):
    """Names of the objects (not sections) in writable, not relocation-read-only sections."""
    table = subprocess.run(["objdump", "-t", path], capture_output=True, text=True, check=True).stdout
    for line in table.split("\n"):
        m = re.match(r"\S+ (.{7}) (\S+)\s+\S+\s+(\S+)$", line)
        if m and "O" in m.group(1) and re.match(r"(\.data|\.bss|\.tdata|\.tbss|\*COM\*)", m.group(2)):
            if not m.group(2).startswith(".data.rel.ro"):
                yield re.sub(r"\.\d+$", "", m.group(3))


def globals_found():
    excepted = exceptions("global")
    for path in objects():
        source = source_of(path)
        if os.path.exists(source):  # an object of a file that is gone says nothing
            for name in writable(path):
                if f"{source}:{name}" not in excepted:
                    yield f"{source}: {name} is a mutable global"


def enough():
    n = sum(1 for _ in objects())
    if n < 20:
        yield f"{n} objects in {BUILD}: nothing was checked"


rules = Rules()
rules.check("objects are found", enough())
rules.check("no mutable globals", globals_found())
rules.close()
