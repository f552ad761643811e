"""Random templates: whatever the grammar allows, mostly meaningful, often not."""

import random

CTX = {
    "s": "Hello World",
    "u": "é日🙂ß",
    "n": 7,
    "neg": -3,
    "f": 2.5,
    "t": True,
    "nil": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c"],
    "e": [],
    "d": {"b": 1, "a": {"x": [1, 2]}, "k": "v"},
    "p": [{"name": "Bob", "age": 30}, {"name": "al", "age": 25}, {"name": "Cy"}],
    "m": " x\n\ty \n",
    "q": 'it\'s "q" <b>\\',
}
NAMES = list(CTX) + ["i", "x", "y", "ns.v", "nope", "loop.index", "loop.last", "g"]
STRINGS = [
    "''",
    "'a'",
    "'b'",
    "'Hello'",
    "' '",
    "'l'",
    "'é'",
    "'a,b'",
    "'%s'",
    "'{}'",
    "'\\n'",
    "'name'",
    "'age'",
    "'x'",
    "'42'",
    "'3.5'",
]
NUMBERS = ["0", "1", "2", "3", "10", "2.5", "0.1", "100"]
FILTERS = [
    "upper",
    "lower",
    "title",
    "capitalize",
    "trim",
    "length",
    "first",
    "last",
    "join",
    "join(%s)",
    "join(', ', attribute=%s)",
    "list",
    "sort",
    "sort(reverse=true)",
    "sort(attribute=%s)",
    "unique|list",
    "reverse|list",
    "reverse",
    "min",
    "max",
    "sum",
    "sum(attribute=%s)",
    "string",
    "int",
    "float",
    "abs",
    "round",
    "round(%n)",
    "tojson",
    "tojson(indent=%n)",
    "default(%a)",
    "default(%a, true)",
    "replace(%s, %s)",
    "replace(%s, %s, %n)",
    "map('upper')|list",
    "map(attribute=%s)|list",
    "map('string')|join",
    "map(attribute=%s, default=%a)|list",
    "select|list",
    "select('odd')|list",
    "select('string')|list",
    "reject('none')|list",
    "selectattr(%s)|list",
    "selectattr(%s, 'defined')|list",
    "rejectattr(%s, 'equalto', %a)|list",
    "batch(%n)|list",
    "slice(%n)|list",
    "indent(%n)",
    "truncate(%n)",
    "wordcount",
    "items|list",
    "dictsort",
    "groupby(%s)|list",
    "escape",
    "safe",
    "urlencode",
    "center(%n)",
    "format(%a)",
    "attr(%s)",
    "e ~ %a",
    "filesizeformat",
    "d(%a)",
    "count",
    "map(%s)|list",
    "select(%s, %a)|list",
    "xmlattr",
    "trim(%s)",
    "int(default=%a)",
    "float(%n)",
]
TESTS = [
    "defined",
    "none",
    "string",
    "number",
    "integer",
    "float",
    "boolean",
    "mapping",
    "iterable",
    "sequence",
    "true",
    "false",
    "odd",
    "even",
    "divisibleby %n",
    "eq %a",
    "ne %a",
    "lt %a",
    "in %a",
    "sameas %a",
    "lower",
    "upper",
    "callable",
    "undefined",
    "not defined",
    "not none",
    "escaped",
]
METHODS = [
    "upper()",
    "lower()",
    "strip()",
    "strip(%s)",
    "lstrip(%s)",
    "rstrip()",
    "split()",
    "split(%s)",
    "split(%s, %n)",
    "rsplit(%s, 1)",
    "replace(%s, %s)",
    "startswith(%s)",
    "endswith(%s)",
    "find(%s)",
    "rfind(%s)",
    "index(%s)",
    "count(%s)",
    "title()",
    "capitalize()",
    "join(%a)",
    "items()|list",
    "keys()|list",
    "values()|list",
    "get(%s)",
    "get(%s, %a)",
    "splitlines()",
    "isdigit()",
    "isalpha()",
    "partition(%s)",
    "rpartition(%s)",
    "removeprefix(%s)",
    "removesuffix(%s)",
    "format(%a, %a)",
    "center(%n)",
    "ljust(%n, %s)",
    "zfill(%n)",
    "swapcase()",
    "isupper()",
    "islower()",
    "append(%a)",
    "pop()",
    "index(%a)",
    "count(%a)",
    "casefold()",
    "startswith((%s, %s))",
    "find(%s, %n)",
    "count(%s, %n, %n)",
    "rindex(%s)",
    "expandtabs(%n)",
    "istitle()",
    "splitlines(true)",
]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = 0

    def pick(self, *options):
        return self.r.choice(options)

    def fill(self, text, depth):
        out = ""
        while "%" in text:
            head, _, tail = text.partition("%")
            kind, text = tail[0], tail[1:]
            out += (
                head
                + {
                    "s": lambda: self.r.choice(STRINGS),
                    "n": lambda: self.r.choice(NUMBERS[:5]),
                    "a": lambda: self.expression(depth - 2),
                }[kind]()
            )
        return out + text

    def atom(self):
        k = self.r.random()
        if k < 0.55:
            return self.r.choice(NAMES)
        if k < 0.7:
            return self.r.choice(STRINGS)
        if k < 0.85:
            return self.r.choice(NUMBERS)
        return self.pick(
            "true",
            "false",
            "none",
            "[]",
            "{}",
            "()",
            "[1, 2]",
            "['a', 'B']",
            "{'a': 1}",
            "(1, 2)",
            "range(3)",
            "[n, s]",
        )

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        k = self.r.random()
        e = lambda d=1: self.expression(depth - d)
        if k < 0.12:
            return self.atom()
        if k < 0.32:
            f = self.r.choice(FILTERS)
            return f"{self.wrap(e())}|{self.fill(f, depth)}"
        if k < 0.46:
            return f"{e()} {self.r.choice(BINARY)} {e()}"
        if k < 0.54:
            return f"{self.wrap(e())}.{self.fill(self.r.choice(METHODS), depth)}"
        if k < 0.61:
            return f"{self.wrap(e())} is {self.fill(self.r.choice(TESTS), 1)}"
        if k < 0.67:
            return f"{e()} if {e()}" + (f" else {e()}" if self.r.random() < 0.85 else "")
        if k < 0.75:
            return f"{self.wrap(e())}[{self.subscript(depth)}]"
        if k < 0.80:
            return f"{self.wrap(e())}.{self.pick('name', 'age', 'a', 'x', 'b', 'k', 'v', '0', '1')}"
        if k < 0.85:
            return self.pick("not ", "-", "not ") + self.wrap(e())
        if k < 0.9:
            return f"[{e()}, {e(2)}]"
        if k < 0.94:
            return "{" + f"{self.r.choice(STRINGS)}: {e()}, {self.pick('1', self.r.choice(STRINGS))}: {e(2)}" + "}"
        return f"({e()})"

    def wrap(self, e):
        return f"({e})" if self.r.random() < 0.6 and not e.startswith("(") else e

    def subscript(self, depth):
        k = self.r.random()
        if k < 0.4:
            return self.pick("0", "1", "-1", "2", "9", "'a'", "'name'", "s", "n", "none")
        if k < 0.5:
            return self.expression(depth - 2)
        part = lambda: self.pick("", "", "1", "-1", "2", "0", "n", "-2")
        return part() + ":" + part() + (":" + self.pick("", "2", "-1", "1") if self.r.random() < 0.3 else "")

    def tag(self, text):
        left = self.pick("{%", "{%", "{%-", "{%-", "{%+") + self.pick(" ", " ", "\n ")
        return left + text + self.pick(" ", " ") + self.pick("%}", "%}", "-%}", "-%}", "+%}")

    def out(self, e):
        return self.pick("{{ ", "{{ ", "{{- ") + e + self.pick(" }}", " }}", " -}}")

    def text(self):
        return self.pick(
            "",
            "a",
            " ",
            "\n",
            " \n ",
            "text",
            "\n\n",
            "  x  ",
            "é",
            "{# c #}",
            "{#- c -#}",
            "\n  {# c #}\n",
            "{% raw %}{{ }}{% endraw %}",
            "\t",
            "\r\n",
            "}",
        )

    def block(self, depth):
        return "".join(self.statement(depth) + self.text() for _ in range(self.r.randint(1, 3)))

    def statement(self, depth):
        if depth <= 0:
            return self.out(self.expression(2)) if self.r.random() < 0.8 else self.text()
        k = self.r.random()
        b = lambda: self.text() + self.block(depth - 1)
        if k < 0.25:
            return self.out(self.expression(3))
        if k < 0.4:
            target = self.pick("x", "y", "i", "ns.v", "s", "x, y", "g")
            return self.tag(f"set {target} = {self.expression(2)}")
        if k < 0.45:
            return (
                self.tag(f"set {self.pick('x', 'y')}{self.pick('', ' | upper', ' | trim')}") + b() + self.tag("endset")
            )
        if k < 0.62:
            out = self.tag(f"if {self.expression(2)}") + b()
            if self.r.random() < 0.3:
                out += self.tag(f"elif {self.expression(2)}") + b()
            if self.r.random() < 0.4:
                out += self.tag("else") + b()
            return out + self.tag("endif")
        if k < 0.84:
            self.loops += 1
            target = self.pick("i", "i", "x", "i, x")
            over = self.pick(
                "l",
                "p",
                "s",
                "d",
                "d.items()",
                "e",
                "range(4)",
                "ls",
                "p|map(attribute='name')",
                "[[1, 2], [3, 4]]",
                self.expression(2),
            )
            out = (
                self.tag(f"for {target} in {over}" + (f" if {self.expression(2)}" if self.r.random() < 0.25 else ""))
                + b()
            )
            if self.r.random() < 0.2:
                out += (
                    self.tag(f"if {self.expression(1)}")
                    + self.tag(self.pick("break", "continue"))
                    + self.tag("endif")
                    + b()
                )
            self.loops -= 1
            if self.r.random() < 0.2:
                out += self.tag("else") + b()
            return out + self.tag("endfor")
        if k < 0.9:
            name, loops, self.loops = self.pick("m1", "m2"), self.loops, 0
            out = self.tag(f"macro {name}({self.pick('', 'x', 'x, y=1', 'x=n, y=x')})") + b() + self.tag("endmacro")
            self.loops = loops
            call = f"{name}({self.pick('', '1', 's', 'x=2', '1, 2', 'y=s')})"
            return (
                out
                + self.out(call)
                + (self.tag(f"call {name}()") + self.text() + self.tag("endcall") if self.r.random() < 0.2 else "")
            )
        if k < 0.94:
            return (
                self.tag(f"filter {self.pick('upper', 'trim', 'indent(2)', 'replace(s, u)')}")
                + b()
                + self.tag("endfilter")
            )
        if k < 0.97:
            return self.tag(f"with {self.pick('x', 'y')} = {self.expression(2)}") + b() + self.tag("endwith")
        return self.tag("generation") + b() + self.tag("endgeneration")


def make(seed):
    m = Maker(seed)
    if m.r.random() < 0.5:
        return "{{ " + m.expression(4) + " }}", CTX
    head = "{% set ns = namespace(v=0) %}" if m.r.random() < 0.9 else ""
    return head + m.block(3), CTX
