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
    problem.machine = TestMachine(devices_);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    proto::SearchOptions search;
    search.set_strategy(devices_ == 1 ? proto::SearchOptions::SINGLE_DEVICE
                                      : proto::SearchOptions::DATA_PARALLEL);
    absl::StatusOr<proto::Plan> plan = MakePlan(problem, search);
    if (!plan.ok()) return plan.status();
    need_ = plan->prediction().peak_bytes(0);
    for (proto::Device& device : *plan->mutable_devices()) device.set_memory_bytes(memory);
    TrainingRunOptions options;
    options.steps = 1;
    options.batch_size = kBatch;
    options.lowering.optimizer = optimizer_;
    options.lowering.max_batch_slices = slices;
    return TrainInProcess(registry_, graph_, *plan, dataset_, options);
  }

  void ExpectTheSame(int percent);

  OpRegistry registry_;
  Graph graph_;
  std::shared_ptr<const Dataset> dataset_;
  proto::Optimizer optimizer_;
  AnalyticCost cost_;
  int devices_ = 1;
  int64_t need_ = 0;
};

// Of one parameter, relative to its norm.
double Apart(const TrainingRun& a, const TrainingRun& b, const std::string& name) {
  const std::vector<char>&x = a.parameters.at(name), &y = b.parameters.at(name);
  double apart = 0, norm = 0;
  for (size_t at = 0; at < x.size(); at += 4) {
    float p, q;
    std::memcpy(&p, &x[at], 4);
    std::memcpy(&q, &y[at], 4);
    apart += std::pow(p - q, 2);
    norm += std::pow(q, 2);
  }
  return std::sqrt(apart / std::max(norm, 1e-30));
}

// With so many percent of the memory that the whole batch needs.
void SlicesTest::ExpectTheSame(int percent) {
  const absl::StatusOr<TrainingRun> whole = Train(int64_t{8} << 30, 1);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int64_t memory = need_ * percent / 100;
  EXPECT_TRUE(absl::IsResourceExhausted(Train(memory, 1).status()));
  const absl::StatusOr<TrainingRun> sliced = Train(memory, 8);
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  for (int64_t peak : sliced->measured_peak_bytes) EXPECT_LE(peak, memory);
  EXPECT_NEAR(sliced->losses[0], whole->losses[0], 1e-5 * whole->losses[0]);
  ASSERT_EQ(sliced->parameters.size(), whole->parameters.size());
  int statistics = 0;
  for (const auto& [name, unused] : whole->parameters) {
    // Moved once in the step, by the statistics of the whole batch.
    const bool statistic = name.find("running_") != std::string::npos;
    statistics += statistic;
    // A bias is its gradient after one step, in which a rounded sum turns some relu over.
    EXPECT_LE(Apart(*sliced, *whole, name), statistic ? 1e-4 : 0.1) << name;
  }
  EXPECT_GT(statistics, 0);
}

TEST_F(SlicesTest, TrainsWhereSwapsDoNotReach) { ExpectTheSame(40); }

TEST_F(SlicesTest, ReplicasDoToo) {
  devices_ = 2;
  ExpectTheSame(50);
}

}  // namespace
}  // namespace espalier
