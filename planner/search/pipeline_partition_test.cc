#include "planner/search/pipeline_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

namespace espalier {
namespace {

// Enumerates every way to cut.
double BestOfAll(const PipelinePartitionProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<PipelineStage> stages;
  const std::function<void(int, int, int)> extend = [&](int op, int device, int left) {
    if (left == 0) {
      if (op == problem.operators && device == problem.devices) {
        best = std::min(best, SlowestPipelineStage(problem, stages));
      }
      return;
    }
    for (int last = op + 1; last <= problem.operators; ++last) {
      for (int count = 1; device + count <= problem.devices; ++count) {
        stages.push_back({op, last, device, count});
        extend(last, device + count, left - 1);
        stages.pop_back();
      }
    }
  };
  extend(0, 0, problem.stages);
  return best;
}

TEST(PartitionPipeline, FindsTheOptimumOfRandomSequences) {
  std::mt19937 random(1);
  const auto real = [&](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  for (int round = 0; round < 300; ++round) {
    PipelinePartitionProblem problem;
    problem.devices = 1 + static_cast<int>(random() % 5);
    problem.stages = 1 + static_cast<int>(random() % problem.devices);
    problem.operators = problem.stages + static_cast<int>(random() % 5);
    std::vector<double> work, bytes, speed;
    for (int i = 0; i <= problem.operators; ++i) {
      work.push_back(real(10));
      bytes.push_back(real(round % 3 == 0 ? 8 : 1));
    }
    for (int d = 0; d < problem.devices; ++d) speed.push_back(1 + real(round % 2));
    problem.seconds = [&](int op, int first, int count) {
      const double slowest = *std::min_element(&speed[first], &speed[first] + count);
      return work[op] / slowest / count + 0.1 * (count - 1);
    };
    problem.transfer = [&](int op) { return bytes[op]; };
    const std::vector<PipelineStage> stages = PartitionPipeline(problem);
    ASSERT_EQ(stages.size(), static_cast<size_t>(problem.stages));
    int op = 0, device = 0;
    for (const PipelineStage& stage : stages) {
      EXPECT_EQ(stage.first, op);
      EXPECT_EQ(stage.first_device, device);
      EXPECT_GT(stage.last, stage.first);
      op = stage.last;
      device += stage.devices;
    }
    EXPECT_EQ(op, problem.operators);
    EXPECT_EQ(device, problem.devices);
    EXPECT_DOUBLE_EQ(SlowestPipelineStage(problem, stages), BestOfAll(problem))
        << "round " << round;
  }
}

TEST(PartitionPipeline, CutsBetweenLayersOfALongModel) {
  // Layers of 10 operators, with little transfer between layers.
  PipelinePartitionProblem problem;
  problem.operators = 960;
  problem.stages = 8;
  problem.devices = 64;
  problem.counts = {8};
  problem.seconds = [](int, int, int count) { return 1.0 / count; };
  problem.transfer = [](int op) { return op % 10 == 0 ? 0.01 : 5; };
  for (const PipelineStage& stage : PartitionPipeline(problem)) {
    EXPECT_EQ(stage.last - stage.first, 120);
    EXPECT_EQ(stage.devices, 8);
  }
}

// Many devices that the stages do not divide: each operator's time is queried for few groups.
TEST(PartitionPipeline, ManyDevicesAreDividedEvenly) {
  PipelinePartitionProblem problem;
  problem.operators = 300;
  problem.stages = 3;
  problem.devices = 1000;
  problem.counts = {333, 334};
  problem.alike = true;
  int asked = 0;
  problem.seconds = [&](int, int, int count) {
    ++asked;
    return 1.0 / count;
  };
  problem.transfer = [](int) { return 0.001; };
  const std::vector<PipelineStage> stages = PartitionPipeline(problem);
  ASSERT_EQ(stages.size(), 3u);
  int devices = 0;
  for (const PipelineStage& stage : stages) devices += stage.devices;
  EXPECT_EQ(devices, 1000);
  EXPECT_EQ(asked, 2 * problem.operators);
  // If devices differ: one query per position of a group.
  problem.alike = false;
  asked = 0;
  EXPECT_EQ(PartitionPipeline(problem), stages);
  EXPECT_LE(asked, 2 * 6 * problem.operators);
}

TEST(PartitionPipeline, FindsMaximumNumberOfStages) {
  PipelinePartitionProblem problem;
  problem.operators = 400;
  problem.stages = problem.devices = kMostPipelineStages;
  problem.counts = {1};
  problem.seconds = [](int, int, int) { return 1.0; };
  problem.transfer = [](int) { return 0.0; };
  EXPECT_EQ(PartitionPipeline(problem).size(), static_cast<size_t>(kMostPipelineStages));
  problem.stop = [] { return true; };
  EXPECT_TRUE(PartitionPipeline(problem).empty());
}

TEST(PartitionPipeline, ImpossiblePartitionIsEmpty) {
  PipelinePartitionProblem problem;
  problem.seconds = [](int, int, int) { return 1.0; };
  problem.transfer = [](int) { return 0.0; };
  problem.operators = 2;
  problem.stages = 3;
  problem.devices = 4;
  EXPECT_TRUE(PartitionPipeline(problem).empty());
  problem.operators = 9;
  problem.counts = {3};
  EXPECT_TRUE(PartitionPipeline(problem).empty());
  problem.counts = {};
  EXPECT_EQ(PartitionPipeline(problem).size(), 3u);
}

}  // namespace
}  // namespace espalier
