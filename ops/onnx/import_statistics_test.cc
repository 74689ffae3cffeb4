// Tests which layers share running statistics.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

// Exporters merge equal initializers: the initial scale and variance, bias and mean.
TEST(ImportTest, RunningStatisticsAreNotShared) {
  const Model model({Node("BatchNormalization", {"x", "one", "zero", "zero", "one"}, {"h"}),
                     Node("BatchNormalization", {"h", "scale", "bias", "mean", "one"}, {"y"})},
                    {Tensor("one", {2}, Floats{1, 1}), Tensor("zero", {2}, Floats{0, 0}),
                     Tensor("scale", {2}, Floats{2, 2}), Tensor("bias", {2}, Floats{1, 1}),
                     Tensor("mean", {2}, Floats{0, 0})});
  absl::StatusOr<Graph> graph = model.Import();
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::map<ValueId, int> readers;
  for (const espalier::Node& node : graph->nodes()) {
    for (ValueId v : node.inputs) ++readers[v];
  }
  int layers = 0;
  for (const espalier::Node& node : graph->nodes()) {
    if (node.op != "batch_norm") continue;
    ++layers;
    for (int i : {1, 2}) EXPECT_TRUE(graph->value(node.inputs[i]).trainable) << i;
    for (int i : {3, 4}) {
      EXPECT_EQ(graph->value(node.inputs[i]).kind, ValueKind::kParameter);
      EXPECT_FALSE(graph->value(node.inputs[i]).trainable) << i;
      EXPECT_EQ(readers[node.inputs[i]], 1) << i;
    }
  }
  EXPECT_EQ(layers, 2);
  for (const char* name : {"one", "zero", "scale", "bias"}) {
    const ValueId value = graph->FindValue(name);
    ASSERT_NE(value, kNoValue) << name;
    EXPECT_TRUE(graph->value(value).trainable) << name;
  }
  // A parameter with one reader keeps its name.
  ASSERT_NE(graph->FindValue("mean"), kNoValue);
  EXPECT_FALSE(graph->value(graph->FindValue("mean")).trainable);
  const float unit = 1 / std::sqrt(1 + 1e-5f);
  EXPECT_THAT(Result(model, 1, Floats{1, 2}), ElementsAre(FloatNear(2 * unit * unit + 1, 1e-5f),
                                                          FloatNear(4 * unit * unit + 1, 1e-5f)));
}

// Names of the running mean and variance of each norm.
std::vector<Names> RunningStatistics(const Model& model) {
  const absl::StatusOr<Graph> graph = model.Import();
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<Names> found;
  if (!graph.ok()) return found;
  for (const espalier::Node& node : graph->nodes()) {
    if (node.op != "batch_norm") continue;
    found.emplace_back();
    for (int i : {3, 4}) {
      const Value& value = graph->value(node.inputs[i]);
      EXPECT_EQ(value.kind, ValueKind::kParameter) << value.name;
      EXPECT_FALSE(value.trainable) << value.name;
      found.back().push_back(value.name);
    }
  }
  return found;
}

std::set<std::string> Different(const std::vector<Names>& lists) {
  std::set<std::string> names;
  for (const Names& list : lists) names.insert(list.begin(), list.end());
  return names;
}

// All new layers with the same number of channels have equal values; sharing merged values does not
// make them one layer.
TEST(ImportTest, LayersWithMergedValuesHaveOwnStatistics) {
  const std::vector<onnx::TensorProto> merged = {
      Tensor("one", {2}, Floats{1, 1}), Tensor("zero", {2}, Floats{0, 0}),
      Tensor("mean", {2}, Floats{0, 0}), Tensor("var", {2}, Floats{1, 1})};
  const auto two_that_read = [&](const Names& layer) {
    std::vector<onnx::NodeProto> nodes;
    for (const auto& [from, to] : {std::pair("x", "h"), std::pair("h", "y")}) {
      nodes.push_back(Node("BatchNormalization", {from}, {to}));
      for (const std::string& name : layer) nodes.back().add_input(name);
    }
    return nodes;
  };
  // In the last two only one pair was equal.
  for (const Names& layer :
       {Names{"one", "zero", "zero", "one"}, Names{"one", "zero", "mean", "one"},
        Names{"one", "zero", "zero", "var"}}) {
    const std::vector<Names> found = RunningStatistics(Model(two_that_read(layer), merged));
    EXPECT_EQ(found.size(), 2u);
    EXPECT_EQ(Different(found).size(), 4u) << layer[2] << ", " << layer[3];
  }
  // Layers without scale and bias, whose constants do not identify them.
  std::vector<onnx::NodeProto> nodes;
  for (const auto& [name, number] : {std::pair("c1", 1.0f), std::pair("c0", 0.0f)}) {
    nodes.push_back(Node("Constant", {}, {name}));
    *AddAttribute(&nodes.back(), "value")->mutable_t() = Tensor("", {2}, Floats{number, number});
  }
  for (const onnx::NodeProto& norm : two_that_read({"c1", "c0", "mean", "var"})) {
    nodes.push_back(norm);
  }
  const std::vector<Names> found = RunningStatistics(Model(nodes, merged));
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(Different(found).size(), 4u);
}

// A siamese network, applied to two inputs, has one running mean, which both update.
TEST(ImportTest, LayerAppliedTwiceSharesItsStatistics) {
  const auto inputs_of_norms = [](const std::string& scale_of_second) {
    return RunningStatistics(
        Model({Node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"a"}),
               Node("BatchNormalization", {"a", scale_of_second, "bias", "mean", "var"}, {"y"})},
              {Tensor("scale", {2}, Floats{2, 2}), Tensor("other", {2}, Floats{3, 3}),
               Tensor("bias", {2}, Floats{1, 1}), Tensor("mean", {2}, Floats{0, 0}),
               Tensor("var", {2}, Floats{1, 1})}));
  };
  EXPECT_THAT(inputs_of_norms("scale"),
              ElementsAre(ElementsAre("mean", "var"), ElementsAre("mean", "var")));
  const std::vector<Names> apart = inputs_of_norms("other");
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_THAT(apart[0], ElementsAre("mean", "var"));
  EXPECT_NE(apart[1][0], "mean");
  EXPECT_NE(apart[1][1], "var");
}

}  // namespace
}  // namespace espalier::import_fixture
