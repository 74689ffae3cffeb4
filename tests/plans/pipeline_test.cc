// Micro-batches and pipelines do not change the result, are deterministic, and need the memory
// predicted.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"

namespace espalier {
namespace {

constexpr int kSteps = 25;
constexpr double kTolerance = 1e-4;  // relative

enum class Model { kCnn, kLlama, kDropout };

class PipelineTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    absl::StatusOr<SmallTrainingJob> job = GetParam() == Model::kLlama
                                               ? SmallLlamaWithIgnoredLabels(registry_, 4, 16, 16)
                                               : DeepCnn(registry_, 8, 32);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    if (GetParam() == Model::kDropout) MakeDropout();
  }

  // Layers with dropout between them, on the same digits.
  void MakeDropout() {
    GraphBuilder b(registry_, "dropout");
    const Value& image = job_.graph.value(job_.graph.FindValue("x"));
    Dims dims = image.type.dims;
    dims[0] = -1;
    const ValueId x = b.Input("x", image.type.dtype, dims);
    const ValueId labels =
        b.Input("labels", job_.graph.value(job_.graph.FindValue("labels")).type.dtype, {-1});
    const Initializer init{Initializer::kHeNormal};
    ValueId h = b.Op("flatten", {x}, {{"axis", int64_t{1}}}, "flatten");
    int64_t width = NumElements(image.type.dims) / image.type.dims[0];
    for (int i = 0; i < 6; ++i) {
      const std::string n = std::to_string(i);
      const int64_t out = i == 5 ? 10 : 48;
      h = b.Op("linear", {h, b.Parameter("w" + n, DType::kF32, {out, width}, init)}, {}, "fc" + n);
      if (i < 5) {
        h = b.Op("relu", {h}, {}, "relu" + n);
        h = b.Op("dropout", {h}, {{"rate", 0.3}}, "dropout" + n);
      }
      width = out;
    }
    // A weighted sum of two losses.
    const ValueId main = b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "main");
    const ValueId smooth =
        b.Op("sparse_categorical_crossentropy", {h, labels}, {{"label_smoothing", 0.1}}, "smooth");
    const ValueId less = b.Op("multiply_scalar", {smooth}, {{"value", 0.25}});
    b.Output("loss", b.Op("add_n", {main, less}, {}, "loss"));
    absl::StatusOr<Graph> graph = b.Build();
    ASSERT_TRUE(graph.ok()) << graph.status();
    job_.graph = *std::move(graph);
    ASSERT_EQ(BindAndInfer(registry_, job_.batch, &job_.graph), absl::OkStatus());
  }

  PlanProblem Problem(int devices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &job_.graph;
    problem.batch_size = job_.batch;
    problem.machine = TestMachine(devices);
    problem.optimizer = Optimizer();
    problem.cost = &cost_;
    return problem;
  }

  v1::Optimizer Optimizer() const {
    v1::Optimizer optimizer = AdamW(3e-3);
    optimizer.set_clip_norm(clip_);
    return optimizer;
  }

  // `stages` 0: no pipeline. `micro_batches` 0: chosen by the planner.
  absl::StatusOr<v1::Plan> PlanFor(
      int devices, int stages, int micro_batches,
      v1::SearchOptions::Strategy strategy = v1::SearchOptions::SEARCH) {
    v1::SearchOptions options;
    options.set_strategy(strategy);
    options.set_budget(200);
    options.set_pipeline_stages(stages);
    if (micro_batches > 0) options.set_micro_batches(micro_batches);
    return MakePlan(Problem(devices), options);
  }

  absl::StatusOr<InProcessRun> Train(const absl::StatusOr<v1::Plan>& plan, int steps = kSteps) {
    if (!plan.ok()) return plan.status();
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = job_.batch;
    options.lowering.optimizer = Optimizer();
    options.lowering.seed = 11;
    options.lowering.columns = job_.columns;
    return TrainInProcess(registry_, job_.graph, *plan, job_.dataset, options);
  }

  absl::StatusOr<InProcessRun> TrainWhole() {
    return Train(PlanFor(1, 0, 1, v1::SearchOptions::SINGLE_DEVICE));
  }

  void ExpectSameCurve(const InProcessRun& whole, const absl::StatusOr<InProcessRun>& run,
                       const std::string& what) {
    ASSERT_TRUE(run.ok()) << what << ": " << run.status();
    ASSERT_EQ(run->losses.size(), whole.losses.size()) << what;
    const double worst = LargestRelativeDifference(whole, *run);
    std::printf("%-44s largest relative difference over %d steps: %.1e\n", what.c_str(), kSteps,
                worst);
    EXPECT_LT(worst, kTolerance) << what;
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  AnalyticCost cost_;
  double clip_ = 1.0;
};

TEST_P(PipelineTest, MicroBatchesGiveTheLossCurveOfTheWholeBatch) {
  const auto whole = TrainWhole();
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_LT(whole->losses.back(), 0.95 * whole->losses.front());
  for (int micro_batches : {2, 8}) {
    const auto plan = PlanFor(1, 0, micro_batches, v1::SearchOptions::SINGLE_DEVICE);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->micro_batches(), micro_batches);
    ExpectSameCurve(*whole, Train(plan), absl::StrCat("one device, ", micro_batches, " parts"));
  }
  ExpectSameCurve(*whole, Train(PlanFor(2, 0, 4, v1::SearchOptions::DATA_PARALLEL)),
                  "data parallel, 2 devices, 4 parts");
  ExpectSameCurve(*whole, Train(PlanFor(2, 0, 2)), "searched, 2 devices, 2 parts");
}

TEST_P(PipelineTest, PipelinesGiveTheLossCurveOfOneDevice) {
  const auto whole = TrainWhole();
  ASSERT_TRUE(whole.ok()) << whole.status();
  struct Case {
    int devices, stages, micro_batches;
  };
  for (const Case& c :
       {Case{2, 2, 0}, Case{2, 2, 1}, Case{4, 4, 8}, Case{4, 2, 4}, Case{3, 3, 2}}) {
    const auto plan = PlanFor(c.devices, c.stages, c.micro_batches);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::set<int> used;
    for (const v1::OperatorPlan& op : plan->operators()) {
      used.insert(op.devices().begin(), op.devices().end());
    }
    // A stage may be faster on fewer devices than it could have.
    EXPECT_GE(used.size(), static_cast<size_t>(c.stages));
    const auto run = Train(plan);
    ExpectSameCurve(*whole, run,
                    absl::StrCat(c.stages, " stages on ", c.devices, " devices, ",
                                 plan->micro_batches(), " parts"));
    for (int rank = 0; rank < c.devices; ++rank) {
      const double predicted = static_cast<double>(plan->prediction().peak_bytes(rank));
      EXPECT_GE(static_cast<double>(run->measured_peak_bytes[rank]), 0.99 * predicted);
      EXPECT_LE(static_cast<double>(run->measured_peak_bytes[rank]), 1.5 * predicted + (8 << 20));
    }
  }
}

TEST_P(PipelineTest, RepeatedRunWithoutClippingGivesTheSameBits) {
  clip_ = 0;
  const auto whole = TrainWhole();
  const auto plan = PlanFor(2, 2, 4);
  const auto first = Train(plan), second = Train(plan);
  ASSERT_TRUE(whole.ok() && first.ok() && second.ok()) << first.status();
  ExpectSameCurve(*whole, first, "2 stages, no clipping");
  EXPECT_EQ(first->losses, second->losses);
  EXPECT_EQ(first->parameters, second->parameters);
}

TEST_P(PipelineTest, PipelinesWithZeroGiveTheLossCurveOfOneDevice) {
  const auto whole = TrainWhole();
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (int zero_stage : {1, 2, 3}) {
    v1::SearchOptions options;
    options.set_zero_stage(zero_stage);
    options.set_micro_batches(4);
    options.set_strategy(v1::SearchOptions::DATA_PARALLEL);
    ExpectSameCurve(*whole, Train(MakePlan(Problem(2), options)),
                    absl::StrCat("data parallel, 4 parts, ZeRO stage ", zero_stage));
    options.set_strategy(v1::SearchOptions::SEARCH);
    options.set_pipeline_stages(2);
    const auto plan = MakePlan(Problem(4), options);
    const auto run = Train(plan);
    ExpectSameCurve(*whole, run, absl::StrCat("2 stages on 4 devices, ZeRO stage ", zero_stage));
    EXPECT_EQ(plan->zero_stage(), zero_stage);
    EXPECT_EQ(plan->micro_batches(), 4);
  }
}

TEST_P(PipelineTest, AnImportedPlanKeepsItsStages) {
  const auto plan = PlanFor(2, 2, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto json = ExportPlan(*plan);
  ASSERT_TRUE(json.ok());
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::IMPORTED);
  *options.mutable_imported() = *ImportPlan(*json);
  const auto again = MakePlan(Problem(2), options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->micro_batches(), 4);
  EXPECT_EQ(again->prediction().step_seconds(), plan->prediction().step_seconds());
  const auto first = Train(plan, 3), second = Train(again, 3);
  ASSERT_TRUE(first.ok() && second.ok()) << second.status();
  EXPECT_EQ(first->losses, second->losses);
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineTest,
                         ::testing::Values(Model::kCnn, Model::kLlama, Model::kDropout),
                         [](const auto& info) {
                           return info.param == Model::kCnn     ? "DeepCnn"
                                  : info.param == Model::kLlama ? "Llama"
                                                                : "Dropout";
                         });

TEST(PipelineErrors, NameTheObstacle) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto job = DigitsCnn(registry);
  ASSERT_TRUE(job.ok()) << job.status();
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &job->graph;
  problem.batch_size = job->batch;
  problem.machine = TestMachine(2);
  problem.optimizer = AdamW(3e-3);
  problem.cost = &cost;
  const auto error = [&](int stages, int micro_batches, v1::SearchOptions::Strategy strategy) {
    v1::SearchOptions options;
    options.set_strategy(strategy);
    options.set_pipeline_stages(stages);
    if (micro_batches != 0) options.set_micro_batches(micro_batches);
    const absl::Status status = MakePlan(problem, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const auto search = v1::SearchOptions::SEARCH;
  EXPECT_NE(error(3, 1, search).find("search.pipeline_stages is 3; there are 2 devices"),
            std::string::npos);
  EXPECT_NE(error(2, 7, search).find("cannot be cut into 7 micro-batches"), std::string::npos);
  EXPECT_NE(error(0, -1, search).find("search.micro_batches is -1"), std::string::npos);
  EXPECT_NE(error(-2, 0, search).find("search.pipeline_stages is -2"), std::string::npos);
  EXPECT_NE(error(2, 0, v1::SearchOptions::DATA_PARALLEL).find("leave one out"), std::string::npos);
}

}  // namespace
}  // namespace espalier
