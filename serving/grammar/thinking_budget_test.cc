// The limit holds by its definition and in whole answers, whatever is drafted.
#include "serving/grammar/thinking_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "serving/engine/engine_test_util.h"
#include "serving/grammar/automaton.h"
#include "serving/grammar/token_masker.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 8;  // a to h, of which h is the end of sequence
constexpr int kEos = 7;

// Tokens with these texts; the last one is the end of sequence.
class TextTokenizer : public LetterTokenizer {
 public:
  explicit TextTokenizer(std::vector<std::string> texts)
      : LetterTokenizer(static_cast<int>(texts.size()) + 1, {static_cast<int>(texts.size())}),
        texts_(std::move(texts)) {}
  std::string TokenBytes(int token) const override {
    return token >= 0 && token < static_cast<int>(texts_.size()) ? texts_[token] : "";
  }
  int TokenId(absl::string_view spelling) const override {
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i] == spelling) return static_cast<int>(i);
    }
    return -1;
  }
  bool IsSpecial(int token) const override {
    return LetterTokenizer::IsSpecial(token) || absl::StartsWith(TokenBytes(token), "<|");
  }
  std::vector<int> Encode(absl::string_view text) const override {
    std::vector<int> tokens;
    for (const char c : text) tokens.push_back(TokenId(std::string(1, c)));
    return tokens;
  }

 private:
  std::vector<std::string> texts_;
};

// Whether the tokens may follow one another. Checks that AllowedTokens and After agree.
bool AllowsSequence(ThinkingBudget& budget, const std::vector<int>& tokens, int vocabulary) {
  TokenConstraint::StateRef place = budget.Start();
  for (const int token : tokens) {
    const TokenBitmaskRef permitted = *budget.AllowedTokens(place);
    for (int other = 0; other < vocabulary && permitted != nullptr; ++other) {
      const bool in = other / 64 < static_cast<int>(permitted->size()) &&
                      ((*permitted)[other / 64] >> other % 64 & 1) != 0;
      EXPECT_EQ(in, budget.After(place, other).ok()) << other;
    }
    absl::StatusOr<TokenConstraint::StateRef> next = budget.After(place, token);
    if (!next.ok()) return false;
    place = *std::move(next);
  }
  return true;
}

TEST(ThinkingBudget, OnlyTheClosingTagFollowsAFullBudget) {
  const auto tokenizer = std::make_shared<TextTokenizer>(std::vector<std::string>{
      "<t>", "</t>", "a", " ", "<", "t", ">", "/", "x</", "\xc3", "\xa9", "<|s|>"});
  const int open = 0, close = 1, a = 2, blank = 3, less = 4, t = 5, more = 6, slash = 7, part = 8,
            lead = 9, tail = 10, special = 11, vocabulary = 13;
  const struct {
    bool in_prompt;
    int tokens;
    std::vector<int> answer;
    bool may;
  } cases[] = {
      // The closing tag may come earlier; then everything is allowed.
      {false, 2, {open, a, close, a, a, a, open, a, a, a, a}, true},
      {false, 2, {blank, open, a, a, close, a, a}, true},
      {false, 2, {open, a, a, a}, false},
      {false, 2, {less, t, more, a, a, a}, false},
      {false, 0, {open, close, a}, true},
      {false, 0, {open, a}, false},
      {true, 0, {close, a, a, a}, true},
      {true, 0, {a}, false},
      {true, 1, {a, close, a, a}, true},
      {true, 1, {a, a}, false},
      {true, std::numeric_limits<int>::max(), {a, a, a}, true},
      // Answers without reasoning have no limit.
      {false, 1, {a, a, a, open, a, a, a}, true},
      {false, 1, {less, less, a, a, a}, true},
      // Special tokens have no text.
      {false, 1, {special, open, special, close, a, a}, true},
      {false, 1, {special, open, a, a}, false},
      // However the tag is tokenized.
      {true, 4, {less, slash, t, more, a, a, a}, true},
      {true, 4, {a, part, t, more, a, a, a}, true},
      {true, 4, {a, part, t, a, a, a}, false},
      // Characters are not split.
      {true, 1, {lead, tail, close, a}, true},
      {true, 1, {lead, close}, true},
      {true, 1, {lead, tail, a}, false},
  };
  for (const auto& c : cases) {
    auto budget =
        ThinkingBudget::Create({"<t>", "</t>", c.in_prompt}, c.tokens, tokenizer, nullptr);
    ASSERT_TRUE(budget.ok());
    EXPECT_EQ(AllowsSequence(**budget, c.answer, vocabulary), c.may)
        << testing::PrintToString(c.answer) << " within " << c.tokens;
  }
}

TEST(ThinkingBudget, ClosingTagOfSeveralTokensIsForcedWhole) {
  const auto tokenizer =
      std::make_shared<TextTokenizer>(std::vector<std::string>{"a", "b", "c", "d"});
  auto budget = *ThinkingBudget::Create({"ab", "cd", true}, 2, tokenizer, nullptr);
  EXPECT_TRUE(AllowsSequence(*budget, {0, 0, 2, 3, 0, 0, 0}, 5));
  EXPECT_TRUE(AllowsSequence(*budget, {0, 2, 2, 3, 0, 0, 0}, 5));  // a started tag does not count
  EXPECT_TRUE(AllowsSequence(*budget, {2, 3, 0, 0, 0}, 5));
  EXPECT_FALSE(AllowsSequence(*budget, {0, 0, 2, 2}, 5));
  EXPECT_FALSE(AllowsSequence(*budget, {0, 0, 3}, 5));
}

TEST(ThinkingBudget, InnerConstraintAppliesAfterTheBudget) {
  const LetterTokenizer tokenizer(kVocabulary, {kEos});
  StructuredOutput form{.kind = StructuredOutput::kRegex, .text = "fe*f"};
  form.reasoning = {"ab", "cd", true};
  auto masker = *TokenMasker::Create(*BuildAutomaton(*GrammarOf(form)),
                                     std::make_shared<TokenTrie>(tokenizer), tokenizer.eos());
  auto budget = *ThinkingBudget::Create(form.reasoning, 2,
                                        std::make_shared<LetterTokenizer>(tokenizer), masker);
  const auto ids = [&](const char* text) { return tokenizer.Encode(text); };
  EXPECT_TRUE(AllowsSequence(*budget, ids("agcdfeef"), kVocabulary - 1));
  EXPECT_TRUE(AllowsSequence(*budget, ids("cdff"), kVocabulary - 1));
  EXPECT_FALSE(AllowsSequence(*budget, ids("agcda"), kVocabulary - 1));
  EXPECT_FALSE(AllowsSequence(*budget, ids("agf"), kVocabulary - 1));
  TokenConstraint::StateRef place = budget->Start();
  for (const int token : ids("agcdff")) {
    EXPECT_FALSE(budget->Complete(place));
    place = *budget->After(place, token);
  }
  EXPECT_TRUE(budget->Complete(place));
}

TEST(ThinkingBudget, TokenTreesRespectTheBudgetAndChangeNoAnswer) {
  constexpr int kMost = 5;
  const auto tokenizer = std::make_shared<LetterTokenizer>(kVocabulary, std::vector<int>{kEos});
  auto logits_processor = std::make_shared<LogitsProcessorOptions>();
  logits_processor->constraint =
      *ThinkingBudget::Create({"ab", "cd", true}, kMost, tokenizer, nullptr);
  for (const double temperature : {0.0, 1.0}) {
    std::vector<std::vector<int>> plain;
    for (const char* expansion : {"", "2,2,1", "1,1,1,1,1,1"}) {
      EngineHarness harness(kVocabulary, {kEos});
      harness.SetLlm(HashModel(11, kVocabulary));
      if (*expansion != 0) {
        harness.AddSsm(
            AgreeingModel(HashModel(11, kVocabulary), HashModel(4, kVocabulary), 0.9, 5));
      }
      EngineOptions options;
      options.speculation.sampled = SampledDrafting::kCoupled;
      ASSERT_TRUE(harness.Start(options, expansion).ok());
      std::vector<RequestId> ids;
      uint64_t seed = 0;
      for (const auto& prompt : RandomPrompts(60, 10, kVocabulary, 3)) {
        ids.push_back(*harness.engine().Submit(
            prompt, {.max_tokens = 40,
                     .sampling = {.temperature = temperature, .seed = ++seed},
                     .reproducible = true,
                     .logits_processor = logits_processor}));
      }
      harness.RunToEnd();
      int closed = 0;
      std::vector<std::vector<int>> answers;
      for (const RequestId id : ids) {
        const Answer& answer = harness.answer(id);
        EXPECT_NE(answer.reason, FinishReason::kError) << answer.error;
        answers.push_back(answer.tokens);
        std::string text;
        for (const int token : answer.tokens) text += static_cast<char>('a' + token);
        const size_t close = text.find("cd");
        if (close == std::string::npos) {
          EXPECT_LE(text.size(), size_t{kMost} + 1) << text;  // it ended before
        } else {
          EXPECT_LE(close, size_t{kMost}) << text;
          ++closed;
        }
      }
      EXPECT_GT(closed, 10);
      if (*expansion == 0) {
        plain = std::move(answers);
      } else {
        EXPECT_EQ(answers, plain) << expansion;
      }
    }
  }
}

}  // namespace
}  // namespace espalier
