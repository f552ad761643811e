"""Small templates: one feature each. REFUSED must fail at compile time with the line; the rest is compared with jinja2."""
import itertools

CTX = {
    "s": "Hello World", "u": "ÀÉ straße ΑΣ ǅ 日本🙂", "n": 7, "neg": -7, "f": 2.5, "z": 0, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "e": [], "d": {"b": 1, "a": {"x": [1, 2]}, "items": 5, "C": "q"},
    "p": [{"name": "Bob", "age": 30, "in": {"k": 1}}, {"name": "al", "age": 25, "in": {"k": 2}}, {"name": "Cy", "age": 30}],
    "m": "a\nb\n\n  c\r\nd\n", "w": "  pad\t\u00a0", "h": "<a href=\"x\">&'</a>", "big": 12345678901234567890,
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
    "mixed": [1, "a", None, 2.5, True, [1], {"k": "v"}], "nested": [[1, 2], [3, 4]], "x1": "0x1F", "num": "42.7",
}

EXPRESSIONS = """
1 + 2 * 3 ** 2
2 ** 3 ** 2
-2 ** 2
(-2) ** 2
2 ** -1
2 ** 0.5
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 % 2
-7.5 % 2
7.5 // 2
-7.5 // 2
1 / 3
4 / 2
1e3
1e16
1.5e-7
123456789.123456789
0.1 + 0.2
1_000 + 0x1F + 0b101 + 0o17
1 / 0
1 % 0
1.0 // 0
9223372036854775807
-9223372036854775807 - 1
1 ~ 2 ~ 'a' ~ none ~ true ~ 1.0 ~ [1] ~ undefined_thing
'a' 'b' "c"
'a' + 'b' * 3
3 * 'ab'
[1] + [2]
[1] * 3
(1, 2) + (3,)
(1,) * 2
[1] + (2,)
'a' + 1
1 + 'a'
none + 1
true + true
true * 3
+true
-true
-s
not s
not not s
1 < 2 < 3
1 < 2 > 3
1 == 1.0
1 == true
'1' == 1
none == none
none == false
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1} == {'a': 1.0}
[1, 2] < [1, 3]
(1, 2) < (1, 2, 0)
'a' < 'b'
'Z' < 'a'
1 < 'a'
none < 1
[1] < ['a']
1 in [1, 2]
'ell' in s
1 in s
'b' in d
'zz' not in d
1 not in [2]
[1] in [[1]]
[1] in d
1 in none
1 in undefined_thing
'a' in undefined_thing
undefined_thing in s
true and 0 or 'x'
0 or '' or none
1 and 2
not 1 in [2]
1 if t else 2
1 if no else 2
1 if no
(1 if no) is defined
'a' if no else 'b' if no else 'c'
(1 if t else 2) + 3
1 if t and no else 2
undefined_thing
undefined_thing.x
undefined_thing['x']
undefined_thing + 1
undefined_thing == none
undefined_thing == other_thing
undefined_thing|length
undefined_thing|list
undefined_thing ~ 'a'
undefined_thing()
undefined_thing < 1
undefined_thing[1:]
-undefined_thing
[undefined_thing]
undefined_thing|string
undefined_thing|upper
undefined_thing|int
undefined_thing|float(1)
undefined_thing|join
undefined_thing|first
undefined_thing|last
undefined_thing|tojson
undefined_thing|sum
undefined_thing|max
undefined_thing|reverse|list
undefined_thing|map('upper')|list
undefined_thing|items|list
undefined_thing is iterable
undefined_thing is callable
undefined_thing is sequence
undefined_thing is string
undefined_thing is mapping
undefined_thing is none
d.missing
d.missing.deeper
d['missing']
d.b
d['b']
d.a.x[1]
d.a['x'][-1]
d.items
d['items']
d.C
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get('zz', default=5)
d.get()
d.get([1])
d.keys()|list
d.values()|list
d.items()|list
d.keys()
d.values()
d.items()
d.keys()|length
d.keys()|first
d.keys()[0]
d.copy()
d.pop('b')
d.pop
d.update({})
d.clear is defined
d.__class__
d['__class__']
d._x
l.append(4)
l.append is defined
l.count(3)
l.index(1)
l.index(99)
l.copy()
l[0]
l[-1]
l[9]
l[1.5]
l['a']
l[true]
l[none]
l.0
l.0.1
nested.1.0
nested[0][1]
l[:]
l[1:]
l[:-1]
l[::-1]
l[::2]
l[5:]
l[-100:100]
l[2:0:-1]
l[::0]
l['a':]
l[none:2]
l[1:2:none]
l[1,2]
s[0]
s[-1]
s[99]
s[1:4]
s[::-1]
s[::2]
s[10:2:-3]
u[0]
u[3]
u[-1]
u[2:5]
u[::-1]
u[-2:]
u|length
n[0]
n[1:]
d[1:]
(1, 2, 3)[1:]
(1, 2, 3)[::-1]
range(10)[2:5]
range(10)[::-2]|list
range(10)[-1]
range(3)
range(1, 10, 3)|list
range(10, 0, -3)|list
range(0)|list
range(5, 2)|list
range(1.5)
range('a')
range(1, 2, 0)
range(100001)
range(100000)|length
5 in range(10)
5.0 in range(10)
range(3) == range(3)
[]
()
(1,)
(1, 2)
{}
{'a': 1, 2: 'b', none: [], true: 0, 1.5: ()}
{1: 'a', 1.0: 'b', true: 'c'}
{'a': 1, 'a': 2}
{[1]: 2}
{(1, 2): 3}[(1, 2)]
{'a': {'b': {}}}.a.b
{}.x
[1, 'a', "it's", 'q"q', 'b\\'"', none, true, 1.0, 1e100, -0.0]
['\\n\\t\\r\\\\', 'é', '\\x00', '\\x7f', '\\u200b', '🙂', '\\xa0']
mixed
d
p
'a\\tb\\\\c\\'d\\"e'
"a\\qb\\x41\\u00e9\\U0001F600\\101"
'line\\
joined'
'é\\é'
true
True
false
None
nil
1.0
100.0
1e22
1.0e15
12345678912345678
5e-324
1.7976931348623157e308
0.00001
-0.0
big
big ~ ''
big == big
big is integer
big|tojson
namespace
namespace(a=1).a
namespace({'a': 2}).a
namespace({'a': 2}, b=3).b
namespace().x
namespace(a=1)
namespace(a=1)['a']
namespace(a=1) is mapping
namespace(a=1)._a
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ['b', 2]])
dict([1])
dict(**{'x': 1})
dict(a=1, **{'a': 2})
cycler('a', 'b').next()
cycler()
joiner('-')()
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
s.casefold()
u.upper()
u.lower()
u.title()
u.capitalize()
u.swapcase()
u.casefold()
'ΑΣ'.lower()
'ΑΣΑ'.lower()
'İ'.lower()|length
'ŉ'.upper()
'they\\'re bill\\'s'.title()
s.split()
s.split('o')
s.split('o', 1)
s.split(maxsplit=1)
s.split(sep='l')
s.split('')
s.split('l', -1)
s.rsplit('o', 1)
s.rsplit(none, 1)
'  a  b  c '.split()
'  a  b  c '.split(none, 1)
'  a  b  c '.rsplit(none, 1)
'  a  b  c '.split(' ')
'aXXbXX'.split('XX')
'aXXbXX'.rsplit('XX', 1)
'aaaa'.rsplit('aa')
'aaaa'.split('aa')
''.split()
''.split('a')
'a,b'.split(',')[0]
m.splitlines()
m.splitlines(true)
m.splitlines(keepends=true)
''.splitlines()
'a\\x0bb\\x0cc\\x1cd\\x85e\\u2028f'.splitlines()
w.strip()
w.lstrip()
w.rstrip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'ééaé'.strip('é')
'a'.strip(none)
'a'.strip(1)
'\\x1c a \\x85'.strip()
'.' .join(['a', 'b'])
'.'.join('abc')
'.'.join([1])
'.'.join(d)
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
s.replace('', '-', 3)
u.replace('', '.')
s.replace('l', '')
s.replace('zz', 'a')
s.replace(1, 'a')
s.replace('o', 'oo').replace('oo', 'o')
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('World', 6)
s.startswith('World', -5)
s.startswith('', 20)
s.endswith('d')
s.endswith(('x', 'ld'))
s.endswith('Hello', 0, 5)
s.endswith(1)
s.find('o')
s.find('o', 5)
s.find('o', 5, 7)
s.find('zz')
s.find('')
s.find('', 50)
s.rfind('o')
s.rfind('')
s.rfind('o', 0, 5)
u.find('日')
u.rfind('🙂')
u.find('ß', 3)
s.index('o')
s.index('zz')
s.rindex('l')
s.count('l')
s.count('')
s.count('l', 3)
'aaaa'.count('aa')
u.count('')
s.partition(' ')
s.partition('zz')
s.rpartition('o')
s.rpartition('zz')
s.partition('')
s.removeprefix('Hello ')
s.removeprefix('x')
s.removesuffix('World')
s.removesuffix('')
s.center(21)
s.center(20, '*')
s.center(3)
'ab'.center(5, '*')
'abc'.center(6, '*')
s.ljust(15, '.')
s.rjust(15, 'é')
s.ljust(15, 'ab')
'42'.zfill(5)
'-42'.zfill(5)
'+4'.zfill(1)
'a\\tb\\tc'.expandtabs()
'a\\tb'.expandtabs(4)
'123'.isdigit()
'12³'.isdigit()
'½'.isnumeric()
'١'.isdecimal()
''.isdigit()
'abc'.isalpha()
'日本'.isalpha()
'a1'.isalnum()
' \\t'.isspace()
'Ab Cd'.istitle()
'ab'.islower()
'a1'.islower()
'1'.islower()
'AB'.isupper()
'abc'.isascii()
'é'.isascii()
'a\\n'.isprintable()
'a_1'.isidentifier()
'1a'.isidentifier()
s.nosuch
s.nosuch()
s.upper
s.upper is callable
s.upper is defined
'{} {}'.format(1, 'a')
'{0}{1}{0}'.format('a', 'b')
'{a}-{b}'.format(a=1, b=none)
'{0.b} {0[a][x][0]}'.format(d)
'{!r} {!s}'.format('a', 'b')
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{:05d} {:+d} {: d} {:x} {:#x} {:o} {:b} {:#b} {:X}'.format(42, 42, 42, 255, 255, 8, 5, 5, 255)
'{:,} {:_} {:,.2f}'.format(1234567, 1234567, 1234567.891)
'{:.2f} {:.0f} {:e} {:g} {:%} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.5, 0.123)
'{:.3} {:.3}'.format('abcdef', 2.0)
'{:10.3f}|{:<10}|{:=+8d}'.format(3.14159, 1.5, 42)
'{:c}'.format(65)
'{:d}'.format('a')
'{:s}'.format(1)
'{{}} {}'.format(1)
'{'.format(1)
'}'.format(1)
'{} {0}'.format(1)
'{}'.format()
'{x}'.format(y=1)
'{:{}}'.format('a', 5)
'{:{w}}|'.format('a', w=5)
'{}'.format(undefined_thing)
'{:5}'.format(none)
'{:5}|{}'.format(true, true)
'{:.3g} {:.10g} {:g}'.format(1234567.0, 1234567.0, 1e20)
'{:.1f} {:.1f}'.format(0.25, 0.35)
'{0[0]} {0[-1]}'.format(l)
'%s %d %5.2f %%' % ('a', 3, 2.5)
'%s' % 'x'
'%s' % none
'%s' % [1, 2]
'%s %s' % (1,)
'%s' % (1, 2)
'%d' % 3.9
'%d' % '3'
'%x %X %o %#x' % (255, 255, 8, 255)
'%05d|%-5d|%+d|% d' % (42, 42, 42, 42)
'%.3s|%10s|%-10s|' % ('abcdef', 'r', 'l')
'%(a)s %(b)d' % {'a': 1, 'b': 2}
'%(zz)s' % {'a': 1}
'%r' % 'a'
'%c%c' % (65, 'B')
'%e %g %G' % (12345.678, 0.00001, 1e20)
'%*d' % (5, 42)
'%z' % 1
'abc' % 1
'abc' % {}
'%s' % undefined_thing
'%.2f' % 1
'%i' % true
'%.5d' % 42
s|upper
s|lower
s|title
s|capitalize
'foo-bar baz(qux [x {y <z'|title
"they're"|title
u|title
none|upper
1|upper
w|trim
'xxaxx'|trim('x')
1|trim
s|length
l|length
d|length
none|length
1|length
l|count
l|first
l|last
e|first
e|last
s|first
s|last
d|first
n|first
l|join
l|join(', ')
ls|join('-')
mixed|join('|')
p|join(', ', attribute='name')
p|join(',', 'age')
s|join('-')
none|join
l|join(1)
l|list
s|list
d|list
n|list
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
ls|sort(reverse=true)
mixed|sort
p|sort(attribute='age')|map(attribute='name')|list
p|sort(attribute='age', reverse=true)|map(attribute='name')|list
p|sort(attribute='age,name')|map(attribute='name')|list
p|sort(attribute='name')|map(attribute='name')|list
p|sort(attribute='in.k')|list
nested|sort(attribute=1)
nested|sort(attribute='0')
d|sort
l|unique|list
[1, 1.0, true, 'a', 'A', 'a']|unique|list
['a', 'A']|unique(true)|list
p|unique(attribute='age')|map(attribute='name')|list
[[1], [1]]|unique|list
l|min
l|max
ls|min
ls|max
ls|max(case_sensitive=true)
e|min
mixed|max
p|max(attribute='age')
p|min(attribute='name')
l|sum
l|sum(start=10)
[0.1, 0.2, 0.3]|sum
ls|sum
[[1], [2]]|sum(start=[])
p|sum(attribute='age')
p|sum('age', 5)
e|sum
l|reverse|list
s|reverse
u|reverse
d|reverse|list
n|reverse
(1, 2)|reverse|list
l|map('string')|list
l|map('string')|join
ls|map('upper')|join(',')
p|map(attribute='name')|join(',')
p|map(attribute='zz', default='?')|join(',')
p|map(attribute='in.k', default=0)|list
p|map(attribute='in')|list
l|map('nosuchfilter' ~ '')
l|map('nosuchfilter' ~ '')|list
l|map('round', 2)|list
ls|map('replace', 'a', 'x')|list
l|map()|list
l|map
none|map('upper')|list
0|map('upper')|list
5|map('upper')|list
[[3, 1], [2]]|map('sort')|list
l|select|list
l|select('odd')|list
l|select('>', 1)|list
l|select('in', [1, 2])|list
l|reject('even')|list
mixed|select('string')|list
mixed|reject('none')|list
mixed|select('number')|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
p|selectattr('age', 'equalto', 30)|map(attribute='name')|list
p|selectattr('in')|list|length
p|selectattr('in', 'defined')|list|length
p|rejectattr('in', 'defined')|list|length
p|selectattr('age', 'gt', 26)|list|length
p|rejectattr('age', '==', 30)|first
p|selectattr('zz')|list
p|selectattr('name', 'in', ['al', 'Cy'])|map(attribute='name')|join
l|select('nosuch' ~ '')|list
p|selectattr()|list
p|groupby('age')
p|groupby('age')|map(attribute='grouper')|list
p|groupby('age')|map(attribute='list')|map('length')|list
p|groupby('zz', default='?')|length
ls|groupby(0)|list
l|batch(2)|list
l|batch(2, 'x')|list
range(7)|batch(3, 0)|list
range(7)|slice(3)|list
range(7)|slice(3, 'x')|list
range(7)|slice(0)|list
d|dictsort
{'b': 1, 'A': 2, 'c': 0}|dictsort
{'b': 1, 'A': 2, 'c': 0}|dictsort(true)
{'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value')
{'b': 1, 'A': 2, 'c': 0}|dictsort(by='value', reverse=true)
{'b': 1}|dictsort(by='zz')
{'b': 1, 2: 3}|dictsort
l|dictsort
d|items|list
l|items|list
undefined_thing|default('x')
nil|default('x')
nil|default('x', true)
''|default('x', boolean=true)
s|default('x')
undefined_thing|d
undefined_thing|d('a')|upper
d.missing|default('x')
d.missing.y|default('x')
s|replace('l', 'L')
s|replace('l', 'L', 2)
s|replace('l', 1)
12321|replace(2, 'x')
'42'|int
'42.7'|int
' 42 '|int
'abc'|int
'abc'|int(7)
'abc'|int(default=7)
'0x1F'|int(base=16)
'0x1F'|int
'1F'|int(0, 16)
'0b11'|int(0, 0)
'0o17'|int(0, 8)
'1_000'|int
'-5'|int
'+5'|int
''|int
none|int
true|int
3.99|int
-3.99|int
'1e3'|int
'inf'|int
'nan'|int(3)
l|int
'3.5'|float
'abc'|float
'abc'|float(1.5)
'1e3'|float
' 1.5 '|float
'inf'|float
'-inf'|float
'nan'|float
none|float
3|float
true|float
n|string
l|string
none|string
n|abs
neg|abs
-2.5|abs
'a'|abs
2.5|round
3.5|round
-2.5|round
2.675|round(2)
1234.5|round(-2)
42|round
1250|round(-2)
1350|round(-2)
-1250|round(-2)
2.1|round(method='ceil')
2.9|round(method='floor')
2.123|round(2, 'ceil')
2.5|round(method='x')
'a'|round
42.55|round(1)
0.5|round
1.5|round|int
1e20|round
123.456|round(1)|string
m|indent
m|indent(2)
m|indent(2, true)
m|indent(2, true, true)
m|indent(first=true)
m|indent('> ')
m|indent(width='>>', blank=true)
'a'|indent
''|indent
1|indent
s|truncate(5)
s|truncate(8, leeway=0)
s|truncate(8, true, leeway=0)
s|truncate(8, true, '', 0)
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(11, false, '...', 0)
s|truncate(2)
u|truncate(5, true, '…', 0)
'ab'|center(7)
'ab'|center
s|wordcount
'a-b c_d é1'|wordcount
s|urlencode
'a b/c?d=é&'|urlencode
{'a b': 1, 'c/': 'é'}|urlencode
[('a', 1)]|urlencode
5|urlencode
h|escape
h|e
h|safe
h|escape|safe
h|e ~ '<'
(h|e) + '<'
'<' + (h|e)
(h|safe) + '<'
(h|safe)|upper
(h|safe)|replace('a', '<')
(h|e)|length
(h|e)[0:4]
(h|safe).replace('a', '<')
(h|safe).split('a')
('<b>'|safe).format('<')
('%s<b>'|safe) % '<'
('<'|safe).join(['<', '>'])
('<'|safe) * 2
('a'|safe) is escaped
h is escaped
('a'|safe) == 'a'
['a'|safe]
h|forceescape
h|e|forceescape
{'class': 'a"b', 'id': none, 'x': 1}|xmlattr
{'class': 'a'}|xmlattr(false)
{'a b': 1}|xmlattr
1000|filesizeformat
1|filesizeformat
999|filesizeformat
1024|filesizeformat(true)
1500000|filesizeformat
'123456'|filesizeformat
123456789012|filesizeformat(binary=true)
d|attr('b')
s|attr('upper') is callable
s|attr('zz') is defined
'%s-%s'|format(1, 2)
'%(a)s'|format(a=1)
d|tojson
d|tojson(indent=2)
d|tojson(indent=0)
e|tojson(indent=2)
{}|tojson(indent=4)
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
d|tojson(separators=(',', ':'), indent=1)
d|tojson(indent='\\t')
u|tojson
u|tojson(ensure_ascii=true)
h|tojson
'\\x00\\x1f\\x7f\\u2028\\\\/"'|tojson
mixed|tojson
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 6}|tojson
{(1,): 2}|tojson
1.0|tojson
1e100|tojson
('inf'|float)|tojson
('nan'|float)|tojson
undefined_thing|tojson
namespace(a=1)|tojson
range(3)|tojson
d.keys()|tojson
none|tojson
true|tojson
[none, [], {}, [[]]]|tojson(indent=2)
{'b': 1, 1: 2}|tojson(sort_keys=true)
n is odd
n is even
n is divisibleby 7
n is divisibleby(3)
s is odd
f is odd
n is number
t is number
t is integer
n is integer
f is float
f is integer
t is boolean
n is boolean
t is true
n is true
no is false
s is string
l is string
d is mapping
l is mapping
l is iterable
n is iterable
s is iterable
d is iterable
s is sequence
d is sequence
d.keys() is sequence
n is sequence
(1, 2) is sequence
range(3) is sequence
nil is none
s is none
s is lower
'abc' is lower
'ABC' is upper
1 is lower
n is eq 7
n is equalto 7
n is ne 7
n is == 7
n is gt 5
n is ge 7
n is lt 5
n is le 7
n is greaterthan 5
n is lessthan 5
n is lt 'a'
n is in [7]
n is in(l)
n is not in [7]
nil is sameas none
t is sameas true
1 is sameas true
range is callable
s is callable
'upper' is filter
'zzz' is filter
'odd' is test
'zzz' is test
n is defined
zz is defined
zz is not defined
zz is undefined
not n is odd
n is odd and t
n is not odd or no
n is divisibleby 2 or n is divisibleby 7
d.a is mapping and d.a.x is sequence
l|length > 2 and s
l|length + 1
-l|length
s|upper|lower|title
s ~ s|upper
(s ~ s)|upper
s|upper + 'x'
1 + l|length * 2
l|map('string')|map('length')|sum
'a' in 'abc' == true
s.split(' ')|map('first')|join
s.split(' ')[0].lower().replace('h', 'j')
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y %H:%M %j %A %%')
strftime_now(1)
raise_exception('boom')
raise_exception()
loop
loop is defined
caller is defined
varargs is defined
1.is_integer
f.is_integer()
n.bit_length()
n.real
1 == 1 == 1
1 < 2 == true
(1, 2) == (1, 2)
[1, [2, [3]]] == [1, [2, [3]]]
nested|map('join', '-')|join(';')
p[0].name ~ p[-1]['name']
(p|first).name
(p|map(attribute='age')|list)|sort|last
[l, l]|map('sum')|list
[s, s]|map(attribute='upper')|first is callable
{'a': 1}|length
{'a': 1} is mapping
[1, 2, 3][1:]|join
('a', 'b')|join
'%s' % ((1, 2),)
""".strip().replace("'line\\\\\njoined'", "'line\\\\@@joined'").split("\n")

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


def snippets():
    for e in EXPRESSIONS:
        yield "{{ " + e.replace("@@", "\n") + " }}", CTX
    for t in STATEMENTS:
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
