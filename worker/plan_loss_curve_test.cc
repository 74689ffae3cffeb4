// Plans do not change the result: programs of many plans, run by in-process ranks, give the loss
// curve of one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>

#include "planner/lowering/lower_session.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"
#include "planner/search/search_space.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/executor/executor.h"
#include "worker/plan_fixture.h"

namespace espalier {
namespace {

struct Curve {
  std::vector<double> loss;
  double evaluation = 0;
};

// A step of a session's program, pass by pass. Before the passes that count come others, whose
// gradients are dropped: what is computed before must not matter.
absl::StatusOr<double> StepByPasses(Executor& executor, const PassBorders& borders, int step) {
  double loss = 0;
  const int end = executor.program().instructions_size();
  for (const bool counts : {false, true}) {
    loss = 0;
    PassOptions options;
    options.step = counts ? step : step + 500;
    options.update = step;
    std::vector<std::pair<int, int>> parts = {
        {0, borders.forward_end},
        {borders.forward_end, borders.backward_end},
        counts ? std::pair(borders.backward_end, borders.store_end)
               : std::pair(borders.store_end, borders.accumulate_end)};
    if (counts) parts.emplace_back(borders.accumulate_end, end);
    for (const auto& [first, last] : parts) {
      auto result = executor.RunPart(first, last, options);
      if (!result.ok()) return result.status();
      if (result->values.count("loss")) loss += result->values.at("loss");
    }
  }
  return loss;
}

// Sums over ranks; the last point is the evaluation loss after training. With `borders`, programs
// of a session.
Curve Train(const std::vector<v1::Program>& training, const std::vector<v1::Program>& evaluation,
            int steps, const std::vector<PassBorders>& borders = {}) {
  const int world = static_cast<int>(training.size());
  auto communicators = NewInProcessCommunicators(world, absl::Seconds(60));
  // By rank, so that sums are in rank order, not in thread order.
  std::vector<Curve> curves(world);
  for (Curve& curve : curves) curve.loss.resize(steps);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto run = [&]() -> absl::Status {
        auto device = NewCpuDevice({1, 1 << 28});
        MadeUpSource source;
        ExecutorOptions options;
        options.device = device.get();
        options.communicator = communicators[rank].get();
        options.source = &source;
        auto executor = Executor::Create(training[rank], options);
        if (!executor.ok()) return executor.status();
        for (int step = 0; step < steps; ++step) {
          if (!borders.empty()) {
            auto loss = StepByPasses(**executor, borders[rank], step);
            if (!loss.ok()) return loss.status();
            curves[rank].loss[step] = *loss;
            continue;
          }
          auto result = (*executor)->Step(step);
          if (!result.ok()) return result.status();
          if (result->values.count("loss")) curves[rank].loss[step] = result->values.at("loss");
        }
        if (evaluation.empty()) return absl::OkStatus();
        options.training = false;
        options.share_parameters = executor->get();
        auto evaluator = Executor::Create(evaluation[rank], options);
        if (!evaluator.ok()) return evaluator.status();
        auto result = (*evaluator)->Step(1000);
        if (!result.ok()) return result.status();
        if (result->values.count("loss")) curves[rank].evaluation = result->values.at("loss");
        return absl::OkStatus();
      };
      const absl::Status status = run();
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
      if (!status.ok()) communicators[rank]->Abort("another rank failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
  Curve sum = curves[0];
  for (int rank = 1; rank < world; ++rank) {
    for (int step = 0; step < steps; ++step) sum.loss[step] += curves[rank].loss[step];
    sum.evaluation += curves[rank].evaluation;
  }
  return sum;
}

void ExpectSame(const Curve& expected, const Curve& found, const std::string& what) {
  ASSERT_EQ(expected.loss.size(), found.loss.size());
  for (size_t i = 0; i < expected.loss.size(); ++i) {
    ASSERT_NEAR(found.loss[i], expected.loss[i], 1e-4 * std::abs(expected.loss[i]))
        << what << ", step " << i;
  }
  EXPECT_NEAR(found.evaluation, expected.evaluation, 1e-4 * std::abs(expected.evaluation)) << what;
}

Curve TrainPlan(const Graph& graph, int devices, v1::SearchOptions::Strategy strategy,
                const std::string& optimizer, int steps) {
  v1::SearchOptions search;
  search.set_strategy(strategy);
  search.set_budget(200);
  auto plan = MakePlan(Problem(graph, devices), search);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  auto lowered = LowerPlan(Registry(), graph, *plan, Options(optimizer));
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  if (!lowered.ok()) return {};
  return Train(lowered->training, lowered->evaluation, steps);
}

struct Case {
  const char* name;
  Graph (*graph)();
  std::string optimizer;
};

class PlanLossCurveTest : public testing::TestWithParam<Case> {};

TEST_P(PlanLossCurveTest, EveryPlanHasTheSingleDevicesLossCurve) {
  const Graph graph = GetParam().graph();
  const int steps = 50;
  const Curve single =
      TrainPlan(graph, 1, v1::SearchOptions::SINGLE_DEVICE, GetParam().optimizer, steps);
  ASSERT_EQ(single.loss.size(), 50u);
  EXPECT_GT(single.loss[0], 0.1);
  EXPECT_NE(single.loss[0], single.loss[49]);
  for (int devices : {2, 4}) {
    ExpectSame(
        single,
        TrainPlan(graph, devices, v1::SearchOptions::DATA_PARALLEL, GetParam().optimizer, steps),
        "data parallel");
    ExpectSame(single,
               TrainPlan(graph, devices, v1::SearchOptions::SEARCH, GetParam().optimizer, steps),
               "searched");
  }
}

TEST_P(PlanLossCurveTest, RandomPlacementsHaveTheSingleDevicesLossCurve) {
  const Graph graph = GetParam().graph();
  const int steps = 6;
  Curve single = TrainPlan(graph, 1, v1::SearchOptions::SINGLE_DEVICE, GetParam().optimizer, steps);
  single.evaluation = 0;
  Random random(5);
  for (int round = 0; round < 12 + 3 * 6; ++round) {
    const int stage = round < 12 ? 0 : 1 + round % 3;  // ZeRO stage
    auto structure = BuildStructure(Registry(), graph, /*forward_only=*/false, stage);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const SearchSpace space(*structure, {.num_devices = 3});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept;
    auto programs =
        LowerPlacement(*structure, placement, table, 3, Options(GetParam().optimizer), &kept);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (v1::Program& program : *programs) program.set_seed(3);
    ExpectSame(single, Train(*programs, {}, steps),
               "placement " + std::to_string(round) + " at stage " + std::to_string(stage));
  }
}

TEST_P(PlanLossCurveTest, SamePlanTwiceGivesTheSameBits) {
  const Graph graph = GetParam().graph();
  const Curve once = TrainPlan(graph, 4, v1::SearchOptions::SEARCH, GetParam().optimizer, 20);
  const Curve again = TrainPlan(graph, 4, v1::SearchOptions::SEARCH, GetParam().optimizer, 20);
  EXPECT_EQ(once.loss, again.loss);
  EXPECT_EQ(once.evaluation, again.evaluation);
}

// Batch normalization keeps running statistics, which the passes that are dropped move.
bool HasStatistics(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op == "batch_norm"; });
}

TEST_P(PlanLossCurveTest, PassByPassGivesTheSameBits) {
  const Graph graph = GetParam().graph();
  const int steps = 5;
  Random random(7);
  for (int round = 0; round < 16; ++round) {
    auto structure = BuildStructure(Registry(), graph, /*forward_only=*/false, round % 4);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const SearchSpace space(*structure, {.num_devices = 3});
    ConfigTable table(*structure);
    Placement placement(structure->nodes.size(), nullptr);
    for (NodeId n : structure->LiveNodes()) placement[n] = table.Get(n, space.Draw(n, &random));
    std::vector<int64_t> kept, kept_apart;
    std::vector<PassBorders> borders;
    const LoweringOptions options = Options(GetParam().optimizer);
    auto whole = LowerPlacement(*structure, placement, table, 3, options, &kept);
    auto apart = LowerPlacement(*structure, placement, table, 3, options, &kept_apart, nullptr,
                                nullptr, 1, &borders);
    ASSERT_TRUE(whole.ok() && apart.ok()) << whole.status() << apart.status();
    ASSERT_EQ(borders.size(), 3u);
    EXPECT_EQ(Train(*whole, {}, steps).loss, Train(*apart, {}, steps, borders).loss)
        << "placement " << round;
  }
}

TEST_P(PlanLossCurveTest, PassByPassGivesTheSameBitsInPipelinesAndLittleMemory) {
  const Graph graph = GetParam().graph();
  for (const bool pipeline : {true, false}) {
    if (pipeline && HasStatistics(graph)) continue;  // it has no micro-batches
    v1::SearchOptions search;
    search.set_strategy(pipeline ? v1::SearchOptions::SEARCH : v1::SearchOptions::SINGLE_DEVICE);
    if (pipeline) search.set_pipeline_stages(2);
    if (pipeline) search.set_micro_batches(4);
    PlanProblem problem = Problem(graph, pipeline ? 2 : 1);
    auto plan = MakePlan(problem, search);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const LoweringOptions options = Options(GetParam().optimizer);
    auto ample = LowerSession(Registry(), graph, *plan, options);
    ASSERT_TRUE(ample.ok()) << ample.status();
    // Scratch memory for two thirds: the rest is swapped, or computed again.
    if (!pipeline) {
      int64_t stays = 0;
      for (const v1::Buffer& buffer : ample->programs.training[0].buffers()) {
        if (buffer.kind() == v1::SCRATCH) continue;
        int64_t bytes = 4;
        for (int64_t dim : buffer.spec().dims()) bytes *= dim;
        stays = std::max(stays, buffer.offset_bytes() + bytes);
      }
      const int64_t scratch = ample->programs.training[0].arena_bytes() - stays;
      plan->mutable_devices(0)->set_memory_bytes(stays + scratch * 2 / 3);
    }
    auto session = LowerSession(Registry(), graph, *plan, options);
    if (!pipeline && absl::IsResourceExhausted(session.status())) continue;  // too small to swap
    auto job = LowerPlan(Registry(), graph, *plan, options);
    ASSERT_TRUE(session.ok() && job.ok()) << session.status() << job.status();
    if (!pipeline) {
      EXPECT_GT(session->programs.training[0].instructions_size(),
                ample->programs.training[0].instructions_size());
    }
    const Curve expected = Train(job->training, {}, 5);
    EXPECT_EQ(Train(session->programs.training, {}, 5, session->borders).loss, expected.loss)
        << pipeline;
    if (HasStatistics(graph)) continue;
    const Curve evaluated = Train(job->training, job->evaluation, 5);
    EXPECT_EQ(Train(session->programs.training, session->programs.evaluation, 5, session->borders)
                  .evaluation,
              evaluated.evaluation);
  }
}

TEST(ParameterGroups, AnOptionOfAGroupOfAllIsTheOptimizers) {
  const Graph graph = Mlp();
  v1::SearchOptions search;
  search.set_strategy(v1::SearchOptions::DATA_PARALLEL);
  const absl::StatusOr<v1::Plan> plan = MakePlan(Problem(graph, 2), search);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto train = [&](double rate, double decay, bool clips, bool scales_loss,
                         const std::function<void(v1::ParameterGroup*)>& group) {
    LoweringOptions options = Options("sgd");
    options.optimizer.mutable_learning_rate()->set_peak(rate);
    (*options.optimizer.mutable_attributes())["weight_decay"].set_f(decay);
    options.optimizer.set_clip_norm(clips ? 1 : 0);
    if (scales_loss) {
      options.optimizer.mutable_loss_scale()->set_initial(8);
      options.optimizer.mutable_loss_scale()->set_growth_interval(2);
    }
    v1::ParameterGroup* all = options.optimizer.add_groups();
    all->add_parameters("*");
    group(all);
    auto lowered = LowerPlan(Registry(), graph, *plan, options);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    return Train(lowered->training, {}, 10).loss;
  };
  for (const bool clips : {false, true}) {
    for (const bool scales_loss : {false, true}) {
      const std::vector<double> plain = train(0.05, 0.1, clips, scales_loss, [](auto*) {});
      EXPECT_EQ(plain, train(0.1, 0.5, clips, scales_loss, [](auto* all) {
                  all->set_learning_rate_scale(0.5);
                  all->set_weight_decay(0.1);
                }));
      EXPECT_NE(plain,
                train(0.05, 0.1, clips, scales_loss, [](auto* all) { all->set_weight_decay(0); }));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanLossCurveTest,
    testing::Values(Case{"Mlp", Mlp, "sgd"}, Case{"Cnn", Cnn, "sgd"}, Case{"Llama", Llama, "adam"},
                    Case{"WideMlp", WideMlp, "sgd"}, Case{"WideLlama", WideLlama, "adamw"},
                    Case{"WideMlpAdafactor", WideMlp, "adafactor"},
                    Case{"WideMlpGroups", WideMlp, "adagrad"}, Case{"CnnGroups", Cnn, "adagrad"},
                    Case{"MlpAdafactor", Mlp, "adafactor"}, Case{"CnnAdafactor", Cnn, "adafactor"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace espalier
