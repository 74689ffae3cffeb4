#include "server/jobs/attempt.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "ops/graph/graph_proto.h"
#include "planner/testing/graphs.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

// Signals the first request to measure an operator; cannot measure any.
class IdleWorker : public WorkerClient {
 public:
  explicit IdleWorker(absl::Notification* asked) : asked_(asked) {}

  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest&, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest&, absl::Duration) override {
    if (!asked_->HasBeenNotified()) asked_->Notify();
    return absl::UnavailableError("idle");
  }
  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest&,
                                                   absl::Duration) override {
    return absl::UnavailableError("idle");
  }
  absl::Status Run(const v1::RunRequest&,
                   const std::function<void(const v1::RunEvent&)>&) override {
    return absl::UnavailableError("idle");
  }
  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest&,
                                                     absl::Duration) override {
    return absl::UnavailableError("idle");
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
  absl::Notification* const asked_;
};

class Quiet : public AttemptObserver {
 public:
  void OnPlanned(const std::string&, int32_t, const PlanFacts&) override {}
  void OnRunning(const std::string&, int32_t) override {}
  void OnStep(const std::string&, int32_t, const v1::StepReport&) override {}
  void OnValidation(const std::string&, int32_t, const v1::StepReport&) override {}
  void OnCheckpoint(const std::string&, int32_t, const StoredCheckpoint&) override {}
  void OnCheckpointSkipped(const std::string&, int32_t, const std::string&) override {}
  void OnMessage(const std::string&, const v1::JobMessage&) override {}
};

// A search of 100 million proposals would occupy its workers and block other plans for hours.
TEST(AttemptTest, StopDuringPlanningEndsAttemptAtOnce) {
  const std::string folder = ::testing::TempDir() + "/attempt";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/text") << std::string(4096, 'a');
  SystemClock clock;
  std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  auto store = SqliteStore::Open(folder + "/jobs.db");
  ASSERT_TRUE(store.ok()) << store.status();
  auto artifacts = ArtifactStore::Open(folder + "/artifacts", files.get(), store->get(), &clock);
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  WorkerRegistry workers(&clock, absl::Seconds(10), [] { return absl::StatusOr<uint64_t>(1); });
  Rendezvous rendezvous;
  FolderCheckpointStore data_folder(*files, folder), checkpoints(*files, folder + "/checkpoints");
  CalibratedPlanner planner(&TestRegistry(), store->get(), 10, 1);
  absl::Notification planning;
  auto dataset_roots = DatasetRoots::Create({folder});
  ASSERT_TRUE(dataset_roots.ok()) << dataset_roots.status();
  const AttemptTools tools = {
      .registry = &TestRegistry(),
      .artifacts = artifacts->get(),
      .planner = &planner,
      .workers = &workers,
      .rendezvous = &rendezvous,
      .files = files.get(),
      .checkpoints = &checkpoints,
      .data_folder = &data_folder,
      .dial = [&](const Member&) { return std::make_unique<IdleWorker>(&planning); },
      .dataset_roots = dataset_roots->get()};

  AttemptTask task;
  task.attempt = 1;
  task.record.job.set_id("job-1");
  v1::TrainingSpec& spec = *task.record.job.mutable_spec();
  absl::StatusOr<Graph> graph = BuildLlamaTraining(TestRegistry(), SmallLlama(), 16);
  ASSERT_TRUE(graph.ok()) << graph.status();
  *spec.mutable_graph() = ToProto(*graph);
  spec.mutable_dataset()->set_uri(folder + "/text");
  spec.mutable_dataset()->set_format(v1::Dataset::TEXT);
  spec.mutable_dataset()->set_sequence_length(16);
  spec.set_batch_size(8);
  spec.set_steps(10);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->mutable_learning_rate()->set_peak(1e-3);
  spec.mutable_search()->set_budget(100'000'000);
  for (const v1::Device& device : TestMachine(2).devices) {
    Member& member = task.members.emplace_back();
    member.device = device;
    member.lease.set_worker_id(std::to_string(task.members.size()));
  }

  Quiet observer;
  Attempt attempt(tools, task, &observer);
  AttemptEnd end;
  std::thread run([&] { end = attempt.Run(); });
  planning.WaitForNotification();
  attempt.Stop();
  run.join();
  EXPECT_EQ(end.kind, AttemptEnd::kStopped) << end.reason;
}

}  // namespace
}  // namespace espalier
