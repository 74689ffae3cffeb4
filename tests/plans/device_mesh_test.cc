// Device meshes of stages, replicas and parts train as one device does. Large machines and small
// memories are planned with them.
#include "planner/plan/device_mesh.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/machine/presets.h"
#include "planner/machine/topology.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 15;
constexpr double kTolerance = 1e-4;  // relative

class DeviceMeshTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_, 4, 16, 16) : DeepCnn(registry_, 8, 32);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  PlanProblem Problem(int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = AdamW(3e-3);
    problem.cost = &cost_;
    return problem;
  }

  absl::StatusOr<InProcessRun> Train(const absl::StatusOr<v1::Plan>& plan) {
    if (!plan.ok()) return plan.status();
    TrainingRunOptions options;
    options.steps = kSteps;
    options.batch_size = job_.batch;
    options.lowering.optimizer = AdamW(3e-3);
    options.lowering.seed = 11;
    options.lowering.columns = job_.columns;
    return TrainInProcess(registry_, job_.graph, *plan, job_.dataset, options);
  }

  void ExpectSameCurve(const InProcessRun& whole, const absl::StatusOr<InProcessRun>& run,
                       const std::string& what) {
    ASSERT_TRUE(run.ok()) << what << ": " << run.status();
    ASSERT_EQ(run->losses.size(), whole.losses.size()) << what;
    const double worst = LargestRelativeDifference(whole, *run);
    std::printf("%-64s %.1e\n", what.c_str(), worst);
    EXPECT_LT(worst, kTolerance) << what;
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
};

TEST_P(DeviceMeshTest, EveryGridGivesTheLossCurveOfOneDevice) {
  v1::SearchOptions single;
  single.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  const auto whole = Train(MakePlan(Problem(1), single));
  ASSERT_TRUE(whole.ok()) << whole.status();
  const PlanProblem problem = Problem(4);
  MeshPlanner planner(problem, 4, {}, {}, /*budget=*/200);
  std::set<std::string> shapes;
  for (int zero_stage : {0, 1, 3}) {
    for (const MeshShape& shape : planner.Shapes(zero_stage, 0)) {
      if (shape.micro_batches > 4 || (zero_stage > 0 && shape.data == 1)) continue;
      absl::StatusOr<MeshPlan> made = planner.Make(shape);
      // A group may have found a split that this small a part of the batch does not allow.
      if (absl::IsInvalidArgument(made.status())) continue;
      ASSERT_TRUE(made.ok()) << ToString(shape) << ": " << made.status();
      absl::StatusOr<Candidate> candidate =
          made->planning->Evaluate(ToString(shape), made->placement);
      ASSERT_TRUE(candidate.ok()) << candidate.status();
      const absl::StatusOr<v1::Plan> plan = made->planning->ToPlan(*candidate);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->zero_stage(), zero_stage);
      ExpectSameCurve(*whole, Train(plan), ToString(shape));
      shapes.insert(ToString(shape));
    }
  }
  // All three ways, alone and together.
  for (const char* expected :
       {"4 stages x 1 replica x 1 part, 4 micro-batches", "1 stage x 1 replica x 4 parts",
        "1 stage x 2 replicas x 2 parts", "2 stages x 1 replica x 2 parts, 2 micro-batches",
        "1 stage x 4 replicas x 1 part, ZeRO 3"}) {
    EXPECT_EQ(shapes.count(expected), 1u) << expected;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceMeshTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DeepCnn"; });

// On hundreds of devices: within seconds, and better than a naive plan.
TEST(LargeMachines, PlanningTakesSeconds) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  LlamaConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 8192;
  config.intermediate_size = 28672;
  config.num_layers = 8;
  config.num_heads = 64;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  absl::StatusOr<Graph> graph = BuildLlamaTraining(registry, config, 1024);
  ASSERT_TRUE(graph.ok()) << graph.status();
  constexpr int kDevices = 256;
  ASSERT_EQ(BindAndInfer(registry, kDevices, &*graph), absl::OkStatus());
  absl::StatusOr<MachineModel> machine = PresetMachine("a100-cluster", kDevices);
  ASSERT_TRUE(machine.ok()) << machine.status();
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &*graph;
  problem.batch_size = kDevices;
  problem.machine.devices = machine->devices;
  problem.machine.topology = std::make_shared<const Topology>(machine->topology);
  problem.optimizer = AdamW(1e-4);
  problem.cost = &cost;
  const absl::StatusOr<v1::Plan> plan = MakePlan(problem, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::set<int> used;
  for (const v1::OperatorPlan& op : plan->operators()) {
    used.insert(op.devices().begin(), op.devices().end());
  }
  EXPECT_EQ(used.size(), static_cast<size_t>(kDevices));
  for (const v1::Alternative& other : plan->alternatives()) {
    std::printf("%s: %.3f s%s\n", other.name().c_str(), other.prediction().step_seconds(),
                other.refused().empty() ? "" : ", does not fit");
    EXPECT_TRUE(!other.refused().empty() ||
                other.prediction().step_seconds() >= plan->prediction().step_seconds());
  }
  for (int64_t bytes : plan->prediction().peak_bytes()) {
    EXPECT_LE(bytes, machine->devices[0].memory_bytes());
  }
}

}  // namespace
}  // namespace espalier
