// Hand-written plans of sequence (context) parallelism and expert parallelism train as one device
// does.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/testing/zoo/models.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 20;
constexpr double kTolerance = 5e-7;  // relative

class ManualPlanTest : public ::testing::Test {
 protected:
  ManualPlanTest() { RegisterAllOperators(registry_); }

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

  InProcessRun Alone() {
    v1::SearchOptions single;
    single.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
    absl::StatusOr<InProcessRun> run = Train(MakePlan(Problem(1), single));
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) return {};
    EXPECT_LT(run->losses.back(), 0.97 * run->losses.front());
    return *std::move(run);
  }

  void ExpectSameCurve(const InProcessRun& alone, const absl::StatusOr<v1::Plan>& plan,
                       const std::string& what) {
    const absl::StatusOr<InProcessRun> run = Train(plan);
    ASSERT_TRUE(run.ok()) << what << ": " << run.status();
    ASSERT_EQ(run->losses.size(), alone.losses.size()) << what;
    const double worst = LargestRelativeDifference(alone, *run);
    std::printf("%-48s %.1e\n", what.c_str(), worst);
    EXPECT_LT(worst, kTolerance) << what;
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
};

std::vector<int> FirstDevices(int count) {
  std::vector<int> devices;
  for (int d = 0; d < count; ++d) devices.push_back(d);
  return devices;
}

const Axis* AxisOfSize(const SplitRule& rule, int64_t size) {
  for (const Axis& axis : rule.axes) {
    if (axis.size == size && axis.kind != AxisKind::kReduction) return &axis;
  }
  return nullptr;
}

int Count(const v1::Plan& plan, v1::ParallelOperator::Kind kind, const std::string& where) {
  int count = 0;
  for (const v1::ParallelOperator& op : plan.parallel_operators()) {
    count += op.kind() == kind && absl::StrContains(op.consumer(), where);
  }
  return count;
}

// Each device has a contiguous part of every sequence; only attention gathers all keys and values.
TEST_F(ManualPlanTest, SequenceParallel) {
  constexpr int64_t kSequence = 24;  // unlike all other sizes
  absl::StatusOr<SmallTrainingJob> job = SmallLlamaWithIgnoredLabels(registry_, 3, kSequence, 8);
  ASSERT_TRUE(job.ok()) << job.status();
  job_ = *std::move(job);
  const InProcessRun alone = Alone();
  EXPECT_NEAR(alone.losses.front(), std::log(256), 0.2) << "a mean over the labels that count";
  for (const auto& [samples, stretches] : {std::pair(1, 2), std::pair(1, 4), std::pair(2, 2)}) {
    const int devices = samples * stretches;
    std::set<std::string> attention;
    int others = 0;
    absl::StatusOr<v1::Plan> plan =
        ManualPlan(Problem(devices),
                   [&, samples = samples, stretches = stretches](int, const Node& node,
                                                                 const SplitRule& rule) -> Choice {
                     const Axis* sequence = AxisOfSize(rule, kSequence);
                     if (sequence == nullptr) return {{}, {0}};
                     if (node.op == "attention") {
                       attention.insert(node.name);
                     } else {
                       ++others;
                     }
                     Choice choice{{{sequence->name, stretches}}, FirstDevices(devices)};
                     if (samples > 1) choice.degrees[rule.axes[0].name] = samples;
                     return choice;
                   });
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(attention.size(), 3u);
    EXPECT_EQ(3 + others, plan->operators_size()) << "some operator has no sequence";
    // Only keys and values of each layer are gathered, for attention.
    int gathered = 0;
    for (const v1::ParallelOperator& op : plan->parallel_operators()) {
      if (op.kind() != v1::ParallelOperator::COMBINE) continue;
      ++gathered;
      EXPECT_EQ(attention.count(op.consumer()), 1u) << op.tensor() << " for " << op.consumer();
    }
    EXPECT_EQ(gathered, 2 * 3);
    ExpectSameCurve(alone, plan, absl::StrCat(samples, " x samples, ", stretches, " x sequence"));
    ExpectSameCurve(alone, WithZeroStage(Problem(devices), plan, 3),
                    absl::StrCat(samples, " x samples, ", stretches, " x sequence, ZeRO 3"));
  }
}

// Tokens are split by batch, experts by device, with an all-to-all between.
TEST_F(ManualPlanTest, ExpertParallel) {
  const zoo::MoeSizes sizes{
      .body = {.layers = 4, .hidden = 16, .heads = 2, .sequence = 16, .vocabulary = 64},
      .experts = 4};
  absl::StatusOr<Graph> graph = zoo::BuildMoe(registry_, "moe", sizes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  job_.graph = *std::move(graph);
  job_.batch = 8;
  ASSERT_EQ(BindAndInfer(registry_, job_.batch, &job_.graph), absl::OkStatus());
  // Sequences that count up from a random start, so that there is something to learn.
  std::vector<Column> columns;
  for (const Value& value : job_.graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    ASSERT_EQ(value.type.dtype, DType::kI64) << value.name;
    Column column{value.name, {DType::kI64, {sizes.body.sequence}}, {}};
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t s = 0; s < sizes.body.sequence; ++s) {
        const int64_t token = (7 * i + s + (value.name == "labels")) % sizes.body.vocabulary;
        const char* bytes = reinterpret_cast<const char*>(&token);
        column.data.insert(column.data.end(), bytes, bytes + sizeof(token));
      }
    }
    columns.push_back(std::move(column));
  }
  auto dataset = Dataset::FromColumns(columns, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  job_.dataset = *dataset;
  const InProcessRun alone = Alone();
  for (int devices : {2, 4}) {
    int experts = 0;
    absl::StatusOr<v1::Plan> plan = ManualPlan(
        Problem(devices), [&](int index, const Node& node, const SplitRule& rule) -> Choice {
          bool inside = false;
          for (const char* end : {".rows", ".up", ".gelu", ".down", ".by_group"}) {
            inside = inside || absl::EndsWith(node.name, absl::StrCat(".experts", end));
          }
          if (!inside) return SplitFirst(index, rule, {AxisKind::kSample}, devices);
          ++experts;
          EXPECT_EQ(rule.axes[0].size, sizes.experts) << node.name;
          return {{{rule.axes[0].name, devices}}, FirstDevices(devices)};
        });
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(experts, 2 * 5);  // every second layer has experts
    EXPECT_GE(Count(*plan, v1::ParallelOperator::ALL_TO_ALL, ".experts."), 2 * 2);
    ExpectSameCurve(alone, plan, absl::StrCat("experts on ", devices, " devices"));
    // Each device holds only its own experts.
    const absl::StatusOr<InProcessRun> run = Train(plan);
    ASSERT_TRUE(run.ok()) << run.status();
    int weights = 0;
    for (const auto& [name, bytes] : run->parameters) {
      if (!absl::StrContains(name, ".experts.")) continue;
      ++weights;
      EXPECT_EQ(bytes.size() * devices, alone.parameters.at(name).size()) << name;
    }
    EXPECT_EQ(weights, 2 * 2);
  }
}

}  // namespace
}  // namespace espalier
