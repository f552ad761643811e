"""Writes models/tokenizer/unicode_table.c: the character classes and canonical compositions that the `tokenizers` library works with.

Tokenisation must not depend on the Unicode version of the system's PCRE2, and must equal that library's. So its own
engines are asked about every code point: Oniguruma for \\p{..} and \\s, Rust for digits and punctuation, its NFC tables for
normalisation (three different Unicode versions). The characters' combining classes come from Python where the library
orders marks the same way, and are 0 where it knows none.

    python tests/oracle/tokenizer_tables.py > models/tokenizer/unicode_table.c      (rewrites the table)
    python tests/oracle/tokenizer_tables.py --check                       (compares; exit status 1 when it is out of date)
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# The cased letters that the DeepSeek pre-tokenizer spells out. Escapes: many have look-alikes that normalisation turns them into.
CASED = (
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377"
    "\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556"
    "\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A"
    "\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4"
    "\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC"
    "\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F"
    "\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B"
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"
    "\U000118A0-\U000118DF\U0001E900-\U0001E943")


def regex_members(pattern):
    """Code points that a regular expression for one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for i in range(0, len(CPS), 4096):
        chunk = CPS[i:i + 4096]
        kept = set()
        for word, _ in split.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(word)
        found.update(c for c in chunk if chr(c) not in kept)
    return found


def isolated(pre, between):
    """Code points that a pre-tokenizer cuts out from between two ordinary characters."""
    found = set()
    for i in range(0, len(CPS), 2048):
        chunk = CPS[i:i + 2048]
        text = "".join(between + chr(c) for c in chunk) + between
        found.update(chunk[a // 2] for _, (a, b) in pre.pre_tokenize_str(text) if b - a == 1 and a % 2 == 1)
    return found


def classes():
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    composing = {ord(nfd.normalize_str(chr(c))[-1]) for c in CPS if len(nfd.normalize_str(chr(c))) > 1
            and len(nfc.normalize_str(chr(c))) == 1 and not 0xAC00 <= c < 0xD7A4}
    moving = {c for c in CPS if nfc.normalize_str(chr(c)) != chr(c)} | set(combining_classes(nfd)) | composing
    moving |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    letters, digits = regex_members(r"\p{L}"), regex_members(r"\p{N}")
    cased = regex_members("[" + CASED + "]")
    return [("CHAR_LETTER", letters), ("CHAR_NUMBER", digits), ("CHAR_SPACE", regex_members(r"\s")),
            ("CHAR_PUNCT", regex_members(r"\p{P}")), ("CHAR_MARK", regex_members(r"\p{M}")),
            ("CHAR_DIGIT", isolated(pre_tokenizers.Digits(individual_digits=True), "a")),
            ("CHAR_PUNCTUATION", isolated(pre_tokenizers.Punctuation("isolated"), "a")),
            ("CHAR_CASED", cased), ("CHAR_MOVES", moving), ("CHAR_UPPER", regex_members(r"[\p{Lu}\p{Lt}]")),
            ("CHAR_LOWER", regex_members(r"\p{Ll}")), ("CHAR_SYMBOL", regex_members(r"\p{S}"))]


def combining_classes(nfd):
    """The combining classes that the library's tables hold."""
    out = {}
    for c in CPS:
        k = unicodedata.combining(chr(c))
        if not k:
            continue
        low, high = "\u0334", "\u0345"  # classes 1 and 240
        s = chr(c)
        moved = nfd.normalize_str("a" + s + low) == "a" + low + s if k > 1 else \
            nfd.normalize_str("a" + high + s) == "a" + s + high
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
    return "\n".join("    " + " ".join(items[i:i + per_line]) for i in range(0, len(items), per_line))


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
    sets = sorted(set(bits))
    assert len(sets) < 256
    index = {v: i for i, v in enumerate(sets)}
    cls = [f"0x{c << 8 | index[v]:x}," for c, v in transitions(lambda c: bits[c])]
    order = [f"0x{c << 8 | v:x}," for c, v in transitions(lambda c: ccc.get(c, 0))]
    out.append("/* Generated by tests/oracle/tokenizer_tables.py from the `tokenizers` library. Do not edit. */")
    out.append('#include "models/tokenizer/unicode.h"\n\n/* clang-format off */')
    for name, type_, items, per in (("unicode_class_sets", "uint16_t", [f"0x{v:x}," for v in sets], 16),
                                    ("unicode_classes", "uint32_t", cls, 10), ("unicode_orders", "uint32_t", order, 10),
                                    ("unicode_decomposed", "uint64_t", decomposed, 5),
                                    ("unicode_composed", "uint64_t", [f"0x{v:x}," for v in composed], 5)):
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
