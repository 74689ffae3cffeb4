#include "server/inference/placement/choose_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/llama.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServingShape Largest() {
  return {.max_rows = 256,
          .max_output_rows = 128,
          .kv_slots = 2048,
          .max_sequences = 16,
          .max_context_slots = 2048,
          .max_ancestor_slots = 640};
}

TEST(ExpectStep, HasOneRowPerTreeNodeUpToTheLargestStep) {
  const Expansion tree =
      *Expansion::Create({1, 1, 3, 1, 1});  // 11 nodes, 8 of them above the last level
  const ExpectedStep llm = ExpectStep(Largest(), tree, 1, 4, /*drafts=*/false);
  EXPECT_EQ(llm.shape.max_rows, 4 * (1 + 11));
  EXPECT_EQ(llm.shape.max_output_rows, llm.shape.max_rows);
  EXPECT_EQ(llm.shape.max_sequences, 4);
  EXPECT_EQ(llm.shape.max_context_slots, 4 * 2048 / 16 / 2);
  EXPECT_EQ(llm.steps, 1);
  const ExpectedStep ssm = ExpectStep(Largest(), tree, 1, 4, /*drafts=*/true);
  EXPECT_EQ(ssm.steps, 5);
  EXPECT_EQ(ssm.shape.max_rows, 4 * (1 + 8) / 5 + 1);
  // Without drafts, one row per request.
  EXPECT_EQ(ExpectStep(Largest(), Expansion(), 0, 7, false).shape.max_rows, 7);
  for (const int requests : {1, 16, 4000}) {
    for (const bool drafts : {false, true}) {
      const ServingShape shape = ExpectStep(Largest(), tree, 2, requests, drafts).shape;
      EXPECT_LE(shape.max_rows, Largest().max_rows);
      EXPECT_LE(shape.max_output_rows, Largest().max_output_rows);
      EXPECT_LE(shape.max_sequences, Largest().max_sequences);
      EXPECT_LE(shape.max_context_slots, Largest().max_context_slots);
      EXPECT_LE(shape.max_ancestor_slots, Largest().max_ancestor_slots);
      EXPECT_GE(shape.max_rows, 1);
    }
  }
  EXPECT_EQ(ExpectedTokens(tree, 0, 3), 3);
  EXPECT_GT(ExpectedTokens(tree, 1, 3), ExpectedTokens(*Expansion::Create({1, 1}), 1, 3));
}

TEST(ChoosePlacement, ReturnsTheBestWorkersAndRankedCandidates) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  LlamaConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  absl::StatusOr<Graph> graph = BuildLlamaServing(registry, config, Largest());
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(BindAndInfer(registry, 1, &*graph).ok());
  PlacementRequest question;
  question.registry = &registry;
  question.models = {{"lm", &*graph, &*graph, 1}};
  for (const double bandwidth : {1e8, 4e8, 2e8}) {
    Member member;
    member.lease.set_worker_id("w" + std::to_string(question.workers.size() + 1));
    member.device.set_kind(v1::Device::CPU);
    member.device.set_memory_bytes(int64_t{1} << 30);
    member.device.set_memory_bandwidth(bandwidth);
    member.device.set_matmul_flops(100 * bandwidth);
    question.workers.push_back(member);
  }
  question.link.set_latency_seconds(10);  // too slow for any sharding
  question.link.set_bandwidth(1e12);
  question.tokens_per_round = 4;
  const absl::StatusOr<PlacementDecision> places = ChoosePlacement(question);
  ASSERT_TRUE(places.ok()) << places.status();
  ASSERT_EQ(places->chosen.size(), 1u);
  EXPECT_EQ(places->chosen[0].tensor_parallel(), 1);
  EXPECT_THAT(places->chosen[0].workers(), ElementsAre("w2"));
  const v1::PlacementCandidate& first = places->candidates[0];
  EXPECT_TRUE(first.chosen());
  EXPECT_GT(first.peak_device_bytes(), 1 << 20);
  EXPECT_NEAR(first.tokens_per_second() * first.llm_seconds(), 4, 1e-6);
  for (size_t i = 1; i < places->candidates.size(); ++i) {
    EXPECT_FALSE(places->candidates[i].chosen());
    EXPECT_LE(places->candidates[i].tokens_per_second(), first.tokens_per_second());
  }
  for (Member& member : question.workers) member.device.set_memory_bytes(1000);
  const absl::Status status = ChoosePlacement(question).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model 'lm' needs"));
}

}  // namespace
}  // namespace espalier
