#include "ops/onnx/folded_layers.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier::onnx_import {
namespace {

constexpr char kRemedy[] = "; export the model in training mode (docs/guide/onnx.md)";

// A word of its own: "bn" of "layer1/bn1/Conv" and "conv+bn", not of "subnet".
bool HasBn(absl::string_view name) {
  for (size_t at = name.find("bn"); at != absl::string_view::npos; at = name.find("bn", at + 1)) {
    const bool begins = at == 0 || !absl::ascii_isalpha(name[at - 1]);
    const bool ends = at + 2 == name.size() || !absl::ascii_isalpha(name[at + 2]);
    if (begins && ends) return true;
  }
  return false;
}

bool NamesBatchNorm(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return HasBn(lower) || absl::StrContains(lower, "batchnorm") ||
         absl::StrContains(lower, "batch_norm");
}

// What the nodes of the graph, its bodies and functions show.
struct LayersSeen {
  bool batch_norm = false;
  bool inference_batch_norm = false;
  bool dropout = false;
  bool random = false;                         // dropout may be written out
  std::vector<const onnx::NodeProto*> linear;  // Conv, ConvTranspose, Gemm, MatMul
};

void Look(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, LayersSeen* seen) {
  for (const onnx::NodeProto& node : nodes) {
    const std::string& op = node.op_type();
    if (op == "BatchNormalization") {
      seen->batch_norm = true;
      // With training_mode, or before opset 14 with more outputs, it is one of training.
      bool training = node.output_size() > 1;
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.name() == "training_mode" && attribute.i() != 0) training = true;
      }
      if (!training) seen->inference_batch_norm = true;
    }
    seen->dropout = seen->dropout || op == "Dropout";
    seen->random = seen->random || op == "Bernoulli" || absl::StartsWith(op, "Random");
    if (op == "Conv" || op == "ConvTranspose" || op == "Gemm" || op == "MatMul") {
      seen->linear.push_back(&node);
    }
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) Look(attribute.g().node(), seen);
      for (const onnx::GraphProto& body : attribute.graphs()) Look(body.node(), seen);
    }
  }
}

// PyTorch's first exporter names a weight and bias that it computed "onnx::Conv_12"; it computes
// both only to fold BatchNormalization into them.
bool IsFoldedByPyTorch(const onnx::NodeProto& node) {
  return (node.op_type() == "Conv" || node.op_type() == "ConvTranspose") && node.input_size() > 2 &&
         absl::StartsWith(node.input(1), "onnx::") && absl::StartsWith(node.input(2), "onnx::");
}

// PyTorch's newer exporter lists the module's buffers, used or not.
bool ListsRunningMean(const onnx::GraphProto& graph) {
  const auto& properties = graph.metadata_props();
  return std::any_of(properties.begin(), properties.end(), [](const auto& property) {
    return property.key() == "pkg.torch.export.ExportedProgram.graph_signature" &&
           absl::StrContains(property.value(), "running_mean' persistent");
  });
}

// The first layer that shows a folded BatchNormalization, or a description of one; empty if none
// does.
std::string FoldedBatchNorm(const onnx::ModelProto& model, const LayersSeen& seen) {
  if (seen.batch_norm) return "";
  for (const onnx::NodeProto* node : seen.linear) {
    if (IsFoldedByPyTorch(*node)) return absl::StrCat("'", node->name(), "'");
    std::vector<std::string> names = {node->name()};
    // Input 0 is what another layer computed.
    for (int i = 1; i < node->input_size(); ++i) names.push_back(node->input(i));
    names.insert(names.end(), node->output().begin(), node->output().end());
    for (const std::string& name : names) {
      if (NamesBatchNorm(name)) return absl::StrCat("'", node->name(), "' ('", name, "')");
    }
  }
  return ListsRunningMean(model.graph()) ? "a layer, whose running mean the file still names" : "";
}

}  // namespace

std::vector<std::string> NotesOnFoldedLayers(const onnx::ModelProto& model) {
  LayersSeen seen;
  Look(model.graph().node(), &seen);
  for (const onnx::FunctionProto& function : model.functions()) Look(function.node(), &seen);
  std::vector<std::string> notes;
  const std::string folded = FoldedBatchNorm(model, seen);
  const bool tensorflow = model.producer_name() == "tf2onnx";
  if (!folded.empty()) {
    notes.push_back(absl::StrCat("the exporter has folded BatchNormalization into the weights of ",
                                 folded, ", so training does not normalise", kRemedy));
  } else if (tensorflow && !seen.batch_norm &&
             std::any_of(seen.linear.begin(), seen.linear.end(),
                         [](const auto* node) { return node->op_type() == "Conv"; })) {
    notes.push_back(absl::StrCat(
        "tf2onnx folds BatchNormalization into convolutions, and the file has none: if the model "
        "has, training does not normalise",
        kRemedy));
  }
  if (seen.inference_batch_norm) {
    notes.push_back(
        "BatchNormalization is in inference mode in the file: training normalises by the batch all "
        "the same, and moves the running statistics");
  }
  const bool inference = seen.inference_batch_norm || !folded.empty() || tensorflow;
  if (inference && !seen.dropout && !seen.random && model.producer_name() != "espalier") {
    notes.push_back(absl::StrCat(
        "the model was exported for inference, which leaves out dropout: if the model has dropout, "
        "training does without it",
        kRemedy));
  }
  return notes;
}

}  // namespace espalier::onnx_import
