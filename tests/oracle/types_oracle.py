"""What the types of a GGUF file stand for, by dtype_to_f32 and by the gguf package: blocks of random bytes, whose
scales are numbers, widened by both: the same bits.

    python tests/oracle/types_oracle.py --binary build/tests/widen_rows [--blocks N]

Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import argparse
import subprocess
import sys

import gguf
import numpy as np

HALVES = {  # where a block has f16
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}


def random_blocks(rng, size, halves, n):
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.normal(0, 1, n).astype(np.float16).view(np.uint8).reshape(n, 2)
    return blocks


def widened(binary, name, blocks):
    out = subprocess.run([binary, name], input=blocks.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, np.float32).reshape(len(blocks), -1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--blocks", type=int, default=2000)
    o = p.parse_args()
    rng, failed = np.random.default_rng(1), 0
    for name, halves in HALVES.items():
        form = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(rng, gguf.GGML_QUANT_SIZES[form][1], halves, o.blocks)
        ours, theirs = widened(o.binary, name, blocks), gguf.quants.dequantize(blocks, form)
        ok = np.array_equal(ours, theirs)
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {o.blocks} blocks")
    print(f"{len(HALVES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
