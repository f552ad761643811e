#!/usr/bin/env python3
"""A server on GPUs (over the emulator) tries the ways of its products at start, keeps what was fastest, and knows it at
the next start; --gpu-tuning off and --invariant try nothing."""

import os
import re
import sys
import tempfile

sys.path.insert(0, "tests/rig")
sys.path.insert(0, "tests/oracle")
import cases
from own_server import Site

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "tests/moonshift_emulated")
SERVE = ["--device", "cuda", "--load-format", "dummy", "--hf-config", "tests/data/layout_gqa.json"]
SERVE += ["--dummy-dtype", "q8_0", "--max-model-len", "64", "--kv-cache-memory-bytes", "4MiB", "--max-num-seqs", "4"]
SERVE += ["--max-num-batched-tokens", "16"]  # up to 8 rows nothing is tried


def products(*flags):
    """What a start says of its products: (shapes, known by a file), or None."""
    site = Site(BINARY, [*SERVE, *flags])
    site.kill()
    found = [m for m in (re.search(r"Products: of (\d+) shapes \((\d+) known", x) for x in site.lines) if m]
    assert len(found) <= 1, site.lines
    return found and tuple(map(int, found[0].groups()))


def kept(folder):
    files = os.listdir(folder)
    assert len(files) == 1 and re.fullmatch(r"products-[0-9a-f]{16}\.txt", files[0]), files
    with open(os.path.join(folder, files[0]), encoding="utf-8") as f:
        head, *lines = f.read().splitlines()
    assert head.startswith("# moonshift products 1; emulated GPU"), head
    return lines


def what_one_start_tried_the_next_one_knows():
    with tempfile.TemporaryDirectory() as home:
        folder = os.path.join(home, "a", "b")
        shapes, known = products("--gpu-tuning", folder)
        assert shapes > 0 and known == 0
        lines = kept(folder)
        assert len(lines) == shapes
        more, known = products("--gpu-tuning", folder)  # what there was no time for (five seconds) is tried now
        assert known == shapes <= more and kept(folder)[:shapes] == lines


def off_tries_nothing():
    assert not products("--gpu-tuning", "off")
    with tempfile.TemporaryDirectory() as folder:
        assert not products("--gpu-tuning", folder, "--invariant")
        assert not os.listdir(folder)


cases.run([what_one_start_tried_the_next_one_knows, off_tries_nothing])
