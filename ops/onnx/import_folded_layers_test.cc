// Tests what the import says about layers that an exporter has left out.
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string NotesOf(const Model& model) {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  ImportReport report;
  const absl::StatusOr<Graph> graph =
      ImportOnnx(Operators(), model.proto.SerializeAsString(), options, &report);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return absl::StrJoin(report.notes, "\n");
}

// x[N, 2, 4, 4], convolved with weight and bias of these names.
Model Convolution(const std::string& node, const std::string& weight, const std::string& bias,
                  const std::string& producer = "pytorch") {
  onnx::NodeProto conv = Node("Conv", {"x", weight, bias}, {"y"});
  conv.set_name(node);
  Model model({conv}, {Tensor(weight, {1, 2, 1, 1}, Floats{1, 2}), Tensor(bias, {1}, Floats{1})},
              {kBatch, 2, 4, 4});
  model.proto.set_producer_name(producer);
  return model;
}

TEST(ImportTest, FoldedBatchNormIsReported) {
  const auto reported = AllOf(HasSubstr("folded BatchNormalization"), HasSubstr("dropout"),
                              HasSubstr("training mode"));
  EXPECT_THAT(NotesOf(Convolution("/0/Conv", "onnx::Conv_10", "onnx::Conv_11")), reported);
  EXPECT_THAT(NotesOf(Convolution("conv1+bn1", "w", "b", "tflite2onnx")), reported);
  EXPECT_THAT(NotesOf(Convolution("m/conv/Conv2D", "w", "m/batch_normalization/add:0", "x")),
              reported);
  EXPECT_THAT(NotesOf(Convolution("m/conv/Conv2D", "w", "b", "tf2onnx")),
              AllOf(HasSubstr("tf2onnx"), HasSubstr("dropout")));
  // Weight normalisation computes the weight alone; a word such as "subnet" is no name of a layer.
  EXPECT_EQ(NotesOf(Convolution("/subnet/Conv", "onnx::Conv_10", "0.bias")), "");
  Model signature = Convolution("node_conv2d", "0.weight", "0.bias");
  onnx::StringStringEntryProto* property = signature.proto.mutable_graph()->add_metadata_props();
  property->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  property->set_value("b_1_running_mean: BUFFER target='1.running_mean' persistent=True\n");
  EXPECT_THAT(NotesOf(signature), reported);
}

TEST(ImportTest, ModelsInInferenceModeHaveNoDropout) {
  const std::vector<onnx::TensorProto> values = {
      Tensor("bn.weight", {2}, Floats{1, 1}), Tensor("bn.bias", {2}, Floats{0, 0}),
      Tensor("bn.running_mean", {2}, Floats{0, 0}), Tensor("bn.running_var", {2}, Floats{1, 1})};
  const Names inputs = {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"};
  EXPECT_THAT(
      NotesOf(Model({Node("BatchNormalization", inputs, {"y"})}, values)),
      AllOf(HasSubstr("normalises by the batch"), HasSubstr("dropout"), Not(HasSubstr("folded"))));
  EXPECT_THAT(
      NotesOf(Model({Node("BatchNormalization", inputs, {"h"}), Node("Dropout", {"h"}, {"y"})},
                    values)),
      Not(HasSubstr("dropout")));
  onnx::NodeProto training =
      Node("BatchNormalization", inputs, {"y", "mean", "var"}, "training_mode", 1);
  EXPECT_EQ(NotesOf(Model({training}, values)), "");
}

}  // namespace
}  // namespace espalier::import_fixture
