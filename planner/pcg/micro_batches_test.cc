#include "planner/pcg/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "planner/pcg/pipeline_schedule.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

PcgStructure StructureOf(const Graph& graph) {
  return *BuildStructure(TestRegistry(), graph, /*forward_only=*/false);
}

TEST(SplitIntoMicroBatches, ShrinksBatchTensorsButNoParameters) {
  const Graph graph = Llama(SmallLlama(), /*batch=*/8, /*sequence=*/16);
  const PcgStructure whole = StructureOf(graph);
  PcgStructure part = whole;
  ASSERT_EQ(SplitIntoMicroBatches(4, &part), absl::OkStatus());
  EXPECT_EQ(part.micro_batches, 4);
  int cut = 0;
  for (size_t v = 0; v < whole.graph().values().size(); ++v) {
    const Value &before = whole.graph().values()[v], &after = part.graph().values()[v];
    const int dim = part.batch_dims[v];
    if (before.kind == ValueKind::kParameter) {
      EXPECT_EQ(dim, -1) << before.name;
    }
    if (dim >= 0) ++cut;
    for (size_t d = 0; d < before.type.dims.size(); ++d) {
      EXPECT_EQ(after.type.dims[d] * (static_cast<int>(d) == dim ? 4 : 1), before.type.dims[d])
          << before.name;
    }
  }
  EXPECT_GT(cut, 50);
  EXPECT_EQ(SplitIntoMicroBatches(1, &part), absl::OkStatus());
}

TEST(SplitIntoMicroBatches, ReportsTheBlockingOperator) {
  const auto error = [](const Graph& graph, int parts) {
    PcgStructure structure = StructureOf(graph);
    const absl::Status status = SplitIntoMicroBatches(parts, &structure);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(structure.micro_batches, 1);
    return std::string(status.message());
  };
  EXPECT_NE(error(Cnn(8), 2).find("operator 'bn' (batch_norm) reads tensor"), std::string::npos)
      << error(Cnn(8), 2);
  EXPECT_NE(error(Mlp(6), 4).find("has size 6"), std::string::npos) << error(Mlp(6), 4);
  EXPECT_NE(error(Mlp(6), 0).find("micro_batches is 0"), std::string::npos);

  // Permutes the rows of the batch: each depends on all others.
  GraphBuilder b(TestRegistry(), "turned");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8});
  ValueId h = b.Op(
      "linear", {x, b.Parameter("w", DType::kF32, {8, 8}, {Initializer::kNormal, 0.1})}, {}, "fc");
  h = b.Op("reverse", {h}, {{"axes", std::vector<int64_t>{0}}}, "turn");
  b.Output("loss", b.Op("mean_squared_error", {h, x}, {}, "loss"));
  EXPECT_NE(error(Bound(b.Build(), 8), 2).find("operator 'turn' (reverse) needs all of"),
            std::string::npos);
}

// A constant with a row per example is split; one that is read whole is not.
TEST(SplitIntoMicroBatches, ConstantsFollowTheirReaders) {
  GraphBuilder b(TestRegistry(), "constants");
  const ValueId x = b.Input("x", DType::kF32, {-1, 3});
  const ValueId rows = b.Constant("rows", DType::kF32, {8, 3}, std::string(8 * 3 * 4, '\0'));
  const ValueId row = b.Constant("row", DType::kF32, {3}, std::string(3 * 4, '\0'));
  ValueId h = b.Op(
      "linear", {x, b.Parameter("w", DType::kF32, {3, 3}, {Initializer::kNormal, 0.1})}, {}, "fc");
  h = b.Op("add", {b.Op("add", {h, rows}, {}, "a"), row}, {}, "b");
  b.Output("loss", b.Op("mean_squared_error", {h, x}, {}, "loss"));
  PcgStructure structure = StructureOf(Bound(b.Build(), 8));
  ASSERT_EQ(SplitIntoMicroBatches(2, &structure), absl::OkStatus());
  EXPECT_EQ(structure.BatchDim(rows), 0);
  EXPECT_EQ(structure.BatchDim(row), -1);
  EXPECT_EQ(structure.graph().value(rows).type.dims, (Dims{4, 3}));
}

// A chain with `layers` layers on each of `stages` devices.
struct Chain {
  Chain(int stages, int layers, int micro_batches) : graph(Make(stages * layers)) {
    structure = StructureOf(graph);
    EXPECT_EQ(SplitIntoMicroBatches(micro_batches, &structure), absl::OkStatus());
    ConfigTable table(structure);
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) {
      const int device = std::min(n / layers, stages - 1);
      placement[n] = table.Get(n, OnDevice(structure.nodes[n].rule, device));
    }
    stage_of = PipelineStagesOf(structure, placement, table.layouts(), stages);
    schedule = MakePipelineSchedule(structure, stage_of);
  }

  static Graph Make(int layers) {
    GraphBuilder b(TestRegistry(), "chain");
    const ValueId x = b.Input("x", DType::kF32, {-1, 4});
    ValueId h = x;
    for (int i = 0; i < layers; ++i) {
      h = b.Op("linear",
               {h, b.Parameter("w" + std::to_string(i), DType::kF32, {4, 4},
                               {Initializer::kNormal, 0.1})},
               {}, "fc" + std::to_string(i));
    }
    b.Output("loss", b.Op("mean_squared_error", {h, x}, {}, "loss"));
    return Bound(b.Build(), 48);
  }

  Graph graph;
  PcgStructure structure;
  std::vector<int> stage_of;
  std::vector<ScheduleItem> schedule;
};

TEST(MakePipelineSchedule, RunsEverythingOnceAndInOrder) {
  for (int stages : {1, 2, 4}) {
    for (int micro_batches : {1, 2, 3, 8, 16}) {
      const Chain chain(stages, 3, micro_batches);
      std::map<int, int> next;  // by micro-batch
      for (const ScheduleItem& item : chain.schedule) {
        EXPECT_EQ(item.first, next[item.micro_batch]);
        if (!item.transfers) next[item.micro_batch] = item.last;
      }
      EXPECT_EQ(next.size(), static_cast<size_t>(micro_batches));
      for (const auto& [m, end] : next) {
        EXPECT_EQ(end, static_cast<int>(chain.structure.positions.size()));
      }
    }
  }
}

// The schedule by its definition: of the segments that can begin first, the one that is furthest
// along.
std::vector<ScheduleItem> ByDefinition(const PcgStructure& structure,
                                       const std::vector<int>& stages) {
  struct Segment {
    int first, last, stage;
    bool backward;
  };
  std::vector<Segment> segments;
  for (int p = 0; p < static_cast<int>(stages.size()); ++p) {
    const bool backward = structure.positions[p].role != Position::kForward;
    if (segments.empty() || segments.back().stage != stages[p] ||
        segments.back().backward != backward) {
      segments.push_back({p, p, stages[p], backward});
    }
    segments.back().last = p + 1;
  }
  const int most = *std::max_element(stages.begin(), stages.end()) + 1;
  const auto is_end = [&](size_t s, bool first) {  // of its stage
    for (size_t o = 0; o < segments.size(); ++o) {
      if (segments[o].stage == segments[s].stage && (first ? o < s : o > s)) return false;
    }
    return true;
  };
  std::vector<size_t> next(structure.micro_batches, 0);
  std::vector<int64_t> ready(structure.micro_batches, 0), free(most, 0);
  std::vector<int> under_way(most, 0);
  std::vector<ScheduleItem> order;
  while (true) {
    int chosen = -1;
    int64_t start = 0;
    for (int m = 0; m < structure.micro_batches; ++m) {
      if (next[m] == segments.size()) continue;
      const int stage = segments[next[m]].stage;
      if (is_end(next[m], true) && under_way[stage] >= most - stage) continue;
      const int64_t at = std::max(ready[m], free[stage]);
      if (chosen >= 0 && (at > start || (at == start && next[m] <= next[chosen]))) continue;
      chosen = m;
      start = at;
    }
    if (chosen < 0) return order;
    const size_t s = next[chosen]++;
    under_way[segments[s].stage] += is_end(s, true) - is_end(s, false);
    ready[chosen] = free[segments[s].stage] = start + (segments[s].backward ? 2 : 1);
    order.push_back({segments[s].first, segments[s].last, chosen});
  }
}

TEST(MakePipelineSchedule, MatchesAReferenceSimulation) {
  for (int stages : {2, 3, 4}) {
    for (int micro_batches : {2, 3, 8, 24}) {
      const Chain chain(stages, 2, micro_batches);
      std::vector<ScheduleItem> runs;
      for (const ScheduleItem& item : chain.schedule) {
        if (!item.transfers) runs.push_back(item);
      }
      EXPECT_EQ(runs, ByDefinition(chain.structure, chain.stage_of))
          << stages << " stages, " << micro_batches << " micro-batches";
    }
  }
}

TEST(SplitIntoMicroBatches, RejectsTooManyMicroBatches) {
  const Chain chain(1, 2, 1);
  PcgStructure structure = StructureOf(chain.graph);
  const absl::Status status = SplitIntoMicroBatches(kMaxMicroBatches + 1, &structure);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("micro_batches is 4097; expected 1 to 4096"), std::string::npos)
      << status;
}

// 1F1B: stage s never holds activations of more than S - s micro-batches, and in the steady state
// the last stage alternates between forward and backward.
TEST(MakePipelineSchedule, StagesKeepTheMicroBatchLimitOf1F1B) {
  for (int stages : {2, 4}) {
    const int micro_batches = 16;
    const Chain chain(stages, 3, micro_batches);
    std::vector<std::set<int>> held(stages);
    std::vector<size_t> most(stages, 0);
    const int positions = static_cast<int>(chain.structure.positions.size());
    for (const ScheduleItem& item : chain.schedule) {
      for (int p = item.first; p < item.last && !item.transfers; ++p) {
        const int stage = chain.stage_of[p];
        held[stage].insert(item.micro_batch);
        most[stage] = std::max(most[stage], held[stage].size());
        // The last position of the stage for this micro-batch.
        bool last = true;
        for (int q = p + 1; q < positions; ++q) last = last && chain.stage_of[q] != stage;
        if (last) held[stage].erase(item.micro_batch);
      }
    }
    for (int s = 0; s < stages; ++s) {
      EXPECT_EQ(most[s], static_cast<size_t>(stages - s)) << "stage " << s << " of " << stages;
    }
  }
}

}  // namespace
}  // namespace espalier
