// One rank of a training job; worker_test.cc tests whole workers.
#include "worker/training_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/dataset.h"
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
  v1::LoadProgramRequest RequestFor(int devices) {
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
    problem.optimizer.set_name("sgd");
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
