#include "serving/grammar/dfa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <regex>

#include "absl/strings/str_cat.h"
#include "serving/grammar/grammar_test_util.h"
#include "serving/grammar/regex.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

DfaBudget* Plenty() {
  static DfaBudget budget;
  budget = 1 << 30;
  return &budget;
}

Dfa Of(const std::string& pattern) {
  GrammarBudget parts;
  absl::StatusOr<Expression> parsed = ParseRegex(pattern, &parts);
  EXPECT_TRUE(parsed.ok()) << pattern << ": " << parsed.status();
  absl::StatusOr<Dfa> dfa = Dfa::From(*parsed, Plenty());
  EXPECT_TRUE(dfa.ok()) << pattern << ": " << dfa.status();
  return dfa.ok() ? *dfa : Dfa();
}

std::string RandomPattern(std::mt19937& random, int depth) {
  const char* atoms[] = {"a", "b", "[ab]", "[^a]", ".", "c", "[a-c]", "\\d", "\\w"};
  if (depth == 0) return atoms[random() % 9];
  switch (random() % 6) {
    case 0:
      return RandomPattern(random, depth - 1) + "|" + RandomPattern(random, depth - 1);
    case 1:
      return "(" + RandomPattern(random, depth - 1) + ")*";
    case 2:
      return "(?:" + RandomPattern(random, depth - 1) + ")" + (random() % 2 ? "+" : "?");
    case 3:
      return "(" + RandomPattern(random, depth - 1) + "){1,2}";
    default:
      return RandomPattern(random, depth - 1) + RandomPattern(random, depth - 1);
  }
}

TEST(Dfa, AndAndWithoutAgreeWithStdRegex) {
  std::mt19937 random(5);
  int in_both = 0, in_one = 0, empty = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const std::string a = RandomPattern(random, 3), b = RandomPattern(random, 3);
    SCOPED_TRACE(absl::StrCat(a, " and ", b));
    const std::regex a_oracle(a), b_oracle(b);
    const absl::StatusOr<Dfa> both = Of(a).And(Of(b), Plenty()),
                              one = Of(a).Without(Of(b), Plenty());
    ASSERT_TRUE(both.ok() && one.ok());
    for (int i = 0; i < 80; ++i) {
      std::string word(random() % 6, 0);
      for (char& c : word) c = "abc1"[random() % 4];
      const bool in_a = std::regex_match(word, a_oracle), in_b = std::regex_match(word, b_oracle);
      ASSERT_EQ(both->Accepts(word), in_a && in_b) << word;
      ASSERT_EQ(one->Accepts(word), in_a && !in_b) << word;
      in_both += in_a && in_b;
      in_one += in_a && !in_b;
      EXPECT_FALSE(both->empty() && in_a && in_b);
    }
    const absl::StatusOr<Dfa> none = both->Without(Of(a), Plenty());
    EXPECT_TRUE(none.ok() && none->empty());
    empty += one->empty();
  }
  EXPECT_GT(in_both, 500);
  EXPECT_GT(in_one, 500);
  EXPECT_GT(empty, 0);
}

TEST(Dfa, AddRulesKeepsTheLanguage) {
  const Dfa dfa = *Of("[a-f\xC3\xA9]{2,5}x*").Without(Of(".*[cd].*x"), Plenty());
  Grammar grammar;
  grammar.rules["root"] = dfa.AddRules("word", OneOf, &grammar);
  auto automaton = BuildAutomaton(grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  LazyAutomaton table(*automaton);
  std::mt19937 random(2);
  int accepted = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string word;
    for (int n = static_cast<int>(random() % 8); n > 0; --n) {
      const char* const letters[] = {"a", "b", "c", "x", "x", "\xC3\xA9", "\xC3\xA8"};
      word += letters[random() % 7];
    }
    int state = *table.Start();
    for (size_t i = 0; i < word.size() && state != LazyAutomaton::kDead; ++i) {
      state = *table.Next(state, static_cast<uint8_t>(word[i]));
    }
    const bool in_table = state != LazyAutomaton::kDead && table.accepting(state);
    ASSERT_EQ(in_table, dfa.Accepts(word)) << word;
    accepted += in_table;
  }
  EXPECT_GT(accepted, 50);
}

TEST(Dfa, MultiplesAgreeWithArithmetic) {
  std::mt19937 random(9);
  const struct {
    int64_t divisor;
    int places;
  } cases[] = {{1, 0}, {7, 0}, {1000, 0}, {997, 0}, {1, 2}, {5, 1}, {25, 2}, {125, 3}, {3, 2}};
  for (const auto& [divisor, places] : cases) {
    SCOPED_TRACE(absl::StrCat(divisor, " / 10^", places));
    const absl::StatusOr<Dfa> multiples = Dfa::Multiples(divisor, places, Plenty());
    ASSERT_TRUE(multiples.ok()) << multiples.status();
    int accepted = 0;
    for (int trial = 0; trial < 4000; ++trial) {
      // A number with some decimal places, and its value in units of the last possible place.
      const int behind = static_cast<int>(random() % (places + 1));
      int64_t value = static_cast<int64_t>(random() % 100'000);
      if (random() % 2 == 0) value = value / divisor * divisor;
      std::string text = absl::StrCat(value);
      if (behind > 0) {
        while (static_cast<int>(text.size()) <= behind) text.insert(0, "0");
        text.insert(text.size() - static_cast<size_t>(behind), ".");
      }
      for (int i = behind; i < places; ++i) value *= 10;
      const bool expected = value % divisor == 0;
      ASSERT_EQ(multiples->Accepts(text), expected) << text;
      ASSERT_EQ(multiples->Accepts("-" + text), expected) << text;
      accepted += expected;
    }
    EXPECT_GT(accepted, 100);
    EXPECT_FALSE(multiples->Accepts("0." + std::string(places + 1, '0')));
    EXPECT_FALSE(multiples->Accepts("0."));
  }
  EXPECT_LT(Dfa::Multiples(1000, 0, Plenty())->size(), 10) << "equal states are one";
}

TEST(Dfa, TooLargeAutomataAreRefusedQuickly) {
  for (const char* pattern : {"(a|b)*a(a|b){20}", "a{50000}", "((a{500}){500}){500}",
                              "(((((a*)*)*)*)*){60000}", "(a?){20000}(b?){20000}"}) {
    GrammarBudget parts;
    const absl::StatusOr<Dfa> dfa = Dfa::From(*ParseRegex(pattern, &parts), Plenty());
    EXPECT_THAT(std::string(dfa.status().message()), HasSubstr("states")) << pattern;
  }
  EXPECT_THAT(std::string(Of("(a{97})*").And(Of("(a{101})*"), Plenty()).status().message()),
              HasSubstr("8000"));
  EXPECT_FALSE(Dfa::Multiples(10'000, 0, Plenty()).ok());
  DfaBudget little = 3'000;
  int made = 0;
  while (Dfa::From(Literal("word"), &little).ok()) ++made;
  EXPECT_GT(made, 3);
  EXPECT_LT(made, 60);
  EXPECT_THAT(std::string(Dfa::From(RuleCall("x"), Plenty()).status().message()),
              HasSubstr("regular"));
}

}  // namespace
}  // namespace espalier
