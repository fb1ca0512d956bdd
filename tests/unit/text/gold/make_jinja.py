"""Renders templates with jinja2 in the settings of HF transformers (utils/chat_template_utils.py) and prints jinja.jsonl.

    python3 make_jinja.py > jinja.jsonl      # jinja2 3.1
"""
import itertools
import json
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception

CONVERSATIONS = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": " be brief \n"}, {"role": "user", "content": "\u00a0a \"q\" \\ \u00e9\u65e5\U0001f600\t"}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}],
    [{"role": "user", "content": "call"},
     {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, 1e22, None, True]}}}]},
     {"role": "tool", "content": "{}", "name": "f"}],
]

# Whitespace control, set and scopes, loops, operators, filters, tests, methods, slices.
EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2 ~ 7 % 3 ~ -7 // 2 ~ -7 % 3 ~ 7 / 2
1 ~ 2 + 3
'a' ~ 1 ~ none ~ true ~ 1.5
1.0 ~ 0.1 ~ 100000.0 * 10000000000000.0 ~ 0.00001
'x' if messages else 'y'
'x' if nothing
('a' 'b') + "c\n\t\\\"\x41\u00e9"
not messages | length == 2
messages | length > 1 and messages[1].role == 'assistant'
'ser' in messages[0].role
'tool_calls' in messages[-1]
'x' not in messages[0]
messages[0]['content'] | trim
messages[0].content | trim ~ '|' ~ messages[-1].content | trim | length
messages[0].content | upper if messages[0].content == 'hello' else 'n'
messages[1:] | length ~ messages[:-1] | length ~ messages[::-1][0].role ~ messages[::2] | length
messages[0].content[0] ~ messages[0].content[-1] ~ messages[0].content[1:3] ~ messages[0].content[::-1]
messages[5] is defined ~ messages[0].nope is defined ~ nope is defined ~ messages is defined
messages is iterable ~ messages is mapping ~ messages[0] is mapping ~ messages[0].role is string ~ 1 is number ~ none is none ~ 1.5 is float ~ 2 is integer ~ true is boolean
messages is sequence ~ 'a' is sequence ~ true is true ~ 1 is true ~ false is false
messages[0] | tojson
messages | tojson
messages[-1] | tojson(indent=2)
messages[0].content | tojson
[1, 'a', none, {'k': [true, 2.5]}] | tojson
[] | tojson(indent=4) ~ {} | tojson
nope | default('d') ~ '' | default('e', true) ~ '' | default('f') ~ nope | d('g')
[1, 2, 3] | join(', ') ~ ['a'] | join ~ 'abc' | join('-')
[3, 4] | first ~ [3, 4] | last ~ 'abc' | first
{'a': 1, 'b': 2} | items | list | length ~ {'a': 1}.get('a') ~ {'a': 1}.get('z', 9) ~ {'a': 1}.get('z')
' x '.strip() ~ '|' ~ ' x '.lstrip() ~ '|' ~ ' x '.rstrip() ~ '|' ~ 'xxaxx'.strip('x') ~ 'abcabc'.rstrip('bc')
'a</think>b'.split('</think>')[-1] ~ 'a,b,c'.split(',', 1)[1] ~ 'a,b'.split(',') | length
'abc'.startswith('ab') ~ 'abc'.endswith('ab') ~ 'AbC'.lower() ~ 'AbC'.upper()
'banana' | replace('an', 'x') ~ 'banana'.replace('a', '')
range(3) | list | join ~ range(1, 4) | list | join ~ range(5, 0, -2) | list | join
(1 == 1.0) ~ ('a' == 1) ~ ([1] == [1]) ~ ({'a': 1} == {'a': 1}) ~ (1 != 2) ~ (true == 1)
('a' < 'b') ~ (2 >= 2) ~ (1.5 <= 1) ~ (3 > 2)
none or 'x' ~ ('' and 'y') ~ (1 and 2) ~ (0 or '')
true and false or true
messages[0]
[1, 2][5]
messages[0].role.nope.deeper
1 + 'a'
tools is none ~ tools is defined
bos_token + eos_token ~ pad_token
{'a': 1}['a'] + [5][0]
loop
- 3 + 5
'a' in ['a', 'b'] and 'c' not in {'a': 1}
(messages | last).role
2 * 3 ~ 'z'
'\u00a0 x\u3000'.strip() ~ '|' ~ '\u00a0 x\u3000' | trim
messages | length - 1
[messages[0].role, messages[0].content] | join(': ')
['a', 'b', 'a'] | reject('equalto', 'a') | join(',') ~ ['a', 'b'] | select('equalto', 'a') | list | length
[0, 1, none, 'x'] | select | join(',') ~ [0, 1, none] | reject('none') | join(',')
messages | selectattr('role', 'equalto', 'user') | list | length ~ messages | rejectattr('role', 'ne', 'user') | list | length
messages | selectattr('tool_calls') | list | length ~ messages | rejectattr('tool_calls', 'defined') | list | length
nope | length
nope ~ 'x'
nope | items | list | length
{'a': 1, 'b': 2, 'a': 3} | tojson ~ {'a': 1, 'a': 2} | length
3 // 0.1 ~ '|' ~ -7.5 // 2 ~ '|' ~ 5.3 % 0.1 ~ '|' ~ -5.3 % 0.1 ~ '|' ~ 0.0 % -2 ~ '|' ~ 7 % -2.5 ~ '|' ~ -0.0 // 3
'x'.strip is defined ~ messages[0].items is defined ~ messages[0].items.x is defined ~ messages[0].update is defined
messages[0].content[99:] ~ '|' ~ 'abc'[:0] ~ '|' ~ 'abc'[-10:2] ~ '|' ~ 'abc'[2:-10:-1] ~ '|' ~ 'abc'[::-2]
2 * 3 ~ 4 + 5
1 - 1 - 1 ~ 2 * 7 % 4 ~ 8 / 2 / 2 ~ 7 // 2 * 2
not 1 == 2 ~ 'x'
1 if true else 2 if true else 3
'a' if false else 'b' if false else 'c'
true + true ~ true / 2 ~ 7 // true
'a' < 'B' ~ 'x'
('\u00e9' > 'z') ~ ('😀' > '\uffff') ~ ('' < 'a')
1 in [1.0] ~ 'x'
none in [none] and not nope in [1]
- 2 | string ~ -messages | length
[[], {}, [[]], {'a': none}] | tojson(indent=1)
'<&>' | tojson ~ '\u2028/\x7f\x00' | tojson
none | default('x') ~ none | upper ~ 1.50 | string ~ true | lower
'a\nb\n'.split('\n') | length ~ 'aXbXc'.split('X', 0) | length ~ 'aXbXc'.split('X', 5) | join
'a b' 'c' ~ "it's"
(9007199254740993 > 9007199254740992) ~ (9007199254740992 < 9007199254740993) ~ (9007199254740993 <= 9007199254740992) ~ (-9007199254740993 >= -9007199254740992)
(9223372036854775807 - 1) ~ '|' ~ 9223372036854775807 // -2 ~ '|' ~ 9223372036854775807 % -10 ~ '|' ~ -9223372036854775807 % 10
'abc'.replace('b', 'x',) ~ [1, 2] | join('-',) ~ range(2,) | list | length
(true > 0) ~ (false < 0.5) ~ (true >= true)
'a'[-1:5] ~ 'abcdef'[4:1:-1] ~ 'abcdef'[-2::-2] ~ [1, 2, 3][5:] | length ~ [1, 2, 3][:-5:-1] | join
'x' ~ ('a' in '') ~ ('' in '') ~ ('' in 'a')
'aaa'.split('aa') | join('|') ~ ';' ~ 'aaa'.replace('aa', 'b') ~ ';' ~ ',a,,b,'.split(',') | length ~ ';' ~ ''.split(',') | length
'\x1c\u2003 x\u200b '.strip() | length ~ 'xyx'.lstrip('yx') | length ~ '\u00e9t\u00e9'.strip('\u00e9') ~ 'a'.strip('')
1 if 0 else 2 if 0 else 3 if 0
[1, [2, {'a': '\u00e9"\n'}]] | tojson(indent=0)
(1 if nope is defined else 2) + 3 * -2 // 4
[none, 0, '', [], {}, 0.0, nope] | select | list | length ~ [none, true] | reject('true') | list | length
[{'a': 1}, {'b': 2}, {'a': none}] | selectattr('a', 'defined') | list | length ~ [{'a': 0}, {'a': 3}] | rejectattr('a') | list | tojson
{'a': {'b': [10, 20]}}.a.b[-1] ~ {'a b': 1}['a b'] ~ {'x': 1}.y is defined
"""

BLOCKS = [
    "{% for m in messages %}\n{{ m.role }}: {{ m.content }}\n{% endfor %}\nend\n",
    "  {% for m in messages %}  \n  {{ m.role }}\n  {% endfor %}  \n",
    "{%- for m in messages -%}\n  {{- m.role -}} \n{%- endfor -%}\n",
    "a {%+ if true %}b{% endif +%}\n c\n\n",
    "a\n   {# comment #}\nb {#- c -#} d\n {%- if 1 %} x {%- endif %} y",
    "\n\n{% if messages %}\n\n x\n{% endif %}\n\n",
    "x\t {% if 1 %}\ty{% endif %}\r\nz\r\n",
    "{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(a=0, b='q') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}<{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}empty{% endfor %}{% for m in nope %}x{% else %}undefined{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for k in messages[0] %}{{ k }}{% endfor %}",
    "{% for k, v in messages[0] | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.index }}{{ a * b }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}[{{ system }}]{{ messages | length }}",
    "{% if not nope is defined %}{% set nope = true %}{% endif %}{% if nope and not tools is not none %}yes{% elif nope %}elif{% else %}no{% endif %}",
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.function is defined %}{% set c = c.function %}{% endif %}{{ c.name }}({{ c.arguments | tojson }}){% endfor %}{% elif m.role == 'tool' %}[{{ m.name }}]{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] | trim + eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    "{% if messages[0]['role'] == 'system' -%}\n    {%- set offset = 1 -%}\n{%- else -%}\n    {%- set offset = 0 -%}\n{%- endif -%}\n{%- for m in messages -%}\n    {%- if m.role == 'user' and loop.index0 % 2 == offset -%}U{%- endif -%}\n{%- endfor -%}\n",
    "{{ '{{' }}{{ \"%}\" }}{{ {'a': {'b': 1}} | tojson }}{% set d = {'k': 'v',} %}{{ d.k }}{{ d['k'] }}",
    "plain } { % # text {} ",
    "{% for x in [] %}{% else %}{% set y = 1 %}{{ y }}{% endfor %}[{{ y }}]",
    "{% for x in [1, 2] %}{% break %}{% else %}left{% endfor %}{% for x in [1, 2] %}{% continue %}{% else %}skipped{% endfor %}",
    "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}never{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [] %}x{% else %}{% break %}{% endfor %}{{ a }}{% endfor %}!",
    "{% for x in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% for y in [1] %}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% set d = {'items': 1, 'get': 2, 'keys': 3} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{{ d['items'] }}{{ d.get('get') }}{{ d.keys() | join }}",
    "{% set ns = namespace(items=1) %}{% set ns.get = 2 %}{{ ns.items }}{{ ns.get }}{{ ns.nope }}",
    "{% for x in [1, 2] %}{% if x == 1 %}{% set y = 5 %}{% endif %}{{ y }},{% endfor %}{{ y }}",
    "{% set x = 9 %}{% for x in [1, 2] %}{{ x }}{% endfor %}{{ x }}",
    "a {#-#} b{#+#}\n c {#--#} d {#- -#}\n e",
    "\u3000{%- if 1 %}\u3000x\u2003{% endif -%}\u00a0 y\r\r\nz",
    "{% set x = messages[0].content if messages[0].content is string else 'list' %}{{ x }}",
    "",
    "\n",
    "{{ 1 }}\n",
    "{{ 1 }}\n\n",
    "{%- set ns = namespace(multi=true, last=messages|length - 1) %}\n{%- for m in messages[::-1] %}\n    {%- set i = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi and m.role == 'user' and not (m.content.startswith('<t>') and m.content.endswith('</t>')) %}\n        {%- set ns.multi = false %}\n        {%- set ns.last = i %}\n    {%- endif %}\n{%- endfor %}\n{{- ns.last }}",
    "{% set ns = namespace(x=10.0) %}{% for i in range(9) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }} {{ -ns.x }} {{ ns.x - ns.x }} {{ [ns.x, -ns.x] | tojson }} {{ -5 // ns.x }} {{ 5 // ns.x }} {{ -5 % ns.x }}",
    "{% for a in [1, 2] if a > 1 %}{{ loop.first }}{{ loop.last }}{{ loop.previtem is defined }}{% endfor %}{{ a is defined }}",
    "{% for a, b in [[1, 2], [3, 4]] if a + b > 3 %}{{ a }}{{ b }}{% endfor %}{% for a in 'hé' %}<{{ a }}>{% endfor %}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% for j in [1] %}{% set x = 3 %}{% endfor %}{{ x }}{% endfor %}{{ x }}",
    "{{- ' a ' -}}\n \n{{ ' b ' }}\n{#- c -#}\n {%- if 1 +%}\n d\n {%+ endif -%}\n e \n{%- set y = 1 -%}\n",
    # macros, set blocks, several names
    "{%- macro show(m, end='') -%}<{{ m.role }}>{{ m.content }}{{ end }}{%- endmacro -%}{% for m in messages %}{{ show(m, end='|') }}{% endfor %}",
    "{% macro a(x, y=2, z=x) %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ a(1) }},{{ a(1, 3) }},{{ a(z=1, x=5) }},{{ a() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{{ f(2) | length }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}{% set x = 3 %}{{ f() }}",
    "{% macro f(a) %}{% for i in a %}{{ loop.index }}{{ i }};{% endfor %}{% endmacro %}{% for i in [[1, 2], [3]] %}{{ f(i) }}{{ loop.index }}|{% endfor %}",
    "{% for i in [1, 2] %}{% macro g(x) %}{{ i }}{{ x }}{% endmacro %}{{ g('a') }}{% endfor %}{{ g is defined }}",
    "{% macro g() %}  a\n  b {% endmacro %}{{ g() | trim | upper }}[{{ g() }}]{{ 'y' if g else 'n' }}{{ g == g }}",
    "{% macro g(x) %}{{ x }}{% endmacro g %}{{ g('a' ~ g('b')) }}",
    "{%- set note %}You may use tools.{% endset %}{{ note }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% set a %}{% for m in messages %}{{ m.role }} {% set b = 1 %}{% endfor %}{% endset %}[{{ a | trim }}]{{ a is string }}{{ b is defined }}",
    "{% set ns = namespace(x=1) %}{% set ns.x %}a{{ 1 + 1 }}{% endset %}{{ ns.x }}{% set y %}{% set z = 1 %}{% endset %}{{ z is defined }}{{ y | length }}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set c, d = ['p', 'q'] %}{{ c }}{{ d }}{% set e = 1, 2 %}{{ e | length }}{{ e[1] }}{{ (1, 2) | tojson }}{{ (1,) | length }}{{ 2 in (1, 2) }}",
    # filters, methods and tests
    "{% for m in messages %}Correct {{ m.role.title() }}: {{ m.role | capitalize }}{{ m.role | title }}{{ m.role.capitalize() }}{% endfor %}",
    "{{ \"it's a-b (c) d3e\".title() }}|{{ \"it's a-b (c) d3e\" | title }}|{{ 'ABC dEF' | capitalize }}|{{ '' | title }}{{ ''.capitalize() }}",
    "{{ messages | map(attribute='role') | join(',') }}|{{ ['a', 'b'] | map('upper') | join }}|{{ [' a '] | map('trim') | first }}|{{ messages | map(attribute='name', default='-') | join(',') }}",
    "{{ [[1, 2], [3]] | map('length') | join('+') }}{{ [{'a': {'b': 1}}, {'a': {}}] | map(attribute='a.b') | join('+') }}{{ ['x'] | map('replace', 'x', 'y') | list | tojson }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb\n' | indent(width=1, blank=true) }}|{{ '' | indent(3) }}|{{ 'x\ny' | indent('> ') }}",
    "{{ 'abc' | reverse }}{{ [1, 2, 3] | reverse | join }}{{ [1, 2] | reverse | list | tojson }}{{ 'h\u00e9' | reverse }}",
    "{{ '42' | int + 1 }} {{ ' 7 ' | int }} {{ '3.9' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 2.7 | int }} {{ -2.7 | int }} {{ true | int }} {{ none | int(default=9) }} {{ '-3' | int }}",
    "{{ '4.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ -3 | abs }} {{ -2.5 | abs }} {{ 4 | abs }}",
    "{{ ' a  b\tc '.split() | join(',') }}|{{ 'a\nb\r\nc\n'.splitlines() | join(',') }}|{{ '-'.join(['a', '', 'b']) }}|{{ ''.join([]) }}|{{ ','.join('abc') }}",
    "{{ 'h\u00e9llo'.find('l') }}{{ 'abc'.find('x') }}{{ 'banana'.count('an') }}{{ '12'.isdigit() }}{{ ''.isdigit() }}{{ '1a'.isdigit() }}",
    "{{ 3 is odd }}{{ 4 is odd }}{{ 0 is even }}{{ -1 is odd }}{{ [1, 2, 3] | select('odd') | list | tojson }}{{ [1, 2, 3] | reject('even') | join }}",
]


def render(template, messages, add_generation_prompt):
    try:
        compiled = ENVIRONMENT.from_string(template)
        return compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt,
                               bos_token="<s>", eos_token="</s>")
    except (jinja2.exceptions.TemplateError, TypeError):
        return None


if __name__ == "__main__":
    templates = ["{{ " + line + " }}" for line in EXPRESSIONS.strip().splitlines()] + BLOCKS
    for template, messages in itertools.product(templates, CONVERSATIONS):
        for prompt in ([True, False] if "add_generation_prompt" in template else [True]):
            text = render(template, messages, prompt)
            json.dump({"template": template, "messages": messages, "add_generation_prompt": prompt, "text": text}, sys.stdout)
            print()
