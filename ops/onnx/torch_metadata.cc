#include "ops/onnx/torch_metadata.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier::onnx_import {

const std::string* FindProperty(
    const google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& properties,
    absl::string_view key) {
  for (const onnx::StringStringEntryProto& property : properties) {
    if (property.key() == key) return &property.value();
  }
  return nullptr;
}

std::map<std::string, TorchTensor> TorchTensorsOf(const onnx::GraphProto& graph) {
  std::map<std::string, TorchTensor> tensors;
  const std::string* text =
      FindProperty(graph.metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature");
  if (text == nullptr) return tensors;
  // Lines such as "p_fc_weight: PARAMETER target='fc.weight'".
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    for (const char* kind : {"PARAMETER", "BUFFER"}) {
      const std::pair<absl::string_view, absl::string_view> halves =
          absl::StrSplit(line, absl::MaxSplits(absl::StrCat(": ", kind, " target='"), 1));
      const absl::string_view target = halves.second.substr(0, halves.second.find('\''));
      if (!target.empty()) tensors[std::string(halves.first)] = {kind, std::string(target)};
    }
  }
  return tensors;
}

}  // namespace espalier::onnx_import
