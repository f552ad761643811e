"""Writes models/template/unicode_data.c from Python's own idea of Unicode: python3 tests/oracle/unicode_tables.py >
FILE.

Python 3.11 (Unicode 14) is what the tables in the tree were made with.

Why this is not one table with models/tokenizer/unicode_table.c: each repeats the answers of another program, and they
disagree. The `tokenizers` library takes 9,272 more or other code points for letters than Python does, 201 for numbers
and 4 for white space; tokenizer_tables.py asks three Unicode versions, this one a fourth. A new release of one must not
change the other's answers. Only the runs of classes could share their first code points (4,234 runs instead of 3,741
and 3,857); compositions, orders and case mappings, the rest, have no counterpart on the other side.
"""

import sys

FLAGS = 11  # bits of a run that are flags; the rest is the first code point


def ignorable(c):
    """Case-ignorable, as the rule for a final sigma sees it."""
    return ("A" + c + "Σ").lower().endswith("ς") and not ("1" + c + "Σ").lower().endswith("ς")


def flags(cp):
    if 0xD800 <= cp < 0xE000:
        return 0
    c = chr(cp)
    tests = (
        c.isalpha(),
        c.isdecimal(),
        c.isdigit(),
        c.isnumeric(),
        c.isprintable(),
        c.islower(),
        c.isupper(),
        c.istitle() and not c.isupper(),
        c.isspace(),
        ignorable(c),
        ("_" + c).isidentifier(),
    )
    return sum(bit << i for i, bit in enumerate(tests))


def runs():
    out, before = [], None
    for cp in range(0x110000):
        f = flags(cp)
        if f != before:
            out.append(cp << FLAGS | f)
            before = f
    return out


def case_map(fn, base=lambda c: c):
    """Rows (first, last, step, delta) and rows (cp, up to three code points), where fn differs from base."""
    single, several = [], []
    for cp in range(0x110000):
        if 0xD800 <= cp < 0xE000 or fn(chr(cp)) == base(chr(cp)):
            continue
        to = [ord(c) for c in fn(chr(cp))]
        if len(to) == 1:
            single.append((cp, to[0] - cp))
        else:
            several.append([cp] + to + [0] * (3 - len(to)))
    rows, i = [], 0
    while i < len(single):
        best, step = 1, 1
        for s in (1, 2):
            j = i + 1
            while j < len(single) and single[j] == (single[j - 1][0] + s, single[i][1]):
                j += 1
            if j - i > best:
                best, step = j - i, s
        rows.append((single[i][0], single[i + best - 1][0], step, single[i][1]))
        i += best
    return rows, several


def put(name, kind, cells):
    print(f"\nconst {kind} {name}[] = {{")
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 110:
            print(line)
            line = "   "
        line += " " + cell + ","
    print(line)
    print("};")
    print(f"const int n_{name} = {len(cells)};")


def main():
    print("/* Made by tests/oracle/unicode_tables.py; not edited by hand. */")
    print('#include "models/template/unicode.h"')
    put("unicode_runs", "uint32_t", [str(r) for r in runs()])
    for name, fn, base in (
        ("lower", str.lower, lambda c: c),
        ("upper", str.upper, lambda c: c),
        ("title", str.title, str.upper),
        ("fold", str.casefold, str.lower),
    ):
        rows, several = case_map(fn, base)
        put(f"unicode_{name}", "struct case_run", [f"{{{a}, {b}, {c}, {d}}}" for a, b, c, d in rows])
        put(f"unicode_{name}_several", "struct case_several", [f"{{{a}, {{{b}, {c}, {d}}}}}" for a, b, c, d in several])


if __name__ == "__main__":
    sys.exit(main())
