"""Decoders for embeddings against float64 (decoder_reference.py): vectors of random packings, and the ids of texts.

    python tests/oracle/decoder_oracle.py --binary build/tests/encode_vectors --ids build/tests/tokenizer_ids

Small random models of every form are made here: the families, each pooling, grouped heads, a sliding window, files with
and without a head or "model." in their names, in half precision, GGUF files, also quantised ones (against the values
that these stand for). A cosine must be 0.9999 or more, a length as close. Ids must be those of the `tokenizers`
library. Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, os.path.dirname(__file__))
from decoder_reference import END, Decoder, make, write_gguf
from encode_oracle import Ours, Tally, compare

FORMS = {
    "last": {},
    "mean": {"pooling": "mean", "normalise": False},
    "first": {"pooling": "cls", "layers": 1},
    "base class": {"arch": "Qwen3Model"},
    "head": {"prefix": "model.", "head": True},
    "half": {"dtype": np.float16, "prefix": "model."},
    "mistral": {"arch": "MistralModel", "kv_heads": 1, "more": {"rope_theta": 1e4}},
    "window": {"arch": "MistralForCausalLM", "pooling": "mean", "prefix": "model.", "more": {"sliding_window": 24}},
    "qwen2": {"arch": "Qwen2Model", "hidden": 96, "heads": 6, "kv_heads": 3, "ffn": 160},
    "llama": {"arch": "LlamaForCausalLM", "prefix": "model.", "heads": 4, "kv_heads": 4},
    "wide heads": {"hidden": 64, "dim": 48, "heads": 3, "kv_heads": 3},
    "long": {"positions": 1400, "layers": 2, "pooling": "mean"},
}
QUANTISED = {"Q8_0": {}, "BF16": {"arch": "MistralModel"}}
TEXTS = ["", "hello", "hello world", "Hello, w\u00f3rld!", "he\u0301llo\n\n  x", "\u65e5\u672c\u8a9e 42", "a" * 40]


def lengths_of(rng, positions):
    own = [1, 2, 15, 16, 17, 33, 64, min(positions, 200), positions]
    return own + ([511, 1025] if positions > 1025 else []) + [rng.randint(1, 90) for _ in range(14)]


def rounded(folder, kind):
    """The folder's matrices become what a GGUF file of this kind stands for."""
    from safetensors.numpy import load_file, save_file

    path, form = os.path.join(folder, "model.safetensors"), gguf.GGMLQuantizationType[kind]
    t = load_file(path)
    for name, value in t.items():
        if value.ndim == 2:
            t[name] = gguf.quants.dequantize(gguf.quants.quantize(value, form), form).astype(np.float32)
    save_file(t, path)


def one_form(binary, site, seed, form, kind, tally):
    vocab = make(site, seed, **form)
    rng = random.Random(seed)
    path = os.path.join(site, "model.gguf")
    files = [site]
    if form.get("dtype") is None:
        write_gguf(site, path, kind)
        files.append(path)
    if kind:  # q and k are rounded before their rows change places: the same values
        rounded(site, kind)
        files = [path]
    positions = form.get("positions", 200)
    seqs = [([rng.randrange(vocab) for _ in range(n)], n) for n in lengths_of(rng, positions)]
    for file in files:
        ref = Decoder(site, normalise=True if file == path else None)
        wants = [ref(*s) for s in seqs]
        ours = Ours(binary, file, 1 + seed % 3, 12 * positions)
        compare(os.path.basename(site) + (", GGUF" if file == path else ""), ref, ours, seqs, wants, rng, tally)
        ours.close()


def same_ids(ids, site, tally):
    """Texts with the token that ends them, by the folder and by the GGUF file, against the library."""
    lib = Tokenizer.from_file(os.path.join(site, "tokenizer.json"))
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in TEXTS)
    for path in (site, os.path.join(site, "model.gguf")):
        lines = subprocess.run([ids, path, "bos"], input=data, capture_output=True, check=True).stdout.splitlines()
        for text, got in zip(TEXTS, lines, strict=True):
            want = lib.encode(text).ids
            if [int(i) for i in got.split()] == want and want[-1] == lib.token_to_id(END):
                tally.passed += 1
            else:
                tally.failed += 1
                print(f"FAILED ids of {text!r}: {got}, not {want}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", required=True, help="the helper program encode_vectors")
    args.add_argument("--ids", required=True, help="the helper program tokenizer_ids")
    args = args.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        forms = [(n, f, None) for n, f in FORMS.items()] + [(k, f, k) for k, f in QUANTISED.items()]
        for seed, (name, form, kind) in enumerate(forms):
            site, failed = os.path.join(folder, name.replace(" ", "_")), tally.failed
            tally.worst = 0.0
            one_form(args.binary, site, seed, form, kind, tally)
            if name == "last":
                same_ids(args.ids, site, tally)
            print(f"{name}: {'equal' if tally.failed == failed else 'differs'}, worst {tally.worst:.1e}", flush=True)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
