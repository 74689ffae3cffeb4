// Steps that fit less memory by swapping and recomputation compute the same bits.
#include <cstdio>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "ops/cpu/workspace/kernel_workspace.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 5;

class MemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_, 8, 64, 8) : DeepCnn(registry_, 12, 32);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  // `memory` is in bytes per device.
  absl::StatusOr<v1::Plan> PlanFor(int devices, int64_t memory,
                                   const v1::MemoryOptions& options = {}) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(memory);
    problem.optimizer = Optimizer();
    problem.cost = &cost_;
    problem.workspace = workspace_;
    v1::SearchOptions search;
    search.set_strategy(devices == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                     : v1::SearchOptions::DATA_PARALLEL);
    search.set_zero_stage(stage_);
    *search.mutable_memory() = options;
    search.mutable_memory()->set_max_batch_tiles(1);  // see batch_tiling_test.cc
    return MakePlan(problem, search);
  }

  // Without clipping: parameters are updated before all gradients are computed.
  v1::Optimizer Optimizer() {
    v1::Optimizer optimizer = AdamW(3e-3);
    optimizer.set_clip_norm(clip_);
    return optimizer;
  }

  absl::StatusOr<InProcessRun> Train(const v1::Plan& plan) {
    TrainingRunOptions options;
    options.steps = kSteps;
    options.batch_size = job_.batch;
    options.lowering.optimizer = Optimizer();
    options.lowering.seed = 11;
    options.lowering.columns = job_.columns;
    options.lowering.workspace = workspace_;
    return TrainInProcess(registry_, job_.graph, plan, job_.dataset, options);
  }

  // Trains with less and less memory until no plan is found; returns the number of plans that had
  // to be made to fit.
  int ExpectSameBits(int devices, const v1::MemoryOptions& options, const char* what) {
    const absl::StatusOr<v1::Plan> roomy = PlanFor(devices, int64_t{8} << 30, options);
    EXPECT_TRUE(roomy.ok()) << roomy.status();
    if (!roomy.ok()) return 0;
    EXPECT_EQ(roomy->memory_plans_size(), 0);
    const absl::StatusOr<InProcessRun> expected = Train(*roomy);
    EXPECT_TRUE(expected.ok()) << expected.status();
    if (!expected.ok()) return 0;
    const int64_t need = roomy->prediction().peak_bytes(0);
    int count = 0;
    for (int percent = 95; percent > 5; percent -= 15) {
      const int64_t memory = need * percent / 100;
      const absl::StatusOr<v1::Plan> plan = PlanFor(devices, memory, options);
      if (absl::IsResourceExhausted(plan.status())) {
        std::printf("%s, %d %% of %ld bytes: %s\n", what, percent, static_cast<long>(need),
                    std::string(plan.status().message()).substr(0, 400).c_str());
        break;
      }
      EXPECT_TRUE(plan.ok()) << plan.status();
      if (!plan.ok()) return count;
      EXPECT_EQ(plan->memory_plans_size(), devices);
      int swapped = 0, again = 0;
      for (const v1::MemoryPlan::Eviction& a : plan->memory_plans(0).evictions()) {
        (a.recompute() ? again : swapped) += 1;
      }
      EXPECT_TRUE(swapped == 0 || !options.disable_swap());
      EXPECT_TRUE(again == 0 || !options.disable_recompute());
      EXPECT_GT(swapped + again, 0);
      const absl::StatusOr<InProcessRun> run = Train(*plan);
      EXPECT_TRUE(run.ok()) << what << ", " << percent << " %: " << run.status();
      if (!run.ok()) return count;
      std::printf("%s, %d %%: %d swapped, %d computed again, %+.0f %% of time predicted\n", what,
                  percent, swapped, again,
                  100 * plan->memory_plans(0).added_seconds() / plan->prediction().step_seconds());
      EXPECT_EQ(run->losses, expected->losses) << what << ", " << percent << " %";
      EXPECT_EQ(run->parameters, expected->parameters) << what << ", " << percent << " %";
      for (int rank = 0; rank < devices; ++rank) {
        EXPECT_LE(plan->prediction().peak_bytes(rank), memory);
        EXPECT_LE(run->measured_peak_bytes[rank], memory);
      }
      ++count;
    }
    return count;
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
  double clip_ = 1.0;
  int stage_ = 0;  // ZeRO stage
  CpuKernelWorkspace kernels_;
  WorkspaceQuery workspace_;
};

TEST_P(MemoryTest, LessMemoryGivesTheSameBits) {
  EXPECT_GE(ExpectSameBits(1, {}, "both"), 2);
  v1::MemoryOptions swap;
  swap.set_disable_recompute(true);
  EXPECT_GE(ExpectSameBits(1, swap, "swapping"), 2);
  swap.set_sync_mode(3);
  EXPECT_GE(ExpectSameBits(1, swap, "swapping, sync_mode 3"), 2);
  v1::MemoryOptions recompute;
  recompute.set_disable_swap(true);
  ExpectSameBits(1, recompute, "computing again");
}

TEST_P(MemoryTest, SlowHostAndEarlyUpdatesGiveTheSameBits) {
  clip_ = 0;
  v1::MemoryOptions slow;
  slow.set_host_bandwidth(1e7);  // makes recomputation cheaper
  EXPECT_GE(ExpectSameBits(1, slow, "slow host, no clipping"), 2);
}

TEST_P(MemoryTest, SeveralDevicesGiveTheSameBits) {
  EXPECT_GE(ExpectSameBits(2, {}, "data parallel"), 1);
}

TEST_P(MemoryTest, ZeroReplicasGiveTheSameBits) {
  for (int stage : {1, 2, 3}) {
    stage_ = stage;
    clip_ = stage == 2 ? 0 : 1;
    EXPECT_GE(ExpectSameBits(2, {}, "ZeRO"), 1) << stage;
  }
}

TEST_P(MemoryTest, AcceptedPlansRunInTheMemoryThatTheyPredict) {
  workspace_ = [this](const KernelSpec& spec, const v1::Device&) {
    return kernels_.Bytes(spec, TrainingRunOptions().threads_per_rank);
  };
  const absl::StatusOr<v1::Plan> roomy = PlanFor(1, int64_t{8} << 30);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const int64_t need = roomy->prediction().peak_bytes(0);
  int accepted = 0;
  for (int percent : {100, 99, 97, 94, 90, 85, 80, 70, 60, 50, 40}) {
    const int64_t memory = need * percent / 100;
    const absl::StatusOr<v1::Plan> plan = PlanFor(1, memory);
    if (absl::IsResourceExhausted(plan.status())) break;
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->memory_plans_size() > 0, percent < 100);
    const absl::StatusOr<InProcessRun> run = Train(*plan);
    ASSERT_TRUE(run.ok()) << percent << " %: " << run.status();
    EXPECT_EQ(run->measured_peak_bytes[0], plan->prediction().peak_bytes(0)) << percent << " %";
    EXPECT_LE(run->measured_peak_bytes[0], memory);
    ++accepted;
  }
  EXPECT_GE(accepted, 5);
}

TEST_P(MemoryTest, ForbiddenOffloadIsNotUsed) {
  const absl::StatusOr<v1::Plan> roomy = PlanFor(1, int64_t{8} << 30);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const int64_t memory = roomy->prediction().peak_bytes(0) * 8 / 10;
  v1::MemoryOptions none;
  none.set_disable_swap(true);
  none.set_disable_recompute(true);
  const absl::Status refused = PlanFor(1, memory, none).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  v1::MemoryOptions wrong;
  wrong.set_sync_mode(4);
  const absl::Status bad = PlanFor(1, memory, wrong).status();
  EXPECT_TRUE(absl::IsInvalidArgument(bad)) << bad;
  EXPECT_NE(std::string(bad.message()).find("sync_mode is 4; accepted: 0 to 3"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, MemoryTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DeepCnn"; });

}  // namespace
}  // namespace espalier
