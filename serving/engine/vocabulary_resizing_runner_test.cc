#include "serving/runner/vocabulary_resizing_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "serving/engine/engine.h"
#include "serving/testing/fake_model_runner.h"
#include "serving/testing/letter_tokenizer.h"

namespace espalier {
namespace {

// Says what `model` says; of tokens that only it knows, nothing.
FakeModel Narrow(const FakeModel& model, int vocabulary) {
  return [=](absl::Span<const int> tokens) {
    std::vector<float> logits = model(tokens);
    logits.resize(vocabulary);
    return logits;
  };
}

std::vector<int> Answer(int vocabulary, int of_ssm, double temperature, int64_t* accepted) {
  const FakeModel model = HashModel(1, vocabulary, 5);
  FakeModelRunner llm(FakeModelRunner::LargeLimits(vocabulary), model);
  VocabularyResizingRunner ssm(
      std::make_unique<FakeModelRunner>(
          FakeModelRunner::LargeLimits(of_ssm),
          of_ssm < vocabulary ? Narrow(model, of_ssm) : HashModel(1, of_ssm, 5)),
      vocabulary);
  const LetterTokenizer tokenizer(vocabulary, {});
  auto engine = Engine::Create(&llm, {&ssm}, &tokenizer, {.expansion = *Expansion::Parse("2,1,1")});
  EXPECT_TRUE(engine.ok()) << engine.status();
  RequestOptions options{.max_tokens = 60};
  options.sampling.temperature = temperature;
  options.sampling.seed = 7;
  EXPECT_TRUE((*engine)->Submit({1, vocabulary - 1, 2}, options).ok());
  std::vector<int> tokens;
  while (!(*engine)->idle()) {
    EXPECT_TRUE((*engine)->Step().ok());
    for (const RequestEvent& event : (*engine)->TakeEvents()) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  EXPECT_TRUE((*engine)->statistics().speculation.ssm_status[0].ok())
      << (*engine)->statistics().speculation.ssm_status[0];
  *accepted = (*engine)->statistics().accepted_tokens;
  return tokens;
}

TEST(VocabularyResizingRunner, SsmsDraftWhateverTheirPaddedVocabularySize) {
  for (const int of_ssm : {9, 12, 15}) {
    int64_t accepted = 0;
    EXPECT_EQ(Answer(12, of_ssm, 0, &accepted),
              GreedyContinuation(HashModel(1, 12, 5), {1, 11, 2}, 60))
        << of_ssm;
    // Behind a token that it does not have it reads another text.
    if (of_ssm <= 12) {
      EXPECT_GT(accepted, of_ssm < 12 ? 0 : 15) << of_ssm;
    }
    EXPECT_EQ(Answer(12, of_ssm, 1, &accepted).size(), 60u) << of_ssm;
  }
}

TEST(VocabularyResizingRunner, MissingTokensHaveProbabilityZero) {
  VocabularyResizingRunner wide(
      std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(4), HashModel(1, 4, 5)), 6);
  EXPECT_EQ(wide.limits().vocabulary, 6);
  RunnerBatch batch;
  batch.tokens = {5};
  batch.positions = {0};
  batch.slots = {0};
  batch.row_sequence = {0};
  batch.row_prefix = {1};
  batch.ancestor_start = {0, 0};
  batch.sequence_start = {0, 1};
  batch.sequence_slots = {0};
  batch.logit_rows = {0};
  RunnerOutput logits;
  ASSERT_TRUE(wide.Step(batch, &logits).ok());
  ASSERT_EQ(logits.values.size(), 6u);
  for (int token = 0; token < 6; ++token) {
    EXPECT_EQ(std::isfinite(logits.values[token]), token < 4) << token;
  }
  batch.row_outputs = {6};
  ASSERT_TRUE(wide.Step(batch, &logits).ok());
  ASSERT_EQ(logits.choices[0].size(), 4u);
  for (const TokenProbability& choice : logits.choices[0]) EXPECT_LT(choice.token, 4);
  batch.row_outputs = {7};
  EXPECT_EQ(wide.Step(batch, &logits).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
