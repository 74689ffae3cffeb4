#include "serving/grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "absl/strings/str_cat.h"
#include "serving/grammar/grammar_test_util.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(JsonSchema, EveryTextSatisfiesTheSchema) {
  const struct {
    const char* schema;
    std::function<bool(const Json&)> valid;
  } cases[] = {
      {"{}", [](const Json&) { return true; }},
      {R"({"type": "integer", "minimum": -57, "exclusiveMaximum": 1203})",
       [](const Json& v) { return v.is_number_integer() && v >= -57 && v < 1203; }},
      {R"({"type": ["number", "null"]})",
       [](const Json& v) { return v.is_number() || v.is_null(); }},
      {R"({"type": "string", "minLength": 2, "maxLength": 4})",
       [](const Json& v) {
         int points = 0;
         for (const char c : v.get<std::string>()) points += (c & 0xC0) != 0x80;
         return points >= 2 && points <= 4;
       }},
      {R"({"type": "string", "pattern": "^[\"\\\\\n\u0001a]{3}$"})",
       [](const Json& v) {
         const std::string s = v.get<std::string>();
         return s.size() == 3 && s.find_first_not_of(
                                     "\"\\\n\x01"
                                     "a") == std::string::npos;
       }},
      {R"({"type": "string", "pattern": "b[0-9]"})",
       [](const Json& v) { return std::regex_search(v.get<std::string>(), std::regex("b[0-9]")); }},
      {R"({"enum": ["a\"b", 3, null, {"x": [1]}]})",
       [](const Json& v) {
         return v == "a\"b" || v == 3 || v.is_null() || v == Json({{"x", {1}}});
       }},
      {R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
       [](const Json& v) {
         for (const Json& x : v) {
           if (!x.is_boolean()) return false;
         }
         return v.is_array() && v.size() >= 1 && v.size() <= 3;
       }},
      {R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "null"}})",
       [](const Json& v) {
         return v.size() >= 1 && v[0] == 1 && (v.size() < 2 || v[1].is_null());
       }},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
           "c": {"type": "boolean"}}, "required": ["b"]})",
       [](const Json& v) {
         for (const auto& [key, value] : v.items()) {
           if (key != "a" && key != "b" && key != "c") return false;
         }
         return v["b"].is_null() && v.contains("b") &&
                (!v.contains("a") || v["a"].is_number_integer()) &&
                (!v.contains("c") || v["c"].is_boolean());
       }},
      {R"({"type": "object", "properties": {"ab": {"type": "integer"}},
           "additionalProperties": {"type": "null"}})",
       [](const Json& v) {
         for (const auto& [key, value] : v.items()) {
           if (key == "ab" ? !value.is_number_integer() : !value.is_null()) return false;
         }
         return v.is_object();
       }},
      {R"({"$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
           "required": ["value", "next"]}}, "$ref": "#/$defs/tree"})",
       [](const Json& v) {
         const Json* at = &v;
         while (!at->is_null()) {
           if (!(*at)["value"].is_number_integer()) return false;
           at = &(*at)["next"];
         }
         return true;
       }},
      {R"({"type": "string", "format": "date"})",
       [](const Json& v) { return v.get<std::string>().size() == 10; }},
      {R"({"type": "string", "pattern": "^[a-c\\u00e9\"]+$", "minLength": 3, "maxLength": 5})",
       [](const Json& v) {
         int points = 0;
         for (const char c : v.get<std::string>()) {
           points += (c & 0xC0) != 0x80;
           if (c > 0 && c != '"' && (c < 'a' || c > 'c')) return false;
         }
         return points >= 3 && points <= 5;
       }},
      {R"({"type": "number", "minimum": -0.25, "exclusiveMaximum": 13.5})",
       [](const Json& v) { return v.is_number() && v >= -0.25 && v < 13.5; }},
      {R"({"type": "integer", "minimum": -70, "maximum": 7000, "multipleOf": 35})",
       [](const Json& v) {
         return v.is_number_integer() && v >= -70 && v <= 7000 && v.get<int>() % 35 == 0;
       }},
      {R"({"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}},
           "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})",
       [](const Json& v) {
         const std::regex pattern("^x-[a-z]+$");
         for (const auto& [key, value] : v.items()) {
           const bool fits = key == "a"                        ? value.is_null()
                             : std::regex_search(key, pattern) ? value.is_number_integer()
                                                               : value.is_boolean();
           if (!fits) return false;
         }
         return v.is_object();
       }},
      {R"({"type": "object", "propertyNames": {"pattern": "^[ab]+$", "maxLength": 3},
           "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})",
       [](const Json& v) {
         for (const auto& [key, value] : v.items()) {
           if (!std::regex_match(key, std::regex("[ab]{1,3}"))) return false;
         }
         return v.is_object() && v.size() >= 1 && v.size() <= 2;
       }},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"},
           "c": {"type": "null"}, "d": {"type": "null"}}, "required": ["c"],
           "minProperties": 2, "maxProperties": 3})",
       [](const Json& v) { return v.contains("c") && v.size() >= 2 && v.size() <= 3; }},
      {R"({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "boolean"},
           "a": {"maximum": 9}}, "required": ["b"]}],
           "$defs": {"base": {"type": "object", "properties": {"a": {"type": "integer",
           "minimum": 5}}, "required": ["a"]}}})",
       [](const Json& v) {
         return v.size() == 2 && v["a"].is_number_integer() && v["a"] >= 5 && v["a"] <= 9 &&
                v["b"].is_boolean();
       }},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       [](const Json& v) { return v.is_object() && v.size() >= 1; }},
      {R"({"type": "array", "items": [{"type": "integer"}, {"type": "null"}],
           "additionalItems": {"type": "boolean"}, "maxItems": 3})",
       [](const Json& v) {
         return v.size() >= 2 && v.size() <= 3 && v[0].is_number_integer() && v[1].is_null() &&
                (v.size() < 3 || v[2].is_boolean());
       }},
  };
  std::mt19937 random(7);
  for (const auto& test : cases) {
    GrammarMatcher language = Schema(test.schema);
    ASSERT_TRUE(language.status.ok()) << test.schema << ": " << language.status;
    int whole = 0;
    for (int trial = 0; trial < 120; ++trial) {
      const std::string text = language.Random(random);
      if (text.empty()) continue;
      ++whole;
      ASSERT_TRUE(IsValidUtf8(text));
      const Json value = Json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << test.schema << " gave " << text;
      EXPECT_TRUE(test.valid(value)) << test.schema << " gave " << text;
    }
    EXPECT_GT(whole, 40) << test.schema;
  }
}

// Bounds are exact on both sides: no permitted value is lost.
TEST(JsonSchema, IntegerBoundsAreExact) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    int low = static_cast<int>(random() % 4000) - 2000,
        high = static_cast<int>(random() % 4000) - 2000;
    if (low > high) std::swap(low, high);
    GrammarMatcher language =
        Schema(absl::StrCat(R"({"type":"integer","minimum":)", low, R"(,"maximum":)", high, "}"));
    for (int value = -2100; value <= 2100; value += 1 + static_cast<int>(random() % 5)) {
      EXPECT_EQ(language.Accepts(absl::StrCat(value)), value >= low && value <= high)
          << value << " in " << low << ".." << high;
    }
    EXPECT_TRUE(language.Accepts(absl::StrCat(low)));
    EXPECT_TRUE(language.Accepts(absl::StrCat(high)));
    EXPECT_FALSE(language.Accepts(absl::StrCat(low - 1)));
    EXPECT_FALSE(language.Accepts(absl::StrCat(high + 1)));
  }
}

TEST(JsonSchema, AcceptsUsualDocuments) {
  GrammarMatcher person = Schema(R"({"title": "Person", "type": "object", "properties": {
      "name": {"type": "string", "description": "full name"},
      "age": {"type": "integer", "minimum": 0},
      "tags": {"type": "array", "items": {"type": "string"}}},
      "required": ["name", "age"], "additionalProperties": false})");
  EXPECT_TRUE(person.Accepts(R"({"name":"Ada \u00e9 é","age":36})"));
  EXPECT_TRUE(
      person.Accepts("{\n  \"name\": \"x\",\n  \"age\": 0,\n  \"tags\": [\"a\", \"b\"]\n}"));
  EXPECT_FALSE(person.Accepts(R"({"name":"Ada"})"));
  EXPECT_FALSE(person.Accepts(R"({"age":36,"name":"Ada"})")) << "the schema's order is kept";
  EXPECT_FALSE(person.Accepts(R"({"name":"Ada","age":36,"x":1})"));
  EXPECT_FALSE(person.Accepts(R"({"name":"Ada","age":-1})"));
  EXPECT_FALSE(person.Accepts(R"({"name":"Ada","age":036})"));
  GrammarMatcher any({.kind = StructuredOutput::kJsonObject});
  EXPECT_TRUE(any.Accepts(R"({"a":{"b":[1,2.5e3,"x",null,{}]},"c":""})"));
  EXPECT_FALSE(any.Accepts("[1]"));
  EXPECT_FALSE(any.Accepts(R"({"a":1,})"));
}

// As pydantic writes a tagged union of models.
TEST(JsonSchema, AcceptsDiscriminatedUnionsByReference) {
  GrammarMatcher zoo = Schema(R"({"$defs": {
      "Cat": {"properties": {"kind": {"const": "cat", "default": "cat", "title": "Kind"},
                             "friend": {"discriminator": {"propertyName": "kind"},
                                        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}},
              "title": "Cat", "type": "object"},
      "Dog": {"properties": {"kind": {"enum": ["dog", "puppy"]}, "age": {"type": "integer"}},
              "required": ["kind", "age"], "type": "object"}},
      "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                        "propertyName": "kind"},
      "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]})");
  EXPECT_TRUE(zoo.Accepts(R"({"kind": "cat"})"));
  EXPECT_TRUE(zoo.Accepts(R"({"kind": "puppy", "age": 3})"));
  EXPECT_TRUE(zoo.Accepts(
      R"({"kind": "cat", "friend": {"kind": "cat", "friend": {"kind": "dog", "age": 1}}})"));
  EXPECT_FALSE(zoo.Accepts(R"({"kind": "cat", "age": 3})"));
  EXPECT_FALSE(zoo.Accepts(R"({"kind": "dog"})"));
  EXPECT_FALSE(zoo.Accepts(R"({})")) << "nothing tells which it is";
}

TEST(JsonSchema, KeywordsBesideRefApply) {
  GrammarMatcher tree =
      Schema(R"({"$ref": "#/$defs/node", "required": ["name"], "description": "root",
      "$defs": {"node": {"type": "object", "additionalProperties": false,
                "properties": {"name": {"$ref": "#/$defs/name", "maxLength": 4},
                               "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
                "name": {"type": "string", "pattern": "^[A-Z]"}}})");
  EXPECT_TRUE(tree.Accepts(R"({"name": "Root"})"));
  EXPECT_TRUE(tree.Accepts(R"({"name": "R", "children": [{}, {"name": "X", "children": []}]})"));
  EXPECT_FALSE(tree.Accepts(R"({"children": []})"));
  EXPECT_FALSE(tree.Accepts(R"({"name": "Roots"})"));
  EXPECT_FALSE(tree.Accepts(R"({"name": "root"})"));
  EXPECT_FALSE(tree.Accepts(R"({"name": "R", "children": [{"name": "lower"}]})"));
}

TEST(JsonSchema, NotExcludesValues) {
  GrammarMatcher word =
      Schema(R"({"type": "string", "maxLength": 3, "not": {"enum": ["no", "nö", 3]}})");
  for (const char* text : {R"("")", R"("n")", R"("not")", R"("nö!")"})
    EXPECT_TRUE(word.Accepts(text));
  for (const char* text : {R"("no")", R"("nö")", R"("n\u00f6")", R"("four")"}) {
    EXPECT_FALSE(word.Accepts(text)) << text;
  }
  GrammarMatcher port =
      Schema(R"({"type": "integer", "minimum": 1, "maximum": 9, "not": {"enum": [1, 5, 6.0]}})");
  for (int i = 0; i <= 10; ++i) {
    EXPECT_EQ(port.Accepts(absl::StrCat(i)), i >= 2 && i <= 9 && i != 5 && i != 6) << i;
  }
  GrammarMatcher kinds =
      Schema(R"({"not": {"anyOf": [{"type": ["string", "number"]}, {"const": null}]}})");
  for (const char* text : {"true", "[1]", R"({"a":1})"}) EXPECT_TRUE(kinds.Accepts(text)) << text;
  for (const char* text : {"null", R"("a")", "1", "1.5"}) EXPECT_FALSE(kinds.Accepts(text)) << text;
  GrammarMatcher either = Schema(R"({"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "integer"}}, "not": {"required": ["a", "b"]}})");
  EXPECT_TRUE(either.Accepts(R"({"a":1})"));
  EXPECT_TRUE(either.Accepts("{}"));
  EXPECT_FALSE(either.Accepts(R"({"a":1,"b":2})"));
  GrammarMatcher without = Schema(R"({"type": "object", "not": {"required": ["secret"]}})");
  EXPECT_TRUE(without.Accepts(R"({"a":{"secret":1}})"));
  EXPECT_FALSE(without.Accepts(R"({"secret":1})"));
}

// As people write schemas of forms.
TEST(JsonSchema, IfThenElseOnAPropertyApplies) {
  GrammarMatcher address = Schema(R"({"type": "object",
      "properties": {"country": {"enum": ["US", "NL", "FR"]}, "code": {"type": "string"}},
      "required": ["country", "code"], "additionalProperties": false,
      "allOf": [
        {"if": {"properties": {"country": {"const": "US"}}},
         "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}}},
        {"if": {"properties": {"country": {"const": "NL"}}, "required": ["country"]},
         "then": {"properties": {"code": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}},
         "else": {"properties": {"code": {"maxLength": 5}}}}]})");
  ASSERT_TRUE(address.status.ok()) << address.status;
  EXPECT_TRUE(address.Accepts(R"({"country":"US","code":"12345"})"));
  EXPECT_TRUE(address.Accepts(R"({"country":"NL","code":"1234 AB"})"));
  EXPECT_TRUE(address.Accepts(R"({"country":"FR","code":"any"})"));
  EXPECT_FALSE(address.Accepts(R"({"country":"US","code":"1234 AB"})"));
  EXPECT_FALSE(address.Accepts(R"({"country":"NL","code":"12345"})"));
  EXPECT_FALSE(address.Accepts(R"({"country":"FR","code":"longer"})"));
  EXPECT_FALSE(address.Accepts(R"({"code":"12345"})"));
  GrammarMatcher amount = Schema(R"({"type": "integer", "minimum": 0, "maximum": 40,
      "if": {"minimum": 20}, "then": {"multipleOf": 10}, "else": {"multipleOf": 5}})");
  for (int i = -1; i <= 50; ++i) {
    EXPECT_EQ(amount.Accepts(absl::StrCat(i)), i >= 0 && i <= 40 && i % (i >= 20 ? 10 : 5) == 0)
        << i;
  }
}

TEST(JsonSchema, SeveralAnyOfApplyTogether) {
  GrammarMatcher both = Schema(R"({"type": "object", "properties": {"a": {"type": "null"},
      "b": {"type": "null"}, "c": {"type": "null"}}, "allOf": [
      {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
      {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]}]})");
  ASSERT_TRUE(both.status.ok()) << both.status;
  EXPECT_TRUE(both.Accepts(R"({"b":null})"));
  EXPECT_TRUE(both.Accepts(R"({"a":null,"c":null})"));
  EXPECT_FALSE(both.Accepts(R"({"a":null})"));
  EXPECT_FALSE(both.Accepts(R"({"c":null})"));
}

TEST(JsonSchema, ContainsAndUniqueItemsCountItems) {
  GrammarMatcher flags = Schema(R"({"type": "array", "items": {"enum": ["r", "w", "x", "r"]},
      "uniqueItems": true, "minItems": 1})");
  EXPECT_TRUE(flags.Accepts(R"(["w","r","x"])"));
  EXPECT_TRUE(flags.Accepts(R"(["x"])"));
  for (const char* text : {"[]", R"(["r","r"])", R"(["w","r","w"])", R"(["a"])"}) {
    EXPECT_FALSE(flags.Accepts(text)) << text;
  }
  // Compare every array of up to five of three kinds of items with counting.
  const struct {
    const char* bounds;
    int least_ones, most_ones, least, most;
  } cases[] = {{"", 1, 99, 0, 99},
               {R"(,"minContains": 2, "maxContains": 3)", 2, 3, 0, 99},
               {R"(,"minContains": 0, "maxContains": 1, "minItems": 2)", 0, 1, 2, 99},
               {R"(,"minContains": 2, "minItems": 1, "maxItems": 4)", 2, 99, 1, 4}};
  for (const auto& test : cases) {
    GrammarMatcher language =
        Schema(absl::StrCat(R"({"type": "array", "contains": {"const": 1})", test.bounds,
                            R"(, "items": {"type": "integer", "minimum": 0, "maximum": 2}})"));
    ASSERT_TRUE(language.status.ok()) << language.status;
    for (int length = 0, count = 1; length <= 5; ++length, count *= 3) {
      for (int number = 0; number < count; ++number) {
        std::string text = "[";
        int ones = 0;
        for (int i = 0, left = number; i < length; ++i, left /= 3) {
          absl::StrAppend(&text, i > 0 ? "," : "", left % 3);
          ones += left % 3 == 1;
        }
        EXPECT_EQ(language.Accepts(text + "]"), ones >= test.least_ones && ones <= test.most_ones &&
                                                    length >= test.least && length <= test.most)
            << text << "] with " << test.bounds;
      }
    }
  }
  GrammarMatcher tuple = Schema(
      R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}],
      "items": {"type": "null"}, "contains": {"type": ["number", "null"]}, "minContains": 2})");
  ASSERT_TRUE(tuple.status.ok()) << tuple.status;
  EXPECT_TRUE(tuple.Accepts(R"(["a",1,null])"));
  EXPECT_FALSE(tuple.Accepts(R"(["a",1])"));
}

TEST(JsonSchema, DependentRequiredApplies) {
  GrammarMatcher card = Schema(R"({"type": "object", "properties": {"a": {"type": "null"},
      "b": {"type": "null"}, "c": {"type": "null"}}, "additionalProperties": false,
      "dependentRequired": {"a": ["b", "a"], "b": ["c"]}, "maxProperties": 3})");
  ASSERT_TRUE(card.status.ok()) << card.status;
  for (int set = 0; set < 8; ++set) {
    Json object = Json::object();
    for (int i = 0; i < 3; ++i) {
      if ((set >> i & 1) != 0) object[std::string(1, static_cast<char>('a' + i))] = nullptr;
    }
    const bool fine = ((set & 1) == 0 || (set & 2) != 0) && ((set & 2) == 0 || (set & 4) != 0);
    EXPECT_EQ(card.Accepts(object.dump()), fine) << object;
  }
  GrammarMatcher open = Schema(R"({"type": "object", "dependentRequired": {"a": ["b"]}})");
  EXPECT_TRUE(open.Accepts(R"({"x":1})"));
  EXPECT_FALSE(open.Accepts(R"({"a":1})"));
  EXPECT_TRUE(open.Accepts(R"({"b":1,"a":2})") || open.Accepts(R"({"a":1,"b":2})"));
}

TEST(JsonSchema, NumberBoundsApply) {
  GrammarMatcher share = Schema(R"({"type": "number", "minimum": 0, "maximum": 1})");
  for (const char* text : {"0", "1", "0.5", "1.0", "0.00000000000001", "0.999"}) {
    EXPECT_TRUE(share.Accepts(text)) << text;
  }
  for (const char* text : {"-0.5", "1.1", "2", "10", "1.00000000000001", "1e0", ".5", "00.5"}) {
    EXPECT_FALSE(share.Accepts(text)) << text;
  }
  GrammarMatcher price = Schema(R"({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01})");
  for (const char* text : {"0.01", "19.9", "20", "1234567.89"}) {
    EXPECT_TRUE(price.Accepts(text)) << text;
  }
  for (const char* text : {"0", "0.00", "0.001", "-1"}) EXPECT_FALSE(price.Accepts(text)) << text;
  GrammarMatcher quarters = Schema(R"({"type": "number", "multipleOf": 0.25, "maximum": 2e0})");
  for (const char* text : {"0", "-0.75", "1.5", "1.50", "2", "2.00", "-13.25"}) {
    EXPECT_TRUE(quarters.Accepts(text)) << text;
  }
  for (const char* text : {"0.3", "2.25", "1.55"}) EXPECT_FALSE(quarters.Accepts(text)) << text;
  GrammarMatcher thousands = Schema(R"({"type": "integer", "multipleOf": 1000})");
  EXPECT_TRUE(thousands.Accepts("-123456789000"));
  EXPECT_FALSE(thousands.Accepts("1001"));
}

TEST(JsonSchema, FormatsAcceptOnlyTheirTexts) {
  const struct {
    const char *format, *good, *bad;
  } cases[] = {{"uuid", "01234567-89ab-cdef-0123-456789abcdef", "01234567"},
               {"date-time", "2024-02-28T23:59:59.5+01:00", "2024-02-30T00:00:00Z"},
               {"duration", "P1DT2H30M", "P1D2H"},
               {"duration", "P3W", "P"},
               {"ipv4", "192.168.0.255", "192.168.0.256"},
               {"ipv6", "2001:db8::1", "1:2:3:4:5:6:7"},
               {"ipv6", "1:2:3:4:5:6:7:8", "1::2::3"},
               {"uri", "https://example.com:80/a/b%20c?q=1#x", "example.com"},
               {"email", "a.b@example.org", "a.b@"}};
  for (const auto& [format, good, bad] : cases) {
    GrammarMatcher language =
        Schema(absl::StrCat(R"({"type": "string", "format": ")", format, "\"}"));
    EXPECT_TRUE(language.Accepts(absl::StrCat("\"", good, "\""))) << format << " " << good;
    EXPECT_FALSE(language.Accepts(absl::StrCat("\"", bad, "\""))) << format << " " << bad;
  }
}

// Schemas whose merging would grow exponentially.
TEST(JsonSchema, HostileMergesAreBounded) {
  std::string defs;
  for (int i = 0; i < 60; ++i) {
    const std::string next = absl::StrCat(R"({"$ref": "#/$defs/d)", i + 1, R"("})");
    absl::StrAppend(&defs, i > 0 ? "," : "", R"("d)", i, R"(": {"properties": {"a": {"allOf": [)",
                    next, ",", next, R"(, {"minProperties": )", i, R"(}]}, "b": {"allOf": [)", next,
                    R"(, {"maxProperties": )", i, "}]}}}");
  }
  absl::StrAppend(&defs, R"(,"d60": {"type": "null"})");
  const GrammarMatcher language =
      Schema(absl::StrCat(R"({"$ref": "#/$defs/d0", "$defs": {)", defs, "}}"));
  EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument);
  const GrammarMatcher grows = Schema(R"({"$defs": {"a": {"properties": {"x": {"allOf":
      [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}}, "b": {"properties": {"x": {"allOf":
      [{"$ref": "#/$defs/a"}, {"properties": {"y": {"$ref": "#/$defs/b"}}}]}}}},
      "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]})");
  if (!grows.status.ok()) {
    EXPECT_EQ(grows.status.code(), absl::StatusCode::kInvalidArgument);
  }
  // Many small costs add up.
  std::string patterns, parts, multiples, conditions, dependent;
  for (int i = 0; i < 2000; ++i) {
    const char* const comma = i > 0 ? "," : "";
    absl::StrAppend(&patterns, comma, R"("^)", i, R"((a|b)*a(a|b){8}$": {"type": "null"})");
    absl::StrAppend(&parts, comma, R"({"properties": {"p)", i, R"(": {"type": "null"}}})");
    absl::StrAppend(&multiples, comma, R"("p)", i, R"(": {"type": "integer", "multipleOf": 7)",
                    i % 1000, "}");
    if (i >= 100) continue;
    absl::StrAppend(&conditions, comma, R"({"if": {"properties": {"p)", i,
                    R"(": {"const": 1}}, "required": ["p)", i, R"("]}, "then": {"required": ["q)",
                    i, R"("]}})");
    absl::StrAppend(&dependent, comma, R"("p)", i, R"(": ["q)", i, R"("])");
  }
  for (const std::string& schema : {absl::StrCat(R"({"patternProperties": {)", patterns, "}}"),
                                    absl::StrCat(R"({"allOf": [)", parts, "]}"),
                                    absl::StrCat(R"({"properties": {)", multiples, "}}"),
                                    absl::StrCat(R"({"allOf": [)", conditions, "]}"),
                                    absl::StrCat(R"({"dependentRequired": {)", dependent, "}}")}) {
    const GrammarMatcher many = Schema(schema);
    EXPECT_EQ(many.status.code(), absl::StatusCode::kInvalidArgument) << schema.substr(0, 80);
  }
}

// An unescaped key is never a prefix of a name that needs escapes.
TEST(JsonSchema, NamesWithEscapesDoNotAffectOtherKeys) {
  GrammarMatcher language = Schema(
      "{\"type\":\"object\",\"properties\":{\"a\\\"b\":{\"type\":\"integer\"},"
      "\"c\\\\d\":{\"type\":\"integer\"},\"e\\nf\":{\"type\":\"integer\"},\"gh\":{\"type\":"
      "\"null\"}},"
      "\"additionalProperties\":{\"type\":\"integer\"}}");
  ASSERT_TRUE(language.status.ok()) << language.status;
  for (const char* text : {R"({"a"":1})", R"({"a":1,"a"":1})", R"({"c\":1})", R"({"c\x":1})",
                           "{\"e\n\":1}", R"({"gh":1})"}) {
    EXPECT_FALSE(language.Accepts(text)) << text;
  }
  for (const char* text : {R"({"a\"b":1})", R"({"c\\d":1,"e\nf":2})", R"({"a":1,"c":1,"e":2})",
                           R"({"gh":null,"g":1,"ghi":2})", R"({"":1})"}) {
    EXPECT_TRUE(language.Accepts(text)) << text;
  }
}

TEST(JsonSchema, OneOfAcceptsBranchesWithDisjointValues) {
  GrammarMatcher levels =
      Schema(R"({"oneOf": [{"const": "low", "title": "Low"}, {"enum": ["mid", 1]},
      {"const": "high"}, {"const": null}, {"type": "boolean"}]})");
  ASSERT_TRUE(levels.status.ok()) << levels.status;
  for (const char* text : {R"("low")", R"("mid")", "1", "null", "true"}) {
    EXPECT_TRUE(levels.Accepts(text)) << text;
  }
  EXPECT_FALSE(levels.Accepts(R"("none")"));
  GrammarMatcher beside = Schema(R"({"oneOf": [{"const": "auto"}, {"const": "none"},
      {"type": "integer", "minimum": 1}]})");
  ASSERT_TRUE(beside.status.ok()) << beside.status;
  EXPECT_TRUE(beside.Accepts("12"));
  for (const char* same : {R"({"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]})",
                           R"({"oneOf": [{"const": {"a":1,"b":2}}, {"const": {"b":2,"a":1}}]})",
                           R"({"oneOf": [{"const": "a"}, {"type": "string"}]})",
                           R"({"oneOf": [{"const": 1}, {"type": "number"}]})"}) {
    EXPECT_THAT(std::string(Schema(same).status.message()), HasSubstr("overlap")) << same;
  }
}

TEST(JsonSchema, ReferencesMayBePercentEncoded) {
  GrammarMatcher language = Schema(R"({"$defs": {"a b": {"type": "integer"}, "x%y": {"const": "%"},
      "p/q": {"const": "/"}, "é": {"const": "e"}}, "type": "array", "prefixItems": [
      {"$ref": "#/$defs/a%20b"}, {"$ref": "#/%24defs/x%25y"}, {"$ref": "#/$defs/p~1q"},
      {"$ref": "#/$defs/%C3%A9", "type": "string"}, {"$ref": "#/$defs/a b"}]})");
  ASSERT_TRUE(language.status.ok()) << language.status;
  EXPECT_TRUE(language.Accepts(R"([1,"%","/","e",2])"));
  for (const char* bad : {"#/$defs/a%2", "#/$defs/a%zzb", "#/$defs/a%00b", "#/$defs/%FF"}) {
    const GrammarMatcher refused =
        Schema(absl::StrCat(R"({"$defs": {"a b": {}}, "$ref": ")", bad, R"("})"));
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr("$ref")) << bad;
  }
}

TEST(JsonSchema, PropertyNamesWithoutStringsAllowNoName) {
  for (const char* names : {R"({"enum": [1, null]})", R"({"const": 7})"}) {
    GrammarMatcher language = Schema(absl::StrCat(
        R"({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": )",
        names, "}"));
    if (!language.status.ok()) continue;  // the error is that there are no texts
    EXPECT_TRUE(language.Accepts("{}")) << names;
    EXPECT_FALSE(language.Accepts(R"({"a":1})")) << names;
  }
}

TEST(JsonSchema, ErrorsNameTheKeyword) {
  const std::pair<std::string, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "must be an object"},
      {"false", "nothing satisfies"},
      {R"({"type": "thing"})", "no type"},
      {R"({"type": 5})", "#/type"},
      {R"({"type": "string", "pattern": 5})", "#/pattern"},
      {R"json({"type": "string", "pattern": "(?=x)"})json", "look-around"},
      {R"({"type": "string", "pattern": "^x{9}$", "maxLength": 5})", "no text"},
      {R"({"type": "string", "pattern": "^x+$", "maxLength": 90000})", "states"},
      {R"({"type": "integer", "multipleOf": 0})", "greater than 0"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6})", "no multiple"},
      {R"({"type": "number", "multipleOf": 1234567})", "#/multipleOf"},
      {R"({"type": "number", "minimum": "3"})", "#/minimum"},
      {R"({"type": "number", "exclusiveMinimum": 3, "maximum": 3})", "no number"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no integer"},
      {R"({"type": "array", "uniqueItems": true})", "#/uniqueItems"},
      {R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})", "#/uniqueItems"},
      {R"({"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "uniqueItems": true})",
       "#/uniqueItems"},
      {R"({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1},
           "uniqueItems": true})",
       "#/uniqueItems"},
      {R"({"type": "array", "contains": {"pattern": "a"}, "maxContains": 1})",
       "#/contains: pattern"},
      {R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 1})",
       "#/maxContains"},
      {R"({"type": "array", "contains": {"const": 1}, "minContains": 3, "maxItems": 2})",
       "#/contains"},
      {R"({"type": "array", "contains": {"const": 1}, "minContains": 99, "maxItems": 99})",
       "#/contains"},
      {R"({"type": "object", "minProperties": 2})", "minProperties"},
      {R"({"type": "object", "properties": {"a": {}}, "minProperties": 2})", "minProperties"},
      {R"({"type": "object", "patternProperties": {"^a": {}, "b$": {}}})", "two of the patterns"},
      {R"({"type": "object", "patternProperties": {"^a": {}}, "properties": {"ab": {}}})",
       "\"ab\""},
      {R"({"type": "object", "propertyNames": {"maxLength": 2}, "properties": {"abc": {}}})",
       "\"abc\""},
      {R"({"type": "object", "dependentRequired": {"a": "b"}})", "#/dependentRequired/a"},
      {R"({"type": "object", "dependentSchemas": {"a": {}}})", "#/dependentSchemas"},
      {R"({"type": "object", "properties": {"a": {"if": {"pattern": "x"}, "then": {}}}})",
       "#/properties/a/if: pattern"},
      {R"({"type": "integer", "if": {"minimum": 3}, "then": {"type": "string"},
           "else": {"type": "null"}})",
       "#/if"},
      {R"({"not": {"type": "integer"}})", "#/not: type"},
      {R"({"type": "number", "not": {"const": 1}})", "#/not"},
      {R"({"type": "boolean", "not": {"enum": [true, false]}})", "#/not"},
      {R"({"type": "integer", "minimum": 1, "maximum": 2, "not": {"enum": [1, 2]}})", "#/not"},
      {R"({"type": "string", "not": {"pattern": "a"}})", "#/not: pattern"},
      {R"({"type": "object", "required": ["x"], "additionalProperties": false})", "\"x\""},
      {R"({"$ref": "#/$defs/none"})", "#/$ref"},
      {R"({"$ref": "http://example.com/schema"})", "#/$ref"},
      {R"({"$id": "http://e/whole", "$ref": "#/$defs/item", "$defs": {"q": {"type": "string"},
           "item": {"$id": "http://e/item", "$defs": {"q": {"type": "integer"}},
                    "properties": {"p": {"$ref": "#/$defs/q"}}}}})",
       "\"http://e/item\""},
      {R"({"$ref": "#"})", "no finite text"},
      {R"({"$ref": "#", "required": ["a"]})", "leads back to itself"},
      {R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
           "$ref": "#/$defs/a"})",
       "no finite text"},
      {R"({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
           "$ref": "#/$defs/a"})",
       "no finite text"},
      {R"({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]})", "overlap"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "#/allOf/1: type"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "pattern: it occurs in several"},
      {R"({"allOf": [{"not": {}}]})", "#/allOf/0/not"},
      {R"({"allOf": [false, {}]})", "nothing satisfies"},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"required": ["b"],
           "properties": {"b": {}}}]})",
       "\"b\""},
      {R"({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}},
           "$ref": "#/$defs/a"})",
       "no finite text"},
      {R"({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
           "$defs": {"a": {"properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"]},
           "b": {"properties": {"k": {"const": "y"}}, "required": ["k"]}}})",
       "overlap"},
      {R"({"type": "string", "const": 3})", "#/const"},
      {R"({"oneOf": [{"properties": {"v": {"const": 1}}, "required": ["v"]},
                     {"properties": {"v": {"const": 1.0}}, "required": ["v"]}]})",
       "overlap"},
      {R"({"not": {}})", "#/not"},
      {R"({"enum": []})", "#/enum"},
      {R"({"type": "string", "maxLength": 99999999999})", "#/maxLength"}};
  for (const auto& [text, word] : cases) {
    const GrammarMatcher language = Schema(text);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << text;
  }
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  EXPECT_THAT(std::string(Schema(deep).status.message()), HasSubstr("deep"));
  EXPECT_FALSE(Schema(std::string(100000, '[')).status.ok());
}

}  // namespace
}  // namespace espalier
