"""Warnings are errors where we build (presets, CI) and nowhere else: what cmake writes for a plain user and for each
preset."""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/lint")
from source import Rules, read

# One with a toolchain of its own needs what only its stage installs (./test arm).
PRESETS = [p["name"] for p in json.loads(read("CMakePresets.json"))["configurePresets"] if "toolchainFile" not in p]


def commands(*flags):
    """The compile commands of the product, as a configuration with these flags has them."""
    with tempfile.TemporaryDirectory() as folder:
        r = subprocess.run(
            ["cmake", "-B", folder, "-DMOONSHIFT_TESTS=OFF", "-DMOONSHIFT_CUDA=off", *flags],
            capture_output=True,
            text=True,
        )
        if r.returncode:
            sys.exit(r.stdout + r.stderr)
        return [c["command"] for c in json.loads(read(os.path.join(folder, "compile_commands.json")))]


def complaints(name, flags, strict):
    found = commands(*flags)
    if not found:
        yield f"{name}: compiles nothing"
    for c in found:
        if "-Wall" not in c or "-Wextra" not in c or ("-Werror" in c) != strict:
            yield f"{name}: {c}"


rules = Rules()
for kind in ("Debug", "Release", "RelWithDebInfo"):
    rules.check(f"a plain {kind} never fails on a warning", complaints(kind, [f"-DCMAKE_BUILD_TYPE={kind}"], False))
for preset in PRESETS:
    rules.check(f"the preset {preset} fails on any", complaints(preset, ["--preset", preset], True))
rules.close()
