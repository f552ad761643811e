"""Writes models/tokenizer/unicode_table.c: the character classes and canonical compositions that the `tokenizers`
library works with.

Tokenisation must not depend on the Unicode version of the system's PCRE2, and must equal that library's. So its own
engines are asked about every code point: Oniguruma for \\p{..} and \\s, Rust for digits and punctuation, its NFC tables
for normalisation (three different Unicode versions). The characters' combining classes come from Python where the
library orders marks the same way, and are 0 where it knows none. BERT's own classes (what its normalizer drops, what it
takes for an accent) and lower case are asked for in the same way. The chat templates have a table of their own, of
Python's answers: unicode_tables.py says why.

    python tests/oracle/tokenizer_tables.py > models/tokenizer/unicode_table.c      (rewrites the table)
    python tests/oracle/tokenizer_tables.py --check      (compares; exit status 1 when it is out of date)
"""

import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# The cased letters that the DeepSeek pre-tokenizer spells out. Escapes: many have look-alikes that normalisation turns
# them into.
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def regex_members(pattern):
    """Code points that a regular expression for one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for i in range(0, len(CPS), 4096):
        chunk = CPS[i : i + 4096]
        kept = set()
        for word, _ in split.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(word)
        found.update(c for c in chunk if chr(c) not in kept)
    return found


def isolated(pre, between):
    """Code points that a pre-tokenizer cuts out from between two ordinary characters."""
    found = set()
    for i in range(0, len(CPS), 2048):
        chunk = CPS[i : i + 2048]
        text = "".join(between + chr(c) for c in chunk) + between
        found.update(chunk[a // 2] for _, (a, b) in pre.pre_tokenize_str(text) if b - a == 1 and a % 2 == 1)
    return found


def classes():
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    composing = {
        ord(nfd.normalize_str(chr(c))[-1])
        for c in CPS
        if len(nfd.normalize_str(chr(c))) > 1 and len(nfc.normalize_str(chr(c))) == 1 and not 0xAC00 <= c < 0xD7A4
    }
    moving = {c for c in CPS if nfc.normalize_str(chr(c)) != chr(c)} | set(combining_classes(nfd)) | composing
    moving |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    letters, digits = regex_members(r"\p{L}"), regex_members(r"\p{N}")
    cased = regex_members("[" + CASED + "]")
    return [
        ("CHAR_LETTER", letters),
        ("CHAR_NUMBER", digits),
        ("CHAR_SPACE", regex_members(r"\s")),
        ("CHAR_PUNCT", regex_members(r"\p{P}")),
        ("CHAR_MARK", regex_members(r"\p{M}")),
        ("CHAR_DIGIT", isolated(pre_tokenizers.Digits(individual_digits=True), "a")),
        ("CHAR_PUNCTUATION", isolated(pre_tokenizers.Punctuation("isolated"), "a")),
        ("CHAR_CASED", cased),
        ("CHAR_MOVES", moving),
        ("CHAR_UPPER", regex_members(r"[\p{Lu}\p{Lt}]")),
        ("CHAR_LOWER", regex_members(r"\p{Ll}")),
        ("CHAR_SYMBOL", regex_members(r"\p{S}")),
        ("CHAR_CONTROL", cleaned()),
        ("CHAR_BLANK", removed(pre_tokenizers.BertPreTokenizer())),
        ("CHAR_ACCENT", {c for c in CPS if bert(strip_accents=True).normalize_str(chr(c)) == ""}),
    ]


def bert(clean_text=False, strip_accents=False):
    return normalizers.BertNormalizer(clean_text, False, strip_accents, False)


def cleaned():
    """Code points that BERT's normalizer drops from a text."""
    normal = bert(clean_text=True)
    return {c for c in CPS if normal.normalize_str(chr(c)) == ""}


def removed(pre):
    """Code points that a pre-tokenizer takes for a gap between words."""
    return {c for c in CPS if not pre.pre_tokenize_str(chr(c))}


def combining_classes(nfd):
    """The combining classes that the library's tables hold."""
    out = {}
    for c in CPS:
        k = unicodedata.combining(chr(c))
        if not k:
            continue
        low, high = "\u0334", "\u0345"  # classes 1 and 240
        s = chr(c)
        moved = (
            nfd.normalize_str("a" + s + low) == "a" + low + s
            if k > 1
            else nfd.normalize_str("a" + high + s) == "a" + s + high
        )
        if k > 1 and not moved:
            continue
        if k < 240 and nfd.normalize_str("a" + high + s) == "a" + high + s:
            continue
        out[c] = k
    return out


def transitions(value):
    """[(first code point, value)] wherever value(code point) changes."""
    out, last = [], 0
    for c in range(0x110000):
        v = value(c)
        if v != last:
            out.append((c, v))
            last = v
    return out


def rows(items, per_line):
    return "\n".join("    " + " ".join(items[i : i + per_line]) for i in range(0, len(items), per_line))


def write(out):
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    bits = [0] * 0x110000
    for i, (_, members) in enumerate(classes()):
        for c in members:
            bits[c] |= 1 << i
    ccc = combining_classes(nfd)
    decomposed, composed = [], []
    for c in CPS:
        if 0xAC00 <= c < 0xD7A4:
            continue
        full = nfd.normalize_str(chr(c))
        if full == chr(c):
            continue
        pair = [int(x, 16) for x in unicodedata.decomposition(chr(c)).split()]
        pair = (pair[0], pair[1] if len(pair) > 1 else 0)
        decomposed.append(f"0x{c << 42 | pair[0] << 21 | pair[1]:x},")
        if pair[1] and nfc.normalize_str(chr(c)) == chr(c):
            composed.append(pair[0] << 42 | pair[1] << 21 | c)
    composed.sort()
    lower, lowered = normalizers.Lowercase(), []
    for c in CPS:
        low = [ord(x) for x in lower.normalize_str(chr(c))]
        assert len(low) <= 2
        if low != [c]:
            lowered.append(f"0x{c << 42 | low[0] << 21 | (low[1] if len(low) > 1 else 0):x},")
    sets = sorted(set(bits))
    assert len(sets) < 256
    index = {v: i for i, v in enumerate(sets)}
    cls = [f"0x{c << 8 | index[v]:x}," for c, v in transitions(lambda c: bits[c])]
    order = [f"0x{c << 8 | v:x}," for c, v in transitions(lambda c: ccc.get(c, 0))]
    out.append("/* Generated by tests/oracle/tokenizer_tables.py from the `tokenizers` library. Do not edit. */")
    out.append('#include "models/tokenizer/unicode.h"\n\n/* clang-format off */')
    for name, type_, items, per in (
        ("unicode_class_sets", "uint16_t", [f"0x{v:x}," for v in sets], 16),
        ("unicode_classes", "uint32_t", cls, 10),
        ("unicode_orders", "uint32_t", order, 10),
        ("unicode_decomposed", "uint64_t", decomposed, 5),
        ("unicode_composed", "uint64_t", [f"0x{v:x}," for v in composed], 5),
        ("unicode_lowered", "uint64_t", lowered, 5),
    ):
        out.append(f"const {type_} {name}[] = {{\n{rows(items, per)}\n}};")
        out.append(f"const size_t n_{name} = sizeof {name} / sizeof *{name};")


def main():
    out = []
    write(out)
    text = "\n".join(out) + "\n"
    if "--check" in sys.argv:
        with open("models/tokenizer/unicode_table.c", encoding="utf-8") as f:
            same = f.read() == text
        print(f"unicode tables against tokenizers {tokenizers.__version__}: {'equal' if same else 'out of date'}")
        return 0 if same else 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
