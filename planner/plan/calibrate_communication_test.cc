#include "planner/plan/calibrate_communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "planner/cost/analytic_cost.h"
#include "planner/machine/communication.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

class CalibrateCommunicationTest : public ::testing::Test {
 protected:
  CalibrateCommunicationTest() {
    for (double bytes : {1e3, 1e6, 1e8}) {
      for (int ranks : {2, 4}) {
        for (int kind : {Collective::ALL_REDUCE, Collective::ALL_GATHER}) {
          v1::CommunicationProfile::Collective* c = profile_.add_collectives();
          c->set_kind(kind);
          c->set_ranks(ranks);
          c->set_bytes(bytes);
          c->set_seconds(1e-5 * ranks + bytes / 1e9);
        }
      }
      v1::CommunicationProfile::Message* m = profile_.add_messages();
      m->set_bytes(bytes);
      m->set_send_seconds(bytes / 4e9);
      m->set_receive_seconds(1e-5 + bytes / 2e9);
    }
  }

  // A profile of `devices` devices with some samples.
  std::vector<v1::Program> DataParallel(int devices) {
    PlanProblem problem = TestProblem(graph_, 256, devices);
    const v1::Plan plan = MakePlan(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL)).value();
    LoweringOptions options;
    options.optimizer = problem.optimizer;
    return LowerPlan(TestRegistry(), graph_, plan, options)->training;
  }

  // The times that ranks report if every all-reduce takes `seconds` once all ranks have entered and
  // each rank waits that long before.
  static std::vector<std::vector<OperatorTime>> Reported(const std::vector<v1::Program>& programs,
                                                         double seconds,
                                                         const std::vector<double>& waits) {
    std::vector<std::vector<OperatorTime>> times(programs.size());
    for (size_t r = 0; r < programs.size(); ++r) {
      std::set<std::string> nodes;
      for (const v1::Instruction& i : programs[r].instructions()) {
        if (i.collective().kind() == Collective::ALL_REDUCE) nodes.insert(i.node());
      }
      for (const std::string& node : nodes) {
        times[r].push_back({node, "all_reduce", seconds + waits[r]});
      }
    }
    return times;
  }

  double Predicts(Collective::Kind kind, int ranks, double bytes) {
    return *CommunicationModel::Create(profile_)->CollectiveSeconds(kind, ranks, bytes);
  }

  static std::vector<v1::Device> Devices(int count) { return TestMachine(count).devices; }

  const Graph graph_ = Mlp(256, 512, 512, 512);
  v1::CommunicationProfile profile_;
};

TEST_F(CalibrateCommunicationTest, LearnsSlowCollectivesWithoutWaiting) {
  const std::vector<v1::Program> programs = DataParallel(4);
  const double bytes = 1e6, before = Predicts(Collective::ALL_REDUCE, 4, bytes);
  const double gathers = Predicts(Collective::ALL_GATHER, 4, bytes);
  const double of_two = Predicts(Collective::ALL_REDUCE, 2, bytes);
  const double message = CommunicationModel::Create(profile_)->MessageSeconds(bytes)->receive;
  // Each rank but the last waits a second.
  auto drifts = CalibrateCommunication(programs, Reported(programs, 5e-3, {1, 1, 0, 1}), Devices(4),
                                       &profile_);
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  ASSERT_FALSE(drifts->empty());
  double measured = 0, predicted = 0;
  for (const PredictionError& drift : *drifts) {
    EXPECT_THAT(drift.node, ::testing::HasSubstr("all_reduce of 4 ranks"));
    EXPECT_LT(drift.measured_seconds, 0.1);
    measured += drift.measured_seconds;
    predicted += drift.predicted_seconds;
  }
  // Half way, and only for what was reported.
  const double after = Predicts(Collective::ALL_REDUCE, 4, bytes);
  EXPECT_NEAR(after / before, (1 + measured / predicted) / 2, 1e-9);
  EXPECT_GT(after, before);
  EXPECT_EQ(Predicts(Collective::ALL_GATHER, 4, bytes), gathers);
  EXPECT_EQ(Predicts(Collective::ALL_REDUCE, 2, bytes), of_two);
  EXPECT_EQ(CommunicationModel::Create(profile_)->MessageSeconds(bytes)->receive, message);
}

TEST_F(CalibrateCommunicationTest, ConvergesOverEqualRuns) {
  const std::vector<v1::Program> programs = DataParallel(2);
  std::vector<PredictionError> drifts;
  for (int run = 0; run < 12; ++run) {
    drifts =
        CalibrateCommunication(programs, Reported(programs, 3e-3, {0, 0.5}), Devices(2), &profile_)
            .value();
  }
  double measured = 0, predicted = 0;
  for (const PredictionError& drift : drifts) {
    measured += drift.measured_seconds;
    predicted += drift.predicted_seconds;
  }
  EXPECT_NEAR(predicted / measured, 1, 0.01);
}

TEST_F(CalibrateCommunicationTest, CollectiveWithMissingRankIsIgnored) {
  const std::vector<v1::Program> programs = DataParallel(4);
  auto times = Reported(programs, 1e-2, {1, 1, 0, 1});
  const std::string before = profile_.SerializeAsString();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double seconds : {-1.0, nan}) {
    for (OperatorTime& time : times[2]) time.seconds = seconds;
    auto drifts = CalibrateCommunication(programs, times, Devices(4), &profile_);
    ASSERT_TRUE(drifts.ok()) << drifts.status();
    EXPECT_TRUE(drifts->empty());
  }
  times.resize(2);
  EXPECT_TRUE(CalibrateCommunication(programs, times, Devices(4), &profile_)->empty());
  EXPECT_EQ(profile_.SerializeAsString(), before);
}

// Rank 0 sends to rank 1, a million bytes each time.
std::vector<v1::Program> Pipe() {
  std::vector<v1::Program> programs(2);
  for (int r = 0; r < 2; ++r) {
    v1::TensorSpec* spec = programs[r].add_buffers()->mutable_spec();
    spec->set_dtype(v1::F32);
    spec->add_dims(250'000);
    for (int i = 0; i < 3; ++i) {
      v1::Instruction* instruction = programs[r].add_instructions();
      instruction->set_node("stage");
      if (r == 0) instruction->mutable_send()->set_buffer(0);
      if (r == 1) instruction->mutable_receive()->set_buffer(0);
    }
  }
  return programs;
}

TEST_F(CalibrateCommunicationTest, ReceiveTimesOnlyFallSendTimesAreUsed) {
  const auto before = *CommunicationModel::Create(profile_)->MessageSeconds(1e6);
  auto drifts = CalibrateCommunication(
      Pipe(), {{{"stage", "send", 2 * before.send}}, {{"stage", "receive", 9 * before.receive}}},
      Devices(2), &profile_);
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  ASSERT_EQ(drifts->size(), 1);
  EXPECT_EQ((*drifts)[0].node, "stage send");
  EXPECT_NEAR((*drifts)[0].predicted_seconds, 3 * before.send, 1e-12);
  const auto after = *CommunicationModel::Create(profile_)->MessageSeconds(1e6);
  EXPECT_NEAR(after.send, 1.5 * before.send, 1e-12);
  EXPECT_EQ(after.receive, before.receive);
  // Waiting cannot exceed the smallest time.
  drifts = CalibrateCommunication(Pipe(), {{}, {{"stage", "receive", 0.5 * before.receive}}},
                                  Devices(2), &profile_);
  ASSERT_TRUE(drifts.ok()) << drifts.status();
  EXPECT_EQ(drifts->size(), 1);
  EXPECT_NEAR(CommunicationModel::Create(profile_)->MessageSeconds(1e6)->receive,
              0.75 * before.receive, 1e-12);
}

TEST_F(CalibrateCommunicationTest, OneDisturbedRunHasLimitedEffect) {
  const std::vector<v1::Program> programs = DataParallel(2);
  const double before = Predicts(Collective::ALL_REDUCE, 2, 1e6);
  ASSERT_TRUE(
      CalibrateCommunication(programs, Reported(programs, 1e9, {0, 0}), Devices(2), &profile_)
          .ok());
  EXPECT_LT(Predicts(Collective::ALL_REDUCE, 2, 1e6), 5 * before);
}

TEST_F(CalibrateCommunicationTest, IgnoresSharedCoresAndEmptyProfiles) {
  const std::vector<v1::Program> programs = DataParallel(2);
  const auto times = Reported(programs, 1e-2, {0, 0});
  std::vector<v1::Device> shared = Devices(2);
  for (v1::Device& device : shared) {
    device.set_host("one");
    device.set_host_cores(1);
  }
  const std::string before = profile_.SerializeAsString();
  EXPECT_TRUE(CalibrateCommunication(programs, times, shared, &profile_)->empty());
  EXPECT_EQ(profile_.SerializeAsString(), before);
  v1::CommunicationProfile empty;
  EXPECT_TRUE(CalibrateCommunication(programs, times, Devices(2), &empty)->empty());
}

TEST_F(CalibrateCommunicationTest, ProgramWithoutBuffersIsAnError) {
  std::vector<v1::Program> programs = Pipe();
  programs[1].mutable_instructions(2)->mutable_receive()->set_buffer(7);
  const absl::Status status =
      CalibrateCommunication(programs, {{}, {{"stage", "receive", 1}}}, Devices(2), &profile_)
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("program of rank 1: instruction 2: buffer 7 of 1"));
}

}  // namespace
}  // namespace espalier
