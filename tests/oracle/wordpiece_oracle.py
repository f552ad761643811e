"""WordPiece against the `tokenizers` library: ids of the same texts, from tokenizer.json as the library writes it and
from GGUF files spelled as llama.cpp spells them.

    python tests/oracle/wordpiece_oracle.py --binary build/tests/tokenizer_ids [--strings 2000] [--model DIR]

The vocabularies are trained here, on the repository's own pages; --model adds a folder with a tokenizer.json (the
model all-MiniLM-L6-v2 of models/fetch.sh). Every code point is asked for once, between letters. Prints `N passed, N
failed`; exit status 1 when anything failed.
"""

import argparse
import glob
import os
import random
import sys
import tempfile

import gguf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.dirname(__file__))
from tokenizer_oracle import SENTENCES, Tally, encode, text

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MORE = [
    "[CLS]",
    "[SEP][MASK]",
    "[MASK] [UNK]",
    "[cls]",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "ab" * 200,
    "\u0130stanbul \u0131\u0307 \u03a3\u03a3 \u1e9e",
    "e\x01\u0301\u0323\x02x",
    "\x01\u0301\x02\u0323e",
    "\u4e2d\u0301\u6587",
    "un##aff##able ## ###",
    "\ufb01 \u2126 \u212b \uf900 \u0344",
    "\u0085a\u00a0b\u2028c\u180ed\u200be\u3000f\ufefff",
    "don't stop!!! (really?) 3.14",
    "",
    " ",
]


def trained(prefix, norm, size):
    lib = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    lib.normalizer = norm
    lib.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rng = random.Random(7)
    pages = []
    for path in sorted(glob.glob("docs/*.md") + ["README.md", "CONTRIBUTING.md"]):
        with open(path, encoding="utf-8") as f:
            pages.append(f.read())
    lib.train_from_iterator(
        pages + SENTENCES * 5 + [text(rng).replace("\0", "") for _ in range(200)],
        trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=SPECIAL, continuing_subword_prefix=prefix, show_progress=False
        ),
    )
    return lib


def around(lib):
    ids = [(t, lib.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    lib.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return lib


def variants():
    """(name, the library's tokenizer)"""
    bert = normalizers.BertNormalizer
    yield "uncased", around(trained("##", bert(True, True, None, True), 3000))
    yield "cased", around(trained("##", bert(True, True, None, False), 2000))
    yield "accents kept", around(trained("##", bert(True, True, False, True), 2000))
    yield "accents stripped, cased", around(trained("##", bert(True, False, True, False), 2000))
    yield "nothing cleaned", around(trained("##", bert(False, False, False, False), 2000))
    yield "no normalizer, another prefix", around(trained("@@", None, 2000))
    lib = trained("##", bert(True, True, None, True), 1000)
    lib.post_processor = processors.BertProcessing(
        ("[SEP]", lib.token_to_id("[SEP]")), ("[CLS]", lib.token_to_id("[CLS]"))
    )
    yield "BertProcessing", lib


def write_gguf(lib, path, typed):
    """As llama.cpp converts BERT models. typed: with token types; old files have none. U+2581 itself is ambiguous in
    such files: a piece "##\u2581" reads like the beginning of a word."""
    vocab = sorted(lib.get_vocab().items(), key=lambda v: v[1])
    tokens = [t if t in SPECIAL else t[2:] if t.startswith("##") else "\u2581" + t for t, _ in vocab]
    w = gguf.GGUFWriter(path, "bert")
    w.add_tokenizer_model("bert")
    w.add_token_list(tokens)
    if typed:
        w.add_token_types([3 if t in SPECIAL else 1 for t, _ in vocab])
        w.add_unk_token_id(lib.token_to_id("[UNK]"))
        w.add_sep_token_id(lib.token_to_id("[SEP]"))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def code_points():
    out = []
    cps = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for i in range(0, len(cps), 64):
        out.append(" ".join(f"a{chr(c)}b" for c in cps[i : i + 64]))
    return out


def compare(binary, what, path, lib, texts, tally, more=()):
    """`more`: texts without special tokens, for which one mode is as good as the other."""
    for mode, add, plain in (("bos", True, False), ("ids", False, True)):
        lib.encode_special_tokens = plain
        now = [*texts, *more] if add else texts
        want = [x.ids for x in lib.encode_batch(now, add_special_tokens=add)]
        for t, g, w in zip(now, encode(binary, path, [t.encode() for t in now], mode), want):
            tally.check(f"{what} {mode}", t, g, w)
    lib.encode_special_tokens = False


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", required=True, help="the helper program tokenizer_ids")
    args.add_argument("--strings", type=int, default=2000)
    args.add_argument("--model", help="a folder with a tokenizer.json of WordPiece")
    args = args.parse_args()
    tally, every = Tally(), code_points()
    with tempfile.TemporaryDirectory() as folder:
        subjects = list(variants())
        if args.model:
            lib = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
            lib.no_truncation()
            lib.no_padding()
            subjects.append(("the model", lib))
        for name, lib in subjects:
            before = tally.failed
            rng = random.Random(f"wordpiece {name}")
            texts = [text(rng) for _ in range(args.strings)] + MORE + SENTENCES
            site = os.path.join(folder, name.replace(" ", "_"))
            os.mkdir(site)
            lib.save(os.path.join(site, "tokenizer.json"))
            compare(args.binary, name, site, lib, texts, tally, every)
            if name in ("uncased", "the model"):
                for typed in (True, False):
                    path = os.path.join(site, "vocab.gguf")
                    write_gguf(lib, path, typed)
                    some = [t for t in texts if "\u2581" not in t and (typed or "[" not in t)]
                    compare(args.binary, f"{name}, GGUF", path, lib, some, tally)
            print(f"{name}: {'equal' if tally.failed == before else f'{tally.failed - before} differ'}", flush=True)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
