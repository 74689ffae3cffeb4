#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "serving/distillation/distillation_prompts.h"
#include "serving/distillation/distillation_samples.h"
#include "serving/distillation/evaluate_drafts.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWidth = 2;
constexpr int32_t kNone = DistillationRound::kIgnored;

// Two samples, and one and a half.
std::vector<DistillationPrompt> TwoPrompts() {
  return {{{1, 2}, {3, 4, 5, 6}, {}, {}}, {{7}, {8, 9, 1}, {}, {}}};
}

TEST(DistillationSamples, TheFirstRoundTrainsOnEveryTokenOfTheContinuationsAndOnNoPrompt) {
  const std::vector<DistillationPrompt> prompts = TwoPrompts();
  EXPECT_EQ(CountSamples(prompts, kWidth), 4);
  const DistillationRound round = MakeRound(prompts, kWidth);
  EXPECT_EQ(round.rows, 2);
  EXPECT_EQ(round.columns, 5);
  EXPECT_EQ(round.samples, 4);
  EXPECT_THAT(round.tokens, ElementsAre(1, 2, 3, 4, 5, 7, 8, 9, 0, 0));
  EXPECT_THAT(round.targets, ElementsAre(kNone, 3, 4, 5, 6, 8, 9, 1, kNone, kNone));
}

TEST(DistillationSamples, ASampleIsLearnedOnlyIfAllTokensAgree) {
  std::vector<DistillationPrompt> prompts = TwoPrompts();
  EXPECT_EQ(MarkLearned({true, true, true, false}, kWidth, 1, &prompts[0]), 1);
  EXPECT_THAT(prompts[0].learned_by, ElementsAre(1, 0));
  EXPECT_EQ(MarkLearned({false, true, true}, kWidth, 1, &prompts[1]), 1) << "a short last sample";
  EXPECT_THAT(prompts[1].learned_by, ElementsAre(0, 1));
}

TEST(DistillationSamples, TheNextRoundKeepsTheShapeWithoutLearnedSamples) {
  std::vector<DistillationPrompt> prompts = TwoPrompts();
  MarkLearned({true, true, true, true}, kWidth, 1, &prompts[0]);
  MarkLearned({true, true, false}, kWidth, 1, &prompts[1]);
  EXPECT_EQ(CountLeft(prompts, kWidth), 1);
  const DistillationRound round = MakeRound(prompts, kWidth);
  EXPECT_EQ(round.rows, 1) << "a prompt of which all is learned is left out";
  EXPECT_EQ(round.columns, 5) << "the graph stays the same";
  EXPECT_EQ(round.samples, 1);
  EXPECT_THAT(round.tokens, ElementsAre(7, 8, 9, 0, 0)) << "what was learned is still context";
  EXPECT_THAT(round.targets, ElementsAre(kNone, kNone, 1, kNone, kNone));
}

TEST(DistillationSamples, ALearnedSampleKeepsItsSsm) {
  std::vector<DistillationPrompt> prompts = TwoPrompts();
  MarkLearned({true, true, false, false}, kWidth, 1, &prompts[0]);
  EXPECT_EQ(MarkLearned({true, true, true, true}, kWidth, 2, &prompts[0]), 1);
  EXPECT_THAT(prompts[0].learned_by, ElementsAre(1, 2));
  EXPECT_EQ(CountLeft(prompts, kWidth), 2);
  EXPECT_EQ(MarkLearned({}, kWidth, 2, &prompts[1]), 0) << "one that was not scored";
}

TEST(DistillationSamples, SoftLabelsAreTheLikelyTokensAndTheDrawnOneBeyondThem) {
  std::vector<DistillationPrompt> prompts = TwoPrompts();
  prompts[1].likely = {{{8, 0.5f}, {4, 0.25f}}, {{3, 0.75f}, {4, 0.125f}}, {{1, 1.0f}, {2, 0.0f}}};
  MarkLearned({false, false, true}, kWidth, 1, &prompts[1]);  // the third token
  MarkLearned({true, true, true, true}, kWidth, 1, &prompts[0]);
  const DistillationRound round = MakeRound(prompts, kWidth, 2);
  ASSERT_EQ(round.rows, 1);
  ASSERT_EQ(round.soft, 3);
  EXPECT_THAT(round.targets, ElementsAre(8, 9, kNone, kNone, kNone));
  // 8 was sampled and is likely; 9 was sampled and is not.
  EXPECT_THAT(round.soft_tokens, ElementsAre(8, 4, 0, 3, 4, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(round.soft_weights,
              ElementsAre(0.5f, 0.25f, 0, 0.75f, 0.125f, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_TRUE(MakeRound(prompts, kWidth).soft_tokens.empty());
}

// The expectation of the weighted sum of any function of the token is its mean under the LLM.
TEST(DistillationSamples, SoftLabelsEstimateTheWholeDistributionWithoutBias) {
  const std::vector<double> distribution = {0.4, 0.3, 0.2,
                                            0.1};  // of tokens 0 to 3; two of them likely
  double mean = 0, expected = 0;
  for (int drawn = 0; drawn < 4; ++drawn) {
    const std::vector<DistillationPrompt> prompts = {{{0}, {drawn}, {}, {{{0, 0.4f}, {1, 0.3f}}}}};
    const DistillationRound round = MakeRound(prompts, 1, 2);
    for (size_t i = 0; i < round.soft_tokens.size(); ++i) {
      const double value = 1 + round.soft_tokens[i] * round.soft_tokens[i];
      mean += distribution[static_cast<size_t>(drawn)] *
              static_cast<double>(round.soft_weights[i]) * value;
    }
    expected += distribution[static_cast<size_t>(drawn)] * (1 + drawn * drawn);
  }
  EXPECT_NEAR(mean, expected, 1e-6);
}

TEST(DistillationPromptsOfList, KeepsTheLastTokensAndNamesWhatIsWrong) {
  const LetterTokenizer tokenizer(26);
  const PromptLimits limits{.max_tokens = 3, .max_prompts = 2};
  const auto prompts = PromptsOfList(R"(["ab", "abcde", "z"])", tokenizer, limits);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
  const auto error = [&](const std::string& json) {
    const absl::Status status = PromptsOfList(json, tokenizer, limits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(status.message());
  };
  EXPECT_THAT(error("[]"), HasSubstr("at least one"));
  EXPECT_THAT(error("{\"a\": 1}"), HasSubstr("JSON list"));
  EXPECT_THAT(error("[\"a\""), HasSubstr("JSON list"));
  EXPECT_THAT(error(R"(["a", 3])"), HasSubstr("prompts[1]"));
  EXPECT_THAT(error(R"(["a", ""])"), HasSubstr("prompts[1]"));
  EXPECT_FALSE(PromptsOfList(std::string(100000, '['), tokenizer, limits).ok()) << "deep nesting";
}

TEST(DistillationPromptsOfText, TakesPiecesAtEvenDistances) {
  const LetterTokenizer tokenizer(26);
  const auto prompts =
      PromptsOfText("abcdefghijklmnopqrst", tokenizer, {.max_tokens = 4, .max_prompts = 2});
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(10, 11, 12, 13)));
  EXPECT_THAT(std::string(PromptsOfText("abc", tokenizer, {.max_tokens = 4}).status().message()),
              HasSubstr("3 bytes"));
}

class DraftEvaluation : public ::testing::Test {
 protected:
  static constexpr int kVocabulary = 12;
  static constexpr int kTokens = 12;

  DraftEvaluation()
      : base_(HashModel(7, kVocabulary)), llm_(FakeModelRunner::LargeLimits(kVocabulary), base_) {
    for (int i = 0; i < 10; ++i)
      prompts_.push_back({i % kVocabulary, (3 * i + 1) % kVocabulary, 5});
    options_.expansion = *Expansion::Parse("1,1,1");
    options_.max_requests = 3;
  }
  FakeModelRunner Ssm(double agreement, uint64_t seed) {
    return FakeModelRunner(FakeModelRunner::LargeLimits(kVocabulary),
                           AgreeingModel(base_, DisagreeingModel(base_), agreement, seed));
  }
  std::vector<DistillationPrompt> Continued() {
    std::vector<DistillationPrompt> continued;
    for (const std::vector<int>& prompt : prompts_) {
      continued.push_back({prompt, GreedyContinuation(base_, prompt, kTokens), {}, {}});
    }
    return continued;
  }
  std::vector<std::vector<bool>> Score(FakeModelRunner& model,
                                       const std::vector<DistillationPrompt>& prompts) {
    auto agrees = ScoreContinuations(&model, tokenizer_, options_, prompts, kWidth,
                                     [](int64_t, int64_t) { return absl::OkStatus(); });
    EXPECT_TRUE(agrees.ok()) << agrees.status();
    return *std::move(agrees);
  }
  double Worth(std::vector<ModelRunner*> ssms) {
    auto worth = MeasureDrafts(&llm_, ssms, tokenizer_, options_, prompts_, kTokens, {},
                               [](int64_t, int64_t) { return absl::OkStatus(); });
    EXPECT_TRUE(worth.ok()) << worth.status();
    EXPECT_EQ(worth->tokens, static_cast<int64_t>(prompts_.size()) * (kTokens - 1));
    return worth->tokens_per_verification();
  }

  const LetterTokenizer tokenizer_{kVocabulary};
  FakeModel base_;
  FakeModelRunner llm_;
  std::vector<std::vector<int>> prompts_;
  EngineOptions options_;
};

TEST_F(DraftEvaluation, ATokenAgreesExactlyWhereTheModelWouldGenerateIt) {
  const FakeModel model = AgreeingModel(base_, HashModel(8, kVocabulary), 0.5, 3);
  FakeModelRunner runner(FakeModelRunner::LargeLimits(kVocabulary), model);
  const std::vector<DistillationPrompt> prompts = Continued();
  const auto agrees = Score(runner, prompts);
  int agreed = 0, all = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    ASSERT_EQ(agrees[p].size(), prompts[p].continuation.size());
    std::vector<int> path = prompts[p].prompt;
    for (size_t t = 0; t < prompts[p].continuation.size(); ++t) {
      const int token = prompts[p].continuation[t];
      EXPECT_EQ(agrees[p][t], GreedyContinuation(model, path, 1)[0] == token)
          << "prompt " << p << ", token " << t;
      path.push_back(token);
      agreed += agrees[p][t] ? 1 : 0;
      ++all;
    }
  }
  EXPECT_GT(agreed, 0);
  EXPECT_LT(agreed, all);
}

TEST_F(DraftEvaluation, TheLlmHasLearnedAllAndADisagreeingModelNothing) {
  std::vector<DistillationPrompt> prompts = Continued();
  FakeModelRunner same = Ssm(1, 1), contrary = Ssm(0, 1);
  for (const std::vector<bool>& agrees : Score(same, prompts)) {
    EXPECT_THAT(agrees, ::testing::Each(true));
  }
  for (const std::vector<bool>& agrees : Score(contrary, prompts)) {
    EXPECT_THAT(agrees, ::testing::Each(false));
  }
}

TEST_F(DraftEvaluation, PromptsWithoutASampleThatIsLeftAreNotLookedAt) {
  std::vector<DistillationPrompt> prompts = Continued();
  prompts[4].learned_by.assign(kTokens / kWidth, 1);
  FakeModelRunner ssm = Ssm(1, 1);
  const auto agrees = Score(ssm, prompts);
  EXPECT_TRUE(agrees[4].empty());
  EXPECT_EQ(agrees[5].size(), static_cast<size_t>(kTokens));
}

TEST_F(DraftEvaluation, DraftsAreWorthWhatTheyAgreeAndMergedTreesMoreThanEither) {
  FakeModelRunner contrary = Ssm(0, 1), half = Ssm(0.5, 1), other = Ssm(0.5, 2), same = Ssm(1, 1);
  EXPECT_EQ(Worth({&contrary}), 1);
  const double one = Worth({&half}), two = Worth({&other});
  EXPECT_GT(one, 1);
  EXPECT_GT(Worth({&half, &other}), std::max(one, two));
  EXPECT_GT(Worth({&same}), 3) << "a chain of three and the token after it";
}

TEST_F(DraftEvaluation, AnErrorOfTheListenerEndsIt) {
  FakeModelRunner ssm = Ssm(1, 1);
  const auto worth = MeasureDrafts(
      &llm_, {&ssm}, tokenizer_, options_, prompts_, kTokens, {}, [](int64_t done, int64_t total) {
        EXPECT_EQ(total, 10);
        return done < 2 ? absl::OkStatus() : absl::CancelledError("no");
      });
  EXPECT_EQ(worth.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace espalier
