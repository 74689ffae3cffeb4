#include "server/jobs/calibrated_planner.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "planner/testing/graphs.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

// Measures by shape, one operator at a time as a worker does; fails for every third.
class OddWorker : public WorkerClient {
 public:
  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest& request,
                                           absl::Duration timeout) override {
    EXPECT_EQ(running_++, 0);
    ++asked_;
    v1::MeasureReply reply;
    for (const v1::Program& program : request.programs()) {
      std::string text;
      for (const v1::Buffer& buffer : program.buffers()) {
        text += buffer.spec().ShortDebugString();
      }
      uint64_t hash = 1469598103934665603u;
      for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
      reply.add_seconds(hash % 3 == 0 ? -1 : 1e-5 + 1e-7 * static_cast<double>(hash / 3 % 1000));
    }
    std::this_thread::yield();
    --running_;
    return reply;
  }
  int asked() const { return asked_; }

  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest&,
                                                   absl::Duration) override {
    return absl::UnimplementedError("only measures");
  }
  absl::Status Run(const v1::RunRequest&,
                   const std::function<void(const v1::RunEvent&)>&) override {
    return absl::UnimplementedError("only measures");
  }
  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("only measures");
  }
  std::unique_ptr<ServingStream> ServingSteps() override { return nullptr; }
  std::unique_ptr<SessionRankStream> RunSession() override { return nullptr; }
  absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::Status Stop(const v1::StopRequest&, absl::Duration) override { return absl::OkStatus(); }
  void Cancel() override {}

 private:
  std::atomic<int> running_ = 0, asked_ = 0;
};

class CalibratedPlannerTest : public ::testing::Test {
 protected:
  std::unique_ptr<JobStore> Store(const std::string& name) {
    const std::string folder = ::testing::TempDir() + "/plan_desk_" + name;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    auto store = SqliteStore::Open(folder + "/jobs.db");
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  CalibratedPlanner::Request Request(const Graph& graph, int devices) {
    CalibratedPlanner::Request request;
    request.graph = &graph;
    request.batch_size = kBatch;
    request.machine = TestMachine(devices);
    request.optimizer = TestOptimizer();
    return request;
  }

  static constexpr int64_t kBatch = 256;
};

TEST_F(CalibratedPlannerTest, PlanAndCalibrationDoNotDependOnThreadCount) {
  const Graph graph = Mlp(kBatch, 128, 64, 16);
  std::vector<v1::Plan> plans;
  std::vector<std::string> profiles;
  for (int threads : {1, 2, 8}) {
    std::unique_ptr<JobStore> store = Store(absl::StrCat("threads", threads));
    CalibratedPlanner planner(&TestRegistry(), store.get(), 1e9, threads);
    OddWorker worker;
    CalibratedPlanner::Request request = Request(graph, 4);
    request.measure_on["test"] = &worker;
    request.search.set_memory_search(true);
    request.search.set_rewrite_budget(20);
    absl::StatusOr<v1::Plan> plan = planner.Make(request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GT(worker.asked(), 10);
    plan->mutable_search()->clear_seconds();
    plans.push_back(*std::move(plan));
    profiles.push_back(planner.Profile());
  }
  for (size_t i = 1; i < plans.size(); ++i) {
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(plans[i], plans[0]));
    EXPECT_EQ(profiles[i], profiles[0]);
  }
}

TEST_F(CalibratedPlannerTest, RunCalibratesCollectivesForOtherCoordinators) {
  const Graph graph = Mlp(kBatch, 512, 512, 512);
  std::unique_ptr<JobStore> store = Store("runs");
  const std::vector<v1::Device> devices = TestMachine(2).devices;
  const auto seconds = [&](CalibratedPlanner& planner) {
    return *planner.Communication(devices)->CollectiveSeconds(v1::CollectiveInstruction::ALL_REDUCE,
                                                              2, 1e6);
  };
  double learnt = 0;
  {
    CalibratedPlanner planner(&TestRegistry(), store.get(), 0, 1);
    CalibratedPlanner::Request request = Request(graph, 2);
    request.search.set_strategy(v1::SearchOptions::DATA_PARALLEL);
    absl::StatusOr<v1::Plan> plan = planner.Make(request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    LoweringOptions options;
    options.optimizer = request.optimizer;
    absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, *plan, options);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    CalibratedPlanner::Run run{&graph, &*plan, &lowered->training, &devices, {}};
    for (const v1::Program& program : lowered->training) {
      std::vector<OperatorTime>& times = run.times.emplace_back();
      for (const v1::Instruction& i : program.instructions()) {
        if (i.has_collective()) times.push_back({i.node(), "all_reduce", 0.5});
      }
    }
    // No measurements of these devices exist yet.
    EXPECT_FALSE(planner.RecordRun(run).includes_transfers);
    EXPECT_EQ(planner.Communication(devices), nullptr);
    v1::CommunicationProfile profile;
    profile.add_messages()->set_bytes(1e6);
    profile.mutable_messages(0)->set_receive_seconds(1e-3);
    for (double bytes : {1e3, 1e7}) {
      v1::CommunicationProfile::Collective* c = profile.add_collectives();
      c->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
      c->set_ranks(2);
      c->set_bytes(bytes);
      c->set_seconds(1e-4 + bytes / 1e8);
    }
    EXPECT_THAT(planner.RecordCommunication(devices, profile),
                ::testing::HasSubstr("none for 4 of 5 kinds of collectives"));
    const double before = seconds(planner);
    const CalibratedPlanner::CalibrationReport calibration = planner.RecordRun(run);
    EXPECT_TRUE(calibration.includes_transfers);
    ASSERT_FALSE(calibration.drifts.empty());
    EXPECT_THAT(calibration.drifts[0].node, ::testing::HasSubstr("all_reduce of 2 ranks"));
    learnt = seconds(planner);
    EXPECT_GT(learnt, 1.5 * before);
  }
  CalibratedPlanner other(&TestRegistry(), store.get(), 0, 1);
  EXPECT_EQ(seconds(other), learnt);
}

// A cancelled job's planning must not block other plans, nor its workers.
TEST_F(CalibratedPlannerTest, StoppedSearchEndsAndWaitersCanCancel) {
  const Graph graph = Mlp(kBatch, 128, 64, 16);
  std::unique_ptr<JobStore> store = Store("stopped");
  CalibratedPlanner planner(&TestRegistry(), store.get(), 0, 1);
  CalibratedPlanner::Request endless = Request(graph, 4);
  endless.search.set_budget(100'000'000);
  absl::Notification begun, enough;
  std::atomic<bool> asked = false;
  endless.stop = [&] {
    if (!asked.exchange(true)) begun.Notify();
    return enough.HasBeenNotified();
  };
  absl::StatusOr<v1::Plan> plan = absl::UnknownError("");
  std::thread planning([&] { plan = planner.Make(endless); });
  begun.WaitForNotification();
  CalibratedPlanner::Request behind = Request(graph, 4);
  behind.stop = [] { return true; };
  EXPECT_EQ(planner.Make(behind).status().code(), absl::StatusCode::kCancelled);
  enough.Notify();
  planning.join();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->search().proposals(), endless.search.budget());
  EXPECT_TRUE(planner.Make(Request(graph, 2)).ok());  // the turn was released
}

}  // namespace
}  // namespace espalier
