// Checkpoints are independent of ZeRO stage and number of devices: training continues under others
// along the curve of one device that never stopped.
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "storage/manifest.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/device/device.h"
#include "worker/training_job.h"

namespace espalier {
namespace {

constexpr int kHalf = 8;  // steps
constexpr int kFrozenLayers = 12;

struct Part {
  int stage = 0;
  int devices = 1;
  std::map<int64_t, double> losses;  // by step
  double evaluation = 0;
  std::string checkpoint;  // directory
  int64_t own_bytes = 0, shared_bytes = 0;
};

// The third one trains the last layers only, as in transfer learning.
enum class Model { kDigitsCnn, kLlama, kFrozenLlama };

class ZeroCheckpoint : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() == Model::kDigitsCnn
                   ? DigitsCnn(registry_)
                   : SmallLlama(registry_, GetParam() == Model::kLlama ? 2 : kFrozenLayers + 1);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    if (GetParam() != Model::kFrozenLlama) return;
    for (ValueId v = 0; v < static_cast<ValueId>(job_.graph.values().size()); ++v) {
      Value& value = job_.graph.mutable_value(v);
      if (value.kind != ValueKind::kParameter) continue;
      value.trainable = absl::StrContains(value.name, absl::StrCat("layers.", kFrozenLayers)) ||
                        absl::StrContains(value.name, "lm_head");
    }
  }

  absl::StatusOr<LoweredPlan> Lowered(int stage, int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = AdamW(3e-3);
    problem.cost = &cost_;
    v1::SearchOptions options;
    options.set_strategy(v1::SearchOptions::DATA_PARALLEL);
    options.set_zero_stage(stage);
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
    if (!plan.ok()) return plan.status();
    return LowerPlan(registry_, job_.graph, *plan, {AdamW(3e-3), 11, job_.columns});
  }

  // Runs steps [first, last) from checkpoint `from` (empty: from initializers) as workers do, with
  // evaluation at the end.
  Part Run(int stage, int devices, int first, int last, const std::string& from) {
    Part part{stage, devices};
    const absl::StatusOr<LoweredPlan> lowered = Lowered(stage, devices);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    if (!lowered.ok()) return part;
    auto communicators = NewInProcessCommunicators(devices, absl::Seconds(60));
    std::vector<ManifestFile> files(devices), shared;
    const std::string root =
        absl::StrCat("zero", static_cast<int>(GetParam()), "/attempt-", runs_++);
    absl::Mutex mutex;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < devices; ++rank) {
      threads.emplace_back([&, rank] {
        std::unique_ptr<Device> device = NewCpuDevice({1, int64_t{1} << 30});
        TrainingJobOptions options;
        options.device = device.get();
        options.storage = storage_;
        options.open_dataset = [&](const v1::Dataset&) { return job_.dataset; };
        options.connect = [&](int, int, const PeerTimeouts&, std::function<bool()>) {
          return std::move(communicators[rank]);
        };
        v1::LoadProgramRequest load;
        *load.mutable_program() = lowered->training[rank];
        *load.mutable_evaluation() = lowered->evaluation[rank];
        load.set_batch_size(job_.batch);
        load.set_checkpoint_dir(from);
        absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(load, options);
        EXPECT_TRUE(job.ok()) << job.status();
        if (!job.ok()) return;
        v1::RunRequest run;
        run.set_first_step(first);
        run.set_last_step(last);
        run.set_checkpoint_root(root);
        run.set_evaluate_at_end(true);
        const absl::Status status = (*job)->Run(run, [&](const v1::RunEvent& event) {
          absl::MutexLock lock(&mutex);
          if (event.has_step() && event.step().values().count("loss") > 0) {
            part.losses[event.step().step()] += event.step().values().at("loss");
          }
          if (event.has_evaluation() && event.evaluation().values().count("loss") > 0) {
            part.evaluation += event.evaluation().values().at("loss");
          }
          if (event.has_shard()) {
            part.checkpoint = event.shard().directory();
            files[rank] = {event.shard().file(), event.shard().sha256(), event.shard().bytes()};
            const v1::CheckpointShard::Unchanged& unchanged = event.shard().unchanged();
            if (event.shard().has_unchanged()) {
              shared.push_back({unchanged.file(), unchanged.sha256(), unchanged.bytes(), true});
            }
          }
          return absl::OkStatus();
        });
        EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
        ended_.Add((*job)->TakeCommunicator());
      });
    }
    for (std::thread& thread : threads) thread.join();
    Manifest manifest;
    manifest.job_id = "zero";
    manifest.steps_done = last;
    EXPECT_EQ(shared.empty(), GetParam() != Model::kFrozenLlama);
    for (const ManifestFile& file : files) part.own_bytes += file.bytes;
    for (const ManifestFile& file : shared) part.shared_bytes += file.bytes;
    files.insert(files.end(), shared.begin(), shared.end());
    manifest.files = files;
    EXPECT_EQ(WriteManifest(storage_->checkpoints(), part.checkpoint, manifest), absl::OkStatus());
    return part;
  }

  // Communicators of finished ranks, kept for ranks that still read from them.
  struct Ended {
    void Add(std::unique_ptr<Communicator> communicator) {
      absl::MutexLock lock(&mutex);
      all.push_back(std::move(communicator));
    }
    absl::Mutex mutex;
    std::vector<std::unique_ptr<Communicator>> all;
  };

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  const std::shared_ptr<JobStorage> storage_ =
      JobStorage::InFolder(*files_, ::testing::TempDir(), ::testing::TempDir());
  Ended ended_;
  int runs_ = 0;
};

TEST_P(ZeroCheckpoint, MovesBetweenStagesAndNumbersOfDevices) {
  const Part whole = Run(0, 1, 0, 2 * kHalf, "");
  ASSERT_EQ(whole.losses.size(), 2u * kHalf);
  const std::pair<std::pair<int, int>, std::pair<int, int>> moves[] = {
      {{0, 2}, {2, 4}}, {{2, 4}, {0, 2}}, {{3, 4}, {1, 2}}, {{1, 2}, {3, 4}}, {{3, 2}, {0, 1}}};
  for (const auto& [writer, reader] : moves) {
    const Part first = Run(writer.first, writer.second, 0, kHalf, "");
    const Part second = Run(reader.first, reader.second, kHalf, 2 * kHalf, first.checkpoint);
    std::map<int64_t, double> losses = first.losses;
    losses.insert(second.losses.begin(), second.losses.end());
    ASSERT_EQ(losses.size(), whole.losses.size());
    // Each part of batch normalization corrects the running variance by its own number of samples.
    EXPECT_NEAR(second.evaluation, whole.evaluation,
                (GetParam() == Model::kDigitsCnn ? 1e-3 : 1e-4) * whole.evaluation);
    double worst = 0;
    for (const auto& [step, loss] : losses) {
      worst = std::max(worst, std::abs(loss / whole.losses.at(step) - 1));
    }
    std::printf("stage %d on %d -> stage %d on %d: largest relative difference %.1e\n",
                writer.first, writer.second, reader.first, reader.second, worst);
    EXPECT_LT(worst, 1e-4);
    if (GetParam() == Model::kFrozenLlama) {
      EXPECT_GT(second.shared_bytes, second.own_bytes) << "most values do not change";
    }
  }
}

// A worker told to stop may have a hundred gigabytes left to read.
TEST_P(ZeroCheckpoint, CancelledLoadEndsBetweenTensors) {
  const Part first = Run(0, 1, 0, 1, "");
  const absl::StatusOr<LoweredPlan> lowered = Lowered(0, 1);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  std::unique_ptr<Device> device = NewCpuDevice({1, int64_t{1} << 30});
  TrainingJobOptions options;
  options.device = device.get();
  options.storage = storage_;
  options.open_dataset = [&](const v1::Dataset&) { return job_.dataset; };
  int asked = 0;
  options.cancelled = [&] { return ++asked == 3; };
  v1::LoadProgramRequest load;
  *load.mutable_program() = lowered->training[0];
  load.set_batch_size(job_.batch);
  load.set_checkpoint_dir(first.checkpoint);
  EXPECT_EQ(TrainingJob::Load(load, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
}

std::string NameOfModel(const ::testing::TestParamInfo<Model>& info) {
  if (info.param == Model::kDigitsCnn) return "DigitsCnn";
  return info.param == Model::kLlama ? "Llama" : "FrozenLlama";
}

INSTANTIATE_TEST_SUITE_P(Models, ZeroCheckpoint,
                         ::testing::Values(Model::kDigitsCnn, Model::kLlama, Model::kFrozenLlama),
                         NameOfModel);

}  // namespace
}  // namespace espalier
