#include "serving/runner/serving_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(ServingProto, ABatchComesBackAsItWas) {
  RunnerBatch batch;
  batch.tokens = {1, 2};
  batch.positions = {3, 4};
  batch.slots = {5, 6};
  batch.row_sequence = {0, 1};
  batch.row_prefix = {7, 8};
  batch.ancestor_start = {0, 1, 2};
  batch.ancestor_slots = {5, 6};
  batch.sequence_start = {0, 1, 2};
  batch.sequence_slots = {9, 10};
  batch.logit_rows = {1};
  batch.row_adapter = {-1, 2};
  batch.wants_hidden = true;
  batch.row_outputs = {RunnerBatch::kToken};
  batch.next_prompt_tokens = {4};
  const TokenBitmask even = {0x5555555555555555, 0x5555}, first = {1};
  const auto set = std::make_shared<const TokenBitmask>(even);
  const auto edits = std::make_shared<SequenceLogitEdits>();
  edits->permitted = std::make_shared<const TokenBitmask>(first);
  edits->biases = {{3, -2.5f}};
  edits->repetition_penalty = 1.25;
  edits->penalties = {{5, 0.5}, {6, 0}};
  batch.sequence_sampling = {{},
                             {.sampling = {.temperature = 0.5, .top_k = 3, .seed = 9, .min_p = 0.1},
                              .coupled = true,
                              .edits = edits,
                              .logprobs = 0,
                              .prompt_logprobs = 5}};
  batch.row_edits = {
      {}, {.permitted = set, .forbidden = {8}, .penalties = {{5, 0.75}}}, {.permitted = set}};
  v1::ServingStep step;
  SetBatch(batch, &step);
  EXPECT_EQ(step.token_sets_size(), 2) << "rows share one";
  RunnerBatch back;
  ASSERT_TRUE(TakeBatch(step, &back).ok());
  EXPECT_EQ(back.tokens, batch.tokens);
  EXPECT_EQ(back.row_prefix, batch.row_prefix);
  EXPECT_EQ(back.ancestor_start, batch.ancestor_start);
  EXPECT_EQ(back.sequence_slots, batch.sequence_slots);
  EXPECT_EQ(back.logit_rows, batch.logit_rows);
  EXPECT_EQ(back.row_adapter, batch.row_adapter);
  EXPECT_TRUE(back.wants_hidden);
  EXPECT_EQ(back.row_outputs, batch.row_outputs);
  EXPECT_EQ(back.next_prompt_tokens, batch.next_prompt_tokens);
  ASSERT_EQ(back.sequence_sampling.size(), 2u);
  EXPECT_TRUE(back.sequence_sampling[0].plain());
  const SamplingMetadata& metadata = back.sequence_sampling[1];
  EXPECT_EQ(metadata.sampling, batch.sequence_sampling[1].sampling);
  EXPECT_TRUE(metadata.coupled);
  EXPECT_EQ(metadata.logprobs, 0);
  EXPECT_EQ(metadata.prompt_logprobs, 5);
  EXPECT_EQ(*metadata.edits->permitted, first);
  EXPECT_EQ(metadata.edits->biases, edits->biases);
  EXPECT_EQ(metadata.edits->repetition_penalty, 1.25);
  EXPECT_EQ(metadata.edits->penalties, edits->penalties);
  ASSERT_EQ(back.row_edits.size(), 3u);
  EXPECT_EQ(back.row_edits[0].permitted, nullptr);
  EXPECT_EQ(*back.row_edits[1].permitted, even);
  EXPECT_EQ(back.row_edits[1].forbidden, std::vector<int32_t>{8});
  EXPECT_EQ(back.row_edits[1].penalties, batch.row_edits[1].penalties);
  EXPECT_EQ(*back.row_edits[2].permitted, even);
  // The message is used again for the next step, which has less.
  SetBatch(RunnerBatch(), &step);
  EXPECT_EQ(step.token_sets_size(), 0);
  ASSERT_TRUE(TakeBatch(step, &back).ok());
  EXPECT_TRUE(back.row_adapter.empty());
  EXPECT_FALSE(back.wants_hidden);
  EXPECT_TRUE(back.row_outputs.empty());
  EXPECT_TRUE(back.sequence_sampling.empty());
  EXPECT_TRUE(back.next_prompt_tokens.empty());
  EXPECT_TRUE(back.row_edits.empty());
}

TEST(ServingProto, IncompleteLogitEditsAreRefused) {
  const auto refused = [](const std::function<void(v1::ServingStep&)>& tear) {
    v1::ServingStep step;
    step.add_token_sets(std::string("\1\2\3", 3));  // no whole word
    v1::SequenceLogitEdits* answer = step.add_sequence_sampling()->mutable_edits();
    answer->set_permitted(1);
    answer->add_bias_tokens(1);
    answer->add_biases(1);
    v1::RowLogitEdits* row = step.add_row_edits();
    row->set_permitted(1);
    row->add_penalty_tokens(2);
    row->add_penalties(1);
    RunnerBatch batch;
    EXPECT_TRUE(TakeBatch(step, &batch).ok());
    EXPECT_EQ(*batch.row_edits[0].permitted, TokenBitmask{0x030201});
    tear(step);
    EXPECT_THAT(std::string(TakeBatch(step, &batch).message()), HasSubstr("torn"));
  };
  refused([](auto& step) { step.clear_token_sets(); });
  refused([](auto& step) { step.mutable_row_edits(0)->set_permitted(2); });
  refused([](auto& step) { step.mutable_row_edits(0)->set_permitted(-1); });
  refused([](auto& step) { step.mutable_row_edits(0)->clear_penalties(); });
  refused([](auto& step) { step.mutable_sequence_sampling(0)->mutable_edits()->clear_biases(); });
  refused([](auto& step) { step.mutable_sequence_sampling(0)->mutable_edits()->set_permitted(9); });
}

TEST(ServingProto, ChoicesRoundTripUnlessIncomplete) {
  RunnerOutput logits, back;
  logits.choices = {{{3, 0.5}, {1, 0.25}}, {}, {{-1, 0}}};
  logits.logprobs = {{.token = 3, .logprob = -0.5f, .rank = 2, .top = {{7, -0.25f}}}, {}, {}};
  v1::ServingResult result;
  SetChoices(logits, &result);
  ASSERT_TRUE(TakeChoices(result, &back));
  ASSERT_EQ(back.choices.size(), 3u);
  EXPECT_EQ(back.choices[0][1].token, 1);
  EXPECT_EQ(back.choices[0][1].probability, 0.25);
  EXPECT_TRUE(back.choices[1].empty());
  EXPECT_EQ(back.choices[2][0].token, -1);
  ASSERT_EQ(back.logprobs.size(), 3u);
  EXPECT_EQ(back.logprobs[0].logprob, -0.5f);
  EXPECT_EQ(back.logprobs[0].rank, 2);
  EXPECT_EQ(back.logprobs[0].top, logits.logprobs[0].top);
  EXPECT_EQ(back.logprobs[1].token, -1);
  for (const int32_t count : {-1, 0, 1, 3, 1 << 30}) {
    v1::ServingResult torn = result;
    torn.set_choice_counts(0, count);
    EXPECT_FALSE(TakeChoices(torn, &back)) << count;
  }
  v1::ServingResult torn = result;
  torn.mutable_logprobs(0)->clear_top_tokens();
  EXPECT_FALSE(TakeChoices(torn, &back));
  result.mutable_choice_probabilities()->RemoveLast();
  EXPECT_FALSE(TakeChoices(result, &back));
}

TEST(ServingProto, AdaptersComeBackAsTheyWere) {
  AdapterParameters adapters;
  adapters["q.lora_a"] = {{"a.lora_A.weight", {{0, 8}}, 1}, {"", {}, 1}};
  adapters["q.lora_b"] = {{"a.lora_B.weight", {{0, 4}, {12, 16}}, 0.5}, {"", {}, 1}};
  v1::StartServingRequest request;
  SetAdapters(adapters, &request);
  const auto back = AdaptersOf(request);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 2u);
  for (const auto& [parameter, matrices] : adapters) {
    const std::vector<AdapterMatrix>& got = back->at(parameter);
    ASSERT_EQ(got.size(), matrices.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tensor, matrices[i].tensor);
      EXPECT_EQ(got[i].rows, matrices[i].rows);
      EXPECT_EQ(got[i].scale, matrices[i].scale);
    }
  }
  *request.add_adapters() = request.adapters(0);
  EXPECT_THAT(std::string(AdaptersOf(request).status().message()), HasSubstr("come twice"));
}

TEST(ServingProto, LimitsOfAdaptersAndHiddenStatesMayBeNone) {
  RunnerLimits limits{.vocabulary = 2,
                      .kv_slots = 3,
                      .max_rows = 4,
                      .max_sequences = 5,
                      .max_context_slots = 6,
                      .max_ancestor_slots = 7,
                      .max_positions = 8};
  v1::ServingLimits wire = ToProto(limits, 9);
  EXPECT_EQ(LimitsOf(wire)->adapters, 0);
  limits.adapters = 10;
  limits.hidden = 11;
  wire = ToProto(limits, 9);
  EXPECT_EQ(LimitsOf(wire)->adapters, 10);
  EXPECT_EQ(LimitsOf(wire)->hidden, 11);
  wire.set_hidden(-1);
  EXPECT_THAT(std::string(LimitsOf(wire).status().message()), HasSubstr("limits.hidden is -1"));
  wire = ToProto(limits, 9);
  wire.set_max_rows(0);
  EXPECT_THAT(std::string(LimitsOf(wire).status().message()), HasSubstr("limits.max_rows is 0"));
}

}  // namespace
}  // namespace espalier
