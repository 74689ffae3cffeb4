// Literals evaluate as Python evaluates them.
#include "serving/output_parsers/python_literal.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

TEST(PythonLiteralParser, ParsesPythonLiterals) {
  const std::pair<const char*, const char*> cases[] = {
      {"1", "1"},
      {"-1_000", "-1000"},
      {"+2", "2"},
      {"1.5", "1.5"},
      {"1e-3", "0.001"},
      {".5", "0.5"},
      {"99999999999999999999", "1e20"},
      {"True", "true"},
      {"false", "false"},
      {"None", "null"},
      {"'a'", R"("a")"},
      {R"("it's")", R"("it's")"},
      {R"('a\'b\n\x41\u00e9\U0001F600')", R"("a'b\nAé😀")"},
      {R"('\ud83d\ude00')", R"("😀")"},
      {R"('\d')", R"("\\d")"},
      {"'''two\nlines'''", R"("two\nlines")"},
      {"'a' \"b\"", R"("ab")"},
      {"[1, 'x', [],]", R"([1, "x", []])"},
      {"(1, 2)", "[1, 2]"},
      {"(1,)", "[1]"},
      {"(1)", "1"},
      {"()", "[]"},
      {"{'a': {'b': None}, \"c\": [True]}", R"({"a": {"b": null}, "c": [true]})"},
      {" { } ", "{}"}};
  for (const auto& [text, json] : cases) {
    PythonLiteralParser parser(text);
    EXPECT_EQ(parser.Value(), Json::parse(json)) << text;
    EXPECT_FALSE(parser.failed()) << text;
    EXPECT_TRUE(parser.AtEnd()) << text;
  }
}

TEST(PythonLiteralParser, RefusesEverythingElse) {
  for (const std::string& text :
       {std::string(""), std::string("x"), std::string("f(1)"), std::string("1 +"),
        std::string("'a"), std::string("'a\nb'"), std::string(R"('\ud83d')"),
        std::string(R"('\xff)"), std::string("[1 2]"), std::string("{1: 2}"), std::string("{'a'}"),
        std::string("[1,,2]"), std::string("1.2.3"), std::string("--1"), std::string("b'a'"),
        std::string("'\\"), std::string(100'000, '['), std::string("'\xff'")}) {
    PythonLiteralParser parser(text);
    parser.Value();
    EXPECT_TRUE(parser.failed() || !parser.AtEnd()) << text.substr(0, 60);
  }
}

}  // namespace
}  // namespace espalier
