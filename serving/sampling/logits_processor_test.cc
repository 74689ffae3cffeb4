#include "serving/sampling/logits_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "serving/sampling/logprobs.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNever = -INFINITY;

std::vector<float> Applied(const LogitsProcessorOptions& rules, const std::vector<int>& prompt,
                           const std::vector<int>& answer, const std::vector<int>& path,
                           std::vector<float> logits, std::vector<int> enders = {}) {
  LogitsProcessor ruled(std::make_shared<LogitsProcessorOptions>(rules), prompt, std::move(enders));
  for (const int token : answer) EXPECT_TRUE(ruled.Append(token).ok());
  const absl::Status status = ruled.Apply(path, logits.data(), static_cast<int>(logits.size()));
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

TEST(LogitsProcessorOptions, RepetitionPenaltyCountsPromptAndAnswerOnceEach) {
  EXPECT_THAT(Applied({.repetition_penalty = 2}, {0}, {1, 1}, {2}, {4, -4, 3, 8}),
              ElementsAre(2, -8, 1.5, 8));
}

TEST(LogitsProcessorOptions, PresenceAndFrequencyCountTheAnswerAlone) {
  EXPECT_THAT(Applied({.presence_penalty = 0.5, .frequency_penalty = 0.25}, {0}, {1, 1, 2}, {1, 3},
                      {1, 1, 1, 1}),
              ElementsAre(1, 1 - 0.5 - 0.75, 1 - 0.5 - 0.25, 1 - 0.5 - 0.25));
}

TEST(LogitsProcessorOptions, BiasAllowedAndMinTokens) {
  EXPECT_THAT(Applied({.logit_bias = {{1, 5}, {2, -3}}}, {}, {}, {}, {0, 0, 0}),
              ElementsAre(0, 5, -3));
  EXPECT_THAT(Applied({.logit_bias = {{1, 5}}, .allowed = {2, 0}}, {}, {}, {}, {7, 8, 9}),
              ElementsAre(7, kNever, 9));
  const LogitsProcessorOptions two = {.min_tokens = 2};
  EXPECT_THAT(Applied(two, {}, {0}, {}, {1, 1, 1}, {2}), ElementsAre(1, 1, kNever));
  EXPECT_THAT(Applied(two, {}, {0}, {1}, {1, 1, 1}, {2}), ElementsAre(1, 1, 1));
}

TEST(LogitsProcessorOptions, ABadWordMayBeginButNotEnd) {
  const LogitsProcessorOptions rules = {.bad_words = {{0, 1, 2}, {3}}};
  EXPECT_THAT(Applied(rules, {}, {}, {}, {0, 0, 0, 0}), ElementsAre(0, 0, 0, kNever));
  EXPECT_THAT(Applied(rules, {}, {0}, {1}, {0, 0, 0, 0}), ElementsAre(0, 0, kNever, kNever));
  EXPECT_THAT(Applied(rules, {0, 1}, {}, {}, {0, 0, 0, 0}), ElementsAre(0, 0, 0, kNever))
      << "the prompt is no part of the answer";
}

// However the history is divided between output and tree path, the logits are equal bit for bit;
// greedy speculation relies on it.
TEST(LogitsProcessorOptions, APathCountsLikeOutputTokens) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const LogitsProcessorOptions rules = {.repetition_penalty = 1.3,
                                          .presence_penalty = 0.4,
                                          .frequency_penalty = 0.3,
                                          .min_tokens = 3,
                                          .logit_bias = {{1, 0.7f}},
                                          .bad_words = {{0, 1}, {2, 2, 0}}};
    std::vector<int> history(random() % 8);
    for (int& token : history) token = random() % 5;
    std::vector<float> logits(6);
    for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 100 - 5;
    const std::vector<float> whole = Applied(rules, {0, 4}, history, {}, logits, {5});
    for (size_t cut = 0; cut <= history.size(); ++cut) {
      EXPECT_EQ(Applied(rules, {0, 4}, {history.begin(), history.begin() + cut},
                        {history.begin() + cut, history.end()}, logits, {5}),
                whole);
    }
  }
}

TEST(LogitsProcessorOptions, AllowsSaysOfEachTokenWhatApplyDoes) {
  std::mt19937 random(4);
  const LogitsProcessorOptions rules = {.min_tokens = 3,
                                        .logit_bias = {{1, 0.7f}},
                                        .allowed = {0, 1, 2, 4, 5},
                                        .bad_words = {{0, 1}, {2, 2, 0}, {4}}};
  for (int trial = 0; trial < 500; ++trial) {
    LogitsProcessor ruled(std::make_shared<LogitsProcessorOptions>(rules), {}, {5});
    for (int i = static_cast<int>(random() % 3); i > 0; --i) {
      ASSERT_TRUE(ruled.Append(static_cast<int>(random() % 5)).ok());
    }
    std::vector<int> path(random() % 4);
    for (int& token : path) token = static_cast<int>(random() % 5);
    std::vector<float> logits(6, 1);
    ASSERT_TRUE(ruled.Apply(path, logits.data(), 6).ok());
    for (int token = 0; token < 6; ++token) {
      EXPECT_EQ(ruled.Allows(path, token), logits[token] != -INFINITY) << token;
    }
  }
}

TEST(LogitsProcessorOptions, AllowedTokensAreAllowedWhereverTheyAreInALargeVocabulary) {
  constexpr int kTokens = 300;
  const std::vector<int> allowed = {0, 63, 64, 127, 200};
  const LogitsProcessor ruled(
      std::make_shared<LogitsProcessorOptions>(LogitsProcessorOptions{.allowed = allowed}), {}, {});
  for (int token = 0; token < kTokens; ++token) {
    EXPECT_EQ(ruled.Allows({}, token),
              std::find(allowed.begin(), allowed.end(), token) != allowed.end())
        << token;
  }
}

TEST(LogitsProcessorOptions, ExcludingEverythingIsAnError) {
  LogitsProcessor ruled(std::make_shared<LogitsProcessorOptions>(
                            LogitsProcessorOptions{.allowed = {1}, .bad_words = {{1}}}),
                        {}, {});
  float logits[] = {0, 0};
  const absl::Status status = ruled.Apply({}, logits, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad_words"));
}

TEST(ValidateLogitsProcessor, NamesFieldAndValue) {
  const double nan = std::nan("");
  EXPECT_TRUE(ValidateLogitsProcessor({}, 4).ok());
  const struct {
    LogitsProcessorOptions logits_processor;
    const char* word;
  } cases[] = {{{.repetition_penalty = 0}, "repetition_penalty"},
               {{.repetition_penalty = nan}, "repetition_penalty"},
               {{.presence_penalty = 3}, "presence_penalty"},
               {{.frequency_penalty = nan}, "frequency_penalty"},
               {{.min_tokens = -1}, "min_tokens"},
               {{.logit_bias = {{4, 0}}}, "logit_bias names token 4"},
               {{.logit_bias = {{1, 1000}}}, "logit_bias of token 1"},
               {{.allowed = {-1}}, "allowed_token_ids"},
               {{.bad_words = {{9}}}, "bad_words"}};
  for (const auto& test : cases) {
    EXPECT_THAT(std::string(ValidateLogitsProcessor(test.logits_processor, 4).message()),
                HasSubstr(test.word));
  }
}

TEST(Logprobs, AreOfTheModelsOwnDistribution) {
  const float logits[] = {1, 3, 2, 3, kNever};
  const TokenLogprobs out = LogprobsOf(logits, 5, 2, 3);
  const double z = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_NEAR(out.logprob, 2 - z, 1e-6);
  EXPECT_EQ(out.rank, 3);
  ASSERT_EQ(out.top.size(), 3u);
  EXPECT_EQ(out.top[0].first, 1);
  EXPECT_EQ(out.top[1].first, 3);
  EXPECT_EQ(out.top[2].first, 2);
  EXPECT_NEAR(out.top[0].second, 3 - z, 1e-6);
  EXPECT_TRUE(std::isfinite(LogprobsOf(logits, 5, 4, 0).logprob));
}

}  // namespace
}  // namespace espalier
