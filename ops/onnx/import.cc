#include "ops/onnx/import.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier {
namespace {

using onnx_import::TranslationTable;
using onnx_import::Translator;

constexpr int64_t kMinOpset = 13;
constexpr int64_t kMaxOpset = 18;

absl::StatusOr<int> OpsetOf(const onnx::ModelProto& model) {
  for (const onnx::OperatorSetIdProto& opset : model.opset_import()) {
    if (!opset.domain().empty() && opset.domain() != "ai.onnx") continue;
    if (opset.version() < kMinOpset || opset.version() > kMaxOpset) {
      return absl::UnimplementedError(absl::StrCat("ONNX opset ", opset.version(),
                                                   " is not read; export with opset ", kMinOpset,
                                                   " to ", kMaxOpset));
    }
    return static_cast<int>(opset.version());
  }
  return absl::InvalidArgumentError(
      "the ONNX model names no opset (field opset_import of domain \"\")");
}

absl::StatusOr<Dims> InputDims(const onnx::ValueInfoProto& input) {
  if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ONNX input '", input.name(), "' is no tensor with a known rank"));
  }
  Dims dims;
  for (const auto& dim : input.type().tensor_type().shape().dim()) {
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      dims.push_back(dim.dim_value());
    } else if (dims.empty() && !dim.has_dim_value()) {
      dims.push_back(-1);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX input '", input.name(), "': dimension ", dims.size(),
                       " is symbolic or negative; only dimension 0 (the batch) may be symbolic"));
    }
  }
  return dims;
}

absl::Status AddInputs(const onnx::GraphProto& graph, Translator* translator) {
  std::set<std::string> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    if (!initializers.insert(tensor.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX initializer '", tensor.name(), "' stands in the model twice"));
    }
    translator->AddInitializer(tensor);
    if (!translator->ok()) return translator->status();
  }
  if (graph.sparse_initializer_size() > 0) {
    return absl::UnimplementedError("sparse ONNX initializers are not read");
  }
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (initializers.count(input.name()) > 0) continue;  // IR 3 lists initializers as inputs too
    absl::StatusOr<Dims> dims = InputDims(input);
    if (!dims.ok()) return dims.status();
    const DType dtype = onnx_import::FromOnnx(input.type().tensor_type().elem_type());
    if (dtype == DType::kInvalid) {
      return absl::UnimplementedError(
          absl::StrCat("ONNX input '", input.name(), "' has element type ",
                       input.type().tensor_type().elem_type(), ", which is not taken"));
    }
    translator->AddInput(input.name(), dtype, *dims);
  }
  return absl::OkStatus();
}

// Names go into messages whose strings must be UTF-8.
absl::Status CheckNames(const Graph& graph) {
  const auto valid = [](const std::string& text) {
    return google::protobuf::internal::IsStructurallyValidUTF8(text.data(),
                                                               static_cast<int>(text.size()));
  };
  bool good = valid(graph.name);
  for (const Value& value : graph.values()) good = good && valid(value.name);
  for (const Node& node : graph.nodes()) good = good && valid(node.name);
  for (const auto& [name, value] : graph.outputs) good = good && valid(name);
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError("the ONNX model has names that are not valid UTF-8");
}

const TranslationTable& Translations() {
  static const TranslationTable* const table = [] {
    auto* built = new TranslationTable;
    onnx_import::RegisterNeuralNetwork(built);
    onnx_import::RegisterArithmetic(built);
    onnx_import::RegisterShape(built);
    return built;
  }();
  return *table;
}

absl::Status Translate(const onnx::GraphProto& graph, int opset, Translator* translator) {
  for (const onnx::NodeProto& node : graph.node()) {
    translator->Begin(node, opset);
    if (node.output_size() == 0) translator->Fail("has no output");
    const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
    auto it = standard ? Translations().find(node.op_type()) : Translations().end();
    if (it == Translations().end()) {
      std::string known;
      for (const auto& [name, translate] : Translations()) {
        absl::StrAppend(&known, known.empty() ? "" : ", ", name);
      }
      translator->Refuse(absl::StrCat("operator '", standard ? "" : node.domain() + ".",
                                      node.op_type(), "' is not known; known are ", known));
    } else if (translator->ok()) {
      it->second(*translator);
    }
    if (!translator->ok()) return translator->status();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Graph> ImportOnnx(const OpRegistry& registry, const std::string& bytes) {
  onnx::ModelProto model;
  if (!model.ParseFromString(bytes) || !model.has_graph()) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", bytes.size(),
                     " bytes are no complete ONNX model: the file is cut short, damaged or of "
                     "another format"));
  }
  absl::StatusOr<int> opset = OpsetOf(model);
  if (!opset.ok()) return opset.status();
  Graph graph;
  graph.name = model.graph().name().empty() ? "onnx" : model.graph().name();
  graph.metadata["source"] = "onnx";
  Translator translator(registry, &graph);
  if (absl::Status status = AddInputs(model.graph(), &translator); !status.ok()) return status;
  if (absl::Status status = Translate(model.graph(), *opset, &translator); !status.ok()) {
    return status;
  }
  for (const onnx::ValueInfoProto& output : model.graph().output()) {
    const ValueId value = translator.Find(output.name());
    if (value == kNoValue) {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX output '", output.name(), "' is computed by no node"));
    }
    graph.outputs.emplace_back(output.name(), value);
  }
  if (graph.outputs.empty()) return absl::InvalidArgumentError("the ONNX model has no output");
  if (absl::Status status = CheckNames(graph); !status.ok()) return status;
  return graph;
}

}  // namespace espalier
