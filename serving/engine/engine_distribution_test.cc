// The distribution of whole outputs, through scheduler, drafters, LLM step and verification:
// chi-square test against the product of the model's own distributions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "serving/engine/engine_test_util.h"

namespace espalier {
namespace {

constexpr int kVocabulary = 4;
constexpr int kAnswer = 3;
constexpr int kDraws = 100000;
// Fewer draws under a sanitizer, which find its kind of error as well.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kLongDraws = 100000;
#else
constexpr int kLongDraws = 1000000;
#endif
constexpr int kCells = 64;  // kVocabulary ^ kAnswer

const std::vector<int>& Prompt() {
  static const std::vector<int>& prompt = *new std::vector<int>{2, 0, 1};
  return prompt;
}

using Rules = std::shared_ptr<const LogitsProcessorOptions>;

std::vector<double> ExpectedDistribution(const FakeModel& model, const SamplingParameters& sampling,
                                         const Rules& rules) {
  std::vector<double> distribution(kCells, 1);
  for (int cell = 0; cell < kCells; ++cell) {
    std::vector<int> path = Prompt();
    LogitsProcessor answer(rules, Prompt(), {});
    for (int i = 0, rest = cell; i < kAnswer; ++i, rest /= kVocabulary) {
      std::vector<float> logits = model(path);
      EXPECT_TRUE(answer.Apply({}, logits.data(), kVocabulary).ok());
      EXPECT_TRUE(answer.Append(rest % kVocabulary).ok());
      distribution[cell] *=
          (*SamplingDistribution(logits.data(), kVocabulary, sampling))[rest % kVocabulary];
      path.push_back(rest % kVocabulary);
    }
  }
  return distribution;
}

// The cell of the output for each seed 0, 1, ..., draws - 1.
std::vector<int> Answers(const FakeModel& llm, const std::vector<FakeModel>& ssms,
                         const char* expansion, SamplingParameters sampling, const Rules& rules,
                         const SpeculationOptions& speculation, int draws) {
  EngineHarness harness(kVocabulary);
  harness.SetLlm(llm);
  for (const FakeModel& ssm : ssms) harness.AddSsm(ssm);
  // By this clock, drafts are cheap at times and expensive at others.
  double now = 0;
  int64_t llm_steps = 0, ssm_steps = 0;
  EngineOptions options{.max_requests = 32};
  options.speculation = speculation;
  options.seconds = [&] {
    const bool dear = llm_steps / 500 % 2 == 1;
    now += static_cast<double>(harness.llm().steps() - llm_steps);
    llm_steps = harness.llm().steps();
    if (!ssms.empty()) {
      now += (dear ? 3 : 0.05) * static_cast<double>(harness.ssm(0).steps() - ssm_steps);
      ssm_steps = harness.ssm(0).steps();
    }
    return now;
  };
  EXPECT_TRUE(harness.Start(options, expansion).ok());
  struct Open {
    int seed;
    std::vector<int> tokens;
  };
  std::map<RequestId, Open> open;
  std::vector<int> cells(draws, 0);
  int64_t accepted = 0;
  for (int submitted = 0, finished = 0; finished < draws;) {
    for (; submitted < draws && submitted < finished + 64; ++submitted) {
      sampling.seed = submitted;
      const absl::StatusOr<RequestId> id =
          harness.engine().Submit(Prompt(), {.max_tokens = kAnswer,
                                             .sampling = sampling,
                                             .reproducible = submitted % 4 == 0,
                                             .logits_processor = rules});
      EXPECT_TRUE(id.ok()) << id.status();
      if (!id.ok()) return cells;
      open[*id].seed = submitted;
    }
    EXPECT_TRUE(harness.engine().Step().ok());
    for (const RequestEvent& event : harness.engine().TakeEvents()) {
      Open& answer = open[event.id];
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (!event.finished) continue;
      ++finished;
      accepted += event.usage.accepted_tokens;
      cells[answer.seed] =
          answer.tokens[0] + kVocabulary * (answer.tokens[1] + kVocabulary * answer.tokens[2]);
      open.erase(event.id);
    }
  }
  if (speculation.tune) {
    EXPECT_GT(harness.engine().statistics().drafted_tokens, draws / 10);
    if (ssms.size() == 1 && speculation.ngram.depth == 0) {
      EXPECT_GT(harness.engine().statistics().speculation.tuned_off, 100);
    }
  }
  const bool always = !ssms.empty() && !speculation.tune;
  // The SSM applies no logits processors here, so fewer of its drafts are accepted with them.
  EXPECT_GT(accepted, always                        ? draws / (rules != nullptr ? 8 : 4)
                      : speculation.ngram.depth > 0 ? 100
                                                    : -1);
  return cells;
}

std::vector<int64_t> Counts(absl::Span<const int> cells) {
  std::vector<int64_t> counts(kCells, 0);
  for (int cell : cells) ++counts[cell];
  return counts;
}

// Chi-square statistic of the outputs against `distribution`; degrees of freedom in *freedom. 1e9
// if an output has probability zero.
double ChiSquare(absl::Span<const int> cells, const std::vector<double>& distribution,
                 int* freedom) {
  const std::vector<int64_t> counts = Counts(cells);
  double sum = 0;
  *freedom = -1;
  for (int cell = 0; cell < kCells; ++cell) {
    if (distribution[cell] == 0) {
      if (counts[cell] > 0) return 1e9;
      continue;
    }
    ++*freedom;
    const double expected = distribution[cell] * static_cast<double>(cells.size());
    sum += (static_cast<double>(counts[cell]) - expected) *
           (static_cast<double>(counts[cell]) - expected) / expected;
  }
  return sum;
}

// Exceeded with probability 1e-6 (Wilson-Hilferty approximation).
double Threshold(int freedom) {
  const double a = 2.0 / (9 * freedom);
  return freedom * std::pow(1 - a + 4.753 * std::sqrt(a), 3);
}

FakeModel Llm() { return HashModel(1, kVocabulary, 2); }
FakeModel Near() { return AgreeingModel(Llm(), HashModel(2, kVocabulary, 2), 0.5, 7); }
FakeModel Far() { return HashModel(3, kVocabulary, 2); }

struct DistributionCase {
  const char* name;
  std::vector<FakeModel> ssms;
  const char* expansion;
  SamplingParameters sampling;
  SpeculationOptions speculation = {};
  LogitsProcessorOptions logits_processor = {};
};

class AnswerDistribution : public ::testing::TestWithParam<int> {};

TEST_P(AnswerDistribution, OutputsFollowTheModelsDistribution) {
  const std::vector<DistributionCase> cases = {
      {"incremental", {}, "", {.temperature = 1}},
      {"tree", {Far()}, "3,2", {.temperature = 0.7}},
      {"two SSMs", {Near(), Far()}, "2,1", {.temperature = 1}},
      {"truncated", {Near(), Far()}, "2,2", {.temperature = 1, .top_p = 0.8, .top_k = 3}},
      {"three children each", {Near(), Far()}, "3,2", {.temperature = 1}},
      {"shared noise",
       {Far()},
       "",
       {.temperature = 0.7},
       {.max_nodes = 6, .sampled = SampledDrafting::kCoupled}},
      {"shared noise, truncated",
       {Near(), Far()},
       "",
       {.temperature = 1, .top_p = 0.8, .top_k = 3},
       {.max_nodes = 5, .sampled = SampledDrafting::kCoupled}},
      // The distribution must not depend on when and why trees are drawn, however erratic the
      // choice.
      {"tuned draws", {Near(), Far()}, "", {.temperature = 1}, {.tune = true, .trial_share = 0.3}},
      {"tuned, by seed",
       {Near()},
       "",
       {.temperature = 1},
       {.tune = true, .sampled = SampledDrafting::kCoupledIfSeeded}},
      {"tuned, shared noise",
       {Near(), Far()},
       "",
       {.temperature = 1},
       {.tune = true, .sampled = SampledDrafting::kCoupled}},
      {"n-gram drafts alone", {}, "", {.temperature = 0.7}, {.ngram = {.depth = 2}}},
      {"n-gram drafts and draws", {Near()}, "2,1", {.temperature = 1}, {.ngram = {.depth = 3}}},
      {"n-gram drafts, tuned",
       {Near()},
       "",
       {.temperature = 1},
       {.tune = true, .ngram = {.depth = 3}, .trial_share = 1}},
      {"min_p and typical",
       {Near(), Far()},
       "2,2",
       {.temperature = 1.3, .min_p = 0.2, .typical_p = 0.9}},
      {"penalties",
       {Near(), Far()},
       "2,2",
       {.temperature = 1},
       {},
       {.repetition_penalty = 1.6, .presence_penalty = 0.5, .frequency_penalty = 0.8}},
      {"biases and masks",
       {Near(), Far()},
       "3,2",
       {.temperature = 0.9, .top_p = 0.9},
       {},
       {.logit_bias = {{0, 1.0f}, {3, -0.7f}}, .bad_words = {{0, 1}, {2, 2}, {1, 3, 0}}}},
      {"allowed tokens", {Near()}, "2,2", {.temperature = 1}, {}, {.allowed = {3, 1, 0}}}};
  const DistributionCase& distribution = cases[GetParam()];
  const Rules rules = GetParam() < 13
                          ? nullptr
                          : std::make_shared<LogitsProcessorOptions>(distribution.logits_processor);
  int freedom = 0;
  const double chi =
      ChiSquare(Answers(Llm(), distribution.ssms, distribution.expansion, distribution.sampling,
                        rules, distribution.speculation, GetParam() < 4 ? kDraws : kDraws / 2),
                ExpectedDistribution(Llm(), distribution.sampling, rules), &freedom);
  EXPECT_LT(chi, Threshold(freedom))
      << distribution.name << " with " << freedom << " degrees of freedom";
}

INSTANTIATE_TEST_SUITE_P(Cases, AnswerDistribution, ::testing::Range(0, 17));

// The test has the power to detect a model that is off by a few percent.
TEST(AnswerDistributionPower, ASlightlyDifferentModelIsDetected) {
  const FakeModel shifted = [](absl::Span<const int> path) {
    std::vector<float> logits = Llm()(path);
    logits[1] += 0.05f;
    return logits;
  };
  int freedom = 0;
  const SamplingParameters sampling{.temperature = 1};
  const double chi = ChiSquare(Answers(shifted, {Far()}, "2,1", sampling, nullptr, {}, kDraws),
                               ExpectedDistribution(Llm(), sampling, nullptr), &freedom);
  EXPECT_GT(chi, Threshold(freedom));
}

// A bias, however small, bounds the total variation from below. Without bias it falls with the
// square root of the number of outputs, to the expectation for independent draws (a sum of
// half-normals).
class AnswerDistributionLong : public ::testing::TestWithParam<DistributionCase> {};

TEST_P(AnswerDistributionLong, TotalVariationFallsWithTheRootOfTheDraws) {
  const DistributionCase& distribution = GetParam();
  const std::vector<double> expected = ExpectedDistribution(Llm(), distribution.sampling, nullptr);
  const std::vector<int> cells =
      Answers(Llm(), distribution.ssms, distribution.expansion, distribution.sampling, nullptr,
              distribution.speculation, kLongDraws);
  for (int draws = kLongDraws / 100; draws <= kLongDraws; draws *= 10) {
    const std::vector<int64_t> counts = Counts(absl::MakeConstSpan(cells).first(draws));
    double variation = 0, of_chance = 0;
    for (int cell = 0; cell < kCells; ++cell) {
      const double p = expected[cell];
      variation += std::abs(static_cast<double>(counts[cell]) / draws - p) / 2;
      of_chance += std::sqrt(p * (1 - p) / (2 * std::acos(-1.0) * draws));
    }
    // With 26 cells or more, its standard deviation is below 0.15 of the expectation.
    EXPECT_LT(variation, 1.6 * of_chance) << draws << " draws";
    EXPECT_GT(variation, 0.4 * of_chance) << draws << " draws: too even for independent ones";
  }
  int freedom = 0;
  const double chi = ChiSquare(cells, expected, &freedom);
  EXPECT_LT(chi, Threshold(freedom));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AnswerDistributionLong,
    ::testing::Values(DistributionCase{"TreeOfTwo",
                                       {Near(), Far()},
                                       "2,2",
                                       {.temperature = 1, .top_p = 0.8, .top_k = 3}},
                      DistributionCase{"Tuned",
                                       {Near(), Far()},
                                       "",
                                       {.temperature = 0.8},
                                       {.tune = true, .ngram = {.depth = 3}, .trial_share = 1}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace espalier
