"""The tokenizer against its truths: the expected ids of tests/data/vocab.tar.xz, and the `tokenizers` library, built
from the same vocabulary files with the pre-tokenizers and normalizers that the models publish.

    python tests/oracle/tokenizer_oracle.py --binary build/tests/tokenizer_ids [--strings 10000] [--only qwen2,...]

Prints `N passed, N failed`; exit status 1 when anything failed. A vocabulary without a file of its own (Llama 3,
Mistral Nemo, ...) is made by writing another file's vocabulary under its pre-tokenizer's name: the words are cut as
that model cuts them, and both sides merge them by the same list.
"""

import argparse
import functools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

sys.path.insert(0, os.path.dirname(__file__))
import gguf_fields
from tokenizer_tables import CASED

VOCABS = "build/tests/data/vocab"  # the build unpacks it
DEMO = "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def o200k(numbers, suffix):
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}{UPPER}*{LOWER}+{suffix}|{start}{UPPER}+{LOWER}*{suffix}|{numbers}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def digits(individual):
    return pre_tokenizers.Digits(individual_digits=individual)


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def kinds():
    """name -> (pre-tokenizers in order, normalizer, ignore_merges)"""
    gpt2 = [byte_level(True)]
    by_digit = [digits(True), byte_level(True)]
    plain = byte_level(False)
    nfc = normalizers.NFC()
    return {
        "gpt-2": (gpt2, None, False),
        "default": (gpt2, None, False),
        "mpt": (gpt2, nfc, False),
        "smollm": (by_digit, None, False),
        "starcoder": (by_digit, None, False),
        "refact": (by_digit, None, False),
        "command-r": (by_digit, nfc, False),
        "llama-bpe": ([split(CL100K % "{1,3}"), plain], None, True),
        "qwen2": ([split(CL100K % ""), plain], nfc, False),
        "qwen35": ([split(QWEN35), plain], nfc, False),
        "falcon": (
            [pre_tokenizers.Punctuation("contiguous"), byte_level(True), digits(False), split("[0-9][0-9][0-9]")],
            None,
            False,
        ),
        "deepseek-llm": (
            [
                split("[\r\n]"),
                split(rf"\s?[{CASED}]+"),
                split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                split(r"\s+$"),
                split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                digits(True),
                plain,
            ],
            None,
            False,
        ),
        "deepseek-coder": (
            [
                split("[\r\n]"),
                split(r"\s?\p{L}+"),
                split(r"\s?\p{P}+"),
                split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                digits(True),
                plain,
            ],
            None,
            False,
        ),
        "deepseek-v3": (
            [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3), plain],
            None,
            False,
        ),
        "gpt-4o": ([split(o200k(r"\p{N}{1,3}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?")), plain], None, False),
        "tekken": ([split(o200k(r"\p{N}", "")), plain], None, True),
    }


# ---- the library's tokenizer from a vocabulary file ----


@functools.cache
def fields(path):
    return gguf_fields.fields(path)


def add_tokens(tok, f):
    tokens, types = f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"]
    special = [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k in (2, 3)]
    user = [AddedToken(t, special=False, normalized=False) for t, k in zip(tokens, types) if k == 4]
    tok.add_special_tokens(special)
    tok.add_tokens(user)


def library_bpe(f, kind):
    pres, norm, ignore = kind
    vocab = {t: i for i, t in enumerate(f["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ", 1)) for m in f["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore))
    tok.pre_tokenizer = pre_tokenizers.Sequence(pres)
    if norm:
        tok.normalizer = norm
    tok.decoder = decoders.ByteLevel()
    add_tokens(tok, f)
    return tok


def merges_of_scores(tokens, types, scores):
    """As the conversion of SentencePiece models does it: every way to cut a piece into two pieces, best score first."""
    vocab = {t: i for i, (t, k) in enumerate(zip(tokens, types)) if k == 1}
    merges = []
    for piece, i in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append((left, right, scores[i]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(a, b) for a, b, _ in merges]


def library_sentencepiece(f):
    tokens, types = f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = merges_of_scores(tokens, types, f["tokenizer.ggml.scores"])
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Replace(" ", "\u2581")]
    if f.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
    tok.normalizer = normalizers.Sequence(steps)
    tok.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    add_tokens(tok, f)
    return tok


def renamed(path, name, folder):
    """A copy of a vocabulary file under another pre-tokenizer's name."""
    f = fields(path)
    out = os.path.join(folder, name + ".gguf")
    w = gguf.GGUFWriter(out, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(name)
    w.add_token_list(f["tokenizer.ggml.tokens"])
    w.add_token_types(f["tokenizer.ggml.token_type"])
    w.add_token_merges(f["tokenizer.ggml.merges"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    return out


# ---- texts ----

POOLS = [
    (0x20, 0x7F),
    (0x20, 0x7F),
    (0x41, 0x5B),
    (0x61, 0x7B),
    (0x30, 0x3A),
    (0xA0, 0x250),
    (0x300, 0x370),
    (0x370, 0x530),
    (0x590, 0x700),
    (0x900, 0xE00),
    (0xE00, 0x1000),
    (0x1100, 0x1200),
    (0x13A0, 0x1400),
    (0x1780, 0x1800),
    (0x1E00, 0x2000),
    (0x2000, 0x2070),
    (0x2070, 0x2190),
    (0x2460, 0x2500),
    (0x2600, 0x27C0),
    (0x3000, 0x3100),
    (0x4E00, 0xA000),
    (0xAC00, 0xD7A4),
    (0xF900, 0xFB00),
    (0xFE00, 0x10000),
    (0x10000, 0x11000),
    (0x11000, 0x12000),
    (0x1D400, 0x1D800),
    (0x1F300, 0x1FA00),
    (0x20000, 0x2FA20),
    (0x30000, 0x32400),
    (0xE0000, 0xE0200),
    (0, 0x110000),
]
BITS = [
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\n\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u0085",
    "\u180e",
    "\u200b",
    "\u200d",
    "'s",
    "'S",
    "'ll",
    "'LL",
    "'Re",
    "'\u017f",
    "'ve",
    "'d ",
    "''",
    "'",
    "123",
    "1234567",
    "\u00b2\u00b3",
    "\u0663\u0664",
    "\u2167",
    "\u00bd",
    "e\u0301",
    "\u0301",
    "\u0323\u0307",
    "\u1100\u1161\u11a8",
    "\u212b",
    "\u0958",
    "\U0001f468\u200d\U0001f469",
    "\ufeff",
    "\ufffd",
    "hello",
    " world",
    "The",
    " the",
    "HTTP",
    "foo_bar",
    "camelCase",
    "::",
    "->",
    "!=",
    "...",
    "----",
    "====",
    "{}",
    "();",
    "//",
    "/*",
    "<|im_start|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<|",
    "|>",
    "[PAD151646]",
    "<0x0A>",
    "\u2581",
    "\u2581\u2581",
    "\u6211\u60f3",
    "\u3053\u3093",
    "\u0baa\u0bc1",
    "\u0e01\u0e33",
    "\x00",
    "\x7f",
    "\x1b[0m",
    "I'm",
    "you're",
    "don't",
    "aaaaaaaa",
    "\u00e9\u00f2",
    "\u0e33",
]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 3.14159 and 1,000,000 more.",
    "def main(argv):\n    for i in range(10):\n\tprint(f\"{i:>8}\", end='')\n\n\n    return 0  # done\r\n",
    "Zażółć gęślą jaźń. Съешь ещё этих мягких французских булок. \u0391\u03bb\u03c6\u03b1 \u03b2\u03ae\u03c4\u03b1.",
    "日本語のテキスト、漢字とかな。한국어 문장도 있습니다. 中文文本，包括标点符号！",
    "हिन्दी में कुछ शब्द और ไทยไม่มีช่องว่าง, العربية و עברית.",
]


def character(rng):
    while True:
        lo, hi = rng.choice(POOLS)
        c = rng.randrange(lo, hi)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def text(rng):
    how = rng.randrange(6)
    n = rng.choice((1, 2, 3, 5, 8, 13, 30, 60))
    if how == 0:
        return "".join(character(rng) for _ in range(n))
    if how == 1:
        return "".join(rng.choice(BITS) for _ in range(n))
    if how == 2:
        return "".join(rng.choice((rng.choice(BITS), character(rng))) for _ in range(n))
    if how == 3:
        s = list(rng.choice(SENTENCES))
        for _ in range(rng.randrange(6)):
            s[rng.randrange(len(s))] = rng.choice((character(rng), rng.choice(BITS), ""))
        return "".join(s)
    if how == 4:
        return rng.choice((character(rng), rng.choice(BITS))) * rng.choice((n, n * 7))
    lo, hi = rng.choice(POOLS)
    return "".join(
        rng.choice((chr(rng.randrange(lo, hi)) if not lo <= 0xD800 < hi else "x", " ", character(rng)))
        for _ in range(n)
    )


# ---- comparing ----


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, detail, got, want):
        if got == want:
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= 40:
            print(f"FAILED {what}: {detail!r}\n  got  {got}\n  want {want}")


def encode(binary, path, texts, mode="ids"):
    data = b"".join(struct.pack("<I", len(b)) + b for b in texts)
    run = subprocess.run([binary, path, mode], input=data, capture_output=True, check=False)
    if run.returncode:
        sys.exit(f"{binary} {path}: {run.stderr.decode()}")
    lines = run.stdout.decode().split("\n")[:-1]
    return [[int(i) for i in line.split()] if not line.startswith("error") else line for line in lines]


def decode(binary, path, lists):
    data = b"".join(struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in lists)
    out = subprocess.run([binary, path, "text"], input=data, capture_output=True, check=True).stdout
    texts, at = [], 0
    while at < len(out):
        n = struct.unpack_from("<I", out, at)[0]
        texts.append(out[at + 4 : at + 4 + n])
        at += 4 + n
    return texts


def check_expected(binary, tally):
    found = 0
    for name in sorted(os.listdir(VOCABS)) if os.path.isdir(VOCABS) else []:
        path = os.path.join(VOCABS, name)
        if not name.endswith(".gguf"):
            continue
        found += 1
        with open(path + ".inp", encoding="utf-8", newline="") as f:
            texts = f.read().split("\n__ggml_vocab_test__\n")
        with open(path + ".out", encoding="utf-8") as f:
            want = [[int(i) for i in line.split()] for line in f.read().split("\n")]
        texts = texts[:-1] if texts[-1] == "" else texts
        for t, got, ids in zip(texts, encode(binary, path, [t.encode() for t in texts]), want):
            tally.check(f"expected ids of {name}", t, got, ids)
    if not found:
        print(f"no vocabularies in {VOCABS}: expected ids not checked")
        tally.failed += 1


def check_against(binary, name, path, lib, strings, tally):
    rng = random.Random(f"moonshift {name}")
    texts = [text(rng) for _ in range(strings)]
    raw = [t.encode() for t in texts]
    for mode, specials_as_text in (("ids", True), ("special", False)):
        lib.encode_special_tokens = specials_as_text
        want = [x.ids for x in lib.encode_batch(texts, add_special_tokens=False)]
        got = encode(binary, path, raw, mode)
        for t, g, w in zip(texts, got, want):
            tally.check(f"{name} {mode}", t, g, w)
    check_texts(binary, name, path, lib, want, tally)


# ---- folders with a tokenizer.json, as the library itself writes it ----

IN_FOLDERS = {
    "gpt-2",
    "mpt",
    "smollm",
    "command-r",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "deepseek-v3",
    "gpt-4o",
    "tekken",
    "phi-3",
}


def template(lib, bos, eos):
    """<bos> text <eos>, either or none"""
    around = {t: lib.token_to_id(t) for t in (bos, eos) if t}
    single = (f"{bos} " if bos else "") + "$A" + (f" {eos}" if eos else "")
    return processors.TemplateProcessing(single=single, special_tokens=list(around.items()))


def metaspace(lib, scheme):
    """The same vocabulary with the newer way to spell spaces."""
    lib = Tokenizer.from_str(lib.to_str())
    lib.normalizer = None
    lib.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=False)
    return lib


def variants(name, lib, path):
    """(what, the library's tokenizer, its tokenizer_config.json)"""
    types, tokens = fields(path)["tokenizer.ggml.token_type"], fields(path)["tokenizer.ggml.tokens"]
    special = [t for t, k in zip(tokens, types) if k == 3]
    yield name, lib, None
    if len(special) > 1 and name in ("smollm", "phi-3"):
        both = Tokenizer.from_str(lib.to_str())
        both.post_processor = processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), template(lib, special[0], special[1])]
        )
        yield name + ", both ends", both, {"bos_token": special[0], "eos_token": {"content": special[1]}}
    if name == "phi-3":
        for scheme in ("always", "first", "never"):
            yield f"{name}, {scheme}", metaspace(lib, scheme), None


def check_folder(binary, what, lib, config, strings, folder, tally):
    site = tempfile.mkdtemp(dir=folder)
    lib.save(os.path.join(site, "tokenizer.json"), pretty=False)
    if config:
        with open(os.path.join(site, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
    rng = random.Random(f"folder {what}")
    texts = [text(rng) for _ in range(strings)]
    lib.encode_special_tokens = False
    want = [x.ids for x in lib.encode_batch(texts, add_special_tokens=True)]
    for t, g, w in zip(texts, encode(binary, site, [t.encode() for t in texts], "bos"), want):
        tally.check(f"folder of {what}", t, g, w)


def check_texts(binary, name, path, lib, lists, tally):
    """Text of the ids. User-defined tokens stand for their spelling here; the library sends it through the byte
    alphabet."""
    types = fields(path)["tokenizer.ggml.token_type"]
    lists = [ids for ids in lists if all(types[i] != 4 for i in ids)]
    want = lib.decode_batch(lists, skip_special_tokens=False)
    for ids, g, w in zip(lists, decode(binary, path, lists), want):
        if any(types[i] == 6 for i in ids) and "\ufffd" in w:
            continue  # the library turns a whole run of byte tokens bad when one byte is
        tally.check(f"{name} text", ids, g.decode("utf-8", "strict"), w)


def sources(folder, only):
    """(name, vocabulary file, the library's tokenizer)"""
    own = {
        "gpt-2": "gpt-2",
        "qwen2": "qwen2",
        "falcon": "falcon",
        "starcoder": "starcoder",
        "deepseek-llm": "deepseek-llm",
    }
    lent = {
        "deepseek-coder": "deepseek-llm",
        "deepseek-v3": "deepseek-llm",
        "default": "gpt-2",
        "mpt": "gpt-2",
        "refact": "starcoder",
        "command-r": "starcoder",
        "smollm": "starcoder",
    }
    for name, kind in kinds().items():
        if only and name not in only:
            continue
        path = os.path.join(VOCABS, f"ggml-vocab-{own.get(name) or lent.get(name, 'gpt-2')}.gguf")
        if name == "smollm" and os.path.exists(DEMO):
            path = DEMO
        elif name not in own:
            path = renamed(path, name, folder)
        yield name, path, library_bpe(fields(path), kind)
    if not only or "phi-3" in only:
        path = os.path.join(VOCABS, "ggml-vocab-phi-3.gguf")
        yield "phi-3", path, library_sentencepiece(fields(path))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", required=True, help="the helper program tokenizer_ids")
    args.add_argument("--strings", type=int, default=10000)
    args.add_argument("--only", default="", help="names of pre-tokenizers, with commas between")
    args = args.parse_args()
    only = set(filter(None, args.only.split(",")))
    tally = Tally()
    check_expected(args.binary, tally)
    with tempfile.TemporaryDirectory() as folder:
        for name, path, lib in sources(folder, only):
            before = tally.failed
            check_against(args.binary, name, path, lib, args.strings, tally)
            for what, other, config in variants(name, lib, path) if name in IN_FOLDERS else []:
                check_folder(args.binary, what, other, config, args.strings // 5, folder, tally)
            print(f"{name}: {'equal' if tally.failed == before else f'{tally.failed - before} differ'}", flush=True)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
