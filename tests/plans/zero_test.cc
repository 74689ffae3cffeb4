// Training under ZeRO: replicas that shard optimizer state, gradients and parameters compute what
// one device does, and each holds about its share of the bytes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "ops/graph/precision.h"
#include "ops/operators/register_all.h"
#include "ops/program/buffer_accesses.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 40;
constexpr double kTolerance = 1e-4;  // relative

v1::Optimizer Momentum() {
  v1::Optimizer optimizer;
  optimizer.set_name("sgd");
  optimizer.mutable_learning_rate()->set_peak(0.01);
  (*optimizer.mutable_attributes())["momentum"].set_f(0.9);
  return optimizer;
}

// With penalties, and reductions over whole parameters before each update.
v1::Optimizer Adafactor() {
  v1::Optimizer optimizer;
  optimizer.set_name("adafactor");
  optimizer.mutable_learning_rate()->set_peak(3e-3);
  optimizer.set_clip_norm(1.0);
  optimizer.add_regularizers()->set_l2(1e-3);
  optimizer.set_report_penalties(true);
  return optimizer;
}

class Zero : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlamaWithIgnoredLabels(registry_) : DigitsCnn(registry_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  PlanProblem Problem(int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    return problem;
  }

  absl::StatusOr<v1::Plan> PlanAt(
      int devices, int stage,
      v1::SearchOptions::Strategy strategy = v1::SearchOptions::DATA_PARALLEL) {
    v1::SearchOptions options;
    options.set_strategy(strategy);
    options.set_budget(300);
    options.set_zero_stage(stage);
    return MakePlan(Problem(devices), options);
  }

  LoweringOptions Lowering() { return {optimizer_, 11, job_.columns}; }

  InProcessRun Train(const absl::StatusOr<v1::Plan>& plan, int steps = kSteps) {
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = job_.batch;
    options.lowering = Lowering();
    auto run = TrainInProcess(registry_, job_.graph, *plan, job_.dataset, options);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *std::move(run) : InProcessRun();
  }

  void ExpectSameCurve(const InProcessRun& reference, const InProcessRun& run,
                       const std::string& what) {
    ASSERT_EQ(run.losses.size(), reference.losses.size()) << what;
    const double worst = LargestRelativeDifference(reference, run);
    std::printf("%-44s largest relative difference: %.1e\n", what.c_str(), worst);
    EXPECT_LT(worst, kTolerance) << what;
  }

  std::vector<v1::Program> Programs(int devices, int stage) {
    const absl::StatusOr<v1::Plan> plan = PlanAt(devices, stage);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    EXPECT_EQ(plan->zero_stage(), stage);
    absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry_, job_.graph, *plan, Lowering());
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    return lowered.ok() ? lowered->training : std::vector<v1::Program>();
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
  v1::Optimizer optimizer_ = AdamW(3e-3);
};

TEST_P(Zero, EveryStageGivesTheLossCurveOfOneDevice) {
  for (const v1::Optimizer& optimizer : {AdamW(3e-3), Momentum(), Adafactor()}) {
    optimizer_ = optimizer;
    const InProcessRun single = Train(PlanAt(1, 0));
    ASSERT_FALSE(single.losses.empty());
    EXPECT_LT(single.losses.back(), 0.98 * single.losses.front());
    const auto two_by_two = ManualPlan(Problem(4), [](int index, const Node&, const SplitRule& r) {
      return SamplesByParameters(index, r);
    });
    for (int stage : {1, 2, 3}) {
      const std::string what = optimizer.name() + ", stage " + std::to_string(stage);
      for (int devices : {2, 4}) {
        ExpectSameCurve(single, Train(PlanAt(devices, stage)),
                        what + ", data x" + std::to_string(devices));
      }
      ExpectSameCurve(single, Train(WithZeroStage(Problem(4), two_by_two, stage)),
                      what + ", data x2, parameters x2");
      ExpectSameCurve(single, Train(PlanAt(4, stage, v1::SearchOptions::SEARCH)),
                      what + ", searched");
    }
  }
}

TEST_P(Zero, TheSamePlanTwiceGivesTheSameBits) {
  for (int stage : {1, 2, 3}) {
    const InProcessRun first = Train(PlanAt(4, stage), 15);
    const InProcessRun second = Train(PlanAt(4, stage), 15);
    EXPECT_EQ(first.losses, second.losses) << stage;
    EXPECT_EQ(first.parameters, second.parameters) << stage;
  }
}

// Narrow copies of parameters are made for each use, too. Without clipping, whose norm is a sum in
// another order, all bits are equal.
TEST_P(Zero, MixedPrecisionMatchesStageZero) {
  optimizer_.set_clip_norm(0);
  optimizer_.mutable_loss_scale()->set_initial(1024);
  absl::StatusOr<Graph> narrow = WithPrecision(registry_, job_.graph, DType::kBF16);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  job_.graph = *std::move(narrow);
  const InProcessRun without = Train(PlanAt(2, 0), 15);
  for (int stage : {1, 2, 3}) {
    const InProcessRun run = Train(PlanAt(2, stage), 15);
    EXPECT_EQ(run.losses, without.losses) << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Zero, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DigitsCnn"; });

// Models with many parameters, nearly all large enough to shard.
class ZeroMemory : public Zero {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    auto job = GetParam() ? SmallLlama(registry_, 8, 8, 4) : DeepCnn(registry_, 12, 4);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  static int64_t BytesOf(const v1::Buffer& buffer) {
    int64_t bytes = sizeof(float);
    for (int64_t d : buffer.spec().dims()) bytes *= d;
    return bytes;
  }

  static int64_t BytesOfKind(const v1::Program& program, v1::BufferKind kind) {
    std::map<int64_t, int64_t> ends;  // by offset; views lie inside their buffers
    for (const v1::Buffer& b : program.buffers()) {
      int64_t& end = ends[b.offset_bytes()];
      if (b.kind() == kind) end = std::max(end, b.offset_bytes() + BytesOf(b));
    }
    int64_t total = 0, covered = 0;
    for (const auto& [begin, end] : ends) {
      total += std::max<int64_t>(0, end - std::max(begin, covered));
      covered = std::max(covered, end);
    }
    return total;
  }

  // Lifetimes of gradients computed before, and used after, the last operator of the backward pass.
  static int64_t WaitingGradientBytes(const v1::Program& program) {
    struct Life {
      int first = 0, last = 0;  // instructions
      int64_t bytes = 0;
    };
    int last = 0;
    std::map<std::string, Life> used;
    for (int i = 0; i < program.instructions_size(); ++i) {
      const v1::Instruction& instruction = program.instructions(i);
      if (absl::EndsWith(instruction.compute().op(), "_grad")) last = i;
      for (const BufferAccess& access : AccessesOf(instruction)) {
        std::string name = program.buffers(access.buffer).name();
        name.resize(std::min(name.size(), name.find(".view")));
        if (!absl::EndsWith(name.substr(0, name.find('#')), ".grad")) continue;
        const auto [it, inserted] =
            used.try_emplace(name, Life{i, i, BytesOf(program.buffers(access.buffer))});
        it->second.last = i;
      }
    }
    int64_t bytes = 0;
    for (const auto& [name, life] : used) {
      if (life.first < last && life.last > last) bytes += life.bytes;
    }
    return bytes;
  }

  static double Ratio(int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  }
};

TEST_P(ZeroMemory, EachStageShardsOneMoreKindOfState) {
  for (int devices : {2, 4}) {
    const std::vector<v1::Program> all = Programs(devices, 0);
    ASSERT_EQ(static_cast<int>(all.size()), devices);
    const double share = 1.0 / devices, most = share + 0.12;  // vectors are not sharded
    for (int stage : {1, 2, 3}) {
      const std::vector<v1::Program> programs = Programs(devices, stage);
      ASSERT_EQ(static_cast<int>(programs.size()), devices);
      for (int rank = 0; rank < devices; ++rank) {
        const double state = Ratio(BytesOfKind(programs[rank], v1::OPTIMIZER_STATE),
                                   BytesOfKind(all[rank], v1::OPTIMIZER_STATE));
        const double gradients =
            Ratio(WaitingGradientBytes(programs[rank]), WaitingGradientBytes(all[rank]));
        const double parameters = Ratio(BytesOfKind(programs[rank], v1::PARAMETER_SHARD),
                                        BytesOfKind(all[rank], v1::PARAMETER_SHARD));
        const double arena = Ratio(programs[rank].arena_bytes(), all[rank].arena_bytes());
        if (rank == 0) {
          std::printf(
              "%d devices, stage %d: state %.2f, gradients %.2f, parameters %.2f of what "
              "they are without; arena %.2f\n",
              devices, stage, state, gradients, parameters, arena);
        }
        EXPECT_LT(state, most) << "stage " << stage << " rank " << rank;
        EXPECT_GE(state, share);
        if (stage < 2) {
          EXPECT_EQ(gradients, 1);
        } else {
          EXPECT_LT(gradients, most) << "stage " << stage << " rank " << rank;
        }
        if (stage < 3) {
          EXPECT_EQ(parameters, 1);
        } else {
          EXPECT_LT(parameters, most) << "rank " << rank;
        }
      }
    }
  }
}

// Allocated bytes fall from stage to stage, and are as program and plan predict.
TEST_P(ZeroMemory, MeasuredPeaksFall) {
  std::vector<int64_t> before;
  for (int stage : {0, 1, 2, 3}) {
    const absl::StatusOr<v1::Plan> plan = PlanAt(4, stage);
    const InProcessRun run = Train(plan, 2);
    ASSERT_EQ(run.measured_peak_bytes.size(), 4u);
    for (int rank = 0; rank < 4; ++rank) {
      const int64_t measured = run.measured_peak_bytes[rank];
      EXPECT_GE(measured, plan->prediction().peak_bytes(rank));
      if (stage > 0) {
        EXPECT_LT(measured, before[rank]) << "stage " << stage << " rank " << rank;
      }
    }
    std::printf("stage %d: measured peak %ld bytes\n", stage,
                static_cast<long>(run.measured_peak_bytes[0]));
    before = run.measured_peak_bytes;
  }
}

// No stage is requested; memory suffices for one stage only.
TEST_P(ZeroMemory, TheLowestStageThatFitsIsChosen) {
  std::vector<int64_t> need;
  for (int stage : {0, 1, 2, 3}) {
    const absl::StatusOr<v1::Plan> plan = PlanAt(4, stage);
    ASSERT_TRUE(plan.ok()) << plan.status();
    need.push_back(*std::max_element(plan->prediction().peak_bytes().begin(),
                                     plan->prediction().peak_bytes().end()));
  }
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::DATA_PARALLEL);
  for (bool may_swap : {false, true}) {
    options.mutable_memory()->set_disable_swap(!may_swap);
    options.mutable_memory()->set_disable_recompute(!may_swap);
    for (int stage : {0, 1, 2, 3}) {
      PlanProblem problem = Problem(4);
      for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(need[stage]);
      const absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      if (may_swap && plan->zero_stage() < stage) {
        // Made to fit by offloading, and faster so.
        EXPECT_GT(plan->memory_plans_size(), 0);
        const absl::StatusOr<v1::Plan> other = WithZeroStage(problem, plan, stage);
        ASSERT_TRUE(other.ok()) << other.status();
        EXPECT_LT(plan->prediction().step_seconds(), other->prediction().step_seconds());
      } else {
        EXPECT_EQ(plan->zero_stage(), stage);
        EXPECT_EQ(plan->memory_plans_size(), 0);
      }
    }
  }
  PlanProblem problem = Problem(4);
  for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(need[3] / 2);
  options.mutable_memory()->set_disable_swap(true);
  options.mutable_memory()->set_disable_recompute(true);
  const absl::Status refused = MakePlan(problem, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "ZeRO, up to stage 3")) << refused;
}

TEST_P(ZeroMemory, NarrowParameterCopiesAreShardedToo) {
  absl::StatusOr<Graph> narrow = WithPrecision(registry_, job_.graph, DType::kBF16);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  job_.graph = *std::move(narrow);
  const auto all = Programs(4, 2), cut = Programs(4, 3);
  for (int rank = 0; rank < 4; ++rank) EXPECT_LT(cut[rank].arena_bytes(), all[rank].arena_bytes());
}

INSTANTIATE_TEST_SUITE_P(Models, ZeroMemory, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Llama" : "DeepCnn"; });

}  // namespace
}  // namespace espalier
