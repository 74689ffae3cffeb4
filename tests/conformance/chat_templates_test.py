"""Our evaluator renders chat templates like Jinja2 in transformers' sandbox: templates in the style of well-known models
over many kinds of conversations, and random expressions."""
import glob
import json
import os
import random
import subprocess
import sys
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tokenizer_environment  # noqa: E402

if __name__ == "__main__":
    tokenizer_environment.enter()

import jinja2  # noqa: E402
from jinja2 import nodes  # noqa: E402
from jinja2.ext import Extension, loopcontrols  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = os.environ.get("ESPALIER_TEMPLATE_RUNNER") or os.path.join(HERE, "template_runner")


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: "now:" + format
    return made


TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "Tells \"the\" weather\n<soon> & often",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "Où? 漢字 🏳️‍🌈"},
            "unit": {"enum": ["C", "F", 'q"']}, "days": {"type": "array", "items": {"type": "number"}}},
            "required": ["place"], "x": [1.0, 1e20, 1.5e-7, -0.0, True, None, {}]}}},
    {"type": "function", "function": {"name": "nothing", "parameters": {"type": "object", "properties": {}}, "return": 1}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "n": [1, 2.5]}}}]}
# For templates that join arguments to texts.
CALL_IN_TEXT = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Köln"}'}}]}
CONVERSATIONS = [
    [{"role": "user", "content": "Hello?"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "\n Hé \"you\" <|im_end|> \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb\n"},
     {"role": "user", "content": "漢字\tEND"}, {"role": "assistant", "content": "Bye."}],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": " x "},
     {"role": "user", "content": ""}],
    [{"role": "user", "content": "w?"}, CALL, {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"t\": 20}"},
     {"role": "assistant", "content": "20"}, {"role": "user", "content": "thanks"}],
    [{"role": "user", "content": "w?"}, CALL_IN_TEXT, {"role": "tool", "content": "20"}],
    [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what? "}]}],
    [{"role": "assistant", "content": "first"}], [{"role": "user"}],
    [{"role": "user", "content": "tree", "children": [{"role": "user", "children": [{"role": "leaf"}]}, {"role": "leaf"}]}],
    [],
]

# Values of every kind for expressions.
ATOMS = ["1", "0", "-3", "2.5", "'abc'", "''", "'A b-C d'", "'éÀß漢'", "true", "false", "none", "[1, 2, 3]", "[]", "['b', 'a', 'B']",
         "{'k': 1, 'items': 2}", "{}", "(1, 'x')", "n", "s", "xs", "d", "missing", "xs[0]", "s[1]", "d.a", "d.items()", "range(4)|list",
         "'  pad \\n'", "'a,b,,c'", "[[3, 1], [2]]", "[{'v': 2}, {'v': 1}, {'w': 0}]", "1e16", "1e-7", "10 ** 3", "'%s-%d'"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or", "**"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "string", "int", "float", "abs",
           "reverse|list", "sort", "unique|list", "join", "join('-')", "tojson", "tojson(indent=2)", "default('D')",
           "default('D', true)", "replace('a', 'X')", "indent", "indent(2, true)", "round", "round(1)", "sum", "min", "max", "dictsort",
           "items|list", "map('upper')|list", "map(attribute='v')|list", "select|list", "reject|list", "selectattr('v')|list",
           "rejectattr('v', 'defined')|list", "selectattr('v', 'gt', 1)|list", "batch(2)|list", "truncate(5, true, '.')",
           "map('string')|join(',')", "tojson(sort_keys=true, separators=(',', ':'))", "center(9)", "count"]
TESTS = ["defined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "odd", "even",
         "true", "false", "in xs", "eq 1", "sameas none", "divisibleby 2", "lower", "upper", "callable", "not defined", "not none",
         "gt 1", "undefined"]
METHODS = [".strip()", ".split()", ".split(',')", ".split(' ', 1)", ".upper()", ".startswith('a')", ".endswith(('c', 'd'))",
           ".replace('a', 'bb')", ".find('b')", ".get('k')", ".get('z', 5)", ".keys()|list", ".values()|list", ".lstrip('a')",
           ".rstrip()", ".title()", ".join(['x', 'y'])", ".count('b')", ".rsplit(',', 1)", ".isdigit()", ".splitlines()", ".index(2)",
           ".items()|list", ".capitalize()", ".partition(',')", ".center(7, '*')", ".zfill(5)", ".removeprefix('a')", ".append(1)",
           ".nothing", "[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "['k']", "[5]", ".k"]
VARIABLES = {"n": 7, "s": "hello world", "xs": [1, 2, 3, "four", None], "d": {"a": {"b": [1, {"c": "deep"}]}, "z": 1, "k": "v"}}


def expression(chance, depth):
    if depth == 0 or chance.random() < 0.15:
        return chance.choice(ATOMS)
    inner = lambda: expression(chance, depth - 1)  # noqa: E731
    kind = chance.randrange(9)
    if kind < 2:
        return f"({inner()} {chance.choice(BINARY)} {inner()})"
    if kind < 4:
        return f"({inner()})|{chance.choice(FILTERS)}"
    if kind == 4:
        return f"({inner()} is {chance.choice(TESTS)})"
    if kind < 7:
        return f"({inner()}){chance.choice(METHODS)}"
    if kind == 7:
        return f"({inner()} if {inner()} else {inner()})"
    return f"[{inner()}, {inner()}]"


class ChatTemplatesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore", SyntaxWarning)  # Python's, on what Jinja2 makes of 1[0]
        cls.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.environment = environment()

    @classmethod
    def tearDownClass(cls):
        cls.process.stdin.close()
        cls.process.wait()
        cls.process.stdout.close()

    def ours(self, template, variables):
        request = {"template": template, "variables": json.dumps(variables)}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the runner died (exit {self.process.wait()}) on {template!r}")
        return json.loads(line)

    def theirs(self, template, variables):
        try:
            return {"text": self.environment.from_string(template).render(**variables)}
        except Exception as error:  # noqa: BLE001 - whatever Python raises, a template cannot do it
            return {"error": f"{type(error).__name__}: {error}"}

    def check(self, template, variables):
        ours, theirs = self.ours(template, variables), self.theirs(template, variables)
        if "text" in theirs:
            self.assertEqual(ours.get("text", ours), theirs["text"], template)
        else:
            self.assertIn("error", ours, f"{template}: Jinja2 says {theirs['error']}")
        return ours

    def test_templates_in_the_style_of_models(self):
        paths = sorted(glob.glob(os.path.join(HERE, "templates", "*.jinja")))
        self.assertGreaterEqual(len(paths), 9)
        rendered = 0
        for path in paths:
            with open(path) as file:
                template = file.read()
            for messages in CONVERSATIONS:
                for tools in (None, TOOLS):
                    for more in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}):
                        with self.subTest(path=os.path.basename(path), messages=str(messages)[:80]):
                            reply = self.check(template, {"messages": messages, "tools": tools, "documents": None,
                                                          "bos_token": "<s>", "eos_token": "</s>", **more})
                            rendered += "text" in reply
        self.assertGreater(rendered, 150)

    def test_expressions(self):
        chance = random.Random(23)
        rendered, differing = 0, []
        count = 6000
        noise = ("object at 0x", "dict_", "built-in", "method ", "<class", "j)")
        for _ in range(count):
            template = "{{ " + expression(chance, chance.randrange(1, 4)) + " }}"
            theirs = self.theirs(template, VARIABLES)
            ours = self.ours(template, VARIABLES)
            if "text" in theirs:
                rendered += 1
                # What a generator or a view prints has an address in it, or a name that no template wants.
                # Complex numbers are not for templates either.
                if not any(x in theirs["text"].lower() for x in noise) \
                        and ours.get("text") != theirs["text"]:
                    differing.append((template, ours, theirs))
            # Whether a slice of what has none is undefined or an error depends on what Jinja2 folds at compile time.
            elif "error" not in ours and not any(x in theirs["error"] for x in ("generator", "dict_", "slice", "subscriptable")):
                differing.append((template, ours, theirs))
        self.assertGreater(rendered, count / 5)
        self.assertEqual([], differing[:8], f"{len(differing)} of {count} differ")

    def test_white_space_around_tags(self):
        chance = random.Random(5)
        pieces = ["a", " ", "\n", "  ", "\t", "\n\n", "{{ n }}", "{{- n }}", "{{ n -}}", "{% if n %}", "{%- if n %}", "{% if n -%}",
                  "{%+ if n %}", "{% if n +%}", "{% endif %}", "{%- endif %}", "{% endif -%}", "{# c #}", "{#- c -#}", "{# c +#}",
                  "{% set q = 1 %}", "{%- set q = 1 -%}", "\r\n", "{% raw %} {{ {% endraw %}", "{%- raw -%} x {%- endraw -%}"]
        for _ in range(4000):
            template = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 12)))
            self.check(template, VARIABLES)

    def test_scopes(self):
        for template in [
                "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
                "{% for i in [1] %}{% set y = 1 %}{% endfor %}{{ y is defined }}",
                "{% if true %}{% set y = 1 %}{% endif %}{{ y }}",
                "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
                "{% set x = 5 %}{% macro m(x, y=x) %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, z=4) }}",
                "{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
                "{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
                "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
                "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set n.x = 1 %}", "{{ loop }}", "{% for i in [] %}{% else %}e{{ n }}{% endfor %}",
                "{% for k, v in d.items() %}{{ k }}{% endfor %}", "{% for c in 'añb' %}[{{ c }}]{% endfor %}", "{% for i in 5 %}{% endfor %}",
                "{% for i in missing %}x{% endfor %}", "{{ missing.x }}", "{{ d.missing.x }}", "{{ d['missing'] }}", "{{ raise_exception('no') }}",
                "{{ range(200000) }}", "{{ 'a' 'b' }}", "{{ 1 if false }}", "{{ (1 if false).x }}", "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}",
                "{{ not 1 == 2 }}", "{{ -2 ** 2 }}", "{{ 2 ** 3 ** 2 }}", "{{ 7 // -2 }}{{ -7 % 3 }}", "{{ 1 + 2 ~ 3 * 2 }}", "{{ [1] + [2] }}",
                "{{ 'x' * 3 }}{{ [0] * 2 }}", "{{ '%s is %d %%' % ('a', 2) }}", "{{ '\\u00e9\\n\\x41' }}", "{{ {'a': 1}.a }}{{ {1: 2}[1] }}",
                "{{ ''.__class__ }}", "{{ xs | map('length') | list }}", "{{ messages }}", "{% break %}", "{% foo %}", "{{ x", "{% if %}", "{% endfor %}", "{{ }}",
                "{% for i in [1,2,3] %}{{ i }}{{ loop.revindex }}{{ loop.last }}{% endfor %}", "{{ namespace(a=1).a }}{{ dict(b=2).b }}",
                "{% call(x) m2() %}{{ x }}{% endcall %}", "{% macro m2() %}{{ caller(4) }}{% endmacro %}{% call(x) m2() %}{{ x }}{% endcall %}"]:
            with self.subTest(template=template):
                self.check(template, VARIABLES)

    def test_endless_loops_are_errors(self):
        for template, expected in [
                ("{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}", "RESOURCE_EXHAUSTED"),
                ("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "RESOURCE_EXHAUSTED"),
                ("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "RESOURCE_EXHAUSTED"),
                ("{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}", "too deep"),
                ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deep"), ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too deep"),
                ("{{ " + "+".join(["1"] * 5000) + " }}", "too deep"), ("{{ 'x' * 10 ** 12 }}", "RESOURCE_EXHAUSTED"),
                ("{{ ' ' | center(10 ** 15) }}", "RESOURCE_EXHAUSTED"), ("{{ 'x' | indent(10 ** 15) }}", "RESOURCE_EXHAUSTED"),
                ("{% for i in range(99999) %}{{ '0123456789' * 1000 }}{% endfor %}", "RESOURCE_EXHAUSTED"),
                ("{{ strftime_now('%999999999d') }}", "strftime_now"), ("{{ 9223372036854775807 + 1 }}", "64 bits"),
                ("{% set ns = namespace() %}{% set ns.n = ns %}{% for i in range(9999) %}{% set ns.n = namespace(p=ns.n) %}{% endfor %}done", None)]:
            with self.subTest(template=template[:80]):
                reply = self.ours(template, {})
                self.assertIn(expected or "done", reply.get("error" if expected else "text", str(reply)))

    def test_errors_name_the_line(self):
        reply = self.ours("a\nb\n{{ raise_exception('just so') }}", {})
        self.assertIn("line 3: just so", reply["error"])
        self.assertIn("line 2", self.ours("\n{% unknown %}", {})["error"])
        self.assertIn("'nothing' is undefined", self.ours("{{ nothing.x }}", {})["error"])


if __name__ == "__main__":
    unittest.main()
