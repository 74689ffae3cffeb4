// The programs of many placements are consistent; see planner/testing/program_check.h.
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/rank_program.h"
#include "planner/search/search_space.h"
#include "planner/testing/graphs.h"
#include "planner/testing/program_check.h"

namespace espalier {
namespace {

LoweringOptions Options(double clip = 1.0) {
  LoweringOptions options;
  options.optimizer = TestOptimizer(clip);
  options.seed = 7;
  return options;
}

v1::Plan PlanOf(const Graph& graph, int devices, v1::SearchOptions::Strategy strategy) {
  absl::StatusOr<v1::Plan> plan = MakePlan(TestProblem(graph, 8, devices), WithStrategy(strategy));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

int Count(const v1::Program& program, v1::Instruction::KindCase kind) {
  int count = 0;
  for (const v1::Instruction& i : program.instructions()) count += i.kind_case() == kind;
  return count;
}

// Elements that count towards the gradient norm, on all devices.
int64_t SquaredElements(const std::vector<v1::Program>& programs) {
  int64_t elements = 0;
  for (const v1::Program& program : programs) {
    for (const v1::Instruction& i : program.instructions()) {
      if (i.compute().op() != "sum_squares") continue;
      const auto& dims = program.buffers(i.compute().inputs(0)).spec().dims();
      elements += NumElements({dims.begin(), dims.end()});
    }
  }
  return elements;
}

int64_t TrainedElements(const Graph& graph) {
  int64_t elements = 0;
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter && value.trainable) {
      elements += value.type.num_elements();
    }
  }
  return elements;
}

TEST(LowerPlanTest, FixedStrategiesGiveConsistentPrograms) {
  for (const Graph& graph : {Mlp(), Cnn(), Llama(SmallLlama()), Llama(SmallLlama(2, true))}) {
    for (int devices : {1, 2, 4}) {
      for (auto strategy : {v1::SearchOptions::DATA_PARALLEL, v1::SearchOptions::SINGLE_DEVICE}) {
        absl::StatusOr<LoweredPlan> lowered =
            LowerPlan(TestRegistry(), graph, PlanOf(graph, devices, strategy), Options());
        ASSERT_TRUE(lowered.ok()) << lowered.status();
        EXPECT_EQ(CheckPrograms(lowered->training), absl::OkStatus()) << graph.name;
        EXPECT_EQ(CheckPrograms(lowered->evaluation), absl::OkStatus()) << graph.name;
      }
    }
  }
}

constexpr int kForwardOnly = 4;  // added to the ZeRO stage

// Covers every way in which neighbors can disagree: any degrees, any devices.
TEST(LowerPlanTest, RandomPlacementsGiveConsistentPrograms) {
  const Graph graphs[] = {Mlp(),
                          Mlp(64, 64, 32, 10),
                          Cnn(),
                          Llama(SmallLlama(1)),
                          Llama(SmallLlama(1, true)),
                          Llama(LargerLlama(1, true))};
  for (const Graph& graph : graphs) {
    for (int stage : {0, 1, 2, 3, kForwardOnly, kForwardOnly + 3}) {
      const bool forward_only = stage >= kForwardOnly;
      absl::StatusOr<PcgStructure> structure =
          BuildStructure(TestRegistry(), graph, forward_only, stage % kForwardOnly);
      ASSERT_TRUE(structure.ok()) << structure.status();
      const SearchSpace space(*structure, {.num_devices = 4});
      Random random(11);
      for (int round = 0; round < 40; ++round) {
        ConfigTable table(*structure);
        Placement placement(structure->nodes.size(), nullptr);
        for (NodeId n : structure->LiveNodes()) {
          placement[n] = table.Get(n, space.Draw(n, &random));
        }
        std::vector<int64_t> kept;
        absl::StatusOr<std::vector<v1::Program>> programs =
            LowerPlacement(*structure, placement, table, 4, Options(), &kept);
        ASSERT_TRUE(programs.ok()) << programs.status();
        ASSERT_EQ(CheckPrograms(*programs), absl::OkStatus())
            << graph.name << " stage " << stage << " round " << round;
        if (!forward_only) {
          ASSERT_EQ(SquaredElements(*programs), TrainedElements(graph))
              << "stage " << stage << " round " << round;
        }
      }
    }
  }
}

// Programs rewritten to fit a device are still consistent, whatever is split.
TEST(LowerPlanTest, MemoryLimitsAreMetByOffloadAndTiling) {
  int rewritten = 0, refused = 0;
  const Graph graphs[] = {Mlp(), Cnn(64), Llama(SmallLlama(3), 16, 32),
                          Llama(LargerLlama(2, true), 8)};
  for (const Graph& graph : graphs) {
    for (int stage : {0, 1, 2, 3, kForwardOnly, kForwardOnly + 3}) {
      const bool forward_only = stage >= kForwardOnly;
      absl::StatusOr<PcgStructure> structure =
          BuildStructure(TestRegistry(), graph, forward_only, stage % kForwardOnly);
      ASSERT_TRUE(structure.ok()) << structure.status();
      const SearchSpace space(*structure, {.num_devices = 3});
      Random random(23);
      for (int round = 0; round < 30; ++round) {
        ConfigTable table(*structure);
        Placement placement(structure->nodes.size(), nullptr);
        MemoryLimits limits;
        for (NodeId n : structure->LiveNodes()) {
          placement[n] = table.Get(n, space.Draw(n, &random));
          limits.node_seconds[structure->graph().node(n).name] = 1e-4;
        }
        std::vector<int64_t> kept;
        absl::StatusOr<std::vector<v1::Program>> programs =
            LowerPlacement(*structure, placement, table, 3, Options(round % 2), &kept);
        ASSERT_TRUE(programs.ok()) << programs.status();
        for (const v1::Program& program : *programs) {
          limits.bytes.push_back(program.arena_bytes() * (70 + round) / 100);
        }
        if (round % 3 == 0) limits.options.set_host_bandwidth(1e6);
        limits.options.set_disable_recompute(round % 5 == 0);
        limits.options.set_max_batch_tiles(round % 12 == 5 ? 8 : 1);
        kept.clear();
        MemoryFit made;
        programs = LowerPlacement(*structure, placement, table, 3, Options(round % 2), &kept,
                                  &limits, &made);
        if (absl::IsResourceExhausted(programs.status())) {
          ++refused;
          continue;
        }
        ASSERT_TRUE(programs.ok()) << programs.status();
        ASSERT_EQ(CheckPrograms(*programs), absl::OkStatus()) << graph.name << " round " << round;
        for (const v1::Program& program : *programs) {
          ASSERT_LE(program.arena_bytes(), limits.bytes[program.rank()]);
          rewritten += made.memory[program.rank()].evictions_size() > 0;
        }
      }
    }
  }
  EXPECT_GT(rewritten, 20);
  EXPECT_GT(refused, 0);
}

int Computed(const std::vector<v1::Program>& programs) {
  int count = 0;
  for (const v1::Program& program : programs) {
    count += Count(program, v1::Instruction::kCompute);
  }
  return count;
}

// Tiled operators read what was written for them, whatever else is split.
TEST(LowerPlanTest, BatchTilesAreConsistent) {
  const Graph graphs[] = {Mlp(1024), Cnn(64), Llama(SmallLlama(2), 32, 32),
                          Llama(LargerLlama(2, true), 16)};
  for (const Graph& graph : graphs) {
    for (int stage : {0, 3, kForwardOnly}) {
      const bool forward_only = stage >= kForwardOnly;
      absl::StatusOr<PcgStructure> structure =
          BuildStructure(TestRegistry(), graph, forward_only, stage % kForwardOnly);
      ASSERT_TRUE(structure.ok()) << structure.status();
      const SearchSpace space(*structure, {.num_devices = 3});
      Random random(29);
      int tiled = 0;
      for (int round = 0; round < 4; ++round) {
        ConfigTable table(*structure);
        Placement placement(structure->nodes.size(), nullptr);
        for (NodeId n : structure->LiveNodes()) {
          placement[n] = round == 0 ? table.Get(n, DataParallel(structure->nodes[n].rule, 3))
                                    : table.Get(n, space.Draw(n, &random));
        }
        int whole = 0;
        for (int tiles : {1, 2, 8}) {
          std::vector<int64_t> kept;
          absl::StatusOr<std::vector<v1::Program>> programs = LowerPlacement(
              *structure, placement, table, 3, Options(), &kept, nullptr, nullptr, tiles);
          ASSERT_TRUE(programs.ok()) << programs.status();
          ASSERT_EQ(CheckPrograms(*programs), absl::OkStatus())
              << graph.name << " stage " << stage << " round " << round << ", " << tiles;
          if (tiles == 1) whole = Computed(*programs);
          tiled += Computed(*programs) > whole;
          if (!forward_only) {
            ASSERT_EQ(SquaredElements(*programs), TrainedElements(graph));
          }
        }
      }
      EXPECT_GT(tiled, 0) << graph.name << " stage " << stage;
    }
  }
}

// Each parameter element is updated on each replica, each data region is loaded as needed, and each
// scalar is reported once per partial sum.
TEST(LowerPlanTest, DataParallelReplicatesParametersAndSplitsTheBatch) {
  const Graph graph = Mlp(8);
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(
      TestRegistry(), graph, PlanOf(graph, 2, v1::SearchOptions::DATA_PARALLEL), Options());
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const v1::Program& program : lowered->training) {
    EXPECT_EQ(Count(program, v1::Instruction::kUpdate), 3);
    EXPECT_EQ(Count(program, v1::Instruction::kLoadBatch), 2);
    EXPECT_EQ(Count(program, v1::Instruction::kSend), 0);
    // One bucket of gradients and the norm.
    EXPECT_EQ(Count(program, v1::Instruction::kCollective), 2);
    // loss, accuracy; the norm by the first rank only.
    EXPECT_EQ(Count(program, v1::Instruction::kReport), program.rank() == 0 ? 3 : 2);
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.name() == "x") {
        EXPECT_EQ(buffer.spec().dims(0), 4);
        EXPECT_EQ(buffer.spec().offset(0), program.rank() * 4);
        EXPECT_EQ(buffer.spec().global(0), 8);
      }
      if (buffer.name() == "fc1.weight") {
        EXPECT_EQ(buffer.spec().dims(0), 16);
      }
    }
  }
  for (const v1::Program& program : lowered->evaluation) {
    EXPECT_EQ(Count(program, v1::Instruction::kUpdate), 0);
    EXPECT_EQ(Count(program, v1::Instruction::kReport), 2);
  }
}

// A head that no loss depends on: its parameters are kept, and saved once.
TEST(LowerPlanTest, ParametersThatNothingReadsAreKeptOnOneRank) {
  GraphBuilder b(TestRegistry(), "two_heads");
  const ValueId x = b.Input("x", DType::kF32, {-1, 12});
  const ValueId labels = b.Input("labels", DType::kI32, {-1});
  const Initializer init{Initializer::kNormal, 0.1};
  const ValueId h = b.Op("linear", {x, b.Parameter("w", DType::kF32, {4, 12}, init)});
  b.Output("other", b.Op("linear", {x, b.Parameter("aux", DType::kF32, {6, 12}, init)}));
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {h, labels}, {}, "loss"));
  const Graph graph = Bound(b.Build(), 8);
  for (auto strategy : {v1::SearchOptions::DATA_PARALLEL, v1::SearchOptions::SEARCH}) {
    absl::StatusOr<LoweredPlan> lowered =
        LowerPlan(TestRegistry(), graph, PlanOf(graph, 2, strategy), Options());
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    for (const auto& programs : {lowered->training, lowered->evaluation}) {
      EXPECT_EQ(CheckPrograms(programs), absl::OkStatus());
      int kept = 0;
      for (const v1::Program& program : programs) {
        for (const v1::Buffer& buffer : program.buffers()) {
          if (buffer.name() != "aux") continue;
          ++kept;
          EXPECT_EQ(buffer.kind(), v1::PARAMETER_SHARD);
          EXPECT_EQ(buffer.initializer().kind(), v1::Initializer::NORMAL);
          EXPECT_FALSE(buffer.saved_elsewhere());
        }
      }
      EXPECT_EQ(kept, 1);
    }
  }
}

class EvaluationTest : public testing::TestWithParam<int> {};

TEST_P(EvaluationTest, RunsInTheTrainingArena) {
  const Graph graph = Llama(LargerLlama(2));
  v1::Plan plan = PlanOf(graph, 2, v1::SearchOptions::DATA_PARALLEL);
  plan.set_zero_stage(GetParam());
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, plan, Options());
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (int rank = 0; rank < 2; ++rank) {
    std::map<std::string, int64_t> offsets;
    int64_t kept_end = 0;
    for (const v1::Buffer& b : lowered->training[rank].buffers()) {
      // The learning-rate schedule is written before every step.
      if (b.kind() == v1::SCRATCH || b.kind() == v1::SCHEDULE) continue;
      offsets[b.name()] = b.offset_bytes();
      kept_end = std::max(kept_end, b.offset_bytes() + 1);
    }
    for (const v1::Buffer& b : lowered->evaluation[rank].buffers()) {
      if (b.kind() == v1::SCRATCH) {
        EXPECT_GE(b.offset_bytes(), kept_end) << b.name();
      } else {
        ASSERT_EQ(offsets.count(b.name()), 1u) << b.name();
        EXPECT_EQ(offsets[b.name()], b.offset_bytes()) << b.name();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ZeroStages, EvaluationTest, testing::Values(0, 1, 2, 3));

// At ZeRO stage 3, gathered copies die with their use.
TEST(LowerPlanTest, Zero3FreesGatheredParametersAfterUse) {
  const Graph graph = Llama(LargerLlama(2, true));
  v1::Plan plan = PlanOf(graph, 2, v1::SearchOptions::DATA_PARALLEL);
  plan.set_zero_stage(3);
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, plan, Options());
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  for (const v1::Program& program : lowered->training) {
    std::map<int, std::string> reader;  // gathered buffer -> the operator that reads it
    std::map<std::string, int> times;   // parameter -> number of gathers
    for (const v1::Instruction& i : program.instructions()) {
      if (i.has_collective() && i.collective().kind() == v1::CollectiveInstruction::ALL_GATHER) {
        const int output = i.collective().output();
        const std::string& name = program.buffers(i.collective().input()).name();
        if (graph.FindValue(name) == kNoValue) continue;
        ++times[name];
        reader[output] = "";
      }
      for (int input : i.compute().inputs()) {
        const auto found = reader.find(input);
        if (found == reader.end()) continue;
        EXPECT_EQ(found->second, "")
            << program.buffers(input).name() << " is read again by " << i.compute().op();
        found->second = i.compute().op();
      }
    }
    EXPECT_EQ(times["model.layers.0.mlp.up_proj.weight"], 2);
    EXPECT_EQ(times["model.embed_tokens.weight"], 3);  // twice forward, once backward
  }
}

// Without clipping no value depends on all gradients: each is used as soon as it is complete, and
// its memory is reused. No later instruction reads the updated parameter.
TEST(LowerPlanTest, UpdatesRunEarlyWithoutClipping) {
  for (const Graph& graph : {Mlp(), Cnn(), Llama(SmallLlama()), Llama(SmallLlama(2, true))}) {
    const v1::Plan plan = PlanOf(graph, 1, v1::SearchOptions::SINGLE_DEVICE);
    const auto at_once = LowerPlan(TestRegistry(), graph, plan, Options(0));
    const auto clipped = LowerPlan(TestRegistry(), graph, plan, Options(1));
    ASSERT_TRUE(at_once.ok() && clipped.ok()) << at_once.status() << clipped.status();
    const v1::Program& program = at_once->training[0];
    EXPECT_LT(program.arena_bytes(), clipped->training[0].arena_bytes()) << graph.name;
    EXPECT_EQ(Count(program, v1::Instruction::kUpdate),
              Count(clipped->training[0], v1::Instruction::kUpdate));
    std::set<int> moved;
    bool early = false;
    for (const v1::Instruction& i : program.instructions()) {
      for (int input : i.compute().inputs()) {
        EXPECT_EQ(moved.count(input), 0u) << graph.name << ": " << i.compute().op() << " reads "
                                          << program.buffers(input).name() << " after its update";
      }
      early = early || (i.has_compute() && !moved.empty());
      if (i.has_update()) moved.insert(i.update().parameter());
    }
    EXPECT_TRUE(early) << graph.name;
  }
}

TEST(LowerPlanTest, IsAFunctionOfItsArguments) {
  const Graph graph = Cnn();
  v1::SearchOptions search;
  search.set_budget(500);
  absl::StatusOr<v1::Plan> plan = MakePlan(TestProblem(graph, 8, 4), search);
  ASSERT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<LoweredPlan> a = LowerPlan(TestRegistry(), graph, *plan, Options());
  absl::StatusOr<LoweredPlan> b = LowerPlan(TestRegistry(), graph, *plan, Options());
  ASSERT_TRUE(a.ok() && b.ok());
  for (size_t r = 0; r < a->training.size(); ++r) {
    EXPECT_EQ(a->training[r].ShortDebugString(), b->training[r].ShortDebugString());
    EXPECT_EQ(a->evaluation[r].ShortDebugString(), b->evaluation[r].ShortDebugString());
  }
}

TEST(LowerPlanTest, RefusesAPlanThatDoesNotFit) {
  const Graph graph = Mlp();
  v1::Plan plan = PlanOf(graph, 2, v1::SearchOptions::DATA_PARALLEL);
  plan.mutable_devices(1)->set_memory_bytes(1000);
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph, plan, Options());
  EXPECT_EQ(lowered.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(lowered.status().message()).find("device 1 needs"), std::string::npos);
}

// Rejected before any is written: they would exhaust the coordinator's memory.
TEST(LowerPlanTest, RefusesProgramsOfTooManyInstructions) {
  constexpr int kDevices = 512;
  const Graph graph = Mlp(int64_t{kDevices} * 4096);
  v1::Plan plan = PlanOf(Mlp(), 1, v1::SearchOptions::SINGLE_DEVICE);
  plan.set_graph_fingerprint(GraphFingerprint(graph));
  plan.set_batch_size(int64_t{kDevices} * 4096);
  plan.set_micro_batches(4096);
  while (plan.devices_size() < kDevices) *plan.add_devices() = plan.devices(0);
  for (v1::OperatorPlan& op : *plan.mutable_operators()) {
    (*op.mutable_degrees())["sample"] = kDevices;
    op.clear_devices();
    for (int d = 0; d < kDevices; ++d) op.add_devices(d);
  }
  const absl::Status status = LowerPlan(TestRegistry(), graph, plan, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("in 4096 micro-batches on 512 devices"), std::string::npos)
      << status;
}

// Otherwise ranks would update their copies of a shared statistic a different number of times.
TEST(LowerPlanTest, NormsThatShareRunningStatisticsMustSplitEqually) {
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
  const Graph graph = Bound(b.Build(), 8);
  const v1::Plan alike = PlanOf(graph, 4, v1::SearchOptions::DATA_PARALLEL);
  EXPECT_TRUE(LowerPlan(TestRegistry(), graph, alike, Options()).ok());
  v1::Plan apart = alike;
  for (v1::OperatorPlan& op : *apart.mutable_operators()) {
    if (op.node() != "second") continue;
    (*op.mutable_degrees())["sample"] = 2;
    op.mutable_devices()->Truncate(2);
  }
  const absl::Status status = LowerPlan(TestRegistry(), graph, apart, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("operators 'first' and 'second' share the running statistic "
                                  "'running_mean'"),
            std::string::npos)
      << status;
  // The search finds a valid placement.
  v1::SearchOptions search;
  search.set_budget(400);
  absl::StatusOr<v1::Plan> found = MakePlan(TestProblem(graph, 8, 4), search);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(LowerPlan(TestRegistry(), graph, *found, Options()).ok());
}

TEST(LowerPlanTest, RefusesAnOptimizerWithoutName) {
  const Graph graph = Mlp();
  LoweringOptions options;
  EXPECT_EQ(
      LowerPlan(TestRegistry(), graph, PlanOf(graph, 1, v1::SearchOptions::SINGLE_DEVICE), options)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
