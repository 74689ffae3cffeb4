#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "planner/lowering/lower_training.h"
#include "planner/plan/device_mesh.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/plan/plan_fixture.h"
#include "planner/testing/graphs.h"
#include "planner/testing/program_check.h"

namespace espalier {
namespace {

using google::protobuf::util::MessageDifferencer;

TEST(MakePlanTest, NeverWorseThanTheAlternatives) {
  for (int64_t batch : {8, 1024}) {
    for (const Graph& graph : {Mlp(batch, 256, 64, 16), Cnn(batch)}) {
      const v1::Plan plan = Made(TestProblem(graph, batch, 4));
      ASSERT_EQ(plan.alternatives_size(), 2);
      for (const v1::Alternative& alternative : plan.alternatives()) {
        EXPECT_LE(plan.prediction().step_seconds(), alternative.prediction().step_seconds());
      }
      EXPECT_GT(plan.search().proposals(), 0);
      ASSERT_EQ(plan.prediction().peak_bytes_size(), 4);
    }
  }
}

TEST(MakePlanTest, FixedStrategiesMatchListedAlternatives) {
  const Graph graph = Mlp(64, 64);
  const v1::Plan data =
      Made(TestProblem(graph, 64, 2), WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  const v1::Plan single =
      Made(TestProblem(graph, 64, 2), WithStrategy(v1::SearchOptions::SINGLE_DEVICE));
  EXPECT_EQ(data.prediction().step_seconds(), data.alternatives(1).prediction().step_seconds());
  EXPECT_EQ(single.prediction().step_seconds(), data.alternatives(0).prediction().step_seconds());
  EXPECT_EQ(single.prediction().bytes_moved(), 0);
  EXPECT_EQ(data.operators(0).degrees().at("sample"), 2);
}

TEST(MakePlanTest, FullAndDeltaSimulationGiveTheSamePlan) {
  const Graph graph = Cnn(64);
  v1::SearchOptions options;
  options.set_budget(400);
  options.set_seed(9);
  v1::Plan delta = Made(TestProblem(graph, 64, 2), options);
  options.set_only_full_simulation(true);
  v1::Plan full = Made(TestProblem(graph, 64, 2), options);
  EXPECT_TRUE(MessageDifferencer::Equals(delta, full));
}

// No point of the front is beaten in both, and the plan is the fastest that fits.
TEST(ParetoPlanTest, FrontIsMonotoneAndFastestFittingPointIsChosen) {
  const Graph graph = Mlp(1024, 512, 512, 16);
  v1::SearchOptions options;
  options.set_memory_search(true);
  const v1::Plan free = Made(TestProblem(graph, 1024, 4), options);
  ASSERT_GE(free.pareto_front_size(), 4);
  int chosen = 0;
  for (int i = 0; i < free.pareto_front_size(); ++i) {
    const v1::ParetoPoint& point = free.pareto_front(i);
    chosen += point.chosen();
    if (i == 0) continue;
    EXPECT_GT(point.step_seconds(), free.pareto_front(i - 1).step_seconds());
    EXPECT_LT(point.peak_bytes(), free.pareto_front(i - 1).peak_bytes());
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_TRUE(free.pareto_front(0).chosen());
  EXPECT_LE(free.prediction().step_seconds(),
            Made(TestProblem(graph, 1024, 4)).prediction().step_seconds());
  // Enough memory for a point in the middle, but not for the fastest.
  const v1::ParetoPoint& middle = free.pareto_front(free.pareto_front_size() / 2);
  PlanProblem problem = TestProblem(graph, 1024, 4);
  for (v1::Device& device : problem.machine.devices) {
    device.set_memory_bytes(middle.peak_bytes() + middle.peak_bytes() / 20);
  }
  const v1::Plan small = Made(problem, options);
  for (int64_t bytes : small.prediction().peak_bytes()) {
    EXPECT_LE(bytes, problem.machine.devices[0].memory_bytes());
  }
  EXPECT_LE(small.prediction().step_seconds(), 1.1 * middle.step_seconds());
  EXPECT_LE(small.prediction().step_seconds(), Made(problem).prediction().step_seconds());
}

TEST(ParetoPlanTest, NeedsASearch) {
  const Graph graph = Mlp(64, 64);
  v1::SearchOptions options = WithStrategy(v1::SearchOptions::DATA_PARALLEL);
  options.set_memory_search(true);
  EXPECT_NE(
      MessageOf(MakePlan(TestProblem(graph, 64, 2), options).status()).find("search.memory_search"),
      std::string::npos);
}

// Parameters that do not fit on one device are split, and the plan runs.
TEST(MakePlanTest, SplitsParametersWhenADeviceIsTooSmall) {
  const Graph graph = Mlp(16, 1024, 1024, 16);
  const int64_t parameters = (1024 * 1024 + 16 * 1024) * 4;
  // Parameter, two moments and gradient need four times that.
  const PlanProblem problem = TestProblem(graph, 16, 4, 2 * parameters);
  EXPECT_EQ(MakePlan(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL)).status().code(),
            absl::StatusCode::kResourceExhausted);
  const v1::Plan plan = Made(problem);
  for (int64_t bytes : plan.prediction().peak_bytes()) EXPECT_LE(bytes, 2 * parameters);
  // Simple strategies do not fit; others may be listed as alternatives.
  ASSERT_GE(plan.alternatives_size(), 2);
  for (int i : {0, 1}) {
    EXPECT_NE(plan.alternatives(i).refused(), "") << plan.alternatives(i).name();
  }
  LoweringOptions options;
  options.optimizer = TestOptimizer();
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, plan, options);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(CheckPrograms(lowered->training), absl::OkStatus());
}

// Where swaps and recomputation are not enough, operators run in batch tiles unless disabled;
// programs tile as the plan says.
TEST(MakePlanTest, UsesBatchTilesIfSwapsDoNotSuffice) {
  const Graph graph = Cnn(256);
  v1::SearchOptions options = WithStrategy(v1::SearchOptions::SINGLE_DEVICE);
  options.mutable_memory()->set_max_batch_tiles(1);
  const int64_t need = Made(TestProblem(graph, 256, 1), options).prediction().peak_bytes(0);
  int64_t memory = need;
  absl::Status refused;
  while (refused.ok()) {
    memory = memory * 9 / 10;
    refused = MakePlan(TestProblem(graph, 256, 1, memory), options).status();
  }
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  options.clear_memory();
  const v1::Plan plan = Made(TestProblem(graph, 256, 1, memory), options);
  ASSERT_GT(plan.batch_tiles(), 1);
  EXPECT_LE(plan.prediction().peak_bytes(0), memory);
  EXPECT_EQ(plan.memory_plans(0).bytes_without(), need);
  EXPECT_GT(plan.memory_plans(0).added_seconds(), 0);
  EXPECT_NE(RenderPlan(plan).find("batch tiles"), std::string::npos) << RenderPlan(plan);

  LoweringOptions lowering;
  lowering.optimizer = TestOptimizer();
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, plan, lowering);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(CheckPrograms(lowered->training), absl::OkStatus());
  EXPECT_EQ(lowered->training[0].arena_bytes(), plan.prediction().peak_bytes(0));

  // Edited: four tiles, though memory is sufficient.
  v1::SearchOptions imported = WithStrategy(v1::SearchOptions::IMPORTED);
  *imported.mutable_imported() = Made(TestProblem(graph, 256, 1), options);
  imported.mutable_imported()->set_batch_tiles(4);
  EXPECT_EQ(Made(TestProblem(graph, 256, 1), imported).batch_tiles(), 4);
  imported.mutable_imported()->set_batch_tiles(3);
  const absl::Status odd = MakePlan(TestProblem(graph, 256, 1), imported).status();
  EXPECT_NE(MessageOf(odd).find("'batch_tiles' is 3; accepted: a power of two"), std::string::npos)
      << odd;
}

TEST(MakePlanTest, ReportsMissingMemoryPerDevice) {
  const Graph graph = Mlp();
  const absl::Status status = MakePlan(TestProblem(graph, 8, 2, 500), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(status).find("bytes but has 500"), std::string::npos) << status;
}

// Norm, norm, loss; both norms update the same running statistics.
Graph SharedNorm(int64_t batch) {
  GraphBuilder b(TestRegistry(), "shared_norm");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8, 4, 4});
  const Initializer ones{Initializer::kOnes, 0}, zeros{};
  const ValueId mean = b.Parameter("running_mean", DType::kF32, {8}, zeros, false);
  const ValueId variance = b.Parameter("running_var", DType::kF32, {8}, ones, false);
  ValueId h = x;
  for (const std::string name : {"first", "second"}) {
    const ValueId stats = b.Op("batch_norm_stats", {h}, {}, name + ".stats");
    h = b.Op("batch_norm",
             {h, b.Parameter(name + ".scale", DType::kF32, {8}, ones),
              b.Parameter(name + ".bias", DType::kF32, {8}, zeros), mean, variance, stats},
             {}, name);
  }
  b.Output("loss", b.Op("mean_squared_error", {h, x}, {}, "loss"));
  return Bound(b.Build(), batch);
}

// With ResourceExhausted the job would wait for workers, which would not help.
TEST(MakePlanTest, InseparableOperatorsAreNotReportedAsMemory) {
  const Graph graph = SharedNorm(10);
  const auto expect_invalid = [&](const absl::Status& status, const std::string& remedy) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& part :
         {std::string("'first' and 'second' share the running statistic"), remedy}) {
      EXPECT_NE(MessageOf(status).find(part), std::string::npos) << status;
    }
    EXPECT_EQ(MessageOf(status).find("memory"), std::string::npos) << status;
  };
  // One operator in each stage.
  v1::SearchOptions stages;
  stages.set_pipeline_stages(5);
  stages.set_micro_batches(1);
  const PlanProblem five = TestProblem(graph, 10, 5);
  expect_invalid(MakePlan(five, stages).status(), "Leave out search.pipeline_stages");
  stages.clear_pipeline_stages();
  EXPECT_EQ(Made(five, stages).operators_size(), 5);

  v1::SearchOptions imported = WithStrategy(v1::SearchOptions::IMPORTED);
  *imported.mutable_imported() = Made(five, WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  for (v1::OperatorPlan& op : *imported.mutable_imported()->mutable_operators()) {
    if (op.node() != "second") continue;
    (*op.mutable_degrees())["sample"] = 2;
    op.mutable_devices()->Truncate(2);
  }
  expect_invalid(MakePlan(five, imported).status(), "Use the strategy SEARCH");
  imported.set_strategy(v1::SearchOptions::SEARCH);
  EXPECT_EQ(Made(five, imported).operators_size(), 5);

  // Whatever ruled out the other plans, here more memory helps.
  const absl::Status small = MakePlan(TestProblem(graph, 10, 5, 500), {}).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kResourceExhausted) << small;
}

TEST(MakePlanTest, RefusesBadOptions) {
  const Graph graph = Mlp();
  v1::SearchOptions options;
  options.set_alpha(-1);
  EXPECT_EQ(MakePlan(TestProblem(graph, 8, 2), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.Clear();
  options.set_budget(-5);
  EXPECT_EQ(MakePlan(TestProblem(graph, 8, 2), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakePlan(TestProblem(graph, 8, 0), {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Graph no_loss = graph;
  no_loss.outputs = {{"prediction", graph.node(2).outputs[0]}};
  EXPECT_EQ(MakePlan(TestProblem(no_loss, 8, 2), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ZeroStageTest, RequestedStageIsUsedAndShown) {
  const Graph graph = Mlp(16, 256, 64, 16);
  v1::SearchOptions options = WithStrategy(v1::SearchOptions::DATA_PARALLEL);
  EXPECT_EQ(Made(TestProblem(graph, 16, 4), options).zero_stage(), 0);
  for (int stage : {0, 1, 2, 3}) {
    options.set_zero_stage(stage);
    const v1::Plan plan = Made(TestProblem(graph, 16, 4), options);
    EXPECT_EQ(plan.zero_stage(), stage);
    EXPECT_EQ(RenderPlan(plan).find("ZeRO stage") != std::string::npos, stage > 0);
    // The plan's step moves what its parallel operators say.
    double bytes = 0;
    for (const v1::ParallelOperator& op : plan.parallel_operators()) bytes += op.bytes();
    EXPECT_DOUBLE_EQ(bytes, plan.prediction().bytes_moved()) << stage;
    // An imported plan keeps its stage unless the options name one.
    v1::SearchOptions import = WithStrategy(v1::SearchOptions::IMPORTED);
    *import.mutable_imported() = plan;
    EXPECT_EQ(Made(TestProblem(graph, 16, 4), import).zero_stage(), stage);
    import.set_zero_stage(3 - stage);
    EXPECT_EQ(Made(TestProblem(graph, 16, 4), import).zero_stage(), 3 - stage);
  }
}

TEST(ZeroStageTest, OutOfRangeNamesTheFieldAndWhatIsAccepted) {
  const Graph graph = Mlp();
  const PlanProblem problem = TestProblem(graph, 8, 2);
  for (int stage : {-1, 4}) {
    v1::SearchOptions options;
    options.set_zero_stage(stage);
    const absl::Status asked = MakePlan(problem, options).status();
    EXPECT_EQ(asked.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(asked).find("search.zero_stage is"), std::string::npos) << asked;
    EXPECT_NE(MessageOf(asked).find("accepted: 0 ("), std::string::npos) << asked;
    v1::Plan plan = Made(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL));
    plan.set_zero_stage(stage);
    v1::SearchOptions import = WithStrategy(v1::SearchOptions::IMPORTED);
    *import.mutable_imported() = plan;
    LoweringOptions lowering;
    lowering.optimizer = TestOptimizer();
    for (const absl::Status& status : {MakePlan(problem, import).status(),
                                       LowerPlan(TestRegistry(), graph, plan, lowering).status(),
                                       SimulatePlan(problem, plan).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(MessageOf(status).find("'zero_stage' is"), std::string::npos) << status;
    }
  }
}

// Overflowed times used to be negative and made the plan look optimal.
TEST(MakePlanTest, VerySlowDevicesDoNotOverflowTimes) {
  const Graph graph = Mlp(1 << 16, 4096, 4096, 16);
  PlanProblem problem = TestProblem(graph, 1 << 16, 2, 0);
  for (v1::Device& device : problem.machine.devices) device.set_matmul_flops(10);
  for (const auto strategy : {v1::SearchOptions::SINGLE_DEVICE, v1::SearchOptions::DATA_PARALLEL}) {
    EXPECT_GT(Made(problem, WithStrategy(strategy)).prediction().step_seconds(), 1e4);
  }
  problem.machine.link.set_latency_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_GT(
      Made(problem, WithStrategy(v1::SearchOptions::DATA_PARALLEL)).prediction().step_seconds(),
      1e4);
}

class RequestedDevices : public CostModel {
 public:
  static constexpr int64_t kBatch = 96;

  Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override {
    if (shard.inputs[0].dims == Dims{kBatch, 12}) whole.insert(device.matmul_flops());
    return {1e6 / device.matmul_flops(), 2e6 / device.matmul_flops()};
  }

  std::set<double> whole;  // rates of the devices that got the whole batch
};

// Many devices that all measure a little differently.
TEST(MakePlanTest, SingleDeviceTriesOnlyTheBestDevices) {
  const Graph graph = Mlp(RequestedDevices::kBatch);
  PlanProblem problem = TestProblem(graph, RequestedDevices::kBatch, 32);
  for (int d = 0; d < 32; ++d) {
    v1::Device& device = problem.machine.devices[d];
    device.set_matmul_flops(1e11 + 1e8 * ((7 * d) % 32));
    device.set_host("host" + std::to_string(d));
  }
  RequestedDevices cost;
  problem.cost = &cost;
  const v1::Plan plan = Made(problem, WithStrategy(v1::SearchOptions::SINGLE_DEVICE));
  EXPECT_LE(cost.whole.size(), 8u);
  EXPECT_EQ(plan.devices(plan.operators(0).devices(0)).matmul_flops(), 1e11 + 31e8);
}

// A graph so small that operator overhead dominates: the device with the lowest rates, but the
// least overhead, wins.
TEST(MakePlanTest, SingleDeviceMayHaveLeastOverhead) {
  const Graph graph = Mlp();
  PlanProblem problem = TestProblem(graph, 8, 8);
  for (int d = 0; d < 8; ++d) {
    v1::Device& device = problem.machine.devices[d];
    device.set_matmul_flops(1e11 - 1e9 * d);
    device.set_memory_bandwidth(1e10 - 1e8 * d);
    device.set_memory_bytes((int64_t{1} << 32) - d);
    device.set_op_overhead_seconds(d == 7 ? 2e-6 : 1e-4);
  }
  const v1::Plan plan = Made(problem, WithStrategy(v1::SearchOptions::SINGLE_DEVICE));
  for (const v1::OperatorPlan& op : plan.operators()) EXPECT_EQ(op.devices(0), 7) << op.node();
}

// More devices than all group sizes are tried for, and not divisible by the stages.
TEST(PipelineTest, StagesGetEqualSharesOfManyDevices) {
  const Graph graph = Llama(SmallLlama(4), 42 * 4);
  v1::SearchOptions options;
  options.set_pipeline_stages(3);
  options.set_micro_batches(4);
  const v1::Plan plan = Made(TestProblem(graph, 42 * 4, 20), options);
  std::map<int, int> of_first;  // devices of a stage, by its first one
  for (const v1::OperatorPlan& op : plan.operators()) {
    int& most = of_first[op.devices(0)];
    most = std::max(most, op.devices_size());
  }
  ASSERT_EQ(of_first.size(), 3u);
  for (const auto& [first, devices] : of_first) EXPECT_LE(devices, 7) << first;
}

// LowerPlan would refuse more when the job starts.
TEST(PipelineTest, MicroBatchesStayWithinProgramLimit) {
  const Graph graph = Llama(LargerLlama(4), 1024);
  const PlanProblem problem = TestProblem(graph, 1024, 4);
  v1::SearchOptions options;
  options.set_pipeline_stages(2);
  const auto micro_batches = [&](double most) {
    const absl::StatusOr<Pipeline> found = PlanPipeline(problem, 4, options, 0, most);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->planning->structure().micro_batches : 0;
  };
  const double of_one = EstimateInstructions(2.0 * static_cast<double>(graph.nodes().size()), 1);
  EXPECT_GT(micro_batches(kMaxInstructions), 4);
  EXPECT_LE(micro_batches(4 * of_one), 4);
  EXPECT_EQ(micro_batches(1), 2);  // kept for inspection
}

TEST(MeshPlannerTest, MicroBatchesStayWithinProgramLimit) {
  constexpr int kDevices = 4096;
  const Graph graph = Llama(SmallLlama(16), 64 * kDevices, 4);
  const PlanProblem problem = TestProblem(graph, 64 * kDevices, kDevices);
  const double nodes = static_cast<double>(graph.nodes().size());
  ASSERT_GT(EstimateInstructions(nodes * kDevices, 8), kMaxInstructions);
  MeshPlanner planner(problem, kDevices, {}, {}, /*budget=*/1);
  bool pipelines = false;
  for (const MeshShape& shape : planner.Shapes(0, 0)) {
    EXPECT_LE(EstimateInstructions(nodes * shape.data * shape.tensor, shape.micro_batches),
              kMaxInstructions)
        << ToString(shape);
    pipelines = pipelines || (shape.stages == 8 && shape.micro_batches > 8);
  }
  EXPECT_TRUE(pipelines);
}

TEST(RenderTest, LayersShareALineAndAlternativesAreShown) {
  const Graph graph = Llama(SmallLlama(8));
  const v1::Plan plan =
      Made(TestProblem(graph, 8, 2), WithStrategy(v1::SearchOptions::DATA_PARALLEL));
  const std::string text = RenderPlan(plan);
  EXPECT_NE(text.find("layers.0-7.mlp.up_proj"), std::string::npos) << text;
  EXPECT_NE(text.find("sample×2"), std::string::npos) << text;
  EXPECT_NE(text.find("single device"), std::string::npos) << text;
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 45) << text;
}

TEST(FingerprintTest, ChangesWithWhatThePlanDependsOn) {
  EXPECT_EQ(GraphFingerprint(Mlp()), GraphFingerprint(Mlp()));
  EXPECT_NE(GraphFingerprint(Mlp(8)), GraphFingerprint(Mlp(16)));
  EXPECT_NE(GraphFingerprint(Mlp(8, 16)), GraphFingerprint(Mlp(8, 32)));
  EXPECT_NE(GraphFingerprint(Mlp()), GraphFingerprint(Cnn()));
}

// A plan is made without the weights that training adds, and followed with them.
TEST(FingerprintTest, OnlyWeightsThatTrainingAddsAreLeftOut) {
  const auto with = [](ValueKind kind, bool added, int64_t size) {
    Graph graph = Mlp();
    graph.AddValue({.name = "example_weights",
                    .type = {DType::kF32, {size}},
                    .kind = kind,
                    .example_weights = added});
    return GraphFingerprint(graph);
  };
  EXPECT_EQ(with(ValueKind::kInput, true, 8), GraphFingerprint(Mlp()));
  EXPECT_NE(with(ValueKind::kInput, false, 8), GraphFingerprint(Mlp()));
  EXPECT_NE(with(ValueKind::kInput, false, 8), with(ValueKind::kInput, false, 16));
  EXPECT_NE(with(ValueKind::kParameter, false, 8), GraphFingerprint(Mlp()));
  EXPECT_NE(with(ValueKind::kParameter, false, 8), with(ValueKind::kParameter, false, 16));
}

}  // namespace
}  // namespace espalier
