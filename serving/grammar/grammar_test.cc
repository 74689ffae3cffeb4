#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <regex>

#include "serving/grammar/grammar_test_util.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

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
    GrammarMatcher ours = Regex(text);
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

TEST(Regex, MatchesCodePointsNotBytes) {
  GrammarMatcher one = Regex("[^a]");
  for (const char* text : {"b", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\n"}) {
    EXPECT_TRUE(one.Accepts(text)) << text;
  }
  for (const char* text : {"a", "", "bb", "\xC3", "\xC3\xA9\xC3\xA9", "\xED\xA0\x80", "\xC0\x80",
                           "\xF4\x90\x80\x80"}) {
    EXPECT_FALSE(one.Accepts(text)) << text;
  }
  GrammarMatcher range = Regex("[\\u00e0-\\u{10000}]");
  EXPECT_TRUE(range.Accepts("\xC3\xA9"));
  EXPECT_TRUE(range.Accepts("\xF0\x90\x80\x80"));
  EXPECT_FALSE(range.Accepts("\xF0\x90\x80\x81"));
  EXPECT_FALSE(range.Accepts("\xC3\x9F"));
  // Compare every code point with the definition.
  GrammarMatcher some = Regex("[\\u0750-\\u2345\\ud7f0-\\ue010]");
  for (uint32_t point = 1; point <= kLastCodePoint; point += point < 0xF000 ? 1 : 977) {
    if (point >= 0xD800 && point <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(point, &text);
    const bool expected =
        (point >= 0x750 && point <= 0x2345) || (point >= 0xD7F0 && point <= 0xE010);
    ASSERT_EQ(some.Accepts(text), expected) << point;
  }
}

// ECMAScript and Python differ in spaces, digits and word characters. A complement contains what
// neither language counts among them.
TEST(Regex, ComplementsMatchInBothDialects) {
  const std::string spaces[] = {
      " ",        "\t",           "\n",           "\x1C",         "\x1F",         "\xC2\x85",
      "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\x83", "\xE2\x80\xA8", "\xEF\xBB\xBF", "\xE1\x9A\x80"};
  for (const char* pattern : {"^\\S+$", "^[^\\s]+$", "^[\\S]+$"}) {
    GrammarMatcher visible = Regex(pattern);
    for (const std::string& space : spaces) EXPECT_FALSE(visible.Accepts(space)) << pattern;
    for (const char* text : {"a", "\xC3\xA9", "\xE2\x82\xAC"}) EXPECT_TRUE(visible.Accepts(text));
  }
  // An Arabic digit and a Greek letter are a digit and a letter only in Python.
  for (const char* pattern : {"\\D", "[^\\d]", "\\W", "[^\\w]"}) {
    GrammarMatcher others = Regex(pattern);
    for (const char* text : {"7", "\xD9\xA3", "\xEF\xBC\x97"}) {
      EXPECT_FALSE(others.Accepts(text)) << pattern;
    }
    EXPECT_TRUE(others.Accepts("-")) << pattern;
    EXPECT_TRUE(others.Accepts("\xE2\x82\xAC")) << pattern;
  }
  EXPECT_FALSE(Regex("\\W").Accepts("\xCE\xB1"));
  EXPECT_FALSE(Regex("[^\\w]").Accepts("\xC3\xA9"));
  EXPECT_TRUE(Regex("\\D").Accepts("\xCE\xB1"));
  EXPECT_FALSE(Regex("[^a]").Accepts("a"));
  EXPECT_TRUE(Regex("[^\\S]").Accepts(" "));
  EXPECT_FALSE(Regex("[^\\S]").Accepts("\xC2\xA0")) << "no space to all";
}

TEST(Regex, SyntaxThatDialectsReadDifferentlyIsRefused) {
  GrammarMatcher few = Regex("a{,3}");
  for (const char* text : {"", "a", "aaa"}) EXPECT_TRUE(few.Accepts(text)) << text;
  for (const char* text : {"aaaa", "a{,3}"}) EXPECT_FALSE(few.Accepts(text)) << text;
  EXPECT_TRUE(Regex("a{x}").Accepts("a{x}"));
  EXPECT_FALSE(Regex("a{,}").status.ok());
  EXPECT_FALSE(Regex("a{,3}{2}").status.ok());
  EXPECT_FALSE(Regex("a*{,3}").status.ok());
  for (const char* octal : {"\\01", "a\\012", "[\\07]"}) {
    EXPECT_THAT(std::string(Regex(octal).status.message()), HasSubstr("octal")) << octal;
  }
  EXPECT_TRUE(Regex("\\0a").Accepts(std::string("\0a", 2)));
}

TEST(Regex, CatastrophicPatternsAreCheap) {
  GrammarMatcher evil = Regex("^(a+)+$");
  EXPECT_TRUE(evil.Accepts(std::string(3000, 'a')));
  EXPECT_FALSE(evil.Accepts(std::string(3000, 'a') + "!"));
  EXPECT_LT(evil.table->size(), 10);
  GrammarMatcher star = Regex("(a*)*b?(a|a)*");
  EXPECT_TRUE(star.Accepts(std::string(1000, 'a')));
}

TEST(Regex, ErrorsNamePositionAndReason) {
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
    const GrammarMatcher language = Regex(pattern);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << pattern;
  }
  EXPECT_FALSE(Regex(std::string(100000, '(')).status.ok());
  EXPECT_FALSE(
      Regex("(?:" + std::string(90, '(') + std::string(90, ')') + "{99999}){99999}").status.ok());
}

TEST(Gbnf, ReadsLlamaCppsNotation) {
  GrammarMatcher arithmetic = Gbnf(R"gbnf(
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

TEST(Gbnf, RightRecursionNeedsNoStack) {
  GrammarMatcher list = Gbnf("root ::= \"a\" root | \"b\"");
  EXPECT_TRUE(list.Accepts(std::string(5000, 'a') + "b"));
  EXPECT_LT(list.table->size(), 5);
  GrammarMatcher nested = Gbnf("root ::= \"(\" root \")\" | \"x\"");
  const auto deep = [](int n) { return std::string(n, '(') + "x" + std::string(n, ')'); };
  EXPECT_TRUE(nested.Accepts(deep(LazyAutomaton::kMaxDepth)));
  EXPECT_FALSE(nested.Accepts(deep(LazyAutomaton::kMaxDepth + 2)));
}

TEST(Gbnf, ErrorsNameTheRuleOrTheLine) {
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
    const GrammarMatcher language = Gbnf(text);
    EXPECT_EQ(language.status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(language.status.message()), HasSubstr(word)) << text;
  }
}

// Rules that match no text are never entered, so every prefix can be completed.
TEST(Gbnf, HasNoDeadEnds) {
  GrammarMatcher language =
      Gbnf("root ::= \"a\" forever | \"ab\" | \"ac\" \"x\"\nforever ::= \"b\" forever");
  int state = *language.table->Next(*language.table->Start(), 'a');
  state = *language.table->Next(state, 'b');
  EXPECT_TRUE(language.table->complete(state));
}

TEST(Gbnf, AmbiguityIsBounded) {
  GrammarMatcher language = Gbnf("root ::= s\ns ::= \"a\" s s s | \"a\" s s | \"\"");
  ASSERT_TRUE(language.status.ok()) << language.status;
  absl::StatusOr<int> state = language.table->Start();
  for (int i = 0; i < 5000 && state.ok() && *state != LazyAutomaton::kDead; ++i) {
    state = language.table->Next(*state, 'a');
  }
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("ambiguous"));
}

TEST(Choice, AcceptsExactlyTheTexts) {
  GrammarMatcher choice({.kind = StructuredOutput::kChoice, .choices = {"yes", "no", "not sure"}});
  EXPECT_TRUE(choice.Accepts("no"));
  EXPECT_TRUE(choice.Accepts("not sure"));
  EXPECT_FALSE(choice.Accepts("not"));
  EXPECT_FALSE(GrammarMatcher({.kind = StructuredOutput::kChoice}).status.ok());
}

}  // namespace
}  // namespace espalier
