#include "ops/onnx/model_inputs.h"

#include <memory>
#include <set>
#include <utility>

#include "ops/onnx/model_file.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier {

absl::StatusOr<std::vector<OnnxInput>> OnnxInputsOf(const std::string& bytes) {
  const absl::StatusOr<std::unique_ptr<onnx_import::ModelFile>> file =
      onnx_import::ReadModelFile(onnx_import::MemoryFile(bytes), /*folder=*/"");
  if (!file.ok()) return file.status();
  const onnx::GraphProto& graph = (*file)->model.graph();
  std::set<std::string> initialized;
  for (const onnx::TensorProto& tensor : graph.initializer()) initialized.insert(tensor.name());
  std::vector<OnnxInput> inputs;
  for (const onnx::ValueInfoProto& value : graph.input()) {
    if (initialized.contains(value.name())) continue;  // IR 3 lists initializers as inputs, too
    const onnx::TypeProto::Tensor& type = value.type().tensor_type();
    OnnxInput& input = inputs.emplace_back();
    input.name = value.name();
    input.dtype = onnx_import::FromOnnx(type.elem_type());
    if (!type.has_shape()) continue;
    input.dims.emplace();
    for (const auto& dim : type.shape().dim()) {
      input.dims->push_back(dim.has_dim_value() && dim.dim_value() >= 0 ? dim.dim_value() : -1);
    }
  }
  return inputs;
}

}  // namespace espalier
