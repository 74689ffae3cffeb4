// Batch tiling makes a step fit where swapping does not; a network with batch norm learns the same
// up to rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/testing/zoo/models.h"
#include "tests/plans/in_process_training.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 16, kExamples = 64;
constexpr zoo::ResNetSizes kSizes{.edge = 64, .width = 8, .classes = 10};

// With `nudged` n, every n-th pixel is the next representable number, as another rounding would
// give; 0: none.
std::shared_ptr<const Dataset> Images(int32_t count, int nudged = 0) {
  Column images{"image", {DType::kF32, {kSizes.channels, kSizes.edge, kSizes.edge}}, {}};
  Column labels{"labels", {DType::kI32, {}}, {}};
  uint32_t state = 1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t label = i % 10;
    for (int64_t k = 0; k < images.example.num_elements(); ++k) {
      state = state * 1664525u + 1013904223u;
      float pixel = static_cast<float>(state >> 8) * 0x1p-24f + 0.1f * static_cast<float>(label);
      if (nudged > 0 && k % nudged == 0) pixel = std::nextafter(pixel, 2.0f);
      const char* bytes = reinterpret_cast<const char*>(&pixel);
      images.data.insert(images.data.end(), bytes, bytes + sizeof(pixel));
    }
    const char* bytes = reinterpret_cast<const char*>(&label);
    labels.data.insert(labels.data.end(), bytes, bytes + sizeof(label));
  }
  auto dataset = Dataset::FromColumns({images, labels}, 0);
  return dataset.ok() ? *dataset : nullptr;
}

class BatchTilingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RegisterAllOperators(registry_);
    absl::StatusOr<Graph> graph = zoo::BuildResNet50(registry_, kSizes);
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
    const absl::Status bound = BindAndInfer(registry_, kBatch, &graph_);
    ASSERT_TRUE(bound.ok()) << bound;
    dataset_ = Images(kExamples);
    ASSERT_NE(dataset_, nullptr);
    optimizer_.set_name("sgd");
    optimizer_.mutable_learning_rate()->set_peak(1e-3);
  }

  // See MemoryOptions for `tiles`.
  absl::StatusOr<v1::Plan> PlanFor(int64_t memory, int tiles) {
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &graph_;
    problem.batch_size = kBatch;
    problem.machine = TestMachine(devices_);
    for (v1::Device& device : problem.machine.devices) device.set_memory_bytes(memory);
    problem.optimizer = optimizer_;
    problem.cost = &cost_;
    v1::SearchOptions search;
    search.set_strategy(devices_ == 1 ? v1::SearchOptions::SINGLE_DEVICE
                                      : v1::SearchOptions::DATA_PARALLEL);
    search.set_zero_stage(0);
    search.mutable_memory()->set_max_batch_tiles(tiles);
    return MakePlan(problem, search);
  }

  absl::StatusOr<InProcessRun> Train(const v1::Plan& plan, int steps = 1, uint64_t data_seed = 0) {
    TrainingRunOptions options;
    options.steps = steps;
    options.batch_size = kBatch;
    options.lowering.optimizer = optimizer_;
    options.data_seed = data_seed;
    return TrainInProcess(registry_, graph_, plan, dataset_, options);
  }

  void ExpectSameTraining(int percent);

  OpRegistry registry_;
  Graph graph_;
  std::shared_ptr<const Dataset> dataset_;
  v1::Optimizer optimizer_;
  AnalyticCost cost_;
  int devices_ = 1;
};

// Difference of one parameter, relative to its norm.
double Apart(const InProcessRun& a, const InProcessRun& b, const std::string& name) {
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

// With this percentage of the memory that the whole batch needs.
void BatchTilingTest::ExpectSameTraining(int percent) {
  const absl::StatusOr<v1::Plan> roomy = PlanFor(int64_t{8} << 30, 0);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_EQ(roomy->batch_tiles(), 0);
  const absl::StatusOr<InProcessRun> whole = Train(*roomy);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int64_t memory = roomy->prediction().peak_bytes(0) * percent / 100;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanFor(memory, 1).status()));
  const absl::StatusOr<v1::Plan> plan = PlanFor(memory, 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->batch_tiles(), 1);
  const absl::StatusOr<InProcessRun> tiled = Train(*plan);
  ASSERT_TRUE(tiled.ok()) << tiled.status();
  for (int64_t peak : tiled->measured_peak_bytes) EXPECT_LE(peak, memory);
  EXPECT_NEAR(tiled->losses[0], whole->losses[0], 1e-5 * whole->losses[0]);
  ASSERT_EQ(tiled->parameters.size(), whole->parameters.size());
  int statistics = 0;
  for (const auto& [name, unused] : whole->parameters) {
    // Updated once per step, from the statistics of the whole batch.
    const bool statistic = name.find("running_") != std::string::npos;
    statistics += statistic;
    // After one step a bias is its gradient, in which a sum rounded differently flips some relu.
    EXPECT_LE(Apart(*tiled, *whole, name), statistic ? 1e-4 : 0.1) << name;
  }
  EXPECT_GT(statistics, 0);
}

TEST_F(BatchTilingTest, TrainsWhereSwappingIsNotEnough) { ExpectSameTraining(40); }

TEST_F(BatchTilingTest, DataParallelTrainsWhereSwappingIsNotEnough) {
  devices_ = 2;
  ExpectSameTraining(50);
}

// A ResNet on a small batch amplifies rounding within a few steps. The same examples in another
// order, or pixels rounded differently, deviate as much as tiles do. Which relu flips first is
// chance, so several of each are tried.
TEST_F(BatchTilingTest, LossIsWithinRoundingOfUntiled) {
  dataset_ = Images(kBatch);  // each step uses all of them
  const absl::StatusOr<v1::Plan> plan = PlanFor(int64_t{8} << 30, 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  v1::Plan in_tiles = *plan;
  in_tiles.set_batch_tiles(8);
  constexpr int kSteps = 6;
  const absl::StatusOr<InProcessRun> whole = Train(*plan, kSteps);
  const absl::StatusOr<InProcessRun> tiled = Train(in_tiles, kSteps);
  ASSERT_TRUE(whole.ok() && tiled.ok()) << whole.status() << tiled.status();
  std::vector<InProcessRun> reordered, nudged;
  for (int i = 1; i <= 5; ++i) {
    absl::StatusOr<InProcessRun> run = Train(*plan, kSteps, static_cast<uint64_t>(i));
    ASSERT_TRUE(run.ok()) << run.status();
    reordered.push_back(*std::move(run));
  }
  for (int i = 1; i <= 5; ++i) {
    dataset_ = Images(kBatch, i);
    absl::StatusOr<InProcessRun> run = Train(*plan, kSteps);
    ASSERT_TRUE(run.ok()) << run.status();
    nudged.push_back(*std::move(run));
  }
  double others = 1e-6, tiles = 0;  // maximum over the steps so far
  for (int step = 0; step < kSteps; ++step) {
    const auto apart = [&](const InProcessRun& run) {
      return std::abs(run.losses[step] / whole->losses[step] - 1);
    };
    const auto farthest = [&](const std::vector<InProcessRun>& runs) {
      double far = 0;
      for (const InProcessRun& run : runs) far = std::max(far, apart(run));
      return far;
    };
    others = std::max({others, farthest(reordered), farthest(nudged)});
    tiles = std::max(tiles, apart(*tiled));
    std::printf("step %d: loss %.6f, tiles %.1e apart, another order %.1e, rounding %.1e\n", step,
                whole->losses[step], apart(*tiled), farthest(reordered), farthest(nudged));
    EXPECT_LE(tiles, 4 * others) << step;
  }
}

// Under data parallelism running statistics deviate from one device's only as the network amplifies
// rounding: another order of the same examples deviates as much.
TEST_F(BatchTilingTest, BatchNormStatisticsOfReplicasAreWithinRounding) {
  dataset_ = Images(kBatch);
  const absl::StatusOr<v1::Plan> single = PlanFor(int64_t{8} << 30, 0);
  devices_ = 2;
  const absl::StatusOr<v1::Plan> data = PlanFor(int64_t{8} << 30, 0);
  ASSERT_TRUE(single.ok() && data.ok()) << single.status() << data.status();
  for (int steps : {1, 4, 16}) {
    const absl::StatusOr<InProcessRun> alone = Train(*single, steps);
    const absl::StatusOr<InProcessRun> reordered = Train(*single, steps, 1);
    const absl::StatusOr<InProcessRun> replicas = Train(*data, steps);
    ASSERT_TRUE(alone.ok() && reordered.ok() && replicas.ok());
    double order = 1e-6, split = 0;  // maximum over layers
    for (const auto& [name, unused] : alone->parameters) {
      if (name.find("running_var") == std::string::npos) continue;
      order = std::max(order, Apart(*reordered, *alone, name));
      split = std::max(split, Apart(*replicas, *alone, name));
    }
    std::printf("%d steps: running variances of replicas %.1e apart, of another order %.1e\n",
                steps, split, order);
    EXPECT_LE(split, 4 * order) << steps;
  }
}

}  // namespace
}  // namespace espalier
