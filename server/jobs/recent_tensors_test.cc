#include "server/jobs/recent_tensors.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

v1::StepReport Report(int64_t step, size_t bytes) {
  v1::StepReport report;
  report.set_step(step);
  (*report.mutable_values())["loss"] = 1;
  if (bytes > 0) (*report.mutable_tensors())["probe"].set_data(std::string(bytes, 'x'));
  return report;
}

// Returns the size of the step's tensor, or 0 if there is none.
size_t Held(const RecentTensors& tensors, const std::string& job, int64_t step) {
  v1::StepReport report = Report(step, 0);
  tensors.AddTo(job, &report);
  return report.tensors().empty() ? 0 : report.tensors().at("probe").data().size();
}

TEST(RecentTensors, TensorsLeaveTheReportAndComeBack) {
  RecentTensors tensors(2000);
  v1::StepReport report = Report(3, 10);
  tensors.Take("a", &report);
  EXPECT_EQ(report.SerializeAsString(), Report(3, 0).SerializeAsString());
  EXPECT_EQ(Held(tensors, "a", 3), 10u);
  EXPECT_EQ(Held(tensors, "a", 2), 0u);
  EXPECT_EQ(Held(tensors, "b", 3), 0u);
}

TEST(RecentTensors, OldestOfAllJobsAreDroppedAtTheLimit) {
  RecentTensors tensors(2000);
  for (int64_t step = 0; step < 10; ++step) {
    v1::StepReport a = Report(step, 200), b = Report(step, 200);
    tensors.Take("a", &a);
    tensors.Take("b", &b);
    EXPECT_LE(tensors.bytes(), 2000u);
  }
  EXPECT_EQ(Held(tensors, "a", 7), 0u);
  EXPECT_EQ(Held(tensors, "a", 9), 200u);
  EXPECT_EQ(Held(tensors, "b", 9), 200u);
  v1::StepReport large = Report(10, 3000);
  tensors.Take("a", &large);
  EXPECT_TRUE(large.tensors().empty());
  EXPECT_EQ(Held(tensors, "a", 10), 0u);
  EXPECT_EQ(Held(tensors, "a", 9), 200u);
}

TEST(RecentTensors, ManySmallTensorsCountTheirContainers) {
  RecentTensors tensors(2000);
  for (int64_t step = 0; step < 100; ++step) {
    v1::StepReport report = Report(step, 1);
    tensors.Take("a", &report);
  }
  EXPECT_EQ(Held(tensors, "a", 80), 0u);
  EXPECT_EQ(Held(tensors, "a", 99), 1u);
}

TEST(RecentTensors, RepeatedStepsReplaceAndRollBackDrops) {
  RecentTensors tensors(2000);
  for (size_t bytes : {300, 40}) {
    v1::StepReport report = Report(5, bytes);
    tensors.Take("a", &report);
  }
  EXPECT_EQ(Held(tensors, "a", 5), 40u);
  EXPECT_LT(tensors.bytes(), 400u);
  v1::StepReport earlier = Report(4, 30), other = Report(5, 20);
  tensors.Take("a", &earlier);
  tensors.Take("b", &other);
  tensors.DropFrom("a", 5);
  EXPECT_EQ(Held(tensors, "a", 5), 0u);
  EXPECT_EQ(Held(tensors, "a", 4), 30u);
  EXPECT_EQ(Held(tensors, "b", 5), 20u);
  tensors.DropFrom("a", 0);
  tensors.DropFrom("b", 0);
  EXPECT_EQ(tensors.bytes(), 0u);
}

}  // namespace
}  // namespace espalier
