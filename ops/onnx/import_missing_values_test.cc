// Parameters that an exporter left without values (PyTorch's export_params=False).
#include <map>
#include <string>

#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// A convolution, its norm and a linear layer whose tensors are inputs of the graph.
Model WithoutValues() {
  Model model(
      {Node("Conv", {"x", "c.weight", "c.bias"}, {"c"}),
       Node("BatchNormalization", {"c", "n.weight", "n.bias", "n.running_mean", "n.running_var"},
            {"n"}, "training_mode", 1),
       Node("Flatten", {"n"}, {"f"}), Node("Add", {"f", "shift"}, {"s"}),
       Node("Gemm", {"s", "l.weight", "l.bias"}, {"y"})},
      {}, {kBatch, 3, 2, 2});
  const std::map<std::string, Int64s> shapes = {{"c.weight", {4, 3, 2, 2}},
                                                {"c.bias", {4}},
                                                {"n.weight", {4}},
                                                {"n.bias", {4}},
                                                {"n.running_mean", {4}},
                                                {"n.running_var", {4}},
                                                {"shift", {4}},
                                                {"l.weight", {4, 5}},
                                                {"l.bias", {5}}};
  for (const auto& [name, dims] : shapes) {
    Declare(name, onnx::TensorProto::FLOAT, dims, model.proto.mutable_graph()->add_input());
  }
  return model;
}

// What is found without data for anything but `data`, "name: initializer".
std::vector<std::string> Found(const std::set<std::string>& data,
                               const std::set<std::string>& parameters, Names* notes = nullptr) {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.has_data = [&](const std::string& input) { return data.count(input) > 0; };
  options.parameters = parameters;
  ImportReport report;
  const absl::StatusOr<Graph> graph =
      ImportOnnx(Operators(), WithoutValues().proto.SerializeAsString(), options, &report);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> found;
  if (!graph.ok()) return found;
  for (const Value& value : graph->values()) {
    if (value.kind != ValueKind::kParameter) continue;
    const ImportReport::Initializer& decided = report.initializers[value.name];
    EXPECT_EQ(decided.trained, value.trainable) << value.name;
    const char* start = value.initializer.kind == Initializer::kGlorotUniform ? "glorot"
                        : value.initializer.kind == Initializer::kOnes        ? "1"
                        : value.initializer.kind == Initializer::kZeros       ? "0"
                                                                              : "?";
    found.push_back(value.name + ": " + start + (value.trainable ? "" : ", not trained"));
  }
  if (notes != nullptr) *notes = report.notes;
  return found;
}

TEST(ImportMissingValues, InputsThatAreOnlyWeightsStartFromInitializers) {
  Names notes;
  EXPECT_THAT(
      Found({"x"}, {}, &notes),
      UnorderedElementsAre("c.weight: glorot", "c.bias: 0", "n.weight: 1", "n.bias: 0",
                           "n.running_mean: 0, not trained", "n.running_var: 1, not trained",
                           "l.weight: glorot", "l.bias: 0"));
  EXPECT_THAT(notes, ElementsAre("4 parameters without values in the file start from 0: c.bias, "
                                 "l.bias, n.bias, n.running_mean",
                                 "2 parameters without values in the file start from 1: "
                                 "n.running_var, n.weight",
                                 "2 parameters without values in the file start from Glorot's "
                                 "uniform distribution: c.weight, l.weight"));
}

TEST(ImportMissingValues, TheUserSaysWhatIsDataAndWhatIsNot) {
  // "shift" is not named like a parameter.
  EXPECT_THAT(
      Found({"x", "l.bias", "c.weight", "n.weight", "n.bias"}, {"shift"}),
      UnorderedElementsAre("c.bias: 0", "n.running_mean: 0, not trained",
                           "n.running_var: 1, not trained", "l.weight: glorot", "shift: 0"));
}

TEST(ImportMissingValues, AreDataWhereNothingIsKnownOfTheData) {
  const absl::StatusOr<Graph> graph = WithoutValues().Import();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const Value& value : graph->values()) EXPECT_NE(value.kind, ValueKind::kParameter);
}

}  // namespace
}  // namespace espalier::import_fixture
