#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "absl/strings/str_cat.h"
#include "serving/grammar/parse_table.h"
#include "serving/grammar/structured_output.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A grammar ready to run, or why not.
struct Language {
  explicit Language(const StructuredOutput& output) {
    absl::StatusOr<Grammar> grammar = GrammarOf(output);
    status = grammar.status();
    if (!status.ok()) return;
    auto automaton = BuildAutomaton(*grammar);
    status = automaton.status();
    if (status.ok()) table = std::make_unique<ParseTable>(*automaton);
  }

  bool Accepts(absl::string_view text) {
    EXPECT_TRUE(status.ok()) << status;
    int state = *table->Start();
    for (size_t i = 0; i < text.size() && state != ParseTable::kDead; ++i) {
      state = *table->Next(state, static_cast<uint8_t>(text[i]));
    }
    return state != ParseTable::kDead && table->accepting(state);
  }

  // A random text: any byte that can follow, ending with some chance where it may. Long ones are
  // cut short by taking the way of the least state number from then on; "" if that does not end.
  std::string Random(std::mt19937& random) {
    std::string text;
    int state = *table->Start();
    for (int length = 0; length < 4000; ++length) {
      if (table->accepting(state) && (table->complete(state) || random() % 3 == 0)) return text;
      std::vector<std::pair<int, uint8_t>> ways;
      for (int byte = 0; byte < 256; ++byte) {
        const int next = *table->Next(state, static_cast<uint8_t>(byte));
        if (next != ParseTable::kDead) ways.emplace_back(next, static_cast<uint8_t>(byte));
      }
      EXPECT_FALSE(ways.empty()) << "a dead end after: " << text;
      if (ways.empty()) return "";
      // Brackets and quotes more often than the hundreds of other bytes.
      std::vector<std::pair<int, uint8_t>> closing;
      for (const auto& way : ways) {
        if (way.second == '"' || way.second == '}' || way.second == ']') closing.push_back(way);
      }
      const auto& from = !closing.empty() && random() % 3 == 0 ? closing : ways;
      const auto& way = from[random() % from.size()];
      text.push_back(static_cast<char>(way.second));
      state = way.first;
    }
    return "";
  }

  absl::Status status;
  std::unique_ptr<ParseTable> table;
};

Language Regex(const std::string& text) {
  return Language({.kind = StructuredOutput::kRegex, .text = text});
}
Language Schema(const std::string& text) {
  return Language({.kind = StructuredOutput::kJsonSchema, .text = text});
}
Language Gbnf(const std::string& text) {
  return Language({.kind = StructuredOutput::kGbnf, .text = text});
}

TEST(Regex, AgreesWithTheStandardLibraryOnRandomPatternsAndTexts) {
  std::mt19937 random(1);
  const std::function<std::string(int)> pattern = [&](int depth) -> std::string {
    const char* atoms[] = {"a", "b", "[ab]", "[^a]", ".", "c", "[a-c]", "\\d", "\\w"};
    if (depth == 0) return atoms[random() % 9];
    switch (random() % 6) {
      case 0:
        return pattern(depth - 1) + "|" + pattern(depth - 1);
      case 1:
        return "(" + pattern(depth - 1) + ")*";
      case 2:
        return "(?:" + pattern(depth - 1) + ")" + (random() % 2 ? "+" : "?");
      case 3:
        return "(" + pattern(depth - 1) + "){1,2}";
      default:
        return pattern(depth - 1) + pattern(depth - 1);
    }
  };
  int accepted = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const std::string text = pattern(3);
    const std::regex oracle(text);
    Language ours = Regex(text);
    ASSERT_TRUE(ours.status.ok()) << text << ": " << ours.status;
    for (int i = 0; i < 60; ++i) {
      std::string word(random() % 7, 0);
      for (char& c : word) c = "abc1"[random() % 4];
      const bool expected = std::regex_match(word, oracle);
      EXPECT_EQ(ours.Accepts(word), expected) << text << " and " << word;
      accepted += expected;
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Regex, UnicodeIsCharactersNotBytes) {
  Language one = Regex("[^a]");
  for (const char* text : {"b", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\n"}) {
    EXPECT_TRUE(one.Accepts(text)) << text;
  }
  for (const char* text : {"a", "", "bb", "\xC3", "\xC3\xA9\xC3\xA9", "\xED\xA0\x80", "\xC0\x80",
                           "\xF4\x90\x80\x80"}) {
    EXPECT_FALSE(one.Accepts(text)) << text;
  }
  Language range = Regex("[\\u00e0-\\u{10000}]");
  EXPECT_TRUE(range.Accepts("\xC3\xA9"));
  EXPECT_TRUE(range.Accepts("\xF0\x90\x80\x80"));
  EXPECT_FALSE(range.Accepts("\xF0\x90\x80\x81"));
  EXPECT_FALSE(range.Accepts("\xC3\x9F"));
  // Every code point once, against the definition.
  Language some = Regex("[\\u0750-\\u2345\\ud7f0-\\ue010]");
  for (uint32_t point = 1; point <= kLastCodePoint; point += point < 0xF000 ? 1 : 977) {
    if (point >= 0xD800 && point <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(point, &text);
    const bool expected =
        (point >= 0x750 && point <= 0x2345) || (point >= 0xD7F0 && point <= 0xE010);
    ASSERT_EQ(some.Accepts(text), expected) << point;
  }
}

TEST(Regex, CatastrophicPatternsCostNothing) {
  Language evil = Regex("^(a+)+$");
  EXPECT_TRUE(evil.Accepts(std::string(3000, 'a')));
  EXPECT_FALSE(evil.Accepts(std::string(3000, 'a') + "!"));
  EXPECT_LT(evil.table->size(), 10);
  Language star = Regex("(a*)*b?(a|a)*");
  EXPECT_TRUE(star.Accepts(std::string(1000, 'a')));
}

TEST(Regex, RefusalsSayWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "not closed"},        {"a)", "closes nothing"},
      {"*a", "nothing to repeat"}, {"a**", "repetition"},
      {"a{2}{3}", "repetition"},   {"[z-a]", "range"},
      {"[a", "not closed"},        {"(?=a)", "look-around"},
      {"(?<!a)b", "look-around"},  {"(a)\\1", "\\1"},
      {"\\bword", "\\b"},          {"\\p{L}", "\\p"},
      {"a{3,1}", "order"},         {"a++", "possessive"},
      {"a^b", "beginning"},        {"(a$)b", "end"},
      {"\\", "backslash"},         {"\\x1", "hexadecimal"},
      {"\\ud800", "surrogate"},    {"a{1,1000000}", "100000"},
      {"\xFF", "UTF-8"},           {"(((a{900}){900}){900})", "200000"}};
  for (const auto& [pattern, word] : cases) {
    const Language language = Regex(pattern);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << pattern;
  }
  EXPECT_FALSE(Regex(std::string(100000, '(')).status.ok());
  EXPECT_FALSE(
      Regex("(?:" + std::string(90, '(') + std::string(90, ')') + "{99999}){99999}").status.ok());
}

TEST(Gbnf, ReadsLlamaCppsNotation) {
  Language arithmetic = Gbnf(R"gbnf(
# sums of products
root   ::= expr "=" [0-9]+ "\n"
expr   ::= term ([-+*/] term)*
term   ::= "(" expr ")" |
           [0-9]{1,3}
)gbnf");
  EXPECT_TRUE(arithmetic.Accepts("(1+2)*333=9\n"));
  EXPECT_TRUE(arithmetic.Accepts("((((7))))=7\n"));
  EXPECT_FALSE(arithmetic.Accepts("(1+2=3\n"));
  EXPECT_FALSE(arithmetic.Accepts("1234=1\n"));
  EXPECT_TRUE(Gbnf("root ::= \"\\u00e9\" [^\\]\\x41] .")
                  .Accepts("\xC3\xA9"
                           "B\n"));
  EXPECT_TRUE(Gbnf("root ::= a\na ::= \"x\" a \"y\" | \"\"").Accepts("xxyy"));
}

TEST(Gbnf, RecursionOnTheRightNeedsNoStack) {
  Language list = Gbnf("root ::= \"a\" root | \"b\"");
  EXPECT_TRUE(list.Accepts(std::string(5000, 'a') + "b"));
  EXPECT_LT(list.table->size(), 5);
  Language nested = Gbnf("root ::= \"(\" root \")\" | \"x\"");
  const auto deep = [](int n) { return std::string(n, '(') + "x" + std::string(n, ')'); };
  EXPECT_TRUE(nested.Accepts(deep(ParseTable::kMaxDepth)));
  EXPECT_FALSE(nested.Accepts(deep(ParseTable::kMaxDepth + 2)));
}

TEST(Gbnf, RefusalsNameTheRuleOrTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no rule 'root'"},
      {"a ::= \"x\"", "no rule 'root'"},
      {"root ::= missing", "'missing'"},
      {"root ::= root \"x\" | \"y\"", "left-recursive"},
      {"root ::= e root \"x\" | \"y\"\ne ::= \"\" | \"e\"", "left-recursive"},
      {"root ::= a\na ::= b\nb ::= a \"x\" | \"y\"", "left-recursive"},
      {"root ::= \"a\" root", "no finite text"},
      {"root ::= \"a\"\nroot ::= \"b\"", "twice"},
      {"root ::= \"a", "not closed"},
      {"root ::= (\"a\"", "not closed"},
      {"root = \"a\"", "::="},
      {"root ::= \"a\"\n  ] ", "line 2"},
      {"root ::= \"a\"{1000000}", "100000"},
      {"root ::= \"\\q\"", "escape"}};
  for (const auto& [text, word] : cases) {
    const Language language = Gbnf(text);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << text;
  }
}

// Rules that lead nowhere are never entered: whatever was read can be finished.
TEST(Gbnf, NoDeadEnds) {
  Language language =
      Gbnf("root ::= \"a\" forever | \"ab\" | \"ac\" \"x\"\nforever ::= \"b\" forever");
  int state = *language.table->Next(*language.table->Start(), 'a');
  state = *language.table->Next(state, 'b');
  EXPECT_TRUE(language.table->complete(state));
}

TEST(Gbnf, AmbiguityIsBounded) {
  Language language = Gbnf("root ::= s\ns ::= \"a\" s s s | \"a\" s s | \"\"");
  ASSERT_TRUE(language.status.ok()) << language.status;
  absl::StatusOr<int> state = language.table->Start();
  for (int i = 0; i < 5000 && state.ok() && *state != ParseTable::kDead; ++i) {
    state = language.table->Next(*state, 'a');
  }
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("ambiguous"));
}

TEST(JsonSchema, EveryTextIsJsonThatTheSchemaAccepts) {
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
  };
  std::mt19937 random(7);
  for (const auto& test : cases) {
    Language language = Schema(test.schema);
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

// Bounds are exact on both sides: nothing is lost that a user wants.
TEST(JsonSchema, IntegerBoundsAreExact) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    int low = static_cast<int>(random() % 4000) - 2000,
        high = static_cast<int>(random() % 4000) - 2000;
    if (low > high) std::swap(low, high);
    Language language =
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

TEST(JsonSchema, AcceptsWhatPeopleWrite) {
  Language person = Schema(R"({"title": "Person", "type": "object", "properties": {
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
  Language any({.kind = StructuredOutput::kJsonObject});
  EXPECT_TRUE(any.Accepts(R"({"a":{"b":[1,2.5e3,"x",null,{}]},"c":""})"));
  EXPECT_FALSE(any.Accepts("[1]"));
  EXPECT_FALSE(any.Accepts(R"({"a":1,})"));
}

TEST(JsonSchema, RefusalsNameTheKeyword) {
  const std::pair<std::string, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "must be an object"},
      {"false", "nothing satisfies"},
      {R"({"type": "thing"})", "no type"},
      {R"({"type": 5})", "#/type"},
      {R"({"type": "string", "pattern": 5})", "#/pattern"},
      {R"json({"type": "string", "pattern": "(?=x)"})json", "look-around"},
      {R"({"type": "string", "pattern": "x", "maxLength": 5})", "#/pattern"},
      {R"({"type": "string", "format": "color"})", "date-time"},
      {R"({"type": "integer", "multipleOf": 3})", "#/multipleOf"},
      {R"({"type": "number", "minimum": 3})", "#/minimum"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no integer"},
      {R"({"type": "array", "uniqueItems": true})", "#/uniqueItems"},
      {R"({"type": "object", "properties": {"a": {"if": {}}}})", "#/properties/a/if"},
      {R"({"type": "object", "required": ["x"], "additionalProperties": false})", "\"x\""},
      {R"({"$ref": "#/$defs/none"})", "#/$ref"},
      {R"({"$ref": "http://example.com/schema"})", "#/$ref"},
      {R"({"$ref": "#"})", "no finite text"},
      {R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
           "$ref": "#/$defs/a"})",
       "no finite text"},
      {R"({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
           "$ref": "#/$defs/a"})",
       "no finite text"},
      {R"({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]})", "overlap"},
      {R"({"allOf": [{"type": "string"}, {"minLength": 3}]})", "#/allOf"},
      {R"({"not": {}})", "#/not"},
      {R"({"enum": []})", "#/enum"},
      {R"({"type": "string", "maxLength": 99999999999})", "#/maxLength"}};
  for (const auto& [text, word] : cases) {
    const Language language = Schema(text);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << text;
  }
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  EXPECT_THAT(std::string(Schema(deep).status.message()), HasSubstr("deep"));
  EXPECT_FALSE(Schema(std::string(100000, '[')).status.ok());
}

TEST(Choice, IsOneOfTheTexts) {
  Language choice({.kind = StructuredOutput::kChoice, .choices = {"yes", "no", "not sure"}});
  EXPECT_TRUE(choice.Accepts("no"));
  EXPECT_TRUE(choice.Accepts("not sure"));
  EXPECT_FALSE(choice.Accepts("not"));
  EXPECT_FALSE(Language({.kind = StructuredOutput::kChoice}).status.ok());
}

}  // namespace
}  // namespace espalier
