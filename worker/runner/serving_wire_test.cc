#include "worker/runner/serving_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(ServingWire, ABatchComesBackAsItWas) {
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
  batch.wishes = {RunnerBatch::kToken};
  batch.sequence_rule = {{}, {{.temperature = 0.5, .top_k = 3, .seed = 9, .min_p = 0.1}, true}};
  proto::ServingStep step;
  SetBatch(batch, &step);
  RunnerBatch back;
  TakeBatch(step, &back);
  EXPECT_EQ(back.tokens, batch.tokens);
  EXPECT_EQ(back.row_prefix, batch.row_prefix);
  EXPECT_EQ(back.ancestor_start, batch.ancestor_start);
  EXPECT_EQ(back.sequence_slots, batch.sequence_slots);
  EXPECT_EQ(back.logit_rows, batch.logit_rows);
  EXPECT_EQ(back.row_adapter, batch.row_adapter);
  EXPECT_TRUE(back.wants_hidden);
  EXPECT_EQ(back.wishes, batch.wishes);
  EXPECT_EQ(back.sequence_rule, batch.sequence_rule);
  // The message is used again for the next step, which has less.
  SetBatch(RunnerBatch(), &step);
  TakeBatch(step, &back);
  EXPECT_TRUE(back.row_adapter.empty());
  EXPECT_FALSE(back.wants_hidden);
  EXPECT_TRUE(back.wishes.empty());
  EXPECT_TRUE(back.sequence_rule.empty());
}

TEST(ServingWire, ChoicesComeBackAsTheyWereUnlessTheyAreTorn) {
  RunnerLogits logits, back;
  logits.choices = {{{3, 0.5}, {1, 0.25}}, {}, {{-1, 0}}};
  proto::ServingResult result;
  SetChoices(logits, &result);
  ASSERT_TRUE(TakeChoices(result, &back));
  ASSERT_EQ(back.choices.size(), 3u);
  EXPECT_EQ(back.choices[0][1].token, 1);
  EXPECT_EQ(back.choices[0][1].probability, 0.25);
  EXPECT_TRUE(back.choices[1].empty());
  EXPECT_EQ(back.choices[2][0].token, -1);
  for (const int32_t count : {-1, 0, 1, 3, 1 << 30}) {
    proto::ServingResult torn = result;
    torn.set_choice_counts(0, count);
    EXPECT_FALSE(TakeChoices(torn, &back)) << count;
  }
  result.mutable_choice_probabilities()->RemoveLast();
  EXPECT_FALSE(TakeChoices(result, &back));
}

TEST(ServingWire, AdaptersComeBackAsTheyWere) {
  AdapterParameters adapters;
  adapters["q.lora_a"] = {{"a.lora_A.weight", {{0, 8}}, 1}, {"", {}, 1}};
  adapters["q.lora_b"] = {{"a.lora_B.weight", {{0, 4}, {12, 16}}, 0.5}, {"", {}, 1}};
  proto::StartServingRequest request;
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

TEST(ServingWire, LimitsOfAdaptersAndHiddenStatesMayBeNone) {
  RunnerLimits limits{.vocabulary = 2,
                      .kv_slots = 3,
                      .max_rows = 4,
                      .max_sequences = 5,
                      .max_context_slots = 6,
                      .max_ancestor_slots = 7,
                      .max_positions = 8};
  proto::ServingLimits wire = ToProto(limits, 9);
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
