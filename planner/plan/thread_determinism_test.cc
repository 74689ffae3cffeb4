// Plans and calibration do not depend on the number of search threads.
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "planner/cost/analytic_cost.h"
#include "planner/cost/measured_cost.h"
#include "planner/parallel.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using google::protobuf::util::MessageDifferencer;

using ForEach = std::function<void(int, const std::function<void(int)>&)>;

void Backwards(int count, const std::function<void(int)>& work) {
  for (int i = count; i-- > 0;) work(i);
}

void OnThreads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

// Workers that can measure two of three operators, with times that differ from every prediction.
std::optional<CostModel::Times> MeasureOddly(const OpDef& def, const NodeTypes& shard,
                                             const v1::Device& device) {
  uint64_t hash = 1469598103934665603u;
  for (char c : MeasurementKey(def, shard, device)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  }
  if (hash % 3 == 0) return std::nullopt;
  CostModel::Times times = AnalyticCost().Measure(def, shard, device);
  const double factor = 0.5 + 0.01 * static_cast<double>(hash / 3 % 200);
  return CostModel::Times{times.forward * factor, times.backward * factor};
}

struct Outcome {
  v1::Plan plan;
  std::string error, learned;
};

class ParallelPlansTest : public ::testing::Test {
 protected:
  static Outcome Make(PlanProblem problem, const v1::SearchOptions& options,
                      const ForEach& for_each) {
    AnalyticCost analytic;
    MeasuredCost cost(&analytic, MeasureOddly);
    problem.cost = &cost;
    problem.for_each = for_each;
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
    return {plan.ok() ? *plan : v1::Plan(), plan.status().ToString(), cost.Save()};
  }

  static void ExpectSame(const PlanProblem& problem, const v1::SearchOptions& options) {
    const Outcome alone = Make(problem, options, nullptr);
    for (const ForEach& for_each : {ForEach(Backwards), ForEach(OnThreads)}) {
      const Outcome other = Make(problem, options, for_each);
      EXPECT_TRUE(MessageDifferencer::Equals(other.plan, alone.plan));
      EXPECT_EQ(other.error, alone.error);
      EXPECT_EQ(other.learned, alone.learned);
    }
  }
};

TEST_F(ParallelPlansTest, OperatorSearchAndMeshesOnFewDevices) {
  const Graph graph = Mlp(256, 128, 64, 16);
  v1::SearchOptions options;
  options.set_seed(5);
  ExpectSame(TestProblem(graph, 256, 4), options);
}

TEST_F(ParallelPlansTest, MeshesOnManyDevices) {
  const Graph graph = Llama(LargerLlama(4), 64);
  ExpectSame(TestProblem(graph, 64, 32), {});
}

TEST_F(ParallelPlansTest, RewrittenAndOriginalGraph) {
  const Graph graph = Llama(SmallLlama(2), 16);
  v1::SearchOptions options;
  options.set_rewrite_budget(30);
  ExpectSame(TestProblem(graph, 16, 2), options);
}

TEST_F(ParallelPlansTest, ParetoFront) {
  const Graph graph = Mlp(256, 128, 64, 16);
  v1::SearchOptions options;
  options.set_memory_search(true);
  ExpectSame(TestProblem(graph, 256, 4), options);
  ExpectSame(TestProblem(graph, 256, 32), options);
}

TEST_F(ParallelPlansTest, PipelinesAndHigherZeroStages) {
  const Graph graph = Mlp(64, 256, 64, 16);
  v1::SearchOptions options;
  options.set_pipeline_stages(2);
  ExpectSame(TestProblem(graph, 64, 4), options);
  ExpectSame(TestProblem(graph, 64, 2, 400'000), {});
}

TEST_F(ParallelPlansTest, PlansWithOffload) {
  const Graph graph = Llama(LargerLlama(2), 16);
  v1::SearchOptions options;
  options.set_budget(1000);
  const PlanProblem ample = TestProblem(graph, 16, 2);
  const absl::StatusOr<v1::Plan> roomy = MakePlan(ample, options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const int64_t need = *std::max_element(roomy->prediction().peak_bytes().begin(),
                                         roomy->prediction().peak_bytes().end());
  ExpectSame(TestProblem(graph, 16, 2, need * 7 / 10), options);
}

TEST_F(ParallelPlansTest, CostModelWithoutForksIsUsedByOneThread) {
  class Alone : public CostModel {
   public:
    Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override {
      EXPECT_EQ(std::this_thread::get_id(), thread_);
      return analytic_.Measure(def, shard, device);
    }

   private:
    const std::thread::id thread_ = std::this_thread::get_id();
    AnalyticCost analytic_;
  };
  const Graph graph = Mlp(64, 64);
  PlanProblem problem = TestProblem(graph, 64, 4);
  Alone cost;
  problem.cost = &cost;
  problem.for_each = OnThreads;
  EXPECT_TRUE(MakePlan(problem, {}).ok());
}

}  // namespace
}  // namespace espalier
