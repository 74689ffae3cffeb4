// One rank of a training job; worker_test.cc tests whole workers.
#include "worker/training_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/testing/faulty_file_system.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/dataset.h"
#include "storage/manifest.h"
#include "storage/npz_writer.h"
#include "worker/device/device.h"

namespace espalier {
namespace {

constexpr int kBatch = 4;
constexpr int kSequence = 8;

class TrainingJobTest : public testing::Test {
 protected:
  TrainingJobTest() {
    RegisterAllOperators(registry_);
    options_.device = device_.get();
    options_.storage = JobStorage::InFolder(*files_, testing::TempDir(), testing::TempDir());
    options_.open_dataset = [](const v1::Dataset&) {
      return Dataset::FromText(std::string(1000, 'e'), kSequence, 0);
    };
  }

  // Rank 0 of a job on this many devices that predicts the next byte.
  v1::LoadProgramRequest RequestFor(int devices, const std::string& optimizer = "sgd") {
    v1::LoadProgramRequest request;
    GraphBuilder builder(registry_, "tiny");
    const ValueId tokens = builder.Input("tokens", DType::kI32, {-1, kSequence});
    const ValueId targets = builder.Input("targets", DType::kI32, {-1, kSequence});
    const Initializer normal{Initializer::kNormal, 0.1};
    const ValueId table = builder.Parameter("table", DType::kF32, {256, 4}, normal);
    const ValueId head = builder.Parameter("head", DType::kF32, {256, 4}, normal);
    const ValueId logits = builder.Op("linear", {builder.Op("embedding", {tokens, table}), head});
    builder.Output("loss", builder.Op("sparse_categorical_crossentropy", {logits, targets}));
    absl::StatusOr<Graph> graph = builder.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_TRUE(BindAndInfer(registry_, kBatch, &*graph).ok());
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &*graph;
    problem.batch_size = kBatch;
    for (int i = 0; i < devices; ++i) {
      v1::Device device;
      device.set_kind(v1::Device::CPU);
      device.set_memory_bytes(int64_t{1} << 30);
      device.set_matmul_flops(1e10);
      device.set_memory_bandwidth(1e10);
      problem.machine.devices.push_back(device);
    }
    problem.machine.link.set_bandwidth(1e9);
    problem.optimizer.set_name(optimizer);
    problem.optimizer.mutable_learning_rate()->set_peak(0.1);
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    const absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    LoweringOptions lowering;
    lowering.optimizer = problem.optimizer;
    const absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry_, *graph, *plan, lowering);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    *request.mutable_program() = lowered->training[0];
    request.set_batch_size(kBatch);
    return request;
  }

  static absl::Status Run(TrainingJob& job, int64_t first, int64_t last) {
    v1::RunRequest request;
    request.set_first_step(first);
    request.set_last_step(last);
    return job.Run(request, [](const v1::RunEvent&) { return absl::OkStatus(); });
  }

  // Runs these steps, from the checkpoint if there is one. Writes a checkpoint after each step.
  absl::Status RunFrom(TrainingJob& job, const std::string& checkpoint, int64_t first, int64_t last,
                       std::map<int64_t, double>* losses) {
    v1::RunRequest request;
    request.set_first_step(first);
    request.set_last_step(last);
    request.set_restore_checkpoint(checkpoint);
    request.set_checkpoint_root(checkpoint.empty() ? root_ : "");
    request.set_checkpoint_every_steps(1);
    return job.Run(request, [&](const v1::RunEvent& event) {
      if (event.has_step()) (*losses)[event.step().step()] = event.step().values().at("loss");
      if (!event.has_shard()) return absl::OkStatus();
      Manifest manifest;
      manifest.job_id = "job";
      manifest.steps_done = event.shard().steps_done();
      manifest.files.push_back(
          {event.shard().file(), event.shard().sha256(), event.shard().bytes()});
      folders_[manifest.steps_done] = event.shard().directory();
      return WriteManifest(options_.storage->checkpoints(), event.shard().directory(), manifest);
    });
  }
  // A job that has done `steps` steps, with their losses and a checkpoint after each.
  std::unique_ptr<TrainingJob> Trained(int64_t steps, std::map<int64_t, double>* losses) {
    std::filesystem::remove_all(JoinPath(testing::TempDir(), root_));
    absl::StatusOr<std::unique_ptr<TrainingJob>> job =
        TrainingJob::Load(RequestFor(1, "adam"), options_);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return nullptr;
    EXPECT_EQ(RunFrom(**job, "", 0, steps, losses), absl::OkStatus());
    return *std::move(job);
  }

  const std::string root_ = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::map<int64_t, std::string> folders_;  // of checkpoints, by steps done
  OpRegistry registry_;
  const std::unique_ptr<Device> device_ = NewCpuDevice({1, int64_t{1} << 28});
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  TrainingJobOptions options_;
};

// Continuing past the last checkpoint would use untrained weights.
TEST_F(TrainingJobTest, WithoutCheckpointRunMustBeginAtStepZero) {
  const absl::StatusOr<std::unique_ptr<TrainingJob>> job =
      TrainingJob::Load(RequestFor(1), options_);
  ASSERT_TRUE(job.ok()) << job.status();
  const absl::Status refused = Run(**job, 3, 4);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_NE(std::string(refused.message()).find("from step 3"), std::string::npos) << refused;
  EXPECT_EQ(Run(**job, 0, 2), absl::OkStatus());
  EXPECT_EQ(Run(**job, 2, 3), absl::OkStatus()) << "it goes on from where it is";
}

TEST_F(TrainingJobTest, RestoredStepsHaveTheSameLossesWhateverStepsWereRunBefore) {
  std::map<int64_t, double> losses, again;
  const auto job = Trained(6, &losses);
  ASSERT_NE(job, nullptr);
  ASSERT_EQ(losses.size(), 6u);
  for (const int64_t begin : {2, 5, 1}) {
    SCOPED_TRACE(begin);
    again.clear();
    EXPECT_EQ(RunFrom(*job, folders_.at(begin), begin, 6, &again), absl::OkStatus());
    EXPECT_EQ(again, (std::map<int64_t, double>(losses.find(begin), losses.end())));
  }
  again.clear();
  EXPECT_EQ(RunFrom(*job, folders_.at(2), 2, 3, &again), absl::OkStatus());
  EXPECT_EQ(job->CheckpointAt(1), 3) << "it has done three steps now";
  EXPECT_EQ(RunFrom(*job, "", 3, 6, &again), absl::OkStatus()) << "it goes on from where it is";
  EXPECT_EQ(again, (std::map<int64_t, double>(losses.find(2), losses.end())));
}

TEST_F(TrainingJobTest, AnotherStepsCheckpointAndADamagedOneAreNotRestored) {
  std::map<int64_t, double> losses;
  auto job = Trained(3, &losses);
  ASSERT_NE(job, nullptr);
  const absl::Status other = RunFrom(*job, folders_.at(2), 1, 3, &losses);
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss) << other;
  EXPECT_NE(other.message().find(folders_.at(2)), std::string::npos) << other;
  EXPECT_NE(other.message().find("of step 2, not of step 1"), std::string::npos) << other;
  job = Trained(3, &losses);
  const std::string file = JoinPath(folders_.at(2), "rank-0.safetensors");
  std::fstream shard(JoinPath(testing::TempDir(), file),
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(-1, std::ios::end);
  shard.put('\x55');
  shard.close();
  const absl::Status damaged = RunFrom(*job, folders_.at(2), 2, 3, &losses);
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
  EXPECT_NE(damaged.message().find(file), std::string::npos) << damaged;
  job->Abort("it was stopped");
  const absl::Status stopped = RunFrom(*job, folders_.at(1), 1, 3, &losses);
  EXPECT_EQ(stopped, absl::CancelledError("it was stopped"));
}

// The next run of a stream may begin at once; what a slow store has then is reported by a later
// one.
TEST_F(TrainingJobTest, RunsOfAStreamDoNotWaitForShardsButTheLastOneDoes) {
  std::filesystem::remove_all(JoinPath(testing::TempDir(), root_));
  std::map<std::string, Array> examples;
  for (const char* column : {"tokens", "targets"}) {
    const TensorType type{DType::kI32, {3 * kBatch, kSequence}};
    examples[column] = {type, std::vector<char>(static_cast<size_t>(type.bytes()))};
  }
  const absl::StatusOr<std::string> npz = WriteNpz(examples);
  ASSERT_TRUE(npz.ok()) << npz.status();
  std::ofstream(JoinPath(testing::TempDir(), "stream.npz"), std::ios::binary) << *npz;
  FaultyFileSystem files(NewPosixFileSystem());
  options_.storage = JobStorage::InFolder(files, testing::TempDir(), testing::TempDir());
  v1::LoadProgramRequest load = RequestFor(1);
  load.mutable_dataset()->set_format(v1::Dataset::STREAM);
  const absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(load, options_);
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<std::string> order;
  const auto run = [&](int64_t first, int64_t last, bool goes_on) {
    v1::RunRequest request;
    request.set_first_step(first);
    request.set_last_step(last);
    request.set_checkpoint_root(root_);
    request.set_checkpoint_every_steps(2);
    request.set_goes_on(goes_on);
    v1::StreamPart* const part = request.add_stream();
    part->set_end_step(3);
    part->set_path("stream.npz");
    return (*job)->Run(request, [&](const v1::RunEvent& event) {
      if (event.has_step()) order.push_back(absl::StrCat("step ", event.step().step()));
      if (event.has_shard()) order.push_back(absl::StrCat("shard ", event.shard().steps_done()));
      return absl::OkStatus();
    });
  };
  files.Hold("step-2-attempt");
  absl::Notification over;
  std::thread watchdog([&] {
    if (over.WaitForNotificationWithTimeout(absl::Seconds(20))) return;
    ADD_FAILURE() << "a run waits for the store";
    files.Release();
  });
  EXPECT_EQ(run(0, 2, /*goes_on=*/true), absl::OkStatus());
  EXPECT_EQ(run(2, 3, /*goes_on=*/true), absl::OkStatus());
  EXPECT_EQ(run(3, 3, /*goes_on=*/true), absl::OkStatus()) << "it takes what is durable: nothing";
  over.Notify();
  watchdog.join();
  EXPECT_EQ(order, (std::vector<std::string>{"step 0", "step 1", "step 2"}));
  files.Release();
  EXPECT_EQ(run(3, 3, /*goes_on=*/false), absl::OkStatus());
  EXPECT_EQ(order.back(), "shard 2");
  EXPECT_EQ(order.size(), 4u);
}

// Connecting cannot be interrupted, so its timeout must be shorter than a step's.
TEST_F(TrainingJobTest, ConnectTimeoutIsCappedAndPeerTimeoutIsNot) {
  for (const absl::Duration wait : {absl::Seconds(20), absl::Seconds(600)}) {
    SCOPED_TRACE(wait);
    PeerTimeouts timeouts;
    options_.connect = [&](int, int, const PeerTimeouts& given,
                           std::function<bool()>) -> absl::StatusOr<std::unique_ptr<Communicator>> {
      timeouts = given;
      return absl::UnavailableError("no peer is there");
    };
    v1::LoadProgramRequest request = RequestFor(2);
    request.set_peer_timeout_seconds(absl::ToDoubleSeconds(wait));
    const absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(request, options_);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(Run(**job, 0, 1), absl::UnavailableError("no peer is there"));
    EXPECT_EQ(timeouts.wait, wait);
    EXPECT_EQ(timeouts.connect, std::min(wait, absl::Seconds(60)));
    EXPECT_EQ(timeouts.rendezvous, std::min(wait, absl::Seconds(60)));
  }
}

}  // namespace
}  // namespace espalier
