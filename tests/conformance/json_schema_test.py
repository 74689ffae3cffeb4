"""Our JSON schema grammars accept what the jsonschema library accepts: random texts of each grammar and random documents,
with random schemas of the supported keywords."""
import decimal
import json
import os
import random
import subprocess
import unittest

import jsonschema

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = os.environ.get("ESPALIER_SCHEMA_RUNNER") or os.path.join(HERE, "schema_runner")

PATTERNS = ["^a", "b$", "^[a-c]+$", "a.c", "[0-9]", "^(ab|cd)*$", "\u00e9", "^.{2}$"]
STRINGS = ["", "a", "b", "ab", "abc", "acc", "cd", "abcd", "\u00e9", "a\"\\", "x1", "abab", "a\nb", "\U0001f600"]
NUMBERS = ["0", "1", "-1", "2", "3", "5", "7", "10", "12", "100", "-35", "0.5", "-0.25", "1.5", "2.75", "0.1", "99.99", "12.345"]


def sometimes(chance, schema, **keywords):
    """Each keyword with even odds; its value is made when it is wanted."""
    for key, make in keywords.items():
        if chance.random() < 0.5:
            schema[key] = make()
    return schema


class Maker:
    """Schemas in which the properties' order is the alphabet's, so that documents can keep it."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.defs = {}
        self.exact = True  # whether what is valid is accepted, too, of the documents that `value` makes

    def bounds(self, pick):
        low, high = sorted((pick(), pick()), key=float)
        chance = self.chance
        return sometimes(chance, {}, **{chance.choice(["minimum", "exclusiveMinimum"]): lambda: low,
                                        chance.choice(["maximum", "exclusiveMaximum"]): lambda: high})

    def integer(self):
        schema = {"type": "integer", **self.bounds(lambda: self.chance.randrange(-40, 120))}
        if self.chance.random() < 0.4:
            schema["multipleOf"] = self.chance.choice([1, 2, 5, 7, 0.5])
        return schema

    def number(self):
        schema = {"type": "number", **self.bounds(lambda: float(self.chance.choice(NUMBERS)))}
        if self.chance.random() < 0.3:
            schema["multipleOf"] = self.chance.choice([1, 0.5, 0.25, 0.01, 5, 0.1])
        return schema

    def string(self):
        least = self.chance.randrange(4)
        return sometimes(self.chance, {"type": "string"}, pattern=lambda: self.chance.choice(PATTERNS),
                         minLength=lambda: least, maxLength=lambda: least + self.chance.randrange(4))

    def enumeration(self):
        values = self.chance.sample([1, "a", None, True, "abc", -1, [1], {"a": 2}], 3)
        return self.chance.choice([{"enum": values}, {"const": values[0]}])

    def array(self, depth):
        least = self.chance.randrange(3)
        schema = sometimes(self.chance, {"type": "array"}, minItems=lambda: least,
                           maxItems=lambda: least + self.chance.randrange(3))
        if self.chance.random() < 0.7:
            schema["items"] = self.schema(depth - 1)
        elif self.chance.random() < 0.5:
            self.exact = False  # a list may be valid that ends before they do
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.chance.randrange(1, 3))]
        return schema

    def plain(self):
        """A schema whose contrary is a list of keywords."""
        return self.chance.choice([
            lambda: {"const": self.chance.choice(["a", "ab", True, None])},
            lambda: {"enum": self.chance.sample(["", "b", "abc", False, None], 2)},
            lambda: {"type": self.chance.choice(["string", "boolean", "number", "null", ["string", "null"]])},
            lambda: {"type": "number", "minimum": self.chance.randrange(-5, 9)},
            lambda: {"type": "string", "maxLength": self.chance.randrange(1, 4)},
            lambda: {"anyOf": [{"type": "number", "maximum": 3}, {"const": "a"}]},
            lambda: {"not": {"type": "boolean"}}])()

    def counted(self, depth):
        least = self.chance.randrange(3)
        schema = sometimes(self.chance, {"type": "array", "contains": self.plain()}, minContains=lambda: least,
                           maxContains=lambda: max(1, least) + self.chance.randrange(2),
                           minItems=lambda: self.chance.randrange(3), maxItems=lambda: 3 + self.chance.randrange(2))
        if self.chance.random() < 0.6:
            schema["items"] = self.chance.choice([self.string, self.plain, lambda: {"type": ["string", "boolean", "null"]}])()
        return schema

    def unique(self, depth):
        values = self.chance.sample(["a", "b", "ab", "x1", "", None, True], self.chance.randrange(1, 6))
        return sometimes(self.chance, {"type": "array", "uniqueItems": True,
                                       "items": self.chance.choice([{"enum": values}, {"type": "boolean"}])},
                         minItems=lambda: 1, maxItems=lambda: self.chance.randrange(1, 5))

    def excluding(self, depth):
        """With "not"."""
        kinds = [lambda: {**self.string(), "not": {"enum": self.chance.sample(STRINGS, 3)}},
                 lambda: {"enum": ["a", "b", "abc", None, 7], "not": self.plain()},
                 lambda: {"type": "integer", "minimum": -9, "maximum": 9, "not": {"enum": self.chance.sample(range(-9, 9), 3)}},
                 lambda: {"type": ["string", "integer", "boolean", "null"], "not": self.plain()},
                 lambda: {**self.object(depth, "abc"), "not": {"required": ["a"]}},
                 lambda: {**self.object(depth, "abc"), "not": {"properties": {"b": self.plain()}, "required": ["b"]}}]
        return self.chance.choice(kinds)()

    def condition(self, names):
        name = self.chance.choice(names)
        test = self.chance.choice([{"const": "a"}, {"const": True}, {"enum": ["b", None]}, {"type": "string"}])
        return sometimes(self.chance, {"properties": {name: test}}, required=lambda: [name])

    def conditional(self, depth):
        """With "if", alone or several beside each other, over properties that tell kinds."""
        kinds = {"enum": ["a", "b", "c", True, None]}
        schema = {"type": "object", "properties": {"a": kinds, "b": {"enum": ["a", True, "x"]}, **self.properties("cd", depth)}}
        schema = sometimes(self.chance, schema, required=lambda: self.chance.sample("abc", 2),
                           additionalProperties=lambda: self.chance.choice([False, True]))

        def then():
            return self.chance.choice([{"required": self.chance.sample("bcd", 1)}, {"properties": {"c": False}},
                                       {"properties": {"b": {"const": "a"}}}, {"maxProperties": 3}])

        def one():
            return sometimes(self.chance, {"if": self.condition("ab"), "then": then()}, **{"else": then})
        if self.chance.random() < 0.5:
            return {**schema, **one()}
        return {**schema, "allOf": [one() for _ in range(self.chance.randrange(1, 4))]}

    def dependent(self, depth):
        schema = self.object(depth, "abcd")
        names = sorted(schema["properties"])
        schema["dependentRequired"] = {name: self.chance.sample(names, self.chance.randrange(len(names)))
                                       for name in self.chance.sample(names, min(len(names), 2))}
        return schema

    def properties(self, names, depth):
        return {name: self.schema(depth - 1) for name in sorted(names)}

    def object(self, depth, names="abcd"):
        chosen = self.chance.sample(names, self.chance.randrange(1, len(names) + 1))
        properties = self.properties(chosen, depth)
        schema = {"type": "object", "properties": properties}
        return sometimes(self.chance, schema, additionalProperties=lambda: self.chance.choice([False, False, True]),
                         required=lambda: self.chance.sample(sorted(chosen), self.chance.randrange(len(chosen) + 1)),
                         **({} if self.chance.random() < 0.6 else
                            {"minProperties": lambda: self.chance.randrange(len(chosen) + 1),
                             "maxProperties": lambda: self.chance.randrange(1, 5)}))

    def map(self, depth):
        schema = {"type": "object"}
        if self.chance.random() < 0.5:
            schema["patternProperties"] = {self.chance.choice(PATTERNS): self.schema(depth - 1)}
        if self.chance.random() < 0.5:
            schema["propertyNames"] = {"pattern": self.chance.choice(PATTERNS), "maxLength": 4}
        schema["additionalProperties"] = self.chance.choice([False, self.schema(depth - 1)])
        return sometimes(self.chance, schema, maxProperties=lambda: self.chance.randrange(4))

    def combined(self, depth):
        kind = self.chance.randrange(5)
        if kind == 0:
            # A document made for one branch may be valid under another by properties that have no name there, which our
            # grammars leave out unless they are asked for.
            self.exact = False
            return {"anyOf": [self.schema(depth - 1) for _ in range(2)]}
        if kind == 1:
            return {"allOf": [self.object(depth, "ab"), self.object(depth, "bcd")]}
        if kind == 2:
            make = self.chance.choice([self.integer, self.number, self.string])
            return {"allOf": [make(), make()]}
        if kind == 3:
            schema = self.object(depth, "abcd")
            schema["anyOf"] = [{"required": [name]} for name in self.chance.sample(sorted(schema["properties"]), 1)]
            return schema
        name = f"d{len(self.defs)}"
        self.defs[name] = None  # its place, so that what it holds takes another
        self.defs[name] = self.object(depth, "abc")
        return {"$ref": f"#/$defs/{name}", "properties": self.properties(["e"], depth)}

    def schema(self, depth):
        if depth <= 0 or self.chance.random() < 0.35:
            return self.chance.choice([self.integer, self.number, self.string, self.enumeration, lambda: {"type": "boolean"},
                                       lambda: {"type": ["null", "integer"], "minimum": 3}])()
        return self.chance.choice([self.array, self.object, self.object, self.map, self.combined, self.counted, self.unique,
                                   self.excluding, self.conditional, self.dependent])(depth)

    def value(self, schema, depth=4):
        """A document that may be valid: right in kind, mostly."""
        chance = self.chance
        if not isinstance(schema, dict) or depth < 0 or chance.random() < 0.04:
            return chance.choice([None, True, 1, "a", [], {}])
        if "$ref" in schema:
            target = self.defs[schema["$ref"].rsplit("/", 1)[1]]
            return self.value({**target, "properties": {**target["properties"], **schema["properties"]}}, depth)
        if "allOf" in schema and "type" not in schema:
            parts = schema["allOf"]
            both = {**parts[0], **parts[1]}
            if "properties" in both:
                both["properties"] = dict(sorted({**parts[0]["properties"], **parts[1]["properties"]}.items()))
            return self.value(both, depth)
        if "anyOf" in schema and "type" not in schema:
            return self.value(chance.choice(schema["anyOf"]), depth)
        if "enum" in schema or "const" in schema:
            return chance.choice(schema.get("enum", [schema.get("const")]))
        kind = schema.get("type") or "boolean"
        if isinstance(kind, list):
            return chance.choice([None, True, 3, 4, 2, "a", "abc", ""])
        if kind in ("null", "boolean"):
            return chance.choice([True, False, None])
        if kind == "integer":
            return chance.choice([chance.randrange(-50, 130), int(float(chance.choice(NUMBERS)))])
        if kind == "number":
            return decimal.Decimal(chance.choice(NUMBERS))
        if kind == "string":
            return chance.choice(STRINGS)
        if kind == "array":
            if "contains" in schema or "uniqueItems" in schema:
                return [chance.choice([self.value(schema.get("items", {"type": "boolean"}), depth - 1), "a", True, None, "b"])
                        for _ in range(chance.randrange(5))]
            if "prefixItems" in schema:  # all of these, and no more
                return [self.value(part, depth - 1) for part in schema["prefixItems"]]
            return [self.value(schema.get("items", {"type": "boolean"}), depth - 1) for _ in range(chance.randrange(4))]
        if kind == "object" and "properties" in schema:
            must = schema.get("required", [])
            return {name: self.value(part, depth - 1) for name, part in schema["properties"].items()
                    if chance.random() < (0.95 if name in must else 0.6)}
        if kind == "object":
            part = list(schema.get("patternProperties", {}).values()) + [schema["additionalProperties"]]
            return {name: self.value(chance.choice(part), depth - 1)
                    for name in chance.sample(STRINGS, chance.randrange(3))}
        return chance.choice([True, None, 3, 4, 2])


def dump(value):
    """Compact JSON, decimals as they are."""
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{dump(k)}:{dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dump(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def exactly(text):
    """JSON with numbers as decimals, in which multiples are exact."""
    return json.loads(text, parse_float=decimal.Decimal)


class JsonSchemaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @classmethod
    def tearDownClass(cls):
        cls.process.stdin.close()
        cls.process.wait()
        cls.process.stdout.close()

    def ask(self, schema, texts, count, seed):
        request = {"schema": json.dumps(schema), "texts": texts, "random": count, "seed": seed}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the runner died (exit {self.process.wait()}) on {schema}")
        return json.loads(line)

    def test_random_schemas(self):
        taken = refused = valid = invalid = written = 0
        for seed in range(700):
            maker = Maker(seed)
            schema = maker.schema(3)
            if maker.defs:
                schema = {"$defs": maker.defs, **schema}
            documents = [maker.value(schema) for _ in range(40)]
            texts = [dump(document) for document in documents]
            reply = self.ask(schema, texts, 20, seed)
            if "error" in reply:
                # By name, and only what this library cannot keep or nothing satisfies.
                self.assertRegex(reply["error"], "json_schema: #|no finite text", schema)
                refused += 1
                continue
            taken += 1
            validator = jsonschema.Draft202012Validator(exactly(json.dumps(schema)))
            for text, accepted in zip(texts, reply["accepted"]):
                theirs = validator.is_valid(exactly(text))
                if maker.exact or accepted:
                    self.assertEqual(accepted, theirs, f"seed {seed}: {text} under {json.dumps(schema)}")
                valid, invalid = valid + accepted, invalid + (not theirs)
            for text in reply["random"]:
                errors = [error.message for error in validator.iter_errors(exactly(text))]
                self.assertEqual([], errors, f"seed {seed}: {text} under {json.dumps(schema)}")
                written += 1
        print(f"{taken} schemas taken, {refused} refused; documents: {valid} valid, {invalid} not; {written} texts written")
        self.assertGreater(taken, 2 * refused)
        self.assertGreater(valid, 2000)
        self.assertGreater(invalid, 2000)
        self.assertGreater(written, 5000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
