// Where swaps do not make a step fit, operators that work on slices of the batch do; what a network
// with batch norm learns stays the same but for the rounding of sums.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic.h"
#include "planner/testing/zoo/models.h"
#include "tests/plans/in_process_training.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 16, kExamples = 64;
constexpr int kSteps = 4;
constexpr zoo::ResNetSizes kSizes{.edge = 64, .width = 8, .classes = 10};

std::shared_ptr<const Dataset> Images() {
  Column images{"image", {DType::kF32, {kSizes.colours, kSizes.edge, kSizes.edge}}, {}};
  Column labels{"labels", {DType::kI32, {}}, {}};
  uint32_t state = 1;
  for (int32_t i = 0; i < kExamples; ++i) {
    const int32_t label = i % 10;
    for (int64_t k = 0; k < images.example.num_elements(); ++k) {
      state = state * 1664525u + 1013904223u;
      const float pixel =
          static_cast<float>(state >> 8) * 0x1p-24f + 0.1f * static_cast<float>(label);
      const char* bytes = reinterpret_cast<const char*>(&pixel);
      images.data.insert(images.data.end(), bytes, bytes + sizeof(pixel));
    }
    const char* bytes = reinterpret_cast<const char*>(&label);
    labels.data.insert(labels.data.end(), bytes, bytes + sizeof(label));
  }
  auto dataset = Dataset::FromColumns({images, labels}, 0);
  return dataset.ok() ? *dataset : nullptr;
}

class SlicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    absl::StatusOr<Graph> graph = zoo::BuildResNet50(registry_, kSizes);
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
    const absl::Status bound = BindAndInfer(registry_, kBatch, &graph_);
    ASSERT_TRUE(bound.ok()) << bound;
    dataset_ = Images();
    ASSERT_NE(dataset_, nullptr);
    optimizer_.set_name("sgd");
    optimizer_.mutable_learning_rate()->set_peak(1e-3);
  }

  absl::StatusOr<TrainingRun> Train(int64_t memory, int slices) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &graph_;
    problem.batch_size = kBatch;
    problem.machine = TestMachine(1);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    proto::SearchOptions search;
    search.set_strategy(proto::SearchOptions::SINGLE_DEVICE);
    absl::StatusOr<proto::Plan> plan = MakePlan(problem, search);
    if (!plan.ok()) return plan.status();
    need_ = plan->prediction().peak_bytes(0);
    plan->mutable_devices(0)->set_memory_bytes(memory);
    TrainingRunOptions options;
    options.steps = kSteps;
    options.batch_size = kBatch;
    options.lowering.optimizer = optimizer_;
    options.lowering.max_batch_slices = slices;
    return TrainInProcess(registry_, graph_, *plan, dataset_, options);
  }

  OpRegistry registry_;
  Graph graph_;
  std::shared_ptr<const Dataset> dataset_;
  proto::Optimizer optimizer_;
  AnalyticCost cost_;
  int64_t need_ = 0;
};

TEST_F(SlicesTest, TrainsWhereSwapsDoNotReach) {
  const absl::StatusOr<TrainingRun> whole = Train(int64_t{8} << 30, 1);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int64_t memory = need_ * 40 / 100;
  EXPECT_TRUE(absl::IsResourceExhausted(Train(memory, 1).status()));
  const absl::StatusOr<TrainingRun> sliced = Train(memory, 8);
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  EXPECT_LE(sliced->measured_peak_bytes[0], memory);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(sliced->losses[step], whole->losses[step], 1e-4 * whole->losses[step]) << step;
  }
  // Running statistics among them: each is moved once in a step.
  ASSERT_EQ(sliced->parameters.size(), whole->parameters.size());
  int statistics = 0;
  for (const auto& [name, bytes] : whole->parameters) {
    std::vector<float> a(bytes.size() / 4), b(a.size());
    std::memcpy(a.data(), bytes.data(), bytes.size());
    std::memcpy(b.data(), sliced->parameters.at(name).data(), bytes.size());
    statistics += name.find("running_") != std::string::npos;
    double apart = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      apart += std::pow(a[i] - b[i], 2);
      norm += std::pow(a[i], 2);
    }
    EXPECT_LE(std::sqrt(apart), 1e-3 * std::sqrt(norm) + 1e-6) << name;
  }
  EXPECT_GT(statistics, 0);
}

}  // namespace
}  // namespace espalier
