"""Formatting is nobody's opinion: clang-format and ruff would change nothing. And what ruff and shellcheck find stands
in no file. Which of their rules are off, and why: .ruff.toml; SHELL below. With --fix it formats instead of
complaining."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/lint")
from source import Rules, everything, files, read
from tools import tool

GENERATED = {"models/tokenizer/unicode_table.c", "models/template/unicode_data.c"}
SHELL = {
    "SC1091": "which file is sourced depends on where it lies; tests parse each by itself",
}
FIX = "--fix" in sys.argv


def run(*words):
    r = subprocess.run(words, capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def c_files():
    return [f for f in files(".c", ".h", ".cu", ".cc") if f not in GENERATED]


def c_format():
    program, paths = tool("clang-format"), c_files()
    how = ["-i"] if FIX else ["--dry-run"]
    parts = [paths[i : i + 64] for i in range(0, len(paths), 64)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, said in pool.map(lambda part: run(program, "--style=file", *how, *part), parts):
            first = {}  # of each file
            for m in re.finditer(r"^(\S+?):(\d+):\d+: (?:warning|error): (.*)", said, re.M):
                first.setdefault(m[1], f"{m[1]}:{m[2]}: clang-format -i would change this")
            yield from first.values()


def python_format():
    rc, said = run(tool("ruff"), "format", "--no-cache", *([] if FIX else ["--check"]), ".")
    if rc:
        yield from said.strip().split("\n")


def python_lint():
    rc, said = run(tool("ruff"), "check", "--no-cache", "--output-format", "concise", ".")
    if rc:
        yield from said.strip().split("\n")


def shell_files():
    """By their first line, whatever they are called."""
    for path in everything():
        if path.endswith(".sh") or ("." not in os.path.basename(path) and not path.startswith("tests/fuzz/corpus")):
            with open(path, "rb") as f:
                if path.endswith(".sh") or re.match(rb"#!.*\b(ba)?sh\b", f.readline(80)):
                    yield path


def shell_lint():
    off = ",".join(SHELL)
    rc, said = run(tool("shellcheck"), "-f", "gcc", "-e", off, *shell_files())
    if rc:
        yield from said.strip().split("\n")


def one_version():
    """The number of CMakeLists.txt is the only one: everything else asks it, or the program."""
    version = re.search(r"project\(moonshift VERSION ([\d.]+)", read("CMakeLists.txt")).group(1)
    for path in everything():
        if path in ("CMakeLists.txt", "CHANGELOG.md") or path.startswith(
            ("tests/bench/results/", "tests/fuzz/corpus/")
        ):
            continue
        with open(path, "rb") as f:
            for n, line in enumerate(f, 1):
                if re.search(rb"(?<![\d.])" + re.escape(version).encode() + rb"(?![\d.]\d)", line):
                    yield f"{path}:{n}: says {version}, which CMakeLists.txt alone does"


rules = Rules()
rules.check("C is formatted", c_format())
rules.check("Python is formatted", python_format())
rules.check("ruff finds nothing", python_lint())
rules.check("shellcheck finds nothing", shell_lint())
rules.check("one place has the version", one_version())
rules.close()
