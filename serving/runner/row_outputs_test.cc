// Outputs sampled by the runner equal those that the engine would compute from the logits.
#include "serving/runner/row_outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 50;

// One sequence of slots 0 to 3, whose end is row 0. Nodes 1 and 2 are its children, 3 is a child of
// 1, 4 of 2.
RunnerBatch Tree(std::vector<int32_t> tokens) {
  RunnerBatch batch;
  batch.tokens = std::move(tokens);
  batch.positions = {3, 4, 4, 5, 5};
  batch.slots = {3, 10, 11, 12, 13};
  batch.row_sequence = {0, 0, 0, 0, 0};
  batch.row_prefix = {4, 4, 4, 4, 4};
  batch.ancestor_start = {0, 0, 1, 2, 4, 6};
  batch.ancestor_slots = {10, 11, 10, 12, 11, 13};
  batch.sequence_start = {0, 4};
  batch.sequence_slots = {0, 1, 2, 3};
  batch.logit_rows = {0, 1, 2, 3, 4};
  return batch;
}

RunnerOutput Logits(int rows, uint32_t seed) {
  std::mt19937 random(seed);
  RunnerOutput logits;
  logits.vocabulary = kVocabulary;
  for (int i = 0; i < rows * kVocabulary; ++i) {
    logits.values.push_back(static_cast<float>(random() % 10000) * 1e-3f);
  }
  return logits;
}

absl::Span<const float> Row(const RunnerOutput& logits, int row) {
  return absl::MakeConstSpan(logits.row(row), kVocabulary);
}

TEST(RowOutputs, NodesOffTheSampledPathAreNotSampled) {
  for (const bool shared : {false, true}) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const SamplingMetadata metadata{{.temperature = seed % 3 * 0.7, .top_k = 5, .seed = seed},
                                      shared};
      const RunnerOutput all = Logits(5, seed);
      const auto chosen = [&](int row, int64_t position) {
        return *SampleToken(Row(all, row), metadata.sampling, shared, position);
      };
      // Node 2 is sampled after the root, and every second time node 4 after it.
      const int second = chosen(0, 4), first = (second + 1) % kVocabulary;
      const int below = (chosen(2, 5) + static_cast<int>(seed % 2)) % kVocabulary;
      RunnerBatch batch = Tree({7, first, second, chosen(1, 5), below});
      batch.row_outputs.assign(5, RunnerBatch::kToken);
      batch.sequence_sampling = {metadata};
      ASSERT_TRUE(CheckRowOutputs(batch, kVocabulary).ok());
      RunnerOutput given = all;
      SampleRows(batch, &given);
      ASSERT_EQ(given.choices.size(), 5u);
      EXPECT_TRUE(given.values.empty());
      const int expected[] = {second, -1, chosen(2, 5), -1, seed % 2 ? -1 : chosen(4, 6)};
      for (int row = 0; row < 5; ++row) {
        ASSERT_EQ(given.choices[row].size(), 1u);
        EXPECT_EQ(given.choices[row][0].token, expected[row]) << "row " << row << " seed " << seed;
      }
      EXPECT_TRUE(CheckRunnerOutput(5, batch.row_outputs, kVocabulary, given).ok());
    }
  }
}

// Limits may split a tree over batches.
TEST(RowOutputs, ANodeWithItsParentInAnotherBatchIsSampled) {
  RunnerBatch batch = Tree({1, 2, 3, 4, 5});
  batch.logit_rows = {3, 4};
  batch.row_outputs = {RunnerBatch::kToken, RunnerBatch::kToken};
  RunnerOutput logits = Logits(2, 1);
  const int first = *Argmax(logits.row(0), kVocabulary),
            second = *Argmax(logits.row(1), kVocabulary);
  SampleRows(batch, &logits);
  EXPECT_EQ(logits.choices[0][0].token, first);
  EXPECT_EQ(logits.choices[1][0].token, second);
}

TEST(RowOutputs, RowsMayMixLogitsTokensAndTopTokens) {
  RunnerBatch batch = Tree({1, 2, 3, 4, 5});
  batch.row_outputs = {RunnerBatch::kLogits, 3, RunnerBatch::kToken, RunnerBatch::kLogits, 2};
  const RunnerOutput all = Logits(5, 3);
  RunnerOutput given = all;
  SampleRows(batch, &given);
  EXPECT_TRUE(CheckRunnerOutput(5, batch.row_outputs, kVocabulary, given).ok());
  ASSERT_EQ(given.values.size(), 2u * kVocabulary);
  EXPECT_TRUE(Row(given, 0) == Row(all, 0));
  EXPECT_TRUE(Row(given, 1) == Row(all, 3));
  const auto best = *TopTokens(Row(all, 1), 3);
  ASSERT_EQ(given.choices[1].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(given.choices[1][i].token, best[i].token);
    EXPECT_EQ(given.choices[1][i].probability, best[i].probability);
  }
  EXPECT_EQ(given.choices[4].size(), 2u);
  // For a coupled sequence, the top tokens are the first arrivals of the race.
  batch.sequence_sampling = {{{.temperature = 1, .seed = 5}, true}};
  given = all;
  SampleRows(batch, &given);
  EXPECT_EQ(given.choices[1][0].token,
            (*CoupledTopTokens(Row(all, 1), 1, batch.sequence_sampling[0].sampling, 5))[0].token);
  EXPECT_EQ(given.choices[1][0].token,
            *SampleToken(Row(all, 1), batch.sequence_sampling[0].sampling, true, 5));
}

TEST(RowOutputs, EditsApplyBeforeSamplingAndAfterLogprobs) {
  std::mt19937 random(8);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const auto edits = std::make_shared<SequenceLogitEdits>();
    edits->biases = {{static_cast<int32_t>(random() % kVocabulary), 3.0f}};
    edits->repetition_penalty = 1.3;
    for (int token = 0; token < kVocabulary; token += 2) edits->penalties.push_back({token, 0.5});
    const SamplingMetadata metadata{.sampling = {.temperature = seed % 2 * 0.9, .seed = seed},
                                    .coupled = true,
                                    .edits = edits,
                                    .logprobs = 3,
                                    .prompt_logprobs = 2};
    RunnerBatch batch = Tree({1, 2, 3, 4, 5});
    batch.sequence_sampling = {metadata};
    batch.row_edits.resize(5);
    for (RowLogitEdits& row : batch.row_edits) {
      TokenBitmask set;
      for (int i = 0; i < 12; ++i) Insert(static_cast<int>(random() % kVocabulary), &set);
      row.permitted = std::make_shared<const TokenBitmask>(std::move(set));
      row.forbidden = {static_cast<int32_t>(random() % kVocabulary)};
      row.penalties = {{4, 1.5}, {7, 2.5}};
    }
    // Rows 3 and 4 are children of tokens that are not sampled.
    batch.row_outputs = {RunnerBatch::kPromptLogprob, 4, RunnerBatch::kLogits, 2,
                         RunnerBatch::kToken};
    batch.next_prompt_tokens = {11, -1, -1, -1, -1};
    ASSERT_TRUE(CheckRowOutputs(batch, kVocabulary).ok()) << CheckRowOutputs(batch, kVocabulary);
    const RunnerOutput all = Logits(5, seed);
    RunnerOutput given = all;
    SampleRows(batch, &given);
    ASSERT_TRUE(CheckRunnerOutput(5, batch.row_outputs, kVocabulary, given).ok());
    ASSERT_EQ(given.logprobs.size(), 5u);
    EXPECT_TRUE(Row(given, 0) == Row(all, 2)) << "logits that are shown are as they were";
    const auto edited = [&](int row) {
      std::vector<float> logits(Row(all, row).begin(), Row(all, row).end());
      EXPECT_TRUE(ApplyLogitEdits(*edits, batch.row_edits[row], absl::MakeSpan(logits)));
      return logits;
    };
    const auto same = [](const TokenLogprobs& a, const TokenLogprobs& b) {
      return a.token == b.token && a.logprob == b.logprob && a.rank == b.rank && a.top == b.top;
    };
    EXPECT_EQ(given.choices[0][0].token, 11);
    EXPECT_TRUE(same(given.logprobs[0], LogprobsOf(all.row(0), kVocabulary, 11, 2)));
    for (const auto& [row, count, position] : {std::tuple{1, 4, 5}, std::tuple{3, 2, 6}}) {
      const auto best = metadata.sampling.greedy()
                            ? *TopTokens(edited(row), count)
                            : *CoupledTopTokens(edited(row), count, metadata.sampling, position);
      ASSERT_EQ(given.choices[row].size(), best.size());
      for (size_t i = 0; i < best.size(); ++i) {
        EXPECT_EQ(given.choices[row][i].token, best[i].token);
        EXPECT_EQ(given.choices[row][i].probability, best[i].probability);
      }
      EXPECT_EQ(given.logprobs[row].token, -1);
    }
    const int token = *SampleToken(edited(4), metadata.sampling, true, 6);
    EXPECT_EQ(given.choices[4][0].token, token);
    EXPECT_TRUE(same(given.logprobs[4], LogprobsOf(all.row(4), kVocabulary, token, 3)));
  }
}

TEST(RowOutputs, ARowWithAllTokensMaskedKeepsItsLogits) {
  RunnerBatch batch = Tree({1, 2, 3, 4, 5});
  batch.row_outputs.assign(5, RunnerBatch::kToken);
  batch.row_outputs[1] = 2;
  batch.sequence_sampling = {{.edits = std::make_shared<SequenceLogitEdits>(), .logprobs = 0}};
  batch.row_edits.resize(5);
  batch.row_edits[0].permitted = batch.row_edits[1].permitted =
      std::make_shared<const TokenBitmask>();
  const RunnerOutput all = Logits(5, 2);
  RunnerOutput given = all;
  SampleRows(batch, &given);
  EXPECT_TRUE(CheckRunnerOutput(5, batch.row_outputs, kVocabulary, given).ok());
  EXPECT_TRUE(given.choices[0].empty());
  EXPECT_TRUE(given.choices[1].empty());
  EXPECT_TRUE(Row(given, 0) == Row(all, 0));
  EXPECT_EQ(given.choices[2][0].token, *Argmax(all.row(2), kVocabulary));
}

TEST(RowOutputs, RowsWithNanKeepTheirLogits) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    for (const int row_output : {static_cast<int>(RunnerBatch::kToken),
                                 static_cast<int>(RunnerBatch::kPromptLogprob), 2}) {
      RunnerBatch batch = Tree({1, 2, 3, 4, 5});
      batch.row_outputs.assign(5, row_output);
      if (row_output == RunnerBatch::kPromptLogprob) batch.next_prompt_tokens.assign(5, 3);
      RunnerOutput logits = Logits(5, 4);
      // Later rows are sampled all the same.
      logits.values[9] = bad;
      SampleRows(batch, &logits);
      EXPECT_TRUE(logits.choices[0].empty());
      EXPECT_FALSE(logits.choices[1].empty());
      EXPECT_EQ(logits.values.size(), static_cast<size_t>(kVocabulary));
      EXPECT_FALSE(std::isfinite(logits.values[9]));
      EXPECT_GE(logits.choices[1][0].token, 0);
      EXPECT_TRUE(CheckRunnerOutput(5, batch.row_outputs, kVocabulary, logits).ok());
    }
  }
}

TEST(RowOutputs, InvalidRowOutputsAreRefusedByField) {
  const auto refused = [](const std::function<void(RunnerBatch&)>& change, const char* word) {
    RunnerBatch batch = Tree({1, 2, 3, 4, 5});
    change(batch);
    EXPECT_THAT(CheckRowOutputs(batch, kVocabulary).ToString(), HasSubstr(word));
  };
  refused([](RunnerBatch& b) { b.row_outputs = {1}; }, "row_outputs has 1 entries");
  refused([](RunnerBatch& b) { b.row_outputs = {0, 0, 0, 0, 51}; }, "row_outputs[4] is 51");
  refused([](RunnerBatch& b) { b.row_outputs = {-3, 0, 0, 0, 0}; }, "row_outputs[0] is -3");
  refused([](RunnerBatch& b) { b.row_outputs = {-2, 0, 0, 0, 0}; }, "next_prompt_tokens[0] is -1");
  refused([](RunnerBatch& b) { b.next_prompt_tokens = {1}; }, "next_prompt_tokens has 1 entries");
  refused([](RunnerBatch& b) { b.row_edits.resize(4); }, "row_edits has 4 entries");
  refused([](RunnerBatch& b) { b.sequence_sampling = {{.logprobs = 65}}; }, "65 tokens");
  refused([](RunnerBatch& b) { b.sequence_sampling.resize(2); }, "2 entries for 1 sequences");
  refused([](RunnerBatch& b) { b.sequence_sampling = {{.sampling = {.temperature = -1}}}; },
          "temperature");

  const std::vector<int32_t> row_outputs = {RunnerBatch::kLogits, RunnerBatch::kToken, 2};
  RunnerOutput good = Logits(1, 1);
  good.choices = {{}, {{-1, 0}}, {{4, 0.5}, {5, 0.25}}};
  EXPECT_TRUE(CheckRunnerOutput(3, row_outputs, kVocabulary, good).ok());
  const auto wrong = [&](const std::function<void(RunnerOutput&)>& change) {
    RunnerOutput logits = good;
    change(logits);
    EXPECT_FALSE(CheckRunnerOutput(3, row_outputs, kVocabulary, logits).ok());
  };
  wrong([](RunnerOutput& l) { l.choices[0] = {{1, 0}}; });
  wrong([](RunnerOutput& l) { l.choices[1][0].token = kVocabulary; });
  wrong([](RunnerOutput& l) { l.choices[2][0].token = -1; });
  wrong([](RunnerOutput& l) { l.choices[2].push_back({1, 0}); });
  wrong([](RunnerOutput& l) { l.choices[2][0].probability = NAN; });
  wrong([](RunnerOutput& l) { l.choices[2].clear(); });
  wrong([](RunnerOutput& l) { l.choices.pop_back(); });
  wrong([](RunnerOutput& l) { l.values.pop_back(); });
  wrong([](RunnerOutput& l) { l.choices.clear(); });
  wrong([](RunnerOutput& l) { l.logprobs.resize(2); });
  good.logprobs.resize(3);
  good.logprobs[1] = {.token = 2, .logprob = -1, .top = {{4, -0.5f}}};
  EXPECT_TRUE(CheckRunnerOutput(3, row_outputs, kVocabulary, good).ok());
  wrong([](RunnerOutput& l) { l.logprobs[1].token = kVocabulary; });
  wrong([](RunnerOutput& l) { l.logprobs[1].logprob = NAN; });
  wrong([](RunnerOutput& l) { l.logprobs[1].rank = 0; });
  wrong([](RunnerOutput& l) { l.logprobs[1].top[0].first = -1; });
  wrong([](RunnerOutput& l) { l.logprobs[1].top.assign(kMaxTopLogprobs + 1, {4, -0.5f}); });
  wrong([](RunnerOutput& l) { l.logprobs[0].top = {{4, -0.5f}}; });
}

}  // namespace
}  // namespace espalier
