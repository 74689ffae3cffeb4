#include "server/jobs/fit_inputs.h"

#include <gtest/gtest.h>

#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

// x[B, 6] and labels[B] -> a loss; the dataset has these examples.
absl::StatusOr<Graph> Fitted(const Dims& x, const Dims& labels) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  GraphBuilder builder(registry, "m");
  const ValueId w = builder.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 1});
  const ValueId logits = builder.Op("linear", {builder.Input("x", DType::kF32, {-1, 6}), w});
  builder.Output("loss", builder.Op("sparse_categorical_crossentropy",
                                    {logits, builder.Input("labels", DType::kI32, {-1})}));
  Graph graph = *builder.Build();
  absl::Status status = BindAndInfer(registry, 4, &graph);
  if (!status.ok()) return status;
  Column features{.name = "x", .example = {DType::kF32, x}};
  features.data.resize(8 * static_cast<size_t>(features.example.bytes()));
  Column classes{.name = "y", .example = {DType::kI32, labels}};
  classes.data.resize(8 * static_cast<size_t>(classes.example.bytes()));
  auto dataset = Dataset::FromColumns({features, classes}, 0);
  if (!dataset.ok()) return dataset.status();
  status = FitInputs(registry, {{"x", "x"}, {"labels", "y"}}, **dataset, &graph);
  if (!status.ok()) return status;
  return graph;
}

Dims DimsIn(const Graph& graph, const std::string& name) {
  const ValueId value = graph.FindValue(name);
  return value == kNoValue ? Dims{} : graph.value(value).type.dims;
}

TEST(FitInputsTest, DimensionsOfSizeOneAreAddedAndRemoved) {
  const absl::StatusOr<Graph> graph = Fitted({1, 6, 1}, {1});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(DimsIn(*graph, "x"), (Dims{4, 1, 6, 1}));
  EXPECT_EQ(DimsIn(*graph, "labels"), (Dims{4, 1}));
  for (const Node& node : graph->nodes()) {
    if (node.op != "sparse_categorical_crossentropy") continue;
    EXPECT_EQ(graph->value(node.inputs[0]).type.dims, (Dims{4, 3}));
    EXPECT_EQ(graph->value(node.inputs[1]).type.dims, (Dims{4}));
  }
  EXPECT_EQ(graph->nodes().size(), 4u);  // a squeeze for each input
}

TEST(FitInputsTest, OtherShapesStayAsTheyAre) {
  const absl::StatusOr<Graph> same = Fitted({6}, {});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->nodes().size(), 2u);
  const absl::StatusOr<Graph> other = Fitted({2, 3}, {2});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(DimsIn(*other, "x"), (Dims{4, 6}));
  EXPECT_EQ(DimsIn(*other, "labels"), (Dims{4}));
}

}  // namespace
}  // namespace espalier
