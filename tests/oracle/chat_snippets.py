"""Small templates: one feature each. REFUSED must fail at compile time with the line; the rest is compared with jinja2."""
import itertools
import pathlib

CTX = {
    "s": "Hello World", "u": "ÀÉ straße ΑΣ ǅ 日本🙂", "n": 7, "neg": -7, "f": 2.5, "z": 0, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "e": [], "d": {"b": 1, "a": {"x": [1, 2]}, "items": 5, "C": "q"},
    "p": [{"name": "Bob", "age": 30, "in": {"k": 1}}, {"name": "al", "age": 25, "in": {"k": 2}}, {"name": "Cy", "age": 30}],
    "m": "a\nb\n\n  c\r\nd\n", "w": "  pad\t\u00a0", "h": "<a href=\"x\">&'</a>", "big": 12345678901234567890,
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
    "mixed": [1, "a", None, 2.5, True, [1], {"k": "v"}], "nested": [[1, 2], [3, 4]], "x1": "0x1F", "num": "42.7",
}

EXPRESSIONS = (pathlib.Path(__file__).parent / "chat_expressions.txt").read_text().splitlines()  # "@@": a line break

STATEMENTS = [
    "a{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}",
    "{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}", "{% set a, b = [1] %}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set a, b = 5 %}",
    "{% set a = 1 %}{% set b = 2 %}{% set a, b = b, a %}{{ a }}{{ b }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}", "{% set x = y %}{{ x is defined }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "{% set ns.a = 2 %}", "{% set d.a = 2 %}",
    "{% set ns = namespace() %}{% for i in l %}{% set ns.last = i %}{% endfor %}{{ ns.last }}", "{% set x = 0 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set ns = namespace(a=1, b=2) %}{% set ns.a, ns.b = ns.b, ns.a %}{{ ns.a }}{{ ns.b }}",
    "{% if t %}a{% endif %}", "{% if no %}a{% elif t %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% elif z %}d{% else %}c{% endif %}",
    "{% if no %}{% set q = 1 %}{% endif %}{{ q }}|{{ q is defined }}", "{% if t %}{% set s = 'inner' %}{% endif %}{{ s }}", "{% if no %}{% set s = 'inner' %}{% endif %}{{ s }}",
    "{{ s }}{% set s = 'later' %}{{ s }}", "{% for i in l %}{{ s }}{% set s = 'in' %}{{ s }}{% endfor %}{{ s }}",
    "{% for i in l %}{% if loop.first %}{% set k = 'first' %}{% endif %}{{ k }};{% endfor %}", "{% for i in l %}{{ i }}{% endfor %}", "{% for i in e %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{{ i }}{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{{ loop.last }};{% endfor %}", "{% for i in l if i > 9 %}{{ i }}{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for a, b in nested %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in l %}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}", "{% for i in n %}{% endfor %}",
    "{% for i in none %}{% endfor %}", "{% for i in nope %}x{% else %}empty{% endfor %}", "{% for i in nope.x %}x{% endfor %}", "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in l %}{{ loop.cycle() }}{% endfor %}", "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in l %}{{ loop.changed() }}{% endfor %}",
    "{% for i in l %}{{ loop }}{% endfor %}", "{% for i in l %}{{ loop['index'] }}{{ loop.zz is defined }}{% endfor %}", "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% set outer = loop %}{% for j in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for i in l|map('string') %}{{ loop.length }}{{ i }}{{ loop.last }}{% endfor %}",
    "{% for i in l|map('string') %}{{ loop.last }}{{ loop.length }}{{ i }}{{ loop.revindex }}{% endfor %}", "{% for i in l %}{{ loop|length }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% break %}{% else %}else{% endfor %}",
    "{% for i in l %}{% continue %}{% else %}else{% endfor %}", "{% for i in l %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for i in l %}{% for j in e %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %}", "{% for i in l %}{% set x %}a{% break %}{% endset %}{% endfor %}done", "{% for i in l %}{% filter upper %}a{% continue %}{% endfilter %}{% endfor %}done",
    "{% for i in l %}{% with a = 1 %}{{ a }}{% continue %}{% endwith %}{{ i }}{% endfor %}",
    "{% for i in tree recursive %}{{ i.v }}({{ loop(i.c) }}){% endfor %}", "{% for i in tree recursive %}{{ loop.depth }}{{ i.v }}{% if i.c %}[{{ loop(i.c) }}]{% endif %}{% else %}-{% endfor %}",
    "{% for i in tree recursive %}{{ i.v }}{{ loop.depth0 }}{{ loop(i.c)|upper }}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in tree if i.v > 1 recursive %}x{% else %}none{% endfor %}",
    "{% for i in tree[0].c if i.v > 2 recursive %}{{ i.v }}{{ loop(i.c) }}{% endfor %}", "{% for i in [[1, [2, [3]]]] recursive %}{% if i is iterable %}<{{ loop(i) }}>{% else %}{{ i }}{% endif %}{% endfor %}",
    "{% for loop in l %}{% endfor %}", "{% for i in l %}{% set loop = 1 %}{% endfor %}", "{% set loop = 5 %}{{ loop }}{% for i in l %}{{ loop.index }}{% endfor %}{{ loop }}",
    "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a=b, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m() }}", "{% macro m(a=s) %}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(s=s) %}{{ s }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}", "{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1, z=3, y=4) }}",
    "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}",
    "{% macro m() %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(i) %}{% if i %}{{ i }}{{ m(i - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m() %} x {% endmacro %}[{{ m()|trim }}]", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{% endcall %}",
    "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m(caller=none) %}{{ caller() if caller }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}",
    "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% set k = 'K' %}{% call(v) m(3) %}{{ v }}{{ k }}{% endcall %}", "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(v, w=9) m(3) %}{{ v }}{{ w }}{% endcall %}",
    "{% macro m() %}a{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.caller }}", "{% macro m(a, b) %}a{% endmacro %}{{ m.arguments }}{{ m is callable }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{% endfor %}{{ m is defined }}", "{% macro outer() %}{% macro inner() %}in{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ l|map('string')|map('upper')|join }}{{ m(*[1]) }}{{ m(**{'a': 2}) }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*l[:2]) }}{{ m(1, *[2]) }}{{ m(1, **{'b': 3}) }}", "{% macro m() %}{% for i in l %}{{ i }}{% break %}{% endfor %}{% endmacro %}{{ m() }}", "{% macro m() %}{% if t %}{% set y = 1 %}{% endif %}{{ y }}{% endmacro %}{{ m() }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}abc{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter trim %}  a  {% endfilter %}|", "{% filter upper %}{% set s = 'x' %}{{ s }}{% endfilter %}{{ s }}",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a = s, s = 'x' %}{{ a }}{{ s }}{% endwith %}{{ s }}", "{% with a, b = (1, 2) %}{% endwith %}",
    "{% with a = 1 %}{% with b = a + 1 %}{{ b }}{% endwith %}{% endwith %}", "{% with s = s ~ '!' %}{{ s }}{% endwith %}{{ s }}", "{% generation %}x{{ s }}{% endgeneration %}", "{% for i in l %}{% generation %}{{ i }}{% set i = 'q' %}{{ i }}{% endgeneration %}{{ i }}{% endfor %}",
    "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "{% print 1 %}", "{% print 'a', 2 %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner() %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}", "{% set g = l|map('string') %}{{ g|join }}{{ g|join }}", "{% set g = l|select('odd') %}{% for i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% endfor %}",
    "{% set g = p|selectattr('age', 'gt', 26) %}{{ g|length }}", "{% set g = l|map('upper') %}{{ g is iterable }}{{ g is sequence }}{{ g is mapping }}", "{% set g = l|map('string') %}{{ '1' in g }}{{ g|list }}", "{% set ns = namespace(c=0) %}{% for i in l if ns.c < 2 %}{% set ns.c = ns.c + 1 %}{{ i }}{% endfor %}",
    "{% set ns = namespace(c=0) %}{% for i in l if ns.c < 2 %}{% set ns.c = ns.c + 1 %}{{ i }}{{ loop.last }}{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}", "{% for k, v in d|items %}{{ k }}{% endfor %}", "{% for g in p|groupby('age') %}{{ g.grouper }}:{{ g.list|length }};{% endfor %}",
    "{% for age, people in p|groupby('age') %}{{ age }}:{{ people|map(attribute='name')|join(',') }};{% endfor %}", "{% for row in l|batch(2) %}{{ row }}{% endfor %}", "{% for i in range(3) %}{{ loop.length }}{{ i }}{% endfor %}", "{% for i in d.keys()|list|sort %}{{ i }}{% endfor %}",
    "{%- for i in l -%} {{ i }} {%- endfor -%}", "a {{- 1 -}} b", "a {%- if t -%} b {%- endif -%} c", "a {#- c -#} b", "  {% if t %}x{% endif %}  ", "\n  {% if t %}\n  x\n  {% endif %}\n", "\n  {{ 1 }}\n  {% set a = 1 %}\n  b", "x\n  {%+ if t %}y{% endif %}",
    "{% if t +%}\n  y{% endif %}", "a\n  {# c #}\n  b", "a\n  {#+ c #}\n  b", "a\n  {# c +#}\n  b", "  {# c #}{{ 1 }}", "x {# a #} y {# b #}\nz", "{% if t %} {% endif %}\n\n{% if t %}\n{% endif %}a", "a\n\n  {%- if t %}\n\n  b{% endif -%}  \n c", "{{ 1 }}\n{{ 2 }}\n\n",
    "{{ 'a' -}}\n\n {{ 'b' }}", "\t{% if t %}tab{% endif %}", "\u00a0{% if t %}nb{% endif %}", "a\u3000{%- if t %}ws{% endif %}", "x\n\u2003{% if t %}em{% endif %}", "line1\r\nline2\rline3\n", "{% if t %}\r\nx{% endif %}\r\n", "a\n", "a\n\n", "\n", "", "   ",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw %}\n  a\n{% endraw %}\nb", "  {% raw %}x{% endraw %}  y", "{%- raw -%}  a  {%- endraw -%}  b", "a\n  {%- raw %} x {% endraw %}", "{% raw -%}\n\n x {%- endraw %}\ny", "x\n   {% raw %}a\n   {% endraw %}b",
    "{# comment {{ x }} {% if %} #}a", "{#- a -#} b", "{##}a", "{# a\nb #}\nc", "{{ '{{' }}{{ '}}' }}{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ [{}] }}", "{{-1}}", "{{+1}}", "{{ -1 }}", "{{ 1 -}} a", "{{ 1 - 1 }}",
    "{{ (1,\n 2) }}", "{{ s\n|\nupper }}", "{%\nif t\n%}a{%\nendif\n%}", "{% if t: %}a{% endif %}", "{% for i in l: %}{{ i }}{% endfor %}", "{{ 'a\nb' }}", "{{ \"a\r\nb\" }}", "}} %} #}", "{ { }", "{", "a{", "{%if t%}x{%endif%}", "{{s}}{{n}}", "{{ s }} {{ s }}\n{{ s }}",
    "{% set x = [1, 2,] %}{{ x }}", "{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}{{ dict(a=1,) }}", "{% set x = {'a': s, 'b': [s]} %}{{ x.a }}{{ x.b[0] }}", "{{ none.x }}", "{{ none.x is defined }}", "{{ 5.x }}", "{{ n.x }}", "{{ s.x.y }}",
    "{{ l.__len__ }}", "{{ s.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ d.__init__.__globals__ }}", "{{ (1).__class__ }}", "{{ namespace.__init__ }}", "{{ range.__doc__ }}", "{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{% set x.a = x.a + [2] %}{{ x.a }}",
    "{% set x = namespace(t='') %}{% for i in range(50) %}{% set x.t = x.t ~ i %}{% set y = x.t + 'q' %}{% endfor %}{{ x.t }}", "{% set a = 'x' %}{% set b = a + 'y' %}{% set c = a + 'z' %}{{ a }}{{ b }}{{ c }}", "{% set a = 'x' * 70 %}{% set b = a + 'y' %}{% set c = b + '1' %}{% set e = b + '2' %}{{ b }}{{ c }}{{ e }}",
    "{{ p|map(attribute='in')|selectattr('k')|list }}", "{{ p|map(attribute='zz')|list }}", "{% for m in p %}{{ loop.index0 ~ m.name ~ (', ' if not loop.last else '.') }}{% endfor %}", "{{ 'x' if p[0].age > 20 and p|length == 3 else 'y' }}", "{{ p[0]['in'].k if 'in' in p[0] else 0 }}",
    "{% if p is not none and p|length > 0 %}{{ p[0].name }}{% endif %}", "{% if not nope %}no{% endif %}", "{% if nope is defined and nope.x %}a{% else %}b{% endif %}", "{% if nope.x %}a{% endif %}", "{{ nope.x is defined }}", "{{ nope is defined and nope.x is defined }}",
    "{% set content = p[0].content | default('', true) | trim %}[{{ content }}]", "{% set msg = p|last %}{{ msg.name }}", "{{ (p|length - 1) }}", "{% set i = p|length - 1 %}{{ p[i].name }}", "{{ p[::-1]|map(attribute='name')|join }}", "{% for m in p[::-1] %}{{ loop.index0 }}{{ m.name }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in p %}{% if m.age == 25 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{{ raise_exception('a ' ~ n) if n == 7 }}", "{{ raise_exception('a') if n == 8 else 'fine' }}", "{%- set x -%}\n a \n{%- endset -%}[{{ x }}]",
    "{{ d | tojson | replace('\"', \"'\") }}", "{{ {'a': '<é>'} | tojson }}", "{{ '<tools>' ~ [d]|tojson(indent=4) ~ '</tools>' }}", "{% for x in [1, 2] %}{% for y in [3, 4] if y > x + 1 %}{{ x }}{{ y }} {% else %}- {% endfor %}{% endfor %}", "{% for x in l %}{% set y = x * 2 %}{% if y > 3 %}{{ y }}{% endif %}{% endfor %}{{ y is defined }}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% set x = 1 %}{% if t %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{% endif %}{{ x }}", "{% if t %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{% if a == 1 %}{% set a = a + 1 %}{% endif %}{{ a }}",
    "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro -%}\n{{ m(1) }}\n{{ m(2) }}", "{% macro f(x) %}{{ x|tojson }}{% endmacro %}{{ f({'a': 1}) }}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(f(f('a'))) }}", "{% macro f(n) %}{{ n if n < 2 else f(n - 1)|int + f(n - 2)|int }}{% endmacro %}{{ f(10) }}",
    "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}", "{% for i in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% for i in l %}{{ i }}{% for i in 'ab' %}{{ i }}{% endfor %}{{ i }}{% endfor %}", "{% for i in l %}{% endfor %}{{ i is defined }}",
    "{% for n in [n, n] %}{{ n }}{% endfor %}{{ n }}", "{% for x in x %}{% endfor %}", "{% set x = x %}{{ x is defined }}", "{% set n = n + 1 %}{{ n }}", "{% for i in l %}{% set n = n + i %}{{ n }} {% endfor %}{{ n }}", "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b is defined }}",
    "{% call range(3) %}{% endcall %}", "{% call dict(a=1) %}{% endcall %}", "{{ dict(l|map('string')|list|batch(1)) }}", "{{ [1,2,3]|batch(0)|list }}", "{{ s|indent(100000)|length }}", "{{ 'é' * 3 ~ 'ü' }}", "{% set s2 = u ~ u %}{{ s2|length }}{{ s2[15] }}",
]

REFUSED = [
    ("{% include 'x' %}", 1, "unsupported"), ("a\n{% import 'x' as y %}", 2, "unsupported"), ("\n\n{% from 'x' import y %}", 3, "unsupported"),
    ("{% extends 'x' %}", 1, "unsupported"), ("{% block x %}{% endblock %}", 1, "unsupported"), ("{% autoescape true %}{% endautoescape %}", 1, "unsupported"),
    ("{% do x %}", 1, "unsupported"), ("{{ x|nosuch }}", 1, "unsupported"), ("a\nb {{ x|nosuch(1) }}", 2, "unsupported"), ("{{ x is nosuch }}", 1, "unsupported"),
    ("{% if t %}\n{{ x|nosuch }}{% endif %}", 2, "unsupported"), ("{{ x|pprint }}", 1, "unsupported"), ("{{ x|random }}", 1, "unsupported"), ("{{ x|wordwrap(3) }}", 1, "unsupported"),
    ("{{ x|urlize }}", 1, "unsupported"), ("{{ x|striptags }}", 1, "unsupported"), ("{{ x|map('nosuch') }}", 1, "unsupported"), ("{{ x|select('nosuch') }}", 1, "unsupported"),
    ("{{ x|selectattr('a', 'nosuch') }}", 1, "unsupported"), ("{{ 'a'.encode() }}", 1, "unsupported"), ("{{ 'a'.translate({}) }}", 1, "unsupported"), ("{{ lipsum() }}", 1, "unsupported"),
    ("{{ 99999999999999999999 }}", 1, "unsupported"), ("{% filter nosuch %}{% endfilter %}", 1, "unsupported"), ("{% set x|nosuch %}{% endset %}", 1, "unsupported"),
    ("{{ " + "(" * 300 + "1" + ")" * 300 + " }}", 1, "unsupported"), ("{{ " + "-" * 300 + "1 }}", 1, "unsupported"), ("{{ 1" + "+1" * 2000 + " }}", 1, "unsupported"),
    ("{% if t %}" * 300 + "{% endif %}" * 300, 1, "unsupported"), ("{{ x" + "|upper" * 1000 + " }}", 1, "unsupported"), ("{{ x" + ".a" * 1000 + " }}", 1, "unsupported"),
    ("{{ x", 1, "input"), ("\n{{ x", 2, "input"), ("{% if x %}", 1, "input"), ("a\n{% if x %}b\n", None, "input"), ("{% endif %}", 1, "input"), ("{% nosuch %}", 1, "input"), ("{% if %}a{% endif %}", 1, "input"),
    ("{% for x %}{% endfor %}", 1, "input"), ("{% for 1 in x %}{% endfor %}", 1, "input"), ("{% set 1 = 2 %}", 1, "input"), ("{% set true = 2 %}", 1, "input"), ("{% set a.b.c = 2 %}", 1, "input"), ("{% set [a] = 2 %}", 1, "input"),
    ("{{ 1 + }}", 1, "input"), ("{{ (1 }}", 1, "input"), ("{{ 1) }}", 1, "input"), ("{{ [1} }}", 1, "input"), ("{{ 'a }}", 1, "input"), ("{{ a b }}", 1, "input"), ("{{ }}", 1, "input"), ("{{ a. }}", 1, "input"), ("{{ a.'b' }}", 1, "input"),
    ("{{ a | }}", 1, "input"), ("{{ a is }}", 1, "input"), ("{{ a is b is c }}", 1, None), ("{{ f(a=1, 2) }}", 1, "input"), ("{{ f(**a, b) }}", 1, "input"), ("{{ a ! b }}", 1, "input"), ("{{ a ? b }}", 1, "input"), ("{{ a $ b }}", 1, "input"),
    ("{# a", 1, "input"), ("{% raw %}a", 1, "input"), ("{% break %}", 1, "input"), ("{% continue %}", 1, "input"), ("{% for i in x %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", 1, "input"),
    ("{% macro m(a=1, b) %}{% endmacro %}", 1, "input"), ("{% macro 1() %}{% endmacro %}", 1, "input"), ("{% call x %}{% endcall %}", 1, "input"), ("{% for loop in x %}{% endfor %}", 1, "input"), ("{% if x %}{% endfor %}", 1, "input"),
    ("{% for x in y %}{% endif %}", 1, "input"), ("{% set x %}a", 1, "input"), ("{{ '\\ud800' }}", 1, "input"), ("{{ '\\x4' }}", 1, "input"), ("{{ '\\N{DASH}' }}", 1, "input"), ("{{ a +}}", 1, "input"), ("{% if x %}{% else %}{% else %}{% endif %}", 1, "input"),
    ("{{ a if }}", 1, "input"), ("{{ not }}", 1, "input"), ("{{ a[1 }}", 1, "input"), ("{{ a[] ~ }}", 1, "input"), ("{{ {1} }}", 1, "input"), ("{{ {1:} }}", 1, "input"), ("{% with a %}{% endwith %}", 1, "input"), ("{% set x = %}", 1, "input"), ("\n\n{{ 1 2 }}", 3, "input"),
]


def written():
    """Those written out by hand."""
    for e in EXPRESSIONS:
        yield "{{ " + e.replace("@@", "\n") + " }}"
    yield from STATEMENTS


def snippets():
    for t in written():
        yield t, CTX
    for a, op, b in itertools.product(VALUES, OPERATORS, VALUES):
        big = "big" in (a, b) and op[0] in "+-*/%"  # integers past 64 bits are carried, not computed with
        sets = "d.keys()" in (a, b) and op in ("-", "<", ">=")  # nor are there sets, nor complex numbers
        if not big and not sets and not (op == "**" and a == "-3"):
            yield "{{ " + f"({a}) {op} ({b})" + " }}", CTX
    for v, f in itertools.product(VALUES, FILTERS):
        yield "{{ " + f"({v})|{f}" + " }}", CTX
    for v, t in itertools.product(VALUES, TESTS):
        if v == "big" and t in ("divisibleby 2", "even", "odd"):
            continue
        yield "{{ " + f"({v}) is {t}" + " }}", CTX


VALUES = ["none", "true", "0", "7", "-3", "2.5", "''", "'ab'", "'é5'", "[]", "[1, 'a']", "(1,)", "{}", "{'a': 1}", "nope", "range(3)", "d.keys()", "big", "'<'|safe",
          "namespace(a=1)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
FILTERS = ["abs", "capitalize", "count", "default('D')", "default('D', true)", "dictsort", "escape", "first", "float", "int", "items|list", "join('-')", "last", "length", "list", "lower", "map('string')|list",
           "max", "min", "reject|list", "replace('a', 'b')", "reverse|list", "round", "safe", "select|list", "sort", "string", "sum", "title", "tojson", "trim", "truncate(3)", "unique|list", "upper", "urlencode",
           "wordcount", "batch(2)|list", "slice(2)|list", "indent", "filesizeformat", "xmlattr", "center(9)", "groupby(0)", "attr('x')", "format(1)"]
TESTS = ["boolean", "callable", "defined", "divisibleby 2", "eq 7", "escaped", "even", "false", "filter", "float", "ge 1", "in [7, 'ab']", "integer", "iterable", "lower", "lt 3", "mapping", "none", "number", "odd",
         "sameas none", "sequence", "string", "true", "undefined", "upper"]
