#include "server/recordings/diff_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const v1::DiffRunsReply& reply) {
  std::vector<std::string> texts;
  for (const v1::RunDifference& difference : reply.differences()) {
    texts.push_back(difference.field() + ": " + difference.a() + " | " + difference.b());
  }
  return texts;
}

class DiffRunsTest : public ::testing::Test {
 protected:
  DiffRunsTest() {
    for (v1::Recording* run : {&a_, &b_}) {
      run->set_graph_sha256("graph");
      run->set_dataset_sha256("data");
      v1::TrainingSpec& spec = *run->mutable_job()->mutable_spec();
      spec.set_seed(1);
      spec.mutable_optimizer()->set_name("adam");
      v1::RecordedAttempt& attempt = *run->add_attempts();
      attempt.set_program_version("1.0");
      for (int rank = 0; rank < 2; ++rank) {
        attempt.add_ranks()->set_instruction_set("avx2");
        attempt.mutable_ranks(rank)->set_threads(4);
      }
      v1::OperatorPlan& node = *attempt.mutable_plan()->add_operators();
      node.set_node("dense");
      node.set_predicted_seconds(run == &a_ ? 1 : 2);
      (*node.mutable_degrees())["batch"] = 2;
      (*node.mutable_degrees())["out"] = 1;
    }
  }
  v1::DiffRunsReply Diff(const std::vector<RecordedLoss>& a = {},
                         const std::vector<RecordedLoss>& b = {}) const {
    return DiffRuns({a_, a}, {b_, b});
  }

  v1::Recording a_, b_;
};

TEST_F(DiffRunsTest, TheSameRunsDoNotDiffer) {
  EXPECT_THAT(Texts(Diff()), IsEmpty());
  EXPECT_EQ(Diff().first_different_step(), -1);
}

TEST_F(DiffRunsTest, FieldsAreNamedByTheirPath) {
  v1::TrainingSpec& spec = *b_.mutable_job()->mutable_spec();
  spec.set_seed(2);
  spec.mutable_optimizer()->mutable_learning_rate()->set_peak(0.5);
  spec.add_freeze("embed*");
  (*spec.mutable_dataset()->mutable_columns())["x"] = "pixels";
  spec.mutable_graph()->set_name("told by its hash");
  EXPECT_THAT(Texts(Diff()), ElementsAre("spec.dataset.columns[\"x\"]: not set | \"pixels\"",
                                         "spec.optimizer.learning_rate.peak: 0 | 0.5",
                                         "spec.seed: 1 | 2", "spec.freeze: [] | [\"embed*\"]"));
}

TEST_F(DiffRunsTest, HashesOfModelAndDataAreCompared) {
  b_.set_dataset_sha256("other");
  b_.set_graph_sha256("");
  EXPECT_THAT(Texts(Diff()), ElementsAre("graph: graph | not recorded", "dataset: data | other"));
}

TEST_F(DiffRunsTest, WhatStepsWereComputedWithIsCompared) {
  v1::RecordedAttempt& attempt = *b_.mutable_attempts(0);
  attempt.set_program_version("1.1");
  attempt.mutable_ranks(1)->set_instruction_set("avx512_core");
  attempt.mutable_ranks(1)->set_threads(8);
  EXPECT_THAT(Texts(Diff()),
              ElementsAre("program version: 1.0 | 1.1", "instruction set: avx2 | avx2, avx512_core",
                          "threads: 4 | 4, 8"));
  (*attempt.mutable_plan()->mutable_operators(0)->mutable_degrees())["batch"] = 4;
  attempt.set_program_version("1.0");
  *attempt.mutable_ranks(1) = attempt.ranks(0);
  ASSERT_EQ(Diff().differences_size(), 1);
  EXPECT_EQ(Diff().differences(0).field(), "plan");
  *attempt.mutable_plan() = a_.attempts(0).plan();
  b_.add_attempts()->set_first_step(40);
  EXPECT_THAT(Texts(Diff()), ElementsAre("first steps of attempts: 0 | 0, 40"));
}

TEST_F(DiffRunsTest, LossesAreComparedToTheBit) {
  const double loss = 0.1;
  const double next = std::nextafter(loss, 1.0);
  const v1::DiffRunsReply diff =
      Diff({{0, 1.0}, {1, loss}, {2, 0.5}, {4, 0.1}}, {{1, loss}, {2, 0.5}, {3, 7}, {4, next}});
  EXPECT_EQ(diff.common_steps(), 3);
  EXPECT_EQ(diff.first_different_step(), 4);
  EXPECT_THAT(Texts(diff),
              ElementsAre("first different loss: 0.10000000000000001 | 0.10000000000000002"));
  EXPECT_EQ(Diff({{0, std::nan("")}}, {{0, std::nan("")}}).first_different_step(), -1);
  EXPECT_EQ(Diff({{0, 0.0}}, {{0, -0.0}}).first_different_step(), 0);
}

TEST(SummarizeLossesTest, TheBestIsTheSmallestNumber) {
  const v1::LossSummary summary =
      SummarizeLosses({{0, std::nan("")}, {1, 3}, {2, 1}, {3, 1}, {4, 2}});
  EXPECT_TRUE(std::isnan(summary.first()));
  EXPECT_EQ(summary.last(), 2);
  EXPECT_EQ(summary.best(), 1);
  EXPECT_EQ(summary.best_step(), 2);
}

}  // namespace
}  // namespace espalier
