// What PyTorch's newer exporter (torch.onnx.export with dynamo=True) writes beside the graph.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

constexpr char kTorchInputKind[] = "pkg.torch.export.graph_signature.InputSpec.kind";
// Of a node: the traced operation that it belongs to, as text.
constexpr char kTorchOperation[] = "pkg.torch.onnx.fx_node";

// Null if there is none.
const std::string* FindProperty(
    const google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& properties,
    absl::string_view key);

struct TorchTensor {
  std::string kind;    // PARAMETER or BUFFER
  std::string target;  // its name in the module, which is that of its initializer: "fc.weight"
};

// Parameters and buffers of the exported module, used or not, by the name that they have in the
// traced operations: "p_fc_weight". Empty for files of other exporters.
std::map<std::string, TorchTensor> TorchTensorsOf(const onnx::GraphProto& graph);

}  // namespace espalier::onnx_import
