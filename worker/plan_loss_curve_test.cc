// Plans do not change the result: programs of many plans, run by in-process ranks, give the loss
// curve of one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>

#include "models/llama.h"
#include "ops/graph/builder.h"
#include "ops/kernel/philox.h"
#include "ops/operators/register_all.h"
#include "planner/lowering/lower_session.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"
#include "planner/search/search_space.h"
#include "worker/collective/in_process_communicator.h"
#include "worker/executor/executor.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 8;

const OpRegistry& Registry() {
  static const OpRegistry* registry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *registry;
}

Graph Bound(absl::StatusOr<Graph> graph) {
  EXPECT_TRUE(graph.ok()) << graph.status();
  absl::Status bound = BindAndInfer(Registry(), kBatch, &*graph);
  EXPECT_TRUE(bound.ok()) << bound;
  return *std::move(graph);
}

Graph MlpOf(int64_t in, int64_t hidden) {
  GraphBuilder b(Registry(), "mlp");
  const Initializer init{Initializer::kNormal, 0.3};
  ValueId h = b.Op("linear",
                   {b.Input("x", DType::kF32, {-1, in}),
                    b.Parameter("fc1.weight", DType::kF32, {hidden, in}, init),
                    b.Parameter("fc1.bias", DType::kF32, {hidden}, init)},
                   {}, "fc1");
  h = b.Op("gelu", {h}, {}, "act");
  h = b.Op("dropout", {h}, {{"rate", 0.2}}, "drop");
  h = b.Op("linear", {h, b.Parameter("fc2.weight", DType::kF32, {4, hidden}, init)}, {}, "fc2");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build());
}

Graph Mlp() { return MlpOf(12, 16); }
// A model whose parameters ZeRO shards over two or three ranks.
Graph WideMlp() { return MlpOf(96, 768); }

Graph Cnn() {
  GraphBuilder b(Registry(), "cnn");
  const Initializer init{Initializer::kNormal, 0.2};
  const Initializer ones{Initializer::kOnes, 0}, zeros{};
  ValueId h = b.Op("conv2d",
                   {b.Input("x", DType::kF32, {-1, 1, 8, 8}),
                    b.Parameter("conv.weight", DType::kF32, {8, 1, 3, 3}, init)},
                   {{"strides", std::vector<int64_t>{1, 1}},
                    {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                    {"dilations", std::vector<int64_t>{1, 1}},
                    {"groups", int64_t{1}}},
                   "conv");
  const ValueId stats = b.Op("batch_norm_stats", {h}, {}, "bn.stats");
  h = b.Op("batch_norm",
           {h, b.Parameter("bn.scale", DType::kF32, {8}, ones),
            b.Parameter("bn.bias", DType::kF32, {8}, zeros),
            b.Parameter("bn.running_mean", DType::kF32, {8}, zeros, false),
            b.Parameter("bn.running_var", DType::kF32, {8}, ones, false), stats},
           {}, "bn");
  h = b.Op("relu", {h}, {}, "act");
  h = b.Op("pool2d", {h},
           {{"kind", "max"},
            {"kernel", std::vector<int64_t>{2, 2}},
            {"strides", std::vector<int64_t>{2, 2}},
            {"pads", std::vector<int64_t>{0, 0, 0, 0}}},
           "pool");
  h = b.Op("flatten", {h}, {{"axis", int64_t{1}}}, "flatten");
  h = b.Op("linear", {h, b.Parameter("fc.weight", DType::kF32, {4, 128}, init)}, {}, "fc");
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {h, labels}, {}, "accuracy"));
  return Bound(b.Build());
}

LlamaConfig SmallLlama() {
  LlamaConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  return config;
}

Graph Llama() { return Bound(BuildLlamaTraining(Registry(), SmallLlama(), 16)); }

// A model whose parameters ZeRO shards, one of them read twice.
Graph WideLlama() {
  LlamaConfig config = SmallLlama();
  config.vocab_size = 96;
  config.hidden_size = 48;
  config.intermediate_size = 96;
  config.head_dim = 12;
  config.tie_word_embeddings = true;
  return Bound(BuildLlamaTraining(Registry(), config, 16));
}

// Element i of the global batch depends on (column, step, i) only.
class MadeUpSource : public BatchSource {
 public:
  absl::Status Prepare(const std::string&, const TensorSpec&) override { return absl::OkStatus(); }
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override {
    const int classes = column == "labels" ? 4 : 32;
    Dims index(spec.dims.size(), 0);
    for (int64_t i = 0; i < spec.num_elements(); ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        at = at * spec.global[d] + spec.offset[d] + index[d];
      }
      const float u =
          PhiloxUniform(77, column.size(), static_cast<uint64_t>(step), static_cast<uint64_t>(at));
      if (spec.dtype == DType::kF32) {
        static_cast<float*>(host)[i] = u - 0.5f;
      } else {
        static_cast<int32_t*>(host)[i] = static_cast<int32_t>(u * static_cast<float>(classes));
      }
      for (int d = static_cast<int>(index.size()) - 1; d >= 0 && ++index[d] == spec.dims[d]; --d) {
        index[d] = 0;
      }
    }
    return absl::OkStatus();
  }
};

LoweringOptions Options(const std::string& optimizer) {
  LoweringOptions options;
  options.seed = 3;
  options.optimizer.set_name(optimizer);
  options.optimizer.mutable_learning_rate()->set_peak(optimizer == "sgd" ? 0.1 : 0.003);
  if (optimizer == "sgd") (*options.optimizer.mutable_attributes())["momentum"].set_f(0.9);
  if (optimizer == "adafactor") {
    // Penalties on all and on some parameters.
    options.optimizer.add_regularizers()->set_l2(1e-3);
    v1::Regularizer* some = options.optimizer.add_regularizers();
    some->set_parameter("fc*");
    some->set_l1(1e-4);
    options.optimizer.set_report_penalties(true);
  }
  options.optimizer.set_clip_norm(1.0);
  if (optimizer == "adagrad") {
    // Groups of parameters, and no clipping: updates run as soon as their gradients are there.
    options.optimizer.set_clip_norm(0);
    options.optimizer.mutable_learning_rate()->set_peak(0.03);
    (*options.optimizer.mutable_attributes())["weight_decay"].set_f(0.01);
    v1::ParameterGroup* biases = options.optimizer.add_groups();
    biases->add_parameters("*.bias");
    biases->set_weight_decay(0);
    v1::ParameterGroup* last = options.optimizer.add_groups();
    last->add_parameters("fc2.*");
    last->add_parameters("bn.*");
    last->set_learning_rate_scale(0.25);
  }
  return options;
}

PlanProblem Problem(const Graph& graph, int devices) {
  PlanProblem problem;
  problem.registry = &Registry();
  problem.graph = &graph;
  problem.batch_size = kBatch;
  for (int i = 0; i < devices; ++i) {
    v1::Device device;
    device.set_kind(v1::Device::CPU);
    device.set_memory_bytes(int64_t{1} << 32);
    device.set_matmul_flops(1e11);
    device.set_memory_bandwidth(1e10);
    device.set_op_overhead_seconds(2e-6);
    device.set_threads(1);
    problem.machine.devices.push_back(device);
  }
  problem.machine.link.set_bandwidth(5e9);
  problem.machine.link.set_latency_seconds(1e-7);  // low, so that the search does split
  return problem;
}

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
