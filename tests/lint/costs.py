"""The table of bytecodes in docs/numbers.md is that of tests/data/policy_costs.txt, which e2e_costs measures against.
--update makes it anew."""

import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, read

FILE, PAGE = "tests/data/policy_costs.txt", "docs/numbers.md"
HEAD = "| bytecodes at 8, 64 and 512 requests | `step` | `admit` | `finish` |\n|---|---|---|---|\n"


def made():
    policies = {}
    for line in read(FILE).split("\n"):
        words = line.split()
        if words and words[0] not in ("#", "policy"):
            policies.setdefault(words[0], {})[words[1]] = " / ".join(words[2:])
    cells = ("step", "admit", "finish")
    return "".join(f"| `{name}` | {' | '.join(p.get(c, '') for c in cells)} |\n" for name, p in policies.items())


def stands():
    text = read(PAGE)
    if text.count(HEAD) != 1:
        yield f"{PAGE} has no table of bytecodes"
    elif re.match(r"(?:\|.*\n)*", text[text.index(HEAD) + len(HEAD) :])[0] != made():
        yield f"{PAGE}: the table of bytecodes is not that of {FILE}: python3 tests/lint/costs.py --update"
    if made().count("\n") < 10:
        yield f"{FILE} has hardly any policies"


if "--update" in sys.argv:
    before, after = read(PAGE).split(HEAD)
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(before + HEAD + made() + re.sub(r"\A(?:\|.*\n)*", "", after))
rules = Rules()
rules.check("the table of bytecodes is the one that is measured against", stands())
rules.close()
