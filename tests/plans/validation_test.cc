// Evaluation between steps changes no bit of training on any plan, and gives what an evaluation at
// the end of a shorter run gives.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "gtest/gtest.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "tests/plans/in_process_training.h"
#include "tests/plans/small_training_jobs.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/device/device.h"
#include "worker/training_job.h"

namespace espalier {
namespace {

constexpr int kSteps = 9;

// Runs of one attempt, one after the other.
struct Segment {
  int last;  // exclusive
  bool evaluate;
};

struct Outcome {
  std::vector<double> losses;        // by step, summed over ranks
  std::vector<double> evaluations;   // by segment, summed over ranks; 0: none
  std::vector<std::string> weights;  // by rank: hash of the last checkpoint's shard
  std::vector<int64_t> checkpoints;  // of rank 0: steps done
  int operator_times = 0;            // events of rank 0
};

enum class Model { kBatchNorm, kDropout, kLlama };

class ValidationOnPlans : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    absl::StatusOr<SmallTrainingJob> job =
        GetParam() == Model::kLlama ? SmallLlamaWithIgnoredLabels(registry_) : DigitsCnn(registry_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    if (GetParam() == Model::kDropout) MakeDropout();
    problem_.registry = &registry_;
    problem_.graph = &job_.graph;
    problem_.batch_size = job_.batch;
    problem_.optimizer = AdamW(3e-3);
    problem_.cost = &cost_;
  }

  void MakeDropout() {
    GraphBuilder b(registry_, "dropout");
    std::string images;
    for (const Value& value : job_.graph.values()) {
      if (value.kind == ValueKind::kInput && value.type.dims.size() == 4) images = value.name;
    }
    const Initializer init{Initializer::kHeNormal};
    ValueId h = b.Op("flatten", {b.Input(images, DType::kF32, {-1, 1, 8, 8})}, {}, "flatten");
    h = b.Op("linear", {h, b.Parameter("fc1.weight", DType::kF32, {32, 64}, init)}, {}, "fc1");
    h = b.Op("dropout", {b.Op("relu", {h}, {}, "relu")}, {{"rate", 0.4}}, "dropout");
    h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {10, 32}, init)}, {}, "fc2");
    const ValueId labels = b.Input("labels", DType::kI64, {-1});
    b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
    absl::StatusOr<Graph> graph = b.Build();
    ASSERT_TRUE(graph.ok()) << graph.status();
    job_.graph = *std::move(graph);
    ASSERT_TRUE(BindAndInfer(registry_, job_.batch, &job_.graph).ok());
  }

  Outcome Run(const v1::Plan& plan, const std::vector<Segment>& segments) {
    Outcome outcome;
    LoweringOptions lowering{AdamW(3e-3), 11, job_.columns};
    lowering.evaluates = true;
    const absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry_, job_.graph, plan, lowering);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    if (!lowered.ok()) return outcome;
    const int ranks = static_cast<int>(lowered->training.size());
    auto communicators = NewInProcessCommunicators(ranks, absl::Seconds(60));
    const auto steps = static_cast<size_t>(segments.back().last);
    // By rank, then by step and by segment: sums depend on the order.
    std::vector<std::vector<double>> losses(ranks, std::vector<double>(steps, 0));
    std::vector<std::vector<double>> evaluations(ranks, std::vector<double>(segments.size(), 0));
    outcome.weights.resize(static_cast<size_t>(ranks));
    const std::string root = "validation" + std::to_string(runs_++);
    absl::Mutex mutex;
    std::vector<std::unique_ptr<Communicator>> ended;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
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
        load.set_pad_evaluation(true);
        absl::StatusOr<std::unique_ptr<TrainingJob>> job = TrainingJob::Load(load, options);
        EXPECT_TRUE(job.ok()) << job.status();
        if (!job.ok()) return;
        int first = 0;
        for (size_t s = 0; s < segments.size(); ++s) {
          v1::RunRequest run;
          run.set_first_step(first);
          run.set_last_step(first = segments[s].last);
          run.set_checkpoint_root(root);
          run.set_evaluate_at_end(segments[s].evaluate);
          run.set_goes_on(s + 1 < segments.size());
          const absl::Status status = (*job)->Run(run, [&](const v1::RunEvent& event) {
            absl::MutexLock lock(&mutex);
            if (event.has_step() && event.step().values().count("loss") > 0) {
              losses[rank][event.step().step()] = event.step().values().at("loss");
            }
            if (event.has_evaluation() && event.evaluation().values().count("loss") > 0) {
              evaluations[rank][s] = event.evaluation().values().at("loss");
            }
            if (event.has_shard()) outcome.weights[rank] = event.shard().sha256();
            if (event.has_shard() && rank == 0) {
              outcome.checkpoints.push_back(event.shard().steps_done());
            }
            outcome.operator_times += rank == 0 && event.has_operator_times();
            return absl::OkStatus();
          });
          EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
        }
        absl::MutexLock lock(&mutex);
        ended.push_back((*job)->TakeCommunicator());
      });
    }
    for (std::thread& thread : threads) thread.join();
    outcome.losses.assign(steps, 0);
    outcome.evaluations.assign(segments.size(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < steps; ++i) outcome.losses[i] += losses[rank][i];
      for (size_t i = 0; i < segments.size(); ++i) outcome.evaluations[i] += evaluations[rank][i];
    }
    return outcome;
  }

  // Of a run of so many steps.
  double EvaluationAfter(const v1::Plan& plan, int steps) {
    const Outcome outcome = Run(plan, {{steps, true}});
    return outcome.evaluations.empty() ? -1 : outcome.evaluations[0];
  }

  void ExpectNoDifference(const absl::StatusOr<v1::Plan>& plan, const std::string& name) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Outcome whole = Run(*plan, {{kSteps, false}});
    const Outcome cut = Run(*plan, {{3, true}, {3, true}, {4, true}, {6, false}, {kSteps, true}});
    EXPECT_EQ(cut.losses, whole.losses);
    EXPECT_EQ(cut.weights, whole.weights);
    EXPECT_EQ(cut.checkpoints, std::vector<int64_t>{kSteps}) << "only after the last step of all";
    EXPECT_EQ(cut.operator_times, 1);
    ASSERT_EQ(cut.evaluations.size(), 5u);
    EXPECT_GT(cut.evaluations[0], 0);
    EXPECT_EQ(cut.evaluations[3], 0) << "none was asked for";
    EXPECT_EQ(cut.evaluations[1], cut.evaluations[0]) << "again without a step in between";
    EXPECT_NE(cut.evaluations[2], cut.evaluations[0]);
    EXPECT_EQ(cut.evaluations[0], EvaluationAfter(*plan, 3));
    EXPECT_EQ(cut.evaluations[2], EvaluationAfter(*plan, 4));
    EXPECT_EQ(cut.evaluations[4], EvaluationAfter(*plan, kSteps));
  }

  OpRegistry registry_;
  SmallTrainingJob job_;
  PlanProblem problem_;
  AnalyticCost cost_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  const std::shared_ptr<JobStorage> storage_ =
      JobStorage::InFolder(*files_, ::testing::TempDir(), ::testing::TempDir());
  int runs_ = 0;
};

TEST_P(ValidationOnPlans, LeavesEveryBitOfTraining) {
  problem_.machine = TestMachine(1);
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  ExpectNoDifference(MakePlan(problem_, options), "one device");
  problem_.machine = TestMachine(2);
  options.set_strategy(v1::SearchOptions::DATA_PARALLEL);
  for (const int stage : {0, 2, 3}) {
    options.set_zero_stage(stage);
    ExpectNoDifference(MakePlan(problem_, options), "ZeRO " + std::to_string(stage));
  }
  options.Clear();
  options.set_strategy(v1::SearchOptions::SEARCH);
  options.set_budget(50);
  options.set_pipeline_stages(2);
  // Statistics of the batch are of all of it.
  options.set_micro_batches(GetParam() == Model::kBatchNorm ? 1 : 2);
  ExpectNoDifference(MakePlan(problem_, options), "pipeline");
  problem_.machine = TestMachine(4);
  ExpectNoDifference(
      ManualPlan(problem_, [](int index, const Node&,
                              const SplitRule& rule) { return SamplesByParameters(index, rule); }),
      "samples by parameters");
}

INSTANTIATE_TEST_SUITE_P(Models, ValidationOnPlans,
                         ::testing::Values(Model::kBatchNorm, Model::kDropout, Model::kLlama),
                         [](const auto& info) {
                           switch (info.param) {
                             case Model::kBatchNorm:
                               return "BatchNorm";
                             case Model::kDropout:
                               return "Dropout";
                             case Model::kLlama:
                               return "Llama";
                           }
                           return "";
                         });

}  // namespace
}  // namespace espalier
