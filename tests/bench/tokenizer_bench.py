#!/usr/bin/env python3
"""Tokeniser speed beside the `tokenizers` library: the same file, the same vocabulary, one thread each, alternating in
one run.

    python tests/bench/tokenizer_bench.py --binary build/tests/tokenizer_ids --model FILE.gguf TEXT...
                                          [--kind smollm] [--seconds 2]

Prints MiB/s of both (their fastest pass) and the ratio, after it has checked that the ids are equal. The library gets
pieces of 64 KiB cut at line ends, where it is fastest; ours gets the text whole.
"""

import argparse
import os
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "oracle"))
import tokenizer_oracle

PIECE = 64 << 10


def pieces(text):
    out, at = [], 0
    while at < len(text):
        end = text.rfind("\n", at, at + PIECE) + 1
        end = end if end > at else at + PIECE
        out.append(text[at:end])
        at = end
    return out


def library_seconds(lib, parts, seconds):
    best, begin = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for part in parts:
            lib.encode(part, add_special_tokens=False)
        best = min(best, time.perf_counter() - start)
    return best


def measure(args, lib, path):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    whole = lib.encode(text[:PIECE], add_special_tokens=False).ids
    if tokenizer_oracle.encode(args.binary, args.model, [text[:PIECE].encode()])[0] != whole:
        sys.exit(f"{path}: the ids differ")
    ours = theirs = float("inf")
    parts = pieces(text)
    for _ in range(3):
        out = subprocess.check_output([args.binary, args.model, "time", path, str(args.seconds / 3)])
        ours = min(ours, float(out.split()[2]))
        theirs = min(theirs, library_seconds(lib, parts, args.seconds / 3))
    mib = len(text.encode()) / 2**20
    print(
        f"{os.path.basename(path):<24} {mib:7.2f} MiB   moonshift {mib / ours:7.1f} MiB/s   "
        f"tokenizers {mib / theirs:7.2f} MiB/s   "
        f"{theirs / ours:6.1f} times",
        flush=True,
    )


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", required=True)
    args.add_argument("--model", required=True)
    args.add_argument("--kind", help="pre-tokenizer; as the file says by default")
    args.add_argument("--seconds", type=float, default=2)
    args.add_argument("texts", nargs="+")
    args = args.parse_args()
    fields = tokenizer_oracle.fields(args.model)
    if fields["tokenizer.ggml.model"] == "llama":
        lib = tokenizer_oracle.library_sentencepiece(fields)
    else:
        kind = args.kind or fields.get("tokenizer.ggml.pre", "default")
        lib = tokenizer_oracle.library_bpe(fields, tokenizer_oracle.kinds()[kind])
    lib.encode_special_tokens = True
    for path in args.texts:
        measure(args, lib, path)


if __name__ == "__main__":
    main()
