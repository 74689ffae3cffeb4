#include "planner/testing/zoo/zoo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "ops/graph/precision.h"
#include "planner/pcg/micro_batches.h"
#include "planner/pcg/structure.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

int64_t TrainedParameters(const Graph& graph) {
  int64_t count = 0;
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter && value.trainable) count += value.type.num_elements();
  }
  return count;
}

// Work of the forward pass of one example.
double ForwardFlops(const Graph& graph, int64_t batch) {
  double flops = 0;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    const OpDef* def = TestRegistry().Find(graph.node(n).op);
    if (def->cost) flops += def->cost(graph.TypesOf(n)).flops;
  }
  return flops / static_cast<double>(batch);
}

struct PublishedWork {
  std::string model;
  double gmacs = 0;  // multiply-adds of one example, in 1e9
};

const std::vector<PublishedWork>& AllPublishedWork() {
  static const auto* const work = new std::vector<PublishedWork>{
      // torchvision's table of models
      {"alexnet", 0.714},
      {"resnet50", 4.089},
      {"inception_v3", 5.713},
      // GPT-3's paper, table D.1: one per parameter and token, without attention
      {"gpt3_13b", 12.85 * 2048},
      {"gpt3_175b", 174.6 * 2048},
  };
  return *work;
}

Graph BoundAtItsBatch(const ZooModel& model) {
  return Bound(model.build(TestRegistry()), model.batch_per_device);
}

class EveryModel : public testing::TestWithParam<ZooModel> {};

TEST_P(EveryModel, HasThePublishedNumberOfParameters) {
  const Graph graph = BoundAtItsBatch(GetParam());
  const double published = static_cast<double>(GetParam().published_parameters);
  EXPECT_NEAR(static_cast<double>(TrainedParameters(graph)), published,
              published * GetParam().parameter_tolerance);
}

TEST_P(EveryModel, TrainsAllOfItsParametersThroughAllOfItsOperators) {
  const Graph graph = BoundAtItsBatch(GetParam());
  const absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), graph, false);
  ASSERT_TRUE(structure.ok()) << structure.status();
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    EXPECT_NE(structure->nodes[n].def, nullptr) << graph.node(n).name << " is dead";
  }
  std::set<ValueId> moved;
  for (const PcgStructure::GradientInfo& info : structure->gradients) moved.insert(info.parameter);
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kParameter || !value.trainable) continue;
    EXPECT_EQ(moved.count(v), 1u) << value.name << " has no gradient";
  }
}

TEST_P(EveryModel, TrainsInBf16) {
  absl::StatusOr<Graph> graph =
      WithPrecision(TestRegistry(), BoundAtItsBatch(GetParam()), DType::kBF16);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), *graph, false);
  ASSERT_TRUE(structure.ok()) << structure.status();
  // Norms, sums and the loss stay in f32; they are little of the work.
  double narrow = 0, all = 0;
  for (NodeId n = 0; n < static_cast<NodeId>(graph->nodes().size()); ++n) {
    const OpDef* def = TestRegistry().Find(graph->node(n).op);
    const double flops = def->cost ? def->cost(graph->TypesOf(n)).flops : 0;
    all += flops;
    if (graph->TypesOf(n).outputs[0].dtype == DType::kBF16) narrow += flops;
  }
  EXPECT_GT(narrow, 0.98 * all);
}

// Every model can be pipelined, except those whose batch norm needs the whole batch at once.
TEST_P(EveryModel, RunsInMicroBatchesUnlessItHasBatchNorm) {
  const Graph graph = Bound(GetParam().build(TestRegistry()), 2 * GetParam().batch_per_device);
  absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), graph, false);
  ASSERT_TRUE(structure.ok()) << structure.status();
  const absl::Status cut = SplitIntoMicroBatches(2, &*structure);
  bool has_batch_norm = false;
  for (const Node& node : graph.nodes()) has_batch_norm |= node.op == "batch_norm";
  if (has_batch_norm) {
    EXPECT_THAT(std::string(cut.message()), testing::HasSubstr("batch_norm"));
  } else {
    EXPECT_TRUE(cut.ok()) << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, EveryModel, testing::ValuesIn(Zoo()),
                         [](const auto& info) { return info.param.name; });

class EveryPublishedWork : public testing::TestWithParam<PublishedWork> {};

TEST_P(EveryPublishedWork, MatchesGraphCost) {
  const ZooModel& model = *FindZooModel(GetParam().model);
  const double gmacs = ForwardFlops(BoundAtItsBatch(model), model.batch_per_device) / 2e9;
  EXPECT_NEAR(gmacs, GetParam().gmacs, 0.1 * GetParam().gmacs);
}

INSTANTIATE_TEST_SUITE_P(Zoo, EveryPublishedWork, testing::ValuesIn(AllPublishedWork()),
                         [](const auto& info) { return info.param.model; });

TEST(Zoo, FindsEveryModelByItsName) {
  for (const ZooModel& model : Zoo()) EXPECT_EQ(FindZooModel(model.name), &model);
  EXPECT_EQ(FindZooModel("perceptron"), nullptr);
}

TEST(Zoo, TableOfModels) {
  std::printf("%-14s %6s %9s %14s %14s %12s %12s\n", "model", "batch", "operators", "parameters",
              "published", "GMAC/example", "published");
  for (const ZooModel& model : Zoo()) {
    const Graph graph = BoundAtItsBatch(model);
    std::printf("%-14s %6lld %9zu %14lld %14lld %12.4g", model.name.c_str(),
                static_cast<long long>(model.batch_per_device), graph.nodes().size(),
                static_cast<long long>(TrainedParameters(graph)),
                static_cast<long long>(model.published_parameters),
                ForwardFlops(graph, model.batch_per_device) / 2e9);
    const auto published = absl::c_find_if(
        AllPublishedWork(), [&](const PublishedWork& work) { return work.model == model.name; });
    published == AllPublishedWork().end() ? std::printf(" %12s\n", "-")
                                          : std::printf(" %12.4g\n", published->gmacs);
  }
}

// The size of the axis of `kind` that dimension `dim` of operand `input` follows, or 0.
int64_t SizeOfAxis(const Graph& graph, NodeId n, int input, int dim, AxisKind kind) {
  const SplitRule rule = TestRegistry().Find(graph.node(n).op)->split(graph.TypesOf(n));
  const int axis = rule.inputs[input][dim];
  return axis == kNotSplit || rule.axes[axis].kind != kind ? 0 : rule.axes[axis].size;
}

// Megatron's plan: the first of two linear layers is column-parallel, the second row-parallel, so
// that nothing is exchanged between them; attention is split by heads.
TEST(Zoo, TransformersSplitAsMegatronDoes) {
  for (const char* name : {"bert_large", "gpt3_13b", "gpt3_175b", "moe"}) {
    const Graph graph = BoundAtItsBatch(*FindZooModel(name));
    int columns = 0, rows = 0;
    for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
      const Node& node = graph.node(n);
      if (node.op != "linear") continue;
      const int64_t out = graph.value(node.inputs[1]).type.dims[0],
                    in = graph.value(node.inputs[1]).type.dims[1];
      if (absl::EndsWith(node.name, ".up") || absl::EndsWith(node.name, ".query")) {
        EXPECT_EQ(SizeOfAxis(graph, n, 1, 0, AxisKind::kParameter), out) << node.name;
        ++columns;
      } else if (absl::EndsWith(node.name, ".down") || absl::EndsWith(node.name, ".output")) {
        EXPECT_EQ(SizeOfAxis(graph, n, 1, 1, AxisKind::kReduction), in) << node.name;
        ++rows;
      }
    }
    EXPECT_GT(columns, 0) << name;
    EXPECT_EQ(columns, rows) << name;
  }
}

TEST(Zoo, ExpertsOfAMixtureAreSpreadOverDevices) {
  const Graph graph = BoundAtItsBatch(*FindZooModel("moe"));
  int layers = 0;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    if (graph.node(n).op != "batch_matmul") continue;
    ++layers;
    EXPECT_EQ(SizeOfAxis(graph, n, /*input=*/1, /*dim=*/0, AxisKind::kSample), 32);
    EXPECT_EQ(SizeOfAxis(graph, n, /*input=*/0, /*dim=*/0, AxisKind::kSample), 32);
  }
  EXPECT_EQ(layers, 16);
}

}  // namespace
}  // namespace espalier
